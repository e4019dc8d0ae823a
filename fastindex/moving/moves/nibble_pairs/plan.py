"""Passes that transpose packed elements of four bits: rows are paired, and pairs move as bytes, box by box.

A box is a part of a nest that stays in the cache. Two rows of the source whose elements are neighbours in the
destination become rows of bytes that hold an element of each: a 2 by 2 transpose of nibbles, the innermost step of a
recursive transpose (Eklundh). Then bytes move to the destination, by the same passes as any others::

    source                  paired, in scratch memory        destination
      row 0   a0a1 a2a3       even columns   a0b0 a2b2 ..      column 0   a0b0 c0d0 ..
      row 1   b0b1 b2b3       odd columns    a1b1 a3b3 ..      column 1   a1b1 c1d1 ..
      row 2   c0c1 ..         ... of rows 2 and 3: c0d0 ..     column 2   a2b2 c2d2 ..

The parity of a column's first place in the destination, `odd`, decides which rows are paired. Of a column of `n` rows:

- even, ``odd == 0``: rows (0, 1), (2, 3), ... share bytes
- odd, ``odd == 1``: row 0 is the high nibble of a byte begun before; rows (1, 2), (3, 4), ... share bytes
- either way there are ``(n - odd) // 2`` pairs. Row 0 remains if `odd`, and the last row if ``n - odd`` is odd: such a
  nibble at either end of a column is copied by itself.

Loops with an odd stride are split into their even and odd iterations, so that parities are constant in a nest. If boxes
split the rows, they overlap by a row where columns may be odd. A row with an odd first place in the source has its
nibbles shifted as it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, grouped
from fastindex.core.shape import Shape
from fastindex.moving.counts import LINES_AHEAD, Counts
from fastindex.moving.moves.boxes.geometry import Sizes, box_sizes, kinds_of_boxes
from fastindex.moving.moves.boxes.plan import box_pass, counts_of_boxes, moving_passes
from fastindex.moving.moves.nests.plan import fill_pass
from fastindex.moving.moves.nibble_pairs import PairGeometry
from fastindex.moving.moves.streams.plan import copy_passes
from fastindex.moving.numbers import BOX_BYTES, NIBBLE_BITS, StridedGeometry
from fastindex.moving.passes import Draft, blocks, cut, even_steps, iterations
from fastindex.moving.problem import Context, Problem
from fastindex.runtime.numbers import LINE_BYTES

#: Packed elements per byte.
PER_BYTE = 8 // NIBBLE_BITS
# The most elements of a box, and the fewest: with gaps, a box may need to be smaller to fit scratch memory.
_MOST_ELEMENTS, _LEAST_ELEMENTS = 128 << 10, 8 << 10
# The least bytes of a run that is copied.
_LONG_RUN = 32
# The most nibbles that a task copies one by one.
_MOST_NIBBLES = 4096
# The factor by which gaps may lengthen a run.
_MOST_LENGTHENING = 4


@dataclass(frozen=True, slots=True)
class _Image:
    """The layout of the pairs of a box in scratch memory.

    Attributes
    ----------
    strides : dict
        Stride in bytes along each loop except the columns; along the rows, from one pair of rows to the next.
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
    """Return the passes between two packed sides, or None if there are none."""
    source, destination, loops = problem.source, problem.destination, problem.slots.loops
    if loops is None or problem.slot_bits != (NIBBLE_BITS, NIBBLE_BITS) or not problem.may_convert:
        return None
    if not isinstance(source, Shape) or not isinstance(destination, Shape):
        return None
    return pair_passes(loops, problem.context, destination.slot_count, source.nbytes)


def pair_passes(loops: RelayoutLoops, context: Context, slots: int, readable: int) -> tuple[Draft, ...] | None:
    """Return the passes between two packed sides, or None if there are none; nests without pairs move by nibbles.

    Parameters
    ----------
    loops : RelayoutLoops
        In elements.
    context : Context
    slots, readable : int
        Number of slots of the destination, and of bytes of the source.
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
        made = _Pairs(nest, row, context, slots, readable).passes()
        if made is None:
            return None
        found += made
    has_pairs = any(one.kernel == "boxes" for one in found)
    return (*found, *(fill_pass(nest, context) for nest in fills.fills)) if has_pairs else None


class _Pairs:
    """The boxes of one nest of which rows are paired.

    Attributes
    ----------
    row : Loop
        The loop that is contiguous in the destination.
    """

    def __init__(self, nest: Nest, row: Loop, context: Context, slots: int, readable: int) -> None:
        self.nest, self.row, self.context, self.slots, self.readable = nest, row, context, slots, readable

    def passes(self) -> list[Draft] | None:
        """Return the passes over the largest boxes that scratch memory holds, and over single nibbles at row ends."""
        most = _MOST_ELEMENTS
        while most >= _LEAST_ELEMENTS:
            made = self._of_boxes(most)
            if made is not None:
                return [*made, *single_nibbles(self.nest, self.row, self.slots)]
            most //= 2
        return None

    def _of_boxes(self, most: int) -> list[Draft] | None:
        """Return the passes over boxes of at most `most` elements; None if they are too large or split bytes."""
        sizes = box_sizes(self.nest.loops, (), 1, most, most)
        if sizes is None or (sizes[self.row] < self.row.size and sizes[self.row] % PER_BYTE):
            return None
        others = [k for k in self.nest.loops if k is not self.row]
        is_shifted = self.nest.destination_start % PER_BYTE or any(k.destination_stride % PER_BYTE for k in others)
        # If columns may begin within a byte, boxes have one more row than they write: they overlap.
        more = int(is_shifted and sizes[self.row] < self.row.size)
        written = {k: k._replace(size=k.size - more) if k is self.row else k for k in self.nest.loops}
        shorter: Sizes = {written[k]: sizes[k] for k in self.nest.loops}
        found: list[Draft] = []
        for parts, outer in kinds_of_boxes(self.nest, shorter):
            lengths = {k: len(parts[written[k]]) + (more if k is self.row else 0) for k in self.nest.loops}
            box = tuple(k._replace(size=length) for k, length in lengths.items() if length > 1)
            for part in _by_parity(outer):
                made = self._box_passes(box, part)
                if made is None:
                    return None
                found += made
        return found

    def _box_passes(self, box: tuple[Loop, ...], outer: Nest) -> list[Draft] | None:
        """Return the pass over boxes, an empty list if they have no pairs; None if they are too large."""
        row = next((k for k in box if k.destination_stride == 1), Loop(1, 0, 1))
        columns = _columns([k for k in box if k is not row])
        others = [k for k in box if k is not row and k not in columns]
        begin, start = outer.source_start % PER_BYTE, outer.destination_start % PER_BYTE
        image = _image(row, columns, others, is_even=not begin)
        if image.nbytes > BOX_BYTES:
            return None
        moving: list[tuple[Draft, bool, bool]] = []
        counts: dict[int, int] = {}
        for odd, moved in self._moves(row, columns, others, image, start):
            counts[odd] = (row.size - odd) // PER_BYTE
            context = Context(1, self.context.streamed, self.context.tuning, self.context.machine)
            moving += [(one, True, False) for one in _moving(moved, context)]
        loops = row, columns, others
        pairing = [(self._pairing(loops, image, begin, odd, counts[odd]), False, True) for odd in sorted(counts)]
        if not moving:
            return []
        steps, elements = (*pairing, *moving), iterations(box)
        counted = counts_of_boxes(steps, outer.element_count, self.context.streamed)
        readable, bits = self.readable - outer.source_start // PER_BYTE, (NIBBLE_BITS, NIBBLE_BITS)
        why = "which move as bytes within the cache"
        return [box_pass(elements, outer, bits, steps, why, counted, readable_bytes=readable)]

    def _moves(
        self, row: Loop, columns: list[Loop], others: list[Loop], image: _Image, start: int
    ) -> Iterator[tuple[int, Nest]]:
        """Yield, for each parity, the first row of its pairs (0 or 1), and the nest that moves these pairs as bytes."""
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
                count = (row.size - odd) // PER_BYTE
                if not count:
                    continue
                loops = [Loop(k.size, k.source_stride, k.destination_stride // PER_BYTE) for k in part.loops]
                pairs = Loop(count, image.strides[row], 1)
                begin = part.source_start + LINE_BYTES + odd * BOX_BYTES
                yield odd, coalesced(Nest((pairs, *loops), begin, (part.destination_start + odd) // PER_BYTE))

    def _pairing(
        self, loops: tuple[Loop, list[Loop], list[Loop]], image: _Image, begin: int, odd: int, count: int
    ) -> Draft:
        """Return the pass that makes `count` pairs of the rows of a box, beginning with row `odd`.

        `loops` is (loop of the rows, loops of the columns, other loops).
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
        geometry = (
            *found.chunks,
            *PairGeometry(
                begin=begin + odd * row.source_stride,
                elements=elements,
                row_stride=row.source_stride,
                high=image.high,
                group_bytes=image.group_bytes,
                chunks_ahead=max(LINES_AHEAD // lines, 1),
            ),
        )
        return Draft(
            "pair nibbles",
            1,
            found.around(Nest((), 0, LINE_BYTES + odd * BOX_BYTES)),
            geometry,
            found.places * (elements + 1) // 2 * 2,
            "rows of packed elements whose neighbours in the destination share bytes",
            Counts(runs=iterations(ordered), shuffled=iterations(ordered) * elements / LINE_BYTES),
            lambda: (found.offsets(),),
            blocks=found.number,
        )


def _columns(loops: list[Loop]) -> list[Loop]:
    """Return the loops that form one run of the source, with short gaps, and keep the parity of places."""
    found = [next((k for k in loops if k.source_stride == 1), Loop(1, 1, 0))]
    for loop in sorted(loops, key=lambda k: k.source_stride):
        length = _span(found)
        is_near = length <= loop.source_stride <= _MOST_LENGTHENING * length
        if loop is not found[0] and loop.source_stride % PER_BYTE == 0 and is_near:
            found.append(loop)
    return found


def _span(loops: Sequence[Loop]) -> int:
    """Return the number of places from the first element to the last."""
    return 1 + sum((k.size - 1) * k.source_stride for k in loops)


def _image(row: Loop, columns: list[Loop], others: list[Loop], is_even: bool) -> _Image:
    """Return the layout of the pairs of a box: in the order of the source, rows of bytes without gaps."""
    pairs = -(-row.size // PER_BYTE)
    length = _span(columns)
    group = length // PER_BYTE
    strides: dict[Loop, int] = {}
    even = is_even and not any(k.source_stride % PER_BYTE for k in (row, *others))
    if even and length % PER_BYTE == 0 and group in (1, 2, 4) and row.source_stride == length and pairs > 1:
        strides[row] = group
        step = _row_pitch(group * pairs)
        for k in sorted(others, key=lambda k: k.source_stride):
            strides[k] = step
            step *= k.size
        high = (step // LINE_BYTES + 2) * LINE_BYTES
        return _Image(strides, high, group, high + step + 2 * LINE_BYTES)
    size = -(-length // 2)
    step = _row_pitch(2 * size)
    pair_of_rows = Loop(pairs, PER_BYTE * row.source_stride, 0)
    for k in sorted((pair_of_rows, *others), key=lambda k: k.source_stride):
        strides[row if k is pair_of_rows else k] = step
        step *= k.size
    return _Image(strides, size, 0, step + 3 * LINE_BYTES)


def _row_pitch(nbytes: int) -> int:
    """Return the pitch of rows of `nbytes`: an odd number of lines for long ones, to spread them over cache sets."""
    return nbytes if nbytes < 4 * LINE_BYTES else LINE_BYTES * (-(-nbytes // LINE_BYTES) | 1)


def _by_parity(outer: Nest) -> Iterator[Nest]:
    """Yield the parts of a nest whose boxes all begin with the same nibble of a byte, on both sides."""
    for part in even_steps(outer, 0):
        yield from even_steps(part, 1)


def _moving(nest: Nest, context: Context) -> tuple[Draft, ...]:
    """Return the passes that move the pairs of a box; long runs are copied, never moved as wide elements one by one."""
    is_copied = any(k.source_stride == k.destination_stride == 1 and k.size >= _LONG_RUN for k in nest.loops)
    return tuple(copy_passes(nest, context)) if is_copied else moving_passes(nest, context)


def single_nibbles(nest: Nest, row: Loop, slots: int) -> Iterator[Draft]:
    """Yield the passes that copy the first or last element of the rows that begin or end within a byte.

    Parameters
    ----------
    nest : Nest
        In elements.
    row : Loop
        The loop that is contiguous in the destination.
    slots : int
        Number of slots of the destination.
    """
    others = Nest(tuple(k for k in nest.loops if k is not row), nest.source_start, nest.destination_start)
    last = (row.size - 1) * row.source_stride, row.size - 1
    for part in even_steps(others, 1):
        odd = part.destination_start % PER_BYTE
        for source, target in [(0, 0)] * odd + [last] * ((row.size - odd) % PER_BYTE):
            yield from nibble_passes(
                Nest(part.loops, part.source_start + source, part.destination_start + target), slots
            )


def nibble_passes(nest: Nest, slots: int) -> Iterator[Draft]:
    """Yield the passes that copy the elements of a nest one by one; the destination has `slots` slots."""
    longest = max(nest.loops, key=lambda k: k.size, default=Loop(1, 0, 0))
    for piece in cut(nest, longest, _MOST_NIBBLES):
        along = max(piece.loops, key=lambda k: k.size, default=Loop(1, 0, 0))
        outer = [k for k in piece.loops if k is not along]
        geometry = StridedGeometry(
            0,
            *along,
            *Loop(1, 0, 0),
            source_nibble=piece.source_start,
            target_nibble=piece.destination_start,
            last_nibble=slots - 1 if slots % PER_BYTE else -1,
        )
        why = "nibbles: the other one of their byte is another row's"
        yield Draft("strided", 1, Nest(tuple(outer)), geometry, along.size, why, Counts(ends=piece.element_count))
