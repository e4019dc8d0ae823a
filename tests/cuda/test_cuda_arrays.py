"""What is on the GPU and what is not, and what an array in GPU memory looks like: all that needs no GPU to be asked.

Tests of: arrays.engines, cuda.arrays, cuda.devices.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
import fastindex.cuda
from fastindex.arrays.arrays import check_no_overlap, check_target
from fastindex.arrays.engines import is_cuda_array, on_gpu
from fastindex.cuda import arrays
from fastindex.cuda.arrays import (
    DeviceArray,
    as_device_array,
    dtype_of,
    kept_by_library,
    new_device_array,
    require_one_device,
    stream_handle,
    tensor_of,
)
from tests.cases.hangs import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]


class Exported:
    """What a library shows of an array in GPU memory, by the CUDA Array Interface."""

    def __init__(self, **interface: Any) -> None:
        self.__cuda_array_interface__ = interface


class OnDevice:
    """What a library shows of an array by DLPack: where it is."""

    def __init__(self, kind: int) -> None:
        self._kind = kind

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._kind, 0


HOST = [
    np.zeros(3),
    np.float32(1),
    np.int64(1),
    5,
    True,
    [1, 2],
    (1, 2),
    range(3),
    b"abc",
    memoryview(b"abc"),
    None,
    "x",
]


@pytest.mark.parametrize("value", HOST, ids=lambda value: type(value).__name__)
def test_what_is_on_the_host(value: Any) -> None:
    assert not is_cuda_array(value)
    assert not on_gpu(value)
    assert not on_gpu((value, value))


def test_what_is_on_the_gpu() -> None:
    exported = Exported(shape=(3,), typestr="<i8", data=(4096, False), version=3)
    assert is_cuda_array(exported)
    assert on_gpu((np.zeros(3), exported))
    assert is_cuda_array(OnDevice(2))
    assert is_cuda_array(OnDevice(13))
    assert not is_cuda_array(OnDevice(1))


class OnSeveral:
    """An array of JAX on several devices, which DLPack does not have."""

    __module__ = "jaxlib"

    def __init__(self, *platforms: str) -> None:
        self.devices = lambda: [SimpleNamespace(platform=platform) for platform in platforms]

    def __dlpack_device__(self) -> tuple[int, int]:
        raise BufferError("__dlpack__ only supported for unsharded arrays.")


def test_an_array_of_jax_on_several_devices() -> None:
    assert not is_cuda_array(OnSeveral("cpu", "cpu"))
    with pytest.raises(fi.UnsupportedError, match=r"is on 2 of JAX's devices \(gpu\); .*: pass a shard"):
        is_cuda_array(OnSeveral("gpu", "gpu"))
    with pytest.raises(fi.UnsupportedError, match=r"on 1 of JAX's devices \(tpu\).*numpy.asarray\(array\)"):
        fi.pack(OnSeveral("tpu"), "f32[3]")


def test_a_host_array_does_not_travel() -> None:
    with pytest.raises(TypeError, match=r"x is on the host \(ndarray\).*nothing travels by itself"):
        as_device_array(np.zeros(3), "x")


def test_streams_are_for_cuda_arrays() -> None:
    with pytest.raises(fi.FastIndexError, match="stream is for CUDA arrays"):
        fi.linear_index("f32[3]", ([0],), stream=7)
    with pytest.raises(fi.FastIndexError, match="stream is for CUDA arrays"):
        fi.unpack(np.zeros(3, np.uint8), "u8[3]", stream=7)
    with pytest.raises(fi.FastIndexError, match="stream is for CUDA arrays"):
        fi.plan_relayout("u8[3]", "u8[3]")(np.zeros(3, np.uint8), stream=7)


# DLPack


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "?"])
def test_dlpack(dtype: str) -> None:
    """The tensor in a capsule is read as NumPy wrote it."""
    array = np.zeros((3, 4, 5), dtype)[::2, :, 1:]
    capsule = array.__dlpack__()
    tensor = tensor_of(capsule)
    assert dtype_of(tensor.code, tensor.bits) == array.dtype
    assert (tensor.ndim, tensor.lanes, tensor.device_type) == (3, 1, 1)
    assert [tensor.shape[i] for i in range(3)] == [2, 4, 4]
    assert [tensor.strides[i] * array.itemsize for i in range(3)] == list(array.strides)
    assert tensor.data + tensor.byte_offset == array.ctypes.data


def test_dlpack_of_types_that_numpy_lacks() -> None:
    assert dtype_of(4, 16) == ml_dtypes.bfloat16
    assert dtype_of(10, 8) == ml_dtypes.float8_e4m3fn
    assert dtype_of(12, 8) == ml_dtypes.float8_e5m2
    assert dtype_of(3, 64) is None


# Descriptions


def described(
    address: int = 4096, shape: tuple[int, ...] = (4,), strides: tuple[int, ...] = (8,), device: int = 0, **rest: Any
) -> DeviceArray:
    values = {"stream": 0, "library": "numba", "read_only": False, "owner": None, **rest}
    return DeviceArray(address, shape, strides, np.dtype(np.int64), device=device, **values)


@pytest.mark.parametrize(
    ("shape", "strides", "contiguous", "extent"),
    [
        ((4,), (8,), True, (0, 32)),
        ((4,), (16,), False, (0, 56)),
        ((4,), (-8,), False, (-24, 8)),
        ((2, 3), (24, 8), True, (0, 48)),
        ((2, 3), (8, 16), False, (0, 48)),
        ((2, 1), (8, 99), True, (0, 16)),
        ((0, 3), (8, 8), True, (0, 0)),
        ((), (), True, (0, 8)),
        ((3,), (0,), False, (0, 8)),
    ],
)
def test_extent(shape: tuple[int, ...], strides: tuple[int, ...], contiguous: bool, extent: tuple[int, int]) -> None:
    array = described(4096, shape, strides)
    assert array.is_contiguous == contiguous
    assert array.extent == (4096 + extent[0], 4096 + extent[1])


def test_entries_along_the_first_dimension() -> None:
    entry = described(4096, (2, 3), (24, 8))[1]
    assert (entry.address, entry.shape, entry.strides) == (4120, (3,), (8,))


def test_outputs() -> None:
    out = described(4096)
    check_no_overlap(out, (described(4096 + 32),))
    with pytest.raises(fi.FastIndexError, match="out overlaps the input"):
        check_no_overlap(out, (described(4096 + 24),))
    with pytest.raises(fi.FastIndexError, match="out is read-only"):
        check_target(described(read_only=True))


def test_one_device() -> None:
    assert require_one_device((described(device=1), described(device=1))) == 1
    with pytest.raises(fi.FastIndexError, match=r"one GPU.*\[0, 2\]"):
        require_one_device((described(device=2), described(device=0)))


class TorchStream:
    cuda_stream = 11


class CupyStream:
    ptr = 12


class CoreStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 13


@pytest.mark.parametrize(
    ("stream", "handle"), [(None, 5), (7, 7), (0, 0), (TorchStream(), 11), (CupyStream(), 12), (CoreStream(), 13)]
)
def test_stream_handles(stream: Any, handle: int) -> None:
    assert stream_handle(stream, (described(stream=5), described(stream=6))) == handle


def test_no_stream() -> None:
    with pytest.raises(TypeError, match="stream must be a CUDA stream or its handle, got str"):
        stream_handle("default", (described(),))


# Other libraries, by objects that look like theirs


class TorchTensor:
    """A tensor of four floats at 4096, on device 0, whose library works on stream 5."""

    __module__ = "torch"
    dtype, device, is_cuda = "torch.float32", SimpleNamespace(index=0), True

    def __init__(self, conjugate: bool = False, address: int = 4096) -> None:
        self._conjugate, self._address = conjugate, address
        self.uses: list[int] = []

    shape = (4,)

    def stride(self) -> tuple[int, ...]:
        return (1,)

    def data_ptr(self) -> int:
        return self._address

    def is_conj(self) -> bool:
        return self._conjugate

    def is_neg(self) -> bool:
        return False

    def resolve_conj(self) -> TorchTensor:
        return TorchTensor(address=8192)

    def resolve_neg(self) -> TorchTensor:
        return self

    def record_stream(self, stream: int) -> None:
        self.uses.append(stream)


class _Entered(int):
    """A stream that is its handle, and can be entered."""

    cuda_stream = ptr = property(int)

    def __enter__(self) -> None:
        current.append(int(self))

    def __exit__(self, *rest: object) -> None:
        current.pop()


current = [5]


def _refused(*arguments: object, **options: object) -> None:
    raise AssertionError("makes a stream of its own")


def torch_module() -> SimpleNamespace:
    dtypes = {name: type("dtype", (), {"itemsize": size}) for name, size in (("uint8", 1), ("float32", 4))}
    return SimpleNamespace(
        Tensor=type("Tensor", (), {}),
        **dtypes,
        int16=None,
        int32=None,
        int64=None,
        dtype=type,
        empty=lambda shape, dtype, device: TorchTensor(address=current[-1]),
        cuda=SimpleNamespace(
            current_stream=lambda device: _Entered(5),
            default_stream=lambda device: _Entered(0),
            get_stream_from_external=lambda handle, device: _Entered(handle),
            ExternalStream=_refused,
            device=lambda number: nullcontext(),
            stream=lambda stream: stream,
        ),
    )


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    pytest.importorskip("numba")
    from fastindex.cuda.kernels import device

    module = torch_module()
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(device, "why_unavailable", lambda: None)
    return module


def test_a_tensor(torch: SimpleNamespace) -> None:
    found = as_device_array(TorchTensor(), "x")
    assert (found.address, found.stream, found.library, found.dtype) == (4096, 5, "torch", np.float32)
    assert not found.read_only


def test_a_lazy_conjugate_is_resolved_and_never_written(torch: SimpleNamespace) -> None:
    """What a conjugate holds in memory is not what it says."""
    found = as_device_array(TorchTensor(conjugate=True), "x")
    assert found.address == 8192
    assert found.read_only


@pytest.mark.parametrize("handle", [0, 5, 7])
def test_tensors_are_made_on_the_stream_of_the_call(torch: SimpleNamespace, handle: int) -> None:
    array, _ = new_device_array(as_device_array(TorchTensor(), "x"), (4,), np.float32, handle)
    assert array.data_ptr() == handle


def test_a_tensor_used_on_another_stream_is_told_so(torch: SimpleNamespace) -> None:
    tensor = TorchTensor()
    found = as_device_array(tensor, "x")
    assert kept_by_library(found, 5)
    assert tensor.uses == []
    assert kept_by_library(found, 7)
    assert kept_by_library(found, 0)
    assert tensor.uses == [7, 0]


def test_what_a_library_does_not_keep() -> None:
    assert kept_by_library(described(stream=3, library="cupy"), 3)
    assert not kept_by_library(described(stream=3, library="cupy"), 4)
    assert not kept_by_library(described(stream=0, library="jaxlib"), 0)


@pytest.mark.parametrize("handle", [0, 5, 7])
@pytest.mark.parametrize("version", [13, 14])
def test_cupy_arrays_are_made_on_the_stream_of_the_call(
    monkeypatch: pytest.MonkeyPatch, version: int, handle: int
) -> None:
    class Stream:
        null = _Entered(0)

        if version > 13:

            @staticmethod
            def from_external(stream: Any) -> Any:
                return _Entered(stream.__cuda_stream__()[1])

    module = SimpleNamespace(
        empty=lambda shape, dtype, order: current[-1],
        cuda=SimpleNamespace(
            Device=lambda number: nullcontext(),
            get_current_stream=lambda: _Entered(5),
            Stream=Stream,
            ExternalStream=_refused if version > 13 else _Entered,
        ),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    assert arrays._new_cupy(0, (4,), np.dtype(np.float32), handle, "C") == handle


# Without a GPU


@pytest.mark.skipif(fastindex.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_call_says_why() -> None:
    reason = fastindex.cuda.why_unavailable()
    assert reason is not None
    exported = Exported(shape=(3,), typestr="<i8", data=(4096, False), version=3)
    with pytest.raises(fi.FastIndexError, match="no kernel can run on the GPU: "):
        fi.linear_index("f32[3]", (exported,))
    with pytest.raises(fi.FastIndexError, match="no kernel can run on the GPU: "):
        fi.unpack(exported, "u8[24]")
    with pytest.raises(fi.FastIndexError, match="no kernel can run on the GPU: "):
        fastindex.cuda.device_name()
    with pytest.raises(fi.FastIndexError, match="no kernel can run on the GPU: "):
        fastindex.cuda.relayout_through_device(b"", "f32[0]", "f32[0]")


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(shape: Any, dtype: Any, stream: int, order: str) -> Any:
        raise MemoryError

    monkeypatch.setattr(arrays, "_new_numba", full)
    with pytest.raises(fi.cuda.DeviceMemoryError, match="the GPU has no memory for 80 bytes more"):
        new_device_array(described(), (10,), np.int64, 0)


def test_memory_errors_are_both() -> None:
    assert issubclass(fi.cuda.DeviceMemoryError, MemoryError)
    assert issubclass(fi.cuda.DeviceMemoryError, fi.FastIndexError)


@pytest.mark.in_turn(seconds=3)
def test_the_gpu_tests_need_no_hypothesis() -> None:
    program = """
import sys, pytest

class Absent:
    def find_spec(name, path=None, target=None):
        if name == "hypothesis":
            raise ImportError(name)

sys.meta_path.insert(0, Absent)
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:hypothesispytest", "tests/test_gpu.py"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert result.returncode == 0, result.stdout[-2000:]
    assert "test_relayouts" in result.stdout
