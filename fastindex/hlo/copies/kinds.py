"""Classify copies, reshapes and transposes: no data movement, a plain move, or a change of layout."""

from __future__ import annotations

from typing import Literal

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.hlo.shape_table import ShapeTable, array_of
from fastindex.xla.bitcasts import reshape_is_bitcast, transpose_is_bitcast

CopyKind = Literal["layout", "reshape", "transpose", "element type", "memory space", "same layout"]


def copy_kind(opcode: str, source: Shape, result: Shape, permutation: tuple[int, ...] | None = None) -> CopyKind | None:
    """Return why a copy, reshape or transpose moves data; None if no data moves, or if the shapes are not arrays.

    Parameters
    ----------
    opcode : str
        "copy", "copy-start", "reshape" or "transpose".
    source, result : Shape
    permutation : tuple of int, optional
        For a transpose: dimension i of the result is dimension ``permutation[i]`` of the source.

    Examples
    --------
    >>> a, b = Shape.parse("f32[16,128]{1,0:T(8,128)}"), Shape.parse("f32[16,128]{0,1:T(8,128)}")
    >>> copy_kind("copy", a, b), copy_kind("copy", a, a), copy_kind("transpose", a, b, (0, 1))
    ('layout', 'same layout', 'transpose')
    >>> copy_kind("reshape", a, Shape.parse("f32[2048]{0:T(1024)}"))
    """
    before, after = array_of(source), array_of(result)
    if before is None or after is None:
        return None
    if before.element_type != after.element_type:
        return "element type"
    try:
        stays = _keeps_slots(opcode, before, after, permutation)
    except FastIndexError:
        return None
    moves = before.layout.memory_space != after.layout.memory_space
    if opcode in ("reshape", "transpose"):
        if not stays:
            return "reshape" if opcode == "reshape" else "transpose"
        return "memory space" if moves else None
    if not stays or _written_order(before) != _written_order(after):
        return "layout"
    return "memory space" if moves else "same layout"


class Kinds:
    """Cached `copy_kind` by the numbers of shapes in a table; modules share many shapes.

    Attributes
    ----------
    table : ShapeTable
    """

    def __init__(self, table: ShapeTable) -> None:
        self.table = table
        self._known: dict[tuple[str, int, int, object], CopyKind | None] = {}

    def kind(self, opcode: str, before: int, after: int, permutation: object = None) -> CopyKind | None:
        """Return the `copy_kind` of two arrays by their numbers; None if a size is unknown."""
        key = opcode, before, after, permutation
        if key not in self._known:
            table = self.table
            known = table.nbytes[before] >= 0 and table.nbytes[after] >= 0
            order = permutation if isinstance(permutation, tuple) else None
            shapes = table.shapes[before], table.shapes[after]
            self._known[key] = copy_kind(opcode, *shapes, order) if known else None
        return self._known[key]


def _keeps_slots(opcode: str, before: Shape, after: Shape, permutation: tuple[int, ...] | None) -> bool:
    if opcode == "transpose" and permutation is not None:
        return transpose_is_bitcast(before, after, permutation)
    return reshape_is_bitcast(before, after)


def _written_order(shape: Shape) -> tuple[object, ...]:
    """Return the dimension order and the tiles as written, without dimensions of size 1, and the element width."""
    layout = shape.layout
    order = tuple(d for d in layout.minor_to_major if shape.dimensions[d] != 1)
    return order, layout.tiles, shape.element_bits
