"""Casts that callers ask for: which are allowed by the rule that they give, checked once."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from fastindex.core.element_types import ElementType, xla_name
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.lowering.casts import cast_of, is_safe, is_same_kind

#: NumPy's rules for casts.
Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
#: These, the strictest first.
RULES: tuple[str, ...] = get_args(Casting)


def check_casting(casting: str) -> None:
    """Raise FastIndexError unless `casting` is one of NumPy's rules."""
    if casting not in RULES:
        raise FastIndexError(f"casting must be one of {', '.join(map(repr, RULES))}, got {casting!r}")


def check_cast(source: ElementType, target: ElementType, casting: str) -> None:
    """Require that a rule allows elements of one type to become those of another.

    Raises
    ------
    ArgumentTypeError
        It does not.
    UnsupportedError
        One of two types is complex.
    FastIndexError
        There is no such rule.
    """
    check_casting(casting)
    if source == target:
        return
    cast_of(source, target)
    needed = "safe" if is_safe(source, target) else "same_kind" if is_same_kind(source, target) else "unsafe"
    if RULES.index(casting) < RULES.index(needed):
        raise ArgumentTypeError(
            f"{source} is not cast to {target} by the rule casting={casting!r}; casting={needed!r} allows it"
        )


def element_type_of(dtype: np.dtype[Any]) -> ElementType | None:
    """Return the element type of a dtype, None where XLA has none."""
    try:
        return ElementType.from_numpy_dtype(dtype)
    except FastIndexError:
        return None


def logical_result(shape: Shape, out: Any, dtype: Any, casting: str) -> Shape:
    """Return the shape of the logical array that a buffer of `shape` is read into.

    Parameters
    ----------
    shape : Shape
    out : array, optional
        Whose element type the result has, unless `dtype` says another.
    dtype : dtype, ElementType or str, optional
    casting : str

    Raises
    ------
    FastIndexError, ArgumentTypeError, UnsupportedError
        As `check_cast`, or `dtype` is no element type.
    """
    wanted = shape.element_type
    if dtype is not None:
        wanted = wanted_type(dtype)
    elif isinstance(out, np.ndarray):
        # Of a dtype that XLA does not have, the check of `out` says what it should be.
        wanted = element_type_of(out.dtype) or wanted
    check_cast(shape.element_type, wanted, casting)
    return Shape(wanted, shape.dimensions)


def wanted_type(dtype: Any) -> ElementType:
    """Return the element type that a caller names, by XLA's name or NumPy's.

    Raises
    ------
    FastIndexError, ArgumentTypeError
        There is no such type.
    """
    if isinstance(dtype, str):
        # "float32" and "bfloat16" too, as everywhere where NumPy takes a dtype.
        return ElementType.of(xla_name(dtype) or dtype)
    return ElementType.of(dtype)
