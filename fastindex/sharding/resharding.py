"""Whole arrays split into one buffer per device and reassembled, and moved from one sharding to another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced
from fastindex.arrays.arrays import address_of, check_output_array
from fastindex.arrays.buffers import as_buffer_bytes, as_logical_array, new_array, new_buffer
from fastindex.arrays.engines import on_gpu
from fastindex.arrays.fills import fill_pattern
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import check_movable
from fastindex.errors import ArgumentTypeError, FastIndexError, LayoutError, UnsupportedError
from fastindex.lazy import hook, lazy_property, untraced
from fastindex.moving.moves.nests.plan import passes
from fastindex.moving.numpy_moves import loops_by_numpy
from fastindex.moving.problem import UNIT_BYTES
from fastindex.moving.relayout_calls import pack
from fastindex.moving.requests import execute, unpacking
from fastindex.runtime.machine import this_machine
from fastindex.runtime.threads import check_threads
from fastindex.runtime.tuning import TUNING
from fastindex.sharding.sharding import Sharding, as_sharding
from fastindex.sharding.transfers import (
    Boxes,
    BoxRuns,
    Shard,
    Side,
    boxes_between,
    collective_of,
    placement,
    runs_of_boxes,
    shards_of,
    side_of,
    transfer_table,
)
from fastindex.terminal import ShownInNotebooks

if TYPE_CHECKING:
    from fastindex.moving.compiled_passes import CompiledPasses


#: Smaller copies use NumPy, which needs no compilation.
_COMPILED_BYTES = 1 << 18


def plan_reshard(
    shape: Shape | str,
    source: Sharding | str,
    target: Sharding | str,
    *,
    target_shape: Shape | str | None = None,
    device_count: int | None = None,
) -> ReshardPlan:
    """Plan how a sharded array changes to another sharding, and optionally another layout.

    Every device keeps the elements it already holds and needs, and receives each other element exactly once. If several
    devices hold a part, they take turns to send it, in the order of the tile assignment. Padding is never sent.

    Parameters
    ----------
    shape : Shape or str
        Shape of the whole array, with the layout of the source shards.
    source, target : Sharding or str
    target_shape : Shape or str, optional
        The same array with the layout of the target shards; by default the layout does not change.
    device_count : int, optional
        Number of devices; by default that of the other sharding. The two shardings may have different numbers of
        devices, as for a checkpoint that moves to another machine.

    Returns
    -------
    ReshardPlan

    Raises
    ------
    LayoutError
        As `shards`; or `target_shape` is that of a different array.
    UnsupportedError
        The sharding is unreduced, so its buffers are partial sums; or packed elements would be split within a byte; or
        as `pack`.

    Examples
    --------
    >>> import fastindex as fi
    >>> plan = fi.sharding.plan_reshard("f32[64,64]", "{devices=[8,1]<=[8]}", "{devices=[1,8]<=[8]}")
    >>> print(plan.describe())
    f32[64,64]{1,0} over 8 devices: {devices=[8,1]<=[8]} -> {devices=[1,8]<=[8]}
    56 messages move 14336 bytes, in pieces of 32 bytes; 8 local copies keep 2048 bytes where they are
    no plan can move less than 14336 bytes
    XLA would use all-to-all
    """
    shape = as_shape(shape)
    after = shape if target_shape is None else as_shape(target_shape)
    if (after.element_type, after.dimensions) != (shape.element_type, shape.dimensions):
        raise LayoutError(f"both layouts must be of one array: {shape} and {after}")
    shardings = as_sharding(source), as_sharding(target)
    known = [sharding.device_count for sharding in shardings]
    counts = []
    for i, sharding in enumerate(shardings):
        count = device_count if device_count is not None else known[i] if known[i] is not None else known[1 - i]
        counts.append(sharding.checked_device_count(count))
    sides = []
    for side_shape, sharding, count in zip((shape, after), shardings, counts, strict=True):
        _movable_part(side_shape, sharding)
        sides.append(side_of(side_shape, sharding, count))
    if sides[0].part.element_bits != sides[1].part.element_bits:
        raise LayoutError(f"elements must have the same width on both sides: {shape} and {after}")
    return ReshardPlan(*sides)


class ReshardPlan(ShownInNotebooks):
    """Data movement between two shardings of an array; made by `plan_reshard`.

    Attributes
    ----------
    transfers : structured array
        One row per strided run sent from one device to another: ``source_device``, ``target_device``; ``source_byte``
        and ``target_byte``, the offsets in their buffers; ``length``, the bytes of each contiguous piece; ``counts``,
        ``source_strides`` and ``target_strides``, for the pieces along a few axes, in bytes. Unused axes have count 1.
    copies : structured array
        The same for runs within one device.
    bytes_between : int64 array of (source devices, target devices)
        Bytes of elements that each source device sends to each target device; local copies are on the diagonal.
    moved_nbytes, least_nbytes : int
        Bytes moved between devices, and the minimum: the bytes that devices need and do not hold.
    collective : str or None
        The collective that XLA's partitioner would use, if the pattern is known.

    Examples
    --------
    >>> import fastindex as fi
    >>> plan = fi.sharding.plan_reshard("f32[8]", "{devices=[4]<=[4]}", "{devices=[2]<=[2]}")
    >>> plan.transfers[["source_device", "target_device", "source_byte", "target_byte", "length"]].tolist()
    [(1, 0, 0, 8, 8), (2, 1, 0, 0, 8), (3, 1, 0, 8, 8)]
    >>> plan.moved_nbytes, plan.least_nbytes
    (24, 24)
    """

    def __init__(self, source: Side, target: Side) -> None:
        self._source, self._target = source, target
        self._boxes: Boxes = boxes_between(source, target)

    @property
    def source(self) -> Sharding:
        """The sharding before."""
        return self._source.sharding

    @property
    def target(self) -> Sharding:
        """The sharding after."""
        return self._target.sharding

    @lazy_property
    def _box_runs(self) -> BoxRuns:
        return runs_of_boxes(self._boxes, self._source, self._target)

    @lazy_property
    def _runs(self) -> NDArray[np.void]:
        return transfer_table(self._boxes, self._box_runs, self._source.part.element_bits)

    @lazy_property
    def transfers(self) -> NDArray[np.void]:
        """The runs sent from one device to another."""
        runs: NDArray[np.void] = self._runs[self._runs["source_device"] != self._runs["target_device"]]
        return runs

    @lazy_property
    def copies(self) -> NDArray[np.void]:
        """The runs within one device."""
        runs: NDArray[np.void] = self._runs[self._runs["source_device"] == self._runs["target_device"]]
        return runs

    @lazy_property
    def bytes_between(self) -> NDArray[np.int64]:
        """Bytes of elements that each source device sends to each target device."""
        counts = self._source.device_count, self._target.device_count
        pairs = self._boxes.source_device * counts[1] + self._boxes.target_device
        between = np.zeros(counts[0] * counts[1], np.int64)
        np.add.at(between, pairs, self._nbytes)
        return between.reshape(counts)

    @lazy_property
    def _nbytes(self) -> NDArray[np.int64]:
        return -(-self._boxes.elements() * self._source.part.element_bits // 8)

    @lazy_property
    def _is_message(self) -> NDArray[np.bool_]:
        between: NDArray[np.bool_] = self._boxes.source_device != self._boxes.target_device
        return between

    @property
    def moved_nbytes(self) -> int:
        """Bytes of elements moved between devices."""
        return int(self._nbytes[self._is_message].sum())

    @lazy_property
    def least_nbytes(self) -> int:
        """Lower bound on the bytes that any plan moves: those that devices need and do not hold."""
        sides = [placement(s.shape, s.sharding, s.device_count) for s in (self._source, self._target)]
        after = sides[1]
        needed = (after.stop - after.start).prod(axis=1) * after.holds
        count = min(self._source.device_count, self._target.device_count)
        start = np.maximum(sides[0].start[:count], after.start[:count])
        stop = np.minimum(sides[0].stop[:count], after.stop[:count])
        both = sides[0].holds[:count] & after.holds[:count]
        needed[:count] -= np.maximum(stop - start, 0).prod(axis=1) * both
        return -(-int(needed.sum()) * self._source.part.element_bits // 8)

    @property
    def collective(self) -> str | None:
        """The collective that XLA's partitioner would use, if the pattern is known."""
        return collective_of(self._source, self._target, self._boxes)

    def describe(self) -> str:
        """Describe the movement in words: sizes, piece lengths, the lower bound, and XLA's collective."""
        before, after = self._source, self._target
        counts = {before.device_count, after.device_count}
        devices = " to ".join(map(str, [before.device_count] + [after.device_count] * (len(counts) - 1)))
        layout = "" if before.shape == after.shape else f", to {after.shape}"
        lines = [f"{before.shape}{layout} over {devices} devices: {self.source} -> {self.target}"]
        messages = self._boxes.source_device * after.device_count + self._boxes.target_device
        sent, kept = _distinct(messages[self._is_message]), _distinct(messages[~self._is_message])
        kept_nbytes = int(self._nbytes[~self._is_message].sum())
        pieces = self._box_runs.lengths(self._boxes.box[self._is_message])
        moves = "nothing moves"
        if sent:
            size = f"{pieces[0]} bytes" if len(pieces) == 1 else f"{pieces[0]} to {pieces[-1]} bytes"
            moves = f"{sent} message{'s' * (sent > 1)} move{'s' * (sent == 1)} {self.moved_nbytes} bytes, in pieces"
            moves += f" of {size}"
        local = f"{kept} local cop{'ies' if kept != 1 else 'y'} keep{'s' * (kept == 1)} {kept_nbytes} bytes"
        lines.append(f"{moves}; {local} where they are" if kept else moves)
        lines.append(f"no plan can move less than {self.least_nbytes} bytes")
        if self.collective is not None:
            lines.append(f"XLA would use {self.collective}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<ReshardPlan {self._source.shape}: {self.source} -> {self.target}, moves {self.moved_nbytes} bytes>"

    def _repr_html_(self) -> str:
        return str(hook("reshard_html")(self.describe(), self.bytes_between))

    @untraced
    def __call__(self, buffers: Sequence[Any], *, threads: int | None = None) -> list[Any]:
        """Reshard the buffers of all devices on the host; padding gets the layout's padding value.

        Parameters
        ----------
        buffers : sequence of arrays of one dimension, bytes, or anything with the buffer protocol
            One per source device, as `shard` returns them.
        threads : int, optional
            Maximum number of threads.

        Returns
        -------
        list of arrays of one dimension, one for each device of the target

        Raises
        ------
        FastIndexError
            The number of buffers, or the size of one, does not match.
        ArgumentTypeError
            As `unpack`.
        """
        buffers = list(buffers)
        if len(buffers) != self._source.device_count:
            raise FastIndexError(f"{self.source} needs {self._source.device_count} buffers, got {len(buffers)}")
        sources = [as_buffer_bytes(buffer, self._source.part).view(np.uint8) for buffer in buffers]
        made = [new_buffer(self._target.part) for _ in range(self._target.device_count)]
        written = [buffer.view(np.uint8) for buffer in made]
        self._fill_padding(made)
        width = max(self._source.part.element_bits // 8, 1)
        for row in self._runs:
            source, target = sources[row["source_device"]], written[row["target_device"]]
            _copy_run(row, source, target, width, threads)
        return made

    def _fill_padding(self, made: Sequence[Any]) -> None:
        part, shape = self._target.part, self._target.shape
        divided = zip(part.dimensions, self._target.part_counts, shape.dimensions, strict=True)
        uneven = any(size * parts != whole for size, parts, whole in divided)
        if not uneven and part.slot_count == part.element_count and self._target.sharding.device is None:
            return
        pattern, filled = fill_pattern(part), None
        if any(pattern):
            dtype = part.element_type.numpy_dtype
            filled = pack(np.full(part.dimensions, np.frombuffer(pattern, dtype)[0]), part)
        for buffer in made:
            buffer.view(np.uint8)[...] = 0 if filled is None else filled.view(np.uint8)


def _distinct(numbers: NDArray[np.int64]) -> int:
    # np.unique hashes, which takes minutes for ten million numbers.
    return int(np.count_nonzero(np.diff(np.sort(numbers)))) + 1 if len(numbers) else 0


def _copy_run(
    row: np.void, source: NDArray[np.uint8], target: NDArray[np.uint8], width: int, threads: int | None
) -> None:
    counts, length = tuple(row["counts"].tolist()), int(row["length"])
    strides = tuple(row["source_strides"].tolist()), tuple(row["target_strides"].tolist())
    begins = int(row["source_byte"]), int(row["target_byte"])
    unit = width if width in UNIT_BYTES else 1
    loops = _loops(length // unit, counts, *strides, unit)
    places = address_of(source) + begins[0], address_of(target) + begins[1]
    if length * int(np.prod(counts)) >= _COMPILED_BYTES:
        _compiled(loops, unit).run(*places, bytes(unit), threads)
    else:
        loops_by_numpy(loops, unit, *places, bytes(unit))


@lru_cache(maxsize=256)
def _loops(
    length: int, counts: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], unit: int
) -> RelayoutLoops:
    outer = [Loop(n, s // unit, t // unit) for n, s, t in zip(counts, source, target, strict=True) if n > 1]
    return RelayoutLoops((coalesced(Nest((Loop(length, 1, 1), *outer))),), ())


@lru_cache(maxsize=256)
def _compiled(loops: RelayoutLoops, unit: int) -> CompiledPasses:
    from fastindex.moving.compiled_passes import CompiledPasses

    return CompiledPasses(passes(loops, unit, this_machine()), TUNING)


def shard(
    array: Any,
    shape: Shape | str,
    sharding: Sharding | str,
    device_count: int | None = None,
    fill: Any = None,
    *,
    threads: int | None = None,
) -> list[Any]:
    """Split a logical array into one buffer per device.

    Parameters
    ----------
    array : array of ``shape.dimensions`` and the shape's element type
        As for `pack`.
    shape : Shape or str
        Shape of the whole array.
    sharding : Sharding or str
    device_count : int, optional
        Number of devices; required if the sharding does not determine it (replicated, maximal and so on).
    fill : number, optional
        Value of both kinds of padding; by default the layout's padding value, which is zero unless set.
    threads : int, optional
        Maximum number of threads.

    Returns
    -------
    list of arrays of one dimension
        The buffer of each device, as `pack` returns it for ``sharding.shard_shape(shape)``. Devices with the same part
        get separate buffers. Devices other than that of a maximal sharding get only padding.

    Raises
    ------
    LayoutError
        As `shards`.
    UnsupportedError
        The sharding is unreduced, so its buffers are partial sums; or as `pack`.
    FastIndexError, ArgumentTypeError
        As `pack`.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> fi.sharding.shard(np.arange(5, dtype=np.uint8), "u8[5]", "{devices=[2]<=[2]}")
    [array([0, 1, 2], dtype=uint8), array([3, 4, 0], dtype=uint8)]
    """
    shape, sharding = as_shape(shape), as_sharding(sharding)
    count = sharding.checked_device_count(device_count)
    part = _movable_part(shape, sharding)
    on_device = on_gpu(array, None)
    values: Any = array if on_device else as_logical_array(array, shape)
    fill_pattern(shape, fill)
    packed: dict[tuple[object, ...], Any] = {}
    buffers = []
    for piece in shards_of(shape, sharding, count):
        key = piece.start, piece.stop, piece.logical_nbytes
        # GPU array libraries differ in how to copy; packing again is as fast as a copy.
        found = None if on_device else packed.get(key)
        if found is None:
            held = _held(part, piece)
            taken = values[(*piece.slices, ...)] if held.rank == shape.rank else values.reshape(1)[:0]
            buffer = packed[key] = pack(taken, held, fill, threads=threads)
        else:
            buffer = found.copy()
        buffers.append(buffer)
    return buffers


def unshard(
    buffers: Sequence[Any],
    shape: Shape | str,
    sharding: Sharding | str,
    *,
    out: Any = None,
    threads: int | None = None,
) -> Any:
    """Reassemble a logical array from the buffers of its devices; the contents of padding are ignored.

    Parameters
    ----------
    buffers : sequence of arrays of one dimension, bytes, or anything with the buffer protocol
        One per device, as for `unpack`. Of devices with the same part, only the first buffer is read; the others may be
        None.
    shape : Shape or str
        Shape of the whole array.
    sharding : Sharding or str
    out : array of ``shape.dimensions`` and the element type, optional
        Output array; its strides may be any that do not overlap.
    threads : int, optional
        Maximum number of threads.

    Returns
    -------
    array of ``shape.dimensions``

    Raises
    ------
    LayoutError
        The number of buffers differs from the number of devices, or as `shards`.
    UnsupportedError
        The sharding is unreduced, so its buffers are partial sums; or as `unpack`.
    FastIndexError, ArgumentTypeError
        A buffer has the wrong size, or as `unpack`.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> buffers = [np.array([0, 1, 2], np.uint8), np.array([3, 4, 0], np.uint8)]
    >>> fi.sharding.unshard(buffers, "u8[5]", "{devices=[2]<=[2]}")
    array([0, 1, 2, 3, 4], dtype=uint8)
    """
    shape, sharding = as_shape(shape), as_sharding(sharding)
    check_threads(threads)
    if not isinstance(buffers, Iterable):
        raise ArgumentTypeError(f"buffers must be a sequence with one buffer per device, got {type(buffers).__name__}")
    buffers = list(buffers)
    count = sharding.checked_device_count(len(buffers))
    part = _movable_part(shape, sharding)
    holders = [piece for piece in shards_of(shape, sharding, count) if piece.logical_nbytes]
    wanted = list({(piece.start, piece.stop): piece for piece in reversed(holders)}.values())
    for piece in wanted:
        if on_gpu(buffers[piece.device], None):
            raise UnsupportedError("unshard takes buffers in host memory; copy them from the GPU first")
        if buffers[piece.device] is None:
            raise FastIndexError(f"buffers[{piece.device}] is None, but no earlier buffer holds its part")
    result: Any = new_array(shape) if out is None else check_output_array(out, shape)
    requests = []
    for piece in wanted:
        held, target = _held(part, piece), result[(*piece.slices, ...)]
        plain = Shape(held.element_type, held.dimensions)
        requests.append(unpacking(buffers[piece.device], held, plain, target, "no", threads, None))
    # All buffers have been checked before the first is read.
    for request in requests:
        execute(request)
    return result


def _movable_part(shape: Shape, sharding: Sharding) -> Shape:
    part = sharding.shard_shape(shape)
    check_movable(part)
    if sharding.kind == "unreduced" or "unreduced" in sharding.subgroup_types:
        raise UnsupportedError(
            f"the buffers of {sharding} are parts of a {sharding.reduction}; reduce them, then use another sharding"
        )
    return part


def _held(part: Shape, piece: Shard) -> Shape:
    """Return the shape of the elements on a device, padded to the full shape of a part."""
    sizes = tuple(stop - start for start, stop in zip(piece.start, piece.stop, strict=True))
    if not sizes and not piece.logical_nbytes:
        # An array of one element can be empty, and its buffer is that of a scalar.
        part = Shape(part.element_type, (1,), dataclasses.replace(part.layout, minor_to_major=(0,)))
        sizes = (0,)
    if sizes == part.dimensions:
        return part
    layout = dataclasses.replace(part.layout, padded_dimensions=part.layout.padded_dimensions or part.dimensions)
    return Shape(part.element_type, sizes, layout)
