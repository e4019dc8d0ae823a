"""The CPU kernels of transfers: the runs of a transfer in order, joined where they continue each other."""

from __future__ import annotations

from typing import Any

from fastindex.paged.run_numbers import PIECE_BYTES, RUN_JOB
from fastindex.runtime.kernels import kernel
from fastindex.runtime.lines.memory import entry, set_entry


@kernel("int64(int64)")
def write_runs(job: Any) -> Any:
    """Write the runs of a transfer, and return how many there are.

    Parameters
    ----------
    job : int64
        Address of a `RunJob`.
    """
    near_out, far_out = entry(job, RUN_JOB.near), entry(job, RUN_JOB.far)
    nbytes_out, each = entry(job, RUN_JOB.nbytes), entry(job, RUN_JOB.pages_each)
    count, near_end, far_end, begin = -1, 0, 0, 0
    for o in range(entry(job, RUN_JOB.outer_count)):
        near_outer, far_outer = entry(entry(job, RUN_JOB.outer), 2 * o), entry(entry(job, RUN_JOB.outer), 2 * o + 1)
        for i in range(entry(job, RUN_JOB.block_count)):
            number = entry(entry(job, RUN_JOB.order), i)
            near_block = near_outer + entry(entry(job, RUN_JOB.blocks), i)
            pages = entry(job, RUN_JOB.pages) + 8 * number * each
            pieces, rows = entry(job, RUN_JOB.pieces), entry(job, RUN_JOB.piece_count)
            if number == entry(job, RUN_JOB.last):
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


@kernel("int64(int64,int64,int64)")
def place_blocks(blocks: Any, count: Any, places: Any) -> Any:
    """Write the place of each block to a table of all blocks; return whether none is there twice.

    Parameters
    ----------
    blocks : int64
        Address of `count` int64.
    count : int64
    places : int64
        Address of an int64 for each block of the pool, -1 at first.
    """
    for i in range(count):
        block = entry(blocks, i)
        if entry(places, block) >= 0:
            return 0
        set_entry(places, block, i)
    return 1
