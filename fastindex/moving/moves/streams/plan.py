"""Passes that write or read one sequential stream: copies of runs, interleaves, deinterleaves, and packed runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest
from fastindex.moving.counts import (
    LINES_AHEAD,
    PAGE_BYTES,
    SHORT_FRAGMENT_BYTES,
    Counts,
    is_scattered,
    overflows,
    piece_ends,
    total,
)
from fastindex.moving.moves.streams import (
    ROW_AHEAD_BYTES,
    RUN_AHEAD_BYTES,
    VECTOR_WAYS,
    StreamGeometry,
    are_vectors,
)
from fastindex.moving.numbers import MOST_COLUMN_BYTES, NOTHING
from fastindex.moving.passes import Blocks, Draft, Tables, along, blocks, cut, iterations, readable_bytes, without
from fastindex.moving.problem import Context
from fastindex.runtime.machine import Cache
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES

# The most lines of a chunk to prefetch at once.
_MOST_CHUNK_LINES = 128
# Length of pieces that are interleaved or deinterleaved, in tasks of a copy.
_PIECE_TASKS = 4
#: Bytes of narrow elements: a lane of 16 bytes holds eight or more.
NARROW_BYTES = (1, 2)


class Chunk(NamedTuple):
    """The unit of work of a stream.

    Attributes
    ----------
    loops : iterable of Loop
        The loops within a chunk; the others iterate over chunks and tasks.
    offsets : callable or None
        Returns the source offsets of the rows of a chunk, or the destination offsets of its columns.
    run, ways : int
        As in `StreamGeometry`.
    nbytes : int
        Bytes that a chunk writes.
    by_source : bool
        Whether chunks are in the order of the source. Long pieces are written as fast in any order, so the source is
        then read as one sequential stream.
    first : tuple of Loop
        The innermost loops over chunks, unless `by_source`.
    """

    loops: Iterable[Loop]
    offsets: Callable[[], NDArray[np.int64]] | None
    run: int
    nbytes: int
    ways: int = 1
    by_source: bool = False
    first: tuple[Loop, ...] = ()


def _stream_pass(kernel: str, nest: Nest, chunk: Chunk, context: Context, why: str) -> Draft:
    tuning = context.tuning
    most = max(1, tuning.task_bytes // chunk.nbytes)
    ordered = without(nest.loops, chunk.loops, chunk.by_source)
    if not chunk.by_source:
        ordered = [*chunk.first, *without(ordered, chunk.first)]
    found = blocks(ordered, most)
    followers = _followers(ordered, found, chunk.nbytes) if kernel == "copy" and chunk.by_source else (1, 1, 0)
    geometry = (
        *found.chunks,
        *StreamGeometry(
            run=chunk.run,
            ways=chunk.ways,
            by_source=chunk.by_source,
            streamed=context.streamed,
            readable_bytes=readable_bytes(nest, context.width),
            follower_every=followers[0],
            follower_count=followers[1],
            follower_source_stride=followers[2],
            **_lanes(kernel, chunk, context.width),
            chunks_ahead=_chunks_ahead(kernel, nest, chunk, context.width),
        ),
    )

    def tables() -> Tables:
        return (found.offsets(),) if chunk.offsets is None else (found.offsets(), chunk.offsets())

    chunks = found.count * iterations(found.outer)
    counted = [_counts(kernel, chunk, context, chunks)]
    ways = context.machine.caches.l1.ways
    on_pages = [k for k in ordered[:1] if abs(k.source_stride) >= PAGE_BYTES and k.size > ways]
    if on_pages and not chunk.by_source:
        # Each chunk is read from a different page, and from more pages than L1 has ways.
        counted.append(Counts(blocks=chunks))
    return Draft(
        kernel,
        context.width,
        found.around(nest),
        geometry,
        found.places * chunk.nbytes,
        why,
        total((*counted, Counts(ends=_ends(kernel, nest, chunk, context, continues=followers[1] > 1)))),
        tables,
        chunk.ways,
        found.number,
    )


def _ends(kernel: str, nest: Nest, chunk: Chunk, context: Context, continues: bool) -> float:
    """Count the ends of a stream's pieces within lines; `continues` tells whether pieces by source are joined."""
    if kernel == "compress":
        return 0
    offset = context.tuning.line_offset
    if chunk.by_source and not continues:
        # Each piece is written separately.
        loops = tuple(chunk.loops)
        run, run_bytes = (loops[-1], context.width * chunk.run) if kernel == "deinterleave" else (loops[0], chunk.run)
        others = tuple(k for k in nest.loops if k is not run)
        return piece_ends(nest._replace(loops=others), run_bytes, context.streamed, offset, in_order=False)
    return piece_ends(nest, context.width, context.streamed, offset)


def _counts(kernel: str, chunk: Chunk, context: Context, chunks: int) -> Counts:
    """Count the work of a stream of `chunks` chunks."""
    width, caches = context.width, context.machine.caches
    nbytes, run_bytes = chunks * chunk.nbytes, chunk.run * width
    lines = nbytes / LINE_BYTES
    if kernel == "copy":
        # If runs are not whole lines, their ends take as long as their beginnings.
        return Counts(lines=lines, runs=nbytes / chunk.run * (2 if chunk.run % LINE_BYTES else 1))
    if kernel in ("expand", "compress"):
        written = lines if kernel == "expand" else lines / chunk.ways
        return Counts(lines=written, shuffled=lines, runs=2 * chunks, blocks=chunks if chunk.run % LINE_BYTES else 0)
    rows = nbytes / run_bytes
    if are_vectors(kernel, width, chunk.ways, chunk.run):
        missed = lines if kernel == "deinterleave" and _leaves_l1(chunk, caches.l1) else 0
        # Rows shorter than a line are moved element by element, and then copied.
        short, blocks = (rows, chunks) if run_bytes < LINE_BYTES else (0, 0)
        return Counts(lines, shuffled=lines, missed=missed, runs=short, gathered=short * chunk.run, blocks=blocks)
    missed = rows if kernel == "interleave" and run_bytes < LINE_BYTES and _leaves_l2(chunk, caches.l2) else 0
    moved = rows * -(-run_bytes // LINE_BYTES)
    is_narrow = width in NARROW_BYTES
    if is_narrow or (kernel == "deinterleave" and run_bytes >= LINE_BYTES):
        return Counts(lines, blocks=chunks, runs=2 * rows, missed=missed, shuffled=moved * (1 if is_narrow else 2))
    return Counts(lines, blocks=chunks, runs=2 * rows, missed=missed, turned=moved)


def _leaves_l1(chunk: Chunk, l1: Cache) -> bool:
    """Whether lines of deinterleaved columns are evicted from L1 before they are full."""
    return chunk.offsets is not None and overflows(chunk.offsets(), l1.sets, 2 * l1.ways)


def _leaves_l2(chunk: Chunk, l2: Cache) -> bool:
    """Whether lines of rows of less than a line are evicted from L2 before the next chunk reads their remainder."""
    return chunk.offsets is not None and overflows(chunk.offsets(), *l2)


def _lanes(kernel: str, chunk: Chunk, width: int) -> dict[str, int]:
    """Return the bytes of each column in a lane of 16 bytes (the unit), and the byte shuffle that groups them."""
    if kernel not in VECTOR_WAYS or width > LANE_BYTES:
        return {"element_bytes": width, "unit_bytes": 0, "mask_low": 0, "mask_high": 0}
    ways, together = chunk.ways, 1 << max(LANE_BYTES // (chunk.ways * width), 1).bit_length() - 1
    unit, mask = together * width, bytearray()
    for at in range(LANE_BYTES):
        if kernel == "deinterleave":
            column, place, taken = at // unit, at % unit // width, at // unit < ways
            source = (place * ways + column) * width
        else:
            place, column, taken = at // (ways * width), at // width % ways, at // (ways * width) < together
            source = column * unit + place * width
        mask.append(source + at % width & 0xFF if taken else NOTHING)
    low, high = (int.from_bytes(half, "little", signed=True) for half in (mask[:8], mask[8:]))
    return {"element_bytes": width, "unit_bytes": unit, "mask_low": low, "mask_high": high}


def _chunks_ahead(kernel: str, nest: Nest, chunk: Chunk, width: int) -> int:
    """Return the prefetch distance in chunks; 0 if runs are prefetched as they are read."""
    if kernel not in ("copy", "interleave", "deinterleave"):
        return 0
    rows = {"copy": chunk.nbytes // chunk.run, "interleave": chunk.ways, "deinterleave": 1}[kernel]
    run = {"copy": 1, "interleave": width, "deinterleave": width * chunk.ways}[kernel] * chunk.run
    lines = rows * -(-run // LINE_BYTES)
    most_bytes = PAGE_BYTES if kernel == "copy" else SHORT_FRAGMENT_BYTES
    if is_scattered(nest, width, most_bytes) and lines <= _MOST_CHUNK_LINES:
        return max(LINES_AHEAD // lines, 1)
    if kernel != "copy" or chunk.by_source:
        return 0
    return (RUN_AHEAD_BYTES if rows == 1 else ROW_AHEAD_BYTES) // run + 1


def _followers(ordered: Sequence[Loop], found: Blocks, run_bytes: int) -> tuple[int, int, int]:
    """Return how chunks continue each other in the destination: (distance in chunks, count, source stride)."""
    every = 1
    for loop in ordered[: len(ordered) - len(found.outer)]:
        if loop.destination_stride == run_bytes:
            return every, loop.size, loop.source_stride
        every *= loop.size
    return 1, 1, 0


def run_of(nest: Nest, width: int) -> Loop:
    """Return the loop that is contiguous on both sides."""
    return nest.loop_of(width, width) or Loop(1, width, width)


def copy_passes(nest: Nest, context: Context) -> Iterator[Draft]:
    """Yield the passes that copy runs."""
    for part, rows, column in _gathered(nest, run_of(nest, context.width).size * context.width, context):
        run = run_of(part, context.width)
        run_bytes = run.size * context.width
        # Rows of a byte each that are not split are up to twice as many.
        together = blocks(rows, 2 * context.tuning.gathered_chunk_bytes)
        by_source = together.places == 1 and run_bytes >= context.tuning.by_source_bytes
        size = run_bytes * together.places
        chunk = Chunk((run, *rows), together.sources, run_bytes, size, by_source=by_source, first=column)
        yield _stream_pass("copy", part, chunk, context, "runs that both sides keep contiguous")


def _gathered(
    nest: Nest, run_bytes: int, context: Context
) -> Iterator[tuple[Nest, tuple[Loop, ...], tuple[Loop, ...]]]:
    """Choose the order in which runs are copied, and split the nest accordingly.

    Yields a part of the nest, the loops along which its runs are adjacent in the destination, which form a chunk, and
    the loop along which they are adjacent in the source, which is the innermost loop over chunks.
    """
    tuning = context.tuning
    column = tuple(k for k in nest.loops if k.source_stride == run_bytes != k.destination_stride)[:1]
    rows: list[Loop] = []
    count, most = 1, max(tuning.gathered_chunk_bytes // run_bytes, tuning.least_gathered_runs)
    while count < most and 2 * run_bytes < tuning.gathered_chunk_bytes:
        follows = (k for k in nest.loops if k.destination_stride == run_bytes * count and k not in rows)
        row = next((k for k in follows if k not in column), None)
        if row is None:
            break
        rows.append(row)
        count *= row.size
    if count <= most or not rows:
        yield nest, tuple(rows), column
        return
    most = max(most // (count // rows[-1].size), 1)
    divisor = next((k for k in range(most, (most - 1) // 2, -1) if rows[-1].size % k == 0), most)
    for part in cut(nest, rows[-1], divisor):
        yield part, (*rows[:-1], along(part, rows[-1])), column


def interleave_passes(nest: Nest, rows: Sequence[Loop], column: Loop, context: Context) -> Iterator[Draft]:
    """Yield the passes that interleave a few rows into one stream."""
    together = blocks(rows, MOST_COLUMN_BYTES)
    ways = together.places
    # Lanes read as many rows as give 16 bytes of a column.
    more = max(LANE_BYTES // context.width - ways, 0)

    def offsets() -> NDArray[np.int64]:
        found = together.sources()
        return np.append(found, np.repeat(found[-1:], more))

    why = f"{ways} rows next to each other in the destination"
    column_bytes = ways * context.width
    for part in cut(nest, column, _piece_columns(context, column_bytes)):
        run = along(part, column)
        chunk = Chunk((*rows, run), offsets, run.size, column_bytes * run.size, ways)
        yield _stream_pass("interleave", part, chunk, context, why)


def _piece_columns(context: Context, column_bytes: int) -> int:
    """Return the columns of a piece: every piece has two ends in every row, so it is longer than a task."""
    return max(_PIECE_TASKS * context.tuning.task_bytes // column_bytes, 1)


def deinterleave_passes(nest: Nest, columns: Sequence[Loop], row: Loop, context: Context) -> Iterator[Draft]:
    """Yield the passes that deinterleave one stream into a few rows."""
    width, tuning = context.width, context.tuning
    together = blocks(columns, LINE_BYTES)
    ways = together.places
    why = f"{ways} columns next to each other in the source"
    for part in cut(nest, row, _piece_columns(context, ways * width)):
        run = along(part, row)
        by_source = run.size * width >= tuning.by_source_bytes
        chunk = Chunk((*columns, run), together.targets, run.size, ways * run.size * width, ways, by_source=by_source)
        yield _stream_pass("deinterleave", part, chunk, context, why)


def packed_run_passes(nest: Nest, run: Loop, per_byte: int, kernel: str, context: Context) -> Iterator[Draft]:
    """Yield the passes that expand or compress runs of packed elements."""
    why = f"{per_byte} elements a byte on one side, one on the other"
    # Pieces begin and end on a byte boundary of the packed side, and on a line boundary of the other.
    most = max(context.tuning.task_bytes // LINE_BYTES, 1) * LINE_BYTES
    for part in cut(nest, run, most):
        piece = run_of(part, 1)
        yield _stream_pass(kernel, part, Chunk((piece,), None, piece.size, piece.size, per_byte), context, why)
