"""Translates index programs to the tables that kernels run: the steps, their order, and the checks that each makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import IndexProgram, division, wrapped_int64
from fastindex.arrays.addresses import address_of
from fastindex.index.numbers import (
    ANY,
    CHECK,
    COEFFICIENT,
    COLUMNS,
    DIVIDED,
    FACTOR,
    LAST,
    MAGIC,
    MARK,
    MARKED,
    MOST_CHECKED,
    MOST_DIVIDED,
    MOST_SUMMED,
    NOT_NEGATIVE,
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
    WIDE_SUM,
)

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
        row = [0] * COLUMNS
        row[OPERATION] = operation
        row[TARGET : TARGET + len(targets)] = targets
        spare = operands[0][0]
        for i in range(MOST_SUMMED):
            row[OPERAND + i], row[COEFFICIENT + i] = operands[i] if i < len(operands) else (spare, 0)
        for i in range(MOST_CHECKED):
            row[LAST + i] = last[i] if i < len(last) else ANY
        for i in range(MOST_DIVIDED):
            numbers = divided[i] if i < len(divided) else (spare, 0, 0, 0)
            row[DIVIDED + i], row[MAGIC + i], row[SHIFT + i], row[FACTOR + i] = numbers
        self.rows.append([wrapped_int64(number) for number in row])

    def _last(self, variable: int) -> int:
        """Return the last value to allow for `variable` in its first read; `ANY` in later ones."""
        return self._unchecked.pop(variable, ANY)

    def check_inputs(self) -> None:
        """Check the inputs that no other step has checked."""
        self.check(sorted(self._unchecked.items()))
        self._unchecked.clear()

    def quotients(self, without: set[int]) -> None:
        """Add the divisions; several quotients of one variable share a step."""
        pending = [i for i in range(len(self._quotients)) if i not in without]
        while pending:
            numerator, wide = self._quotients[pending[0]].numerator, self._divisions[pending[0]].wide
            group = [i for i in pending if self._together(i, pending[0])][:MOST_DIVIDED]
            targets = [self._inputs + i for i in group]
            if wide or len(group) > 1 or len(numerator) > 2 or numerator in self._sums:
                operands = [(self.sum(numerator), 1)]
            else:
                operands = list(numerator)
            operation = WIDE_QUOTIENT if wide else QUOTIENT
            if len(group) > 1:
                operation = QUOTIENTS
                targets += [self.new_variable() for _ in range(MOST_DIVIDED - len(group))]
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
                self._add_sum(part, narrow[:MOST_CHECKED], divided[:MOST_DIVIDED])
                narrow, divided = narrow[MOST_CHECKED:], divided[MOST_DIVIDED:]
            else:
                self._add_sum(part, wide[:MOST_CHECKED], ())
                wide = wide[MOST_CHECKED:]
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
            return not wide and len(narrow) <= MOST_CHECKED and len(divided) <= MOST_DIVIDED
        if wide or any(v in self._unchecked for v, _ in narrow):
            return len(narrow) + len(wide) <= MOST_CHECKED
        return len(narrow) <= MOST_SUMMED

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
            operation = SUM_OF_QUOTIENTS
        elif not all(self._is_narrow(v, c) for v, c in terms):
            operation = WIDE_SUM
        elif len(plain) > MOST_CHECKED:
            operation = SUM_OF_SIX
        elif len(plain) <= 2 and all(value == ANY for value in last):
            operation = SUM_OF_TWO
        else:
            operation = SUM_OF_FOUR
        self._add(operation, [target], plain, last, numbers)

    def check(self, checks: Sequence[tuple[int, int]]) -> None:
        for i in range(0, len(checks), MOST_CHECKED):
            now = checks[i : i + MOST_CHECKED]
            self._add(CHECK, [], [(v, 1) for v, _ in now], [last for _, last in now])

    def mark(self, checks: Sequence[tuple[int, int]]) -> int:
        """Return a variable that is -1 where a check fails, else 0."""
        pending = list(checks)
        while True:
            now, pending = pending[:MOST_CHECKED], pending[MOST_CHECKED:]
            marks = self.new_variable()
            self._add(MARK, [marks], [(v, 1) for v, _ in now], [last for _, last in now])
            if not pending:
                return marks
            pending.insert(0, (marks, NOT_NEGATIVE))

    def marked(self, value: int, marks: int) -> int:
        target = self.new_variable()
        self._add(MARKED, [target], [(value, 1), (marks, 1)])
        return target


def step_table(program: IndexProgram, mark: bool) -> StepTable:
    """Return the steps of a program; the kernel stops at an input that is not below its bound.

    Parameters
    ----------
    program : IndexProgram
        With positive bounds.
    mark : bool
        Whether a failed check sets all outputs to -1; otherwise the kernel stops there.
    """
    steps = _Steps(program)
    if len(program.outputs) == 1 and not program.checks:
        steps.quotients(without=steps.added_once(program.outputs[0]))
        values = [steps.sum(program.outputs[0], steps.new_variable())]
        steps.check_inputs()
    else:
        steps.quotients(without=set())
        steps.check_inputs()
        values = [steps.sum(form) for form in program.outputs]
        checked = [(steps.sum(check.value), check.bound - 1) for check in program.checks]
        if checked and mark:
            marks = steps.mark(checked)
            values = [steps.marked(value, marks) for value in values]
        else:
            steps.check(checked)
    header = [len(program.input_bounds), len(values), steps.variables, len(steps.rows), *values]
    numbers = np.array([*header, *chain(*steps.rows)], np.int64)
    return StepTable(numbers, address_of(numbers), steps.variables)
