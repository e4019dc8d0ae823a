"""What the kernel that writes the runs of a transfer gets, as a table of int64."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import places


class RunJob(NamedTuple):
    """The pieces of a transfer in the order of one side, the near one, whose runs come out in this order.

    Attributes
    ----------
    outer, outer_count : int
        Address of pairs of offsets, near and far, for what lies around the blocks.
    blocks, block_stride, order, block_count : int
        Address of the blocks on the near side, how far apart these are, and address of their numbers in the request.
    pages, pages_each : int
        Address of the offsets of granules on the far side, and how many belong to each block of the near side.
    pieces, piece_count : int
        Address of the pieces of a block: near offset, number of the granule, far offset, bytes.
    last_pieces, last_count, last : int
        The same of the last block of the request, and its number.
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
