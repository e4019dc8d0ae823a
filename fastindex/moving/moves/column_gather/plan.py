"""Plan column gathers: each block of the destination is one column of the same rows of the source.

A row gather followed by a blocked matrix transpose. The row of each slot of a block comes from a table, so the order of
the rows is arbitrary, and tiles need no further permutation::

    source                               destination, slots in the order of the table
      row 0   a0 a1 a2 a3 ...              block 0   a0 c0 b0 ..
      row 1   b0 b1 b2 b3 ...    --->      block 1   a1 c1 b1 ..       .. is padding
      row 2   c0 c1 c2 c3 ...              block 2   a2 c2 b2 ..

Columns that lie near each other in a row form a group, and a line of each row of a group is a chunk; lines of a block
that are moved together form a band.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fastindex.algebra.loops import Loop, Nest, coalesced
from fastindex.moving.counts import PAGE_BYTES, Counts, distinct
from fastindex.moving.moves.block_permute import MOST_ROWS
from fastindex.moving.moves.block_permute.geometry import Block
from fastindex.moving.moves.block_permute.tables import VectorTable
from fastindex.moving.moves.column_gather import (
    COLUMN_BAND_BYTES,
    COLUMN_ELEMENT_BYTES,
    COLUMN_GROUP_BYTES,
    ENDS_AHEAD,
    MOST_BAND_LINES,
    MOST_CHUNKS,
    MOST_COLLECTED_BYTES,
    MOST_ROW_LINES,
    NOWHERE,
    ColumnBand,
    ColumnGroup,
    ColumnsGeometry,
)
from fastindex.moving.numbers import NIBBLE_BITS
from fastindex.moving.passes import Draft, Offsets, Tables, along, blocks, cut, even_steps, iterations, without
from fastindex.moving.problem import Context
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES

# Blocks that take fewer pieces per line are permuted directly from the source.
_LEAST_PIECES = 2
# The fewest blocks to read together; if they form several runs of columns, the fewest per run on average.
_LEAST_GROUP = 4
_MOST_COLUMNS = 1024
# The largest distance between the starts of two runs of columns, in lengths of a run.
_MOST_RUN_DISTANCE = 2
# If two bands hold fewer lines of each row, a band is written before the next is read, and may be twice as large.
_LEAST_CHUNKS = 8
# Bytes of each row to read at a time, and lines of a block to write, if blocks are whole lines of the destination.
# Measured: u8[49152,8,100]{0,1,2} to T(4,128) took 4.1 ns a line with 256 bytes of each row and all 16 lines of a
# block, 3.9 with 512 and 8, 3.3 with 1024 and 4, 3.2 with 2048 and 4, 4.6 with 2048 and 2.
_ROW_BYTES, _BAND_LINES = 2048, 4


class _Run(NamedTuple):
    """Columns each less than a line after the one before: first column, extent, all columns, destination offsets."""

    begin: int
    size: int
    columns: Offsets
    targets: Offsets


class _Rows:
    """The rows of a block: one for each slot of its lines; lines that hold only padding have none.

    Attributes
    ----------
    lines : int64 array
        For each line of the block, the byte offset of its lanes in its band; `NOWHERE` for a line of padding.
    bands : list of (int, int, int)
        First line, number of lines, number of lines with elements.
    places : int64 array
        For each slot of lines with elements, the offset of its row in the source, in elements; `NOWHERE` for padding.
    """

    def __init__(self, block: Block, per_line: int, most_lines: int) -> None:
        line_count = -(-len(block.sources) // per_line)
        slots = np.full(line_count * per_line, NOWHERE, np.int64)
        slots[: len(block.sources)] = np.where(block.is_padding, NOWHERE, block.sources)
        in_lines = slots.reshape(line_count, per_line)
        live = (in_lines != NOWHERE).any(1)
        number = np.cumsum(live) - 1
        self.lines = np.where(live, number % most_lines * 4 * LINE_BYTES, NOWHERE)
        band = np.maximum(number, 0) // most_lines
        firsts = band.searchsorted(np.arange(int(band[-1]) + 2)).tolist()
        self.bands = [(a, b - a, int(live[a:b].sum())) for a, b in itertools.pairwise(firsts)]
        self.places = in_lines[live].reshape(-1)

    @property
    def live_lines(self) -> int:
        return sum(count for _, _, count in self.bands)


def has_columns(block: Block, bits: int, direct: VectorTable) -> bool:
    """Whether a block can be gathered by columns, and a direct permute, by its own table, would take many pieces."""
    if direct.pieces < _LEAST_PIECES * direct.vectors * direct.vector_bytes / LINE_BYTES:
        return False
    is_known = bits in (NIBBLE_BITS, *(8 * width for width in COLUMN_ELEMENT_BYTES))
    return is_known and not block.is_padding.all()


class BlockColumns:
    """A block whose elements are gathered by columns: the state shared by the passes over all its nests.

    Parameters
    ----------
    block : Block
        A block for which `has_columns` is true.
    bits : int
        Bits of a slot, on both sides.
    context : Context
    source_slots : int
        Number of readable slots of the source; 0 if unknown.
    """

    def __init__(self, block: Block, bits: int, context: Context, source_slots: int = 0) -> None:
        self._context, self._bits, self._source_slots = context, bits, source_slots
        per_line = 8 * LINE_BYTES // bits
        self._block, self._again = _split(block, per_line)
        self._block_bytes = -(-len(self._block.sources) * bits // 8)
        self._elements = self._block.sources[~self._block.is_padding]
        self._last = int(self._elements.max())
        # Whether the rows of a large source all lie on different pages: more pages than the TLB holds.
        pages = distinct(self._elements * bits // 8 // PAGE_BYTES)
        self._on_pages = context.streamed and len(pages) == len(self._elements)
        # The nibbles that rows begin with, 0 for low and 1 for high; meaningless unless nibbles move.
        of_nibbles = np.flatnonzero(np.bincount(self._elements % 2)) if bits == NIBBLE_BITS else np.zeros(1, np.int64)
        self._parities: Offsets = of_nibbles
        # Whether blocks are whole lines if their nests begin on a line boundary.
        self._has_whole_lines = not (len(self._block.sources) % per_line or (self._block.starts[:, 1] % per_line).any())
        self._rows = lru_cache(lambda most_lines: _Rows(self._block, per_line, most_lines))

    def passes(self, nest: Nest) -> list[Draft] | None:
        """Return the passes over the blocks of a nest, in slots, or None if direct permutes are better."""
        if not 1 < len(self._elements) <= MOST_ROWS:
            return None
        found = []
        nest = nest if self._again is None else nest._replace(loops=(*nest.loops, self._again))
        for sources, targets, around in self._parts(coalesced(nest)):
            for even in even_steps(around) if self._bits == NIBBLE_BITS else (around,):
                made = [self._pass_of(sources, targets, part) for part in self._within_source(even, sources)]
                for one in made:
                    if one is None:
                        return None
                    found.append(one)
        return found or None

    def _within_source(self, nest: Nest, sources: Offsets) -> Iterator[Nest]:
        """Yield the parts of a nest, with the last blocks split off if rows would otherwise begin before the source.

        An odd number of packed elements of each row is read with the element after them, or with the one before them.
        """
        largest = max(nest.loops, key=lambda k: k.source_stride, default=None)
        odd = self._bits == NIBBLE_BITS and len(self._parities) > 1 and (int(sources[-1]) - int(sources[0])) % 2 == 0
        reaches_end = self._source_slots <= self._end_of(nest) + int(sources[-1])
        if not odd or not reaches_end or largest is None or largest.source_stride <= 0:
            yield nest
            return
        others = tuple(k for k in nest.loops if k is not largest)
        source, destination, count = nest.source_start, nest.destination_start, largest.size - 1
        before = Loop(count, largest.source_stride, largest.destination_stride)
        yield Nest((*others, before) if count > 1 else others, source, destination)
        yield Nest(others, source + count * largest.source_stride, destination + count * largest.destination_stride)

    def _end_of(self, nest: Nest) -> int:
        """Return where the first column of the last row ends."""
        return nest.source_start + sum((k.size - 1) * max(k.source_stride, 0) for k in nest.loops) + self._last + 1

    def _close(self, nest: Nest, most: int) -> list[Loop]:
        """Return the loops along which blocks lie within a line of each other, or in runs near each other."""
        close: list[Loop] = []
        reach = 8 * LINE_BYTES // self._bits
        for k in sorted((k for k in nest.loops if k.source_stride > 0), key=lambda k: k.source_stride):
            if k.source_stride >= reach or iterations(close) >= most:
                break
            close.append(k)
            reach = max(reach, _MOST_RUN_DISTANCE * (sum((one.size - 1) * one.source_stride for one in close) + 2))
        return close

    def _is_in_lines(self, nest: Nest) -> bool:
        """Whether every block is whole lines of a destination that begins on a line boundary."""
        per_line = 8 * LINE_BYTES // self._bits
        places = nest.destination_start, *(k.destination_stride for k in nest.loops)
        if not self._has_whole_lines or self._context.tuning.line_offset:
            return False
        return not any(place % per_line for place in places)

    def _parts(self, nest: Nest) -> Iterator[tuple[Offsets, Offsets, Nest]]:
        """Yield, for each part of a nest, blocks that lie within few lines of each row, and the nest around them."""
        starts = self._block.starts
        if 1 < len(starts) < _LEAST_GROUP:
            return
        if len(starts) > 1:
            sources, targets = starts[np.argsort(starts[:, 0], kind="stable")].T
            for k in range(0, len(starts), _MOST_COLUMNS):
                yield sources[k : k + _MOST_COLUMNS], targets[k : k + _MOST_COLUMNS], nest
            return
        tuning, block_bytes, line = self._context.tuning, self._block_bytes, LINE_BYTES * 8 // self._bits
        if self._is_in_lines(nest):
            most = min(_ROW_BYTES * 8 // self._bits, iterations(nest.loops) // tuning.least_tasks)
        else:
            most = min(_MOST_COLUMNS, tuning.task_bytes // block_bytes)
        most = max(most, line)
        close = self._close(nest, most)
        if iterations(close) < _LEAST_GROUP:
            return
        piece = max(most // iterations(close[:-1]), 1)
        for part in cut(nest, close[-1], piece):
            taken = [*close[:-1], along(part, close[-1])]
            together = blocks(taken, iterations(taken))
            sources, targets = together.sources(), together.targets()
            order = np.argsort(sources, kind="stable")
            others = tuple(k for k in part.loops if k not in taken)
            yield sources[order], targets[order], Nest(others, part.source_start, part.destination_start)

    def _pass_of(self, sources: Offsets, targets: Offsets, nest: Nest) -> Draft | None:
        """Return the pass over blocks that begin at the given slots, at every iteration of a nest."""
        per_byte = max(8 // self._bits, 1)
        begin = nest.source_start - nest.source_start % per_byte
        # If all rows begin with the same nibble, the columns are shifted so that it is the low one.
        row_shift = nest.source_start - begin
        parities = (self._parities + row_shift) % per_byte
        column_shift = int(parities[0]) if len(parities) == 1 else 0
        shifted = len(parities) > 1
        end = self._end_of(nest) + int(sources[-1])
        readable = -(-max(self._source_slots, end) * self._bits // 8)
        least = begin + sum((k.size - 1) * min(k.source_stride, 0) for k in nest.loops)
        runs = _runs(sources + column_shift, targets, 8 * LINE_BYTES // self._bits)
        if len(runs) > 1 and len(sources) < _LEAST_GROUP * len(runs):
            return None
        if per_byte > 1:
            has_next = int(self._source_slots > end)
            runs = [_in_bytes(run, shifted, has_next) for run in runs]
            if least + min(run.begin for run in runs) < 0:
                # The first row would begin outside the source.
                return None
        return self._draft(
            Nest(nest.loops, begin, nest.destination_start), runs, row_shift - column_shift, (readable, shifted)
        )

    def _draft(self, nest: Nest, runs: Sequence[_Run], row_shift: int, source: tuple[int, bool]) -> Draft:
        """Return the pass; `source` is (readable bytes of the source, whether rows may begin with either nibble)."""
        bits, context = self._bits, self._context
        readable, shifted = source
        nibbles, targets = 2 if bits == NIBBLE_BITS else 1, np.concatenate([run.targets for run in runs])
        whole_lines = self._is_in_lines(nest) and not (targets * bits % (8 * LINE_BYTES)).any()
        # If blocks are not whole lines, every band of a block ends within a line too, so bands are long.
        found = self._rows(_BAND_LINES if whole_lines else MOST_BAND_LINES)
        width, block_bytes, line = max(bits // 8, 1), self._block_bytes, 8 * LINE_BYTES // bits
        # An odd number of lines, so that vectors do not share few sets of the cache.
        pitch = LINE_BYTES * (4 * max(count for _, _, count in found.bands) | 1)
        chunk_bytes = pitch * LANE_BYTES // width * nibbles
        most = MOST_COLLECTED_BYTES // chunk_bytes
        in_turn = not context.streamed or most < min(_LEAST_CHUNKS, sum(-(-run.size // line) for run in runs))
        most = 2 * MOST_COLLECTED_BYTES // chunk_bytes if in_turn else most
        groups = list(_groups(runs, max(min(most, MOST_CHUNKS), 1), line))
        loops = [Loop(k.size, k.source_stride * bits // 8, k.destination_stride * bits // 8) for k in nest.loops]
        starts = nest.source_start * bits // 8, nest.destination_start * bits // 8

        def written_tables() -> Tables:
            return _group_table(groups, bits), self._numbers(found, row_shift)

        geometry = ColumnsGeometry(
            block_bytes=block_bytes,
            streamed=context.streamed,
            whole_lines=whole_lines,
            readable=readable - starts[0],
            bands=len(found.bands),
            groups=len(groups),
            chunks=sum(len(one.offsets) for one in groups),
            lines=found.live_lines,
            rows=len(self._elements),
            pitch=pitch,
            shifted=shifted,
            in_turn=in_turn,
            lane_bits=(LANE_BYTES // width).bit_length() - 1,
        )
        return Draft(
            "column gather",
            width,
            Nest(tuple(without(loops, ())), *starts),
            geometry,
            len(targets) * block_bytes,
            f"blocks of {block_bytes} bytes, of a column each of {len(self._elements)} rows of the source",
            _counts(geometry, len(targets), width, nibbles, self._on_pages)
            .times(nest.element_count)
            ._replace(ends=0 if whole_lines else self._ends(targets, nest.element_count)),
            written_tables,
            nibbles,
        )

    def _ends(self, targets: Offsets, times: int) -> float:
        """Count the ends of blocks within non-temporal lines that no other block of the same task continues."""
        if not self._context.streamed:
            return 0
        has_gap = np.diff(np.sort(targets)) != len(self._block.sources)
        return 2.0 * times * (1 + int(has_gap.sum()))

    def _numbers(self, found: _Rows, row_shift: int) -> Offsets:
        """Return the bands, the lines of a block and the rows, as the kernel reads them."""
        bits = self._bits
        per_line = 8 * LINE_BYTES // bits
        begin = COLUMN_BAND_BYTES * len(found.bands) + 8 * len(found.lines)
        bands = []
        for first, count, live in found.bands:
            bands.append(ColumnBand(first, count, begin, live * per_line))
            begin += 8 * live * per_line
        unit = max(bits // 8, 1)
        rows = np.where(found.places == NOWHERE, NOWHERE, (found.places + row_shift) * unit)
        return np.concatenate([np.array(bands, np.int64).reshape(-1), found.lines, rows])


def _counts(geometry: ColumnsGeometry, blocks: int, width: int, nibbles: int, on_pages: bool) -> Counts:
    """Count the work of a task that writes `blocks` blocks; `on_pages` says whether all rows lie on different pages."""
    written = blocks * geometry.block_bytes / LINE_BYTES
    lines, rows = min(blocks * geometry.lines, written), geometry.chunks * geometry.rows
    return Counts(
        lines=lines,
        filled=written - lines,
        runs=blocks,
        # Rows that may begin with either nibble are loaded twice.
        rows=rows * (1 + geometry.shifted),
        scratch=rows * on_pages,
        slots=geometry.chunks * geometry.lines * LINE_BYTES / width * nibbles,
    )


def _runs(sources: Offsets, targets: Offsets, reach: int) -> list[_Run]:
    """Return runs of columns, each less than `reach` after the one before; `sources` ascends."""
    breaks = (np.flatnonzero(sources[1:] - sources[:-1] >= reach) + 1).tolist()
    found = []
    for a, b in zip([0, *breaks], [*breaks, len(sources)], strict=True):
        begin = int(sources[a])
        found.append(_Run(begin, int(sources[b - 1]) + 1 - begin, sources[a:b], targets[a:b]))
    return found


def _in_bytes(run: _Run, shifted: bool, has_next: int) -> _Run:
    """Return a run of packed elements, extended to as many low as high nibbles.

    If all rows begin with a low nibble, so does the run. If rows may begin with either (`shifted`), a run of odd length
    gets one more element: at its end if the source has an element after the last row (`has_next`), else at its front.
    """
    if not shifted:
        begin = run.begin - run.begin % 2
        return run._replace(begin=begin, size=(run.begin + run.size - begin + 1) // 2 * 2)
    odd = run.size % 2
    return run._replace(begin=run.begin - (0 if has_next else odd), size=run.size + odd)


def _split(block: Block, per_line: int) -> tuple[Block, Loop | None]:
    """Split a block that repeats itself a few elements further in the source: one repetition, and the loop over them.

    The repetitions become neighbouring columns, instead of rows that share lines.
    """
    slots = len(block.sources) if len(block.starts) == 1 else 0
    first = int(block.is_padding.argmin())
    for count in range(slots // per_line, 1, -1):
        size, remainder = divmod(slots, count)
        if remainder or size % per_line or size <= first or block.is_padding[size + first]:
            continue
        step = int(block.sources[size + first] - block.sources[first])
        if not 0 < step < per_line:
            continue
        is_padding, sources = block.is_padding.reshape(count, size), block.sources.reshape(count, size)
        if (is_padding != is_padding[0]).any():
            continue
        taken = sources[:, ~is_padding[0]]
        if (taken == taken[0] + step * np.arange(count)[:, None]).all():
            return Block(sources[0], is_padding[0], block.nests, block.starts), Loop(count, step, size)
    return block, None


class _Group(NamedTuple):
    """Columns that are read together: their range in a row, the offsets of chunks, the block of each column."""

    begin: int
    end: int
    offsets: list[int]
    places: list[Offsets]


def _groups(runs: Sequence[_Run], most: int, per_line: int) -> Iterator[_Group]:
    """Yield groups of at most `most` chunks of columns each, of about equal size, in slots."""
    chunks = [
        (run, first, min(first + per_line, run.begin + run.size))
        for run in runs
        for first in range(run.begin, run.begin + run.size, per_line)
    ]
    blocks_of = {run.begin: np.full(run.size, NOWHERE, np.int64) for run in runs}
    for run in runs:
        blocks_of[run.begin][run.columns - run.begin] = run.targets
    size, at = -(-len(chunks) // -(-len(chunks) // most)), 0
    while at < len(chunks):
        has_next = at + 1
        while has_next < min(at + size, len(chunks)) and _is_near(chunks[has_next][1:], chunks[at][1], per_line):
            has_next += 1
        taken, at = chunks[at:has_next], has_next
        begin, end = taken[0][1], taken[-1][2]
        if end - begin < per_line <= taken[-1][0].size:
            # The last columns of a run: the line that ends with them is read.
            begin = end - per_line
        offsets, places = [], []
        for run, first, last in taken:
            # Whole lines are read, but nothing beyond the last column: the last two lines overlap.
            offset = max(min(first, end - per_line), begin)
            own = np.full(per_line, NOWHERE, np.int64)
            own[first - offset : last - offset] = blocks_of[run.begin][first - run.begin : last - run.begin]
            offsets.append(offset - begin)
            places.append(own)
        yield _Group(begin, end, offsets, places)


def _is_near(chunk: tuple[int, int], begin: int, per_line: int) -> bool:
    """Whether a chunk, (first, end), lies near the start of a group and begins with the same nibble."""
    first, end = chunk
    return end - begin <= MOST_ROW_LINES * per_line and (first - begin) * LINE_BYTES % per_line == 0


def _group_table(groups: Sequence[_Group], bits: int) -> Offsets:
    """Return the groups, the places of their columns and the offsets of their chunks, as the kernel reads them."""
    heads, at = [], COLUMN_GROUP_BYTES * len(groups)
    has_next = at + 8 * sum(8 * LINE_BYTES // bits * len(one.offsets) for one in groups) + 8 * ENDS_AHEAD
    for one in groups:
        begin, span = one.begin * max(bits // 8, 1), (one.end - one.begin) * bits // 8
        heads.append(ColumnGroup(begin, span, len(one.offsets), at, has_next))
        at, has_next = at + 8 * 8 * LINE_BYTES // bits * len(one.offsets), has_next + 8 * (len(one.offsets) + 1)
    places = [np.where(own == NOWHERE, NOWHERE, own * bits // 8) for one in groups for own in one.places]
    # The end of a row is stored as its last byte, which is prefetched: another cache line may begin there.
    lines = [line * bits // 8 for one in groups for line in (*one.offsets, one.end - one.begin)]
    offsets = np.array(lines, np.int64)
    offsets[np.cumsum([len(one.offsets) + 1 for one in groups]) - 1] -= 1
    none = np.full(ENDS_AHEAD, NOWHERE, np.int64)
    return np.concatenate([np.array(heads, np.int64).reshape(-1), *places, none, offsets])
