"""The CPU kernel of index programs: one compilation runs every program on every kind of array.

The elements are taken in blocks that stay in the nearest cache. Each step of the program's table is one vectorised
pass over a block. Contiguous int64 input is read where it lies, other input is converted block by block; large
contiguous output is written past the cache, a line at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastindex.kernels import element
from fastindex.kernels.compilation import inlined, kernel
from fastindex.kernels.index_table import (
    CHECK,
    COEFFICIENT,
    COLUMNS,
    DIVIDED,
    FACTOR,
    HEADER,
    LAST,
    MAGIC,
    MARK,
    MARKED,
    OPERAND,
    OPERATION,
    QUOTIENT,
    QUOTIENTS,
    SHIFT,
    SUM_OF_FOUR,
    SUM_OF_QUOTIENTS,
    SUM_OF_SIX,
    SUM_OF_TWO,
    TARGET,
    WIDE_QUOTIENT,
)
from fastindex.kernels.memory import STORED, barrier, load, load_stored, pointer, publish, read, store, stream

# How inputs are stored, beyond the codes of `memory.STORED`.
SWAPPED = len(STORED)  # added to a code: bytes in the other order
COUNTED = 2 * SWAPPED  # no memory at all: the "address" is a number, the "strides" are steps

# What describes an operand: address, code of how it is stored, what happens out of bounds, bound, whether its
# elements follow each other in the order of the axes, strides.
ADDRESS = 0
CODE = 1
TREATMENT = 2
INPUT_BOUND = 3
FLAT = 4
STRIDES = 5

# What happens to an input outside its bounds.
RAISE = 0
WRAP = 1
CLIP = 2

_narrow_quotient = inlined(element.narrow_quotient)
_high_product = inlined(element.high_product)
_wide_quotient = inlined(element.wide_quotient)

_INT64_BYTES = 8
_LINE_BYTES = 64
_LINE = 8


# Steps: one pass over a block. `at` points to the addresses of the variables' blocks, `step` to a step's numbers.


@inlined
def _row(at: Any, step: Any, column: Any) -> Any:
    return pointer(read(at, read(step, column)))


@inlined
def _sum_of_two(at: Any, step: Any, count: Any) -> Any:
    x0, x1 = _row(at, step, OPERAND), _row(at, step, OPERAND + 1)
    c0, c1 = read(step, COEFFICIENT), read(step, COEFFICIENT + 1)
    target = _row(at, step, TARGET)
    for i in range(count):
        store(target, i, c0 * load(x0, i) + c1 * load(x1, i))


@inlined
def _four_operands(at: Any, step: Any) -> Any:
    return (
        _row(at, step, OPERAND),
        _row(at, step, OPERAND + 1),
        _row(at, step, OPERAND + 2),
        _row(at, step, OPERAND + 3),
    )


@inlined
def _four(step: Any, column: Any) -> Any:
    return read(step, column), read(step, column + 1), read(step, column + 2), read(step, column + 3)


@inlined
def _sum_of_four(at: Any, step: Any, count: Any) -> Any:
    x0, x1, x2, x3 = _four_operands(at, step)
    c0, c1, c2, c3 = _four(step, COEFFICIENT)
    l0, l1, l2, l3 = _four(step, LAST)
    target = _row(at, step, TARGET)
    outside = False
    for i in range(count):
        v0, v1, v2, v3 = load(x0, i), load(x1, i), load(x2, i), load(x3, i)
        outside |= _beyond(v0, l0) | _beyond(v1, l1) | _beyond(v2, l2) | _beyond(v3, l3)
        store(target, i, c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3)
    return outside


@inlined
def _beyond(value: Any, last: Any) -> Any:
    return np.uint64(value) > np.uint64(last)


@inlined
def _sum_of_six(at: Any, step: Any, count: Any) -> Any:
    x0, x1, x2, x3 = _four_operands(at, step)
    x4, x5 = _row(at, step, OPERAND + 4), _row(at, step, OPERAND + 5)
    c0, c1, c2, c3 = _four(step, COEFFICIENT)
    c4, c5 = read(step, COEFFICIENT + 4), read(step, COEFFICIENT + 5)
    target = _row(at, step, TARGET)
    for i in range(count):
        total = c0 * load(x0, i) + c1 * load(x1, i) + c2 * load(x2, i)
        store(target, i, total + c3 * load(x3, i) + c4 * load(x4, i) + c5 * load(x5, i))


@inlined
def _sum_of_quotients(at: Any, step: Any, count: Any) -> Any:
    x0, x1, x2, x3 = _four_operands(at, step)
    c0, c1, c2, c3 = _four(step, COEFFICIENT)
    l0, l1, l2, l3 = _four(step, LAST)
    n0, n1 = _row(at, step, DIVIDED), _row(at, step, DIVIDED + 1)
    n2, n3 = _row(at, step, DIVIDED + 2), _row(at, step, DIVIDED + 3)
    m0, m1, m2, m3 = _four(step, MAGIC)
    s0, s1, s2, s3 = _four(step, SHIFT)
    f0, f1, f2, f3 = _four(step, FACTOR)
    target = _row(at, step, TARGET)
    outside = False
    for i in range(count):
        v0, v1, v2, v3 = load(x0, i), load(x1, i), load(x2, i), load(x3, i)
        outside |= _beyond(v0, l0) | _beyond(v1, l1) | _beyond(v2, l2) | _beyond(v3, l3)
        total = c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3
        total += f0 * _narrow_quotient(load(n0, i), m0, s0)
        total += f1 * _narrow_quotient(load(n1, i), m1, s1)
        total += f2 * _narrow_quotient(load(n2, i), m2, s2)
        total += f3 * _narrow_quotient(load(n3, i), m3, s3)
        store(target, i, total)
    return outside


@inlined
def _one_quotient(at: Any, step: Any, count: Any) -> Any:
    x0, x1, target = _row(at, step, OPERAND), _row(at, step, OPERAND + 1), _row(at, step, TARGET)
    c0, c1 = read(step, COEFFICIENT), read(step, COEFFICIENT + 1)
    magic, shift, last = read(step, MAGIC), read(step, SHIFT), read(step, LAST)
    outside = False
    for i in range(count):
        value = load(x0, i)
        outside |= _beyond(value, last)
        store(target, i, _narrow_quotient(c0 * value + c1 * load(x1, i), magic, shift))
    return outside


@inlined
def _four_quotients(at: Any, step: Any, count: Any) -> Any:
    numerator, last = _row(at, step, OPERAND), read(step, LAST)
    m0, m1, m2, m3 = _four(step, MAGIC)
    s0, s1, s2, s3 = _four(step, SHIFT)
    t0, t1 = _row(at, step, TARGET), _row(at, step, TARGET + 1)
    t2, t3 = _row(at, step, TARGET + 2), _row(at, step, TARGET + 3)
    outside = False
    for i in range(count):
        value = load(numerator, i)
        outside |= _beyond(value, last)
        store(t0, i, _narrow_quotient(value, m0, s0))
        store(t1, i, _narrow_quotient(value, m1, s1))
        store(t2, i, _narrow_quotient(value, m2, s2))
        store(t3, i, _narrow_quotient(value, m3, s3))
    return outside


@inlined
def _one_wide_quotient(at: Any, step: Any, count: Any) -> Any:
    numerator, target = _row(at, step, OPERAND), _row(at, step, TARGET)
    magic, shift, last = read(step, MAGIC), read(step, SHIFT), read(step, LAST)
    outside = False
    for i in range(count):
        value = load(numerator, i)
        outside |= _beyond(value, last)
        store(target, i, _wide_quotient(value, magic, shift))
    return outside


@inlined
def _check(at: Any, step: Any, count: Any) -> Any:
    x0, x1, x2, x3 = _four_operands(at, step)
    l0, l1, l2, l3 = _four(step, LAST)
    outside = False
    for i in range(count):
        outside |= _beyond(load(x0, i), l0) | _beyond(load(x1, i), l1)
        outside |= _beyond(load(x2, i), l2) | _beyond(load(x3, i), l3)
    return outside


@inlined
def _mark(at: Any, step: Any, count: Any) -> Any:
    x0, x1, x2, x3 = _four_operands(at, step)
    l0, l1, l2, l3 = _four(step, LAST)
    target = _row(at, step, TARGET)
    for i in range(count):
        outside = _beyond(load(x0, i), l0) | _beyond(load(x1, i), l1)
        outside |= _beyond(load(x2, i), l2) | _beyond(load(x3, i), l3)
        store(target, i, -np.int64(outside))


@inlined
def _marked(at: Any, step: Any, count: Any) -> Any:
    value, marks = _row(at, step, OPERAND), _row(at, step, OPERAND + 1)
    target = _row(at, step, TARGET)
    for i in range(count):
        store(target, i, load(value, i) | load(marks, i))


@inlined
def _run_step(at: Any, step: Any, count: Any) -> Any:
    """Run one step; give whether a check failed."""
    operation = read(step, OPERATION)
    outside = False
    if operation == SUM_OF_QUOTIENTS:
        outside = _sum_of_quotients(at, step, count)
    elif operation == SUM_OF_TWO:
        _sum_of_two(at, step, count)
    elif operation == SUM_OF_FOUR:
        outside = _sum_of_four(at, step, count)
    elif operation == SUM_OF_SIX:
        _sum_of_six(at, step, count)
    elif operation == QUOTIENT:
        outside = _one_quotient(at, step, count)
    elif operation == QUOTIENTS:
        outside = _four_quotients(at, step, count)
    elif operation == WIDE_QUOTIENT:
        outside = _one_wide_quotient(at, step, count)
    elif operation == CHECK:
        outside = _check(at, step, count)
    elif operation == MARK:
        _mark(at, step, count)
    elif operation == MARKED:
        _marked(at, step, count)
    barrier()
    return outside


# Reading input


@inlined
def _load_any(source: Any, offset: Any, code: Any) -> Any:
    """Read one integer stored as `code`, bytes swapped or not."""
    if code >= SWAPPED:
        size = _INT64_BYTES >> ((code - SWAPPED) // 2)
        value = np.uint64(0)
        for k in range(size):
            byte = np.uint64(load_stored(source, offset + k, 7))
            value = (value << np.uint64(8)) | byte
        spare = np.uint64(64 - 8 * size)
        if (code - SWAPPED) % 2 == 0:
            return np.int64(value << spare) >> np.int64(spare)
        return np.int64(value)
    if code == 2:
        return load_stored(source, offset, 2)
    if code == 3:
        return load_stored(source, offset, 3)
    if code == 4:
        return load_stored(source, offset, 4)
    if code == 5:
        return load_stored(source, offset, 5)
    if code == 6:
        return load_stored(source, offset, 6)
    if code == 7:
        return load_stored(source, offset, 7)
    return load_stored(source, offset, 0)


@inlined
def _load_run(row: Any, begin: Any, count: Any, source: Any, offset: Any, stride: Any, code: Any) -> Any:
    """Copy `count` numbers, `stride` bytes apart, to ``row[begin:]``."""
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
        for i in range(count):
            store(row, begin + i, load_stored(source, offset + stride * i, 0))
    elif code == 2 and stride == 4:
        for i in range(count):
            store(row, begin + i, load_stored(source, offset + 4 * i, 2))
    elif code == 3 and stride == 4:
        for i in range(count):
            store(row, begin + i, load_stored(source, offset + 4 * i, 3))
    else:
        for i in range(count):
            store(row, begin + i, _load_any(source, offset + stride * i, code))


@inlined
def _load_block(row: Any, begin: Any, count: Any, axes: Any, sizes: Any, operand: Any, code: Any) -> Any:
    """Copy the elements ``begin:begin + count`` of an array, in the order of its axes, to `row`.

    `operand` holds the array's address and, from `STRIDES` on, its strides in bytes.
    """
    source = pointer(read(operand, ADDRESS))
    last = axes - 1
    outer = begin // read(sizes, last)
    position = begin - outer * read(sizes, last)
    done = 0
    while done < count:
        run = min(read(sizes, last) - position, count - done)
        offset = _outer_offset(outer, axes, sizes, operand) + position * read(operand, STRIDES + last)
        if code == COUNTED:
            offset += read(operand, ADDRESS)
        _load_run(row, done, run, source, offset, read(operand, STRIDES + last), code)
        done += run
        position = 0
        outer += 1


@inlined
def _outer_offset(outer: Any, axes: Any, sizes: Any, operand: Any) -> Any:
    """Give the offset in bytes of run number `outer` along the last axis."""
    offset = 0
    for axis in range(axes - 2, -1, -1):
        above = outer // read(sizes, axis)
        offset += (outer - above * read(sizes, axis)) * read(operand, STRIDES + axis)
        outer = above
    return offset


@inlined
def _any_beyond(row: Any, count: Any, last: Any) -> Any:
    outside = False
    for i in range(count):
        outside |= _beyond(load(row, i), last)
    return outside


@inlined
def _wrap(row: Any, source: Any, count: Any, bound: Any, unsigned: Any) -> Any:
    for i in range(count):
        value = read(source, i)
        if _beyond(value, bound - 1):
            value = np.int64(np.uint64(value) % np.uint64(bound)) if unsigned else value % bound
        store(row, i, value)


@inlined
def _clip(row: Any, source: Any, count: Any, bound: Any, unsigned: Any) -> Any:
    for i in range(count):
        value = read(source, i)
        if _beyond(value, bound - 1):
            value = 0 if value < 0 and not unsigned else bound - 1
        store(row, i, value)


@inlined
def _read_input(row: Any, begin: Any, count: Any, axes: Any, sizes: Any, operand: Any) -> Any:
    """Give the address of a block of an input: in its array if it lies there as it is used, else in `row`."""
    code, flat = read(operand, CODE), read(operand, FLAT)
    place = row
    if flat and code < 2:
        place = read(operand, ADDRESS) + begin * _INT64_BYTES
    elif flat:
        stride = read(operand, STRIDES + axes - 1)
        source = pointer(read(operand, ADDRESS))
        _load_run(pointer(row), 0, count, source, begin * stride, stride, code)
    else:
        _load_block(pointer(row), begin, count, axes, sizes, operand, code)
    barrier()
    treatment, bound = read(operand, TREATMENT), read(operand, INPUT_BOUND)
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


@inlined
def _stream_block(source: Any, target: Any, begin: Any, count: Any) -> Any:
    """Copy a block to contiguous memory, whole lines past the cache."""
    from_row, to = pointer(source), pointer(target)
    misaligned = (target + begin * _INT64_BYTES) % _LINE_BYTES // _INT64_BYTES
    head = min((_LINE - misaligned) % _LINE, count)
    for i in range(head):
        store(to, begin + i, load(from_row, i))
    lines = (count - head) // _LINE
    for k in range(lines):
        stream(to, begin + head + k * _LINE, from_row, head + k * _LINE)
    for i in range(head + lines * _LINE, count):
        store(to, begin + i, load(from_row, i))


@inlined
def _store_block(source: Any, begin: Any, count: Any, axes: Any, sizes: Any, operand: Any) -> Any:
    """Copy a block to an array with strides."""
    from_row = pointer(source)
    last = axes - 1
    outer = begin // read(sizes, last)
    position = begin - outer * read(sizes, last)
    done = 0
    while done < count:
        run = min(read(sizes, last) - position, count - done)
        offset = _outer_offset(outer, axes, sizes, operand) + position * read(operand, STRIDES + last)
        to = pointer(read(operand, ADDRESS) + offset)
        stride = read(operand, STRIDES + last)
        if stride == _INT64_BYTES:
            for i in range(run):
                store(to, i, load(from_row, done + i))
        else:
            for i in range(run):
                store(pointer(read(operand, ADDRESS) + offset + stride * i), 0, load(from_row, done + i))
        done += run
        position = 0
        outer += 1


@inlined
def _write_output(row: Any, begin: Any, count: Any, axes: Any, sizes: Any, operand: Any, streamed: Any) -> Any:
    if streamed and read(operand, FLAT):
        _stream_block(row, read(operand, ADDRESS), begin, count)
    else:
        _store_block(row, begin, count, axes, sizes, operand)
    barrier()


def block_length(variables: int) -> int:
    """Give how many elements to take at a time.

    Short blocks keep the streams from memory interleaved and the rows in the nearest cache; 128 measured best.
    """
    return 128 if variables <= 4096 else 16


_block_length = inlined(block_length)


@inlined
def _first_count(block: Any, begin: Any, streamed: Any, outputs: Any, operand: Any) -> Any:
    """Give the length of the first block, so that later ones start at a cache line of the first output."""
    if streamed == 0 or outputs == 0:
        return block
    ahead = -(read(pointer(operand), ADDRESS) + begin * _INT64_BYTES) % _LINE_BYTES // _INT64_BYTES
    return block if ahead == 0 else ahead


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64)")
def run_program(program: Any, arrays: Any, scratch: Any, begin: Any, end: Any) -> Any:
    """Run a program over the elements ``begin:end`` of its arrays.

    Parameters
    ----------
    program : int64 array
        Of a `StepTable`.
    arrays : int64 array
        The number of axes over which all arrays run; whether contiguous output goes past the cache; the sizes of
        the axes, the last one fastest. Then what describes each input and each output, with a stride in bytes for
        each axis.
    scratch : int64 array
        `scratch_size` numbers.
    begin, end : int

    Returns
    -------
    int
        -1, or the first element of the first block with an input out of bounds or a failed check; what
        lies behind it has not been written.
    """
    numbers = pointer(program.ctypes.data)
    inputs, outputs = read(numbers, 0), read(numbers, 1)
    variables, steps = read(numbers, 2), read(numbers, 3)
    first_step = program.ctypes.data + (HEADER + outputs) * _INT64_BYTES
    axes, streamed = read(pointer(arrays.ctypes.data), 0), read(pointer(arrays.ctypes.data), 1)
    sizes = pointer(arrays.ctypes.data + 2 * _INT64_BYTES)
    operands = arrays.ctypes.data + (2 + axes) * _INT64_BYTES
    operand_bytes = (STRIDES + axes) * _INT64_BYTES
    at = pointer(scratch.ctypes.data)
    rows = scratch.ctypes.data + variables * _INT64_BYTES
    rows += -rows % _LINE_BYTES
    block = _block_length(variables)
    row_bytes = block * _INT64_BYTES
    for variable in range(variables):
        store(at, variable, rows + variable * row_bytes)
    barrier()
    position = begin
    count = min(_first_count(block, begin, streamed, outputs, operands + inputs * operand_bytes), end - begin)
    while position < end:
        for k in range(inputs):
            operand = pointer(operands + k * operand_bytes)
            store(at, k, _read_input(rows + k * row_bytes, position, count, axes, sizes, operand))
            barrier()
        for k in range(steps):
            if _run_step(at, pointer(first_step + k * COLUMNS * _INT64_BYTES), count):
                publish()
                return position
        for k in range(outputs):
            operand = pointer(operands + (inputs + k) * operand_bytes)
            row = read(at, read(numbers, HEADER + k))
            _write_output(row, position, count, axes, sizes, operand, streamed)
        position += count
        count = min(block, end - position)
    publish()
    return -1


def scratch_size(variables: int) -> int:
    """Give how many numbers the kernel needs to itself."""
    return variables * (block_length(variables) + 1) + _LINE
