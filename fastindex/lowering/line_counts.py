"""How many cache lines a relayout reads: where the source has padding, many more than its elements fill."""

from __future__ import annotations

from dataclasses import replace

from fastindex.lowering.relayout_loops import Nest, RelayoutLoops
from fastindex.lowering.tuning import Tuning
from fastindex.tables.cache_lines import LINE_BYTES

# Longer pieces of the source are streams of their own.
_FEW_BYTES = 1024


def read_lines(loops: RelayoutLoops, width: int) -> int:
    """Return about how many lines of the source hold elements of `width` bytes.

    Examples
    --------
    >>> from fastindex.lowering.relayout_loops import Loop
    >>> read_lines(RelayoutLoops((Nest((Loop(10, 1, 1), Loop(8, 128, 10), Loop(500, 1024, 80))),), ()), 4)
    4000
    """
    return sum(_lines_of(nest, width) for nest in loops.copies)


def is_scattered(nest: Nest, width: int) -> bool:
    """Whether the source is read a few lines here and a few lines there; the nest is in bytes.

    Examples
    --------
    >>> from fastindex.lowering.relayout_loops import Loop
    >>> is_scattered(Nest((Loop(3, 4, 4), Loop(50, 512, 12))), 4)
    True
    >>> is_scattered(Nest((Loop(100, 4, 4), Loop(50, 512, 400))), 4)
    False
    """
    span = width
    for stride, size in sorted((abs(loop.source_stride), loop.size) for loop in nest.loops):
        if stride >= span + 2 * LINE_BYTES:
            return span <= _FEW_BYTES
        span += stride * (size - 1)
    return False


def _lines_of(nest: Nest, width: int) -> int:
    span, number = width, 1
    for stride, size in sorted((abs(loop.source_stride) * width, loop.size) for loop in nest.loops):
        if stride <= max(span, LINE_BYTES):
            # Steps of less than a line leave none out.
            span += stride * (size - 1)
        else:
            number *= size
    return number * -(-span // LINE_BYTES)


def for_scattered_lines(tuning: Tuning, read_bytes: int, written_bytes: int) -> Tuning:
    """Return thresholds for a relayout that reads more than it writes: tasks that read no more than others."""
    share = read_bytes // max(written_bytes, 1)
    if share < 2:
        return tuning
    return replace(
        tuning,
        piece_bytes=max(tuning.piece_bytes // share, LINE_BYTES),
        stream_piece_bytes=max(tuning.stream_piece_bytes // share, LINE_BYTES),
        task_bytes=max(tuning.task_bytes // share, LINE_BYTES),
        share_bytes=max(tuning.share_bytes // share, LINE_BYTES),
        # Lines that are far from each other take some four times as long.
        small_call_bytes=tuning.small_call_bytes // (4 * share),
    )
