"""Store a part of 4, 8 or 16 aligned bytes, with as few stores as alignment allows.

`low` and `high` bound the part: the bytes of a run in the aligned unit where it begins or ends. Each store has 1, 2, 4
or 8 bytes at a multiple of its size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastindex.cuda.kernels.device import device_function
from fastindex.cuda.kernels.memory import STORE
from fastindex.cuda.kernels.registers import pair

_store_vector, _store_eight, _store_word, _store_half, _store_byte = (STORE[width] for width in (16, 8, 4, 2, 1))
_HALF, _WORD = np.uint32(16), np.uint64(32)


@device_function
def _word_from(at: Any, low: Any, word: Any) -> Any:
    """Write the bytes of a word from `low` to the next word; return the offset of that, `low` if it begins there."""
    if low & 1:
        _store_byte(at + low, np.uint32(word >> np.uint32(8 * (low & 3))))
        low += 1
    if low & 2:
        _store_half(at + low, np.uint32(word >> _HALF))
        low += 2
    return low


@device_function
def _word_up_to(at: Any, high: Any, word: Any) -> None:
    """Write the bytes of a word up to `high`, of which only the remainder modulo 4 counts."""
    if high & 2:
        _store_half(at, word)
    if high & 1:
        _store_byte(at + (high & 2), np.uint32(word >> np.uint32(8 * (high & 2))))


@device_function
def put_word(at: Any, low: Any, high: Any, values: Any) -> None:
    """Write the bytes from `low` to `high` of an aligned word, a tuple of one; the bounds may be outside it."""
    (word,) = values
    if low <= 0 and high >= 4:
        _store_word(at, word)
    elif high >= 4:
        _word_from(at, low, word)
    elif low <= 0:
        _word_up_to(at, high, word)
    else:
        for j in range(1, 3):
            if low <= j and j < high:
                _store_byte(at + j, np.uint32(word >> np.uint32(8 * j)))


@device_function
def put_eight(at: Any, low: Any, high: Any, values: Any) -> None:
    """Write the bytes from `low` to `high` of 8, given as two words; `low` is 0 or `high` is 8."""
    w0, w1 = values
    if low == 0 and high == 8:
        _store_eight(at, np.uint64(w0) | (np.uint64(w1) << _WORD))
    elif high == 8:
        low = _word_from(at, low, w0 if low < 4 else w1)
        if low == 4:
            _store_word(at + 4, w1)
    else:
        if high & 4:
            _store_word(at, w0)
        _word_up_to(at + (high & 4), high, w0 if high < 4 else w1)


@device_function
def put_granule(at: Any, low: Any, high: Any, values: Any) -> None:
    """Write the bytes from `low` to `high` of 16, given as four words; `low` is 0 or `high` is 16."""
    w0, w1, w2, w3 = values
    if low == 0 and high == 16:
        _store_vector(at, pair(w0, w1, w2, w3))
    elif high == 16:
        low = _word_from(at, low, w0 if low < 4 else w1 if low < 8 else w2 if low < 12 else w3)
        if low & 4:
            _store_word(at + low, w1 if low < 8 else w3)
        if low <= 8:
            _store_eight(at + 8, np.uint64(w2) | (np.uint64(w3) << _WORD))
    else:
        if high & 8:
            _store_eight(at, np.uint64(w0) | (np.uint64(w1) << _WORD))
        if high & 4:
            _store_word(at + (high & 8), w0 if high < 8 else w2)
        _word_up_to(at + (high & 12), high, w0 if high < 4 else w1 if high < 8 else w2 if high < 12 else w3)
