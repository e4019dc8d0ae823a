"""Passes that convert elements to another type while they move: box by box, within the cache.

The elements of a box pass through scratch memory that fits the cache. They move there by the passes of any other
relayout, and are converted as they are written, with non-temporal stores if these are better. Elements that shrink to
less than half are converted as they are read, and then moved by the passes of a relayout: the cache holds more of them.
Boxes are in the order of the source: in the order of the destination, where the next box reads other pages, f32 to bf16
and back, transposed, took a tenth to a third longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fastindex.algebra.cast_numbers import CastGeometry
from fastindex.algebra.casts import Cast
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, exchanged, in_bytes
from fastindex.moving.counts import Counts
from fastindex.moving.moves.boxes.geometry import box_sizes, kinds_of_boxes, nests_to_scratch, order_on
from fastindex.moving.moves.boxes.plan import LEAST_BOX_BYTES, Step, box_pass, within
from fastindex.moving.moves.nests.plan import copying_passes, fill_pass
from fastindex.moving.numbers import BOX_BYTES
from fastindex.moving.passes import Draft, Pass, along, cut, with_tables
from fastindex.moving.problem import Context
from fastindex.runtime.machine import Machine
from fastindex.runtime.tuning import TUNING, Tuning

# Prefetch distance. For rows pages apart, 0 takes twice as long, 2 KiB half as long again.
_AHEAD_BYTES = 8 << 10
# Shorter runs are moved through scratch memory, box by box.
_LEAST_DIRECT_BYTES = 128
# Elements that shrink by a larger factor are converted as they are read. In multiples of the time of the source alone,
# transposed, and transposed to tiles: f32 to f16 1.09 and 1.56 as they are read, 0.94 and 1.07 as they are
# written; f64 to f32 1.64, 1.66, 0.95 and 1.12; but f32 to s8 0.78 and 1.13, and 1.40 and 1.08. One thread of an AMD
# EPYC (2026-11-26).
_MOST_SHORTER = 2
# A box of strided runs is one task; a contiguous cast is split into pieces of this size, which threads share.
_PIECE_ELEMENTS = 64 << 10


def cast_passes(loops: RelayoutLoops, cast: Cast, machine: Machine, tuning: Tuning = TUNING) -> tuple[Pass, ...]:
    """Choose the passes that cast elements from one type and layout to another, and fill padding.

    Parameters
    ----------
    loops : RelayoutLoops
        In elements, each a whole number of bytes on both sides.
    cast : Cast
    machine : Machine
    tuning : Tuning, optional

    Examples
    --------
    >>> from fastindex import Shape
    >>> from fastindex.algebra.casts import cast_of
    >>> from fastindex.runtime.machine import EPYC_1M
    >>> from fastindex.algebra.loops import relayout_loops
    >>> a, b = Shape.parse("f32[64,256]"), Shape.parse("bf16[64,256]{1,0:T(8,128)(2,1)}")
    >>> for one in cast_passes(relayout_loops(a, b), cast_of(a.element_type, b.element_type), EPYC_1M):
    ...     print(one.describe())
    boxes, 1-byte units, 1 task, about 32,768 bytes: boxes of 16384 elements, cast from f32 to bf16 within the cache \
(interleave, cast)
    """
    width = cast.target.nbytes
    total = width * sum(nest.element_count for nest in (*loops.copies, *loops.fills))
    context = Context(width, total >= tuning.streamed_bytes, tuning, machine)
    found = [draft for nest in loops.copies for draft in _moving(nest, cast, context)]
    found += [fill_pass(in_bytes(nest, width), context) for nest in loops.fills]
    return with_tables(found)


def contiguous_cast(count: int, cast: Cast) -> tuple[Pass, ...]:
    """Choose the passes that convert `count` elements, contiguous on both sides.

    Examples
    --------
    >>> from fastindex.algebra.casts import cast_of
    >>> from fastindex.core.element_types import ElementType
    >>> [one.tasks for one in contiguous_cast(200000, cast_of(ElementType.of("f32"), ElementType.of("s8")))]
    [3, 1]
    """
    loop = Loop(count, 1, 1)
    parts = cut(Nest((loop,)), loop, _PIECE_ELEMENTS) if count else ()
    return with_tables(_cast_pass(part, cast, False) for part in parts)


def _moving(nest: Nest, cast: Cast, context: Context) -> Iterator[Draft]:
    """Yield the passes over a nest, in elements: runs that are long on both sides directly, others box by box."""
    run = nest.loop_of(1, 1)
    if run is None or run.size * min(cast.source.nbytes, context.width) < _LEAST_DIRECT_BYTES:
        yield from _boxes(nest, cast, context)
        return
    for part in cut(nest, run, _PIECE_ELEMENTS):
        one = along(part, run)
        runs = min((k for k in part.loops if k is not one), key=_by_source, default=None)
        pieces = [part] if runs is None else cut(part, runs, max(_PIECE_ELEMENTS // one.size, 1))
        yield from (_cast_pass(piece, cast, streams=context.streamed) for piece in pieces)


def _boxes(nest: Nest, cast: Cast, context: Context) -> Iterator[Draft]:
    """Yield the passes over the boxes of a nest, in elements, which are in the order of the source."""
    widths = cast.source.nbytes, context.width
    is_last = cast.source.nbytes <= _MOST_SHORTER * context.width
    in_scratch = widths[0] if is_last else widths[1]
    # Runs must be long enough on the side with the narrower elements.
    narrower = min(widths)
    most, least = (nbytes * narrower // in_scratch for nbytes in (BOX_BYTES, LEAST_BOX_BYTES))
    sizes = box_sizes(nest.loops, (), narrower, most, least)
    assert sizes is not None, "scratch memory holds an element"
    steps_of = _cast_last if is_last else _cast_first
    order = order_on(sizes, 1 if is_last else 0)
    for parts, outer in kinds_of_boxes(nest, sizes):
        there, on = (tuple(nests_to_scratch(order, parts, side)) for side in (0, 1))
        steps, why = steps_of(there, on, cast, context), f"cast from {cast.source} to {cast.target} within the cache"
        elements, bits = math.prod(map(len, parts.values())), (8 * widths[0], 8 * widths[1])
        yield box_pass(elements, outer, bits, steps, why, Counts(), by_source=True)


def _cast_first(there: Iterable[Nest], on: Iterable[Nest], cast: Cast, context: Context) -> list[Step]:
    """Return the steps of a box that is converted as it is read: scratch memory has the order of the source."""
    steps: list[Step] = [(_cast_pass(one, cast), False, True) for one in there]
    for one in on:
        steps += [(each, True, False) for each in copying_passes(in_bytes(exchanged(one), context.width), context)]
    return steps


def _cast_last(there: Iterable[Nest], on: Iterable[Nest], cast: Cast, context: Context) -> list[Step]:
    """Return the steps of a box that is converted as it is written: scratch memory has the order of the destination."""
    read, steps = within(replace(context, width=cast.source.nbytes)), list[Step]()
    for one in there:
        steps += [(each, False, True) for each in copying_passes(in_bytes(one, read.width), read)]
    return steps + [(_cast_pass(exchanged(one), cast, streams=context.streamed), True, False) for one in on]


def _by_source(loop: Loop) -> tuple[int, int]:
    return abs(loop.source_stride), abs(loop.destination_stride)


def _cast_pass(nest: Nest, cast: Cast, many_runs: bool = True, streams: bool = False) -> Draft:
    """Return the pass that converts the elements of a nest; the innermost loops have the smallest source strides.

    A task converts one run, or several if `many_runs`. With `streams`, whole lines are written by non-temporal stores.
    """
    read, width = cast.source.nbytes, cast.target.nbytes
    loops = sorted(nest.loops, key=_by_source)
    run = nest.loop_of(1, 1) or next(iter(loops), Loop(1, 1, 1))
    outer = [k for k in loops if k is not run]
    runs = outer.pop(0) if outer and many_runs else Loop(1, 0, 0)
    is_dense = run.source_stride == run.destination_stride == 1
    ahead = _AHEAD_BYTES
    if runs.size > 1:
        ahead = max(_AHEAD_BYTES // (run.size * read), 1) * runs.source_stride * read
    geometry = CastGeometry(
        run.size,
        run.source_stride * read,
        run.destination_stride * width,
        runs.size,
        runs.source_stride * read,
        runs.destination_stride * width,
        is_dense,
        ahead,
        is_dense and streams,
    )
    return Draft(
        "cast",
        cast.code,
        in_bytes(nest._replace(loops=tuple(outer)), read, width),
        geometry,
        run.size * runs.size * width,
        f"{cast.source} to {cast.target}",
        Counts(),
        lambda: (cast.results,),
    )
