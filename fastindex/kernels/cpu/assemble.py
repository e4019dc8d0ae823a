"""Relayouts in which the destination is put together vector by vector, values and padding, by permutations of bytes.

A chunk is a block of the destination. Its table says of which pieces of the source each vector of it is made; the same
table serves every chunk.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.lines import copy_short
from fastindex.kernels.cpu.memory import entry, fence, literal, prefetch
from fastindex.kernels.cpu.pass_table import padding_of, start_of_block
from fastindex.kernels.cpu.pending import PENDING_BYTES, drain, restart
from fastindex.kernels.cpu.permutes import assemble_vector, pad_vector
from fastindex.tables.assemblies import (
    BLOCK_BYTES,
    HEADER_PIECES_BEGIN,
    HEADER_RUNS,
    HEADER_SHORT,
    HIGH,
    LINES,
    LINES_AHEAD,
    LINES_EVERY,
    LOW,
    MOST_BLOCK_BYTES,
    PIECES,
    READABLE_BYTES,
    RUN_BEGIN,
    RUN_PATTERN_STEP,
    RUN_PATTERNS,
    RUN_PIECES,
    RUN_STEP,
    RUN_VECTORS,
    SHORT_PIECE_BYTES,
    STREAMED,
    VECTOR_HEADER_BYTES,
    VECTOR_RUN_BYTES,
)
from fastindex.tables.cache_lines import LINE_BYTES
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND

# Scratch memory: what is pending, with room for a block more, and the source of a block that is less than a vector.
_STAGE = PENDING_BYTES + MOST_BLOCK_BYTES + 2 * LINE_BYTES

#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = _STAGE + 2 * LINE_BYTES


@njit(nogil=True, inline="always")
def _put_together(size, read, halves, streamed, known, addresses, steps):  # type: ignore[no-untyped-def]
    """Write the vectors of a run, each of as many pieces."""
    target, source, count, offsets, patterns, padding = addresses
    vectors, step, pattern_step = steps
    for _ in range(vectors):
        assemble_vector(size, read, halves, streamed, known, (target, source, count, offsets, patterns, padding))
        target += step
        offsets += 8 * count
        patterns += pattern_step


@njit(nogil=True, inline="always")
def assemble_block(size, halves, streamed, target, source, table, between, padding):  # type: ignore[no-untyped-def]
    """Write the vectors of a block; `between` is how far the patterns are behind the offsets of the pieces."""
    run, short = table + VECTOR_HEADER_BYTES, entry(table, HEADER_SHORT) != 0
    offsets = table + entry(table, HEADER_PIECES_BEGIN)
    first_patterns = offsets + between
    for _ in range(entry(table, HEADER_RUNS)):
        count, vectors = entry(run, RUN_PIECES), entry(run, RUN_VECTORS)
        at, step = target + entry(run, RUN_BEGIN), entry(run, RUN_STEP)
        steps = vectors, step, entry(run, RUN_PATTERN_STEP)
        addresses = at, source, count, offsets, first_patterns + entry(run, RUN_PATTERNS), padding
        run += VECTOR_RUN_BYTES
        offsets += 8 * count * vectors
        if count == 0:
            for _ in range(vectors):
                pad_vector(size, streamed, at, padding)
                at += step
        elif count == 1:
            _put_together(size, size, halves, streamed, 1, addresses, steps)
        elif count == 2:
            if short:
                _put_together(size, SHORT_PIECE_BYTES, halves, streamed, 2, addresses, steps)
            else:
                _put_together(size, size, halves, streamed, 2, addresses, steps)
        elif short:
            _put_together(size, SHORT_PIECE_BYTES, halves, streamed, 0, addresses, steps)
        else:
            _put_together(size, size, halves, streamed, 0, addresses, steps)


@njit(nogil=True, inline="always")
def _ask(source, lines, line_count):  # type: ignore[no-untyped-def]
    """Ask for the lines of a block of the source."""
    for i in range(line_count):
        prefetch(source + entry(lines, i))


@kernel()
def assemble_chunks(size, halves, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout that is put together of permuted vectors.

    Parameters
    ----------
    size : literal int
        Bytes of a vector.
    halves : literal int
        2 where elements of four bits move, else 1.
    target, source, table, scratch
        As for `copy_chunks`, a chunk being a block. The second table has a `VectorHeader`; a `VectorRun` for each run;
        the offset of each piece, in bytes; the lines of the source to ask for; then the patterns, see
        `assemble_vector`.
    """
    geometry, chunks, block = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    run, streamed, pieces = entry(geometry, BLOCK_BYTES), entry(geometry, STREAMED) != 0, entry(geometry, PIECES)
    line_count, every, ahead = entry(geometry, LINES), entry(geometry, LINES_EVERY), entry(geometry, LINES_AHEAD)
    lines, between = block + entry(block, HEADER_PIECES_BEGIN) + 8 * pieces, 8 * (pieces + line_count)
    low, span = entry(geometry, LOW), entry(geometry, HIGH) - entry(geometry, LOW)
    readable = source + entry(geometry, READABLE_BYTES) - literal(size)
    padding = padding_of(scratch)
    whole_lines = streamed and run & 63 == 0 and literal(size) == 64
    line, fill, skip, position = 0, 0, 0, -1
    for task in range(first, last):
        at_source, at_target, count = start_of_block(source, target, table, task)
        due = 0
        for x in range(0, min(ahead, count), every):
            _ask(at_source + entry(chunks, 2 * x), lines, line_count)
        for x in range(count):
            read, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
            if x == due:
                due += every
                if x + ahead < count:
                    _ask(at_source + entry(chunks, 2 * (x + ahead)), lines, line_count)
            if place != position:
                position = place
                line, fill, skip = restart(line, scratch, fill, skip, streamed, position)
            if span < literal(size) and read + low > readable:
                # A vector would reach beyond the source.
                copy_short(scratch + _STAGE, read + low, span)
                read = scratch + _STAGE - low
            position += run
            if whole_lines and fill == 0:
                assemble_block(64, halves, 1, line, read, block, between, padding)
                line += run
                continue
            assemble_block(size, halves, 0, scratch + fill, read, block, between, padding)
            fill += run
            if fill >= PENDING_BYTES:
                line, fill, skip = drain(line, scratch, fill, skip, streamed)
    restart(line, scratch, fill, skip, streamed, 0)
    fence()
