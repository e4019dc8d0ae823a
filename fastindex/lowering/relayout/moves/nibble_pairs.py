"""Passes that transpose packed elements of four bits: rows are paired, and pairs move as bytes, box by box.

A box is a part of a nest that stays in the cache. Two rows of the source whose elements are neighbours in the
destination become rows of bytes that hold an element of each, and bytes move from there to the destination, by the same
passes as any others. Columns of the destination that begin within a byte take the pairs that begin one row later; what
is left over, a nibble at either end of a column, is copied by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastindex.lowering.relayout.moves.box_parts import (
    PER_BYTE,
    box_parts,
    by_parity,
    moving_passes,
    nibble_passes,
    pass_over,
    single_nibbles,
    with_largest_boxes,
)
from fastindex.lowering.relayout.moves.nest_passes import fill_pass
from fastindex.lowering.relayout.passes.blocks import blocks, even_steps
from fastindex.lowering.relayout.passes.counts import Counts
from fastindex.lowering.relayout.passes.form import Draft, iterations
from fastindex.lowering.relayout.passes.line_counts import LINES_AHEAD
from fastindex.lowering.relayout.problem.loops import Loop, Nest, RelayoutLoops, coalesced, grouped
from fastindex.lowering.relayout.problem.problem import Context, Problem
from fastindex.shapes.shape import Shape
from fastindex.tables.assemblies import NIBBLE_BITS
from fastindex.tables.boxes import BOX_BYTES, PairGeometry
from fastindex.tables.cache_lines import LINE_BYTES

# How many times as long as its elements a run may be with its gaps, if it does not stay within a line.
_MOST_GAP, _LINE_ELEMENTS = 4, LINE_BYTES * PER_BYTE


@dataclass(frozen=True, slots=True)
class _Image:
    """Where the pairs of a box are in scratch memory.

    Attributes
    ----------
    strides : dict
        Bytes from one pair to the next along each loop but the columns: of the rows, from a pair of rows to the next.
    high : int
        Bytes from the pairs of even columns to those of odd ones.
    group_bytes : int
        As of a `PairGeometry`.
    nbytes : int
    """

    strides: dict[Loop, int]
    high: int
    group_bytes: int
    nbytes: int


def nibble_pairs(problem: Problem) -> tuple[Draft, ...] | None:
    """Return the passes between two packed sides, or None where there are none."""
    source, destination, loops = problem.source, problem.destination, problem.slots.loops
    if loops is None or problem.slot_bits != (NIBBLE_BITS, NIBBLE_BITS) or not problem.may_convert:
        return None
    if not isinstance(source, Shape) or not isinstance(destination, Shape):
        return None
    return pair_passes(loops, problem.context, destination.slot_count, source.nbytes)


def pair_passes(loops: RelayoutLoops, context: Context, slots: int, readable: int) -> tuple[Draft, ...] | None:
    """Return the passes between two packed sides, or None where there are none; what cannot be paired moves by nibbles.

    Parameters
    ----------
    loops : RelayoutLoops
        In elements.
    context : Context
    slots, readable : int
        Slots of the destination, and bytes of the source.
    """
    fills = grouped(RelayoutLoops((), loops.fills), PER_BYTE)
    if fills is None or any(min(k.source_stride, k.destination_stride) < 0 for n in loops.copies for k in n.loops):
        return None
    found: list[Draft] = []
    for nest in loops.copies:
        row = nest.loop_of(destination=1)
        if row is None or row.source_stride == 1:
            found += nibble_passes(nest, slots)
            continue
        made = with_largest_boxes(nest.loops, _Pairs(nest, row, context, slots, readable).passes)
        if made is None:
            return None
        found += made
    has_pairs = any(one.kernel == "boxes" for one in found)
    return (*found, *(fill_pass(nest, context) for nest in fills.fills)) if has_pairs else None


class _Pairs:
    """The boxes of one nest, whose rows are paired.

    Attributes
    ----------
    row : Loop
        The one that is contiguous in the destination.
    """

    def __init__(self, nest: Nest, row: Loop, context: Context, slots: int, readable: int) -> None:
        self.nest, self.row, self.context, self.slots, self.readable = nest, row, context, slots, readable

    def passes(self, sizes: dict[Loop, int]) -> list[Draft] | None:
        size = sizes[self.row]
        if size < self.row.size and size % PER_BYTE:
            return None
        others = [k for k in self.nest.loops if k is not self.row]
        is_shifted = self.nest.destination_start % PER_BYTE or any(k.destination_stride % PER_BYTE for k in others)
        longer = self.row if is_shifted and size < self.row.size else None
        found: list[Draft] = []
        for box, is_longer, outer in box_parts(self.nest, sizes, longer):
            for part in by_parity(outer):
                made = self._box_passes(box, is_longer, part)
                if made is None:
                    return None
                found += made
        return [*found, *single_nibbles(self.nest, self.row, self.slots)]

    def _box_passes(self, box: tuple[Loop, ...], is_longer: bool, outer: Nest) -> list[Draft] | None:
        """Return the pass over boxes, none where only single nibbles are written; None where they are too large."""
        row = next((k for k in box if k.destination_stride == 1), Loop(1, 0, 1))
        columns = _columns([k for k in box if k is not row])
        others = [k for k in box if k is not row and k not in columns]
        begin, start = outer.source_start % PER_BYTE, outer.destination_start % PER_BYTE
        image = _image(row, columns, others, is_even=not begin)
        if image.nbytes > BOX_BYTES:
            return None
        moving: list[tuple[Draft, bool, bool]] = []
        counts: dict[int, int] = {}
        for odd, moved in self._moves(row, columns, others, image, start, is_longer):
            counts[odd] = (row.size - odd) // PER_BYTE
            context = Context(1, self.context.streamed, self.context.tuning)
            moving += [(one, True, False) for one in moving_passes(moved, context)]
        loops = row, columns, others
        pairing = [(self._pairing(loops, image, begin, odd, counts[odd]), False, True) for odd in sorted(counts)]
        if not moving:
            return []
        return [pass_over(box, outer, (*pairing, *moving), self.readable, self.context.streamed)]

    def _moves(
        self, row: Loop, columns: list[Loop], others: list[Loop], image: _Image, start: int, is_longer: bool
    ) -> Iterator[tuple[int, Nest]]:
        """Yield how pairs move as bytes, and with which of the first two rows these pairs begin."""
        column, *further = columns
        around = [Loop(k.size, image.strides[k], k.destination_stride) for k in others]
        around += [Loop(k.size, k.source_stride // PER_BYTE, k.destination_stride) for k in further]
        low, high = ((column.size - k + 1) // 2 for k in range(2))
        twice = 2 * column.destination_stride
        nests = [
            Nest((Loop(low, 1, twice), *around), 0, start),
            Nest((Loop(high, 1, twice), *around), image.high, start + column.destination_stride),
        ]
        if low == high and column.destination_stride % PER_BYTE == 0:
            both = Loop(2, image.high, column.destination_stride)
            nests = [Nest((Loop(low, 1, twice), both, *around), 0, start)]
        for nest in nests:
            if not iterations(nest.loops):
                continue
            for part in even_steps(nest, 1):
                odd = part.destination_start % PER_BYTE
                count = (row.size - odd - (1 if is_longer and not odd else 0)) // PER_BYTE
                if not count:
                    continue
                loops = [Loop(k.size, k.source_stride, k.destination_stride // PER_BYTE) for k in part.loops]
                pairs = Loop(count, image.strides[row], 1)
                begin = part.source_start + LINE_BYTES + odd * BOX_BYTES
                yield odd, coalesced(Nest((pairs, *loops), begin, (part.destination_start + odd) // PER_BYTE))

    def _pairing(
        self, loops: tuple[Loop, list[Loop], list[Loop]], image: _Image, begin: int, odd: int, count: int
    ) -> Draft:
        """Return the pass that makes `count` pairs of the rows of a box, from its row `odd` on.

        `loops` are those of the rows, of the columns, and others.
        """
        row, columns, others = loops
        pairs = Loop(count, PER_BYTE * row.source_stride, image.strides[row])
        around = [Loop(k.size, k.source_stride, image.strides[k]) for k in others]
        elements = _span(columns)
        if image.group_bytes:
            elements *= PER_BYTE * count
        else:
            around.append(pairs)
        ordered = sorted((k for k in around if k.size > 1), key=lambda k: k.destination_stride)
        found = blocks(ordered, max(1, self.context.tuning.task_bytes // elements))
        lines = 2 * -(-elements // (2 * LINE_BYTES))
        geometry = PairGeometry(
            chunk_block=found.places,
            chunk_count=found.count,
            chunk_source_stride=found.source_stride,
            chunk_target_stride=found.destination_stride,
            begin=begin + odd * row.source_stride,
            elements=elements,
            apart=row.source_stride,
            high=image.high,
            group_bytes=image.group_bytes,
            chunks_ahead=max(LINES_AHEAD // lines, 1),
        )
        return Draft(
            "pair nibbles",
            1,
            1,
            found.outer,
            geometry,
            lambda: (found.offsets(),),
            found.number * iterations(found.outer),
            found.places * (elements + 1) // 2 * 2,
            0,
            LINE_BYTES + odd * BOX_BYTES,
            "rows of packed elements whose neighbours in the destination share bytes",
            counts=Counts(
                runs=found.count * iterations(found.outer),
                shuffled=found.count * iterations(found.outer) * elements / LINE_BYTES,
            ),
        )


def _columns(loops: list[Loop]) -> list[Loop]:
    """Return the loops that are one run of the source, with short gaps, where nibbles stay nibbles."""
    found = [next((k for k in loops if k.source_stride == 1), Loop(1, 1, 0))]
    for loop in sorted(loops, key=lambda k: k.source_stride):
        length = _span(found)
        near = loop.source_stride <= max(_MOST_GAP * length, 1) or loop.source_stride * loop.size <= _LINE_ELEMENTS
        if loop is not found[0] and loop.source_stride % PER_BYTE == 0 and loop.source_stride >= length and near:
            found.append(loop)
    return found


def _span(loops: Sequence[Loop]) -> int:
    """Return how many elements lie from the first to the last."""
    return 1 + sum((k.size - 1) * k.source_stride for k in loops)


def _image(row: Loop, columns: list[Loop], others: list[Loop], is_even: bool) -> _Image:
    """Return where the pairs of a box are: in the order of the source, rows of bytes without gaps."""
    pairs = -(-row.size // PER_BYTE)
    length = _span(columns)
    group = length // PER_BYTE
    strides: dict[Loop, int] = {}
    even = is_even and not any(k.source_stride % PER_BYTE for k in (row, *others))
    if even and length % PER_BYTE == 0 and group in (1, 2, 4) and row.source_stride == length and pairs > 1:
        strides[row] = group
        step = _apart(group * pairs)
        for k in sorted(others, key=lambda k: k.source_stride):
            strides[k] = step
            step *= k.size
        high = (step // LINE_BYTES + 2) * LINE_BYTES
        return _Image(strides, high, group, high + step + 2 * LINE_BYTES)
    size = -(-length // 2)
    step = _apart(2 * size)
    pair_of_rows = Loop(pairs, PER_BYTE * row.source_stride, 0)
    for k in sorted((pair_of_rows, *others), key=lambda k: k.source_stride):
        strides[row if k is pair_of_rows else k] = step
        step *= k.size
    return _Image(strides, size, 0, step + 3 * LINE_BYTES)


def _apart(nbytes: int) -> int:
    """Return how far apart rows of `nbytes` are: long ones an odd number of lines, so that they do not meet."""
    return nbytes if nbytes < 4 * LINE_BYTES else LINE_BYTES * (-(-nbytes // LINE_BYTES) | 1)
