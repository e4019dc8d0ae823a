"""What the kernel of copies between pages gets, as a table of int64."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import places


class PageJob(NamedTuple):
    """Passes, and the places where they run: every page of every layer.

    Attributes
    ----------
    passes, pass_count : int
        Address of rows of a `PassCall`, and how many; or of pieces (source offset, target offset, bytes) of a page.
    outer : int
        Address of pairs of offsets, source and target, of layers.
    source_pages, target_pages, page_count : int
        Addresses of the offsets of pages, and how many there are.
    ahead, streamed : int
        Of pieces: how many before it is copied each is prefetched, and whether lines go past the cache.
    """

    passes: int
    pass_count: int
    outer: int
    source_pages: int
    target_pages: int
    page_count: int
    ahead: int = 0
    streamed: int = 0


PAGE_JOB = places(PageJob)
PAGE_PIECE_BYTES = 24
