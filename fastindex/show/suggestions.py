"""Tile suggestions for arrays on TPUs."""

from __future__ import annotations

from dataclasses import dataclass

from fastindex.core.integers import UNBOUNDED, counted
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import UnsupportedError
from fastindex.show.tpu_layouts import tpu_layout, tpu_layout_in_order


@dataclass(frozen=True)
class TileSuggestion:
    """A suggested layout for an array.

    Attributes
    ----------
    shape : Shape
        The array in the suggested layout.
    in_order : Shape
        The array in the best tiles with the last dimension most minor.
    """

    shape: Shape
    in_order: Shape

    @property
    def layout(self) -> Layout:
        """The suggested layout.

        Examples
        --------
        >>> str(suggest_tiles("f32[100000,3]").layout)
        '{0,1:T(4,128)}'
        """
        return self.shape.layout

    @property
    def tiles(self) -> tuple[tuple[int, ...], ...]:
        """The tiles of the suggested layout.

        Examples
        --------
        >>> suggest_tiles("f32[100000,3]").tiles
        ((4, 128),)
        """
        return self.shape.layout.tiles

    def __str__(self) -> str:
        lines = [f"{self.shape}: {_size_text(self.shape)}"]
        if self.in_order != self.shape:
            lines.append(f"in the order of the dimensions {self.in_order}: {_size_text(self.in_order)}")
        lines.append("(a heuristic: what XLA's TPU compiler picks for a parameter, the order that pads least)")
        return "\n".join(lines)


def _size_text(shape: Shape) -> str:
    return f"{counted(shape.nbytes, 'byte')}, {shape.padding_ratio:.3g} times the elements"


def suggest_tiles(shape: Shape | str) -> TileSuggestion:
    """Suggest tiles for an array on a TPU.

    This is a heuristic; a compiler may choose better tiles for a given program. The tiles are the defaults of TPU
    compilers for parameters, from v4 on (libtpu 0.0.52, compiled on 2026-11-27).

    Parameters
    ----------
    shape : Shape or str
        An array; its own layout is ignored.

    Raises
    ------
    UnsupportedError
        `shape` is not an array, a dimension is unbounded, or the compiler fails on such arrays: vectors of two-bit
        elements.

    Examples
    --------
    >>> import fastindex as fi
    >>> print(fi.layouts.suggest_tiles("f32[100000,3]"))
    f32[100000,3]{0,1:T(4,128)}: 1,601,536 bytes, 1.33 times the elements
    in the order of the dimensions f32[100000,3]{1,0:T(8,128)}: 51,200,000 bytes, 42.7 times the elements
    (a heuristic: what XLA's TPU compiler picks for a parameter, the order that pads least)
    """
    shape = as_shape(shape)
    sizes = shape.dimensions
    if not shape.is_array:
        raise UnsupportedError(f"only arrays have tiles, not {shape.cut_text()}")
    if UNBOUNDED in sizes:
        raise UnsupportedError("tiles for an unbounded dimension cannot be suggested; give it a size or a bound")
    kind = shape.element_type
    descending = tuple(range(len(sizes) - 1, -1, -1))
    return TileSuggestion(
        shape.with_layout(tpu_layout(kind, sizes)),
        shape.with_layout(tpu_layout_in_order(kind, sizes, descending)),
    )
