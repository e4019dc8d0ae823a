"""Choose the GPU kernels that move loop nests and convert their elements to another type. Numbers only, no CUDA.

A run that is contiguous on both sides is converted up to 16 bytes at once on the wider side. Two or four rows that are
interleaved on one side are interleaved or deinterleaved. Two other loops, each contiguous on one side, go through tiles
in shared memory. All other nests are converted element by element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fastindex.algebra.casts import Cast
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, in_bytes
from fastindex.cuda.launches.launches import VECTOR_BYTES, cut, ordered, tiled
from fastindex.cuda.launches.records import CastUnit, Launch
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


class _Chooser:
    """Chooses launches for nests of one cast; their numbers are in elements."""

    def __init__(self, cast: Cast, alignments: tuple[int, int]) -> None:
        self._code = cast.code
        self._read, self._written = cast.source.nbytes, cast.target.nbytes
        # In elements.
        self._source_unit = alignments[0] // self._read
        self._target_unit = alignments[1] // self._written

    def launches(self, nest: Nest) -> Iterator[Launch]:
        run = nest.loop_of(1, 1)
        column = next((k for k in nest.loops if k.source_stride == 1), None)
        row = next((k for k in nest.loops if k.destination_stride == 1 and k is not column), None)
        if run is not None or column is None or row is None:
            yield self._flat("cast", nest, run, 1, self._together(nest, run))
            return
        for kernel, few, along, stride in (
            ("cast rows", row, column, column.destination_stride),
            ("cast parts", column, row, row.source_stride),
        ):
            together = self._interleaved(nest, few, along, kernel == "cast parts")
            if few.size in (2, 4) and stride == few.size and together:
                others = Nest(tuple(k for k in nest.loops if k is not few), nest.source_start, nest.destination_start)
                step = few.destination_stride * self._written if few is column else few.source_stride * self._read
                yield self._flat(kernel, others, along, few.size, together, step)
                return
        rows, columns = rows_and_columns(nest.loops, row, column, 1)
        if min(math.prod(k.size for k in chosen) for chosen in (rows, columns)) < LEAST_TILE:
            yield self._flat("cast", nest, None, 1, 1)
        else:
            yield self._through_tiles(nest, rows, columns)

    def _together(self, nest: Nest, run: Loop | None) -> int:
        """Return how many elements of a run are converted at once."""
        if run is None:
            return 1
        others = [k for k in nest.loops if k is not run]
        most = VECTOR_BYTES // max(self._read, self._written)
        source = math.gcd(self._source_unit, nest.source_start, *(k.source_stride for k in others))
        target = math.gcd(self._target_unit, nest.destination_start, *(k.destination_stride for k in others))
        return math.gcd(most, run.size, source, target)

    def _interleaved(self, nest: Nest, few: Loop, along: Loop, deinterleave: bool) -> int:
        """Return how many columns of each of a few rows are converted at once, 0 if rows and columns do not fit."""
        rows = few.size
        others = [k for k in nest.loops if k is not along and k is not few]
        sides = [
            (self._read, self._source_unit, nest.source_start, [k.source_stride for k in (*others, few)]),
            (self._written, self._target_unit, nest.destination_start, [k.destination_stride for k in (*others, few)]),
        ]
        if deinterleave:
            sides.reverse()
        (
            (row_bytes, row_unit, row_start, row_strides),
            (interleaved_bytes, interleaved_unit, interleaved_start, interleaved_strides),
        ) = sides
        each = math.gcd(VECTOR_BYTES // row_bytes, row_unit, row_start, along.size, *row_strides)
        both = math.gcd(
            VECTOR_BYTES // interleaved_bytes, interleaved_unit, interleaved_start, *interleaved_strides[:-1]
        )
        return math.gcd(each, both // rows) if both >= rows else 0

    def _flat(self, kernel: str, nest: Nest, run: Loop | None, rows: int, together: int, step: int = 0) -> Launch:
        loops = []
        for k in nest.loops:
            parts = together if k is run else 1
            loops.append(Loop(k.size // parts, k.source_stride * parts, k.destination_stride * parts))
        units = in_bytes(nest._replace(loops=tuple(k for k in loops if k.size > 1)), self._read, self._written)
        return Launch(
            kernel,
            self._written,
            tuple(ordered(units.loops)) or (Loop(1, 0, 0),),
            units.source_start,
            units.destination_start,
            step=step,
            cast=CastUnit(self._code, rows, together),
        )

    def _through_tiles(self, nest: Nest, rows: Sequence[Loop], columns: Sequence[Loop]) -> Launch:
        tile, outer = tiled(nest, rows, columns, TILE)
        moving = [k for k in outer if k.size > 1]
        read_together = math.gcd(
            *(VECTOR_BYTES // self._read, self._source_unit, tile.columns, tile.tile_columns),
            *(nest.source_start, *tile.row_places, *(k.source_stride for k in moving)),
        )
        written_together = math.gcd(
            *(VECTOR_BYTES // self._written, self._target_unit, tile.rows, tile.tile_rows),
            *(nest.destination_start, *tile.column_places, *(k.destination_stride for k in moving)),
        )
        row_places = tuple(place * self._read for place in tile.row_places)
        column_places = tuple(place * self._written for place in tile.column_places)
        return Launch(
            "cast transpose",
            self._written,
            *in_bytes(nest._replace(loops=outer), self._read, self._written),
            tile=replace(tile, row_places=row_places, column_places=column_places),
            cast=CastUnit(self._code, written_together, read_together),
        )
