"""Index conversion in bulk: coordinates to slots and back, for every layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.index_arguments import (
    as_coordinates,
    as_integers_in_bulk,
    as_modes,
    as_output,
    as_outputs,
    common_shape,
    common_shape_of_coordinates,
)
from fastindex.arguments.offenders import Offender, OffenderFoundError
from fastindex.cpu.index_programs import check_overlap, new_outputs, run
from fastindex.cuda.arrays import on_gpu
from fastindex.errors import FastIndexError, LayoutError, OutOfBoundsError
from fastindex.lowering.index_program import (
    conversion_program,
    linear_program,
    multi_program,
    tile_program,
    within_tile_count,
)
from fastindex.shapes.shape import Shape, as_shape

Indices = NDArray[np.int64] | np.int64


def linear_index(
    shape: Shape | str,
    multi_index: Any,
    mode: str | Sequence[str] = "raise",
    *,
    out: NDArray[np.int64] | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Give the slots of elements: where in the buffer they live, in elements.

    Parameters
    ----------
    shape : Shape or str
    multi_index : sequence of integer arrays
        One per dimension; they broadcast together. Integers of any width; a range takes no memory.
    mode : {"raise", "wrap", "clip"} or a sequence of one per dimension
        What happens to a coordinate out of bounds, as in `numpy.ravel_multi_index`.
    out : int64 array, optional
        Where to write the result, of the common shape. What it holds after an error is undefined.
    threads : int, optional
        The most threads to use; see `fastindex.cpu.threads.thread_count`.
    stream : CUDA stream, optional
        Where to run if the indices are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    int64 array of the common shape, or an int64 scalar where all coordinates are scalars

    Raises
    ------
    OutOfBoundsError
        A coordinate is out of bounds; the message names it and its place.
    ArgumentTypeError
        Coordinates that are no integers.
    FastIndexError
        Another number of coordinates, or they do not broadcast together.
    UnsupportedError
        `shape` has no slots: not an array, sparse, or unbounded.

    Examples
    --------
    >>> import fastindex as fi
    >>> fi.linear_index("f32[3,5]{1,0:T(2,2)}", ([2, 0], [3, 4]))
    array([17,  8])
    >>> int(fi.linear_index("f32[3,5]{1,0:T(2,2)}", (2, 3)))
    17
    """
    shape = as_shape(shape)
    program = linear_program(shape)
    if on_gpu(multi_index, stream):
        from fastindex.cuda.indices import convert, coordinates_on_gpu

        inputs = coordinates_on_gpu(multi_index, shape)
        single = None if out is None else (out,)
        return convert(program, inputs, single, stream, shape, _out_of_bounds, mode=mode)[0]
    coordinates = as_coordinates(multi_index, shape)
    modes = () if mode == "raise" else as_modes(mode, shape.rank)
    size = common_shape_of_coordinates(coordinates, multi_index)
    outputs = new_outputs(1, size) if out is None else [as_output(out, size, "out")]
    if out is not None:
        check_overlap(coordinates, outputs)
    try:
        run(program, coordinates, outputs, size, modes=modes, threads=threads)
    except OffenderFoundError as found:
        raise _out_of_bounds(found.offender, shape) from None
    return outputs[0][()] if out is None else out


def multi_index(
    shape: Shape | str,
    linear_index: Any,
    padding: str = "raise",
    *,
    out: Any = None,
    threads: int | None = None,
    stream: Any = None,
) -> tuple[Any, ...]:
    """Give the coordinates of the elements that live in slots.

    Parameters
    ----------
    shape : Shape or str
    linear_index : integer array
        Slots, of any shape and width; a range takes no memory.
    padding : {"raise", "mark"}
        Slots that hold no element raise, or give -1 in every coordinate.
    out : sequence of int64 arrays, optional
        Where to write the results, one per dimension. What they hold after an error is undefined.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        Where to run if the indices are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    tuple of int64 arrays, one per dimension, of the shape of `linear_index`; of int64 scalars for a scalar

    Raises
    ------
    OutOfBoundsError
        A slot is outside the buffer, or is padding.
    ArgumentTypeError
        Slots that are no integers.
    FastIndexError, UnsupportedError
        As `linear_index`.

    Examples
    --------
    >>> import fastindex as fi
    >>> fi.multi_index("f32[3,5]{1,0:T(2,2)}", [17, 8])
    (array([2, 0]), array([3, 4]))
    >>> fi.multi_index("f32[3,5]{1,0:T(2,2)}", range(8, 12), padding="mark")
    (array([ 0, -1,  1, -1]), array([ 4, -1,  4, -1]))
    """
    shape = as_shape(shape)
    if padding not in ("raise", "mark"):
        raise FastIndexError(f"padding must be 'raise' or 'mark', got {padding!r}")
    program = multi_program(shape)
    if on_gpu(linear_index, stream):
        from fastindex.cuda.indices import convert, operand

        inputs = [operand(linear_index, "linear_index")]
        return tuple(convert(program, inputs, out, stream, shape, _bad_slot, mark=padding == "mark"))
    slots = as_integers_in_bulk(linear_index, "linear_index")
    size = common_shape((slots,))
    if out is None:
        outputs = new_outputs(shape.rank, size)
    else:
        outputs = as_outputs(out, shape.rank, size, "out")
        check_overlap((slots,), outputs)
    try:
        run(program, (slots,), outputs, size, mark=padding == "mark", threads=threads)
    except OffenderFoundError as found:
        raise _bad_slot(found.offender, shape) from None
    return tuple(outputs) if size or out is not None else tuple([part[()] for part in outputs])


def tile_index(
    shape: Shape | str,
    multi_index: Any,
    level: int = 0,
    *,
    out: Any = None,
    threads: int | None = None,
    stream: Any = None,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Give which tile elements are in, and where in that tile.

    The layout's tiles up to number `level` are applied. Of the axes this gives, the last ones are the sizes of
    that tile, one for each of its entries that is not ``*``: they say where in the tile. All others, in order,
    say which tile: the axes the tile does not reach, then the counts of tiles.

    Parameters
    ----------
    shape : Shape or str
    multi_index : sequence of integer arrays
        As in `linear_index`.
    level : int
        Which of the layout's tiles; negative numbers count from the last.
    out : pair of sequences of int64 arrays, optional
        Where to write the results.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        Where to run if the indices are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    (tile coordinates, coordinates within the tile), each a tuple of int64 arrays of the common shape

    Raises
    ------
    OutOfBoundsError
        A coordinate is out of bounds, or there is no such tile.
    ArgumentTypeError, FastIndexError, UnsupportedError
        As `linear_index`.

    Examples
    --------
    >>> import fastindex as fi
    >>> tile, within = fi.tile_index("bf16[32,256]{1,0:T(8,128)(2,1)}", ([9], [130]))
    >>> [int(c[0]) for c in tile], [int(c[0]) for c in within]
    ([1, 1], [1, 2])
    >>> tile, within = fi.tile_index("bf16[32,256]{1,0:T(8,128)(2,1)}", ([9], [130]), level=1)
    >>> [int(c[0]) for c in tile], [int(c[0]) for c in within]
    ([1, 1, 0, 2], [1, 0])
    """
    shape = as_shape(shape)
    level = _checked_level(shape, level)
    program = tile_program(shape, level)
    within = within_tile_count(shape, level)
    outer = len(program.outputs) - within
    if on_gpu(multi_index, stream):
        from fastindex.cuda.indices import convert, coordinates_on_gpu

        inputs = coordinates_on_gpu(multi_index, shape)
        both = None if out is None else [one for part in _pair(out) for one in part]
        found = convert(program, inputs, both, stream, shape, _out_of_bounds)
        return tuple(found[:outer]), tuple(found[outer:])
    coordinates = as_coordinates(multi_index, shape)
    size = common_shape_of_coordinates(coordinates, multi_index)
    if out is None:
        outputs = new_outputs(outer + within, size)
    else:
        first, second = _pair(out)
        outputs = [*as_outputs(first, outer, size, "out[0]"), *as_outputs(second, within, size, "out[1]")]
        check_overlap(coordinates, outputs)
    try:
        run(program, coordinates, outputs, size, threads=threads)
    except OffenderFoundError as found:
        raise _out_of_bounds(found.offender, shape) from None
    parts: list[Any] = outputs if size or out is not None else [part[()] for part in outputs]
    return tuple(parts[:outer]), tuple(parts[outer:])


def convert_index(
    source: Shape | str,
    destination: Shape | str,
    linear_index: Any,
    *,
    out: NDArray[np.int64] | None = None,
    threads: int | None = None,
    stream: Any = None,
) -> Any:
    """Give, for slots of one layout, the slots of the same elements in another layout of the same array.

    Parameters
    ----------
    source, destination : Shape or str
        Of the same dimensions.
    linear_index : integer array
        Slots of `source`, of any shape and width; a range takes no memory.
    out : int64 array, optional
        Where to write the result. What it holds after an error is undefined.
    threads : int, optional
        The most threads to use.
    stream : CUDA stream, optional
        Where to run if the indices are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    int64 array of the shape of `linear_index`, or an int64 scalar

    Raises
    ------
    OutOfBoundsError
        A slot is outside the buffer, or is padding and so holds no element.
    LayoutError
        The dimensions differ.
    ArgumentTypeError, FastIndexError, UnsupportedError
        As `linear_index`.

    Examples
    --------
    >>> import fastindex as fi
    >>> fi.convert_index("f32[3,5]", "f32[3,5]{1,0:T(2,2)}", range(13, 15))
    array([17, 20])
    """
    source, destination = as_shape(source), as_shape(destination)
    program = conversion_program(source, destination)
    if on_gpu(linear_index, stream):
        from fastindex.cuda.indices import convert, operand

        single = None if out is None else (out,)
        return convert(program, [operand(linear_index, "linear_index")], single, stream, source, _bad_slot)[0]
    slots = as_integers_in_bulk(linear_index, "linear_index")
    size = common_shape((slots,))
    outputs = new_outputs(1, size) if out is None else [as_output(out, size, "out")]
    if out is not None:
        check_overlap((slots,), outputs)
    try:
        run(program, (slots,), outputs, size, threads=threads)
    except OffenderFoundError as found:
        raise _bad_slot(found.offender, source) from None
    return outputs[0][()] if out is None else out


def _checked_level(shape: Shape, level: int) -> int:
    tiles = len(shape.layout.tiles)
    if tiles == 0:
        raise LayoutError(f"{shape} has no tiles")
    if not -tiles <= level < tiles:
        raise OutOfBoundsError(f"level {level} is out of bounds for the {tiles} tiles of {shape}")
    return level % tiles


def _pair(out: Any) -> tuple[Any, Any]:
    try:
        first, second = out
    except (TypeError, ValueError):
        raise FastIndexError("out must be a pair: arrays for the tile, arrays for the place in it") from None
    return first, second


def _at(offender: Offender) -> str:
    if not offender.position:
        return ""
    return f" at position {offender.position if len(offender.position) > 1 else offender.position[0]}"


def _out_of_bounds(offender: Offender, shape: Shape) -> OutOfBoundsError:
    # Without checks for padding, it is an input that is out of bounds.
    number = offender.number or 0
    return OutOfBoundsError(
        f"coordinate {offender.values[number]}{_at(offender)} is out of bounds for dimension {number} "
        f"of size {shape.dimensions[number]} of {shape}"
    )


def _bad_slot(offender: Offender, shape: Shape) -> OutOfBoundsError:
    (slot,) = offender.values
    if offender.number is None:
        return OutOfBoundsError(f"slot {slot}{_at(offender)} is padding of {shape} and holds no element")
    return OutOfBoundsError(f"slot {slot}{_at(offender)} is out of bounds for the {shape.slot_count} slots of {shape}")
