"""`slot_mapping`: the slot of each token of a batch, computed on worker threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import NARROW, division
from fastindex.arrays.addresses import address_of
from fastindex.arrays.buffers import aligned_bytes
from fastindex.arrays.index_arguments import as_integers_in_bulk, as_output
from fastindex.core.integers import as_integer
from fastindex.errors import FastIndexError, OutOfBoundsError
from fastindex.index.executors import check_overlap, new_outputs
from fastindex.paged.caches import check_interleave, size_and_rank
from fastindex.paged.places import check_mode
from fastindex.paged.planes import Numbers
from fastindex.paged.slot_numbers import COLLECTED, SlotMap
from fastindex.paged.tables import BlockTable
from fastindex.runtime.first_answer import indices_by_numpy, load_kernels, numpys_time
from fastindex.runtime.threads import run_chunks, thread_count
from fastindex.runtime.tuning import TUNING

_CODES = {np.dtype(np.int64): 0, np.dtype(np.int32): 2}
_NO_BLOCK = -1


def slot_mapping(
    block_table: BlockTable | Any,
    positions: Any,
    query_start_loc: Any,
    *,
    block_size: int | None = None,
    cp: tuple[int, int] = (1, 0),
    interleave: int = 1,
    pad: int = -1,
    mode: str = "raise",
    out: NDArray[np.int64] | None = None,
    threads: int | None = None,
) -> NDArray[np.int64]:
    """Return the slot of each token of a batch: ``block_table[request, position // N] * N + position % N``.

    Parameters
    ----------
    block_table : BlockTable, or integer array of (requests, columns)
        A `BlockTable` also holds the request lengths, the number of blocks and the null block. With `cp`, its lengths
        count the tokens of this rank and determine the number of columns of a request.
    positions : integer array
        Position of each token in its request; tokens of one request are contiguous.
    query_start_loc : integer array
        Start of the tokens of each request in `positions`, then the end of the last request. Tokens after that end are
        padding.
    block_size : int
        Tokens per block of one rank; required where `block_table` is an array.
    cp : (int, int)
        Context parallel size and rank: tokens of other ranks get `pad`. A column of the table then has ``N * size``
        tokens, of which this rank has `N`.
    interleave : int
        Consecutive tokens per rank of `cp`; must divide the block size.
    pad : int
        The slot written for padding and for tokens of other ranks.
    mode : {"raise", "mark"}
        Raise for a position or a block out of bounds, or write `pad`.
    out : int64 array, optional
    threads : int, optional
        Maximum number of threads.

    Returns
    -------
    int64 array of the length of `positions`

    Raises
    ------
    OutOfBoundsError
        A position that is negative or past the end of its request, a block outside the pool, or the null block; the
        message names the request and the token.
    FastIndexError, ArgumentTypeError
        Inconsistent array sizes; values that are not integers.

    Examples
    --------
    >>> import fastindex.paged as fp
    >>> fp.slot_mapping([[3, 7], [5, 0]], [0, 15, 16, 4], [0, 3, 4], block_size=16)
    array([ 48,  63, 112,  84])
    >>> fp.slot_mapping([[3, 7]], [0, 1, 2, 3, 4], [0, 5], block_size=16, cp=(2, 1), interleave=2)
    array([-1, -1, 48, 49, -1])
    """
    check_mode(mode)
    workers = thread_count(threads)
    table = _as_table(block_table, block_size)
    batch = _batch(table, positions, query_start_loc, (size_and_rank(cp, "cp"), interleave), as_integer(pad, "pad"))
    count = len(batch.positions)
    if out is None:
        (slots,) = new_outputs(1, (count,))
    else:
        slots = as_output(out, (count,), "out")
        check_overlap((batch.positions, batch.table.blocks), [slots])
    if slots.flags.c_contiguous:
        bad = _fill(batch, slots, workers)
    else:
        whole = np.empty(count, np.int64)
        bad = _fill(batch, whole, workers)
        slots[:] = whole
    if bad and mode == "raise":
        raise _error(batch)
    return slots


@dataclass(frozen=True, slots=True)
class _Batch:
    """Validated arguments of `slot_mapping`."""

    table: BlockTable
    positions: NDArray[Any]
    starts: Numbers
    limits: Numbers
    cp: tuple[int, int]
    interleave: int
    pad: int

    @property
    def tokens(self) -> int:
        return int(self.starts[-1])

    @property
    def bounds(self) -> tuple[int, int]:
        """Exclusive upper bound of block numbers, and the null block."""
        most, null = self.table.num_blocks, self.table.null_block
        return (2**63 - 1) // self.table.block_size if most is None else most, _NO_BLOCK if null is None else null


def _as_table(block_table: Any, block_size: int | None) -> BlockTable:
    if isinstance(block_table, BlockTable):
        if block_size not in (None, block_table.block_size):
            raise FastIndexError(f"block_size {block_size} is not the {block_table.block_size} of {block_table}")
        return block_table
    if block_size is None:
        raise FastIndexError("block_size is needed where block_table is an array")
    return BlockTable(block_table, block_size=block_size)


def _batch(table: BlockTable, positions: Any, starts: Any, split: tuple[tuple[int, int], int], pad: int) -> _Batch:
    cp, interleave = split[0], as_integer(split[1], "interleave")
    check_interleave(interleave, table.block_size)
    given = np.asarray(as_integers_in_bulk(positions, "positions"))
    given = np.ascontiguousarray(given if given.dtype in _CODES else given.astype(np.int64))
    begins = np.asarray(as_integers_in_bulk(starts, "query_start_loc")).astype(np.int64)
    requests = len(table.blocks)
    if given.ndim != 1 or begins.ndim != 1 or len(begins) != requests + 1:
        raise FastIndexError(
            f"positions has one dimension, got {given.ndim}, and query_start_loc one entry more than the {requests} "
            f"requests, got {begins.shape}"
        )
    if begins[0] != 0 or (np.diff(begins) < 0).any() or begins[-1] > len(given):
        raise FastIndexError(f"query_start_loc counts up from 0 to at most the {len(given)} positions")
    # Lengths of this rank determine the number of columns; positions count the tokens of all ranks.
    limits = table.lengths if cp[0] == 1 else table.counts * (table.block_size * cp[0])
    most = max(int(limits.max(initial=0)), table.block_size * cp[0])
    if most >= NARROW:
        raise FastIndexError(
            f"requests and blocks of {most} tokens are longer than the {NARROW - 1} that are supported"
        )
    return _Batch(table, given, begins, limits, cp, interleave, pad)


def _fill(batch: _Batch, slots: NDArray[np.int64], workers: int) -> bool:
    """Write the slots; return whether a token has a position or a block out of bounds."""
    slots[batch.tokens :] = batch.pad
    if not batch.tokens:
        return False
    if not batch.table.blocks.size or indices_by_numpy(batch.tokens):
        with numpys_time():
            found, is_bad = _by_numpy(batch)
            slots[: batch.tokens] = found
            return bool(is_bad.any())
    load_kernels()
    from fastindex.runtime.machine_code import function

    blocks = batch.table.blocks
    if blocks.dtype not in _CODES or blocks.strides[1] != blocks.itemsize or blocks.strides[0] % blocks.itemsize:
        blocks = np.ascontiguousarray(blocks, np.int64)
    table = _numbers(batch, blocks, slots)
    failures, kernel = list[int](), function("map_slots")

    def chunk(begin: int, end: int) -> None:
        scratch = aligned_bytes(8 * COLLECTED)
        request = int(np.searchsorted(batch.starts, begin, "right")) - 1
        if kernel(address_of(table), address_of(scratch), request, begin, end):
            failures.append(begin)

    run_chunks(chunk, batch.tokens, workers, TUNING.chunk_length(batch.tokens, workers))
    return bool(failures)


def _numbers(batch: _Batch, blocks: NDArray[Any], slots: NDArray[np.int64]) -> Numbers:
    ranks, rank = batch.cp
    size, turn = batch.table.block_size, batch.interleave * batch.cp[0]
    of_column, of_interleave, of_turn = (division(n, NARROW - 1) for n in (size * ranks, batch.interleave, turn))
    num_blocks, null_block = batch.bounds
    numbers = SlotMap(
        table=address_of(blocks),
        row_bytes=blocks.strides[0],
        table_code=_CODES[blocks.dtype],
        positions=address_of(batch.positions),
        position_code=_CODES[batch.positions.dtype],
        starts=address_of(batch.starts),
        limits=address_of(batch.limits),
        slots=address_of(slots),
        block_size=size,
        magic=of_column.magic,
        shift=of_column.shift,
        num_blocks=num_blocks,
        null_block=null_block,
        pad=batch.pad,
        ranks=ranks,
        rank=rank,
        interleave=batch.interleave,
        turn=turn,
        interleave_magic=of_interleave.magic,
        interleave_shift=of_interleave.shift,
        turn_magic=of_turn.magic,
        turn_shift=of_turn.shift,
        streamed=int(slots.nbytes >= TUNING.streamed_bytes and slots.flags.aligned),
    )
    return np.array(numbers, np.int64)


def _by_numpy(batch: _Batch) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return the slots of all tokens except padding, and a mask of positions or blocks out of bounds."""
    (ranks, rank), size, interleave = batch.cp, batch.table.block_size, batch.interleave
    request = np.repeat(np.arange(len(batch.limits)), np.diff(batch.starts))
    position = batch.positions[: batch.tokens].astype(np.int64)
    is_bad = (position < 0) | (position >= batch.limits[request])
    position[is_bad] = 0
    if not batch.table.blocks.size:
        return np.full(batch.tokens, batch.pad), is_bad
    block = batch.table.blocks[request, position // (size * ranks)].astype(np.int64)
    num_blocks, null_block = batch.bounds
    is_bad |= (block < 0) | (block >= num_blocks) | (block == null_block)
    local = position // (interleave * ranks) * interleave + position % interleave
    is_here = position // interleave % ranks == rank
    return np.where(is_here & ~is_bad, block * size + local % size, batch.pad), is_bad


def _error(batch: _Batch) -> OutOfBoundsError:
    _, is_bad = _by_numpy(batch)
    token = int(np.flatnonzero(is_bad)[0])
    request = int(np.searchsorted(batch.starts, token, "right")) - 1
    position, limit = int(batch.positions[token]), int(batch.limits[request])
    where = f"token {token}, of request {request}, "
    if not 0 <= position < limit:
        return OutOfBoundsError(f"{where}has position {position}, and the request has {limit} tokens")
    column = position // (batch.table.block_size * batch.cp[0])
    block = int(batch.table.blocks[request, column])
    if block == batch.table.null_block:
        return OutOfBoundsError(f"{where}is in column {column}, which holds the null block {block}; nothing is written")
    most = (
        f"the {batch.table.num_blocks} blocks of the pool" if batch.table.num_blocks else "a pool of blocks from 0 on"
    )
    return OutOfBoundsError(f"{where}is in column {column}, whose block {block} is out of bounds for {most}")
