"""Byte shuffles; interleave and deinterleave of few columns and many rows in 16-byte lanes, by shuffles in tables.

Shuffles are data, so widths share code. Deinterleave: adjacent columns of at most 16 bytes together are read a lane at
a time, with as many consecutive rows as the lane holds. A shuffle within lanes, `mask`, makes the elements of each
column contiguous: a unit of 1, 2, 4, 8 or 16 bytes. Units are then transposed between vectors of four lanes. Interleave
does the same in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from fastindex.runtime.kernels import instructions
from fastindex.runtime.lines.lines import from_table, lane_transpose, lines_of_lanes, shuffle
from fastindex.runtime.lines.memory import for_each, load_at, offset_by, prefetch_at, store_at
from fastindex.runtime.machine_code import features
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES

_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_LANES = LINE_BYTES // LANE_BYTES
# Bytes of one column that a lane may hold: the unit of a transpose in lanes.
_UNITS_BYTES = (1, 2, 4, 8, 16)
#: Shuffles bytes of two lines, by positions from 0 to 127.
OF_TWO_LINES = "llvm.x86.avx512.vpermi2var.qi.512"


def called(builder: Any, name: str, *vectors: Any) -> Any:
    """Call an LLVM intrinsic whose operands and result have one vector type."""
    kind = ir.FunctionType(vectors[0].type, [vector.type for vector in vectors])
    return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), vectors)


def permuted(builder: Any, value: Any, pattern: Any) -> Any:
    """Shuffle the bytes of a vector by a pattern; 0 where the pattern has `NOTHING`."""
    vector = value.type
    zero = ir.Constant(vector, [0] * vector.count)
    if vector.count == 64 and "avx512vbmi" in features():
        taken = called(builder, "llvm.x86.avx512.permvar.qi.512", value, pattern)
        return builder.select(builder.icmp_signed("<", pattern, zero), zero, taken)
    if vector.count == 16 and "ssse3" in features():
        return called(builder, "llvm.x86.ssse3.pshuf.b.128", value, pattern)
    if vector.count == 16 and "neon" in features():
        # tbl1 gives 0 for positions beyond the vector.
        places = builder.and_(pattern, ir.Constant(vector, [0x8F] * vector.count))
        return called(builder, "llvm.aarch64.neon.tbl1.v16i8", value, places)
    low = builder.and_(pattern, ir.Constant(vector, [vector.count - 1] * vector.count))
    return builder.select(builder.icmp_signed("<", pattern, zero), zero, _byte_by_byte(builder, [value], low))


def permuted_line(builder: Any, line: Any, pattern: Any) -> Any:
    """Shuffle the bytes of a line by a pattern of positions from 0 to 63."""
    if "avx512vbmi" in features():
        return called(builder, "llvm.x86.avx512.permvar.qi.512", line, pattern)
    return _byte_by_byte(builder, [line], pattern)


def permuted_pair(builder: Any, first: Any, second: Any, pattern: Any) -> Any:
    """Shuffle the bytes of two lines by a pattern of positions from 0 to 127; the second line starts at 64."""
    if "avx512vbmi" in features():
        return called(builder, OF_TWO_LINES, first, pattern, second)
    return _byte_by_byte(builder, [first, second], pattern)


def _byte_by_byte(builder: Any, lines: Sequence[Any], pattern: Any) -> Any:
    """Shuffle bytes in memory, for machines without the instruction: correct, but too slow for any plan."""
    vector = pattern.type
    buffer = cgutils.alloca_once(builder, ir.ArrayType(vector, len(lines) + 2))
    places = [builder.gep(buffer, [_INT32(0), _INT32(k)]) for k in range(len(lines) + 2)]
    for place, value in zip(places, (*lines, pattern), strict=False):
        builder.store(value, place)
    bytes_at = [builder.bitcast(place, _INT8.as_pointer()) for place in (places[0], places[-2], places[-1])]
    with cgutils.for_range(builder, _INT64(vector.count)) as loop:
        at = builder.zext(builder.load(builder.gep(bytes_at[1], [loop.index])), _INT64)
        builder.store(builder.load(builder.gep(bytes_at[0], [at])), builder.gep(bytes_at[2], [loop.index]))
    return builder.load(places[-1])


def permuted_in_lanes(builder: Any, line: Any, mask: Any) -> Any:
    """Shuffle the bytes of a line within each 16-byte lane, by the pattern at address `mask`; 0 where negative."""
    lane = load_at(builder, mask, 16, 1)
    size, name = 16, ""
    if line.type.count == 64 and "avx512bw" in features():
        size, name = 64, "llvm.x86.avx512.pshuf.b.512"
    elif "avx2" in features():
        size, name = 32, "llvm.x86.avx2.pshuf.b"
    pattern = shuffle(builder, lane, lane, [k % 16 for k in range(size)])
    parts = [shuffle(builder, line, line, range(at, at + size)) for at in range(0, line.type.count, size)]
    parts = [called(builder, name, part, pattern) if name else permuted(builder, part, pattern) for part in parts]
    while len(parts) > 1:
        pairs = zip(parts[0::2], parts[1::2], strict=True)
        parts = [shuffle(builder, *pair, range(2 * parts[0].type.count)) for pair in pairs]
    return parts[0]


def shifted_lines(builder: Any, lines: Sequence[Any], lead: Any, numbers: Any, buffer: Any) -> list[Any]:
    """Return the lines that start `lead` bytes into each given line but the last, continued from the next line.

    `numbers` is the address of the bytes from 0 to 127, `buffer` of scratch memory for all lines.
    """
    line = ir.VectorType(_INT8, LINE_BYTES)
    given = [builder.bitcast(one, line) for one in lines]
    if "avx512vbmi" in features():
        places = load_at(builder, builder.add(numbers, lead), LINE_BYTES, 1)
        return [called(builder, OF_TWO_LINES, first, places, second) for first, second in pairwise(given)]
    for place, one in enumerate(given):
        store_at(builder, one, offset_by(builder, buffer, place * LINE_BYTES), False)
    begins = (builder.add(offset_by(builder, buffer, place * LINE_BYTES), lead) for place in range(len(given) - 1))
    return [load_at(builder, begin, LINE_BYTES, 1) for begin in begins]


def _joined(builder: Any, parts: Sequence[Any]) -> Any:
    """Join four lanes to a line of bytes."""
    low, high = (shuffle(builder, parts[k], parts[k + 1], range(2 * LANE_BYTES)) for k in (0, 2))
    return shuffle(builder, low, high, range(LINE_BYTES))


def _advanced(builder: Any, address: Any, stride: Any) -> Any:
    """Add a stride to an address through inline assembly, so that LLVM keeps no register for each multiple."""
    kind = ir.FunctionType(_INT64, [_INT64])
    return builder.asm(kind, "", "=r,0", [builder.add(address, stride)], False)


def _as_units(builder: Any, line: Any, unit: int) -> Any:
    size = min(unit, 8)
    return builder.bitcast(line, ir.VectorType(ir.IntType(8 * size), LINE_BYTES // size))


def _transposed(builder: Any, lines: Sequence[Any], unit: int) -> list[Any]:
    """Transpose units within lanes; a no-op where a lane is one unit."""
    if unit == LANE_BYTES:
        return list(lines)
    typed = [_as_units(builder, line, unit) for line in lines]
    return [_as_units(builder, line, 1) for line in lane_transpose(builder, typed, unit)]


@instructions()
def deinterleave_lanes(builder: Any, unit: Any, target: Any, pitch: Any, source: Any, stride: Any, mask: Any) -> None:
    """Read lanes of 16 bytes from `source` on, with stride `stride`; write a line of each of their columns.

    Parameters
    ----------
    unit : int64
        Bytes of each column in a lane after `mask`: 1, 2, 4, 8 or 16. There are ``16/unit`` columns.
    target, pitch : int64
        Address of the line of the first column, and the pitch of the lines in bytes.
    source, stride : int64
        Address of the first lane, and the stride of lanes; ``4 * 16/unit`` lanes are read.
    mask : int64
        Address of 16 bytes: the source position of each byte within its lane. Not used where `unit` is 1.
    """

    def write(size: int) -> None:
        count, read, place, lines = LANE_BYTES // size, source, target, []
        lane_offsets = [builder.mul(stride, _INT64(lane * count)) for lane in range(_LANES)]
        for _ in range(count):
            parts = [load_at(builder, builder.add(read, lane), LANE_BYTES, 1) for lane in lane_offsets]
            line = _joined(builder, parts)
            lines.append(line if size == 1 else permuted_in_lanes(builder, line, mask))
            read = _advanced(builder, read, stride)
        for line in _transposed(builder, lines, size):
            store_at(builder, line, place, False)
            place = _advanced(builder, place, pitch)

    for_each(builder, unit, _UNITS_BYTES, write)


@instructions()
def interleave_lanes(builder: Any, unit: Any, target: Any, stride: Any, source: Any, rows: Any, mask: Any) -> None:
    """Read a line of each of ``16/unit`` rows; interleave them into lanes of 16 bytes at `target`, stride `stride`.

    Parameters
    ----------
    unit : int64
        Bytes of each row in a lane that is written, before `mask`: 1, 2, 4, 8 or 16.
    target, stride : int64
        ``4 * 16/unit`` lanes are written in ascending order: each overwrites the excess bytes of the previous one.
    source, rows : int64
        Row ``i`` is read at ``source + rows[i]``; `rows` is the address of a table.
    mask : int64
        Address of 16 bytes: the source position of each byte within its lane. Not used where `unit` is 1.
    """

    def write(size: int) -> None:
        starts = [from_table(builder, source, rows, i) for i in range(LANE_BYTES // size)]
        lines = _transposed(builder, [load_at(builder, start, LINE_BYTES, 1) for start in starts], size)
        if size > 1:
            lines = [permuted_in_lanes(builder, line, mask) for line in lines]
        place = target
        for lane in range(_LANES):
            for line in lines:
                part = shuffle(builder, line, line, range(LANE_BYTES * lane, LANE_BYTES * (lane + 1)))
                store_at(builder, part, place, False)
                place = _advanced(builder, place, stride)

    for_each(builder, unit, _UNITS_BYTES, write)


@instructions("width")
def stage_lanes(
    builder: Any, width: int, target: Any, pitch: Any, source: Any, rows: Any, upcoming: Any, later: Any
) -> None:
    """Read a line of each of ``16/width`` rows and transpose within lanes; write as many lines, with pitch `pitch`.

    Lane ``l`` of line ``j`` then holds column ``l * 16/width + j`` of the rows. Row ``i`` is read at
    ``source + rows[i]``, and a line is prefetched at ``upcoming + later[i]`` unless `upcoming` is 0; `rows` and `later`
    are addresses of tables. `width` is 1 or 2.
    """
    count = LANE_BYTES // width
    loaded = [load_at(builder, from_table(builder, source, rows, i), LINE_BYTES, 1) for i in range(count)]
    for line in _transposed(builder, loaded, width):
        store_at(builder, line, target, False)
        target = _advanced(builder, target, pitch)
    with builder.if_then(builder.icmp_signed("!=", upcoming, _INT64(0))):
        for i in range(count):
            prefetch_at(builder, from_table(builder, upcoming, later, i))


def _columns_of_lanes(builder: Any, stage: Any) -> list[tuple[Any, Any]]:
    """Return two consecutive lines of each of four columns, joined from the lanes of the eight lines at `stage`."""
    halves = (lines_of_lanes(builder, offset_by(builder, stage, LINE_BYTES * first)) for first in (0, _LANES))
    return list(zip(*halves, strict=True))


@instructions("width")
def write_staged_lanes(builder: Any, width: int, target: Any, columns: Any, stage: Any) -> None:
    """Write two consecutive lines of each of four columns, with non-temporal stores, joined from eight staged lines.

    The staged lines are at `stage`; `columns` is the address of a table of byte offsets from `target`, of which every
    ``16/width``-th is used. `width` is 1 or 2.
    """
    for lane, lines in enumerate(_columns_of_lanes(builder, stage)):
        start = from_table(builder, target, columns, lane * LANE_BYTES // width)
        for half, line in enumerate(lines):
            store_at(builder, line, offset_by(builder, start, LINE_BYTES * half), True)


@instructions("width")
def write_carried_lanes(
    builder: Any, width: int, target: Any, columns: Any, stage: Any, carry: Any, is_first: Any, scratch: Any
) -> None:
    """Do the same for columns off line boundaries: write two lines, which start with the carried bytes of the column.

    Parameters
    ----------
    width : literal int
        1 or 2.
    target, columns, stage : int64
        As for `write_staged_lanes`.
    carry : int64
        Address of the carried line of the first column; the second of the new lines replaces it. The carried line of
        the next column is ``16/width`` lines further on.
    is_first : int64
        Whether nothing is carried yet: only one line is written then.
    scratch : int64
        Address of the numbers from 0 to 127, a byte each, followed by memory for three lines of each column.
    """
    written = []
    for lane, lines in enumerate(_columns_of_lanes(builder, stage)):
        start = from_table(builder, target, columns, lane * LANE_BYTES // width)
        lead = builder.and_(builder.neg(start), _INT64(LINE_BYTES - 1))
        place = offset_by(builder, carry, LINE_BYTES * LANE_BYTES // width * lane)
        carried = load_at(builder, place, 8, 8)
        store_at(builder, lines[1], place, False)
        buffer = offset_by(builder, scratch, LINE_BYTES * (2 + 3 * lane))
        shifted = shifted_lines(builder, (carried, *lines), lead, scratch, buffer)
        written.append((builder.add(start, lead), shifted))
    with builder.if_then(builder.icmp_signed("==", is_first, _INT64(0))):
        for address, shifted in written:
            store_at(builder, shifted[0], offset_by(builder, address, -LINE_BYTES), True)
    for address, shifted in written:
        store_at(builder, shifted[1], address, True)
