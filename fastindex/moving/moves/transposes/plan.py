"""Passes that transpose: elements next to each other in the source go to different lines of the destination."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastindex.algebra.loops import Loop, Nest
from fastindex.moving.counts import PAGE_BYTES, Counts, is_scattered, lines_in_cache, overflows, piece_ends
from fastindex.moving.moves.streams.plan import NARROW_BYTES
from fastindex.moving.moves.transposes import FEW_BYTE_COLUMNS, FEW_COLUMNS, NO_PITCH, TransposeGeometry
from fastindex.moving.passes import Blocks, Draft, Tables, blocks, iterations, without
from fastindex.moving.problem import Context
from fastindex.runtime.machine import Cache
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES


def transpose_pass(nest: Nest, rows: Sequence[Loop], columns: Sequence[Loop], context: Context) -> Draft:
    """Return the pass that transposes rows of the source into columns of the destination."""
    width, l1 = context.width, context.machine.caches.l1
    between = _between(nest, rows, columns, context)
    if between:
        rows = rows[:1]
    others = without(nest.loops, (*rows, *columns), by_source=bool(between))
    column_blocks, aligned = column_panels(columns, context)
    streamed = context.streamed and (aligned or width * iterations(nest.loops) >= context.tuning.shifted_bytes)
    block_bytes = _block_bytes(rows[0].source_stride, context) if between else context.tuning.row_bytes
    row_blocks = _row_blocks(rows, iterations(others), column_blocks, block_bytes, context)
    outer = (*others, *row_blocks.outer, *column_blocks.outer)
    tasks = row_blocks.number * column_blocks.number * iterations(outer)
    sizes = row_bytes, column_bytes, _ = width * iterations(rows), width * iterations(columns), width
    follow = columns[0].destination_stride == row_bytes
    # Columns of less than a line are not joined: a line may hold more than the end of one and the start of the next.
    joined = follow and row_blocks.number == 1 and len(columns) == 1 and row_bytes >= LINE_BYTES
    step = width if joined else row_blocks.source_stride

    def tables() -> Tables:
        row_table, targets = row_blocks.sources(), column_blocks.targets()
        if joined or row_blocks.number > 1:
            row_table = np.append(row_table, row_table[: LINE_BYTES // width] + step)
        return row_table, targets

    geometry = TransposeGeometry(
        row_block=row_blocks.places,
        row_count=row_blocks.count,
        row_source_stride=row_blocks.source_stride,
        column_block=column_blocks.places,
        column_count=column_blocks.count,
        column_target_stride=column_blocks.destination_stride,
        columns_aligned=aligned,
        columns_joined=joined,
        streamed=streamed,
        inner_iterations=iterations(between),
        # Rows at this pitch share one set of L1, if that has fewer ways than there are staged rows.
        evicting_pitch=l1.sets * LINE_BYTES if LANE_BYTES // width > l1.ways else NO_PITCH,
    )
    return Draft(
        "transpose",
        width,
        nest._replace(loops=outer),
        geometry,
        row_blocks.places * column_blocks.places * width,
        f"{column_bytes} bytes contiguous in the source become {row_bytes} contiguous in the destination",
        counts_of_transpose(nest, sizes, tasks)._replace(
            ends=piece_ends(nest, width, streamed, context.tuning.line_offset),
            scratch=width * nest.element_count / LINE_BYTES if _leaves_l1(rows, width, l1) else 0,
        ),
        tables,
        blocks=row_blocks.number * column_blocks.number,
    )


def _leaves_l1(rows: Sequence[Loop], width: int, l1: Cache) -> bool:
    """Whether the rows of a line of the destination map to so few sets of L1 that they evict each other."""
    # Narrow elements are staged, fewer rows at a time.
    if width in NARROW_BYTES or width >= LINE_BYTES:
        return False
    return overflows(blocks(rows, LINE_BYTES // width).sources(), *l1)


def is_few(columns: int, width: int) -> bool:
    """Whether columns are so few that their elements, of `width` bytes, are moved one by one."""
    return columns <= (FEW_COLUMNS if width > 1 else FEW_BYTE_COLUMNS)


def counts_of_transpose(nest: Nest, sizes: tuple[int, int, int], tasks: int) -> Counts:
    """Count the work of a transpose of a nest.

    `sizes` are the bytes of a contiguous run of the destination, of one of the source, and of an element.
    """
    row, column, width = sizes
    lines = nest.element_count * width / LINE_BYTES
    squares = lines * LINE_BYTES**2 / (min(row, LINE_BYTES) * min(column, LINE_BYTES))
    few = is_few(column // width, width)
    # Narrow elements are transposed with a line's worth of rows: more streams than the hardware prefetcher follows.
    is_turned = width in NARROW_BYTES and not few
    return Counts(
        lines=lines,
        shuffled=0 if is_turned else squares,
        turned=squares if is_turned else 0,
        # Runs of less than a line in the destination are copied one by one; of narrow elements, a square each.
        elements=lines * LINE_BYTES / row if row < LINE_BYTES and not is_turned else 0,
        # Short scattered rows are read more slowly than rows in order.
        missed=lines if is_turned and is_scattered(nest, width) else 0,
        tasks=tasks,
    )


def _between(nest: Nest, rows: Sequence[Loop], columns: Sequence[Loop], context: Context) -> list[Loop]:
    """Return the loops with smaller source strides than the rows, if lines are far apart; else none.

    They are iterated before the next block of rows, so that the source is read in the order of memory.
    """
    stride, width = abs(rows[0].source_stride), context.width
    # Shorter rows are kept adjacent if they continue each other: their ends are partial lines.
    least_row_bytes = context.tuning.least_row_bytes
    is_far = stride >= PAGE_BYTES and width < LANE_BYTES and width * iterations(columns) <= 2 * LINE_BYTES
    if not (is_far or is_scattered(nest, width)) or rows[0].size * width < least_row_bytes:
        return []
    others = without(nest.loops, (rows[0], *columns), by_source=True)
    return [k for k in others if abs(k.source_stride) < stride]


def _block_bytes(stride: int, context: Context) -> int:
    """Return the bytes of a row that a block has, with the loops of `_between`: fewer if lines would not stay in L2.

    f64[768,3,128] reversed out of T(64,128)(8,1), microseconds: 857, 678, 562 and 598 with 64 to 512 bytes, 665 with
    2 KiB, 1047 with 8 KiB.
    """
    return min(
        context.tuning.least_row_bytes,
        max(context.width * lines_in_cache(stride, context.machine.caches.l2), 4 * LINE_BYTES),
    )


def column_panels(columns: Sequence[Loop], context: Context) -> tuple[Blocks, bool]:
    """Split columns into blocks; return also whether all have the same offset from a line boundary."""
    aligned = not any(loop.destination_stride % LINE_BYTES for loop in columns)
    most_bytes = context.tuning.aligned_column_bytes if aligned else context.tuning.column_bytes
    return blocks(columns, most_bytes // context.width), aligned


def _row_blocks(rows: Sequence[Loop], others: int, column_blocks: Blocks, block_bytes: int, context: Context) -> Blocks:
    """Split rows into blocks, as long as possible with enough tasks for all threads."""
    tuning, width = context.tuning, context.width
    most = block_bytes // width
    while True:
        row_blocks = blocks(rows, most)
        around = others * iterations(row_blocks.outer) * iterations(column_blocks.outer)
        tasks = row_blocks.number * column_blocks.number * around
        if tasks >= tuning.least_tasks or most * width <= tuning.least_row_bytes:
            return row_blocks
        most //= 2
