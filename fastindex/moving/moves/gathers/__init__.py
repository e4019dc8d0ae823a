"""Gathers: contiguous pieces of the destination, written element by element.

Defines the records that the planner and the kernels share.
"""

from __future__ import annotations

from typing import NamedTuple

from fastindex.moving.numbers import CHUNKS
from fastindex.runtime.numbers import places

#: Element sizes that may be gathered, in bytes.
GATHERED_BYTES = (4, 8, 16, 32, 64)

#: The most bytes of a gathered fragment.
MOST_PIECE_BYTES = 8192


class GatherGeometry(NamedTuple):
    """Geometry of a gather; a chunk is a fragment: elements that are contiguous in the destination.

    Attributes
    ----------
    element_bytes, elements : int
        Bytes of an element, and elements of a fragment.
    streamed : int
        Whether lines are written with non-temporal stores.
    lines : int
        Lines of the source that hold elements of a fragment.
    chunks_ahead : int
        Prefetch distance in fragments.
    """

    element_bytes: int
    elements: int
    streamed: int
    lines: int
    chunks_ahead: int


GATHER = places(GatherGeometry, len(CHUNKS))
