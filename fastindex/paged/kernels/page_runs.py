"""CPU kernels of transfers: emit the runs of a transfer in order and merge contiguous ones."""

from __future__ import annotations

from typing import Any

from fastindex.paged.run_numbers import PIECE_BYTES, RUN_JOB
from fastindex.runtime.kernels import kernel
from fastindex.runtime.lines.memory import (
    byte_at,
    entry,
    int32_at,
    prefetch,
    prefetch_to_write,
    set_byte,
    set_entry,
    set_int32,
)

# Prefetch distance in blocks of per-block tables: blocks come in arbitrary order.
_AHEAD = 16


@kernel
def write_runs(job: Any) -> Any:
    """Write the runs of a transfer and return their number.

    Parameters
    ----------
    job : int64
        Address of a `RunJob`.
    """
    near_out, far_out, nbytes_out = entry(job, RUN_JOB.near), entry(job, RUN_JOB.far), entry(job, RUN_JOB.nbytes)
    outer, blocks, order = entry(job, RUN_JOB.outer), entry(job, RUN_JOB.blocks), entry(job, RUN_JOB.order)
    stride, each, last = entry(job, RUN_JOB.block_stride), 8 * entry(job, RUN_JOB.pages_each), entry(job, RUN_JOB.last)
    all_pages, block_count = entry(job, RUN_JOB.pages), entry(job, RUN_JOB.block_count)
    whole, whole_count = entry(job, RUN_JOB.pieces), entry(job, RUN_JOB.piece_count)
    count, near_end, far_end, begin = -1, 0, 0, 0
    for o in range(entry(job, RUN_JOB.outer_count)):
        near_outer, far_outer = entry(outer, 2 * o), entry(outer, 2 * o + 1)
        for i in range(block_count):
            number = entry(order, i)
            prefetch(all_pages + entry(order, min(i + _AHEAD, block_count - 1)) * each)
            near_block = near_outer + entry(blocks, i) * stride
            pages = all_pages + number * each
            pieces, rows = whole, whole_count
            if number == last:
                pieces, rows = entry(job, RUN_JOB.last_pieces), entry(job, RUN_JOB.last_count)
            for row in range(rows):
                piece = pieces + PIECE_BYTES * row
                near = near_block + entry(piece, 0)
                far = far_outer + entry(pages, entry(piece, 1)) + entry(piece, 2)
                if count < 0 or near != near_end or far != far_end:
                    if count >= 0:
                        set_entry(nbytes_out, count, near_end - begin)
                    count += 1
                    set_entry(near_out, count, near)
                    set_entry(far_out, count, far)
                    begin, far_end = near, far
                near_end = near + entry(piece, 3)
                far_end += entry(piece, 3)
    if count >= 0:
        set_entry(nbytes_out, count, near_end - begin)
    return count + 1


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
def order_blocks(count: Any, num_blocks: Any, blocks: Any, places: Any, order: Any, ordered: Any) -> Any:
    """Sort blocks by one pass over a table of the whole pool; return 1 if all blocks are distinct, else 0.

    Parameters
    ----------
    count, num_blocks : int64
        Number of blocks of the request, and of the pool.
    blocks : int64
        Address of `count` int64.
    places : int64
        Address of one int32 per block of the pool, initially 0.
    order, ordered : int64
        Addresses of the results, int64: the permutation that sorts the blocks (argsort), and the sorted blocks.
    """
    for i in range(count):
        block = entry(blocks, i)
        prefetch_to_write(places + 4 * entry(blocks, min(i + _AHEAD, count - 1)))
        if int32_at(places + 4 * block):
            return 0
        set_int32(places + 4 * block, i + 1)
    found = 0
    for block in range(num_blocks):
        place = int32_at(places + 4 * block)
        if place:
            set_entry(order, found, place - 1)
            set_entry(ordered, found, block)
            found += 1
    return 1
