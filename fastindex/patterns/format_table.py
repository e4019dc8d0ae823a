"""Named formats of quantised weights, their scales and blocked tensors: their parameters, and a row for each layout.

Rows are defined in `fastindex.patterns.format_rows`, with those that put whole codes into bytes, and those of GGUF.
"""

from __future__ import annotations

from typing import Any

from fastindex.patterns.format_rows import BYTE_ROWS, GGUF_ROWS, Row, rows_of

#: The parameters of each format, with the vendors' names and defaults.
PARAMETERS: dict[str, dict[str, Any]] = {
    "awq": {"packer": None},
    "gptq": {"packer": None},
    "packed_bytes": {"dimension": 1, "first": "low"},
    "onnx_matmul_nbits": {"block_size": 32},
    "awq_gemv_fast": {"interleave": 4, "kstride": 64},
    "marlin": {"activation_bits": 16},
    "marlin_scales": {"grouped": None},
    "marlin_zero_points": {"activation_bits": 16},
    "pack_quantized": {"packed_dim": 1, "dense": True},
    "tinygemm": {"inner_k_tiles": 8},
    "blocked_scales": {"block": (128, 4)},
    "hopper_mx_scale": {"num_warps": 8},
    "hopper_mx_value": {"mma_version": 3},
    "blackwell_mx4_value_shuffled": {"block_k": 128, "block_n": 256},
    "trtllm_shuffle_matrix_a": {"epilogue_tile_m": 128},
    "trtllm_shuffle_matrix_sf_a": {"epilogue_tile_m": 128},
    "trtllm_block_layout": {"block_k": 128},
    "aiter_shuffle_weight": {"layout": (16, 16)},
    "bnb_nf4": {"blocksize": 64},
    "bnb_fp4": {"blocksize": 64},
    "mlx": {"group_size": 64},
    "gguf_body": {"type": "q4_0"},
    "ggml_q4_0_repacked_body": {"rows": 4, "interleave": 4},
    "ggml_q8_0_repacked_body": {"rows": 4, "interleave": 4},
    "ggml_repacked_body": {"type": "q4_k", "rows": 8, "interleave": 8},
    "fractal_nz": {"c0": None},
    "tenstorrent_tile": {"tile": (32, 32), "face": (16, 16)},
    "vnni": {"factor": None},
    "vllm_paged_key": {"x": None},
    "aten_int4pack_cpu": {"capability": "avx2"},
    "cutlass_mixed_gemm": {"sm": 80},
    "nunchaku": {"precision": "int4"},
    "onednn": {"tag": None},
}

#: Defaults of parameters by the bits of an element: the number of elements in 32, 4 or 16 bytes.
BY_BITS: dict[tuple[str, str], dict[int, int]] = {
    ("fractal_nz", "c0"): {4: 64, 8: 32, 16: 16, 32: 8},
    ("vnni", "factor"): {8: 4, 16: 2, 32: 1},
    ("vllm_paged_key", "x"): {8: 16, 16: 8, 32: 4},
}

#: Formats in blocks of rows whose last block, if it has fewer, is stored in another way: the parameter that selects the
#: block, its value for the last one, and the rows of a whole block for the others.
LAST_BLOCKS = {"aten_int4pack_cpu": ("capability", "last", {"avx512": 64, "avx2": 32, "default": 32})}

#: Boolean parameters whose default is whether the array has several rows.
BY_ROWS = {"marlin_scales": "grouped"}

# Libraries that pack one format name in different ways.
_PACKERS = ("vllm", "gptqmodel", "auto_round")

#: The values that vendors' functions accept, for parameters that rows do not constrain.
VALUES: dict[tuple[str, str], tuple[Any, ...]] = {
    ("awq", "packer"): _PACKERS,
    ("gptq", "packer"): _PACKERS,
    ("pack_quantized", "packed_dim"): (0, 1),
    ("packed_bytes", "dimension"): (0, 1),
    ("packed_bytes", "first"): ("low", "high"),
    ("onnx_matmul_nbits", "block_size"): (16, 32, 64, 128, 256),
    ("tinygemm", "inner_k_tiles"): (2, 4, 8),
    ("hopper_mx_scale", "num_warps"): (1, 2, 4, 8, 16, 32),
    ("mlx", "group_size"): (16, 32, 64, 128),
}

#: Default bits of an element or a code; 4 for other formats with several widths.
DEFAULT_BITS = {"fractal_nz": 16, "vnni": 16, "vllm_paged_key": 16, "vllm_paged_value": 16, "tenstorrent_tile": 16}

#: Formats that are not permutations of bits, and the reason.
REFUSED = {
    "gptq_zero_points": "version 1 stores z - 1; subtract 1 yourself, then move the codes as 'pack_quantized'",
    "marlin_nvfp4_scales": "scales become S0E5M3 and are multiplied by a factor",
    "marlin_fp8_activations": "codes are rewritten for fp8 activations before they are laid out",
    "packed_ue8m0_from_f32": "taking the exponent of a float drops its mantissa; give the exponents to "
    "'deep_gemm_packed_ue8m0'",
    "tenstorrent_bfp8": "16 values share an exponent",
    "tenstorrent_bfp4": "16 values share an exponent",
    "gguf_tq1_0": "five digits of base 3 share a byte",
    "gguf_iq": "types IQ1 to IQ3 hold indices into a codebook, and signs; IQ4_NL and IQ4_XS are gguf_body",
    "kleidiai": "values, sums and scales are packed together",
    **dict.fromkeys(("aqlm", "vptq", "quip_sharp", "higgs"), "codes are indices into codebooks of vectors"),
    "spqr": "outliers are a sparse matrix beside the codes",
    **dict.fromkeys(("qtip", "exl3"), "a value is decoded from bits that overlap those of the next one (a trellis)"),
    "exl2": "rows have 2 to 8 bits, as q_groups says, in the order of q_perm; the loader shuffles words on the device",
    "machete": "the order is computed on the device; fastindex.weights.discover(...) finds it there",
}

#: Formats with a data-dependent order: the caller gives the positions of the rows of K as `order`.
ORDERED = ("marlin", "marlin_24_values", "gptq")

_STRADDLING = (3, 5, 6, 7)
_GPTQ_BITS = "u1[K/32,32,N,b]{3,1,2,0:T(N,*,32)E(1)}"
_VLLM, _AWQ, _GPTQ = "vLLM quant_utils.py", "AutoAWQ", "AutoGPTQ qlinear"
_MARLIN, _CT = "vLLM marlin_utils.py, marlin_utils_test.py", "compressed-tensors"
_TRITON, _TRTLLM = "triton_kernels layout_details", "FlashInfer utils.py, fused_moe/core.py"
_NUNCHAKU = "nunchaku lora/flux/packer.py"
_LT, _TORCH = "cuBLASLt cublasLtOrder_t", "PyTorch"

_SM80_ORDER = (80, 75, 86, 89, 90, 120, 121)

# A half-word of hopper_mx_value, bits 0 to 3 of four codes: three in sign order, the fourth in the remaining bits.
_HOPPER_HALF = (6, 7, 8, 15, 3, 4, 5, 12, 0, 1, 2, 9, 13, 10, 11, 14)


def _straddling_words(packed_dim: int, dense: str, loose: str) -> tuple[Row, ...]:
    """Return the rows of `pack_to_int32` whose codes do not divide a word: one stream of bits, or `count` a word."""
    return tuple(
        Row(
            "pack_quantized",
            text,
            bits,
            when={"packed_dim": packed_dim, "dense": is_dense},
            stored="offset",
            source=f"{_CT} pack_to_int32, {version}",
        )
        for bits in _STRADDLING
        for text, is_dense, version in (
            (dense, True, "0.18.0 and later"),
            (loose.format(count=32 // bits), False, "up to 0.17.1"),
        )
    )


ROWS: tuple[Row, ...] = (
    *rows_of(
        "awq",
        (4, {}, "u4[K,N/8,4,2]{2,3,1,0:E(4)}"),
        divides={"N": 8},
        stored="integers",
        source=f"{_AWQ} gemm.py, {_VLLM} awq_pack",
    ),
    *rows_of(
        "awq",
        (8, {"packer": "vllm"}, "u8[K,N/4,2,2]{2,3,1,0}"),
        divides={"N": 4},
        stored="integers",
        source=f"{_VLLM} awq_pack",
    ),
    *rows_of(
        "awq",
        (2, {"packer": "gptqmodel"}, "u2[K,N]{1,0:T(16)E(2)}"),
        (8, {"packer": "gptqmodel"}, "u8[K,N]{1,0:T(4)}"),
        *((bits, {"packer": "gptqmodel"}, "u1[K,N,b]{2,1,0:T(*,32)E(1)}") for bits in _STRADDLING),
        stored="integers",
        source="GPTQModel packing_utils.py pack_awq",
    ),
    *rows_of(
        "awq",
        (2, {"packer": "auto_round"}, "u2[K,N/8,4,2]{2,3,1,0:E(2)}"),
        (8, {"packer": "auto_round"}, "u8[K,N/8,4,2]{2,3,1,0}"),
        *((bits, {"packer": "auto_round"}, "u1[K,N/8,4,2,b]{4,2,3,1,0:E(1)}") for bits in _STRADDLING),
        divides={"N": 32},
        stored="integers",
        source="auto-round bit_packing.py pack_awq_bitstream",
    ),
    *rows_of(
        "awq_gemv_fast",
        (4, {"interleave": 4}, "u4[N/4,4,K/kstride,kstride/32,4,4,2]{4,6,5,3,1,2,0:E(4)}"),
        divides={"N": 4, "K": "kstride"},
        stored="integers",
        source=f"{_AWQ} gemv_fast.py",
    ),
    *rows_of(
        "gptq",
        (4, {}, "u4[K,N]{1,0:T(8,1)E(4)}"),
        (2, {}, "u2[K,N]{1,0:T(16,1)E(2)}"),
        (8, {}, "u8[K,N]{1,0:T(4,1)}"),
        stored="integers",
        source=_GPTQ,
    ),
    Row(
        "exllama",
        "u4[K/8,4,2,N]{1,2,3,0:E(4)}",
        4,
        divides={"K": 8},
        stored="integers",
        source="exllamav2 qdq_4.cuh shuffle_4bit_8",
    ),
    *rows_of("gptq", (3, {}, _GPTQ_BITS), divides={"K": 32}, stored="integers", source=_GPTQ),
    *rows_of(
        "gptq",
        *((bits, {"packer": "auto_round"}, _GPTQ_BITS) for bits in (5, 6, 7)),
        divides={"K": 32},
        stored="integers",
        source="auto-round bit_packing.py pack_bitstream",
    ),
    *rows_of(
        "marlin",
        (4, {"activation_bits": 16}, "u4[K/16,2,4,2,N/64,4,2,8]{1,6,3,5,2,7,4,0:E(4)}"),
        (8, {"activation_bits": 16}, "u8[K/16,2,4,2,N/64,4,2,8]{1,3,6,5,2,7,4,0}"),
        divides={"K": 16, "N": 64},
        stored="integers",
        source=_MARLIN,
    ),
    *rows_of(
        "marlin",
        (4, {"activation_bits": 8}, "u4[K/32,2,4,4,N/32,2,2,8]{1,3,6,5,2,7,4,0:E(4)}"),
        (8, {"activation_bits": 8}, "u8[K/32,2,4,4,N/32,2,2,8]{3,1,6,5,2,7,4,0}"),
        divides={"K": 32, "N": 64},
        stored="integers",
        source=_MARLIN,
    ),
    Row(
        "marlin_scales",
        "u16[G,N/64,8,8]{2,3,1,0}",
        16,
        when={"grouped": True},
        divides={"N": 64},
        source=f"{_MARLIN} marlin_permute_scales",
    ),
    Row(
        "marlin_scales",
        "u16[G,N/32,4,4,2]{4,2,3,1,0}",
        16,
        when={"grouped": False},
        divides={"N": 32},
        source=f"{_MARLIN} marlin_permute_scales",
    ),
    *rows_of(
        "marlin_zero_points",
        (4, {"activation_bits": 16}, "u4[G,N/64,4,2,8]{2,3,4,1,0:E(4)}"),
        (8, {"activation_bits": 16}, "u8[G,N/64,2,2,2,8]{3,4,2,5,1,0}"),
        (4, {"activation_bits": 8}, "u4[G,N/64,8,8]{2,3,1,0:E(4)}"),
        (8, {"activation_bits": 8}, "u8[G,N/64,8,8]{2,3,1,0}"),
        divides={"N": 64},
        stored="integers",
        source=f"{_MARLIN} marlin_zero_points",
    ),
    *rows_of(
        "marlin_24_values",
        (4, {}, "u4[K/16,2,4,2,N/64,4,2,2,4]{1,7,3,8,2,6,5,4,0:E(4)}"),
        (8, {}, "u8[K/16,2,4,2,N/64,4,2,2,4]{1,3,7,8,2,6,5,4,0}"),
        divides={"K": 16, "N": 64},
        stored="integers",
        source=f"{_CT} 0.9.4 permutations_24",
    ),
    *rows_of(
        "pack_quantized",
        (1, {"packed_dim": 1}, "u1[M,K]{1,0:T(32)E(1)}"),
        (2, {"packed_dim": 1}, "u2[M,K]{1,0:T(16)E(2)}"),
        (4, {"packed_dim": 1}, "u4[M,K]{1,0:T(8)E(4)}"),
        (8, {"packed_dim": 1}, "u8[M,K]{1,0:T(4)}"),
        stored="offset",
        source=f"{_CT} pack_to_int32",
    ),
    *_straddling_words(1, "u1[M,K,b]{2,1,0:T(*,32)E(1)}", "u1[M,K/{count},{count},b]{{3,2,1,0:T(*,32)E(1)}}"),
    *rows_of(
        "pack_quantized",
        (1, {"packed_dim": 0}, "u1[M,K]{1,0:T(32,1)E(1)}"),
        (2, {"packed_dim": 0}, "u2[M,K]{1,0:T(16,1)E(2)}"),
        (4, {"packed_dim": 0}, "u4[M,K]{1,0:T(8,1)E(4)}"),
        (8, {"packed_dim": 0}, "u8[M,K]{1,0:T(4,1)}"),
        stored="offset",
        source=f"{_CT} pack_to_int32",
    ),
    *_straddling_words(0, "u1[M,K,b]{2,0,1:T(K,*,32)E(1)}", "u1[M/{count},{count},K,b]{{3,1,2,0:T(*,32)E(1)}}"),
    Row(
        "tinygemm",
        "u4[N/8,8,K/(16 inner_k_tiles),inner_k_tiles/2,2,2,4,2]{5,4,7,3,6,1,2,0:E(4)}",
        4,
        divides={"K": "16*inner_k_tiles"},
        stored="integers",
        source=f"{_TORCH} int4mm.cu",
    ),
    *(
        Row(
            "aten_int4pack_cpu",
            text,
            4,
            when={"capability": capability},
            divides={"N": multiple},
            stored="integers",
            source=f"{_TORCH} _convert_weight_to_int4pack_for_cpu",
        )
        for capability, multiple, text in (
            ("avx512", 64, "u4[N/64,2,32,K]{1,2,3,0:E(4)}"),
            ("avx2", 32, "u4[N/32,2,16,K]{1,2,3,0:E(4)}"),
            ("default", 32, "u4[N/32,32,K]{1,2,0:E(4)}"),
            ("last", 16, "u4[N,K]{0,1:E(4)}"),
        )
    ),
    # From sm 75 to 89 one template of cutlass_extensions gives the order, mixed_gemm_B_layout.h. GPUs of sm 90, 120 and
    # 121 read the same: microsoft/onnxruntime#28978.
    *rows_of(
        "cutlass_mixed_gemm",
        *((8, {"sm": sm}, "u8[K/64,4,2,4,2,N/2,2]{2,4,3,1,6,0,5}") for sm in _SM80_ORDER),
        *((4, {"sm": sm}, "u4[K/64,2,4,4,2,N/4,4]{2,4,3,1,6,0,5:E(4)}") for sm in _SM80_ORDER),
        divides={"K": 64, "N": 64},
        stored="offset",
        source=f"{_TORCH} _quantized_conversions.py",
    ),
    *rows_of(
        "mlx",
        (2, {}, "u2[M,K]{1,0:E(2)}"),
        (4, {}, "u4[M,K]{1,0:E(4)}"),
        (8, {}, "u8[M,K]{1,0}"),
        *((bits, {}, "u1[M,K,b]{2,1,0:T(*,32)E(1)}") for bits in (3, 5, 6, 7)),
        divides={"K": "group_size"},
        stored="integers",
        source="mlx.core.quantize; of 7 bits, auto-round export_to_mlx",
    ),
    *(
        Row(name, "u4[L/2,2]{1,0:E(4)}", 4, order=(1, 0), order_bits=4, fill=fill, source="bitsandbytes quantize_4bit")
        for name, fill in (("bnb_nf4", 7), ("bnb_fp4", 0))
    ),
    Row(
        "bnb_nf4_cpu",
        "u4[N/32,2,16,K/2,2]{1,4,2,3,0:E(4)}",
        4,
        divides={"N": 32, "K": 2},
        source="bitsandbytes _convert_weight_packed_for_cpu",
    ),
    *rows_of(
        "sparse_24_metadata",
        (16, {}, "u16[M/32,2,2,8,C/2,2]{2,5,1,3,0,4}"),
        (32, {}, "u32[M/16,2,8,C/2,2]{1,4,2,0,3}"),
        divides={"M": 32, "C": 2},
        source=f"{_TORCH} _semi_structured_conversions.py",
    ),
    Row("mxfp6", "u1[M,K,b]{2,1,0:E(1)}", 6, divides={"K": 4}, source=f"{_CT} pack_fp6_to_uint8"),
    *(
        Row(
            "nunchaku",
            f"u{bits}[N/128,8,2,8,K/{256 // bits},2,4,{32 // bits}]{{7,5,2,6,3,1,4,0{':E(4)' if bits < 8 else ''}}}",
            bits,
            when={"precision": precision},
            divides={"N": 128, "K": 512 // bits},
            stored=stored,
            source=f"{_NUNCHAKU} pack_weight",
        )
        for bits, precision, stored in ((4, "int4", "signed"), (4, "fp4", "codes"), (8, "int4", "signed"))
    ),
    Row(
        "nunchaku_scales", "u16[N/128,8,2,4,2,G]{4,2,3,1,5,0}", 16, divides={"N": 128}, source=f"{_NUNCHAKU} pack_scale"
    ),
    Row(
        "nunchaku_scales",
        "u8[N/128,4,4,8,G/4,4]{5,1,2,3,4,0}",
        8,
        divides={"N": 128, "G": 4},
        source=f"{_NUNCHAKU} pack_micro_scale",
    ),
    Row("nvfp4", "u4[M,K]{1,0:E(4)}", 4, divides={"K": 2}, source=f"{_CT} pack_fp4_to_uint8"),
    Row(
        "blocked_scales",
        "u8[M/128,4,32,K/4,4]{4,1,2,3,0}",
        8,
        when={"block": (128, 4)},
        source="torchao to_blocked, cuBLAS 128x4",
    ),
    Row("trtllm_scales_8x4", "u8[M,K]{1,0:T(8,4)}", 8, source="FlashInfer layout_8x4"),
    Row("deep_gemm_packed_ue8m0", "u8[M,K]{0,1:T(4,4)(4,1)}", 8, source="SGLang fp8_kernel.py, DeepGEMM"),
    Row(
        "blackwell_mx_scale",
        "u8[K/4,4,N/128,4,32]{1,3,4,0,2}",
        8,
        pads={"K": 8},
        source=f"{_TRITON} blackwell_scale.py",
    ),
    Row(
        "hopper_mx_scale",
        "u8[N/(32 num_warps),2,num_warps,2,8,K/2,2]{3,6,4,1,5,2,0}",
        8,
        source=f"{_TRITON} hopper_scale.py",
    ),
    *rows_of(
        "hopper_mx_value",
        (4, {"mma_version": 3}, "u4[M/16,2,4,2,K/64,2,2,2,4,2]{1,7,9,6,5,8,3,4,2,0:E(4)}"),
        (4, {"mma_version": 2}, "u4[M/16,2,4,2,K/64,2,2,2,4,2]{8,9,1,5,7,6,3,4,2,0:E(4)}"),
        order=_HOPPER_HALF,
        order_bits=1,
        source=f"{_TRITON} hopper_value.py",
    ),
    Row(
        "cdna4_mx_scale",
        "u8[K/8,2,4,N/32,2,16]{4,1,5,2,0,3}",
        8,
        divides={"K": 8, "N": 32},
        source=f"{_TRITON} cdna4_scale.py",
    ),
    Row(
        "aiter_mx_scale",
        "u8[M/32,2,16,K/8,2,4]{1,4,2,5,3,0}",
        8,
        pads={"M": 256},
        source="aiter fp4_utils.py e8m0_shuffle",
    ),
    Row(
        "blackwell_mx4_value_shuffled",
        "u4[K/block_k,block_k,N/block_n,block_n]{1,3,2,0:E(4)}",
        4,
        pads={"K": 256},
        whole=("block_k/2",),
        source=f"{_TRITON} blackwell_value_shuffled.py",
    ),
    Row(
        "trtllm_shuffle_matrix_a",
        "e[M/32,8,4,K]{3,1,2,0}",
        when={"epilogue_tile_m%128": 0},
        divides={"M": 32},
        source=f"{_TRTLLM} get_shuffle_matrix_a_row_indices",
    ),
    Row(
        "trtllm_shuffle_matrix_a",
        "e[M/16,8,2,K]{3,1,2,0}",
        when={"epilogue_tile_m%128!": 0},
        divides={"M": 16},
        source=f"{_TRTLLM} get_shuffle_matrix_a_row_indices",
    ),
    Row(
        "trtllm_gated_rows",
        "e[2,M/2,K]{2,0,1}",
        divides={"M": 2},
        source=f"{_TRTLLM} reorder_rows_for_gated_act_gemm",
    ),
    Row("trtllm_block_layout", "u8[M,K]{0,1:T(block_k,1)}", 8, divides={"K": "block_k"}, source=_TRTLLM),
    Row(
        "trtllm_shuffle_matrix_sf_a",
        "u8[M/128,4,8,4,K/4,4]{5,1,2,3,4,0}",
        8,
        when={"epilogue_tile_m%128": 0},
        divides={"M": 128},
        source=f"{_TRTLLM} shuffle_matrix_sf_a",
    ),
    Row(
        "trtllm_shuffle_matrix_sf_a",
        "u8[M/128,4,2,8,2,K/4,4]{6,1,3,4,2,5,0}",
        8,
        when={"epilogue_tile_m%128!": 0},
        divides={"M": 128},
        source=f"{_TRTLLM} shuffle_matrix_sf_a",
    ),
    Row(
        "aiter_shuffle_weight",
        "u4[N,K]{1,0:T(layout0,32)E(4)}",
        4,
        divides={"N": "layout0", "K": "4*layout1"},
        whole=("4*layout1/32",),
        source="aiter ops/shuffle.py",
    ),
    Row(
        "aiter_shuffle_weight",
        "e[N,K]{1,0:T(layout0,chunk)}",
        divides={"N": "layout0", "K": "2*layout1"},
        whole=("2*layout1/chunk",),
        source="aiter ops/shuffle.py",
    ),
    *GGUF_ROWS,
    Row("col32", "e[M,N]{0,1:T(32,1)}", source=_LT),
    Row("col4_4r2_8c", "e[M/8,4,2,N/32,4,2,4]{6,1,5,4,2,0,3}", source=_LT),
    Row("col32_2r_4r4", "e[M/32,4,4,2,N/32,32]{5,3,1,2,0,4}", source=_LT),
    Row(
        "fractal_nz",
        "u4[M,N]{0,1:T(c0,16)(c0,1)E(4)}",
        4,
        stored="elements",
        source="CANN aclnnNpuFormatCast, TransdataOperation",
    ),
    Row("fractal_nz", "e[M,N]{0,1:T(c0,16)(c0,1)}", source="CANN aclnnNpuFormatCast, TransdataOperation"),
    Row(
        "tenstorrent_tile",
        "e[M,N]{1,0:T(tile0,tile1)(face0,face1)}",
        whole=("tile0/face0", "tile1/face1"),
        source="tt-metal tiles",
    ),
    Row("vnni", "e[K,N]{1,0:T(factor,1)}", source="Intel AMX, VNNI operand B"),
    Row("vllm_paged_key", "e[B,T,H,D]{1,3,2,0:T(x,1)}", divides={"D": "x"}, source="vLLM paged_attention"),
    Row("vllm_paged_value", "e[B,T,H,D]{1,3,2,0}", source="vLLM paged_attention"),
    *BYTE_ROWS,
)
