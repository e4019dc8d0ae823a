"""Rows of the table of named formats: their fields, those of whole codes in bytes, and those of GGUF.

A row is one layout of a name, for certain values of its parameters.

A row is data. `text` is XLA's text of the array after its dimensions are split: capital letters are the dimensions, the
entries between them the sizes of their inner factors, ``b`` the bits of a code, ``e`` an element of whole bytes, and
other names are parameters. A text with ``b`` orders single bits: its type is u1, with ``E(1)``. Split or tiled
dimensions are padded to multiples, unless `divides` requires divisible sizes. Words are little-endian.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """A format for certain values of its parameters.

    Attributes
    ----------
    name : str
    text : str
    bits : int, optional
        Bits of a code; None for elements of any whole number of bytes.
    when : mapping
        Required values of parameters. ``"name%n"`` is the remainder modulo n; ``"name%n!"`` must differ from the value.
    divides : mapping
        The required divisor of a dimension, as a number or a product of parameters.
    whole : tuple of str
        Quotients of parameters that must be integers.
    pads : mapping
        The multiple to which a dimension is padded, if larger than the text implies.
    order : tuple of int
        Position of element i within a unit of ``len(order)`` most minor elements; empty for the identity.
    order_bits : int
        Bits of an element of `order`: a single bit, or a whole code.
    stored : {"codes", "integers", "offset", "signed", "elements"}
        Meaning of codes. "codes": not integers, such as fp4. "integers": the value plus ``2**(bits-1)``; a plain array
        of a signed type as wide as a code holds values. "offset": the same, and int8 holds values of any width.
        "signed": two's complement, so the top bit of unsigned codes is flipped. "elements": unchanged, signed or not.
    fill : int
        The code in padding.
    source : str
        The vendor's library and function.
    """

    name: str
    text: str
    bits: int | None = None
    when: Mapping[str, Any] = field(default_factory=dict)
    divides: Mapping[str, int | str] = field(default_factory=dict)
    whole: tuple[str, ...] = ()
    pads: Mapping[str, int] = field(default_factory=dict)
    order: tuple[int, ...] = ()
    order_bits: int = 0
    stored: str = "codes"
    fill: int = 0
    source: str = ""


def rows_of(name: str, *variants: tuple[int | None, dict[str, Any], str], **shared: Any) -> tuple[Row, ...]:
    """Return the rows of a name: bits, required parameters and text of each, and the fields that they share."""
    return tuple(Row(name, text, bits, when=when, **shared) for bits, when, text in variants)


# Whole codes in bytes: neighbours, or codes of rows or columns that are far apart. The first code is in the low bits of
# a byte unless the row has an `order`.

_COREML, _HQQ = "coremltools pack_elements_into_bits", "hqq bitpack.py BitPack"
_QUANTO, _UINTX = "optimum-quanto tensor/packed.py pack_weights", "torchao uintx bitpacking.py pack"
_OPENVINO = "OpenVINO CPU plugin; openvino.helpers.pack_data agrees for 1, 3 and 6 bits"

# OpenVINO packs 8 values of 3 bits, or 4 of 6, into 3 bytes: low bits in two, high bits in the third, the first value
# in the high bits of each. Position of bit k of value v.
_THREE_BITS = tuple(v // 4 * 8 + 6 - v % 4 * 2 + k if k < 2 else 23 - v for v in range(8) for k in range(3))
_SIX_BITS = tuple(v // 2 * 8 + 4 - v % 2 * 4 + k if k < 4 else 18 - 2 * v + k for v in range(4) for k in range(6))

_TEN_OF_A_WORD = (*(27 - 3 * v + k for v in range(10) for k in range(3)), 30, 31)


def _first_high(bits: int) -> dict[str, Any]:
    """Return the fields of a row whose bytes have their first code in the high bits."""
    return {"order": tuple(range(8 // bits))[::-1], "order_bits": bits}


def _flat(bits: int) -> str:
    """Return the layout of a whole array in a row of bits."""
    return f"u{bits}[L]{{0{f':E({bits})' if bits < 8 else ''}}}"


def _neighbours(bits: int) -> tuple[Row, ...]:
    """Return the rows that pack codes which follow each other in a row, or in a column, of a matrix."""
    count, ends = 8 // bits, f"E({bits})"
    return tuple(
        Row(
            "packed_bytes",
            text,
            bits,
            when={"dimension": dimension, "first": first},
            divides={letter: count},
            stored="elements",
            source="NumPy packbits, ONNX int4",
            **(_first_high(bits) if first == "high" else {}),
        )
        for dimension, letter, text in (
            (1, "K", f"u{bits}[M,K]{{1,0:{ends}}}"),
            (0, "M", f"u{bits}[M,K]{{1,0:T({count},1){ends}}}"),
        )
        for first in ("low", "high")
    )


def _distant_rows(bits: int) -> str:
    """Return the layout of bytes that each hold a code of the first, second, ... part of the rows."""
    return f"u{bits}[{8 // bits},M/{8 // bits},K]{{0,2,1:E({bits})}}"


BYTE_ROWS: tuple[Row, ...] = (
    *(row for bits in (4, 2, 1) for row in _neighbours(bits)),
    *rows_of(
        "onnx_matmul_nbits",
        (4, {}, "u4[K/block_size,block_size,N]{1,0,2:E(4)}"),
        (2, {}, "u2[K/block_size,block_size,N]{1,0,2:E(2)}"),
        (8, {}, "u8[K/block_size,block_size,N]{1,0,2}"),
        stored="integers",
        source="onnxruntime MatMulNBits",
    ),
    *rows_of("nncf", (4, {}, _flat(4)), stored="integers", source="nncf pack_uint4, pack_int4"),
    *rows_of("tflite", *((b, {}, _flat(b)) for b in (4, 2)), stored="signed", source="ai-edge-quantizer pack_data"),
    *rows_of(
        "coreml",
        *((b, {}, _flat(b)) for b in (4, 2, 1, 8)),
        *((b, {}, "u1[L,b]{1,0:E(1)}") for b in (3, 6)),
        stored="elements",
        source=_COREML,
    ),
    *rows_of("openvino", *((b, {}, _flat(b)) for b in (4, 2)), stored="elements", source=_OPENVINO),
    *rows_of("openvino", (1, {}, _flat(1)), stored="elements", source=_OPENVINO, **_first_high(1)),
    *rows_of(
        "openvino",
        (3, {}, "u1[L/8,8,b]{2,1,0:E(1)}"),
        stored="elements",
        source=_OPENVINO,
        order=_THREE_BITS,
        order_bits=1,
    ),
    *rows_of(
        "openvino",
        (6, {}, "u1[L/4,4,b]{2,1,0:E(1)}"),
        stored="elements",
        source=_OPENVINO,
        order=_SIX_BITS,
        order_bits=1,
    ),
    Row(
        "modelopt",
        "u4[M,K]{1,0:T(2,1)E(4)}",
        4,
        divides={"M": 2},
        stored="signed",
        source="modelopt.torch.export pack_int4_in_uint8",
    ),
    *rows_of("quanto", *((b, {}, _distant_rows(b)) for b in (4, 2)), source=_QUANTO),
    *(Row("hqq", _distant_rows(b), b, divides={"M": 8 // b}, source=_HQQ, **_first_high(b)) for b in (4, 2, 1)),
    Row("hqq", "u8[M,K]{1,0}", 8, source=_HQQ),
    # Ten codes in 30 bits of a word, the first one highest.
    Row("hqq", "u1[10,M/10,K,b]{3,0,2,1:T(*,32)E(1)}", 3, source=_HQQ, order=_TEN_OF_A_WORD, order_bits=1),
    *rows_of(
        "torchao_uintx",
        *((b, {}, f"u{b}[M,{8 // b},K/{8 // b}]{{1,2,0:E({b})}}") for b in (4, 2, 1)),
        divides={"K": 8},
        source=_UINTX,
    ),
)


# GGUF, and what llama.cpp keeps in memory: the codes, without their scales.

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
    (8, "u8[M,K]{1,0}", 256, "signed", ("q8_k",)),
)

# Of what llama.cpp stores for several rows at once: bits, layout, values per block, meaning, and types.
_GGML_BODIES: tuple[tuple[int, str, int, str, tuple[str, ...]], ...] = (
    (4, "u4[M/rows,rows,K/32,2,16/interleave,interleave]{3,5,1,4,2,0:E(4)}", 32, "signed", ("q4_0",)),
    (8, "u8[M/rows,rows,K/32,32/interleave,interleave]{4,1,3,2,0}", 32, "signed", ("q8_0",)),
    (4, "u4[M/rows,rows,K/32,2,16/interleave,interleave]{3,5,1,4,2,0:E(4)}", 32, "codes", ("iq4_nl", "mxfp4")),
    (4, "u4[M/rows,rows,K/256,4,2,32/interleave,interleave]{4,6,1,5,3,2,0:E(4)}", 256, "codes", ("q4_k", "q5_k")),
    (4, "u4[M/rows,rows,K/256,2,2,64/interleave,interleave]{4,6,1,5,3,2,0:E(4)}", 256, "codes", ("q6_k",)),
    (2, "u2[M/rows,rows,K/256,2,4,32/interleave,interleave]{4,6,1,5,3,2,0:E(2)}", 256, "codes", ("q2_k", "q6_k")),
    (1, "u1[M/rows,rows,K/256,8,32/interleave,interleave]{3,5,1,4,2,0:E(1)}", 256, "codes", ("q5_k",)),
    (1, "u1[M/rows,rows,K/128,16/interleave,interleave,8]{5,4,1,3,2,0:E(1)}", 128, "codes", ("q1_0",)),
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
    *(
        Row(name, text, bits, when=when, divides={"M": "rows", "K": multiple}, stored=stored, source=_REPACK)
        for bits, text, multiple, stored, kinds in _GGML_BODIES
        for kind in kinds
        for name, when in (
            (f"ggml_{kind}_repacked_body", {}),
            ("ggml_repacked_body", {"type": kind}),
        )
        if when or stored == "signed"
    ),
)
