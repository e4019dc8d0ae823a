"""Convert boxes that move between devices to strided runs of bytes.

Boxes of equal sizes that start at equal positions within the tiles of both layouts have the same loops, and differ only
in their offsets. So a few boxes are analysed in place of a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest
from fastindex.core.shape import Shape
from fastindex.errors import UnsupportedError
from fastindex.index.programs import linear_program
from fastindex.moving.box_copies import box_nests, cuts_of, slots_along
from fastindex.sharding.reshard_boxes import Boxes, Segments, Side, combined

Numbers = NDArray[np.int64]

#: Axes of a run: (count, source stride, target stride) in bytes, the largest target stride first.
_Axes = list[tuple[int, int, int]]


def transfer_table(boxes: Boxes, source: Side, target: Side) -> NDArray[np.void]:
    """Return all runs, including local ones, as the structured array of `fastindex.sharding.plan_reshard`.

    Raises
    ------
    UnsupportedError
        Packed elements would be split within a byte.
    """
    bits = source.part.element_bits
    kinds = _kinds(boxes.segments, source.part, target.part)
    starts = [
        _first_slots([getattr(s, name) for s in boxes.segments], side.part)
        for name, side in (("source_start", source), ("target_start", target))
    ]
    _, first, kind = np.unique(kinds, return_index=True, return_inverse=True)
    runs = [[_run(nest, bits) for nest in _nests(boxes, box, source.part, target.part)] for box in first.tolist()]
    depth = max((len(axes) for found in runs for _, _, _, axes in found), default=0)
    entry_kind = kind[boxes.box]
    parts = []
    for number, found in enumerate(runs):
        entries = np.flatnonzero(entry_kind == number)
        for source_bits, target_bits, length, axes in found:
            rows = np.zeros(len(entries), row_type(depth))
            rows["source_device"] = boxes.source_device[entries]
            rows["target_device"] = boxes.target_device[entries]
            rows["length"] = length
            offsets = (starts[0], source_bits), (starts[1], target_bits)
            for name, (slots, offset) in zip(("source_byte", "target_byte"), offsets, strict=True):
                place = slots[boxes.box[entries]] * bits + offset
                if bits % 8 and (place % 8).any():
                    raise _not_whole_bytes(source.shape, target.shape)
                rows[name] = place // 8
            padded = axes + [(1, 0, 0)] * (depth - len(axes))
            for i, name in enumerate(("counts", "source_strides", "target_strides")):
                rows[name] = [axis[i] for axis in padded]
            parts.append(rows)
    table = np.concatenate(parts) if parts else np.zeros(0, row_type(depth))
    return table[np.lexsort((table["target_byte"], table["source_device"], table["target_device"]))]


def row_type(depth: int) -> np.dtype[Any]:
    """Return the dtype of a row with `depth` loops around each contiguous piece."""
    scalars = ("source_device", "target_device", "source_byte", "target_byte", "length")
    axes = ("counts", "source_strides", "target_strides")
    return np.dtype([(name, np.int64) for name in scalars] + [(name, np.int64, (depth,)) for name in axes])


def _not_whole_bytes(source: Shape, target: Shape) -> UnsupportedError:
    return UnsupportedError(
        f"elements packed below a byte can only move between devices in whole bytes, and {source} and {target} split"
        " bytes; use a layout without E()"
    )


def _run(nest: Nest, bits: int) -> tuple[int, int, int, _Axes]:
    """Return a nest as a run: its offsets on both sides in bits, the bytes per piece, and the loops around it."""
    loops = list(nest.loops)
    inner = next((loop for loop in loops if (loop.source_stride, loop.destination_stride) == (1, 1)), Loop(1, 1, 1))
    outer = sorted((loop for loop in loops if loop is not inner), key=lambda loop: -loop.destination_stride)
    numbers = [inner.size, *(stride for loop in outer for stride in (loop.source_stride, loop.destination_stride))]
    if any(number * bits % 8 for number in numbers):
        raise UnsupportedError(
            "elements packed below a byte can only move between devices in whole bytes, and the two layouts or"
            " shardings split bytes; use a layout without E()"
        )
    axes = [(loop.size, loop.source_stride * bits // 8, loop.destination_stride * bits // 8) for loop in outer]
    return nest.source_start * bits, nest.destination_start * bits, inner.size * bits // 8, axes


def _kinds(segments: Sequence[Segments], source: Shape, target: Shape) -> Numbers:
    """Return a class number for each box; boxes of the same class have the same loops."""
    cuts = cuts_of(source), cuts_of(target)
    columns = []
    for d, found in enumerate(segments):
        key = [found.size, found.source_start, found.target_start]
        if cuts[0] is not None and cuts[1] is not None:
            key[1:] = [found.source_start % cuts[0][d].period, found.target_start % cuts[1][d].period]
        _, number = np.unique(np.stack(key), axis=1, return_inverse=True)
        columns.append(number.reshape(-1).astype(np.int64))
    total = np.zeros(1, np.int64)
    for column in columns:
        total = (total[:, None] * (int(column.max(initial=0)) + 1) + column[None]).reshape(-1)
    return total


def _first_slots(starts: Sequence[Numbers], part: Shape) -> Numbers:
    """Return the slot of the first element of each box."""
    if cuts_of(part) is not None:
        return combined([slots_along(part, d, along) for d, along in enumerate(starts)], np.add, 0)
    (slots,), _ = linear_program(part).evaluate(np.ix_(*starts))
    shape = tuple(len(along) for along in starts)
    return np.broadcast_to(np.asarray(slots, np.int64), shape).reshape(-1)


def _nests(boxes: Boxes, box: int, source: Shape, target: Shape) -> tuple[Nest, ...]:
    place = [int(i) for i in np.unravel_index(box, boxes.counts)] if boxes.counts else []
    chosen = [(s, i) for s, i in zip(boxes.segments, place, strict=True)]
    return box_nests(
        source,
        target,
        [int(s.source_start[i]) for s, i in chosen],
        [int(s.target_start[i]) for s, i in chosen],
        [int(s.size[i]) for s, i in chosen],
    )
