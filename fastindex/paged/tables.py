"""`BlockTable`: the blocks of each request, as a padded matrix, as FlashInfer's CSR, or as SGLang's slots."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.index_arguments import as_integers_in_bulk
from fastindex.core.integers import as_integer
from fastindex.errors import FastIndexError, OutOfBoundsError
from fastindex.paged.planes import Numbers

Integers = NDArray[Any]


class Csr(NamedTuple):
    """A block table in FlashInfer's CSR form: int32, or int64 if the values need it."""

    indptr: Integers
    indices: Integers
    last_page_len: Integers


class Owners(NamedTuple):
    """The request and the position of a token, or arrays of them; -1 for slots that no request uses."""

    request: Any
    position: Any


class BlockTable:
    """The blocks of each request of a batch, in the order of its tokens.

    Parameters
    ----------
    blocks : integer array of (requests, columns)
        Entry ``[r, j]`` is the block of the tokens of request `r` from ``j * block_size`` on. A single request may be
        a one-dimensional array.
    block_size : int
        Tokens per block.
    lengths : integers, optional
        Tokens of each request; entries beyond the needed blocks are padding and ignored. Default: rows are full.
    num_blocks : int, optional
        Blocks of the pool; without it, only negative blocks are out of bounds.
    null_block : int, optional
        A placeholder block, such as block 0 of vLLM; no token is written to it.

    Raises
    ------
    ArgumentTypeError, FastIndexError
        Values that are not integers, wrong dimensions, or lengths that exceed the rows; the message names the request.

    Examples
    --------
    >>> table = BlockTable([[3, 7, 0], [5, 0, 0]], block_size=16, lengths=[20, 16])
    >>> table.counts.tolist(), table.to_csr().indices.tolist()
    ([2, 1], [3, 7, 5])
    """

    def __init__(
        self,
        blocks: Any,
        *,
        block_size: int,
        lengths: Any = None,
        num_blocks: int | None = None,
        null_block: int | None = None,
    ) -> None:
        self.blocks = array = _rows(blocks, "blocks")
        self.block_size = at_least_one(block_size, "block_size")
        self.num_blocks = None if num_blocks is None else at_least_one(num_blocks, "num_blocks")
        self.null_block = None if null_block is None else as_integer(null_block, "null_block")
        #: The blocks that no token is written to: several for kernels, if a null block was split.
        self.null_blocks = range(0) if self.null_block is None else range(self.null_block, self.null_block + 1)
        whole = array.shape[1] * self.block_size
        self.lengths = _lengths(lengths, array.shape[0], whole) if lengths is not None else np.full(len(array), whole)

    @property
    def counts(self) -> Numbers:
        """Number of blocks of each request."""
        return -(-self.lengths // self.block_size)

    @property
    def _used(self) -> NDArray[np.bool_]:
        """A mask of the entries that hold tokens."""
        return np.arange(self.blocks.shape[1]) < self.counts[:, None]

    def _times(self, factor: int) -> Numbers:
        """Return `factor` times each block.

        Raises
        ------
        OutOfBoundsError
            The product of a block that holds tokens does not fit int64.
        """
        most = (2**63 - 1) // factor
        wrong = np.argwhere(self._used & ((self.blocks >= most) | (self.blocks < -most)))
        if len(wrong):
            request, column = wrong[0].tolist()
            raise OutOfBoundsError(
                f"block {self.blocks[request, column]} in column {column} of request {request} is too large: {factor} "
                "times it does not fit int64"
            )
        return self.blocks.astype(np.int64) * factor

    def __repr__(self) -> str:
        requests, columns = self.blocks.shape
        return f"BlockTable({requests} requests, {columns} columns, {self.block_size} tokens each)"

    # FlashInfer

    @classmethod
    def from_csr(
        cls,
        indptr: Any,
        indices: Any,
        last_page_len: Any,
        *,
        page_size: int,
        num_blocks: int | None = None,
        null_block: int | None = None,
        pad: int = 0,
    ) -> BlockTable:
        """Return the table for FlashInfer's CSR arrays.

        Parameters
        ----------
        indptr, indices, last_page_len : integer arrays
            Request `r` has the pages ``indices[indptr[r]:indptr[r + 1]]``, and ``last_page_len[r]`` tokens in its last
            page: 1 to `page_size`, or 0 for a request without pages.
        page_size : int
        num_blocks, null_block
            As for `BlockTable`.
        pad : int
            Padding entry after the pages of a shorter request.

        Raises
        ------
        FastIndexError
            `indptr` does not ascend from 0 to the number of pages, or a last page has no or too many tokens.

        Examples
        --------
        >>> BlockTable.from_csr([0, 2, 3], [3, 7, 5], [4, 16], page_size=16).blocks.tolist()
        [[3, 7], [5, 0]]
        """
        starts, pages = flat_integers(indptr, "indptr"), flat_integers(indices, "indices")
        last = flat_integers(last_page_len, "last_page_len")
        counts = np.diff(starts.astype(np.int64))
        goes_up = len(starts) > 0 and starts[0] == 0 and (counts >= 0).all() and starts[-1] == len(pages)
        if not goes_up or len(last) != len(counts):
            raise FastIndexError(
                f"indptr counts from 0 up to the {len(pages)} pages and has one entry more than last_page_len: "
                f"{len(starts)} and {len(last)}"
            )
        size = at_least_one(page_size, "page_size")
        wrong = np.flatnonzero((last < (counts > 0)) | (last > np.where(counts > 0, size, 0)))
        if len(wrong):
            raise FastIndexError(
                f"last_page_len of request {wrong[0]} is {last[wrong[0]]}, of {counts[wrong[0]]} pages of {size} tokens"
            )
        filler = as_integer(pad, "pad")
        if not np.iinfo(pages.dtype).min <= filler <= np.iinfo(pages.dtype).max:
            raise FastIndexError(f"pad {pad} does not fit {pages.dtype}, the type of indices")
        matrix = np.full((len(counts), int(counts.max(initial=0))), filler, pages.dtype)
        matrix[np.arange(matrix.shape[1]) < counts[:, None]] = pages
        lengths = np.maximum(counts - 1, 0) * size + last.astype(np.int64)
        return cls(matrix, block_size=size, lengths=lengths, num_blocks=num_blocks, null_block=null_block)

    def to_csr(self) -> Csr:
        """Return FlashInfer's CSR arrays.

        Examples
        --------
        >>> [array.tolist() for array in BlockTable([[3, 7]], block_size=16, lengths=[20]).to_csr()]
        [[0, 2], [3, 7], [4]]
        """
        counts, indices = self.counts, self._times(1)[self._used]
        largest = max(int(indices.max(initial=0)), int(counts.sum()))
        dtype = np.int32 if largest < 2**31 else np.int64
        last = self.lengths - np.maximum(counts - 1, 0) * self.block_size
        indptr = np.concatenate([[0], np.cumsum(counts)])
        return Csr(indptr.astype(dtype), indices.astype(dtype), last.astype(dtype))

    # SGLang

    @classmethod
    def from_slots(
        cls, slots: Any, lengths: Any, *, page_size: int, num_blocks: int | None = None, null_block: int | None = None
    ) -> BlockTable:
        """Return the table for SGLang's ``req_to_token``, a matrix of the slot of each token.

        Raises
        ------
        FastIndexError
            The tokens of a page are not in consecutive slots of it; the message names the request and the token.

        Examples
        --------
        >>> BlockTable.from_slots([[12, 13, 14, 15, 4, 0]], [5], page_size=4).blocks.tolist()
        [[3, 1]]
        """
        size = at_least_one(page_size, "page_size")
        given = _rows(slots, "slots")
        matrix, width = given.astype(np.int64), given.shape[1]
        held = _lengths(lengths, len(matrix), width)
        blocks = matrix[:, ::size] // size
        expected = (blocks[:, :, None] * size + np.arange(size)).reshape(len(matrix), -1)[:, :width]
        strays = np.argwhere((matrix != expected) & (np.arange(width) < held[:, None]))
        if len(strays):
            request, token = strays[0].tolist()
            first = int(given[request, token // size * size])
            raise FastIndexError(
                f"token {token} of request {request} is in slot {given[request, token]}, and the page of {size} tokens "
                f"it belongs to puts it in slot {first // size * size + token % size}"
            )
        return cls(blocks, block_size=size, lengths=held, num_blocks=num_blocks, null_block=null_block)

    def to_slots(self, *, pad: int = 0) -> Numbers:
        """Return a matrix of the slot of each token, with `pad` after the last token of a request.

        Examples
        --------
        >>> BlockTable([[3, 1]], block_size=4, lengths=[5]).to_slots().tolist()
        [[12, 13, 14, 15, 4, 0, 0, 0]]
        """
        slots = self._times(self.block_size)[:, :, None] + np.arange(self.block_size)
        slots = slots.reshape(len(self.blocks), -1)
        return np.where(np.arange(slots.shape[1]) < self.lengths[:, None], slots, as_integer(pad, "pad"))

    # Scheduler block ids and kernel block ids

    def kernel_blocks(self, ratio: int) -> BlockTable:
        """Return the table for kernels with smaller blocks: block `b` becomes the blocks ``b * ratio + i``.

        Examples
        --------
        >>> BlockTable([[3, 1]], block_size=128).kernel_blocks(2).blocks.tolist()
        [[6, 7, 2, 3]]
        """
        if self.block_size % at_least_one(ratio, "ratio"):
            raise FastIndexError(f"ratio {ratio} does not divide the {self.block_size} tokens of a block")
        finer = self._times(ratio)[:, :, None] + np.arange(ratio)
        found = BlockTable(
            finer.reshape(len(self.blocks), -1),
            block_size=self.block_size // ratio,
            lengths=self.lengths,
            num_blocks=None if self.num_blocks is None else self.num_blocks * ratio,
            null_block=None if self.null_block is None else self.null_block * ratio,
        )
        found.null_blocks = range(self.null_blocks.start * ratio, self.null_blocks.stop * ratio)
        return found

    def owners(self, slot: Any) -> Owners:
        """Return the request and position of the token in each slot; the first request where several share a block.

        Examples
        --------
        >>> BlockTable([[3, 7], [5, 3]], block_size=16, lengths=[20, 32]).owners([48, 83, 115, 116, 0])
        Owners(request=array([ 0,  1,  0, -1, -1]), position=array([ 0,  3, 19, -1, -1]))
        """
        slots = np.asarray(as_integers_in_bulk(slot, "slot")).astype(np.int64)
        request, column = np.nonzero(self._used)
        known, first = np.unique(self.blocks[request, column], return_index=True)
        block, token = np.divmod(slots, self.block_size)
        at = np.minimum(np.searchsorted(known, block), max(len(known) - 1, 0))
        found = known[at] == block if len(known) else np.zeros(slots.shape, np.bool_)
        rows, columns = (np.append(axis[first], 0)[at] for axis in (request, column))
        position = columns * self.block_size + token
        found = found & (position < np.append(self.lengths, 0)[rows])
        return Owners(np.where(found, rows, -1)[()], np.where(found, position, -1)[()])


def integers(values: Any, name: str) -> Integers:
    """Return integers as an array.

    Raises
    ------
    FastIndexError
        Rows of different lengths.
    """
    try:
        return np.asarray(as_integers_in_bulk(values, name))
    except (ValueError, TypeError):
        lengths = [len(row) if isinstance(row, Sized) else 0 for row in values] if isinstance(values, Sequence) else []
        odd = next((row for row, length in enumerate(lengths) if length != lengths[0]), None)
        if odd is None:
            raise
        raise FastIndexError(
            f"the rows of {name} must have the same length: row 0 has {lengths[0]} entries, row {odd} has "
            f"{lengths[odd]}; fill the shorter rows of a block table with any block, and give lengths="
        ) from None


def flat_integers(values: Any, name: str) -> Integers:
    """Return integers as an array of one dimension; errors as in `integers`."""
    return integers(values, name).reshape(-1)


def _rows(values: Any, name: str) -> Integers:
    """Return integers as rows; a single row may be flat."""
    array = integers(values, name)
    if array.ndim not in (1, 2):
        raise FastIndexError(f"a block table has rows of {name}, got {array.ndim} dimensions")
    return array[None] if array.ndim == 1 else array


def at_least_one(number: Any, name: str) -> int:
    """Return `number` as an integer of at least 1.

    Raises
    ------
    FastIndexError
        The number is below 1.
    """
    found = as_integer(number, name)
    if found < 1:
        raise FastIndexError(f"{name} must be at least 1, got {found}")
    return found


def _lengths(lengths: Any, requests: int, most: int) -> Numbers:
    found = flat_integers(lengths, "lengths")
    if len(found) != requests:
        raise FastIndexError(f"lengths has one entry a request: {len(found)} for {requests} requests")
    wrong = np.flatnonzero((found < 0) | (found > most))
    if len(wrong):
        raise OutOfBoundsError(f"request {wrong[0]} of {found[wrong[0]]} tokens does not fit its row, of {most}")
    return found.astype(np.int64)
