"""What passes cost beside the transfer of memory, in cycles: enough to choose between two ways, not to predict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fastindex.lowering.distinct import distinct
from fastindex.lowering.pass_form import Draft
from fastindex.lowering.stream_passes import in_lanes, in_vectors
from fastindex.tables import assemblies, gathers, half_rows, half_transposes, streams, transposes
from fastindex.tables.cache_lines import L1_SETS, L1_WAYS, L2_SETS, L2_WAYS, LINE_BYTES

# As many for a line are hidden behind its transfer: a copy takes about 20, with two threads that share the memory.
_LINE_CYCLES = 12

# One by one, an element takes about so many.
_ELEMENT_CYCLES = 10
_FILLED_LINE_CYCLES = 4
# A run of padding. 128 bytes behind each 384 that are copied: 20 GB/s as two passes, 32 as one assembly.
_FILLED_RUN_CYCLES = 60
# A run of padding that ends within a line, and a column of a transpose that does and is not continued by the next: what
# is beside it is another pass's, or another task's, so the line is read and written twice.
_END_CYCLES = 150
# A run that is copied.
_RUN_CYCLES = 6
_VECTOR_CYCLES, _PIECE_CYCLES, _HALVES_CYCLES = 4, 4, 2
_SQUARE_LINE_CYCLES = 10
# A block of an assembly by columns, beside its vectors.
_COLUMNS_BLOCK_CYCLES = 10
# A line of a transpose in squares, and of columns that are collected first.
_TRANSPOSED_CYCLES, _COLLECTED_CYCLES = {1: 20, 2: 18}, 12
# The same of narrow elements of which rows have no more than two lines: more streams than the processor follows. GB/s
# of u8[49152,8,127] reversed out of T(1,128), transposed and collected first: 22 and 37.
_SHORT_ROW_CYCLES = 28
# Transposes of narrow elements take so many times as long where short rows of more than a few elements are far from
# each other: us transposed and collected first, reversed, bf16[32768,3,40] out of T(256) 1311 and 651,
# bf16[49152,3,100] out of T(2,128) 2783 and 2133, u8[49152,8,100] out of T(4,128)(2,1) 3378 and 2323. So do gathers:
# us gathered and put together, minor two swapped, c128[12288,2,6] out of T(1,128) 487 and 269, c128[3072,8,5] out of
# T(4,128)(2,1) 305 and 254, f64[768,8,3] out of T(1024) 124 and 108.
_FAR_ROWS, _FAR_PIECES, _FEW_ELEMENTS = 1.5, 1.25, 8
# A line of wider elements; a row of few elements, or of few bytes, which are moved one by one. us by columns and so,
# reversed: bf16[98304,2,5] out of T(2,128) 921 and 704, bf16[24576,8,6] out of T(8,128) 844 and 719, u8[7021,50,2] out
# of T(8,128)(2,1) 800 and 679; put together and so u8[98304,2,2] out of T(256) 1032 and 673.
_MOVED_ROW_CYCLES, _FEW_BYTES = 12, 4
# A line of a row of these, or of padding, transposed in lanes; a line of a block that is put together of lanes.
_LANE_SLOT_CYCLES, _PUT_LINE_CYCLES = 4, 5
# A line of the source that a block reads, which may have left L1 since the block before read it.
_READ_LINE_CYCLES = 6
# The same where it has left L2 too, because too many lines of a block meet in one of its sets.
_MISSED_LINE_CYCLES = 60
# More for a line of which little is used, and which other blocks read much later: u4[30000,33,65] in another order in
# blocks takes 12.1 ms, in streams of rows 7.1, in boxes 6.2; u4[15000,33,129] 7.4, 5.2 and 5.8.
_READ_AGAIN_CYCLES = 30
# A line of a row that is dealt out or interleaved in lanes, and the two ends of its run.
_LANE_LINE_CYCLES, _LANE_ROW_CYCLES = 10, 12
# The same of elements of which a lane has few, by their bytes.
_WIDE_LANE_CYCLES = {4: (15, 18), 8: (22, 30), 16: (22, 30)}
# Rows of less than a line that are interleaved element by element: an element, and all rows of a chunk.
_SHORT_ROWS_CYCLES, _SHORT_CHUNK_CYCLES = 3, 40
# A line that is gathered, its elements, and a line that they are read from; elements where that has left L1.
_GATHERED_LINE_CYCLES, _GATHERED_CYCLES, _MISSED_CYCLES = 8, 0.7, 6
# The same of a piece, and of one that does not continue the piece before: its ends are parts of lines.
_GATHERED_PIECE_CYCLES, _APART_CYCLES = 4, 40
# A task of a transpose that is small, up to so many lines.
_PANEL_CYCLES, _PANEL_LINES = 500, 256
# A line's worth of packed elements that are expanded or compressed, and the ends of their run.
_PACKED_CYCLES, _PACKED_RUN_CYCLES = 6, 40
# A pair of rows of packed elements, and a line of pairs.
_PAIR_CYCLES, _PAIR_LINE_CYCLES = 6, 18
# More for a line that is copied within a box, and how much longer a transpose takes there. ms with two threads in boxes
# and in the way that is chosen with these: s4[11184810,3,100] reversed 13.8 and 6.7, s4[7021,50,130] out of
# T(8,128)(2,1) 5.8 and 2.5, s4[786,1000,128]{1,2,0} to T(4,128) 3.9 and 2.5.
_KEPT_LINE_CYCLES, _KEPT_TRANSPOSE = 5, 2
# A box, beside what runs within it, and a half of a byte that is copied by itself, mostly to a line that is not there.
_BOX_CYCLES, _HALF_CYCLES = 300, 120
# A line of packed elements that are transposed in lines, and an end of a column.
_HALF_LINE_CYCLES, _HALF_END_CYCLES = 23, 48
# More where columns begin with lines: columns that are collected first are faster there. ms with two threads in lines
# and collected: u4[8448,4224] 0.95 and 0.89, s4[98304,8,128] reversed 4.8 and 3.3; where columns do not, u4[8190,4098]
# 1.19 and 1.32, s4[7864,50,128] out of T(256) 3.0 and 3.4.
_ALIGNED_HALF_LINE_CYCLES = 3
# A line of packed elements that are put together as a stream, a piece of it, one out of a source that is mostly
# padding, and more for one whose lines are read again. As a stream and in blocks, two threads, fractions of a copy on
# an Intel Xeon (2026-11-23): s4[786,1000,127] out of T(2,128) 0.59 and 0.52, s4[393216,1,127] 0.35 and 0.40,
# s4[12288,8,1000] out of T(8,128)(2,1) 0.60 and 0.22, s4[49152,8,130] out of T(4,128)(2,1) 0.40 and 0.41.
_STREAMED_LINE_CYCLES, _STREAMED_PIECE_CYCLES, _SPARSE_PIECE_CYCLES, _SHARED_PIECE_CYCLES = 6, 16, 27, 15
# A column of few rows that goes on with padding.
_PADDED_COLUMN_CYCLES = 120

# What these write is counted in chunks.
_IN_CHUNKS = ("copy", "interleave", "deal", "gather pieces", "assemble")


def cost(found: Iterable[Draft]) -> float:
    """Return the cycles that passes take, all tasks together."""
    return sum(_cost_of(one) for one in found)


def hidden_cycles(element_bytes: int, written_bytes: int) -> float:
    """Return how many cycles are hidden behind the transfer of a destination, and of its elements from the source.

    Padding is written and not read, so less is hidden behind it.
    """
    padding = written_bytes - element_bytes
    return (element_bytes * _LINE_CYCLES + padding * _FILLED_LINE_CYCLES) / LINE_BYTES


def least_assembly_cost(
    written_bytes: int, element_bytes: int, together: tuple[float, float], slot_bits: tuple[int, int], vector_bytes: int
) -> float:
    """Return the cycles that an assembly takes at least, where no element of the source is read twice.

    Parameters
    ----------
    written_bytes : int
        Of the destination, with its padding.
    element_bytes : int
        How many of these are elements.
    together : (float, float)
        What a piece has of these at most where blocks are read straight, and what a line of the source has of them.
    slot_bits : (int, int)
        Of source and destination.
    vector_bytes : int
        What the machine permutes with one instruction.
    """
    piece = _piece_cycles(assemblies.HALF_BITS in slot_bits)
    in_piece, in_line = together
    straight = _VECTOR_CYCLES / vector_bytes + piece / in_piece + _READ_LINE_CYCLES / in_line
    by_columns = _PUT_LINE_CYCLES / LINE_BYTES + (_LANE_SLOT_CYCLES + _COLLECTED_CYCLES) / in_line
    filled = (written_bytes - element_bytes) * _FILLED_LINE_CYCLES / LINE_BYTES
    return filled + element_bytes * min(straight, by_columns)


def least_columns_cost(block_bytes: int, element_bytes: int) -> float:
    """Return the cycles that a block takes at least whose columns are collected first, none of them read twice.

    Parameters
    ----------
    block_bytes : int
    element_bytes : int
        How much of the source it needs.
    """
    filled = (block_bytes - element_bytes) * _FILLED_LINE_CYCLES
    moved = element_bytes * (_PUT_LINE_CYCLES + _LANE_SLOT_CYCLES + _COLLECTED_CYCLES)
    return _COLUMNS_BLOCK_CYCLES + (filled + moved) / LINE_BYTES


def _piece_cycles(in_halves: bool) -> int:
    return _PIECE_CYCLES + (_HALVES_CYCLES if in_halves else 0)


def _cost_of(one: Draft) -> float:
    geometry: Sequence[int] = one.geometry
    nbytes = _written_bytes(one)
    lines = nbytes / LINE_BYTES
    match one.kernel:
        case "strided":
            return nbytes / one.width * _ELEMENT_CYCLES
        case "fill":
            ends = _END_CYCLES if one.task_bytes % LINE_BYTES else 0
            return lines * _FILLED_LINE_CYCLES + one.tasks * (_FILLED_RUN_CYCLES + ends)
        case "copy":
            run = geometry[streams.RUN]
            runs = nbytes / run
            return lines * 6 + runs * (_RUN_CYCLES * 2 if run % LINE_BYTES else _RUN_CYCLES)
        case "interleave" | "deal" if in_lanes(one):
            run = geometry[streams.RUN] * one.width
            rows = nbytes / run
            missed = _shared_rows_cost(one) if one.kernel == "interleave" else 0
            line, ends = _WIDE_LANE_CYCLES.get(one.width, (_LANE_LINE_CYCLES, _LANE_ROW_CYCLES))
            return rows * (-(-run // LINE_BYTES) * line + ends) + missed
        case "interleave":
            return _interleave_cost(one)
        case "deal":
            return lines * 10
        case "boxes":
            return one.tasks * (_BOX_CYCLES + sum(_cost_within(inner) for inner, _, _ in one.inner))
        case "row boxes":
            return one.tasks * sum(cost((inner,)) for inner, _, _ in one.inner)
        case "halves":
            return nbytes * _HALF_CYCLES
        case "transpose" | "narrow transpose":
            return _transpose_cost(one)
        case "gather pieces":
            return _gather_cost(one)
        case "assemble":
            return _assembly_cost(one)
        case "assemble columns" | "assemble half columns":
            return _columns_cost(one, geometry)
        case "stream halves":
            pieces = one.tasks * geometry[half_rows.ROW_PIECES]
            piece = _SPARSE_PIECE_CYCLES if one.is_scattered else _STREAMED_PIECE_CYCLES
            piece += _SHARED_PIECE_CYCLES if one.shares_lines else 0
            return lines * _STREAMED_LINE_CYCLES + pieces * piece
        case "transpose halves":
            columns, chunk = geometry[half_transposes.HALF_COLUMNS], half_transposes.CHUNK_COLUMNS
            # The last chunk overlaps the one before.
            moved = lines * -(-columns // chunk) * chunk / columns
            half_columns = 2 * nbytes / geometry[half_transposes.HALF_LAST_ROWS]
            starts = geometry[half_transposes.HALF_TARGET_START] | geometry[half_transposes.HALF_COLUMN_STRIDE]
            aligned = 0 if starts % (2 * LINE_BYTES) else _ALIGNED_HALF_LINE_CYCLES
            return moved * (_HALF_LINE_CYCLES + aligned) + 2 * half_columns * _HALF_END_CYCLES
        case _:
            return lines * 10


def _written_bytes(one: Draft) -> float:
    """Return what all tasks write: the last one may have fewer chunks than the others, or rows, or columns."""
    geometry, nbytes = one.geometry, float(one.tasks * one.task_bytes)
    if one.kernel in _IN_CHUNKS:
        return nbytes * _filled(geometry[streams.CHUNK_BLOCK], geometry[streams.CHUNK_COUNT])
    if one.kernel in ("transpose", "narrow transpose"):
        rows = _filled(geometry[transposes.ROW_BLOCK], geometry[transposes.ROW_COUNT])
        return nbytes * rows * _filled(geometry[transposes.COLUMN_BLOCK], geometry[transposes.COLUMN_COUNT])
    return nbytes


def _filled(block: int, count: int) -> float:
    """Return which part of the blocks is filled that take so many things."""
    return count / (block * -(-count // block))


def _assembly_cost(one: Draft) -> float:
    geometry = one.geometry
    blocks = _written_bytes(one) / geometry[assemblies.BLOCK_BYTES]
    piece = _piece_cycles(one.ways == 2)
    filled, pieces = geometry[assemblies.FILLED], geometry[assemblies.PIECES]
    vectors = geometry[assemblies.VECTORS] - filled
    put = vectors * _VECTOR_CYCLES + filled * one.width / LINE_BYTES * _FILLED_LINE_CYCLES + pieces * piece
    lines = geometry[assemblies.LINES]
    read = lines * (_MISSED_LINE_CYCLES if _is_evicted(one) else _READ_LINE_CYCLES)
    if one.shares_lines:
        read += lines * _READ_AGAIN_CYCLES
    # Lines that meet in few sets of L1 have left it when the next piece is read from them.
    if pieces > 2 * lines > 2 * L1_WAYS and one.reads is not None and _overflows(one.reads(), L1_SETS, L1_WAYS):
        read += (pieces - lines) * _READ_LINE_CYCLES
    return blocks * (20 + put + read)


def _interleave_cost(one: Draft) -> float:
    geometry, nbytes = one.geometry, _written_bytes(one)
    lines = nbytes / LINE_BYTES
    if in_vectors(one.kernel, one.width, one.ways):
        run = geometry[streams.RUN]
        if run * one.width >= LINE_BYTES:
            return lines * 8
        return nbytes / one.width * (_SHORT_ROWS_CYCLES + _SHORT_CHUNK_CYCLES / (run * one.ways))
    column = one.ways * one.width
    share = column / (-(-column // LINE_BYTES) * LINE_BYTES)
    padded = geometry[streams.PADDING] * one.width / column
    padding = nbytes / (column * (1 + padded)) * _PADDED_COLUMN_CYCLES if padded else 0
    padding += _shared_rows_cost(one)
    return lines / (1 + padded) * (_SQUARE_LINE_CYCLES / share + 4 * padded) + padding


def _transpose_cost(one: Draft) -> float:
    geometry, lines = one.geometry, _written_bytes(one) / LINE_BYTES
    row = geometry[transposes.ROW_COUNT] * one.width
    column = geometry[transposes.COLUMN_COUNT] * one.width
    share = min(row, LINE_BYTES) * min(column, LINE_BYTES) / LINE_BYTES**2
    few = one.kernel == "transpose" and column <= (_FEW_ELEMENTS * one.width if one.width > 1 else _FEW_BYTES)
    line: float = _MOVED_ROW_CYCLES if few else _TRANSPOSED_CYCLES.get(one.width, _MOVED_ROW_CYCLES)
    if one.width in _TRANSPOSED_CYCLES and LINE_BYTES < column <= 2 * LINE_BYTES:
        line = _SHORT_ROW_CYCLES
    if one.is_scattered and one.width in _TRANSPOSED_CYCLES and _FEW_ELEMENTS * one.width < column <= 4 * LINE_BYTES:
        line *= _FAR_ROWS
    squares = lines * line / max(share, 1 / LINE_BYTES)
    if one.shares_lines:
        squares += 2 * lines * LINE_BYTES / row * _END_CYCLES
    return squares + one.tasks * _PANEL_CYCLES * max(0.0, 1 - lines / one.tasks / _PANEL_LINES)


def _gather_cost(one: Draft) -> float:
    piece = one.geometry[gathers.ELEMENTS] * one.width
    nbytes = _written_bytes(one)
    pieces, lines = nbytes / piece, nbytes / LINE_BYTES
    element = _GATHERED_CYCLES
    if one.reads is not None and _overflows(one.reads(), L1_SETS, L1_WAYS + L1_WAYS // 4):
        element = _MISSED_CYCLES
    places = one.tables()[0][:, 1]
    apart = pieces * float((np.diff(places) != piece).mean()) if len(places) > 1 else one.tasks
    return (_FAR_PIECES if one.is_scattered else 1) * (
        nbytes / one.width * element
        + lines * _GATHERED_LINE_CYCLES
        + pieces * (_GATHERED_PIECE_CYCLES + one.geometry[gathers.LINES] * _READ_LINE_CYCLES)
        + apart * _APART_CYCLES
    )


def _columns_cost(one: Draft, geometry: Sequence[int]) -> float:
    """Return the cycles of a pass that collects columns."""
    filled, written = geometry[assemblies.COLUMNS_LINES], geometry[assemblies.COLUMNS_BLOCK_BYTES] / LINE_BYTES
    block = _COLUMNS_BLOCK_CYCLES + filled * _PUT_LINE_CYCLES + (written - filled) * _FILLED_LINE_CYCLES
    slots = filled * LINE_BYTES / one.width * one.ways
    chunk = slots * _LANE_SLOT_CYCLES + geometry[assemblies.COLUMNS_ROWS] * _COLLECTED_CYCLES
    return one.tasks * (one.task_bytes / LINE_BYTES / written * block + geometry[assemblies.COLUMNS_CHUNKS] * chunk)


def _cost_within(one: Draft) -> float:
    """Return the cycles of a pass within a box, whose runs of packed elements are short."""
    if one.kernel == "pair":
        chunks = one.geometry[streams.CHUNK_BLOCK]
        return one.tasks * (chunks * _PAIR_CYCLES + one.task_bytes / LINE_BYTES * _PAIR_LINE_CYCLES)
    if one.kernel == "copy":
        return cost((one,)) + _written_bytes(one) / LINE_BYTES * _KEPT_LINE_CYCLES
    if one.kernel not in ("expand", "compress"):
        return cost((one,)) * (_KEPT_TRANSPOSE if one.kernel == "transpose" else 1)
    nbytes = one.tasks * one.task_bytes
    return nbytes / LINE_BYTES * _PACKED_CYCLES + nbytes / one.geometry[streams.RUN] * _PACKED_RUN_CYCLES


def _is_evicted(one: Draft) -> bool:
    """Whether the lines of the source that blocks of an assembly share leave L2 from one block to the next."""
    return one.geometry[assemblies.LINES_EVERY] > 1 and one.reads is not None and _overflows(one.reads())


def _shared_rows_cost(one: Draft) -> float:
    """Return what it costs that rows of less than a line leave L2 before the next chunk reads the rest of the line."""
    run = one.geometry[streams.RUN] * one.width
    if run >= LINE_BYTES or one.reads is None or not _overflows(one.reads()):
        return 0
    return _written_bytes(one) / run * _MISSED_LINE_CYCLES


def _overflows(offsets: NDArray[np.int64], sets: int = L2_SETS, ways: int = L2_WAYS) -> bool:
    """Whether more lines of the source meet in a set of a cache, L2, than it keeps."""
    lines = distinct(offsets // LINE_BYTES) if len(offsets) > ways else offsets
    return len(lines) > ways and int(np.bincount(lines % sets).max()) > ways
