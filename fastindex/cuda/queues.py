"""Starting kernels on a stream: the device, the streams that inputs are ready on, tables that stay in GPU memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.cuda.arrays import DeviceArray, require_one_device, stream_handle
from fastindex.kernels.cuda import device as cuda
from fastindex.kernels.cuda.memory import simulated_memory

_MOST_TABLES = 64


@dataclass(frozen=True, slots=True)
class Queue:
    """Where a call's kernels go.

    Attributes
    ----------
    device : int
    handle : int
        Of the stream.
    stream : object
        Numba's stream.
    """

    device: int
    handle: int
    stream: Any


@contextmanager
def queue_for(stream: Any, arrays: tuple[DeviceArray, ...]) -> Iterator[Queue]:
    """Make the device of `arrays` current, and let its stream wait for those that they are ready on.

    Raises
    ------
    FastIndexError
        The arrays are on several devices.
    """
    device = require_one_device(arrays)
    handle = stream_handle(stream, arrays)
    with cuda.on_device(device):
        found = cuda.stream_of(handle)
        for other in {array.stream for array in arrays} - {handle}:
            cuda.order(cuda.stream_of(other), found)
        yield Queue(device, handle, found)


def ranges_of(*arrays: DeviceArray) -> tuple[tuple[int, int], ...]:
    """Give the memory of arrays as (address, bytes), for the simulator to watch."""
    return tuple((array.extent[0], array.extent[1] - array.extent[0]) for array in arrays)


@contextmanager
def watched(*ranges: tuple[int, int]) -> Iterator[None]:
    """In the simulator, let kernels touch these (address, bytes) only."""
    if cuda.SIMULATED:
        with simulated_memory(*ranges):
            yield
    else:
        yield


class Tables:
    """Tables of numbers in the memory of each device, uploaded once. The latest of each kind stay."""

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[int, int, Any]] = {}
        self._lock = threading.Lock()

    def place(self, key: Any, numbers: NDArray[np.int64], queue: Queue) -> tuple[int, int]:
        """Give the address and the bytes of a table; `key` and the device say whether it is there already."""
        full_key = (queue.device, key)
        found = self._kept.get(full_key)
        if found is None:
            array = cuda.uploaded(numbers, queue.stream)
            found = cuda.address_of(array), numbers.nbytes, array
            with self._lock:
                if len(self._kept) >= _MOST_TABLES:
                    self._kept.pop(next(iter(self._kept)))
                self._kept[full_key] = found
        return found[0], found[1]


class Flags:
    """Numbers in GPU memory that kernels lower to the first element that failed, reused from call to call."""

    def __init__(self, start: int) -> None:
        self._start = np.array([start], np.int64)
        self._free: dict[int, list[Any]] = {}
        self._lock = threading.Lock()

    def take(self, queue: Queue) -> Any:
        with self._lock:
            free = self._free.setdefault(queue.device, [])
            if free:
                return free.pop()
        return cuda.uploaded(self._start, queue.stream)

    def read(self, flag: Any, queue: Queue) -> int:
        """Wait for the stream, and give the number; the flag can be taken again."""
        number = int(cuda.downloaded(cuda.address_of(flag), 8, queue.stream).view(np.int64)[0])
        if number != self._start[0]:
            flag = cuda.uploaded(self._start, queue.stream)
        self.give_back(flag, queue)
        return number

    def give_back(self, flag: Any, queue: Queue) -> None:
        """Let a flag that no kernel can lower be taken again."""
        with self._lock:
            self._free[queue.device].append(flag)
