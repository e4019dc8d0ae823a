"""Index conversion in bulk against the slow reference: every feature, both ways, every kind of input.

Tests of: arrays.index_arguments, index.executors, index.indices, core.tiles.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given

import fastindex as fi
import fastindex.core.tiles
from tests.cases import strategies
from tests.oracles import reference
from tests.oracles.comparison import (
    differences_in_conversion,
    differences_in_indices,
    differences_in_sizes,
    differences_in_tiles,
)
from tests.oracles.reference import ReferenceShape

INTEGER_DTYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u8")

#: Layouts that once were, or might be, special: each is a branch of some implementation.
PINNED = (
    "f32[]",
    "f32[]{:T(256)}",
    "bf16[]{:T(512)(2,1)}",
    "f32[0]",
    "f32[3,0,5]{0,2,1:T(2,2)}",
    "f32[0]{0:PAD(3)T(2)L(5)}",
    "f32[1,1,1,1,1,1]{0,1,2,3,4,5:T(2)}",
    "f32[3,5]{1,0:T(2,2)}",
    "f32[7]{0:T(3)(2)}",
    "f32[31]{0:T(7)(3)(2)}",
    "f32[17]{0:T(4)(6)}",
    "f32[5]{0:T(8,128)}",
    "f32[4,6]{1,0:T(2,3)(*,*,*,5)}",
    "f32[6,7]{0,1:T(2,3)(*,2,*,4)}",
    "f32[2,3,5]{0,2,1:T(*,2)(3)(*,2,2)}",
    "f32[3,4,5]{1,2,0:T(*,*,7)(2,3)}",
    "f32[3,4,5]{2,1,0:PAD(4,4,7)T(2,3)(*,2,2,1)L(7)}",
    "f32[8,8]{1,0:T(2,4)(2,1,1,1)}",
    "f32[9,5]{1,0:T(2,2)(2,2)(2,2)(2,2)}",
    "u8[6,7]{1,0:T(3,2)(2,3,1,1)(5,*,2)}",
    "f32[4,4]{1,0:T(2,2)SC(0:2)}",
    "s4[5,9]{0,1:T(4,3)(2,*,2)L(16)E(4)}",
)


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(2100)[::100])])
def test_random_shapes(first: int) -> None:
    """2,000 shapes: every element both ways, every padding slot, sizes, and every level of tiles."""
    for seed in range(first, first + 100):
        shape = strategies.random_shape(seed, movable=False)
        threads = 1 + seed % 2
        found = [
            *differences_in_sizes(shape),
            *differences_in_indices(shape, threads=threads),
            *differences_in_tiles(shape),
        ]
        assert found == [], f"seed {seed}"


@pytest.mark.parametrize("text", PINNED)
def test_pinned_shapes(text: str) -> None:
    shape = reference.parse(text)
    assert [*differences_in_sizes(shape), *differences_in_indices(shape), *differences_in_tiles(shape)] == []


@given(strategies.array_shapes(movable=False))
@example(reference.parse("f32[4,6]{1,0:T(2,3)(*,*,*,5)}"))
def test_any_shape(shape: ReferenceShape) -> None:
    assert differences_in_sizes(shape) == []
    assert differences_in_indices(shape) == []
    assert differences_in_tiles(shape) == []


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(600)[::100])])
def test_converting_between_two_layouts(first: int) -> None:
    for seed in range(first, first + 100):
        source, destination = strategies.random_pair(seed)
        assert differences_in_conversion(source, destination) == [], f"seed {seed}"


# Input of every kind

SHAPE = "f32[6,10]{0,1:T(4,3)(2,*,2)}"
EXPECTED = reference.parse(SHAPE)
SLOTS = np.array([reference.linear_index(EXPECTED, index) for index in np.ndindex(6, 10)]).reshape(6, 10)
ROWS, COLUMNS = np.indices((6, 10))


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
def test_integers_of_every_width(dtype: str) -> None:
    found = fi.linear_index(SHAPE, (ROWS.astype(dtype), COLUMNS.astype(dtype)))
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, SLOTS)
    back = fi.multi_index(SHAPE, SLOTS.astype(dtype))
    assert [part.dtype for part in back] == [np.int64, np.int64]
    np.testing.assert_array_equal(np.stack(back), [ROWS, COLUMNS])
    np.testing.assert_array_equal(fi.convert_index(SHAPE, SHAPE, SLOTS.astype(dtype)), SLOTS)


def test_mixed_widths() -> None:
    found = fi.linear_index(SHAPE, (ROWS.astype("u8"), COLUMNS.astype("i1")))
    np.testing.assert_array_equal(found, SLOTS)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("every other", lambda a: np.repeat(a, 2, axis=1)[:, ::2]),
        ("backwards", lambda a: a[::-1, ::-1].copy()[::-1, ::-1]),
        ("transposed in memory", lambda a: np.asfortranarray(a)),
        ("with a gap", lambda a: np.pad(a, ((1, 2), (3, 4)))[1:-2, 3:-4]),
        ("misaligned", lambda a: np.frombuffer(b"\0" + a.tobytes(), "i8", offset=1).reshape(a.shape)),
        ("read-only", lambda a: np.frombuffer(a.tobytes(), "i8").reshape(a.shape)),
        ("nested list", lambda a: a.tolist()),
        ("range", None),
    ],
)
def test_every_memory_order(name: str, change: Any) -> None:
    if change is None:
        back = fi.multi_index(SHAPE, range(12), padding="mark")
        expected = fi.multi_index(SHAPE, np.arange(12), padding="mark")
        np.testing.assert_array_equal(np.stack(back), np.stack(expected))
        return
    np.testing.assert_array_equal(fi.linear_index(SHAPE, (change(ROWS), change(COLUMNS))), SLOTS)
    np.testing.assert_array_equal(np.stack(fi.multi_index(SHAPE, change(SLOTS))), [ROWS, COLUMNS])


def test_broadcasting() -> None:
    np.testing.assert_array_equal(fi.linear_index(SHAPE, (np.arange(6)[:, None], np.arange(10))), SLOTS)
    np.testing.assert_array_equal(fi.linear_index(SHAPE, (3, np.arange(10))), SLOTS[3])
    np.testing.assert_array_equal(fi.linear_index(SHAPE, (np.broadcast_to(3, 10), range(10))), SLOTS[3])
    np.testing.assert_array_equal(fi.linear_index(SHAPE, np.stack([ROWS, COLUMNS])), SLOTS)
    np.testing.assert_array_equal(fi.linear_index(SHAPE, np.ix_(range(6), range(10))), SLOTS)


def test_scalars_as_numpy_gives_them() -> None:
    found = fi.linear_index(SHAPE, (3, 4))
    assert isinstance(found, np.int64)
    assert found == SLOTS[3, 4]
    back = fi.multi_index(SHAPE, int(found))
    assert back == (3, 4)
    assert all(isinstance(part, np.int64) for part in back)
    assert fi.linear_index("f32[]", ()) == 0
    assert fi.multi_index("f32[]", 0) == ()


def test_empty_input() -> None:
    nothing = np.empty((0, 3), np.int32)
    assert fi.linear_index(SHAPE, (nothing, nothing)).shape == (0, 3)
    assert [part.shape for part in fi.multi_index(SHAPE, nothing)] == [(0, 3), (0, 3)]
    assert fi.linear_index("f32[0,4]", np.empty((2, 0), np.int64)).shape == (0,)
    assert fi.convert_index(SHAPE, "f32[6,10]", nothing).shape == (0, 3)


def test_out_is_filled_and_given_back() -> None:
    out = np.full((6, 10), -7)
    assert fi.linear_index(SHAPE, (ROWS, COLUMNS), out=out) is out
    np.testing.assert_array_equal(out, SLOTS)
    both = (np.full((6, 10), -7), np.full((6, 10), -7))
    back = fi.multi_index(SHAPE, SLOTS, out=both)
    assert back[0] is both[0]
    assert back[1] is both[1]
    np.testing.assert_array_equal(np.stack(both), [ROWS, COLUMNS])


def test_out_with_strides() -> None:
    wide = np.full((6, 20), -7)
    fi.linear_index(SHAPE, (ROWS, COLUMNS), out=wide[:, ::2])
    np.testing.assert_array_equal(wide[:, ::2], SLOTS)
    assert (wide[:, 1::2] == -7).all()


@pytest.mark.parametrize("mode", ["wrap", "clip"])
def test_modes(mode: str) -> None:
    rows, columns = np.meshgrid(np.arange(-20, 20), np.arange(-25, 25), indexing="ij")
    change = {"wrap": lambda c, size: c % size, "clip": lambda c, size: c.clip(0, size - 1)}[mode]
    expected = SLOTS[change(rows, 6), change(columns, 10)]
    np.testing.assert_array_equal(fi.linear_index(SHAPE, (rows, columns), mode=mode), expected)


def test_modes_at_the_ends_of_int64() -> None:
    extremes = np.array([-(2**63), 2**63 - 1])
    zero = np.int64(0)
    clipped = fi.linear_index(SHAPE, (extremes, zero), mode="clip")
    np.testing.assert_array_equal(clipped, SLOTS[[0, 5], 0])
    wrapped = fi.linear_index(SHAPE, (extremes, zero), mode="wrap")
    np.testing.assert_array_equal(wrapped, SLOTS[[-(2**63) % 6, (2**63 - 1) % 6], 0])


def test_unsigned_numbers_above_int64() -> None:
    above = np.array([2**63 + 1, 2**64 - 1], np.uint64)
    zero = np.int64(0)
    np.testing.assert_array_equal(fi.linear_index(SHAPE, (above, zero), mode="clip"), SLOTS[[5, 5], 0])
    wrapped = fi.linear_index(SHAPE, (above, zero), mode="wrap")
    np.testing.assert_array_equal(wrapped, SLOTS[[(2**63 + 1) % 6, (2**64 - 1) % 6], 0])
    with pytest.raises(fi.OutOfBoundsError):
        fi.linear_index(SHAPE, (above, zero))
    with pytest.raises(fi.OutOfBoundsError):
        fi.multi_index(SHAPE, above)


def test_padding_is_refused_or_marked() -> None:
    cells = reference.slots(EXPECTED)
    first = cells.index(None)
    marked = fi.multi_index(SHAPE, np.arange(len(cells)), padding="mark")
    for slot, cell in enumerate(cells):
        assert tuple(int(part[slot]) for part in marked) == (cell or (-1, -1))
    with pytest.raises(fi.OutOfBoundsError, match=str(first)):
        fi.multi_index(SHAPE, np.arange(len(cells)))


# Sizes beyond 2^31 and 2^32 slots: arithmetic only, no array of that size

LARGE = (
    "u8[65536,65537]",
    "u8[65536,65537]{0,1:T(8,128)(4,1)}",
    "f32[3,50000,50001]{1,0,2:T(8,128)}",
    "bf16[100003,70001]{1,0:T(7,13)(3,2)(2,*,5)}",
    "u8[9000000000]{0:T(1024)(3)}",
    "u8[9000000000]{0:T(4294967297)(3)(2)}",
    "u8[2147483647,3]{0,1:T(*,5)}",
    "u8[2,2147483648]{0,1:T(2)(2)}",
    "u8[4294967295]{0:T(65537)}",
    "u8[4294967296,2]{1,0:T(65536,2)(*,*,2)}",
    "u8[2400000001,2400000001]{1,0:T(2,2)(3)}",
    "f64[1024,1024,1024,1024]{0,2,1,3:T(6,125)(3,1)L(8)}",
    "s4[8589934593]{0:T(8,128)L(1024)E(4)}",
)


def interesting_indices(shape: ReferenceShape, seed: int) -> list[tuple[int, ...]]:
    """Corners, the neighbourhood of powers of two, and random elements."""
    source = random.Random(seed)
    edges = [2**power + step for power in (15, 16, 31, 32, 33) for step in (-1, 0, 1)]
    indices = []
    for _ in range(200):
        index = []
        for size in shape.dimensions:
            near = [edge for edge in edges if edge < size]
            index.append(source.choice((0, size - 1, source.randrange(size), source.choice(near or [size // 2]))))
        indices.append(tuple(index))
    return indices


@pytest.mark.parametrize("text", LARGE)
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_beyond_32_bits(text: str, dtype: str) -> None:
    expected = reference.parse(text)
    shape = fi.Shape.parse(text)
    assert shape.slot_count == reference.slot_count(expected)
    assert shape.nbytes == reference.nbytes(expected)
    indices = interesting_indices(expected, len(text))
    answers = [reference.linear_index(expected, index) for index in indices]
    columns = np.array(indices, dtype).T
    np.testing.assert_array_equal(fi.linear_index(shape, columns), answers)
    back = fi.multi_index(shape, np.array(answers, dtype))
    np.testing.assert_array_equal(np.stack(back), columns.astype(np.int64))
    last = shape.slot_count - 1
    marked = fi.multi_index(shape, [last], padding="mark")
    for level in range(len(expected.tiles)):
        tile, within = fi.tile_index(shape, columns, level=level)
        for column, index in enumerate(indices[:50]):
            found = (tuple(int(c[column]) for c in tile), tuple(int(c[column]) for c in within))
            assert found == reference.tile_index(expected, index, level)
    if marked and int(marked[0][0]) >= 0:
        assert reference.linear_index(expected, [int(part[0]) for part in marked]) == last


def test_converting_beyond_32_bits() -> None:
    source, destination = "u8[65536,65537]{0,1:T(8,128)(4,1)}", "u8[65536,65537]{1,0:T(7,13)(3,2)}"
    indices = interesting_indices(reference.parse(source), 7)
    before = [reference.linear_index(reference.parse(source), index) for index in indices]
    after = [reference.linear_index(reference.parse(destination), index) for index in indices]
    np.testing.assert_array_equal(fi.convert_index(source, destination, before), after)


# Bulk: more than one chunk, more than one thread


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_many_indices(threads: int) -> None:
    text = "bf16[1000,999]{1,0:T(8,128)(2,1)}"
    rows, columns = np.indices((1000, 999))
    slots = fi.linear_index(text, (rows, columns), threads=threads)
    padded_columns = -(-999 // 128) * 128
    tile = (rows // 8) * (padded_columns // 128) + columns // 128
    within = rows % 8 // 2 * 256 + columns % 128 * 2 + rows % 2
    np.testing.assert_array_equal(slots, tile * 1024 + within)
    back = fi.multi_index(text, slots, threads=threads)
    np.testing.assert_array_equal(back[0], rows)
    np.testing.assert_array_equal(back[1], columns)
    every = np.arange(fi.Shape.parse(text).slot_count)
    marked = fi.multi_index(text, every, padding="mark", threads=threads)
    assert (marked[0] >= 0).sum() == 999_000
    assert ((marked[0] >= 0) == (marked[1] >= 0)).all()
    np.testing.assert_array_equal(np.sort(slots.ravel()), every[marked[0] >= 0])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("at", [0, 70_000, 131_072, 199_999])
def test_the_first_bad_index_is_named_wherever_it_is(threads: int, at: int) -> None:
    rows = np.zeros(200_000, np.int64)
    columns = np.zeros(200_000, np.int64)
    columns[at:] = 10
    with pytest.raises(fi.OutOfBoundsError, match=rf"\b{at}\b"):
        fi.linear_index(SHAPE, (rows, columns), threads=threads)


# The comparison itself can fail


def test_a_wrong_tiling_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the tile sizes come before the tile counts."""

    def offsets_first(axes: Any, tile: Any) -> Any:
        result = right(axes, tile)
        sizes = sum(entry != fi.Layout.COMBINE for entry in tile)
        return result[len(result) - sizes :] + result[: len(result) - sizes]

    right = fastindex.core.tiles.tile_axes
    monkeypatch.setattr(fastindex.core.tiles, "tile_axes", offsets_first)
    assert differences_in_indices(reference.parse("f32[37,41]{1,0:T(4,6)}")) != []


def test_a_wrong_slot_count_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: counts are rounded down."""

    def rounded_down(axes: Any, tile: Any) -> Any:
        result = right(axes, tile)
        return [
            fastindex.core.tiles.CountAxis(axis.whole.size // axis.tile_size, axis.whole, axis.tile_size)
            if isinstance(axis, fastindex.core.tiles.CountAxis)
            else axis
            for axis in result
        ]

    right = fastindex.core.tiles.tile_axes
    monkeypatch.setattr(fastindex.core.tiles, "tile_axes", rounded_down)
    assert differences_in_sizes(reference.parse("f32[43,41]{1,0:T(4,6)}")) != []


class OffByOne:
    """The package, but the last element of every answer is one too large."""

    Shape = fi.Shape

    @staticmethod
    def spoil(result: Any) -> Any:
        parts = result if isinstance(result, tuple) else (result,)
        for part in parts:
            if isinstance(part, tuple):
                OffByOne.spoil(part)
            elif isinstance(part, np.ndarray) and part.size:
                part.flat[-1] += 1
        return result

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: self.spoil(getattr(fi, name)(*arguments, **options))


def test_one_wrong_number_shows() -> None:
    wrong = OffByOne()
    shape = reference.parse("f32[5,7]{0,1:T(2,3)(2)}")
    indices = differences_in_indices(shape, wrong)
    assert any(line.startswith("linear_index") for line in indices)
    assert any(line.startswith("multi_index[0]") for line in indices)
    assert any(line.startswith("multi_index[1]") for line in indices)
    assert differences_in_tiles(shape, wrong) != []
    assert differences_in_conversion(shape, reference.parse("f32[5,7]"), wrong) != []


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32"])
@pytest.mark.parametrize("together", [*range(1, 10), -2, -3])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 127, 128, 129, 136, 1001])
def test_coordinates_side_by_side(together: int, count: int, dtype: str) -> None:
    sizes = (5, 7, 11)
    generator = np.random.default_rng(count)
    memory = generator.integers(-99, 99, (count, abs(together) + 2), dtype="int64").astype(dtype)
    rows = memory[:, : abs(together)].copy()[:, :: -1 if together < 0 else 1]
    for k in range(abs(together)):
        rows[:, k] = generator.integers(0, sizes[k % 3], count)
    columns = rows.T
    coordinates = [columns[k % len(columns)] % size for k, size in enumerate(sizes)]
    for k in range(min(3, len(columns))):
        coordinates[k] = columns[k]
    expected = np.ravel_multi_index([c.astype("int64") for c in coordinates], sizes)
    assert np.array_equal(fi.linear_index("u8[5,7,11]", tuple(coordinates)), expected)


COLUMNS_BEFORE_A_FENCE = """
import numpy as np
import fastindex as fi
from tests.cases.guard_pages import guarded_pages
column = guarded_pages(1).view(np.int64)
for together in (2, 3, 4, 5):
    for count in (8, 16, 17, 40):
        last = column[::-1][::together][:count][::-1]
        first = column[::together][:count]
        for coordinates in (last, first):
            assert not fi.linear_index("u8[7,9]", (coordinates, coordinates)).any()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="mprotect is POSIX")
def test_coordinates_side_by_side_are_not_read_beyond_their_ends() -> None:
    command = [sys.executable, "-c", COLUMNS_BEFORE_A_FENCE]
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
