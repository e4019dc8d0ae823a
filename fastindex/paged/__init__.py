"""Caches of serving engines: pages of keys and values, the tables that name them, and moving them between layouts.

    import fastindex.paged as fp

A `Cache` says where each element of a pool lies; a `BlockTable` and `slot_mapping` say which blocks and slots hold the
tokens of a request; `runs` and `copy` bring a request from one cache to another, whatever their block sizes, orders and
heads.
"""

from __future__ import annotations

from fastindex.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.paged.caches": ("Cache", "Part"),
        "fastindex.paged.copies": ("copy", "gather", "scatter", "swap_blocks"),
        "fastindex.paged.descriptors": ("Runs", "StridedRuns", "runs"),
        "fastindex.paged.places": ("Element", "byte_offset", "element_at"),
        "fastindex.paged.slots": ("slot_mapping",),
        "fastindex.paged.tables": ("BlockTable", "Csr", "Owners"),
        "fastindex.paged.words": ("PagePicture", "draw", "explain"),
    },
)
