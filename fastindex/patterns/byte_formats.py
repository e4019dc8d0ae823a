"""Rows of formats whose bytes hold whole codes: of neighbours, or of rows or columns that are far apart.

The first code is in the low bits of a byte unless the row has an `order`.
"""

from __future__ import annotations

from typing import Any

from fastindex.patterns.format_row import Row, rows_of

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
