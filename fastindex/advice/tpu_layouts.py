"""The layouts that XLA's TPU compiler chooses by default.

These rules were derived from the output of libtpu 0.0.42 for v4, v5e and v6e, for more than 400 shapes of rank 0 to 5,
which are listed in ``tests/data/tpu_layouts.txt``. They belong to these compilers, not to XLA's format. The operands of
some operations, such as convolutions, may have another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from fastindex.shapes.element_types import ElementType
from fastindex.shapes.layout import Layout
from fastindex.shapes.shape import Shape

_WORD_BITS = 32
_LANES = 128
_SUBLANES = 8
_LONGEST_1D_TILE = 1024

Tiles = tuple[tuple[int, ...], ...]


def slot_bits(element_type: ElementType) -> int:
    """Return the number of bits per element on a TPU: packed for sub-byte types, 8 for a predicate.

    Examples
    --------
    >>> [slot_bits(ElementType.of(name)) for name in ("f32", "pred", "s4")]
    [32, 8, 4]
    """
    return element_type.bits if element_type.is_sub_byte else 8 * element_type.nbytes


def tpu_tiles(element_bits: int, dimensions: Sequence[int], minor_to_major: Sequence[int]) -> Tiles:
    """Return the default tiles of an array with this order of dimensions.

    Examples
    --------
    >>> tpu_tiles(16, (1024, 1000), (1, 0))
    ((8, 128), (2, 1))
    >>> tpu_tiles(32, (3, 1000), (1, 0))
    ((4, 128),)
    >>> tpu_tiles(16, (5000,), (0,))
    ((1024,), (128,), (2, 1))
    """
    packed = max(_WORD_BITS // element_bits, 1)
    words = ((packed, 1),) if packed > 1 else ()
    if not dimensions:
        return ((_LANES * packed,),)
    if len(dimensions) == 1:
        length = min(max(_power_of_two(dimensions[0]), _LANES * packed), _LONGEST_1D_TILE)
        return ((length,), (_LANES,), *words) if words else ((length,),)
    second_minor = dimensions[minor_to_major[1]]
    if packed > 2 and second_minor and second_minor % (_SUBLANES * packed) == 0:
        return ((_SUBLANES * packed, _LANES), *words)
    rows = min(max(_power_of_two(second_minor), packed), _SUBLANES)
    return ((rows, _LANES), *words)


def tpu_layout(element_type: ElementType, dimensions: Sequence[int]) -> Layout:
    """Return the default layout of an array: the order whose two minor dimensions need the least padding.

    Examples
    --------
    >>> str(tpu_layout(ElementType.of("f32"), (100000, 3)))
    '{0,1:T(4,128)}'
    """
    orders = orders_of_two_minor(len(dimensions))
    layouts = [tpu_layout_in_order(element_type, dimensions, order) for order in orders]
    return min(layouts, key=lambda layout: Shape(element_type, dimensions, layout).slot_count)


def tpu_layout_in_order(element_type: ElementType, dimensions: Sequence[int], minor_to_major: Sequence[int]) -> Layout:
    """Return the default layout of an array with this order of dimensions.

    Examples
    --------
    >>> str(tpu_layout_in_order(ElementType.of("s4"), (300, 257), (0, 1)))
    '{0,1:T(8,128)(8,1)E(4)}'
    """
    return Layout(
        tuple(minor_to_major),
        tiles=tpu_tiles(slot_bits(element_type), dimensions, minor_to_major),
        element_size_in_bits=element_type.bits if element_type.is_sub_byte else 0,
    )


def orders_of_two_minor(rank: int) -> list[tuple[int, ...]]:
    """Return a `minor_to_major` for each choice of the two minor dimensions, with the others descending.

    The compiler takes the first of those that need the least padding.

    Examples
    --------
    >>> orders_of_two_minor(3)
    [(2, 1, 0), (2, 0, 1), (1, 2, 0), (1, 0, 2), (0, 2, 1), (0, 1, 2)]
    """
    if rank < 2:
        return [tuple(range(rank))]
    return [
        (*pair, *(d for d in range(rank - 1, -1, -1) if d not in pair))
        for pair in permutations(range(rank - 1, -1, -1), 2)
    ]


def _power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()
