"""Names of layouts, their steps and linear forms, cheaper alternatives, and pictures.

These functions take shapes or their texts, and never read the data of an array.
"""

from __future__ import annotations

from fastindex.lazy import lazy_names

# The public names; `__init__.pyi` tells type checkers the same.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.show.format_names": ("layout_name", "named_layout"),
        "fastindex.show.notations": ("LinearForm", "Steps", "steps"),
        "fastindex.show.tpu_layouts": ("TileSuggestion", "suggest_tiles"),
        "fastindex.moving.rearrange_plans": ("same_bytes",),
        "fastindex.show.picture": ("Picture",),
    },
)
