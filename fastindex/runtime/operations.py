"""Values of kernels and Python's operations on them, as LLVM instructions.

A value is a Python object if it is known, else an LLVM value (int64, boolean, pointer), or a tuple of values.
Operations on known numbers give known numbers. Numbers are int64 as NumPy's: they wrap, and divisions round down.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils

_BOOL, _INT32, _INT64 = (ir.IntType(bits) for bits in (1, 32, 64))
_MASK = (1 << 64) - 1

_COMPARISONS: dict[Any, str] = {
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
_BITS = {operator.and_: "and_", operator.or_: "or_", operator.xor: "xor"}
_ARITHMETIC = {operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.lshift: "shl"}


class Unsigned(NamedTuple):
    """A uint64, which kernels write as ``np.uint64(number)``."""

    value: Any


# Values


def is_known(value: Any) -> bool:
    return not isinstance(value, (ir.Value, tuple))


def in_registers(value: Any) -> Any:
    """Return a value with its known numbers as LLVM constants."""
    if isinstance(value, Unsigned):
        return Unsigned(in_registers(value.value))
    if isinstance(value, tuple):
        return tuple(map(in_registers, value))
    if isinstance(value, bool):
        return _BOOL(int(value))
    return _INT64(value) if isinstance(value, int) else value


def kind_of(value: Any) -> Hashable:
    """Return what distinguishes the machine code for a value: a type, the types of a tuple, or a known object."""
    if isinstance(value, tuple):
        return (type(value) is Unsigned, *map(kind_of, value))
    return value.type if isinstance(value, ir.Value) else (type(value), value)


def flat(value: Any) -> Iterator[Any]:
    """Yield the LLVM values of a value."""
    if isinstance(value, tuple):
        for one in value:
            yield from flat(one)
    elif isinstance(value, ir.Value):
        yield value


def like(value: Any, flat: Iterator[Any]) -> Any:
    """Return a value with its LLVM values replaced."""
    if isinstance(value, Unsigned):
        return Unsigned(next(flat))
    if isinstance(value, tuple):
        return tuple(like(one, flat) for one in value)
    return next(flat) if isinstance(value, ir.Value) else value


def as_int64(builder: Any, value: Any) -> Any:
    """Return a number or boolean as an LLVM int64; other values as they are."""
    value = in_registers(value)
    return builder.zext(value, _INT64) if isinstance(value, ir.Value) and value.type == _BOOL else value


def common(values: Sequence[Any]) -> Any:
    """Return a value of the type that several have in common; None where known objects are the same for all."""
    first = values[0]
    if isinstance(first, Unsigned):
        return first
    if isinstance(first, tuple):
        return tuple(common(parts) for parts in zip(*values, strict=True))
    return _INT64(0) if any(one.type == _INT64 for one in values) else first


def converted(builder: Any, value: Any, wanted: Any) -> Any:
    """Return a value as one of the type of another: booleans become numbers where the other is one."""
    if isinstance(wanted, Unsigned):
        return Unsigned(in_registers(value).value)
    if isinstance(wanted, tuple):
        return tuple(converted(builder, *pair) for pair in zip(value, wanted, strict=True))
    value = as_int64(builder, value) if wanted.type == _INT64 else in_registers(value)
    if value.type != wanted.type:
        raise TypeError(f"a value of type {value.type} cannot become {wanted.type}")
    return value


# Operations


def truth(builder: Any, value: Any) -> Any:
    if is_known(value):
        return bool(value)
    return value if value.type == _BOOL else builder.icmp_unsigned("!=", value, value.type(0))


def binary(builder: Any, function: Any, left: Any, right: Any) -> Any:
    if isinstance(left, Unsigned):
        return _of_unsigned(builder, function, left.value, right.value)
    if is_known(left) and is_known(right):
        return function(left, right)
    bits = _BITS.get(function)
    if bits:
        pair = in_registers(left), in_registers(right)
        if pair[0].type != pair[1].type:
            pair = as_int64(builder, left), as_int64(builder, right)
        return getattr(builder, bits)(*pair)
    if function in (operator.floordiv, operator.mod):
        return _divided(builder, left, right)[function is operator.mod]
    pair = as_int64(builder, left), as_int64(builder, right)
    if function in _COMPARISONS:
        return builder.icmp_signed(_COMPARISONS[function], *pair)
    if function is operator.rshift:
        return builder.ashr(*pair)
    return getattr(builder, _ARITHMETIC[function])(*pair)


def _of_unsigned(builder: Any, function: Any, left: Any, right: Any) -> Any:
    if is_known(left) and is_known(right):
        found = function(left, right)
        return found if function in _COMPARISONS else Unsigned(found & _MASK)
    left, right = in_registers(left), in_registers(right)
    if function in _COMPARISONS:
        return builder.icmp_unsigned(_COMPARISONS[function], left, right)
    names = {operator.rshift: "lshr", operator.floordiv: "udiv", operator.mod: "urem"}
    return Unsigned(getattr(builder, _BITS.get(function) or names.get(function) or _ARITHMETIC[function])(left, right))


def _divided(builder: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """Return a quotient rounded down and its remainder, as Python does; both are 0 where they are not defined."""
    if is_known(left) and is_known(right):
        return left // right, left % right
    number, divisor, zero = as_int64(builder, left), as_int64(builder, right), _INT64(0)
    if is_known(right) and right > 0 and right & (right - 1) == 0:
        return builder.ashr(number, _INT64(right.bit_length() - 1)), builder.and_(number, _INT64(right - 1))
    if is_known(right) and right not in (0, -1):
        return _rounded_down(builder, number, divisor)
    places = [cgutils.alloca_once(builder, _INT64) for _ in range(2)]
    for place in places:
        builder.store(zero, place)
    is_overflow = builder.and_(
        builder.icmp_signed("==", number, _INT64(-1 << 63)), builder.icmp_signed("==", divisor, _INT64(-1))
    )
    is_undefined = builder.or_(builder.icmp_signed("==", divisor, zero), is_overflow)
    with builder.if_then(builder.not_(is_undefined), likely=True):
        for found, place in zip(_rounded_down(builder, number, divisor), places, strict=True):
            builder.store(found, place)
    return builder.load(places[0]), builder.load(places[1])


def _rounded_down(builder: Any, number: Any, divisor: Any) -> tuple[Any, Any]:
    quotient, remainder = builder.sdiv(number, divisor), builder.srem(number, divisor)
    differ = builder.icmp_signed("<", builder.xor(divisor, remainder), _INT64(0))
    is_below = builder.and_(builder.icmp_signed("!=", remainder, _INT64(0)), differ)
    lowered = builder.sub(quotient, builder.zext(is_below, _INT64))
    return lowered, builder.add(remainder, builder.select(is_below, divisor, _INT64(0)))


def unary(builder: Any, function: Any, value: Any) -> Any:
    if is_known(value):
        return function(value)
    if function is operator.not_:
        return builder.not_(truth(builder, value))
    number = as_int64(builder, value)
    return builder.not_(number) if function is operator.invert else builder.neg(number)


def _least(builder: Any, sign: str, values: Sequence[Any]) -> Any:
    found = values[0]
    for value in values[1:]:
        if is_known(found) and is_known(value):
            found = min(found, value) if sign == "<" else max(found, value)
        else:
            pair = as_int64(builder, found), as_int64(builder, value)
            found = builder.select(builder.icmp_signed(sign, *pair), *pair)
    return found


def _signed(builder: Any, value: Any) -> Any:
    if isinstance(value, Unsigned):
        value = value.value
    return int(np.uint64(value & _MASK).astype(np.int64)) if is_known(value) else as_int64(builder, value)


def _int32(builder: Any, value: Any) -> Any:
    """Return the low half of a number, as a number."""
    return builder.sext(builder.trunc(as_int64(builder, value), _INT32), _INT64)


def _unsigned(builder: Any, value: Any) -> Any:
    return Unsigned(value & _MASK if is_known(value) else as_int64(builder, value))


def _absolute(builder: Any, value: Any) -> Any:
    return _least(builder, ">", (value, unary(builder, operator.neg, value)))


class _Range:
    """The state of a loop over a range, in memory on the stack: the next number, and how many remain.

    LLVM unrolls loops that count; it did not where the count had to be derived from the bounds.
    """

    def __init__(self, builder: Any, *numbers: Any) -> None:
        first, last = numbers[:2] if len(numbers) > 1 else (0, numbers[0])
        self.step = numbers[2] if len(numbers) > 2 else 1
        distance = binary(builder, operator.sub, last, first)
        if is_known(self.step) and self.step > 0:
            distance = binary(builder, operator.add, distance, self.step - 1)
            count = _divided(builder, distance, self.step)[0]
        else:
            # Rounded up, for either sign.
            down = _divided(builder, unary(builder, operator.neg, distance), self.step)[0]
            count = unary(builder, operator.neg, down)
        self.places = [cgutils.alloca_once(builder, _INT64) for _ in range(2)]
        for place, one in zip(self.places, (first, count), strict=True):
            builder.store(as_int64(builder, one), place)

    def next(self, builder: Any) -> tuple[Any, Any]:
        """Return the next number, and whether there is one."""
        number, count = map(builder.load, self.places)
        for place, found, change in zip(self.places, (number, count), (self.step, -1), strict=True):
            builder.store(binary(builder, operator.add, found, change), place)
        return number, builder.icmp_signed(">", count, _INT64(0))


class Items:
    """The state of a loop over a tuple, whose values have one type: in memory on the stack."""

    def __init__(self, builder: Any, values: Sequence[Any]) -> None:
        self._first, self._count = in_registers(values[0]), _INT64(len(values))
        columns = zip(*(flat((in_registers(value),)) for value in values), strict=True)
        self._columns = [self._stored(builder, column) for column in columns]
        self._place = cgutils.alloca_once(builder, _INT64)
        builder.store(_INT64(0), self._place)

    @staticmethod
    def _stored(builder: Any, column: Sequence[Any]) -> Any:
        memory = cgutils.alloca_once(builder, column[0].type, size=_INT64(len(column) + 1))
        for number, value in enumerate(column):
            builder.store(value, builder.gep(memory, [_INT64(number)]))
        return memory

    def next(self, builder: Any) -> tuple[Any, Any]:
        """Return the next value, and whether there is one; otherwise the value is undefined."""
        number = builder.load(self._place)
        builder.store(builder.add(number, _INT64(1)), self._place)
        flat = (builder.load(builder.gep(memory, [number])) for memory in self._columns)
        return like(self._first, flat), builder.icmp_signed("<", number, self._count)


BUILT_IN: dict[Any, Callable[..., Any]] = {
    bool: truth,
    range: _Range,
    divmod: _divided,
    abs: _absolute,
    len: lambda builder, values: len(values),
    min: lambda builder, *values: _least(builder, "<", values),
    max: lambda builder, *values: _least(builder, ">", values),
    np.int64: _signed,
    np.int32: _int32,
    np.uint64: _unsigned,
}
