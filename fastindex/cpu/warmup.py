"""Compile every kernel before it is needed, so that no first call has to wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Protocol

import fastindex.bulk.indices  # noqa: F401  (it registers the kernels that compile_kernels finds)
from fastindex.cpu.movements import PASS_KERNELS, kernel_of, pass_kernel
from fastindex.kernels.compilation import compile_kernels
from fastindex.lowering.passes import POWERS_OF_TWO

_ELEMENT_BYTES = (1, 2, 4, 8, 16)
#: Runs that both sides keep move as one, up to a line of the cache.
_UNIT_BYTES = (*_ELEMENT_BYTES, 32, 64)
_LARGEST_REGISTER_BYTES = 32
_PACKED_BITS = (1, 2, 4)


class Progress(Protocol):
    """Where it is told how far the work is."""

    def start(self, total: int) -> None:
        """Take how many kernels there are."""

    def advance(self, count: int) -> None:
        """Take how many have been compiled since the last call."""


def warm_up(progress: Progress | None = None) -> int:
    """Compile every kernel for the CPU, or load it from the cache on disk, where the next process finds it.

    Parameters
    ----------
    progress : Progress, optional

    Returns
    -------
    int
        How many kernels there are.
    """
    wanted = list(relayout_kernels())
    if progress is not None:
        progress.start(len(wanted) + 1)
    count = compile_kernels()
    for kernel in wanted:
        if progress is not None:
            progress.advance(1)
        name, width, ways = kernel
        if name in PASS_KERNELS:
            pass_kernel(name, width, ways)
        else:
            kernel_of(name, width)
    return count + len(wanted)


def relayout_kernels() -> Iterator[tuple[str, int, int]]:
    """Give the name, width and ways of every kernel that a relayout may call, as `pass_kernel` takes them.

    Examples
    --------
    >>> ("transpose", 4, 1) in set(relayout_kernels())
    True
    """
    yield "copy", 1, 1
    yield "fill", 1, 1
    for width in _UNIT_BYTES:
        yield "transpose", width, 1
        yield "narrow transpose", width, 1
        yield "strided", width, 1
        for ways in (0, *POWERS_OF_TWO):
            if ways * width <= _LARGEST_REGISTER_BYTES:
                yield "interleave", width, ways
                if width in _ELEMENT_BYTES:
                    yield "deal", width, ways
    for width in _ELEMENT_BYTES:
        yield "gather", width, 1
    for name, bits in itertools.product(("expand", "compress", "expand all", "compress all"), _PACKED_BITS):
        yield name, bits, 1
