"""Tile indices in bulk: from coordinates to a tile and the position within it, and back."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastindex.algebra.forms import IndexProgram
from fastindex.arrays.index_arguments import (
    Given,
    as_integers_in_bulk,
    check_padding,
    common_shape,
    given_coordinates,
    given_window,
)
from fastindex.arrays.windows import is_window
from fastindex.core.shape import Shape, as_shape
from fastindex.errors import ArgumentTypeError, FastIndexError, LayoutError, OutOfBoundsError
from fastindex.index.bad_elements import BadElementError, out_of_bounds
from fastindex.index.conversions import convert
from fastindex.index.tile_programs import (
    TileSlots,
    flat_tile_program,
    from_flat_tile_program,
    from_tile_program,
    tile_program,
    tile_slots_of,
    within_tile_count,
)


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
    program, split = _program_to_tiles(shape, level, flat, unit)
    both = None if out is None else _outputs_in_a_row(out, flat)
    given = (given_window if is_window(multi_index) else given_coordinates)(multi_index, shape, stream=stream)
    found = convert(program, given, partial(out_of_bounds, shape=shape), out=both, threads=threads)
    return (found[0], found[1]) if flat else (tuple(found[:split]), tuple(found[split:]))


def _program_to_tiles(shape: Shape, level: int, flat: bool, unit: str) -> tuple[IndexProgram, int]:
    """Return a program, and the number of its outputs that identify the tile."""
    if flat:
        return flat_tile_program(shape, level, unit), 1
    _require_slots(unit)
    program = tile_program(shape, level)
    return program, len(program.outputs) - within_tile_count(shape, level)


def _require_slots(unit: str) -> None:
    if unit != "slot":
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
        Unit of offsets within a tile; for ``flat=True``. Any byte of an element may be given.
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
    if flat:
        program = from_flat_tile_program(shape, level, unit)
        inputs = [as_integers_in_bulk(tile, "tile"), as_integers_in_bulk(within, "within")]
        names = ["tile", f"the {unit} within the tile"]
    else:
        _require_slots(unit)
        program = from_tile_program(shape, level)
        inside = within_tile_count(shape, level)
        outside = len(program.input_bounds) - inside
        inputs = [*_parts(tile, outside, "tile", shape), *_parts(within, inside, "within", shape)]
        names = [*(f"tile[{i}]" for i in range(outside)), *(f"within[{i}]" for i in range(inside))]
    error_of = partial(_bad_tile, names=names, program=program, shape=shape, level=level)
    given = Given(inputs, common_shape(inputs))
    return tuple(convert(program, given, error_of, out=out, mark=mark, threads=threads))


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
    if isinstance(level, bool) or not hasattr(level, "__index__"):
        raise ArgumentTypeError(f"level must be an integer, got {level!r}")
    number = level.__index__()
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
        given = ", ".join(f"{name} = {value}" for name, value in zip(names, found.values, strict=True))
        return OutOfBoundsError(f"{given}{where} is padding of {shape} and holds no element")
    name, bound = names[found.number], program.input_bounds[found.number]
    return OutOfBoundsError(
        f"{name} is {found.values[found.number]}{where}, out of bounds for the {bound} there are at level "
        f"{level} of {shape}"
    )
