"""Public names that are imported on first use, so that importing a package loads nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

GetAttribute = Callable[[str], Any]
Dir = Callable[[], list[str]]


def lazy_names(
    package: str, homes: Mapping[str, Iterable[str]], submodules: Iterable[str] = ()
) -> tuple[GetAttribute, Dir, list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    homes : mapping of str to str
        The public names by the module that defines them.
    submodules : iterable of str
        Public submodules; ``dir`` lists them, ``__all__`` does not.

    Examples
    --------
    >>> get, _, names = lazy_names("fastindex", {"fastindex.errors": ("LayoutError",)})
    >>> get("LayoutError"), names
    (<class 'fastindex.errors.LayoutError'>, ['LayoutError'])
    """
    home_of = {name: module for module, names in homes.items() for name in names}
    modules = frozenset(submodules)

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names_shown() -> list[str]:
        dunders = {name for name in vars(sys.modules[package]) if name.startswith("__")}
        return sorted({*dunders, *home_of, *modules})

    return get, names_shown, sorted(home_of)
