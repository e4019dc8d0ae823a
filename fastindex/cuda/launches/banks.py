"""Padding of interleaved rows in a GPU's shared memory, which avoids bank conflicts. Numbers only, no CUDA.

Shared memory has 32 banks of 4 bytes; accesses of a warp's lanes to different words of one bank are serialised.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_WARP = 32
_BANKS = 32

#: Shifts to try, the best first: no gaps, a gap after every 128 bytes, after every 256.
_SKEWS = (31, 7, 8)


@lru_cache(maxsize=512)
def stage_skew(rows: int, width: int, unit: int) -> int:
    """Return the skew of interleaved rows as a shift: there is a gap after every ``1 << shift`` bytes.

    Parameters
    ----------
    rows : int
        That are interleaved.
    width : int
        Bytes of an element.
    unit : int
        Bytes of a row that a thread moves at once, a multiple of `width`.

    Examples
    --------
    >>> stage_skew(3, 4, 4), stage_skew(8, 4, 4)
    (31, 7)
    """
    return min(_SKEWS, key=lambda skew: (max(stage_ways(rows, width, unit, skew), 2), _SKEWS.index(skew)))


def stage_ways(rows: int, width: int, unit: int, skew: int) -> int:
    """Return the worst bank conflict, in serialised accesses, of all accesses that interleave or deinterleave rows."""
    lanes = np.arange(_WARP)[None, :]
    blocks = np.arange(0, 16 * _WARP, _WARP)[:, None]
    column = ((blocks + lanes) * unit // width)[:, None, None, :]
    row = np.arange(rows)[None, :, None, None]
    part = np.arange(unit // width)[None, None, :, None]
    offset = ((column + part) * rows + row) * width
    return _conflicts((offset + (offset >> skew) * max(unit, 4)).reshape(-1, _WARP), width)


def _conflicts(places: NDArray[np.int64], size: int) -> int:
    """Return the most words that the lanes of a phase access in one bank; a row of `places` is one access of a warp."""
    phase = _WARP * 4 // max(size, 4)
    words = np.sort(places.reshape(-1, phase) // max(size, 4), axis=1)
    bank = np.where(np.diff(words, axis=1, prepend=-1) != 0, words % (_BANKS * 4 // max(size, 4)), -1)
    return int(max((bank == b).sum(axis=1).max() for b in range(_BANKS)))
