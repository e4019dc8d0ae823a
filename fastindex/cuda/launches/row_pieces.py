"""Launches for nests whose rows are unaligned and whose tiles begin at multiples of 16 bytes.

One, two or four rows, an element of each together making a word, are interleaved in the tiles; one row is a run. If a
row spans several tiles, these are pieces of one launch, a partial last tile included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fastindex.algebra.loops import Loop, Nest
from fastindex.cuda.launches.records import Launch

_GRANULE = 16
_WORD = 4

#: Rows of fewer bytes in total are moved by other kernels.
LEAST_BYTES = 64


@dataclass(frozen=True, slots=True)
class _Rows:
    """A nest as rows: interleaved in the destination, or with `deinterleave` in the source.

    Attributes
    ----------
    rows, length, step : int
        The number of rows, the bytes of each in a piece, and the stride between rows.
    pieces : Loop or None
        The loop over pieces.
    others : tuple of Loop
    """

    nest: Nest
    deinterleave: bool
    rows: int
    length: int
    step: int
    pieces: Loop | None
    others: tuple[Loop, ...]

    def sides(self, loop: Loop) -> tuple[int, int]:
        """Return the strides on the side of the rows and on the interleaved one."""
        return (
            (loop.destination_stride, loop.source_stride)
            if self.deinterleave
            else (loop.source_stride, loop.destination_stride)
        )

    @property
    def starts(self) -> tuple[int, int]:
        found = self.nest.source_start, self.nest.destination_start
        return (found[1], found[0]) if self.deinterleave else found

    @property
    def part(self) -> int:
        """Bytes of each row in a granule."""
        return _GRANULE // self.rows

    def is_aligned(self) -> bool:
        """Whether the interleaved side begins at granules, and every piece but the last consists of whole ones."""
        strides = [self.sides(k)[1] for k in self.others]
        if self.pieces is not None:
            strides += [self.sides(self.pieces)[1], self.length * self.rows]
        return math.gcd(_GRANULE, self.starts[1], *strides) == _GRANULE

    def row_places(self) -> list[int]:
        """Return the start and the strides that determine the alignment of rows."""
        return [self.starts[0], self.step, *(self.sides(k)[0] for k in self.others)]

    def is_tail_of(self, whole: _Rows) -> bool:
        """Whether this is the partial last piece of other rows."""
        if whole.pieces is None or self.pieces is not None or self.length >= whole.length:
            return False
        row, interleaved = whole.sides(whole.pieces)
        size = whole.pieces.size
        starts = whole.starts[0] + size * row, whole.starts[1] + size * interleaved
        mine, other = ((r.deinterleave, r.rows, r.step, sorted(map(repr, r.others))) for r in (self, whole))
        return mine == other and self.starts == starts


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
    tails = {whole.nest: tail for whole in rows.values() for tail in rows.values() if tail.is_tail_of(whole)}
    launches: list[Launch] = []
    moved = {tail.nest for tail in tails.values()}
    for nest, found in rows.items():
        tail = tails.get(nest)
        length = found.length * (found.pieces.size if found.pieces else 1) + (tail.length if tail else 0)
        is_worth_it = found.rows * length >= LEAST_BYTES and (found.pieces is not None or found.rows > 1)
        if nest not in moved and is_worth_it and 2 * length < most_units:
            launches += _cut(_launch(found, length), most_units)
            moved.add(nest)
        elif tail is not None:
            moved.discard(tail.nest)
    return launches, [nest for nest in nests if nest not in moved]


def _rows_of(nest: Nest, width: int) -> Iterator[_Rows]:
    """Yield a nest as unaligned rows, or nothing."""
    for deinterleave in (False, True):
        for found in _seen_as(nest, width, deinterleave):
            places = [*found.row_places(), found.length]
            if found.is_aligned() and math.gcd(_GRANULE, *places) < min(
                _GRANULE, 2 * _WORD if found.rows == 1 else _GRANULE
            ):
                yield found
                return


def _seen_as(nest: Nest, width: int, deinterleave: bool) -> Iterator[_Rows]:
    def sides(k: Loop) -> tuple[int, int]:
        return (k.destination_stride, k.source_stride) if deinterleave else (k.source_stride, k.destination_stride)

    rows = _WORD // width if width < _WORD else 1
    for count in {1, rows}:
        unit = width if count == 1 else _WORD
        along = next((k for k in nest.loops if sides(k) == (width, unit)), None)
        few = next((k for k in nest.loops if sides(k)[1] == width and k.size == count and k is not along), None)
        if along is None or (count > 1 and few is None):
            continue
        others = [k for k in nest.loops if k is not along and (count == 1 or k is not few)]
        length = along.size * width
        pieces = next((k for k in others if k.size > 1 and sides(k)[0] == length), None)
        if pieces is not None:
            others.remove(pieces)
        step = sides(few)[0] if few is not None and count > 1 else 0
        yield _Rows(nest, deinterleave, count, length, step, pieces, tuple(others))


def _launch(found: _Rows, length: int) -> Launch:
    part = found.part
    # An unaligned row touches one more part; a last part is only read for its neighbour.
    before = part - math.gcd(part, *found.row_places()) if found.deinterleave else 0
    count = -(-(length + before) // part) + 1
    pieces = (found.pieces or Loop(0, 0, 0))._replace(size=found.length // part if found.pieces else count)
    steps = Loop(count, 0, part) if found.deinterleave else Loop(count, part, 0)
    others = sorted(found.others, key=lambda k: (abs(k.destination_stride), abs(k.source_stride)))
    starts = found.nest.source_start, found.nest.destination_start
    kernel = "deinterleave rows" if found.deinterleave else "interleave rows"
    return Launch(kernel, _WORD // found.rows, (steps, *others), *starts, step=found.step, length=length, pieces=pieces)


def _cut(launch: Launch, most: int) -> Iterator[Launch]:
    """Split a launch of more than `most` units into several, along one of its loops except the first."""
    if launch.units <= most or len(launch.loops) == 1:
        yield launch
        return
    loop = max(launch.loops[1:], key=lambda k: k.size)
    half = loop.size // 2
    for begin, size in ((0, half), (half, loop.size - half)):
        yield from _cut(
            replace(
                launch,
                loops=tuple(k._replace(size=size) if k is loop else k for k in launch.loops),
                source_start=launch.source_start + begin * loop.source_stride,
                destination_start=launch.destination_start + begin * loop.destination_stride,
            ),
            most,
        )
