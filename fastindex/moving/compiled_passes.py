"""Passes with compiled kernels, encoded as tables that one native call per thread runs."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.arrays import address_of, expected_pair
from fastindex.arrays.buffers import aligned_bytes
from fastindex.moving.counts import PAGE_BYTES
from fastindex.moving.moves import PASS_KERNELS
from fastindex.moving.numbers import BOX_BYTES, SCRATCH_FRONT_BYTES, BoxCall, PassCall, PassTable
from fastindex.moving.pass_threads import looks_for_signals, run_with_helpers
from fastindex.moving.passes import Pass
from fastindex.runtime.machine_code import address, function
from fastindex.runtime.numbers import LINE_BYTES, PairCall
from fastindex.runtime.threads import thread_count
from fastindex.runtime.tuning import TUNING, Tuning

Bytes = NDArray[np.uint8]

#: Bytes of scratch memory of a thread for one kernel: the most is taken by column gathers.
MOST_SCRATCH_BYTES = 764416

#: Bytes of scratch memory of a thread: for a kernel, followed by that for boxes, within which kernels run.
SCRATCH_BYTES = SCRATCH_FRONT_BYTES + MOST_SCRATCH_BYTES + 2 * BOX_BYTES


# A thread takes at most `_MOST_SHARES` times the fewest tasks at a time, and at most `_MOST_SHARE_BYTES`: it can be
# stopped only in between.
_MOST_SHARES, _MOST_SHARE_BYTES = 4, 64 << 20

# Length of the repeated padding pattern for kernels: a line may start anywhere in an element.
_PADDING_BYTES = 2 * LINE_BYTES


@cache
def pass_kernel(name: str, width: int, variant: int) -> int:
    """Load the kernel of a pass, or compile it, and return its address.

    Parameters
    ----------
    name : str
        One of `PASS_KERNELS`.
    width : int
        Bytes of an element; for a block permute, bytes of a vector; for a cast, the code of the conversion; 1 where
        the kernel takes any width.
    variant : int
        Selects a function of the kernel, or its second literal: for an interleave or deinterleave, the number of rows
        that whole vectors take, or 0 for lanes, which take any number.
    """
    return address(PASS_KERNELS[name].of(width, variant))


def kernel_key(one: Pass) -> tuple[str, int, int]:
    """Return the name, width and variant of the kernel that a pass needs, as `pass_kernel` takes them."""
    return (one.kernel, *PASS_KERNELS[one.kernel].key(one))


class _ScratchMemory:
    """Scratch memory that is freed with its thread, but never while a kernel may use it.

    When the interpreter exits, it drops the thread-local objects of daemon threads, while their kernels continue
    without the GIL. Objects in the frames of such a thread are never dropped; this memory, which kernels know only by
    address, is leaked instead.
    """

    def __init__(self) -> None:
        # Page-aligned, so that pending bytes lie within a page: a store across two waits for all non-temporal stores.
        self._buffer = np.empty(SCRATCH_BYTES + PAGE_BYTES, np.uint8)
        begin = address_of(self._buffer) + SCRATCH_FRONT_BYTES
        self.address = -(-begin // PAGE_BYTES) * PAGE_BYTES - SCRATCH_FRONT_BYTES

    def __del__(
        self,
        is_ending: Callable[[], bool] = sys.is_finalizing,
        keep: Callable[[ctypes.py_object[Bytes]], None] = ctypes.pythonapi.Py_IncRef,
        handle: type[ctypes.py_object[Bytes]] = ctypes.py_object,
    ) -> None:
        if is_ending():
            keep(handle(self._buffer))


class _Scratch(threading.local):
    """Thread-local scratch memory for kernels, on a line boundary."""

    def __init__(self) -> None:
        self._memory = _ScratchMemory()
        self.address = self._memory.address


#: Scratch memory for kernels on the current thread.
thread_scratch = _Scratch()


def _scratch_address() -> int:
    return thread_scratch.address


@lru_cache(maxsize=64)
def repeated_padding(padding: bytes) -> tuple[Bytes, int]:
    """Return the repeated padding pattern for kernels, and its address.

    It starts on a line boundary: where each read crossed two lines, padding was written at 63 GB/s, not at 90.
    """
    repeated = aligned_bytes(_PADDING_BYTES)
    repeated[:] = np.frombuffer((padding * -(-_PADDING_BYTES // len(padding)))[:_PADDING_BYTES], np.uint8)
    return repeated, address_of(repeated)


class CompiledPasses:
    """Passes with compiled kernels.

    Attributes
    ----------
    address, count : int
        Address and length of the array of `PassCall` records.
    is_small : bool
        Whether a call stays on the caller's thread.
    """

    def __init__(self, passes: Sequence[Pass], tuning: Tuning = TUNING) -> None:
        self._tables = [_table_of(one, tuning) for one in passes]
        calls = [_call_of(one, table, tuning) for one, (table, _) in zip(passes, self._tables, strict=True)]
        self._calls = np.array(calls, np.int64).reshape(len(calls), len(PassCall._fields))
        self.address, self.count = address_of(self._calls), len(calls)
        self.is_small = sum(one.tasks * one.task_bytes for one in passes) <= tuning.small_call_bytes
        self._shares = sum(-(-call.tasks // call.tasks_at_once) for call in calls)

    def run(self, source: int, destination: int, padding: bytes, threads: int | None) -> None:
        """Run the passes between two addresses; `padding` is the pattern for fills, once or repeated."""
        kept = repeated_padding(padding)
        addresses = self.address, self.count, destination, source, kept[1]
        helpers = self.helpers(threads)
        if self.is_one_call(helpers):
            function("run_passes")(*addresses, thread_scratch.address, 0)
        else:
            run_with_helpers(function("lead"), addresses, self.count, _scratch_address, helpers)

    def helpers(self, threads: int | None) -> int:
        """Return how many helper threads a call may use."""
        return 0 if self.is_small else max(min(thread_count(threads), self._shares) - 1, 0)

    def is_one_call(self, helpers: int) -> bool:
        """Whether a single native call suffices: no helpers, and no pauses for signal handlers."""
        return self.is_small or not (helpers or looks_for_signals())


def _table_of(one: Pass, tuning: Tuning) -> tuple[NDArray[np.int64], Any]:
    """Return the table of a pass, and the objects to keep alive because the table points to them."""
    tables, kept = one.tables, list[Any]()
    if one.inner:
        calls, kept = _calls_of(one, tuning)
        tables = (calls, *one.tables[1:])
    first = tables[0] if tables else one.geometry
    second = tables[1] if len(tables) > 1 else one.geometry
    table = PassTable(
        loops=len(one.outer),
        outer=address_of(one.outer),
        first=address_of(first),
        second=address_of(second),
        second_length=len(second),
        geometry=address_of(one.geometry),
    )
    return np.array(table, np.int64), (one, tables, kept)


def _calls_of(one: Pass, tuning: Tuning) -> tuple[NDArray[np.int64], list[Any]]:
    """Return the calls of the passes within a box, and the objects to keep alive for them."""
    calls, kept = [], []
    for inner, from_scratch, to_scratch in one.inner:
        table, of_table = _table_of(inner, tuning)
        call = _call_of(inner, table, tuning)
        calls.append(
            BoxCall(
                kernel=call.kernel,
                table=call.table,
                tasks=call.tasks,
                from_scratch=from_scratch,
                to_scratch=to_scratch,
                source_start=call.source_start + from_scratch * MOST_SCRATCH_BYTES,
                target_start=call.target_start + to_scratch * MOST_SCRATCH_BYTES,
            )
        )
        kept += [table, of_table]
    return np.array(calls, np.int64), kept


def _tasks_at_once(one: Pass, tuning: Tuning) -> int:
    """Return the fewest tasks that a thread takes at a time."""
    most = tuning.share_bytes // one.task_bytes
    if PASS_KERNELS[one.kernel].reads_ahead:
        most = max(most, min(tuning.ahead_share_bytes // one.task_bytes, one.tasks // tuning.least_tasks))
    return max(1, min(most, one.tasks))


def _call_of(one: Pass, table: NDArray[np.int64], tuning: Tuning) -> PassCall:
    at_once = _tasks_at_once(one, tuning)
    # Starts of packed sides count elements; each of them lies at the start of a byte.
    return PassCall(
        kernel=pass_kernel(*kernel_key(one)),
        table=address_of(table),
        source_start=one.source_start // (one.ways if one.kernel == "expand" else 1),
        target_start=one.destination_start // (one.ways if one.kernel == "compress" else 1),
        tasks=one.tasks,
        tasks_at_once=at_once,
        most_at_once=max(at_once, min(_MOST_SHARES * at_once, _MOST_SHARE_BYTES // one.task_bytes)),
        fills=one.kernel == "fill",
    )


class OneCall:
    """Passes between two plain arrays as one native call, which also checks the arrays.

    It moves nothing if the address of the destination is not a multiple of `multiple`.

    Attributes
    ----------
    run : callable
        Takes the ``id`` of both arrays, `address`, and the address of a thread's scratch memory; returns whether it
        moved the data. If not, the arrays have to be checked in Python.
    address : int
    is_small : bool
        Whether no helper thread is used.
    scratch
        Its `address` is that of the scratch memory of the current thread.
    """

    scratch = thread_scratch

    def __init__(
        self,
        passes: CompiledPasses,
        source: tuple[np.dtype[Any], int],
        destination: tuple[np.dtype[Any], int],
        padding: bytes,
        multiple: int = 1,
    ) -> None:
        self._passes = passes
        repeated, padding_address = repeated_padding(padding)
        call = PairCall(passes.address, passes.count, padding_address)
        table = np.array((*expected_pair(source, destination, multiple), *call), np.int64)
        self._kept = table, repeated, source, destination
        self.run: Callable[[int, int, int, int], int] = function("run_plain")
        self.address, self.is_small = address_of(table), passes.is_small

    def run_on_threads(self, source: int, destination: int, threads: int | None) -> bool:
        """Do the same with helper threads; takes the ``id`` of both arrays."""
        passes = self._passes
        helpers = passes.helpers(threads)
        if passes.is_one_call(helpers):
            return bool(self.run(source, destination, self.address, self.scratch.address))
        arguments = source, destination, self.address
        return run_with_helpers(function("lead_plain"), arguments, passes.count, _scratch_address, helpers)
