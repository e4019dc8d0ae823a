"""`runs`: a transfer as the fewest contiguous runs, for engines that move memory by descriptors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    jobs = [job for group in transfer.groups for job in _jobs(transfer, group, side)]
    whole = transfer.granules.whole
    total = sum(job.most(whole) for job in jobs)
    if total == 0:
        none = np.empty(0, np.int64)
        return Runs(none, none, none)
    is_fast = transfer.granules.places is None and not indices_by_numpy(3 * total)
    ordered = _ordered_blocks(transfer, side, order) if is_fast else None
    if ordered is not None and (order == "requested" or (len(jobs) == 1 and jobs[0].is_sorted(transfer.blocks[side]))):
        found = [_by_kernel(job, transfer, ordered) for job in jobs]
        joined = found[0] if len(found) == 1 else _columns(found)
    else:
        with numpys_time():
            pieces = _columns([part for job in jobs for part in job.pieces(whole)])
            joined = _neighbours_joined(pieces) if order == "requested" else _joined(pieces)
    return Runs(*joined) if side == 0 else Runs(joined[1], joined[0], joined[2])


@dataclass(frozen=True, eq=False, slots=True)
class _Job:
    """Pieces (contiguous parts) of granules with the same loops outside the blocks; the near side defines the order.

    Attributes
    ----------
    outer : int64 array of (n, 2)
        (near, far) offsets of the loops outside the blocks, sorted by the near offset.
    piece, last : int64 arrays of (n, 3)
        Near offset, far offset and bytes of the pieces of a full granule, and of the partial last granule.
    pages : (callable, callable)
        Return the granule offsets, near and far.
    each : int
        Granules per near-side block.
    offsets : int64 array
        Near-side offset of each granule in its block.
    block_stride, far_stride : int
        Block stride of the near side; that of the far side if a granule is a block of both, else 0.
    """

    outer: Numbers
    piece: Numbers
    last: Numbers
    pages: tuple[Callable[[], Numbers], Callable[[], Numbers]]
    each: int
    offsets: Numbers
    block_stride: int
    far_stride: int

    def most(self, whole: int) -> int:
        """Return the number of pieces for `whole` full granules and the partial one: an upper bound on the runs."""
        return len(self.outer) * (whole * len(self.piece) + len(self.last))

    def rows(self, whole: int, tail: bool) -> Numbers:
        """Return the pieces of a block with `whole` full granules and, with `tail`, a partial one; by near offset."""
        kinds = [self.piece] * whole + [self.last] * tail
        number = np.repeat(np.arange(len(kinds)), [len(piece) for piece in kinds])
        pieces = np.concatenate(kinds)
        table = np.column_stack([pieces[:, 0] + self.offsets[number], number, pieces[:, 1:]])
        return np.ascontiguousarray(table[np.argsort(table[:, 0], kind="stable")])

    def is_sorted(self, blocks: Numbers) -> bool:
        """Whether visiting the blocks in ascending order yields the pieces in ascending near-side address."""
        table = self.rows(self.each, False)
        if not len(table):
            return len(self.outer) == 1
        begin, end = int(table[0, 0]), int((table[:, 0] + table[:, 3]).max())
        if len(blocks) > 1 and end - begin > self.block_stride:
            return False
        reach = end - begin + int(blocks.max() - blocks.min()) * self.block_stride
        return bool((np.diff(self.outer[:, 0]) >= reach).all())

    def pieces(self, whole: int) -> Iterable[_Runs]:
        """Yield arrays of near offsets, far offsets and bytes of all pieces."""
        for part, piece in ((slice(None, whole), self.piece), (slice(whole, None), self.last)):
            sides = []
            for side in (0, 1):
                pages = self.outer[:, side, None] + self.pages[side]()[part]
                sides.append((pages[:, :, None] + piece[:, side]).reshape(-1))
            if len(sides[0]):
                yield sides[0], sides[1], np.tile(piece[:, 2], len(sides[0]) // len(piece))


def _jobs(transfer: Transfer, group: Sequence[Pair], side: int) -> list[_Job]:
    granules, plane = transfer.granules, group[0][side]
    cache = (transfer.source, transfer.target)[side]
    stride = plane.block_stride
    layers = np.stack([plane.layer_offsets - plane.layer_offsets[0] for plane in group[0]], axis=1)
    layers = layers[:, [side, 1 - side]]
    around = len(layers) > 1 and int(np.abs(np.diff(layers[:, 0])).min()) >= stride
    kinds: dict[tuple[Loop, ...], list[list[Numbers]]] = {}
    for part, tokens in enumerate((granules.tokens, granules.tail)):
        for nest in page_nests(tuple(group), transfer.heads, tokens, around) if tokens else ():
            outer, piece = _split(exchanged(nest) if side else nest, stride if granules.places is None else 0)
            kinds.setdefault(outer, [[], []])[part].append(piece)
    pages = partial(transfer.pages, group, side), partial(transfer.pages, group, 1 - side)
    offsets = granule_offsets(plane, granules)
    empty = np.empty((0, 3), np.int64)
    each = cache.block_size // granules.tokens
    far_stride = group[0][1 - side].block_stride if _are_blocks(transfer) else 0
    jobs = []
    for loops, of_granules in kinds.items():
        places = nest_offsets(Nest(loops))
        if around:
            places = (layers[:, None] + places).reshape(-1, 2)
        places = places[np.argsort(places[:, 0], kind="stable")]
        tables = [np.concatenate(parts) if parts else empty for parts in of_granules]
        jobs.append(_Job(places, tables[0], tables[1], pages, each, offsets, stride, far_stride))
    return jobs


def _are_blocks(transfer: Transfer) -> bool:
    """Whether each granule is a whole block on both sides."""
    return transfer.source.block_size == transfer.target.block_size == transfer.granules.tokens


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


def _ordered_blocks(transfer: Transfer, side: int, order: str) -> tuple[Numbers, Numbers, int] | None:
    """Return the blocks of a side in the order of the runs, and the place of the request's last; None if one repeats.

    Before the blocks, their numbers: the blocks of the other side, or indices if blocks do not match one to one.
    """
    blocks = transfer.blocks[side]
    values = transfer.blocks[1 - side] if _are_blocks(transfer) else np.arange(len(blocks))
    if order == "requested" or (blocks[1:] > blocks[:-1]).all():
        return values, blocks, len(blocks) - 1
    pools = [cache.num_blocks for cache in (transfer.source, transfer.target)]
    if pools[side] > 8 * len(blocks) or max(pools) >= 2**31 - 1:
        found = np.argsort(blocks)
        ordered = blocks[found]
        if not (ordered[1:] > ordered[:-1]).all():
            return None
        values = values[found]
    else:
        # Not np.zeros: its memory is mapped in small pages, on first use.
        places, found, ordered = np.full(pools[side], 0, np.int32), np.empty_like(blocks), np.empty_like(blocks)
        addresses = [address_of(array) for array in (blocks, values, places, found, ordered)]
        if not kernel_function("order_blocks")(len(blocks), pools[side], *addresses):
            return None
        values = found
    return values, ordered, int(np.searchsorted(ordered, blocks[-1]))


def _by_kernel(job: _Job, transfer: Transfer, ordered: tuple[Numbers, Numbers, int]) -> _Runs:
    granules = transfer.granules
    order, blocks, last = ordered
    pieces = job.rows(job.each, False)
    of_last = job.rows(granules.whole - (len(order) - 1) * job.each, granules.tail > 0)
    outer = np.ascontiguousarray(job.outer)
    pages = None if job.far_stride else np.ascontiguousarray(job.pages[1]())
    near, far, nbytes = (np.empty(job.most(granules.whole), np.int64) for _ in range(3))
    numbers = RunJob(
        outer=address_of(outer),
        outer_count=len(outer),
        blocks=address_of(blocks),
        block_stride=job.block_stride,
        order=address_of(order),
        block_count=len(order),
        pages=0 if pages is None else address_of(pages),
        number_stride=job.far_stride or 8 * job.each,
        pieces=address_of(pieces),
        piece_count=len(pieces),
        last_pieces=address_of(of_last),
        last_count=len(of_last),
        last=last,
        near=address_of(near),
        far=address_of(far),
        nbytes=address_of(nbytes),
    )
    count = kernel_function("write_runs")(address_of(np.array(numbers, np.int64)))
    found = near[:count], far[:count], nbytes[:count]
    return found if 2 * count > len(near) else (found[0].copy(), found[1].copy(), found[2].copy())


# By NumPy


def _columns(parts: Sequence[_Runs]) -> _Runs:
    near, far, nbytes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return near, far, nbytes


def _joined(pieces: _Runs) -> _Runs:
    """Merge all pieces that are contiguous on both sides, and sort them by near, then far offset."""
    near, far, nbytes = pieces
    by_distance = np.lexsort((near, far - near))
    joined = _neighbours_joined((near[by_distance], far[by_distance], nbytes[by_distance]))
    order = np.lexsort((joined[1], joined[0]))
    return joined[0][order], joined[1][order], joined[2][order]


def _neighbours_joined(pieces: _Runs) -> _Runs:
    """Merge consecutive pieces that are contiguous on both sides."""
    near, far, nbytes = pieces
    goes_on = (near[1:] == near[:-1] + nbytes[:-1]) & (far[1:] == far[:-1] + nbytes[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    return near[first], far[first], np.add.reduceat(nbytes, first)
