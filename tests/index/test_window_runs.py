"""The contiguous pieces of windows against slots that the reference lists and sorts.

Tests of: arrays.index_arguments, algebra.shared_digits, algebra.strided_runs, index.runs,
index.programs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.loops import relayout_loops
from fastindex.algebra.segments import Grid, box_segments, box_steps
from tests.cases import strategies
from tests.oracles import reference
from tests.oracles.nest_places import places
from tests.oracles.reference import ReferenceShape


def coordinates_in(window: Sequence[Any], dimensions: Sequence[int]) -> list[list[int]]:
    """The coordinates along each dimension, by NumPy's own indexing."""
    return [
        np.atleast_1d(np.arange(size)[list(entry) if isinstance(entry, range) else entry]).tolist()
        for entry, size in zip(window, dimensions, strict=True)
    ]


def pieces_of(places: set[int], bridge: set[int]) -> list[list[int]]:
    """Maximal pieces of a set; those with nothing but `bridge` in between are one."""
    pieces: list[list[int]] = []
    for place in sorted(places):
        if pieces and all(between in bridge for between in range(sum(pieces[-1]), place)):
            pieces[-1][1] = place + 1 - pieces[-1][0]
        else:
            pieces.append([place, 1])
    return pieces


def expected_pieces(shape: ReferenceShape, window: Sequence[Any], unit: str, padding: bool) -> list[list[int]]:
    slots = {reference.linear_index(shape, at) for at in itertools.product(*coordinates_in(window, shape.dimensions))}
    holes = {slot for slot, cell in enumerate(reference.slots(shape)) if cell is None} if padding else set()
    pieces = pieces_of(slots, holes)
    if unit == "slot":
        return pieces
    bits = reference.element_bits(shape)
    touched = {
        bit if unit == "bit" else bit // 8
        for start, length in pieces
        for bit in range(start * bits, (start + length) * bits)
    }
    return pieces_of(touched, set())


def listed(start: Any, length: Any) -> list[list[int]]:
    assert start.dtype == length.dtype == np.int64
    return [list(piece) for piece in zip(start.tolist(), length.tolist(), strict=True)]


def listed_records(records: Any) -> list[list[int]]:
    return sorted([int(start), record.length] for record in records for start in record.starts())


@pytest.mark.parametrize("first", strategies.seeds(240)[::40])
def test_random_windows(first: int) -> None:
    for seed in range(first, first + 40):
        shape = strategies.random_shape(seed, movable=False)
        source = strategies.RandomSource(seed)
        window = strategies.draw_window(source, shape.dimensions)
        unit, padding = source.pick(("slot", "slot", "byte", "bit")), source.pick((False, False, True))
        wanted = expected_pieces(shape, window, unit, padding)
        assert listed(*fi.runs(str(shape), window, unit=unit, padding=padding)) == wanted, (seed, str(shape), window)
        records = fi.strided_runs(str(shape), window, unit=unit, padding=padding)
        assert listed_records(records) == wanted, (seed, str(shape), window)
        assert sorted(r.start for r in records) == [r.start for r in records]


@pytest.mark.parametrize(
    "text",
    [
        # The second tile splits how many tiles there are, so a low digit lies above one that is higher.
        "f32[9,61]{1,0:T(3,7)(3,2,1)}",
        "f32[13,50]{1,0:T(2,8)(2,2,1)}",
        "f32[5,90]{1,0:T(2,15)(3,2,1)}",
        "f32[4,6]{1,0:T(*,8)}",
        "f32[5,4,7]{2,1,0:T(*,*,4)}",
        "f32[6,5,9]{2,1,0:T(2,*,5)(2,1)}",
        "bf16[6,35]{0,1:T(*,4)(2,1)}",
        # All pieces of some windows are one record, whose axes interleave.
        "f32[16,17]{0,1:T(1,4,4)(5)}",
    ],
)
def test_windows_of_unusual_tiles(text: str) -> None:
    shape = reference.parse(text)
    for seed in range(60):
        window = strategies.draw_window(strategies.RandomSource(seed), shape.dimensions)
        wanted = expected_pieces(shape, window, "slot", False)
        assert listed(*fi.runs(text, window)) == wanted, (seed, window)
        assert listed_records(fi.strided_runs(text, window)) == wanted, (seed, window)


def test_hand_derived_records() -> None:
    """As few records as there can be, by hand."""
    part = np.s_[100:108, 1000:1020]

    def records(text: str, window: Any = None) -> list[tuple[Any, ...]]:
        return [(r.start, r.length, r.counts, r.strides) for r in fi.strided_runs(text, window)]

    assert records("f32[1024,1024]") == [(0, 1 << 20, (), ())]
    assert records("f32[1024,1024]", part) == [(100 * 1024 + 1000, 20, (8,), (1024,))]
    assert records("f32[1024,1024]{0,1}", part) == [(1000 * 1024 + 100, 8, (20,), (1024,))]
    # Rows 100 to 103 are the last four of tile row 12, rows 104 to 107 the first four of tile row 13; columns 1000 to
    # 1019 begin at 104 in tile column 7.
    tiled = records("f32[1024,1024]{1,0:T(8,128)}", part)
    assert tiled == [((12 * 8 + 7) * 1024 + 4 * 128 + 104, 20, (2, 4), (8 * 1024 - 4 * 128, 128))]
    assert records("f32[1024,1024]{1,0:T(8,128)}", np.s_[:, 128:256]) == [(1024, 1024, (128,), (8192,))]
    # Pairs of rows are interleaved: 24 columns of two rows are 48 slots in a row.
    pairs = records("bf16[1024,1024]{1,0:T(8,128)(2,1)}", np.s_[100:104, 1000:1024])
    assert pairs == [((12 * 8 + 7) * 1024 + 2 * 256 + 2 * 104, 48, (2,), (256,))]
    # One row alone: every other slot.
    assert records("bf16[1024,1024]{1,0:T(8,128)(2,1)}", np.s_[100:101, 1000:1024]) == [
        ((12 * 8 + 7) * 1024 + 2 * 256 + 2 * 104, 1, (24,), (2,))
    ]
    # 1000 columns leave 24 of the last tile's empty, in each of its four pairs of rows; the last pair's gap ends the
    # tile row.
    assert records("bf16[1024,1000]{1,0:T(8,128)(2,1)}") == [
        (0, 7 * 1024 + 208, (128,), (8192,)),
        (7 * 1024 + 256, 208, (128, 3), (8192, 256)),
    ]
    # Whole dimensions that `*` merges are one, whatever the tile.
    assert records("f32[4096,4100]{1,0:T(*,128)(2,1)}") == [(0, 4096 * 4100, (), ())]


def test_large_windows_need_no_elements() -> None:
    records = fi.strided_runs("f32[65536,65536,1024]{2,1,0:T(8,128)}", np.s_[5::7, 1::3, 4::5])
    assert sum(r.piece_count * r.length for r in records) == 9362 * 21845 * 204
    assert len(records) < 200


def test_steps_of_either_sign_are_the_same_set() -> None:
    forward, backward = fi.runs("f32[9,9]", np.s_[1:8:3, ::2]), fi.runs("f32[9,9]", np.s_[7:0:-3, ::-2])
    assert [a.tolist() for a in forward] == [a.tolist() for a in backward]


def test_empty_and_scalar_windows() -> None:
    assert [a.tolist() for a in fi.runs("f32[3,5]", np.s_[1:1, :])] == [[], []]
    assert fi.strided_runs("f32[0,5]") == ()
    assert fi.strided_runs("f32[]") == (fi.StridedRun(0, 1),)
    assert fi.strided_runs("f32[3,5]", (2, 4)) == (fi.StridedRun(14, 1),)
    assert fi.strided_runs("f32[5]", range(4, 0, -2)) == (fi.StridedRun(2, 1, (2,), (2,)),)


@pytest.mark.parametrize(
    ("window", "error", "message"),
    [
        (np.s_[1:2], fi.FastIndexError, "needs 2 entries"),
        (np.s_[1, 2, 3], fi.FastIndexError, "needs 2 entries"),
        (np.s_[..., 1, ...], fi.FastIndexError, "one Ellipsis"),
        (np.s_[::0, 1], fi.FastIndexError, "step must not be 0"),
        (np.s_[0.5:, 1], TypeError, "slice of integers"),
        (np.s_[None, 1], TypeError, "slice, a range or an integer"),
        (np.s_[True, 1], TypeError, "slice, a range or an integer"),
        (np.s_[[1, 2], 1:2], TypeError, "do not mix"),
        (np.s_[3, :], IndexError, "3, which is out of bounds for dimension 0 of size 3"),
        (np.s_[-4, :], IndexError, "-4, which is out of bounds"),
        ((range(2, 5), 1), IndexError, "4, which is out of bounds"),
        ((range(-1, 2), 1), IndexError, "-1, which is out of bounds"),
    ],
)
def test_bad_windows(window: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        fi.runs("f32[3,5]", window)
    assert isinstance(caught.value, fi.FastIndexError)


def test_bad_units() -> None:
    with pytest.raises(fi.FastIndexError, match="unit must be"):
        fi.runs("f32[3]", unit="nibble")
    with pytest.raises(fi.LayoutError, match=r"bits of .* do not fit int64"):
        fi.runs("f32[1152921504606846976]", np.s_[:1], unit="bit")
    with pytest.raises(fi.UnsupportedError):
        fi.strided_runs("f32[?]")


@pytest.mark.parametrize("function", [fi.runs, fi.strided_runs])
def test_windows_too_large_to_look_up_are_refused_at_once(function: Callable[[str], Any]) -> None:
    with pytest.raises(fi.UnsupportedError, match="at most 2,147,483,648 elements, not 20,000,000,000"):
        function("u8[100000,200000]{1,0:T(3,5)(2,2)(7)}")


# What else says where pieces lie says the same


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(90)[::30])])
def test_relayouts_write_the_runs_and_fill_the_rest(first: int) -> None:
    compared = 0
    for seed in range(first, first + 30):
        source, shape = (fi.Shape.parse(str(drawn)) for drawn in strategies.random_pair(seed))
        loops = relayout_loops(source, shape)
        if loops is None:
            continue
        written = {slot for nest in loops.copies for slot in places(nest)[1].tolist()}
        assert listed(*fi.runs(shape)) == pieces_of(written, set()), f"seed {seed}: {shape}"
        filled = {slot for nest in loops.fills for slot in places(nest)[1].tolist()}
        assert listed(*fi.runs(shape, padding=True)) == pieces_of(written, filled), f"seed {seed}: {shape}"
        compared += 1
    assert compared > 10 or strategies.OTHER_SEEDS


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(90)[::30])])
def test_segments_of_boxes_hold_the_runs_of_the_same_window(first: int) -> None:
    for seed in range(first, first + 30):
        drawn = strategies.random_shape(seed, movable=False)
        shape, holes = fi.Shape.parse(str(drawn)), reference.slots(drawn)
        for box in Grid(shape.dimensions, box_steps(shape)).boxes():
            owned = {
                slot
                for record in box_segments(shape, box)
                for start in record.starts().tolist()
                for slot in range(start, start + record.length)
            }
            held = {slot for slot in owned if holes[slot] is not None}
            window = tuple(slice(along.start, along.stop) for along in box)
            assert listed(*fi.runs(shape, window)) == pieces_of(held, set()), f"seed {seed}: {shape}, {box}"
