"""Choose the GPU kernels that move loop nests, their units and tiles. Numbers only, no CUDA.

A run that is contiguous on both sides is copied, up to 16 bytes at once. A few rows that are interleaved on one side
are interleaved or deinterleaved. Two other loops, each contiguous on one side, are transposed in tiles. All other nests
are copied element by element. All strides here are in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, grouped, in_bytes
from fastindex.cuda.launches.records import MOST_UNITS, Launch, Tile, cut, ordered, stage_skew
from fastindex.cuda.launches.row_pieces import in_rows
from fastindex.moving.passes import blocks, rows_and_columns

#: With more launches than this, one gather over all slots is faster.
MOST_LAUNCHES = 32

#: The granularity of GPU memory transactions.
SECTOR_BYTES = 32

#: The most that one instruction moves.
VECTOR_BYTES = 16

#: The unit that moves if elements are smaller and there is no common 16-byte alignment.
WORD_BYTES = 4

#: The largest unit, and the shortest run, in bytes, for which a run is shifted instead.
SHIFTED_BYTES = 4
LEAST_SHIFTED_RUN = 64

#: Packed runs of fewer elements are unpacked before they move.
LEAST_PACKED_RUN = 16

#: Rows of fewer bytes are interleaved, not transposed.
FEW_BYTES = 64

#: Contiguous pieces of fewer bytes are copied element by element.
LEAST_TILE_BYTES = 32

#: Shared memory of a tile that interleaves, in bytes.
STAGE_BYTES = 16 << 10

#: Rows and columns of tiles by width: for many of both, for at most `FEW_BYTES` of rows, and for as few of columns.
#: Those that move 16 bytes at a time take 16 KiB.
VECTOR_TILES = {
    1: ((128, 128), (64, 256), (256, 64)),
    2: ((64, 128), (32, 256), (256, 32)),
    4: ((64, 64), (16, 256), (256, 16)),
    8: ((32, 64), (8, 256), (256, 8)),
    16: ((32, 32), (4, 256), (256, 4)),
}

#: The same for tiles that move element by element, or if elements are smaller than a word, in words at any alignment:
#: rows, and stretches of columns, of 31 words.
ELEMENT_TILES = {
    1: ((124, 124),),
    2: ((62, 124),),
    4: ((64, 64), (16, 256), (256, 16)),
    8: ((32, 32), (8, 128), (128, 8)),
}


def launches(
    loops: RelayoutLoops, width: int, alignment: int = VECTOR_BYTES, widens: bool = True
) -> tuple[Launch, ...]:
    """Choose the kernels that fill and copy, in this order: a fill may write elements that a copy then overwrites.

    Parameters
    ----------
    loops : RelayoutLoops
        Its copies write all elements of the destination, its fills all padding.
    width : int
        Bytes of an element: 1, 2, 4, 8 or 16.
    alignment : int
        A power of two up to 16 that divides both addresses.
    widens : bool
        Whether fills may write other elements too, since copies of all elements follow.

    Examples
    --------
    >>> from fastindex import Shape
    >>> from fastindex.algebra.loops import relayout_loops
    >>> a, b = Shape.parse("bf16[64,256]"), Shape.parse("bf16[64,256]{1,0:T(8,128)(2,1)}")
    >>> for launch in launches(relayout_loops(a, b), 2):
    ...     print(launch.kernel, launch.units)
    interleave 2048
    """
    found, nests = in_rows([in_bytes(nest, width) for nest in loops.copies], width, alignment, MOST_UNITS)
    found += [launch for nest in nests for launch in _copying(nest, width, alignment)]
    fills = [launch for nest in loops.fills for launch in _filling(in_bytes(nest, width), width, alignment, widens)]
    return (*fills, *found)


def converting_launches(loops: RelayoutLoops, bits: int, expand: bool, alignment: int) -> tuple[Launch, ...] | None:
    """Choose the kernels that copy and fill where one side is packed below a byte and the other has bytes.

    Parameters
    ----------
    loops : RelayoutLoops
        In elements.
    bits : int
        Of a packed element: 1, 2 or 4.
    expand : bool
        Whether the source is packed, and not the destination.
    alignment : int
        As for `launches`.

    Returns
    -------
    tuple of Launch, or None
        None if elements are better unpacked before they move, or packed after.

    Examples
    --------
    >>> from fastindex import Shape
    >>> from fastindex.algebra.loops import relayout_loops
    >>> a, b = Shape.parse("s4[64,256]{1,0:E(4)}"), Shape.parse("s4[64,256]{1,0:T(8,128)}")
    >>> for launch in converting_launches(relayout_loops(a, b), 4, True, 16):
    ...     print(launch.kernel, launch.units)
    expand 1024
    """
    found: list[Launch] = []
    fills: RelayoutLoops | None = RelayoutLoops((), loops.fills)
    if expand:
        # The remainders of tiles may be short.
        short = sum(n.element_count for n in loops.copies if len(n.loops) > 1 and _packed_run(n) < LEAST_PACKED_RUN)
        if 4 * short > sum(nest.element_count for nest in loops.copies):
            return None
        for nest in loops.copies:
            packing = _packing(nest, bits, True) if _is_whole(nest, alignment) else _shifting(nest, alignment, bits)
            found += packing
    else:
        fills = grouped(RelayoutLoops((), loops.fills), 8 // bits)
        for nest in loops.copies:
            if nest == Nest((Loop(nest.element_count, 1, 1),)) and not _is_whole(nest, alignment):
                found.append(Launch("pack bits", bits, nest.loops, 0, 0))
            elif not _is_whole(nest, alignment):
                return None
            else:
                found += _packing(nest, bits, False)
    return None if fills is None else (*launches(fills, 1, alignment), *found)


def _is_whole(nest: Nest, alignment: int) -> bool:
    """Whether runs of bytes or packed elements begin and end at multiples of 16 on both sides."""
    run = nest.loop_of(1, 1)
    return run is not None and math.gcd(alignment, run.size, *_numbers(nest, run)) == VECTOR_BYTES


def _packed_run(nest: Nest) -> int:
    run = nest.loop_of(1, 1)
    return 1 if run is None else run.size


def _numbers(nest: Nest, besides: Loop | None = None) -> list[int]:
    """Return the numbers that must be multiples of a unit: starts, and the strides of the other loops."""
    others = [loop for loop in nest.loops if loop is not besides]
    strides = (stride for loop in others for stride in (loop.source_stride, loop.destination_stride))
    return [nest.source_start, nest.destination_start, *strides]


def _largest_unit(run_bytes: int, numbers: Iterable[int], alignment: int) -> int:
    """Return the largest power of two up to `alignment` that divides all of them."""
    return math.gcd(run_bytes, alignment, *numbers)


def _flat(kernel: str, width: int, nest: Nest, step: int = 0) -> Iterator[Launch]:
    for piece in cut(nest):
        loops = tuple(ordered(piece.loops)) or (Loop(1, 0, 0),)
        yield Launch(kernel, width, loops, piece.source_start, piece.destination_start, step)


def _in_larger_units(nest: Nest, width: int, run: Loop, unit: int) -> Nest:
    loops = (Loop(run.size * width // unit, unit, unit), *(k for k in nest.loops if k is not run))
    return nest._replace(loops=tuple(k for k in loops if k.size > 1))


def _in_smaller_units(nest: Nest, width: int, unit: int) -> Nest:
    return coalesced(nest._replace(loops=(Loop(width // unit, unit, unit), *nest.loops)))


def _shifting(nest: Nest, alignment: int, bits: int) -> Iterator[Launch]:
    """Choose launches for runs of bytes, or of packed elements, with any alignment on either side."""
    for piece in cut(nest, 4 * MOST_UNITS):
        run = piece.loop_of(1, 1) or Loop(1, 1, 1)
        others = ordered(k for k in piece.loops if k is not run)
        aligned = math.gcd(alignment, piece.destination_start, *(k.destination_stride for k in others))
        granules = -(-(run.size + VECTOR_BYTES - aligned) // VECTOR_BYTES)
        places = [piece.source_start, *(k.source_stride for k in others)]
        if aligned < VECTOR_BYTES or math.gcd(VECTOR_BYTES, *places) < VECTOR_BYTES:
            # One more that only reads, for the bytes that the last one lacks.
            granules += 1
        loops = [Loop(granules, VECTOR_BYTES, VECTOR_BYTES), *others]
        in_bits = tuple(Loop(k.size, bits * k.source_stride, k.destination_stride) for k in loops)
        starts = bits * piece.source_start, piece.destination_start
        yield Launch("shift", bits, in_bits, *starts, length=run.size)


def _packing(nest: Nest, bits: int, expand: bool) -> Iterator[Launch]:
    """Choose launches that pack or unpack runs whose sizes and offsets are all multiples of 16."""

    def packed(places: tuple[int, int]) -> tuple[int, int]:
        source, destination = places
        return (source * bits // 8, destination) if expand else (source, destination * bits // 8)

    run = nest.loop_of(1, 1)
    units = (Loop(k.size // VECTOR_BYTES, VECTOR_BYTES, VECTOR_BYTES) if k is run else k for k in nest.loops)
    loops = tuple(Loop(k.size, *packed((k.source_stride, k.destination_stride))) for k in units if k.size > 1)
    whole = Nest(loops, *packed((nest.source_start, nest.destination_start)))
    yield from _flat("expand" if expand else "compress", bits, whole)


def _copying(nest: Nest, width: int, alignment: int) -> Iterator[Launch]:
    if alignment < width:
        nest, width = _in_smaller_units(nest, width, alignment), alignment
    run = nest.loop_of(width, width)
    if run is not None:
        unit = _largest_unit(run.size * width, _numbers(nest, run), alignment)
        if unit <= SHIFTED_BYTES and run.size * width >= LEAST_SHIFTED_RUN:
            yield from _shifting(_in_larger_units(nest, width, run, 1), alignment, 8)
            return
        nest, width = _in_larger_units(nest, width, run, unit), unit
    column = nest.loop_of(width)
    row = next((k for k in nest.loops if k.destination_stride == width and k is not column), None)
    if nest.loop_of(width, width) is not None or column is None or row is None:
        yield from _flat("copy", width, nest)
    else:
        yield from _turning(nest, row, column, width, alignment)


def _turning(nest: Nest, row: Loop, column: Loop, width: int, alignment: int) -> Iterator[Launch]:
    """Choose launches for a nest whose `row` is contiguous in the destination, and whose `column` in the source."""
    rows, columns = rows_and_columns(nest.loops, row, column, width)
    row_bytes, column_bytes = (width * math.prod(k.size for k in chosen) for chosen in (rows, columns))
    if row_bytes < FEW_BYTES and width < VECTOR_BYTES and column.destination_stride == row_bytes:
        yield from _interleaving(nest, rows, column, width, alignment, deinterleave=False)
    elif column_bytes < FEW_BYTES and width < VECTOR_BYTES and row.source_stride == column_bytes:
        yield from _interleaving(nest, columns, row, width, alignment, deinterleave=True)
    elif min(row_bytes, column_bytes) >= LEAST_TILE_BYTES:
        for piece in cut(nest):
            yield _transposing(piece, width, alignment)
    else:
        yield from _flat("copy", width, nest)


def _interleaving(
    nest: Nest, few: Sequence[Loop], along: Loop, width: int, alignment: int, deinterleave: bool
) -> Iterator[Launch]:
    """Choose launches for a few rows interleaved on one side: in registers if they make words, else staged."""
    count = math.prod(k.size for k in few)
    others = [k for k in nest.loops if k is not along and k not in few]
    stride = [k.destination_stride if deinterleave else k.source_stride for k in few]
    common = _common_alignment(
        Nest((*others, *few), nest.source_start, nest.destination_start), few, deinterleave, alignment
    )
    vectors = common == VECTOR_BYTES and along.size * width % VECTOR_BYTES == 0
    words = width < WORD_BYTES and common % WORD_BYTES == 0 and along.size * width % WORD_BYTES == 0
    if vectors and len(few) == 1 and count * width == WORD_BYTES:
        # A unit is 16 bytes of the interleaved row: 4 columns.
        moved = VECTOR_BYTES // count, VECTOR_BYTES
        steps = Loop(along.size * width // moved[0], *(reversed(moved) if deinterleave else moved))
        loops = (steps, *others) if steps.size > 1 else tuple(others)
        whole = Nest(loops, nest.source_start, nest.destination_start)
        yield from _flat("deinterleave" if deinterleave else "interleave", width, whole, stride[0])
        return
    for piece in cut(nest):
        yield _staging(piece, few, along, width, words, deinterleave)


def _common_alignment(nest: Nest, few: Sequence[Loop], deinterleave: bool, alignment: int) -> int:
    """Return the alignment of all offsets but those of the rows on the interleaved side; at most `alignment`."""
    numbers = [nest.source_start, nest.destination_start]
    for loop in nest.loops:
        if loop in few:
            numbers.append(loop.destination_stride if deinterleave else loop.source_stride)
        else:
            numbers += [loop.source_stride, loop.destination_stride]
    return math.gcd(alignment, *numbers)


def _staging(nest: Nest, few: Sequence[Loop], along: Loop, width: int, words: bool, deinterleave: bool) -> Launch:
    # A cut may have left fewer steps.
    along, *few = (next(k for k in nest.loops if k[1:] == one[1:]) for one in (along, *few))
    rows = blocks(few, 1 << 30)
    count = rows.places
    # Tiles begin at multiples of a sector of the rows.
    unit = SECTOR_BYTES // width
    tile_columns = min(STAGE_BYTES // (count * width) // unit * unit, along.size)
    count_along = -(-along.size // tile_columns)
    tiles = Loop(count_along, tile_columns * along.source_stride, tile_columns * along.destination_stride)
    others = ordered(k for k in nest.loops if k is not along and k not in few)
    row_places = tuple((rows.targets() if deinterleave else rows.sources()).tolist())
    skew = stage_skew(count, width, WORD_BYTES if words else width)
    tile = Tile(count, along.size, count, tile_columns, (count, tile_columns), row_places, skew=skew)
    kernel = "unstage" if deinterleave else "stage"
    loops = (tiles, Loop(1, 0, 0), *others)
    starts = nest.source_start, nest.destination_start
    return Launch(kernel, width, loops, *starts, words=words, tile=tile)


def tiled(
    nest: Nest, rows: Sequence[Loop], columns: Sequence[Loop], capacity: tuple[int, int]
) -> tuple[Tile, tuple[Loop, ...]]:
    """Return the tiles that transpose rows and columns of a nest, and the loops over them, in units of the nest."""
    others = [k for k in nest.loops if k not in (*rows, *columns)]
    row_block, column_block = blocks(rows, capacity[0]), blocks(columns, capacity[1])
    sizes = row_block.count, column_block.count, row_block.places, column_block.places
    over = [Loop(one.number, one.source_stride, one.destination_stride) for one in (column_block, row_block)]
    outer = (*over, *ordered((*others, *row_block.outer, *column_block.outer)))
    return Tile(*sizes, capacity, tuple(row_block.sources().tolist()), tuple(column_block.targets().tolist())), outer


def _transposing(nest: Nest, width: int, alignment: int) -> Launch:
    column = next(k for k in nest.loops if k.source_stride == width)
    row = next(k for k in nest.loops if k.destination_stride == width and k is not column)
    rows, columns = rows_and_columns(nest.loops, row, column, width)
    row_bytes, column_bytes = (width * math.prod(k.size for k in chosen) for chosen in (rows, columns))
    short, narrow = row_bytes <= FEW_BYTES, column_bytes <= FEW_BYTES
    which = 0 if short == narrow else 1 if short else 2
    for vectors, tiles in ((True, VECTOR_TILES), (False, ELEMENT_TILES)):
        tile, outer = tiled(nest, rows, columns, tiles[width][min(which, len(tiles[width]) - 1)])
        if not vectors or _in_vectors(nest, tile, outer, width, alignment):
            break
    kernel = "transpose" if vectors else "transpose words" if width < WORD_BYTES else "transpose elements"
    starts = nest.source_start, nest.destination_start
    return Launch(kernel, width, outer, *starts, tile=tile)


def _in_vectors(nest: Nest, tile: Tile, outer: Sequence[Loop], width: int, alignment: int) -> bool:
    sizes = (tile.rows, tile.columns, tile.tile_rows, tile.tile_columns)
    places = [*tile.row_places, *tile.column_places, nest.source_start, nest.destination_start]
    places += [stride for k in outer if k.size > 1 for stride in (k.source_stride, k.destination_stride)]
    return math.gcd(alignment, *places, *(size * width for size in sizes)) == VECTOR_BYTES


def _widened(nest: Nest, width: int) -> Nest:
    """Extend runs of padding to begin earlier, if they then leave no gaps and at least half of them is padding.

    Whole rows of a tile are written 16 bytes at once; their padding alone would be written element by element.
    """
    run = nest.loop_of(None, width) or Loop(1, 0, width)
    above = min((k.destination_stride for k in nest.loops if k is not run), default=0)
    before = above - run.size * width
    if not 0 < before <= run.size * width or above % VECTOR_BYTES or nest.destination_start < before:
        return nest
    loops = (Loop(above // width, 0, width), *(k for k in nest.loops if k is not run))
    return coalesced(Nest(loops, 0, nest.destination_start - before))


def _filling(nest: Nest, width: int, alignment: int, widens: bool) -> Iterator[Launch]:
    # A fill reads no source, so only the destination's offsets count.
    nest = Nest(tuple(k._replace(source_stride=0) for k in nest.loops), 0, nest.destination_start)
    if alignment < width:
        for step in range(0, width, alignment):
            piece = nest._replace(destination_start=nest.destination_start + step)
            yield from _flat("fill", alignment, piece, step=step)
        return
    nest = _widened(nest, width) if widens else nest
    run, unit = nest.loop_of(None, width), width
    if run is not None:
        unit = _largest_unit(run.size * width, _numbers(nest, run), alignment)
        others = tuple(k for k in nest.loops if k is not run)
        units = Loop(run.size * width // unit, 0, unit)
        nest = nest._replace(loops=(units, *others) if units.size > 1 else others)
    yield from _flat("fill", unit, nest)
