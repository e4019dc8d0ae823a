"""The oracle itself: its two ways to a slot agree, its parser reads what it prints, and a bug in it shows."""

from __future__ import annotations

import ast
import dataclasses
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given

import fastindex as fi
from tests.cases import strategies
from tests.oracles import reference
from tests.oracles.reference import ReferenceShape
from tests.oracles.slot_owners import elements_of_slots, slots_of_elements


def disagreements(shape: ReferenceShape) -> list[str]:
    cells = reference.slots(shape)
    found = [] if len(cells) == reference.slot_count(shape) else [f"slot_count of {shape}"]
    for slot, cell in enumerate(cells):
        if cell is not None and reference.linear_index(shape, cell) != slot:
            found.append(f"{shape} at {cell}")
    if sum(cell is not None for cell in cells) != reference.element_count(shape):
        found.append(f"{shape} loses elements")
    return found


@pytest.mark.parametrize("seed", strategies.rotating_seeds(300))
def test_the_fast_reference_agrees(seed: int) -> None:
    shape = strategies.random_shape(seed)
    numbers = {index: number for number, index in enumerate(reference.every_index(shape.dimensions))}
    owner = elements_of_slots(shape)
    assert owner.tolist() == [-1 if cell is None else numbers[cell] for cell in reference.slots(shape)]
    assert slots_of_elements(owner).tolist() == [reference.linear_index(shape, index) for index in numbers]


@given(strategies.array_shapes(movable=False))
def test_cell_by_cell_and_element_by_element_agree(shape: ReferenceShape) -> None:
    assert disagreements(shape) == []


@given(strategies.array_shapes(movable=False))
def test_parser_reads_what_it_prints(shape: ReferenceShape) -> None:
    assert reference.parse(str(shape)) == shape


@given(strategies.array_shapes())
def test_packing_and_unpacking_are_inverse(shape: ReferenceShape) -> None:
    bits = reference.VALUE_BITS[shape.element_type]
    elements = {index: k % (1 << bits) for k, index in enumerate(reference.every_index(shape.dimensions))}
    buffer = reference.pack(shape, elements)
    assert len(buffer) == reference.nbytes(shape)
    assert reference.unpack(shape, buffer) == elements


@pytest.mark.parametrize(
    "text",
    [
        "f32[]",
        "f32[]{:T(512)(2,1)}",
        "f32[0,3]{0,1:PAD(2,4)T(2,2)L(5)}",
        "f32[7]{0:T(3)(2)}",
        "f32[4,6]{1,0:T(2,3)(*,*,*,5)}",
        "f32[2,3,5]{0,2,1:T(*,2)(3)(*,2,2)}",
        "f32[3,5]{1,0:T(2,2)(1,2,1,1,1,2)}",
    ],
)
def test_pinned(text: str) -> None:
    assert disagreements(reference.parse(text)) == []


def test_wrong_merge_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: `*` merges with the axis before it instead of the one after it."""
    right = reference.merge_axis
    monkeypatch.setattr(reference, "merge_axis", lambda array, axis: right(array, max(axis - 1, 0)))
    assert disagreements(reference.parse("f32[2,3,5]{2,1,0:T(2,*,4)}")) != []


def test_missing_padding_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: an axis is padded at its low end."""

    right = reference.pad_axis

    def pad_low(array: reference.Cells, axis: int, size: int) -> reference.Cells:
        padded = right(array, axis, size)
        row = math.prod(padded.sizes[axis:])
        missing = (size - array.sizes[axis]) * math.prod(padded.sizes[axis + 1 :])
        cells: list[reference.Cell] = []
        for end in range(row, len(padded.cells) + 1, row):
            cells += padded.cells[end - missing : end] + padded.cells[end - row : end - missing]
        return reference.Cells(padded.sizes, cells)

    monkeypatch.setattr(reference, "pad_axis", pad_low)
    assert disagreements(reference.parse("f32[3,5]{1,0:T(2,2)}")) != []


def test_every_element_type_is_known() -> None:
    """The oracle's own table has the element types of the package, no more and no less, and their sizes."""
    for name, bits in reference.VALUE_BITS.items():
        element_type = fi.Shape(name, ()).element_type
        assert element_type == name
        assert element_type.bits == bits
        assert element_type.nbytes == -(-bits // 8)
        shape = dataclasses.replace(reference.parse("f32[2]"), element_type=name)
        assert fi.Shape.parse(str(shape)).nbytes == reference.nbytes(shape)


def test_imports_the_standard_library_only() -> None:
    tree = ast.parse(Path(reference.__file__).read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names
