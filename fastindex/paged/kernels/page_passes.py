"""CPU kernels of copies between pages: the passes of one granule, applied to many.

Pages are small and in arbitrary order, so the hardware prefetches little. A separate kernel copies long runs in pieces
and prefetches across pages. Everything else uses the passes of a relayout.
"""

from __future__ import annotations

from typing import Any

from fastindex.moving.kernels.passes import run_all
from fastindex.paged.pass_numbers import PAGE_JOB, PAGE_PIECE_BYTES
from fastindex.runtime.kernels import kernel, subroutine
from fastindex.runtime.lines.lines import copy_run, prefetch_bytes
from fastindex.runtime.lines.memory import entry, fence


@kernel
def run_page_passes(job: Any, target: Any, source: Any, padding: Any, scratch: Any, first: Any, last: Any) -> None:
    """Run the passes on the pages ``first:last``.

    Parameters
    ----------
    job : int64
        Address of a `PageJob`.
    target, source, padding, scratch : int64
        As for `run_passes`.
    first, last : int64
        Range of page numbers, layer by layer; a page is a granule of a layer.
    """
    passes, count = entry(job, PAGE_JOB.passes), entry(job, PAGE_JOB.pass_count)
    outer, pages = entry(job, PAGE_JOB.outer), entry(job, PAGE_JOB.page_count)
    sources, targets = entry(job, PAGE_JOB.source_pages), entry(job, PAGE_JOB.target_pages)
    around, page = divmod(first, pages)
    for _ in range(last - first):
        here = source + entry(outer, 2 * around) + entry(sources, page)
        there = target + entry(outer, 2 * around + 1) + entry(targets, page)
        run_all(passes, count, there, here, padding, scratch, 0, 0)
        page += 1
        if page == pages:
            page = 0
            around += 1


@subroutine(inline=True)
def _place(job, number):  # type: ignore[no-untyped-def]
    """Return the offset of a page on both sides."""
    pages = entry(job, PAGE_JOB.page_count)
    around, page = divmod(number, pages)
    outer = entry(job, PAGE_JOB.outer)
    here = entry(outer, 2 * around) + entry(entry(job, PAGE_JOB.source_pages), page)
    return here, entry(outer, 2 * around + 1) + entry(entry(job, PAGE_JOB.target_pages), page)


@kernel
def copy_page_pieces(job: Any, target: Any, source: Any, first: Any, last: Any) -> None:
    """Copy the pieces of the pages ``first:last``; parameters as for `run_page_passes`."""
    pieces, count = entry(job, PAGE_JOB.passes), entry(job, PAGE_JOB.pass_count)
    ahead, streamed = min(entry(job, PAGE_JOB.ahead), count), entry(job, PAGE_JOB.streamed) != 0
    next_here, next_there = _place(job, first)
    for number in range(first, last):
        here, there = source + next_here, target + next_there
        if number + 1 < last:
            next_here, next_there = _place(job, number + 1)
        for row in range(count):
            piece, later = pieces + PAGE_PIECE_BYTES * row, row + ahead
            if later < count:
                asked = pieces + PAGE_PIECE_BYTES * later
                prefetch_bytes(here + entry(asked, 0), entry(asked, 2))
            elif number + 1 < last:
                asked = pieces + PAGE_PIECE_BYTES * (later - count)
                prefetch_bytes(source + next_here + entry(asked, 0), entry(asked, 2))
            copy_run(there + entry(piece, 1), here + entry(piece, 0), entry(piece, 2), streamed)
    if streamed:
        fence()
