"""Numba's CUDA simulator in place of a GPU: kernels run as Python, thread by thread, on the memory of the host.

Its import replaces what asks a driver, and what generates instructions, before other modules take it from there:
``NUMBA_ENABLE_CUDASIM=1 python -m pytest -p tests.kernels.simulator tests/kernels/simulated_cuda.py``. It refuses what
a GPU would refuse or do wrong: misaligned accesses, and accesses outside the arrays and tables of a launch.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from inspect import getclosurevars
from typing import Any

import numba
import numpy as np
from numba.core import config
from numba.extending import intrinsic

from fastindex.cuda.kernels import device

assert config.ENABLE_CUDASIM, "run this with NUMBA_ENABLE_CUDASIM=1"

#: The end of the memory that begins at an address: of arrays that calls have described, and of what was uploaded.
_known: dict[int, int] = {}
#: What the kernel that runs may access.
_allowed: list[tuple[int, int]] = []
_lock = threading.Lock()


# Memory

_UNSIGNED = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


def _checked(address: Any, width: int) -> int:
    place = int(address)
    if place % width:
        raise RuntimeError(f"misaligned access of {width} bytes at {place}")
    if not any(begin <= place and place + width <= end for begin, end in _allowed):
        raise RuntimeError(f"access of {width} bytes at {place}, outside the arrays of the call")
    return place


def _load(width: int, space: int) -> Callable[[Any], Any]:
    def load(address: Any) -> Any:
        place = _checked(address, width) if space == GLOBAL else int(address)
        if width == 16:
            return tuple(np.uint64(_UNSIGNED[8].from_address(place + 8 * i).value) for i in range(2))
        return (np.uint64 if width == 8 else np.uint32)(_UNSIGNED[width].from_address(place).value)

    return load


def _store(width: int, space: int) -> Callable[[Any, Any], None]:
    def store(address: Any, value: Any) -> None:
        place = _checked(address, width) if space == GLOBAL else int(address)
        if width == 16:
            for i in range(2):
                _UNSIGNED[8].from_address(place + 8 * i).value = int(value[i])
        else:
            _UNSIGNED[width].from_address(place).value = int(value) & ((1 << 8 * width) - 1)

    return store


def _shared(size: int) -> Callable[[], int]:
    def shared() -> int:
        # Blocks are simulated one at a time; the threads of a block share its manager.
        block: Any = threading.current_thread()
        with _lock:
            memory = block._manager.__dict__.setdefault("fastindex_shared", np.empty(size + 128, np.uint8))
        return int(-(-memory.ctypes.data // 128) * 128)

    return shared


def _lower_to(address: Any, value: Any) -> None:
    with _lock:
        memory = ctypes.c_int64.from_address(_checked(address, 8))
        memory.value = min(memory.value, int(value))


def _on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Stand in for a function that generates instructions."""
    of = getclosurevars(function).nonlocals
    name = function.__name__
    if name == "load":
        return _load(of["width"], of["space"])
    if name == "store":
        return _store(of["width"], of["space"])
    if name == "shared":
        return _shared(of["size"])
    if name == "lower_to":
        return _lower_to
    # The instructions of conversions are compiled for the processor.
    inner, (signature, _) = intrinsic(function), function(None, None, None)
    compiled: Callable[..., Any] = numba.njit(signature)(lambda vectors, table: inner(vectors, table))
    return compiled


# Lanes


def _following(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    block: Any = threading.current_thread()
    held = block._manager.__dict__.setdefault("fastindex_lanes", {})
    thread = block.threadIdx.x
    held[thread] = v0, v1, v2, v3
    block.syncthreads()
    lane = thread & 31
    beside = held[thread - lane + (lane + 1) % 32]
    block.syncthreads()
    return beside if lane < 31 else (*beside[1:], beside[3])


# The driver


def _uploaded(array: Any, handle: int = 0) -> Any:
    copy = device.cuda.to_device(np.ascontiguousarray(array))
    _known[_address_of(copy)] = _address_of(copy) + array.nbytes
    return copy


def _address_of(array: Any) -> int:
    return int(array._ary.ctypes.data)


def _downloaded(address: int, size: int, handle: int = 0) -> Any:
    return np.frombuffer(ctypes.string_at(address, size), np.uint8).copy()


def _replace(module: Any, **names: Any) -> None:
    for name, value in names.items():
        assert hasattr(module, name), name
        setattr(module, name, value)


#: The simulator starts a thread of Python for each thread, so by default a block has one warp.
_replace(device, THREADS=int(os.environ.get("FASTINDEX_SIMULATED_THREADS", "32")))
_replace(device, device_function=lambda function: function, intrinsic=_on_host)
_replace(device, why_unavailable=lambda: None, device_name=lambda: "Numba's CUDA simulator")
_replace(device, address_of=_address_of, uploaded=_uploaded, downloaded=_downloaded)
_replace(device, stream_of=lambda handle: 0, core_stream=lambda handle: None, stream_handle=lambda stream: 0)
_replace(device, synchronize=lambda stream: None, record=lambda handle: None, has_happened=lambda event: True)
_replace(device, order=lambda before, after: None, is_capturing=lambda handle: False)
_replace(device, current_device=lambda: 0, device_of=lambda address: 0, on_device=lambda number: nullcontext())

# These import what is replaced above.
from fastindex.cuda import arrays  # noqa: E402
from fastindex.cuda.kernels import casts, compilation, registers  # noqa: E402
from fastindex.cuda.kernels.memory import GLOBAL  # noqa: E402

_describe, _init, _from_dlpack, _conversion = (
    arrays.as_device_array,
    arrays.DeviceArray.__init__,
    arrays.from_dlpack,
    vars(casts)["Conversion"],
)


class OfHost:
    """An array of JAX in host memory, which says that it is on a GPU."""

    __module__ = "jaxlib"

    def __init__(self, array: Any) -> None:
        self.array, self.dtype, self.shape, self.devices = array, array.dtype, array.shape, array.devices

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self.array.__dlpack__(stream=None)


def _described(value: Any, name: str) -> Any:
    found = _describe(value, name)
    if hasattr(value, "_ary"):
        found.read_only = not value._ary.flags.writeable
    return found


def _noted(self: Any, *fields: Any, **named: Any) -> None:
    _init(self, *fields, **named)
    begin, end = self.extent
    _known[begin] = end


def _launch(self: Any, blocks: int, number: int, stream: Any, *arguments: int) -> None:
    _allowed[:] = [(begin, end) for begin, end in _known.items() if any(begin <= one <= end for one in arguments)]
    device.cuda.jit(self.function)[blocks, device.THREADS](*arguments)


_replace(arrays, as_device_array=_described)
_replace(arrays, from_dlpack=lambda value, name, handle=0: _from_dlpack(OfHost(value), name, handle))
_replace(arrays.DeviceArray, __init__=_noted)
_replace(casts, Conversion=lambda builder, names, **options: _conversion(builder, names))
_replace(compilation.Kernel, launch=_launch)
_replace(
    registers, following=lambda rows, count: _following, of_next_lane=lambda count: lambda v: _following(v, v, v, v)[0]
)
