"""Arrays that are computed later, by an engine of their own: who answers for them, found without importing the engine.

An engine's part of this package lies above all that computes at once, so it is named here, and loaded when an array of
the engine is handed in.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from fastindex.errors import FastIndexError

#: The module of an engine whose `Array` is its class, and the module that answers for such arrays.
_ENGINES = {"dask.array": "fastindex.dask"}

_NEVER_LAZY = {np.ndarray, range, int, np.int64, bytes}


def engine_of(values: Any) -> ModuleType | None:
    """Return the module with the functions for a lazy array, or for a sequence with one; None where there is none.

    Examples
    --------
    >>> engine_of([1, 2]) is None
    True
    """
    if type(values) in _NEVER_LAZY:
        return None
    for engine, home in _ENGINES.items():
        kind = getattr(sys.modules.get(engine), "Array", None)
        if kind is None:
            continue
        if isinstance(values, kind) or (type(values) in (tuple, list) and any(isinstance(v, kind) for v in values)):
            return import_module(home)
    return None


def require_lazy(**given: Any) -> None:
    """Refuse arguments that say where results are to be written: a lazy result is written later.

    Raises
    ------
    FastIndexError
    """
    for name, value in given.items():
        if value is not None:
            raise FastIndexError(f"{name} is for arrays in memory; a lazy array gives a new lazy array")
