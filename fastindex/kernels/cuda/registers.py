"""Small blocks of elements in a thread's registers: four words of 4 bytes make 16 bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastindex.kernels.cuda.device import device_function

_LOW_BYTES = np.uint32(0x00FF00FF)
_LOW_HALF = np.uint32(0x0000FFFF)
_HIGH_HALF = np.uint32(0xFFFF0000)
_LOW_WORD = np.uint64(0xFFFFFFFF)


@device_function
def _pair(low: Any, high: Any) -> Any:
    return low, high


@device_function
def _eight(low: Any, high: Any) -> Any:
    return low


@device_function
def _word(low: Any, high: Any) -> Any:
    return np.uint32(low & _LOW_WORD)


def unit_of_numbers(width: int) -> Callable[[Any, Any], Any]:
    """Return the function from the low and high 8 bytes of a pattern to a unit of `width` bytes of it."""
    return {16: _pair, 8: _eight}.get(width, _word)


@device_function
def words(pair: Any) -> Any:
    half = np.uint64(32)
    return np.uint32(pair[0]), np.uint32(pair[0] >> half), np.uint32(pair[1]), np.uint32(pair[1] >> half)


@device_function
def pair(w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
    half = np.uint64(32)
    return np.uint64(w0) | (np.uint64(w1) << half), np.uint64(w2) | (np.uint64(w3) << half)


@device_function
def low_halves(a: Any, b: Any) -> Any:
    return np.uint32((a & _LOW_HALF) | (b << np.uint32(16)))


@device_function
def high_halves(a: Any, b: Any) -> Any:
    return np.uint32((a >> np.uint32(16)) | (b & _HIGH_HALF))


@device_function
def turned_bytes(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Transpose four words as four rows of four bytes."""
    byte = np.uint32(8)
    ab_even = np.uint32((a & _LOW_BYTES) | ((b & _LOW_BYTES) << byte))
    ab_odd = np.uint32(((a >> byte) & _LOW_BYTES) | (b & ~_LOW_BYTES))
    cd_even = np.uint32((c & _LOW_BYTES) | ((d & _LOW_BYTES) << byte))
    cd_odd = np.uint32(((c >> byte) & _LOW_BYTES) | (d & ~_LOW_BYTES))
    return (
        low_halves(ab_even, cd_even),
        low_halves(ab_odd, cd_odd),
        high_halves(ab_even, cd_even),
        high_halves(ab_odd, cd_odd),
    )
