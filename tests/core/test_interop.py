"""Other libraries' arrays: their strides and layouts against where their elements really lie.

Tests of: core.digits, core.foreign_arrays.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastindex as fi
from fastindex.core.digits import CuteTuple
from tests.cases import strategies
from tests.core.test_host_arrays import OnlyArray, OnlyDlpack
from tests.oracles import reference
from tests.oracles.array_places import check_places, order_of

HERE = Path(__file__).resolve().parent
SIZES = ((), (5,), (3, 5), (1, 5), (5, 1), (2, 3, 4), (3, 1, 2, 1), (2, 3, 4, 5), (1, 1, 1))


# --- NumPy ----------------------------------------------------------------------------------------------------


@given(st.sampled_from(SIZES), st.randoms(use_true_random=False))
def test_every_transpose_of_a_numpy_array(sizes: tuple[int, ...], random: Any) -> None:
    order = list(range(len(sizes)))
    random.shuffle(order)
    array = np.arange(int(np.prod(sizes, dtype=int)), dtype=np.int32).reshape(sizes).transpose(order)
    shape = fi.Shape.from_numpy(array)
    assert shape.dimensions == array.shape
    assert shape.element_type == "s32"
    check_places(array, shape)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.bool_, "pred"), (np.int8, "s8"), (np.uint64, "u64"), (np.float16, "f16"), (np.complex128, "c128"),
        (ml_dtypes.bfloat16, "bf16"), (ml_dtypes.int4, "s4"), (ml_dtypes.float8_e4m3fn, "f8e4m3fn"),
    ],
)  # fmt: skip
def test_element_types(dtype: Any, name: str) -> None:
    assert str(fi.Shape.from_numpy(np.zeros((2, 3), dtype))) == f"{name}[2,3]{{1,0}}"


def test_size_1_dimensions_take_the_nearest_order_to_the_default() -> None:
    assert order_of(fi.Shape.from_numpy(np.zeros((1, 5), order="F"))) == (1, 0)
    assert order_of(fi.Shape.from_numpy(np.zeros((5, 1)))) == (1, 0)
    assert order_of(fi.Shape.from_numpy(np.zeros((3, 1, 2, 1)))) == (3, 2, 1, 0)
    assert order_of(fi.Shape.from_numpy(np.zeros((2, 1, 3), order="F"))) == (0, 2, 1)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 5))[::-1], "dimension 0 .* runs backwards"),
        (np.zeros((3, 5))[:, ::-1], "dimension 1 .* runs backwards"),
        (np.broadcast_to(np.zeros(5), (3, 5)), "dimension 0 .* is broadcast"),
        (np.zeros((3, 5))[:, ::2], "dimension 1 .* has gaps"),
        (np.zeros((3, 8))[:, :5], "dimension 0 .* has gaps: its stride would have to be 40"),
        (np.lib.stride_tricks.as_strided(np.zeros(10), (3, 3), (8, 8)), "overlaps"),
        (np.lib.stride_tricks.as_strided(np.zeros(10), (3, 3), (8, 16)), "overlaps"),
        (np.zeros(3, ">f4" if sys.byteorder == "little" else "<f4"), "byte order .* is not native"),
    ],
)
def test_what_no_layout_describes(array: Any, message: str) -> None:
    with pytest.raises(fi.UnsupportedError, match=message):
        fi.Shape.from_numpy(array)


@pytest.mark.parametrize("dtype", [object, "U3", np.longdouble, "M8[s]", [("a", "f4")]])
def test_types_that_xla_lacks(dtype: Any) -> None:
    with pytest.raises(fi.FastIndexError, match="no element type"):
        fi.Shape.from_numpy(np.zeros(3, dtype))


def test_scalars_and_empty_arrays() -> None:
    assert str(fi.Shape.from_numpy(np.float32(3))) == "f32[]"
    assert str(fi.Shape.from_numpy(np.zeros((0, 3))[:, ::-1])) == "f64[0,3]{1,0}"


class CudaArray:
    """What CuPy and Numba give out, on no device: nothing may be read or copied."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...] | None, typestr: str = "<f4") -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "strides": strides, "typestr": typestr, "data": (1, False), "version": 3,
        }  # fmt: skip

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise AssertionError("copied to the host")


def test_protocols() -> None:
    assert str(fi.Shape.from_numpy(OnlyDlpack(np.zeros((3, 5)).T))) == "f64[5,3]{0,1}"
    assert str(fi.Shape.from_numpy(OnlyArray(np.zeros((3, 5), np.int16, order="F")))) == "s16[3,5]{0,1}"
    assert str(fi.Shape.from_numpy(CudaArray((3, 5), None))) == "f32[3,5]{1,0}"
    assert str(fi.Shape.from_numpy(CudaArray((3, 5), (4, 12)))) == "f32[3,5]{0,1}"
    assert str(fi.Shape.from_numpy(memoryview_array())) == "u8[2,3]{1,0}"
    with pytest.raises(fi.UnsupportedError, match="backwards"):
        fi.Shape.from_numpy(CudaArray((3, 5), (-20, 4)))
    with pytest.raises(TypeError, match="takes an array, got list"):
        fi.Shape.from_numpy([1, 2])


def memoryview_array() -> Any:
    return np.asarray(memoryview(bytes(6)).cast("B", (2, 3)))


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    assert str(fi.Shape.from_numpy(cupy.zeros((3, 5), order="F"))) == "f64[3,5]{0,1}"


# --- PyTorch and JAX ------------------------------------------------------------------------------------------


@pytest.mark.in_turn(seconds=10)
@pytest.mark.parametrize("library", ["jax", "torch"])
def test_libraries_that_start_threads(library: str) -> None:
    """They have a separate process, since other tests here fork."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / f"interop_with_{library}.py")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.search(r"\b(\d\d|[3-9]) passed", found.stdout), found.stdout


# --- CuTe -----------------------------------------------------------------------------------------------------


def inner(coordinate: int, size: CuteTuple, stride: CuteTuple) -> int:
    """CuTe's own rule: split a coordinate over the sizes, the first fastest, and take the inner product."""
    if isinstance(size, int):
        assert isinstance(stride, int)
        assert coordinate < size
        return coordinate * stride
    assert isinstance(stride, tuple)
    total = 0
    for part, step in zip(size, stride, strict=True):
        assert isinstance(part, int)
        total += inner(coordinate % part, part, step)
        coordinate //= part
    assert coordinate == 0
    return total


def check_cute(text: str) -> None:
    shape = fi.Shape.parse(text)
    cute = shape.to_cute()
    slow = reference.parse(text)
    for index in itertools.product(*map(range, shape.dimensions)):
        found = sum(inner(i, size, stride) for i, size, stride in zip(index, cute.shape, cute.stride, strict=True))
        assert found == reference.linear_index(slow, index), (text, index, str(cute))


@given(strategies.array_shapes())
def test_cute_layouts_are_exact_or_refused(slow: reference.ReferenceShape) -> None:
    try:
        fi.Shape.parse(str(slow)).to_cute()
    except fi.UnsupportedError:
        return
    check_cute(str(slow))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32[4,6]{0,1}", "(4,6):(1,4)"),
        ("f32[8,256]{1,0:T(8,128)}", "(8,(128,2)):(128,(1,1024))"),
        ("bf16[16,256]{1,0:T(8,128)(2,1)}", "((2,4,2),(128,2)):((1,256,2048),(2,1024))"),
        ("f32[4,8]{1,0:T(2,4)(2,1)}", "((2,2),8):((1,16),2)"),
        ("f32[1,4]", "(1,4):(0,1)"),
        ("f32[]", "():()"),
    ],
)
def test_cute_texts(text: str, expected: str) -> None:
    assert str(fi.Shape.parse(text).to_cute()) == expected
    check_cute(text)


@pytest.mark.parametrize("text", ["f32[7]{0:T(3)(2)}", "f32[4,6]{1,0:T(*,5)}", "token[]", "f32[?]"])
def test_cute_refusals(text: str) -> None:
    with pytest.raises(fi.UnsupportedError):
        fi.Shape.parse(text).to_cute()


# --- notebooks ------------------------------------------------------------------------------------------------


def test_notebooks_show_a_shape() -> None:
    html = fi.Shape.parse("f32[3,5]{1,0:T(2,2)}")._repr_html_()
    assert "<code>f32[3,5]{1,0:T(2,2)}</code>, 96 bytes for 60 bytes of elements" in html
    assert html.count("<svg ") == 1
    assert len(html) < 300_000
    assert "<svg" not in fi.Shape.parse("(f32[2], token[])")._repr_html_()
    assert fi.Shape.parse("f32[<=3,?]")._repr_html_() == "<div><code>f32[&lt;=3,?]{1,0}</code></div>"
