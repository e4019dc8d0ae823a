"""Reports on HLO modules: buffers, live ranges, the cost of padding, and the copies that layouts cause.

The HLO text is only parsed, never compiled, except by `try_layouts`, which compiles a JAX function with other layouts.
"""

from __future__ import annotations

from fastindex.lazy import lazy_names

# The public names; keep in step with `__init__.pyi`.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.hlo.copies.layout_copies": ("LayoutCopies", "layout_copies"),
        "fastindex.hlo.reports": ("Report", "report"),
        "fastindex.trials.results": ("TriedLayouts",),
        "fastindex.trials.try_layouts": ("try_layouts",),
    },
)
