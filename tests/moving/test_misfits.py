"""Codes that a type of fewer than 8 bits does not hold: errors that name the first place, wherever elements are cast.

What fits is decided by NumPy's comparisons of Python's integers, and the place is that of `numpy.argwhere`.
"""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from fastindex.terminal import NoProgress

NARROW = {"u4": (0, 15), "s4": (-8, 7), "u2": (0, 3), "s2": (-2, 1), "u1": (0, 1), "s1": (-1, 0)}
#: Integers whose kind may become that of a narrow type without "unsafe".
SOURCES = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
PAIRS = [(a, b) for a, b in itertools.product(SOURCES, NARROW) if a[0] == "u" or b[0] == "s"]


def refused(call: Callable[[], Any], value: int, place: tuple[int, ...], name: str) -> None:
    low, high = NARROW[name]
    message = f"{name} holds integers from {low} to {high}, got {value} at {place}; casting='unsafe' keeps the low bits"
    with pytest.raises(fi.FastIndexError, match=re.escape(message)):
        call()


def low_bits(values: Any, bits: int) -> Any:
    return np.asarray(values).astype(np.int64).astype(np.uint8) & np.uint8((1 << bits) - 1)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_bound(source: str, target: str) -> None:
    """Few elements, which NumPy moves."""
    dtype, bits = fi.ElementType.of(source).numpy_dtype, fi.ElementType.of(target).bits
    (low, high), limits = NARROW[target], np.iinfo(dtype)
    inside = [n for n in range(low, high + 1) if limits.min <= n <= limits.max]
    for text in (f"{target}[{{}}]", f"{target}[{{}}]{{{{0:E({bits})}}}}", f"{target}[{{}}]{{{{0:T(4)E({bits})}}}}"):
        shape = fi.Shape.parse(text.format(len(inside)))
        packed = fi.pack(np.array(inside, dtype), shape)
        assert packed.tobytes() == fi.pack(np.array(inside, dtype), shape, casting="unsafe").tobytes()
        assert fi.unpack(packed, shape, dtype="s32").tolist() == inside
        for n in {low - 1, high + 1, limits.min, limits.max, low + 256, 1 << limits.bits - 2} - set(inside):
            if not limits.min <= n <= limits.max:
                continue
            values = np.array([inside[0], inside[-1], n, n], dtype)
            shape = fi.Shape.parse(text.format(4))
            refused(lambda values=values, shape=shape: fi.pack(values, shape), n, (2,), target)
            kept = fi.unpack(fi.pack(values, shape, casting="unsafe"), shape).view(np.uint8) & np.uint8((1 << bits) - 1)
            assert kept.tolist() == low_bits([v % 256 for v in values.tolist()], bits).tolist()


WAYS = [
    ("{1,0}", np.uint8),
    ("{0,1}", np.uint64),
    ("{1,0:E(4)}", np.uint8),
    ("{0,1:E(4)}", ml_dtypes.uint4),
    ("{1,0:T(8,128)E(4)}", np.int16),
    ("{1,0:T(16,100)(3,1)}", ml_dtypes.uint4),
    ("{0,1:T(3,7)E(4)}", np.uint8),
]


@pytest.mark.parametrize(("layout", "dtype"), WAYS)
def test_every_way_to_move(layout: str, dtype: Any) -> None:
    """As many elements as kernels move, with misfits in any place of a vector, and at the ends."""
    rng, sizes = np.random.default_rng(list(layout.encode())), (1203, 907)
    shape = fi.Shape.parse(f"s4[{sizes[0]},{sizes[1]}]{layout}")
    good = rng.integers(0, 8, sizes, dtype=np.uint8).astype(dtype)
    expected = fi.pack(good.astype(np.int8).astype(ml_dtypes.int4), shape).tobytes()
    assert fi.pack(good, shape).tobytes() == expected
    plan = fi.plan_relayout(f"{fi.ElementType.of(np.dtype(dtype))}[{sizes[0]},{sizes[1]}]", shape)
    travelled = pickle.loads(pickle.dumps(plan))
    for flat in (0, good.size - 1, *rng.integers(0, good.size, 4).tolist()):
        wrong = good.copy()
        wrong.reshape(-1)[[flat, -1]] = 15, 14
        for call, values in (
            (lambda values: fi.pack(values, shape), wrong),
            (lambda values: fi.pack(values, shape), wrong[::-1]),
            (lambda values: plan(values.reshape(-1)), wrong),
            (lambda values: travelled(values.reshape(-1)), wrong),
        ):
            refused(lambda call=call, values=values: call(values), *_first(values), "s4")
    # What one call has found is forgotten by the next.
    assert fi.pack(good, shape).tobytes() == expected
    assert fi.pack(wrong, shape, casting="unsafe").nbytes == shape.nbytes


def _first(values: Any) -> tuple[int, tuple[int, ...]]:
    numbers = values.astype(np.int64)
    place = tuple(map(int, np.argwhere((numbers < -8) | (numbers > 7))[0]))
    return int(numbers[place]), place


@pytest.mark.parametrize("layout", ["{1,0:T(8,128)}", "{0,1:T(3,7)}", "{1,0:T(16,100)(3,1)}"])
@pytest.mark.parametrize("sizes", [(5, 7), (1203, 907)])
def test_padding_holds_anything(layout: str, sizes: tuple[int, int]) -> None:
    values = np.random.default_rng(1).integers(0, 4, sizes, dtype=np.uint8)
    source = fi.Shape.parse(f"u8[{sizes[0]},{sizes[1]}]{layout}")
    slots = fi.pack(values, source, fill=255)
    for to in ("{1,0:E(2)}", "{0,1}", "{1,0:T(8,128)E(2)}"):
        target = fi.Shape.parse(f"u2[{sizes[0]},{sizes[1]}]{to}")
        expected = fi.pack(values.astype(ml_dtypes.uint2), target).tobytes()
        assert fi.relayout(slots, source, target).tobytes() == expected
    values[3, 4] = 200
    refused(lambda: fi.relayout(fi.pack(values, source, fill=255), source, target), 200, (3, 4), "u2")
    refused(lambda: fi.unpack(fi.pack(values, source, fill=255), source, dtype="u2"), 200, (3, 4), "u2")
    refused(lambda: fi.rearrange(values, "a b -> b a", dtype="u2"), 200, (3, 4), "u2")
    halves = "(a c) b -> b (a c)"
    refused(lambda: fi.rearrange(values, halves, c=4, dtype="u2", pad=True), 200, (3, 4), "u2")


def test_packed_codes_that_get_shorter() -> None:
    values = np.random.default_rng(2).integers(0, 4, (600, 801), dtype=np.uint8)
    four, two = (f"u{bits}[600,801]{{1,0:E({bits})}}" for bits in (4, 2))
    packed = fi.pack(values.astype(ml_dtypes.uint4), four)
    assert fi.relayout(packed, four, two).tobytes() == fi.pack(values.astype(ml_dtypes.uint2), two).tobytes()
    values[599, 800] = 4
    refused(lambda: fi.relayout(fi.pack(values, four), four, two), 4, (599, 800), "u2")


def test_bits_beside_those_of_an_element_do_not_matter() -> None:
    """ml_dtypes reads the low bits of a byte alone, and so do buffers of a type below a byte."""
    codes = np.array([0xF3, 0x1F, 0x08, 0x87], np.uint8)
    for dtype in (ml_dtypes.uint4, ml_dtypes.int4):
        values = codes.view(dtype)
        name = str(fi.ElementType.of(np.dtype(dtype)))
        packed = fi.pack(values, f"{name}[4]{{0:E(4)}}")
        assert packed.tolist() == [0xF3, 0x78]
        assert fi.relayout(codes, f"{name}[4]", f"{name}[4]{{0:E(4)}}").tolist() == [0xF3, 0x78]
        assert fi.unpack(packed, f"{name}[4]{{0:E(4)}}").tolist() == values.tolist()


@pytest.mark.parametrize("kind", ["u1", "s8", "i4"])
def test_bounded_memory_and_files(kind: str, tmp_path: Path) -> None:
    from fastindex.jobs.layout_jobs import pack_file, relayout_file, unpack_file

    source = {"u1": np.uint8, "s8": np.int8, "i4": np.int32}[kind]
    values = np.random.default_rng(3).integers(0, 8, (700, 900)).astype(source)
    shape = fi.Shape.parse("s4[700,900]{0,1:T(8,128)E(4)}")
    wide = fi.Shape.parse(f"{fi.ElementType.of(np.dtype(source))}[700,900]{{0,1:T(5,9)}}")
    np.save(tmp_path / "good.npy", values)
    pack_file(str(tmp_path / "good.npy"), str(tmp_path / "good"), shape, NoProgress(), 1 << 33)
    assert (tmp_path / "good").read_bytes() == fi.pack(values, shape).tobytes()
    values[431, 17] = 100
    np.save(tmp_path / "a.npy", values)
    fi.pack(values, wide).tofile(tmp_path / "wide")
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    arguments, memory = ((431, 17), "s4"), {"memory_bytes": 1 << 33}
    refused(lambda: fi.pack(mapped, shape, max_memory=1 << 33), 100, *arguments)
    target = str(tmp_path / "b")
    names = str(tmp_path / "a.npy"), str(tmp_path / "wide")
    refused(lambda: pack_file(names[0], target, shape, NoProgress(), **memory), 100, *arguments)
    refused(lambda: relayout_file(names[1], target, wide, shape, NoProgress(), **memory), 100, *arguments)
    refused(lambda: unpack_file(names[1], target, wide, NoProgress(), **memory, dtype="s4"), 100, *arguments)
    assert not (tmp_path / "b").exists()
    pack_file(names[0], target, shape, NoProgress(), **memory, casting="unsafe")
    assert (tmp_path / "b").read_bytes() == fi.pack(values, shape, casting="unsafe").tobytes()


def test_checkpoints(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.numpy").save_file
    values = np.random.default_rng(4).integers(0, 16, (64, 48), dtype=np.uint8)
    rules = [{"names": "w", "dtype": "u4"}]
    save_file({"w": values}, tmp_path / "good.safetensors")
    fi.weights.pack_checkpoint(tmp_path / "good.safetensors", tmp_path / "good", rules)
    values[33, 7] = 200
    save_file({"w": values}, tmp_path / "bad.safetensors")
    refused(
        lambda: fi.weights.pack_checkpoint(tmp_path / "bad.safetensors", tmp_path / "bad", rules), 200, (33, 7), "u4"
    )
    fi.weights.pack_checkpoint(tmp_path / "bad.safetensors", tmp_path / "unsafe", rules, casting="unsafe")


def test_stores(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    from fastindex.jobs.layout_jobs import pack_file

    values = np.random.default_rng(5).integers(0, 16, (60, 40), dtype=np.uint8)
    shape = fi.Shape.parse("u4[60,40]{0,1:E(4)}")
    for name, code in (("good.zarr", 15), ("bad.zarr", 16)):
        values[50, 30] = code
        zarr.create_array(tmp_path / name, shape=values.shape, chunks=(16, 16), dtype="u1")[...] = values
    pack_file(str(tmp_path / "good.zarr"), str(tmp_path / "good"), shape, NoProgress(), 1 << 33)
    source, target = str(tmp_path / "bad.zarr"), str(tmp_path / "bad")
    refused(lambda: pack_file(source, target, shape, NoProgress(), 1 << 33), 16, (50, 30), "u4")
    pack_file(source, target, shape, NoProgress(), 1 << 33, casting="unsafe")
    assert Path(target).read_bytes() == fi.pack(values, shape, casting="unsafe").tobytes()


def test_lazy_arrays() -> None:
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    values = np.random.default_rng(6).integers(0, 16, (90, 70), dtype=np.uint8)
    shape, wide = "u4[90,70]{1,0:T(8,128)E(4)}", "u8[90,70]{1,0:T(8,128)}"
    assert (
        fi.pack(da.from_array(values, chunks=(20, 30)), shape).compute().tobytes() == fi.pack(values, shape).tobytes()
    )
    values[83, 61] = 16
    lazy = da.from_array(values, chunks=(20, 30))
    slots = da.from_array(fi.pack(values, wide), chunks=2048)
    plain = da.from_array(values, chunks=(20, 30))
    for call in (
        lambda: fi.pack(lazy, shape),
        lambda: fi.unpack(slots, wide, dtype="u4"),
        lambda: fi.relayout(slots, wide, shape),
        lambda: fi.relayout(slots, wide, "u4[90,70]{0,1:E(4)}"),
        lambda: fi.unpack(plain, "u8[90,70]", dtype="u4"),
    ):
        refused(lambda call=call: call().compute(scheduler="synchronous"), 16, (83, 61), "u4")
    kept = fi.pack(lazy, shape, casting="unsafe").compute()
    assert kept.tobytes() == fi.pack(values, shape, casting="unsafe").tobytes()


def test_threads_that_share_a_cast() -> None:
    """A call that fails does not make others fail that run at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    good = np.random.default_rng(7).integers(0, 16, (1500, 1000), dtype=np.uint8)
    bad = good.copy()
    bad[700, 3] = 99
    shape = "u4[1500,1000]{1,0:E(4)}"
    expected = fi.pack(good, shape).tobytes()

    def work(number: int) -> None:
        if number % 2:
            assert fi.pack(good, shape).tobytes() == expected
        else:
            refused(lambda: fi.pack(bad, shape), 99, (700, 3), "u4")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(24)))
