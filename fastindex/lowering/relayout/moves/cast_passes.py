"""Passes that convert elements to another type while they move: box by box, within the cache.

The elements of a box are read in the order of the source, converted, and written one after the other to scratch memory
that the cache holds; from there they move as elements of the destination, by the passes of any other relayout.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastindex.lowering.relayout.moves.box_geometry import (
    box_sizes,
    kinds_of_boxes,
    nests_to_scratch,
    order_on,
    turned,
)
from fastindex.lowering.relayout.moves.boxes import Box
from fastindex.lowering.relayout.moves.nest_passes import copying_passes, fill_pass
from fastindex.lowering.relayout.passes.blocks import cut
from fastindex.lowering.relayout.passes.counts import Counts
from fastindex.lowering.relayout.passes.form import Draft, Pass, with_tables
from fastindex.lowering.relayout.problem.casts import Cast
from fastindex.lowering.relayout.problem.loops import Loop, Nest, RelayoutLoops, in_bytes
from fastindex.lowering.relayout.problem.problem import Context
from fastindex.lowering.tuning import TUNING, Tuning
from fastindex.tables.boxes import BOX_BYTES
from fastindex.tables.casts import CastGeometry

# A box of strided runs is one task; a contiguous cast is cut into pieces that threads share.
_PIECE_ELEMENTS = 64 << 10


def cast_passes(loops: RelayoutLoops, cast: Cast, tuning: Tuning = TUNING) -> tuple[Pass, ...]:
    """Choose the passes that move elements of one type to places of another, and fill padding.

    Parameters
    ----------
    loops : RelayoutLoops
        In elements, each of them a whole number of bytes on both sides.
    cast : Cast
    tuning : Tuning, optional

    Examples
    --------
    >>> from fastindex import Shape
    >>> from fastindex.lowering.relayout.problem.casts import cast_of
    >>> from fastindex.lowering.relayout.problem.loops import relayout_loops
    >>> a, b = Shape.parse("f32[64,256]"), Shape.parse("bf16[64,256]{1,0:T(8,128)(2,1)}")
    >>> for one in cast_passes(relayout_loops(a, b), cast_of(a.element_type, b.element_type)):
    ...     print(one.describe())
    boxes, 1-byte units, 1 task, about 32768 bytes: boxes of 16384 elements, cast from f32 to bf16 within the cache \
(cast, interleave)
    """
    width = cast.target.nbytes
    total = width * sum(nest.element_count for nest in (*loops.copies, *loops.fills))
    context = Context(width, total >= tuning.streamed_bytes, tuning)
    found = [draft for nest in loops.copies for draft in _boxes(nest, cast, context)]
    found += [fill_pass(in_bytes(nest, width), context) for nest in loops.fills]
    return with_tables(found)


def contiguous_cast(count: int, cast: Cast) -> tuple[Pass, ...]:
    """Choose the passes that convert `count` elements which are contiguous on both sides.

    Examples
    --------
    >>> from fastindex.lowering.relayout.problem.casts import cast_of
    >>> from fastindex.shapes.element_types import ElementType
    >>> [one.tasks for one in contiguous_cast(200000, cast_of(ElementType.of("f32"), ElementType.of("s8")))]
    [3, 1]
    """
    loop = Loop(count, 1, 1)
    parts = cut(Nest((loop,)), loop, _PIECE_ELEMENTS) if count else ()
    return with_tables(_cast_pass(part, cast, False) for part in parts)


def _boxes(nest: Nest, cast: Cast, context: Context) -> Iterator[Draft]:
    """Yield the passes over the boxes of a nest, in elements, which scratch memory has in the order of the source."""
    widths = cast.source.nbytes, context.width
    # Runs have to be long enough on the side where an element has fewer bytes.
    sizes = box_sizes(nest.loops, (), min(widths), BOX_BYTES * min(widths) // context.width)
    assert sizes is not None, "scratch memory holds an element"
    order = order_on(sizes, 0)
    for parts, outer in kinds_of_boxes(nest, sizes):
        box = Box(order, parts, outer)
        steps = [(_cast_pass(one, cast), False, True) for one in nests_to_scratch(order, parts, 0)]
        for one in nests_to_scratch(order, parts, 1):
            moved = copying_passes(in_bytes(turned(one), context.width), context)
            steps += [(each, True, False) for each in moved]
        why = f"cast from {cast.source} to {cast.target} within the cache"
        yield box.draft(widths, steps, why, Counts())


def _cast_pass(nest: Nest, cast: Cast, many_runs: bool = True) -> Draft:
    """Return the pass that converts the elements of a nest, the nearest in the source together.

    A task converts one run or many.
    """
    read, width = cast.source.nbytes, cast.target.nbytes
    loops = sorted(nest.loops, key=lambda k: (abs(k.source_stride), abs(k.destination_stride)))
    run, *outer = loops or [Loop(1, 1, 1)]
    runs = outer.pop(0) if outer and many_runs else Loop(1, 0, 0)
    in_tasks = tuple(Loop(k.size, k.source_stride * read, k.destination_stride * width) for k in outer)
    geometry = CastGeometry(
        run.size,
        run.source_stride * read,
        run.destination_stride * width,
        runs.size,
        runs.source_stride * read,
        runs.destination_stride * width,
        run.source_stride == run.destination_stride == 1,
    )
    return Draft(
        "cast",
        cast.code,
        Nest(in_tasks, nest.source_start * read, nest.destination_start * width),
        geometry,
        run.size * runs.size * width,
        f"{cast.source} to {cast.target}",
        Counts(),
        lambda: (cast.results,),
    )
