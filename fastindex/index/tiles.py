"""Tile indices in bulk: from coordinates to a tile and the position within it, and back.

The tiles of a layout up to number `level` split the array into axes. The last ones, one for each entry of that tile
that is not ``*``, give the position in the tile; all others identify the tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from fastindex.algebra.forms import IndexProgram, ProgramBuilder, scaled_sum
from fastindex.arrays.arrays import common_shape
from fastindex.arrays.index_arguments import (
    Inputs,
    as_integers_in_bulk,
    check_padding,
    coordinate_arguments,
    is_window,
    window_arguments,
)
from fastindex.core.integers import as_integer
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import axes_of
from fastindex.core.tiles import COMBINE
from fastindex.errors import FastIndexError, LayoutError, OutOfBoundsError, UnsupportedError, check_flag, check_option
from fastindex.index.executors import BadElementError, convert, out_of_bounds
from fastindex.index.programs import (
    UNITS,
    bits_of_unit,
    coordinate_forms,
    from_tile_program,
    require_one_element,
    slot_form,
    tile_program,
    within_tile_count,
)


@dataclass(frozen=True, slots=True)
class TileSlots:
    """The tiles of one level, and the size of each in the buffer.

    Attributes
    ----------
    counts : tuple of int
        Number of tiles along each axis of the tile coordinates.
    sizes : tuple of int
        Size of a tile along each of its axes.
    tile_count : int
    slots_per_tile : int
        Padding by the tile's own subtiles included.
    bits_per_tile : int
    is_contiguous : bool
        Whether a tile is contiguous in the buffer. If not, a later tile reaches across its borders.

    Examples
    --------
    >>> import fastindex as fi
    >>> found = fi.tile_slots("bf16[1024,1000]{1,0:T(8,128)(2,1)}")
    >>> found.counts, found.sizes, found.slots_per_tile, found.bytes_per_tile
    ((128, 8), (8, 128), 1024, 2048)
    """

    counts: tuple[int, ...]
    sizes: tuple[int, ...]
    tile_count: int
    slots_per_tile: int
    bits_per_tile: int
    is_contiguous: bool

    @property
    def bytes_per_tile(self) -> float:
        """Bytes of one tile; a fraction where a tile ends within a byte."""
        return self.bits_per_tile // 8 if self.bits_per_tile % 8 == 0 else self.bits_per_tile / 8


def tile_slots_of(shape: Shape, level: int) -> TileSlots:
    """Return the counts and sizes of the tiles of one level.

    Raises
    ------
    UnsupportedError, LayoutError
        As `linear_program`.
    """
    within = within_tile_count(shape, level)
    sizes = [axis.size for axis in axes_of(shape, level + 1)]
    counts, tile = sizes[: len(sizes) - within], sizes[len(sizes) - within :]
    inside, contiguous = within, True
    for later in shape.layout.tiles[level + 1 :]:
        beyond = later[: max(len(later) - inside, 0)]
        # An entry of 1 leaves its axis in place.
        contiguous = contiguous and all(size == 1 for size in beyond)
        inside += sum(size != COMBINE for size in later) - sum(size == COMBINE for size in later[len(beyond) :])
    final = [axis.size for axis in axes_of(shape)]
    slots = math.prod(final[len(final) - inside :]) if contiguous else math.prod(tile)
    return TileSlots(tuple(counts), tuple(tile), math.prod(counts), slots, slots * shape.element_bits, contiguous)


def contiguous_tiles(shape: Shape, level: int, unit: str) -> TileSlots:
    """Return the tiles of one level, if each is contiguous and a whole number of units.

    Raises
    ------
    UnsupportedError
        A later tile reaches across the borders of these, or a tile ends within a byte.
    FastIndexError, LayoutError
        As `linear_program`.
    """
    bits = bits_of_unit(shape, unit)
    found = tile_slots_of(shape, level)
    if not found.is_contiguous:
        raise UnsupportedError(
            f"tiles of level {level} of {shape.cut_text()} are not one piece of the buffer each: a later tile reaches "
            f"across their borders; use level={len(shape.layout.tiles) - 1}, or flat=False"
        )
    if found.bits_per_tile % bits:
        raise UnsupportedError(f"a tile of {shape.cut_text()} ends within a byte; use unit='bit'")
    return found


@lru_cache(maxsize=1024)
def flat_tile_program(shape: Shape, level: int, unit: str = "slot") -> IndexProgram:
    """Return the program from coordinates to the number of the tile in memory order, and the offset within it.

    Raises
    ------
    UnsupportedError, LayoutError, FastIndexError
        As `contiguous_tiles`.
    """
    tiles, bits = contiguous_tiles(shape, level, unit), bits_of_unit(shape, unit)
    builder = ProgramBuilder(shape.dimensions)
    if shape.slot_count == 0:
        return builder.program([(), ()])
    slot = slot_form(builder, axes_of(shape), [builder.variable(d) for d in range(shape.rank)])
    number = builder.quotient(slot, tiles.slots_per_tile, shape.slot_count - 1)
    within = scaled_sum((1, slot), (-tiles.slots_per_tile, number))
    return builder.program([number, builder.in_units(within, shape.element_bits, bits, tiles.slots_per_tile - 1)])


@lru_cache(maxsize=1024)
def from_flat_tile_program(shape: Shape, level: int, unit: str = "slot") -> IndexProgram:
    """Return the inverse program, from tile number and offset within the tile, with checks that fail for padding.

    Raises
    ------
    UnsupportedError, LayoutError, FastIndexError
        As `contiguous_tiles`; also bytes of elements that are not a whole number of bytes.
    """
    require_one_element(shape, unit)
    tiles, bits = contiguous_tiles(shape, level, unit), bits_of_unit(shape, unit)
    units = tiles.bits_per_tile // bits
    builder = ProgramBuilder((tiles.tile_count, units))
    if shape.slot_count == 0:
        return builder.program([()] * shape.rank)
    within = builder.in_units(builder.variable(1), bits, shape.element_bits, units - 1)
    slot = scaled_sum((tiles.slots_per_tile, builder.variable(0)), (1, within))
    last = tiles.tile_count * tiles.slots_per_tile - 1
    return builder.program(*coordinate_forms(builder, shape, slot, last))


# Public functions


def tile_index(
    shape: Shape | str,
    multi_index: Any,
    level: int = 0,
    flat: bool = False,
    *,
    unit: str = "slot",
    out: Any = None,
    threads: int | None = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Return the tile of each element, and its position within that tile.

    The layout's tiles up to number `level` are applied. Of the resulting axes, the last ones have the sizes of that
    tile, one for each of its entries that is not ``*``: they give the position in the tile. All others, in order,
    identify the tile: the axes that the tile does not cover, then the counts of tiles.

    Parameters
    ----------
    shape : Shape or str
    multi_index : sequence of integer arrays, or a window
        As in `linear_index`.
    level : int
        Which of the layout's tiles; negative numbers count from the last.
    flat : bool
        Return the number of the tile in memory order, and the offset of the element from the start of the tile, in
        `unit`.
    unit : {"slot", "byte", "bit"}
        Unit of offsets within a tile; for ``flat=True``.
    out : pair, optional
        Where to write the results: a pair of sequences of int64 arrays, or with ``flat=True`` of arrays.
    threads : int, optional
        Maximum number of threads.
    stream : CUDA stream, optional
        Where to run if the indices are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    (tile coordinates, coordinates within the tile)
        Each a tuple of int64 arrays of the common shape; with ``flat=True`` each one such array.

    Raises
    ------
    OutOfBoundsError
        A coordinate is out of bounds, or there is no such tile.
    UnsupportedError
        ``flat=True``, and a tile is not contiguous in the buffer or not a whole number of units; as `linear_index`.
    ArgumentTypeError, FastIndexError, LayoutError
        As `linear_index`.

    See Also
    --------
    from_tile_index : the inverse
    tile_slots : the number of tiles, and their size

    Examples
    --------
    >>> import fastindex as fi
    >>> tile, within = fi.tile_index("bf16[32,256]{1,0:T(8,128)(2,1)}", ([9], [130]))
    >>> [int(c[0]) for c in tile], [int(c[0]) for c in within]
    ([1, 1], [1, 2])
    >>> tile, within = fi.tile_index("bf16[32,256]{1,0:T(8,128)(2,1)}", ([9], [130]), level=1)
    >>> [int(c[0]) for c in tile], [int(c[0]) for c in within]
    ([1, 1, 0, 2], [1, 0])
    >>> fi.tile_index("bf16[32,256]{1,0:T(8,128)(2,1)}", ([9], [130]), flat=True)
    (array([3]), array([5]))
    """
    shape = as_shape(shape)
    level = _checked_level(shape, level)
    _check_flat(flat, unit)
    program, split = _program_to_tiles(shape, level, flat, unit)
    both = None if out is None else _outputs_in_a_row(out, flat)
    arguments = (window_arguments if is_window(multi_index) else coordinate_arguments)(
        multi_index, shape, stream=stream
    )
    found = convert(program, arguments, partial(out_of_bounds, shape=shape), out=both, threads=threads)
    return (found[0], found[1]) if flat else (tuple(found[:split]), tuple(found[split:]))


def _program_to_tiles(shape: Shape, level: int, flat: bool, unit: str) -> tuple[IndexProgram, int]:
    """Return a program, and the number of its outputs that identify the tile."""
    if flat:
        return flat_tile_program(shape, level, unit), 1
    program = tile_program(shape, level)
    return program, len(program.outputs) - within_tile_count(shape, level)


def _check_flat(flat: bool, unit: str) -> None:
    check_flag("flat", flat)
    check_option("unit", unit, UNITS)
    if unit != "slot" and not flat:
        raise FastIndexError(f"unit={unit!r} is for flat=True; coordinates within a tile count elements")


def from_tile_index(
    shape: Shape | str,
    tile: Any,
    within: Any,
    level: int = 0,
    padding: str = "raise",
    *,
    flat: bool = False,
    unit: str = "slot",
    out: Any = None,
    threads: int | None = None,
) -> tuple[Any, ...]:
    """Return the coordinates of elements from their tile and position within it: the inverse of `tile_index`.

    Parameters
    ----------
    shape : Shape or str
    tile, within : sequences of integer arrays
        As `tile_index` returns them, of any widths; all broadcast together. With ``flat=True`` one array each: the
        number of the tile in memory order, and the offset within the tile.
    level : int
        Which of the layout's tiles; negative numbers count from the last.
    padding : {"raise", "mark"}
        Whether positions that hold no element raise, or give -1 in every coordinate.
    flat : bool
        Whether `tile` and `within` are one array each.
    unit : {"slot", "byte", "bit"}
        Unit of offsets within a tile; for ``flat=True``. Any byte of an element may be arguments.
    out : sequence of int64 arrays, optional
        Where to write the results, one per dimension.
    threads : int, optional
        Maximum number of threads.

    Returns
    -------
    tuple of int64 arrays, one per dimension, of the common shape; of int64 scalars for scalars

    Raises
    ------
    OutOfBoundsError
        A tile or position does not exist, or is padding.
    UnsupportedError, ArgumentTypeError, FastIndexError, LayoutError
        As `tile_index`.

    Examples
    --------
    >>> import fastindex as fi
    >>> fi.from_tile_index("bf16[32,256]{1,0:T(8,128)(2,1)}", ([1], [1]), ([1], [2]))
    (array([9]), array([130]))
    >>> fi.from_tile_index("f32[3,5]{1,0:T(2,2)}", [0, 2], [3, 1], flat=True, padding="mark")
    (array([ 1, -1]), array([ 1, -1]))
    """
    shape = as_shape(shape)
    level = _checked_level(shape, level)
    mark = check_padding(padding)
    _check_flat(flat, unit)
    if flat:
        program = from_flat_tile_program(shape, level, unit)
        inputs = [as_integers_in_bulk(tile, "tile"), as_integers_in_bulk(within, "within")]
        names = ["tile", f"the {unit} within the tile"]
    else:
        program = from_tile_program(shape, level)
        inside = within_tile_count(shape, level)
        outside = len(program.input_bounds) - inside
        inputs = [*_parts(tile, outside, "tile", shape), *_parts(within, inside, "within", shape)]
        names = [*(f"tile[{i}]" for i in range(outside)), *(f"within[{i}]" for i in range(inside))]
    error_of = partial(_bad_tile, names=names, program=program, shape=shape, level=level)
    arguments = Inputs(inputs, common_shape(inputs))
    return tuple(convert(program, arguments, error_of, out=out, mark=mark, threads=threads))


def _parts(values: Any, count: int, name: str, shape: Shape) -> list[Any]:
    try:
        parts = tuple(values)
    except TypeError:
        parts = ()
    if len(parts) != count:
        got = f"{len(parts)}" if parts else repr(values)
        raise FastIndexError(
            f"{name} must hold {count} arrays of coordinates for {shape}, got {got}; numbers of tiles need flat=True"
        )
    return [as_integers_in_bulk(part, f"{name}[{i}]") for i, part in enumerate(parts)]


def tile_slots(shape: Shape | str, level: int = 0) -> TileSlots:
    """Return the number of tiles along each axis, and the size of one in the buffer.

    Parameters
    ----------
    shape : Shape or str
    level : int
        Which of the layout's tiles; negative numbers count from the last.

    Returns
    -------
    TileSlots
        With ``counts`` (tiles along each axis of the tile coordinates), ``sizes`` (of one tile), ``tile_count``,
        ``slots_per_tile`` and ``bytes_per_tile`` (padding by subtiles included), and ``is_contiguous``.

    Raises
    ------
    OutOfBoundsError
        There is no such tile.
    LayoutError
        The layout has no tiles; or as `linear_index`.
    UnsupportedError
        As `linear_index`.

    Examples
    --------
    >>> import fastindex as fi
    >>> tiles = fi.tile_slots("bf16[1024,1000]{1,0:T(8,128)(2,1)}")
    >>> tiles.counts, tiles.sizes, tiles.bytes_per_tile
    ((128, 8), (8, 128), 2048)
    """
    shape = as_shape(shape)
    level = _checked_level(shape, level)
    tile_program(shape, level)
    return tile_slots_of(shape, level)


def _checked_level(shape: Shape, level: int) -> int:
    tiles = len(shape.layout.tiles)
    if tiles == 0:
        raise LayoutError(f"{shape} has no tiles")
    number = as_integer(level, "level")
    if not -tiles <= number < tiles:
        raise OutOfBoundsError(f"level {number} is out of bounds for the {tiles} tiles of {shape}")
    return number % tiles


def _outputs_in_a_row(out: Any, flat: bool) -> list[Any]:
    try:
        first, second = out
        return [first, second] if flat else [*first, *second]
    except (TypeError, ValueError):
        raise FastIndexError("out must be a pair: arrays for the tile, arrays for the place in it") from None


def _bad_tile(
    found: BadElementError, names: list[str], program: IndexProgram, shape: Shape, level: int
) -> OutOfBoundsError:
    where = found.where
    if found.number is None:
        values = ", ".join(f"{name} = {value}" for name, value in zip(names, found.values, strict=True))
        return OutOfBoundsError(f"{values}{where} is padding of {shape} and holds no element")
    name, bound = names[found.number], program.input_bounds[found.number]
    return OutOfBoundsError(
        f"{name} is {found.values[found.number]}{where}, out of bounds for the {bound} there are at level "
        f"{level} of {shape}"
    )
