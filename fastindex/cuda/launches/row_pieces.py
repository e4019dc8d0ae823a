"""Launches for nests whose rows are unaligned and whose tiles begin at multiples of 16 bytes.

One, two or four rows, an element of each together making a word, are interleaved in the tiles; one row is a run. If a
row spans several tiles, these are pieces of one launch, a partial last tile included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastindex.algebra.loops import Loop, Nest, exchanged
from fastindex.cuda.launches.records import Launch, cut, ordered

_GRANULE = 16
_WORD = 4

#: Rows of fewer bytes in total are moved by other kernels.
LEAST_BYTES = 64


@dataclass(frozen=True, slots=True)
class _Rows:
    """A nest as rows of the source that are interleaved in the destination, or with `deinterleave` the exchanged nest.

    Attributes
    ----------
    rows, length, step : int
        The number of rows, the bytes of each in a piece, and the stride between rows.
    pieces : Loop or None
        The loop over pieces.
    others : Nest
        The other loops, and the starts.
    """

    deinterleave: bool
    rows: int
    length: int
    step: int
    pieces: Loop | None
    others: Nest

    @property
    def part(self) -> int:
        """Bytes of each row in a granule."""
        return _GRANULE // self.rows

    def is_aligned(self) -> bool:
        """Whether the interleaved side begins at granules, and every piece but the last consists of whole ones."""
        strides = [k.destination_stride for k in self.others.loops]
        if self.pieces is not None:
            strides += [self.pieces.destination_stride, self.length * self.rows]
        return math.gcd(_GRANULE, self.others.destination_start, *strides) == _GRANULE

    def row_places(self) -> list[int]:
        """Return the start and the strides that determine the alignment of rows."""
        return [self.others.source_start, self.step, *(k.source_stride for k in self.others.loops)]

    def is_tail_of(self, whole: _Rows) -> bool:
        """Whether this is the partial last piece of other rows."""
        if whole.pieces is None or self.pieces is not None or self.length >= whole.length:
            return False
        size, row, interleaved = whole.pieces
        starts = whole.others.source_start + size * row, whole.others.destination_start + size * interleaved
        mine, other = ((r.deinterleave, r.rows, r.step, sorted(r.others.loops)) for r in (self, whole))
        return mine == other and self.others[1:] == starts


def in_rows(nests: Sequence[Nest], width: int, alignment: int, most_units: int) -> tuple[list[Launch], list[Nest]]:
    """Choose the launches for nests of unaligned rows and aligned tiles, and return the other nests.

    Parameters
    ----------
    nests : sequence of Nest
        In bytes.
    width : int
        Bytes of an element.
    alignment : int
        A power of two up to 16 that divides both addresses.
    most_units : int
        Of a launch.
    """
    if alignment < _GRANULE:
        return [], list(nests)
    rows = {nest: found for nest in nests for found in _rows_of(nest, width)}
    tails = {nest: other for nest, whole in rows.items() for other, tail in rows.items() if tail.is_tail_of(whole)}
    launches: list[Launch] = []
    moved = set(tails.values())
    for nest, found in rows.items():
        tail = tails.get(nest)
        length = found.length * (found.pieces.size if found.pieces else 1) + (rows[tail].length if tail else 0)
        is_worth_it = found.rows * length >= LEAST_BYTES and (found.pieces is not None or found.rows > 1)
        if nest not in moved and is_worth_it and 2 * length < most_units:
            launches += _launches(found, length, most_units)
            moved.add(nest)
        elif tail is not None:
            moved.discard(tail)
    return launches, [nest for nest in nests if nest not in moved]


def _rows_of(nest: Nest, width: int) -> Iterator[_Rows]:
    """Yield a nest as unaligned rows, or nothing."""
    for deinterleave in (False, True):
        for found in _seen_as(exchanged(nest) if deinterleave else nest, width, deinterleave):
            least = 2 * _WORD if found.rows == 1 else _GRANULE
            if found.is_aligned() and math.gcd(_GRANULE, *found.row_places(), found.length) < least:
                yield found
                return


def _seen_as(nest: Nest, width: int, deinterleave: bool) -> Iterator[_Rows]:
    rows = _WORD // width if width < _WORD else 1
    for count in {1, rows}:
        along = nest.loop_of(width, width if count == 1 else _WORD)
        few = next((k for k in nest.loops if k[0::2] == (count, width) and k is not along), None)
        if along is None or (count > 1 and few is None):
            continue
        others = [k for k in nest.loops if k is not along and (count == 1 or k is not few)]
        length = along.size * width
        pieces = next((k for k in others if k.size > 1 and k.source_stride == length), None)
        if pieces is not None:
            others.remove(pieces)
        step = few.source_stride if few is not None and count > 1 else 0
        yield _Rows(deinterleave, count, length, step, pieces, nest._replace(loops=tuple(others)))


def _launches(found: _Rows, length: int, most: int) -> Iterator[Launch]:
    part = found.part
    # An unaligned row touches one more part; a last part is only read for its neighbour.
    before = part - math.gcd(part, *found.row_places()) if found.deinterleave else 0
    count = -(-(length + before) // part) + 1
    pieces = (found.pieces or Loop(0, 0, 0))._replace(size=found.length // part if found.pieces else count)
    nest, steps, kernel = (
        found.others._replace(loops=(pieces, *found.others.loops)),
        Loop(count, part, 0),
        "interleave rows",
    )
    if found.deinterleave:
        nest, steps, kernel = exchanged(nest), Loop(count, 0, part), "deinterleave rows"
    pieces, *others = nest.loops
    for some in cut(nest._replace(loops=tuple(others)), most // count):
        loops, starts = (steps, *ordered(some.loops)), some[1:]
        yield Launch(kernel, _WORD // found.rows, loops, *starts, step=found.step, length=length, pieces=pieces)
