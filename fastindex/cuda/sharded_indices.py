"""shard_index and unshard_index for indices in GPU memory."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fastindex.algebra.forms import IndexProgram
from fastindex.core.shape import Shape
from fastindex.cuda import numbers as cuda_tables
from fastindex.cuda.arrays import as_device_array
from fastindex.cuda.index_programs import Counted
from fastindex.cuda.indices import ErrorOf, convert, coordinates_on_gpu, operand
from fastindex.cuda.kernels.copies import look_up_kernel
from fastindex.cuda.kernels.device import THREADS
from fastindex.cuda.queues import Tables, queue_for, watched
from fastindex.cuda.strided_copies import contiguous, copyto
from fastindex.errors import FastIndexError
from fastindex.sharding.shard_program import ShardProgram
from fastindex.sharding.sharding import Sharding

_tables = Tables()


def shard_index(
    found: ShardProgram,
    shape: Shape,
    sharding: Sharding,
    multi_index: Any,
    replicas: int | range | None,
    out: Any,
    stream: Any,
    error_of: ErrorOf,
) -> tuple[Any, Any]:
    """Do what `fastindex.sharding.shard_index` does.

    `replicas` is the number of one, a range of them for a new first axis, or None where the program has no such input.
    """
    inputs = list(coordinates_on_gpu(multi_index, shape))
    if isinstance(replicas, range):
        rank = max(len(given.shape) for given in inputs) if inputs else 0
        inputs.append(Counted(0, 1, (len(replicas), *(1,) * rank)))
    elif replicas is not None:
        inputs.append(operand(replicas, "replica"))
    if out is not None and len(out) != 2:
        raise FastIndexError(f"out must hold 2 arrays, got {len(out)}")
    device, slot = convert(found.program, inputs, out, stream, shape, error_of)
    if found.table is not None:
        _look_up(found, device, stream)
    if sharding.device is not None:
        copyto(device, sharding.device, "same_kind", stream)
    return device, slot


def unshard_index(
    found: ShardProgram,
    shape: Shape,
    device: Any,
    slot: Any,
    mark: bool,
    out: Any,
    stream: Any,
    error_of: ErrorOf,
) -> tuple[Any, ...]:
    """Do what `fastindex.sharding.unshard_index` does, but for maximal shardings."""
    devices, slots = operand(device, "device"), operand(slot, "slot")
    if found.table is not None:
        # The place of each device in the list; the slots are there for the common shape.
        known = _first_of_two(len(found.table))
        (places,) = convert(known, (devices, slots), None, stream, shape, error_of, mode=("raise", "clip"))
        _look_up(found, places, stream)
        devices = as_device_array(places, "the places of the devices")
    return tuple(convert(found.program, [devices, slots], out, stream, shape, error_of, mark=mark))


@lru_cache(maxsize=64)
def _first_of_two(bound: int) -> IndexProgram:
    return IndexProgram((bound, 2**63 - 1), (), (((0, 1),),))


def _look_up(found: ShardProgram, numbers: Any, stream: Any) -> None:
    """Replace the numbers of an array by what stands there in the table of a program."""
    table = found.table
    given = as_device_array(numbers, "the result")
    if table is None or given.size == 0:
        return
    if not given.is_contiguous:
        dense = contiguous(numbers, "C", stream)
        _look_up(found, dense, stream)
        copyto(numbers, dense, "same_kind", stream)
        return
    with queue_for(stream, (given,)) as queue:
        held = _tables.place(found, table, queue)
        count = given.size
        kernel, blocks = look_up_kernel(), cuda_tables.blocks("look up", count, THREADS)
        with watched((held.address, held.nbytes), given):
            queue.launch(kernel, blocks, given.address, held.address, count)
