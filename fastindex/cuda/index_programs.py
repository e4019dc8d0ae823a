"""Run an index program on the GPU, as `fastindex.index.executors` does on the CPU, and find the first bad element.

A program from slot to slot can also gather the elements themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import Form, IndexProgram, division, wrapped_int64
from fastindex.arrays.arrays import broadcast_strides, merged_axes
from fastindex.arrays.index_arguments import Counted
from fastindex.cuda.arrays import DeviceArray
from fastindex.cuda.kernels import device as cuda
from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.index_kernel import COUNTED, NOWHERE, InputForm, KernelForm, ProgramForm, index_kernel
from fastindex.cuda.numbers import unit_of
from fastindex.cuda.queues import Flags, Queue, Tables
from fastindex.errors import FastIndexError
from fastindex.index.executors import BadElementError, judged, values_at

_flags = Flags(NOWHERE)

_MOST_LAUNCHES = 64

#: Quotients of the kernels of programs whose numbers have 32 bits.
_FEW_QUOTIENTS, _MOST_QUOTIENTS = 4, 8

Operand = DeviceArray | Counted


def run(
    program: IndexProgram,
    inputs: Sequence[Operand],
    outputs: Sequence[DeviceArray],
    shape: tuple[int, ...],
    queue: Queue,
    *,
    modes: Sequence[str] = (),
    mark: bool = False,
) -> None:
    """Run `program` on every element of `inputs`, and write `outputs`, as on the CPU.

    It waits for the GPU only if an element can fail: if a mode is "raise", or there are checks and `mark` is False.

    Raises
    ------
    BadElementError
    """
    count = math.prod(shape)
    if count == 0:
        return
    if 0 in program.input_bounds:
        position, values = _values_at(inputs, shape, 0, queue)
        raise BadElementError(position, program.input_bounds.index(0), values)
    operands = (*inputs, *outputs)
    axes: tuple[int, ...] = ()
    if not all(isinstance(o, DeviceArray) and o.shape == shape and o.is_contiguous for o in operands):
        axes = _axes(operands, shape)
    kinds = tuple(o.dtype if isinstance(o, DeviceArray) else None for o in inputs)
    launch = program.derived(_Launches).of(kinds, tuple(modes), mark, axes)
    table = launch.tables.place(axes, launch.numbers, queue)
    addresses = [o.address if isinstance(o, DeviceArray) else o.start for o in operands]
    if not launch.can_fail:
        queue.launch(launch.kernel, count, table.address, count, 0, *addresses)
        return
    flag = _flags.take(queue)
    place = cuda.address_of(flag)
    queue.launch(launch.kernel, count, table.address, count, place, *addresses)
    first = _flags.read(flag, queue)
    if first == NOWHERE:
        return
    found = judged(program, *_values_at(inputs, shape, first, queue), modes)
    if found is None:
        raise FastIndexError("an input changed while it was being converted; do not write to it before the call ends")
    raise found


@dataclass(frozen=True, slots=True)
class _Launch:
    """A program for inputs of certain types: its kernel, and the numbers that the kernel reads."""

    kernel: Kernel
    numbers: NDArray[np.int64]
    can_fail: bool
    tables: Tables


class _Launches:
    """Cache of the launches of a program, by the types and modes of its inputs, and its axes."""

    def __init__(self, program: IndexProgram) -> None:
        self._program = program
        self._form = form_of(program)
        self._numbers = numbers_of(program)
        self._made: dict[Any, _Launch] = {}

    def of(
        self, kinds: tuple[np.dtype[Any] | None, ...], modes: tuple[str, ...], mark: bool, axes: tuple[int, ...]
    ) -> _Launch:
        key = kinds, modes, mark, axes
        found = self._made.get(key)
        if found is None:
            given = modes or ("raise",) * len(kinds)
            inputs = tuple(_input_form(kind, mode) for kind, mode in zip(kinds, given, strict=True))
            form = KernelForm(inputs, self._form, strided=bool(axes))
            numbers = np.array([int(mark), *self._numbers, *axes], np.int64)
            can_fail = "raise" in given or (bool(self._program.checks) and not mark)
            if len(self._made) >= _MOST_LAUNCHES:
                self._made.pop(next(iter(self._made)), None)
            found = self._made[key] = _Launch(index_kernel(form), numbers, can_fail, Tables())
        return found


def _input_form(kind: np.dtype[Any] | None, mode: str) -> InputForm:
    return InputForm(COUNTED, True, mode) if kind is None else InputForm(8 * kind.itemsize, kind.kind == "i", mode)


def form_of(program: IndexProgram) -> ProgramForm:
    """Return the form of a program: padded, if 32 bits hold all of its numbers."""
    inputs, divisions = len(program.input_bounds), [division(q.divisor, q.limit) for q in program.quotients]
    if len(divisions) <= _MOST_QUOTIENTS and not any(d.wide for d in divisions) and _has_32_bits(program):
        is_flat = all(v < inputs for quotient in program.quotients for v, _ in quotient.numerator)
        is_short = is_flat and len(divisions) <= _FEW_QUOTIENTS
        few = _FEW_QUOTIENTS if divisions or inputs == 1 else 0
        padded = few if is_short else _MOST_QUOTIENTS
        every = tuple(range(inputs + padded))
        quotients = tuple((every[: inputs + (0 if is_short else i)], False) for i in range(padded))
        checks = every if program.checks or inputs == len(program.outputs) == 1 else ()
        return ProgramForm(quotients, (every,) * len(program.outputs), checks, True)
    return ProgramForm(
        tuple((_variables(q.numerator), d.wide) for q, d in zip(program.quotients, divisions, strict=True)),
        tuple(map(_variables, program.outputs)),
        tuple(sorted({v for check in program.checks for v in _variables(check.value)})),
        False,
    )


def _variables(form: Form) -> tuple[int, ...]:
    return tuple(variable for variable, _ in form)


def _has_32_bits(program: IndexProgram) -> bool:
    """Whether all variables, outputs, and checked values are below 2**32, and numerators below 2**31."""
    most = [*program.input_bounds, *(q.limit // q.divisor for q in program.quotients)]
    sums = [*program.outputs, *(check.value for check in program.checks)]
    highest = [sum(c * most[v] for v, c in form if c > 0) for form in sums]
    return all(number < 2**32 for number in (*most, *highest, *(check.bound for check in program.checks)))


def numbers_of(program: IndexProgram) -> list[int]:
    """Return the numbers of a program in the order that the kernel reads them, from the number of checks on."""
    form = form_of(program)

    def coefficients(of: Form, variables: tuple[int, ...]) -> list[int]:
        held = dict(of)
        return [held.get(variable, 0) for variable in variables]

    numbers = [len(program.checks), *program.input_bounds]
    for i, (variables, _) in enumerate(form.quotients):
        if i < len(program.quotients):
            quotient = program.quotients[i]
            constants = division(quotient.divisor, quotient.limit)
            numbers += [constants.magic, constants.shift, *coefficients(quotient.numerator, variables)]
        else:
            numbers += [0] * (2 + len(variables))
    for variables, output in zip(form.outputs, program.outputs, strict=True):
        numbers += coefficients(output, variables)
    for check in program.checks:
        numbers += [check.bound, *coefficients(check.value, form.checks)]
    return [wrapped_int64(number) for number in numbers]


def _axes(operands: Sequence[Operand], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of axes, and for each, the last first: size, constants of its division, strides of operands."""
    sizes, strides = merged_axes(shape, [broadcast_strides(o.shape, o.strides, shape) for o in operands])
    numbers = [len(sizes)]
    for axis in reversed(range(len(sizes))):
        constants = division(sizes[axis], 2**63 - 1)
        numbers += [sizes[axis], wrapped_int64(constants.magic), constants.shift, *(s[axis] for s in strides)]
    return tuple(numbers)


# Gathers, for layouts whose tiles share no loops


class _Gather:
    """A program from slot to slot as a gather."""

    def __init__(self, program: IndexProgram) -> None:
        self.form = KernelForm((InputForm(64),), form_of(program), gathered=True)
        self.numbers = np.array([1, *numbers_of(program)], np.int64)
        self.tables = Tables()


def gather(
    program: IndexProgram, width: int, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue
) -> None:
    """Copy to each slot of `target` the element of `source` whose slot `program` gives, or `pattern` for padding."""
    (count,) = program.input_bounds
    if count == 0:
        return
    found = program.derived(_Gather)
    table = found.tables.place(None, found.numbers, queue)
    sides = target.address, source.address
    others = width, *unit_of(pattern, 16)
    queue.launch(index_kernel(found.form), count, table.address, count, 0, *sides, *others)


def _values_at(
    inputs: Sequence[Operand], shape: tuple[int, ...], flat: int, queue: Queue
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    def read(given: DeviceArray, _: tuple[int, ...], offset: int) -> int:
        raw = cuda.downloaded(given.address + offset, given.dtype.itemsize, queue.handle)
        return int(raw.view(given.dtype)[0])

    return values_at(inputs, shape, flat, read)
