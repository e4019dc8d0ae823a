"""Named formats against the functions of those who pack them, byte for byte, both ways, padded sizes included.

Each is skipped where its package is not installed; `test_repacking` has definitions of all formats.
"""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from tests.cases.hangs import HANG_SECONDS
from tests.oracles.vendor_code import functions, module

pytestmark = pytest.mark.filterwarnings("ignore")
_QUANT = "model_executor/layers/quantization/utils"
_LAYOUTS = "third_party/triton_kernels/tensor_details/layout_details"

Packer = Callable[[Any], Any]
Sizes = tuple[int, ...]


def agree(
    pack: Packer, name: str, sizes: Iterable[Sizes], bits: int, kind: str = "int32", signed: bool = False, **more: Any
) -> None:
    """Compare all bytes, and the way back."""
    torch = module("torch")
    for shape in sizes:
        rng = np.random.default_rng([bits, *shape])
        codes = rng.integers(0, 1 << bits, shape, dtype=np.uint16).astype(np.uint8 if bits <= 8 else np.uint16)
        if signed:
            codes = (codes.astype(np.int16) - (1 << bits - 1)).astype(np.int8)
        given = codes.astype(kind) if kind != "uint16" else codes.view(np.int16)
        packed = pack(torch.from_numpy(given))
        expected = np.ascontiguousarray(packed.numpy() if hasattr(packed, "numpy") else packed).view(np.uint8).tobytes()
        got = fi.weights.repack(codes, "plain", name, shape=shape, bits=bits, **more)
        assert got.tobytes() == expected, (name, shape, bits, more)
        back = fi.weights.repack(got, name, "plain", shape=shape, bits=bits, out=np.empty_like(codes), **more)
        assert np.array_equal(back, codes), (name, shape, bits, more)


def of_vllm(*names: str) -> dict[str, Any]:
    own = "get_pack_factor", "pack_rows", "pack_cols", "awq_pack", *names
    quant = functions("vllm", f"{_QUANT}/quant_utils.py", *own)
    test = functions(
        "vllm",
        f"{_QUANT}/marlin_utils_test.py",
        "marlin_permute_weights",
        "marlin_weights",
        "get_weight_perm",
        get_pack_factor=quant["get_pack_factor"],
        GPTQ_MARLIN_TILE=16,
    )
    utils = functions(
        "vllm",
        f"{_QUANT}/marlin_utils.py",
        "get_scale_perms",
        "marlin_permute_scales",
        "marlin_zero_points",
        pack_cols=quant["pack_cols"],
    )
    return {**quant, **test, **utils}


@pytest.mark.parametrize("bits", [4, 8])
def test_vllm_awq(bits: int) -> None:
    pack = of_vllm()["awq_pack"]
    agree(lambda q: pack(q, bits, *q.shape), "awq", [(1, 8), (7, 40), (128, 256)], bits, packer="vllm")


@pytest.mark.parametrize("bits", range(2, 9))
def test_auto_round(bits: int) -> None:
    """Its AWQ interleaves eights at every width; its GPTQ is one row of bits along K."""
    names = "pack_awq_bitstream", "pack_bitstream", "awq_reorder", "_apply_awq_order", "_shift_tables", "_check_bits"
    constants = "packed_dim_size", "PACK_BLOCK", "SUPPORTED_PACKING_BITS", "AWQ_INTERLEAVE", "AWQ_PACK_ORDER"
    masks = "_UINT32_MASK", "_INT32_SIGN", "_UINT32_SPAN"
    found = functions("auto_round", "utils/bit_packing.py", *names, *constants, *masks)
    shapes = [(1, 32), (7, 96), (64, 256)]
    agree(lambda q: found["pack_awq_bitstream"](q, bits, 1), "awq", shapes, bits, packer="auto_round")
    shapes = [(32, 1), (96, 7), (256, 64)]
    agree(lambda q: found["pack_bitstream"](q, bits, 0), "gptq", shapes, bits, packer="auto_round")
    pack = functions("auto_round", "export/export_to_mlx/export.py", "_pack_weight_mlx")["_pack_weight_mlx"]
    agree(lambda q: pack(q, bits), "mlx", [(1, 64), (3, 128), (5, 192)], bits)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_vllm_gptq(bits: int) -> None:
    pack = of_vllm()["pack_rows"]
    agree(lambda q: pack(q, bits, *q.shape), "gptq", [(16, 3), (64, 40), (128, 257)], bits)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_auto_gptq(bits: int) -> None:
    torch = module("torch")
    around = {"nn": torch.nn, "transformers": SimpleNamespace(pytorch_utils=SimpleNamespace(Conv1D=ModuleType))}
    found = functions("auto_gptq", "nn_modules/qlinear/qlinear_cuda_old.py", "QuantLinear", **around)["QuantLinear"]

    def pack(q: Any) -> Any:
        k, n = q.shape
        # Scales are 1 and zero points too, so that weights are codes less 1; one group.
        own = SimpleNamespace(bits=bits, infeatures=k, outfeatures=n, group_size=k, bias=None)
        linear = SimpleNamespace(weight=(q.T.to(torch.float32) - 1), bias=None)
        linear.weight.data = linear.weight
        ones = torch.ones((n, 1))
        found.pack(own, linear, ones, ones.clone(), None)
        return own.qweight

    # It packs zero points along N by 32.
    agree(pack, "gptq", [(32, 32), (96, 64), (160, 32)], bits)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptqmodel(bits: int) -> None:
    torch = module("torch")
    around = {
        "t": torch,
        "nn": torch.nn,
        "_ConvNd": torch.nn.modules.conv._ConvNd,
        "THREADPOOLCTL": SimpleNamespace(threadpool_limits=lambda count: nullcontext()),
        "transformers": SimpleNamespace(pytorch_utils=SimpleNamespace(Conv1D=ModuleType)),
        "GPTQQuantLinear": object,
    }
    pack_original = functions("gptqmodel", "nn_modules/qlinear/__init__.py", "PackableQuantLinear", **around)[
        "PackableQuantLinear"
    ].pack_original

    def pack(q: Any) -> Any:
        k, n = q.shape
        own = SimpleNamespace(bits=bits, planar=False, maxq=2**bits - 1, pack_factor=32 // bits, pack_dtype_bits=32)
        own.pack_np_math_dtype, own.pack_np_dtype = np.uint32, np.int32
        own.register_buffer = partial(setattr, own)
        # Scales are 1 and zero points too, so that weights are codes less 1; one group.
        linear = SimpleNamespace(weight=SimpleNamespace(data=q.T.to(torch.float32) - 1), bias=None)
        ones = torch.ones((n, 1))
        pack_original(own, linear, ones, ones.clone(), torch.zeros(k, dtype=torch.int64))
        return own.qweight

    # It packs zero points of three bits along N by 32, and pads K for the other widths.
    agree(pack, "gptq", [(32, 32), (96, 64), (160, 32)] if bits == 3 else [(32, 8), (13, 3), (1, 1), (97, 40)], bits)


def test_gptqmodel_awq() -> None:
    names = "pack_awq", "_pack_contiguous", "pack_awq_columns", "AWQ_ORDER"
    found = functions("gptqmodel", "quantization/awq/utils/packing_utils.py", *names)
    for bits in range(2, 9):
        shapes = [(1, 8), (7, 40), (128, 256), *([(5, 41), (3, 1)] if bits != 4 else [])]
        agree(lambda q: found["pack_awq"](q, q, bits)[0], "awq", shapes, bits, packer="gptqmodel")  # noqa: B023
    pack = functions("gptqmodel", "nn_modules/qlinear/gemv_fast_awq.py", "pack_intweight")["pack_intweight"]
    agree(lambda q: pack(q, 4, 64), "awq_gemv_fast", [(4, 64), (12, 192), (64, 256)], 4)


@pytest.mark.parametrize("kstride", [32, 64, 128])
def test_awq_gemv_fast(kstride: int) -> None:
    pack = functions("awq", "modules/linear/gemv_fast.py", "pack_intweight")["pack_intweight"]
    shapes = [(4, kstride), (12, 3 * kstride), (64, 4 * kstride)]
    agree(lambda q: pack(q, 4, kstride), "awq_gemv_fast", shapes, 4, kstride=kstride)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("narrow", [False, True])
def test_vllm_marlin(bits: int, narrow: bool) -> None:
    found = of_vllm()
    permutation = found["get_weight_perm"](bits, narrow)
    agree(
        lambda q: found["marlin_weights"](q, *q.shape, bits, permutation, narrow),
        "marlin",
        [(32, 64), (96, 192), (128, 320)],
        bits,
        activation_bits=8 if narrow else 16,
    )


def test_vllm_marlin_scales_and_zero_points() -> None:
    found = of_vllm()
    scales = found["marlin_permute_scales"]
    agree(lambda s: scales(s, 1024, s.shape[1], 128), "marlin_scales", [(2, 64), (7, 320), (8, 128)], 16, "uint16")
    single = [(1, 64), (1, 96), (1, 320)]
    agree(lambda s: scales(s, 128, s.shape[1], 128), "marlin_scales", single, 16, "uint16")
    agree(lambda s: scales(s, 128, s.shape[1], -1), "marlin_scales", single, 16, "uint16", grouped=False)
    for bits in (4, 8):
        points = found["marlin_zero_points"]
        agree(lambda z: points(z, *z.shape, bits), "marlin_zero_points", [(1, 64), (7, 320), (8, 128)], bits)  # noqa: B023


@pytest.mark.parametrize("bits", [4, 8])
def test_awq_zero_points_to_marlin(bits: int) -> None:
    """Zero points in one move, as the page on quantised weights does it."""
    torch = module("torch")
    found = of_vllm("unpack_cols")
    found = {name: found[name] for name in ("unpack_cols", "marlin_zero_points")}
    utils = functions("vllm", f"{_QUANT}/marlin_utils.py", "awq_to_marlin_zero_points", **found)
    for groups, n in ((1, 64), (7, 320), (8, 128)):
        points = np.random.default_rng(n).integers(0, 256, (groups, n * bits // 8), dtype=np.uint8).view(np.int32)
        for narrow in (False, True):
            packed = utils["awq_to_marlin_zero_points"](torch.from_numpy(points), groups, n, bits, narrow)
            keys: dict[str, Any] = {"shape": (groups, n), "bits": bits, "activation_bits": 8 if narrow else 16}
            keys["packer"] = "vllm"
            got = fi.weights.repack(points, "awq", "marlin_zero_points", **keys)
            assert got.tobytes() == packed.numpy().tobytes()
            assert fi.weights.repack(got, "marlin_zero_points", "awq", **keys).tobytes() == points.tobytes()


@pytest.mark.parametrize("bits", [4, 8])
def test_marlin_24(bits: int) -> None:
    found = functions("compressed_tensors_094", "utils/permutations_24.py", "get_permutations_24")
    vllm = of_vllm()
    permutation = found["get_permutations_24"](bits)[0]
    agree(
        lambda q: vllm["marlin_weights"](q, *q.shape, bits, permutation),
        "marlin_24_values",
        [(16, 64), (48, 192), (64, 320)],
        bits,
    )


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("packed_dim", [0, 1])
@pytest.mark.parametrize(("package", "dense"), [("compressed_tensors", True), ("compressed_tensors_0171", False)])
def test_compressed_tensors(bits: int, packed_dim: int, package: str, dense: bool) -> None:
    found = functions(
        package,
        "compressors/pack_quantized/helpers.py",
        "pack_to_int32",
        Literal=dict[tuple[int, int], int],
    )
    agree(
        lambda q: found["pack_to_int32"](q, bits, packed_dim),
        "pack_quantized",
        [(1, 1), (5, 41), (64, 96), (37, 3)],
        bits,
        "int8",
        signed=True,
        packed_dim=packed_dim,
        dense=dense,
    )


def test_torchao_scales_and_values() -> None:
    to_blocked = module("torchao.prototype.mx_formats.utils").to_blocked
    agree(lambda s: to_blocked(s, False), "blocked_scales", [(1, 1), (128, 4), (300, 7), (513, 16)], 8, "uint8")
    pack = module("torchao.prototype.mx_formats.kernels").pack_uint4
    agree(pack, "nvfp4", [(1, 2), (5, 42), (64, 96)], 4, "uint8")


def test_mlx() -> None:
    core = module("mlx.core")
    for bits in (2, 3, 4, 5, 6, 8):
        for rows, columns in ((1, 64), (3, 128), (5, 192)):
            values = np.random.default_rng(bits).standard_normal((rows, columns)).astype(np.float32)
            packed, scales, biases = (np.array(one) for one in core.quantize(core.array(values), 64, bits))
            codes = fi.weights.repack(packed, "mlx", "plain", shape=(rows, columns), bits=bits)
            restored = np.repeat(scales, 64, 1) * codes + np.repeat(biases, 64, 1)
            expected = np.array(core.dequantize(*map(core.array, (packed, scales, biases)), 64, bits))
            assert np.allclose(restored, expected, atol=1e-5)
            again = fi.weights.repack(codes, "plain", "mlx", shape=(rows, columns), bits=bits)
            assert again.tobytes() == packed.tobytes()


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_hqq(bits: int) -> None:
    torch = module("torch")
    own = functions("hqq", "core/bitpack.py", "BitPack", uint8=torch.uint8, int32=torch.int32, Tensor=torch.Tensor)
    agree(getattr(own["BitPack"], f"pack_{bits}bit_u8"), "hqq", [(8, 3), (64, 40), (16, 5)], bits)


def test_hqq_words() -> None:
    torch = module("torch")
    own = functions("hqq", "core/bitpack.py", "BitPack", uint8=torch.uint8, int32=torch.int32, Tensor=torch.Tensor)
    agree(own["BitPack"].pack_3bit_32, "hqq", [(10, 3), (64, 40), (1, 1), (101, 7)], 3)


def test_mxfp6() -> None:
    """Its packer takes values, so codes become E2M3 numbers first."""
    torch = module("torch")
    helpers = module("compressed_tensors.compressors.mxfp6.helpers")

    def pack(codes: Any) -> Any:
        numbers = helpers.kE2M3ToFloat[codes & 31]
        return helpers.pack_fp6_to_uint8(torch.where(codes & 32 != 0, -numbers, numbers))

    agree(pack, "mxfp6", [(1, 4), (7, 32), (64, 96)], 6)


def test_nunchaku() -> None:
    """Of the source of nunchaku 1.2; the package of this name on PyPI is another."""
    around = functions("nunchaku", "lora/flux/packer.py", "MmaWeightPackerBase")
    around["ceil_divide"] = lambda a, b: -(-a // b)
    packer = functions("nunchaku", "lora/flux/packer.py", "NunchakuWeightPacker", **around)["NunchakuWeightPacker"]
    shapes = [(128, 128), (256, 384), (384, 640)]
    for bits in (4, 8):
        agree(packer(bits).pack_weight, "nunchaku", shapes, bits, signed=True)
    agree(packer(4).pack_weight, "nunchaku", shapes, 4, precision="fp4")
    torch = module("torch")

    def scale(given: Any) -> Any:
        return packer(4).pack_scale(given.view(torch.float16), 64)

    agree(lambda s: scale(s).view(torch.int16), "nunchaku_scales", [(128, 1), (256, 7), (384, 10)], 16, "uint16")

    def micro(given: Any) -> Any:
        numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)[given.int()].to(torch.bfloat16)
        return packer(4).pack_micro_scale(numbers, 16).view(torch.uint8)

    for sizes in ((128, 4), (256, 12), (384, 40)):
        codes = np.random.default_rng(1).integers(0, 126, sizes, dtype=np.uint8)
        expected = micro(torch.from_numpy(codes)).numpy().tobytes()
        got = fi.weights.repack(codes, "plain", "nunchaku_scales", shape=sizes, bits=8)
        assert got.tobytes() == expected
        assert np.array_equal(fi.weights.repack(got, "nunchaku_scales", "plain", shape=sizes, bits=8), codes)


@pytest.mark.parametrize("bits", [2, 4])
def test_quanto(bits: int) -> None:
    """Rows that are left over are packed with 0."""
    pack = functions("optimum", "quanto/tensor/packed.py", "pack_weights")["pack_weights"]
    agree(lambda q: pack(q, bits), "quanto", [(5, 3), (8, 4), (7, 16), (1, 4), (3, 2)], bits, "uint8")


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7])
def test_torchao_uintx(bits: int) -> None:
    """A code is the sum of parts of 4, 2 and 1 bits, each packed on its own."""
    pack = module("torchao.prototype.dtypes.uintx.bitpacking").pack
    for shape in ((1, 8), (3, 40), (5, 64)):
        codes = np.random.default_rng([bits, *shape]).integers(0, 1 << bits, shape, np.uint8)
        first = 0
        for packed, width in zip(
            pack(module("torch").from_numpy(codes), bits), [w for w in (4, 2, 1) if w & bits], strict=True
        ):
            part = codes >> first & (1 << width) - 1
            got = fi.weights.repack(part, "plain", "torchao_uintx", shape=shape, bits=width)
            assert got.tobytes() == packed.numpy().tobytes()
            first += width


@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
def test_onnxruntime(block_size: int) -> None:
    """Each block has a -8, so that its scale is 1 and codes are values plus 8."""
    quantize = module("onnxruntime.capi._pybind_state").quantize_matmul_4bits
    for k, n in ((block_size, 3), (3 * block_size, 5)):
        values = np.random.default_rng([block_size, k]).integers(-8, 8, (k, n), np.int8)
        values[::block_size] = -8
        blocks = k // block_size
        packed, scales = np.zeros((n, blocks, block_size // 2), np.uint8), np.zeros(n * blocks, np.float32)
        zero_points = np.zeros(n * ((blocks + 1) // 2), np.uint8)
        quantize(packed, values.astype(np.float32), scales, zero_points, block_size, n, k, True)
        assert np.all(scales == 1)
        codes = (values + 8).astype(np.uint8)
        got = fi.weights.repack(codes, "plain", "onnx_matmul_nbits", shape=(k, n), block_size=block_size)
        assert got.tobytes() == packed.tobytes()


def test_nncf() -> None:
    """It writes MatMulNBits of ONNX, and pairs of codes for OpenVINO."""
    pack = functions("nncf", "onnx/graph/onnx_helper.py", "pack_int4_to_uint8", "pack_4_bits", Any=Any)
    for block_size, shapes in ((32, [(32, 3), (40, 5), (70, 2)]), (16, [(16, 1), (40, 5)])):
        one = partial(pack["pack_int4_to_uint8"], block_size=block_size, signed=False)
        agree(lambda q, one=one: one(q.numpy()), "onnx_matmul_nbits", shapes, 4, "uint8", block_size=block_size)
    shape = (48, 5)
    values = np.random.default_rng(0).integers(-8, 8, shape, np.int8)
    expected = pack["pack_int4_to_uint8"](values, 16, True).tobytes()
    codes = (values + 8).astype(np.uint8)
    got = fi.weights.repack(codes, "plain", "onnx_matmul_nbits", shape=shape, block_size=16)
    assert got.tobytes() == expected
    pack = functions("nncf", "torch/quantization/quantize_functions.py", "pack_uint4", ValidationError=ValueError)
    agree(pack["pack_uint4"], "nncf", [(1, 2), (3, 6), (4, 9)], 4, "uint8")


@pytest.mark.parametrize("bits", [2, 4])
def test_tflite(bits: int) -> None:
    pack = functions("ai_edge_quantizer", "transformations/transformation_utils.py", "pack_data")["pack_data"]
    for shape in ((3, 5), (4, 8), (7, 1)):
        values = np.random.default_rng(shape).integers(-(1 << bits - 1), 1 << bits - 1, shape, np.int8)
        got = fi.weights.repack(values, "plain", "tflite", shape=shape, bits=bits)
        assert got.tobytes() == np.asarray(pack(bits, values.copy())).tobytes()


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
def test_coreml(bits: int) -> None:
    pack = functions("coremltools", "optimize/_utils.py", "pack_elements_into_bits")["pack_elements_into_bits"]
    agree(lambda q: pack(q.numpy(), bits), "coreml", [(3, 5), (4, 8), (7, 1)], bits, "uint8")


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6])
def test_openvino(bits: int) -> None:
    """What the CPU plugin reads; its own helper writes 2 and 4 bits the other way round."""
    openvino = module("openvino")
    operators, core = module("openvino.opset13"), openvino.Core()
    for count in (24, 25, 96):
        codes = np.random.default_rng([bits, count]).integers(0, 1 << bits, count, np.uint8)
        packed = fi.weights.repack(codes, "plain", "openvino", shape=codes.shape, bits=bits)
        constant = openvino.Tensor(getattr(openvino.Type, f"u{bits}"), openvino.Shape([count]))
        constant.data[:] = packed.reshape(constant.data.shape)
        converted = operators.convert(operators.constant(constant), "i32")
        result = core.compile_model(openvino.Model([converted], []), "CPU")([])[0]
        assert np.array_equal(result, codes), count


def test_modelopt() -> None:
    own = functions("modelopt", "torch/export/quant_utils.py", "pack_int4_in_uint8", "_validate_int4_block_size")
    for shape in ((2, 4), (6, 8), (8, 16)):
        values = np.random.default_rng(shape).integers(-8, 8, shape, np.int8)
        ones = module("torch").ones((shape[0], 1))
        packed = own["pack_int4_in_uint8"](module("torch").from_numpy(values.astype(np.float32)), ones, shape[1])
        # Values, not codes: int8 cannot say which, so they are given as the codes of two's complement.
        codes = (values + 8).astype(np.uint8)
        got = fi.weights.repack(codes, "plain", "modelopt", shape=shape)
        assert got.tobytes() == packed.numpy().tobytes()


@pytest.mark.parametrize("bits", [16, 32])
def test_sparse_24_metadata(bits: int) -> None:
    torch = module("torch")
    offsets = module("torch.sparse._semi_structured_conversions")._calculate_meta_reordering_scatter_offsets
    for shape in ((32, 2), (64, 6), (96, 4)):
        codes = np.random.default_rng(shape).integers(0, 1 << bits, shape, np.uint64).astype(f"u{bits // 8}")
        expected = np.empty(codes.size, codes.dtype)
        expected[offsets(*shape, torch.int16 if bits == 16 else torch.int32, "cpu").numpy()] = codes.ravel()
        got = fi.weights.repack(codes, "plain", "sparse_24_metadata", shape=shape, bits=bits)
        assert got.tobytes() == expected.tobytes()


def test_bitsandbytes_on_cpus() -> None:
    torch = module("torch")
    convert = functions("bitsandbytes", "functional.py", "_convert_weight_packed_for_cpu", QuantState=object)

    def pack(q: Any) -> Any:
        pairs = q.reshape(-1, 2)
        state = SimpleNamespace(
            dtype=torch.float32, nested=False, shape=tuple(q.shape), blocksize=q.shape[1], absmax=torch.ones(len(q))
        )
        return convert["_convert_weight_packed_for_cpu"](pairs[:, 0] << 4 | pairs[:, 1], state)[0]

    agree(pack, "bnb_nf4_cpu", [(32, 2), (64, 6), (96, 64)], 4, "uint8")


def test_bitsandbytes() -> None:
    torch, quantize = module("torch"), module("bitsandbytes.functional").quantize_4bit
    for kind, count in itertools.product(("nf4", "fp4"), (64, 129, 640)):
        values = torch.from_numpy(np.random.default_rng(count).standard_normal(count).astype(np.float32))
        packed, state = quantize(values, blocksize=64, quant_type=kind)
        levels = state.code.numpy()
        scale = np.repeat(state.absmax.numpy(), 64)[:count]
        nearest = np.abs(values.numpy()[:, None] / scale[:, None] - levels).argmin(1)
        # fp4 has two codes of 0.
        codes = fi.weights.repack(packed.numpy(), f"bnb_{kind}", "plain", shape=(count,))
        assert np.array_equal(levels[codes], levels[nearest])
        assert fi.weights.repack(codes, "plain", f"bnb_{kind}", shape=(count,)).tobytes() == packed.numpy().tobytes()


def test_gguf() -> None:
    quants = module("gguf.quants")
    types = module("gguf").GGMLQuantizationType
    for rows, blocks in ((1, 1), (3, 2), (5, 7)):
        values = np.random.default_rng(rows).standard_normal((rows, 32 * blocks)).astype(np.float32)
        for kind, head, low in (("q4_0", 2, -8), ("q5_0", 6, -16), ("q8_0", 2, 0)):
            packed = quants.quantize(values, types[kind.upper()]).reshape(
                -1, {"q4_0": 18, "q5_0": 22, "q8_0": 34}[kind]
            )
            body = np.ascontiguousarray(packed[:, head:])
            scale = packed[:, :2].copy().view(np.float16).astype(np.float32)
            bits = 8 if kind == "q8_0" else 4
            out = np.empty(values.shape, np.int8 if bits == 8 else np.uint8)
            codes = fi.weights.repack(
                body, "gguf_body", "plain", shape=values.shape, bits=bits, type=kind, out=out
            ).reshape(-1, 32)
            if kind == "q5_0":
                codes = codes | (np.unpackbits(packed[:, 2:6], axis=1, bitorder="little") << 4)
            restored = (codes.astype(np.int16) + low) * scale
            expected = quants.dequantize(packed, types[kind.upper()])
            assert np.array_equal(restored.astype(np.float32), expected), kind
            codes = (codes if bits == 8 else codes & 15).reshape(values.shape)
            again = fi.weights.repack(codes, "plain", "gguf_body", shape=values.shape, bits=bits, type=kind)
            assert again.tobytes() == body.tobytes()


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
def test_gguf_to_mlx(kind: str, tmp_path: Path) -> None:
    """The words that mlx makes of a GGUF file are those that the blocks move to."""
    core, gguf = module("mlx.core"), module("gguf")
    quantize = module("gguf.quants").quantize
    path = str(tmp_path / "model.gguf")
    values = np.random.default_rng(3).standard_normal((8, 128)).astype(np.float32)
    blocks = quantize(values, gguf.GGMLQuantizationType[kind.upper()])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("a.weight", blocks, raw_dtype=gguf.GGMLQuantizationType[kind.upper()])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    head, size, bits = {"q4_0": (2, 18, 4), "q4_1": (4, 20, 4), "q8_0": (2, 34, 8)}[kind]
    body = np.ascontiguousarray(blocks.reshape(-1, size)[:, head:])
    got = fi.weights.repack(body, "gguf_body", "mlx", shape=values.shape, bits=bits, type=kind, group_size=32)
    assert got.tobytes() == np.array(core.load(path)["a.weight"]).tobytes()


#: Types of GGUF: what a block begins and ends with so that a restored value is the code, or what a table has for it;
#: where the parts of codes are, as offset, bits and how far they are shifted; and what a code of 0 is.
GGUF_BLOCKS: dict[str, tuple[int, dict[int, bytes], list[tuple[int, int, int]], Any]] = {
    "q2_k": (84, {0: b"\x01" * 16, 80: b"\x00\x3c\x00\x00"}, [(16, 2, 0)], 0),
    "q3_k": (110, {96: b"\x11" * 8 + b"\xaa" * 4 + b"\x00\x3c"}, [(32, 2, 0), (0, 1, 2)], -4),
    "q4_k": (144, {0: b"\x00\x3c\x00\x00" + b"\x01" * 4 + b"\x00" * 4 + b"\x01" * 4}, [(16, 4, 0)], 0),
    "q5_k": (176, {0: b"\x00\x3c\x00\x00" + b"\x01" * 4 + b"\x00" * 4 + b"\x01" * 4}, [(48, 4, 0), (16, 1, 4)], 0),
    "q6_k": (210, {192: b"\x01" * 16 + b"\x00\x3c"}, [(0, 4, 0), (128, 2, 4)], -32),
    "q5_0": (22, {0: b"\x00\x3c"}, [(6, 4, 0), (2, 1, 4)], -16),
    "tq2_0": (66, {64: b"\x00\x3c"}, [(0, 2, 0)], -1),
    "iq4_nl": (18, {0: b"\x00\x3c"}, [(2, 4, 0)], "IQ4_NL"),
    "iq4_xs": (136, {0: b"\x00\x3c\xaa\xaa\x11\x11\x11\x11"}, [(8, 4, 0)], "IQ4_NL"),
    # A scale of E4M3 that is 1 once it is halved.
    "nvfp4": (36, {0: b"\x40" * 4}, [(4, 4, 0)], "NVFP4"),
}


@pytest.mark.parametrize("kind", GGUF_BLOCKS)
def test_parts_of_gguf_blocks(kind: str) -> None:
    """Random blocks whose scales are 1: gguf-py restores the codes that are unpacked here."""
    quants, types = module("gguf.quants"), module("gguf").GGMLQuantizationType
    nbytes, fixed, parts, zero = GGUF_BLOCKS[kind]
    values = {"nvfp4": 64, "q5_0": 32, "iq4_nl": 32}.get(kind, 256)
    for rows, count in ((1, 1), (3, 2), (2, 5)):
        blocks = np.random.default_rng(rows).integers(0, 256, (rows * count, nbytes), dtype=np.uint8)
        for start, content in fixed.items():
            blocks[:, start : start + len(content)] = np.frombuffer(content, np.uint8)
        codes = np.zeros((rows, count * values), np.uint8)
        for start, bits, shift in parts:
            body = np.ascontiguousarray(blocks[:, start : start + values * bits // 8])
            keys: dict[str, Any] = {"shape": codes.shape, "bits": bits, "type": kind}
            part = fi.weights.repack(body, "gguf_body", "plain", **keys)
            assert fi.weights.repack(part, "plain", "gguf_body", **keys).tobytes() == body.tobytes()
            codes |= part << shift
        expected = quants.dequantize(blocks, types[kind.upper()]).reshape(codes.shape)
        table = np.arange(64) + zero if isinstance(zero, int) else np.array(getattr(quants, zero).kvalues)
        assert np.array_equal(table[codes].astype(np.float32), expected), kind


@pytest.mark.parametrize("tile", [128, 64])
def test_flashinfer(tile: int) -> None:
    found = functions(
        "flashinfer",
        "utils.py",
        "srcToDstBlk16RowMap",
        "srcToDstBlk32RowMap",
        "get_shuffle_block_size",
        "get_shuffle_matrix_a_row_indices",
    )
    rows = found["get_shuffle_matrix_a_row_indices"]
    shapes = [(32, 1), (96, 7), (256, 64)]
    agree(lambda x: x[rows(x, tile)], "trtllm_shuffle_matrix_a", shapes, 8, "uint8", epilogue_tile_m=tile)
    blocked = module("torchao.prototype.mx_formats.utils").to_blocked
    name, shapes = "trtllm_shuffle_matrix_sf_a", [(128, 4), (256, 7), (384, 16)]
    agree(lambda x: blocked(x[rows(x, tile)], False), name, shapes, 8, "uint8", epilogue_tile_m=tile)


def test_flashinfer_rows_and_blocks() -> None:
    found = functions(
        "flashinfer",
        "fused_moe/core.py",
        "get_reorder_rows_for_gated_act_gemm_row_indices",
        "reorder_rows_for_gated_act_gemm",
        "convert_to_block_layout",
    )
    shapes = [(2, 1), (10, 7), (256, 64)]
    agree(found["reorder_rows_for_gated_act_gemm"], "trtllm_gated_rows", shapes, 8, "uint8")
    shapes = [(1, 128), (10, 384), (255, 256)]
    agree(lambda x: found["convert_to_block_layout"](x, 128), "trtllm_block_layout", shapes, 8, "uint8")


def test_aiter() -> None:
    torch = module("torch")
    found = functions("aiter", "ops/shuffle.py", "shuffle_weight")
    shapes = [(16, 32), (48, 96), (256, 64)]
    agree(found["shuffle_weight"], "aiter_shuffle_weight", shapes, 8, "uint8")
    agree(
        lambda x: found["shuffle_weight"](x.view(torch.float16)).view(torch.int16),
        "aiter_shuffle_weight",
        shapes,
        16,
        "uint16",
    )


def test_aiter_scales() -> None:
    torch = module("torch")
    # It leaves padding uninitialised; zeros are one of the things that may be there.
    zeroed = SimpleNamespace(empty=torch.zeros, float32=torch.float32)
    found = functions("aiter", "utility/fp4_utils.py", "e8m0_shuffle", torch=zeroed)
    agree(found["e8m0_shuffle"], "aiter_mx_scale", [(256, 8), (352, 8), (64, 4), (1, 1), (513, 17)], 8, "uint8")


def test_sglang_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = ModuleType("deep_gemm.utils")
    utils.align = lambda size, multiple: -(-size // multiple) * multiple  # type: ignore[attr-defined]
    utils.get_tma_aligned_size = lambda size, width: utils.align(size, 16 // width)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deep_gemm", ModuleType("deep_gemm"))
    monkeypatch.setitem(sys.modules, "deep_gemm.utils", utils)
    found = functions(
        "sglang",
        "srt/layers/quantization/fp8_utils.py",
        "_get_mn_major_tma_aligned_packed_ue8m0_tensor_torch_impl",
    )
    pack = found["_get_mn_major_tma_aligned_packed_ue8m0_tensor_torch_impl"]
    torch = module("torch")
    for shape in ((4, 4), (8, 8), (20, 12)):
        codes = np.random.default_rng(shape).integers(1, 255, shape).astype(np.uint8)
        exact = torch.from_numpy(np.ldexp(1.0, codes.astype(np.int32) - 127).astype(np.float32))
        packed = pack(exact)
        memory = packed.mT.contiguous().numpy().tobytes()
        assert fi.weights.repack(codes, "plain", "deep_gemm_packed_ue8m0", shape=shape).tobytes() == memory


def layout(file: str, name: str, *more: str, **around: Any) -> Any:
    class Layout:
        def __init__(self, shape: Any) -> None:
            self.initial_shape = shape

    return functions("vllm", f"{_LAYOUTS}/{file}.py", name, *more, Layout=Layout, **around)[name]


def storage(tensor: Any) -> Any:
    """The bytes of what a view shows, in the order of memory."""
    torch = module("torch")
    return torch.tensor([], dtype=tensor.dtype).set_(tensor.untyped_storage())[: tensor.numel()]


def test_triton_scales() -> None:
    blackwell = layout("blackwell_scale", "BlackwellMXScaleLayout")
    shapes = [(1, 1), (8, 128), (9, 300), (12, 128)]
    agree(lambda s: blackwell(s.shape).swizzle_data(s), "blackwell_mx_scale", shapes, 8, "uint8")
    cdna = layout("cdna4_scale", "CDNA4MXScaleLayout", "NON_K_PRESHUFFLE_BLOCK_SIZE")
    agree(lambda s: storage(cdna(s.shape).swizzle_data(s)), "cdna4_mx_scale", [(8, 32), (24, 96), (16, 64)], 8, "uint8")
    hopper = layout("hopper_scale", "HopperMXScaleLayout")
    for warps in (4, 8):
        agree(
            lambda s: hopper(s.shape, 1, warps).swizzle_data(s).contiguous(),  # noqa: B023
            "hopper_mx_scale",
            [(1, 1), (256, 2), (300, 7), (512, 64)],
            8,
            "uint8",
            num_warps=warps,
        )


@pytest.mark.parametrize("version", [2, 3])
def test_triton_values(version: int) -> None:
    torch = module("torch")
    more = ("right_shift_unsigned", "_compress_fp4", "_compress_fourth", "_pack_bits")
    hopper = layout("hopper_value", "HopperMXValueLayout", *more)

    def pack(codes: Any) -> Any:
        pairs = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
        return hopper(pairs.shape, 1, version).swizzle_data(pairs).contiguous()

    shapes = [(16, 64), (20, 130), (64, 256), (5, 10), (128, 192)]
    agree(pack, "hopper_mx_value", shapes, 4, "uint8", mma_version=version)


@pytest.mark.parametrize("bits", [4, 8])
def test_cutlass(bits: int) -> None:
    torch = module("torch")
    name = "quantized_weight_reorder_for_mixed_dtypes_linear_cutlass"
    more = "pack_int4_to_int8", "unpack_int8_to_int4"
    convert = functions("torch", "quantization/_quantized_conversions.py", name, *more)[name]
    kind = torch.int8 if bits == 8 else torch.quint4x2

    def packed(q: Any) -> Any:
        if bits == 8:
            return convert(q, kind, transpose=False)
        low = q & 15
        return convert((low[:, 0::2] | low[:, 1::2] << 4).to(torch.int8), kind, transpose=False)

    agree(packed, "cutlass_mixed_gemm", [(64, 64), (128, 192), (192, 128)], bits, "int8", signed=True)


@pytest.mark.parametrize("capability", ["avx512", "avx2", "default"])
def test_aten_int4pack(capability: str) -> None:
    torch = module("torch")
    found = torch.backends.cpu.get_cpu_capability().lower()
    if capability != found:
        pytest.skip(f"{found} here, the layout depends on the processor; ATEN_CPU_CAPABILITY={capability} chooses it")
    pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu
    shapes = [(64, 16), (128, 32), (192, 160), (16, 2), (32, 6), (48, 34), (80, 2), (112, 32)]
    agree(lambda q: pack(q, 2), "aten_int4pack_cpu", shapes, 4, capability=capability)


#: Blocks of llama.cpp: rows, type, and bits, begin and end of a field there; its begin in the result; bytes of a run.
REPACKED = [
    ("q4_Kx8", 8, "q4_K", 4, (16, 144), 128, (4, 8)),
    ("q5_Kx8", 8, "q5_K", 4, (48, 176), 384, (4, 8)),
    ("q5_Kx8", 8, "q5_K", 1, (16, 48), 128, (4, 8)),
    ("q6_Kx8", 8, "q6_K", 4, (0, 128), 144, (4, 8)),
    ("q6_Kx8", 8, "q6_K", 2, (128, 192), 1168, (4, 8)),
    ("q2_Kx8", 8, "q2_K", 2, (16, 80), 160, (8,)),
    ("iq4_nlx4", 4, "iq4_nl", 4, (2, 18), 8, (4,)),
    ("iq4_nlx8", 8, "iq4_nl", 4, (2, 18), 16, (8,)),
    ("mxfp4x4", 4, "mxfp4", 4, (1, 17), 4, (4,)),
    ("mxfp4x8", 8, "mxfp4", 4, (1, 17), 8, (8,)),
    # On RISC-V.
    ("q4_Kx16", 16, "q4_K", 4, (16, 144), 256, (1,)),
    ("q2_Kx16", 16, "q2_K", 2, (16, 80), 320, (1,)),
    ("iq4_nlx16", 16, "iq4_nl", 4, (2, 18), 32, (1,)),
    ("q8_0x4", 4, "q8_0", 8, (2, 34), 8, (4, 8)),
    ("q8_0x16", 16, "q8_0", 8, (2, 34), 32, (1,)),
    ("q4_0x4", 4, "q4_0", 4, (2, 18), 8, (4, 8)),
    ("q4_0x8", 8, "q4_0", 4, (2, 18), 16, (8,)),
    ("q4_0x16", 16, "q4_0", 4, (2, 18), 32, (1,)),
]


def of_llama_cpp(folder: Path) -> ctypes.CDLL:
    """Its functions that repack a block, compiled from its source, which the archive of llama-cpp-python has."""
    places = [Path(one, "vendor/llama.cpp/ggml") for one in sys.path]
    root = next((one for one in places if (one / "src/ggml-cpu/repack.cpp").exists()), None)
    if root is None or shutil.which("g++") is None:
        pytest.skip("there is no source of llama.cpp, or no g++")
    source = (root / "src/ggml-cpu/repack.cpp").read_text()
    code = "#define GGML_COMMON_DECL_CPP\n#include <cstdlib>\n#include <cstring>\n"
    code += '#include "ggml-common.h"\n#include "ggml.h"\n#include "ggml-backend-impl.h"\n#include "repack.h"\n'
    code += 'extern "C" void ggml_abort(const char *, int, const char *, ...) { abort(); }\n'
    for name, kind in dict.fromkeys((one[0], one[2]) for one in REPACKED):
        begin = source.index(f"static block_{name} make_block_{name}(")
        code += source[begin : source.index("\n}\n", begin) + 3]
        code += f'extern "C" int size_{name}() {{ return sizeof(block_{name}); }}\n'
        code += f'extern "C" int size_of_{name}() {{ return sizeof(block_{kind}); }}\n'
        code += f'extern "C" void {name}(block_{kind} *a, int n, block_{name} *b) {{ *b = make_block_{name}(a, n); }}\n'
    (folder / "repack.cpp").write_text(code)
    include = [f"-I{root / one}" for one in ("src", "include", "src/ggml-cpu")]
    command = ["g++", "-w", "-std=c++17", "-shared", "-fPIC", *include, "repack.cpp", "-o", "repack.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=HANG_SECONDS)
    return ctypes.CDLL(str(folder / "repack.so"))


def test_llama_cpp_repacks(tmp_path: Path) -> None:
    library = of_llama_cpp(tmp_path)
    for name, rows, kind, bits, (begin, end), at, runs in REPACKED:
        count, size = (getattr(library, f"{one}{name}")() for one in ("size_of_", "size_"))
        values = 8 * (end - begin) // bits
        for run, tiles, blocks in itertools.product(runs, (1, 3), (1, 2)):
            given = np.random.default_rng(run).integers(0, 256, (tiles, blocks, rows, count), dtype=np.uint8)
            made = np.zeros((tiles, blocks, size), np.uint8)
            for tile, block in np.ndindex(tiles, blocks):
                getattr(library, name)(given[tile, block].ctypes, run, made[tile, block].ctypes)
            expected = made[:, :, at : at + rows * (end - begin)].tobytes()
            body = given[..., begin:end].transpose(0, 2, 1, 3).tobytes()
            keys: dict[str, Any] = {"shape": (tiles * rows, blocks * values), "bits": bits}
            codes = fi.weights.repack(body, "gguf_body", "plain", type=kind.lower(), **keys)
            more = {"type": kind.lower(), "rows": rows, "interleave": run}
            got = fi.weights.repack(codes, "plain", "ggml_repacked_body", **keys, **more)
            assert got.tobytes() == expected, (name, bits, run)
            assert np.array_equal(fi.weights.repack(got, "ggml_repacked_body", "plain", **keys, **more), codes)
