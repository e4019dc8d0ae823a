"""Where the elements of an array live in memory under XLA's layouts: exact, in bulk, at copy speed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES: dict[str, tuple[str, ...]] = {
    "fastindex.errors": (
        "FastIndexError",
        "LayoutError",
        "OutOfBoundsError",
        "ShapeSyntaxError",
        "UnsupportedError",
    ),
    "fastindex.element_types": ("ElementType",),
    "fastindex.layout": ("COMBINE", "Layout", "SplitConfig"),
    "fastindex.shape": ("Shape",),
    "fastindex.indexing": ("convert_index", "linear_index", "multi_index", "tile_index"),
    "fastindex.numpy_dropins": ("ravel_multi_index", "unravel_index"),
    "fastindex.relayouts": ("pack", "plan_relayout", "relayout", "unpack"),
    "fastindex.explain": ("explain", "suggest_tiles"),
    "fastindex.drawing": ("draw",),
    "fastindex.hlo_report": ("report",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'fastindex' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
