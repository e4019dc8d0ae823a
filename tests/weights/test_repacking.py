"""Named formats against independent definitions, both ways, at several sizes, padded ones included.

Tests of: weights.repacking, weights.repack_plans, weights.repack_sides, weights.repack_arguments,
patterns.format_table, patterns.format_rows, patterns.known_names, patterns.named_formats.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.patterns.format_table import PARAMETERS
from fastindex.patterns.known_names import known_name
from tests.child_process import in_its_own_process
from tests.oracles import format_places

Shape = tuple[int, ...]

#: Format, bits, parameters, and at least three shapes each.
CASES: list[tuple[str, int, dict[str, Any], list[Shape]]] = [
    ("awq", 4, {}, [(1, 8), (5, 16), (13, 40)]),
    ("awq", 8, {"packer": "vllm"}, [(1, 4), (5, 16), (13, 36)]),
    *(("awq", bits, {"packer": "gptqmodel"}, [(1, 1), (5, 41), (13, 36)]) for bits in (2, 3, 5, 6, 7, 8)),
    *(("awq", bits, {"packer": "auto_round"}, [(1, 32), (5, 96), (13, 64)]) for bits in (2, 3, 5, 6, 7, 8)),
    ("awq_gemv_fast", 4, {}, [(4, 64), (8, 128), (12, 192)]),
    ("awq_gemv_fast", 4, {"kstride": 96}, [(4, 96), (8, 192), (12, 96)]),
    ("gptq", 4, {}, [(8, 3), (24, 7), (40, 5), (13, 3)]),
    ("gptq", 2, {}, [(16, 3), (32, 7), (48, 5), (13, 3)]),
    ("gptq", 8, {}, [(4, 3), (24, 7), (40, 5), (13, 3)]),
    ("gptq", 3, {}, [(32, 1), (32, 7), (96, 5)]),
    *(("gptq", bits, {"packer": "auto_round"}, [(32, 1), (32, 7), (96, 5)]) for bits in (5, 6, 7)),
    ("marlin", 4, {}, [(16, 64), (32, 192), (48, 128)]),
    ("marlin", 8, {}, [(16, 64), (32, 192), (48, 128)]),
    ("marlin", 4, {"activation_bits": 8}, [(32, 64), (64, 192), (96, 128)]),
    ("marlin", 8, {"activation_bits": 8}, [(32, 64), (64, 192), (96, 128)]),
    ("marlin_scales", 16, {}, [(2, 64), (3, 128), (7, 320), (1, 96)]),
    ("marlin_scales", 16, {"grouped": True}, [(1, 64), (3, 128), (7, 320)]),
    ("marlin_scales", 16, {"grouped": False}, [(1, 32), (1, 96), (3, 64)]),
    ("marlin_zero_points", 4, {}, [(1, 64), (3, 128), (5, 192)]),
    ("marlin_zero_points", 8, {}, [(1, 64), (3, 128), (5, 192)]),
    ("marlin_zero_points", 4, {"activation_bits": 8}, [(1, 64), (3, 128), (5, 192)]),
    ("marlin_zero_points", 8, {"activation_bits": 8}, [(1, 64), (3, 128), (5, 192)]),
    ("marlin_24_values", 4, {}, [(16, 64), (32, 192), (48, 128)]),
    ("marlin_24_values", 8, {}, [(16, 64), (32, 192), (48, 128)]),
    *(
        ("pack_quantized", bits, {"packed_dim": d}, [(1, 1), (3, 32), (5, 41), (37, 6)])
        for bits in range(1, 9)
        for d in (0, 1)
    ),
    *(
        ("pack_quantized", bits, {"packed_dim": d, "dense": False}, [(1, 1), (3, 32), (5, 41), (37, 6)])
        for bits in (3, 5, 6, 7)
        for d in (0, 1)
    ),
    ("tinygemm", 4, {}, [(8, 128), (16, 256), (13, 128)]),
    ("tinygemm", 4, {"inner_k_tiles": 2}, [(8, 32), (24, 96), (7, 64)]),
    ("tinygemm", 4, {"inner_k_tiles": 4}, [(8, 64), (24, 192), (7, 64)]),
    ("aten_int4pack_cpu", 4, {}, [(32, 3), (64, 16), (96, 10), (16, 4), (48, 6), (112, 2)]),
    ("aten_int4pack_cpu", 4, {"capability": "default"}, [(32, 3), (64, 16), (96, 10), (16, 4), (48, 6), (112, 2)]),
    ("aten_int4pack_cpu", 4, {"capability": "avx512"}, [(64, 3), (192, 10), (16, 4), (48, 6), (80, 2), (112, 2)]),
    ("aten_int4pack_cpu", 4, {"capability": "last"}, [(16, 3), (48, 16)]),
    ("cutlass_mixed_gemm", 8, {}, [(64, 64), (128, 64), (64, 192)]),
    ("cutlass_mixed_gemm", 4, {}, [(64, 64), (128, 64), (64, 192)]),
    *(("cutlass_mixed_gemm", 4, {"sm": sm}, [(64, 64), (128, 64), (64, 192)]) for sm in (75, 89, 120)),
    *(("mlx", bits, {"group_size": 32}, [(1, 32), (3, 64), (5, 96)]) for bits in range(2, 9)),
    *(
        ("packed_bytes", bits, {"dimension": d, "first": first}, [(8, 8), (16, 24), (40, 16)])
        for bits in (1, 2, 4)
        for d in (0, 1)
        for first in ("low", "high")
    ),
    *(("onnx_matmul_nbits", bits, {}, [(32, 3), (40, 5), (70, 2)]) for bits in (2, 4, 8)),
    ("onnx_matmul_nbits", 4, {"block_size": 16}, [(16, 3), (40, 5), (70, 2)]),
    ("nncf", 4, {}, [(1, 2), (3, 5), (4, 8)]),
    *(("tflite", bits, {}, [(1, 2), (3, 5), (4, 8)]) for bits in (2, 4)),
    *(("coreml", bits, {}, [(1, 2), (3, 5), (4, 8)]) for bits in (1, 2, 3, 4, 6, 8)),
    *(("openvino", bits, {}, [(1, 2), (3, 5), (4, 8), (7, 3, 2)]) for bits in (1, 2, 3, 4, 6)),
    ("modelopt", 4, {}, [(2, 1), (6, 5), (8, 16)]),
    *(("quanto", bits, {}, [(1, 4), (5, 3), (8, 4), (7, 16)]) for bits in (2, 4)),
    *(("hqq", bits, {}, [(8, 1), (16, 5), (64, 40)]) for bits in (1, 2, 4, 8)),
    ("hqq", 3, {}, [(10, 1), (16, 5), (64, 40), (3, 2)]),
    *(("torchao_uintx", bits, {}, [(1, 8), (3, 40), (5, 64)]) for bits in (1, 2, 4)),
    ("exllama", 4, {}, [(8, 3), (24, 7), (40, 5)]),
    ("bnb_nf4_cpu", 4, {}, [(32, 2), (64, 6), (96, 10)]),
    *(("sparse_24_metadata", bits, {}, [(32, 2), (64, 6), (96, 4)]) for bits in (16, 32)),
    *((name, 4, {}, [(1,), (64,), (3, 5), (7, 64)]) for name in ("bnb_nf4", "bnb_fp4")),
    ("mxfp6", 6, {}, [(1, 4), (3, 16), (5, 40)]),
    ("nunchaku", 4, {}, [(128, 128), (256, 128), (128, 384)]),
    ("nunchaku", 4, {"precision": "fp4"}, [(128, 128), (256, 128), (128, 384)]),
    ("nunchaku", 8, {}, [(128, 64), (256, 64), (128, 192)]),
    ("nunchaku_scales", 16, {}, [(128, 1), (256, 7), (384, 10)]),
    ("nunchaku_scales", 8, {}, [(128, 4), (256, 12), (384, 20)]),
    ("nvfp4", 4, {}, [(1, 2), (3, 16), (5, 42)]),
    ("blocked_scales", 8, {}, [(128, 4), (1, 1), (300, 7), (256, 12)]),
    ("trtllm_scales_8x4", 8, {}, [(8, 4), (1, 1), (19, 7)]),
    ("deep_gemm_packed_ue8m0", 8, {}, [(4, 4), (1, 1), (19, 7)]),
    ("blackwell_mx_scale", 8, {}, [(8, 128), (3, 1), (9, 130), (12, 128)]),
    ("hopper_mx_scale", 8, {"num_warps": 4}, [(128, 2), (1, 1), (130, 5)]),
    ("hopper_mx_scale", 8, {}, [(256, 2), (300, 7), (512, 4)]),
    ("hopper_mx_value", 4, {}, [(16, 64), (32, 64), (48, 192), (5, 10), (20, 130)]),
    ("hopper_mx_value", 4, {"mma_version": 2}, [(16, 64), (32, 64), (48, 192), (5, 10), (20, 130)]),
    ("cdna4_mx_scale", 8, {}, [(8, 32), (24, 64), (16, 96)]),
    ("aiter_mx_scale", 8, {}, [(256, 8), (64, 4), (352, 8), (1, 17)]),
    ("blackwell_mx4_value_shuffled", 4, {}, [(256, 256), (3, 5), (300, 260)]),
    ("blackwell_mx4_value_shuffled", 4, {"block_k": 96, "block_n": 128}, [(96, 128), (3, 5), (130, 90)]),
    ("trtllm_shuffle_matrix_a", 8, {}, [(32, 1), (64, 7), (96, 16)]),
    ("trtllm_shuffle_matrix_a", 8, {"epilogue_tile_m": 64}, [(16, 1), (48, 7), (96, 16)]),
    ("trtllm_gated_rows", 8, {}, [(2, 1), (10, 7), (64, 16)]),
    ("trtllm_block_layout", 8, {}, [(1, 128), (5, 256), (7, 384)]),
    ("trtllm_shuffle_matrix_sf_a", 8, {}, [(128, 4), (256, 7), (128, 9)]),
    ("trtllm_shuffle_matrix_sf_a", 8, {"epilogue_tile_m": 64}, [(128, 4), (256, 7), (128, 9)]),
    ("aiter_shuffle_weight", 8, {}, [(16, 32), (48, 64), (32, 96)]),
    ("aiter_shuffle_weight", 16, {}, [(16, 32), (48, 64), (32, 96)]),
    ("aiter_shuffle_weight", 4, {}, [(16, 64), (48, 128), (32, 192)]),
    ("gguf_body", 4, {}, [(1, 32), (3, 64), (5, 96)]),
    ("gguf_body", 8, {"type": "q8_0"}, [(1, 32), (3, 64), (5, 96)]),
    *(("gguf_body", 4, {"type": kind}, [(1, 256), (3, 256), (2, 512)]) for kind in ("iq4_xs", "q4_k", "q5_k", "q6_k")),
    *(("gguf_body", 2, {"type": kind}, [(1, 256), (3, 256), (2, 512)]) for kind in ("q2_k", "q3_k", "q6_k", "tq2_0")),
    *(("gguf_body", 1, {"type": kind}, [(1, 256), (3, 256), (2, 512)]) for kind in ("q3_k", "q5_k")),
    ("gguf_body", 4, {"type": "nvfp4"}, [(1, 64), (3, 128), (5, 192)]),
    ("gguf_body", 1, {"type": "q5_0"}, [(1, 32), (3, 64), (5, 96)]),
    ("gguf_body", 2, {"type": "q2_0"}, [(1, 64), (3, 128), (5, 192)]),
    ("gguf_body", 1, {"type": "q1_0"}, [(1, 128), (3, 256), (5, 384)]),
    ("gguf_body", 8, {"type": "q8_1"}, [(1, 32), (3, 64), (5, 96)]),
    ("gguf_body", 8, {"type": "q8_k"}, [(1, 256), (3, 512)]),
    ("gguf_q4_k_body", 4, {}, [(1, 256), (3, 256), (2, 512)]),
    ("gguf_q6_k_low", 4, {}, [(1, 256), (3, 256), (2, 512)]),
    ("gguf_q6_k_high", 2, {}, [(1, 256), (3, 256), (2, 512)]),
    ("ggml_q4_0_repacked_body", 4, {}, [(4, 32), (8, 96), (12, 64)]),
    ("ggml_q4_0_repacked_body", 4, {"interleave": 8}, [(4, 32), (8, 96), (12, 64)]),
    ("ggml_q4_0_repacked_body", 4, {"rows": 8, "interleave": 8}, [(8, 32), (16, 96), (24, 64)]),
    ("ggml_q8_0_repacked_body", 8, {}, [(4, 32), (8, 96), (12, 64)]),
    ("ggml_q8_0_repacked_body", 8, {"rows": 8, "interleave": 8}, [(8, 32), (16, 96), (24, 64)]),
    *(("ggml_repacked_body", 4, {"type": kind}, [(8, 256), (16, 512)]) for kind in ("q4_k", "q5_k", "q6_k")),
    *(("ggml_repacked_body", 2, {"type": kind}, [(8, 256), (16, 512)]) for kind in ("q2_k", "q6_k")),
    ("ggml_repacked_body", 1, {"type": "q5_k", "interleave": 4}, [(8, 256), (16, 512)]),
    ("ggml_repacked_body", 4, {"type": "iq4_nl", "rows": 4, "interleave": 4}, [(4, 32), (8, 96), (12, 64)]),
    ("ggml_repacked_body", 4, {"type": "mxfp4"}, [(8, 32), (16, 96), (24, 64)]),
    ("ggml_repacked_body", 4, {"type": "q4_0", "rows": 16, "interleave": 1}, [(16, 32), (32, 96)]),
    ("ggml_repacked_body", 8, {"type": "q8_0", "rows": 16, "interleave": 1}, [(16, 32), (32, 96)]),
    ("ggml_repacked_body", 1, {"type": "q1_0", "rows": 4, "interleave": 4}, [(4, 128), (12, 384)]),
    ("ggml_repacked_body", 1, {"type": "q1_0", "rows": 4}, [(8, 256)]),
    ("col32", 8, {}, [(1, 32), (7, 40), (64, 64)]),
    ("col4_4r2_8c", 8, {}, [(8, 32), (7, 40), (64, 64)]),
    ("col32_2r_4r4", 8, {}, [(32, 32), (7, 40), (64, 64)]),
    *(("fractal_nz", bits, {}, [(16, 256 // bits), (7, 40), (33, 17)]) for bits in (4, 8, 16, 32)),
    ("fractal_nz", 8, {"c0": 16}, [(16, 32), (7, 40), (33, 17)]),
    ("tenstorrent_tile", 16, {}, [(32, 32), (7, 40), (33, 65)]),
    ("tenstorrent_tile", 32, {"tile": (16, 32), "face": (8, 16)}, [(32, 32), (7, 40), (33, 65)]),
    ("vnni", 16, {}, [(2, 1), (7, 5), (32, 16)]),
    ("vnni", 8, {}, [(4, 1), (7, 5), (32, 16)]),
    ("vnni", 8, {"factor": 2}, [(4, 1), (7, 5), (32, 16)]),
    ("vllm_paged_key", 16, {}, [(1, 1, 1, 8), (2, 3, 4, 16), (3, 16, 2, 24)]),
    ("vllm_paged_key", 8, {}, [(1, 1, 1, 16), (2, 3, 4, 16), (3, 16, 2, 48)]),
    ("vllm_paged_key", 32, {}, [(1, 1, 1, 4), (2, 3, 4, 16), (3, 16, 2, 24)]),
    ("vllm_paged_value", 16, {}, [(1, 1, 1, 8), (2, 3, 4, 16), (3, 16, 2, 5)]),
    ("onednn", 32, {"tag": "nChw16c"}, [(1, 16, 1, 1), (2, 5, 3, 4), (3, 33, 2, 2)]),
    ("onednn", 8, {"tag": "aBcd32b"}, [(1, 32, 1, 1), (2, 5, 3, 4), (3, 33, 2, 2)]),
    ("onednn", 16, {"tag": "OIhw16i16o"}, [(16, 16, 1, 1), (5, 20, 3, 1), (33, 17, 1, 2)]),
    ("onednn", 8, {"tag": "OIhw4i16o4i"}, [(16, 16, 1, 1), (5, 20, 3, 1), (33, 17, 1, 2)]),
    ("onednn", 8, {"tag": "BA16a64b4a"}, [(64, 64), (3, 70), (65, 130)]),
    ("onednn", 16, {"tag": "BA16a64b2a"}, [(32, 64), (3, 70), (65, 130)]),
]
IDS = [f"{name}-{bits}{''.join(f'-{v}' for v in parameters.values())}" for name, bits, parameters, _ in CASES]


def codes_of(shape: Shape, bits: int) -> Any:
    rng = np.random.default_rng([bits, *shape])
    return rng.integers(0, 1 << bits, shape, dtype=np.uint64).astype(f"u{-(-bits // 8) if bits < 24 else 4}")


def stored(codes: Any, name: str, bits: int, parameters: dict[str, Any]) -> Any:
    """Codes as they are stored: where that is two's complement, the top bit of unsigned codes is flipped."""
    if name.removeprefix("ggml_q4_0_") == "repacked_body" or (name[:4], parameters.get("type")) == ("ggml", "q4_0"):
        return codes ^ np.uint8(8)
    if name in ("tflite", "modelopt") or parameters.get("precision", name) in ("nunchaku", "int4"):
        return codes ^ np.uint8(1 << bits - 1)
    is_q8 = name == "ggml_q8_0_repacked_body" or parameters.get("type") in ("q8_0", "q8_1", "q8_k")
    return codes ^ np.uint8(128) if is_q8 else codes


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.parametrize(("name", "bits", "parameters", "shapes"), CASES, ids=IDS)
def test_against_the_definition(name: str, bits: int, parameters: dict[str, Any], shapes: list[Shape]) -> None:
    everything = {**PARAMETERS.get(name, {}), **parameters}
    for shape in shapes:
        codes = codes_of(shape, bits)
        got = fi.weights.repack(codes, "plain", name, shape=shape, bits=bits, **parameters)
        assert got.dtype == np.uint8
        assert got.tobytes() == format_places.packed(name, stored(codes, name, bits, everything), bits, everything), (
            shape
        )
        back = fi.weights.repack(got, name, "plain", shape=shape, bits=bits, **parameters)
        assert back.shape == shape
        assert np.array_equal(back, codes), shape
        again = np.full_like(got, 0xA5)
        assert (
            fi.weights.repack(
                codes.tobytes() if bits <= 8 else codes, "plain", name, shape=shape, bits=bits, out=again, **parameters
            )
            is again
        )
        assert np.array_equal(again, got)


def test_every_name_has_a_definition() -> None:
    listed = {one["name"] for one in fi.weights.formats() if one["refused"] is None}
    assert listed == set(format_places.DEFINITIONS) == {name for name, *_ in CASES}


PAIRS = [
    ("awq", "marlin", (32, 128), 4),
    ("awq", "gptq", (32, 128), 4),
    ("gptq", "marlin", (32, 128), 8),
    ("gptq", "pack_quantized", (32, 128), 3),
    ("pack_quantized", "mlx", (32, 128), 3),
    ("gguf_body", "ggml_q4_0_repacked_body", (32, 128), 4),
    ("ggml_q4_0_repacked_body", "gguf_body", (32, 128), 4),
    ("hopper_mx_value", "nvfp4", (32, 128), 4),
    ("bnb_nf4", "bnb_nf4", (32, 128), 4),
    ("blocked_scales", "trtllm_scales_8x4", (32, 128), 8),
    ("pack_quantized", "awq", (128, 32), 4),
]


@pytest.mark.parametrize(("first", "last", "shape", "bits"), PAIRS)
def test_one_move_is_two_through_the_plain_array(first: str, last: str, shape: Shape, bits: int) -> None:
    codes = codes_of(shape, bits)
    buffer = fi.weights.repack(codes, "plain", first, shape=shape, bits=bits)
    got = fi.weights.repack(buffer, first, last, shape=shape, bits=bits)
    # Formats that name their dimensions in another order are of the transposed array.
    letters = {one["name"]: one.get("dimensions") for one in fi.weights.formats()}
    turned = len(set(letters[first]) & set(letters[last])) < 2 and letters[first][0] != "K" and letters[last][0] == "K"
    turned = turned or (letters[first][0] == "K") != (letters[last][0] == "K")
    plain = codes.T.copy() if turned else codes
    assert np.array_equal(got, fi.weights.repack(plain, "plain", last, shape=plain.shape, bits=bits))


#: From a format of two's complement to formats that pad.
PADDED = [
    ("tinygemm", (3, 128), {}),
    ("pack_quantized", (4, 128), {"packed_dim": 0}),
    ("blackwell_mx4_value_shuffled", (4, 32), {}),
    ("hopper_mx_value", (4, 96), {"mma_version": 2}),
]


@pytest.mark.parametrize(("last", "shape", "parameters"), PADDED)
def test_padding_is_not_flipped(last: str, shape: Shape, parameters: dict[str, Any]) -> None:
    codes = codes_of(shape, 4)
    buffer = fi.weights.repack(codes, "plain", "ggml_q4_0_repacked_body", shape=shape, rows=1, interleave=8)
    own = {"rows": 1, "interleave": 8, **parameters}
    got = fi.weights.repack(buffer, "ggml_q4_0_repacked_body", last, shape=shape, **own)
    plain = codes if last != "blackwell_mx4_value_shuffled" else codes.T.copy()
    assert np.array_equal(got, fi.weights.repack(plain, "plain", last, shape=plain.shape, **parameters))
    assert np.array_equal(fi.weights.repack(got, last, "ggml_q4_0_repacked_body", shape=plain.shape, **own), buffer)


def test_dimensions_of_a_tag_are_those_of_the_other_format_in_order() -> None:
    keys = codes_of((2, 3, 5, 16), 16)
    buffer = fi.weights.repack(keys, "plain", "vllm_paged_key", shape=keys.shape)
    got = fi.weights.repack(buffer, "vllm_paged_key", "onednn", shape=keys.shape, bits=16, tag="abcd")
    assert got.tobytes() == keys.tobytes()
    assert np.array_equal(
        fi.weights.repack(got, "onednn", "vllm_paged_key", shape=keys.shape, bits=16, tag="abcd"), buffer
    )


def test_rows_of_bytes_have_the_width_that_their_number_tells() -> None:
    row = np.arange(40, dtype=np.uint8)
    tag = {"shape": (5, 8), "tag": "Ab4a"}
    expected = fi.weights.repack(row.reshape(5, 8), "plain", "onednn", **tag)
    assert np.array_equal(fi.weights.repack(row, "plain", "onednn", **tag), expected)
    assert np.array_equal(fi.weights.repack(row.tobytes(), "plain", "onednn", **tag), expected)
    out = np.empty(40, np.uint8)
    assert np.array_equal(fi.weights.repack(expected, "onednn", "plain", **tag, out=out), row)


def test_twos_complement() -> None:
    values = np.arange(-8, 8, dtype=np.int8).reshape(2, 8)
    offset = (values.astype(np.int16) + 8).astype(np.uint8)
    got = fi.weights.repack(values, "plain", "pack_quantized", shape=(2, 8))
    assert np.array_equal(got, fi.weights.repack(offset, "plain", "pack_quantized", shape=(2, 8)))
    out = np.empty((2, 8), np.int8)
    assert np.array_equal(fi.weights.repack(got, "pack_quantized", "plain", shape=(2, 8), out=out), values)
    # Padding stays 0: it is not flipped.
    assert fi.weights.repack(values[:, :3].copy(), "plain", "pack_quantized", shape=(2, 3)).tolist() == [
        16,
        2,
        0,
        0,
        152,
        10,
        0,
        0,
    ]


#: Formats that store a value of 8 bits as the value plus 128.
INTEGERS: list[tuple[str, dict[str, Any]]] = [
    *(("awq", {"packer": one}) for one in ("vllm", "gptqmodel", "auto_round")),
    *((one, {}) for one in ("gptq", "marlin", "marlin_24_values", "pack_quantized", "cutlass_mixed_gemm", "mlx")),
]


@pytest.mark.parametrize(("name", "parameters"), INTEGERS)
def test_twos_complement_of_eight_bits_by_every_way(name: str, parameters: dict[str, Any]) -> None:
    """GGUF's Q8_0 and int8 hold values, the others codes: values plus 128. Straight, by way of plain, and back."""
    shape = (128, 64)
    values = np.arange(-128, 128, dtype=np.int8).repeat(32).reshape(shape)
    body = values.tobytes()
    codes = (values.astype(np.int16) + 128).astype(np.uint8)
    assert fi.weights.repack(values, "plain", "gguf_body", shape=shape, bits=8, type="q8_0").tobytes() == body
    assert fi.weights.repack(codes, "plain", "gguf_body", shape=shape, bits=8, type="q8_0").tobytes() == body
    # M by K, as GGUF has it, or K by N.
    turned = format_letters(name)[0] == "K"
    own = codes.T.copy() if turned else codes
    expected = format_places.packed(name, own, 8, {**PARAMETERS.get(name, {}), **parameters})
    got = fi.weights.repack(body, "gguf_body", name, shape=shape, bits=8, type="q8_0", **parameters)
    assert got.tobytes() == expected
    for plain in (own, (own ^ np.uint8(128)).view(np.int8)):
        assert fi.weights.repack(plain, "plain", name, shape=own.shape, bits=8, **parameters).tobytes() == expected
        back = fi.weights.repack(got, name, "plain", shape=own.shape, bits=8, out=np.empty_like(plain), **parameters)
        assert np.array_equal(back, plain)
    back = fi.weights.repack(got, name, "gguf_body", shape=own.shape, bits=8, type="q8_0", **parameters)
    assert back.tobytes() == body


def format_letters(name: str) -> tuple[str, ...]:
    return next(one["dimensions"] for one in fi.weights.formats() if one["name"] == name)


def test_q8_0_is_what_mlx_loads() -> None:
    """The words that `mlx.core.load` (0.32.4) makes of a GGUF file with one Q8_0 tensor of these values."""
    values = np.tile(np.array([-128, -1, 0, 127], np.int8), 16).reshape(1, 64)
    got = fi.weights.repack(values.tobytes(), "gguf_body", "mlx", shape=(1, 64), bits=8, type="q8_0")
    assert got.view(np.uint32).tolist() == [0xFF807F00] * 16


#: The words that `pack_to_int32` makes of codes 0, 1, ... modulo 2**bits: by version 0.20.0, and by 0.17.1.
WORDS = {
    3: ([0x88FAC688, 0], [0x08FAC688, 2]),
    5: ([0x8A418820, 0x292839], [0x0A418820, 0xA4A0E6]),
    6: ([0x440C2040, 0xA2481C61, 0], [0x040C2040, 0x9207185, 0xA]),
    7: ([0x40608080, 0x880E1828, 0x284], [0x00608080, 0xE18284, 0x28488]),
}


@pytest.mark.parametrize("bits", WORDS)
def test_versions_of_compressed_tensors(bits: int) -> None:
    codes = (np.arange(11) % (1 << bits)).astype(np.uint8).reshape(1, 11)
    for dense, words in zip((True, False), WORDS[bits], strict=True):
        got = fi.weights.repack(codes, "plain", "pack_quantized", shape=codes.shape, bits=bits, dense=dense)
        assert got.view(np.uint32).tolist() == words
        assert np.array_equal(
            fi.weights.repack(got, "pack_quantized", "plain", shape=codes.shape, bits=bits, dense=dense), codes
        )
    assert np.array_equal(
        got, fi.weights.repack(codes, "plain", "pack_quantized", shape=(1, 11), bits=bits, dense=False)
    )


def test_another_width_is_named() -> None:
    codes = np.zeros((64, 64), np.uint8)
    words = fi.weights.repack(codes, "plain", "mlx", bits=8).view(np.uint32)
    with pytest.raises(fi.FastIndexError, match=r"takes 2048 bytes \(4096 bytes with bits=8: mlx"):
        fi.weights.repack(words, "mlx", "plain", shape=(64, 64))
    with pytest.raises(fi.FastIndexError, match=r"its shape is \(64, 128\) \(4096 bytes with bits=8: mlx"):
        fi.weights.repack(words.reshape(64, 16), "mlx", "plain", shape=(64, 64))
    with pytest.raises(fi.FastIndexError, match=r"marlin has 8 bits, too: bits=8"):
        fi.weights.repack(codes + np.uint8(16), "plain", "marlin")


def test_a_size_of_the_other_version_is_named() -> None:
    new, old = (
        fi.weights.repack(np.zeros((2, 64), np.uint8), "plain", "pack_quantized", shape=(2, 64), bits=3, dense=dense)
        for dense in (True, False)
    )
    with pytest.raises(
        fi.FastIndexError, match=r"takes 48 bytes \(56 bytes with dense=False: .* up to 0.17.1\), .* has 56"
    ):
        fi.weights.repack(old, "pack_quantized", "plain", shape=(2, 64), bits=3)
    with pytest.raises(fi.FastIndexError, match=r"takes 56 bytes \(48 bytes with dense=True: .* 0.18.0 and later\)"):
        fi.weights.repack(new, "pack_quantized", "mlx", shape=(2, 64), bits=3, dense=False)
    with pytest.raises(fi.FastIndexError, match=r"takes 48 bytes, the buffer has 55$"):
        fi.weights.repack(old[:-1], "pack_quantized", "plain", shape=(2, 64), bits=3)


def test_three_layouts_of_awq_with_8_bits() -> None:
    """How eight codes lie as `awq_pack` (vLLM 0.33.0), `pack_awq` (GPTQModel 7.7.0) and `pack_awq_bitstream`
    (auto-round 0.16.1) pack them; none is meant where no packer is named."""
    codes = np.arange(32, dtype=np.uint8).reshape(1, 32)
    for packer, first in (
        ("vllm", "0002010304060507"),
        ("gptqmodel", "0001020304050607"),
        ("auto_round", "0002040601030507"),
    ):
        got = fi.weights.repack(codes, "plain", "awq", shape=(1, 32), bits=8, packer=packer)
        assert got[:8].tobytes().hex() == first
    for source, destination in (("plain", "awq"), ("awq", "plain"), ("awq", "gptq"), ("gptq", "awq")):
        with pytest.raises(
            fi.FastIndexError, match="8 bits is supported with packer='vllm'; packer='gptqmodel'; packer="
        ):
            fi.weights.repack(codes, source, destination, shape=(1, 32), bits=8)


#: The words that `pack_bitstream` of auto-round 0.16.1 makes along K of the codes 0 to 31, 63 or 127.
GPTQ_WORDS = {
    5: [0x8A418820, 0xC5A92839, 0xCA307B9A, 0x38BDAB49, 0xFFBBCDEB],
    6: [0x440C2040, 0xA2481C61, 0x3CE34C2C, 0x544D2450, 0xA6585D65, 0x7DE75C6D],
    7: [0x40608080, 0x880E1828, 0x68C16284, 0x88901E38, 0x58A94264, 0x668C982E, 0x3E78E9C3],
}


@pytest.mark.parametrize("bits", GPTQ_WORDS)
def test_gptq_of_auto_round(bits: int) -> None:
    codes = np.arange(32, dtype=np.uint8).reshape(32, 1)
    got = fi.weights.repack(codes, "plain", "gptq", shape=(32, 1), bits=bits, packer="auto_round")
    assert got.view(np.uint32).tolist() == GPTQ_WORDS[bits]
    with pytest.raises(fi.FastIndexError, match="packer='auto_round', got packer=None"):
        fi.weights.repack(codes, "plain", "gptq", shape=(32, 1), bits=bits)


@pytest.mark.parametrize(("kind", "c0"), [("u1", 32), ("i1", 32), ("u2", 16), ("f2", 16), ("f4", 8), ("i4", 8)])
def test_fractals_are_32_bytes_wide(kind: str, c0: int) -> None:
    """CANN, aclnnNpuFormatCast: C0 is 32 bytes over the size of the type; both functions say the same."""
    array = np.arange(48 * 96).reshape(48, 96).astype(kind)
    expected = array.reshape(3, 16, 96 // c0, c0).transpose(2, 0, 1, 3)
    got = fi.weights.repack(array, "plain", "fractal_nz", shape=array.shape)
    assert got.tobytes() == expected.tobytes()
    name = {"u1": "u8", "i1": "s8", "u2": "u16", "f2": "f16", "f4": "f32", "i4": "s32"}[kind]
    shape = fi.Shape(name, (48, 96), fi.layouts.named_layout("NZ", f"{name}[48,96]"))
    assert fi.pack(array, shape).tobytes() == got.tobytes()
    assert fi.layouts.layout_name(shape) == "NZ"


def test_fractals_of_half_bytes() -> None:
    """C0 is 64; int8 is two's complement, which is kept, and uint8 the bits as they are."""
    import ml_dtypes

    codes = codes_of((40, 100), 4)
    padded = np.zeros((48, 128), np.uint8)
    padded[:40, :100] = codes
    flat = padded.reshape(3, 16, 2, 64).transpose(2, 0, 1, 3).reshape(-1)
    expected = (flat[0::2] | flat[1::2] << 4).tobytes()
    values = ((codes ^ 8).astype(np.int8) - 8).astype(np.int8)
    for array in (codes, values, values.astype(ml_dtypes.int4), codes.astype(ml_dtypes.uint4)):
        assert fi.weights.repack(array, "plain", "fractal_nz", shape=codes.shape, bits=4).tobytes() == expected
    assert (
        fi.weights.repack(values.astype(ml_dtypes.int4), "plain", "fractal_nz", shape=codes.shape).tobytes() == expected
    )
    buffer = np.frombuffer(expected, np.uint8)
    for plain in (codes, values):
        back = fi.weights.repack(buffer, "fractal_nz", "plain", shape=codes.shape, bits=4, out=np.empty_like(plain))
        assert np.array_equal(back, plain)
    for name, array in (("s4", values.astype(ml_dtypes.int4)), ("u4", codes.astype(ml_dtypes.uint4))):
        layout = fi.layouts.named_layout("NZ", f"{name}[40,100]{{1,0:E(4)}}")
        assert str(layout) == "{0,1:T(64,16)(64,1)E(4)}"
        assert fi.pack(array, fi.Shape(name, (40, 100), layout)).tobytes() == expected
    with pytest.raises(fi.FastIndexError, match="elements of either sign"):
        fi.weights.repack(np.zeros(32 * 64 // 2, np.uint8), "awq", "fractal_nz", shape=(32, 64), bits=4)
    # Codes of fp4 have no other value there.
    packed = fi.weights.repack(codes, "plain", "nvfp4", shape=codes.shape)
    assert fi.weights.repack(packed, "nvfp4", "fractal_nz", shape=codes.shape, bits=4).tobytes() == expected


#: Formats whose vendors store a matrix of words: bits, parameters, sizes, dimensions of the matrix, and its dtype.
MATRICES: list[tuple[str, int, dict[str, Any], Shape, Shape, str]] = [
    ("awq", 4, {}, (48, 64), (48, 8), "i4"),
    ("awq", 8, {"packer": "vllm"}, (48, 64), (48, 16), "i4"),
    ("gptq", 4, {}, (64, 24), (8, 24), "i4"),
    ("gptq", 3, {}, (64, 24), (6, 24), "i4"),
    ("pack_quantized", 4, {}, (24, 64), (24, 8), "i4"),
    ("pack_quantized", 4, {"packed_dim": 0}, (64, 24), (8, 24), "i4"),
    ("pack_quantized", 3, {}, (24, 64), (24, 6), "i4"),
    ("pack_quantized", 3, {"dense": False}, (24, 70), (24, 7), "i4"),
    ("mlx", 4, {}, (24, 128), (24, 16), "u4"),
    ("nvfp4", 4, {}, (24, 64), (24, 32), "u1"),
    # Rows of words hold 16 of K.
    ("marlin", 4, {}, (48, 64), (3, 128), "i4"),
    ("marlin", 8, {}, (48, 64), (3, 256), "i4"),
    ("aten_int4pack_cpu", 4, {}, (64, 32), (64, 16), "u1"),
    # Elements in the order of the vendor, of the same dimensions.
    ("marlin_scales", 16, {}, (3, 64), (3, 64), "f2"),
    ("trtllm_gated_rows", 16, {}, (12, 8), (12, 8), "u2"),
    ("trtllm_shuffle_matrix_a", 8, {}, (64, 32), (64, 32), "u1"),
    ("aiter_shuffle_weight", 8, {}, (32, 64), (32, 64), "u1"),
    # Words of 16 bits, four of N in a row.
    ("awq_gemv_fast", 4, {}, (12, 64), (3, 64), "i2"),
]


@pytest.mark.parametrize(("name", "bits", "parameters", "shape", "matrix", "kind"), MATRICES)
def test_the_dimensions_of_a_matrix_of_words_tell_the_shape(
    name: str, bits: int, parameters: dict[str, Any], shape: Shape, matrix: Shape, kind: str
) -> None:
    codes = codes_of(shape, bits)
    flat = fi.weights.repack(codes, "plain", name, bits=bits, **parameters)
    words = flat.view(kind).reshape(matrix)
    keys: dict[str, Any] = {"bits": bits, **parameters}
    assert np.array_equal(fi.weights.repack(words, name, "plain", **keys), codes)
    assert np.array_equal(fi.weights.repack(np.stack([words] * 2), name, "plain", **keys), np.stack([codes] * 2))
    assert np.array_equal(fi.weights.repack(words, name, "plain", shape=shape, **keys), codes)
    # As many bytes, of other dimensions.
    wrong = shape[0] // 2, shape[1] * 2
    if name in ("awq", "nvfp4", "trtllm_gated_rows") or (name, bits, len(parameters)) == ("pack_quantized", 4, 0):
        words_of_wrong = rf"matrix of \({wrong[0]}, {matrix[1] * 2}\) words.*its shape is \({shape[0]}, {shape[1]}\)"
        with pytest.raises(fi.FastIndexError, match=words_of_wrong):
            fi.weights.repack(words, name, "plain", shape=wrong, **keys)
    assert fi.weights.repack(flat, name, "plain", shape=shape, **keys).shape == shape
    with pytest.raises(fi.FastIndexError, match="give shape="):
        fi.weights.repack(flat, name, "plain", **keys)


def test_a_shape_that_the_matrix_contradicts() -> None:
    """An AWQ weight of 4096 by 11008, with the shape that PyTorch's layer has."""
    words = np.zeros((4096, 1376), np.int32)
    with pytest.raises(
        fi.FastIndexError, match=r"\(11008, 512\) words .* \(4096, 1376\): its shape is \(4096, 11008\)"
    ):
        fi.weights.repack(words, "awq", "marlin", shape=(11008, 4096))
    assert fi.weights.repack(words, "awq", "plain").shape == (4096, 11008)
    # Where to write is memory of any dimensions.
    out = np.empty_like(words)
    assert fi.weights.repack(words, "awq", "marlin", out=out) is out
    with pytest.raises(fi.FastIndexError, match="give shape="):
        fi.weights.repack(np.zeros((128, 4), np.uint8), "blocked_scales", "plain")


def test_int4_holds_values() -> None:
    import ml_dtypes

    values = np.arange(-8, 8, dtype=np.int8).reshape(2, 8)
    expected = fi.weights.repack((values + 8).astype(np.uint8), "plain", "awq", shape=(2, 8))
    assert np.array_equal(fi.weights.repack(values.astype(ml_dtypes.int4), "plain", "awq", shape=(2, 8)), expected)


def test_elements_of_either_sign_are_no_codes() -> None:
    """A format that keeps int8 as it is does not say what codes of another mean there."""
    body = np.zeros((64, 64), np.int8)
    for name in ("vnni", "col32", "trtllm_gated_rows"):
        assert not fi.weights.repack(body, "plain", name, shape=body.shape).any()
        with pytest.raises(fi.FastIndexError, match="elements of either sign"):
            fi.weights.repack(body, "gguf_body", name, shape=body.shape, bits=8, type="q8_0")
        with pytest.raises(fi.FastIndexError, match="elements of either sign"):
            fi.weights.repack(body, name, "gguf_body", shape=body.shape, bits=8, type="q8_0")


def test_several_arrays_one_after_the_other() -> None:
    codes = codes_of((3, 32, 64), 4)
    got = fi.weights.repack(codes, "plain", "marlin", shape=codes.shape)
    each = [fi.weights.repack(one, "plain", "marlin", shape=one.shape) for one in codes]
    assert np.array_equal(got, np.concatenate(each))
    assert np.array_equal(fi.weights.repack(got, "marlin", "plain", shape=codes.shape), codes)


def test_order_of_rows_is_an_argument() -> None:
    codes, order = codes_of((32, 64), 4), np.random.default_rng(1).permutation(32)
    got = fi.weights.repack(codes, "plain", "marlin", shape=(32, 64), order=order)
    assert np.array_equal(got, fi.weights.repack(codes[order], "plain", "marlin", shape=(32, 64)))
    with pytest.raises(fi.FastIndexError, match="permutation of the 32 rows"):
        fi.weights.repack(codes, "plain", "marlin", shape=(32, 64), order=[0] * 32)
    with pytest.raises(fi.FastIndexError, match="order= is for"):
        fi.weights.repack(codes, "plain", "awq", shape=(32, 64), order=order)


@pytest.mark.parametrize("tag", ["nChw16c", "aBcd32b", "OIhw16i16o", "OIhw4i16o4i", "BA16a64b4a", "BA16a64b2a", "NHWC"])
def test_onednn_is_named_layout(tag: str) -> None:
    shape = (20, 70) if tag.startswith("BA") else (20, 33, 3, 2)
    array = np.arange(math.prod(shape), dtype=np.uint16).reshape(shape)
    layout = fi.layouts.named_layout(tag)
    got = fi.weights.repack(array, "plain", "onednn", shape=shape, tag=tag)
    assert got.tobytes() == fi.pack(array, fi.Shape("u16", shape, layout)).tobytes()
    assert np.array_equal(fi.weights.repack(got, "onednn", "plain", shape=shape, bits=16, tag=tag), array)


def test_errors() -> None:
    codes = np.zeros((32, 64), np.uint8)
    for name, words in [
        ("gptq_zero_points", "z - 1"),
        ("marlin_nvfp4_scales", "S0E5M3"),
        ("tenstorrent_bfp8", "exponent"),
    ]:
        with pytest.raises(fi.UnsupportedError, match=words):
            fi.weights.repack(codes, "plain", name, shape=(32, 64))
    for kwargs, words in [
        ({"destination": "marlinn"}, "did you mean marlin"),
        ({"destination": "MatMul4Bits"}, "no format is called 'MatMul4Bits'"),
        ({"destination": ""}, "no format is called ''"),
        ({"destination": "Q8_0"}, "its codes are gguf_body with type='q8_0'"),
        ({"destination": "marlin", "shape": (32, 60)}, "N in multiples of 64"),
        ({"destination": "marlin", "bits": 3}, "4, 8 bits"),
        ({"destination": "marlin", "activation_bits": 4}, "activation_bits=16"),
        ({"destination": "marlin", "interleave": 4}, "parameter interleave"),
        ({"destination": "tinygemm", "shape": (8, 100)}, r"multiples of 128 \(16\*inner_k_tiles\)"),
        ({"destination": "awq", "shape": (32, 72)}, "32, 72"),
        ({"destination": "awq", "shape": (-32, 64)}, "below 0"),
        ({"destination": "awq", "shape": (32,)}, "dimensions K, N"),
        ({"destination": "pack_quantized", "packed_dim": -1}, "packed_dim must be one of 0, 1, got -1"),
        ({"destination": "vnni", "factor": 0}, "factor must be above 0"),
        ({"destination": "plain", "bits": 12}, "more than 8 bits have 16, 32, 64, got 12"),
        ({"destination": "blackwell_mx4_value_shuffled", "block_k": 33}, "block_k/2 must be a whole number"),
    ]:
        arguments: dict[str, Any] = {"shape": (32, 64), **kwargs}
        with pytest.raises(fi.FastIndexError, match=words):
            fi.weights.repack(codes, "plain", **arguments)
    with pytest.raises(fi.FastIndexError, match="takes 1024 bytes"):
        fi.weights.repack(np.zeros(1023, np.uint8), "awq", "marlin", shape=(32, 64))
    with pytest.raises(fi.ArgumentTypeError, match="sequence of sizes"):
        fi.weights.repack(codes, "plain", "awq", shape="32x64")  # type: ignore[arg-type]


def test_names_as_people_type_them() -> None:
    """Each name in any case, with hyphens or none: one format, never another."""
    meant: dict[str, str] = {}
    for one in fi.weights.formats():
        known = one["name"]
        for text in {known.upper(), known.replace("_", "-"), known.replace("_", "")}:
            assert meant.setdefault(text.lower(), known) == known
            if one["refused"] is None:
                assert known_name(text) == known
            else:
                with pytest.raises(fi.UnsupportedError, match=f"^{known} is not a permutation"):
                    known_name(text)
    codes = np.arange(64, dtype=np.uint8).reshape(2, 32) % 16
    for text, known in (("AWQ", "awq"), ("MatMulNBits", "onnx_matmul_nbits"), ("pack_to_int32", "pack_quantized")):
        found = fi.weights.repack(codes, "Plain", text, shape=(2, 32))
        assert found.tobytes() == fi.weights.repack(codes, "plain", known, shape=(2, 32)).tobytes()
        assert fi.weights.layout_of(text, (2, 32)) == fi.weights.layout_of(known, (2, 32))
        assert fi.weights.check(codes, found, text) is None


def test_last_blocks_of_other_dimensions() -> None:
    codes = np.zeros((48, 64), np.uint8)
    for given, out in ((codes.T, None), (codes[:, 1:], None), (codes, codes.reshape(-1)[:1536]), (codes, codes[:32])):
        with pytest.raises(fi.FastIndexError, match=r"has the dimensions|elements|does not overlap"):
            fi.weights.repack(given, "plain", "aten_int4pack_cpu", shape=(48, 64), out=out)
    with pytest.raises(fi.FastIndexError, match="has the dimensions"):
        fi.weights.repack(codes[:32, :48], "aten_int4pack_cpu", "plain", shape=(48, 64))
    for move in (
        lambda: fi.weights.check(codes, bytes(1536), "aten_int4pack_cpu"),
        lambda: fi.weights.repack(codes[:, :32].copy(), "aten_int4pack_cpu", "nvfp4"),
    ):
        with pytest.raises(fi.UnsupportedError, match="32 in whole blocks and 16 in a last one"):
            move()


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("Int4TilePackedTo4dTensor", "tinygemm"),
        ("_convert_weight_to_int4pack_for_cpu", "aten_int4pack_cpu"),
        ("swizzle_blockscale", "blocked_scales"),
        ("128x4", "blocked_scales"),
        ("HopperMXValueLayout", "hopper_mx_value"),
        ("CDNA4_SCALE", "cdna4_mx_scale"),
        ("shuffleMatrixA", "trtllm_shuffle_matrix_a"),
        ("NZ", "fractal_nz"),
        ("LiteRT", "tflite"),
        ("gptq-v2", "gptq"),
        ("modelopt_fp4", "nvfp4"),
        ("llm-awq", "awq_gemv_fast"),
    ],
)
def test_names_of_vendors(text: str, known: str) -> None:
    assert known_name(text) == known


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Q4_K_M", "gguf_body with type='q4_k'"),
        ("gguf_q8_0", "gguf_body with type='q8_0'"),
        ("Q4_0_8_8", "ggml_repacked_body with type='q4_0', rows=8, interleave=8"),
        ("nChw16c", "onednn with tag='nChw16c'"),
        ("MXFP4", "nvfp4 in compressed-tensors and torchao, and gguf_body with type='mxfp4'"),
        ("awq_marlin", "is awq"),
        ("compressed-tensors", "pack_quantized or nvfp4"),
        ("IQ2_XXS", "hold indices into a codebook"),
        ("QuIP-Sharp", "indices into codebooks"),
        ("LLM.int8", "'plain' with bits=8"),
        ("BitNet", "quanto with bits=2"),
        ("EETQ", "cutlass_mixed_gemm with bits=8"),
        ("TensorRT-LLM", "quant_method in its config.json"),
        ("TensorRT", "convert the checkpoint before that"),
        ("DeepSpeed", "quant_method in its config.json"),
        ("OmniQuant", "a method to choose values"),
        ("EXL2", "as q_groups says"),
        ("exllamav3", "overlap those of the next one"),
        ("AWQ-GEMV", r"pack_quantized, of \[N, K\]"),
        ("marlni", "did you mean marlin"),
        ("nothing", r"formats\(\) lists them"),
    ],
)
def test_names_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(fi.FastIndexError, match=hint):
        known_name(text)


def test_zero_sizes() -> None:
    assert fi.weights.repack(np.zeros((0, 64), np.uint8), "plain", "awq", shape=(0, 64)).shape == (0,)
    assert fi.weights.repack(np.zeros(0, np.uint8), "blocked_scales", "plain", shape=(0, 4)).shape == (0, 4)


# What callers hand in


def test_integers_of_any_kind() -> None:
    codes = codes_of((32, 128), 3)
    expected = fi.weights.repack(codes, "plain", "pack_quantized", shape=(32, 128), bits=3, packed_dim=0)
    shape = [np.int32(32), np.uint8(128)]
    got = fi.weights.repack(codes, "plain", "pack_quantized", shape=shape, bits=np.int64(3), packed_dim=np.int8(0))  # type: ignore[arg-type]
    assert np.array_equal(got, expected)
    for pair in ([32, 16], np.array([32, 16]), (np.int64(32), 16)):
        got = fi.weights.repack(codes, "plain", "aiter_shuffle_weight", shape=codes.shape, bits=8, layout=pair)
        assert np.array_equal(
            got, fi.weights.repack(codes, "plain", "aiter_shuffle_weight", shape=(32, 128), layout=(32, 16))
        )


def test_views_that_are_not_contiguous() -> None:
    wide = codes_of((64, 32), 4)
    expected = fi.weights.repack(wide[::2].copy(), "plain", "awq", shape=(32, 32))
    for view in (wide[::2], memoryview(wide)[::2], np.asfortranarray(wide[::2])):
        assert np.array_equal(fi.weights.repack(view, "plain", "awq", shape=(32, 32)), expected)
    with pytest.raises(fi.ArgumentTypeError, match="sequence of sizes"):
        fi.weights.repack(wide, "plain", "awq", shape=(True, 2048))


#: Formats of codes: whether int8 is two's complement for them, with `bits`.
SIGNS = [("awq", False), ("gptq", False), ("nvfp4", False), ("pack_quantized", True), ("cutlass_mixed_gemm", True)]


@pytest.mark.parametrize(("name", "is_signed"), [*SIGNS, ("ggml_q4_0_repacked_body", True), ("plain", True)])
def test_codes_that_are_too_large(name: str, is_signed: bool) -> None:
    shape = (64, 64)
    for kind, least, most in ((np.uint8, 0, 15), (np.int8, -8 if is_signed else 0, 7 if is_signed else 15)):
        codes = np.random.default_rng(0).integers(least, most + 1, shape).astype(kind)
        codes[0, :2] = least, most
        if name != "plain":
            got = fi.weights.repack(codes, "plain", name, shape=shape, bits=4)
            back = fi.weights.repack(got, name, "plain", shape=shape, bits=4, out=np.empty_like(codes))
            assert np.array_equal(back, codes)
        for wrong in (most + 1, least - 1, 127):
            if not np.iinfo(kind).min <= wrong:
                continue
            bad = codes.copy()
            bad[5, 7] = wrong
            words = rf"codes of 4 bits are from {least} to {most} for {name}, the one at \(5, 7\) is {wrong}"
            with pytest.raises(fi.FastIndexError, match=words):
                fi.weights.repack(bad, "plain", name, shape=shape, bits=4)
    # All eight bits are the code.
    fi.weights.repack(np.full(shape, 255, np.uint8), "plain", "gptq", shape=shape, bits=8)
    with pytest.raises(fi.FastIndexError, match=r"from 0 to 7 .* is 8"):
        fi.weights.repack(np.full((32, 8), 8, np.uint8), "plain", "gptq", shape=(32, 8), bits=3)


@pytest.mark.parametrize(("name", "bits"), [("pack_quantized", 4), ("pack_quantized", 3), ("cutlass_mixed_gemm", 8)])
def test_twos_complement_is_the_unsigned_code_less_half(name: str, bits: int) -> None:
    """Their packers take int8 and add half the range: uint8 is what they make of it, and goes in as it is."""
    codes = codes_of((64, 64), bits)
    values = (codes.astype(np.int16) - (1 << bits - 1)).astype(np.int8)
    got = fi.weights.repack(values, "plain", name, shape=values.shape, bits=bits)
    assert np.array_equal(got, fi.weights.repack(codes, "plain", name, shape=codes.shape, bits=bits))
    # So that codes move to formats of unsigned ones as they are.
    if name == "pack_quantized":
        assert np.array_equal(
            fi.weights.repack(got, name, "gptq", shape=(64, 64), bits=bits), _gptq_of(codes.T.copy(), bits)
        )


def _gptq_of(codes: Any, bits: int) -> Any:
    return fi.weights.repack(codes, "plain", "gptq", shape=codes.shape, bits=bits)


@pytest.mark.parametrize(
    ("buffer", "name", "words"),
    [
        (np.zeros((2, 8), np.int32), "awq", "uint8 or int8; the buffer has dtype int32"),
        (np.zeros((2, 8), np.float32), "awq", "uint8 or int8; the buffer has dtype float32"),
        (np.zeros((2, 8), np.uint8), "marlin_scales", "N in multiples of 64"),
        (np.zeros((2, 8), object), "col32", "moves numbers"),
        (np.zeros((2, 8), "S1"), "col32", "moves numbers"),
        (np.zeros((8, 2), np.uint8), "awq", r"dimensions \(2, 8\), got \(8, 2\)"),
        (np.zeros((1, 2, 8), np.uint8), "awq", r"dimensions \(2, 8\), got"),
        (np.zeros(15, np.uint8), "awq", r"dimensions \(2, 8\), got \(15,\)"),
        (None, "awq", "moves numbers"),
    ],
)
def test_wrong_arrays(buffer: Any, name: str, words: str) -> None:
    with pytest.raises((fi.FastIndexError, fi.ArgumentTypeError), match=words):
        fi.weights.repack(buffer, "plain", name, shape=(2, 8))


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("tinygemm", {"inner_k_tiles": 6}, "inner_k_tiles must be one of 2, 4, 8, got 6"),
        ("tinygemm", {"inner_k_tiles": 2.0}, "a number, text or a pair"),
        ("hopper_mx_scale", {"num_warps": 3}, "num_warps must be one of 1, 2, 4"),
        ("mlx", {"group_size": 48}, "group_size must be one of 16, 32"),
        ("marlin_scales", {"grouped": "no"}, "True or False"),
        ("awq_gemv_fast", {"kstride": 48}, "kstride/32 must be a whole number"),
        ("awq_gemv_fast", {"interleave": 2}, "interleave=4"),
        ("blocked_scales", {"block": (64, 4)}, r"block=\(128, 4\)"),
        ("blocked_scales", {"block": 128}, "2 sizes"),
        ("pack_quantized", {"packed_dim": 2}, "packed_dim must be one of 0, 1, got 2"),
        ("gguf_body", {"type": "q9"}, "type='q4_0'"),
        ("gguf_body", {"type": {}}, "a number, text or a pair"),
        ("tenstorrent_tile", {"face": (12, 16)}, "tile0/face0 must be a whole number"),
        ("ggml_q4_0_repacked_body", {"interleave": 3}, "16/interleave must be a whole number"),
        ("aiter_shuffle_weight", {"layout": (16, 4)}, "layout1/chunk must be a whole number"),
        ("onednn", {"tag": 5}, "tag="),
        ("onednn", {"tag": "nope"}, "nope"),
        ("marlin", {"bits": 4.0}, "bits must be an integer"),
        ("marlin", {"bits": True}, "bits must be an integer"),
        ("marlin", {"bits": 0}, "from 1 to 64"),
    ],
)
def test_wrong_parameters(name: str, parameters: dict[str, Any], words: str) -> None:
    codes = np.zeros((64, 768), np.uint8)
    with pytest.raises((fi.FastIndexError, fi.ArgumentTypeError), match=words):
        fi.weights.repack(codes, "plain", name, shape=codes.shape, **parameters)


def test_width_of_elements_is_that_of_the_plain_array() -> None:
    for kind in (np.uint8, np.float32, np.int64, ">u2"):
        values = np.arange(40 * 35).astype(kind).reshape(40, 35)
        got = fi.weights.repack(values, "plain", "col32", shape=values.shape)
        assert len(got) == 40 * 64 * values.dtype.itemsize
        out = np.zeros_like(values, values.dtype.newbyteorder("="))
        assert np.array_equal(fi.weights.repack(got, "col32", "plain", shape=values.shape, out=out), values)


def test_codes_in_types_of_less_than_a_byte() -> None:
    import ml_dtypes

    codes = codes_of((4, 16), 4)
    expected = fi.weights.repack(codes, "plain", "awq", shape=(4, 16))
    assert np.array_equal(fi.weights.repack(codes.astype(ml_dtypes.uint4), "plain", "awq", shape=(4, 16)), expected)
    signed = (codes.astype(np.int8) - 8).astype(ml_dtypes.int4)
    got = fi.weights.repack(signed, "plain", "pack_quantized", shape=(4, 16))
    assert np.array_equal(got, fi.weights.repack(codes, "plain", "pack_quantized", shape=(4, 16)))


@pytest.mark.in_turn(seconds=1.5)
@in_its_own_process
def test_jax_arrays() -> None:
    jnp = pytest.importorskip("jax.numpy")
    codes = codes_of((32, 128), 4)
    expected = fi.weights.repack(codes, "plain", "marlin", shape=codes.shape)
    assert np.array_equal(fi.weights.repack(jnp.asarray(codes), "plain", "marlin", shape=codes.shape), expected)
    assert np.array_equal(fi.weights.repack(jnp.asarray(expected), "marlin", "plain", shape=codes.shape), codes)
    with pytest.raises(fi.FastIndexError, match="read-only"):
        fi.weights.repack(codes, "plain", "marlin", shape=codes.shape, out=jnp.asarray(expected))


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    codes = codes_of((32, 128), 4)
    expected = fi.weights.repack(codes, "plain", "marlin", shape=codes.shape)
    out = torch.zeros(len(expected) // 4, dtype=torch.int32)
    assert fi.weights.repack(torch.from_numpy(codes), "plain", "marlin", shape=codes.shape, out=out) is out
    assert out.numpy().tobytes() == expected.tobytes()
    assert np.array_equal(fi.weights.repack(out, "marlin", "plain", shape=codes.shape), codes)


def test_lazy_arrays_are_refused() -> None:
    lazy = pytest.importorskip("dask.array").zeros((32, 64), dtype=np.uint8)
    with pytest.raises(fi.UnsupportedError, match="compute it first"):
        fi.weights.repack(lazy, "plain", "marlin", shape=(32, 64))
