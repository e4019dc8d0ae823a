"""Relayouts in which the destination is put together vector by vector, values and padding, by permutations of bytes.

A chunk is a block of the destination. Its table says of which pieces of the source each vector of it is made; the same
table serves every chunk.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.lines import copy_short
from fastindex.kernels.cpu.memory import entry, fence, literal, prefetch, prefetch_to_l2
from fastindex.kernels.cpu.pass_table import padding_of, start_of_block
from fastindex.kernels.cpu.pending import PENDING_BYTES, drain, restart
from fastindex.kernels.cpu.permutes import assemble_vector
from fastindex.tables.assemblies import (
    BLOCK_BYTES,
    HIGH,
    LINES,
    LINES_AHEAD,
    LINES_EVERY,
    LOW,
    MOST_BLOCK_BYTES,
    PIECES,
    READABLE_BYTES,
    STREAMED,
    VECTORS,
)
from fastindex.tables.cache_lines import LINE_BYTES
from fastindex.tables.passes import FIRST, GEOMETRY, SECOND

# Scratch memory: what is pending, with room for a block more, and the source of a block that is less than a vector.
_STAGE = PENDING_BYTES + MOST_BLOCK_BYTES + 2 * LINE_BYTES

#: Bytes of scratch memory that this kernel needs.
SCRATCH_BYTES = _STAGE + 2 * LINE_BYTES


@njit(nogil=True, inline="always")
def assemble_block(size, halves, target, source, vectors, numbers, padding):  # type: ignore[no-untyped-def]
    """Write the vectors of a block one after the other."""
    v, (heads, offsets, patterns) = literal(size), numbers
    for i in range(vectors):
        count = entry(heads, i)
        assemble_vector(size, halves, 0, target + i * v, source, count, (offsets, patterns, padding))
        offsets += 8 * count
        patterns += v * (1 + literal(halves) * count)


@njit(nogil=True, inline="always")
def stream_block(halves, target, source, vectors, numbers, padding):  # type: ignore[no-untyped-def]
    """Write the lines of a block one after the other past the cache."""
    heads, offsets, patterns = numbers
    for i in range(vectors):
        count = entry(heads, i)
        assemble_vector(64, halves, 1, target + 64 * i, source, count, (offsets, patterns, padding))
        offsets += 8 * count
        patterns += 64 * (1 + literal(halves) * count)


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
        As for `copy_chunks`, a chunk being a block. The second table has the number of pieces of each vector;
        the offset of each piece, in bytes; the lines of the source to ask for; then the patterns, see
        `assemble_vector`.
    """
    geometry, chunks, heads = entry(table, GEOMETRY), entry(table, FIRST), entry(table, SECOND)
    run, streamed, vectors = entry(geometry, BLOCK_BYTES), entry(geometry, STREAMED) != 0, entry(geometry, VECTORS)
    offsets = heads + 8 * vectors
    lines = offsets + 8 * entry(geometry, PIECES)
    line_count, every, ahead = entry(geometry, LINES), entry(geometry, LINES_EVERY), entry(geometry, LINES_AHEAD)
    patterns = lines + 8 * line_count
    numbers = heads, offsets, patterns
    low, span = entry(geometry, LOW), entry(geometry, HIGH) - entry(geometry, LOW)
    readable = source + entry(geometry, READABLE_BYTES) - literal(size)
    padding = padding_of(scratch)
    scattered = LINE_BYTES * line_count > 2 * run * every
    whole_lines = streamed and run & 63 == 0 and literal(size) == 64
    line, fill, skip, position = 0, 0, 0, -1
    for task in range(first, last):
        at_source, at_target, count = start_of_block(source, target, table, task)
        for x in range(count):
            read, place = at_source + entry(chunks, 2 * x), at_target + entry(chunks, 2 * x + 1)
            if x + ahead < count and x % every == 0:
                upcoming = at_source + entry(chunks, 2 * (x + ahead))
                if scattered:
                    for i in range(line_count):
                        prefetch_to_l2(upcoming + entry(lines, i))
                else:
                    for i in range(line_count):
                        prefetch(upcoming + entry(lines, i))
            if place != position:
                position = place
                line, fill, skip = restart(line, scratch, fill, skip, streamed, position)
            if span < literal(size) and read + low > readable:
                # A vector would reach beyond the source.
                copy_short(scratch + _STAGE, read + low, span)
                read = scratch + _STAGE - low
            position += run
            if whole_lines and fill == 0:
                stream_block(halves, line, read, vectors, numbers, padding)
                line += run
                continue
            assemble_block(size, halves, scratch + fill, read, vectors, numbers, padding)
            fill += run
            if fill >= PENDING_BYTES:
                line, fill, skip = drain(line, scratch, fill, skip, streamed)
    restart(line, scratch, fill, skip, streamed, 0)
    fence()
