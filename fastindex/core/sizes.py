"""What a shape is, and its sizes by the definition of a layout: dimensions, elements, slots, bytes; widths of slots."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex

from fastindex.core.element_types import BY_NAME
from fastindex.core.integers import INT64_MAX, UNBOUNDED, as_integer
from fastindex.core.layout import Layout
from fastindex.core.shape_fields import Ints, ShapeFields
from fastindex.core.tiles import Axis, physical_axes
from fastindex.errors import LayoutError, OutOfBoundsError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np

Letters = tuple[str, ...]

_LETTERS: tuple[tuple[str, ...], ...] = ((), ("x",), ("y", "x"), ("z", "y", "x"), ("p", "z", "y", "x"))


class SizedShape(ShapeFields):
    """The kind, the dimensions and the sizes of a `Shape`."""

    __slots__ = ()

    @property
    def is_array(self) -> bool:
        """Whether this is an array.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape("f32").is_array, Shape.token().is_array
        (True, False)
        """
        return self._layout is not None

    @property
    def is_tuple(self) -> bool:
        """Whether this is a tuple.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape.tuple().is_tuple
        True
        """
        return self.element_type.name == "tuple"

    @property
    def is_buffer(self) -> bool:
        """Whether this is a buffer.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape.buffer(Shape("f32", (2,))).is_buffer
        True
        """
        return self.element_type.name == "buffer"

    @property
    def layout(self) -> Layout:
        """The layout of an array.

        Raises
        ------
        UnsupportedError
            This is not an array.

        Examples
        --------
        >>> from fastindex import Shape
        >>> str(Shape("f32", (2, 3)).layout)
        '{1,0}'
        """
        if self._layout is None:
            raise UnsupportedError(f"only arrays have a layout, not {self.cut_text()}")
        return self._layout

    @property
    def rank(self) -> int:
        """Number of dimensions.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape("f32", (1, 3)).rank
        2
        """
        return len(self.dimensions)

    @property
    def true_rank(self) -> int:
        """Number of dimensions whose size is not 1.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape("f32", (1, 3)).true_rank
        1
        """
        return sum(size != 1 for size in self.dimensions)

    @property
    def dimension_letters(self) -> Letters:
        """The letters that XLA's documents use for the dimensions, up to rank 4; () for higher ranks.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape("f32", (2, 3, 4)).dimension_letters
        ('z', 'y', 'x')
        """
        return _LETTERS[self.rank] if self.rank < len(_LETTERS) else ()

    def dimension(self, number: SupportsIndex) -> int:
        """Return the size of a dimension; negative numbers count from the end.

        Raises
        ------
        OutOfBoundsError
            There is no such dimension.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape("f32", (2, 3)).dimension(-1)
        3
        """
        return self.dimensions[self.dimension_number(number)]

    def dimension_number(self, number: SupportsIndex) -> int:
        """Return the non-negative number of a dimension; negative numbers count from the end.

        Raises
        ------
        OutOfBoundsError
            There is no such dimension.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape("f32", (2, 3)).dimension_number(-1)
        1
        """
        checked = as_integer(number, "dimension")
        if not -self.rank <= checked < self.rank:
            raise OutOfBoundsError(f"dimension {checked} is out of bounds for {self.cut_text()} of rank {self.rank}")
        return checked % self.rank

    def leaves(self) -> Iterator[Self]:
        """Iterate over the shapes inside nested tuples, in order; a shape that is not a tuple yields itself.

        Examples
        --------
        >>> from fastindex import Shape
        >>> [str(leaf) for leaf in Shape.parse("(f32[2], (token[], s8[]))").leaves()]
        ['f32[2]{0}', 'token[]', 's8[]']
        """
        pending = [self]
        while pending:
            shape = pending.pop()
            if shape.is_tuple:
                pending.extend(reversed(shape.tuple_shapes))
            else:
                yield shape

    def cut_text(self) -> str:
        """Return the text, shortened if it is too long for an error message.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape("f32", (2, 3)).cut_text()
        'f32[2,3]{1,0}'
        """
        text = str(self)
        return text if len(text) <= 200 else text[:200] + "..."

    @property
    def element_bits(self) -> int:
        """Number of bits of one slot in the buffer.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape.parse("s4[8]{0:E(4)}").element_bits, Shape.parse("s4[8]").element_bits
        (4, 8)
        """
        return self.layout.element_size_in_bits or 8 * self.element_type.nbytes

    @property
    def element_count(self) -> int:
        """Number of logical elements; a dynamic dimension counts with its upper bound.

        Raises
        ------
        UnsupportedError
            This is not an array, or a dimension is unbounded.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape("f32", (3, 5)).element_count
        15
        """
        check_sized(self)
        return math.prod(self.dimensions)

    @property
    def slot_count(self) -> int:
        """Number of slots in the buffer, including all padding.

        Raises
        ------
        UnsupportedError
            This is not an array, it is sparse, or a dimension is unbounded.
        LayoutError
            The number of slots does not fit int64.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape.parse("f32[3,5]{1,0:T(2,2)}").slot_count
        24
        """
        slots = self._slot_count
        if slots is None:
            slots = count_slots(self)
            object.__setattr__(self, "_slot_count", slots)
        return slots

    @property
    def nbytes(self) -> int:
        """Number of bytes in the buffer, including all padding.

        For a tuple, the sum over its arrays, without the table of pointers; for a token or an opaque value, 0.

        Raises
        ------
        UnsupportedError
            A dimension is unbounded, or an array is sparse.
        LayoutError
            The number of bytes does not fit int64.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape.parse("f32[3,5]{1,0:T(2,2)}").nbytes
        96
        >>> Shape.parse("s4[3]{0:E(4)}").nbytes
        2
        """
        if not self.is_array:
            return sum_bytes(self, logical=False)
        return bytes_of(self, self.slot_count)

    @property
    def logical_nbytes(self) -> int:
        """Number of bytes of the elements without padding, at their width in the buffer.

        Raises
        ------
        UnsupportedError
            A dimension is unbounded.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape.parse("f32[3,5]{1,0:T(2,2)}").logical_nbytes
        60
        """
        if not self.is_array:
            return sum_bytes(self, logical=True)
        return bytes_of(self, self.element_count)

    @property
    def padding_ratio(self) -> float:
        """`nbytes` / `logical_nbytes`: 1.0 without padding, infinity if the buffer is all padding.

        Examples
        --------
        >>> from fastindex import Shape
        >>> Shape.parse("f32[3,5]{1,0:T(2,2)}").padding_ratio
        1.6
        """
        nbytes, logical_nbytes = self.nbytes, self.logical_nbytes
        if logical_nbytes == 0:
            return math.inf if nbytes else 1.0
        return nbytes / logical_nbytes


def check_sized(shape: SizedShape) -> None:
    """Raise an error if the elements of `shape` cannot be counted: not an array, or unbounded."""
    if not shape.is_array:
        raise UnsupportedError(f"only arrays have elements, not {shape.cut_text()}")
    if UNBOUNDED in shape.dimensions:
        raise UnsupportedError(
            f"{shape.cut_text()} has an unbounded dimension and so no size; give it a size or a bound"
        )


def check_placed(shape: SizedShape) -> None:
    """Raise an error if the elements of `shape` do not have fixed slots."""
    check_sized(shape)
    if shape.layout.dimension_levels:
        raise UnsupportedError(f"{shape.cut_text()} is sparse: where its elements lie depends on its contents")


def slots_before_tail(shape: SizedShape) -> int:
    """Count the slots of the tiled array, before ``L(...)`` rounds their number up."""
    return math.prod([axis.size for axis in axes_of(shape)])


def count_slots(shape: SizedShape) -> int:
    """Count the slots in the buffer of an array."""
    check_placed(shape)
    tail = shape.layout.tail_padding_alignment_in_elements
    slots = -(-slots_before_tail(shape) // tail) * tail
    if slots > INT64_MAX:
        raise LayoutError(f"int64 overflow: {shape.cut_text()} takes {slots} slots")
    return slots


def bytes_of(shape: SizedShape, element_count: int) -> int:
    """Return the bytes that `element_count` elements take in the buffer of an array."""
    nbytes = -(-element_count * shape.element_bits // 8)
    if nbytes > INT64_MAX:
        raise LayoutError(f"int64 overflow: {shape.cut_text()} takes {nbytes} bytes")
    return nbytes


def sum_bytes(shape: SizedShape, *, logical: bool) -> int:
    """Return the total bytes of the arrays in a tuple or a buffer."""
    total = 0
    for leaf in shape.leaves():
        array = leaf.tuple_shapes[0] if leaf.is_buffer else leaf
        if array.is_array:
            total += array.logical_nbytes if logical else array.nbytes
    if total > INT64_MAX:
        raise LayoutError(f"int64 overflow: {shape.cut_text()} takes {total} bytes")
    return total


def axes_of(shape: SizedShape, tile_count: int | None = None) -> list[Axis]:
    """Return the axes of the physical array of `shape`, most major first, after its first `tile_count` tiles, or all.

    Examples
    --------
    >>> from fastindex import Shape
    >>> [axis.size for axis in axes_of(Shape.parse("f32[3,5]{1,0:T(2,2)}"))]
    [2, 3, 2, 2]
    """
    layout = shape.layout
    if tile_count is None:
        return list(_all_axes(shape.dimensions, layout.minor_to_major, layout.padded_dimensions, layout.tiles))
    tiles = layout.tiles[:tile_count]
    return physical_axes(shape.dimensions, layout.minor_to_major, layout.padded_dimensions, tiles)


@lru_cache(maxsize=64)
def _all_axes(
    dimensions: Ints, minor_to_major: Ints, padded_dimensions: Ints | None, tiles: tuple[Ints, ...]
) -> tuple[Axis, ...]:
    # Cached: plans are often made right after the slots of a shape are counted.
    return tuple(physical_axes(dimensions, minor_to_major, padded_dimensions, tiles))


@dataclass(frozen=True, slots=True)
class SlotFormat:
    """How a buffer stores one value.

    Attributes
    ----------
    value_bytes : int
        Bytes of an unpacked value.
    bits : int
        Bits of a slot: 1, 2 or 4 where values are packed into bytes, else a whole number of bytes.
    """

    value_bytes: int
    bits: int

    @property
    def is_packed(self) -> bool:
        return self.bits < 8

    @property
    def is_plain(self) -> bool:
        """Whether a slot has the width of an unpacked value."""
        return self.bits == 8 * self.value_bytes

    def nbytes(self, slots: int) -> int:
        return -(-slots * self.bits // 8)


def slot_format(shape: SizedShape) -> SlotFormat:
    """Return how the buffer of a shape stores its values.

    Raises
    ------
    UnsupportedError
        ``E`` is not 1, 2, 4 or a whole number of bytes, or too small for the element type.

    Examples
    --------
    >>> from fastindex import Shape
    >>> slot_format(Shape.parse("s4[8]{0:E(4)}")), slot_format(Shape.parse("s4[8]"))
    (SlotFormat(value_bytes=1, bits=4), SlotFormat(value_bytes=1, bits=8))
    """
    element_type, bits = shape.element_type, shape.element_bits
    if bits < element_type.bits or (bits not in (1, 2, 4) and bits % 8):
        raise UnsupportedError(
            f"E({bits}): data moves only where an element takes 1, 2, 4 or a multiple of 8 bits, and at least the "
            f"{element_type.bits} bits of {element_type}; in {shape.cut_text()!r}"
        )
    return SlotFormat(element_type.nbytes or 1, bits)


class BufferForm(NamedTuple):
    """What a buffer is in memory.

    Attributes
    ----------
    dtype : numpy.dtype
        The element type's, or uint8 where a slot is not a plain value.
    length, nbytes : int
        Its size in elements of `dtype`, and in bytes.
    dimensions : tuple of int or None
        The dimensions of the array in memory order, most major first; None where the buffer has padding or tiles.
    """

    dtype: np.dtype[Any]
    length: int
    nbytes: int
    dimensions: tuple[int, ...] | None


@lru_cache(maxsize=512)
def buffer_form(shape: SizedShape) -> BufferForm:
    """Return what a buffer of a shape is in memory.

    Examples
    --------
    >>> from fastindex import Shape
    >>> buffer_form(Shape.parse("f32[8,64,56,56]{1,3,2,0}")).dimensions
    (8, 56, 56, 64)
    """
    nbytes, layout = shape.nbytes, shape.layout
    if not slot_format(shape).is_plain:
        return BufferForm(BY_NAME["u8"].numpy_dtype, nbytes, nbytes, None)
    ordered = tuple(shape.dimensions[d] for d in reversed(layout.minor_to_major))
    is_padded = layout.padded_dimensions not in (None, shape.dimensions) or shape.slot_count != math.prod(ordered)
    dimensions = None if layout.tiles or is_padded else ordered
    return BufferForm(shape.element_type.numpy_dtype, shape.slot_count, nbytes, dimensions)


def check_movable(shape: SizedShape) -> None:
    """Raise an error where the data of `shape` cannot be moved.

    Raises
    ------
    UnsupportedError
        Not an array of fixed size with a dense layout, or an unsupported element size.
    """
    check_placed(shape)
    slot_format(shape)
