"""Other libraries' arrays: their strides and layouts against where their elements really lie."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import reference
import strategies
from hypothesis import given
from hypothesis import strategies as st

import fastindex as fi
from fastindex.interop import CuteTuple, layout_from_jax

SIZES = ((), (5,), (3, 5), (1, 5), (5, 1), (2, 3, 4), (3, 1, 2, 1), (2, 3, 4, 5), (1, 1, 1))


def order_of(shape: fi.Shape) -> tuple[int, ...]:
    return shape.layout.minor_to_major


def check_places(array: Any, shape: fi.Shape) -> None:
    """Every element of a NumPy array that fills its memory lies in the slot that the shape says."""
    if array.ndim == 0:
        return
    slow = reference.parse(str(shape))
    base = array.__array_interface__["data"][0]
    for index in itertools.product(*map(range, array.shape)):
        one = array[tuple(slice(i, i + 1) for i in index)]
        slot = (one.__array_interface__["data"][0] - base) // array.itemsize
        assert slot == reference.linear_index(slow, index)


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
        (np.zeros(3, ">f4" if sys.byteorder == "little" else "<f4"), "foreign order"),
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


class OnlyDlpack:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class OnlyArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.zeros((3, 5), np.int16, order="F")


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
    assert str(fi.Shape.from_numpy(OnlyArray())) == "s16[3,5]{0,1}"
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


# --- PyTorch --------------------------------------------------------------------------------------------------


def test_torch_memory_formats() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(120, dtype=torch.float32).reshape(2, 3, 4, 5)
    assert order_of(fi.Shape.from_torch(x)) == (3, 2, 1, 0)
    last = x.to(memory_format=torch.channels_last)
    assert str(fi.Shape.from_torch(last)) == "f32[2,3,4,5]{1,3,2,0}"
    check_places(last.numpy(), fi.Shape.from_torch(last))
    assert fi.layout_name(fi.Shape.from_torch(last)) == "NHWC"
    volume = torch.zeros(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d)
    assert order_of(fi.Shape.from_torch(volume)) == (1, 4, 3, 2, 0)
    assert order_of(fi.Shape.from_torch(x.permute(3, 1, 0, 2))) == (0, 3, 1, 2)


def test_torch_element_types() -> None:
    torch = pytest.importorskip("torch")
    for dtype, name in {
        torch.bool: "pred", torch.uint8: "u8", torch.int64: "s64", torch.float16: "f16", torch.bfloat16: "bf16",
        torch.complex64: "c64", torch.float8_e4m3fn: "f8e4m3fn", torch.float8_e5m2: "f8e5m2", torch.uint16: "u16",
    }.items():  # fmt: skip
        tensor = torch.empty(2, 3, dtype=dtype)
        assert str(fi.Shape.from_torch(tensor)) == f"{name}[2,3]{{1,0}}"
        assert fi.Shape.from_torch(tensor).nbytes == tensor.untyped_storage().nbytes()


def test_torch_refusals() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(fi.UnsupportedError, match="broadcast"):
        fi.Shape.from_torch(torch.zeros(5).expand(3, 5))
    with pytest.raises(fi.UnsupportedError, match="gaps"):
        fi.Shape.from_torch(torch.zeros(3, 8)[:, :5])
    with pytest.raises(fi.UnsupportedError, match="strided"):
        fi.Shape.from_torch(torch.zeros(3, 3).to_sparse())
    with pytest.raises(fi.UnsupportedError, match="conjugate"):
        fi.Shape.from_torch(torch.zeros(3, dtype=torch.complex64).conj())
    with pytest.raises(fi.UnsupportedError, match="strided"):
        fi.Shape.from_torch(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged))


# --- JAX ------------------------------------------------------------------------------------------------------


def jax_parts() -> tuple[Any, Any, Any, Any]:
    jax = pytest.importorskip("jax")
    from jax.experimental.layout import Format
    from jax.experimental.layout import Layout as JaxLayout

    return jax, jax.numpy, JaxLayout, Format


def test_jax_arrays_in_any_order() -> None:
    jax, jnp, jax_layout, jax_format = jax_parts()
    sharding = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    for order in itertools.permutations(range(3)):
        x = jax.device_put(jnp.arange(24.0).reshape(2, 3, 4), jax_format(jax_layout(order), sharding))
        shape = fi.Shape.from_jax(x)
        assert order_of(shape) == order[::-1]
        buffer = np.frombuffer(ctypes.string_at(x.unsafe_buffer_pointer(), shape.nbytes), np.float32)
        slow = reference.parse(str(shape))
        host = np.asarray(x)
        for index in itertools.product(range(2), range(3), range(4)):
            assert buffer[reference.linear_index(slow, index)] == host[index]
        assert fi.Shape.from_jax(x.format, (2, 3, 4), "f32") == shape


def test_jax_keeps_int4_packed() -> None:
    jax, jnp, _, _ = jax_parts()
    x = jax.jit(lambda a: a + 0)(jnp.array([1, 2, 3, 4, 5], jnp.int4))
    shape = fi.Shape.from_jax(x)
    assert str(shape) == "s4[5]{0:E(4)}"
    expected = reference.pack(reference.parse(str(shape)), {(i,): i + 1 for i in range(5)})
    found = ctypes.string_at(x.unsafe_buffer_pointer(), len(expected))
    assert found[:2] == expected[:2]
    assert found[2] & 15 == expected[2] & 15


@pytest.mark.parametrize(
    "text",
    ["{1,0}", "{0,1:T(8,128)}", "{1,0:T(8,128)(2,1)}", "{2,0,1:T(4,128)(4,1)}", "{0:T(1024)(128)(8,1)E(4)}", "{}"],
)
def test_jax_layouts_both_ways(text: str) -> None:
    _, _, jax_layout, _ = jax_parts()
    layout = fi.Layout.parse(text) if text != "{}" else fi.Layout()
    shape = fi.Shape("f32" if "E" not in text else "s4", (8,) * layout.rank, layout)
    there = shape.to_jax()
    assert isinstance(there, jax_layout)
    assert there.major_to_minor == layout.minor_to_major[::-1]
    assert there.tiling == layout.tiles
    assert layout_from_jax(there) == layout
    assert fi.Shape.from_jax(there, shape.dimensions, shape.element_type) == shape


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{1,0:PAD(9,9)}", "padded_dimensions"), ("{1,0:PV(one)}", "padding_value"), ("{1,0:T(*,4)}", r"\*"),
        ("{1,0:L(4)}", "L"), ("{1,0:E(64)}", "E"), ("{1,0:S(1)}", "S"), ("{1,0:SC(0:4)}", "SC"), ("{1,0:M(8)}", "M"),
        ("{1,0:D(D,C)}", "D"),
    ],
)  # fmt: skip
def test_what_jax_layouts_would_lose(text: str, name: str) -> None:
    jax_parts()
    with pytest.raises(fi.UnsupportedError, match=f"have no {name}"):
        fi.Shape.parse(f"f32[8,8]{text}").to_jax()


def test_jax_refusals() -> None:
    jax, jnp, jax_layout, jax_format = jax_parts()
    with pytest.raises(fi.UnsupportedError, match="compiler chooses"):
        fi.Shape.from_jax(jax_format(jax_layout.AUTO), (3,), "f32")
    with pytest.raises(fi.UnsupportedError, match="compiler chooses"):
        fi.Shape.from_jax(jax.ShapeDtypeStruct((3, 5), jnp.float32))
    with pytest.raises(fi.FastIndexError, match="give dimensions"):
        fi.Shape.from_jax(jax_layout((1, 0)))


def test_sharded_jax_arrays_are_refused() -> None:
    """Two devices on one CPU need a process of their own."""
    pytest.importorskip("jax")
    program = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp
import fastindex as fi
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
x = jax.device_put(jnp.zeros((4, 6)), split)
try:
    fi.Shape.from_jax(x)
except fi.UnsupportedError as error:
    print(error)
print(fi.Shape.from_jax(x.addressable_shards[0].data))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "addressable_shards" in found.stdout
    assert found.stdout.splitlines()[-1] == "f32[2,6]{1,0}"


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


@pytest.mark.parametrize(
    "text", ["f32[3,5]{1,0:T(2,2)}", "f32[7]{0:T(3)(2)}", "f32[4,6]{1,0:T(*,5)}", "token[]", "f32[?]"]
)
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
