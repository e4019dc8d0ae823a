"""Lower bounds of the cost of a block permute, from the digits of the two sides, before blocks are chosen."""

from __future__ import annotations

import math
from functools import lru_cache

from fastindex.lowering.relayout.passes.calibration import cycles
from fastindex.lowering.relayout.passes.counts import Counts
from fastindex.lowering.relayout.problem.loops import stride_at
from fastindex.lowering.relayout.problem.problem import Problem
from fastindex.lowering.relayout.problem.shared_digits import Strides, shared_digits
from fastindex.tables.assemblies import NIBBLE_BITS
from fastindex.tables.cache_lines import LINE_BYTES
from fastindex.tiling.digits import Digits


@lru_cache(maxsize=4)
def least_cycles(problem: Problem) -> float:
    """Return the cycles that any block permute costs at least, 0 where elements may be read more than once."""
    source, slot_bits = problem.source, problem.slot_bits
    if isinstance(source, Strides) or not problem.may_permute:
        return 0
    in_piece, in_line = 0.0, 0.0
    for _, left, right in shared_digits(source, problem.destination):
        cluster = cluster_bytes(left, slot_bits)
        in_line = max(in_line, min(cluster, LINE_BYTES))
        in_piece = max(in_piece, min(cluster, adjacent_bytes(left, right, slot_bits, problem.vector_bytes)))
    if not in_line:
        return 0
    element_bytes = source.element_count * min(slot_bits) // 8
    lines, read = element_bytes / LINE_BYTES, element_bytes / in_line
    pieces = element_bytes / in_piece * (2 if NIBBLE_BITS in slot_bits else 1)
    straight = Counts(lines=lines, vectors=element_bytes / problem.vector_bytes, pieces=pieces)
    filled = Counts(filled=(problem.written_bytes - element_bytes) / LINE_BYTES)
    by_columns = Counts(lines=lines, slots=read, rows=read)
    return cycles(filled) + min(cycles(straight), cycles(by_columns))


def least_of_block_columns(block_bytes: int, element_bytes: int) -> Counts:
    """Return the least counts of a block whose columns are gathered first, none of them read twice.

    `element_bytes` are the bytes of the source that it needs.
    """
    lines = element_bytes / LINE_BYTES
    return Counts(lines=lines, filled=(block_bytes - element_bytes) / LINE_BYTES, runs=1, rows=lines, slots=lines)


def cluster_bytes(left: Digits, slot_bits: tuple[int, int]) -> float:
    """Return the bytes of a group of elements that lie together in the source, groups being a line or more apart.

    So no line, and no piece of the source, has more bytes of elements than that.

    Examples
    --------
    >>> from fastindex.tiling.digits import digit, Variable
    >>> rows, columns = Variable(0, 100, True), Variable(1, 6, True)
    >>> cluster_bytes(digit(128, rows, 1, None) + digit(1, columns, 1, None), (32, 32))
    24.0
    """
    elements, end = 1, 1
    for d in sorted(left, key=lambda d: d.weight):
        if d.weight < end:
            return math.inf
        if d.weight * slot_bits[0] < 8 * LINE_BYTES:
            elements *= d.largest + 1
        end = d.weight * (d.largest + 1)
    return elements * min(slot_bits) / 8


def adjacent_bytes(left: Digits, right: Digits, slot_bits: tuple[int, int], vector_bytes: int) -> float:
    """Return the most bytes that a piece holds of elements that are adjacent in the destination.

    Where these lie a vector or more apart in the source, each of them needs its own piece. Runs of such elements are
    then so long that a vector of the destination has parts of two runs at most, so half of its elements count.

    Parameters
    ----------
    left, right : Digits
        The slots of source and destination as sums of their digits.
    slot_bits : (int, int)
    vector_bytes : int

    Examples
    --------
    >>> from fastindex.tiling.digits import digit, Variable
    >>> rows, columns = Variable(0, 100, True), Variable(1, 100, True)
    >>> left = digit(100, rows, 1, None) + digit(1, columns, 1, None)
    >>> adjacent_bytes(left, left, (32, 32), 64)
    64
    >>> adjacent_bytes(left, digit(1, rows, 1, None) + digit(100, columns, 1, None), (32, 32), 64) < 5
    True
    """
    first = min(right, key=lambda d: d.weight, default=None)
    slots, rest = divmod(8 * vector_bytes, slot_bits[1])
    if first is None or first.weight != 1 or rest:
        return vector_bytes
    own = [d for d in left if d.variable == first.variable]
    cuts = [cut for d in own for cut in (d.low, d.high or d.variable.extent)]
    if any(cut % first.low if cut > first.low else first.low % cut for cut in cuts):
        return vector_bytes
    values = first.largest + 1
    run = min([values, *(cut // first.low for cut in cuts if cut > first.low)])
    if values % run or run < slots or stride_at(first.low, own) * slot_bits[0] < 8 * vector_bytes:
        return vector_bytes
    extent = first.variable.extent
    average = extent / -(-extent // run) if first.low == 1 else slots
    return min(vector_bytes, min(slot_bits) / 8 / max(1 - slots / (2 * average), 0.5))
