"""Places of tokens and elements: the slot of each token of a batch, the byte of an element, the element at a byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import NARROW, division
from fastindex.algebra.loops import Loop, Nest
from fastindex.arrays.arrays import address_of, common_shape
from fastindex.arrays.buffers import aligned_bytes
from fastindex.arrays.index_arguments import as_integers_in_bulk, as_output
from fastindex.core.integers import as_integer
from fastindex.errors import FastIndexError, OutOfBoundsError, check_option
from fastindex.index.box_nests import table_nests
from fastindex.index.executors import check_overlap, new_outputs
from fastindex.paged.caches import Cache, check_cache, check_interleave, size_and_rank
from fastindex.paged.numbers import COLLECTED, LOOKED_UP, SlotMap
from fastindex.paged.planes import Numbers, Plane
from fastindex.paged.tables import BlockTable
from fastindex.runtime.first_answer import indices_by_numpy, kernel_function, numpys_time
from fastindex.runtime.numbers import STORED
from fastindex.runtime.threads import run_chunks, thread_count
from fastindex.runtime.tuning import TUNING

_MODES = ("raise", "mark")


class Element(NamedTuple):
    """Coordinates of an element of a cache, or arrays of them: the arguments of `byte_offset`."""

    layer: Any
    kv: Any
    head: Any
    slot: Any
    dim: Any


def byte_offset(
    cache: Cache, *, layer: Any = 0, kv: Any = 0, head: Any = 0, slot: Any, dim: Any = 0, mode: str = "raise"
) -> Any:
    """Return the byte offset of each element in the pool.

    Parameters
    ----------
    cache : Cache
    layer, head, slot, dim : int or integer arrays
        Broadcast together. A slot is ``block * block_size + token``; heads are numbered within this rank.
    kv : int, integer array or str
        0 for keys, 1 for values; or the name of a plane.
    mode : {"raise", "mark"}
        Raise for a negative slot (padding), or return -1.

    Returns
    -------
    int64, or int64 array of the common shape
        For elements of 4 bits, the byte that holds the element.

    Raises
    ------
    OutOfBoundsError
        An index outside the cache.
    FastIndexError, ArgumentTypeError
        Arrays that do not broadcast; values that are not integers; an unknown plane.

    Examples
    --------
    >>> import fastindex.paged as fp
    >>> cache = fp.Cache("bf16[layers=2,num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]")
    >>> fp.byte_offset(cache, layer=1, kv=1, head=2, slot=[17, 18], dim=3)
    array([159878, 160006])
    """
    check_cache(cache, "cache")
    planes = list(cache.planes.values())
    if isinstance(kv, str):
        if kv not in cache.planes:
            raise FastIndexError(f"{cache} has the planes {', '.join(cache.planes)}, got {kv!r}")
        kv = list(cache.planes).index(kv)
    check_option("mode", mode, _MODES)
    values = {"layer": layer, "kv": kv, "head": head, "slot": slot, "dim": dim}
    arrays = {name: np.asarray(as_integers_in_bulk(value, name)) for name, value in values.items()}
    shape = common_shape(list(arrays.values()))
    is_padding = arrays["slot"] < 0 if mode == "mark" else np.False_
    arrays["slot"] = np.where(is_padding, 0, arrays["slot"])
    bounds = (cache.num_layers, len(planes), cache.kv_heads, cache.num_blocks * cache.block_size)
    for name, bound in zip(values, bounds, strict=False):
        arrays[name] = _bounded(arrays[name], bound, name, cache)
    layer, number, head, slot, dim = (np.broadcast_to(array, shape) for array in arrays.values())
    found = np.empty(shape, np.int64)
    for of_plane, plane in enumerate(planes):
        here = number == of_plane
        block, token = np.divmod(slot[here], cache.block_size)
        found[here] = (
            plane.layer_offsets[layer[here]]
            + block * plane.block_stride
            + plane.head_offsets[head[here]]
            + plane.token_offsets[token]
            + plane.dim_offsets[_bounded(dim[here], plane.head_dim, "dim", cache) // plane.per_unit]
        )
    return np.where(is_padding, -1, found)[()]


def element_at(cache: Cache, byte: Any, *, padding: str = "raise") -> Element:
    """Return the element that each byte of the pool belongs to: the inverse of `byte_offset`.

    `BlockTable.owners` maps a slot to its request and position.

    Parameters
    ----------
    cache : Cache
    byte : int or integer array
    padding : {"raise", "mark"}
        Raise for bytes that belong to no element, or set all fields of `Element` to -1.

    Returns
    -------
    Element
        ``layer``, ``kv`` (the number of the plane), ``head``, ``slot``, ``dim``: int64, or arrays of the shape of
        `byte`. Where a byte holds several elements, the first.

    Raises
    ------
    OutOfBoundsError
        A byte outside the pool, or in padding with ``padding="raise"``.
    ArgumentTypeError
        Values that are not integers.

    Examples
    --------
    >>> import fastindex.paged as fp
    >>> cache = fp.Cache("bf16[layers=2,num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]")
    >>> fp.element_at(cache, 159879)
    Element(layer=1, kv=1, head=2, slot=17, dim=3)
    """
    check_cache(cache, "cache")
    check_option("padding", padding, _MODES)
    numbers = np.asarray(as_integers_in_bulk(byte, "byte"))
    flat = np.atleast_1d(_bounded(numbers, cache.nbytes, "byte", cache)).reshape(-1)
    found = np.full((5, len(flat)), -1, np.int64)
    for number, plane in enumerate(cache.planes.values()):
        for box in _boxes(plane, cache.num_blocks):
            unknown = np.flatnonzero(found[0] < 0)
            coordinates, remainder = _in_box(box, flat[unknown])
            fits = (remainder >= 0) & (remainder < plane.unit_bytes)
            layer, block, head, token, unit = coordinates[:, fits]
            slot = block * cache.block_size + token
            found[:, unknown[fits]] = layer, np.full_like(layer, number), head, slot, unit * plane.per_unit
    missing = np.flatnonzero(found[0] < 0)
    if len(missing) and padding == "raise":
        raise OutOfBoundsError(f"byte {flat[missing[0]]}{_at(numbers, int(missing[0]))} of {cache} holds no element")
    shaped = found.reshape(5, *numbers.shape)
    return Element(*(values if numbers.shape else int(values) for values in shaped))


#: A loop over an axis: stride in bytes, size, axis, increment of its coordinate, and the iterations to go back.
_Step = tuple[int, int, int, int, int]
_Box = tuple[int, list[int], list[_Step]]


def _boxes(plane: Plane, num_blocks: int) -> Iterator[_Box]:
    """Yield the offset and the coordinates of the first element of a nest, and its loops by descending stride.

    If the inner loops reach beyond a stride, an element may belong to an earlier iteration than the last that begins
    before it: the nest is yielded for each of these.
    """
    of_axes = [[Nest((Loop(num_blocks, 1, plane.block_stride),))]]
    for table in (plane.layer_offsets, plane.head_offsets, plane.token_offsets, plane.dim_offsets):
        # The offsets of layers may descend.
        order = np.argsort(table)
        of_axes.append(table_nests(order, table[order]))
    for chosen in itertools.product(of_axes[1], of_axes[0], *of_axes[2:]):
        loops = [(k[2], k[0], axis, k[1]) for axis, nest in enumerate(chosen) for k in nest.loops if k.size > 1]
        start, first = sum(nest.destination_start for nest in chosen), [nest.source_start for nest in chosen]
        extent: int = plane.unit_bytes
        backs: list[range] = []
        for stride, size, *_ in sorted(loops):
            backs.insert(0, range(min(-(-extent // stride), size)))
            extent += stride * (size - 1)
        for back in itertools.product(*backs):
            yield start, first, [(*loop, k) for loop, k in zip(sorted(loops, reverse=True), back, strict=True)]


def _in_box(box: _Box, byte: Numbers) -> tuple[Numbers, Numbers]:
    """Return, per byte, the coordinates of the element that a box finds for it, and the remainder."""
    start, first, steps = box
    remainder = byte - start
    coordinates = np.repeat(np.array(first, np.int64)[:, None], len(byte), axis=1)
    for stride, size, axis, step, back in steps:
        count = np.maximum(np.minimum(remainder // stride, size - 1) - back, 0)
        remainder -= count * stride
        coordinates[axis] += count * step
    return coordinates, remainder


def _bounded(values: Any, bound: int, name: str, cache: Cache) -> Any:
    bad = np.flatnonzero((values < 0) | (values >= bound))
    if len(bad):
        first = int(bad[0])
        raise OutOfBoundsError(
            f"{name} {values.reshape(-1)[first]}{_at(values, first)} is out of bounds for the {bound} of {cache}"
        )
    return values.astype(np.int64)


def _at(values: Any, flat: int) -> str:
    return f" at position {flat}" if np.ndim(values) else ""


# Slots of tokens


#: Most tokens of a column of context parallel ranks, whose indices in a block are a table.
_MOST_LISTED = 1 << 24
_CODES = {np.dtype(name): STORED.index(name) for name in ("int64", "int32")}


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
    check_option("mode", mode, _MODES)
    workers = thread_count(threads)
    table = _as_table(block_table, block_size)
    numbers = np.asarray(as_integers_in_bulk(positions, "positions"))
    batch = _batch(table, numbers, query_start_loc, (size_and_rank(cp, "cp"), interleave), as_integer(pad, "pad"))
    count = len(numbers)
    if out is None:
        (slots,) = new_outputs(1, (count,))
    else:
        slots = as_output(out, (count,), "out")
        check_overlap((numbers, table.blocks), [slots])
    filled = slots if slots.flags.c_contiguous else np.empty(count, np.int64)
    bad = _fill(batch, filled, workers)
    if filled is not slots:
        slots[:] = filled
    if bad and mode == "raise":
        raise _error(batch)
    return slots


@dataclass(frozen=True, slots=True)
class _Batch:
    """Validated arguments of `slot_mapping`, without padding; block numbers are below `num_blocks`."""

    table: BlockTable
    positions: NDArray[Any]
    starts: Numbers
    limits: Numbers
    column: int
    in_block: Numbers | None
    num_blocks: int
    pad: int


def _as_table(block_table: Any, block_size: int | None) -> BlockTable:
    if isinstance(block_table, BlockTable):
        if block_size not in (None, block_table.block_size):
            raise FastIndexError(f"block_size {block_size} is not the {block_table.block_size} of {block_table}")
        return block_table
    if block_size is None:
        raise FastIndexError("block_size is needed where block_table is an array")
    return BlockTable(block_table, block_size=block_size)


def _batch(
    table: BlockTable, numbers: NDArray[Any], starts: Any, split: tuple[tuple[int, int], int], pad: int
) -> _Batch:
    cp, interleave = split[0], as_integer(split[1], "interleave")
    check_interleave(interleave, table.block_size)
    begins = np.asarray(as_integers_in_bulk(starts, "query_start_loc")).astype(np.int64)
    requests = len(table.blocks)
    if numbers.ndim != 1 or begins.ndim != 1 or len(begins) != requests + 1:
        raise FastIndexError(
            f"positions has one dimension, got {numbers.ndim}, and query_start_loc one entry more than the {requests} "
            f"requests, got {begins.shape}"
        )
    if begins[0] != 0 or (np.diff(begins) < 0).any() or begins[-1] > len(numbers):
        raise FastIndexError(f"query_start_loc counts up from 0 to at most the {len(numbers)} positions")
    # Lengths of this rank determine the number of columns; positions count the tokens of all ranks.
    column, is_alone = table.block_size * cp[0], cp[0] == 1
    limits = table.lengths if is_alone else table.counts * column
    most = int(limits.max(initial=column))
    if most >= NARROW or (column > _MOST_LISTED and not is_alone):
        raise FastIndexError(
            f"requests of {most} and blocks of {column} tokens are longer than the {NARROW - 1} and {_MOST_LISTED} "
            "that are supported"
        )
    in_block = None if is_alone else _indices_in_block(table.block_size, cp, interleave)
    num_blocks = (2**63 - 1) // table.block_size if table.num_blocks is None else table.num_blocks
    return _Batch(table, numbers[: begins[-1]], begins, limits, column, in_block, num_blocks, pad)


def _indices_in_block(size: int, cp: tuple[int, int], interleave: int) -> Numbers:
    """Return the index in its block of each token of a column, -1 for tokens of other ranks."""
    found = np.full((size // interleave, cp[0], interleave), -1, np.int64)
    found[:, cp[1]] = np.arange(size).reshape(-1, interleave)
    return found.reshape(-1)


def _fill(batch: _Batch, slots: NDArray[np.int64], workers: int) -> bool:
    """Write the slots; return whether a token has a position or a block out of bounds."""
    table, tokens = batch.table, len(batch.positions)
    slots[tokens:] = batch.pad
    if not tokens:
        return False
    if not table.blocks.size or indices_by_numpy(tokens):
        with numpys_time():
            slots[:tokens], is_bad = _by_numpy(batch)
            return bool(is_bad.any())
    blocks, positions = table.blocks, batch.positions
    if blocks.dtype not in _CODES or blocks.strides[1] != blocks.itemsize or blocks.strides[0] % blocks.itemsize:
        blocks = np.ascontiguousarray(blocks, np.int64)
    positions = np.ascontiguousarray(positions, positions.dtype if positions.dtype in _CODES else np.int64)
    by_column = division(batch.column, NARROW - 1)
    numbers = SlotMap(
        table=address_of(blocks),
        row_bytes=blocks.strides[0],
        table_code=_CODES[blocks.dtype],
        positions=address_of(positions),
        position_code=_CODES[positions.dtype],
        starts=address_of(batch.starts),
        limits=address_of(batch.limits),
        slots=address_of(slots),
        block_size=table.block_size,
        magic=by_column.magic,
        shift=by_column.shift,
        num_blocks=batch.num_blocks,
        null_block=table.null_blocks.start,
        null_count=len(table.null_blocks),
        pad=batch.pad,
        column=batch.column,
        in_block=0 if batch.in_block is None else address_of(batch.in_block),
        streamed=int(slots.nbytes >= TUNING.streamed_bytes and slots.flags.aligned),
    )
    map_, failures, kernel = np.array(numbers, np.int64), list[int](), kernel_function("map_slots")

    def chunk(begin: int, end: int) -> None:
        scratch = aligned_bytes(8 * (COLLECTED + LOOKED_UP))
        request = int(np.searchsorted(batch.starts, begin, "right")) - 1
        if kernel(address_of(map_), address_of(scratch), request, begin, end):
            failures.append(begin)

    run_chunks(chunk, tokens, workers, TUNING.chunk_length(tokens, workers))
    return bool(failures)


def _by_numpy(batch: _Batch) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return the slots of all tokens except padding, and a mask of positions or blocks out of bounds."""
    request = np.repeat(np.arange(len(batch.limits)), np.diff(batch.starts))
    position = batch.positions.astype(np.int64)
    is_bad = (position < 0) | (position >= batch.limits[request])
    position[is_bad] = 0
    if not batch.table.blocks.size:
        return np.full(len(position), batch.pad), is_bad
    column, token = np.divmod(position, batch.column)
    block = batch.table.blocks[request, column].astype(np.int64)
    nulls = batch.table.null_blocks
    is_bad |= (block < 0) | (block >= batch.num_blocks) | ((block >= nulls.start) & (block < nulls.stop))
    token = token if batch.in_block is None else batch.in_block[token]
    return np.where((token >= 0) & ~is_bad, block * batch.table.block_size + token, batch.pad), is_bad


def _error(batch: _Batch) -> OutOfBoundsError:
    _, is_bad = _by_numpy(batch)
    token = int(np.flatnonzero(is_bad)[0])
    request = int(np.searchsorted(batch.starts, token, "right")) - 1
    position, limit = int(batch.positions[token]), int(batch.limits[request])
    where = f"token {token}, of request {request}, "
    if not 0 <= position < limit:
        return OutOfBoundsError(f"{where}has position {position}, and the request has {limit} tokens")
    column = position // batch.column
    block = int(batch.table.blocks[request, column])
    if block in batch.table.null_blocks:
        return OutOfBoundsError(f"{where}is in column {column}, which holds the null block {block}; nothing is written")
    most = (
        f"the {batch.table.num_blocks} blocks of the pool" if batch.table.num_blocks else "a pool of blocks from 0 on"
    )
    return OutOfBoundsError(f"{where}is in column {column}, whose block {block} is out of bounds for {most}")
