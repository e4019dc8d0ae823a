"""The cost model of passes: counts of elements, cache lines and blocks, and the cost of each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Nest, RelayoutLoops
from fastindex.runtime.machine import Cache
from fastindex.runtime.numbers import LINE_BYTES
from fastindex.runtime.tuning import Tuning


def distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct numbers of an array in ascending order.

    Examples
    --------
    >>> distinct(np.array([5, 2, 5, 3])).tolist()
    [2, 3, 5]
    """
    ordered = np.sort(numbers, axis=None)
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


class Counts(NamedTuple):
    """Counts of the operations that take time, over all tasks of a pass; a line is a cache line.

    Attributes
    ----------
    lines, filled : float
        Lines of the destination that receive elements, and lines that receive only padding.
    ends : float
        With non-temporal stores: ends of contiguous fragments that lie within a line. Another pass or task writes the
        remainder of that line, so it goes to memory twice. Also nibbles that are moved one by one.
    runs : float
        Runs that are copied, expanded or paired, runs of each row in lanes, and blocks of a column gather. Counted
        twice where both ends take time.
    shuffled : float
        Lines that need few shuffles: interleaved or deinterleaved by vectors, or in lanes if elements are narrow;
        expanded, compressed or paired; transposed if elements are wide. Counted twice where wide elements are
        deinterleaved in lanes.
    turned : float
        Lines that need many shuffles: narrow elements transposed, with as many rows at a time as a line has elements;
        wide elements interleaved in lanes, or deinterleaved to runs of less than a line.
    elements, gathered : float
        `elements`: lines of a large source whose elements are moved one by one, and runs of less than a line that a
        transpose writes. `gathered`: elements of any source that are moved one by one.
    blocks, vectors, pieces : float
        `blocks`: blocks of a block permute, runs of padding, chunks on separate pages, chunks in lanes or of rows of
        less than a line, partial lines that are expanded or compressed. `vectors`: vectors of
        blocks. `pieces`: fragments of the source that vectors are permuted from.
    missed : float
        Lines that are evicted from the cache before they are read or written again.
    rows, slots : float
        Lines of the rows that a column gather reads, and slots that it fills from lanes.
    scratch : float
        Lines that are written to scratch memory, and lines that are read back from it or from L2.
    tasks : float
        Panels of transposes, and boxes.
    """

    lines: float = 0
    filled: float = 0
    ends: float = 0
    runs: float = 0
    shuffled: float = 0
    turned: float = 0
    elements: float = 0
    gathered: float = 0
    blocks: float = 0
    vectors: float = 0
    pieces: float = 0
    missed: float = 0
    rows: float = 0
    slots: float = 0
    scratch: float = 0
    tasks: float = 0

    def times(self, number: float) -> Counts:
        """Return every count multiplied by `number`."""
        return Counts(*[number * value for value in self])


def total(counts: Iterable[Counts]) -> Counts:
    """Return the sum of counts, field by field."""
    rows = list(counts)
    return Counts(*map(sum, zip(*rows, strict=True))) if rows else Counts()


def piece_ends(nest: Nest, nbytes: int, streamed: bool, offset: int = 0, in_order: bool = True) -> float:
    """Return how many ends of contiguous destination fragments lie within a line; 0 without non-temporal stores.

    Parameters
    ----------
    nest : Nest
        In bytes.
    nbytes : int
        Bytes of the unit that the loops move.
    streamed : bool
        Whether the destination is written with non-temporal stores.
    offset : int
        Offset of the destination from a line boundary.
    in_order : bool
        Whether adjacent fragments are written in order, so that lines between them are written whole.

    Examples
    --------
    >>> from fastindex.algebra.loops import Loop, Nest
    >>> piece_ends(Nest((Loop(10, 4, 4), Loop(1000, 512, 512))), 4, True)
    1000.0
    """
    if not streamed:
        return 0
    joined = nest.adjacent(nbytes) if in_order else []
    length, others = nbytes * math.prod(k.size for k in joined), [k for k in nest.loops if k not in joined]
    pieces = math.prod(k.size for k in others)
    step = math.gcd(LINE_BYTES, *(k.destination_stride for k in others))
    # Starts and ends of fragments are spread evenly over the multiples of `step` within a line.
    ends = 0.0
    begin = nest.destination_start + offset
    for place in (begin, begin + length):
        ends += 1 - step / LINE_BYTES if place % step == 0 else 1
    return pieces * ends


def overflows(offsets: NDArray[np.int64], sets: int, ways: int) -> bool:
    """Whether more lines map to one set of a cache than it has ways; `offsets` are byte offsets of the lines."""
    lines = distinct(offsets // LINE_BYTES) if len(offsets) > ways else offsets
    return len(lines) > ways and int(np.bincount(lines % sets).max()) > ways


#: Longer fragments of the source count as separate streams.
SHORT_FRAGMENT_BYTES = 1024
#: The hardware prefetcher works within a page; lines at larger distances are several streams.
PAGE_BYTES = 4096
#: Prefetch distance for scattered lines, in lines; 16 to 64 measure alike.
LINES_AHEAD = 48
# Scattered lines take about four times as long.
_FAR_LINES = 4
# Fewer scattered bytes are read by one thread before a second one has started. Least microseconds of 9 calls, with
# one thread and with two: 137 and 174 for 12,288 lines of c128[3072,2,5] out of T(8,128), 199 and 197 for 24,576 of
# f32[12288,1,2] out of T(4,128)(2,1), 412 and 286 for 36,864 of f32[12288,1,6] out of T(8,128)(8,1), 541 and 407 for
# 49,152 of f64[3072,8,10] reversed out of T(256), 472 and 351 of u8[49152,2,12] out of T(8,128)(2,1) (2026-11-23).
_ALONE_BYTES = 20_000 * LINE_BYTES


def read_lines(loops: RelayoutLoops, width: int) -> int:
    """Return the approximate number of source lines that hold elements of `width` bytes.

    Examples
    --------
    >>> from fastindex.algebra.loops import Loop
    >>> read_lines(RelayoutLoops((Nest((Loop(10, 1, 1), Loop(8, 128, 10), Loop(500, 1024, 80))),), ()), 4)
    4000
    """
    return sum(_lines_of(nest, width) for nest in loops.copies)


def spanned_bytes(loops: RelayoutLoops, width: int) -> int:
    """Return the extent of the source in bytes, from the first element of `width` bytes to the end of the last.

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


def is_scattered(nest: Nest, width: int, most_bytes: int = SHORT_FRAGMENT_BYTES) -> bool:
    """Whether the source is read in short fragments, of at most `most_bytes`, with gaps; the nest is in bytes.

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
    """Return how many source lines with a stride of `stride` bytes fit in half of a cache together.

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
            # Strides of less than a line skip no line.
            span += stride * (size - 1)
        else:
            number *= size
    return number * -(-span // LINE_BYTES)


def for_scattered_lines(tuning: Tuning, loops: RelayoutLoops, width: int) -> Tuning:
    """Return thresholds for a relayout that reads more than it writes, so that its tasks read no more than usual.

    Parameters
    ----------
    tuning : Tuning
    loops : RelayoutLoops
        In units of `width` bytes.
    width : int
    """
    read_bytes, spanned = LINE_BYTES * read_lines(loops, width), spanned_bytes(loops, width)
    written_bytes = width * sum(nest.element_count for nest in (*loops.copies, *loops.fills))
    calls = tuning.small_call_bytes
    alone = spanned >= tuning.streamed_bytes and read_bytes <= _ALONE_BYTES
    if spanned >= tuning.streamed_bytes:
        # With a source this large non-temporal stores are faster: f32[24576,2,40] out of T(4,128)(2,1) in 0.78 of
        # the time, 0.95 with a reader after it, 0.82 where both sides are in L3. A second thread helps sooner.
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


# Cost of each count, in cycles: the only table of fitted numbers.
#
# Fitted by `benchmarks/fit_costs.py` on one half of the cells that `benchmarks/regret.py` timed, and tested on the
# other half. Costs rank the candidates for one relayout; they do not predict a time.
#
# Two were changed manually. `runs` was 7.72: `s32[98304,5]` out of `T(8,128)` was moved by blocks in 1.31 ms and not by
# loops in 0.97. On 240 cells drawn later (seed 30500, 2026-11-25) the choice takes 1.048 times the best time with it,
# 1.053 with 7.72, and fits to either half of these keep it. `scratch` was 5.95, fitted when rows that several nests
# write had other boxes: of 2,457 cells, 9 change their candidate and take 0.84 of the time (0.46 to 1.37, 2026-11-29).
#
# Fitted on 2026-11-23 and 2026-11-25, on AMD EPYC, 2 processors: AVX-512 and 1 MiB of L2; AVX2 and 512 KiB.
COEFFICIENTS = Counts(
    lines=30.1,
    filled=33.2,
    ends=75.5,
    runs=6.5,
    shuffled=4.96,
    turned=18.5,
    elements=26,
    gathered=3.67,
    blocks=116,
    vectors=5.79,
    pieces=3.51,
    missed=24.1,
    rows=9.91,
    slots=3.82,
    scratch=6.85,
    tasks=340,
)


def cycles(counts: Counts) -> float:
    """Return the total cost of counts, in cycles."""
    return sum([value * each for value, each in zip(counts, COEFFICIENTS, strict=True)])
