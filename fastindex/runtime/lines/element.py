"""The arithmetic of one element, written once for every backend.

Plain functions of int64 scalars (and int64 arrays of numbers), compiled by ``njit`` and ``cuda.jit`` alike;
they also run uncompiled, on NumPy int64 scalars. The constants come from `fastindex.algebra.forms`, the
tables of programs from `fastindex.index.compiled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_LOW_HALF = 0xFFFFFFFF


def narrow_product(a: Any, b: Any) -> Any:
    """Return the product of two numbers that fit int32; one 32-bit multiplication is enough."""
    return np.int64(np.int32(a)) * np.int64(np.int32(b))


def narrow_quotient(numerator: Any, magic: Any, shift: Any) -> Any:
    """Return ``numerator // divisor`` for a numerator below 2**31; only its low 32 bits count.

    The mask of `magic` changes nothing; it tells a compiler that one 32-bit multiplication is enough.
    """
    return ((numerator & _LOW_HALF) * (magic & _LOW_HALF)) >> shift


def high_product(a: Any, b: Any) -> Any:
    """Return the high 64 bits of the product of two uint64, from four products of halves."""
    low_half = np.uint64(_LOW_HALF)
    half = np.uint64(32)
    a_low, a_high = a & low_half, a >> half
    b_low, b_high = b & low_half, b >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & low_half)
    return a_high * b_high + (middle >> half) + (other >> half)


def wide_quotient(numerator: Any, magic: Any, shift: Any) -> Any:
    """Return ``numerator // divisor`` for a numerator below 2**63; `magic` holds the bits of a uint64."""
    return np.int64(high_product(np.uint64(numerator), np.uint64(magic)) >> np.uint64(shift))
