"""Bulk index conversion for sharded arrays: elements to device and slot, and back; and the shard on each device.

The index program of a sharded array has the device as an additional output: the tile number of the element, permuted by
the digits of the device order. If the order is not a counter, the program returns the position in the order, and
`ShardProgram.table` maps it to the device.

Source of the rule: ``HloSharding::TileOffsetForDevice`` and ``TileShape`` in ``xla/hlo/ir/hlo_sharding.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import Check, Form, IndexProgram, ProgramBuilder, scaled_sum
from fastindex.arrays.index_arguments import Integers, check_padding, coordinate_arguments, integer_arguments
from fastindex.core.integers import as_integer
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import axes_of
from fastindex.errors import OutOfBoundsError, UnsupportedError
from fastindex.index.executors import BadElementError, LookUp, convert, out_of_bounds, position_of
from fastindex.index.programs import coordinate_forms, slot_form
from fastindex.runtime.threads import run_chunks, thread_count
from fastindex.sharding.sharding import Sharding, as_sharding
from fastindex.sharding.tile_assignment import Digits, inverse
from fastindex.sharding.transfers import Shard, shards_of


@dataclass(frozen=True, eq=False)
class ShardProgram:
    """An index program, with a table of devices if needed.

    Attributes
    ----------
    program : IndexProgram
    table : LookUp or None
        Maps positions to devices, or devices to positions; None if the order is a counter within the program.
    """

    program: IndexProgram
    table: LookUp | None


@lru_cache(maxsize=512)
def shard_program(shape: Shape, sharding: Sharding, with_replica: bool) -> ShardProgram:
    """Return the program from coordinates (and the replica if `with_replica`) to (device, slot).

    If the sharding partitions nothing, the device is the replica number.

    Raises
    ------
    LayoutError, UnsupportedError
        As `Sharding.shard_shape`.

    Examples
    --------
    >>> found = shard_program(Shape.parse("f32[7,6]"), Sharding.parse("{devices=[2,3]<=[3,2]T(1,0)}"), False)
    >>> print(found.program.describe())
    x0 < 7, x1 < 6
    q0 = x0 // 4
    q1 = x1 // 2
    y0 = q0 + 2 q1
    y1 = 2 x0 + x1 - 8 q0 - 2 q1
    """
    shard = sharding.shard_shape(shape)
    replicas = (_known(sharding.replica_count),) if with_replica else ()
    builder = ProgramBuilder((*shape.dimensions, *replicas))
    replica = builder.variable(shape.rank) if with_replica else ()
    if shape.element_count == 0:
        return ShardProgram(builder.program([(), ()]), None)
    tiles, within = [], []
    for d, size in enumerate(shard.dimensions):
        coordinate = builder.variable(d)
        tiles.append(builder.quotient(coordinate, size, shape.dimensions[d] - 1))
        within.append(scaled_sum((1, coordinate), (-size, tiles[-1])))
    slot = slot_form(builder, axes_of(shard), within)
    if sharding.device is not None:
        return ShardProgram(builder.program([(), slot]), LookUp(np.array([sharding.device])))
    if sharding.order is None:
        return ShardProgram(builder.program([replica, slot]), None)
    rank = len(tiles)
    place = scaled_sum(*zip(_place_strides(sharding.dimensions)[:rank], tiles, strict=True), (1, replica))
    counter = sharding.order.counter()
    if counter is None:
        return ShardProgram(builder.program([place, slot]), LookUp(sharding.order.array()))
    device = _counted(builder, place, counter, sharding.order.count - 1)
    return ShardProgram(builder.program([device, slot]), None)


@lru_cache(maxsize=512)
def unshard_program(shape: Shape, sharding: Sharding) -> ShardProgram:
    """Return the program from (device, slot) to coordinates, with checks that fail for padding of either kind.

    Raises
    ------
    LayoutError, UnsupportedError
        As `Sharding.shard_shape`.

    Examples
    --------
    >>> found = unshard_program(Shape.parse("f32[7]"), Sharding.parse("{devices=[4]<=[4]}"))
    >>> print(found.program.describe())
    x0 < 4, x1 < 2
    y0 = 2 x0 + x1
    padding unless 2 x0 + x1 < 7
    """
    shard = sharding.shard_shape(shape)
    builder = ProgramBuilder((_known(sharding.device_count), shard.slot_count))
    if shard.slot_count == 0:
        return ShardProgram(builder.program([()] * shape.rank), None)
    within, checks = coordinate_forms(builder, shard, builder.variable(1))
    if sharding.order is None:
        return ShardProgram(builder.program(within, checks), None)
    counter = sharding.order.counter()
    place, table = builder.variable(0), None
    if counter is None:
        table = LookUp(np.argsort(sharding.order.array()))
    else:
        place = _counted(builder, place, inverse(counter), sharding.order.count - 1)
    coordinates = []
    strides = _place_strides(sharding.dimensions)
    for d, size in enumerate(shard.dimensions):
        tile = _digit(builder, place, sharding.dimensions[d], strides[d], sharding.order.count - 1)
        coordinates.append(scaled_sum((size, tile), (1, within[d])))
        if size * sharding.dimensions[d] > shape.dimensions[d]:
            checks.append(Check(coordinates[d], shape.dimensions[d]))
    return ShardProgram(builder.program(coordinates, checks), table)


def _known(count: int | None) -> int:
    """Return the count, or an upper bound if it is unknown."""
    return 2**31 if count is None else count


def _place_strides(dimensions: Sequence[int]) -> list[int]:
    return [math.prod(dimensions[d + 1 :]) for d in range(len(dimensions))]


def _counted(builder: ProgramBuilder, place: Form, digits: Digits, last: int) -> Form:
    """Return the device at a position of a counter."""
    below = last + 1
    parts: list[tuple[int, Form]] = []
    for size, stride in digits:
        below //= size
        parts.append((stride, _digit(builder, place, size, below, last)))
    return scaled_sum(*parts)


def _digit(builder: ProgramBuilder, place: Form, size: int, below: int, last: int) -> Form:
    """Return a digit of `size` values of a number up to `last`; the less significant digits have `below` values."""
    above = builder.quotient(place, below * size, last)
    return scaled_sum((1, builder.quotient(place, below, last)), (-size, above))


_LOOKED_UP_AT_ONCE = 1 << 16


def shards(shape: Shape | str, sharding: Sharding | str, device_count: int | None = None) -> list[Shard]:
    """Return the shard that each device holds of an array.

    Parameters
    ----------
    shape : Shape or str
        Shape of the whole array.
    sharding : Sharding or str
    device_count : int, optional
        Number of devices; required if the sharding does not determine it (replicated, maximal and so on).

    Returns
    -------
    list of Shard
        One per device: ``device``, ``tile_index``, ``start`` and ``stop`` of its elements, ``nbytes`` and
        ``logical_nbytes``. All buffers have the same size; an uneven shard is padded at the end.

    Raises
    ------
    LayoutError
        The rank or the number of devices does not match the sharding, the sharding is that of a tuple, or
        `device_count` is missing.
    UnsupportedError, LayoutError
        As `Sharding.shard_shape`.

    Examples
    --------
    >>> import fastindex as fi
    >>> for part in fi.sharding.shards("f32[5]", "{devices=[4]<=[4]}"):
    ...     print(part.device, part.start, part.stop, part.logical_nbytes, "of", part.nbytes)
    0 (0,) (2,) 8 of 8
    1 (2,) (4,) 8 of 8
    2 (4,) (5,) 4 of 8
    3 (5,) (5,) 0 of 8
    """
    shape, sharding = as_shape(shape), as_sharding(sharding)
    return shards_of(shape, sharding, sharding.checked_device_count(device_count))


def shard_index(
    shape: Shape | str,
    sharding: Sharding | str,
    multi_index: Any,
    replica: int | None = 0,
    *,
    device_count: int | None = None,
    out: Any = None,
    threads: int | None = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Return the location of elements of a sharded array: the device, and the slot in its buffer.

    Parameters
    ----------
    shape : Shape or str
        Shape of the whole array.
    sharding : Sharding or str
    multi_index : sequence of integer arrays
        One per dimension; they broadcast together. Integers of any width; a range takes no memory.
    replica : int or None
        Which of the devices that hold the same shard, counted from 0 in the order of the tile assignment; None for all
        of them, along a new first axis.
    device_count : int, optional
        Number of devices, if the sharding does not determine it; needed only for replicas of such a sharding.
    out : pair of int64 arrays, optional
        Output arrays for device and slot. Their contents are undefined after an error.
    threads : int, optional
        Maximum number of threads.
    stream : CUDA stream, optional
        The stream to run on if the indices are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    (device, slot) : int64 arrays of the common shape, with one more axis if `replica` is None; scalars for scalars
        A device is its position in the device assignment; a slot counts elements of ``sharding.shard_shape(shape)``.

    Raises
    ------
    OutOfBoundsError
        A coordinate is out of bounds, or `replica` does not exist.
    LayoutError, UnsupportedError
        As `shards`.
    ArgumentTypeError, FastIndexError
        As `linear_index`.

    Examples
    --------
    >>> import fastindex as fi
    >>> device, slot = fi.sharding.shard_index("f32[8,256]{1,0:T(8,128)}", "{devices=[1,2]<=[2]}", ([3, 3], [5, 200]))
    >>> device, slot
    (array([0, 1]), array([389, 456]))
    """
    shape, sharding = as_shape(shape), as_sharding(sharding)
    replicas = _replica_count(sharding, device_count)
    last: int | range | None
    if replica is None:
        last = range(sharding.checked_device_count(device_count) if replicas is None else replicas)
    else:
        number = as_integer(replica, "replica")
        if number < 0 or (replicas is not None and number >= replicas):
            raise OutOfBoundsError(f"replica {number} is out of bounds for the {replicas} replicas of {sharding}")
        last = number or None
    found = shard_program(shape, sharding, last is not None)
    given = coordinate_arguments(multi_index, shape, stream=stream, last=last)
    error_of = partial(out_of_bounds, shape=shape)
    device, slot = convert(found.program, given, error_of, out=out, threads=threads, table=found.table)
    return device, slot


def unshard_index(
    shape: Shape | str,
    sharding: Sharding | str,
    device: Any,
    slot: Any,
    padding: str = "raise",
    *,
    out: Any = None,
    threads: int | None = None,
    stream: Any = None,
) -> tuple[Any, ...]:
    """Return the coordinates of elements, given the device and the slot in its buffer.

    Parameters
    ----------
    shape : Shape or str
        Shape of the whole array.
    sharding : Sharding or str
    device, slot : integer arrays
        They broadcast together. Integers of any width; a range takes no memory. Any device is accepted if the sharding
        does not determine the number of devices.
    padding : {"raise", "mark"}
        Slots without an element raise, or yield -1 in every coordinate: padding of tiles and of uneven shards, and all
        slots of devices other than the one of a maximal sharding.
    out : sequence of int64 arrays, optional
        Output arrays, one per dimension. Their contents are undefined after an error.
    threads : int, optional
        Maximum number of threads.
    stream : CUDA stream, optional
        The stream to run on if the indices are on the GPU; see `fastindex.cuda`.

    Returns
    -------
    tuple of int64 arrays, one per dimension, of the common shape; of int64 scalars for scalars

    Raises
    ------
    OutOfBoundsError
        The device does not exist, a slot is outside its buffer, or a slot is padding.
    LayoutError, UnsupportedError, ArgumentTypeError, FastIndexError
        As `shard_index`; on the GPU, a maximal sharding.

    Examples
    --------
    >>> import fastindex as fi
    >>> fi.sharding.unshard_index("f32[8,256]{1,0:T(8,128)}", "{devices=[1,2]<=[2]}", [0, 1], [389, 456])
    (array([3, 3]), array([  5, 200]))
    """
    shape, sharding = as_shape(shape), as_sharding(sharding)
    mark = check_padding(padding)
    found = unshard_program(shape, sharding)
    table = None if found.table is None else found.table.numbers
    error_of = partial(_bad_place, shape=shape, sharding=sharding, table=table)
    given = integer_arguments(("device", "slot"), (device, slot), stream)
    if given.home == "cuda":
        if sharding.device is not None:
            raise UnsupportedError(f"on the GPU, unshard_index takes no maximal sharding such as {sharding}")
        if found.table is not None:
            # `convert` needs the slots broadcast to the common shape.
            first, clipped = _first_of_two(len(found.table.numbers)), given._replace(modes=("raise", "clip"))
            place = convert(first, clipped, error_of, single=True, table=found.table)
            given = given._replace(inputs=(place, slot))
    elif table is not None:
        given.inputs[0] = _places(given.inputs[0], table, sharding, threads)
    outputs = convert(found.program, given, error_of, out=out, mark=mark, threads=threads)
    if sharding.device is not None:
        outputs = _mark_others(given.inputs[0], outputs, given.shape, mark, sharding)
    return tuple(outputs)


def _replica_count(sharding: Sharding, device_count: int | None) -> int | None:
    if device_count is not None:
        count = sharding.checked_device_count(device_count)
        if sharding.replica_count is None:
            return count
    return sharding.replica_count


@lru_cache(maxsize=64)
def _first_of_two(bound: int) -> IndexProgram:
    return IndexProgram((bound, 2**63 - 1), (), (((0, 1),),))


def _places(devices: Integers, table: NDArray[np.int64], sharding: Sharding, threads: int | None) -> NDArray[Any]:
    """Return the position of each device in the tile assignment."""
    numbers = np.ascontiguousarray(devices)
    flat, last = numbers.reshape(-1), len(table) - 1
    # Narrowest type: allocating new memory costs more than the lookup.
    narrow = table.astype(np.min_scalar_type(last))
    places = np.empty(flat.shape, narrow.dtype)
    wrong: list[int] = []

    def chunk(begin: int, end: int) -> None:
        for at in range(begin, end, _LOOKED_UP_AT_ONCE):
            part = flat[at : min(at + _LOOKED_UP_AT_ONCE, end)]
            if part.min() < 0 or part.max() > last:
                wrong.append(at + int(np.argmax((part < 0) | (part > last))))
                return
            narrow.take(part, out=places[at : at + len(part)], mode="clip")

    run_chunks(chunk, flat.size, thread_count(threads), 1 << 18)
    if wrong:
        device = int(flat[min(wrong)])
        raise _no_such_device(BadElementError(position_of(min(wrong), devices.shape), 0, (device,)), sharding)
    return places.reshape(devices.shape)


def _mark_others(
    devices: Integers, outputs: list[Any], size: tuple[int, ...], mark: bool, sharding: Sharding
) -> list[Any]:
    """Treat the buffers of all devices but that of a maximal sharding as padding."""
    others = np.broadcast_to(np.asarray(devices) != sharding.device, size)
    if not others.any():
        return outputs
    if not mark:
        raise OutOfBoundsError(f"{sharding} only defines the contents of device {sharding.device}")
    for output in outputs:
        output[others] = -1
    return outputs


def _no_such_device(found: BadElementError, sharding: Sharding) -> OutOfBoundsError:
    return OutOfBoundsError(f"device {found.values[0]}{found.where} is out of bounds for {sharding}")


def _bad_place(
    found: BadElementError, shape: Shape, sharding: Sharding, table: NDArray[np.int64] | None
) -> OutOfBoundsError:
    device, slot = found.values
    where, shard = found.where, sharding.shard_shape(shape)
    if found.number == 0:
        return _no_such_device(found, sharding)
    if found.number == 1:
        return OutOfBoundsError(f"slot {slot}{where} is out of bounds for the {shard.slot_count} slots of {shard}")
    if table is not None:
        device = int(np.flatnonzero(table == device)[0])
    return OutOfBoundsError(f"slot {slot} of device {device}{where} is padding of {shard} and holds no element")
