"""Kernels that tests write, compiled and loaded, for calls from Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from fastindex.runtime.kernels import machine_code
from fastindex.runtime.machine_code import _in_memory, target
from fastindex.runtime.numbers import Kernel

#: The owners of code that runs.
_LOADED: list[Any] = []


def compiled(module: str, name: str, *literals: int) -> Callable[..., int]:
    """Compile the kernel of this name, as it is now."""
    _LOADED.append(_in_memory(machine_code(Kernel(module, name, literals), target())))
    function: Callable[..., int] = _LOADED[-1].function
    return function


#: The same, once.
kept = cache(compiled)
