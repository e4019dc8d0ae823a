"""From loops to passes: the kernel that moves a nest, its order and its blocks, and the reason for the choice.

The choice depends on the loops along which each side is contiguous. A run that is contiguous on both sides is copied.
Otherwise one loop, the columns, is contiguous in the source, and another, the rows, in the destination. Few rows next
to each other in the destination are interleaved into one stream; few columns next to each other in the source are
deinterleaved; everything else is transposed in squares. All strides here are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, grouped, in_bytes
from fastindex.moving.counts import Counts, piece_ends
from fastindex.moving.moves.streams.plan import (
    NARROW_BYTES,
    copy_passes,
    deinterleave_passes,
    interleave_passes,
    packed_run_passes,
)
from fastindex.moving.moves.transposes import TRANSPOSE_WIDTHS
from fastindex.moving.moves.transposes.plan import transpose_pass
from fastindex.moving.numbers import MOST_COLUMN_BYTES, FillGeometry, StridedGeometry
from fastindex.moving.passes import Draft, Pass, along, cut, iterations, rows_and_columns, with_tables, without
from fastindex.moving.problem import Context, Problem
from fastindex.runtime.machine import Machine
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES
from fastindex.runtime.tuning import TUNING, Tuning

# The most runs, or elements, of a task that copies them one by one.
_MOST_RUNS = 64
# Longer columns of elements of two bytes and more are transposed, those of bytes from `MOST_COLUMN_BYTES` on.
# Microseconds, interleaved and transposed, plain sources of 24 MB: bf16[132,177,512] 1876 and 1656, u8[264,1420,64]
# 1662 and 1813; fractions of copy: f32[98,3826,16] 0.55 and 0.62, f64[33,11363,8] 0.45 and 0.60, f32[34,3676,48] 0.58
# and 0.49.
_MOST_WIDE_COLUMN_BYTES = 256


def passes(loops: RelayoutLoops, width: int, machine: Machine, tuning: Tuning = TUNING) -> tuple[Pass, ...]:
    """Choose the kernels that copy and fill, for elements of `width` bytes, and write their tables.

    Examples
    --------
    >>> from fastindex import Shape
    >>> from fastindex.runtime.machine import EPYC_1M
    >>> from fastindex.algebra.loops import relayout_loops
    >>> a, b = Shape.parse("bf16[64,256]"), Shape.parse("bf16[64,256]{1,0:T(8,128)(2,1)}")
    >>> for one in passes(relayout_loops(a, b), 2, EPYC_1M):
    ...     print(one.describe())
    interleave 2 ways, 2-byte units, 1 task, about 32,768 bytes: 2 rows next to each other in the destination
    """
    return with_tables(drafts(loops, width, machine, tuning))


def loop_passes(problem: Problem) -> tuple[Draft, ...] | None:
    """Return the passes over the loops that both sides share."""
    slots = problem.slots
    if slots.loops is None:
        return None
    return drafts(slots.loops, slots.width, problem.machine, problem.tuning)


def packed_runs(problem: Problem) -> tuple[Draft, ...] | None:
    """Return passes that expand or compress runs of packed elements as they move; None if there are none."""
    slots = problem.slots
    if slots.loops is None or slots.conversion is None:
        return None
    packed = slots.source if slots.source.is_packed else slots.destination
    return packed_drafts(slots.loops, 8 // packed.bits, slots.conversion, problem.machine, problem.tuning)


def drafts(loops: RelayoutLoops, width: int, machine: Machine, tuning: Tuning = TUNING) -> tuple[Draft, ...]:
    """Choose the kernels that copy and fill, for elements of `width` bytes."""
    total = width * sum(nest.element_count for nest in (*loops.copies, *loops.fills))
    context = Context(width, total >= tuning.streamed_bytes, tuning, machine)
    found: list[Draft] = []
    for nest in loops.copies:
        found += copying_passes(in_bytes(nest, width), context)
    found += [fill_pass(in_bytes(fill, width), context) for fill in loops.fills]
    return tuple(found)


def _widened(nest: Nest, width: int) -> tuple[Nest, int]:
    """Merge short runs that are contiguous on both sides into wider units, if there are units of these sizes."""
    for loop in nest.loops:
        run_bytes = loop.size * width
        if loop.source_stride == loop.destination_stride == width and run_bytes in TRANSPOSE_WIDTHS[1:]:
            others = tuple(other for other in nest.loops if other is not loop)
            return _widened(Nest(others, nest.source_start, nest.destination_start), run_bytes)
    return nest, width


def copying_passes(nest: Nest, context: Context) -> Iterator[Draft]:
    """Choose the passes that copy a nest, in bytes."""
    nest, width = _widened(nest, context.width)
    context = context if width == context.width else replace(context, width=width)
    tuning, loops = context.tuning, nest.loops
    run = nest.loop_of(width, width)
    if run is not None or not loops:
        for part in cut(nest, run, tuning.task_bytes // width) if run is not None else (nest,):
            yield from copy_passes(part, context)
        return
    column = nest.loop_of(source=width)
    row = nest.loop_of(destination=width)
    if column is None or row is None:
        longest = row or column or max(loops, key=lambda loop: loop.size)
        yield from _strided_passes(nest, longest, context)
        return
    rows, columns = rows_and_columns(loops, row, column, width)
    row_bytes, column_bytes = width * iterations(rows), width * iterations(columns)
    most = MOST_COLUMN_BYTES if width == 1 else _MOST_WIDE_COLUMN_BYTES
    few = row_bytes < 2 * LINE_BYTES or (row_bytes < most and row_bytes % LINE_BYTES)
    # Interleaves of narrow rows that do not fill a lane move little at once; squares hold several such rows.
    half_a_lane = width in NARROW_BYTES and LANE_BYTES // 2 <= width * column.size < LANE_BYTES <= column_bytes
    is_short = half_a_lane and row_bytes >= LINE_BYTES
    if few and not is_short and width <= LANE_BYTES and column.destination_stride == row_bytes:
        yield from interleave_passes(nest, rows, column, context)
    elif column_bytes < LINE_BYTES and row.source_stride == column_bytes:
        yield from deinterleave_passes(nest, columns, row, context)
    else:
        yield transpose_pass(nest, rows, columns, context)


def packed_drafts(
    loops: RelayoutLoops, per_byte: int, kernel: str, machine: Machine, tuning: Tuning = TUNING
) -> tuple[Draft, ...] | None:
    """Choose the passes that expand packed elements to bytes, or compress bytes, while they move.

    Parameters
    ----------
    loops : RelayoutLoops
    per_byte : int
        Packed elements of a byte.
    kernel : {"expand", "compress"}
    machine : Machine
    tuning : Tuning, optional

    Returns
    -------
    tuple of Draft or None
        None if runs do not begin on a byte boundary of the packed side, or do not end on one of a packed destination.
        Offsets on the packed side count elements.
    """
    written = sum(nest.element_count for nest in (*loops.copies, *loops.fills))
    if kernel == "compress":
        written //= per_byte
    context = Context(1, written >= tuning.streamed_bytes, tuning, machine)
    found: list[Draft] = []
    for nest in loops.copies:
        made = packed_nest_passes(nest, per_byte, kernel, context)
        if made is None:
            return None
        found += made
    fills = grouped(RelayoutLoops((), loops.fills), per_byte) if kernel == "compress" else loops
    if fills is None:
        return None
    return (*found, *(fill_pass(nest, context) for nest in fills.fills))


def packed_nest_passes(nest: Nest, per_byte: int, kernel: str, context: Context) -> tuple[Draft, ...] | None:
    """Choose the passes that expand or compress the elements of a nest; None as for `packed_drafts`."""
    run = nest.loop_of(1, 1)
    if run is None:
        return None
    # An expanded run may end within a byte: the remaining bits are not written anywhere.
    numbers = [nest.source_start] if kernel == "expand" else [nest.destination_start, run.size]
    others = [loop for loop in nest.loops if loop is not run]
    numbers += [k.source_stride if kernel == "expand" else k.destination_stride for k in others]
    if any(number % per_byte for number in numbers):
        return None
    return tuple(packed_run_passes(nest, run, per_byte, kernel, context))


def whole_buffer_passes(
    slots: int, per_byte: int, kernel: str, machine: Machine, tuning: Tuning = TUNING
) -> tuple[Pass, ...]:
    """Choose the passes that expand or compress all slots of a buffer; unused bits of the last byte become 0.

    Parameters
    ----------
    slots : int
    per_byte : int
        Packed elements of a byte.
    kernel : {"expand", "compress"}
    machine : Machine
    tuning : Tuning, optional
    """
    written = slots if kernel == "expand" else slots // per_byte
    run = Loop(slots, 1, 1)
    context = Context(1, written >= tuning.streamed_bytes, tuning, machine)
    return with_tables(packed_run_passes(Nest((run,)), run, per_byte, kernel, context))


def _strided_passes(nest: Nest, longest: Loop, context: Context) -> Iterator[Draft]:
    """Yield passes that move elements one by one, along one loop."""
    runs = next(iter(without(nest.loops, (longest,))), None)
    for part in cut(nest, longest, context.tuning.task_bytes // context.width):
        run = along(part, longest)
        if runs is None:
            yield _strided_pass(part, run, Loop(1, 0, 0), context)
            continue
        for piece in cut(part, runs, max(_MOST_RUNS // run.size, 1)):
            yield _strided_pass(piece, run, along(piece, runs), context)


def _strided_pass(nest: Nest, loop: Loop, runs: Loop, context: Context) -> Draft:
    width, streamed = context.width, context.streamed
    outer = without(nest.loops, (loop, runs))
    return Draft(
        "strided",
        width,
        nest._replace(loops=tuple(outer)),
        StridedGeometry(width, *loop, *runs),
        loop.size * runs.size * width,
        "one by one: a side has gaps between all its elements",
        _counts_of_elements(nest, width, streamed),
    )


def _counts_of_elements(nest: Nest, width: int, is_large: bool) -> Counts:
    """Count elements that move one by one, and the lines of a large source that must come from memory."""
    nearest = min((abs(k.source_stride) for k in nest.loops), default=width)
    far = nest.element_count * min(nearest / LINE_BYTES, 1) if is_large else 0
    return Counts(lines=nest.element_count * width / LINE_BYTES, gathered=nest.element_count, elements=far)


def fill_pass(nest: Nest, context: Context) -> Draft:
    """Return the pass that writes padding to a nest, in bytes."""
    run = nest.loop_of(destination=context.width) or Loop(1, 0, context.width)
    outer = without(nest.loops, (run,))
    run_bytes, piece = run.size * context.width, context.tuning.task_bytes
    if not outer and run_bytes > 2 * piece and run_bytes % piece == 0:
        outer, run_bytes = [Loop(run_bytes // piece, 0, piece)], piece
    return Draft(
        "fill",
        context.width,
        Nest(tuple(outer), 0, nest.destination_start),
        FillGeometry(run_bytes, context.streamed),
        run_bytes,
        "padding",
        Counts(
            filled=nest.element_count * context.width / LINE_BYTES,
            blocks=iterations(outer),
            ends=piece_ends(nest, context.width, context.streamed, context.tuning.line_offset),
        ),
    )
