"""Rows of the formats of GGUF, and of those that llama.cpp keeps in memory: the codes, without their scales."""

from __future__ import annotations

from fastindex.patterns.format_row import Row

_GGUF, _REPACK = "gguf-py quants.py, ggml-common.h", "llama.cpp ggml-cpu/repack.cpp"

# Bits, layout, values per block, meaning, and types; a code split into low and high bits has two parts in a block.
_GGUF_BODIES: tuple[tuple[int, str, int, str, tuple[str, ...]], ...] = (
    (4, "u4[M,K/32,2,16]{2,3,1,0:E(4)}", 32, "integers", ("q4_0", "q4_1")),
    (4, "u4[M,K/32,2,16]{2,3,1,0:E(4)}", 32, "codes", ("q5_0", "q5_1", "mxfp4", "iq4_nl")),
    (4, "u4[M,K/32,2,16]{2,3,1,0:E(4)}", 256, "codes", ("iq4_xs",)),
    (4, "u4[M,K/16,2,8]{2,3,1,0:E(4)}", 64, "codes", ("nvfp4",)),
    (4, "u4[M,K/256,4,2,32]{3,4,2,1,0:E(4)}", 256, "codes", ("q4_k", "q5_k")),
    (4, "u4[M,K/256,2,2,64]{3,4,2,1,0:E(4)}", 256, "codes", ("q6_k",)),
    (2, "u2[M,K/256,2,4,32]{3,4,2,1,0:E(2)}", 256, "codes", ("q2_k", "q3_k", "q6_k", "tq2_0")),
    (1, "u1[M,K]{1,0:E(1)}", 32, "codes", ("q5_0", "q5_1")),
    (1, "u1[M,K/256,8,32]{2,3,1,0:E(1)}", 256, "codes", ("q3_k", "q5_k")),
    (2, "u2[M,K]{1,0:E(2)}", 64, "codes", ("q2_0",)),
    (1, "u1[M,K]{1,0:E(1)}", 128, "codes", ("q1_0",)),
    (8, "u8[M,K]{1,0}", 32, "signed", ("q8_0", "q8_1")),
)

# Of what llama.cpp stores for several rows at once: bits, layout, values per block, and types.
_GGML_BODIES: tuple[tuple[int, str, int, tuple[str, ...]], ...] = (
    (4, "u4[M/rows,rows,K/32,2,16/interleave,interleave]{3,5,1,4,2,0:E(4)}", 32, ("iq4_nl", "mxfp4")),
    (4, "u4[M/rows,rows,K/256,4,2,32/interleave,interleave]{4,6,1,5,3,2,0:E(4)}", 256, ("q4_k", "q5_k")),
    (4, "u4[M/rows,rows,K/256,2,2,64/interleave,interleave]{4,6,1,5,3,2,0:E(4)}", 256, ("q6_k",)),
    (2, "u2[M/rows,rows,K/256,2,4,32/interleave,interleave]{4,6,1,5,3,2,0:E(2)}", 256, ("q2_k", "q6_k")),
    (1, "u1[M/rows,rows,K/256,8,32/interleave,interleave]{3,5,1,4,2,0:E(1)}", 256, ("q5_k",)),
)

GGUF_ROWS: tuple[Row, ...] = (
    *(
        Row("gguf_body", text, bits, when={"type": kind}, divides={"K": multiple}, stored=stored, source=_GGUF)
        for bits, text, multiple, stored, kinds in _GGUF_BODIES
        for kind in kinds
    ),
    Row("gguf_q4_k_body", "u4[M,K/256,4,2,32]{3,4,2,1,0:E(4)}", 4, divides={"K": 256}, stored="integers", source=_GGUF),
    Row("gguf_q6_k_low", "u4[M,K/256,2,2,64]{3,4,2,1,0:E(4)}", 4, divides={"K": 256}, source=_GGUF),
    Row("gguf_q6_k_high", "u2[M,K/256,2,4,32]{3,4,2,1,0:E(2)}", 2, divides={"K": 256}, source=_GGUF),
    Row(
        "ggml_q4_0_repacked_body",
        "u4[M/rows,rows,K/32,2,16/interleave,interleave]{3,5,1,4,2,0:E(4)}",
        4,
        divides={"M": "rows", "K": 32},
        stored="signed",
        source=_REPACK,
    ),
    Row(
        "ggml_q8_0_repacked_body",
        "u8[M/rows,rows,K/32,32/interleave,interleave]{4,1,3,2,0}",
        8,
        divides={"M": "rows", "K": 32},
        stored="signed",
        source=_REPACK,
    ),
    *(
        Row("ggml_repacked_body", text, bits, when={"type": kind}, divides={"M": "rows", "K": multiple}, source=_REPACK)
        for bits, text, multiple, kinds in _GGML_BODIES
        for kind in kinds
    ),
)
