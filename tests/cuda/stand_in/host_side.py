"""What the host does for a GPU, on a stand-in driver with two devices; `test_stand_in` runs this in a process.

Kernels are compiled and launched as for sm_90, and move nothing.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numba.core import event

import fastindex as fi
import fastindex.cuda
from fastindex.cuda import index_programs, movements
from fastindex.cuda.arrays import as_device_array
from fastindex.cuda.kernels import compilation, device
from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import cuda
from fastindex.cuda.kernels.units import copy_kernel
from fastindex.cuda.queues import Queue, Tables
from fastindex.moving import relayout_plans
from tests.cases.hangs import HANG_SECONDS

LOG = Path(os.environ["STAND_IN_LOG"])
DRIVER = ctypes.CDLL("libcuda.so.1")
SOURCE, DESTINATION = "f32[64,64]{1,0}", "f32[64,64]{0,1}"


@pytest.fixture(autouse=True)
def _nothing_is_done_yet() -> Iterator[None]:
    yield
    DRIVER.stand_in_finish(0)
    DRIVER.stand_in_capture(0)


class Calls:
    """What the driver is asked from here on."""

    def __init__(self) -> None:
        self._begin = LOG.stat().st_size if LOG.exists() else 0

    def all(self, word: str = "") -> list[str]:
        return [line for line in LOG.read_text()[self._begin :].splitlines() if word in line]


def given(count: int = 4096) -> Any:
    return cuda.to_device(np.arange(count, dtype=np.float32))


def test_it_is_a_device() -> None:
    assert fastindex.cuda.why_unavailable() is None
    assert fastindex.cuda.device_name() == "Stand-in 0"


def test_a_call_launches_and_compiles_nothing_for_the_processor() -> None:
    plan = fi.plan_relayout("f32[64,96]{1,0}", "f32[64,96]{0,1:T(8,128)}")
    buffer, calls = given(64 * 96), Calls()
    with event.install_recorder("numba:compile") as recorder:
        plan(buffer)
    assert len(calls.all("launch")) == 2
    assert [entry for _, entry in recorder.buffer] == []
    assert "_one_calls" not in vars(plan)


def test_a_second_call_asks_little() -> None:
    plan, buffer = fi.plan_relayout(SOURCE, DESTINATION), given()
    out = given()
    plan(buffer, out=out)
    calls = Calls()
    plan(buffer, out=out)
    assert [line.split(" stream")[0] for line in calls.all()] == ["launch 1 blocks of 256 on device 0"]


def test_numpy_copies_take_the_kernels_of_relayouts() -> None:
    """A transpose goes by tiles, rows by runs; the compiler of the processor is not asked."""
    grid, calls = cuda.to_device(np.zeros((256, 128), np.float32)), Calls()
    with event.install_recorder("numba:compile") as recorder:
        found = fi.numpy.asfortranarray(grid)
        fi.numpy.copyto(grid, found)
        fi.numpy.copyto(grid[::2], grid[1::2])
    assert found.strides == (4, 1024)
    launched = [int(line.split()[1]) for line in calls.all("launch")]
    # Tiles of 64 by 64; there and back by the scratch memory that overlapping arrays need, 16 bytes to a unit.
    assert launched == [8, 8, 4, 4]
    assert recorder.buffer == []


def test_the_other_device() -> None:
    with cuda.gpus[1]:
        buffer = given()
    calls = Calls()
    found = fi.relayout(buffer, SOURCE, DESTINATION)
    assert {line.split(" stream")[0] for line in calls.all("launch")} == {"launch 1 blocks of 256 on device 1"}
    assert as_device_array(found, "x").device == 1
    with pytest.raises(fi.FastIndexError, match=r"on one GPU, these are on the devices \[0, 1\]"):
        fi.relayout(buffer, SOURCE, DESTINATION, out=given())


# Streams


def test_results_are_ready_on_the_stream_of_the_call() -> None:
    stream, calls = cuda.stream(), Calls()
    found = fi.relayout(given(), SOURCE, DESTINATION, stream=stream)
    assert len(calls.all(f"launch 1 blocks of 256 on device 0 stream {int(stream):#x}")) == 1
    assert as_device_array(found, "x").stream == int(stream)
    calls = Calls()
    found.copy_to_host()
    assert calls.all("copy out") == [f"copy out 16384 stream {int(stream):#x}"]


def test_a_stream_waits_for_those_that_the_arrays_are_ready_on() -> None:
    first, second = cuda.stream(), cuda.stream()
    buffer, calls = cuda.to_device(np.zeros(4096, np.float32), stream=first), Calls()
    fi.relayout(buffer, SOURCE, DESTINATION, stream=second)
    (record,) = calls.all("on " + hex(int(first)))[:1]
    assert calls.all(f"wait {int(second):#x} for {record.split()[1]}") != []


# What has to stay alive


class FromJax:
    """An array of a library with streams of its own, which frees when its last reference goes."""

    __module__ = "jaxlib.stand_in"

    def __init__(self, array: Any) -> None:
        self._array, self.dtype = array, array.dtype
        self.asked: list[int | None] = []
        self._sizes = (ctypes.c_int64 * 1)(array.size)
        self._tensor = Managed(array.device_ctypes_pointer.value, 2, 0, 1, 2, 32, 1, self._sizes, None, 0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def devices(self) -> set[str]:
        return {"gpu"}

    def is_deleted(self) -> bool:
        return False

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        self.asked.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


class Managed(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class Jax:
    """A fake of the JAX module, which reads arrays of other libraries on its own stream."""

    def __init__(self) -> None:
        self.stream = int(cuda.stream())
        self.made: list[FromJax] = []
        self.lax = self.dlpack = self.core = self
        self.Tracer = ()
        self.Array = FromJax
        self.enable_x64 = self.default_device = lambda value: nullcontext()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> FromJax:
        self.made.append(FromJax(given(*shape)))
        return self.made[-1]

    def from_dlpack(self, value: Any) -> FromJax:
        assert value.__dlpack_device__() == (2, 0)
        value.__dlpack__(stream=self.stream)
        return self.made[-1]


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> Jax:
    module = Jax()
    monkeypatch.setitem(sys.modules, "jax", module)
    return module


@pytest.mark.parametrize("own", [False, True])
def test_jax_reads_a_result_after_the_kernels_that_write_it(jax: Jax, own: bool) -> None:
    """Its memory is ready on the call's stream before they write it, and JAX's stream waits for that stream after."""
    stream = cuda.stream() if own else None
    handle = int(stream) if stream else 1
    calls, array = Calls(), FromJax(given())
    found = fi.relayout(array, SOURCE, DESTINATION, stream=stream)
    assert found is jax.made[-1]
    assert found.asked == [handle, jax.stream]
    lines = calls.all()
    (launch,) = [i for i, line in enumerate(lines) if line.startswith("launch")]
    assert lines[launch].endswith(f"stream {handle:#x}")
    (wait,) = [i for i, line in enumerate(lines) if line.startswith(f"wait {jax.stream:#x} for ")]
    record = lines.index(f"record {lines[wait].split()[-1]} on {handle:#x}")
    assert launch < record < wait


def test_memory_of_a_result_stays_until_it_is_written(jax: Jax) -> None:
    fi.relayout(FromJax(given()), SOURCE, DESTINATION)
    held = weakref.ref(jax.made.pop())
    gc.collect()
    assert held() is not None
    DRIVER.stand_in_finish(1)
    fi.relayout(given(), SOURCE, DESTINATION)
    gc.collect()
    assert held() is None


def call_with_a_dying_array(stream: Any = None) -> Any:
    array = FromJax(given())
    fi.relayout(array, SOURCE, DESTINATION, stream=stream)
    return weakref.ref(array)


def test_an_array_of_jax_stays_until_its_work_is_done(jax: Jax) -> None:
    array = call_with_a_dying_array()
    gc.collect()
    assert array() is not None
    DRIVER.stand_in_finish(1)
    fi.relayout(given(), SOURCE, DESTINATION)
    gc.collect()
    assert array() is None


def test_an_array_of_another_stream_stays_until_its_work_is_done() -> None:
    buffer = given()
    freed = weakref.ref(buffer)
    fi.relayout(buffer, SOURCE, DESTINATION)
    del buffer
    gc.collect()
    assert freed() is None
    buffer = given()
    freed = weakref.ref(buffer)
    fi.relayout(buffer, SOURCE, DESTINATION, stream=cuda.stream())
    del buffer
    gc.collect()
    assert freed() is not None


def test_a_table_outlives_its_place_while_it_is_held() -> None:
    tables, queue = Tables(), Queue(0, 0)
    first = tables.place(0, np.arange(77), queue)
    for key in range(1, 200):
        tables.place(key, np.arange(3), queue)
    assert device.downloaded(first.address, 16).view(np.int64).tolist() == [0, 1]


def table_bytes_freed(stream: Any, sizes: str) -> int:
    buffer, out, calls = given(), given(), Calls()
    fi.plan_relayout(f"f32[{sizes}]{{1,0}}", f"f32[{sizes}]{{0,1}}")(buffer, out=out, stream=stream)
    (table,) = [line.split()[1] for line in calls.all("alloc")]
    movements.transfer.cache_clear()
    relayout_plans.plan_of.cache_clear()
    gc.collect()
    cuda.current_context().memory_manager.deallocations.clear()
    return len(calls.all(f"free {table}"))


def test_a_table_in_a_graph_is_never_freed() -> None:
    stream = cuda.stream()
    assert table_bytes_freed(stream, "128,32") == 1
    DRIVER.stand_in_capture(1)
    assert table_bytes_freed(stream, "32,128") == 0


# Elements and errors


def test_a_type_that_the_interface_cannot_name() -> None:
    array = cuda.device_array(15, ml_dtypes.float8_e5m2)
    assert as_device_array(array, "x").dtype == ml_dtypes.float8_e5m2
    assert fi.relayout(array, "f8e5m2[3,5]", "f8e5m2[3,5]{0,1}").dtype == ml_dtypes.float8_e5m2


def test_a_failed_element_is_read_back() -> None:
    """The stand-in's kernels find nothing, so the flag says that all is well."""
    calls = Calls()
    fi.linear_index("f32[3,5]", (cuda.to_device(np.zeros(4, np.int64)), cuda.to_device(np.zeros(4, np.int64))))
    assert calls.all("copy out") != []
    assert index_programs._flags._free[0] != []


def test_without_the_compiler_the_reason_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda import pathfinder

    def absent(name: str) -> Any:
        raise pathfinder.DynamicLibNotFoundError(f"Failure finding lib{name}")

    monkeypatch.setattr(device, "_available", False)
    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", absent)
    reason = fastindex.cuda.why_unavailable()
    assert reason is not None
    assert "libnvvm" in reason
    assert "CUDA_HOME" in reason
    with pytest.raises(fi.FastIndexError, match="libnvvm"):
        fastindex.cuda.device_name()


def test_kernels_compile_with_a_numpy_that_lacks_row_stack() -> None:
    """NumPy 2.5 took it away, and numba-cuda names it."""
    program = """
import numpy, numba.np.arrayobj
vars(numpy).pop("row_stack", None)
from fastindex.cuda.kernels.units import copy_kernel
from fastindex.cuda.kernels.device import cuda
from tests.kernels.cuda_kernels import absent_device
with absent_device((9, 0)):
    assert ".entry" in copy_kernel().ptx((9, 0))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_SECONDS)


# Kernels on disk


def test_kernels_are_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (Kernel(copy_kernel().function, "kept") for _ in range(2))
    code = first.cubin((9, 0))
    assert code[:4] == b"\x7fELF"

    def compiled(*arguments: Any) -> str:
        raise AssertionError("compiled again")

    monkeypatch.setattr("fastindex.cuda.kernels.compilation.ptx_of", compiled)
    assert again.cubin((9, 0)) == code
    with pytest.raises(AssertionError, match="compiled again"):
        Kernel(first.function, "another").cubin((9, 0))
    with pytest.raises(AssertionError, match="compiled again"):
        first.cubin((8, 0))
    # Both compilers may be installed, and compile other code.
    monkeypatch.setattr(compilation, "COMPILER", "another")
    compilation._stamp.cache_clear()
    with pytest.raises(AssertionError, match="compiled again"):
        again.cubin((9, 0))
    compilation._stamp.cache_clear()
