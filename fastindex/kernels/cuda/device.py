"""The door to CUDA: the only module that imports `numba.cuda`, so that a successor of it can take its place.

It is imported where a CUDA array comes in, never before. Under ``NUMBA_ENABLE_CUDASIM=1`` it opens Numba's simulator,
which runs kernels as Python, thread by thread.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numba import cuda, types
from numba.core import config
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = [
    "SIMULATED",
    "THREADS",
    "Kernel",
    "cuda",
    "device_function",
    "intrinsic",
]

#: Whether kernels run in Numba's simulator, on host memory.
SIMULATED = bool(config.ENABLE_CUDASIM)

#: Threads of a block. The simulator starts as many Python threads, so it gets one warp.
THREADS = 32 if SIMULATED else 256

#: The CUDA status for an allocation that does not fit.
_OUT_OF_MEMORY = "OUT_OF_MEMORY"


_available = False


def why_unavailable() -> str | None:
    """Give the reason why no kernel can run here, or None where one can."""
    global _available
    if SIMULATED or _available:
        return None
    if getattr(cuda, "implementation", "Built-in") != "NVIDIA":
        return "numba-cuda is not installed; pip install 'fastindex[cuda]' (or [cuda12] for CUDA 12)"
    if not cuda.is_available():
        return "numba-cuda finds no CUDA driver or no GPU: does `nvidia-smi` list one?"
    _available = True
    return None


def device_function(function: Function) -> Function:
    """Let kernels call a plain function."""
    if SIMULATED:
        return function
    try:
        from numba.cuda.extending import register_jitable
    except ImportError:
        from numba.extending import register_jitable
    return register_jitable(function)  # type: ignore[no-any-return]


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a function of kernels from one that writes LLVM code."""
    from numba.cuda.extending import intrinsic as make

    return make(function)


class Kernel:
    """A kernel of int64 and uint64 scalars: addresses and numbers. Compiled at its first launch, for its device.

    Parameters
    ----------
    function : callable
    arguments : str
        A letter for each parameter: "i" for int64, "u" for uint64.
    """

    def __init__(self, function: Callable[..., Any], arguments: str) -> None:
        self.function = function
        self.signature = types.void(*({"i": types.int64, "u": types.uint64}[letter] for letter in arguments))
        self._dispatcher: Any = None
        self._lock = threading.Lock()
        self._configured = lru_cache(maxsize=128)(self._configure)

    def launch(self, blocks: int, stream: Any, *arguments: int) -> None:
        """Start `blocks` blocks of `THREADS` threads, and do not wait for them."""
        if SIMULATED:
            self._configure(blocks, stream)(*arguments)
        else:
            self._configured(blocks, stream)(*arguments)

    def _configure(self, blocks: int, stream: Any) -> Any:
        with self._lock, warnings.catch_warnings():
            # A small array makes a small grid, and no warning of Numba's can make it larger.
            warnings.simplefilter("ignore")
            if self._dispatcher is None:
                self._dispatcher = cuda.jit(self.signature)(self.function)
            return self._dispatcher[blocks, THREADS, stream]


# Memory, streams and events


def address_of(array: Any) -> int:
    """Give the address of a Numba device array."""
    if SIMULATED:
        return int(array._ary.ctypes.data)
    return int(array.__cuda_array_interface__["data"][0])


def new_array(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """Give an uninitialised Numba device array.

    Raises
    ------
    MemoryError
        It does not fit.
    """
    with out_of_memory_as_memory_error():
        return cuda.device_array(shape, dtype)


def new_pinned_bytes(size: int) -> NDArray[np.uint8]:
    """Give host memory that the GPU copies to and from at full speed.

    Raises
    ------
    MemoryError
        It does not fit.
    """
    with out_of_memory_as_memory_error():
        return cuda.pinned_array(size, np.uint8)  # type: ignore[no-any-return]


@contextmanager
def out_of_memory_as_memory_error() -> Iterator[None]:
    """Turn CUDA's error for a full GPU into MemoryError, and leave every other error as it is."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if _OUT_OF_MEMORY in str(error).upper().replace(" ", "_"):
            raise MemoryError(str(error)) from None
        raise


def uploaded(array: NDArray[Any], stream: Any) -> Any:
    """Give a copy on the current device; the call returns when it is there."""
    copy = cuda.to_device(np.ascontiguousarray(array), stream=stream)
    synchronize(stream)
    return copy


def downloaded(address: int, size: int, stream: Any) -> NDArray[np.uint8]:
    """Give `size` bytes of device memory on the host, after all work on `stream` is done."""
    host = np.empty(size, np.uint8)
    if size:
        view_of(address, size).copy_to_host(host, stream=stream)
        synchronize(stream)
    return host


def view_of(address: int, size: int) -> Any:
    """Give a Numba device array over `size` bytes at an address; the caller keeps the memory alive."""
    if SIMULATED:
        from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

        return FakeCUDAArray(np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)))
    interface = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
    return cuda.from_cuda_array_interface(interface, sync=False)


@lru_cache(maxsize=256)
def stream_of(handle: int) -> Any:
    """Give Numba's stream for a CUDA stream handle; 0 is the default stream."""
    return 0 if SIMULATED or handle == 0 else cuda.external_stream(handle)


def new_stream() -> Any:
    return cuda.stream()


def stream_handle(stream: Any) -> int:
    """Give the handle of one of Numba's own streams."""
    if SIMULATED:
        return 0
    return int(stream)


def synchronize(stream: Any) -> None:
    """Wait until all work on a stream is done."""
    if stream == 0 or SIMULATED:
        cuda.default_stream().synchronize() if not SIMULATED else cuda.synchronize()
    else:
        stream.synchronize()


def record(stream: Any) -> Any:
    """Give an event that happens when the work so far on a stream is done."""
    event = cuda.event(timing=False)
    event.record(stream)
    return event


def order(before: Any, after: Any) -> None:
    """Let what comes next on stream `after` wait, on the GPU, for what is on `before`."""
    record(before).wait(after)


def current_device() -> int:
    return 0 if SIMULATED else int(cuda.current_context().device.id)


def device_count() -> int:
    return 1 if SIMULATED else len(cuda.gpus)


@contextmanager
def on_device(number: int) -> Iterator[None]:
    """Make a device the current one."""
    if SIMULATED or number == current_device():
        yield
    else:
        with cuda.gpus[number]:
            yield


def device_of(address: int) -> int:
    """Give the device that owns an address."""
    if SIMULATED:
        return 0
    from cuda.bindings import driver  # type: ignore[import-not-found, unused-ignore]

    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, number = driver.cuPointerGetAttribute(attribute, address)
    return int(number) if status == driver.CUresult.CUDA_SUCCESS else current_device()


def free_bytes() -> int:
    """Give how much memory of the current device is free."""
    if SIMULATED:
        return 1 << 30
    return int(cuda.current_context().get_memory_info().free)


def device_name() -> str:
    """Give the name of the current device."""
    if SIMULATED:
        return "Numba's CUDA simulator"
    name = cuda.current_context().device.name
    return name.decode() if isinstance(name, bytes) else str(name)


def is_array(value: Any) -> bool:
    """Whether `value` is one of Numba's own device arrays."""
    return bool(cuda.is_cuda_array(value)) or hasattr(value, "__cuda_ndarray__")
