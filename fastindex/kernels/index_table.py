"""Index programs as tables of numbers, in steps that each pass once over a block of elements.

A table has one row per step. A step reads blocks of variables and writes the block of one: variables are the
inputs, then the quotients, then what the outputs and their parts need. Columns and operations are named here; the
loops are in `fastindex.kernels.index_cpu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

#: Numbers before the outputs' variables: inputs, outputs, variables, steps.
HEADER = 4

#: Operands a step adds, checks, and divides at most.
MOST_SUMMED = 6
MOST_CHECKED = 4
MOST_DIVIDED = 4

# Columns of a step; of several numbers, the first column.
OPERATION = 0
TARGET = 1  # four of them, of which all but QUOTIENTS use one
OPERAND = 5
COEFFICIENT = 11
LAST = 17
DIVIDED = 21
MAGIC = 25
SHIFT = 29
FACTOR = 33
COLUMNS = 37

# Operations. `x` are the operands, `c` coefficients, `l` the last allowed values; comparisons are unsigned.
SUM_OF_TWO = 0  # c0 * x0 + c1 * x1
SUM_OF_FOUR = 1  # sum of c * x; stop unless every x <= l
SUM_OF_SIX = 2  # sum of c * x
SUM_OF_QUOTIENTS = 3  # as SUM_OF_FOUR, plus the sum of factor * narrow quotient of the divided variables
QUOTIENT = 4  # narrow quotient of c0 * x0 + c1 * x1; stop unless x0 <= l0
QUOTIENTS = 5  # four narrow quotients of x0, to four targets; stop unless x0 <= l0
WIDE_QUOTIENT = 6  # wide quotient of x0; stop unless x0 <= l0
CHECK = 7  # nothing; stop unless every x <= l
MARK = 8  # -1 unless every x <= l, else 0
MARKED = 9  # x0 | x1

#: The last allowed value where all are allowed, and where the negative ones are not.
ANY = -1
NOT_NEGATIVE = 2**63 - 1

Form = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class QuotientNumbers:
    """One quotient of a program: the numerator, and the constants of its division."""

    numerator: Form
    magic: int
    shift: int
    wide: bool


@dataclass(frozen=True, slots=True)
class StepTable:
    """What the kernel runs.

    Attributes
    ----------
    numbers : int64 array
        How many inputs, outputs, variables and steps; the variable of each output; `COLUMNS` numbers per step.
    variables : int
        How many there are, inputs included.
    """

    numbers: NDArray[np.int64]
    variables: int


class _Steps:
    """Collects steps; knows which inputs are still to be checked and which variable holds which sum."""

    def __init__(self, input_bounds: Sequence[int], quotients: Sequence[QuotientNumbers]) -> None:
        self._inputs = len(input_bounds)
        self._quotients = quotients
        self._unchecked = {v: bound - 1 for v, bound in enumerate(input_bounds)}
        self._done: set[int] = set(range(self._inputs))
        self._sums: dict[Form, int] = {}
        self.variables = self._inputs + len(quotients)
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
        """Add a step; operands that are missing are the first one, times 0."""
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
        self.rows.append([_int64(number) for number in row])

    def _last(self, variable: int) -> int:
        """Give the last value to allow for `variable` where it is read, the first time."""
        return self._unchecked.pop(variable, ANY)

    def check_inputs(self) -> None:
        """Check the inputs that no other step has checked."""
        self.check(sorted(self._unchecked.items()))
        self._unchecked.clear()

    def quotients(self, without: set[int]) -> None:
        """Divide, several quotients of one variable in one step."""
        pending = [i for i in range(len(self._quotients)) if i not in without]
        while pending:
            first = self._quotients[pending[0]]
            group = [i for i in pending if self._like(i, first)][:MOST_DIVIDED]
            targets = [self._inputs + i for i in group]
            if first.wide or len(group) > 1 or len(first.numerator) > 2 or first.numerator in self._sums:
                operands = [(self.sum(first.numerator), 1)]
            else:
                operands = list(first.numerator)
            operation = WIDE_QUOTIENT if first.wide else QUOTIENT
            if len(group) > 1:
                operation = QUOTIENTS
                targets += [self.new_variable() for _ in range(MOST_DIVIDED - len(group))]
            numbers = [self._division(i, operands[0][0]) for i in group]
            self._add(operation, targets, operands, [self._last(operands[0][0])], numbers)
            self._done.update(targets)
            pending = [i for i in pending if i not in group]

    def _like(self, number: int, first: QuotientNumbers) -> bool:
        quotient = self._quotients[number]
        if quotient.wide or first.wide:
            return quotient is first
        return quotient.numerator == first.numerator

    def _division(self, number: int, numerator: int, factor: int = 1) -> tuple[int, int, int, int]:
        quotient = self._quotients[number]
        return numerator, quotient.magic, quotient.shift, factor

    def sum(self, form: Form, target: int | None = None) -> int:
        """Write the value of `form` to `target`, or to any variable; give which."""
        form = tuple(form)
        plain = [(v, c) for v, c in form if v in self._done]
        divided = [(v, c) for v, c in form if v not in self._done]
        if target is None and form in self._sums:
            return self._sums[form]
        if target is None and len(plain) == 1 and plain[0][1] == 1 and not divided:
            return plain[0][0]
        target = self.new_variable() if target is None else target
        plain = plain or [(0, 0)]
        while True:
            taken = MOST_CHECKED if divided or any(v in self._unchecked for v, _ in plain) else MOST_SUMMED
            now, plain = plain[:taken], plain[taken:]
            now_divided, divided = divided[:MOST_DIVIDED], divided[MOST_DIVIDED:]
            if not plain and not divided:
                self._add_sum(target, now, now_divided)
                self._sums[form] = target
                return target
            part = self.new_variable()
            self._add_sum(part, now, now_divided)
            plain.insert(0, (part, 1))

    def _add_sum(self, target: int, plain: Form, divided: Form) -> None:
        last = [self._last(v) for v, _ in plain]
        numbers = []
        for variable, factor in divided:
            numerator = self._quotients[variable - self._inputs].numerator[0][0]
            numbers.append(self._division(variable - self._inputs, numerator, factor))
        if numbers:
            operation = SUM_OF_QUOTIENTS
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
        """Give a variable that is -1 where a check fails, else 0."""
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


def _int64(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _added_once(inputs: int, quotients: Sequence[QuotientNumbers], output: Form) -> set[int]:
    """Give the narrow quotients of an input that nothing but the output needs."""
    divided_again = {v for quotient in quotients for v, _ in quotient.numerator}
    return {
        i
        for i, quotient in enumerate(quotients)
        if not quotient.wide
        and len(quotient.numerator) == 1
        and quotient.numerator[0][0] < inputs
        and quotient.numerator[0][1] == 1
        and inputs + i not in divided_again
    }


def step_table(
    input_bounds: Sequence[int],
    quotients: Sequence[QuotientNumbers],
    outputs: Sequence[Form],
    checks: Sequence[tuple[Form, int]],
    mark: bool,
) -> StepTable:
    """Give the steps of a program.

    Parameters
    ----------
    input_bounds : sequence of int
        The kernel stops where an input is not below its bound. Positive, as those of the checks.
    quotients : sequence of QuotientNumbers
    outputs : sequence of forms
        Each a sequence of (variable, coefficient).
    checks : sequence of (form, bound)
    mark : bool
        Whether a failed check makes all outputs -1; otherwise the kernel stops there.
    """
    steps = _Steps(input_bounds, quotients)
    if len(outputs) == 1 and not checks:
        steps.quotients(without=_added_once(len(input_bounds), quotients, outputs[0]))
        values = [steps.sum(outputs[0], steps.new_variable())]
        steps.check_inputs()
    else:
        steps.quotients(without=set())
        steps.check_inputs()
        values = [steps.sum(form) for form in outputs]
        checked = [(steps.sum(form), bound - 1) for form, bound in checks]
        if checked and mark:
            marks = steps.mark(checked)
            values = [steps.marked(value, marks) for value in values]
        else:
            steps.check(checked)
    header = [len(input_bounds), len(values), steps.variables, len(steps.rows), *values]
    return StepTable(np.array([*header, *chain(*steps.rows)], np.int64), steps.variables)
