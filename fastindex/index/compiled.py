"""Runs an index program with its kernel: the table of its steps, that of its arrays, and chunks on several threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram, division, wrapped_int64
from fastindex.arrays.arrays import address_of, broadcast_strides, merged_axes
from fastindex.arrays.index_arguments import Counted, Integers
from fastindex.index import numbers as steps
from fastindex.index.numbers import CLIP, COUNTED, RAISE, SWAPPED, WRAP, block_length, scratch_size
from fastindex.runtime.machine_code import function
from fastindex.runtime.numbers import STORED
from fastindex.runtime.threads import run_chunks, thread_count
from fastindex.runtime.tuning import TUNING

# The thresholds of all calls; tests replace them.
_TUNING = TUNING

_CODES = {np.dtype(name): code for code, name in enumerate(STORED)}
_CODES.update({dtype.newbyteorder(): SWAPPED + code for dtype, code in _CODES.items() if dtype.itemsize > 1})
_TREATMENTS = {"raise": RAISE, "wrap": WRAP, "clip": CLIP}


class _ChunkStoppedError(Exception):
    pass


def run_compiled(
    program: IndexProgram,
    inputs: Sequence[Integers],
    outputs: Sequence[NDArray[np.int64]],
    shape: tuple[int, ...],
    modes: Sequence[str],
    mark: bool,
    threads: int | None,
) -> tuple[int, int] | tuple[None, None]:
    """Run `program` on every element of `inputs`, and write `outputs`.

    Parameters
    ----------
    program, inputs, outputs, shape, modes, mark, threads
        As for `fastindex.index.executors.run`; no bound is 0, and `shape` has elements.

    Returns
    -------
    (int, int) or (None, None)
        A range of elements that contains the first one that cannot be converted; (None, None) if all can.
    """
    count = math.prod(shape)
    table = program.derived(step_table, mark)
    arrays = _arrays_table(program, inputs, outputs, shape, modes)
    numbers, kernel = address_of(arrays), function("run_program")
    failures: list[int] = []

    def chunk(begin: int, end: int) -> None:
        scratch = np.empty(scratch_size(table.variables), np.int64)
        stopped = kernel(table.address, numbers, address_of(scratch), begin, end)
        if stopped >= 0:
            failures.append(stopped)
            raise _ChunkStoppedError

    try:
        if count <= 4 * _TUNING.least_conversion_share:
            chunk(0, count)
        else:
            workers = thread_count(threads)
            run_chunks(chunk, count, workers, _TUNING.chunk_length(count, workers))
    except _ChunkStoppedError:
        # Chunks start in order and all that started have ended, so the smallest failure is the first one.
        first = min(failures)
        return first, min(first + block_length(table.variables), count)
    return None, None


# Describing arrays to the kernel


def _arrays_table(
    program: IndexProgram,
    inputs: Sequence[Integers],
    outputs: Sequence[NDArray[np.int64]],
    shape: tuple[int, ...],
    modes: Sequence[str],
) -> NDArray[np.int64]:
    strides: Sequence[Sequence[int]] = ()
    sizes: Sequence[int] = (math.prod(shape),)
    for array in (*inputs, *outputs):
        if isinstance(array, Counted) or array.shape != shape or not array.flags.c_contiguous:
            sizes, strides = _axes((*inputs, *outputs), shape)
            break
    streamed = 0
    if 8 * len(outputs) * math.prod(shape) >= _TUNING.streamed_bytes:
        streamed = int(all(array.flags.aligned for array in outputs))
    numbers = [len(sizes), streamed, *sizes]
    bounds = program.input_bounds
    for i, array in enumerate(inputs):
        treatment = _TREATMENTS[modes[i]] if modes else RAISE
        if isinstance(array, Counted):
            numbers += (array.start, COUNTED, treatment, bounds[i], 0, *strides[i])
        else:
            flat = not strides or (array.shape == shape and array.flags.c_contiguous)
            numbers += (address_of(array), _CODES[array.dtype], treatment, bounds[i], flat)
            numbers += strides[i] if strides else (array.itemsize,)
    for i, array in enumerate(outputs, len(inputs)):
        numbers += (address_of(array), 0, RAISE, 0, array.flags.c_contiguous)
        numbers += strides[i] if strides else (8,)
    return np.array(numbers, np.int64)


def _axes(arrays: Sequence[Integers], shape: tuple[int, ...]) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
    """Return the merged axes of all arrays, as few as possible, and each array's strides along them, in bytes."""
    merged_sizes, merged_strides = merged_axes(shape, [broadcast_strides(a.shape, a.strides, shape) for a in arrays])
    if not merged_sizes:
        return (1,), [(8,) for _ in arrays]
    return merged_sizes, merged_strides


# Tables of steps


#: A linear combination: (variable, coefficient) pairs.
Form = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps that the kernel runs.

    Attributes
    ----------
    numbers : int64 array
        The numbers of inputs, outputs, variables and steps; the variable of each output; `COLUMNS` numbers per step.
    address : int
        Address of `numbers`.
    variables : int
        Number of variables, inputs included.
    """

    numbers: NDArray[np.int64]
    address: int
    variables: int


class _Steps:
    """Collects steps; tracks the inputs that are still unchecked, and the variable that holds each sum."""

    def __init__(self, program: IndexProgram) -> None:
        bounds, self._quotients = program.input_bounds, program.quotients
        self._divisions = [division(quotient.divisor, quotient.limit) for quotient in program.quotients]
        self._inputs = len(bounds)
        self._unchecked = {v: bound - 1 for v, bound in enumerate(bounds)}
        self._ranges = {v: (0, bound - 1) for v, bound in enumerate(bounds)}
        self._ranges.update({self._inputs + i: (0, q.limit // q.divisor) for i, q in enumerate(self._quotients)})
        self._done: set[int] = set(range(self._inputs))
        self._sums: dict[Form, int] = {}
        self.variables = self._inputs + len(self._quotients)
        self.rows: list[list[int]] = []

    def new_variable(self) -> int:
        self.variables += 1
        return self.variables - 1

    def _add(
        self,
        operation: int,
        targets: Sequence[int],
        operands: Form,
        last: Sequence[int] = (),
        divided: Sequence[tuple[int, int, int, int]] = (),
    ) -> None:
        """Add a step; missing operands are the first one, times 0."""
        row = [0] * steps.COLUMNS
        row[steps.OPERATION] = operation
        row[steps.TARGET : steps.TARGET + len(targets)] = targets
        spare = operands[0][0]
        for i in range(steps.MOST_SUMMED):
            row[steps.OPERAND + i], row[steps.COEFFICIENT + i] = operands[i] if i < len(operands) else (spare, 0)
        for i in range(steps.MOST_CHECKED):
            row[steps.LAST + i] = last[i] if i < len(last) else steps.ANY
        for i in range(steps.MOST_DIVIDED):
            numbers = divided[i] if i < len(divided) else (spare, 0, 0, 0)
            row[steps.DIVIDED + i], row[steps.MAGIC + i], row[steps.SHIFT + i], row[steps.FACTOR + i] = numbers
        self.rows.append([wrapped_int64(number) for number in row])

    def _last(self, variable: int) -> int:
        """Return the last value to allow for `variable` in its first read; `ANY` in later ones."""
        return self._unchecked.pop(variable, steps.ANY)

    def check_inputs(self) -> None:
        """Check the inputs that no other step has checked."""
        self.check(sorted(self._unchecked.items()))
        self._unchecked.clear()

    def quotients(self, without: set[int]) -> None:
        """Add the divisions; several quotients of one variable share a step."""
        pending = [i for i in range(len(self._quotients)) if i not in without]
        while pending:
            numerator, wide = self._quotients[pending[0]].numerator, self._divisions[pending[0]].wide
            group = [i for i in pending if self._together(i, pending[0])][: steps.MOST_DIVIDED]
            targets = [self._inputs + i for i in group]
            if wide or len(group) > 1 or len(numerator) > 2 or numerator in self._sums:
                operands = [(self.sum(numerator), 1)]
            else:
                operands = list(numerator)
            operation = steps.WIDE_QUOTIENT if wide else steps.QUOTIENT
            if len(group) > 1:
                operation = steps.QUOTIENTS
                targets += [self.new_variable() for _ in range(steps.MOST_DIVIDED - len(group))]
            numbers = [self._division(i, operands[0][0]) for i in group]
            self._add(operation, targets, operands, [self._last(operands[0][0])], numbers)
            self._done.update(targets)
            pending = [i for i in pending if i not in group]

    def _together(self, number: int, first: int) -> bool:
        """Whether two quotients may share a step."""
        if self._divisions[number].wide or self._divisions[first].wide:
            return number == first
        return self._quotients[number].numerator == self._quotients[first].numerator

    def _division(self, number: int, numerator: int, factor: int = 1) -> tuple[int, int, int, int]:
        constants = self._divisions[number]
        return numerator, constants.magic, constants.shift, factor

    def added_once(self, output: Form) -> set[int]:
        """Return the narrow quotients of an input that only the single output uses, with a narrow factor."""
        divided_again = {v for quotient in self._quotients for v, _ in quotient.numerator}
        factors = dict(output)
        return {
            i
            for i, (quotient, constants) in enumerate(zip(self._quotients, self._divisions, strict=True))
            if not constants.wide
            and len(quotient.numerator) == 1
            and quotient.numerator[0][0] < self._inputs
            and quotient.numerator[0][1] == 1
            and self._inputs + i not in divided_again
            and -(2**31) <= factors.get(self._inputs + i, 0) < 2**31
        }

    def sum(self, form: Form, target: int | None = None) -> int:
        """Compute `form` into `target`, or into any variable; return the variable."""
        form = tuple(form)
        if target is None and form in self._sums:
            return self._sums[form]
        if target is None and len(form) == 1 and form[0][1] == 1 and form[0][0] in self._done:
            return form[0][0]
        target = self.new_variable() if target is None else target
        done = [term for term in form if term[0] in self._done]
        narrow = [term for term in done if self._is_narrow(*term)]
        wide = [term for term in done if not self._is_narrow(*term)]
        divided = [term for term in form if term[0] not in self._done]
        while not self._fits_one_step(narrow, wide, divided):
            part = self.new_variable()
            if divided or len(narrow) > 1:
                self._add_sum(part, narrow[: steps.MOST_CHECKED], divided[: steps.MOST_DIVIDED])
                narrow, divided = narrow[steps.MOST_CHECKED :], divided[steps.MOST_DIVIDED :]
            else:
                self._add_sum(part, wide[: steps.MOST_CHECKED], ())
                wide = wide[steps.MOST_CHECKED :]
            (narrow if self._is_narrow(part, 1) else wide).insert(0, (part, 1))
        self._add_sum(target, [*narrow, *wide], divided)
        self._sums[form] = target
        return target

    def _is_narrow(self, variable: int, coefficient: int) -> bool:
        """Whether both factors fit int32."""
        low, high = self._ranges[variable]
        return min(low, coefficient) >= -(2**31) and max(high, coefficient) < 2**31

    def _fits_one_step(self, narrow: Form, wide: Form, divided: Form) -> bool:
        if divided:
            return not wide and len(narrow) <= steps.MOST_CHECKED and len(divided) <= steps.MOST_DIVIDED
        if wide or any(v in self._unchecked for v, _ in narrow):
            return len(narrow) + len(wide) <= steps.MOST_CHECKED
        return len(narrow) <= steps.MOST_SUMMED

    def _add_sum(self, target: int, plain: Form, divided: Form) -> None:
        terms = [*plain, *divided]
        self._ranges[target] = (
            sum(min(c * end for end in self._ranges[v]) for v, c in terms),
            sum(max(c * end for end in self._ranges[v]) for v, c in terms),
        )
        self._done.add(target)
        numbers = []
        for variable, factor in divided:
            numerator = self._quotients[variable - self._inputs].numerator[0][0]
            numbers.append(self._division(variable - self._inputs, numerator, factor))
        # An empty sum still reads an operand, times 0.
        plain = plain or [(numbers[0][0] if numbers else 0, 0)]
        last = [self._last(v) for v, _ in plain]
        if numbers:
            operation = steps.SUM_OF_QUOTIENTS
        elif not all(self._is_narrow(v, c) for v, c in terms):
            operation = steps.WIDE_SUM
        elif len(plain) > steps.MOST_CHECKED:
            operation = steps.SUM_OF_SIX
        elif len(plain) <= 2 and all(value == steps.ANY for value in last):
            operation = steps.SUM_OF_TWO
        else:
            operation = steps.SUM_OF_FOUR
        self._add(operation, [target], plain, last, numbers)

    def check(self, checks: Sequence[tuple[int, int]]) -> None:
        for i in range(0, len(checks), steps.MOST_CHECKED):
            now = checks[i : i + steps.MOST_CHECKED]
            self._add(steps.CHECK, [], [(v, 1) for v, _ in now], [last for _, last in now])

    def mark(self, checks: Sequence[tuple[int, int]]) -> int:
        """Return a variable that is -1 where a check fails, else 0."""
        pending = list(checks)
        while True:
            now, pending = pending[: steps.MOST_CHECKED], pending[steps.MOST_CHECKED :]
            marks = self.new_variable()
            self._add(steps.MARK, [marks], [(v, 1) for v, _ in now], [last for _, last in now])
            if not pending:
                return marks
            pending.insert(0, (marks, steps.NOT_NEGATIVE))

    def marked(self, value: int, marks: int) -> int:
        target = self.new_variable()
        self._add(steps.MARKED, [target], [(value, 1), (marks, 1)])
        return target


def step_table(program: IndexProgram, mark: bool) -> StepTable:
    """Return the table of a program's steps; the kernel stops at an input that is not below its bound.

    Parameters
    ----------
    program : IndexProgram
        With positive bounds.
    mark : bool
        Whether a failed check sets all outputs to -1; otherwise the kernel stops there.
    """
    collected = _Steps(program)
    if len(program.outputs) == 1 and not program.checks:
        collected.quotients(without=collected.added_once(program.outputs[0]))
        values = [collected.sum(program.outputs[0], collected.new_variable())]
        collected.check_inputs()
    else:
        collected.quotients(without=set())
        collected.check_inputs()
        values = [collected.sum(form) for form in program.outputs]
        checked = [(collected.sum(check.value), check.bound - 1) for check in program.checks]
        if checked and mark:
            marks = collected.mark(checked)
            values = [collected.marked(value, marks) for value in values]
        else:
            collected.check(checked)
    header = [len(program.input_bounds), len(values), collected.variables, len(collected.rows), *values]
    numbers = np.array([*header, *chain(*collected.rows)], np.int64)
    return StepTable(numbers, address_of(numbers), collected.variables)
