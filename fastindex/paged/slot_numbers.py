"""Arguments of the kernel of slot mappings, as a table of int64."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import places

#: Slots buffered in the L1 cache before they are written with non-temporal stores.
COLLECTED = 512


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
        Tokens per block of this rank; magic constants that divide a position by the tokens of a column.
    num_blocks, null_block : int
        Exclusive upper bound of block numbers, and the null block.
    pad : int
        The slot of tokens without one.
    ranks, rank, interleave, turn : int
        Parameters of context parallelism; a turn is ``ranks * interleave`` tokens.
    interleave_magic, interleave_shift, turn_magic, turn_shift : int
        Magic constants that divide by `interleave` and `turn`.
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
    pad: int
    ranks: int
    rank: int
    interleave: int
    turn: int
    interleave_magic: int
    interleave_shift: int
    turn_magic: int
    turn_shift: int
    streamed: int


SLOT_MAP = places(SlotMap)
