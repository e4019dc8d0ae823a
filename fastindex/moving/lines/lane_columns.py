"""Transpose of rows to columns by way of 16-byte lanes: transpose within lanes first, join lanes to lines last.

Take one line from each of as many rows as a lane has elements. The transpose within lanes gives the same number of
vectors; each of their lanes holds the elements of these rows in one column: lane `l` of vector `j` holds column
`l * rows + j`. The same lane of four such vectors, from four sets of rows, makes a line of its column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from fastindex.runtime.kernels import instructions
from fastindex.runtime.lines.lines import lane_transpose, lines_of_lanes, load_nibbles, paired, shuffle
from fastindex.runtime.lines.memory import load_at, offset_by, prefetch_at, store_at, store_lines
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES

_INT64 = ir.IntType(64)
_LANES = LINE_BYTES // LANE_BYTES


def _address_at(builder: Any, table: Any, position: int) -> Any:
    return builder.load(builder.inttoptr(offset_by(builder, table, 8 * position), _INT64.as_pointer()))


def _loaded(builder: Any, place: Any, offset: Any, width: int, shifted: bool) -> Any:
    """Load a line of a row; if `shifted`, `place` counts nibbles, and an odd place starts with a high nibble."""
    size = min(width, 8)
    if not shifted:
        return load_at(builder, builder.add(place, offset), LINE_BYTES // size, size)
    odd = builder.and_(place, _INT64(1))
    return load_nibbles(builder, builder.add(builder.lshr(place, _INT64(1)), offset), odd, LINE_BYTES)


@instructions("width", "nibbles", "asks")
def transpose_in_lanes(
    builder: Any,
    width: int,
    nibbles: int,
    asks: int,
    shifted: Any,
    target: Any,
    pitch_bytes: Any,
    rows: Any,
    offset: Any,
    upcoming: Any,
    further: Any,
) -> None:
    """Transpose a line of each of some rows within lanes; write a vector per lane element, with pitch `pitch_bytes`.

    Parameters
    ----------
    width, nibbles : literal int
        Bytes of an element; 2 for elements of four bits, else 1. With elements of four bits, rows are paired, and the
        vectors of low nibbles come before those of high nibbles.
    asks : literal int
        Whether lines of the rows `upcoming` are prefetched to L2; not done for elements of four bits.
    shifted : int64
        Whether row addresses count nibbles; only for elements of four bits.
    target, pitch_bytes : int64
    rows, offset : int64
        Address of a table of row addresses, and the offset that is added to each.
    upcoming, further : int64
        The same for rows that are read later.
    """
    is_paired = nibbles == 2
    lane = LANE_BYTES // width
    count = lane * nibbles

    def write(is_shifted: bool) -> None:
        for i in range(count if asks and not is_paired else 0):
            prefetch_at(builder, builder.add(_address_at(builder, upcoming, i), further), nearness=2)
        lines = [_loaded(builder, _address_at(builder, rows, i), offset, width, is_shifted) for i in range(count)]
        parts: Sequence[list[Any]] = [lines]
        if is_paired:
            pairs = [paired(builder, *lines[i : i + 2]) for i in range(0, count, 2)]
            parts = [[pair[part] for pair in pairs] for part in range(2)]
        vectors = [vector for part in parts for vector in (lane_transpose(builder, part, width) if lane > 1 else part)]
        for j, vector in enumerate(vectors):
            store_at(builder, vector, builder.add(target, builder.mul(pitch_bytes, _INT64(j))), False)

    if not is_paired:
        write(False)
        return
    with builder.if_else(builder.icmp_signed("!=", shifted, _INT64(0))) as (with_shift, without):
        with with_shift:
            write(True)
        with without:
            write(False)


@instructions("streamed")
def write_lanes(builder: Any, streamed: Any, targets: Any, offset: Any, source: Any) -> None:
    """Join the lanes of four vectors at `source` to four lines; write each at `offset` from one of four targets."""
    lines = enumerate(lines_of_lanes(builder, source))
    written = [(line, builder.add(builder.extract_value(targets, k), offset)) for k, line in lines]
    store_lines(builder, written, streamed)


@instructions("streamed")
def write_lane(builder: Any, streamed: Any, target: Any, source: Any) -> None:
    """Join one lane of each of four vectors to a line, and write it; `source` is that lane of the first vector."""
    lanes = [load_at(builder, offset_by(builder, source, LINE_BYTES * k), 2, 8) for k in range(_LANES)]
    low, high = (shuffle(builder, lanes[k], lanes[k + 1], range(4)) for k in (0, 2))
    store_lines(builder, [(shuffle(builder, low, high, range(8)), target)], streamed)
