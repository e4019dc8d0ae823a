"""The element types: XLA's names, numbers and widths, and their NumPy dtypes."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from fastindex import ElementType
from fastindex.core.element_types import BY_NAME, BY_NUMBER

#: name: (number, bits, unpacked bytes), from ``xla_data.proto`` and ``primitive_util``.
EXPECTED = {
    "pred": (1, 1, 1),
    "s1": (30, 1, 1),
    "s2": (26, 2, 1),
    "s4": (21, 4, 1),
    "s8": (2, 8, 1),
    "s16": (3, 16, 2),
    "s32": (4, 32, 4),
    "s64": (5, 64, 8),
    "u1": (31, 1, 1),
    "u2": (27, 2, 1),
    "u4": (22, 4, 1),
    "u8": (6, 8, 1),
    "u16": (7, 16, 2),
    "u32": (8, 32, 4),
    "u64": (9, 64, 8),
    "f16": (10, 16, 2),
    "bf16": (16, 16, 2),
    "f32": (11, 32, 4),
    "f64": (12, 64, 8),
    "f8e5m2": (19, 8, 1),
    "f8e4m3": (28, 8, 1),
    "f8e4m3fn": (20, 8, 1),
    "f8e4m3b11fnuz": (23, 8, 1),
    "f8e3m4": (29, 8, 1),
    "f8e5m2fnuz": (24, 8, 1),
    "f8e4m3fnuz": (25, 8, 1),
    "f8e8m0fnu": (33, 8, 1),
    "f6e3m2fn": (35, 6, 1),
    "f6e2m3fn": (36, 6, 1),
    "f4e2m1fn": (32, 4, 1),
    "c64": (15, 64, 8),
    "c128": (18, 128, 16),
}
SUB_BYTE = {"s1", "s2", "s4", "u1", "u2", "u4", "f4e2m1fn", "f6e3m2fn", "f6e2m3fn"}


def test_names_numbers_and_widths() -> None:
    assert {n: (t.number, t.bits, t.nbytes) for n, t in BY_NAME.items() if t.is_array} == EXPECTED
    others = {name: kind.number for name, kind in BY_NAME.items() if not kind.is_array}
    assert others == {"tuple": 13, "opaque": 14, "token": 17, "buffer": 34}
    assert {kind.number: kind for kind in BY_NAME.values()} == BY_NUMBER
    assert len(BY_NUMBER) == len(BY_NAME)


def test_kinds() -> None:
    assert {name for name, kind in BY_NAME.items() if kind.is_sub_byte} == SUB_BYTE
    integral = {name for name in EXPECTED if name[0] in "su"}
    assert {name for name, kind in BY_NAME.items() if kind.is_integral} == integral
    assert {name for name, kind in BY_NAME.items() if kind.is_complex} == {"c64", "c128"}
    floating = {name for name in EXPECTED if name.startswith(("f", "bf"))}
    assert {name for name, kind in BY_NAME.items() if kind.is_floating} == floating


def test_an_element_type_is_its_name() -> None:
    kind = fi.Shape.parse("bf16[2]").element_type
    assert kind == "bf16"
    assert "bf16" == kind  # noqa: SIM300
    assert kind != "f32"
    assert kind != 16
    assert str(kind) == f"{kind}" == "bf16"
    assert {kind: 1}["bf16"] == {"bf16": 1}[kind] == 1  # type: ignore[index]


@pytest.mark.parametrize("name", BY_NAME)
def test_copies_are_equal(name: str) -> None:
    kind = BY_NAME[name]
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert copy.deepcopy(kind) is kind


@pytest.mark.parametrize("name", EXPECTED)
def test_numpy_dtypes_have_the_unpacked_width_and_lead_back(name: str) -> None:
    dtype = BY_NAME[name].numpy_dtype
    assert dtype.itemsize == BY_NAME[name].nbytes
    assert ElementType.from_numpy_dtype(dtype) == ElementType.of(dtype.type) == name


@pytest.mark.parametrize(
    ("name", "value", "pattern"),
    [
        ("bf16", 1.5, b"\xc0\x3f"),
        ("f8e4m3fn", 1.5, b"\x3c"),
        ("f8e5m2", 1.5, b"\x3e"),
        ("u4", 13, b"\x0d"),
        ("f4e2m1fn", 1.5, b"\x03"),
        ("pred", 1, b"\x01"),
        ("c64", 1j, b"\0\0\0\0\0\0\x80\x3f"),
    ],
)
def test_numpy_dtypes_hold_the_right_format(name: str, value: complex, pattern: bytes) -> None:
    assert np.array([value]).astype(BY_NAME[name].numpy_dtype).tobytes() == pattern


def test_byte_order_does_not_matter() -> None:
    assert ElementType.of(np.dtype(">f4")) == "f32"


@pytest.mark.parametrize("value", ["float32", "F32", "f33", "", "bfloat16"])
def test_unknown_names_are_refused(value: str) -> None:
    with pytest.raises(fi.FastIndexError, match="no element type is called"):
        ElementType.of(value)


@pytest.mark.parametrize("dtype", [np.str_, np.dtype("datetime64[s]"), np.object_, np.longdouble])
def test_dtypes_without_an_element_type_are_refused(dtype: object) -> None:
    with pytest.raises(fi.FastIndexError, match="XLA has no element type"):
        ElementType.of(dtype)


class TorchDtype:
    """What a dtype of PyTorch shows of itself."""

    def __repr__(self) -> str:
        return "torch.bfloat16"


@pytest.mark.parametrize(
    ("value", "end"), [(3, "got 3$"), (None, "got None$"), (TorchDtype(), "got torch.bfloat16; write 'bf16'$")]
)
def test_what_is_not_an_element_type(value: object, end: str) -> None:
    with pytest.raises(fi.ArgumentTypeError, match="an element type must be an ElementType, XLA's name.*" + end):
        ElementType.of(value)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("half", "XLA's name is f16"), ("bfloat16", "XLA's name is bf16"), ("fp32", "XLA's name is f32"),
        ("f32[2,3]", r"Shape.parse\('f32\[2,3\]'\) reads the text of a shape"), ("f33", "the names are pred, s1"),
    ],
)  # fmt: skip
def test_hints_for_unknown_names(value: str, hint: str) -> None:
    with pytest.raises(fi.FastIndexError, match=f"no element type is called '{re.escape(value)}'; {hint}"):
        ElementType.of(value)


def test_unknown_numbers_are_refused() -> None:
    with pytest.raises(fi.FastIndexError, match="number 0"):
        ElementType.from_number(0)


@pytest.mark.parametrize("name", ["tuple", "token", "opaque", "buffer"])
def test_types_without_elements_have_no_dtype(name: str) -> None:
    with pytest.raises(fi.UnsupportedError, match=name):
        BY_NAME[name].numpy_dtype  # noqa: B018


def test_an_ml_dtypes_without_the_type_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastindex.core import element_types

    element_types._numpy_dtype.cache_clear()
    monkeypatch.delattr(ml_dtypes, "int1")
    with pytest.raises(fi.UnsupportedError, match=r"update ml_dtypes"):
        BY_NAME["s1"].numpy_dtype  # noqa: B018


def test_parsing_and_printing_import_no_numpy() -> None:
    code = (
        "import sys, fastindex as fi; s = fi.Shape.parse('bf16[8,128]{1,0:T(8,128)(2,1)}');"
        "str(s), s.nbytes, s.slot_count, hash(s), s.to_proto(); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
