"""Passes for packed elements of four bits that permute the binary digits of their places: a butterfly network.

If the sizes of loops are powers of two, a place in the source and one in the destination are the same binary digits in
two orders: an index-bit permutation, of the class BPC of Nassimi and Sahni. Seven digits are the place in a vector of
64 bytes, others number rows. Digits that the destination has within a vector, and the source in the number of a row,
are swapped with digits of the vector that the destination has outside; then the digits of the vector are put in order.
Each swap is one stage of the butterfly. It is done for all vectors at once, so a few swaps serve a whole array::

    place of an element     r1 r0 | b6 b5 b4 b3 b2 b1 | b0        r  number of the row (vector)
    swap r0 with b0         r1 b0 | b6 b5 b4 b3 b2 b1 | r0        b  place in the vector, b0 the nibble of a byte
    swap r1 with b6         b6 b0 | r1 b5 b4 b3 b2 b1 | r0        exchange halves of two vectors
    put b in order          b6 b0 | b5 b4 r1 b1 b2 b3 | r0        permute the bytes of each vector

On machines that permute only 16 bytes at once, vectors are lanes with five digits. Two more digits number the lanes of
a line, of the destination or of the source: they take no part in swaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, grouped
from fastindex.moving.counts import Counts
from fastindex.moving.moves.digit_swaps import (
    DIGITS,
    KEPT,
    MOST_ROW_DIGITS,
    OF_ROWS,
    PIECES,
    WITHIN,
    SwapGeometry,
)
from fastindex.moving.moves.nests.plan import fill_pass
from fastindex.moving.numbers import NIBBLE_BITS, Chunks
from fastindex.moving.passes import Draft, Tables, cost, iterations, without
from fastindex.moving.problem import Context, Problem
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES

_PER_BYTE = 8 // NIBBLE_BITS
# The most vectors of each row in a task.
_MOST_PER_ROW = 64


class _Steps(NamedTuple):
    """The stages of the network that put digits in order.

    Attributes
    ----------
    rows : list of Loop
        The digits of the row number before the steps.
    halves, again : int
        As of a `SwapGeometry`.
    within : int
        The digit with which the lowest is swapped within a vector.
    places : list of int
        For each further step, the digit of the place that it swaps with one of the row number.
    order : list of int
        For each digit of the final place, its position before the last permutation.
    in_vector : list of Loop
        The digits that number the pieces of a vector, least significant first.
    left : list of Loop
        The digits of the row number after the steps.
    first : list of int
        For each digit of the place, its position before the first permutation, if the steps interleave lanes.
    """

    rows: list[Loop]
    halves: int
    again: int
    within: int
    places: list[int]
    order: list[int]
    in_vector: list[Loop]
    left: list[Loop]
    first: list[int]


class _Vectors(NamedTuple):
    """The digits of places within vectors; vectors are lanes of 16 bytes if there are digits that number lanes.

    Attributes
    ----------
    piece_bytes : int
        Bytes of a piece, which is contiguous in the destination.
    here, wanted : list of Loop
        The digits of a place within a vector of the source, and within a piece of the destination.
    lanes : list of Loop
        The digits that number the lanes of a line.
    """

    piece_bytes: int
    here: list[Loop]
    wanted: list[Loop]
    lanes: list[Loop]


def digit_swaps(problem: Problem) -> tuple[Draft, ...] | None:
    """Return the passes between two packed sides, or None if there are none."""
    loops, context = problem.slots.loops, problem.context
    if loops is None or problem.slot_bits != (NIBBLE_BITS, NIBBLE_BITS) or not problem.may_convert:
        return None
    fills = grouped(RelayoutLoops((), loops.fills), _PER_BYTE)
    if fills is None:
        return None
    found = [_digit_pass(nest, context) for nest in loops.copies]
    drafts = [one for one in found if one is not None]
    if len(drafts) < len(found):
        return None
    return (*drafts, *(fill_pass(nest, context) for nest in fills.fills))


def _digit_pass(nest: Nest, context: Context) -> Draft | None:
    """Return the pass that permutes the digits of a nest of packed elements, or None if that is impossible.

    Parameters
    ----------
    nest : Nest
        In elements, packed on both sides.
    context : Context
    """
    if nest.source_start % _PER_BYTE or nest.destination_start % _PER_BYTE:
        return None
    if any(min(k.source_stride, k.destination_stride) < 1 for k in nest.loops):
        return None
    digits, others = _binary(nest.loops)
    drafts = []
    for vectors in _vectors(digits, context.machine.target.vector_bytes):
        found = _steps(vectors)
        if found is not None:
            inside = vectors.here + vectors.lanes + found.rows
            around = [k for k in digits if k not in inside] + others
            read = [k.source_stride for k in around + vectors.lanes + found.rows]
            pieces = [k.destination_stride for k in found.in_vector]
            written = [k.destination_stride for k in around + found.left]
            if not any(stride % _PER_BYTE for stride in read + pieces + written):
                in_line = [_PER_BYTE * vectors.piece_bytes << k for k in range(len(pieces))]
                is_whole = pieces == in_line and not any(
                    place % (LINE_BYTES * _PER_BYTE) for place in (nest.destination_start, *written)
                )
                drafts.append(_pass(found, vectors, around, nest, (context.streamed, is_whole)))
    return min(drafts, key=lambda one: cost([one])) if drafts else None


def _vectors(digits: Sequence[Loop], vector_bytes: int) -> Iterator[_Vectors]:
    """Yield the possible choices of digits of vectors and pieces."""
    sides = [_run_of(digits, side, DIGITS) for side in (0, 1)]
    if vector_bytes == LINE_BYTES:
        for piece_bytes in PIECES:
            wanted = _run_of(digits, 1, _digits_of(piece_bytes))
            if sides[0] and wanted:
                yield _Vectors(piece_bytes, sides[0], wanted, [])
        return
    count = _digits_of(LANE_BYTES)
    here, wanted = (_run_of(digits, side, count) for side in (0, 1))
    for side in reversed(sides):
        # Whole lines of the destination are tried first: writing them at once is better than reading lines at once.
        if here and wanted and side and not any(k in here + wanted for k in side[count:]):
            yield _Vectors(LANE_BYTES, here, wanted, side[count:])


def _digits_of(nbytes: int) -> int:
    return (_PER_BYTE * nbytes).bit_length() - 1


def _binary(loops: Sequence[Loop]) -> tuple[list[Loop], list[Loop]]:
    """Return the binary digits of loops, and loops of the odd factors of their sizes."""
    digits, others = [], []
    for loop in loops:
        size, source, target = loop.size, loop.source_stride, loop.destination_stride
        while size % 2 == 0:
            digits.append(Loop(2, source, target))
            size, source, target = size // 2, 2 * source, 2 * target
        if size > 1:
            others.append(Loop(size, source, target))
    return digits, others


def _run_of(digits: Sequence[Loop], side: int, count: int) -> list[Loop] | None:
    """Return the lowest `count` digits of a place on a side, 0 or 1; None if one is missing."""
    by_stride = {(k.source_stride, k.destination_stride)[side]: k for k in digits}
    found = [by_stride.get(1 << i) for i in range(count)]
    return [k for k in found if k is not None] if None not in found else None


def _steps(vectors: _Vectors) -> _Steps | None:
    """Return the swaps that move the wanted digits into vectors; None if there are none, or too many."""
    here, wanted = vectors.here, vectors.wanted
    # The digit that becomes the nibble of a byte comes first.
    rows = sorted((k for k in wanted if k not in here), key=lambda k: k is not wanted[0])
    if not 0 < len(rows) <= MOST_ROW_DIGITS:
        return None
    places, row_digits = list(here), list(rows)
    halves, again, within = KEPT, 0, 0
    if wanted[0] in rows:
        halves, again = OF_ROWS, int(places[0] in wanted)
        places[0], row_digits[0] = row_digits[0], places[0]
    elif places[0] is not wanted[0]:
        halves, within = WITHIN, places.index(wanted[0])
        places[0], places[within] = places[within], places[0]
    steps = [*range(int(halves == OF_ROWS), len(rows)), *([0] if again else [])]
    unwanted = [k for k in places[1:] if k not in wanted]
    # Interleaving bytes removes the highest digit of a lane, and inserts that of the row as the lowest of a byte.
    interleaved = [places[0], *(k for k in places[1:] if k in wanted), *reversed(unwanted)]
    first, swapped = [places.index(k) for k in interleaved], list[int]()
    for row in steps:
        place = places.index(unwanted.pop(0))
        swapped.append(place)
        places[place], row_digits[row] = row_digits[row], places[place]
        interleaved = [interleaved[0], places[place], *interleaved[1:-1]]
    in_vector = [k for k in places if k not in wanted]
    places = interleaved if vectors.lanes else places
    order = [places.index(k) for k in (*wanted, *in_vector)]
    return _Steps(rows, halves, again, within, swapped, order, in_vector + vectors.lanes, row_digits, first)


def _pass(found: _Steps, vectors: _Vectors, around: Sequence[Loop], nest: Nest, past_cache: tuple[bool, bool]) -> Draft:
    """Return a pass; `past_cache` is (whether non-temporal stores are wanted, whether lines are whole, so possible)."""
    streamed = all(past_cache)
    joined = coalesced(Nest(tuple(around), 0, 0)).loops
    loops = [Loop(k.size, k.source_stride // _PER_BYTE, k.destination_stride // _PER_BYTE) for k in joined]
    row_count = 1 << len(found.rows)
    column = min(loops, key=lambda k: k.source_stride, default=Loop(1, 0, 0))
    outer = without(loops, (column,))
    blocks = -(-column.size // _MOST_PER_ROW)
    per_task = -(-column.size // blocks)
    chunks = Chunks(per_task, column.size, per_task * column.source_stride, per_task * column.destination_stride)
    geometry = (*chunks, *SwapGeometry(found.halves, found.again, int(streamed)))

    def tables() -> Tables:
        starts = np.array(_offsets([k.source_stride for k in (*vectors.lanes, *found.rows)]), np.int64)
        places = _offsets([k.destination_stride for k in (*found.in_vector, *found.left)])
        patterns = np.concatenate(list((_lane_patterns if vectors.lanes else _patterns)(found))).view(np.int64)
        return np.concatenate([starts, patterns]), np.array(places, np.int64)

    lines, piece_bytes = row_count * iterations(loops), LINE_BYTES if streamed else vectors.piece_bytes
    steps = len(found.places) + (found.halves != KEPT)
    units = f"{'lanes' if vectors.lanes else 'vectors'} of {row_count} row{'s' * (row_count > 1)}"
    why = f"binary digits of places in {units}, written in pieces of {piece_bytes} bytes"
    return Draft(
        "swap digits",
        vectors.piece_bytes,
        Nest(tuple(outer), nest.source_start // _PER_BYTE, nest.destination_start // _PER_BYTE),
        geometry,
        row_count * per_task * LINE_BYTES,
        why,
        Counts(
            lines=lines,
            vectors=lines * (LINE_BYTES // piece_bytes) / 2,
            pieces=lines * (1 + steps / 2),
            # Lines that are written lane by lane are read first.
            missed=lines / 2 if vectors.lanes and past_cache == (True, False) else 0,
        ),
        tables,
        len(found.rows),
        -(-column.size // per_task),
    )


def _patterns(found: _Steps) -> Iterator[NDArray[np.uint8]]:
    """Yield the patterns in the order in which the kernel reads them, a byte for each place."""
    at = np.arange(LINE_BYTES)
    if found.halves == WITHIN:
        distance = 1 << found.within - 1
        yield (at ^ distance).astype(np.uint8)
        yield np.where(at & distance, 0xF0, 0x0F).astype(np.uint8)
    for place in found.places:
        distance = 1 << place - 1
        yield np.where(at & distance, LINE_BYTES + at - distance, at).astype(np.uint8)
        yield np.where(at & distance, LINE_BYTES + at, at + distance).astype(np.uint8)
    yield _in_order(at, found.order)


def _lane_patterns(found: _Steps) -> Iterator[NDArray[np.uint8]]:
    """Yield the patterns for lanes in the order in which the kernel reads them, a byte for each place."""
    at = np.arange(LANE_BYTES)
    distance = 1 << found.within - 1 if found.halves == WITHIN else 0
    for order in (found.first, found.order):
        yield _in_order(at, order)
    yield (at ^ distance).astype(np.uint8)
    yield np.where(at & distance, 0xF0, 0x0F).astype(np.uint8)


def _in_order(at: NDArray[np.int64], order: Sequence[int]) -> NDArray[np.uint8]:
    """Return the byte pattern that puts the digits above the lowest in order."""
    found = np.zeros_like(at)
    for place, digit in enumerate(order[1:]):
        found |= (at >> place & 1) << digit - 1
    return found.astype(np.uint8)


def _offsets(strides: Sequence[int]) -> list[int]:
    """Return the byte offsets of all combinations of binary digits, the first digit fastest."""
    found = [0]
    for stride in strides:
        found += [at + stride // _PER_BYTE for at in found]
    return found
