"""NumPy's own functions, with NumPy's names and arguments, at fastindex's speed.

They know strides, but no other layouts: arrays in, arrays out. Arguments that they do not take as NumPy does raise an
error that says so.
"""

from __future__ import annotations

from fastindex.lazy import lazy_names

# The public names; `__init__.pyi` tells type checkers the same.
__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "fastindex.moving.numpy_copies": ("ascontiguousarray", "asfortranarray", "copyto"),
        "fastindex.index.indices": ("ravel_multi_index", "unravel_index"),
    },
)
