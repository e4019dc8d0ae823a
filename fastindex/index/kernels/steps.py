"""The steps of index programs, each one vectorised pass over a block of elements.

In all functions, `at` points to the addresses of the variables' blocks, `step` to a step's numbers, and `count` is
the length of the block. `fastindex.index.numbers` defines the operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastindex.index import numbers as steps
from fastindex.runtime.kernels import subroutine
from fastindex.runtime.lines.memory import barrier, entry, load, pointer, store

_narrow_product = subroutine()(steps.narrow_product)
_narrow_quotient = subroutine()(steps.narrow_quotient)
_high_product = subroutine()(steps.high_product)
_wide_quotient = subroutine()(steps.wide_quotient)


@subroutine()
def _row(at: Any, step: Any, column: Any) -> Any:
    return pointer(entry(at, entry(step, column)))


@subroutine()
def _sum_of_two(at: Any, step: Any, count: Any) -> Any:
    x0, x1 = _row(at, step, steps.OPERAND), _row(at, step, steps.OPERAND + 1)
    c0, c1 = entry(step, steps.COEFFICIENT), entry(step, steps.COEFFICIENT + 1)
    target = _row(at, step, steps.TARGET)
    for i in range(count):
        store(target, i, _narrow_product(c0, load(x0, i)) + _narrow_product(c1, load(x1, i)))


@subroutine()
def _four(step: Any, column: Any) -> Any:
    return entry(step, column), entry(step, column + 1), entry(step, column + 2), entry(step, column + 3)


@subroutine()
def _four_rows(at: Any, step: Any, column: Any) -> Any:
    return _row(at, step, column), _row(at, step, column + 1), _row(at, step, column + 2), _row(at, step, column + 3)


@subroutine(inline=True)
def _values(rows: Any, i: Any) -> Any:
    x0, x1, x2, x3 = rows
    return load(x0, i), load(x1, i), load(x2, i), load(x3, i)


@subroutine(inline=True)
def beyond(value: Any, last: Any) -> Any:
    return np.uint64(value) > np.uint64(last)


@subroutine(inline=True)
def _any_beyond(values: Any, lasts: Any) -> Any:
    (v0, v1, v2, v3), (l0, l1, l2, l3) = values, lasts
    return beyond(v0, l0) | beyond(v1, l1) | beyond(v2, l2) | beyond(v3, l3)


@subroutine("wide", inline=True)
def _total(wide: Any, coefficients: Any, values: Any) -> Any:
    (c0, c1, c2, c3), (v0, v1, v2, v3) = coefficients, values
    if wide:
        return c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
    total = _narrow_product(c0, v0) + _narrow_product(c1, v1)
    return total + _narrow_product(c2, v2) + _narrow_product(c3, v3)


@subroutine(inline=True)
def _quotients(values: Any, magics: Any, shifts: Any) -> Any:
    (v0, v1, v2, v3), (m0, m1, m2, m3), (s0, s1, s2, s3) = values, magics, shifts
    first, second = _narrow_quotient(v0, m0, s0), _narrow_quotient(v1, m1, s1)
    return first, second, _narrow_quotient(v2, m2, s2), _narrow_quotient(v3, m3, s3)


@subroutine("wide")
def _sum_of_four(wide: Any, at: Any, step: Any, count: Any) -> Any:
    rows, target = _four_rows(at, step, steps.OPERAND), _row(at, step, steps.TARGET)
    coefficients, lasts = _four(step, steps.COEFFICIENT), _four(step, steps.LAST)
    outside = False
    for i in range(count):
        values = _values(rows, i)
        outside |= _any_beyond(values, lasts)
        store(target, i, _total(wide, coefficients, values))
    return outside


@subroutine()
def _sum_of_six(at: Any, step: Any, count: Any) -> Any:
    rows, target = _four_rows(at, step, steps.OPERAND), _row(at, step, steps.TARGET)
    x4, x5 = _row(at, step, steps.OPERAND + 4), _row(at, step, steps.OPERAND + 5)
    coefficients = _four(step, steps.COEFFICIENT)
    c4, c5 = entry(step, steps.COEFFICIENT + 4), entry(step, steps.COEFFICIENT + 5)
    for i in range(count):
        total = _total(False, coefficients, _values(rows, i))
        store(target, i, total + _narrow_product(c4, load(x4, i)) + _narrow_product(c5, load(x5, i)))


@subroutine()
def _sum_of_quotients(at: Any, step: Any, count: Any) -> Any:
    rows, divided = _four_rows(at, step, steps.OPERAND), _four_rows(at, step, steps.DIVIDED)
    coefficients, lasts, factors = _four(step, steps.COEFFICIENT), _four(step, steps.LAST), _four(step, steps.FACTOR)
    magics, shifts, target = _four(step, steps.MAGIC), _four(step, steps.SHIFT), _row(at, step, steps.TARGET)
    outside = False
    for i in range(count):
        values = _values(rows, i)
        outside |= _any_beyond(values, lasts)
        quotients = _quotients(_values(divided, i), magics, shifts)
        store(target, i, _total(False, coefficients, values) + _total(False, factors, quotients))
    return outside


@subroutine()
def _one_quotient(at: Any, step: Any, count: Any) -> Any:
    x0, x1, target = _row(at, step, steps.OPERAND), _row(at, step, steps.OPERAND + 1), _row(at, step, steps.TARGET)
    c0, c1 = entry(step, steps.COEFFICIENT), entry(step, steps.COEFFICIENT + 1)
    magic, shift, last = entry(step, steps.MAGIC), entry(step, steps.SHIFT), entry(step, steps.LAST)
    outside = False
    for i in range(count):
        value = load(x0, i)
        outside |= beyond(value, last)
        total = _narrow_product(c0, value) + _narrow_product(c1, load(x1, i))
        store(target, i, _narrow_quotient(total, magic, shift))
    return outside


@subroutine()
def _four_quotients(at: Any, step: Any, count: Any) -> Any:
    numerator, last = _row(at, step, steps.OPERAND), entry(step, steps.LAST)
    magics, shifts = _four(step, steps.MAGIC), _four(step, steps.SHIFT)
    t0, t1, t2, t3 = _four_rows(at, step, steps.TARGET)
    outside = False
    for i in range(count):
        value = load(numerator, i)
        outside |= beyond(value, last)
        q0, q1, q2, q3 = _quotients((value, value, value, value), magics, shifts)
        store(t0, i, q0)
        store(t1, i, q1)
        store(t2, i, q2)
        store(t3, i, q3)
    return outside


@subroutine()
def _one_wide_quotient(at: Any, step: Any, count: Any) -> Any:
    numerator, target = _row(at, step, steps.OPERAND), _row(at, step, steps.TARGET)
    magic, shift, last = entry(step, steps.MAGIC), entry(step, steps.SHIFT), entry(step, steps.LAST)
    outside = False
    for i in range(count):
        value = load(numerator, i)
        outside |= beyond(value, last)
        store(target, i, _wide_quotient(value, magic, shift))
    return outside


@subroutine()
def _check(at: Any, step: Any, count: Any) -> Any:
    rows, lasts, outside = _four_rows(at, step, steps.OPERAND), _four(step, steps.LAST), False
    for i in range(count):
        outside |= _any_beyond(_values(rows, i), lasts)
    return outside


@subroutine()
def _mark(at: Any, step: Any, count: Any) -> Any:
    rows, lasts, target = _four_rows(at, step, steps.OPERAND), _four(step, steps.LAST), _row(at, step, steps.TARGET)
    for i in range(count):
        store(target, i, -np.int64(_any_beyond(_values(rows, i), lasts)))


@subroutine()
def _marked(at: Any, step: Any, count: Any) -> Any:
    value, marks = _row(at, step, steps.OPERAND), _row(at, step, steps.OPERAND + 1)
    target = _row(at, step, steps.TARGET)
    for i in range(count):
        store(target, i, load(value, i) | load(marks, i))


@subroutine()
def run_step(at: Any, step: Any, count: Any) -> Any:
    """Run one step; return whether a check failed."""
    operation = entry(step, steps.OPERATION)
    outside = False
    if operation == steps.SUM_OF_QUOTIENTS:
        outside = _sum_of_quotients(at, step, count)
    elif operation == steps.SUM_OF_TWO:
        _sum_of_two(at, step, count)
    elif operation == steps.SUM_OF_FOUR:
        outside = _sum_of_four(False, at, step, count)
    elif operation == steps.SUM_OF_SIX:
        _sum_of_six(at, step, count)
    elif operation == steps.WIDE_SUM:
        outside = _sum_of_four(True, at, step, count)
    elif operation == steps.QUOTIENT:
        outside = _one_quotient(at, step, count)
    elif operation == steps.QUOTIENTS:
        outside = _four_quotients(at, step, count)
    elif operation == steps.WIDE_QUOTIENT:
        outside = _one_wide_quotient(at, step, count)
    elif operation == steps.CHECK:
        outside = _check(at, step, count)
    elif operation == steps.MARK:
        _mark(at, step, count)
    elif operation == steps.MARKED:
        _marked(at, step, count)
    barrier()
    return outside
