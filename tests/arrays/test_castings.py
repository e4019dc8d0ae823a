"""Casts of whole arrays: every function that casts against ``astype``, and the rules of `casting`.

Tests of: moving.relayout_calls, moving.rearranged_arrays, moving.numpy_copies, moving.requests, jobs.layout_jobs,
arrays.fills.
"""

from __future__ import annotations

import itertools
import pickle
import random
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from fastindex.moving.movements import movement_between
from fastindex.runtime.machine import EPYC_1M
from tests.cases import strategies
from tests.cases.cast_patterns import TODAY
from tests.commands import run_command
from tests.oracles import reference
from tests.oracles.comparison import clear_unused_bits

LAYOUTS = (
    "{1,0}",
    "{0,1}",
    "{1,0:T(8,128)}",
    "{1,0:T(8,128)(2,1)}",
    "{0,1:T(3,5)}",
    "{1,0:T(8,128)(4,1)}",
    "{1,0:T(*,4)}",
    "{1,0:T(7)}",
)
TYPES = ("f64", "f32", "f16", "bf16", "f8e4m3fn", "f8e8m0fnu", "f4e2m1fn", "s4", "u2", "s8", "u8", "s16", "u64", "pred")
PACKED = {"f4e2m1fn": "E(4)", "s4": "E(4)", "u2": "E(2)"}
SIZES = ((37, 150), (1, 1), (5, 7), (64, 256), (129, 65))


def bits(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def with_size(layout: str, element_type: str, is_packed: bool) -> str:
    """A layout with the bits of packed elements."""
    if not is_packed or element_type not in PACKED:
        return layout
    return f"{layout[:-1]}{'' if ':' in layout else ':'}{PACKED[element_type]}}}"


def cases() -> list[tuple[str, str, Any, int]]:
    rng = random.Random(strategies.FIRST_SEED)
    found = []
    for source, target in itertools.product(TYPES, TYPES):
        if (source, target) in TODAY:
            layouts = tuple(with_size(rng.choice(LAYOUTS), name, rng.random() < 0.4) for name in (source, target))
            found.append((source, target, (rng.choice(SIZES), layouts), rng.randrange(1 << 30)))
    return found


def numbers(name: str, target: str, dimensions: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Numbers that both types hold."""
    rng = np.random.default_rng(seed)
    dtype = fi.ElementType.of(name).numpy_dtype
    if name == "f8e8m0fnu":
        return (2.0 ** rng.integers(-3, 2, dimensions)).astype(dtype)
    if name == "pred":
        return np.asarray(rng.integers(0, 2, dimensions).astype(bool))
    high = 4 if "u2" in (name, target) else 5
    values = rng.integers(0, high, dimensions)
    return np.asarray(values.astype(dtype))


def as_type(values: NDArray[Any], name: str) -> NDArray[Any]:
    """What ``astype`` makes of numbers that the type holds; through f32 where ml_dtypes does not go straight."""
    dtype = fi.ElementType.of(name).numpy_dtype
    wide = np.asarray(values.astype(np.float32))
    if name in ("u2", "s4"):
        return np.asarray((wide.astype(np.int8).view(np.uint8) & (3 if name == "u2" else 15)).view(dtype))
    return np.asarray(wide.astype(dtype))


@pytest.mark.xdist_group("casts")
@pytest.mark.parametrize(("source", "target", "case", "seed"), cases())
def test_casts_within_any_move(source: str, target: str, case: Any, seed: int) -> None:
    """What is cast while it moves is what ``astype`` gives, moved by the definition, padding included."""
    dimensions, layouts = case
    shapes = [
        fi.Shape.parse(f"{name}[{','.join(map(str, dimensions))}]{layout}")
        for name, layout in zip((source, target), layouts, strict=True)
    ]
    values = numbers(source, target, dimensions, seed)
    reading = reference.parse(str(shapes[1]))

    def cleared(buffer: NDArray[Any]) -> bytes:
        return clear_unused_bits(reading, buffer.tobytes())

    wanted = as_type(values, target)
    expected = fi.pack(wanted, shapes[1])
    given = fi.pack(values, shapes[0])
    found = fi.relayout(given, *shapes, casting="unsafe")
    assert cleared(found) == cleared(expected)
    again = fi.pack(np.asfortranarray(values)[:, ::-1].copy()[:, ::-1], shapes[1], casting="unsafe")
    assert cleared(again) == cleared(expected)
    out = np.zeros((*dimensions, 2), wanted.dtype)[..., 0]
    fi.unpack(given, shapes[0], out=out, casting="unsafe")
    assert np.array_equal(bits(out), bits(wanted))
    moved = movement_between(*shapes)
    assert moved.cast is not None
    made = np.zeros(shapes[1].nbytes, np.uint8)
    moved.run_by_numpy(given.ctypes.data, made.ctypes.data, bytes(8))
    assert cleared(made) == cleared(expected)


def test_padding_is_the_fill_in_the_type_of_the_destination() -> None:
    text = "bf16[3,5]{1,0:T(4,4)}"
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    found = fi.pack(values, text, fill=-2.5)
    cells = reference.slots(reference.parse(text))
    assert found.astype(float).tolist() == [-2.5 if cell is None else values[cell] for cell in cells]
    assert fi.relayout(values, "f32[3,5]", "bf16[3,5]{1,0:PV(one)T(4,4)}").astype(float).min() == 0
    assert sum(fi.relayout(values + 2, "f32[3,5]", "bf16[3,5]{1,0:PV(one)T(4,4)}").astype(float) == 1) == 17


def test_plans_are_kept_and_go_through_pickle() -> None:
    plan = fi.plan_relayout("f32[300,500]", "bf16[300,500]{1,0:T(8,128)(2,1)}")
    assert plan is fi.plan_relayout("f32[300,500]", "bf16[300,500]{1,0:T(8,128)(2,1)}", casting="unsafe")
    assert pickle.loads(pickle.dumps(plan)) is plan
    unsafe = fi.plan_relayout("f32[30]", "s8[30]", casting="unsafe")
    assert pickle.loads(pickle.dumps(unsafe)) is unsafe
    values = np.random.default_rng(1).standard_normal(150_000).astype(np.float32)
    out = np.empty(plan.destination.slot_count, ml_dtypes.bfloat16)
    for _ in range(3):
        assert plan(values, out) is out
    wanted = fi.pack(values.astype(out.dtype).reshape(300, 500), plan.destination)
    assert np.array_equal(bits(out), bits(wanted))
    assert not plan.is_bitcast
    assert plan.candidates == ()
    assert "cast from f32 to bf16" in movement_between(plan.source, plan.destination, machine=EPYC_1M).describe()
    with pytest.raises(fi.UnsupportedError, match="tune compares"):
        plan.tune(values)


@pytest.mark.parametrize("rule", ["no", "equiv", "safe", "same_kind", "unsafe"])
@pytest.mark.parametrize(
    ("source", "target"),
    list(strategies.rotating(itertools.permutations(("u8", "s8", "s32", "f16", "f32", "f64"), 2))),
)
def test_rules(source: str, target: str, rule: Any) -> None:
    """Those of `numpy.can_cast`, in every function."""
    values = np.ones((3, 4), fi.ElementType.of(source).numpy_dtype)
    dtype = fi.ElementType.of(target).numpy_dtype
    calls = (
        lambda: fi.pack(values, f"{target}[3,4]", casting=rule),
        lambda: fi.unpack(values.reshape(-1), f"{source}[3,4]", dtype=target, casting=rule),
        lambda: fi.unpack(values.reshape(-1), f"{source}[3,4]", out=np.empty((3, 4), dtype), casting=rule),
        lambda: fi.relayout(values, f"{source}[3,4]", f"{target}[3,4]", casting=rule),
        lambda: fi.plan_relayout(f"{source}[3,4]", f"{target}[3,4]", casting=rule),
        lambda: fi.rearrange(values, "a b -> b a", dtype=dtype, casting=rule),
        lambda: fi.pack(values, f"{target}[3,4]", casting=rule, max_memory=64 << 30),
    )
    for call in calls:
        if np.can_cast(values.dtype, dtype, rule):
            call()
        else:
            with pytest.raises(fi.ArgumentTypeError, match=f"{source} is not cast to|needs an array of dtype"):
                call()


def test_what_is_no_cast() -> None:
    values = np.ones((3, 4), np.float32)
    with pytest.raises(fi.FastIndexError, match="casting must be 'no'"):
        fi.pack(values, "f32[3,4]", casting="some")  # type: ignore[arg-type]
    with pytest.raises(fi.ArgumentTypeError, match="got complex64"):
        fi.pack(values.astype(np.complex64), "f32[3,4]", casting="unsafe")
    with pytest.raises(fi.UnsupportedError, match="c64 is not cast"):
        fi.relayout(values, "f32[3,4]", "c64[3,4]", casting="unsafe")
    with pytest.raises(fi.FastIndexError, match="no element type is called 'f33'"):
        fi.unpack(values.reshape(-1), "f32[3,4]", dtype="f33")
    with pytest.raises(fi.ArgumentTypeError, match="no element type for the dtype object"):
        fi.rearrange(values.astype(object), "a b -> b a", dtype="f32")


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "float8_e5m2"])
def test_copies_are_those_of_numpy(dtype: str) -> None:
    target = fi.ElementType.from_dtype_name(dtype, "NumPy").numpy_dtype
    values = np.random.default_rng(2).standard_normal((300, 400)).astype(np.float32)
    for source in (values, values.T, values[::-1, ::2], np.broadcast_to(values[0], (300, 400))):
        for order in ("C", "F"):
            wanted, found = (np.empty(source.shape, target, order) for _ in range(2))
            with np.errstate(all="ignore"):
                np.copyto(wanted, source)
            fi.numpy.copyto(found, source)
            assert np.array_equal(bits(found), bits(wanted))


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.parametrize("rule", ["no", "safe", "same_kind", "unsafe", "some"])
@pytest.mark.parametrize(
    ("source", "target"), [("i8", "i1"), ("f4", "i1"), ("?", "f4"), ("i1", "u1"), ("f4", ml_dtypes.int4), ("c8", "f4")]
)
def test_copies_refuse_what_numpy_refuses(source: Any, target: Any, rule: Any) -> None:
    with np.errstate(all="ignore"):
        values = (np.random.default_rng(3).standard_normal((200, 100)) * 5).astype(source).T
        results = []
        for copy in (np.copyto, fi.numpy.copyto):
            made = np.zeros(values.shape, target)
            try:
                copy(made, values, casting=rule)
                results.append((None, made.tobytes()))
            except Exception as error:
                results.append((type(error), str(error)))
    assert results[0] == results[1]


@pytest.mark.in_turn(seconds=2)
def test_rearranged_while_cast() -> None:
    values = np.random.default_rng(4).standard_normal((300, 70)).astype(np.float32)
    for dtype in ("bf16", "float64", ml_dtypes.float8_e4m3fn, np.float16):
        for given in (values, values[::-1], values[:, ::2], values.astype(">f4")):
            found = fi.rearrange(given, "(a b) c -> b c a", b=4, dtype=dtype)
            wanted = given.reshape(75, 4, -1).transpose(1, 2, 0).astype(found.dtype)
            assert np.array_equal(bits(found), bits(wanted))
    padded = fi.rearrange(values, "(a b) c -> a b c", b=64, pad=True, fill=-3, dtype="bf16")
    assert (padded[4, 44:] == -3).all()
    out = np.zeros((140, 300), ">f8")[::2]
    assert fi.rearrange(values, "a b -> b a", out=out) is out
    assert np.array_equal(out, values.T)


@pytest.mark.in_turn(seconds=1.6)
def test_files(tmp_path: Path) -> None:
    values = np.random.default_rng(5).standard_normal((300, 500)).astype(np.float32)
    source, packed, other, back = (str(tmp_path / name) for name in ("a.npy", "b.bin", "c.bin", "d.npy"))
    np.save(source, values)
    tiled, turned = "bf16[300,500]{1,0:T(8,128)(2,1)}", "f64[300,500]{0,1}"
    commands = (
        ("pack", source, packed, "--shape", tiled),
        ("relayout", packed, other, "--from", tiled, "--to", turned),
        ("unpack", packed, back, "--shape", tiled, "--dtype", "f32"),
    )
    for command in commands:
        result = run_command(command)
        assert result.exit_code == 0, result.output
    rounded = values.astype(ml_dtypes.bfloat16)
    assert Path(packed).read_bytes() == fi.pack(rounded, tiled).tobytes()
    assert np.array_equal(np.fromfile(other).reshape(500, 300).T, rounded.astype(np.float64))
    assert np.array_equal(np.load(back), rounded.astype(np.float32))
    refused = run_command(("pack", source, str(tmp_path / "e"), "--shape", "s8[300,500]"))
    assert refused.exit_code == 1
    assert "casting='unsafe' allows it" in refused.output
    assert not (tmp_path / "e").exists()
    allowed = ("pack", source, str(tmp_path / "e"), "--shape", "s8[300,500]", "--casting", "unsafe")
    assert run_command(allowed).exit_code == 0
    assert (tmp_path / "e").read_bytes() == np.trunc(values).astype(np.int8).tobytes()


@pytest.mark.in_turn(seconds=1.2)
def test_memory_maps_in_bounded_memory(tmp_path: Path) -> None:
    values = np.random.default_rng(6).standard_normal((300, 500)).astype(np.float32)
    np.save(tmp_path / "a.npy", values)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    text = "s4[300,500]{1,0:T(64,128)(8,1)E(4)}"
    found = fi.pack(mapped, text, casting="unsafe", max_memory=64 << 30)
    assert np.array_equal(fi.unpack(found, text, dtype="f32", max_memory=64 << 30), np.clip(np.trunc(values), -8, 7))
    turned = fi.relayout(mapped, "f32[300,500]", "bf16[300,500]{0,1}", max_memory=64 << 30)
    assert np.array_equal(bits(turned), bits(values.T.astype(ml_dtypes.bfloat16)).reshape(-1))
