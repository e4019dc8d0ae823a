"""Where packed elements of four bits are in scratch memory, a byte each, and how they get there.

Spans of the source are expanded as they are, short gaps and all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastindex.lowering.relayout.moves.box_parts import PER_BYTE
from fastindex.lowering.relayout.moves.stream_passes import packed_run_passes
from fastindex.lowering.relayout.passes.blocks import even_steps
from fastindex.lowering.relayout.passes.form import Draft, Goal
from fastindex.lowering.relayout.problem.loops import Loop, Nest
from fastindex.tables.cache_lines import LINE_BYTES

#: In front of the expanded elements, so that a span may begin an element early.
FRONT_BYTES = LINE_BYTES
# Gaps of up to such a part of a span, or of so many elements, are expanded with it.
_GAP_SHARE, _LEAST_GAP = 4, 8


@dataclass(frozen=True, slots=True)
class Image:
    """Where the elements of a box are in scratch memory.

    Attributes
    ----------
    strides : dict
        Bytes between the elements of a loop.
    length : int
        Of a span, in elements.
    apart : tuple of Loop
        The loops from one span to the next.
    """

    strides: dict[Loop, int]
    length: int
    apart: tuple[Loop, ...]

    @property
    def nbytes(self) -> int:
        return FRONT_BYTES + self.length + LINE_BYTES + sum((k.size - 1) * self.strides[k] for k in self.apart)


def source_image(box: Sequence[Loop], with_gaps: bool = True) -> Image:
    """Return where a box is once it is expanded: short gaps are expanded with it, unless there are to be none."""
    strides: dict[Loop, int] = {}
    length, apart = 1, list[Loop]()
    for loop in sorted(box, key=lambda k: k.source_stride):
        gap = max(length // _GAP_SHARE, _LEAST_GAP) if with_gaps else 0
        if not apart and loop.source_stride <= length + gap:
            strides[loop] = loop.source_stride
            length += loop.source_stride * (loop.size - 1)
        else:
            apart.append(loop)
    return image_of(strides, length, apart)


def image_of(strides: dict[Loop, int], length: int, apart: Sequence[Loop]) -> Image:
    """Return an image whose spans are an odd number of lines apart, so that they do not meet in few sets of L1."""
    step = LINE_BYTES * (length // LINE_BYTES + 1 | 1) if length >= LINE_BYTES else length // 8 * 8 + 8
    for loop in apart:
        strides[loop] = step
        step *= loop.size
    return Image(strides, length, tuple(apart))


def expanding(image: Image, start: int, goal: Goal) -> Iterator[Draft]:
    """Yield the passes that expand the spans of a box, the first of which begins with the half `start` of a byte."""
    loops = tuple(Loop(k.size, k.source_stride, image.strides[k]) for k in image.apart)
    kept = Goal(1, False, goal.tuning)
    for part in even_steps(Nest(loops, start, FRONT_BYTES + start % PER_BYTE), 0):
        # A span that begins within a byte is expanded from that byte on.
        odd = part.source_start % PER_BYTE
        run = Loop(image.length + odd, 1, 1)
        nest = Nest((run, *part.loops), part.source_start - odd, part.destination_start - odd)
        yield from packed_run_passes(nest, run, PER_BYTE, "expand", kept)
