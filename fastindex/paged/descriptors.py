"""`runs`: a transfer as the fewest contiguous runs, for engines that move memory by descriptors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fastindex.algebra.loops import Loop, Nest, exchanged
from fastindex.algebra.strided_runs import progressions
from fastindex.arrays.arrays import address_of
from fastindex.errors import check_option
from fastindex.index.box_nests import nest_offsets
from fastindex.paged.caches import Cache
from fastindex.paged.numbers import RunJob
from fastindex.paged.planes import Numbers
from fastindex.paged.tables import at_least_one
from fastindex.paged.transfers import Pair, Transfer, granule_offsets, page_nests, transfer_of
from fastindex.runtime.first_answer import indices_by_numpy, kernel_function, numpys_time

ORDERS = ("source", "target", "requested")

_Runs = tuple[Numbers, Numbers, Numbers]
_NONE: _Runs = (np.empty(0, np.int64),) * 3
_NO_PIECE = np.empty((0, 3), np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class Runs:
    """Contiguous runs of bytes that move a request.

    Attributes
    ----------
    source, target, nbytes : int64 arrays
        Byte offset of each run on both sides, and its length.

    Examples
    --------
    >>> found = Runs(np.array([0, 64]), np.array([32, 8]), np.array([16, 16]))
    >>> found.count, found.total_nbytes
    (2, 32)
    """

    source: Numbers
    target: Numbers
    nbytes: Numbers

    @property
    def count(self) -> int:
        """Number of runs."""
        return len(self.nbytes)

    @property
    def total_nbytes(self) -> int:
        """Total bytes of all runs."""
        return int(self.nbytes.sum())

    def coalesced(self, max_bytes: int) -> Runs:
        """Return runs split to at most `max_bytes` each, for engines with a size limit; adjacent runs stay merged.

        Examples
        --------
        >>> Runs(np.array([0]), np.array([100]), np.array([70])).coalesced(32).target.tolist()
        [100, 132, 164]
        """
        most = at_least_one(max_bytes, "max_bytes")
        parts = -(-self.nbytes // most)
        first = np.repeat(np.cumsum(parts) - parts, parts)
        at = (np.arange(len(first)) - first) * most
        length = np.minimum(np.repeat(self.nbytes, parts) - at, most)
        return Runs(np.repeat(self.source, parts) + at, np.repeat(self.target, parts) + at, length)

    def strided(self) -> StridedRuns:
        """Return the runs as fewer rows: one per sequence of runs of equal length and constant stride on both sides.

        Examples
        --------
        >>> found = Runs(np.array([0, 64, 128]), np.array([32, 48, 64]), np.array([16, 16, 8])).strided()
        >>> found.source.tolist(), found.target.tolist()
        ([[0, 16, 64, 2], [128, 8, 0, 1]], [[32, 16, 16, 2], [64, 8, 0, 1]])
        """
        rows = []
        columns = self.nbytes, self.target, self.source
        for at, count, (longer, there, here) in progressions(*columns):
            if longer:
                rows += [(self.source[i], self.target[i], self.nbytes[i], 0, 0, 1) for i in range(at, at + count)]
            else:
                rows.append((self.source[at], self.target[at], self.nbytes[at], here, there, count))
        table = np.array(rows, np.int64).reshape(-1, 6)
        return StridedRuns(table[:, [0, 2, 3, 5]], table[:, [1, 2, 4, 5]])


@dataclass(frozen=True, eq=False, slots=True)
class StridedRuns:
    """Runs as rows of (address, length, stride, count) for each side; row `i` of both sides belong together.

    Attributes
    ----------
    source, target : int64 arrays of (rows, 4)
    """

    source: Numbers
    target: Numbers


def runs(
    source: Cache,
    target: Cache,
    source_blocks: Any,
    target_blocks: Any,
    num_tokens: int | None = None,
    *,
    order: str = "source",
) -> Runs:
    """Return the fewest contiguous runs of bytes that move a request from one cache to another.

    Parameters
    ----------
    source, target : Cache
        Caches with the same layers and elements; block sizes, dimension orders, heads and context parallel ranks may
        differ. The heads that both ranks hold are moved.
    source_blocks, target_blocks : integer arrays
        The blocks of the request on both sides, in the order of its tokens.
    num_tokens : int, optional
        Default: all tokens of the blocks.
    order : {"source", "target", "requested"}
        By address on one side; or layer by layer and block by block as listed. The latter merges only runs that are
        adjacent in this order, which may leave more runs.

    Returns
    -------
    Runs
        Byte offsets from the start of each pool.

    Raises
    ------
    FastIndexError
        Caches with different layers, planes or elements, or without a common head; too few blocks; a repeated target
        block, or the null block as a target.
    OutOfBoundsError
        A block outside its pool.
    ArgumentTypeError
        Blocks that are not integers.

    Examples
    --------
    Move 20 tokens from blocks of 8 tokens to blocks of 16, to the rank that holds the second of two heads:

    >>> import fastindex.paged as fp
    >>> text = "bf16[num_blocks=8,2,kv_heads={},block_size={},head_dim=64]"
    >>> source, target = fp.Cache(text.format(2, 8)), fp.Cache(text.format(1, 16), tp=(2, 1), total_kv_heads=2)
    >>> found = fp.runs(source, target, [5, 3, 4], [7, 1], num_tokens=20)
    >>> found.count, found.total_nbytes
    (6, 5120)
    >>> found.source.tolist()
    [13312, 15360, 17408, 19456, 21504, 23552]
    """
    check_option("order", order, ORDERS)
    return runs_of(transfer_of(source, target, source_blocks, target_blocks, num_tokens), order)


def runs_of(transfer: Transfer, order: str = "source") -> Runs:
    """Return the runs of a validated transfer."""
    side = int(order == "target")
    jobs = [job for group in transfer.groups for job in _jobs(transfer, group, side)] if transfer.granules.count else []
    total, found = sum(job.most for job in jobs), None
    is_listed = order == "requested"
    # Blocks are ordered, and granules whose tokens are not consecutive are not.
    is_fast = is_listed or (len(jobs) == 1 and transfer.granules.places is None and jobs[0].is_sorted)
    if is_fast and not indices_by_numpy(3 * total):
        found = _by_kernel(jobs, total, transfer, None if is_listed else side)
    if found is None:
        with numpys_time():
            pieces = _flat([_NONE, *(job.listed() for job in jobs)])
            found = _neighbours_joined(*pieces) if is_listed else _joined(*pieces)
    return Runs(*found) if side == 0 else Runs(found[1], found[0], found[2])


@dataclass(frozen=True, eq=False, slots=True)
class _Job:
    """Pieces (contiguous parts) of blocks, for the same loops outside the blocks; the near side defines the order.

    Attributes
    ----------
    outer : int64 array of (n, 2)
        (near, far) offsets of the loops outside the blocks, sorted by the near offset.
    blocks, block_stride : int64 array, int
        The blocks of the near side, or its granules if their tokens are not consecutive; bytes between two of these.
    pieces, last : int64 arrays of (n, 4)
        Near offset, granule, far offset and bytes of the pieces of a block, and of the last block; sorted by the near
        offset.
    pages, each : int64 array, int
        The far offset of each granule, and the number of granules in a block.
    far_stride : int
        The block stride of the far side if a granule is a block of both sides, else 0.
    """

    outer: Numbers
    blocks: Numbers
    block_stride: int
    pieces: Numbers
    last: Numbers
    pages: Callable[[], Numbers]
    each: int
    far_stride: int

    @property
    def most(self) -> int:
        """An upper bound of the number of runs."""
        return len(self.outer) * ((len(self.blocks) - 1) * len(self.pieces) + len(self.last))

    @property
    def is_sorted(self) -> bool:
        """Whether visiting the blocks in ascending order yields the pieces in ascending near-side address."""
        table = self.pieces if len(self.pieces) else self.last
        begin, end = int(table[0, 0]), int((table[:, 0] + table[:, 3]).max())
        if len(self.blocks) > 1 and end - begin > self.block_stride:
            return False
        reach = end - begin + int(self.blocks.max() - self.blocks.min()) * self.block_stride
        return bool((np.diff(self.outer[:, 0]) >= reach).all())

    def listed(self) -> _Runs:
        """Return near offsets, far offsets and bytes of all pieces."""
        bases, pages, count = self.blocks * self.block_stride, self.pages(), len(self.blocks) - 1
        parts = []
        for rows, pieces in ((np.arange(count)[:, None], self.pieces), (np.array([[count]]), self.last)):
            near = self.outer[:, 0, None, None] + bases[rows] + pieces[:, 0]
            far = self.outer[:, 1, None, None] + pages[rows * self.each + pieces[:, 1]] + pieces[:, 2]
            columns = near, far, np.broadcast_to(pieces[:, 3], near.shape)
            parts.append([column.reshape(len(self.outer), -1) for column in columns])
        return _flat(parts, 1)


def _flat(parts: Sequence[Sequence[Numbers]], axis: int = 0) -> _Runs:
    near, far, nbytes = (np.concatenate(column, axis).reshape(-1) for column in zip(*parts, strict=True))
    return near, far, nbytes


def _jobs(transfer: Transfer, group: Sequence[Pair], side: int) -> list[_Job]:
    granules, plane, is_listed = transfer.granules, group[0][side], transfer.granules.places is not None
    layers = np.stack([plane.layer_offsets - plane.layer_offsets[0] for plane in group[0]], axis=1)
    layers = layers[:, [side, 1 - side]]
    stride = 1 if is_listed else plane.block_stride
    around = len(layers) > 1 and int(np.abs(np.diff(layers[:, 0])).min()) >= plane.block_stride
    kinds: dict[tuple[Loop, ...], list[list[Numbers]]] = {}
    for part, tokens in enumerate((granules.tokens, granules.tail)):
        for nest in page_nests(tuple(group), transfer.heads, tokens, around) if tokens else ():
            outer, piece = _split(exchanged(nest) if side else nest, 0 if is_listed else stride)
            kinds.setdefault(outer, [[_NO_PIECE], [_NO_PIECE]])[part].append(piece)
    blocks = transfer.pages(group, side) if is_listed else transfer.blocks[side]
    each = 1 if is_listed else (transfer.source, transfer.target)[side].block_size // granules.tokens
    offsets = np.zeros(1, np.int64) if is_listed else granule_offsets(plane, granules)
    in_last = granules.whole - (len(blocks) - 1) * each
    jobs = []
    for loops, of_granules in kinds.items():
        places = nest_offsets(Nest(loops))
        if around:
            places = (layers[:, None] + places).reshape(-1, 2)
        places = places[np.argsort(places[:, 0], kind="stable")]
        whole, tail = (np.concatenate(pieces) for pieces in of_granules)
        tables = (_rows([whole] * each, offsets), _rows([whole] * in_last + [tail] * (granules.tail > 0), offsets))
        far_stride = group[0][1 - side].block_stride if _are_blocks(transfer) else 0
        pages = partial(transfer.pages, group, 1 - side)
        jobs.append(_Job(places, blocks, stride, *tables, pages, each, far_stride))
    return jobs


def _rows(granules: Sequence[Numbers], offsets: Numbers) -> Numbers:
    """Return the pieces of a block, by near offset, from those of each granule and the offsets of granules."""
    number = np.repeat(np.arange(len(granules)), [len(pieces) for pieces in granules])
    pieces = np.concatenate([_NO_PIECE, *granules])
    table = np.column_stack([pieces[:, 0] + offsets[number], number, pieces[:, 1:]])
    return np.ascontiguousarray(table[np.argsort(table[:, 0], kind="stable")])


def _are_blocks(transfer: Transfer) -> bool:
    """Whether each granule is a whole block on both sides."""
    granules = transfer.granules
    sizes = {transfer.source.block_size, transfer.target.block_size, granules.tokens}
    return granules.places is None and len(sizes) == 1


def _split(nest: Nest, block_stride: int) -> tuple[tuple[Loop, ...], Numbers]:
    """Return the loops outside the blocks, and the pieces of the inner loops: near offset, far offset, bytes."""
    run = nest.loop_of(1, 1)
    length = 1 if run is None else run.size
    others = [loop for loop in nest.loops if loop is not run]
    outer = tuple(loop for loop in others if block_stride and abs(loop.source_stride) >= block_stride)
    inner = tuple(loop for loop in others if loop not in outer)
    offsets = nest_offsets(Nest(inner, nest.source_start, nest.destination_start))
    return outer, np.concatenate([offsets, np.full((len(offsets), 1), length)], axis=1)


# By kernels


def _by_kernel(jobs: Sequence[_Job], total: int, transfer: Transfer, side: int | None) -> _Runs | None:
    """Return the runs of jobs, ordered by the blocks of a side; None if a block repeats there."""
    near, far, nbytes = (np.empty(total, np.int64) for _ in range(3))
    count = 0
    for job in jobs:
        numbers = transfer.blocks[1 - (side or 0)] if job.far_stride else np.arange(len(job.blocks))
        blocks, last = job.blocks, len(job.blocks) - 1
        if side is not None and not (blocks[1:] > blocks[:-1]).all():
            # At the end of the results: a run is written after its blocks are read, and each block has a run.
            ordered = near[total - len(blocks) :], far[total - len(blocks) :]
            if not _order(blocks, numbers, transfer, side, (*ordered, nbytes)):
                return None
            last = int(np.searchsorted(ordered[0], blocks[-1]))
            blocks, numbers = ordered
        pages = None if job.far_stride else np.ascontiguousarray(job.pages())
        outer = np.ascontiguousarray(job.outer)
        table = RunJob(
            outer=address_of(outer),
            outer_count=len(outer),
            blocks=address_of(blocks),
            block_stride=job.block_stride,
            order=address_of(numbers),
            block_count=len(blocks),
            pages=0 if pages is None else address_of(pages),
            number_stride=job.far_stride or 8 * job.each,
            pieces=address_of(job.pieces),
            piece_count=len(job.pieces),
            last_pieces=address_of(job.last),
            last_count=len(job.last),
            last=last,
            near=address_of(near[count:]),
            far=address_of(far[count:]),
            nbytes=address_of(nbytes[count:]),
        )
        count += kernel_function("write_runs")(address_of(np.array(table, np.int64)))
    found = near[:count], far[:count], nbytes[:count]
    return found if 2 * count > total else (found[0].copy(), found[1].copy(), found[2].copy())


def _order(blocks: Numbers, numbers: Numbers, transfer: Transfer, side: int, results: _Runs) -> bool:
    """Write blocks in ascending order, and their numbers; return whether all differ. The third result is scratch."""
    pools = [cache.num_blocks for cache in (transfer.source, transfer.target)]
    if pools[side] > 8 * len(blocks) or max(pools) >= 2**31 - 1:
        found = np.argsort(blocks)
        results[0][:], results[1][:] = blocks[found], numbers[found]
        return bool((results[0][1:] > results[0][:-1]).all())
    places = results[2].view(np.int32)
    if len(places) < pools[side]:
        places = np.empty(pools[side], np.int32)
    places[: pools[side]].fill(0)
    addresses = [address_of(array) for array in (blocks, numbers, places, results[1], results[0])]
    return bool(kernel_function("order_blocks")(len(blocks), pools[side], *addresses))


# By NumPy


def _joined(near: Numbers, far: Numbers, nbytes: Numbers) -> _Runs:
    """Merge all pieces that are contiguous on both sides, and sort them by near, then far offset."""
    by_distance = np.lexsort((near, far - near))
    joined = _neighbours_joined(near[by_distance], far[by_distance], nbytes[by_distance])
    order = np.lexsort((joined[1], joined[0]))
    return joined[0][order], joined[1][order], joined[2][order]


def _neighbours_joined(near: Numbers, far: Numbers, nbytes: Numbers) -> _Runs:
    """Merge consecutive pieces that are contiguous on both sides."""
    goes_on = (near[1:] == near[:-1] + nbytes[:-1]) & (far[1:] == far[:-1] + nbytes[:-1])
    first = np.flatnonzero(np.append(True, ~goes_on)[: len(near)])
    return near[first], far[first], np.add.reduceat(nbytes, first) if len(first) else nbytes
