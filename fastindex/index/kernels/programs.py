"""The CPU kernels of index programs and of windows: one compilation runs every program on every kind of array.

Elements are processed in blocks that stay in L1: the inputs of a block are read, each step of the program's table
passes over it once, and the outputs are written. Contiguous int64 input is used in place; everything else is converted
into a row. Large contiguous output is written with non-temporal stores, a cache line at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastindex.index.kernels.steps import beyond, run_step
from fastindex.index.numbers import (
    COLLECTED,
    COLUMNS,
    COUNTED,
    FORM_CONSTANT,
    FORM_FIRST_TERM,
    FORM_TERMS,
    HEADER,
    INT64_BYTES,
    LINE,
    RAISE,
    SWAPPED,
    WINDOW,
    WINDOW_QUOTIENT,
    WINDOW_SIZES,
    WRAP,
    block_length,
)
from fastindex.runtime.kernels import kernel, subroutine
from fastindex.runtime.lines.lines import copy_run
from fastindex.runtime.lines.memory import (
    barrier,
    entry,
    fence,
    gather_line,
    load,
    load_stored,
    pointer,
    prefetch,
    set_entry,
    store,
)
from fastindex.runtime.numbers import LINE_BYTES

# The record of an operand: address, storage code, what happens out of bounds, bound, whether it is contiguous in the
# order of the axes, strides.
ADDRESS = 0
CODE = 1
TREATMENT = 2
INPUT_BOUND = 3
FLAT = 4
STRIDES = 5

#: Up to this stride, in int64, neighbours share cache lines.
_MOST_STRIDE = 8

#: Prefetch distance for such strides, in elements.
_PREFETCH_DISTANCE = 256


# Reading input


@subroutine()
def _load_any(source: Any, offset: Any, code: Any) -> Any:
    """Read one integer stored as `code`, bytes swapped or not."""
    if code >= SWAPPED:
        size = INT64_BYTES >> ((code - SWAPPED) // 2)
        value = np.uint64(0)
        for k in range(size):
            byte = np.uint64(load_stored(source, offset + k, 7))
            value = (value << np.uint64(8)) | byte
        spare = np.uint64(64 - 8 * size)
        if (code - SWAPPED) % 2 == 0:
            return np.int64(value << spare) >> np.int64(spare)
        return np.int64(value)
    return load_stored(source, offset, code)


@subroutine()
def _load_strided(row: Any, begin: Any, count: Any, address: Any, offset: Any, stride: Any) -> Any:
    """Copy `count` int64, `stride` bytes apart, to ``row[begin:]``; strides of 2 to 4 int64 read whole lines."""
    done, source = 0, pointer(address)
    if 0 < stride <= _MOST_STRIDE * INT64_BYTES:
        start = address + offset + _PREFETCH_DISTANCE * stride
        for k in range(count * stride // LINE_BYTES):
            prefetch(start + k * LINE_BYTES)
    if stride == 2 * INT64_BYTES:
        while done + LINE <= count:
            gather_line(row, begin + done, source, offset + stride * done, 2)
            done += LINE
    elif stride == 3 * INT64_BYTES:
        while done + LINE <= count:
            gather_line(row, begin + done, source, offset + stride * done, 3)
            done += LINE
    elif stride == 4 * INT64_BYTES:
        while done + LINE <= count:
            gather_line(row, begin + done, source, offset + stride * done, 4)
            done += LINE
    for i in range(done, count):
        store(row, begin + i, load_stored(source, offset + stride * i, 0))


@subroutine()
def _load_run(row: Any, begin: Any, count: Any, address: Any, offset: Any, stride: Any, code: Any) -> Any:
    """Copy `count` numbers, `stride` bytes apart, to ``row[begin:]``."""
    source = pointer(address)
    if code == COUNTED:
        for i in range(count):
            store(row, begin + i, offset + stride * i)
    elif stride == 0:
        value = _load_any(source, offset, code)
        for i in range(count):
            store(row, begin + i, value)
    elif code < 2 and stride == 8:
        for i in range(count):
            store(row, begin + i, load_stored(source, offset + 8 * i, 0))
    elif code < 2:
        _load_strided(row, begin, count, address, offset, stride)
    elif code == 2 and stride == 4:
        for i in range(count):
            store(row, begin + i, load_stored(source, offset + 4 * i, 2))
    elif code == 3 and stride == 4:
        for i in range(count):
            store(row, begin + i, load_stored(source, offset + 4 * i, 3))
    else:
        for i in range(count):
            store(row, begin + i, _load_any(source, offset + stride * i, code))


@subroutine()
def _load_block(row: Any, begin: Any, count: Any, axes: Any, sizes: Any, operand: Any, code: Any) -> Any:
    """Copy the elements ``begin:begin + count`` of an array, in the order of its axes, to `row`.

    `operand` holds the array's address and, from `STRIDES` on, its strides in bytes.
    """
    address = entry(operand, ADDRESS)
    last = axes - 1
    outer = begin // entry(sizes, last)
    position = begin - outer * entry(sizes, last)
    done = 0
    while done < count:
        run = min(entry(sizes, last) - position, count - done)
        offset = _outer_offset(outer, axes, sizes, operand) + position * entry(operand, STRIDES + last)
        if code == COUNTED:
            offset += entry(operand, ADDRESS)
        _load_run(row, done, run, address, offset, entry(operand, STRIDES + last), code)
        done += run
        position = 0
        outer += 1


@subroutine()
def _outer_offset(outer: Any, axes: Any, sizes: Any, operand: Any) -> Any:
    """Return the offset in bytes of run number `outer` along the last axis."""
    offset = 0
    for axis in range(axes - 2, -1, -1):
        above = outer // entry(sizes, axis)
        offset += (outer - above * entry(sizes, axis)) * entry(operand, STRIDES + axis)
        outer = above
    return offset


@subroutine()
def _any_beyond(row: Any, count: Any, last: Any) -> Any:
    outside = False
    for i in range(count):
        outside |= beyond(load(row, i), last)
    return outside


@subroutine()
def _wrap(row: Any, source: Any, count: Any, bound: Any, unsigned: Any) -> Any:
    for i in range(count):
        value = entry(source, i)
        if beyond(value, bound - 1):
            value = np.int64(np.uint64(value) % np.uint64(bound)) if unsigned else value % bound
        store(row, i, value)


@subroutine()
def _clip(row: Any, source: Any, count: Any, bound: Any, unsigned: Any) -> Any:
    for i in range(count):
        value = entry(source, i)
        if beyond(value, bound - 1):
            value = 0 if value < 0 and not unsigned else bound - 1
        store(row, i, value)


@subroutine()
def read_input(row: Any, begin: Any, count: Any, axes: Any, sizes: Any, operand: Any) -> Any:
    """Return the address of a block of an input: in its array where it can be used in place, else `row`."""
    code, flat = entry(operand, CODE), entry(operand, FLAT)
    place = row
    if flat and code < 2:
        place = entry(operand, ADDRESS) + begin * INT64_BYTES
    elif flat:
        stride = entry(operand, STRIDES + axes - 1)
        _load_run(pointer(row), 0, count, entry(operand, ADDRESS), begin * stride, stride, code)
    else:
        _load_block(pointer(row), begin, count, axes, sizes, operand, code)
    barrier()
    treatment, bound = entry(operand, TREATMENT), entry(operand, INPUT_BOUND)
    if treatment == RAISE or not _any_beyond(pointer(place), count, bound - 1):
        return place
    unsigned = code < COUNTED and code % 2 == 1
    if treatment == WRAP:
        _wrap(pointer(row), pointer(place), count, bound, unsigned)
    else:
        _clip(pointer(row), pointer(place), count, bound, unsigned)
    barrier()
    return row


# Writing output


@subroutine()
def _store_block(source: Any, begin: Any, count: Any, axes: Any, sizes: Any, operand: Any) -> Any:
    """Copy a block to an array with strides."""
    from_row = pointer(source)
    last = axes - 1
    outer = begin // entry(sizes, last)
    position = begin - outer * entry(sizes, last)
    done = 0
    while done < count:
        run = min(entry(sizes, last) - position, count - done)
        offset = _outer_offset(outer, axes, sizes, operand) + position * entry(operand, STRIDES + last)
        to = pointer(entry(operand, ADDRESS) + offset)
        stride = entry(operand, STRIDES + last)
        if stride == INT64_BYTES:
            for i in range(run):
                store(to, i, load(from_row, done + i))
        else:
            for i in range(run):
                store(pointer(entry(operand, ADDRESS) + offset + stride * i), 0, load(from_row, done + i))
        done += run
        position = 0
        outer += 1


@subroutine()
def write_output(row: Any, begin: Any, count: Any, axes: Any, sizes: Any, operand: Any, streamed: Any) -> Any:
    if streamed and entry(operand, FLAT):
        copy_run(entry(operand, ADDRESS) + begin * INT64_BYTES, row, count * INT64_BYTES, True)
    else:
        _store_block(row, begin, count, axes, sizes, operand)
    barrier()


# The kernel


_block_length = subroutine()(block_length)


@subroutine()
def _first_count(block: Any, begin: Any, streamed: Any, outputs: Any, operand: Any) -> Any:
    """Return the length of the first block, such that later ones start at a cache line of the first output."""
    if streamed == 0 or outputs == 0:
        return block
    ahead = -(entry(pointer(operand), ADDRESS) + begin * INT64_BYTES) % LINE_BYTES // INT64_BYTES
    return block if ahead == 0 else ahead


@kernel
def run_program(program: Any, arrays: Any, scratch: Any, begin: Any, end: Any) -> Any:
    """Run a program over the elements ``begin:end`` of its arrays.

    Parameters
    ----------
    program : int64
        Address of the numbers of a `StepTable`.
    arrays : int64
        Address of the number of axes over which all arrays run; whether contiguous output is written with non-temporal
        stores; the sizes of the axes, the last one fastest. Then the record of each input and each output, with a
        stride in bytes for each axis.
    scratch : int64
        Address of `scratch_size` numbers.
    begin, end : int64

    Returns
    -------
    int64
        -1, or the first element of the first block with an input out of bounds or a failed check; nothing
        from there on has been written.
    """
    numbers = pointer(program)
    inputs, outputs = entry(numbers, 0), entry(numbers, 1)
    variables, steps = entry(numbers, 2), entry(numbers, 3)
    first_step = program + (HEADER + outputs) * INT64_BYTES
    axes, streamed = entry(pointer(arrays), 0), entry(pointer(arrays), 1)
    sizes = pointer(arrays + 2 * INT64_BYTES)
    operands = arrays + (2 + axes) * INT64_BYTES
    operand_bytes = (STRIDES + axes) * INT64_BYTES
    at = pointer(scratch)
    rows = scratch + variables * INT64_BYTES
    rows += -rows % LINE_BYTES
    block = _block_length(variables)
    row_bytes = block * INT64_BYTES
    for variable in range(variables):
        store(at, variable, rows + variable * row_bytes)
    barrier()
    position = begin
    count = min(_first_count(block, begin, streamed, outputs, operands + inputs * operand_bytes), end - begin)
    while position < end:
        for k in range(inputs):
            operand = pointer(operands + k * operand_bytes)
            store(at, k, read_input(rows + k * row_bytes, position, count, axes, sizes, operand))
            barrier()
        for k in range(steps):
            if run_step(at, pointer(first_step + k * COLUMNS * INT64_BYTES), count):
                fence()
                return position
        for k in range(outputs):
            operand = pointer(operands + (inputs + k) * operand_bytes)
            row = entry(at, entry(numbers, HEADER + k))
            write_output(row, position, count, axes, sizes, operand, streamed)
        position += count
        count = min(block, end - position)
    fence()
    return -1


# Windows: each segment runs a program once, then adds its result to a table


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
