"""The cache line, what memory moves at a time and a kernel writes whole wherever it can; how many of them caches keep.

The sizes of caches are the machine's own, where the system tells them.
"""

from __future__ import annotations

from pathlib import Path

#: Bytes of a cache line, and of the widest vector that kernels use.
LINE_BYTES = 64

#: Bytes of a lane: what the vectors of every machine permute within.
LANE_BYTES = 16


_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def sets_and_ways(level: int, nbytes: int, ways: int, caches: Path = _CACHES) -> tuple[int, int]:
    """Return the sets of a cache of this processor that holds data, and the lines that each keeps.

    Parameters
    ----------
    level : int
    nbytes, ways : int
        What is assumed where the system does not say, or says what no cache has.
    caches : Path, optional
        Where Linux tells.
    """
    for folder in sorted(caches.glob("index*")):
        try:
            told = [(folder / name).read_text().strip() for name in ("level", "type", "size", "ways_of_associativity")]
            size, associativity = int(told[2].removesuffix("K")) << 10, int(told[3])
        except (OSError, ValueError):
            continue
        fits = associativity > 0 and size > 0 and size % (associativity * LINE_BYTES) == 0
        if told[0] == str(level) and told[1] in ("Data", "Unified") and fits:
            nbytes, ways = size, associativity
            break
    return nbytes // (ways * LINE_BYTES), ways


#: Of L1 and L2; where the system does not say, what the smallest processors have that kernels are made for.
L1_SETS, L1_WAYS = sets_and_ways(1, 32 << 10, 8)
L2_SETS, L2_WAYS = sets_and_ways(2, 256 << 10, 8)
