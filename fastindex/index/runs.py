"""The contiguous pieces of a window: as few strided records, and one by one.

Where the slot of an element is a sum of digits of its coordinates, they are read off the digits
(`fastindex.algebra.run_tree`); elsewhere slots are looked up and sorted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.run_tree import run_tree
from fastindex.algebra.strided_runs import Numbers, StridedRun, expanded, joined_pieces, joined_records, joined_runs
from fastindex.core.shape import Shape
from fastindex.index.programs import linear_program, multi_program

#: How many elements to take at a time where they are looked at one by one.
_AT_ONCE = 1 << 20


def strided_runs_of(shape: Shape, window: Sequence[range]) -> tuple[StridedRun, ...]:
    """Return the maximal contiguous pieces of a window as few records, by where they start.

    Parameters
    ----------
    shape : Shape
    window : sequence of range
        The coordinates along each dimension, all within it; their order does not matter.

    Raises
    ------
    UnsupportedError, LayoutError
        As `linear_program`.

    Examples
    --------
    >>> strided_runs_of(Shape.parse("f32[32,256]{1,0:T(8,128)}"), (range(4, 6), range(256)))
    (StridedRun(start=512, length=256, counts=(2,), strides=(1024,)),)
    """
    linear_program(shape)
    if any(len(along) == 0 for along in window):
        return ()
    ascending = [_ascending(along) for along in window]
    tree = run_tree(shape, ascending)
    if tree is None:
        return joined_runs(*_looked_up(shape, ascending))
    return joined_records(tree.runs())


def _ascending(along: range) -> range:
    """Return the same numbers in ascending order; the step of a single one is 1."""
    if len(along) == 1:
        return range(along[0], along[0] + 1)
    return along if along.step > 0 else along[::-1]


def runs_of(shape: Shape, window: Sequence[range]) -> tuple[Numbers, Numbers]:
    """Return where the maximal contiguous pieces of a window start, and their lengths, in the order of memory.

    Parameters and errors as for `strided_runs_of`.

    Examples
    --------
    >>> start, length = runs_of(Shape.parse("f32[3,5]{1,0:T(2,2)}"), (range(3), range(2, 5)))
    >>> start.tolist(), length.tolist()
    ([4, 10, 16, 20], [5, 1, 2, 1])
    """
    return expanded(strided_runs_of(shape, window))


def bridged(shape: Shape, start: Numbers, length: Numbers) -> tuple[Numbers, Numbers]:
    """Join the pieces of a window between which there is nothing but padding.

    Examples
    --------
    >>> start, length = bridged(Shape.parse("f32[2,3]{1,0:T(2,4)}"), *(np.array(n) for n in ([0, 4], [3, 3])))
    >>> start.tolist(), length.tolist()
    ([0], [7])
    """
    if len(start) < 2:
        return start, length
    program = multi_program(shape)

    def is_padding(slots: Numbers) -> NDArray[np.bool_]:
        padding: NDArray[np.bool_] = np.broadcast_to(np.logical_not(program.evaluate((slots,))[1]), slots.shape)
        return padding

    begin, end = start[:-1] + length[:-1], start[1:]
    padding = is_padding(begin) & is_padding(end - 1)
    for gap in np.flatnonzero(padding):
        low, high = int(begin[gap]), int(end[gap])
        parts = (np.arange(at, min(at + _AT_ONCE, high)) for at in range(low, high, _AT_ONCE))
        padding[gap] = all(bool(is_padding(part).all()) for part in parts)
    first = np.concatenate([[True], ~padding])
    last = np.concatenate([~padding, [True]])
    return start[first], (start + length)[last] - start[first]


# Layouts that are no sums of digits, element by element


def _looked_up(shape: Shape, window: Sequence[range]) -> tuple[Numbers, Numbers]:
    program = linear_program(shape)
    parts = []
    for box in _boxes(window):
        axes = [np.arange(r.start, r.stop, r.step) for r in box]
        (slots,), _ = program.evaluate(np.ix_(*axes) if axes else ())
        flat = np.sort(np.broadcast_to(slots, [len(r) for r in box]).reshape(-1))
        parts.append(joined_pieces(flat, np.ones(len(flat), np.int64)))
    start = np.concatenate([part[0] for part in parts])
    length = np.concatenate([part[1] for part in parts])
    order = np.argsort(start)
    return joined_pieces(start[order], length[order])


def _boxes(window: Sequence[range]) -> Iterator[list[range]]:
    """Cut a window into boxes that are not too large."""
    below = math.prod(len(along) for along in window)
    for axis, along in enumerate(window):
        below //= len(along)
        if below <= _AT_ONCE:
            step = max(_AT_ONCE // below, 1)
            parts = [along[at : at + step] for at in range(0, len(along), step)]
            for outer in itertools.product(*window[:axis]):
                for part in parts:
                    yield [*(range(at, at + 1) for at in outer), part, *window[axis + 1 :]]
            return
    yield list(window)
