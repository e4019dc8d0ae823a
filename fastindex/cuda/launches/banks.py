"""Where woven rows stand in a GPU's shared memory so that few accesses meet in a bank. Numbers only, no CUDA.

Shared memory has 32 banks of 4 bytes; lanes of a warp that want different words of one bank wait for each other.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_WARP = 32
_BANKS = 32

#: Shifts to try, the best first: no gaps, a gap behind every 128 bytes, behind every 256.
_SKEWS = (31, 7, 8)


@lru_cache(maxsize=512)
def stage_skew(rows: int, width: int, unit: int) -> int:
    """Return the shift by which places of woven rows are skewed: a gap stands behind every ``1 << shift`` bytes.

    Parameters
    ----------
    rows : int
        Woven into one.
    width : int
        Bytes of an element.
    unit : int
        Bytes that a thread takes of a row at once, a multiple of `width`.

    Examples
    --------
    >>> stage_skew(3, 4, 4), stage_skew(8, 4, 4)
    (31, 7)
    """
    return min(_SKEWS, key=lambda skew: (max(_ways(rows, width, unit, skew), 2), _SKEWS.index(skew)))


def stage_conflicts(rows: int, width: int, unit: int) -> int:
    """Return the most lanes that want different words of one bank, with the skew that `stage_skew` chooses.

    Examples
    --------
    >>> stage_conflicts(8, 1, 4)
    1
    """
    return _ways(rows, width, unit, stage_skew(rows, width, unit))


def _ways(rows: int, width: int, unit: int, skew: int) -> int:
    """Return how many accesses one access of a warp takes at most, over all that weave or part rows."""
    lanes = np.arange(_WARP)[None, :]
    blocks = np.arange(0, 16 * _WARP, _WARP)[:, None]
    column = ((blocks + lanes) * unit // width)[:, None, None, :]
    row = np.arange(rows)[None, :, None, None]
    part = np.arange(unit // width)[None, None, :, None]
    offset = ((column + part) * rows + row) * width
    return _conflicts((offset + (offset >> skew) * max(unit, 4)).reshape(-1, _WARP), width)


def _conflicts(places: NDArray[np.int64], size: int) -> int:
    """Return the most words that the lanes of a phase want of one bank; a row of `places` is one access of a warp."""
    phase = _WARP * 4 // max(size, 4)
    words = np.sort(places.reshape(-1, phase) // max(size, 4), axis=1)
    bank = np.where(np.diff(words, axis=1, prepend=-1) != 0, words % (_BANKS * 4 // max(size, 4)), -1)
    return int(max((bank == b).sum(axis=1).max() for b in range(_BANKS)))
