"""The bytes of padding: named values of every element type, and numbers of the caller."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from fastindex import ArgumentTypeError
from fastindex.arrays.fills import fill_pattern, value_bytes
from tests.oracles import reference

NAMES = ("zero", "one", "lowest", "highest")


def shape_of(element_type: str, padding_value: str = "zero") -> fi.Shape:
    return fi.Shape(element_type, (3,), fi.Layout((0,), padding_value=padding_value))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("element_type", reference.VALUE_BITS)
def test_named_values(element_type: str, name: str) -> None:
    shape = shape_of(element_type, name)
    if element_type in ("c64", "c128") and name in ("lowest", "highest"):
        with pytest.raises(fi.UnsupportedError, match=f"PV\\({name}\\): {element_type} is complex"):
            fill_pattern(shape)
        return
    pattern = fill_pattern(shape)
    assert len(pattern) == -(-reference.VALUE_BITS[element_type] // 8)
    assert int.from_bytes(pattern, "little") == reference.padding_pattern(element_type, name)


def test_without_a_name_it_is_zero() -> None:
    assert fill_pattern(fi.Shape.parse("f32[3]")) == bytes(4)
    assert fill_pattern(fi.Shape.parse("f32[]")) == bytes(4)


@pytest.mark.parametrize(
    "element_type", [name for name, bits in reference.VALUE_BITS.items() if name[0] in "su" and bits <= 8]
)
def test_every_small_integer(element_type: str) -> None:
    """All that fit, two's complement in the low bits, and the first on either side that does not."""
    bits, signed = reference.VALUE_BITS[element_type], element_type.startswith("s")
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    for number in range(low, high):
        assert fill_pattern(shape_of(element_type), number) == bytes([number % (1 << bits)])
    for number in (low - 1, high):
        with pytest.raises(fi.FastIndexError, match=f"integer from {low} to {high - 1} for {element_type}"):
            fill_pattern(shape_of(element_type), number)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_ends_of_wide_integers(bits: int) -> None:
    for name, low, high in ((f"s{bits}", -(1 << bits - 1), (1 << bits - 1) - 1), (f"u{bits}", 0, (1 << bits) - 1)):
        for number in (low, high, 1):
            assert fill_pattern(shape_of(name), number) == (number % (1 << bits)).to_bytes(bits // 8, "little")
        for number in (low - 1, high + 1):
            with pytest.raises(fi.FastIndexError, match="fill must be an integer"):
                fill_pattern(shape_of(name), number)


@pytest.mark.parametrize(
    ("element_type", "fill", "expected"),
    [
        ("f32", 1, "0000803f"),
        ("f32", np.float64(0.1), "cdcccc3d"),
        ("f32", float("nan"), "0000c07f"),
        ("f32", -0.0, "00000080"),
        ("bf16", 1.0, "803f"),
        ("bf16", ml_dtypes.bfloat16(-2), "00c0"),
        ("f16", 1e9, "007c"),
        ("f64", 2, "0000000000000040"),
        ("s32", 3.0, "03000000"),
        ("s32", np.int8(-1), "ffffffff"),
        ("pred", True, "01"),
        ("pred", 0, "00"),
        ("s8", True, "01"),
        ("c64", 1 + 2j, "0000803f00000040"),
        ("c64", 1, "0000803f00000000"),
        ("f8e4m3fn", 1.0, "38"),
        ("f4e2m1fn", 6.0, "07"),
        ("s4", ml_dtypes.int4(-1), None),
    ],
)
def test_numbers(element_type: str, fill: Any, expected: str | None) -> None:
    pattern = fill_pattern(shape_of(element_type, "one"), fill)
    if expected is None:
        # Only the bits of the value matter.
        assert pattern[0] & 15 == 15
    else:
        assert pattern.hex() == expected


@pytest.mark.parametrize("fill", ["1", [1], np.zeros(2), None.__class__, object()])
def test_what_is_no_number(fill: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="fill must be one number"):
        fill_pattern(shape_of("f32"), fill)


@pytest.mark.parametrize("name", ["i1", "i2", "i4", "i8", "byte", "S1"])
def test_a_name_with_two_meanings_is_not_a_dtype(name: str) -> None:
    """NumPy counts bytes where MLIR counts bits: i8 is int64 or int8."""
    with pytest.raises(fi.FastIndexError, match=f"dtype '{name}' is .* in NumPy and [su]\\d elsewhere"):
        fi.unpack(np.arange(3), "s64[3]", dtype=name, casting="unsafe")


@pytest.mark.parametrize(
    ("name", "dtype"), [("u8", "uint8"), ("i32", "int32"), ("bfloat16", "bfloat16"), ("half", "f2")]
)
def test_names_with_one_meaning(name: str, dtype: str) -> None:
    assert fi.unpack(np.arange(3), "s64[3]", dtype=name, casting="unsafe").dtype == np.dtype(dtype)


def test_numbers_of_another_kind() -> None:
    with pytest.raises(ArgumentTypeError, match="real number for f32"):
        fill_pattern(shape_of("f32"), 1j)
    for fill, element_type in itertools.product((0.5, float("nan"), float("inf")), ("s8", "u64", "pred")):
        with pytest.raises((fi.FastIndexError, ArgumentTypeError), match="fill must be"):
            fill_pattern(shape_of(element_type), fill)
    with pytest.raises(fi.FastIndexError, match="from 0 to 1 for pred"):
        fill_pattern(shape_of("pred"), 2)


@pytest.mark.parametrize(
    ("dtype", "fill", "words"),
    [
        ("u1", "x", "one number, got 'x'"),
        ("u1", b"a", "one number"),
        ("u1", 1j, "real number for u8, got 1j"),
        ("u1", 300, "an integer from 0 to 255 for u8, got 300"),
        ("u1", 2**70, "an integer from 0 to 255 for u8"),
        pytest.param("u1", 10**5000, "got an integer of 16610 bits", id="5001 digits"),
        ("u1", object(), "one number"),
        (">i4", 2**31, "-2147483648 to 2147483647 for s32"),
        pytest.param("f4", 10**400, "a number that f32 holds", id="401 digits"),
        ("f4", "2020-01-01", "one number"),
        ("?", 3, "an integer from 0 to 1 for pred"),
        (ml_dtypes.int4, 8, "an integer from -8 to 7 for s4"),
        ("M8[s]", "x", "a value of datetime64"),
        ("M8[s]", 1j, "one value of datetime64"),
        ("S3", "long text", "text that .S3 holds"),
        ("U2", 3, "text that <U2 holds"),
        ("V3", 3, "one value of .V3"),
    ],
)
def test_values_that_a_dtype_does_not_hold(dtype: Any, fill: Any, words: str) -> None:
    with pytest.raises(fi.FastIndexError, match=words):
        value_bytes(np.dtype(dtype), fill)
    if np.dtype(dtype).kind not in "MSUV":
        with pytest.raises(fi.FastIndexError, match=words):
            fi.rearrange(np.zeros(5, dtype), "(a b) -> a b", b=4, pad=True, fill=fill)


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        ("u1", 255),
        (">i4", -7),
        ("f4", 2**70),
        ("f2", 1e9),
        ("?", True),
        ("M8[s]", "2020-01-01"),
        ("S3", b"abc"),
        ("U2", "é"),
    ],
)
def test_values_that_a_dtype_holds(dtype: str, fill: Any) -> None:
    with np.errstate(over="ignore"):
        expected = np.full((), fill).astype(dtype) if fill != 2**70 else np.float32(2.0**70)
    assert value_bytes(np.dtype(dtype), fill) == expected.tobytes()
    got = fi.rearrange(np.zeros(5, dtype), "(a b) -> a b", b=4, pad=True, fill=fill)
    assert (got[1, 1:] == expected).all()
