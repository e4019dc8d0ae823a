"""The interface to CUDA: the only module that imports a compiler of kernels, numba-cuda or numba-cuda-mlir.

It is imported when a CUDA array is passed, never before.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib.util import find_spec
from inspect import signature
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

#: Whether numba-cuda-mlir compiles, the successor of numba-cuda: where it is installed, and numba-cuda is not.
OF_MLIR = find_spec("numba_cuda") is None and find_spec("numba_cuda_mlir") is not None

# numba-cuda up to 0.30.4 overloads a function that NumPy 2.5 removed; no code calls it.
vars(np).setdefault("row_stack", np.vstack)

with warnings.catch_warnings():
    # numba-cuda also creates a timedelta without a unit, for which NumPy 2.5 warns.
    warnings.simplefilter("ignore", DeprecationWarning)
    if OF_MLIR:
        from numba_cuda_mlir import cuda, types  # type: ignore[import-not-found, import-untyped, unused-ignore]
    else:
        from numba import cuda, types

Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["OF_MLIR", "THREADS", "cuda", "device_function", "intrinsic", "types"]

#: Threads of a block.
THREADS = 256

#: The package that compiles kernels.
COMPILER = "numba-cuda-mlir" if OF_MLIR else "numba-cuda"

#: The libraries that compile kernels, and the packages that contain them.
_COMPILERS = {"nvvm": "nvidia-nvvm", "nvrtc": "nvidia-cuda-nvrtc"}

_available = False


def why_unavailable() -> str | None:
    """Return the reason why no kernel can run here, or None where one can."""
    global _available
    if _available:
        return None
    if getattr(cuda, "implementation", "Built-in") != "NVIDIA":
        return "numba-cuda is not installed; pip install 'fastindex[cuda]' (or [cuda12], or [cuda-mlir])"
    try:
        if not cuda.cudadrv.driver.driver.is_available:
            return f"{COMPILER} finds no CUDA driver or no GPU: does `nvidia-smi` list one?"
    except Exception as error:  # CudaSupportError, and whatever a broken driver raises
        return f"the CUDA driver does not start: {error}"
    missing = _missing_compiler()
    if missing is not None:
        return missing
    if not cuda.is_available():
        return f"{COMPILER} finds a driver but says that CUDA cannot be used; `numba -s` tells more"
    _available = True
    return None


def _missing_compiler() -> str | None:
    from cuda import pathfinder  # type: ignore[import-not-found, import-untyped, unused-ignore]

    for name, package in _COMPILERS.items():
        try:
            pathfinder.load_nvidia_dynamic_lib(name)
        except Exception as error:  # DynamicLibNotFoundError, and whatever a damaged library raises
            return (
                f"lib{name}, which compiles kernels, is not found ({type(error).__name__}); "
                f"pip install {package}, or set CUDA_HOME to a CUDA toolkit"
            )
    return None


def device_function(function: Function) -> Function:
    """Make a plain Python function callable from kernels."""
    if OF_MLIR:
        return cuda.jit(device=True)(function)  # type: ignore[no-any-return]
    try:
        from numba.cuda.extending import register_jitable
    except ImportError:
        from numba.extending import register_jitable
    return register_jitable(function)  # type: ignore[no-any-return]


def one_of(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Make the device function that calls one of several: its first argument is the number of the function.

    The others are the arguments of that function. The last functions are found first.
    """
    given = ", ".join(name for name, _ in _parameters(functions[0]))
    lines = [f"if number == {n}:\n        return f{n}({given})" for n in reversed(range(1, len(functions)))]
    return written(f"number, {given}", [*lines, f"return f0({given})"], functions)


#: Annotates a parameter of a function for `several`: its argument is a tuple, with an entry for each call.
Each = Any


def several(count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function, to make the device function that calls it `count` times.

    Its first argument is the number of the call, and the others are those of all calls, or for each parameter annotated
    as `Each`, an entry of a tuple. So the loads of a thread come before what depends on them, and are in flight
    together. The results are returned as a tuple; if they are annotated as bool, whether all are true.
    """

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        (_, *given), result = _parameters(function), _plain(function).__annotations__["return"]
        entries = [[f"{n}[{i}]" if kind == "Each" else n for n, kind in given] for i in range(count)]
        calls = [f"f0({', '.join([str(i), *of_call])})" for i, of_call in enumerate(entries)]
        joined = {"None": "; ".join(calls), "bool": f"return {' and '.join(calls)}"}
        body = joined.get(result, f"return {', '.join(calls)},")
        return written(", ".join(n for n, _ in given), [body], [device_function(function)])

    return make


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(function, "py_func", function)


def _parameters(function: Callable[..., Any]) -> list[tuple[str, str]]:
    """Return the name and the annotation of each parameter."""
    return [(name, str(one.annotation)) for name, one in signature(_plain(function)).parameters.items()]


def written(given: str, body: Sequence[str], functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Make a device function from its source, in which `functions` are f0, f1 and so on, and `np` is NumPy."""
    # Parameters are written out: numba-cuda-mlir inlines no function that takes `*arguments`.
    names: dict[str, Any] = {f"f{number}": function for number, function in enumerate(functions)}
    names["np"] = np
    exec("\n    ".join([f"def written({given}):", *body]), names)
    return device_function(names["written"])  # type: ignore[no-any-return]


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a device function from one that generates LLVM IR."""
    if OF_MLIR:
        from fastindex.cuda.kernels import mlir

        return mlir.intrinsic(function)
    from numba.cuda.extending import intrinsic as make

    return make(function)


def ptx_of(function: Callable[..., Any], capability: tuple[int, int], resident: int) -> str:
    """Return a kernel with int64 parameters as PTX, for the device of the current context or one like it.

    `resident` blocks must fit a multiprocessor at once, which bounds the registers of a thread.
    """
    bounds, kind = (THREADS, resident), types.void(*(types.int64 for _ in _parameters(function)))
    if OF_MLIR:
        from numba_cuda_mlir import extending

        # It does not know intrinsics that were made after it first compiled.
        extending.refresh_registries(target=False, include_uninitialized_cuda=False)
    found = cuda.compile_ptx(function, kind, cc=capability, device=False, launch_bounds=bounds)
    return _of_the_kernel_alone(found[0]) if OF_MLIR else str(found[0])


def _of_the_kernel_alone(text: str) -> str:
    """Return PTX without the device functions after a kernel that has them inlined."""
    begin = text.index(".entry")
    end = text.index("\n}\n", begin) + 3
    return text if re.search(r"\bcall\b", text[begin:end]) else text[:end]


# Memory


def address_of(array: Any) -> int:
    """Return the address of a Numba device array."""
    return int(array.device_ctypes_pointer.value or 0)


def new_array(shape: int | tuple[int, ...], dtype: Any, handle: int = 0, order: str = "C") -> Any:
    """Return an uninitialised Numba device array, whose contents will be ready on the stream with this handle."""
    return cuda.device_array(shape, dtype, order=order, stream=stream_of(handle))


def new_pinned_bytes(size: int) -> NDArray[np.uint8]:
    """Return pinned host memory, which the GPU copies to and from at full speed."""
    return cuda.pinned_array(size, np.uint8)  # type: ignore[no-any-return]


def uploaded(array: NDArray[Any], handle: int = 0) -> Any:
    """Return a copy on the current device; the copy is complete when the call returns."""
    stream = stream_of(handle)
    copy = cuda.to_device(np.ascontiguousarray(array), stream=stream)
    synchronize(stream)
    return copy


def downloaded(address: int, size: int, handle: int = 0) -> NDArray[np.uint8]:
    """Return `size` bytes of device memory on the host, after all work on a stream is done."""
    host = np.empty(size, np.uint8)
    if size:
        driver = _driver()
        _check(driver.cuMemcpyDtoHAsync(host.ctypes.data, address, size, handle))
        _check(driver.cuStreamSynchronize(handle))
    return host


@lru_cache(maxsize=1)
def _driver() -> Any:
    from cuda.bindings import driver  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return driver


def _check(result: tuple[Any, ...]) -> None:
    status = result[0]
    if int(status):
        raise RuntimeError(f"the CUDA driver reports {status.name}; an earlier kernel or copy may be the cause")


# Streams


@lru_cache(maxsize=256)
def stream_of(handle: int) -> Any:
    """Return Numba's stream for a CUDA stream handle; 0 is the default stream."""
    return cuda.external_stream(handle) if handle else 0


@lru_cache(maxsize=256)
def core_stream(handle: int) -> Any:
    """Return cuda.core's stream for a CUDA stream handle, for launches."""
    from cuda.core import LEGACY_DEFAULT_STREAM, Stream  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return Stream.from_handle(handle) if handle else LEGACY_DEFAULT_STREAM


def new_stream() -> Any:
    return cuda.stream()


def stream_handle(stream: Any) -> int:
    """Return the handle of one of Numba's own streams."""
    return 0 if isinstance(stream, int) else int(stream)


def synchronize(stream: Any) -> None:
    """Wait until all work on a stream is done."""
    if isinstance(stream, int):
        cuda.default_stream().synchronize()
    else:
        stream.synchronize()


def record(handle: int) -> Any:
    """Return an event that happens when the work so far on a stream is done."""
    return core_stream(handle).record()


def has_happened(event: Any) -> bool:
    return bool(event.is_done)


def order(before: int, after: int) -> None:
    """Let later work on stream `after` wait, on the GPU, for the work so far on `before`; both are handles."""
    core_stream(after).wait(core_stream(before))


def is_capturing(handle: int) -> bool:
    """Whether work on a stream goes into a CUDA graph. The default stream is never captured."""
    if handle == 0:
        return False
    status, found = _driver().cuStreamIsCapturing(handle)
    return int(status) == 0 and int(found) != 0


# Devices


def current_device() -> int:
    return int(cuda.current_context().device.id)


def compute_capability(device: int) -> tuple[int, int]:
    with on_device(device):
        major, minor = cuda.get_current_device().compute_capability
    return int(major), int(minor)


def on_device(number: int) -> AbstractContextManager[Any]:
    """Make a device the current one for a ``with`` block."""
    if number == _driver_device():
        return nullcontext()
    return cuda.gpus[number]  # type: ignore[no-any-return]


def _driver_device() -> int:
    """Return the device of the current context, or -1; ten times cheaper than through Numba."""
    status, device = _driver().cuCtxGetDevice()
    return int(device) if int(status) == 0 else -1


def device_of(address: int) -> int:
    """Return the device that owns an address."""
    driver = _driver()
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, number = driver.cuPointerGetAttribute(attribute, address)
    return int(number) if int(status) == 0 else current_device()


def device_name() -> str:
    """Return the name of the current device."""
    name = cuda.current_context().device.name
    return name.decode() if isinstance(name, bytes) else str(name)
