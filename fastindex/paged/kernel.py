"""CPU kernels of paged caches: copies between pages, runs of a transfer, slot mappings.

Pages are small and in arbitrary order, so the hardware prefetches little. A separate kernel copies long runs in pieces
and prefetches across pages. Everything else uses the passes of a relayout, applied to many pages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastindex.index.numbers import narrow_quotient
from fastindex.moving.kernels.passes import run_all
from fastindex.paged.numbers import COLLECTED, LOOKED_UP, PAGE_JOB, PAGE_PIECE_BYTES, PIECE_BYTES, RUN_JOB, SLOT_MAP
from fastindex.runtime.kernels import kernel, subroutine
from fastindex.runtime.lines.lines import copy_run
from fastindex.runtime.lines.memory import (
    barrier,
    byte_at,
    entry,
    fence,
    int32_at,
    load,
    load_stored,
    pointer,
    prefetch,
    prefetch_to_l2,
    prefetch_to_write,
    set_byte,
    set_entry,
    set_int32,
    store,
)
from fastindex.runtime.numbers import LINE_BYTES


@subroutine(inline=True)
def _place(job, number):  # type: ignore[no-untyped-def]
    """Return the offset of a page on both sides."""
    pages = entry(job, PAGE_JOB.page_count)
    around, page = divmod(number, pages)
    outer = entry(job, PAGE_JOB.outer)
    here = entry(outer, 2 * around) + entry(entry(job, PAGE_JOB.source_pages), page)
    return here, entry(outer, 2 * around + 1) + entry(entry(job, PAGE_JOB.target_pages), page)


@kernel
def run_page_passes(job: Any, target: Any, source: Any, padding: Any, scratch: Any, first: Any, last: Any) -> None:
    """Run the passes on the pages ``first:last``.

    Parameters
    ----------
    job : int64
        Address of a `PageJob`.
    target, source, padding, scratch : int64
        As for `run_passes`.
    first, last : int64
        Range of page numbers, layer by layer; a page is a granule of a layer.
    """
    passes, count = entry(job, PAGE_JOB.passes), entry(job, PAGE_JOB.pass_count)
    for number in range(first, last):
        here, there = _place(job, number)
        run_all(passes, count, target + there, source + here, padding, scratch, 0, 0)


@subroutine(inline=True)
def _prefetch(start, size):  # type: ignore[no-untyped-def]
    """Prefetch every line of a piece, to L2: L1 waits for few lines at a time, and needs those for the copy."""
    for line in range(start & -LINE_BYTES, start + size, LINE_BYTES):
        prefetch_to_l2(line)


@kernel
def copy_page_pieces(job: Any, target: Any, source: Any, first: Any, last: Any) -> None:
    """Copy the pieces of the pages ``first:last``; parameters as for `run_page_passes`."""
    pieces, count = entry(job, PAGE_JOB.passes), entry(job, PAGE_JOB.pass_count)
    ahead, streamed = min(entry(job, PAGE_JOB.ahead), count), entry(job, PAGE_JOB.streamed) != 0
    next_here, next_there = _place(job, first)
    for number in range(first, last):
        here, there = source + next_here, target + next_there
        if number + 1 < last:
            next_here, next_there = _place(job, number + 1)
        for row in range(count):
            piece, later = pieces + PAGE_PIECE_BYTES * row, row + ahead
            if later < count:
                asked = pieces + PAGE_PIECE_BYTES * later
                _prefetch(here + entry(asked, 0), entry(asked, 2))
            elif number + 1 < last:
                asked = pieces + PAGE_PIECE_BYTES * (later - count)
                _prefetch(source + next_here + entry(asked, 0), entry(asked, 2))
            copy_run(there + entry(piece, 1), here + entry(piece, 0), entry(piece, 2), streamed)
    if streamed:
        fence()


# Runs of a transfer


# Prefetch distance in blocks of per-block tables: blocks come in arbitrary order.
_AHEAD = 16


@subroutine("are_blocks")
def _write_blocks(are_blocks, job, outer, begin, end, pieces, state):  # type: ignore[no-untyped-def]
    """Write the runs of the blocks ``begin:end``; return the new state.

    `outer` is the near and far offset, and `pieces` the address and number of the pieces of a block. The state is the
    index of the last run, its end on both sides, and its begin.
    """
    near_out, far_out, nbytes_out = entry(job, RUN_JOB.near), entry(job, RUN_JOB.far), entry(job, RUN_JOB.nbytes)
    blocks, order, stride = entry(job, RUN_JOB.blocks), entry(job, RUN_JOB.order), entry(job, RUN_JOB.block_stride)
    all_pages, each = entry(job, RUN_JOB.pages), entry(job, RUN_JOB.number_stride)
    count, near_end, far_end, begin_of_run = state
    near_outer, far_outer = outer
    first, rows = pieces
    for i in range(begin, end):
        near_block, number = near_outer + entry(blocks, i) * stride, entry(order, i)
        if not are_blocks:
            prefetch(all_pages + entry(order, min(i + _AHEAD, end - 1)) * each)
        for row in range(rows):
            piece = first + PIECE_BYTES * row
            near, far = near_block + entry(piece, 0), far_outer + entry(piece, 2)
            far += number * each if are_blocks else entry(all_pages + number * each, entry(piece, 1))
            # The far side first: whether sorted blocks are neighbours is random, and a misprediction is expensive.
            if far != far_end or near != near_end:
                count += 1
                set_entry(near_out, count, near)
                set_entry(far_out, count, far)
                begin_of_run = near
            near_end, far_end = near + entry(piece, 3), far + entry(piece, 3)
            set_entry(nbytes_out, count, near_end - begin_of_run)
    return count, near_end, far_end, begin_of_run


@subroutine("are_blocks")
def _write_all(are_blocks, job):  # type: ignore[no-untyped-def]
    outer, last, count = entry(job, RUN_JOB.outer), entry(job, RUN_JOB.last), entry(job, RUN_JOB.block_count)
    pieces = entry(job, RUN_JOB.pieces), entry(job, RUN_JOB.piece_count)
    of_last = entry(job, RUN_JOB.last_pieces), entry(job, RUN_JOB.last_count)
    state = (-1, -1, -1, 0)
    for o in range(entry(job, RUN_JOB.outer_count)):
        offsets = entry(outer, 2 * o), entry(outer, 2 * o + 1)
        state = _write_blocks(are_blocks, job, offsets, 0, last, pieces, state)
        state = _write_blocks(are_blocks, job, offsets, last, last + 1, of_last, state)
        state = _write_blocks(are_blocks, job, offsets, last + 1, count, pieces, state)
    return state[0] + 1


@kernel
def write_runs(job: Any) -> Any:
    """Write the runs of a transfer and return their number.

    Parameters
    ----------
    job : int64
        Address of a `RunJob`.
    """
    return _write_all(True, job) if entry(job, RUN_JOB.pages) == 0 else _write_all(False, job)


@kernel
def are_distinct(blocks: Any, count: Any, seen: Any) -> Any:
    """Return 1 if all blocks are distinct, else 0.

    Parameters
    ----------
    blocks : int64
        Address of `count` int64.
    count : int64
    seen : int64
        Address of one byte per block of the pool, initially 0.
    """
    for i in range(count):
        place = seen + entry(blocks, i)
        prefetch_to_write(seen + entry(blocks, min(i + _AHEAD, count - 1)))
        if byte_at(place):
            return 0
        set_byte(place, 1)
    return 1


@kernel
def order_blocks(count: Any, num_blocks: Any, blocks: Any, values: Any, places: Any, order: Any, ordered: Any) -> Any:
    """Sort blocks and their values by one pass over a table of the whole pool; return 1 if all are distinct, else 0.

    Parameters
    ----------
    count, num_blocks : int64
        Number of blocks of the request, and of the pool.
    blocks : int64
        Address of `count` int64.
    values : int64
        Address of `count` int64 below 2**31 - 1.
    places : int64
        Address of one int32 per block of the pool, initially 0.
    order, ordered : int64
        Addresses of the results, int64: the values in the order of the blocks, and the sorted blocks.
    """
    for i in range(count):
        block = entry(blocks, i)
        prefetch_to_write(places + 4 * entry(blocks, min(i + _AHEAD, count - 1)))
        if int32_at(places + 4 * block):
            return 0
        set_int32(places + 4 * block, entry(values, i) + 1)
    found = block = 0
    # No branch on the table: it is random, and a misprediction takes longer than the writes.
    while found < count:
        place = int32_at(places + 4 * block)
        set_entry(order, found, place - 1)
        set_entry(ordered, found, block)
        found += 1 if place else 0
        block += 1
    return 1


# Slot mappings


#: Prefetch distance of positions. Nanoseconds a token, 16 million in any order: gathers 1.70; single reads 1.75, with
#: positions prefetched to L2 1.05, and 128 tokens at a time instead of 256 0.95; a copy of as many bytes 0.39
#: (processor time of one thread of an AMD EPYC, 2026-11-28). Four reads an iteration took 0 to 10% less on a busy one.
_AHEAD_BYTES = 8192

_INT32 = 2

_quotient = subroutine()(narrow_quotient)


@subroutine(inline=True)
def _outside(value, bound):  # type: ignore[no-untyped-def]
    return np.uint64(value) >= np.uint64(bound)


@subroutine("code")
def _find_columns(code, map_, positions, limit, count, columns):  # type: ignore[no-untyped-def]
    """Write the column of each position, 0 for one out of bounds; return whether there is one."""
    position_bytes, at, found = 8 - 2 * code, pointer(positions), pointer(columns)
    magic, shift = entry(map_, SLOT_MAP.magic), entry(map_, SLOT_MAP.shift)
    # Reads of the table wait for few lines of L1 at a time: positions must not take these.
    for i in range(0, count * position_bytes, LINE_BYTES):
        prefetch_to_l2(positions + _AHEAD_BYTES + i)
    is_bad = False
    for i in range(count):
        position = load_stored(at, i * position_bytes, code)
        is_outside = _outside(position, limit)
        is_bad |= is_outside
        store(found, i, 0 if is_outside else _quotient(position, magic, shift))
    barrier()
    return is_bad


@subroutine("code", inline=True)
def _read_block(code, row, i, columns):  # type: ignore[no-untyped-def]
    set_entry(columns, i, load_stored(row, entry(columns, i) * (8 - 2 * code), code))


@subroutine("code")
def _read_blocks(code, row, count, columns):  # type: ignore[no-untyped-def]
    """Replace each column by its block: in a loop by itself, because single reads are faster than gathers."""
    place, unrolled = pointer(row), count & -4
    for i in range(0, unrolled, 4):
        _read_block(code, place, i, columns)
        _read_block(code, place, i + 1, columns)
        _read_block(code, place, i + 2, columns)
        _read_block(code, place, i + 3, columns)
    for i in range(unrolled, count):
        _read_block(code, place, i, columns)
    barrier()


@subroutine("code")
def _write_slots(code, map_, positions, limit, count, target, looked_up, is_bad):  # type: ignore[no-untyped-def]
    """Write the slots of positions whose blocks are known; return the number of those out of bounds."""
    position_bytes, at, slots, blocks = 8 - 2 * code, pointer(positions), pointer(target), pointer(looked_up)
    magic, shift = entry(map_, SLOT_MAP.magic), entry(map_, SLOT_MAP.shift)
    size, limits = entry(map_, SLOT_MAP.block_size), entry(map_, SLOT_MAP.num_blocks)
    column, in_block = entry(map_, SLOT_MAP.column), entry(map_, SLOT_MAP.in_block)
    indices = pointer(in_block)
    null, nulls, pad = entry(map_, SLOT_MAP.null_block), entry(map_, SLOT_MAP.null_count), entry(map_, SLOT_MAP.pad)
    if in_block == 0:
        for i in range(count):
            position, block = load_stored(at, i * position_bytes, code), load(blocks, i)
            is_bad |= _outside(block, limits) | (not _outside(block - null, nulls))
            store(slots, i, position + (block - _quotient(position, magic, shift)) * size)
        barrier()
        if not is_bad:
            return 0
    bad = 0
    for i in range(count):
        position, block = load_stored(at, i * position_bytes, code), load(blocks, i)
        is_bad = _outside(position, limit) | _outside(block, limits) | (not _outside(block - null, nulls))
        token = 0 if is_bad else position - _quotient(position, magic, shift) * column
        if in_block != 0:
            token = load(indices, token)
        store(slots, i, pad if is_bad | (token < 0) else block * size + token)
        bad += 1 if is_bad else 0
    barrier()
    return bad


@subroutine("table_code", "position_code")
def _map_tokens(table_code, position_code, map_, request, at, count, target, looked_up):  # type: ignore[no-untyped-def]
    """Write the slots of `count` tokens of a request; return the number of tokens out of bounds.

    One read of the table for consecutive positions within a block; others in three passes over `LOOKED_UP` at a time.
    `looked_up` is the address of as many int64.
    """
    table_bytes, position_bytes = 8 - 2 * table_code, 8 - 2 * position_code
    row = entry(map_, SLOT_MAP.table) + request * entry(map_, SLOT_MAP.row_bytes)
    limit = entry(entry(map_, SLOT_MAP.limits), request)
    size, magic, shift = entry(map_, SLOT_MAP.block_size), entry(map_, SLOT_MAP.magic), entry(map_, SLOT_MAP.shift)
    blocks, null = entry(map_, SLOT_MAP.num_blocks), entry(map_, SLOT_MAP.null_block)
    nulls, alone = entry(map_, SLOT_MAP.null_count), entry(map_, SLOT_MAP.in_block) == 0
    bad = done = 0
    while done < count:
        begin, there = entry(map_, SLOT_MAP.positions) + (at + done) * position_bytes, target + 8 * done
        positions, slots = pointer(begin), pointer(there)
        first = load_stored(positions, 0, position_code)
        run, strays = min(count - done, LOOKED_UP), 1
        follows = alone and (run == 1 or load_stored(positions, position_bytes, position_code) == first + 1)
        if follows and 0 <= first < limit:
            column = _quotient(first, magic, shift)
            block = load_stored(pointer(row), column * table_bytes, table_code)
            if 0 <= block < blocks and _outside(block - null, nulls):
                token = first - column * size
                run, strays = min(run, size - token, limit - first), 0
                base = block * size + token
                for i in range(run):
                    strays |= load_stored(positions, i * position_bytes, position_code) - first - i
                    store(slots, i, base + i)
                barrier()
        if strays:
            is_bad = _find_columns(position_code, map_, begin, limit, run, looked_up)
            _read_blocks(table_code, row, run, looked_up)
            bad += _write_slots(position_code, map_, begin, limit, run, there, looked_up, is_bad)
        done += run
    return bad


@subroutine()
def _map_run(map_, request, at, count, target, looked_up):  # type: ignore[no-untyped-def]
    narrow_table = entry(map_, SLOT_MAP.table_code) == _INT32
    if entry(map_, SLOT_MAP.position_code) == _INT32:
        if narrow_table:
            return _map_tokens(2, 2, map_, request, at, count, target, looked_up)
        return _map_tokens(0, 2, map_, request, at, count, target, looked_up)
    if narrow_table:
        return _map_tokens(2, 0, map_, request, at, count, target, looked_up)
    return _map_tokens(0, 0, map_, request, at, count, target, looked_up)


@kernel
def map_slots(map_: Any, scratch: Any, request: Any, begin: Any, end: Any) -> Any:
    """Write the slots of the tokens ``begin:end``.

    Parameters
    ----------
    map_ : int64
        Address of a `SlotMap`.
    scratch : int64
        Address of `COLLECTED` and `LOOKED_UP` int64, at the start of a cache line.
    request : int64
        The request of token `begin`.
    begin, end : int64

    Returns
    -------
    int64
        The number of tokens with a position or a block out of bounds; their slot is `pad`.
    """
    starts, slots = entry(map_, SLOT_MAP.starts), entry(map_, SLOT_MAP.slots)
    streamed, looked_up = entry(map_, SLOT_MAP.streamed) != 0, scratch + 8 * COLLECTED
    bad, at = 0, begin
    # The first flush ends at a cache line boundary of the target, so that later flushes write whole lines.
    capacity = COLLECTED - (slots + 8 * begin) % 64 // 8
    filled = 0
    while at < end:
        while entry(starts, request + 1) <= at:
            request += 1
        count = min(entry(starts, request + 1), end) - at
        if streamed:
            count = min(count, capacity - filled)
            bad += _map_run(map_, request, at, count, scratch + 8 * filled, looked_up)
            filled += count
            if filled == capacity:
                copy_run(slots + 8 * (at + count - filled), scratch, 8 * filled, True)
                barrier()
                filled, capacity = 0, COLLECTED
        else:
            bad += _map_run(map_, request, at, count, slots + 8 * at, looked_up)
        at += count
    if filled:
        copy_run(slots + 8 * (end - filled), scratch, 8 * filled, True)
        barrier()
    fence()
    return bad
