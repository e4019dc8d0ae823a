"""Plans and outputs of whole-array calls: kept plans, `out` of any strides at any address, overlap refused.

Tests of: moving.relayout_plans, moving.compiled_passes, moving.movements.
"""

from __future__ import annotations

import importlib
import itertools
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex import RelayoutPlan
from fastindex.arrays.buffers import aligned_bytes
from fastindex.moving import relayout_plans, requests
from fastindex.moving.movements import movement
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.tuning import TUNING
from tests.cases import strategies
from tests.oracles import reference
from tests.oracles.comparison import clear_unused_bits

PLAIN, TURNED, TILED = "f32[37,150]", "f32[37,150]{0,1}", "f32[37,150]{1,0:T(8,128)}"
VALUES = np.random.default_rng(1).random((37, 150), np.float32)


@pytest.fixture(params=[False, True], ids=["cached", "streamed"], autouse=True)
def streamed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything here holds for small arrays that are written with non-temporal stores, too."""
    least, small = (0, -1) if request.param else (1 << 60, 1 << 60)
    for module in (requests, relayout_plans):
        monkeypatch.setattr(module, "_TUNING", replace(TUNING, streamed_bytes=least, small_call_bytes=small))
    relayout_plans.plan_of.cache_clear()
    yield
    relayout_plans.plan_of.cache_clear()


@cache
def expected_buffer(text: str) -> bytes:
    """Where the reference puts `VALUES`."""
    cells = reference.slots(reference.parse(text))
    return np.array([0 if cell is None else VALUES[cell] for cell in cells], np.float32).tobytes()


BLOCKS = ((2, 5), (3, 5), (4, 6), (8, 11), (16, 19), (16, 31), (32, 35))


@pytest.mark.parametrize(
    ("element_type", "blocks"), [*strategies.rotating(itertools.product(["u8", "s16", "f32", "f64", "c128"], BLOCKS))]
)
def test_channels_in_blocks_the_last_not_full(element_type: str, blocks: tuple[int, int]) -> None:
    """Values and padding of a column are written as one."""
    block, channels = blocks
    text = f"{element_type}[2,{channels},9,23]"
    tiled = f"{text}{{3,2,1,0:T({block},1,1)}}"
    shape = fi.Shape.parse(text)
    values = np.random.default_rng(1).integers(0, 100, shape.dimensions).astype(shape.element_type.numpy_dtype)
    cells = reference.slots(reference.parse(tiled))
    for fill in (None, 77):
        expected = [(fill or 0) if cell is None else values[cell] for cell in cells]
        for threads in (1, 2):
            np.testing.assert_array_equal(fi.pack(values, tiled, fill, threads=threads), expected)
            moved = fi.relayout(fi.pack(values, text), text, tiled, fill, threads=threads)
            np.testing.assert_array_equal(moved, expected)


# Plans


def test_plans_are_kept() -> None:
    plan = fi.plan_relayout(PLAIN, TILED)
    assert fi.plan_relayout(PLAIN, TILED) is plan
    assert fi.plan_relayout(fi.Shape.parse(PLAIN), TILED) is plan
    assert fi.plan_relayout("f32[37,150]{1,0}", TILED) is plan
    assert fi.plan_relayout(TILED, PLAIN) is not plan
    assert repr(plan) == f"RelayoutPlan('f32[37,150]{{1,0}}', '{TILED}')"


def test_old_plans_are_let_go() -> None:
    """Many layouts do not fill the memory."""
    most = relayout_plans.plan_of.cache_info().maxsize
    assert most is not None
    for size in range(1, most + 20):
        fi.plan_relayout(f"f32[{size}]", f"f32[{size}]{{0:L(2)}}")
    assert relayout_plans.plan_of.cache_info().currsize == most
    assert movement.cache_info().maxsize is not None


@pytest.mark.parametrize(("source", "destination"), [(PLAIN, TURNED), (PLAIN, TILED), (TILED, TURNED), (TURNED, TILED)])
@pytest.mark.parametrize("threads", [None, 1, 2])
def test_calling_a_plan(source: str, destination: str, threads: int | None) -> None:
    plan = fi.plan_relayout(source, destination)
    buffer, expected = expected_buffer(source), expected_buffer(destination)
    assert plan(buffer).tobytes() == expected
    assert plan(buffer, None, threads).tobytes() == expected
    out = np.full(plan.destination.slot_count, np.nan, np.float32)
    assert plan(buffer, out=out, threads=threads) is out
    assert out.tobytes() == expected
    raw = np.full(plan.destination.nbytes, 0xA5, np.uint8)
    assert plan(buffer, raw, threads) is raw
    assert raw.tobytes() == expected


def test_a_plan_serves_many_threads_at_once() -> None:
    plan = fi.plan_relayout(PLAIN, TILED)
    buffer, expected = expected_buffer(PLAIN), expected_buffer(TILED)
    wrong: list[int] = []

    def work(number: int) -> None:
        found = [plan(buffer, threads=1 + number % 2).tobytes() for _ in range(20)]
        wrong.extend(number for answer in found if answer != expected)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", np.ones(2, np.int64)])
def test_bad_numbers_of_threads_are_refused(threads: Any) -> None:
    """Also where a call is small enough for one thread."""
    buffer, plan = expected_buffer(PLAIN), fi.plan_relayout(PLAIN, TILED)
    calls: list[Callable[[], Any]] = [
        lambda: plan(buffer, threads=threads),
        lambda: fi.relayout(buffer, PLAIN, TILED, threads=threads),
        lambda: fi.pack(VALUES, TILED, threads=threads),
        lambda: fi.unpack(buffer, PLAIN, threads=threads),
        lambda: fi.linear_index(TILED, ([0], [0]), threads=threads),
    ]
    for call in calls:
        with pytest.raises(fi.FastIndexError, match="threads must be a positive integer"):
            call()


def test_plans_are_pickled_by_their_shapes() -> None:
    for source, destination in ((PLAIN, TILED), ("s4[8,6]{1,0:E(4)}", "s4[8,6]"), ("f32[30]", "f32[30]{0:T(5)(3)}")):
        plan = fi.plan_relayout(source, destination)
        plan(bytes(plan.source.nbytes))
        stored = pickle.dumps(plan)
        assert len(stored) < 2000
        assert pickle.loads(stored) is plan


def test_descriptions_name_the_shapes_and_every_step() -> None:
    def describe(*texts: str) -> str:
        source, destination = map(fi.Shape.parse, texts)
        return RelayoutPlan(source, destination, requests._TUNING, machine=EPYC_1M).describe()

    text = describe(PLAIN, TILED).splitlines()
    assert text[0] == f"f32[37,150]{{1,0}} -> {TILED}"
    assert len(text) > 2
    assert any(line.startswith("fill") and line.endswith("padding") for line in text)
    slow = describe("f32[30]", "f32[30]{0:T(5)(3)}")
    assert "slot by slot" in slow
    assert "do not divide" in slow
    assert describe("f32[0,3]", "f32[0,3]").endswith("nothing to move")
    same = fi.plan_relayout(PLAIN, PLAIN)
    assert same.is_bitcast
    assert "nothing changes its place" in describe(PLAIN, PLAIN)
    packed = describe("u4[30]{0:E(4)}", "u4[30]{0:T(5)(3)E(4)}")
    assert "first every slot of 4 bits to 1 bytes" in packed
    assert "last every value of 1 bytes to 4 bits" in packed


# Outputs


def strided_outputs() -> list[Callable[[], Any]]:
    return [
        lambda: np.full((37, 150), -1, np.float32),
        lambda: np.full((150, 37), -1, np.float32).T,
        lambda: np.full((37, 300), -1, np.float32)[:, ::2],
        lambda: np.full((111, 150), -1, np.float32)[::3],
        lambda: np.full((37, 150), -1, np.float32)[::-1, ::-1],
        lambda: np.full((150, 37), -1, np.float32).T[:, ::-1],
        lambda: np.full((40, 160), -1, np.float32)[2:39, 7:157],
        lambda: np.full((37, 3, 150, 2), -1, np.float32)[:, 1, :, 1],
        lambda: np.ndarray((37, 150), np.float32, bytearray(4 * 37 * 150 + 3), 3),
        lambda: np.ndarray((37, 150), np.float32, bytearray(5 * 37 * 150 + 64), 1, (5 * 150, 5)),
    ]


@pytest.mark.parametrize("make", strided_outputs())
@pytest.mark.parametrize("text", [PLAIN, TURNED, TILED, "f32[37,150]{1,0:T(3)(2)}"])
def test_unpacking_to_any_strides(make: Callable[[], Any], text: str) -> None:
    """What lies between the elements of `out` stays."""
    buffer, out = expected_buffer(text), make()
    base = out
    while isinstance(base.base, np.ndarray):
        base = base.base
    expected = base.copy() if base is not out else None
    assert fi.unpack(buffer, text, out=out, threads=2) is out
    np.testing.assert_array_equal(out, VALUES)
    if expected is not None:
        touched = np.zeros(base.shape, bool)
        np.lib.stride_tricks.as_strided(
            touched.reshape(-1)[(out.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // 4 :],
            out.shape,
            tuple(stride // 4 for stride in out.strides),
        )[...] = True
        assert (base[~touched] == -1).all()
        assert touched.sum() == VALUES.size


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_packed_elements_to_any_strides(bits: int) -> None:
    text = f"u{bits}[37,152]{{1,0:T(8,64)E({bits})}}"
    shape = reference.parse(text)
    buffer = clear_unused_bits(shape, random.Random(bits).randbytes(reference.nbytes(shape)))
    elements = reference.unpack(shape, buffer)
    dtype = fi.Shape.parse(text).element_type.numpy_dtype
    for out in (np.zeros((37, 304), dtype)[:, ::2], np.zeros((152, 37), dtype).T, np.zeros((40, 200), dtype)[3:, :152]):
        fi.unpack(buffer, text, out=out)
        values = np.ascontiguousarray(out).view(np.uint8) & ((1 << bits) - 1)
        assert all(values[index] == value for index, value in elements.items())


@pytest.mark.parametrize("offset", [0, 1, 4, 13, 60, 63])
def test_any_addresses(offset: int) -> None:
    """Sources, destinations and logical arrays at addresses that are no multiples of anything."""

    def misaligned(data: bytes) -> Any:
        memory = np.zeros(len(data) + 64, np.uint8)[offset : offset + len(data)]
        memory[:] = np.frombuffer(data, np.uint8)
        return memory

    for source, destination in ((PLAIN, TURNED), (TILED, PLAIN), (PLAIN, TILED)):
        buffer = misaligned(expected_buffer(source))
        out = misaligned(bytes(len(expected_buffer(destination))))
        fi.relayout(buffer, source, destination, out=out)
        assert out.tobytes() == expected_buffer(destination)
    array = misaligned(VALUES.tobytes()).view(np.float32).reshape(VALUES.shape)
    assert fi.pack(array, TILED).tobytes() == expected_buffer(TILED)


def test_sources_whose_elements_share_memory() -> None:
    """Windows and broadcasts are read as often as it takes."""
    line = np.arange(400, dtype=np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(line, 150)[:37]
    for array in (windows, windows[::-1], np.broadcast_to(line[:150], (37, 150)), windows[:, ::-1]):
        for text in (PLAIN, TURNED, TILED, "f32[37,150]{1,0:T(2,2)}"):
            unpacked = fi.unpack(fi.pack(array, text), text)
            np.testing.assert_array_equal(unpacked, array)
            assert fi.pack(array, text).tobytes() == fi.pack(array.copy(), text).tobytes()


def overlapping(size: int, start: int) -> tuple[Any, Any]:
    memory = np.zeros(3 * size, np.uint8)
    return memory[size : 2 * size], memory[size + start : 2 * size + start]


@pytest.mark.parametrize("start", [-22199, -4, 0, 1, 22199])
def test_overlapping_outputs_are_refused(start: int) -> None:
    buffer, out = overlapping(22200, start)
    with pytest.raises(fi.FastIndexError, match="overlaps the input"):
        fi.relayout(buffer, PLAIN, TURNED, out=out)
    with pytest.raises(fi.FastIndexError, match="overlaps the input"):
        fi.plan_relayout(PLAIN, TURNED)(buffer, out=out)
    with pytest.raises(fi.FastIndexError, match="overlaps the input"):
        fi.plan_relayout(PLAIN, PLAIN)(buffer, out=out)
    array = buffer.view(np.float32).reshape(37, 150)
    with pytest.raises(fi.FastIndexError, match="overlaps the input"):
        fi.pack(array, TURNED, out=out)
    with pytest.raises(fi.FastIndexError, match="overlaps the input"):
        fi.unpack(out, TURNED, out=array)
    assert not buffer.any()


@pytest.mark.parametrize("start", [-22200, 22200])
def test_neighbouring_outputs_are_fine(start: int) -> None:
    buffer, out = overlapping(22200, start)
    buffer[:] = np.frombuffer(expected_buffer(PLAIN), np.uint8)
    fi.relayout(buffer, PLAIN, TURNED, out=out)
    assert out.tobytes() == expected_buffer(TURNED)
    assert buffer.tobytes() == expected_buffer(PLAIN)


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(90)[::30])])
def test_plans_of_random_pairs_write_to_out(first: int) -> None:
    """Guards before and after `out`, at an odd address."""
    for seed in range(first, first + 30):
        source, destination = strategies.random_pair(seed)
        buffer = clear_unused_bits(source, random.Random(seed).randbytes(reference.nbytes(source)))
        expected = reference.relayout(buffer, source, destination)
        memory = np.full(len(expected) + 256, 0xA5, np.uint8)
        begin = 128 + seed % 64
        plan = fi.plan_relayout(str(source), str(destination))
        plan(buffer, out=memory[begin : begin + len(expected)], threads=1 + seed % 2)
        assert memory[begin : begin + len(expected)].tobytes() == expected, f"seed {seed}"
        memory[begin : begin + len(expected)] = 0xA5
        assert (memory == 0xA5).all(), f"seed {seed}"


@pytest.mark.parametrize(
    "pair",
    [("f32[40,50]", "f32[40,50]{0,1}"), ("bf16[9,20]", "bf16[9,20]{0,1:T(8,128)(2,1)}"), ("u8[9,7]", "u8[9,7]{0,1}")],
)
def test_plans_know_arrays_of_bytes_too(pair: tuple[str, str]) -> None:
    """Slots or bytes on either side: each is a single native call, which looks at sizes."""
    importlib.import_module("fastindex.runtime.machine_code")
    plan = fi.plan_relayout(*pair)
    in_bytes = np.random.default_rng(1).integers(0, 256, plan.source.nbytes, np.uint8)
    slots = in_bytes.view(plan(in_bytes).dtype)
    wanted = reference.relayout(in_bytes.tobytes(), *map(reference.parse, pair))
    for source, dtype in itertools.product((in_bytes, slots), (np.uint8, slots.dtype)):
        made = aligned_bytes(len(wanted)).view(dtype)
        plan._single = None
        assert plan(source, out=made) is made
        assert plan._single is not None
        assert made.tobytes() == wanted
        made.view(np.uint8)[:] = 0x77
        assert plan(source, out=made) is made
        assert made.tobytes() == wanted
        result = plan(source)
        assert (result.dtype, result.tobytes()) == (slots.dtype, wanted)
        for bad in (made[1:], made[:-1], np.zeros(len(made) + 1, dtype), np.zeros(len(made), ">i8")):
            with pytest.raises(fi.FastIndexError):
                plan(source, out=bad)
            with pytest.raises(fi.FastIndexError):
                plan(source[1:], out=made)
    if len(wanted) == len(in_bytes):
        with pytest.raises(fi.FastIndexError, match="overlaps"):
            plan(in_bytes, out=in_bytes)


def test_later_calls_of_a_plan_look_at_their_arrays_too() -> None:
    """A plan that has moved plain arrays in a single native call begins with that; other arrays go the long way."""
    # From here on, kernels answer, not NumPy.
    importlib.import_module("fastindex.runtime.machine_code")
    plan = fi.plan_relayout("f32[40,50]", "f32[40,50]{0,1}")
    # A native call is made for an `out` that begins with a line; non-temporal stores elsewhere have a separate plan.
    source, out = np.arange(2000, dtype=np.float32), aligned_bytes(8000).view(np.float32)
    wanted = source.reshape(40, 50).T.reshape(-1)
    for _ in range(2):
        out[:] = 0
        assert plan(source, out=out) is out
        assert np.array_equal(out, wanted)
    assert plan._single is not None
    frozen = np.zeros(2000, np.float32)
    frozen.flags.writeable = False
    spread = np.zeros(4000, np.float32)[::2]
    for bad in (frozen, spread, source, np.zeros(2000), np.zeros(1999, np.float32), [0.0] * 2000):
        with pytest.raises(fi.FastIndexError):
            plan(source, out=bad)
    with pytest.raises(fi.FastIndexError):
        plan(np.arange(2000), out=out)
    assert np.array_equal(plan(source.tobytes(), out=out), wanted)
    assert np.array_equal(plan(source[::-1][::-1], out=out), wanted)
    assert np.array_equal(plan(source, out=np.zeros((50, 40), np.float32)).reshape(-1), wanted)
    assert plan(source, out=out, as_array=True).shape == (50, 40)
    assert np.array_equal(plan(source, out=out, threads=2), wanted)
    with pytest.raises(fi.FastIndexError, match="threads"):
        plan(source, out=out, threads=0)
    assert np.array_equal(plan(source), wanted)
