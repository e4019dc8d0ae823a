"""The CPU kernel of index programs: one compilation runs every program on every kind of array.

Elements are processed in blocks that stay in L1: the inputs of a block are read, each step of the
program's table passes over it once, and the outputs are written.
"""

from __future__ import annotations

from typing import Any

from fastindex.index.kernels.blocks import ADDRESS, STRIDES, read_input, write_output
from fastindex.index.kernels.steps import run_step
from fastindex.index.numbers import COLUMNS, HEADER, INT64_BYTES, block_length
from fastindex.runtime.kernels import inlined, kernel
from fastindex.runtime.lines.memory import barrier, entry, fence, pointer, store
from fastindex.runtime.numbers import LINE_BYTES

_block_length = inlined(block_length)


@inlined
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
