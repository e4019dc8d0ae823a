"""Nested lists of Python numbers as arrays of an element type."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Complex, Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.core.element_types import ElementType
from fastindex.errors import ArgumentTypeError, FastIndexError


def array_of_numbers(numbers: Sequence[Any], element_type: ElementType) -> NDArray[Any]:
    """Return nested lists of numbers as an array, if the element type holds them.

    Integers must be in range. Floating-point types round, as in NumPy, but no finite number becomes infinite.

    Raises
    ------
    FastIndexError
        A number that the element type does not hold, or lists of different lengths.
    ArgumentTypeError
        Something that is not a number.

    Examples
    --------
    >>> array_of_numbers([[1, 2], [3, 4]], ElementType.of("s32"))
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    dtype = element_type.numpy_dtype
    try:
        given = np.asarray(numbers)
    except ValueError:
        raise FastIndexError("nested lists must have the same length at each level, as the rows of an array") from None
    if given.dtype == dtype or given.size == 0:
        return given.astype(dtype)
    if given.dtype.kind not in "biufcO":
        raise ArgumentTypeError(f"nested lists must hold Python's numbers, got dtype {given.dtype}")
    # Objects: NumPy takes integers of 64 bits with and without a sign together for floating point.
    objects = np.asarray(numbers, object)
    for value in objects.flat:
        if not isinstance(value, Complex | np.bool_ | np.number):
            raise ArgumentTypeError(f"nested lists must hold numbers, got {value!r}")
    if element_type.is_integral or element_type.kind == "predicate":
        return _integers(objects, element_type)
    return _rounded(objects, element_type)


def _integers(objects: NDArray[Any], element_type: ElementType) -> NDArray[Any]:
    bits = element_type.bits
    low, high = (-(1 << bits - 1), 1 << bits - 1) if element_type.kind == "signed" else (0, 1 << bits)
    for value in objects.flat:
        if not isinstance(value, Integral | np.bool_) or not low <= int(value) < high:
            raise FastIndexError(f"{element_type} holds integers from {low} to {high - 1}, got {value!r}")
    wide = np.int64 if low else np.uint64
    return objects.astype(wide).astype(element_type.numpy_dtype)


def _rounded(objects: NDArray[Any], element_type: ElementType) -> NDArray[Any]:
    if not element_type.is_complex:
        for value in objects.flat:
            if not isinstance(value, Real | np.bool_):
                raise FastIndexError(f"{element_type} holds real numbers, got {value!r}")
    try:
        exact = objects.astype(np.complex128 if element_type.is_complex else np.float64)
    except OverflowError:
        raise FastIndexError(f"{element_type} does not hold integers as large as those in the lists") from None
    with np.errstate(all="ignore"):
        values: NDArray[Any] = exact.astype(element_type.numpy_dtype)
        lost = np.isfinite(exact) & ~np.isfinite(values.astype(exact.dtype))
    if lost.any():
        raise FastIndexError(f"{element_type} does not hold {exact[lost][0]}")
    return values
