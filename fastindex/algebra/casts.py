"""Casts: the conversion from one element type to another, and its results by NumPy and ml_dtypes.

Results are those of ``astype``. Where NumPy leaves them undefined, for a float that an integer type cannot hold, they
are those of XLA: saturated, and 0 for NaN. NaN to and from f16 is as NumPy converts it on x86-64, on every machine.
Pairs that ml_dtypes does not convert go through f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.cast_numbers import BYTE_RESULTS, MISFIT_BIT, conversion_code, looked_up
from fastindex.algebra.sides import RegroupedShape
from fastindex.core.element_types import ElementType
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError, check_option
from fastindex.lazy import lazy_property

#: Sources of at most 8 bits whose values are computed with instead of looked up.
_BYTES = ("s8", "u8")
#: Elements that are checked at a time.
_AT_ONCE = 1 << 18
_F16 = np.dtype(np.float16)
_FLOATS = {_F16, np.dtype(np.float32), np.dtype(np.float64)}

#: NumPy's rules for casts.
Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
#: The rules, strictest first.
RULES: tuple[str, ...] = get_args(Casting)


@dataclass(frozen=True)
class Cast:
    """A conversion of elements.

    Attributes
    ----------
    source, target : ElementType
    is_checked : bool
        Whether it counts the vectors with integers that the target cannot hold; see `can_misfit`.
    """

    source: ElementType
    target: ElementType
    is_checked: bool = False

    @property
    def code(self) -> int:
        """The number of the conversion, for which kernels are specialised."""
        if self._is_looked_up:
            return conversion_code("byte", "checked byte" if self.is_checked else looked_up(self.target.nbytes))
        return conversion_code(self.source.name, "narrow" if self._is_narrow else self.target.name)

    @property
    def _is_narrow(self) -> bool:
        return self.target.is_floating and self.target.bits <= 8

    @property
    def _is_looked_up(self) -> bool:
        if self.source.bits > 8:
            return False
        return self.source.name not in _BYTES or self._is_narrow

    @lazy_property
    def results(self) -> NDArray[np.int64]:
        """The kernel's table as int64, empty where it computes. A misfit counter comes last, except for "narrow"."""
        if self._is_looked_up:
            codes = np.arange(BYTE_RESULTS, dtype=np.uint8)
            found = cast_by_numpy(codes, self.source, self.target)
            if self.is_checked:
                found |= np.where(misfits(codes, self.source, self.target), np.uint8(MISFIT_BIT), np.uint8(0))
            return np.concatenate([_bytes_of(found), np.zeros(1, np.int64)])
        if self.target.is_integral and self.target.bits <= 8:
            return np.array([*self._code_numbers, 0], np.int64)
        if self._is_narrow:
            upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
            return _bytes_of(cast_by_numpy(upper.view(np.uint8), _F32, self.target))
        return np.empty(0, np.int64)

    @property
    def _code_numbers(self) -> tuple[int, int, int]:
        """The table of a conversion to a code: the entry `CODE_BITS`, and the two after it."""
        kept, (least, most) = (1 << self.target.bits) - 1, bounds_of(self.target)
        if self.source.is_floating:
            return kept, least, most
        # An unsigned source has no negative codes; the remaining range is still a power of two.
        least = max(least, bounds_of(self.source)[0])
        return (kept, -least, ~(most - least)) if self.is_checked else (kept, 0, 0)

    @property
    def counted_misfits(self) -> int:
        """How often kernels of a checked cast have found values that the target cannot hold, over all calls so far."""
        return int(self.results[-1])


_F32 = ElementType.of("f32")


def _bytes_of(values: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.ascontiguousarray(values).view(np.int64)


@lru_cache(maxsize=256)
def cast_of(source: ElementType, target: ElementType, is_checked: bool = False) -> Cast:
    """Return the conversion from one element type to another.

    Parameters
    ----------
    source, target : ElementType
    is_checked : bool
        Whether integers that the target cannot hold are errors.

    Raises
    ------
    UnsupportedError
        One of them is complex.

    Examples
    --------
    >>> cast_of(ElementType.of("f32"), ElementType.of("bf16")).results.size
    0
    """
    for one in (source, target):
        if one.is_complex or not one.is_array:
            raise UnsupportedError(f"{one} is not cast: casts are between integers, floats and pred")
    return Cast(source, target, is_checked and can_misfit(source, target))


def bounds_of(element_type: ElementType) -> tuple[int, int]:
    """Return the least and the greatest integer of a type.

    Examples
    --------
    >>> bounds_of(ElementType.of("s4")), bounds_of(ElementType.of("pred"))
    ((-8, 7), (0, 1))
    """
    if element_type.kind == "signed":
        return -(1 << element_type.bits - 1), (1 << element_type.bits - 1) - 1
    return 0, (1 << element_type.bits) - 1


@lru_cache(maxsize=1024)
def can_misfit(source: ElementType, target: ElementType) -> bool:
    """Whether a type has integers that another type, of fewer than 8 bits, cannot hold.

    Wider targets follow NumPy's rule, which wraps; floats are rounded or, with ``casting="unsafe"``, saturated.

    Examples
    --------
    >>> u8, u4, s4 = (ElementType.of(name) for name in ("u8", "u4", "s4"))
    >>> can_misfit(u8, u4), can_misfit(u4, s4), can_misfit(u4, u8)
    (True, True, False)
    """
    if not (target.is_integral and target.bits < 8) or source.kind not in ("predicate", "unsigned", "signed"):
        return False
    (low, high), (least, most) = bounds_of(source), bounds_of(target)
    return low < least or high > most


def misfits(data: NDArray[np.uint8], source: ElementType, target: ElementType) -> NDArray[np.bool_]:
    """Return a mask of the integers, given as the bytes of elements, that another type cannot hold.

    Examples
    --------
    >>> u8, u4 = ElementType.of("u8"), ElementType.of("u4")
    >>> misfits(np.array([15, 16], np.uint8), u8, u4).tolist()
    [False, True]
    """
    values, (least, most) = _values(data, source), bounds_of(target)
    if values.dtype == bool:
        values = values.view(np.uint8)
    return np.asarray((values < least) | (values > most))


def first_misfit(values: NDArray[Any], source: ElementType, target: ElementType) -> tuple[tuple[int, ...], int] | None:
    """Return the index and the value of the first element, the last dimension fastest, that a type cannot hold.

    Examples
    --------
    >>> u8, u4 = ElementType.of("u8"), ElementType.of("u4")
    >>> first_misfit(np.array([[15, 3], [200, 16]], np.uint8), u8, u4)
    ((1, 0), 200)
    """
    for begin in range(0, values.size, _AT_ONCE):
        part = values.flat[begin : begin + _AT_ONCE].view(np.uint8)
        outside = misfits(part, source, target)
        if outside.any():
            number = int(outside.argmax())
            place = np.unravel_index(begin + number, values.shape) if values.ndim else ()
            return tuple(int(i) for i in place), int(_values(part, source)[number])
    return None


class MisfitError(FastIndexError):
    """An element that the target type of a cast cannot hold.

    Attributes
    ----------
    place : tuple of int
    value : int
    target : ElementType
    """

    def __init__(self, place: tuple[int, ...], value: int, target: ElementType) -> None:
        # The arguments must be all that pickling needs.
        super().__init__(place, value, target)
        self.place, self.value, self.target = place, value, target

    def __str__(self) -> str:
        least, most = bounds_of(self.target)
        return (
            f"{self.target} holds integers from {least} to {most}, got {self.value} at {self.place}; "
            "casting='unsafe' keeps the low bits"
        )

    def moved(self, start: Sequence[int]) -> MisfitError:
        """Return the error for an array in which the array of this error begins at `start`."""
        return MisfitError(tuple(a + b for a, b in zip(self.place, start, strict=True)), self.value, self.target)


def of_type(shape: Shape, element_type: ElementType) -> Shape:
    """Return a shape of unpacked values of another type in the same slots."""
    layout = shape.layout
    plain = Shape(
        element_type,
        shape.dimensions,
        Layout(
            layout.minor_to_major,
            tiles=layout.tiles,
            padded_dimensions=layout.padded_dimensions,
            tail_padding_alignment_in_elements=layout.tail_padding_alignment_in_elements,
        ),
    )
    if isinstance(shape, RegroupedShape):
        return RegroupedShape(plain, shape.coordinates, shape.variables)
    return plain


def cast_by_numpy(data: NDArray[np.uint8], source: ElementType, target: ElementType) -> NDArray[np.uint8]:
    """Cast elements, given and returned as bytes, from one type to another.

    Examples
    --------
    >>> cast_by_numpy(np.array([1.5, -7, np.nan], np.float32).view(np.uint8), _F32, ElementType.of("s8")).tolist()
    [1, 249, 0]
    """
    with np.errstate(all="ignore"):
        found = _cast(_values(data, source), source, target)
    return np.ascontiguousarray(found).view(np.uint8)


def _values(data: NDArray[np.uint8], source: ElementType) -> NDArray[Any]:
    """Return values of a dtype that NumPy computes with; bits above a sub-byte element are ignored."""
    if source == "pred":
        return np.asarray(data != 0)
    if not source.is_sub_byte:
        return data.view(source.numpy_dtype)
    low = data & np.uint8((1 << source.bits) - 1)
    if source.is_floating:
        return low.view(source.numpy_dtype)
    if source.kind == "unsigned":
        return low
    unused = np.int8(8 - source.bits)
    return (low.view(np.int8) << unused) >> unused


def _cast(values: NDArray[Any], source: ElementType, target: ElementType) -> NDArray[Any]:
    if target == "pred":
        return np.asarray(values.astype(bool))
    if target.is_integral:
        found = _saturated(values, target) if source.is_floating else values
        if target.bits < 8:
            return found.astype(np.uint8) & np.uint8((1 << target.bits) - 1)
        return found.astype(target.numpy_dtype)
    try:
        found = values.astype(target.numpy_dtype)
    except TypeError:
        found = values.astype(np.float32).astype(target.numpy_dtype)
    dtypes = {values.dtype, found.dtype}
    if dtypes <= _FLOATS and _F16 in dtypes:
        return with_payloads(values, found)
    return np.asarray(found)


def with_payloads(values: NDArray[Any], found: NDArray[Any]) -> NDArray[Any]:
    """Give each NaN of a conversion from or to f16 the upper payload bits of its source; return the floats.

    NumPy does so where it converts f16 in integer arithmetic; processors set the highest bit (Arm's FCVT, x86's
    VCVTPS2PH). Source: ``npy_floatbits_to_halfbits`` of NumPy's ``halffloat.cpp``.

    Examples
    --------
    >>> values = np.array([0xFF815466, 0x7F800001], np.uint32).view(np.float32)
    >>> [hex(bits) for bits in with_payloads(values, values.astype(np.float16)).view(np.uint16)]
    ['0xfc0a', '0x7c01']
    """
    places = np.isnan(values)
    if not places.any():
        return found
    before, after = np.finfo(values.dtype), np.finfo(found.dtype)
    bits = values.view(f"u{before.bits // 8}")[places].astype(np.uint64)
    payloads = bits & np.uint64((1 << before.nmant) - 1)
    if after.nmant < before.nmant:
        payloads = np.maximum(payloads >> np.uint64(before.nmant - after.nmant), np.uint64(1))
    else:
        payloads <<= np.uint64(after.nmant - before.nmant)
    signs = bits >> np.uint64(before.bits - 1) << np.uint64(after.bits - 1)
    exponents = np.uint64((1 << after.nexp) - 1) << np.uint64(after.nmant)
    found.view(f"u{after.bits // 8}")[places] = (signs | exponents | payloads).astype(f"u{after.bits // 8}")
    return found


def _saturated(values: NDArray[Any], target: ElementType) -> NDArray[Any]:
    """Return floats truncated to integers that a type holds, saturated at its bounds; 0 for NaN."""
    signed, (low, high) = target.kind == "signed", bounds_of(target)
    wide = values.astype(np.float64)
    inside = (wide > low - 1.0) & (wide < high + 1.0)
    kind = np.int64 if signed else np.uint64
    found = np.where(inside, wide, 0.0)
    # Values between -1 and 0 are 0 in unsigned types.
    truncated = (found if signed else np.maximum(found, 0.0)).astype(kind)
    truncated[~inside & (wide >= high)] = high
    truncated[~inside & (wide <= low)] = low
    return truncated


def is_safe(source: ElementType, target: ElementType) -> bool:
    """Whether a type holds every value of another, by NumPy's rule: it takes f64 to hold those of s64.

    Examples
    --------
    >>> is_safe(ElementType.of("s4"), ElementType.of("bf16")), is_safe(ElementType.of("bf16"), ElementType.of("f16"))
    (True, False)
    """
    if source == target:
        return True
    dtypes = source.numpy_dtype, target.numpy_dtype
    if all(dtype.isbuiltin == 1 for dtype in dtypes):
        return bool(np.can_cast(*dtypes))
    return source.bits <= 16 and is_same_kind(source, target) and _keeps_values(source, target)


@lru_cache(maxsize=1024)
def _keeps_values(source: ElementType, target: ElementType) -> bool:
    """Whether a cast keeps every value of a type of at most 16 bits."""
    data = np.arange(1 << max(source.bits, 8), dtype=f"u{source.nbytes}").view(np.uint8)
    wide = ElementType.of("f64")
    there = cast_by_numpy(cast_by_numpy(data, source, target), target, wide).view(np.float64)
    return bool(np.array_equal(cast_by_numpy(data, source, wide).view(np.float64), there, equal_nan=True))


_KINDS = ("predicate", "unsigned", "signed", "float")


def is_same_kind(source: ElementType, target: ElementType) -> bool:
    """Whether a cast keeps the kind of numbers or makes it more general, by NumPy's rule for its own types.

    ml_dtypes declares otherwise to NumPy: that f32 to int4 is a cast of the same kind.

    Examples
    --------
    >>> f32, s4 = ElementType.of("f32"), ElementType.of("s4")
    >>> is_same_kind(s4, f32), is_same_kind(f32, s4)
    (True, False)
    """
    if source.kind not in _KINDS or target.kind not in _KINDS:
        return source == target
    return _KINDS.index(source.kind) <= _KINDS.index(target.kind)


def check_casting(casting: str) -> None:
    """Raise FastIndexError unless `casting` is one of NumPy's rules."""
    check_option("casting", casting, RULES)


def check_cast(source: ElementType, target: ElementType, casting: str) -> Cast | None:
    """Return the cast from one element type to another, which a casting rule has to allow; None if they are equal.

    Raises
    ------
    ArgumentTypeError
        The rule does not allow it.
    UnsupportedError
        The types differ, and one of them is complex.
    FastIndexError
        There is no such rule.
    """
    check_casting(casting)
    if source == target:
        return None
    cast = cast_of(source, target, casting != "unsafe")
    needed = "safe" if is_safe(source, target) else "same_kind" if is_same_kind(source, target) else "unsafe"
    if RULES.index(casting) < RULES.index(needed):
        raise ArgumentTypeError(
            f"{source} is not cast to {target} by the rule casting={casting!r}; casting={needed!r} allows it"
        )
    return cast
