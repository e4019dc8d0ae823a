"""Names of formats: what people type, and the format that they mean."""

from __future__ import annotations

import difflib
import re
from functools import lru_cache

from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.patterns.format_table import REFUSED, ROWS

#: The name of the array itself: one code per byte, or elements of their full width.
PLAIN = "plain"

# What people call a format: packages, classes and functions of vendors, separated by spaces.
_ALIASES = {
    "awq": "autoawq awq_gemm awq_exllama",
    "awq_gemv_fast": "gemv_fast llm_awq tinychat",
    "gptq": "autogptq gptq_v2 gptqmodel",
    "marlin": "gptq_marlin_repack awq_marlin_repack",
    "marlin_24_values": "marlin_24 gptq_marlin_24",
    "pack_quantized": "pack_to_int32 wna16",
    "nvfp4": "nvfp4_pack_quantized mxfp4_pack_quantized pack_fp4_to_uint8 modelopt_fp4",
    "tinygemm": "tensor_core_tiled_layout int4_tile_packed_to_4d_tensor tile_packed_to_4d convert_weight_to_int4pack",
    "aten_int4pack_cpu": "aten_int4pack convert_weight_to_int4pack_for_cpu int4_cpu_layout",
    "cutlass_mixed_gemm": "mixed_gemm fpA_intB preprocess_weights_for_mixed_gemm",
    "onnx_matmul_nbits": "matmul_nbits",
    "bnb_nf4": "nf4 bitsandbytes_nf4",
    "bnb_fp4": "bitsandbytes_fp4",
    "tflite": "litert ai_edge_quantizer",
    "coreml": "coremltools",
    "modelopt": "nvidia_modelopt",
    "quanto": "optimum_quanto",
    "nunchaku": "svdquant",
    "blocked_scales": "128x4 to_blocked swizzle_blockscale block_scale_interleave",
    "trtllm_scales_8x4": "8x4 layout_8x4",
    "deep_gemm_packed_ue8m0": "deep_gemm",
    "blackwell_mx_scale": "blackwell_scale blackwell_mx_scale_layout",
    "hopper_mx_scale": "hopper_scale hopper_mx_scale_layout",
    "hopper_mx_value": "hopper_value hopper_mx_value_layout",
    "cdna4_mx_scale": "cdna4_scale cdna4_mx_scale_layout",
    "blackwell_mx4_value_shuffled": "blackwell_mx4_value_shuffled_layout",
    "aiter_mx_scale": "aiter_scales e8m0_shuffle",
    "col4_4r2_8c": "col_turing",
    "col32_2r_4r4": "col_ampere",
    "trtllm_gated_rows": "reorder_rows_for_gated_act_gemm",
    "trtllm_block_layout": "convert_to_block_layout block_major_k",
    "trtllm_shuffle_matrix_a": "shuffle_matrix_a",
    "trtllm_shuffle_matrix_sf_a": "shuffle_matrix_sf_a",
    "aiter_shuffle_weight": "shuffle_weight",
    "fractal_nz": "nz",
    "tenstorrent_tile": "ttnn",
    "vnni": "amx",
    "quip_sharp": "quip quip#",
    "exl3": "exllamav3",
    "gguf_iq": "iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s",
    "gguf_tq1_0": "tq1_0",
    "tenstorrent_bfp8": "bfp8 bfloat8_b",
    "tenstorrent_bfp4": "bfp4 bfloat4_b",
}
# What is meant by names of several formats, of engines, of methods, or of none, separated by spaces.
_MEANINGS = {
    "its codes are nvfp4 in compressed-tensors and torchao, and gguf_body with type='mxfp4' in GGUF": "mxfp4",
    "did you mean nvfp4 or bnb_fp4": "fp4",
    "it moves GPTQ's codes of 4 bits to exllama when it loads them; its own files are exl2": "exllamav2",
    "did you mean pack_quantized, of [N, K]: the class GEMV packs in order": "awq_gemv gemv",
    "its codes are marlin, transposed; scales of nvfp4 change in value: marlin_nvfp4_scales": "nvfp4_marlin "
    "marlin_nvfp4 mxfp4_marlin marlin_mxfp4",
    "did you mean col32, col4_4r2_8c or col32_2r_4r4": "cublaslt imma int8_imma",
    "did you mean onednn with tag='nChw32c'": "nchw32 nchw_vect_c nchw_vect_c_32 chw32 kchw32",
    "did you mean fractal_nz, the order of matrices on these devices": "ascend cann ascend_npu",
    "it permutes dimensions only: use fastindex.rearrange": "nchw nhwc ohwi oihw hwio ndhwc ncdhw",
    "a checkpoint for it is awq, which the engine moves to marlin": "awq_marlin",
    "a checkpoint for it is gptq, which the engine moves to marlin": "gptq_marlin marlin_gptq",
    "did you mean bnb_nf4 or bnb_fp4": "bitsandbytes bnb bnb_4bit",
    "did you mean pack_quantized or nvfp4": "compressed_tensors llm_compressor",
    "did you mean awq or gptq, with packer='auto_round'": "auto_round",
    "did you mean onnx_matmul_nbits": "onnxruntime matmul4bits onnxruntime_genai olive",
    "did you mean packed_bytes": "int4 uint4 int4x2 uint4x2 nibbles",
    "did you mean pack_quantized, the format of compressed-tensors": "w4a16 w8a16",
    "did you mean packed_bytes with bits=1; NumPy's own packbits has first='high'": "packbits",
    "its weights are whole bytes in the order of the tensor: 'plain' with bits=8": "int_quantized float_quantized "
    "naive_quantized mxfp8_quantized int8 fp8 w8a8 smoothquant fbgemm_fp8 modelopt_fp8 mxfp8 LLM.int8 bnb_int8 mxint8 "
    "float8 e4m3 e5m2 float8_e4m3fn float8_e5m2 ptpc_fp8",
    "its elements are whole bytes in the order of the tensor: 'plain' with bits=16": "f16 bf16 fp16 float16 bfloat16",
    "which values are kept is data; sparse_24_metadata is the order of CUTLASS's indices": "sparse_bitmask "
    "sparse_24_bitmask",
    "it has FasterTransformer's kernels: did you mean cutlass_mixed_gemm with bits=8": "eetq eetq_int8",
    "did you mean quanto with bits=2, of the values plus 1, as transformers packs them": "bitnet",
    "tile_packed_to_4d is tinygemm; preshuffled codes are packed on the device": "torchao int4_weight_only "
    "int4_weight_only_config preshuffled",
    "engines and libraries have many formats; give that of the checkpoint, quant_method in its config.json": "vllm "
    "sglang tensorrt_llm trtllm transformers lmdeploy turbomind tgi deepspeed mlc mlc_llm mistral.rs candle petals "
    "optimum quark amd_quark ipex ipex_llm bigdl_llm itrex intel_neural_compressor neural_compressor fbgemm flashinfer "
    "triton_kernels faster_transformer cutlass tpu_inference jetstream maxtext qwix aqt",
    "it is a method to choose values, not an order of bits; give the format of the checkpoint, quant_method in its "
    "config.json": "omniquant quarot spinquant duquant zeroquant atom gptaq rtn",
    "its converter packs weights into a file for this runtime only; convert the checkpoint before that": "tensorrt mnn "
    "ncnn executorch xnnpack qnn snpe rknn hailo edgetpu vitis vitis_ai paddle_lite mindspore_lite directml tvm ane",
    "its order is not listed here; fastindex.weights.discover finds it from the function that packs": "bitblas ladder "
    "gptq_bitblas qserve w4a8 cutlass_w4a8 fp6_llm deepspeed_fp6 petit tmac tl1 tl2 i2_s q4f16_0 q4f16_1 q3f16_1",
    "its codes are indices into tables of values; discover finds their order from the function that packs": "flute "
    "lut_gemm squeezellm lut palettized",
}


def names() -> tuple[str, ...]:
    """Return the names of the formats in the table.

    Examples
    --------
    >>> names()[:3]
    ('awq', 'awq_gemv_fast', 'gptq')
    """
    return tuple(dict.fromkeys([*(row.name for row in ROWS), "onednn"]))


def takes_any_width(name: object) -> bool:
    """Whether a format takes elements of any whole number of bytes, so that the plain array determines the width.

    Examples
    --------
    >>> takes_any_width("col32"), takes_any_width("awq")
    (True, False)
    """
    return name in (PLAIN, "onednn") or any(row.name == name and row.bits is None for row in ROWS)


def widths_of(name: str) -> tuple[int, ...]:
    """Return the numbers of bits of a code that a format has, in ascending order.

    Examples
    --------
    >>> widths_of("gptq"), widths_of("col32")
    ((2, 3, 4, 5, 6, 7, 8), ())
    """
    return tuple(sorted({row.bits for row in ROWS if row.name == name and row.bits is not None}))


def known_name(name: str) -> str:
    """Return the name of a format as the table has it, whatever its case, hyphens and underscores.

    Raises
    ------
    UnsupportedError
        The format is known but is not a permutation of bits.
    FastIndexError
        The format is unknown.

    Examples
    --------
    >>> known_name("awq"), known_name("Pack-Quantized"), known_name("MatMulNBits")
    ('awq', 'pack_quantized', 'onnx_matmul_nbits')
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"a format must be given by its name, got {name!r}")
    found = _by_letters().get(_letters(name))
    if found is None:
        raise FastIndexError(f"no format is called {name!r}; {_hint(name)}")
    if found in REFUSED:
        raise UnsupportedError(f"{found} is not a permutation of bits: {REFUSED[found]}")
    return found


@lru_cache(maxsize=1)
def _by_letters() -> dict[str, str]:
    aliases = {_letters(alias): name for name, listed in _ALIASES.items() for alias in listed.split()}
    return aliases | {_letters(name): name for name in (PLAIN, *names(), *REFUSED)}


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _hint(name: str) -> str:
    """Return which format a name may mean, a type of GGUF, or a tag of oneDNN."""
    letters = _letters(name)
    for meaning, listed in _MEANINGS.items():
        if letters in map(_letters, listed.split()):
            return meaning
    types = {str(row.when["type"]) for row in ROWS if "type" in row.when}
    for kind in types:
        # Files of K types are called Q4_K_M; llama.cpp repacks in memory to rows by bytes, as Q4_0_8_8 or q4_K_8x8.
        found = re.fullmatch(rf"(gguf|ggml)?_?{kind}(_[sml])?(_(\d+)[_x](\d+))?", name.lower().replace("-", "_"))
        if found and found[3]:
            return f"its codes are ggml_repacked_body with type={kind!r}, rows={found[4]}, interleave={found[5]}"
        if found or letters == kind.replace("_", ""):
            return f"its codes are gguf_body with type={kind!r}"
    if re.fullmatch(r"[A-Za-z]+(\d+[a-z])+", name):
        return f"did you mean onednn with tag={name!r}"
    plain = {known: _letters(known) for known in names()}
    close = [known for known, own in plain.items() if letters and letters in own]
    close = close or [known for known, own in plain.items() if letters.startswith(own)]
    close = close or difflib.get_close_matches(name.lower(), plain, cutoff=0.8)
    return (
        f"did you mean {' or '.join(close)}"
        if close
        else "fastindex.weights.formats() lists them, and discover finds others"
    )
