"""Arguments of the kernels that copy pages, as a table of int64."""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import places


class PageJob(NamedTuple):
    """Passes or pieces of one page, and the pages of every layer to which they apply.

    A piece is a contiguous part of a run: (source offset, target offset, bytes).

    Attributes
    ----------
    passes, pass_count : int
        Address and number of the `PassCall` rows, or of the pieces, of a page.
    outer : int
        Address of (source, target) offset pairs of the layers.
    source_pages, target_pages, page_count : int
        Addresses of the page offsets, and the number of pages.
    ahead, streamed : int
        For pieces: the prefetch distance in pieces, and whether to use non-temporal stores.
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
