"""Run an index program on the GPU, as `fastindex.index.executors` does on the CPU, and find the first bad element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import Division, Form, IndexProgram, division, wrapped_int64
from fastindex.arrays.arrays import broadcast_strides, merged_axes
from fastindex.arrays.index_arguments import Counted
from fastindex.cuda.arrays import DeviceArray
from fastindex.cuda.kernels import device as cuda
from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.index_kernel import COUNTED, NOWHERE, InputForm, KernelForm, index_kernel
from fastindex.cuda.queues import Flags, Queue, Tables, watched
from fastindex.errors import FastIndexError
from fastindex.index.executors import BadElementError, judged, values_at

_flags = Flags(NOWHERE)

_MOST_LAUNCHES = 64


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
    arrays = [o for o in operands if isinstance(o, DeviceArray)]
    addresses = [o.address if isinstance(o, DeviceArray) else o.start for o in operands]
    if not launch.can_fail:
        with watched((table.address, table.nbytes), *arrays):
            queue.launch(launch.kernel, launch.form.blocks(count), table.address, count, 0, *addresses)
        return
    flag = _flags.take(queue)
    place = cuda.address_of(flag)
    with watched((table.address, table.nbytes), (place, 8), *arrays):
        queue.launch(launch.kernel, launch.form.blocks(count), table.address, count, place, *addresses)
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
    form: KernelForm
    numbers: NDArray[np.int64]
    can_fail: bool
    tables: Tables


class _Launches:
    """Cache of the launches of a program, by the types and modes of its inputs, and its axes."""

    def __init__(self, program: IndexProgram) -> None:
        self._program = program
        self._forms = forms_of(program)
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
            form = KernelForm(inputs, *self._forms, strided=bool(axes))
            marks = (int(mark),) if self._program.checks else ()
            numbers = np.array([*self._numbers, *marks, *axes], np.int64)
            can_fail = "raise" in given or (bool(self._program.checks) and not mark)
            if len(self._made) >= _MOST_LAUNCHES:
                self._made.pop(next(iter(self._made)), None)
            found = self._made[key] = _Launch(index_kernel(form), form, numbers, can_fail, Tables())
        return found


def _input_form(kind: np.dtype[Any] | None, mode: str) -> InputForm:
    return InputForm(COUNTED, True, mode) if kind is None else InputForm(8 * kind.itemsize, kind.kind == "i", mode)


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


def numbers_of(program: IndexProgram) -> list[int]:
    """Return the numbers of a program in the order that the kernel reads them."""

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
    """Return the number of axes, and for each, the last first: size, constants of its division, strides of operands."""
    sizes, strides = merged_axes(shape, [broadcast_strides(o.shape, o.strides, shape) for o in operands])
    numbers = [len(sizes)]
    for axis in reversed(range(len(sizes))):
        constants = division(sizes[axis], 2**63 - 1)
        numbers += [sizes[axis], wrapped_int64(constants.magic), constants.shift, *(s[axis] for s in strides)]
    return tuple(numbers)


def _values_at(
    inputs: Sequence[Operand], shape: tuple[int, ...], flat: int, queue: Queue
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    def read(given: DeviceArray, _: tuple[int, ...], offset: int) -> int:
        raw = cuda.downloaded(given.address + offset, given.dtype.itemsize, queue.handle)
        return int(raw.view(given.dtype)[0])

    return values_at(inputs, shape, flat, read)
