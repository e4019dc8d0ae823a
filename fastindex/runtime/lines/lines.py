"""Cache lines in registers: transposed, interleaved, deinterleaved, expanded and compressed.

Everything works on addresses and on vectors of one cache line. LLVM splits these vectors if the machine has shorter
ones, so the same code runs with AVX-512, AVX2 and NEON. Elements are opaque bits of `width` bytes (1 to
64); `width` and `ways` arguments are literals, so each is compiled once.

A line that is written whole by a non-temporal store costs one transfer; a line that is written in part is read first.
So kernels collect their output until lines are complete, and write only the two ends of a run in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from llvmlite import ir

from fastindex.runtime.kernels import instructions, subroutine
from fastindex.runtime.lines.memory import (
    copy_vector,
    entry,
    for_each,
    load_at,
    offset_by,
    prefetch,
    prefetch_at,
    prefetch_to_write,
    store_at,
    store_lines,
    stream_line,
)
from fastindex.runtime.numbers import LINE_BYTES

_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)

#: Numbers of packed elements that a byte may have.
PACKED_IN_BYTE = (2, 4, 8)


def from_table(builder: Any, address: Any, table: Any, position: int) -> Any:
    """Add the int64 at ``table[position]`` to an address."""
    place = builder.inttoptr(offset_by(builder, table, 8 * position), _INT64.as_pointer())
    return builder.add(address, builder.load(place))


def shuffle(builder: Any, first: Any, second: Any, mask: Sequence[int]) -> Any:
    """Shuffle two vectors by a mask, in which the elements of the second are numbered after those of the first."""
    return builder.shuffle_vector(first, second, _mask(tuple(mask)))


@cache
def _mask(elements: tuple[int, ...]) -> Any:
    # A constant keeps its text, and the same masks come again and again.
    return ir.Constant(ir.VectorType(_INT32, len(elements)), elements)


class _Lines:
    """The split of a line into elements, each of one or more atoms: integers that vector instructions support."""

    def __init__(self, width: int) -> None:
        self.atom_bytes = min(width, 8)
        self.atoms = width // self.atom_bytes
        self.count = LINE_BYTES // width

    def load(self, builder: Any, address: Any) -> Any:
        return load_at(builder, address, LINE_BYTES // self.atom_bytes, self.atom_bytes)

    def shuffle(self, builder: Any, first: Any, second: Any, elements: Sequence[int]) -> Any:
        mask = [element * self.atoms + atom for element in elements for atom in range(self.atoms)]
        return shuffle(builder, first, second, mask)

    def transpose(self, builder: Any, rows: Sequence[Any]) -> list[Any]:
        """Transpose a square of lines by swapping off-diagonal blocks of 1, 2, 4 ... elements."""
        lines, half = list(rows), 1
        while half < self.count:
            kept = range(self.count)
            low = [k if not k & half else self.count + k - half for k in kept]
            high = [k + half if not k & half else self.count + k for k in kept]
            for i in kept:
                if not i & half:
                    first, second = lines[i], lines[i + half]
                    lines[i] = self.shuffle(builder, first, second, low)
                    lines[i + half] = self.shuffle(builder, first, second, high)
            half *= 2
        return lines

    def zip(self, builder: Any, first: Any, second: Any) -> list[Any]:
        half = self.count // 2
        pairs = [[k, self.count + k] for k in range(self.count)]
        return [
            self.shuffle(builder, first, second, [e for pair in pairs[start : start + half] for e in pair])
            for start in (0, half)
        ]

    def interleave(self, builder: Any, rows: Sequence[Any]) -> list[Any]:
        if len(rows) == 1:
            return list(rows)
        even = self.interleave(builder, rows[0::2])
        odd = self.interleave(builder, rows[1::2])
        return [line for pair in zip(even, odd, strict=True) for line in self.zip(builder, *pair)]

    def deinterleave(self, builder: Any, lines: Sequence[Any]) -> list[Any]:
        if len(lines) == 1:
            return list(lines)
        halves = [
            [
                self.shuffle(builder, first, second, range(parity, 2 * self.count, 2))
                for first, second in zip(lines[0::2], lines[1::2], strict=True)
            ]
            for parity in (0, 1)
        ]
        even, odd = (self.deinterleave(builder, half) for half in halves)
        return [row for pair in zip(even, odd, strict=True) for row in pair]


def lane_transpose(builder: Any, quads: Sequence[Any], width: int) -> list[Any]:
    """Transpose within each of the four 16-byte lanes by ``log2`` perfect shuffles of equal width."""
    count, lane = LINE_BYTES // width, 16 // width
    low = [e for start in range(0, count, lane) for k in range(lane // 2) for e in (start + k, count + start + k)]
    high = [e + lane // 2 for e in low]
    lines, half = list(quads), len(quads) // 2
    for _ in range(len(quads).bit_length() - 1):
        lines = [shuffle(builder, lines[i], lines[i + half], mask) for i in range(half) for mask in (low, high)]
    return lines


def lines_of_lanes(builder: Any, source: Any) -> list[Any]:
    """Transpose the lanes of the four lines at an address: result line ``k`` has lane ``k`` of each of them."""
    lines = [load_at(builder, offset_by(builder, source, LINE_BYTES * k), 8, 8) for k in range(4)]
    # A lane is a pair of 8-byte numbers: transpose two by two lanes, then two by two of these.
    even = [shuffle(builder, lines[k], lines[k + 1], (0, 1, 8, 9, 4, 5, 12, 13)) for k in (0, 2)]
    odd = [shuffle(builder, lines[k], lines[k + 1], (2, 3, 10, 11, 6, 7, 14, 15)) for k in (0, 2)]
    return [
        shuffle(builder, pair[0], pair[1], mask)
        for mask in ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
        for pair in (even, odd)
    ]


def _gather_lanes(builder: Any, stage: Any, first_row: int, width: int) -> list[Any]:
    """Load 16 bytes of each of a line's worth of staged rows; line `i` holds rows i, i+lane, i+2*lane, ..."""
    lane = 16 // width
    lines = []
    for i in range(lane):
        parts = [
            load_at(builder, offset_by(builder, stage, (first_row + i + lane * quarter) * LINE_BYTES), lane, width)
            for quarter in range(4)
        ]
        low, high = (shuffle(builder, parts[k], parts[k + 1], range(2 * lane)) for k in (0, 2))
        lines.append(shuffle(builder, low, high, range(4 * lane)))
    return lines


@instructions("width", "squares", "streamed", "asks")
def transpose_rows(
    builder: Any,
    width: int,
    squares: int,
    streamed: Any,
    asks: int,
    target: Any,
    columns: Any,
    source: Any,
    rows: Any,
    upcoming: Any,
    upcoming_rows: Any,
) -> None:
    """Transpose squares of elements: a line of each of ``squares * 64/width`` rows, to `squares` lines of each column.

    Row ``i`` is read at ``source + rows[i]``; column ``j`` is written at ``target + columns[j]``; `rows` and
    `columns` are the addresses of int64 tables of byte offsets. If `asks` is not 0, the line of each row at
    ``upcoming + upcoming_rows[i]`` is prefetched.
    """
    lines = _Lines(width)
    transposed = []
    for square in range(squares):
        numbers = range(square * lines.count, (square + 1) * lines.count)
        starts = [from_table(builder, source, rows, i) for i in numbers]
        transposed.append(lines.transpose(builder, [lines.load(builder, start) for start in starts]))
    # Last: between the loads, prefetches delay them. Rows of a line took up to 1.57 times as long (AMD EPYC, AVX-512).
    for i in range(squares * lines.count if asks else 0):
        prefetch_at(builder, from_table(builder, upcoming, upcoming_rows, i))
    written = []
    for j in range(lines.count):
        start = from_table(builder, target, columns, j)
        written += [(transposed[k][j], offset_by(builder, start, LINE_BYTES * k)) for k in range(squares)]
    store_lines(builder, written, streamed)


@instructions("width")
def transpose_stage(builder: Any, width: int, target: Any, pitch_bytes: Any, stage: Any) -> None:
    """Transpose a square of staged rows, one line each, into one line per column, at a pitch of `pitch_bytes`.

    If `width` is 1 or 2, only a quarter of the square: the columns in 16 bytes of each row.
    """
    lines = _Lines(width)
    if width <= 2:
        columns = lane_transpose(builder, _gather_lanes(builder, stage, 0, width), width)
    else:
        rows = [lines.load(builder, offset_by(builder, stage, LINE_BYTES * i)) for i in range(lines.count)]
        columns = lines.transpose(builder, rows)
    for j, column in enumerate(columns):
        store_at(builder, column, builder.add(target, builder.mul(pitch_bytes, _INT64(j))), False)


@instructions("width")
def transpose_stage_lanes(builder: Any, width: int, target: Any, columns: Any, stage: Any) -> None:
    """Transpose 16 bytes of each of ``2 * 64/width`` staged rows to two lines of each of ``16/width`` columns.

    `width` is 1 or 2; `columns` is the address of an int64 table of byte offsets from `target`.
    """
    pair = [
        lane_transpose(builder, _gather_lanes(builder, stage, first_row, width), width)
        for first_row in (0, LINE_BYTES // width)
    ]
    for j in range(16 // width):
        start = from_table(builder, target, columns, j)
        for line in (0, 1):
            store_at(builder, pair[line][j], offset_by(builder, start, LINE_BYTES * line), False)


@instructions("width", "ways", "streamed")
def interleave_rows(builder: Any, width: int, ways: int, streamed: Any, target: Any, source: Any, rows: Any) -> None:
    """Read a line at ``source + rows[i]`` of each of `ways` rows, write their elements interleaved to `target`."""
    lines = _Lines(width)
    loaded = [lines.load(builder, from_table(builder, source, rows, i)) for i in range(ways)]
    interleaved = enumerate(lines.interleave(builder, loaded))
    store_lines(builder, [(line, offset_by(builder, target, LINE_BYTES * i)) for i, line in interleaved], streamed)


@instructions("width", "ways", "streamed")
def deinterleave_line(
    builder: Any, width: int, ways: int, streamed: Any, target: Any, columns: Any, source: Any
) -> None:
    """Read `ways` lines at `source`, write every `ways`-th element to a line at ``target + columns[i]``."""
    lines = _Lines(width)
    loaded = [lines.load(builder, offset_by(builder, source, LINE_BYTES * i)) for i in range(ways)]
    deinterleaved = enumerate(lines.deinterleave(builder, loaded))
    store_lines(builder, [(line, from_table(builder, target, columns, i)) for i, line in deinterleaved], streamed)


@instructions("streamed")
def expand_line(builder: Any, per_byte: Any, streamed: int, target: Any, source: Any) -> None:
    """Expand 64 elements, packed 2, 4 or 8 to a byte, the first in its low bits, to one byte each."""

    def write(ways: int) -> None:
        bits, count = 8 // ways, LINE_BYTES // ways
        vector = ir.VectorType(_INT8, count)
        packed = load_at(builder, source, count, 1)
        mask = ir.Constant(vector, [(1 << bits) - 1] * count)
        rows = [builder.and_(builder.lshr(packed, ir.Constant(vector, [bits * k] * count)), mask) for k in range(ways)]
        store_at(builder, _interleave_bytes(builder, rows), target, bool(streamed))

    for_each(builder, per_byte, PACKED_IN_BYTE, write)


def _interleave_bytes(builder: Any, rows: Sequence[Any]) -> Any:
    """Interleave vectors of bytes into one."""
    if len(rows) == 1:
        return rows[0]
    even, odd = _interleave_bytes(builder, rows[0::2]), _interleave_bytes(builder, rows[1::2])
    count = even.type.count
    return shuffle(builder, even, odd, [e for k in range(count) for e in (k, count + k)])


@instructions()
def compress_line(builder: Any, per_byte: Any, target: Any, source: Any) -> None:
    """Pack 64 elements of one byte each, 2, 4 or 8 to a byte, the first in its low bits."""
    values = load_at(builder, source, LINE_BYTES, 1)

    def write(ways: int) -> None:
        bits, count = 8 // ways, LINE_BYTES // ways
        vector = ir.VectorType(_INT8, count)
        mask = ir.Constant(vector, [(1 << bits) - 1] * count)
        packed = ir.Constant(vector, [0] * count)
        for k in range(ways):
            part = builder.and_(shuffle(builder, values, values, range(k, LINE_BYTES, ways)), mask)
            packed = builder.or_(packed, builder.shl(part, ir.Constant(vector, [bits * k] * count)))
        store_at(builder, packed, target, False)

    for_each(builder, per_byte, PACKED_IN_BYTE, write)


def paired(builder: Any, first: Any, second: Any) -> list[Any]:
    """Return the pairs of the low nibbles of two vectors of bytes, and those of the high nibbles."""
    low, high, four = (ir.Constant(first.type, [number] * first.type.count) for number in (0x0F, 0xF0, 4))
    return [
        builder.or_(builder.and_(first, low), builder.shl(second, four)),
        builder.or_(builder.lshr(first, four), builder.and_(second, high)),
    ]


def load_nibbles(builder: Any, address: Any, odd: Any, count: int) -> Any:
    """Load `count` bytes of packed elements of 4 bits; if `odd` is 1, the first element is a high nibble."""
    # If `odd` is 0, no byte beyond them is read.
    row, following = (load_at(builder, place, count, 1) for place in (address, builder.add(address, odd)))
    four = ir.Constant(row.type, [4] * count)
    moved = builder.or_(builder.lshr(row, four), builder.shl(following, four))
    return builder.select(builder.icmp_unsigned("!=", odd, _INT64(0)), moved, row)


@instructions("count", "shifted")
def pair_rows(builder: Any, count: int, shifted: int, target: Any, high: Any, sources: Any, odd: Any) -> None:
    """Pair the 4-bit elements in `count` bytes of two rows: a result byte holds the two elements at one position.

    Parameters
    ----------
    count : literal int
    shifted : literal int
        Whether a row may begin with the high nibble.
    target, high : int64
        Where to write the pairs of even-numbered elements (low nibbles, unless a row is odd), and then those of
        odd-numbered ones.
    sources : (int64, int64)
        Addresses of the rows.
    odd : (int64, int64)
        1 for a row that begins with the high nibble, and so ends in the byte after these; otherwise 0.
    """
    rows = []
    for place in range(2):
        source, is_odd = sources[place], odd[place]
        rows.append(load_nibbles(builder, source, is_odd, count) if shifted else load_at(builder, source, count, 1))
    for pairs, address in zip(paired(builder, *rows), (target, high), strict=True):
        store_at(builder, pairs, address, False)


@instructions("group_bytes")
def pair_groups(builder: Any, group_bytes: int, target: Any, high: Any, source: Any) -> None:
    """Pair the 4-bit elements of two rows that alternate in two lines, in groups of `group_bytes` bytes."""
    count = LINE_BYTES // group_bytes
    lines = [load_at(builder, offset_by(builder, source, at), count, group_bytes) for at in (0, LINE_BYTES)]
    vector = ir.VectorType(_INT8, LINE_BYTES)
    rows = [builder.bitcast(shuffle(builder, lines[0], lines[1], range(k, 2 * count, 2)), vector) for k in range(2)]
    for pairs, address in zip(paired(builder, *rows), (target, high), strict=True):
        store_at(builder, pairs, address, False)


# Runs of bytes as whole lines


@subroutine()
def copy_short(target, source, size_bytes):  # type: ignore[no-untyped-def]
    """Copy fewer than 64 bytes; two overlapping moves serve every size between two powers of two."""
    if size_bytes >= 32:
        last = size_bytes - 32
        copy_vector(target, source, 32)
        copy_vector(target + last, source + last, 32)
    elif size_bytes >= 16:
        last = size_bytes - 16
        copy_vector(target, source, 16)
        copy_vector(target + last, source + last, 16)
    elif size_bytes >= 8:
        last = size_bytes - 8
        copy_vector(target, source, 8)
        copy_vector(target + last, source + last, 8)
    elif size_bytes >= 4:
        last = size_bytes - 4
        copy_vector(target, source, 4)
        copy_vector(target + last, source + last, 4)
    else:
        for i in range(size_bytes):
            copy_vector(target + i, source + i, 1)


@subroutine()
def copy_run(target, source, size_bytes, streamed):  # type: ignore[no-untyped-def]
    """Copy bytes; if `streamed`, write whole lines of the target with non-temporal stores."""
    head = min((-target) & 63, size_bytes) if streamed else 0
    copy_short(target, source, head)
    lines_end = head + ((size_bytes - head) & ~63)
    if streamed:
        for at in range(head, lines_end, 64):
            stream_line(target + at, source + at)
    else:
        for at in range(head, lines_end, 64):
            copy_vector(target + at, source + at, 64)
    copy_short(target + lines_end, source + lines_end, size_bytes - lines_end)


@subroutine("width")
def transpose_square(width, target, pitch_bytes, stage):  # type: ignore[no-untyped-def]
    """Transpose a square of staged rows, one line each, into one line per column, at a pitch of `pitch_bytes`."""
    if width <= 2:
        for part in range(4):
            transpose_stage(width, target + part * (16 // width) * pitch_bytes, pitch_bytes, stage + 16 * part)
    else:
        transpose_stage(width, target, pitch_bytes, stage)


@subroutine("size", inline=True)
def place_ahead(source, upcoming, later, size):  # type: ignore[no-untyped-def]
    """Return the address `later` bytes into the run of `size` bytes at `source`, continued by the one at `upcoming`."""
    return source + later if later < size else upcoming + later - size


@subroutine()
def prefetch_bytes(start, size):  # type: ignore[no-untyped-def]
    """Prefetch every line of a run."""
    for line in range(start & ~63, start + size, 64):
        prefetch(line)


@subroutine()
def prefetch_rows(source, rows, count, size):  # type: ignore[no-untyped-def]
    """Prefetch every line of a run of `size` bytes in each of `count` rows."""
    for i in range(count):
        prefetch_bytes(source + entry(rows, i), size)


@subroutine()
def prefetch_ends(target, size):  # type: ignore[no-untyped-def]
    """Prefetch the lines that a run shares with its neighbours."""
    if target & 63:
        prefetch_to_write(target)
    if (target + size) & 63:
        prefetch_to_write(target + size)
