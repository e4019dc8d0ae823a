"""KV caches of serving engines: pages of keys and values, block tables, and copies between layouts.

    import fastindex.paged as fp

A `Cache` gives the byte offset of each element of a pool. A `BlockTable` and `slot_mapping` give the blocks and slots
of the tokens of a request. `runs` and `copy` move a request from one cache to another; block sizes, dimension orders
and heads may differ.
"""

from __future__ import annotations

from fastindex.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.paged.caches": ("Cache", "Part"),
        "fastindex.paged.copies": ("copy", "gather", "scatter", "swap_blocks"),
        "fastindex.paged.descriptors": ("Runs", "StridedRuns", "runs"),
        "fastindex.paged.places": ("Element", "byte_offset", "element_at", "slot_mapping"),
        "fastindex.paged.tables": ("BlockTable", "Csr", "Owners"),
        "fastindex.paged.words": ("PagePicture", "draw", "explain"),
    },
)
