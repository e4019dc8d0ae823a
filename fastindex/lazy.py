"""Lazy public names, so that importing a package loads no other module, and lazy attributes.

Public functions are opaque to ``torch.compile``: its tracer, Dynamo, calls them without tracing them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib import import_module
from types import FunctionType, MappingProxyType
from typing import Any, Generic, TypeVar, cast, overload

from fastindex.first_use import load, uninterrupted

GetAttribute = Callable[[str], Any]
Dir = Callable[[], list[str]]
Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """Return a function that ``torch.compile`` does not trace: compiled functions call it with real tensors.

    Dynamo would trace everything that the function calls, including the kernel compiler, and specialise on it.

    Examples
    --------
    >>> untraced(abs)(-3)
    3
    """
    opted_out: Callable[..., Any] | None = None

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal opted_out
        if opted_out is None:
            # torch imports it when it first compiles a function; nothing is traced before.
            if "torch._dynamo" not in sys.modules:
                return function(*arguments, **options)
            opted_out = sys.modules["torch"].compiler.disable(function)
        return opted_out(*arguments, **options)

    return cast(Function, call)


def lazy_names(
    package: str,
    homes: Mapping[str, Iterable[str]],
    submodules: Iterable[str] = (),
    meant: Mapping[str, str] = MappingProxyType({}),
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
    meant : mapping of str to str
        The replacement that the error suggests, by missing name. A public name of a submodule needs no entry: the
        error says where it is.

    Examples
    --------
    >>> get, _, names = lazy_names("fastindex", {"fastindex.errors": ("LayoutError",)})
    >>> get("LayoutError"), names
    (<class 'fastindex.errors.LayoutError'>, ['LayoutError'])
    """
    home_of = {name: module for module, names in homes.items() for name in names}
    modules = frozenset(submodules)

    def is_public(module: str, name: str) -> bool:
        if name.startswith("_"):
            return False
        return name in uninterrupted(lambda: import_module(f"{package}.{module}")).__all__

    def get(name: str) -> Any:
        if name in modules:
            return uninterrupted(lambda: import_module(f"{package}.{name}"))
        if name not in home_of:
            places = [f"{package}.{module}.{name}" for module in sorted(modules) if is_public(module, name)]
            use = meant.get(name, " or ".join(places))
            hint = f"; use {use}" if use else ""
            message = f"module {package!r} has no attribute {name!r}{hint}"
            raise AttributeError(message, name=name, obj=sys.modules[package])
        home = uninterrupted(lambda: import_module(home_of[name]))
        value = getattr(home, name)
        if isinstance(value, FunctionType) and not hasattr(value, "__wrapped__"):
            value = untraced(value)
            # Pickle looks the function up there.
            setattr(home, name, value)
        setattr(sys.modules[package], name, value)
        return value

    def names_shown() -> list[str]:
        dunders = {name for name in vars(sys.modules[package]) if name.startswith("__")}
        return sorted({*dunders, *home_of, *modules})

    return get, names_shown, sorted(home_of)


#: Functions of higher layers that lower ones call, by name: module and function. The package's ``__init__`` fills it.
HOOKS: dict[str, tuple[str, str]] = {}


def hook(name: str) -> Callable[..., Any]:
    """Return a function that `HOOKS` names; its module is imported on first use.

    Examples
    --------
    >>> import fastindex
    >>> hook("shape_html").__name__
    'shape_html'
    """
    module, function = HOOKS[name]
    load(module)
    return cast(Callable[..., Any], getattr(sys.modules[module], function))


class lazy_property(Generic[Value]):  # noqa: N801
    """An attribute computed on first access, as by `functools.cached_property`, without a lock.

    The one of Python 3.11 has a single lock for all objects of a class: a child forked while another thread computes
    an attribute deadlocks on it. Here two threads may both compute it; the last value stays.

    Examples
    --------
    >>> class Side:
    ...     @lazy_property
    ...     def area(self):
    ...         return print("computed") or 9
    >>> side = Side()
    >>> side.area, side.area
    computed
    (9, 9)
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type | None = None) -> lazy_property[Value]: ...
    @overload
    def __get__(self, owner: object, kind: type | None = None) -> Value: ...
    def __get__(self, owner: object | None, kind: type | None = None) -> lazy_property[Value] | Value:
        """Compute the attribute of an object and store it there."""
        if owner is None:
            return self
        value = owner.__dict__[self._name] = self._compute(owner)
        return value
