"""What the kernel of slot mappings gets, as a table of int64."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import places

#: Slots that are collected in the nearest cache before they are written past it.
COLLECTED = 512


class SlotMap(NamedTuple):
    """A slot mapping: where its arrays are, and its numbers.

    Attributes
    ----------
    table, row_bytes, table_code : int
        Address of the block table, bytes from one row to the next, and how its entries are stored, as
        `fastindex.runtime.numbers.STORED` says: 0 for int64, 2 for int32.
    positions, position_code : int
        Address of the positions, and how they are stored.
    starts : int
        Address of where the tokens of each request begin, and the last ones end; int64.
    limits : int
        Address of the positions that each request does not reach; int64.
    slots : int
        Address of the results, int64.
    block_size, magic, shift : int
        Tokens of a block of this rank, and the constants that divide a position by it, or by a column's tokens.
    num_blocks, null_block : int
        A block has to be below the one, and not the other.
    pad : int
        What is no slot.
    ranks, rank, interleave, turn : int
        Of context parallelism; a turn is ``ranks * interleave`` tokens.
    interleave_magic, interleave_shift, turn_magic, turn_shift : int
        The constants that divide by these.
    streamed : int
        Whether results are written past the cache.
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
