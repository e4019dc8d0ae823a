"""HLO modules to reports: which buffers there are, when they live, what padding costs, and which copies layouts cause.

Text is read and never compiled, but for `try_layouts`, which compiles a JAX function with other layouts.
"""

from __future__ import annotations

from fastindex.lazy import lazy_names

# The public names; `__init__.pyi` tells type checkers the same.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.hlo.copies.layout_copies": ("LayoutCopies", "layout_copies"),
        "fastindex.hlo.reports": ("Report", "report"),
        "fastindex.trials.results": ("TriedLayouts",),
        "fastindex.trials.try_layouts": ("try_layouts",),
    },
)
