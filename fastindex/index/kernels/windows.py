"""The CPU kernel of windows: each segment runs a program once, then adds its result to a table."""

from __future__ import annotations

from typing import Any

from fastindex.index.numbers import INT64_BYTES
from fastindex.index.window_numbers import (
    APART,
    COLLECTED,
    CONSTANT,
    COUNTED,
    COUNTS,
    DIVISOR,
    FIRST_TERM,
    FORMS,
    GAIN,
    OUTER_AXES,
    QUOTIENT_NUMBERS,
    QUOTIENTS,
    ROW,
    SHIFT,
    TABLE,
    TERMS,
    UNIT,
    WEIGHT,
)
from fastindex.runtime.kernels import inlined, kernel
from fastindex.runtime.lines.lines import copy_run
from fastindex.runtime.lines.memory import barrier, entry, fence, load, pointer, set_entry, store
from fastindex.runtime.numbers import LINE_BYTES


@inlined
def _sum(numbers: Any, form: Any, values: Any) -> Any:
    total = entry(numbers, form + CONSTANT)
    for term in range(entry(numbers, form + TERMS)):
        place = form + FIRST_TERM + 2 * term
        total += entry(values, entry(numbers, place)) * entry(numbers, place + 1)
    return total


@inlined
def _behind(numbers: Any, form: Any) -> Any:
    return form + FIRST_TERM + 2 * entry(numbers, form + TERMS)


@inlined
def _steps_left(remainder: Any, divisor: Any, gain: Any) -> Any:
    """Count the steps up to the one at which the quotient changes."""
    if gain > 0:
        return (divisor - remainder + gain - 1) // gain
    return remainder // -gain + 1


@inlined
def _begin_segment(numbers: Any, values: Any, row: Any, step: Any, found: Any) -> Any:
    """Run the program; store the first value, the steps until a quotient changes, and the table in `found`."""
    axes = entry(numbers, OUTER_AXES)
    rest = row
    for axis in range(axes - 1, -1, -1):
        size = entry(numbers, COUNTS + axis)
        above = rest // size
        set_entry(values, axis, rest - above * size)
        rest = above
    set_entry(values, axes, step)
    steps = entry(numbers, ROW) // entry(numbers, UNIT) - step
    table = 0
    form = entry(numbers, FORMS)
    for j in range(entry(numbers, QUOTIENTS)):
        numerator = _sum(numbers, form, values)
        form = _behind(numbers, form)
        divisor = entry(numbers, form + DIVISOR)
        quotient = numerator // divisor
        set_entry(values, axes + 1 + j, quotient)
        gain, weight = entry(numbers, form + GAIN), entry(numbers, form + WEIGHT)
        remainder = numerator - quotient * divisor
        if gain != 0:
            steps = min(steps, _steps_left(remainder, divisor, gain))
        if weight != 0:
            table += remainder // entry(numbers, form + APART) * weight
        form += QUOTIENT_NUMBERS
    set_entry(found, 0, _sum(numbers, form, values))
    set_entry(found, 1, steps)
    set_entry(found, 2, table)
    barrier()


@inlined
def _add(target: Any, source: Any, base: Any, count: Any) -> Any:
    to, table = pointer(target), pointer(source)
    for i in range(count):
        store(to, i, load(table, i) + base)
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
    length, shift, unit = entry(numbers, TABLE), entry(numbers, SHIFT), entry(numbers, UNIT)
    row_length, counted = entry(numbers, ROW), entry(numbers, COUNTED)
    collected = scratch + -scratch % LINE_BYTES
    found = collected + COLLECTED * INT64_BYTES
    values = found + LINE_BYTES
    # The first flush ends at a line boundary of the target, so that all others are whole lines.
    room = COLLECTED - (target + begin * INT64_BYTES) % LINE_BYTES // INT64_BYTES
    filled = 0
    position = begin
    while position < end:
        row = position // row_length
        offset = position - row * row_length
        step = offset // unit if counted else 0
        _begin_segment(numbers, values, row, step, found)
        skipped = offset - step * unit
        left = min(entry(found, 1) * unit - skipped, end - position)
        turns = skipped // length
        place = skipped - turns * length
        base = entry(found, 0) + turns * shift
        table = tables + entry(found, 2) * length * INT64_BYTES
        while left > 0:
            count = min(length - place, left)
            source = table + place * INT64_BYTES
            if streamed:
                count = min(count, room - filled)
                _add(collected + filled * INT64_BYTES, source, base, count)
                filled += count
                if filled == room:
                    copy_run(target + (position + count - filled) * INT64_BYTES, collected, filled * INT64_BYTES, True)
                    barrier()
                    filled, room = 0, COLLECTED
            else:
                _add(target + position * INT64_BYTES, source, base, count)
            position += count
            left -= count
            place += count
            if place == length:
                place = 0
                base += shift
    if filled > 0:
        copy_run(target + (end - filled) * INT64_BYTES, collected, filled * INT64_BYTES, True)
        barrier()
    fence()
