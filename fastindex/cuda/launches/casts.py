"""Choose the GPU kernels that move loop nests and convert their elements to another type. Numbers only, no CUDA.

A run that is contiguous on both sides is converted up to 16 bytes at once on the wider side. Two or four rows that are
interleaved on one side are interleaved or deinterleaved. Two other loops, each contiguous on one side, go through tiles
in shared memory. All other nests are converted element by element.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fastindex.algebra.casts import Cast
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, in_bytes
from fastindex.cuda.launches.launches import VECTOR_BYTES, tiled
from fastindex.cuda.launches.records import CastUnit, Launch, cut, ordered
from fastindex.moving.passes import rows_and_columns

#: Rows and columns of a tile in shared memory: 16 KiB, or 32 KiB of 8-byte elements.
TILE = (64, 64)

#: Fewer rows or columns than this are converted element by element.
LEAST_TILE = 8


def cast_launches(loops: RelayoutLoops, cast: Cast, alignments: tuple[int, int]) -> tuple[Launch, ...]:
    """Choose the kernels that convert; those that fill padding are not included.

    Parameters
    ----------
    loops : RelayoutLoops
        In elements, each of them a whole number of bytes on both sides.
    cast : Cast
    alignments : pair of int
        Powers of two up to 16 that divide the addresses of the source and of the destination, multiples of their
        elements' bytes.

    Examples
    --------
    >>> from fastindex import Shape
    >>> from fastindex.algebra.casts import cast_of
    >>> from fastindex.algebra.loops import relayout_loops
    >>> a, b = Shape.parse("f32[64,256]"), Shape.parse("bf16[64,256]{1,0:T(8,128)(2,1)}")
    >>> for launch in cast_launches(relayout_loops(a, b), cast_of(a.element_type, b.element_type), (16, 16)):
    ...     print(launch.kernel, launch.units, launch.cast.rows, launch.cast.columns)
    cast rows 2048 2 4
    """
    chooser = _Chooser(cast, alignments)
    return tuple(launch for nest in loops.copies for piece in cut(nest) for launch in chooser.launches(piece))


class _Side(NamedTuple):
    """The source of a cast, number 0, or its destination, number 1: the bytes of an element, and the alignment."""

    number: int
    nbytes: int
    alignment: int

    def at_once(self, nest: Nest, loops: Iterable[Loop]) -> int:
        """Return how many elements move at once, if `loops` lead to others that do."""
        start, strides = (nest.source_start, nest.destination_start)[self.number], (k[1 + self.number] for k in loops)
        return math.gcd(VECTOR_BYTES // self.nbytes, self.alignment // self.nbytes, start, *strides)


class _Chooser:
    """Chooses launches for nests of one cast; their numbers are in elements."""

    def __init__(self, cast: Cast, alignments: tuple[int, int]) -> None:
        self._code = cast.code
        self._bytes = cast.source.nbytes, cast.target.nbytes
        self._sides = _Side(0, self._bytes[0], alignments[0]), _Side(1, self._bytes[1], alignments[1])

    def launches(self, nest: Nest) -> Iterator[Launch]:
        run = nest.loop_of(1, 1)
        column = next((k for k in nest.loops if k.source_stride == 1), None)
        row = next((k for k in nest.loops if k.destination_stride == 1 and k is not column), None)
        if run is not None or column is None or row is None:
            others = [k for k in nest.loops if k is not run]
            together = 1 if run is None else math.gcd(run.size, *(side.at_once(nest, others) for side in self._sides))
            yield self._flat("cast", nest, run, 1, together)
            return
        for number, kernel, few, along in ((0, "cast rows", row, column), (1, "cast parts", column, row)):
            others = [k for k in nest.loops if k is not along and k is not few]
            # The side where the rows are, and the other one, where they are interleaved.
            both = self._sides[1 - number].at_once(nest, others)
            together = math.gcd(self._sides[number].at_once(nest, (*others, few)), along.size, both // few.size)
            if few.size in (2, 4) and along[2 - number] == few.size <= both:
                step = few[1 + number] * self._bytes[number]
                yield self._flat(kernel, nest._replace(loops=(along, *others)), along, few.size, together, step)
                return
        rows, columns = rows_and_columns(nest.loops, row, column, 1)
        if min(math.prod(k.size for k in chosen) for chosen in (rows, columns)) < LEAST_TILE:
            yield self._flat("cast", nest, None, 1, 1)
        else:
            yield self._through_tiles(nest, rows, columns)

    def _flat(self, kernel: str, nest: Nest, run: Loop | None, rows: int, together: int, step: int = 0) -> Launch:
        loops = []
        for k in nest.loops:
            parts = together if k is run else 1
            loops.append(Loop(k.size // parts, k.source_stride * parts, k.destination_stride * parts))
        units = in_bytes(nest._replace(loops=tuple(k for k in loops if k.size > 1)), *self._bytes)
        return Launch(
            kernel,
            self._bytes[1],
            tuple(ordered(units.loops)) or (Loop(1, 0, 0),),
            units.source_start,
            units.destination_start,
            step=step,
            cast=CastUnit(self._code, rows, together),
        )

    def _through_tiles(self, nest: Nest, rows: Sequence[Loop], columns: Sequence[Loop]) -> Launch:
        (read, written), (source, target) = self._bytes, self._sides
        tile, outer = tiled(nest, rows, columns, TILE)
        moving = [k for k in outer if k.size > 1]
        at_once = (
            math.gcd(target.at_once(nest, moving), tile.rows, tile.tile_rows, *tile.column_places),
            math.gcd(source.at_once(nest, moving), tile.columns, tile.tile_columns, *tile.row_places),
        )
        row_places = tuple(place * read for place in tile.row_places)
        column_places = tuple(place * written for place in tile.column_places)
        return Launch(
            "cast transpose",
            written,
            *in_bytes(nest._replace(loops=outer), read, written),
            tile=replace(tile, row_places=row_places, column_places=column_places),
            cast=CastUnit(self._code, *at_once),
        )
