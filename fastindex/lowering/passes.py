"""From loops to passes: which kernel moves a nest, in which order, in which blocks, and why.

What decides is which side is contiguous along which loop. A run both sides keep is copied. Otherwise one loop, the
columns, is contiguous in the source, and another, the rows, in the destination. Few rows next to each other in the
destination are interleaved into one stream; few columns next to each other in the source are dealt out; everything
else is transposed in squares. All strides here are in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.relayout_loops import Loop, Nest, RelayoutLoops, coalesced, grouped, in_bytes, rows_and_columns

#: A destination of at least this many bytes is written past the cache.
STREAMED_BYTES = 8 << 20

#: In place of `WAYS` in the geometry of a copy: its chunks follow each other in the source.
APART = -1

#: Rows that are interleaved, and columns that are dealt out, by vectors.
POWERS_OF_TWO = (2, 4, 8, 16, 32)

_LINE_BYTES = 64
_RUN_BYTES = 64 << 10
_STREAM_PIECE_BYTES = 1 << 20
_CHUNKS = 1024
# A task of a transpose reads few rows at a time, far along them. Where lines of columns do not begin together, rows
# are read a second time for the next lines, and had better still be in the cache.
_ROW_BYTES = 4096
_LEAST_ROW_BYTES = 512
_COLUMN_BYTES = 8192
_ALIGNED_COLUMN_BYTES = 32768
_TASKS = 16
_BLOCK_BYTES = 1024
_APART_BYTES = 256
_LEAST_APART_BYTES = 128

# Runs below so many bytes are gathered where they follow each other in the destination, some at a time.
_GATHERED_BYTES = 512
_LEAST_ROWS = 4

# A transpose of few columns reads one sequential stream, if rows lie near each other and are long enough.
_NARROW_COLUMNS = 120
_NARROW_BYTES = 512

# Columns of up to this many bytes that follow each other in the destination are written as one stream.
_COLUMN_STREAM_BYTES = 512


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One kernel, run over ``tasks`` independent tasks.

    Attributes
    ----------
    kernel : {"copy", "interleave", "deal", "transpose", "narrow transpose", "strided", "fill", "expand", "compress"}
    width : int
        Bytes that move as one: an element, or a run of elements both sides keep.
    ways : int
        Rows that are interleaved, columns that are dealt out, packed elements of a byte; 1 for other kernels.
    outer : int64 array of (loops, 3)
        Loops around the blocks, innermost first: size, source and destination stride in bytes.
    tables : tuple of int64 arrays
        Byte offsets within a block; see the kernel.
    geometry : int64 array
        Numbers of the kernel; see there.
    tasks : int
    task_bytes : int
        How much a task writes.
    source_start, destination_start : int
        Bytes.
    why : str
    """

    kernel: str
    width: int
    ways: int
    outer: NDArray[np.int64]
    tables: tuple[NDArray[np.int64], ...]
    geometry: NDArray[np.int64]
    tasks: int
    task_bytes: int
    source_start: int
    destination_start: int
    why: str

    def describe(self) -> str:
        """Give the pass in one line."""
        name = self.kernel if self.ways == 1 else f"{self.kernel} {self.ways} ways"
        size = self.tasks * self.task_bytes
        return f"{name}, {self.width}-byte units, {self.tasks} tasks, about {size} bytes: {self.why}"


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Loops taken together, innermost first: offsets within a block, and how blocks follow each other."""

    offsets: NDArray[np.int64]
    count: int
    source_step: int
    destination_step: int
    outer: tuple[Loop, ...]

    @property
    def number(self) -> int:
        return -(-self.count // len(self.offsets))


def passes(loops: RelayoutLoops, width: int) -> tuple[Pass, ...]:
    """Choose the kernels that copy and fill, for elements of `width` bytes.

    Examples
    --------
    >>> from fastindex import Shape
    >>> from fastindex.lowering.relayout_loops import relayout_loops
    >>> a, b = Shape.parse("bf16[64,256]"), Shape.parse("bf16[64,256]{1,0:T(8,128)(2,1)}")
    >>> for step in passes(relayout_loops(a, b), 2):
    ...     print(step.describe())
    interleave 2 ways, 2-byte units, 1 tasks, about 32768 bytes: 2 rows next to each other in the destination
    """
    total = width * sum(nest.element_count for nest in (*loops.copies, *loops.fills))
    streamed = total >= STREAMED_BYTES
    copies = [in_bytes(nest, width) for nest in loops.copies]
    fills = [in_bytes(nest, width) for nest in loops.fills]
    found: list[Pass] = []
    for nest in copies:
        padding = next((fill for fill in fills if _pads_columns(fill, nest, width)), None)
        if padding is not None:
            fills.remove(padding)
            found += _padded_passes(nest, padding, width, streamed)
        else:
            found += _copying_passes(nest, width, streamed)
    found += [_fill_pass(fill, width, streamed) for fill in fills]
    return tuple(found)


def _pads_columns(fill: Nest, nest: Nest, width: int) -> bool:
    """Tell whether a fill is what follows each column of few rows, and the next column follows it."""
    row, column = _contiguous(nest, width, 1), _contiguous(nest, width, 0)
    if row is None or column is None or row is column:
        return False
    padding = _padding(fill, width)
    column_bytes = (row.size + padding.size) * width
    follows = fill.destination_start == nest.destination_start + row.size * width
    if not follows or column.destination_stride != column_bytes or column_bytes > _COLUMN_STREAM_BYTES:
        return False
    return _destination(fill, padding) == _destination(nest, row)


def _contiguous(nest: Nest, width: int, side: int) -> Loop | None:
    """Give the loop that is contiguous in the source, side 0, or in the destination, side 1."""
    return next((k for k in nest.loops if (k.source_stride, k.destination_stride)[side] == width), None)


def _padding(fill: Nest, width: int) -> Loop:
    """Give the loop along which a fill is contiguous."""
    return _contiguous(fill, width, 1) or Loop(1, 0, width)


def _destination(nest: Nest, but: Loop) -> tuple[Loop, ...]:
    """Give the loops of the destination but one."""
    return coalesced(Nest(tuple(Loop(k.size, 0, k.destination_stride) for k in nest.loops if k is not but))).loops


def _padded_passes(nest: Nest, fill: Nest, width: int, streamed: bool) -> Iterator[Pass]:
    row, column, padding = _contiguous(nest, width, 1), _contiguous(nest, width, 0), _padding(fill, width)
    assert row is not None
    assert column is not None
    for cut in _cut(nest, column, _STREAM_PIECE_BYTES // column.destination_stride):
        yield _interleave_pass(cut, (row,), column, width, streamed, padding.size)


def _cut(nest: Nest, loop: Loop, piece: int) -> Iterator[Nest]:
    """Cut a long loop into pieces that threads can share."""
    if loop.size <= 2 * piece:
        yield nest
        return
    others = tuple(other for other in nest.loops if other is not loop)
    source_stride, destination_stride = loop.source_stride, loop.destination_stride
    count, rest = divmod(loop.size, piece)
    steps = Loop(count, piece * source_stride, piece * destination_stride)
    pieces = (Loop(piece, source_stride, destination_stride), steps, *others)
    yield Nest(pieces, nest.source_start, nest.destination_start)
    if rest:
        end = count * piece
        starts = nest.source_start + end * source_stride, nest.destination_start + end * destination_stride
        yield Nest((Loop(rest, source_stride, destination_stride), *others), *starts)


def _widened(nest: Nest, width: int) -> tuple[Nest, int]:
    """Make a short run both sides keep one unit, if that is 2, 4, 8 ... 64 bytes."""
    for loop in nest.loops:
        run_bytes = loop.size * width
        if loop.source_stride == loop.destination_stride == width and run_bytes in (2, 4, 8, 16, 32, 64):
            others = tuple(other for other in nest.loops if other is not loop)
            return _widened(Nest(others, nest.source_start, nest.destination_start), run_bytes)
    return nest, width


def _copying_passes(nest: Nest, width: int, streamed: bool) -> Iterator[Pass]:
    nest, width = _widened(nest, width)
    loops = nest.loops
    run = next((k for k in loops if k.source_stride == k.destination_stride == width), None)
    column = next((k for k in loops if k.source_stride == width and k is not run), None)
    row = next((k for k in loops if k.destination_stride == width and k is not run), None)
    if run is not None or not loops:
        for cut in _cut(nest, run, _RUN_BYTES // width) if run is not None else (nest,):
            for blocked, rows, first in _gathered(cut, _run(cut, width).size * width):
                yield _copy_pass(blocked, rows, first, width, streamed)
    elif column is None or row is None:
        longest = row or column or max(loops, key=lambda loop: loop.size)
        for cut in _cut(nest, longest, _RUN_BYTES // width):
            yield _strided_pass(cut, longest, width)
    else:
        rows, columns = rows_and_columns(loops, row, column, width)
        row_count, column_count = (math.prod(k.size for k in chosen) for chosen in (rows, columns))
        row_bytes = row_count * width
        few = row_bytes < 2 * _LINE_BYTES or (row_bytes <= _COLUMN_STREAM_BYTES and row_bytes % _LINE_BYTES)
        if few and column.destination_stride == row_bytes:
            for cut in _cut(nest, column, _STREAM_PIECE_BYTES // row_bytes):
                yield _interleave_pass(cut, rows, column, width, streamed)
        elif column_count * width < _LINE_BYTES and row.source_stride == column_count * width:
            for cut in _cut(nest, row, _STREAM_PIECE_BYTES // (column_count * width)):
                yield _deal_pass(cut, columns, row, width, streamed)
        else:
            yield _transpose_pass(nest, rows, columns, width, streamed)


def _run(nest: Nest, width: int) -> Loop:
    """Give the loop that is contiguous on both sides."""
    return next((k for k in nest.loops if k.source_stride == k.destination_stride == width), Loop(1, width, width))


def _gathered(nest: Nest, run_bytes: int) -> Iterator[tuple[Nest, tuple[Loop, ...], tuple[Loop, ...]]]:
    """Choose in which order runs are copied, and cut the nest for it.

    Give the loops along which runs follow each other in the destination, which make one chunk, and what comes next:
    the loop along which they follow each other in the source.
    """
    column = tuple(k for k in nest.loops if k.source_stride == run_bytes != k.destination_stride)[:1]
    rows: list[Loop] = []
    count, most = 1, max(_BLOCK_BYTES // run_bytes, _LEAST_ROWS)
    while count < most and run_bytes < _GATHERED_BYTES:
        follows = (k for k in nest.loops if k.destination_stride == run_bytes * count and k not in rows)
        row = next((k for k in follows if k not in column), None)
        if row is None:
            break
        rows.append(row)
        count *= row.size
    if count <= most or not rows:
        yield nest, tuple(rows), column
        return
    most = max(most // (count // rows[-1].size), 1)
    divisor = next((k for k in range(most, (most - 1) // 2, -1) if rows[-1].size % k == 0), most)
    for cut in _cut(nest, rows[-1], divisor):
        yield cut, (*rows[:-1], _along(cut, rows[-1])), column


def _blocks(loops: Sequence[Loop], most: int) -> _Blocks:
    """Take loops together, innermost first, while a block has at most `most` places."""
    places = [(0, 0)]
    for i, loop in enumerate(loops):
        size = loop.size if len(places) * loop.size <= most else max(most // len(places), 1)
        count = len(places) * loop.size
        places = [
            (source + k * loop.source_stride, destination + k * loop.destination_stride)
            for k in range(size)
            for source, destination in places
        ]
        if size < loop.size:
            steps = size * loop.source_stride, size * loop.destination_stride
            return _Blocks(np.array(places, np.int64), count, *steps, tuple(loops[i + 1 :]))
    return _Blocks(np.array(places, np.int64), len(places), 0, 0, ())


def _without(loops: Iterable[Loop], taken: Iterable[Loop], by_source: bool = False) -> list[Loop]:
    """Give the other loops, those that move the destination least first, or the source."""
    left = list(loops)
    for loop in taken:
        if loop in left:
            left.remove(loop)
    if by_source:
        return sorted(left, key=lambda loop: (abs(loop.source_stride), abs(loop.destination_stride)))
    return sorted(left, key=lambda loop: (abs(loop.destination_stride), abs(loop.source_stride)))


def _outer_table(loops: Sequence[Loop]) -> NDArray[np.int64]:
    rows = [(k.size, k.source_stride, k.destination_stride) for k in loops]
    return np.array(rows, np.int64).reshape(len(rows), 3)


def _chunked(
    kernel: str,
    nest: Nest,
    taken: Iterable[Loop],
    rows: NDArray[np.int64] | None,
    run: int,
    chunk_bytes: int,
    by_source: bool,
    width: int,
    streamed: bool,
    why: str,
    ways: int = 1,
    first: tuple[Loop, ...] = (),
    padding: int = 0,
) -> Pass:
    """A pass over chunks: `taken` loops are inside a chunk, the others make the chunks and the tasks, `first` first.

    Long pieces are written anywhere as fast as in order: `by_source`, the source is read as one sequential stream.
    """
    most = max(1, min(_CHUNKS, 4 * _RUN_BYTES // chunk_bytes))
    ordered = _without(nest.loops, taken, by_source)
    if not by_source:
        ordered = [*first, *_without(ordered, first)]
    blocks = _blocks(ordered, most)
    following = (1, 1, 0)
    if kernel == "copy" and by_source:
        ways, following = APART, _following(ordered, blocks, chunk_bytes)
    geometry = (
        len(blocks.offsets),
        blocks.count,
        blocks.source_step,
        blocks.destination_step,
        run,
        ways,
        streamed,
        _readable_bytes(nest, width),
        padding,
        *following,
    )
    return Pass(
        kernel,
        width,
        max(ways, 1),
        _outer_table(blocks.outer),
        (blocks.offsets,) if rows is None else (blocks.offsets, rows),
        np.array(geometry, np.int64),
        blocks.number * math.prod(k.size for k in blocks.outer),
        len(blocks.offsets) * chunk_bytes,
        nest.source_start,
        nest.destination_start,
        why,
    )


def _following(ordered: Sequence[Loop], blocks: _Blocks, run_bytes: int) -> tuple[int, int, int]:
    """Tell how chunks continue each other in the destination: every how many, how often, how far in the source."""
    every = 1
    for loop in ordered[: len(ordered) - len(blocks.outer)]:
        if loop.destination_stride == run_bytes:
            return every, loop.size, loop.source_stride
        every *= loop.size
    return 1, 1, 0


def _readable_bytes(nest: Nest, width: int) -> int:
    """Give how many bytes may be read from the start of the source on."""
    return width + sum((k.size - 1) * max(k.source_stride, 0) for k in nest.loops)


def _copy_pass(nest: Nest, rows: Sequence[Loop], column: tuple[Loop, ...], width: int, streamed: bool) -> Pass:
    run = _run(nest, width)
    run_bytes = run.size * width
    offsets = _blocks(rows, _BLOCK_BYTES).offsets[:, 0].copy()
    why = "runs that both sides keep contiguous"
    taken, chunk_bytes = (run, *rows), run_bytes * len(offsets)
    by_source = len(offsets) == 1 and run_bytes >= _APART_BYTES
    return _chunked("copy", nest, taken, offsets, run_bytes, chunk_bytes, by_source, width, streamed, why, first=column)


def packed_passes(loops: RelayoutLoops, per_byte: int, kernel: str) -> tuple[Pass, ...] | None:
    """Choose the passes that expand packed elements to bytes while they move, or compress them.

    Parameters
    ----------
    loops : RelayoutLoops
    per_byte : int
        Packed elements of a byte.
    kernel : {"expand", "compress"}

    Returns
    -------
    tuple of Pass or None
        None where runs do not begin and end with a byte on the packed side. Offsets there count elements.
    """
    streamed = sum(nest.element_count for nest in (*loops.copies, *loops.fills)) >= STREAMED_BYTES
    found = []
    for nest in loops.copies:
        run = next((k for k in nest.loops if k.source_stride == k.destination_stride == 1), None)
        if run is None:
            return None
        numbers = [run.size, nest.source_start if kernel == "expand" else nest.destination_start]
        others = [loop for loop in nest.loops if loop is not run]
        numbers += [k.source_stride if kernel == "expand" else k.destination_stride for k in others]
        if any(number % per_byte for number in numbers):
            return None
        why = f"{per_byte} elements a byte on one side, one on the other"
        for cut in _cut(nest, run, _RUN_BYTES):
            piece = _run(cut, 1)
            found.append(
                _chunked(kernel, cut, (piece,), None, piece.size, piece.size, False, 1, streamed, why, per_byte)
            )
    fills = grouped(RelayoutLoops((), loops.fills), per_byte) if kernel == "compress" else loops
    if fills is None:
        return None
    found += [_fill_pass(nest, 1, streamed) for nest in fills.fills]
    return tuple(found)


def _strided_pass(nest: Nest, along: Loop, width: int) -> Pass:
    loop = _along(nest, along)
    outer = _without(nest.loops, (loop,))
    return Pass(
        "strided",
        width,
        1,
        _outer_table(outer),
        (),
        np.array([loop.size, loop.source_stride, loop.destination_stride], np.int64),
        math.prod(k.size for k in outer),
        loop.size * width,
        nest.source_start,
        nest.destination_start,
        "one by one: a side has gaps between all its elements",
    )


def _along(nest: Nest, whole: Loop) -> Loop:
    """Give the loop of a nest that is what `_cut` left of a whole one."""
    strides = whole.source_stride, whole.destination_stride
    return next(k for k in nest.loops if (k.source_stride, k.destination_stride) == strides)


def _interleave_pass(
    nest: Nest, rows: Sequence[Loop], column: Loop, width: int, streamed: bool, padding: int = 0
) -> Pass:
    column = _along(nest, column)
    offsets = _blocks(rows, _COLUMN_STREAM_BYTES).offsets[:, 0].copy()
    ways = len(offsets)
    if padding or ways not in POWERS_OF_TWO or ways * width > _LINE_BYTES // 2:
        whole_squares = -(-ways * width // _LINE_BYTES) * (_LINE_BYTES // width)
        offsets = np.append(offsets, np.repeat(offsets[-1:], whole_squares - ways))
    why = f"{ways} rows next to each other in the destination" + (f", and {padding} of padding" if padding else "")
    chunk_bytes = (ways + padding) * column.size * width
    return _chunked(
        "interleave",
        nest,
        (*rows, column),
        offsets,
        column.size,
        chunk_bytes,
        False,
        width,
        streamed,
        why,
        ways,
        padding=padding,
    )


def _deal_pass(nest: Nest, columns: Sequence[Loop], row: Loop, width: int, streamed: bool) -> Pass:
    row = _along(nest, row)
    offsets = _blocks(columns, _LINE_BYTES).offsets[:, 1].copy()
    why = f"{len(offsets)} columns next to each other in the source"
    ways, piece = len(offsets), row.size * width
    chunk_bytes = ways * piece
    whole_lines = not any(k.destination_stride % _LINE_BYTES for k in nest.loops if k.destination_stride != width)
    by_source = piece >= (_LEAST_APART_BYTES if whole_lines else _APART_BYTES)
    return _chunked(
        "deal", nest, (*columns, row), offsets, row.size, chunk_bytes, by_source, width, streamed, why, ways
    )


def _transpose_pass(nest: Nest, rows: Sequence[Loop], columns: Sequence[Loop], width: int, streamed: bool) -> Pass:
    others = _without(nest.loops, (*rows, *columns))
    aligned = not any(loop.destination_stride % _LINE_BYTES for loop in columns)
    column_blocks = _blocks(columns, (_ALIGNED_COLUMN_BYTES if aligned else _COLUMN_BYTES) // width)
    most = _ROW_BYTES // width
    while True:
        row_blocks = _blocks(rows, most)
        outer = (*others, *row_blocks.outer, *column_blocks.outer)
        tasks = row_blocks.number * column_blocks.number * math.prod(k.size for k in outer)
        if tasks >= _TASKS or most * width <= _LEAST_ROW_BYTES:
            break
        most //= 2
    row_table, targets = row_blocks.offsets[:, 0].copy(), column_blocks.offsets[:, 1].copy()
    row_bytes, column_bytes = (width * math.prod(k.size for k in chosen) for chosen in (rows, columns))
    narrow = (
        streamed and column_blocks.number == 1 and _is_narrow(rows[0].source_stride, row_bytes, column_bytes, width)
    )
    follow = columns[0].destination_stride == row_bytes and row_blocks.number == 1 and len(columns) == 1
    joined = follow and not narrow
    if joined:
        row_table = np.append(row_table, row_table[: _LINE_BYTES // width] + width)
    elif row_blocks.number > 1:
        row_table = np.append(row_table, row_table[: _LINE_BYTES // width] + row_blocks.source_step)
    geometry = (
        len(row_blocks.offsets),
        row_blocks.count,
        row_blocks.source_step,
        len(targets),
        column_blocks.count,
        column_blocks.destination_step,
        aligned,
        joined,
        streamed,
        _readable_bytes(nest, width),
    )
    return Pass(
        "narrow transpose" if narrow else "transpose",
        width,
        1,
        _outer_table(outer),
        (row_table, targets),
        np.array(geometry, np.int64),
        tasks,
        len(row_blocks.offsets) * len(targets) * width,
        nest.source_start,
        nest.destination_start,
        f"{column_bytes} bytes contiguous in the source become {row_bytes} contiguous in the destination",
    )


def _is_narrow(pitch_bytes: int, row_bytes: int, column_bytes: int, width: int) -> bool:
    fits = column_bytes <= _NARROW_COLUMNS * width and row_bytes >= _NARROW_BYTES
    return fits and min(_LINE_BYTES, column_bytes) <= abs(pitch_bytes) <= 4 * max(column_bytes, _LINE_BYTES)


def _fill_pass(nest: Nest, width: int, streamed: bool) -> Pass:
    run = _padding(nest, width)
    outer = _without(nest.loops, (run,))
    run_bytes = run.size * width
    if not outer and run_bytes > 2 * _RUN_BYTES and run_bytes % _RUN_BYTES == 0:
        outer, run_bytes = [Loop(run_bytes // _RUN_BYTES, 0, _RUN_BYTES)], _RUN_BYTES
    return Pass(
        "fill",
        width,
        1,
        _outer_table(outer),
        (),
        np.array([run_bytes, streamed], np.int64),
        math.prod(k.size for k in outer),
        run_bytes,
        0,
        nest.destination_start,
        "padding",
    )
