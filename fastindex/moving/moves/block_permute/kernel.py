"""Block permutes: write the destination vector by vector, values and padding, by table-driven byte shuffles.

A chunk is a block of the destination; the same table of pieces and patterns serves every chunk. The shuffle is `vpermb`
with AVX-512 VBMI, `pshufb` or `tbl` of 16 bytes elsewhere::

    piece 0 of the source   [a0 a1 a2 a3]   by its pattern   a0 -- a1 --
    piece 1                 [b0 b1 b2 b3]   by its pattern   -- b0 -- --
    padding, masked                                          -- -- -- PP
    vector stored                                            a0 b0 a1 PP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from fastindex.moving.kernels.lanes import OF_TWO_LINES, called, permuted
from fastindex.moving.kernels.passes import padding_of, start_of_block
from fastindex.moving.kernels.staging import NOTHING_PENDING, PENDING_BYTES, added, finish, go_to
from fastindex.moving.moves.block_permute import (
    ASSEMBLY,
    MOST_BLOCK_BYTES,
    SHORT_PIECE_BYTES,
    VECTOR_HEADER,
    VECTOR_HEADER_BYTES,
    VECTOR_RUN,
    VECTOR_RUN_BYTES,
    patterns_of_piece,
)
from fastindex.moving.numbers import HIGH_NIBBLE, TABLE
from fastindex.runtime.kernels import instructions, subroutine, unrolled_kernel
from fastindex.runtime.lines.lines import copy_short, shuffle
from fastindex.runtime.lines.memory import copy_vector, entry, fence, load_at, offset_by, prefetch, store_at
from fastindex.runtime.machine_code import features
from fastindex.runtime.numbers import LINE_BYTES

# Scratch memory: pending bytes, space for one more block, and a copy of a block's source of less than a vector.
_STAGE = PENDING_BYTES + MOST_BLOCK_BYTES + 2 * LINE_BYTES

# The most lines of a block to prefetch at once: more would wait for each other, and delay the vectors.
_UNDER_WAY = 32
# Lines are prefetched before each group of this many vectors.
_ASKED_VECTORS = 2

#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = _STAGE + 2 * LINE_BYTES

_INT64 = ir.IntType(64)


def _nibbles(builder: Any, value: Any, patterns: Sequence[Any]) -> Any:
    """Shuffle nibbles: one pattern gives the low nibbles of the result, one the high nibbles.

    A nibble for which a pattern has `NOTHING` is undefined.
    """
    vector, words = value.type, ir.VectorType(ir.IntType(16), value.type.count // 2)
    whole, four = builder.bitcast(value, words), ir.Constant(words, [4] * words.count)
    # Bits that shifts carry from one byte to the next are in the nibble that is masked out.
    lowered = builder.bitcast(builder.lshr(whole, four), vector)
    raised = builder.bitcast(builder.shl(whole, four), vector)
    low = _permuted_of_two(builder, value, lowered, patterns[0])
    high = _permuted_of_two(builder, raised, value, patterns[1])
    low_half, high_half = (ir.Constant(vector, [number] * vector.count) for number in (0x0F, 0xF0))
    return builder.or_(builder.and_(low, low_half), builder.and_(high, high_half))


def _permuted_of_two(builder: Any, first: Any, second: Any, pattern: Any) -> Any:
    """Shuffle the bytes of a vector by a pattern; bytes with `HIGH_NIBBLE` come from a second vector."""
    vector = first.type
    if vector.count == 64 and "avx512vbmi" in features():
        return called(builder, OF_TWO_LINES, first, pattern, second)
    found = [permuted(builder, value, pattern) for value in (first, second)]
    high = ir.Constant(vector, [HIGH_NIBBLE] * vector.count)
    is_high = builder.icmp_unsigned("!=", builder.and_(pattern, high), ir.Constant(vector, [0] * vector.count))
    return builder.select(is_high, found[1], found[0])


def _merged(builder: Any, made: Any, piece: Any, patterns: Sequence[Any]) -> Any:
    """Return a vector with the bytes of a fragment inserted, by `patterns_of_piece` patterns."""
    if len(patterns) > 1:
        return builder.or_(made, builder.and_(_nibbles(builder, piece, patterns), patterns[2]))
    vector = made.type
    if vector.count == 64 and "avx512vbmi" in features():
        taken = called(builder, "llvm.x86.avx512.permvar.qi.512", piece, patterns[0])
        is_nothing = builder.icmp_signed("<", patterns[0], ir.Constant(vector, [0] * vector.count))
        return builder.select(is_nothing, made, taken)
    return builder.or_(made, permuted(builder, piece, patterns[0]))


def _with_piece(builder: Any, made: Any, number: Any, sizes: tuple[int, int], addresses: tuple[Any, Any, Any]) -> Any:
    """Load fragment `number` and return a vector with its bytes inserted.

    `sizes` is (bytes of the fragment to read, number of its patterns); `addresses` are those of the source, the
    fragment offsets and the patterns.
    """
    source, offsets, patterns = addresses
    (read, parts), size = sizes, made.type.count
    place = builder.inttoptr(builder.add(offsets, builder.mul(number, _INT64(8))), _INT64.as_pointer())
    piece = load_at(builder, builder.add(source, builder.load(place)), read, 1)
    if read < size:
        # No pattern selects a byte after the fragment.
        piece = shuffle(builder, piece, piece, [k % read for k in range(size)])
    first = builder.add(patterns, builder.mul(number, _INT64(size * parts)))
    found = [load_at(builder, offset_by(builder, first, size * (1 + part)), size, 1) for part in range(parts)]
    return _merged(builder, made, piece, found)


@instructions("vector_bytes", "piece_bytes", "nibbles", "streamed", "pieces")
def assemble_vector(
    builder: Any, vector_bytes: int, piece_bytes: int, nibbles: int, streamed: int, pieces: int, addresses: Any
) -> None:
    """Write one vector, assembled from fragments of the source and padding.

    Parameters
    ----------
    vector_bytes, piece_bytes, nibbles, streamed, pieces : literal int
        Bytes of a vector; bytes to read of a fragment; 2 for nibbles; whether to write a line with a non-temporal
        store; number of fragments if it is constant, else 0.
    addresses : (int64, int64, int64, int64, int64, int64)
        Address of the vector; address of the source; number of fragments; address of their byte offsets from the
        source, an int64 each; address of the patterns: a mask with ones at padding, then the patterns of each fragment,
        see `patterns_of_piece`; address of a vector of padding.
    """
    sizes = min(piece_bytes, vector_bytes), patterns_of_piece(nibbles)
    target, source, count, offsets, patterns, padding = addresses
    places = source, offsets, patterns
    made = builder.and_(*(load_at(builder, address, vector_bytes, 1) for address in (padding, patterns)))
    if pieces:
        for number in range(pieces):
            made = _with_piece(builder, made, _INT64(number), sizes, places)
    else:
        kept = cgutils.alloca_once(builder, made.type)
        builder.store(made, kept)
        with cgutils.for_range(builder, count) as loop:
            builder.store(_with_piece(builder, builder.load(kept), loop.index, sizes, places), kept)
        made = builder.load(kept)
    store_at(builder, made, target, bool(streamed))


@instructions("vector_bytes", "streamed")
def pad_vector(builder: Any, vector_bytes: int, streamed: int, target: Any, padding: Any) -> None:
    """Write a vector of padding; a line with a non-temporal store if the literal `streamed` is not 0."""
    store_at(builder, load_at(builder, padding, vector_bytes, 1), target, bool(streamed))


@subroutine("size", "read", "nibbles", "streamed", "known", inline=True)
def _put_together(size, read, nibbles, streamed, known, addresses, steps):  # type: ignore[no-untyped-def]
    """Write vectors of a run, which all have the same number of pieces; `steps` is (vectors, step of patterns)."""
    target, source, count, offsets, patterns, padding = addresses
    vectors, pattern_step = steps
    for _ in range(vectors):
        assemble_vector(size, read, nibbles, streamed, known, (target, source, count, offsets, patterns, padding))
        target += size
        offsets += 8 * count
        patterns += pattern_step


@subroutine("size", "nibbles", "streamed", "short", inline=True)
def _put_run(size, nibbles, streamed, short, addresses, steps):  # type: ignore[no-untyped-def]
    """Write vectors of a run, by its number of pieces; if `short`, read only the first bytes of several pieces."""
    count = addresses[2]
    if count == 1:
        _put_together(size, size, nibbles, streamed, 1, addresses, steps)
    elif count == 2:
        if short:
            _put_together(size, SHORT_PIECE_BYTES, nibbles, streamed, 2, addresses, steps)
        else:
            _put_together(size, size, nibbles, streamed, 2, addresses, steps)
    elif count:
        if short:
            _put_together(size, SHORT_PIECE_BYTES, nibbles, streamed, 0, addresses, steps)
        else:
            _put_together(size, size, nibbles, streamed, 0, addresses, steps)


@subroutine(inline=True)
def _ask(source, lines, first, last):  # type: ignore[no-untyped-def]
    """Prefetch the lines `first` to `last` of a block of the source."""
    for i in range(first, last):
        prefetch(source + entry(lines, i))


@subroutine("size", "nibbles", "streamed", inline=True)
def assemble_block(size, nibbles, streamed, target, source, tables, asked):  # type: ignore[no-untyped-def]
    """Write the vectors of a block.

    `tables` is (table of the block, bytes from the offsets of the pieces to the patterns, padding). `asked` is what to
    prefetch: (address of a later block, table of its lines, number of lines, lines at a time, vectors written at a
    time).
    """
    table, between, padding = tables
    run, short = table + VECTOR_HEADER_BYTES, entry(table, VECTOR_HEADER.short) != 0
    offsets = table + entry(table, VECTOR_HEADER.pieces_begin)
    first_patterns = offsets + between
    upcoming, lines, line_count, at_once, most = asked
    line = 0
    for _ in range(entry(table, VECTOR_HEADER.runs)):
        count, left = entry(run, VECTOR_RUN.pieces), entry(run, VECTOR_RUN.vectors)
        patterns, pattern_step = first_patterns + entry(run, VECTOR_RUN.patterns), entry(run, VECTOR_RUN.pattern_step)
        run += VECTOR_RUN_BYTES
        while left > 0:
            vectors = min(left, most)
            steps = vectors, pattern_step
            addresses = target, source, count, offsets, patterns, padding
            if count == 0:
                place, remaining = target, vectors
                if size < LINE_BYTES:
                    for _ in range(vectors * size // LINE_BYTES):
                        copy_vector(place, padding, 64)
                        place += LINE_BYTES
                    remaining = vectors % (LINE_BYTES // size)
                for _ in range(remaining):
                    pad_vector(size, streamed, place, padding)
                    place += size
            else:
                end = min(line + at_once, line_count)
                _ask(upcoming, lines, line, end)
                line = end
            _put_run(size, nibbles, streamed, short, addresses, steps)
            left -= vectors
            target += vectors * size
            offsets += 8 * count * vectors
            patterns += pattern_step * vectors


@subroutine(inline=True)
def _later(chunks, of_this, of_next):  # type: ignore[no-untyped-def]
    """Return the source address of a later block, of this task or of the next; 0 if there is none.

    `of_this` and `of_next` are (start of the task, index of the block in it, number of its blocks).
    """
    for begin, block, count in (of_this, of_next):
        if block < count:
            return begin + entry(chunks, 2 * block)
    return 0


@unrolled_kernel
def assemble_chunks(size, nibbles, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a block permute.

    Parameters
    ----------
    size : literal int
        Bytes of a vector.
    nibbles : literal int
        2 if elements of four bits move, else 1.
    target, source, table, scratch
        As for `copy_chunks`; a chunk is a block. The second table has a `VectorHeader`; a `VectorRun` for each run; the
        offset of each piece, in bytes; the lines of the source to prefetch; then the patterns, see `assemble_vector`.
    """
    geometry, chunks, block = entry(table, TABLE.geometry), entry(table, TABLE.first), entry(table, TABLE.second)
    run, streamed = entry(geometry, ASSEMBLY.block_bytes), entry(geometry, ASSEMBLY.streamed) != 0
    pieces, line_count = entry(geometry, ASSEMBLY.pieces), entry(geometry, ASSEMBLY.lines)
    every, ahead = entry(geometry, ASSEMBLY.lines_every), entry(geometry, ASSEMBLY.lines_ahead)
    lines, between = block + entry(block, VECTOR_HEADER.pieces_begin) + 8 * pieces, 8 * (pieces + line_count)
    low, span = entry(geometry, ASSEMBLY.low), entry(geometry, ASSEMBLY.high) - entry(geometry, ASSEMBLY.low)
    readable = source + entry(geometry, ASSEMBLY.readable_bytes) - size
    tables = block, between, padding_of(scratch)
    whole_lines = streamed and run & 63 == 0 and size == 64
    whole_vectors = not streamed and run % size == 0
    vectors = max(entry(geometry, ASSEMBLY.vectors) - entry(geometry, ASSEMBLY.filled), 1)
    at_once = (_ASKED_VECTORS * line_count + vectors - 1) // vectors
    stream = NOTHING_PENDING
    for task in range(first, last):
        at_source, at_target, count = start_of_block(source, target, table, task)
        next_source, _, next_count = start_of_block(source, target, table, min(task + 1, last - 1))
        next_count = 0 if task + 1 == last else next_count
        due = 0
        if task == first:
            for x in range(0, min(ahead, count), every):
                _ask(at_source + entry(chunks, 2 * x), lines, 0, line_count)
        for x in range(count):
            read, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
            asked = at_source, lines, 0, 0, MOST_BLOCK_BYTES
            if x == due:
                due += every
                later, beyond = x + ahead, (x + ahead - count) // every * every
                upcoming = _later(chunks, (at_source, later, count), (next_source, beyond, next_count))
                if upcoming and line_count > _UNDER_WAY:
                    asked = upcoming, lines, line_count, at_once, _ASKED_VECTORS
                elif upcoming:
                    _ask(upcoming, lines, 0, line_count)
            if not whole_vectors:
                stream = go_to(stream, place, scratch, streamed)
            if span < size and read + low > readable:
                # A vector would reach beyond the source.
                copy_short(scratch + _STAGE, read + low, span)
                read = scratch + _STAGE - low
            if whole_lines and stream[1] == 0:
                assemble_block(64, nibbles, 1, place, read, tables, asked)
                stream = place + run, 0, 0
                continue
            assemble_block(size, nibbles, 0, place if whole_vectors else scratch + stream[1], read, tables, asked)
            if not whole_vectors:
                stream = added(stream, run, scratch, streamed)
    finish(stream, scratch, streamed)
    fence()
