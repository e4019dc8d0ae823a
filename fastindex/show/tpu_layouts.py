"""Default layouts of program parameters in XLA's TPU compiler, and tile suggestions based on them.

The rules were verified against libtpu 0.0.52 with jax 0.12.0.1 on 2026-11-27, for v2, v3, v4, v5e, v5p, v6e and tpu7x:
6,000 random arrays of rank 0 to 5, 200 of each element type that JAX has; a sample is recorded in
``tests/data/tpu_defaults.txt.xz``. v2 and v3 agree, and so do all generations from v4 on. The rules belong to these
compilers, not to XLA's format. The operands of some operations, such as convolutions, may have another order.

The defaults are unknown for types that JAX cannot pass to the compiler, ``s1`` and ``u1``, and for arrays on which the
compiler itself fails: vectors of ``s2`` and ``u2``, and on v4 all arrays of these types except scalars.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from fastindex.core.element_types import ElementType
from fastindex.core.integers import UNBOUNDED, counted
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import UnsupportedError

#: The generations whose compiler's default layouts are known.
TPUS = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x")
#: Generations that do not pack sub-byte elements, and whose tiles have at least two rows of words.
_OLD_TPUS = ("v2", "v3")
_WORD_BITS = 32
_LANES = 128
_SUBLANES = 8
_LONGEST_1D_TILE = 1024
#: Sub-byte widths that the compiler packs; other sub-byte elements take a byte.
_PACKED_BITS = (2, 4)


def tpu_layout(element_type: ElementType, dimensions: Sequence[int], tpu: str | None = None) -> Layout:
    """Return the default layout of an array: the order whose two minor dimensions need the least padding.

    Parameters
    ----------
    element_type : ElementType
    dimensions : sequence of int
    tpu : str, optional
        A generation, one of `TPUS`. Default: any from v4 on; for elements of two bits, any from v5e on.

    Raises
    ------
    UnsupportedError
        The compiler fails on such arrays, or its default is unknown.

    Examples
    --------
    >>> str(tpu_layout(ElementType.of("f32"), (100000, 3)))
    '{0,1:T(4,128)}'
    >>> str(tpu_layout(ElementType.of("f32"), (1, 1000))), str(tpu_layout(ElementType.of("f32"), (1, 1000), "v3"))
    ('{1,0:T(1,128)}', '{1,0:T(2,128)}')
    """
    orders = orders_of_two_minor(len(dimensions))
    layouts = [tpu_layout_in_order(element_type, dimensions, order, tpu) for order in orders]
    return min(layouts, key=lambda layout: _preference(dimensions, layout))


def tpu_layout_in_order(
    element_type: ElementType, dimensions: Sequence[int], minor_to_major: Sequence[int], tpu: str | None = None
) -> Layout:
    """Return the default layout of an array with a given order of dimensions.

    Raises
    ------
    UnsupportedError
        The compiler fails on such arrays, or its default is unknown.

    Examples
    --------
    >>> str(tpu_layout_in_order(ElementType.of("s4"), (300, 257), (0, 1)))
    '{0,1:T(8,128)(8,1)E(4)}'
    >>> str(tpu_layout_in_order(ElementType.of("u2"), (8, 128), (1, 0)))
    '{1,0:T(16,128)(16,1)E(2)}'
    """
    _check_known(element_type, len(dimensions), tpu)
    is_old = tpu in _OLD_TPUS
    is_packed = element_type.bits in _PACKED_BITS and not is_old
    bits = element_type.bits if is_packed else 8 * element_type.nbytes
    return Layout(
        tuple(minor_to_major),
        tiles=_tiles((element_type.bits, bits), dimensions, minor_to_major, is_old),
        element_size_in_bits=bits if is_packed else 0,
    )


def is_tpu_default(shape: Shape) -> bool:
    """Whether an array has the default tiles of the compiler for its order of dimensions.

    Examples
    --------
    >>> is_tpu_default(Shape.parse("f32[3,100]{1,0:T(4,128)}")), is_tpu_default(Shape.parse("f32[3,100]{1,0:T(8,128)}"))
    (True, False)
    """
    layout, default = shape.layout, default_like(shape, shape.dimensions, shape.layout.minor_to_major)
    return default is not None and (default.tiles, default.element_size_in_bits) == (
        layout.tiles,
        layout.element_size_in_bits,
    )


def default_like(shape: Shape, dimensions: Sequence[int], minor_to_major: Sequence[int]) -> Layout | None:
    """Return the default layout of other dimensions of the element type of `shape`; None if there is none.

    Examples
    --------
    >>> str(default_like(Shape.parse("f32[3]"), (3, 100), (1, 0))), default_like(Shape.parse("u1[3]"), (3, 4), (1, 0))
    ('{1,0:T(4,128)}', None)
    """
    try:
        return tpu_layout_in_order(shape.element_type, dimensions, minor_to_major)
    except UnsupportedError:
        return None


def _preference(dimensions: Sequence[int], layout: Layout) -> tuple[int, bool]:
    """Return the compiler's sort key of orders: slots in tiles of at most 8 rows, then whether whole tiles pad.

    Examples
    --------
    >>> _preference((16, 7), Layout((0, 1), tiles=((16, 128), (16, 1))))
    (1024, True)
    """
    if len(dimensions) < 2 or not layout.tiles:
        return 0, False
    minor, second_minor = layout.minor_to_major[:2]
    rows = layout.tiles[0][0]
    units = {minor: _LANES, second_minor: min(rows, _SUBLANES)}
    slots = math.prod(-(-size // units.get(d, 1)) * units.get(d, 1) for d, size in enumerate(dimensions))
    return slots, dimensions[minor] % _LANES != 0 or dimensions[second_minor] % rows != 0


def _check_known(element_type: ElementType, rank: int, tpu: str | None) -> None:
    if element_type.bits == 1 and element_type.is_sub_byte:
        raise UnsupportedError(f"the default layout of {element_type} on a TPU is not known: JAX has no such arrays")
    if element_type.bits == 2 and rank == 1:
        raise UnsupportedError(
            f"the TPU compiler fails on vectors of {element_type}, so they have no default layout: use rank 2 or more"
        )
    if element_type.bits == 2 and rank > 1 and tpu == "v4":
        raise UnsupportedError(f"the compiler of v4 fails on {element_type}, so it has no default layout there")


def _tiles(
    bits: tuple[int, int], dimensions: Sequence[int], minor_to_major: Sequence[int], is_old: bool
) -> tuple[tuple[int, ...], ...]:
    """Return the default tiles: one to eight rows of 128 lanes of 32-bit words.

    `bits` is the width of a value, and the width of an element in the buffer.

    Examples
    --------
    >>> _tiles((16, 16), (1024, 1000), (1, 0), False), _tiles((32, 32), (3, 1000), (1, 0), False)
    (((8, 128), (2, 1)), ((4, 128),))
    >>> _tiles((2, 2), (8, 8), (1, 0), False), _tiles((2, 8), (8, 8), (1, 0), True)
    (((16, 128), (16, 1)), ((16, 128), (4, 1)))
    >>> _tiles((16, 16), (5000,), (0,), False)
    ((1024,), (128,), (2, 1))
    """
    if 0 in dimensions:
        return ()
    value_bits, element_bits = bits
    packed = max(_WORD_BITS // element_bits, 1)
    words = ((packed, 1),) if packed > 1 else ()
    fewest_rows = 2 * packed if is_old else packed
    if not dimensions:
        return ((_LANES * fewest_rows,),)
    if len(dimensions) == 1:
        length = max(min(_power_of_two(dimensions[0]), _LONGEST_1D_TILE), _LANES * fewest_rows)
        return ((length,), (_LANES,), *words) if words else ((length,),)
    second_minor = dimensions[minor_to_major[1]]
    if packed > 2 and not is_old and second_minor % (_SUBLANES * packed) == 0:
        return ((_SUBLANES * packed, _LANES), *words)
    # A tile of two-bit values has at least 16 rows: these fill packed words, and unpacked tiles have as many.
    rows = max(min(_power_of_two(second_minor), _SUBLANES), fewest_rows, _WORD_BITS // 2 if value_bits == 2 else 1)
    return ((rows, _LANES), *words)


def orders_of_two_minor(rank: int) -> list[tuple[int, ...]]:
    """Return a `minor_to_major` for each choice of the two minor dimensions, with the others descending.

    The compiler takes the first of the orders with the least padding.

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
