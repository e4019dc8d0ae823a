"""Passes that gather: contiguous pieces of the destination are written element by element, by a table of offsets.

This pays off if all elements of a line of the source go to one short piece, as in small matrices, or if a line has a
single element. A piece holds many such matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest
from fastindex.moving.counts import LINES_AHEAD, Counts, distinct, overflows, piece_ends
from fastindex.moving.moves.gathers import GATHERED_BYTES, MOST_PIECE_BYTES, GatherGeometry
from fastindex.moving.passes import Draft, Tables, along, blocks, cut, iterations, without
from fastindex.moving.problem import Context
from fastindex.runtime.machine import Cache
from fastindex.runtime.numbers import LINE_BYTES


def gather_passes(nest: Nest, context: Context) -> Iterator[Draft]:
    """Yield the passes that gather the elements of a nest, in bytes; none if distant pieces share lines of the source.

    Parameters
    ----------
    nest : Nest
    context : Context
        Its width is the bytes of an element.
    """
    if context.width not in GATHERED_BYTES:
        return
    chain, joined_bytes = nest.adjacent(context.width), context.tuning.gathered_chunk_bytes
    near = [k for k in nest.loops if abs(k.source_stride) < LINE_BYTES]
    if not chain or any(k not in chain for k in near):
        return
    if near == chain[:1] and (len(nest.loops) == 1 or chain[0].size * context.width >= joined_bytes):
        # Elements with one stride along long rows: their lines are consecutive without a gather.
        return
    # The loops of a piece: all that share lines, perhaps a part of the last, then others up to `gathered_chunk_bytes`.
    last = max((chain.index(k) for k in near), default=0)
    taken = context.width * iterations(chain[:last])
    if 4 * taken > MOST_PIECE_BYTES:
        return
    whole = list(chain[:last])
    for position, loop in enumerate(chain[last:]):
        most = (MOST_PIECE_BYTES // 2 if position == 0 and loop in near else joined_bytes) // taken
        if loop.size > 2 * most or (position and loop.size > most):
            if most < 2:
                break
            for part in cut(nest, loop, most):
                yield _draft(part, [*whole, along(part, loop)], context)
            return
        whole.append(loop)
        taken *= loop.size
    yield _draft(nest, whole, context)


def _draft(nest: Nest, taken: Sequence[Loop], context: Context) -> Draft:
    """Return the pass whose pieces are the loops `taken`, which are adjacent in the destination."""
    width, tuning = context.width, context.tuning
    piece = blocks(taken, iterations(taken))
    piece_bytes = width * piece.places
    found = blocks(without(nest.loops, taken), max(1, tuning.task_bytes // piece_bytes))
    offsets = piece.sources()
    ends = np.concatenate([offsets, offsets + width - 1]) + nest.source_start
    lines = distinct(ends // LINE_BYTES) * LINE_BYTES - nest.source_start
    geometry = (
        *found.chunks,
        *GatherGeometry(
            element_bytes=width,
            elements=piece.places,
            streamed=context.streamed,
            lines=len(lines),
            chunks_ahead=-(-LINES_AHEAD // len(lines)),
        ),
    )

    def tables() -> Tables:
        return found.offsets(), np.concatenate([offsets, lines])

    return Draft(
        "gather pieces",
        width,
        found.around(nest),
        geometry,
        found.places * piece_bytes,
        f"pieces of {piece_bytes} bytes, of elements in {len(lines)} lines of the source",
        _counts(nest, width, (piece.places, lines), context.machine.caches.l1)._replace(
            ends=piece_ends(nest, width, context.streamed, context.tuning.line_offset)
        ),
        tables,
        blocks=found.number,
    )


def _counts(nest: Nest, width: int, piece: tuple[int, NDArray[np.int64]], l1: Cache) -> Counts:
    """Count the work of a gather; `piece` is (elements of a piece, lines of the source that hold them)."""
    elements, lines = piece
    pieces = nest.element_count // elements
    return Counts(
        lines=nest.element_count * width / LINE_BYTES,
        gathered=nest.element_count,
        blocks=pieces,
        pieces=pieces * len(lines),
        missed=pieces * len(lines) if overflows(lines, l1.sets, l1.ways + l1.ways // 4) else 0,
    )
