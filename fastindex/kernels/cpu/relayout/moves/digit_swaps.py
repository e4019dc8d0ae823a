"""Packed elements of four bits whose places have their binary digits permuted, a vector of each of a few rows at once.

A place in a vector of 64 bytes has seven binary digits, the lowest of which tells the nibbles of a byte apart. To swap
a digit with one of the row is to exchange half of one vector with half of another; to swap digits of the vector is to
permute its bytes. A few such steps, an instruction or two for 128 elements, do what a move element by element would do.
Which bytes go where is data: one compilation serves all permutations with the same number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from fastindex.kernels.compilation import instructions, kernel
from fastindex.kernels.cpu.memory import entry, fence, literal, load_at, offset_by, store_at, store_lines
from fastindex.kernels.cpu.relayout.lines.permutes import permuted_line, permuted_pair
from fastindex.kernels.cpu.relayout.lines.vectors import from_table, shuffle
from fastindex.kernels.cpu.relayout.passes.table import start_of_block
from fastindex.tables.digit_swaps import KEPT, OF_ROWS, PATTERN_WORDS, SWAP, WITHIN
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND
from fastindex.tables.streams import STREAM

_INT64 = ir.IntType(64)
_LINE = 8 * PATTERN_WORDS
_BYTES = ir.VectorType(ir.IntType(8), _LINE)
_WORDS = ir.VectorType(_INT64, PATTERN_WORDS)


def _words(byte: int) -> Any:
    return ir.Constant(_WORDS, [int.from_bytes(bytes([byte] * 8), "little")] * PATTERN_WORDS)


def _shifted(builder: Any, words: Any, up: bool) -> Any:
    """Shift all nibbles by one place; what leaves its byte is masked out later."""
    by = ir.Constant(_WORDS, [4] * PATTERN_WORDS)
    moved = builder.shl(words, by) if up else builder.lshr(words, by)
    return builder.and_(moved, _words(240 if up else 15))


def _swapped_halves(builder: Any, first: Any, second: Any) -> tuple[Any, Any]:
    """Swap the lowest digit of the place with the one that tells two vectors apart."""
    low = builder.or_(builder.and_(first, _words(15)), _shifted(builder, second, True))
    high = builder.or_(builder.and_(second, _words(240)), _shifted(builder, first, False))
    return low, high


def _halves_within(builder: Any, value: Any, pattern: Any, own: Any) -> Any:
    """Swap the lowest digit with another; a pattern says which bytes differ in it, `own` which nibbles stay."""
    other = builder.bitcast(permuted_line(builder, builder.bitcast(value, _BYTES), pattern), _WORDS)
    both = builder.or_(_shifted(builder, other, True), _shifted(builder, other, False))
    moved = builder.and_(both, builder.xor(own, _words(255)))
    return builder.or_(builder.and_(value, own), moved)


class _Patterns:
    """The patterns of a table, read once: those of the lowest digit, of each step, and the last one."""

    def __init__(self, builder: Any, address: Any) -> None:
        self._builder, self._address, self._read = builder, address, 0

    def next(self, kind: Any = _BYTES) -> Any:
        """Return the next pattern."""
        at = offset_by(self._builder, self._address, 8 * PATTERN_WORDS * self._read)
        self._read += 1
        return self._builder.bitcast(load_at(self._builder, at, PATTERN_WORDS, 8), kind)


def _paired(builder: Any, vectors: list[Any], row: int, patterns: tuple[Any, Any] | None) -> None:
    """Swap a digit of the place in all vectors with the digit `row` of their rows: the lowest, or as patterns say."""
    apart = 1 << row
    for i, first in enumerate(vectors):
        if i & apart:
            continue
        second = vectors[i + apart]
        if patterns is None:
            vectors[i], vectors[i + apart] = _swapped_halves(builder, first, second)
            continue
        pair = builder.bitcast(first, _BYTES), builder.bitcast(second, _BYTES)
        for place, pattern in zip((i, i + apart), patterns, strict=True):
            vectors[place] = builder.bitcast(permuted_pair(builder, *pair, pattern), _WORDS)


def _steps_of(row_digits: int, halves: int, again: int) -> list[int]:
    """Return the digits of the row that steps swap with whole bytes, in order."""
    steps = list(range(1 if halves == OF_ROWS else 0, row_digits))
    return [*steps, 0] if again else steps


@instructions("row_digits", "piece_bytes", "halves", "again")
def _swap_columns(
    builder: Any, row_digits: int, piece_bytes: int, halves: int, again: int, places: Any, numbers: Any
) -> None:
    """Permute the digits of a number of chunks, one after the other; all patterns stay in registers.

    Parameters
    ----------
    row_digits, piece_bytes, halves, again
        Literals.
    places : (target, source, rows, patterns, pieces)
        Addresses: of the chunk, of the bytes to its rows, of the patterns, and of the bytes to its pieces.
    numbers : (count, source stride, target stride, whether whole lines go past the cache)
    """
    steps = _steps_of(row_digits, halves, again)
    target, source, row_table, pattern_table, piece_table = cgutils.unpack_tuple(builder, places)
    count, source_stride, target_stride, streamed = cgutils.unpack_tuple(builder, numbers)
    past_cache = builder.icmp_signed("!=", streamed, _INT64(0))
    patterns = _Patterns(builder, pattern_table)
    within = (patterns.next(), patterns.next(_WORDS)) if halves == WITHIN else None
    pairs = [(patterns.next(), patterns.next()) for _ in steps]
    last = patterns.next()
    starts = [from_table(builder, source, row_table, r) for r in range(1 << row_digits)]
    with cgutils.for_range(builder, count) as loop:
        read = builder.mul(loop.index, source_stride)
        written = builder.add(target, builder.mul(loop.index, target_stride))
        vectors = [load_at(builder, builder.add(start, read), PATTERN_WORDS, 8) for start in starts]
        if within is not None:
            vectors = [_halves_within(builder, one, *within) for one in vectors]
        if halves == OF_ROWS:
            _paired(builder, vectors, 0, None)
        for row, pair in zip(steps, pairs, strict=True):
            _paired(builder, vectors, row, pair)
        lines = [permuted_line(builder, builder.bitcast(one, _BYTES), last) for one in vectors]
        _write(builder, lines, piece_bytes, written, piece_table, past_cache)


def _write(builder: Any, lines: Sequence[Any], piece_bytes: int, target: Any, table: Any, streamed: Any) -> None:
    """Write the pieces of lines to the places that a table has, whole lines past the cache if that is wanted."""
    pieces = _LINE // piece_bytes
    places = [from_table(builder, target, table, k) for k in range(len(lines) * pieces)]
    if pieces == 1:
        store_lines(builder, zip(lines, places, strict=True), streamed)
        return
    for k, place in enumerate(places):
        begin = k % pieces * piece_bytes
        line = lines[k // pieces]
        store_at(builder, shuffle(builder, line, line, range(begin, begin + piece_bytes)), place, False)


@kernel()
def swap_digit_chunks(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a permutation of digits.

    Parameters
    ----------
    width : int, literal
        Bytes of a piece.
    ways : int, literal
        Binary digits of the rows of a chunk.
    target, source : int64
        Addresses.
    table : int64
        Address of a `PassTable`; the first table has the bytes from a chunk to each of its rows, and behind them the
        patterns; the second, those from the chunk in the destination to each piece of the vectors. The kernel's own
        numbers are a `SwapGeometry`.
    scratch
        Not used.
    """
    geometry, rows, pieces = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    halves, again = entry(geometry, SWAP.halves), entry(geometry, SWAP.again)
    past_cache = entry(geometry, SWAP.streamed) if target % _LINE == 0 else 0
    patterns = rows + (8 << literal(ways))
    block = entry(geometry, STREAM.chunk_block)
    source_stride = entry(geometry, STREAM.chunk_source_stride) // block
    target_stride = entry(geometry, STREAM.chunk_target_stride) // block
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
