"""Arrays that come through `__array__`, DLPack or nested sequences, into the functions that take arrays.

Tests of: core.foreign_arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fastindex as fi
import fastindex.cuda
from fastindex.core.foreign_arrays import host_array

TEXT = "f32[3,5]{1,0:T(2,2)}"


class OnlyDlpack:
    """An array that offers DLPack and nothing else."""

    def __init__(self, array: Any, device: int = 1) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        if self.device != 1:
            raise AssertionError("copied from the device")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


class OnlyArray:
    """An array that offers `__array__` and nothing else."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


@pytest.mark.parametrize("wrap", [OnlyDlpack, OnlyArray])
def test_every_function_takes_them(wrap: Any) -> None:
    array = np.arange(15, dtype=np.float32).reshape(3, 5)
    buffer = fi.pack(array, TEXT)
    index = np.array([1, 2])
    assert np.array_equal(fi.pack(wrap(array), TEXT), buffer)
    assert np.array_equal(fi.unpack(wrap(buffer), TEXT), array)
    assert np.array_equal(fi.relayout(wrap(buffer), TEXT, "f32[3,5]"), array.ravel())
    assert np.array_equal(fi.linear_index(TEXT, (wrap(index), wrap(index))), fi.linear_index(TEXT, (index, index)))
    assert np.array_equal(fi.multi_index(TEXT, wrap(index)), fi.multi_index(TEXT, index))
    assert np.array_equal(fi.convert_index(TEXT, "f32[3,5]", wrap(index)), fi.convert_index(TEXT, "f32[3,5]", index))


def test_nothing_is_copied() -> None:
    array = np.arange(6.0)
    assert np.shares_memory(host_array(OnlyDlpack(array)), array)
    assert host_array(array) is array


def test_devices_are_refused() -> None:
    with pytest.raises(fi.UnsupportedError, match="on a device"):
        fi.pack(OnlyDlpack(np.zeros((3, 5), np.float32), device=10), TEXT)
    if not fastindex.cuda.is_available():
        with pytest.raises(fi.FastIndexError, match="GPU"):
            fi.pack(OnlyDlpack(np.zeros((3, 5), np.float32), device=2), TEXT)


def test_cuda_arrays_are_not_copied_behind_the_back() -> None:
    class Cuda(OnlyArray):
        __cuda_array_interface__ = {"shape": (3, 5)}  # noqa: RUF012

    with pytest.raises(fi.UnsupportedError, match="CUDA device"):
        host_array(Cuda(np.zeros((3, 5), np.float32)))


def test_types_that_numpy_cannot_take() -> None:
    class Strange(OnlyDlpack):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("no such type")

    with pytest.raises(fi.UnsupportedError, match="no such type"):
        host_array(Strange(None))


@pytest.mark.parametrize(
    "call",
    [
        lambda array: fi.pack(array.reshape(3, 5), "f32[3,5]"),
        lambda array: fi.unpack(array, "f32[3,5]"),
        lambda array: fi.relayout(array, "f32[3,5]", "f32[3,5]{0,1}"),
        lambda array: fi.linear_index("f32[20]", (array.astype(int),)),
        lambda array: fi.multi_index("f32[20]", array.astype(int)),
    ],
)
def test_masked_elements_are_refused(call: Any) -> None:
    array = np.ma.masked_array(np.arange(15, dtype=np.float32), mask=np.arange(15) == 4)
    with pytest.raises(fi.UnsupportedError, match=r"masked elements.*array.filled"):
        call(array)
    # A mask that masks nothing, as many functions return.
    call(np.ma.masked_array(np.arange(15, dtype=np.float32), mask=np.zeros(15, bool)))
