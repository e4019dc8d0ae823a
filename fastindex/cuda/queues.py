"""Launch kernels on a stream: the device, the dependencies and lifetimes of a call's arrays, tables in GPU memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.cuda.arrays import DeviceArray, JaxResult, kept_by_library, require_one_device, stream_handle
from fastindex.cuda.kernels import device as cuda
from fastindex.cuda.kernels.compilation import Kernel

_MOST_TABLES = 64


@dataclass(slots=True)
class Queue:
    """The device and the stream of a call's kernels.

    Attributes
    ----------
    device : int
    handle : int
        Of the stream.
    stream : object
        The stream, as cuda.core launches on it.
    captured : bool
        Whether the work goes into a CUDA graph, which may run again at any time.
    """

    device: int
    handle: int
    captured: bool = False
    stream: Any = field(init=False)

    def __post_init__(self) -> None:
        self.stream = cuda.core_stream(self.handle)

    def launch(self, kernel: Kernel, units: int, *arguments: int) -> None:
        kernel.launch(kernel.blocks(units), self.device, self.stream, *arguments)

    def finished(self, result: Any) -> Any:
        """Return a result of `new_result`, or of the caller, whose kernels are queued."""
        if type(result) is not JaxResult:
            return result
        _held.hold([result.memory], self)
        return result.finished()


class queue_for:  # noqa: N801
    """Make the device of `arrays` current, and let the stream wait for the streams on which they become ready.

    The memory of the arrays is kept alive until the GPU has done the work of the ``with`` block.

    Raises
    ------
    FastIndexError
        The arrays are on several devices.
    """

    # A class instead of a generator costs half as much.
    __slots__ = ("_arrays", "_device", "_queue", "_stream")

    def __init__(self, stream: Any, arrays: Sequence[DeviceArray]) -> None:
        self._stream = stream
        self._arrays = arrays

    def __enter__(self) -> Queue:
        number = require_one_device(self._arrays)
        handle = stream_handle(self._stream, self._arrays)
        self._device = cuda.on_device(number)
        self._device.__enter__()
        for other in {array.stream for array in self._arrays}:
            if other != handle:
                cuda.order(other, handle)
        self._queue = Queue(number, handle, cuda.is_capturing(handle))
        return self._queue

    def __exit__(self, *error: Any) -> None:
        queue = self._queue
        _held.hold([array for array in self._arrays if not kept_by_library(array, queue.handle)], queue)
        self._device.__exit__(*error)


class _Held:
    """Owners of memory that work on the GPU still uses: released once its event has happened; never for a graph."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Any, Any]] = []
        self._captured: list[Any] = []
        self._lock = threading.Lock()

    def hold(self, owners: Any, queue: Queue) -> None:
        if self._waiting:
            self._let_go()
        if not owners:
            return
        with self._lock:
            if queue.captured:
                self._captured.append(owners)
            else:
                self._waiting.append((cuda.record(queue.handle), owners))

    def _let_go(self) -> None:
        with self._lock:
            self._waiting = [entry for entry in self._waiting if not cuda.has_happened(entry[0])]


_held = _Held()


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers in GPU memory; a caller must hold this until the kernel that reads them is launched."""

    address: int
    nbytes: int
    memory: Any


class Tables:
    """Cache of tables of numbers in the memory of each device, uploaded once; the oldest are dropped."""

    def __init__(self) -> None:
        self._kept: dict[Any, Table] = {}
        self._lock = threading.Lock()

    def place(self, key: Any, numbers: NDArray[np.int64], queue: Queue) -> Table:
        """Return a table; upload it unless it is cached for `key` and the device.

        A table is freed with its last reference, and CUDA waits for the GPU before it frees memory. A CUDA graph holds
        no reference, so tables that are captured in one are kept forever.
        """
        full_key = (queue.device, key)
        found = self._kept.get(full_key)
        if found is None:
            array = cuda.uploaded(numbers, queue.handle)
            found = Table(cuda.address_of(array), numbers.nbytes, array)
            with self._lock:
                if len(self._kept) >= _MOST_TABLES:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[full_key] = found
        if queue.captured:
            _held.hold([found], queue)
        return found


class Flags:
    """Flags in GPU memory that kernels lower to the number of the first failed element, reused across calls."""

    def __init__(self, start: int) -> None:
        self._start = np.array([start], np.int64)
        self._free: dict[int, list[Any]] = {}
        self._lock = threading.Lock()

    def take(self, queue: Queue) -> Any:
        with self._lock:
            free = self._free.setdefault(queue.device, [])
            if free:
                return free.pop()
        return cuda.uploaded(self._start, queue.handle)

    def read(self, flag: Any, queue: Queue) -> int:
        """Wait for the stream, and return the number; the flag can be taken again."""
        number = int(cuda.downloaded(cuda.address_of(flag), 8, queue.handle).view(np.int64)[0])
        if number != self._start[0]:
            flag = cuda.uploaded(self._start, queue.handle)
        with self._lock:
            self._free[queue.device].append(flag)
        return number
