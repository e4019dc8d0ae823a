"""Passes for elements of four bits whose runs do not begin and end with a byte alike on both sides: box by box.

A box is a part of a nest, so small that its elements, a byte each, stay in the cache. Where the source is packed, the
spans that hold a box are expanded to bytes, gaps and all; the elements move as bytes, by the same passes as whole
arrays of them; where the destination is packed, its runs are compressed into it. A run that begins within a byte of the
destination is compressed from its second element on, and one element of the next box is moved with it; what is left
over, a half of a byte at either end of a row, is copied by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fastindex.lowering.relayout.moves.box_parts import (
    PER_BYTE,
    box_parts,
    by_parity,
    moving_passes,
    pass_over,
    single_halves,
    with_largest_boxes,
)
from fastindex.lowering.relayout.moves.nest_passes import fill_pass
from fastindex.lowering.relayout.moves.nibble_images import FRONT_BYTES, Image, expanding, image_of, source_image
from fastindex.lowering.relayout.moves.nibble_pairs import paired_passes
from fastindex.lowering.relayout.moves.stream_passes import packed_run_passes
from fastindex.lowering.relayout.passes.blocks import even_steps
from fastindex.lowering.relayout.passes.calibration import cost
from fastindex.lowering.relayout.passes.form import Draft, Goal, iterations
from fastindex.lowering.relayout.problem.loops import Loop, Nest, RelayoutLoops, coalesced, grouped
from fastindex.shapes.slot_format import SlotFormat
from fastindex.tables.assemblies import HALF_BITS
from fastindex.tables.boxes import BOX_BYTES


def boxed_passes(
    loops: RelayoutLoops,
    formats: tuple[SlotFormat, SlotFormat],
    goal: Goal,
    slots: int,
    readable: int,
    most_cycles: float = math.inf,
    pairs: bool = False,
) -> tuple[Draft, ...] | None:
    """Return the passes that move packed elements box by box.

    None where that is not possible, or where they take as long as `most_cycles`, another way to do it.

    Parameters
    ----------
    loops : RelayoutLoops
        In elements.
    formats : (SlotFormat, SlotFormat)
        Of source and destination: four bits, or bytes.
    goal : Goal
    slots, readable : int
        Slots of the destination, and bytes of the source.
    most_cycles : float, optional
    pairs : bool
        Whether rows are paired wherever they can be.
    """
    packed = formats[0].is_packed, formats[1].is_packed
    if not any(packed) or any(
        form.bits != (HALF_BITS if one else 8) for form, one in zip(formats, packed, strict=True)
    ):
        return None
    fills = grouped(RelayoutLoops((), loops.fills), PER_BYTE) if packed[1] else loops
    if fills is None:
        return None
    filling = [fill_pass(nest, goal) for nest in fills.fills]
    boxes = _nest_by_nest(loops.copies, packed, goal, slots, readable, most_cycles - cost(filling), pairs)
    return None if boxes is None else (*boxes, *filling)


def _nest_by_nest(
    nests: Sequence[Nest],
    packed: tuple[bool, bool],
    goal: Goal,
    slots: int,
    readable: int,
    most_cycles: float,
    pairs: bool,
) -> list[Draft] | None:
    """Return the passes that move each nest, or None as `boxed_passes`."""
    found: list[Draft] = []
    cycles = 0.0
    for nest in nests:
        if cycles >= most_cycles:
            return None
        paired = paired_passes(nest, goal, slots, readable) if pairs and all(packed) else None
        best = _Boxes(nest, packed, goal, slots, readable).passes() if paired is None else paired
        if best is None:
            return None
        found, cycles = found + best, cycles + cost(best)
    return found if cycles < most_cycles else None


class _Boxes:
    """The boxes of one nest.

    Attributes
    ----------
    joined : list of Loop
        The loops whose elements in a box are one run of the destination, minor first.
    is_shifted : bool
        Whether some runs of the destination begin or end within a byte.
    """

    def __init__(self, nest: Nest, packed: tuple[bool, bool], goal: Goal, slots: int, readable: int) -> None:
        self.nest, self.packed, self.goal, self.slots, self.readable = nest, packed, goal, slots, readable
        self.joined: list[Loop] = []
        self.is_shifted = False

    def passes(self) -> list[Draft] | None:
        """Return the passes, with boxes as large as fit; None where there are none."""
        if any(k.source_stride < 0 or k.destination_stride < 0 for k in self.nest.loops):
            return None
        return with_largest_boxes(self.nest.loops, self._passes_of)

    def _passes_of(self, sizes: dict[Loop, int]) -> list[Draft] | None:
        self.joined = _joined(self.nest.loops, sizes)
        last = self.joined[-1] if self.joined else Loop(1, 1, 1)
        size = sizes.get(last, 1)
        is_part, step = size < last.size, size * last.destination_stride
        self.is_shifted = self.packed[1] and (bool(is_part and step % PER_BYTE) or self._has_odd_runs())
        if self.is_shifted and is_part and step % PER_BYTE:
            return None
        found: list[Draft] = []
        longer = last if self.is_shifted and is_part else None
        for box, is_longer, outer in box_parts(self.nest, sizes, longer):
            for part in by_parity(outer, self.packed):
                made = self._box_passes(box, is_longer, part)
                if made is None:
                    return None
                found += made
        if not self.is_shifted:
            return found
        return [*found, *single_halves(self.nest, self.joined, self.packed[0], self.slots)]

    def _has_odd_runs(self) -> bool:
        """Whether a run begins within a byte, or ends within one that is not the last."""
        around = [k for k in self.nest.loops if k not in self.joined]
        start, length = self.nest.destination_start, iterations(self.joined)
        if start % PER_BYTE or any(k.destination_stride % PER_BYTE for k in around):
            return True
        return length % PER_BYTE != 0 and (iterations(around) > 1 or start + length < self.slots)

    def _box_passes(self, box: tuple[Loop, ...], is_longer: bool, outer: Nest) -> list[Draft] | None:
        """Return the pass over boxes, none where only single halves are written; None where they are too large."""
        read, written = source_image(box), self._target_image(box)
        if (self.packed[0] and read.nbytes > BOX_BYTES) or (self.packed[1] and written.nbytes > BOX_BYTES):
            return None
        inner: list[tuple[Draft, bool, bool]] = []
        odd = outer.source_start % PER_BYTE
        if self.packed[0]:
            inner += [(one, False, True) for one in expanding(read, odd, self.goal)]
        moved = self._move(box, read, written, odd)
        goal = Goal(1, self.goal.streamed and not self.packed[1], self.goal.tuning)
        inner += [(one, *self.packed) for one in moving_passes(moved, goal)]
        if self.packed[1]:
            compressing = list(self._compressing(written, is_longer, outer.destination_start % PER_BYTE))
            if not compressing:
                return []
            inner += [(one, True, False) for one in compressing]
        return [pass_over(box, outer, self.packed, tuple(inner), self.readable)]

    def _move(self, box: tuple[Loop, ...], read: Image, written: Image, odd: int) -> Nest:
        """Return how the elements of a box move as bytes; `odd` is the half of a byte that they begin with."""
        loops = tuple(
            Loop(
                k.size,
                read.strides[k] if self.packed[0] else k.source_stride,
                written.strides[k] if self.packed[1] else k.destination_stride,
            )
            for k in box
        )
        starts = FRONT_BYTES + odd if self.packed[0] else 0, BOX_BYTES + FRONT_BYTES if self.packed[1] else 0
        return coalesced(Nest(loops, *starts))

    def _target_image(self, box: tuple[Loop, ...]) -> Image:
        """Return where a box is before it is compressed: what is one run of the destination is one here."""
        last = self.joined[-1].destination_stride if self.joined else 0
        within = [k for k in box if k.destination_stride <= last]
        apart = sorted((k for k in box if k not in within), key=lambda k: k.destination_stride)
        return image_of({k: k.destination_stride for k in within}, iterations(within), apart)

    def _compressing(self, image: Image, is_longer: bool, start: int) -> Iterator[Draft]:
        """Yield the passes that compress the runs of a box, the first of which begins at the half `start` of a byte."""
        apart = Nest(tuple(Loop(k.size, image.strides[k], k.destination_stride) for k in image.apart), 0, start)
        for part in even_steps(apart, 1):
            odd = part.destination_start % PER_BYTE
            length = image.length - (self.joined[-1].destination_stride if is_longer else odd)
            if self.is_shifted:
                length -= length % PER_BYTE
            if length:
                run, begin = Loop(length, 1, 1), BOX_BYTES + FRONT_BYTES + part.source_start + odd
                nest = Nest((run, *part.loops), begin, part.destination_start + odd)
                yield from packed_run_passes(nest, run, PER_BYTE, "compress", self.goal)


def _joined(loops: Sequence[Loop], sizes: dict[Loop, int]) -> list[Loop]:
    """Return the loops whose elements in a box are one run of the destination."""
    found: list[Loop] = []
    length = 1
    for loop in sorted(loops, key=lambda k: k.destination_stride):
        if loop.destination_stride != length or sizes[loop] == 1:
            break
        found.append(loop)
        if sizes[loop] < loop.size:
            break
        length *= loop.size
    return found
