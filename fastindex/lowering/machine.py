"""The machine that a plan is made for, as a value: its caches, its processors, and what kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fastindex.tables.cache_lines import LANE_BYTES, LINE_BYTES


class Cache(NamedTuple):
    """A cache of a processor, with lines of `LINE_BYTES`.

    Attributes
    ----------
    sets : int
    ways : int
        Lines that each set keeps.

    Examples
    --------
    >>> Cache.of(kibibytes=48, ways=12)
    Cache(sets=64, ways=12)
    """

    sets: int
    ways: int

    @classmethod
    def of(cls, kibibytes: int, ways: int) -> Cache:
        """Return the cache of a size."""
        return cls((kibibytes << 10) // (ways * LINE_BYTES), ways)


@dataclass(frozen=True)
class Caches:
    """The caches that a processor has for itself."""

    l1: Cache
    l2: Cache


#: Of the smallest processors that kernels are made for; what is assumed where the system does not say.
SMALL_CACHES = Caches(Cache.of(32, 8), Cache.of(256, 8))


def caches_in(folder: Path) -> Caches:
    """Return the caches that Linux describes in a folder; those of `SMALL_CACHES` where it says what no cache has.

    Parameters
    ----------
    folder : Path
        ``/sys/devices/system/cpu/cpu0/cache`` but in tests.
    """
    found = {"1": SMALL_CACHES.l1, "2": SMALL_CACHES.l2}
    for index in sorted(folder.glob("index*"), reverse=True):
        try:
            told = [(index / name).read_text().strip() for name in ("level", "type", "size", "ways_of_associativity")]
            size, ways = int(told[2].removesuffix("K")) << 10, int(told[3])
        except (OSError, ValueError):
            continue
        if told[1] in ("Data", "Unified") and ways > 0 and size > 0 and size % (ways * LINE_BYTES) == 0:
            found[told[0]] = Cache(size // (ways * LINE_BYTES), ways)
    return Caches(found["1"], found["2"])


@dataclass(frozen=True)
class Target:
    """What kernels are compiled for.

    Attributes
    ----------
    instructions : frozenset of str
        Sets of instructions, by LLVM's names: "avx2", "avx512vbmi", "neon".
    vector_bytes : int
        Bytes of the vectors that one instruction permutes.

    Examples
    --------
    >>> Target.of({"sse2", "ssse3", "avx2"}).vector_bytes
    16
    """

    instructions: frozenset[str]
    vector_bytes: int

    @classmethod
    def of(cls, instructions: frozenset[str] | set[str]) -> Target:
        """Return the target with these instructions: a line is permuted at once with AVX-512 VBMI, a lane elsewhere."""
        return cls(frozenset(instructions), LINE_BYTES if "avx512vbmi" in instructions else LANE_BYTES)


@dataclass(frozen=True)
class Machine:
    """A machine to plan for. Machine code depends on its target alone.

    Attributes
    ----------
    caches : Caches
        Of each processor.
    processors : int
        How many may be used.
    target : Target
    """

    caches: Caches
    processors: int
    target: Target


#: The machine that most thresholds and costs were measured on; examples plan for it.
EPYC_1M = Machine(
    Caches(Cache.of(48, 12), Cache.of(1024, 16)),
    2,
    Target.of({"sse2", "ssse3", "avx2", "f16c", "avx512f", "avx512bw", "avx512vbmi"}),
)
