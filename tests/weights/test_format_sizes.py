"""Names, parameters and sizes of formats: what the vendors call them, sizes that no list has, none, and very many.

Tests of: weights.repacking, patterns.format_table.
"""

from __future__ import annotations

import math
import random
import re
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.index.programs import conversion_program
from fastindex.patterns.format_table import PARAMETERS
from fastindex.weights.repack_plans import repack_plan
from tests.cases import strategies
from tests.oracles import format_places
from tests.weights.test_repacking import CASES, IDS, codes_of, stored

#: The vendors' names of parameters, and their defaults.
SIGNATURES: dict[str, dict[str, Any]] = {
    "awq": {"packer": None},
    "awq_gemv_fast": {"interleave": 4, "kstride": 64},
    "gptq": {"packer": None},
    "packed_bytes": {"dimension": 1, "first": "low"},
    "onnx_matmul_nbits": {"block_size": 32},
    "nncf": {},
    "tflite": {},
    "coreml": {},
    "openvino": {},
    "modelopt": {},
    "quanto": {},
    "hqq": {},
    "torchao_uintx": {},
    "exllama": {},
    "bnb_nf4_cpu": {},
    "sparse_24_metadata": {},
    "marlin": {"activation_bits": 16},
    "marlin_scales": {"grouped": None},
    "marlin_zero_points": {"activation_bits": 16},
    "marlin_24_values": {},
    "pack_quantized": {"packed_dim": 1, "dense": True},
    "tinygemm": {"inner_k_tiles": 8},
    "blocked_scales": {"block": (128, 4)},
    "trtllm_scales_8x4": {},
    "deep_gemm_packed_ue8m0": {},
    "blackwell_mx_scale": {},
    "hopper_mx_scale": {"num_warps": 8},
    "hopper_mx_value": {"mma_version": 3},
    "cdna4_mx_scale": {},
    "aiter_mx_scale": {},
    "blackwell_mx4_value_shuffled": {"block_k": 128, "block_n": 256},
    "trtllm_shuffle_matrix_a": {"epilogue_tile_m": 128},
    "trtllm_gated_rows": {},
    "trtllm_block_layout": {"block_k": 128},
    "trtllm_shuffle_matrix_sf_a": {"epilogue_tile_m": 128},
    "aiter_shuffle_weight": {"layout": (16, 16)},
    "mxfp6": {},
    "nunchaku": {"precision": "int4"},
    "nunchaku_scales": {},
    "nvfp4": {},
    "bnb_nf4": {"blocksize": 64},
    "bnb_fp4": {"blocksize": 64},
    "mlx": {"group_size": 64},
    "gguf_body": {"type": "q4_0"},
    "gguf_q4_k_body": {},
    "gguf_q6_k_low": {},
    "gguf_q6_k_high": {},
    "ggml_q4_0_repacked_body": {"rows": 4, "interleave": 4},
    "ggml_q8_0_repacked_body": {"rows": 4, "interleave": 4},
    "ggml_repacked_body": {"type": "q4_k", "rows": 8, "interleave": 8},
    "col32": {},
    "col4_4r2_8c": {},
    "col32_2r_4r4": {},
    "fractal_nz": {"c0": None},
    "tenstorrent_tile": {"tile": (32, 32), "face": (16, 16)},
    "vnni": {"factor": None},
    "vllm_paged_key": {"x": None},
    "vllm_paged_value": {},
    "aten_int4pack_cpu": {"capability": "avx2"},
    "cutlass_mixed_gemm": {"sm": 80},
    "onednn": {"tag": None},
}


def test_names_parameters_and_defaults() -> None:
    assert {one["name"]: one["parameters"] for one in fi.weights.formats() if one["refused"] is None} == SIGNATURES


def packed_or_error(codes: Any, name: str, bits: int, parameters: dict[str, Any]) -> tuple[Any, str]:
    try:
        return fi.weights.repack(codes, "plain", name, shape=codes.shape, bits=bits, **parameters), ""
    except fi.FastIndexError as error:
        return None, str(error)


def refused(error: str, name: str, shape: tuple[int, ...]) -> bool:
    """Whether an error names a dimension of this shape and what it is no multiple of."""
    found = re.search(r"takes (\w) in multiples of (\d+).*, got \1=(\d+)", error)
    letters = next(one["dimensions"] for one in fi.weights.formats() if one["name"] == name)
    return (
        found is not None
        and shape[letters.index(found[1])] == int(found[3])
        and int(found[3]) % int(found[2]) != 0
        and name in error
    )


@pytest.mark.parametrize("seed", strategies.rotating_seeds(6))
@pytest.mark.parametrize(("name", "bits", "parameters", "shapes"), CASES, ids=IDS)
def test_sizes_at_random_are_right_or_refused_with_the_rule(
    name: str, bits: int, parameters: dict[str, Any], shapes: list[tuple[int, ...]], seed: int
) -> None:
    rng = random.Random(seed)
    everything = {**PARAMETERS.get(name, {}), **parameters}
    for _ in range(2):
        start = list(rng.choice(shapes))
        for d in range(len(start)):
            # What the listed sizes are multiples of, and what they are not.
            start[d] = rng.choice((start[d], rng.randint(1, 2 * start[d]), start[d] * rng.choice((1, 2, 3)), 1))
            while math.prod(start) > 20000:
                start[d] = max(start[d] // 2, 1)
        shape = tuple(start)
        codes = codes_of(shape, bits)
        got, error = packed_or_error(codes, name, bits, parameters)
        if got is None:
            assert refused(error, name, shape), (shape, error)
            continue
        assert got.tobytes() == format_places.packed(name, stored(codes, name, bits, everything), bits, everything), (
            shape
        )
        assert np.array_equal(fi.weights.repack(got, name, "plain", shape=shape, bits=bits, **parameters), codes), shape


#: What parameters may be, besides what the cases have.
PARAMETER_VALUES: dict[str, dict[str, list[Any]]] = {
    "awq_gemv_fast": {"kstride": [32, 64, 96, 128, 160]},
    "tinygemm": {"inner_k_tiles": [2, 4, 8]},
    "hopper_mx_scale": {"num_warps": [1, 2, 4, 8, 16]},
    "hopper_mx_value": {"mma_version": [2, 3]},
    "blackwell_mx4_value_shuffled": {"block_k": [2, 64, 96, 128, 256], "block_n": [1, 8, 48, 128]},
    "trtllm_shuffle_matrix_a": {"epilogue_tile_m": [1, 16, 64, 96, 128, 192, 256]},
    "trtllm_shuffle_matrix_sf_a": {"epilogue_tile_m": [1, 16, 64, 96, 128, 192, 256]},
    "trtllm_block_layout": {"block_k": [1, 3, 32, 64, 128]},
    "aiter_shuffle_weight": {"layout": [(16, 16), (32, 16), (16, 32), (32, 32), (4, 64), (3, 16)]},
    "bnb_nf4": {"blocksize": [64, 4096]},
    "bnb_fp4": {"blocksize": [64, 4096]},
    "mlx": {"group_size": [16, 32, 64, 128]},
    "ggml_q4_0_repacked_body": {"rows": [1, 2, 4, 8, 16], "interleave": [1, 2, 4, 8, 16]},
    "ggml_q8_0_repacked_body": {"rows": [1, 2, 4, 8, 16], "interleave": [1, 2, 4, 8, 16, 32]},
    "ggml_repacked_body": {"rows": [1, 2, 4, 8, 16], "interleave": [1, 2, 4, 8, 16]},
    "packed_bytes": {"dimension": [0, 1], "first": ["low", "high"]},
    "onnx_matmul_nbits": {"block_size": [16, 32, 64, 128, 256]},
    "cutlass_mixed_gemm": {"sm": [75, 80, 86, 89, 90, 120, 121]},
    "fractal_nz": {"c0": [1, 8, 16, 24, 32, 64]},
    "tenstorrent_tile": {"tile": [(32, 32), (16, 32), (4, 12)], "face": [(16, 16), (16, 32), (1, 4), (4, 2)]},
    "vnni": {"factor": [1, 2, 3, 4, 8]},
    "vllm_paged_key": {"x": [1, 2, 4, 5, 8, 16]},
    "pack_quantized": {"packed_dim": [0, 1], "dense": [True, False]},
    "marlin_zero_points": {"activation_bits": [8, 16]},
}
#: Bits of elements of any width.
WIDTHS = [8, 16, 32, 64]


def of_any_width(name: str) -> bool:
    return None in next(one["bits"] for one in fi.weights.formats() if one["name"] == name)


@pytest.mark.parametrize("seed", strategies.rotating_seeds(6))
@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_at_random_are_right_or_refused_with_the_rule(name: str, seed: int) -> None:
    rng = random.Random(seed)
    cases = [case for case in CASES if case[0] == name]
    for _ in range(3):
        _, bits, parameters, shapes = rng.choice(cases)
        parameters = parameters | {k: rng.choice(values) for k, values in PARAMETER_VALUES.get(name, {}).items()}
        bits = rng.choice(WIDTHS) if of_any_width(name) and bits >= 8 else bits
        start = list(rng.choice(shapes))
        multiples = [1, 2, 3, 4, 16, *(v for v in parameters.values() if isinstance(v, int) and 0 < v < 300)]
        for d in range(len(start)):
            start[d] = rng.choice((start[d], rng.choice(multiples) * rng.randint(1, 4), rng.randint(1, 40)))
            while math.prod(start) > 1500:
                start[d] = max(start[d] // 2, 1)
        shape = tuple(start)
        rng_bits = np.random.default_rng(seed)
        codes = rng_bits.integers(0, (1 << bits) - 1, shape, np.uint64, endpoint=True).astype(f"u{-(-bits // 8)}")
        got, error = packed_or_error(codes, name, bits, parameters)
        everything = {**PARAMETERS.get(name, {}), **parameters}
        if got is None:
            assert refused(error, name, shape) or refused_parameter(error, name, parameters), (shape, error)
            continue
        assert got.tobytes() == format_places.packed(name, stored(codes, name, bits, everything), bits, everything), (
            shape,
            bits,
            parameters,
        )
        assert np.array_equal(fi.weights.repack(got, name, "plain", shape=shape, bits=bits, **parameters), codes), shape


def refused_parameter(error: str, name: str, parameters: dict[str, Any]) -> bool:
    """Whether an error names parameters whose quotient is no whole number."""
    found = re.search(rf"{name}: (\S+) must be a whole number, got (\w+=\d+(, \w+=\d+)*)", error)
    if found is None:
        return False
    values = {k: int(v) for k, v in (one.split("=") for one in found[2].split(", "))}
    given = {f"{k}{i}": v for k, pair in parameters.items() if isinstance(pair, tuple) for i, v in enumerate(pair)}
    assert all({**parameters, **given}.get(k, v) == v for k, v in values.items())
    return not float(eval(found[1], {}, values)).is_integer()


@pytest.mark.parametrize(("name", "bits", "parameters", "shapes"), CASES, ids=IDS)
def test_no_elements(name: str, bits: int, parameters: dict[str, Any], shapes: list[tuple[int, ...]]) -> None:
    for d in range(len(shapes[0])):
        shape = (*shapes[0][:d], 0, *shapes[0][d + 1 :])
        codes = codes_of(shape, bits)
        got = fi.weights.repack(codes, "plain", name, shape=shape, bits=bits, **parameters)
        assert got.nbytes == format_places.nbytes(name, shape, bits, {**PARAMETERS.get(name, {}), **parameters})
        back = fi.weights.repack(got, name, "plain", shape=shape, bits=bits, **parameters)
        assert back.shape == shape


@pytest.mark.parametrize(("name", "bits", "parameters", "shapes"), CASES, ids=IDS)
def test_more_than_two_to_the_31_elements(
    name: str, bits: int, parameters: dict[str, Any], shapes: list[tuple[int, ...]]
) -> None:
    """Where single elements go, by the numbers alone; Python's integers in and out."""
    everything = {**PARAMETERS.get(name, {}), **parameters}
    for d in range(len(shapes[0])):
        more = -(-(2**33) // math.prod(shapes[0])) | 1
        shape = (*shapes[0][:d], shapes[0][d] * more, *shapes[0][d + 1 :])
        plan = repack_plan("plain", name, shape, bits, tuple(sorted(parameters.items())))
        plain, packed = (end.side for end in plan.ends)
        program = conversion_program(plain, packed)
        row = plan.ends[1].row
        assert row is not None
        rng = random.Random(d)
        for index in [tuple(size - 1 for size in shape), *(tuple(map(rng.randrange, shape)) for _ in range(20))]:
            flat = 0
            for at, size in zip(index, shape, strict=True):
                flat = flat * size + at
            place = format_places.DEFINITIONS[name](index, shape, bits, everything)
            for b in range(bits):
                by_bits = plain.element_bits == 1
                slots, holds = program.evaluate((flat * (-(-bits // 8) * 8) + b if by_bits else flat,))
                assert holds
                got = slots[0] * packed.element_bits + (0 if by_bits else b)
                if row.order:
                    unit, at = divmod(got // row.order_bits, len(row.order))
                    got = (unit * len(row.order) + row.order[at]) * row.order_bits + got % row.order_bits
                assert got == (place + b if isinstance(place, int) else place[b]), (shape, index)
