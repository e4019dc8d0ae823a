"""`copy`, `gather`, `scatter`, `swap_blocks`: moving tokens between caches and chunks, on the CPU and on GPUs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.casts import Cast, Casting, cast_of, check_cast, check_casting
from fastindex.algebra.loops import Nest, RelayoutLoops, in_units_of
from fastindex.arrays.arrays import Array, check_elements
from fastindex.arrays.buffers import aligned_bytes
from fastindex.core.foreign_arrays import host_array
from fastindex.core.integers import as_integer
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError, check_option
from fastindex.moving.numpy_copies import copyto
from fastindex.paged.caches import Cache, address_of_pool
from fastindex.paged.page_passes import move_pages
from fastindex.paged.planes import Numbers, Pool, memory_of
from fastindex.paged.tables import flat_integers, integers
from fastindex.paged.transfers import (
    Granules,
    Pair,
    Transfer,
    checked_blocks,
    groups_of,
    local_count,
    nests_over,
    page_nests,
    plane_pairs,
    transfer_of,
)
from fastindex.runtime.first_answer import bytes_by_numpy, numpys_time
from fastindex.runtime.threads import thread_count

_ONE = np.zeros((1, 2), np.int64)


def copy(
    source: Cache,
    target: Cache,
    source_buffer: Any,
    target_buffer: Any,
    source_blocks: Any,
    target_blocks: Any,
    num_tokens: int | None = None,
    *,
    tail: str = "leave",
    casting: Casting = "no",
    threads: int | None = None,
) -> None:
    """Copy a request from one cache to another in one pass; block size, dimension order and heads may change.

    Parameters
    ----------
    source, target, source_blocks, target_blocks, num_tokens
        As for `runs`.
    source_buffer, target_buffer : array
        The memory of each pool: an array of any element type and dimensions, from any library that shares memory with
        NumPy, or CUDA arrays; for a cache made from tensors, these tensors. The buffers may overlap: the result is as
        if the source had been copied first. On a GPU one launch copies all layers, and the call does not wait for it.
    tail : {"leave", "zero"}
        Leave or zero the slots after the last token in the last target block, for the heads that move.
    casting : {"no", "equiv", "safe", "same_kind", "unsafe"}
        NumPy's casting rule if the target has another element type; bf16 to fp8 is "same_kind".
    threads : int, optional
        Maximum number of threads.

    Raises
    ------
    FastIndexError, OutOfBoundsError, ArgumentTypeError
        As `runs`; a buffer of the wrong size, not contiguous, or read-only; a cast that the rule does not allow.
    UnsupportedError
        A cast on a GPU.

    Examples
    --------
    >>> import numpy as np
    >>> import fastindex.paged as fp
    >>> text = "s32[num_blocks=3,kv_heads=2,block_size={},head_dim=1]"
    >>> source, target = fp.Cache(text.format(2)), fp.Cache(text.format(4))
    >>> pool, moved = np.arange(12, dtype=np.int32), np.full(24, -1, np.int32)
    >>> fp.copy(source, target, pool, moved, [2, 0], [1], num_tokens=3, tail="zero")
    >>> moved.reshape(3, 2, 4)[1].tolist()
    [[8, 9, 0, 0], [10, 11, 2, 0]]
    """
    check_option("tail", tail, ("leave", "zero"))
    check_casting(casting)
    workers = thread_count(threads)
    transfer = transfer_of(source, target, source_blocks, target_blocks, num_tokens, casts=casting != "no")
    for group in transfer.groups:
        for here, there in group:
            check_cast(here.element_type, there.element_type, casting)
    begin, near = address_of_pool(source, source_buffer, "source_buffer", False)
    end, far = address_of_pool(target, target_buffer, "target_buffer", True)
    memory = Memory([*near, *far], workers)
    extents = (begin, begin + source.nbytes), (end, end + target.nbytes)
    if _overlap(*extents) and not _is_disjoint(transfer, begin == end):
        transfer, begin = _staged(transfer, begin, memory)
    _run(transfer, begin, end, memory)
    if tail == "zero":
        _zero_tail(transfer, end, memory)


def gather(
    cache: Cache,
    buffer: Any,
    block_table: Any = None,
    num_tokens: int | None = None,
    *,
    slots: Any = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """Return the tokens of a request as one contiguous array.

    Parameters
    ----------
    cache, buffer
        As for `copy`; `buffer` is only read.
    block_table : integer array
        The blocks of the request, in the order of its tokens.
    num_tokens : int, optional
        Default: all tokens of the blocks.
    slots : integer array
        The slot of each token, instead of `block_table` and `num_tokens`.
    threads : int, optional

    Returns
    -------
    array of (layers, planes, tokens, kv_heads, head_dim)
        Two planes, keys and values, or one shared by both. With context parallelism, the tokens of this rank.

    Raises
    ------
    FastIndexError, OutOfBoundsError, ArgumentTypeError
        As `copy`.
    UnsupportedError
        The planes of the cache differ in type or elements; use `copy` with a target `Cache` that places each plane.

    Examples
    --------
    >>> import numpy as np
    >>> import fastindex.paged as fp
    >>> cache = fp.Cache("s32[num_blocks=3,kv_heads=1,block_size=2,head_dim=2]")
    >>> fp.gather(cache, np.arange(12, dtype=np.int32), [2, 0], num_tokens=3).reshape(3, 2).tolist()
    [[8, 9], [10, 11], [0, 1]]
    """
    workers = thread_count(threads)
    begin, near = address_of_pool(cache, buffer, "buffer", False)
    if (slots is None) == (block_table is None) or (slots is not None and num_tokens is not None):
        raise FastIndexError("give a block_table and, if its last block is partial, num_tokens; or give slots")
    if slots is None:
        numbers = _slots_of(cache, flat_integers(block_table, "block_table"), num_tokens)
    else:
        numbers = flat_integers(slots, "slots")
    chunk, shape = chunk_cache(cache, len(numbers))
    transfer = _by_slots(cache, chunk, numbers, np.arange(len(numbers)), to_slots=False)
    memory = Memory(near, workers)
    found: NDArray[Any]
    found, address = memory.new(shape.dimensions, shape.element_type.numpy_dtype)
    _run(transfer, begin, address, memory)
    return found


def scatter(cache: Cache, buffer: Any, chunk: Any, slot_mapping: Any, *, threads: int | None = None) -> None:
    """Write tokens to their slots.

    Parameters
    ----------
    cache, buffer
        As for `copy`.
    chunk : array of (layers, planes, tokens, kv_heads, head_dim)
        As returned by `gather`, with any strides.
    slot_mapping : integer array
        The slot of each token; tokens with negative slots are skipped.
    threads : int, optional

    Raises
    ------
    OutOfBoundsError
        A slot outside the pool.
    FastIndexError
        Two tokens with the same slot, a slot of the null block, or a chunk of the wrong size.
    ArgumentTypeError
        A chunk of the wrong type; slots that are not integers.

    Examples
    --------
    >>> import numpy as np
    >>> import fastindex.paged as fp
    >>> cache = fp.Cache("s32[num_blocks=3,kv_heads=1,block_size=2,head_dim=2]")
    >>> pool = np.zeros(12, np.int32)
    >>> fp.scatter(cache, pool, np.arange(1, 7, dtype=np.int32).reshape(1, 1, 3, 1, 2), [4, -1, 1])
    >>> pool.tolist()
    [0, 0, 5, 6, 0, 0, 0, 0, 1, 2, 0, 0]
    """
    workers = thread_count(threads)
    slots = flat_integers(slot_mapping, "slot_mapping")
    end, far = address_of_pool(cache, buffer, "buffer", True)
    pool, shape = chunk_cache(cache, len(slots))
    values = memory_of(chunk, "chunk", False)
    check_elements(values, shape, "chunk")
    tokens = np.flatnonzero(slots >= 0)
    transfer = _by_slots(pool, cache, slots[tokens], tokens, to_slots=True)
    memory = Memory([values, *far], workers)
    begin = values.address
    if not values.is_contiguous or _overlap(values.extent, (end, end + cache.nbytes)):
        chunk, begin = memory.contiguous(chunk, shape)
    _run(transfer, begin, end, memory)


def swap_blocks(cache: Cache, buffer: Any, pairs: Any, *, threads: int | None = None) -> None:
    """Copy blocks within a pool as one parallel assignment: for copy on write and compaction.

    Parameters
    ----------
    cache, buffer
        As for `copy`.
    pairs : integer array of (n, 2)
        Source and target of each copy. A block may be the source of one copy and the target of another: all sources
        are read before any target is written.
    threads : int, optional

    Raises
    ------
    FastIndexError, OutOfBoundsError
        A block outside the pool, a repeated target block, or the null block as a target.

    Examples
    --------
    >>> import numpy as np
    >>> import fastindex.paged as fp
    >>> cache = fp.Cache("s32[num_blocks=3,kv_heads=1,block_size=1,head_dim=2]")
    >>> pool = np.arange(6, dtype=np.int32)
    >>> fp.swap_blocks(cache, pool, [(0, 1), (1, 2), (2, 0)])
    >>> pool.tolist()
    [4, 5, 0, 1, 2, 3]
    """
    blocks = integers(pairs, "pairs")
    blocks = blocks if blocks.size else blocks.reshape(0, 2)
    if blocks.ndim != 2 or blocks.shape[1] != 2:
        raise FastIndexError(f"pairs must be (source, target), got an array of {blocks.shape}")
    copy(cache, cache, buffer, buffer, blocks[:, 0], blocks[:, 1], threads=threads)


# Chunks


def chunk_cache(cache: Cache, tokens: int) -> tuple[Cache, Shape]:
    """Return a chunk of tokens as a cache with the block size of `cache`, and its shape; the last block may be partial.

    Raises
    ------
    UnsupportedError
        The planes differ in type or elements.
    """
    planes = list(cache.planes.values())
    kinds = {(plane.element_type, len(plane.dim_offsets)) for plane in planes}
    if len(kinds) > 1:
        raise UnsupportedError(
            f"the planes {', '.join(cache.planes)} differ in type or elements, so no array holds them all; copy "
            "them to a Cache that says where each goes"
        )
    first = planes[0]
    sizes = cache.num_layers, len(planes), tokens, cache.kv_heads, len(first.dim_offsets)
    chunk = _dense(cache, tokens, f"a chunk of {tokens} tokens")
    return chunk, Shape(first.element_type if first.per_unit == 1 else "u8", sizes)


def _dense(cache: Cache, tokens: int, text: str) -> Cache:
    """Return a cache of contiguous tokens, layer by layer and plane by plane; each is a row of heads without gaps."""
    planes = list(cache.planes.values())
    rows = [len(plane.head_offsets) * len(plane.dim_offsets) * plane.unit_bytes for plane in planes]
    layers, dense = np.arange(cache.num_layers) * (tokens * sum(rows)), []
    for plane, row, before in zip(planes, rows, itertools.accumulate(rows, initial=0), strict=False):
        of_plane = replace(
            plane,
            layer_offsets=layers + tokens * before,
            block_stride=cache.block_size * row,
            head_offsets=np.arange(len(plane.head_offsets)) * (row // len(plane.head_offsets)),
            token_offsets=np.arange(cache.block_size) * row,
            dim_offsets=np.arange(len(plane.dim_offsets)) * plane.unit_bytes,
        )
        dense.append(of_plane)
    blocks, nbytes = max(-(-tokens // cache.block_size), 1), tokens * sum(rows) * cache.num_layers
    return Cache._made(Pool(text, dense, blocks, nbytes), cache._shard)


def _by_slots(source: Cache, target: Cache, slots: Numbers, tokens: Numbers, to_slots: bool) -> Transfer:
    """Return the transfer between a chunk and slots, in granules of tokens that are consecutive on both sides."""
    cache, name = (target, "slot_mapping") if to_slots else (source, "slots")
    slots = checked_blocks(cache, slots, name, cache.block_size, to_slots, tokens)
    sides = (tokens, slots) if to_slots else (slots, tokens)
    size = _slots_together(source.block_size, sides)
    blocks, inside = zip(*(np.divmod(numbers[::size], source.block_size) for numbers in sides), strict=True)
    each = np.arange(len(blocks[0]))
    granules = Granules(size, len(each), len(slots) % size, ((each, inside[0] // size), (each, inside[1] // size)))
    groups = groups_of(plane_pairs(source, target), granules)
    return Transfer(source, target, blocks, granules, groups, (0, 0, source.kv_heads))


def _slots_together(size: int, sides: Iterable[Numbers]) -> int:
    """Return the block size if the tokens are blocks of it on both sides, the last perhaps partial; else 1."""
    for numbers in sides:
        blocks = numbers[::size, None] // size * size + np.arange(size)
        if (numbers != blocks.reshape(-1)[: len(numbers)]).any():
            return 1
    return size


def _slots_of(cache: Cache, blocks: Numbers, num_tokens: int | None) -> Numbers:
    """Return the slots of the first tokens of a request that this rank holds."""
    whole = len(blocks) * cache.block_size * cache.cp[0]
    wanted = whole if num_tokens is None else as_integer(num_tokens, "num_tokens")
    if not 0 <= wanted <= whole:
        raise FastIndexError(
            f"num_tokens must be from 0 to the {whole} that the blocks of block_table hold, got {wanted}"
        )
    tokens = local_count(wanted, cache.cp, cache.interleave)
    used = checked_blocks(cache, blocks[: -(-tokens // cache.block_size)], "block_table", is_written=False)
    return (used[:, None] * cache.block_size + np.arange(cache.block_size)).reshape(-1)[:tokens]


# Moving


class Memory:
    """The memory of a call's arrays: on the host, where threads copy, or on a GPU."""

    def __init__(self, arrays: Sequence[Array], workers: int) -> None:
        devices = {array.device for array in arrays}
        if None in devices and len(devices) > 1:
            raise ArgumentTypeError(
                "some arrays are on the host and others on the GPU; nothing travels by itself: copy one of them to "
                "where the others are"
            )
        self.arrays: list[Any] = list(arrays)
        self.workers, self.on_gpu = workers, None not in devices
        self.kept: Any = None

    def new(self, shape: tuple[int, ...], dtype: Any) -> tuple[Any, int]:
        """Return a new array and its address."""
        if not self.on_gpu:
            made = aligned_bytes(math.prod(shape) * dtype.itemsize)
            return made.view(dtype).reshape(shape), made.ctypes.data
        from fastindex.cuda.pages import new_memory

        array, record = new_memory(self.arrays[0], shape, dtype)
        self.arrays.insert(0, record)
        return array, record.address

    def contiguous(self, array: Any, shape: Shape) -> tuple[Any, int]:
        """Return a contiguous copy of an array in separate memory, and its address."""
        made, address = self.new(shape.dimensions, shape.element_type.numpy_dtype)
        copyto(made, array if self.on_gpu else host_array(array))
        return made, address


def _run(transfer: Transfer, begin: int, end: int, memory: Memory) -> None:
    moved = sum(plane.unit_bytes * len(plane.dim_offsets) for plane in transfer.target.planes.values())
    moved *= transfer.granules.count * transfer.granules.tokens * transfer.heads[2] * transfer.target.num_layers
    if not moved:
        return
    by_numpy = not memory.on_gpu and bytes_by_numpy(moved)
    with numpys_time() if by_numpy else nullcontext():
        _copy_all(transfer, (begin, end), memory, by_numpy)


def _copy_all(transfer: Transfer, addresses: tuple[int, int], memory: Memory, by_numpy: bool) -> None:
    granules = transfer.granules
    parts = (slice(None, granules.whole), granules.tokens), (slice(granules.whole, None), granules.tail)
    for group in transfer.groups:
        types = [plane.element_type for plane in group[0]]
        cast = None if types[0] == types[1] else cast_of(*types)
        if cast is not None and memory.on_gpu:
            raise UnsupportedError("elements of pages are cast on the CPU only; copy them, then cast the copy")
        pages = np.stack([transfer.pages(group, side) for side in range(2)])
        around = _layer_offsets(group, memory.on_gpu)
        for part, tokens in parts:
            here, there = pages[:, part]
            if not tokens or not len(here):
                continue
            nests = page_nests(tuple(group), transfer.heads, tokens, around is not _ONE, cast is None)
            if memory.on_gpu:
                from fastindex.cuda.pages import copy_pages as copy_on_gpu

                places = (around[:, None] + pages[:, part].T).reshape(-1, 2)
                copy_on_gpu(nests, places, addresses, memory.arrays)
                continue
            loops = RelayoutLoops(nests if cast is None else _in_elements(nests, cast), ())
            move_pages(loops, cast, (around, here, there), addresses, memory.workers, by_numpy)


def _layer_offsets(pairs: Sequence[Pair], on_gpu: bool) -> Numbers:
    """Return layer offsets, or one pair of zeros if the loops over a page go over layers too.

    On the CPU they do if a layer is closer than a block, and on a GPU if all layers are at equal distances.
    """
    tables = [plane.layer_offsets - plane.layer_offsets[0] for plane in pairs[0]]
    steps = [np.diff(table) for table in tables]
    near = all((np.abs(step) < plane.block_stride).all() for step, plane in zip(steps, pairs[0], strict=True))
    if all(len(np.unique(step)) < 2 for step in steps) if on_gpu else near:
        return _ONE
    return np.stack(tables, axis=1)


def _in_elements(nests: tuple[Nest, ...], cast: Cast) -> tuple[Nest, ...]:
    """Return loops with strides in elements of each side instead of bytes."""
    found = [in_units_of(nest, cast.source.nbytes, cast.target.nbytes) for nest in nests]
    if None in found:
        raise UnsupportedError("elements are cast where they lie at multiples of their size, and these do not")
    return tuple(nest for nest in found if nest is not None)


def _zero_tail(transfer: Transfer, end: int, memory: Memory) -> None:
    """Zero the slots after the last token, up to the end of its block."""
    granules, target = transfer.granules, transfer.target
    if not granules.count:
        return
    column, last = granules.last(1, target.block_size)
    filled = last * granules.tokens + (granules.tail or granules.tokens)
    if filled == target.block_size:
        return
    heads = slice(transfer.heads[1], transfer.heads[1] + transfer.heads[2])
    for plane in target.planes.values():
        layers = plane.layer_offsets + int(transfer.blocks[1][column]) * plane.block_stride
        tables = layers, plane.head_offsets[heads], plane.token_offsets[filled:], plane.dim_offsets
        each_byte = *tables, np.arange(plane.unit_bytes)
        fills = tuple(nests_over([(np.zeros_like(table), table) for table in each_byte], 1))
        if memory.on_gpu:
            from fastindex.cuda.pages import fill_with_zeros

            fill_with_zeros(fills, end, memory.arrays)
        else:
            places = _ONE, _ONE[0, :1], _ONE[0, :1]
            move_pages(RelayoutLoops((), fills), None, places, (0, end), 1, bytes_by_numpy(1))


# Overlapping memory


def _is_disjoint(transfer: Transfer, same_memory: bool) -> bool:
    """Whether both sides are the same pool, and no block is both read and written."""
    alike = same_memory and transfer.source.shares_pool(transfer.target)
    return alike and not np.isin(transfer.blocks[0], transfer.blocks[1]).any()


def _overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[0] < second[1] and second[0] < first[1]


def _staged(transfer: Transfer, begin: int, memory: Memory) -> tuple[Transfer, int]:
    """Copy the source blocks of a transfer to temporary memory; return the transfer from there, and its address."""
    blocks = np.arange(len(transfer.blocks[0]))
    # A multiple of 16 tokens, so that planes of all types are aligned.
    tokens = -(-len(blocks) * transfer.source.block_size // 16) * 16
    stage = _dense(transfer.source, tokens, "staged blocks")
    memory.kept, address = memory.new((stage.nbytes,), np.dtype(np.uint8))
    _run(transfer_of(transfer.source._alone, stage, transfer.blocks[0], blocks, None), begin, address, memory)
    groups = groups_of(plane_pairs(stage, transfer.target, casts=True), transfer.granules)
    return replace(transfer, source=stage, blocks=(blocks, transfer.blocks[1]), groups=groups), address
