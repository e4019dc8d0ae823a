"""The CPU kernel of windows: each segment runs a program once, then adds its result to a table."""

from __future__ import annotations

from typing import Any

from fastindex.index.numbers import (
    COLLECTED,
    FORM_CONSTANT,
    FORM_FIRST_TERM,
    FORM_TERMS,
    INT64_BYTES,
    WINDOW,
    WINDOW_QUOTIENT,
    WINDOW_SIZES,
)
from fastindex.runtime.kernels import kernel, subroutine
from fastindex.runtime.lines.lines import copy_run
from fastindex.runtime.lines.memory import barrier, entry, fence, load, pointer, set_entry, store
from fastindex.runtime.numbers import LINE_BYTES


@subroutine()
def _sum(numbers: Any, form: Any, values: Any) -> Any:
    total = entry(numbers, form + FORM_CONSTANT)
    for term in range(entry(numbers, form + FORM_TERMS)):
        place = form + FORM_FIRST_TERM + 2 * term
        total += entry(values, entry(numbers, place)) * entry(numbers, place + 1)
    return total


@subroutine()
def _after_form(numbers: Any, form: Any) -> Any:
    return form + FORM_FIRST_TERM + 2 * entry(numbers, form + FORM_TERMS)


@subroutine()
def _steps_left(remainder: Any, divisor: Any, gain: Any) -> Any:
    """Count the steps up to the one at which the quotient changes."""
    if gain > 0:
        return (divisor - remainder + gain - 1) // gain
    return remainder // -gain + 1


@subroutine()
def _begin_segment(numbers: Any, values: Any, row: Any, step: Any, found: Any) -> Any:
    """Run the program; store the first value, the steps until a quotient changes, and the table in `found`."""
    axes = entry(numbers, WINDOW.outer_axes)
    number = row
    for axis in range(axes - 1, -1, -1):
        size = entry(numbers, WINDOW_SIZES + axis)
        above = number // size
        set_entry(values, axis, number - above * size)
        number = above
    set_entry(values, axes, step)
    steps = entry(numbers, WINDOW.row) // entry(numbers, WINDOW.unit) - step
    table = 0
    form = entry(numbers, WINDOW.forms)
    for j in range(entry(numbers, WINDOW.quotients)):
        numerator = _sum(numbers, form, values)
        form = _after_form(numbers, form)
        divisor = entry(numbers, form + WINDOW_QUOTIENT.divisor)
        quotient = numerator // divisor
        set_entry(values, axes + 1 + j, quotient)
        gain, weight = entry(numbers, form + WINDOW_QUOTIENT.gain), entry(numbers, form + WINDOW_QUOTIENT.weight)
        remainder = numerator - quotient * divisor
        if gain != 0:
            steps = min(steps, _steps_left(remainder, divisor, gain))
        if weight != 0:
            table += remainder // entry(numbers, form + WINDOW_QUOTIENT.spacing) * weight
        form += len(WINDOW_QUOTIENT)
    set_entry(found, 0, _sum(numbers, form, values))
    set_entry(found, 1, steps)
    set_entry(found, 2, table)
    barrier()


@subroutine()
def _add(target: Any, source: Any, base: Any, count: Any) -> Any:
    out, table = pointer(target), pointer(source)
    for i in range(count):
        store(out, i, load(table, i) + base)
    barrier()


@kernel
def run_window(numbers: Any, tables: Any, scratch: Any, target: Any, begin: Any, end: Any, streamed: Any) -> None:
    """Write the elements ``begin:end`` of a window.

    Parameters
    ----------
    numbers, tables : int64
        Addresses of the numbers and the table of a `WindowPlan`.
    scratch : int64
        Address of `window_scratch_size` numbers.
    target : int64
        Address of the first element of the window, the elements contiguous.
    begin, end : int64
    streamed : int64
        Whether to use non-temporal stores.
    """
    length, shift, unit = entry(numbers, WINDOW.table), entry(numbers, WINDOW.shift), entry(numbers, WINDOW.unit)
    row_length, counted = entry(numbers, WINDOW.row), entry(numbers, WINDOW.counted)
    collected = scratch + -scratch % LINE_BYTES
    found = collected + COLLECTED * INT64_BYTES
    values = found + LINE_BYTES
    # The first flush ends at a line boundary of the target, so that all others are whole lines.
    capacity = COLLECTED - (target + begin * INT64_BYTES) % LINE_BYTES // INT64_BYTES
    filled = 0
    position = begin
    while position < end:
        row = position // row_length
        offset = position - row * row_length
        step = offset // unit if counted else 0
        _begin_segment(numbers, values, row, step, found)
        skipped = offset - step * unit
        remaining = min(entry(found, 1) * unit - skipped, end - position)
        repetitions = skipped // length
        place = skipped - repetitions * length
        base = entry(found, 0) + repetitions * shift
        table = tables + entry(found, 2) * length * INT64_BYTES
        while remaining > 0:
            count = min(length - place, remaining)
            source = table + place * INT64_BYTES
            if streamed:
                count = min(count, capacity - filled)
                _add(collected + filled * INT64_BYTES, source, base, count)
                filled += count
                if filled == capacity:
                    copy_run(target + (position + count - filled) * INT64_BYTES, collected, filled * INT64_BYTES, True)
                    barrier()
                    filled, capacity = 0, COLLECTED
            else:
                _add(target + position * INT64_BYTES, source, base, count)
            position += count
            remaining -= count
            place += count
            if place == length:
                place = 0
                base += shift
    if filled > 0:
        copy_run(target + (end - filled) * INT64_BYTES, collected, filled * INT64_BYTES, True)
        barrier()
    fence()
