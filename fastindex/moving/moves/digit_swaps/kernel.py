"""A butterfly network on vectors of packed elements of four bits: permutes the binary digits of their places.

A place in a vector of 64 bytes has seven binary digits, the lowest of which is the nibble of a byte. A stage of the
network swaps a digit of the place with one of the row number: it exchanges half of one vector with half of another. A
swap of two digits of the vector permutes its bytes. So a few steps, an instruction or two for 128 elements, replace a
move element by element. Patterns are data: one compilation serves all permutations with the same number of rows. With
four rows, vectors v0 to v3::

    load           v0    v1    v2    v3
    row digit 0    +-----+     +-----+        each pair exchanges the nibbles or bytes of one half
    row digit 1    +-----------+
                         +-----------+
    write          put the bytes of each vector in order, store its pieces

If no instruction permutes 64 bytes, vectors are lanes of 16 bytes, with five digits; four that become neighbours are a
line. A stage then interleaves the bytes of two lanes (`punpcklbw`, `punpckhbw`), and bytes are put in order within
lanes, before and after the stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from fastindex.moving.kernels.lanes import permuted_in_lanes, permuted_line, permuted_pair
from fastindex.moving.kernels.passes import start_of_block
from fastindex.moving.moves.digit_swaps import KEPT, OF_ROWS, SWAP, WITHIN
from fastindex.moving.numbers import CHUNKS, TABLE
from fastindex.runtime.kernels import instructions, kernel
from fastindex.runtime.lines.lines import from_table, paired, shuffle
from fastindex.runtime.lines.memory import entry, fence, load_at, offset_by, store_at, store_lines
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES

_INT64 = ir.IntType(64)


def _halves_within(builder: Any, value: Any, other: Any, own: Any) -> Any:
    """Swap the lowest digit with another; `other` has bytes exchanged along that digit, `own` masks nibbles to keep."""
    four = ir.Constant(value.type, [4] * value.type.count)
    swapped = builder.or_(builder.shl(other, four), builder.lshr(other, four))
    return builder.or_(builder.and_(value, own), builder.and_(swapped, builder.not_(own)))


def _swap_with_row(builder: Any, vectors: list[Any], row: int, swap: Callable[[Any, Any, Any], list[Any]]) -> None:
    """Run a stage of the network: `swap` each two vectors whose row numbers differ in digit `row`."""
    distance = 1 << row
    for i in (i for i in range(len(vectors)) if not i & distance):
        vectors[i], vectors[i + distance] = swap(builder, vectors[i], vectors[i + distance])


def _by_patterns(patterns: tuple[Any, Any]) -> Callable[[Any, Any, Any], list[Any]]:
    return lambda builder, first, second: [permuted_pair(builder, first, second, pattern) for pattern in patterns]


def _steps_of(row_digits: int, halves: int, again: int) -> list[int]:
    """Return the digits of the row number that the steps swap with digits of bytes, in order."""
    steps = list(range(1 if halves == OF_ROWS else 0, row_digits))
    return [*steps, 0] if again else steps


@instructions("row_digits", "piece_bytes", "halves", "again")
def _swap_columns(
    builder: Any, row_digits: int, piece_bytes: int, halves: int, again: int, places: Any, numbers: Any
) -> None:
    """Permute the digits of `count` chunks, one after the other; all patterns stay in registers.

    Parameters
    ----------
    row_digits, piece_bytes, halves, again
        Literals.
    places : (target, source, rows, patterns, pieces)
        Addresses of the chunk on both sides, of the offsets of its rows, of the patterns, of the offsets of its pieces.
    numbers : (count, source stride, target stride, whether whole lines are written with non-temporal stores)
    """
    target, source, row_table, pattern_table, piece_table = places
    count, source_stride, target_stride, streamed = numbers
    past_cache = builder.icmp_signed("!=", streamed, _INT64(0))
    permuted = (_lanes if piece_bytes == LANE_BYTES else _vectors)(builder, row_digits, halves, again, pattern_table)
    per_row = LINE_BYTES // LANE_BYTES if piece_bytes == LANE_BYTES else 1
    starts = [from_table(builder, source, row_table, r) for r in range(per_row << row_digits)]
    with cgutils.for_range(builder, count) as loop:
        read = builder.mul(loop.index, source_stride)
        written = builder.add(target, builder.mul(loop.index, target_stride))
        lines = permuted([builder.add(start, read) for start in starts])
        _write(builder, lines, piece_bytes, written, piece_table, past_cache)


def _vectors(builder: Any, row_digits: int, halves: int, again: int, table: Any) -> Callable[[list[Any]], list[Any]]:
    """Return a function that permutes the vectors at given addresses, by the patterns of a table."""
    steps = _steps_of(row_digits, halves, again)
    patterns = (load_at(builder, offset_by(builder, table, LINE_BYTES * k), LINE_BYTES, 1) for k in itertools.count())
    within = (next(patterns), next(patterns)) if halves == WITHIN else None
    pairs = [(next(patterns), next(patterns)) for _ in steps]
    last = next(patterns)

    def permuted(addresses: list[Any]) -> list[Any]:
        vectors = [load_at(builder, address, LINE_BYTES, 1) for address in addresses]
        if within is not None:
            others = [permuted_line(builder, one, within[0]) for one in vectors]
            vectors = [_halves_within(builder, *both, within[1]) for both in zip(vectors, others, strict=True)]
        if halves == OF_ROWS:
            _swap_with_row(builder, vectors, 0, paired)
        for row, pair in zip(steps, pairs, strict=True):
            _swap_with_row(builder, vectors, row, _by_patterns(pair))
        return [permuted_line(builder, one, last) for one in vectors]

    return permuted


def _lanes(builder: Any, row_digits: int, halves: int, again: int, table: Any) -> Callable[[list[Any]], list[Any]]:
    """Return a function that permutes the lanes at given addresses, line by line, by the patterns of a table."""
    first, last, other, own = (offset_by(builder, table, LANE_BYTES * k) for k in range(4))

    def pairs_of_lanes(addresses: list[Any]) -> list[Any]:
        lanes = [load_at(builder, address, LANE_BYTES, 1) for address in addresses]
        vectors = [shuffle(builder, lanes[k], lanes[k + 1], range(2 * LANE_BYTES)) for k in range(0, len(lanes), 2)]
        if halves == WITHIN:
            kept = load_at(builder, own, LANE_BYTES, 1)
            kept = shuffle(builder, kept, kept, [k % LANE_BYTES for k in range(2 * LANE_BYTES)])
            others = [permuted_in_lanes(builder, one, other) for one in vectors]
            vectors = [_halves_within(builder, *both, kept) for both in zip(vectors, others, strict=True)]
        vectors = [permuted_in_lanes(builder, one, first) for one in vectors]
        if halves == OF_ROWS:
            _swap_with_row(builder, vectors, 0, paired)
        for row in _steps_of(row_digits, halves, again):
            _swap_with_row(builder, vectors, row, _interleaved)
        return [permuted_in_lanes(builder, one, last) for one in vectors]

    def permuted(addresses: list[Any]) -> list[Any]:
        # The halves of all lines in turn: a CPU with vectors of 32 bytes has registers for only one.
        found = [pairs_of_lanes([address for k, address in enumerate(addresses) if k & 2 == half]) for half in (0, 2)]
        return [shuffle(builder, low, high, range(LINE_BYTES)) for low, high in zip(*found, strict=True)]

    return permuted


def _interleaved(builder: Any, first: Any, second: Any) -> list[Any]:
    """Interleave the bytes of two vectors within lanes: those of the low halves of lanes, then of the high halves."""
    count, half = first.type.count, LANE_BYTES // 2
    low = [k + of for at in range(0, count, LANE_BYTES) for k in range(at, at + half) for of in (0, count)]
    return [shuffle(builder, first, second, [k + begin for k in low]) for begin in (0, half)]


def _write(builder: Any, lines: Sequence[Any], piece_bytes: int, target: Any, table: Any, streamed: Any) -> None:
    """Write the pieces of lines at the offsets of a table; if `streamed`, whole lines with non-temporal stores."""
    pieces = LINE_BYTES // piece_bytes
    places = [from_table(builder, target, table, k) for k in range(len(lines) * pieces)]
    if pieces == 1:
        store_lines(builder, zip(lines, places, strict=True), streamed)
        return
    with builder.if_else(streamed) as (past_cache, through_cache):
        with past_cache:
            store_lines(builder, zip(lines, places[::pieces], strict=True), 1)
        with through_cache:
            for k, place in enumerate(places):
                begin = k % pieces * piece_bytes
                line = lines[k // pieces]
                store_at(builder, shuffle(builder, line, line, range(begin, begin + piece_bytes)), place, False)


@kernel
def swap_digit_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a permutation of digits.

    Parameters
    ----------
    width : int, literal
        Bytes of a piece; of a lane if vectors are lanes.
    ways : int, literal
        Number of binary digits of the row number.
    target, source : int64
        Addresses.
    table : int64
        Address of a `PassTable`; the first table has the byte offsets of the rows of a chunk, or of their lanes, then
        the patterns; the second has the byte offsets of the pieces of the vectors in the destination. The kernel's own
        numbers are a `SwapGeometry`.
    scratch
        Not used.
    """
    geometry, rows, pieces = entry(table, TABLE.geometry), entry(table, TABLE.first), entry(table, TABLE.second)
    halves, again = entry(geometry, SWAP.halves), entry(geometry, SWAP.again)
    past_cache = entry(geometry, SWAP.streamed) if target % LINE_BYTES == 0 else 0
    patterns = rows + (8 << ways) * (LINE_BYTES // LANE_BYTES if width == LANE_BYTES else 1)
    block = entry(geometry, CHUNKS.per_task)
    source_stride = entry(geometry, CHUNKS.source_stride) // block
    target_stride = entry(geometry, CHUNKS.target_stride) // block
    for task in range(first, last):
        begin, place, count = start_of_block(source, target, table, task)
        places, numbers = (place, begin, rows, patterns, pieces), (count, source_stride, target_stride, past_cache)
        if halves == KEPT:
            _swap_columns(ways, width, KEPT, 0, places, numbers)
        elif halves == WITHIN:
            _swap_columns(ways, width, WITHIN, 0, places, numbers)
        elif again:
            _swap_columns(ways, width, OF_ROWS, 1, places, numbers)
        else:
            _swap_columns(ways, width, OF_ROWS, 0, places, numbers)
    if past_cache:
        fence()
