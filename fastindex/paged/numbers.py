"""Arguments of the kernels of paged caches, as tables of int64."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import places


class PageJob(NamedTuple):
    """Passes or pieces of one page, and the pages of every layer to which they apply.

    A piece is a contiguous part of a run: (source offset, target offset, bytes).

    Attributes
    ----------
    passes, pass_count : int
        Address and number of the `PassCall` rows, or of the pieces, of a page.
    outer : int
        Address of (source, target) offset pairs of the layers.
    source_pages, target_pages, page_count : int
        Addresses of the page offsets, and the number of pages.
    ahead, streamed : int
        For pieces: the prefetch distance in pieces, and whether to use non-temporal stores.
    """

    passes: int
    pass_count: int
    outer: int
    source_pages: int
    target_pages: int
    page_count: int
    ahead: int = 0
    streamed: int = 0


PAGE_JOB = places(PageJob)
PAGE_PIECE_BYTES = 24


class RunJob(NamedTuple):
    """The pieces (contiguous parts) of a transfer in address order of one side, the near side.

    Attributes
    ----------
    outer, outer_count : int
        Address and number of the (near, far) offset pairs of the loops outside the blocks.
    blocks, block_stride, order, block_count : int
        Address of the near-side blocks, their stride in bytes, address of their numbers, and how many there are.
    pages, number_stride : int
        Address of the far-side granule offsets, and the bytes between those of block number 0 and of number 1. Address
        0 if numbers are far-side blocks, `number_stride` bytes each.
    pieces, piece_count : int
        Address and number of the pieces of a block: near offset, granule index, far offset, bytes.
    last_pieces, last_count, last : int
        The same for the last block of the request, and the place of that block among `blocks`.
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
    number_stride: int
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


#: Slots buffered in the L1 cache before they are written with non-temporal stores.
COLLECTED = 256
#: Tokens whose blocks are looked up one by one at a time, where positions are not consecutive.
LOOKED_UP = 128


class SlotMap(NamedTuple):
    """A slot mapping: array addresses and parameters.

    Attributes
    ----------
    table, row_bytes, table_code : int
        Address of the block table, its row stride in bytes, and the code of its entry type in
        `fastindex.runtime.numbers.STORED`: 0 for int64, 2 for int32.
    positions, position_code : int
        Address of the positions, and the code of their type.
    starts : int
        Address of the start of the tokens of each request, then the end of the last request; int64.
    limits : int
        Address of the exclusive upper bound of the positions of each request; int64.
    slots : int
        Address of the results, int64.
    block_size, magic, shift : int
        Tokens per block of this rank; magic constants that divide a position by `column`.
    num_blocks, null_block, null_count : int
        Exclusive upper bound of block numbers; the first null block, and the number of these.
    pad : int
        The slot of tokens without one.
    column : int
        Tokens of a column of the table: those of a block of each context parallel rank.
    in_block : int
        Address of the index in its block of each token of a column, -1 for tokens of other ranks; 0 for a single rank.
    streamed : int
        Whether results are written with non-temporal stores.
    """

    table: int
    row_bytes: int
    table_code: int
    positions: int
    position_code: int
    starts: int
    limits: int
    slots: int
    block_size: int
    magic: int
    shift: int
    num_blocks: int
    null_block: int
    null_count: int
    pad: int
    column: int
    in_block: int
    streamed: int


SLOT_MAP = places(SlotMap)
