"""Index programs for sharded arrays: coordinates to device and slot, and back.

The device is an additional output: the tile number of the element, permuted by the digits of the device order. If the
order is not a counter, the program returns the position in the order, and `ShardProgram.table` maps it to the device.

Source of the rule: ``HloSharding::TileOffsetForDevice`` and ``TileShape`` in ``xla/hlo/ir/hlo_sharding.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fastindex.algebra.forms import Check, Form, IndexProgram, ProgramBuilder, scaled_sum
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of
from fastindex.index.indices import LookUp
from fastindex.index.programs import coordinate_forms, slot_form
from fastindex.sharding.device_order import Digits, inverse
from fastindex.sharding.sharding import Sharding


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
