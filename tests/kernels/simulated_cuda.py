"""Every GPU kernel in Numba's simulator, against the slow reference; `test_cuda_simulator` runs this in a process.

The simulator refuses what a GPU would refuse or do wrong: misaligned accesses, and accesses outside the arrays of a
call.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda

import fastindex as fi
import fastindex.cuda
from fastindex.arrays.index_arguments import as_window
from fastindex.cli.commands import main
from fastindex.cli.demo import Gpu, run_demo
from fastindex.cuda.kernels import device
from tests.cases import strategies
from tests.cases.gpu_cases import LARGE_SHAPES, RELAYOUTS, SHAPES
from tests.kernels import gpu_package
from tests.kernels.gpu_package import error_of, to_gpu, to_host
from tests.kernels.simulator import OfHost
from tests.oracles import reference
from tests.oracles.comparison import (
    differences_in_conversion,
    differences_in_indices,
    differences_in_packing,
    differences_in_relayout,
    differences_in_tiles,
)


def test_the_simulator_is_a_device() -> None:
    assert fastindex.cuda.is_available()
    assert fastindex.cuda.why_unavailable() is None


@pytest.mark.parametrize(("source", "destination"), [*strategies.rotating(RELAYOUTS)])
def test_relayouts(source: str, destination: str) -> None:
    first, second = reference.parse(source), reference.parse(destination)
    assert differences_in_relayout(first, second, 1, package=gpu_package) == []


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(21)[::7])])
def test_random_shapes(first: int) -> None:
    for seed in range(first, first + 7):
        source, destination = strategies.random_pair(seed)
        assert differences_in_packing(source, seed, package=gpu_package) == [], f"seed {seed}"
        assert differences_in_relayout(source, destination, seed, package=gpu_package) == [], f"seed {seed}"


@pytest.mark.parametrize("text", SHAPES)
def test_indices(text: str) -> None:
    shape = reference.parse(text)
    assert differences_in_indices(shape, package=gpu_package) == []
    assert differences_in_tiles(shape, package=gpu_package) == []
    assert differences_in_conversion(shape, reference.parse(text[: text.index("]") + 1]), package=gpu_package) == []


@pytest.mark.parametrize("text", LARGE_SHAPES)
def test_indices_beyond_32_bits(text: str) -> None:
    """Spot checks against the definition where divisions are wide."""
    shape = reference.parse(text)
    rng = np.random.default_rng(1)
    indices = [tuple(int(rng.integers(size)) for size in shape.dimensions) for _ in range(40)]
    indices += [tuple(size - 1 for size in shape.dimensions), (0,) * len(shape.dimensions)]
    slots = [reference.linear_index(shape, index) for index in indices]
    columns = tuple(np.array(column) for column in zip(*indices, strict=True))
    assert gpu_package.linear_index(text, columns).tolist() == slots
    back = gpu_package.multi_index(text, np.array(slots))
    assert [tuple(map(int, index)) for index in zip(*back, strict=True)] == indices


# Index functions: kinds of input


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("mode", ["wrap", "clip"])
def test_dtypes_and_modes(dtype: str, mode: str) -> None:
    limits = np.iinfo(dtype)
    values = np.array([limits.min, limits.max, 0, 2, 3, 5, 100, limits.max - 1], dtype)
    indices = (values, values[::-1].copy())
    expected = fi.linear_index("f32[3,5]{1,0:T(2,2)}", indices, mode)
    assert gpu_package.linear_index("f32[3,5]{1,0:T(2,2)}", indices, mode=mode).tolist() == expected.tolist()


def test_strides_and_broadcasting() -> None:
    rows = np.arange(24).reshape(4, 6) % 3
    columns = np.arange(6) % 5
    expected = fi.linear_index("f32[3,5]{1,0:T(2,2)}", (rows[::2, ::-1], columns))
    found = fi.linear_index("f32[3,5]{1,0:T(2,2)}", (to_gpu(rows)[::2, ::-1], to_gpu(columns)))
    assert to_host(found).tolist() == expected.tolist()
    found = fi.linear_index("f32[3,5]{1,0:T(2,2)}", (to_gpu(rows), 4))
    assert to_host(found).tolist() == fi.linear_index("f32[3,5]{1,0:T(2,2)}", (rows, 4)).tolist()
    found = fi.linear_index("f32[3,5]{1,0:T(2,2)}", (to_gpu(rows[:, :5].copy()), range(4, -1, -1)))
    assert to_host(found).tolist() == fi.linear_index("f32[3,5]{1,0:T(2,2)}", (rows[:, :5], range(4, -1, -1))).tolist()
    whole = np.array([[0, 1, 2], [4, 3, 2]])
    assert to_host(fi.linear_index("f32[3,5]", to_gpu(whole))).tolist() == [4, 8, 12]


def test_out() -> None:
    out = cuda.device_array((4, 3), np.int64)
    out[:] = -7
    target = out[:, 1]
    result = fi.linear_index("f32[3,5]", (to_gpu(np.array([0, 1, 2, 0])), to_gpu(np.array([4, 3, 2, 1]))), out=target)
    assert result is target
    assert to_host(out).tolist() == [[-7, 4, -7], [-7, 8, -7], [-7, 12, -7], [-7, 1, -7]]


WINDOWS = [
    ("f32[]", np.s_[...]),
    ("f32[7]{0:T(4)}", np.s_[5:0:-2]),
    ("f32[3,5]{1,0:T(2,2)}", np.s_[:, 1::2]),
    ("bf16[20,300]{1,0:T(8,128)(2,1)}", np.s_[3:17, 120:141]),
    ("bf16[20,300]{1,0:T(8,128)(2,1)}", np.s_[::-1, -1]),
    ("bf16[20,300]{1,0:T(8,128)(2,1)}", np.s_[-1, 5:9]),
    ("f32[4,5,6,7]{0,2,1,3:T(2,4)}", np.s_[1, :, ::-2, 1:6]),
    ("f32[4,5,6,7]{3,2,1,0:T(2,*,4)}", np.s_[..., 2]),
    ("s4[9,33]{1,0:T(8,16)E(4)}", np.s_[2:9:3, 30::-1]),
    ("f32[3,5]", np.s_[2:2, :]),
    ("u8[100003,100019]{1,0:T(8,128)(4,1)}", np.s_[100000:, 99990::7]),
]


@pytest.mark.parametrize(("text", "window"), WINDOWS)
def test_windows(text: str, window: Any) -> None:
    shape = reference.parse(text)
    picked = as_window(window, fi.Shape.parse(text))
    elements = list(itertools.product(*picked.ranges))
    slots = np.array([reference.linear_index(shape, element) for element in elements], np.int64).reshape(picked.shape)
    for unit, factor in (("slot", 1), ("bit", fi.Shape.parse(text).element_bits)):
        # Rows with gaps, so that writes between them show.
        wide = to_gpu(np.full((*picked.shape, 2), -7))
        out = wide[..., 0]
        assert fi.linear_index(text, window, unit=unit, out=out) is out
        assert np.array_equal(to_host(out), slots * factor)
        assert np.all(to_host(wide[..., 1]) == -7)


def test_tiles_of_a_window() -> None:
    text, window = "bf16[20,300]{1,0:T(8,128)(2,1)}", np.s_[3:17:2, 120:141]
    expected = fi.tile_index(text, window, flat=True)
    out = tuple(to_gpu(np.full(part.shape, -7)) for part in expected)
    assert [found is given for found, given in zip(fi.tile_index(text, window, flat=True, out=out), out, strict=True)]
    assert [to_host(part).tolist() for part in out] == [part.tolist() for part in expected]
    with pytest.raises(fi.FastIndexError, match="overlaps"):
        fi.tile_index(text, window, flat=True, out=(out[0], out[0]))
    with pytest.raises(fi.FastIndexError, match="must hold 4 arrays"):
        fi.tile_index(text, window, out=((), (out[0],)))


def test_numpy_drop_ins() -> None:
    dims = (7, 6, 5)
    flat = np.random.default_rng(2).integers(math.prod(dims), size=70)
    for order in ("C", "F"):
        coordinates = np.unravel_index(flat, dims, order=order)
        found = fi.numpy.unravel_index(to_gpu(flat), dims, order=order)
        assert [to_host(part).tolist() for part in found] == [part.tolist() for part in coordinates]
        back = fi.numpy.ravel_multi_index(tuple(map(to_gpu, coordinates)), dims, order=order)
        assert to_host(back).tolist() == flat.tolist()
    with pytest.raises(ValueError, match="invalid entry"):
        fi.numpy.ravel_multi_index((to_gpu(np.array([7])), to_gpu(np.array([0]))), (7, 6))
    with pytest.raises(ValueError, match="out of bounds"):
        fi.numpy.unravel_index(to_gpu(np.array([42])), (7, 6))


# Errors are the CPU's


def test_the_first_offender_is_named() -> None:
    shape = "f32[3,5]{1,0:T(2,2)}"
    rows, columns = np.arange(200) % 3, np.arange(200) % 5
    rows[150], columns[77], columns[180] = 3, -1, 9
    on_cpu = error_of(fi.linear_index, shape, (rows, columns))
    assert error_of(fi.linear_index, shape, (to_gpu(rows), to_gpu(columns))) == on_cpu
    grid = (rows.reshape(20, 10), columns.reshape(20, 10))
    on_cpu = error_of(fi.linear_index, shape, grid)
    assert error_of(fi.linear_index, shape, tuple(map(to_gpu, grid))) == on_cpu
    for slots in ([0, 1, 24], [-1], [0, 9, 23]):
        on_cpu = error_of(fi.multi_index, shape, np.array(slots))
        assert error_of(fi.multi_index, shape, to_gpu(np.array(slots))) == on_cpu
        on_cpu = error_of(fi.convert_index, shape, "f32[3,5]", np.array(slots))
        assert error_of(fi.convert_index, shape, "f32[3,5]", to_gpu(np.array(slots))) == on_cpu
    with pytest.raises(fi.OutOfBoundsError, match="slot 24 at position 2"):
        fi.multi_index(shape, to_gpu(np.array([0, 9, 24])), padding="mark")
    # A call after an error starts afresh.
    assert gpu_package.linear_index(shape, (np.array([2]), np.array([3]))).tolist() == [17]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fi.linear_index("f32[3,5]", (to_gpu([0]), np.array([0]))), "on the host"),
        (lambda: fi.linear_index("f32[3,5]", (to_gpu([0]),)), "one coordinate array per dimension"),
        (lambda: fi.linear_index("f32[3,5]", (to_gpu([0.5]), to_gpu([0]))), "must hold integers"),
        (lambda: fi.linear_index("f32[3,5]", (to_gpu([0, 1]), to_gpu([0, 1, 2]))), "broadcast"),
        (lambda: fi.linear_index("f32[3,5]", (to_gpu([0]), to_gpu([0])), out=np.zeros(1, int)), "on the host"),
        (lambda: fi.linear_index("f32[3]", (np.array([0]),), stream=0), "stream is for CUDA arrays"),
        (lambda: fi.linear_index("f32[3]", (to_gpu([0]),), mode="roll"), "mode must be"),
        (lambda: fi.linear_index("f32[3]", np.s_[:], stream=0), "where out= is an array there"),
        (lambda: fi.linear_index("f32[3]", np.s_[1:], out=to_gpu([0, 1, 2])), "must have the shape"),
        (lambda: fi.tile_index("f32[3]{0:T(2)}", np.s_[:], flat=True, out=(to_gpu([0] * 3), np.zeros(3, int))), "host"),
        (lambda: fi.linear_index("f32[3]", (to_gpu([0]),), out=to_gpu([0, 1])), "must have the shape"),
        (lambda: fi.linear_index("f32[3]", (to_gpu([0]),), out=to_gpu([0.0])), "must be an int64 array"),
        (lambda: fi.unpack(to_gpu(np.zeros(7, np.uint8)), "u8[8]"), "takes 8 bytes"),
        (lambda: fi.unpack(to_gpu(np.zeros((2, 4), np.uint8)), "u8[8]"), "one dimension"),
        (lambda: fi.unpack(to_gpu(np.zeros(16, np.uint8))[::2], "u8[8]"), "contiguous"),
        (lambda: fi.unpack(to_gpu(np.zeros(2, np.float64)), "f32[4]"), "holds float32"),
        (lambda: fi.pack(to_gpu(np.zeros((2, 3), np.float32)), "f32[3,2]"), "has the dimensions"),
        (lambda: fi.pack(to_gpu(np.zeros(3)), "s32[3]"), "f64 is not cast to s32 by the rule casting='same_kind'"),
        (lambda: fi.pack(to_gpu(np.zeros(3, np.uint8)), "u8[3]", out=np.zeros(3, np.uint8)), "on the host"),
        (lambda: fi.relayout(to_gpu(np.zeros(3, np.uint8)), "u8[3]", "u8[4]"), "a relayout keeps the array"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(fi.FastIndexError, match=message):
        call()


def test_read_only_and_overlapping_outputs() -> None:
    frozen = np.zeros(8, np.uint8)
    frozen.flags.writeable = False
    data = to_gpu(np.arange(16, dtype=np.uint8))
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    with pytest.raises(fi.FastIndexError, match="read-only"):
        fi.relayout(data[:8], "u8[2,4]", "u8[2,4]{0,1}", out=FakeCUDAArray(frozen))
    with pytest.raises(fi.FastIndexError, match="overlaps the input"):
        fi.relayout(data[:8], "u8[2,4]", "u8[2,4]{0,1}", out=data[4:12])


# Whole arrays: addresses and strides


ADDRESSES = [
    ("bf16[20,256]{1,0}", "bf16[20,256]{1,0:PV(one)T(8,128)(2,1)}", 8),
    ("bf16[20,128]{1,0}", "bf16[20,128]{1,0:PV(one)T(8,64)(2,1)}", 1),
    ("u8[48,64]{1,0}", "u8[48,64]{0,1}", 1),
    ("u8[48,64]{1,0}", "u8[48,64]{0,1}", 16),
    ("c128[5,6]{1,0}", "c128[5,6]{0,1:PV(one)T(4)}", 1),
    ("c128[5,6]{1,0}", "c128[5,6]{0,1:PV(one)T(4)}", 8),
    ("u8[9,203]{1,0}", "u8[9,203]{1,0:PV(one)T(8,128)}", 3),
    ("u8[3,7,90]{2,1,0}", "u8[3,7,90]{2,0,1}", 13),
    ("s4[9,40]{1,0:E(4)}", "s4[9,40]{1,0:PV(one)T(4,32)}", 1),
    ("s4[7,133]{1,0:E(4)}", "s4[7,133]{1,0:PV(one)T(4,32)}", 6),
    ("pred[7,133]{1,0:E(1)}", "pred[7,133]{1,0:PV(one)T(4,32)}", 5),
    ("s4[9]{0:E(4)}", "s4[9]{0:PV(one)T(16)}", 2),
    ("s4[16,160]{1,0}", "s4[16,160]{1,0:PV(one)T(8,128)E(4)}", 8),
    ("u2[16,160]{1,0}", "u2[16,160]{1,0:PV(one)T(8,128)E(2)}", 3),
    ("f32[9,33]{1,0}", "f32[9,33]{1,0:PV(one)T(4,32)}", 2),
    ("f32[9,33]{1,0}", "f32[9,33]{1,0:PV(one)T(4,32)}", 4),
]


@pytest.mark.parametrize(("source", "destination", "offset"), [*strategies.rotating(ADDRESSES)])
def test_buffers_that_start_anywhere(source: str, destination: str, offset: int) -> None:
    first, second = fi.Shape.parse(source), fi.Shape.parse(destination)
    rng = np.random.default_rng(offset)
    data = rng.integers(256, size=first.nbytes + 32, dtype=np.uint8)
    out = to_gpu(np.full(second.nbytes + 32, 9, np.uint8))
    buffer = to_gpu(data)[offset : offset + first.nbytes]
    fi.relayout(buffer, source, destination, out=out[offset : offset + second.nbytes])
    expected = fi.relayout(data[offset : offset + first.nbytes], source, destination)
    found = to_host(out)
    assert found[offset : offset + second.nbytes].tobytes() == expected.tobytes()
    assert set(found[:offset]) | set(found[offset + second.nbytes :]) == {9}


def test_strided_arrays() -> None:
    text = "f32[6,10]{1,0:T(4,4)}"
    whole = np.arange(240, dtype=np.float32).reshape(12, 20)
    expected = fi.pack(whole[::-2, ::2], text)
    assert to_host(fi.pack(to_gpu(whole)[::-2, ::2], text)).tolist() == expected.tolist()
    assert (
        to_host(fi.pack(to_gpu(whole.T.copy()).T[::2, ::2], text)).tolist() == fi.pack(whole[::2, ::2], text).tolist()
    )
    out = to_gpu(np.zeros((12, 20), np.float32))
    fi.unpack(to_gpu(expected), text, out=out[::-2, ::2])
    found = to_host(out)
    assert found[::-2, ::2].tolist() == whole[::-2, ::2].tolist()
    assert not found[::2].any()


def test_strides_that_are_not_whole_elements() -> None:
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    text, records = "f32[6,10]{1,0:T(4,4)}", np.zeros((6, 10), [("values", "f4"), ("others", "u1")])
    records["values"] = np.arange(60).reshape(6, 10)
    values = FakeCUDAArray(records["values"])
    packed, expected = fi.pack(values, text), fi.pack(records["values"], text)
    assert to_host(packed).tobytes() == expected.tobytes()
    assert to_host(fi.rearrange(values, "a b -> b a")).tolist() == records["values"].T.tolist()
    written = records.copy()
    written["values"], written["others"] = 0, 7
    fi.unpack(packed, text, out=FakeCUDAArray(written["values"]))
    assert (written["values"].tolist(), set(written["others"].ravel())) == (records["values"].tolist(), {7})


def test_strided_arrays_of_tiles_that_do_not_divide() -> None:
    text = "f32[9,10]{1,0:T(3)(2)}"
    whole = np.arange(180, dtype=np.float32).reshape(9, 20)
    expected = fi.pack(whole[:, ::2], text)
    assert to_host(fi.pack(to_gpu(whole)[:, ::2], text)).tolist() == expected.tolist()
    out = to_gpu(np.zeros((9, 20), np.float32))
    fi.unpack(to_gpu(expected), text, out=out[:, ::2])
    assert to_host(out)[:, ::2].tolist() == whole[:, ::2].tolist()


def test_results_of_arrays_of_jax_are_arrays_of_jax() -> None:
    """Of the types that JAX has, 64 bits too; with the processor's values; and `out` of JAX is never written."""
    import jax

    numbers = np.arange(35, dtype=np.float32).reshape(5, 7)
    for kind in ("float32", "bfloat16", "float8_e4m3fn"):
        array = jax.numpy.asarray(numbers, dtype=kind)
        plain = f"{fi.ElementType.of(array.dtype)}[5,7]"
        tiled = plain + "{0,1:T(2,4)}"
        packed, expected = fi.pack(OfHost(array), tiled), fi.pack(np.asarray(array), tiled)
        assert isinstance(packed, jax.Array)
        assert packed.dtype == array.dtype
        assert np.asarray(packed).tobytes() == expected.tobytes()
        back = fi.unpack(OfHost(packed), tiled)
        assert (back.shape, back.dtype) == ((5, 7), array.dtype)
        assert np.asarray(back).tobytes() == np.asarray(array).tobytes()
        moved = fi.plan_relayout(tiled, plain)(OfHost(packed))
        assert np.asarray(moved).tobytes() == np.asarray(array).tobytes()
    slots = fi.linear_index("f32[65536,65536]", [OfHost(jax.numpy.asarray([65535, 2]))] * 2)
    assert slots.dtype == np.int64
    assert np.asarray(slots).tolist() == [2**32 - 1, 131074]
    places = fi.tile_index("f32[5,7]{1,0:T(2,4)}", [OfHost(jax.numpy.asarray([4, 2]))] * 2, flat=True)
    expected_places = fi.tile_index("f32[5,7]{1,0:T(2,4)}", [[4, 2]] * 2, flat=True)
    assert [np.asarray(part).tolist() for part in places] == [part.tolist() for part in expected_places]
    turned = fi.rearrange(OfHost(jax.numpy.asarray(numbers)), "a b -> b a")
    assert isinstance(turned, jax.Array)
    assert np.asarray(turned).tolist() == numbers.T.tolist()
    codes = fi.unpack(OfHost(jax.numpy.asarray([0x21, 0x43], dtype="uint8")), "u4[4]{0:E(4)}")
    assert codes.dtype == np.uint8
    assert np.asarray(codes).tolist() == [1, 2, 3, 4]
    with pytest.raises(fi.FastIndexError, match="out is read-only"):
        fi.pack(OfHost(jax.numpy.asarray(numbers)), "f32[5,7]", out=OfHost(jax.numpy.zeros(35)))


def test_fill_and_plans() -> None:
    source, destination = "f32[3,5]{1,0}", "f32[3,5]{1,0:PV(one)T(2,2)}"
    data = np.arange(15, dtype=np.float32)
    plan = fi.plan_relayout(source, destination)
    assert to_host(plan(to_gpu(data))).tolist() == plan(data).tolist()
    found = fi.relayout(to_gpu(data), source, destination, fill=-2.5)
    assert to_host(found).tolist() == fi.relayout(data, source, destination, fill=-2.5).tolist()


# From host memory, box by box


IN_BOXES = [
    ("f32[40,36]{1,0}", "f32[40,36]{0,1:PV(one)T(8,4)}", 2000),
    ("f32[40,36]{1,0}", "f32[40,36]{0,1}", None),
    ("bf16[20,256]{1,0}", "bf16[20,256]{1,0:T(8,128)(2,1)}", 8192),
    ("u4[8,40]{1,0:E(4)}", "u4[8,40]{1,0:PV(one)T(8,8)E(4)}", 128),
    ("u4[8,40]{1,0:E(4)}", "u4[8,40]{1,0:PV(one)T(8,8)}", 64),
    ("f32[9,20]{1,0}", "f32[9,20]{0,1:PV(one)T(3)(2)}", 100),
    ("f32[0,20]{1,0}", "f32[0,20]{0,1:PAD(2,20)}", 100),
    ("f32[40,36]{1,0}", "bf16[40,36]{0,1:PV(one)T(8,4)(2,1)}", 2000),
    ("u8[40,36]{0,1:T(8,4)}", "f64[40,36]{1,0}", 500),
    ("f16[8,40]{1,0}", "u4[8,40]{1,0:PV(one)T(8,8)E(4)}", 128),
    ("bf16[9,20]{1,0}", "f32[9,20]{0,1:PV(one)T(3)(2)}", 100),
    ("f32[0,20]{1,0}", "f16[0,20]{0,1:PAD(2,20)}", 100),
]


@pytest.mark.parametrize(("source", "destination", "max_memory"), [*strategies.rotating(IN_BOXES)])
def test_boxes(source: str, destination: str, max_memory: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []

    def new_pinned_bytes(size: int) -> Any:
        pinned.append(size)
        return np.empty(size, np.uint8)

    monkeypatch.setattr(device, "new_pinned_bytes", new_pinned_bytes)
    data = np.random.default_rng(3).integers(256, size=fi.Shape.parse(source).nbytes, dtype=np.uint8)
    expected = fi.relayout(data, source, destination, casting="unsafe")
    options: dict[str, Any] = {"max_memory": max_memory, "casting": "unsafe"}
    found = fastindex.cuda.relayout_through_device(data, source, destination, **options)
    assert found.tobytes() == expected.tobytes()
    # The smallest boxes of the others are larger.
    assert max_memory not in (2000, 8192) or sum(pinned) <= max_memory
    out = np.zeros(len(expected.view(np.uint8)), np.uint8)
    fastindex.cuda.relayout_through_device(data, source, destination, out=out, **options)
    assert out.tobytes() == expected.tobytes()


# The command line


def test_the_demo() -> None:
    assert run_demo(lambda line: None, Gpu(), 7, 100, 20)


def test_relayout_of_files(tmp_path: Path) -> None:
    np.arange(35, dtype=np.uint16).tofile(tmp_path / "a")
    shapes = ["--from", "u16[5,7]", "--to", "u16[5,7]{0,1}"]
    main(["relayout", str(tmp_path / "a"), str(tmp_path / "b"), *shapes, "--device", "cuda"], standalone_mode=False)
    expected = np.arange(35, dtype=np.uint16).reshape(5, 7).T
    assert np.array_equal(np.fromfile(tmp_path / "b", np.uint16).reshape(7, 5), expected)
    shapes = ["--from", "u16[5,7]", "--to", "u8[5,7]{0,1}", "--device", "cuda"]
    with pytest.raises(SystemExit):
        main(
            ["relayout", str(tmp_path / "a"), str(tmp_path / "c"), *shapes, "--casting", "safe"], standalone_mode=False
        )
    main(["relayout", str(tmp_path / "a"), str(tmp_path / "c"), *shapes], standalone_mode=False)
    assert np.array_equal(np.fromfile(tmp_path / "c", np.uint8).reshape(7, 5), expected)
