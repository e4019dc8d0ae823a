"""Layouts in other notations: pads, reshapes and transposes in NumPy's words, and Triton's linear layouts.

A linear layout is a matrix over GF(2), for arrays of power-of-two sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastindex.core.digits import dimension_digits, slot_digits
from fastindex.core.element_types import ElementType
from fastindex.core.integers import as_integer
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import axes_of, check_placed, slots_before_tail
from fastindex.core.tiles import COMBINE, Axis, CountAxis, tile_text
from fastindex.errors import FastIndexError, UnsupportedError

Kind = Literal["pad", "reshape", "transpose"]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on the whole array.

    Attributes
    ----------
    kind : {"pad", "reshape", "transpose"}
        The name of NumPy's function.
    argument : tuple
        For a pad, a ``(low, high)`` pair for each axis; for a reshape, the new dimensions; for a transpose, the axes in
        their new order.
    cause : str
        The part of the layout that causes the step: ``"{0,1}"``, ``"PAD(3,5)"``, ``"T(8,128)"`` or ``"L(1024)"``.

    Examples
    --------
    >>> print(Step("pad", ((0, 1), (0, 3)), "T(2,4)"))
    x = np.pad(x, ((0, 1), (0, 3)))
    """

    kind: Kind
    argument: tuple[int, ...] | tuple[tuple[int, int], ...]
    cause: str

    def __str__(self) -> str:
        if self.kind == "pad":
            pairs = ", ".join(map(str, self.argument))
            return f"x = np.pad(x, ({pairs}{',' if len(self.argument) == 1 else ''}))"
        return f"x = x.{self.kind}({', '.join(map(str, self.argument))})"


class Steps(tuple[Step, ...]):
    """The steps of a layout, in order. ``print`` shows them as NumPy code; the last line flattens the array.

    Examples
    --------
    >>> print(Steps([Step("transpose", (1, 0), "{0,1}")]))
    x = x.transpose(1, 0)
    x = x.reshape(-1)
    """

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join([*map(str, self), "x = x.reshape(-1)"])


def steps(shape: Shape | str) -> Steps:
    """Return the steps whose composition is the layout of `shape`.

    Applied in order to an array and flattened, they produce the buffer of `fastindex.pack`, including padding. A pad
    writes zeros, or the padding value of the layout. Packed sub-byte elements take one byte each in the result.

    Parameters
    ----------
    shape : Shape or str

    Returns
    -------
    Steps
        A tuple of `Step`, without identity steps.

    Raises
    ------
    UnsupportedError
        The shape is not an array, it is sparse, or a dimension is unbounded.

    Notes
    -----
    Source of the rule: XLA "Tiled layout", https://openxla.org/xla/tiled_layout

    Examples
    --------
    >>> import fastindex as fi
    >>> print(fi.layouts.steps("f32[3,5]{1,0:T(2,2)}"))
    x = np.pad(x, ((0, 1), (0, 1)))
    x = x.reshape(2, 2, 3, 2)
    x = x.transpose(0, 2, 1, 3)
    x = x.reshape(-1)
    >>> [step.kind for step in fi.layouts.steps("f32[3,5]{0,1}")]
    ['transpose']
    """
    described = as_shape(shape)
    check_placed(described)
    return Steps(_steps(described))


def _steps(shape: Shape) -> Iterator[Step]:
    layout = shape.layout
    order = tuple(reversed(layout.minor_to_major))
    sizes = tuple(shape.dimensions[d] for d in order)
    if order != tuple(range(shape.rank)):
        yield Step("transpose", order, "{" + ",".join(map(str, layout.minor_to_major)) + "}")
    axes = axes_of(shape, 0)
    if layout.padded_dimensions is not None:
        cause = f"PAD({','.join(map(str, layout.padded_dimensions))})"
        yield from _padded(sizes, tuple(axis.size for axis in axes), cause)
    for number, tile in enumerate(layout.tiles):
        tiled = axes_of(shape, number + 1)
        kept = sum(size != COMBINE for size in tile)
        yield from _tile_steps(tuple(axis.size for axis in axes), tiled, kept, f"T{tile_text(tile)}")
        axes = tiled
    slots = slots_before_tail(shape)
    if shape.slot_count > slots:
        cause = f"L({layout.tail_padding_alignment_in_elements})"
        if len(axes) != 1:
            yield Step("reshape", (slots,), cause)
        yield from _padded((slots,), (shape.slot_count,), cause)


def _padded(sizes: Sequence[int], padded: Sequence[int], cause: str) -> Iterator[Step]:
    if tuple(padded) != tuple(sizes):
        yield Step("pad", tuple((0, more - size) for size, more in zip(sizes, padded, strict=True)), cause)


def _tile_steps(sizes: tuple[int, ...], tiled: Sequence[Axis], kept: int, cause: str) -> Iterator[Step]:
    """Yield the steps of one tile; its result `tiled` ends with `kept` tile counts, then `kept` tile sizes."""
    untouched = len(tiled) - 2 * kept
    counts = [axis for axis in tiled[untouched : untouched + kept] if isinstance(axis, CountAxis)]
    before = tuple(axis.size for axis in tiled[:untouched])
    merged = before + tuple(count.whole.size for count in counts)
    if merged != sizes:
        yield Step("reshape", merged, cause)
    yield from _padded(merged, before + tuple(count.size * count.tile_size for count in counts), cause)
    split = before + tuple(size for count in counts for size in (count.size, count.tile_size))
    yield Step("reshape", split, cause)
    order = (
        *range(untouched),
        *range(untouched, len(split), 2),
        *range(untouched + 1, len(split), 2),
    )
    if order != tuple(range(len(split))):
        yield Step("transpose", order, cause)


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
