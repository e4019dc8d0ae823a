"""JAX's arrays and layouts; `test_interop.py` runs this file in a separate process."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.layout import Format
from jax.experimental.layout import Layout as JaxLayout

import fastindex as fi
from fastindex.arrays.engines import is_cuda_array
from fastindex.core.foreign_arrays import read_jax_layout
from fastindex.cuda.arrays import dtype_of, tensor_of
from tests.oracles import reference
from tests.oracles.array_places import order_of


def test_jax_arrays_in_any_order() -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    for order in itertools.permutations(range(3)):
        x = jax.device_put(jnp.arange(24.0).reshape(2, 3, 4), Format(JaxLayout(order), sharding))
        shape = fi.Shape.from_jax(x)
        assert order_of(shape) == order[::-1]
        buffer = np.frombuffer(ctypes.string_at(x.unsafe_buffer_pointer(), shape.nbytes), np.float32)
        slow = reference.parse(str(shape))
        host = np.asarray(x)
        for index in itertools.product(range(2), range(3), range(4)):
            assert buffer[reference.linear_index(slow, index)] == host[index]
        assert fi.Shape.from_jax(x.format, (2, 3, 4), "f32") == shape


def test_jax_keeps_int4_packed() -> None:
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
def test_JaxLayouts_both_ways(text: str) -> None:
    layout = fi.Layout.parse(text) if text != "{}" else fi.Layout()
    shape = fi.Shape("f32" if "E" not in text else "s4", (8,) * layout.rank, layout)
    there = shape.to_jax()
    assert isinstance(there, JaxLayout)
    assert there.major_to_minor == layout.minor_to_major[::-1]
    assert there.tiling == layout.tiles
    assert fi.Layout(*read_jax_layout(there)[:2]) == fi.Layout(layout.minor_to_major, layout.tiles)
    assert read_jax_layout(there).element_size_in_bits == layout.element_size_in_bits
    assert fi.Shape.from_jax(there, shape.dimensions, shape.element_type) == shape


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{1,0:PAD(9,9)}", "padded_dimensions"), ("{1,0:PV(one)}", "padding_value"), ("{1,0:T(*,4)}", r"\*"),
        ("{1,0:L(4)}", "L"), ("{1,0:E(64)}", "E"), ("{1,0:S(1)}", "S"), ("{1,0:SC(0:4)}", "SC"), ("{1,0:M(8)}", "M"),
        ("{1,0:D(D,C)}", "D"),
    ],
)  # fmt: skip
def test_what_JaxLayouts_would_lose(text: str, name: str) -> None:
    with pytest.raises(fi.UnsupportedError, match=f"cannot express {name}"):
        fi.Shape.parse(f"f32[8,8]{text}").to_jax()


def test_jax_refusals() -> None:
    with pytest.raises(fi.UnsupportedError, match="compiler chooses"):
        fi.Shape.from_jax(Format(JaxLayout.AUTO), (3,), "f32")
    with pytest.raises(fi.UnsupportedError, match="compiler chooses"):
        fi.Shape.from_jax(jax.ShapeDtypeStruct((3, 5), jnp.float32))
    with pytest.raises(fi.FastIndexError, match="pass dimensions"):
        fi.Shape.from_jax(JaxLayout((1, 0)))
    donated = jnp.zeros((2, 3))
    donated.delete()
    for call in (fi.Shape.from_jax, lambda x: fi.pack(x, "f32[2,3]"), lambda x: fi.rearrange(x, "a b -> b a")):
        with pytest.raises(fi.UnsupportedError, match="has been deleted, as arguments that a function donates"):
            call(donated)


def test_sharded_jax_arrays_are_refused() -> None:
    """Two devices on one CPU need a separate process."""
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


def test_arrays_are_taken_where_numpy_s_are() -> None:
    x = jnp.arange(15, dtype=jnp.bfloat16).reshape(3, 5)
    text = "bf16[3,5]{1,0:T(2,2)}"
    assert np.array_equal(fi.unpack(fi.pack(x, text), text), np.asarray(x))
    assert list(fi.linear_index(text, (jnp.array([1, 2]), jnp.array([1, 2])))) == [3, 16]


def test_host_arrays_as_the_gpu_functions_see_them() -> None:
    array = jax.device_put(np.zeros((2, 3), ml_dtypes.bfloat16), jax.devices("cpu")[0])
    assert not is_cuda_array(array)
    tensor = tensor_of(array.__dlpack__())
    assert dtype_of(tensor.code, tensor.bits) == ml_dtypes.bfloat16


# What JAX traces: each of these ended in a TracerArrayConversionError.


def turned(x: jax.Array) -> jax.Array:
    return fi.rearrange(x, "a b -> b a")


def padded(x: jax.Array) -> jax.Array:
    return fi.rearrange(x, "(a c) b -> a b c", c=4, pad=True, fill=3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8, jnp.int4])
def test_rearrangements_that_jax_traces(dtype: type) -> None:
    x = jnp.arange(24).reshape(4, 2, 3).astype(dtype)
    for batch in (jax.vmap(turned)(x), jax.jit(jax.vmap(turned))(x), jnp.stack([jax.jit(turned)(one) for one in x])):
        assert (batch.dtype, batch.tolist()) == (x.dtype, x.transpose(0, 2, 1).tolist())
    expected = np.pad(np.asarray(x, np.float32), ((0, 0), (0, 2), (0, 0)), constant_values=3).transpose(0, 2, 1)
    assert jax.vmap(padded)(x)[:, 0].astype(jnp.float32).tolist() == expected.tolist()
    pairs = jax.jit(lambda x: fi.rearrange([x, -x], "l a b -> b (a l)"))(x[0])
    assert pairs.tolist() == fi.rearrange([x[0], -x[0]], "l a b -> b (a l)").tolist()


def test_gradients_through_rearrangements() -> None:
    weights = jnp.arange(12.0).reshape(1, 3, 4)
    gradient = jax.grad(lambda x: (padded(x) * weights).sum())(jnp.ones((2, 3)))
    assert gradient.tolist() == weights[0, :, :2].T.tolist()
    value, tangent = jax.jvp(turned, (jnp.ones((2, 3)),), (2 * jnp.ones((2, 3)),))
    assert (value.tolist(), tangent.tolist()) == ([[1.0] * 2] * 3, [[2.0] * 2] * 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: fi.pack(x, "f32[2,3]{0,1}"),
        lambda x: fi.unpack(x.reshape(-1), "f32[2,3]{0,1}"),
        lambda x: fi.relayout(x.reshape(-1), "f32[2,3]", "f32[2,3]{0,1}"),
        lambda x: fi.plan_relayout("f32[2,3]", "f32[2,3]{0,1}")(x.reshape(-1)),
        lambda x: fi.linear_index("f32[2,3]", (x[0].astype(int), x[0].astype(int))),
        lambda x: fi.multi_index("f32[2,3]", x[0].astype(int)),
        lambda x: fi.numpy.ravel_multi_index((x[0].astype(int),), (5,)),
        lambda x: fi.numpy.ascontiguousarray(x),
        lambda x: fi.numpy.copyto(np.zeros((2, 3), np.float32), x),
        lambda x: fi.weights.repack(x, "plain", "marlin", shape=(64, 64), bits=4),
        lambda x: fi.sharding.shard(x, "f32[2,3]", "{devices=[2,1]<=[2]}"),
        lambda x: fi.weights.check(x, x.reshape(-1), "f32[2,3]"),
        lambda x: fi.Shape.from_jax(x),
        lambda x: fi.Shape.from_numpy(x),
    ],
)
def test_what_needs_values_says_so(call: Callable[[jax.Array], object]) -> None:
    x = jnp.ones((2, 3))
    for traced in (lambda: jax.jit(call)(x), lambda: jax.vmap(call)(x[None])):
        with pytest.raises(fi.UnsupportedError, match=r"is a tracer and has no values: .* jax\.pure_callback"):
            traced()


def test_the_way_out_of_a_traced_function() -> None:
    shape = fi.Shape.parse("f32[2,3]{0,1:T(2,2)}")

    @jax.jit
    def packed(x: jax.Array) -> jax.Array:
        result = jax.ShapeDtypeStruct((shape.slot_count,), jnp.float32)
        return jax.pure_callback(lambda x: fi.pack(x, shape), result, x)

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert packed(x).tolist() == fi.pack(x, shape).tolist()
