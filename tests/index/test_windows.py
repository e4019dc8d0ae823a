"""Windows of index programs, by tables and segments of every kind, against the reference.

Tests of: index.kernels.programs, index.windows, index.numbers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import numpy as np
import pytest

import fastindex as fi
from fastindex.arrays.index_arguments import as_window
from fastindex.index.executors import fill_window
from fastindex.index.programs import linear_program, tile_program
from fastindex.index.windows import WindowTuning, window_plan
from tests.cases import strategies
from tests.oracles import reference

#: Plans for the smallest windows, with few and many tables, short and long ones, and segments of any length.
TUNINGS = (
    WindowTuning(least_planned=0),
    WindowTuning(most_table=16, least_row=1, least_table=1, least_segment=0, least_planned=0),
    WindowTuning(most_table=1, least_row=1, least_table=1, least_segment=0, least_planned=0),
    WindowTuning(most_table=64, least_row=4, least_table=8, least_segment=0, least_planned=0),
    WindowTuning(most_table=100, least_row=8, least_table=4, least_segment=2, least_planned=0),
)


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(1000)[::50])])
def test_random_windows(first: int) -> None:
    for seed in range(first, first + 50):
        case = strategies.random_shape(seed, movable=False)
        source = strategies.RandomSource(seed)
        window = strategies.draw_window(source, case.dimensions)
        tuning = source.pick(TUNINGS)
        shape = fi.Shape.parse(str(case))
        ranges = as_window(window, shape).ranges
        size = tuple(len(along) for along in ranges)
        slots, level = linear_program(shape), source.integer(0, max(len(case.tiles) - 1, 0))
        found = np.full(size, -7)
        fill_window(slots, ranges, [found], 1 + seed % 2, tuning)
        wanted = [reference.linear_index(case, at) for at in itertools.product(*ranges)]
        assert found.reshape(-1).tolist() == wanted, (seed, str(case), window, tuning)
        if case.tiles:
            program = tile_program(shape, level)
            outputs = [np.full(size, -7) for _ in program.outputs]
            fill_window(program, ranges, outputs, 1, tuning)
            tiles = [sum(reference.tile_index(case, at, level), ()) for at in itertools.product(*ranges)]
            assert [o.reshape(-1).tolist() for o in outputs] == [list(c) for c in zip(*tiles, strict=True)] or not tiles


def evaluated(shape: fi.Shape, ranges: Sequence[range]) -> np.ndarray:
    (slots,), _ = linear_program(shape).evaluate(np.ix_(*(np.arange(r.start, r.stop, r.step) for r in ranges)))
    return np.broadcast_to(slots, [len(r) for r in ranges])


#: Tiles that divide neither each other nor the dimensions, so that quotients depend on quotients.
UNEVEN = (
    "f32[31,77]{1,0:T(7,13)(3,2)}",
    "f32[901]{0:T(6)(4)}",
    "s4[20,101]{1,0:T(6,10)(4,3)E(4)}",
    "s4[5,7,40]{2,1,0:T(2,*,5)(3,2)E(4)}",
    "f32[6,7,5,30]{3,2,1,0:T(*,*,9)(2,4)}",
    "bf16[10,30,12]{2,1,0:T(4,*,5)(3,2)(2,1)}",
)


@pytest.mark.parametrize("text", UNEVEN)
def test_uneven_tiles(text: str) -> None:
    shape, case = fi.Shape.parse(text), reference.parse(text)
    for seed in range(24):
        source = strategies.RandomSource(seed)
        ranges = as_window(strategies.draw_window(source, shape.dimensions), shape).ranges
        tuning = source.pick(TUNINGS)
        slots = np.array([reference.linear_index(case, at) for at in itertools.product(*ranges)], np.int64)
        for unit, bits in (("slot", shape.element_bits), ("byte", 8)):
            found = np.full([len(along) for along in ranges], -7)
            fill_window(linear_program(shape, unit=unit), ranges, [found], 1, tuning)
            assert np.array_equal(found.reshape(-1), slots * shape.element_bits // bits), (seed, unit, ranges, tuning)


#: Each is a way to go: one axis, tables that repeat, short last axes, remainders that rows begin with, segments.
LARGE = (
    ("f32[300000]", (slice(7, None, 3),), "1 rows"),
    ("bf16[700,520]{1,0:T(8,128)(2,1)}", (slice(3, None), slice(519, None, -1)), "rows of 520 elements, .* 1 tables"),
    ("u8[40,60,50,3]{3,2,1,0:T(8,128)(4,1)}", (slice(None),) * 4, "1 tables of 600 elements"),
    ("f32[600,1000]{1,0:T(2,3)(*,4)(2,1)}", (slice(None),) * 2, "4 tables"),
    ("f32[300,1001]{1,0:T(*,1000)(8,1)}", (slice(None), slice(0, 1000)), "where a quotient changes"),
    ("f32[300,1001]{1,0:T(*,100)(8,1)}", (slice(None), slice(1000, 0, -1)), "where a quotient changes"),
    ("f32[400000]{0:T(100000)(7001)(3)}", (slice(None, None, 2),), "where a quotient changes"),
    ("f32[23,56,299]{0,1,2:T(2,*,128)}", (slice(None),) * 3, "where a quotient changes"),
)


@pytest.mark.parametrize(("text", "window", "described"), LARGE)
@pytest.mark.parametrize("threads", [1, 3])
def test_large_windows(text: str, window: tuple[slice, ...], described: str, threads: int) -> None:
    """Chunks begin anywhere in rows, segments and tables; the output begins anywhere in a line."""
    shape = fi.Shape.parse(text)
    ranges = as_window(window, shape).ranges
    plan = window_plan(linear_program(shape), linear_program(shape).outputs[0], ranges)
    assert plan is not None
    assert re.search(described, plan.describe())
    wanted = evaluated(shape, ranges)
    for shift in (0, 3):
        memory = np.full(wanted.size + 16, -7)
        found = memory[8 + shift : 8 + shift + wanted.size].reshape(wanted.shape)
        fill_window(linear_program(shape), ranges, [found], threads)
        assert np.array_equal(found, wanted)
        assert (memory[: 8 + shift] == -7).all()
        assert (memory[8 + shift + wanted.size :] == -7).all()


def test_streamed_windows() -> None:
    """Output large enough for non-temporal stores, its lines not aligned with the rows."""
    shape = fi.Shape.parse("bf16[1001,1003]{1,0:T(8,128)(2,1)}")
    ranges = (range(1, 1001), range(2, 1003))
    wanted = evaluated(shape, ranges)
    for shift in range(8):
        memory = np.full(wanted.size + 16, -7)
        found = memory[shift : shift + wanted.size].reshape(wanted.shape)
        fill_window(linear_program(shape), ranges, [found], 2)
        assert np.array_equal(found, wanted)
        assert (memory[shift + wanted.size :] == -7).all()


@pytest.mark.parametrize("behind", range(1, 10))
def test_streamed_windows_end_with_any_part_of_a_line(behind: int) -> None:
    """Threads take whole lines, but the last has what is left."""
    count = (1 << 21) + behind
    memory = np.full(count + 24, -7)
    shift = -(memory.ctypes.data // 8) % 8
    found = memory[shift : shift + count]
    fill_window(linear_program(fi.Shape.parse("f32[3000000]")), (range(5, count + 5),), [found], 1)
    assert np.array_equal(found, np.arange(5, count + 5))
    assert (memory[:shift] == -7).all()
    assert (memory[shift + count :] == -7).all()


def test_strided_output() -> None:
    shape = fi.Shape.parse("f32[200,300]{1,0:T(8,128)}")
    ranges = (range(200), range(300))
    memory = np.full((300, 400), -7)
    output = memory[:, ::2].T
    fill_window(linear_program(shape), ranges, [output], 1)
    assert np.array_equal(output, evaluated(shape, ranges))
    assert (memory[:, 1::2] == -7).all()


def test_wide_numbers() -> None:
    """Slots far beyond 31 bits, and coefficients that are."""
    shape = fi.Shape.parse("u8[4,1073741824,1024]{2,1,0:T(8,128)(4,1)}")
    ranges = (range(4), range(5, 1073741824, 33554432), range(3, 1003))
    found = np.empty([len(r) for r in ranges], np.int64)
    fill_window(linear_program(shape), ranges, [found], 1, TUNINGS[0])
    case = reference.parse(str(shape))
    source = strategies.RandomSource(1)
    for _ in range(200):
        at = [source.integer(0, len(r) - 1) for r in ranges]
        assert found[tuple(at)] == reference.linear_index(case, [r[i] for r, i in zip(ranges, at, strict=True)])
    assert found.size == math.prod(len(r) for r in ranges)
