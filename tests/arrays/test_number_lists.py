"""Nested lists of numbers: taken where the element type holds them, against NumPy and by hand.

Tests of: arrays.buffers.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([[1, 2], [3, 4]], "s32[2,2]"), (((1, 2), (3, 4)), "u8[2,2]"), ([-128, 127], "s8[2]"), ([-8, 7], "s4[2]"),
        ([2**64 - 1, 0, 3], "u64[3]"), ([-(2**63), 2**63 - 1], "s64[2]"), ([True, 0, 1], "pred[3]"),
        ([True, 2], "s8[2]"),
        ([1, 2.5, np.float64(3), np.int8(-4)], "f32[4]"), ([0.1, NAN, -INF], "bf16[3]"), ([10**30], "f32[1]"),
        ([1 + 2j, 3, 4.5], "c64[3]"), ([], "f32[0]"), ([[], []], "s8[2,0]"), ([np.float32(1.5)], "f32[1]"),
        ([np.arange(3), np.arange(3)], "s16[2,3]"), ([ml_dtypes.bfloat16(2.5)], "bf16[1]"),
    ],
)  # fmt: skip
def test_numbers_that_fit(numbers: Any, text: str) -> None:
    shape = fi.Shape.parse(text)
    expected = np.array(numbers, object).reshape(shape.dimensions).astype(shape.element_type.numpy_dtype)
    found = fi.pack(numbers, shape)
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("numbers", "text", "message"),
    [
        ([[1, 2], [3, 400]], "s8[2,2]", "s8 holds integers from -128 to 127, got 400"),
        ([1, -4], "u8[2]", "u8 holds integers from 0 to 255, got -4"),
        ([2**64], "u64[1]", "u64 holds integers from 0 to 18446744073709551615"),
        ([8], "s4[1]", "s4 holds integers from -8 to 7, got 8"),
        ([2], "pred[1]", "pred holds integers from 0 to 1, got 2"),
        ([1, 7.5], "s8[2]", "got 7.5"),
        ([7.0], "s8[1]", "got 7.0"),
        ([1e39], "f32[1]", r"f32 does not hold 1e\+39"),
        ([10**400], "f32[1]", "integers as large"),
        ([-500.0], "f8e4m3fn[1]", "does not hold -500.0"),
        ([1j], "f32[1]", "f32 holds real numbers, got 1j"),
        ([[1, 2], [3]], "f32[2,2]", "same length at each level"),
        (["a"], "f32[1]", "must hold Python's numbers"),
        ([None], "f32[1]", "must hold numbers, got None"),
        ([ml_dtypes.bfloat16(2)], "f32[1]", "got dtype bfloat16"),
        ([1, 2], "f32[3]", r"has the dimensions \(3\)"),
    ],
)
def test_numbers_that_do_not_fit(numbers: Any, text: str, message: str) -> None:
    with pytest.raises(fi.FastIndexError, match=message):
        fi.pack(numbers, text)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_what_numpy_saved_without_its_type(dtype: Any) -> None:
    array = np.zeros((2, 3), dtype)
    shape = fi.Shape.from_numpy(array)
    saved = array.view(f"V{array.itemsize}")
    with pytest.raises(fi.ArgumentTypeError, match=rf"pass array.view\(ml_dtypes.{array.dtype.name}\)"):
        fi.pack(saved, shape)
    # Another type of as many bytes is not a lost one.
    with pytest.raises(fi.ArgumentTypeError, match=r"got (float16|int8)$"):
        fi.pack(np.zeros((2, 3), f"{'f' if array.itemsize == 2 else 'i'}{array.itemsize}"), shape, casting="no")
