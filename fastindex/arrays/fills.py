"""The element types and dimensions of results, and the bytes of padding values."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from fastindex.algebra.casts import bounds_of, check_cast
from fastindex.core.element_types import BY_NAME, ElementType, xla_name
from fastindex.core.shape import Shape
from fastindex.core.sizes import buffer_form
from fastindex.errors import ArgumentTypeError, FastIndexError, UnsupportedError
from fastindex.first_use import load


def element_type_of(dtype: np.dtype[Any]) -> ElementType | None:
    """Return the element type of a dtype, None where XLA has none."""
    try:
        return ElementType.from_numpy_dtype(dtype)
    except FastIndexError:
        return None


def logical_result(shape: Shape, made: np.dtype[Any] | None, dtype: Any, casting: str) -> Shape:
    """Return the shape of the logical array that a buffer of `shape` is unpacked to.

    Parameters
    ----------
    shape : Shape
    made : dtype, optional
        That of an array to write to. The result has its element type, unless `dtype` is given.
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
    elif made is not None:
        # If XLA lacks this dtype, the check of the array reports the expected one.
        wanted = element_type_of(made) or wanted
    check_cast(shape.element_type, wanted, casting)
    return Shape(wanted, shape.dimensions)


def array_dimensions(shape: Shape) -> tuple[int, ...]:
    """Return the dimensions of an array in memory order, most major first.

    Raises
    ------
    FastIndexError
        Its buffer has padding or tiles.
    """
    dimensions = buffer_form(shape).dimensions
    if dimensions is None:
        raise FastIndexError(
            f"as_array=True needs a destination without tiles and padding: a buffer of {shape.cut_text()} has "
            "one dimension; unpack gives the array itself"
        )
    return dimensions


def wanted_type(dtype: Any) -> ElementType:
    """Return the element type that a caller names, by XLA's name or NumPy's.

    Raises
    ------
    FastIndexError, ArgumentTypeError
        There is no such type.
    """
    if isinstance(dtype, str) and dtype not in BY_NAME:
        # Names such as "float32" and "bfloat16" too, as wherever NumPy takes a dtype.
        meant = xla_name(dtype)
        with suppress(TypeError):
            if meant is not None and element_type_of(np.dtype(dtype)) != meant:
                raise FastIndexError(
                    f"dtype {dtype!r} is {np.dtype(dtype)} in NumPy and {meant} elsewhere; "
                    f"give XLA's name, or numpy.dtype({dtype!r})"
                )
        return ElementType.of(meant or dtype)
    return ElementType.of(dtype)


def fill_pattern(shape: Shape, fill: Any = None) -> bytes:
    """Return the bytes of one unpacked padding value.

    Parameters
    ----------
    shape : Shape
    fill : number, optional
        Overrides the padding value of the layout. It must be a value of the element type; floating-point types round.

    Raises
    ------
    FastIndexError
        A number that the element type cannot hold.
    ArgumentTypeError
        Not one number.
    UnsupportedError
        The lowest or highest complex number.

    Examples
    --------
    >>> fill_pattern(Shape.parse("bf16[3]"), 1.0).hex(), fill_pattern(Shape.parse("f32[3]{0:PV(lowest)}")).hex()
    ('803f', '000080ff')
    """
    if fill is None:
        return _named_pattern(shape.element_type, shape.layout.padding_value or "zero")
    return _pattern_of(shape.element_type, fill)


def value_bytes(dtype: np.dtype[Any], fill: Any) -> bytes:
    """Return the bytes of one value of any dtype, whether XLA has it or not; zeros for None.

    Raises
    ------
    FastIndexError
        A number that an integer dtype cannot hold.
    ArgumentTypeError
        Not one value.

    Examples
    --------
    >>> value_bytes(np.dtype("<i2"), -2).hex(), value_bytes(np.dtype("S3"), None)
    ('feff', b'\\x00\\x00\\x00')
    """
    if fill is None:
        return bytes(dtype.itemsize)
    element_type = element_type_of(dtype)
    if element_type is not None:
        return np.frombuffer(_pattern_of(element_type, fill), element_type.numpy_dtype).astype(dtype).tobytes()
    try:
        value = np.asarray(fill)
        made = value.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentTypeError(f"fill must be a value of {dtype}, got {_shown(fill)}") from None
    wrong_kind = value.dtype.kind not in "SV" if dtype.kind == "V" else value.dtype.kind == "c" != dtype.kind
    if value.ndim or wrong_kind:
        raise ArgumentTypeError(f"fill must be one value of {dtype}, got {_shown(fill)}")
    if dtype.kind in "SU" and (value.dtype.kind not in "SU" or made.astype(value.dtype) != value):
        raise FastIndexError(f"fill must be text that {dtype} holds, got {_shown(fill)}")
    return made.tobytes()


def one_value(dtype: np.dtype[Any], fill: Any) -> Any:
    """Return `fill` as a value of any dtype, Python objects included; zero for None.

    Raises
    ------
    FastIndexError, ArgumentTypeError
        As `value_bytes`.

    Examples
    --------
    >>> one_value(np.dtype(">i2"), 3), one_value(np.dtype(object), None)
    (np.int16(3), 0)
    """
    if dtype.hasobject or not dtype.itemsize:
        return np.zeros((), dtype)[()] if fill is None else fill
    return np.frombuffer(value_bytes(dtype, fill), dtype)[0]


@lru_cache(maxsize=256)
def _named_pattern(element_type: ElementType, name: str) -> bytes:
    dtype = element_type.numpy_dtype
    if name == "zero":
        return bytes(dtype.itemsize)
    if name == "one":
        return np.ones((), dtype).tobytes()
    if dtype.kind == "c":
        raise UnsupportedError(f"PV({name}): {element_type} is complex and has no order; give fill= instead")
    if dtype.kind == "b":
        return np.array(name == "highest").tobytes()
    if element_type.is_integral:
        pattern: bytes = np.array(bounds_of(element_type)[name == "highest"]).astype(dtype).tobytes()
    else:
        pattern = _float_extreme(dtype, name).tobytes()
    return pattern


def _float_extreme(dtype: np.dtype[Any], name: str) -> Any:
    load("ml_dtypes")
    import ml_dtypes

    limits = ml_dtypes.finfo(dtype)
    infinity = np.array(np.inf if name == "highest" else -np.inf, np.float64)
    with np.errstate(all="ignore"):
        converted = infinity.astype(dtype)
    if np.isinf(converted.astype(np.float64)) and np.sign(converted.astype(np.float64)) == np.sign(infinity):
        return converted
    return np.array(limits.max if name == "highest" else limits.min, dtype)


def _pattern_of(element_type: ElementType, fill: Any) -> bytes:
    dtype = element_type.numpy_dtype
    if isinstance(fill, int) and (element_type.is_integral or dtype.kind == "b"):
        # Integers of any size, including those that no dtype holds.
        return _integer_pattern(element_type, fill)
    value = np.asarray(fill)
    try:
        if value.dtype.kind == "O" and isinstance(fill, int):
            value = np.asarray(float(fill))
    except OverflowError:
        raise FastIndexError(f"fill must be a number that {element_type} holds, got {_shown(fill)}") from None
    if value.ndim != 0 or value.dtype.kind not in "biufcV":
        raise ArgumentTypeError(f"fill must be one number, got {_shown(fill)}")
    if value.dtype.kind == "c" and dtype.kind != "c":
        raise ArgumentTypeError(f"fill must be a real number for {element_type}, got {_shown(fill)}")
    if value.dtype == dtype:
        return value.tobytes()
    if element_type.is_integral or dtype.kind == "b":
        return _integer_pattern(element_type, fill)
    with np.errstate(all="ignore"):
        return value.astype(dtype).tobytes()


def _integer_pattern(element_type: ElementType, fill: Any) -> bytes:
    low, high = bounds_of(element_type)
    try:
        number = int(fill)
    except (ValueError, OverflowError):
        # Not a number, or infinite.
        number = high + 1
    if number != fill or not low <= number <= high:
        raise FastIndexError(f"fill must be an integer from {low} to {high} for {element_type}, got {_shown(fill)}")
    return (number & (1 << element_type.bits) - 1).to_bytes(element_type.nbytes, "little")


def _shown(fill: Any) -> str:
    """Return the text of a caller's value for messages; Python refuses to print integers of thousands of digits."""
    if isinstance(fill, int) and fill.bit_length() > 256:
        return f"an integer of {fill.bit_length()} bits"
    text = repr(fill)
    return text if len(text) <= 80 else f"{text[:80]}..."
