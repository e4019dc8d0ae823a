"""Layouts of power-of-two sizes as matrices over GF(2): Triton's linear layouts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.core.digits import dimension_digits, slot_digits
from fastindex.core.element_types import ElementType
from fastindex.core.integers import as_integer
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import axes_of, check_placed
from fastindex.errors import FastIndexError, UnsupportedError


@dataclass(frozen=True)
class LinearForm:
    """A layout of power-of-two sizes as a linear map over GF(2) from the bits of the slot to bits of coordinates.

    Source: Triton, ``LinearLayout`` in ``include/triton/Tools/LinearLayout.h``.

    Attributes
    ----------
    dimensions : tuple of int
        Powers of two.
    bases : tuple of tuples of int
        For each bit of the slot, lowest first, the coordinates of the element whose slot has only that bit set.

    Examples
    --------
    >>> import fastindex as fi
    >>> form = fi.layouts.LinearForm.from_shape("f32[4,8]{1,0:T(2,4)}")
    >>> form.bases
    ((0, 1), (0, 2), (1, 0), (0, 4), (2, 0))
    >>> str(form.to_shape("f32"))
    'f32[2,2,2,4]{3,1,2,0}'
    """

    dimensions: tuple[int, ...]
    bases: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimensions", _integers(self.dimensions, "dimensions"))
        object.__setattr__(self, "bases", tuple(_integers(base, "bases") for base in self.bases))
        for size in self.dimensions:
            if size < 1 or size & size - 1:
                raise FastIndexError(f"the sizes of a linear form must be powers of two: {size} in {self.dimensions}")
        bits = sum(size.bit_length() - 1 for size in self.dimensions)
        if len(self.bases) != bits or any(len(base) != len(self.dimensions) for base in self.bases):
            raise FastIndexError(f"{self.dimensions} takes {bits} bases of {len(self.dimensions)} coordinates each")
        for base in self.bases:
            if any(not 0 <= at < size for at, size in zip(base, self.dimensions, strict=True)):
                raise FastIndexError(f"the base {base} is not an element of {self.dimensions}")
        if _rank(self.matrix) != bits:
            raise FastIndexError("the bases are linearly dependent: two elements have the same slot")

    @property
    def matrix(self) -> NDArray[np.uint8]:
        """The GF(2) matrix: rows are coordinate bits, last dimension and lowest bit first; columns are slot bits.

        Its product with the bits of a slot, modulo 2, gives the bits of the coordinates.
        """
        rows = [
            [base[d] >> bit & 1 for base in self.bases]
            for d in reversed(range(len(self.dimensions)))
            for bit in range(self.dimensions[d].bit_length() - 1)
        ]
        return np.array(rows, np.uint8).reshape(len(rows), len(self.bases))

    @staticmethod
    def from_shape(shape: Shape | str) -> LinearForm:
        """Return the linear form of a layout.

        Raises
        ------
        UnsupportedError
            A size or a tile is not a power of two, or there is padding; the message says which.

        Examples
        --------
        >>> import fastindex as fi
        >>> fi.layouts.LinearForm.from_shape("f32[4,6]")
        Traceback (most recent call last):
        fastindex.errors.UnsupportedError: dimension 1 of f32[4,6]{1,0} has 6 elements, which is not a power of two
        """
        array = as_shape(shape)
        check_placed(array)
        for d, size in enumerate(array.dimensions):
            if size < 1 or size & size - 1:
                raise UnsupportedError(
                    f"dimension {d} of {array.cut_text()} has {size} elements, which is not a power of two"
                )
        for tile in array.layout.tiles:
            for size in tile:
                if size > 0 and size & size - 1:
                    raise UnsupportedError(
                        f"a tile of {array.cut_text()} has {size} elements, which is not a power of two"
                    )
        if array.slot_count != array.element_count:
            raise UnsupportedError(
                f"{array.cut_text()} is padded to {array.slot_count} slots, which is not a linear form"
            )
        variables, coordinates = dimension_digits(array.dimensions)
        digits = slot_digits(axes_of(array), coordinates, {})
        bases = [(0,) * array.rank] * (array.element_count.bit_length() - 1)
        for one in digits:
            dimension = variables.index(one.variable)
            for bit in range(one.largest.bit_length()):
                base = [0] * array.rank
                base[dimension] = one.low << bit
                bases[(one.weight << bit).bit_length() - 1] = tuple(base)
        return LinearForm(array.dimensions, tuple(bases))

    def to_shape(self, element_type: ElementType | str | Any) -> Shape:
        """Return an equivalent shape without tiles: the dimensions of the array are split instead.

        Raises
        ------
        UnsupportedError
            The form is an XOR swizzle, which no layout can express: a slot bit maps to several coordinate bits.
        """
        places: dict[tuple[int, int], int] = {}
        for place, base in enumerate(self.bases):
            bits = [(d, at.bit_length() - 1) for d, at in enumerate(base) if at]
            if len(bits) != 1 or base[bits[0][0]] & base[bits[0][0]] - 1:
                raise UnsupportedError(f"bit {place} of a slot is the XOR of bits, {base}, a swizzle: no layout has it")
            places[bits[0]] = place
        parts: list[tuple[int, int]] = []
        for d, size in enumerate(self.dimensions):
            runs: list[list[int]] = []
            for bit in range(size.bit_length() - 1):
                place = places[d, bit]
                if runs and runs[-1][-1] + 1 == place:
                    runs[-1].append(place)
                else:
                    runs.append([place])
            parts += [(1 << len(run), run[0]) for run in reversed(runs)] or [(1, -1)]
        order = sorted(range(len(parts)), key=lambda i: parts[i][1])
        return Shape(element_type, [size for size, _ in parts], Layout(tuple(order)))


def _integers(numbers: Iterable[Any], field: str) -> tuple[int, ...]:
    return tuple(as_integer(number, field, place) for place, number in enumerate(numbers))


def _rank(matrix: NDArray[np.uint8]) -> int:
    """Return the rank over GF(2)."""
    rows = [int("".join(map(str, row)), 2) for row in matrix.tolist()] if matrix.size else []
    rank = 0
    while rows:
        pivot = rows.pop()
        if pivot:
            rank += 1
            low = pivot & -pivot
            rows = [row ^ pivot if row & low else row for row in rows]
    return rank
