"""How many cache lines a relayout reads: where the source has padding, many more than its elements fill."""

from __future__ import annotations

import math
from dataclasses import replace

from fastindex.algebra.loops import Nest, RelayoutLoops
from fastindex.lowering.machine import Cache
from fastindex.lowering.tuning import Tuning
from fastindex.tables.cache_lines import LINE_BYTES

#: Pieces of the source that are longer count as streams of their own.
FEW_BYTES = 1024
#: Within a page the processor prefetches lines itself; lines further apart are several streams to it.
PAGE_BYTES = 4096
#: How many lines that are far from each other are prefetched before they are read; 16 to 64 measure alike.
LINES_AHEAD = 48
# Lines that are far from each other take some four times as long.
_FAR_LINES = 4
# One thread reads fewer scattered lines than this before a second one has begun. Least microseconds of 9 calls, with
# one thread and with two: 137 and 174 for 12,288 lines of c128[3072,2,5] out of T(8,128), 199 and 197 for 24,576 of
# f32[12288,1,2] out of T(4,128)(2,1), 412 and 286 for 36,864 of f32[12288,1,6] out of T(8,128)(8,1), 541 and 407 for
# 49,152 of f64[3072,8,10] reversed out of T(256), 472 and 351 of u8[49152,2,12] out of T(8,128)(2,1) (2026-11-23).
_ALONE_BYTES = 20_000 * LINE_BYTES


def read_lines(loops: RelayoutLoops, width: int) -> int:
    """Return about how many lines of the source hold elements of `width` bytes.

    Examples
    --------
    >>> from fastindex.algebra.loops import Loop
    >>> read_lines(RelayoutLoops((Nest((Loop(10, 1, 1), Loop(8, 128, 10), Loop(500, 1024, 80))),), ()), 4)
    4000
    """
    return sum(_lines_of(nest, width) for nest in loops.copies)


def spanned_bytes(loops: RelayoutLoops, width: int) -> int:
    """Return the bytes from the first element of `width` bytes that is read to the end of the last.

    Examples
    --------
    >>> from fastindex.algebra.loops import Loop
    >>> spanned_bytes(RelayoutLoops((Nest((Loop(10, 1, 1), Loop(500, 1024, 80))),), ()), 4)
    2043944
    """
    steps = [[(k.size - 1) * k.source_stride for k in nest.loops] for nest in loops.copies]
    begins = [nest.source_start + sum(min(k, 0) for k in of) for nest, of in zip(loops.copies, steps, strict=True)]
    ends = [nest.source_start + sum(max(k, 0) for k in of) for nest, of in zip(loops.copies, steps, strict=True)]
    return width * (max(ends) - min(begins) + 1) if begins else 0


def is_scattered(nest: Nest, width: int, most_bytes: int = FEW_BYTES) -> bool:
    """Whether the source is read a few lines here and a few lines there, `most_bytes` at most; the nest is in bytes.

    Examples
    --------
    >>> from fastindex.algebra.loops import Loop
    >>> is_scattered(Nest((Loop(3, 4, 4), Loop(50, 512, 12))), 4)
    True
    >>> is_scattered(Nest((Loop(100, 4, 4), Loop(50, 512, 400))), 4)
    False
    """
    span = width
    for stride, size in sorted((abs(loop.source_stride), loop.size) for loop in nest.loops):
        if stride >= span + 2 * LINE_BYTES:
            return span <= most_bytes
        span += stride * (size - 1)
    return False


def lines_in_cache(stride: int, cache: Cache) -> int:
    """Return how many lines of the source, `stride` bytes apart, stay in half of a cache together.

    Examples
    --------
    >>> lines_in_cache(64, Cache(1024, 16)), lines_in_cache(128, Cache(1024, 16))
    (8192, 4096)
    """
    shared = math.gcd(stride // LINE_BYTES, cache.sets) if stride % LINE_BYTES == 0 else 1
    return cache.sets // shared * cache.ways // 2


def _lines_of(nest: Nest, width: int) -> int:
    span, number = width, 1
    for stride, size in sorted((abs(loop.source_stride) * width, loop.size) for loop in nest.loops):
        if stride <= max(span, LINE_BYTES):
            # Steps of less than a line leave none out.
            span += stride * (size - 1)
        else:
            number *= size
    return number * -(-span // LINE_BYTES)


def for_scattered_lines(tuning: Tuning, read_bytes: int, spanned: int, written_bytes: int) -> Tuning:
    """Return thresholds for a relayout that reads more than it writes, so that its tasks read no more than others do.

    Parameters
    ----------
    tuning : Tuning
    read_bytes, spanned, written_bytes : int
        The bytes of the lines that are read, from the first of them to the last, and the bytes that are written.
    """
    calls = tuning.small_call_bytes
    alone = spanned >= tuning.streamed_bytes and read_bytes <= _ALONE_BYTES
    if spanned >= tuning.streamed_bytes:
        # Out of a source this large it is faster to write past the cache: f32[24576,2,40] out of T(4,128)(2,1) in 0.78
        # of the time, 0.95 with a reader after it, 0.82 where both sides are in L3. A second thread helps sooner.
        tuning = replace(
            tuning,
            streamed_bytes=0,
            shifted_bytes=tuning.streamed_bytes,
            small_call_bytes=calls if alone else 0,
        )
    share = read_bytes // max(written_bytes, 1)
    if share < 2:
        return tuning
    return replace(
        tuning,
        task_bytes=max(tuning.task_bytes // share, LINE_BYTES),
        share_bytes=max(tuning.share_bytes // share, LINE_BYTES),
        small_call_bytes=calls if alone else min(tuning.small_call_bytes, calls // (_FAR_LINES * share)),
    )
