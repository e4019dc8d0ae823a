"""Arguments of the kernel that writes the runs of a transfer, as a table of int64."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import places


class RunJob(NamedTuple):
    """The pieces (contiguous parts) of a transfer in address order of one side, the near side.

    Attributes
    ----------
    outer, outer_count : int
        Address and number of the (near, far) offset pairs of the loops outside the blocks.
    blocks, block_stride, order, block_count : int
        Address of the near-side blocks, their stride in bytes, address of their request indices, and their number.
    pages, pages_each : int
        Address of the far-side granule offsets, and the number of granules per near-side block.
    pieces, piece_count : int
        Address and number of the pieces of a block: near offset, granule index, far offset, bytes.
    last_pieces, last_count, last : int
        The same for the last block of the request, and the index of that block.
    near, far, nbytes : int
        Addresses of the results.
    """

    outer: int
    outer_count: int
    blocks: int
    block_stride: int
    order: int
    block_count: int
    pages: int
    pages_each: int
    pieces: int
    piece_count: int
    last_pieces: int
    last_count: int
    last: int
    near: int
    far: int
    nbytes: int


RUN_JOB = places(RunJob)
PIECE_BYTES = 32
