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
def _four_operands(at: Any, step: Any) -> Any:
    return (
        _row(at, step, steps.OPERAND),
        _row(at, step, steps.OPERAND + 1),
        _row(at, step, steps.OPERAND + 2),
        _row(at, step, steps.OPERAND + 3),
    )


@subroutine()
def _four(step: Any, column: Any) -> Any:
    return entry(step, column), entry(step, column + 1), entry(step, column + 2), entry(step, column + 3)


@subroutine()
def _sum_of_four(at: Any, step: Any, count: Any) -> Any:
    x0, x1, x2, x3 = _four_operands(at, step)
    c0, c1, c2, c3 = _four(step, steps.COEFFICIENT)
    l0, l1, l2, l3 = _four(step, steps.LAST)
    target = _row(at, step, steps.TARGET)
    outside = False
    for i in range(count):
        v0, v1, v2, v3 = load(x0, i), load(x1, i), load(x2, i), load(x3, i)
        outside |= beyond(v0, l0) | beyond(v1, l1) | beyond(v2, l2) | beyond(v3, l3)
        total = _narrow_product(c0, v0) + _narrow_product(c1, v1)
        store(target, i, total + _narrow_product(c2, v2) + _narrow_product(c3, v3))
    return outside


@subroutine()
def _wide_sum(at: Any, step: Any, count: Any) -> Any:
    x0, x1, x2, x3 = _four_operands(at, step)
    c0, c1, c2, c3 = _four(step, steps.COEFFICIENT)
    l0, l1, l2, l3 = _four(step, steps.LAST)
    target = _row(at, step, steps.TARGET)
    outside = False
    for i in range(count):
        v0, v1, v2, v3 = load(x0, i), load(x1, i), load(x2, i), load(x3, i)
        outside |= beyond(v0, l0) | beyond(v1, l1) | beyond(v2, l2) | beyond(v3, l3)
        store(target, i, c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3)
    return outside


@subroutine()
def beyond(value: Any, last: Any) -> Any:
    return np.uint64(value) > np.uint64(last)


@subroutine()
def _sum_of_six(at: Any, step: Any, count: Any) -> Any:
    x0, x1, x2, x3 = _four_operands(at, step)
    x4, x5 = _row(at, step, steps.OPERAND + 4), _row(at, step, steps.OPERAND + 5)
    c0, c1, c2, c3 = _four(step, steps.COEFFICIENT)
    c4, c5 = entry(step, steps.COEFFICIENT + 4), entry(step, steps.COEFFICIENT + 5)
    target = _row(at, step, steps.TARGET)
    for i in range(count):
        total = _narrow_product(c0, load(x0, i)) + _narrow_product(c1, load(x1, i))
        total += _narrow_product(c2, load(x2, i)) + _narrow_product(c3, load(x3, i))
        store(target, i, total + _narrow_product(c4, load(x4, i)) + _narrow_product(c5, load(x5, i)))


@subroutine()
def _sum_of_quotients(at: Any, step: Any, count: Any) -> Any:
    x0, x1, x2, x3 = _four_operands(at, step)
    c0, c1, c2, c3 = _four(step, steps.COEFFICIENT)
    l0, l1, l2, l3 = _four(step, steps.LAST)
    n0, n1 = _row(at, step, steps.DIVIDED), _row(at, step, steps.DIVIDED + 1)
    n2, n3 = _row(at, step, steps.DIVIDED + 2), _row(at, step, steps.DIVIDED + 3)
    m0, m1, m2, m3 = _four(step, steps.MAGIC)
    s0, s1, s2, s3 = _four(step, steps.SHIFT)
    f0, f1, f2, f3 = _four(step, steps.FACTOR)
    target = _row(at, step, steps.TARGET)
    outside = False
    for i in range(count):
        v0, v1, v2, v3 = load(x0, i), load(x1, i), load(x2, i), load(x3, i)
        outside |= beyond(v0, l0) | beyond(v1, l1) | beyond(v2, l2) | beyond(v3, l3)
        total = _narrow_product(c0, v0) + _narrow_product(c1, v1)
        total += _narrow_product(c2, v2) + _narrow_product(c3, v3)
        total += _narrow_product(f0, _narrow_quotient(load(n0, i), m0, s0))
        total += _narrow_product(f1, _narrow_quotient(load(n1, i), m1, s1))
        total += _narrow_product(f2, _narrow_quotient(load(n2, i), m2, s2))
        total += _narrow_product(f3, _narrow_quotient(load(n3, i), m3, s3))
        store(target, i, total)
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
    m0, m1, m2, m3 = _four(step, steps.MAGIC)
    s0, s1, s2, s3 = _four(step, steps.SHIFT)
    t0, t1 = _row(at, step, steps.TARGET), _row(at, step, steps.TARGET + 1)
    t2, t3 = _row(at, step, steps.TARGET + 2), _row(at, step, steps.TARGET + 3)
    outside = False
    for i in range(count):
        value = load(numerator, i)
        outside |= beyond(value, last)
        store(t0, i, _narrow_quotient(value, m0, s0))
        store(t1, i, _narrow_quotient(value, m1, s1))
        store(t2, i, _narrow_quotient(value, m2, s2))
        store(t3, i, _narrow_quotient(value, m3, s3))
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
    x0, x1, x2, x3 = _four_operands(at, step)
    l0, l1, l2, l3 = _four(step, steps.LAST)
    outside = False
    for i in range(count):
        outside |= beyond(load(x0, i), l0) | beyond(load(x1, i), l1)
        outside |= beyond(load(x2, i), l2) | beyond(load(x3, i), l3)
    return outside


@subroutine()
def _mark(at: Any, step: Any, count: Any) -> Any:
    x0, x1, x2, x3 = _four_operands(at, step)
    l0, l1, l2, l3 = _four(step, steps.LAST)
    target = _row(at, step, steps.TARGET)
    for i in range(count):
        outside = beyond(load(x0, i), l0) | beyond(load(x1, i), l1)
        outside |= beyond(load(x2, i), l2) | beyond(load(x3, i), l3)
        store(target, i, -np.int64(outside))


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
        outside = _sum_of_four(at, step, count)
    elif operation == steps.SUM_OF_SIX:
        _sum_of_six(at, step, count)
    elif operation == steps.WIDE_SUM:
        outside = _wide_sum(at, step, count)
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
