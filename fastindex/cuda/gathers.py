"""Gather slots one by one on the GPU, for layouts whose tiles share no loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import Form, IndexProgram, division
from fastindex.cuda import numbers as cuda_tables
from fastindex.cuda.arrays import DeviceArray
from fastindex.cuda.index_programs import forms_of, numbers_of
from fastindex.cuda.kernels.device import THREADS
from fastindex.cuda.kernels.gather_kernel import QUOTIENTS, gather_kernel
from fastindex.cuda.kernels.index_kernel import InputForm, KernelForm, index_kernel
from fastindex.cuda.queues import Queue, Tables, watched

#: The most slots that 32-bit numbers address, with a value to spare for padding.
_MOST_SLOTS = 2**31


def unit_of(pattern: bytes, size: int) -> tuple[int, int]:
    """Return a pattern, repeated to `size` bytes, as the low and the high 8 bytes of a unit."""
    unit = (pattern * -(-size // len(pattern)))[:size]
    return int.from_bytes(unit[:8], "little"), int.from_bytes(unit[8:], "little")


def gather(
    program: IndexProgram, width: int, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue
) -> None:
    """Copy to each slot of `target` the element of `source` whose slot `program` gives, or `pattern` for padding."""
    (count,) = program.input_bounds
    if count == 0:
        return
    low, high = unit_of(pattern, 16)
    shared = program.derived(_Shared)
    if shared.quotients is not None and source.nbytes < _MOST_SLOTS * width:
        table = shared.tables.place(None, shared.numbers, queue)
        number_of_blocks = cuda_tables.blocks("gather", count, THREADS)
        with watched((table.address, table.nbytes), source, target):
            sides = target.address, source.address
            others = count, len(program.checks), width, low, high
            queue.launch(gather_kernel(shared.quotients), number_of_blocks, *sides, table.address, *others)
        return
    quotients, outputs, checks = forms_of(program)
    form = KernelForm((InputForm(64),), quotients, outputs, checks, gathered=width)
    table = program.derived(_tables).place(form, np.array(numbers_of(program), np.int64), queue)
    with watched((table.address, table.nbytes), source, target):
        sides = target.address, source.address
        queue.launch(index_kernel(form), form.blocks(count), table.address, count, 0, *sides, low, high)


def _tables(program: IndexProgram) -> Tables:
    return Tables()


class _Shared:
    """A program in the form of `gather_kernel`, which many programs share.

    Attributes
    ----------
    quotients : int or None
        How often the kernel divides; None if a kernel must be generated for the program.
    numbers : int64 array
        In the order of `gather_kernel`, which reads the low 32 bits.
    """

    def __init__(self, program: IndexProgram) -> None:
        self.tables = Tables()
        self.numbers: NDArray[np.int64] = np.empty(0, np.int64)
        self.quotients: int | None = None
        divisions = [division(quotient.divisor, quotient.limit) for quotient in program.quotients]
        room = [most for most in QUOTIENTS if len(divisions) <= most]
        wide = any(one.wide for one in divisions) or any(check.bound > _MOST_SLOTS for check in program.checks)
        if not room or wide or program.input_bounds[0] > _MOST_SLOTS:
            return
        self.quotients = most = room[0]
        numbers: list[int] = []
        for i in range(most):
            if i < len(divisions):
                numbers += [divisions[i].magic, divisions[i].shift]
                numbers += _dense(program.quotients[i].numerator, i + 1)
            else:
                numbers += [0] * (i + 3)
        numbers += _dense(program.outputs[0], most + 1)
        for check in program.checks:
            numbers += [check.bound, *_dense(check.value, most + 1)]
        self.numbers = np.array([number % 2**32 for number in numbers], np.int64)


def _dense(form: Form, variables: int) -> list[Any]:
    """Return the coefficients of the first `variables` variables, 0 for those that a form does not have."""
    found = [0] * variables
    for variable, coefficient in form:
        found[variable] = coefficient
    return found
