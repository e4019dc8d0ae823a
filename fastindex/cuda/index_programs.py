"""Runs an index program on the GPU, as `execution` does on the CPU; finds the first bad element there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastindex.cpu.index_programs import Offender, OffenderFoundError
from fastindex.cuda.arrays import DeviceArray
from fastindex.cuda.queues import Flags, Queue, Tables, watched
from fastindex.errors import FastIndexError
from fastindex.kernels.cuda import device as cuda
from fastindex.kernels.cuda.index_kernel import COUNTED, NOWHERE, InputForm, KernelForm, blocks, index_kernel
from fastindex.lowering.division import Division, division
from fastindex.lowering.index_form import Form, IndexProgram, wrapped_int64

_flags = Flags(NOWHERE)


@dataclass(frozen=True, slots=True)
class Counted:
    """An input that takes no memory: an integer, or a range along the last axis."""

    start: int
    step: int
    shape: tuple[int, ...]


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
    """Run `program` on every element of `inputs`, and write `outputs`; as `execution.run`.

    It waits for the GPU only where an element can fail: where a mode is "raise", or a check does not mark.

    Raises
    ------
    OffenderFoundError
    """
    count = math.prod(shape)
    if count == 0:
        return
    if 0 in program.input_bounds:
        raise OffenderFoundError(_offender(inputs, shape, 0, program.input_bounds.index(0), queue))
    modes = modes or ("raise",) * len(inputs)
    operands = (*inputs, *outputs)
    strided = not all(isinstance(o, DeviceArray) and o.shape == shape and o.is_contiguous for o in operands)
    form = KernelForm(
        tuple(_input_form(given, mode) for given, mode in zip(inputs, modes, strict=True)),
        *forms_of(program),
        mark=mark,
        strided=strided,
    )
    numbers = _numbers(program)
    axes = _axes(operands, shape) if strided else ()
    key = (form, axes)
    table = program.derived(_tables).place(key, np.array([*numbers, *axes], np.int64), queue)
    arrays = [o for o in operands if isinstance(o, DeviceArray)]
    addresses = [o.address if isinstance(o, DeviceArray) else o.start for o in operands]
    kernel = index_kernel(form)
    if not ("raise" in modes or (program.checks and not mark)):
        with watched((table.address, table.nbytes), *arrays):
            queue.launch(kernel, blocks(count), table.address, count, 0, *addresses)
        return
    flag = _flags.take(queue)
    place = cuda.address_of(flag)
    with watched((table.address, table.nbytes), (place, 8), *arrays):
        queue.launch(kernel, blocks(count), table.address, count, place, *addresses)
    first = _flags.read(flag, queue)
    if first != NOWHERE:
        raise OffenderFoundError(_first_offender(program, inputs, shape, modes, first, queue))


def gather(
    program: IndexProgram, width: int, source: DeviceArray, target: DeviceArray, pattern: bytes, queue: Queue
) -> None:
    """Copy to each slot of `target` the element of `source` whose slot `program` gives, or `pattern` for padding."""
    (count,) = program.input_bounds
    if count == 0:
        return
    quotients, outputs, checks = forms_of(program)
    form = KernelForm((InputForm(64),), quotients, outputs, checks, gathered=width)
    table = program.derived(_tables).place(form, np.array(_numbers(program), np.int64), queue)
    low, high = unit_of(pattern, 16)
    with watched((table.address, table.nbytes), source, target):
        sides = target.address, source.address
        queue.launch(index_kernel(form), blocks(count), table.address, count, 0, *sides, low, high)


def unit_of(pattern: bytes, size: int) -> tuple[int, int]:
    """Give a pattern, repeated to `size` bytes, as the low and the high 8 bytes of a unit."""
    unit = (pattern * -(-size // len(pattern)))[:size]
    return int.from_bytes(unit[:8], "little"), int.from_bytes(unit[8:], "little")


def _tables(program: IndexProgram) -> Tables:
    return Tables()


def _input_form(given: Operand, mode: str) -> InputForm:
    if isinstance(given, Counted):
        return InputForm(COUNTED, True, mode)
    return InputForm(8 * given.dtype.itemsize, given.dtype.kind == "i", mode)


def _variables(form: Form) -> tuple[int, ...]:
    return tuple(variable for variable, _ in form)


def _divisions(program: IndexProgram) -> list[Division]:
    return [division(quotient.divisor, quotient.limit) for quotient in program.quotients]


def forms_of(program: IndexProgram) -> tuple[Any, Any, Any]:
    quotients = zip(program.quotients, _divisions(program), strict=True)
    return (
        tuple((_variables(quotient.numerator), constants.wide) for quotient, constants in quotients),
        tuple(_variables(output) for output in program.outputs),
        tuple(_variables(check.value) for check in program.checks),
    )


def _numbers(program: IndexProgram) -> list[int]:
    """Give the numbers of a program in the order that the kernel reads them."""

    def coefficients(form: Form) -> list[int]:
        return [coefficient for _, coefficient in form]

    numbers = list(program.input_bounds)
    for quotient, constants in zip(program.quotients, _divisions(program), strict=True):
        numbers += [constants.magic, constants.shift, *coefficients(quotient.numerator)]
    for output in program.outputs:
        numbers += coefficients(output)
    for check in program.checks:
        numbers += [check.bound, *coefficients(check.value)]
    return [wrapped_int64(number) for number in numbers]


def _axes(operands: Sequence[Operand], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Give the number of axes, and for each, the last first: size, how to divide by it, the strides of operands."""
    strides = [_broadcast_strides(operand, shape) for operand in operands]
    merged: list[tuple[int, list[int]]] = []
    for axis in range(len(shape) - 1, -1, -1):
        of_axis = [s[axis] for s in strides]
        if shape[axis] == 1:
            continue
        if merged and of_axis == [merged[-1][0] * stride for stride in merged[-1][1]]:
            merged[-1] = merged[-1][0] * shape[axis], merged[-1][1]
        else:
            merged.append((shape[axis], of_axis))
    numbers = [len(merged)]
    for size, of_axis in merged:
        constants = division(size, 2**63 - 1)
        numbers += [size, wrapped_int64(constants.magic), constants.shift, *of_axis]
    return tuple(numbers)


def _broadcast_strides(operand: Operand, shape: tuple[int, ...]) -> tuple[int, ...]:
    missing = len(shape) - len(operand.shape)
    if isinstance(operand, Counted):
        own: tuple[int, ...] = (operand.step,) * len(operand.shape)
    else:
        own = operand.strides
    kept = (0 if size == 1 else stride for size, stride in zip(operand.shape, own, strict=True))
    return (*(0,) * missing, *kept)


def _first_offender(
    program: IndexProgram,
    inputs: Sequence[Operand],
    shape: tuple[int, ...],
    modes: Sequence[str],
    flat: int,
    queue: Queue,
) -> Offender:
    offender = _offender(inputs, shape, flat, None, queue)
    for i, (value, bound) in enumerate(zip(offender.values, program.input_bounds, strict=True)):
        if modes[i] == "raise" and not 0 <= value < bound:
            return Offender(offender.position, i, offender.values)
    if not program.checks:
        raise FastIndexError("an input changed while it was converted; do not write to it before the call is done")
    return offender


def _offender(
    inputs: Sequence[Operand], shape: tuple[int, ...], flat: int, number: int | None, queue: Queue
) -> Offender:
    position = tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()
    values = []
    for given in inputs:
        offset = sum(p * stride for p, stride in zip(position, _broadcast_strides(given, shape), strict=True))
        if isinstance(given, Counted):
            values.append(given.start + offset)
        else:
            raw = cuda.downloaded(given.address + offset, given.dtype.itemsize, queue.handle)
            values.append(int(raw.view(given.dtype)[0]))
    return Offender(position, number, tuple(values))
