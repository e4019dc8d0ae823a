"""Targets of kernels that are compiled on another machine, for container images and wheels.

A level is a set of instructions that many processors have, by its name in the System V psABI: ``x86-64-v3`` (AVX2) and
``x86-64-v4`` (AVX-512), or ``aarch64`` (every 64-bit Arm processor). A kernel gives the same bytes on every level; its
code depends on no version of Numba or Python, so what one machine compiles any other of the level loads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

from fastindex.errors import FastIndexError

_V3 = (
    *("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf"),
    *("sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3"),
)


class Level(NamedTuple):
    """A set of instructions.

    Attributes
    ----------
    name : str
        As `fastindex warmup` takes it.
    architecture : str
        The first part of LLVM's triples.
    processor : str
        By LLVM's name.
    instructions : frozenset of str
        By LLVM's names.
    """

    name: str
    architecture: str
    processor: str
    instructions: frozenset[str]

    @property
    def features(self) -> str:
        """The instructions, as LLVM and Numba take them."""
        return ",".join(f"+{name}" for name in sorted(self.instructions))

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which Numba compiles for the level."""
        return {"NUMBA_CPU_NAME": self.processor, "NUMBA_CPU_FEATURES": self.features}

    @property
    def target(self) -> tuple[str, str, str]:
        """The key of cached kernels, in place of a triple, a processor and its features."""
        return f"{self.architecture}-{sys.platform}", self.name, self.features

    def on(self, triple: str) -> tuple[str, str, str]:
        """Return what kernels are compiled for, by LLVM's names: on the system of a triple.

        Examples
        --------
        >>> LEVELS["aarch64"].on("x86_64-unknown-linux-gnu")
        ('aarch64-unknown-linux-gnu', 'generic', '+neon')
        """
        return f"{self.architecture}-{triple.partition('-')[2]}", self.processor, self.features

    def runs_on(self, architecture: str, instructions: Iterable[str]) -> bool:
        """Whether a processor has all instructions.

        Examples
        --------
        >>> LEVELS["x86-64-v3"].runs_on("x86_64", LEVELS["x86-64-v4"].instructions)
        True
        >>> LEVELS["aarch64"].runs_on("x86_64", {"avx2"})
        False
        """
        return architecture == self.architecture and self.instructions <= set(instructions)


#: The levels by name, of one architecture the best first.
LEVELS = {
    level.name: level
    for level in (
        Level(
            "x86-64-v4",
            "x86_64",
            "x86-64-v4",
            frozenset([*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"]),
        ),
        Level("x86-64-v3", "x86_64", "x86-64-v3", frozenset(_V3)),
        Level("aarch64", "aarch64", "generic", frozenset(["neon"])),
    )
}


def level_of(name: str) -> Level:
    """Return the level of a name.

    Raises
    ------
    FastIndexError

    Examples
    --------
    >>> level_of("x86-64-v3").processor
    'x86-64-v3'
    """
    if name not in LEVELS:
        raise FastIndexError(f"no target is called {name!r}; kernels are compiled for {', '.join(sorted(LEVELS))}")
    return LEVELS[name]
