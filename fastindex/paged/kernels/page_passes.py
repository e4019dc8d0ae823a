"""The CPU kernel of copies between pages: the passes of one granule, run at the places of many."""

from __future__ import annotations

from typing import Any

from fastindex.moving.kernels.runner import run_all
from fastindex.paged.pass_numbers import PAGE_JOB
from fastindex.runtime.kernels import kernel
from fastindex.runtime.lines.memory import entry


@kernel("void(int64,int64,int64,int64,int64,int64,int64)")
def run_page_passes(job: Any, target: Any, source: Any, padding: Any, scratch: Any, first: Any, last: Any) -> None:
    """Run passes at the places ``first:last``.

    Parameters
    ----------
    job : int64
        Address of a `PageJob`.
    target, source, padding, scratch : int64
        As for `run_passes`.
    first, last : int64
        A place is a granule of a layer; those of a layer follow each other.
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
