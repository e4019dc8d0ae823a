"""How the elements of an index conversion are shared out."""

from __future__ import annotations

from fastindex.runtime.tuning import TUNING, Tuning


def chunk_length(count: int, workers: int, tuning: Tuning = TUNING) -> int:
    """Return how many elements a thread takes at a time, whole cache lines of them.

    Examples
    --------
    >>> chunk_length(1 << 24, 2)
    262144
    """
    length = min(max(count // (4 * workers), tuning.least_conversion_share), tuning.most_conversion_share)
    return -(-length // 8) * 8
