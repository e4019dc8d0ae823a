"""The answers that the documents print, from `golden/worked_answers.json`: package and slow reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.core.tiles import physical_axes
from tests.oracles import reference

GOLDEN = json.loads((Path(__file__).parent / "golden" / "worked_answers.json").read_text())


def entries(kind: str) -> Any:
    return pytest.mark.parametrize("entry", [pytest.param(entry, id=entry["name"]) for entry in GOLDEN[kind]])


def test_every_entry_names_its_source() -> None:
    for kind, listed in GOLDEN.items():
        if isinstance(listed, list):
            assert {entry["source"] for entry in listed} <= set(GOLDEN["sources"]), kind


@entries("linear_index")
def test_linear_index(entry: dict[str, Any]) -> None:
    index, answer = entry["multi_index"], entry["answer"]
    assert int(fi.linear_index(entry["shape"], index)) == answer
    assert [int(c) for c in fi.multi_index(entry["shape"], answer)] == index
    assert reference.linear_index(reference.parse(entry["shape"]), index) == answer


@entries("tile_index")
def test_tile_index(entry: dict[str, Any]) -> None:
    tile, within = fi.tile_index(entry["shape"], entry["multi_index"], level=entry["level"])
    assert [int(c) for c in tile] == entry["tile"]
    assert [int(c) for c in within] == entry["within"]
    expected = reference.tile_index(reference.parse(entry["shape"]), entry["multi_index"], entry["level"])
    assert expected == (tuple(entry["tile"]), tuple(entry["within"]))


@entries("axis_sizes")
def test_axis_sizes(entry: dict[str, Any]) -> None:
    shape = fi.Shape.parse(entry["shape"])
    layout = shape.layout
    axes = physical_axes(shape.dimensions, layout.minor_to_major, layout.padded_dimensions, layout.tiles)
    assert [axis.size for axis in axes] == entry["sizes"]
    assert list(reference.physical_array(reference.parse(entry["shape"])).sizes) == entry["sizes"]


@entries("grids")
def test_grid_of_slots(entry: dict[str, Any]) -> None:
    slots = np.array(entry["slots"])
    indices = tuple(axis.ravel() for axis in np.indices(slots.shape))
    shape = fi.Shape.parse(entry["shape"])
    np.testing.assert_array_equal(fi.linear_index(shape, indices), slots.ravel())
    assert shape.slot_count == entry["slot_count"]
    back = fi.multi_index(shape, slots.ravel())
    np.testing.assert_array_equal(np.stack(back), np.stack(indices))
    cells = reference.slots(reference.parse(entry["shape"]))
    assert [cells.index(tuple(map(int, index))) for index in np.ndindex(slots.shape)] == list(slots.ravel())


@entries("memory")
def test_order_in_memory(entry: dict[str, Any]) -> None:
    shape = fi.Shape.parse(entry["shape"])
    elements = np.frombuffer(entry["elements"].encode(), np.uint8).reshape(shape.dimensions)
    assert bytes(fi.pack(elements, shape, fill=ord("0"))).decode() == entry["memory"]
    np.testing.assert_array_equal(fi.unpack(entry["memory"].encode(), shape), elements)
    cells = reference.slots(reference.parse(entry["shape"]))
    letters = ["0" if cell is None else chr(elements[cell]) for cell in cells]
    assert "".join(letters) == entry["memory"]


@entries("packed")
def test_packed_bytes(entry: dict[str, Any]) -> None:
    shape = fi.Shape.parse(entry["shape"])
    elements = np.array(entry["elements"]).astype(shape.element_type.numpy_dtype)
    expected = bytes.fromhex(entry["bytes"])
    assert fi.pack(elements, shape).tobytes() == expected
    np.testing.assert_array_equal(fi.unpack(expected, shape), elements)
    assert shape.nbytes == len(expected)
    bits = reference.VALUE_BITS[str(shape.element_type)]
    patterns = {(k,): value % (1 << bits) for k, value in enumerate(entry["elements"])}
    assert reference.pack(reference.parse(entry["shape"]), patterns) == expected


@entries("sizes")
def test_sizes(entry: dict[str, Any]) -> None:
    shape = fi.Shape.parse(entry["shape"])
    expected = reference.parse(entry["shape"])
    for name in ("slot_count", "nbytes", "element_count"):
        assert getattr(shape, name) == entry[name]
        assert getattr(reference, name)(expected) == entry[name]


def test_where_rows_start() -> None:
    golden = GOLDEN["rows"]
    rows = np.arange(4096)
    starts = sum(factor * (rows // divisor) for divisor, factor in golden["terms"])
    np.testing.assert_array_equal(fi.linear_index(golden["shape"], (rows, np.int64(0))), starts)


def test_combined_dimensions_are_one() -> None:
    """``(*,*,2,*,3)`` on [2,7,8,11,10] is ``(2,3)`` on [112,110], for every element."""
    five = np.indices((2, 7, 8, 11, 10)).reshape(5, -1)
    two = np.indices((112, 110)).reshape(2, -1)
    np.testing.assert_array_equal(
        fi.linear_index("f32[2,7,8,11,10]{4,3,2,1,0:T(*,*,2,*,3)}", five),
        fi.linear_index("f32[112,110]{1,0:T(2,3)}", two),
    )
    assert fi.Shape.parse("f32[2,7,8,11,10]{4,3,2,1,0:T(*,*,2,*,3)}").slot_count == 56 * 37 * 6


def test_minus_one_is_the_same_as_an_asterisk() -> None:
    star = fi.Layout((4, 3, 2, 1, 0), tiles=((fi.Layout.COMBINE, fi.Layout.COMBINE, 2, fi.Layout.COMBINE, 3),))
    assert fi.Layout((4, 3, 2, 1, 0), tiles=((-1, -1, 2, -1, 3),)) == star
    assert str(fi.Shape("f32", (2, 7, 8, 11, 10), star)) == "f32[2,7,8,11,10]{4,3,2,1,0:T(*,*,2,*,3)}"


def test_dimension_letters() -> None:
    letters = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x"), 4: ("p", "z", "y", "x")}
    for rank, expected in letters.items():
        assert fi.Shape("f32", (2,) * rank).dimension_letters == expected


def test_rank_true_rank_and_negative_dimensions() -> None:
    shape = fi.Shape.parse("f32[1,5,1,7]")
    assert (shape.rank, shape.true_rank) == (4, 2)
    assert shape.dimension(-1) == shape.dimension(3) == 7
    assert shape.dimension(-3) == 5


def test_default_layout_is_the_last_dimension_minor() -> None:
    assert fi.Shape("f32", (2, 3)).layout.minor_to_major == (1, 0)
    assert int(fi.linear_index("f32[2,3]", (1, 0))) == 3
