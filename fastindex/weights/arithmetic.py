"""Exact arithmetic on the tensors of a conversion: steps of rules, and casts; what does not fit is an error."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from fastindex.arrays.fills import element_type_of
from fastindex.core.element_types import ElementType
from fastindex.errors import FastIndexError
from fastindex.weights.expressions import Array, Box, Cast, Expression


class Step(Expression):
    """Arithmetic on each value; `change` returns the new values, and a mask or bool that is False if inexact.

    With `is_likely`, values may be checked before anything is written, which reads them twice.
    """

    def __init__(
        self,
        inner: Expression,
        change: Callable[[Array], tuple[Array, Array | bool]],
        what: str,
        remedy: str,
        is_likely: bool = True,
    ) -> None:
        self._change, self._what, self._remedy, self._is_likely = change, what, remedy, is_likely
        super().__init__(inner.sizes, inner.dtype, inner)

    def may_fail(self) -> bool:
        return (self._is_likely and bool(self._what)) or super().may_fail()

    def cost(self, box: Box) -> int:
        # The comparison for exactness takes as much again.
        return super().cost(box) + 2 * self._bytes_of(box)

    def made(self, box: Box, parts: list[Array]) -> Array:
        found, exact = self._change(parts[0])
        if not np.all(exact):
            at = np.unravel_index(int(np.argmin(exact)), parts[0].shape)
            place = ", ".join(str(int(i) + along.start) for i, along in zip(at, box, strict=True))
            raise FastIndexError(f"the value at ({place}) is {parts[0][at]}, and {self._what}; {self._remedy}")
        return found


def arithmetic(made: Expression, step: tuple[str, ...], bits: int | None, remedy: str) -> Expression:
    """Return the values of an expression after a step of a rule: an addition, a flip or a multiplication.

    Parameters
    ----------
    made : Expression
    step : tuple of str
        Its words.
    bits : int or None
        Of a code; None for as many as an element has.
    remedy : str
        Advice for values that do not fit.
    """
    kind, dtype = step[0], made.dtype
    element_type = element_type_of(dtype)
    if kind == "multiply":
        if element_type is None or not element_type.is_floating:
            raise FastIndexError(f"the step {' '.join(step)!r} is for floats, and the tensor is {dtype}")
        return Step(made, _scaled(dtype, float(Fraction(step[1]))), f"times {step[1]} is no {dtype}", remedy)
    if dtype.kind not in "iu":
        raise FastIndexError(f"the step {' '.join(step)!r} is for codes, and the tensor is {dtype}")
    width = 8 * dtype.itemsize if bits is None else bits
    if kind == "flip":
        top = np.array(1 << (width - 1), f"u{dtype.itemsize}").view(dtype)
        return Step(made, lambda values: (values ^ top, True), "", "")
    number = int(step[1])
    least = -(1 << (width - 1)) if dtype.kind == "i" else 0
    low, high = max(least, least - number), min(least + (1 << width) - 1, least + (1 << width) - 1 - number)
    if low > high:
        raise FastIndexError(f"the step {' '.join(step)!r} leaves no code of {width} bits")

    own = np.array(number % (1 << 8 * dtype.itemsize), "u8").astype(f"u{dtype.itemsize}").view(dtype)

    def shifted(values: Any) -> Any:
        return values + own, (values >= low) & (values <= high)

    most = least + (1 << width) - 1
    return Step(made, shifted, f"{number:+d} is not from {least} to {most}", remedy)


@lru_cache
def _scaled(dtype: np.dtype[Any], number: float) -> Callable[[Any], tuple[Any, Any]]:
    """Return the product of floats and a number, as `change` of a `Step`."""
    wide = np.result_type(dtype, np.float32)
    factor = wide.type(number)

    def scaled(values: Any) -> tuple[Any, Any]:
        with np.errstate(all="ignore"):
            given = values.astype(wide)
            found = (given * factor).astype(dtype)
            return found, (found.astype(wide) / factor == given) | (given != given)

    if dtype.itemsize > 2:
        return scaled
    # NumPy's arithmetic is slow in half precision: look up the results of all 65,536 values.
    kind = f"u{dtype.itemsize}"
    products, exact = scaled(np.arange(1 << 8 * dtype.itemsize, dtype=kind).view(dtype))
    return lambda values: (products[values.view(kind)], exact[values.view(kind)])


def cast(made: Expression, target: ElementType, casting: str) -> Expression:
    """Return an expression cast to another element type; except with "unsafe", a value beyond its range is an error."""
    given, wanted = made.dtype, target.numpy_dtype
    source = element_type_of(given)
    if casting == "unsafe" or source is None or target.is_sub_byte or source.is_sub_byte:
        return Cast(made, target, casting)
    if given.kind in "iu" and wanted.kind in "iu":
        before, after = np.iinfo(given), np.iinfo(wanted)
        if after.min > before.min or after.max < before.max:
            made = _checked(made, lambda values: (values >= after.min) & (values <= after.max), target)
    elif source.is_floating and target.is_floating and given.itemsize > 1 and _largest(wanted) < _largest(given):
        made = _checked(made, _in_range(given, wanted), target)
    return Cast(made, target, casting)


def _checked(made: Expression, fits: Callable[[Any], Any], target: ElementType) -> Expression:
    remedy = "cast to a type with a wider range; casting='unsafe' does not check"
    return Step(made, lambda values: (values, fits(values)), f"{target} has no such value", remedy, is_likely=False)


def _largest(dtype: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(dtype).max)


def _in_range(given: np.dtype[Any], wanted: np.dtype[Any]) -> Callable[[Any], Any]:
    """Return a function that returns which floats are finite after a cast, or were not finite before."""
    # Without the sign, the bits of floats are ordered as their values: a fast test, which finds too many.
    kind = f"u{given.itemsize}"
    mask = np.array((1 << 8 * given.itemsize - 1) - 1, kind)
    most = np.array(_largest(wanted), given).view(kind)

    def fits(values: Any) -> Any:
        suspect = np.ascontiguousarray(values).view(kind) & mask > most
        if not suspect.any():
            return True
        with np.errstate(all="ignore"):
            return ~suspect.reshape(values.shape) | np.isfinite(values.astype(wanted)) | ~np.isfinite(values)

    return fits
