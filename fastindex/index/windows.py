"""Runs index programs over windows: rows, segments of rows and tables, without arrays of coordinates.

Along an axis, the remainders of a program's quotients repeat with some period. The increments of the output within one
period form a table, the same for every segment that begins with the same remainders. So the program runs once per
segment, and an element costs one addition. A quotient that changes too rarely to fit a table ends a segment where it
changes; that position is computed, not searched for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import Form, IndexProgram, wrapped_int64
from fastindex.arrays.arrays import address_of
from fastindex.index.numbers import WINDOW, WINDOW_SIZES, WindowHeader, window_scratch_size
from fastindex.runtime.first_answer import kernel_function
from fastindex.runtime.threads import run_chunks, thread_count
from fastindex.runtime.tuning import TUNING


@dataclass(frozen=True, slots=True)
class WindowTuning:
    """Thresholds for evaluating a window, in elements; tests pass others.

    Attributes
    ----------
    most_table : int
        Maximum size of all tables together, so that they stay in L2.
    least_row : int
        Minimum row, if the window is large enough: running the program once costs about as much as 100 elements.
    least_table : int
        Minimum table; shorter ones are repeated, because a vector loop needs some length to be worth its start.
    least_segment : int
        Minimum average segment; below it, running the whole program on each element is faster.
    least_planned : int
        Minimum window for a plan; smaller ones are finished before their tables would be built.
    """

    most_table: int = 1 << 15
    least_row: int = 512
    least_table: int = 512
    least_segment: int = 24
    least_planned: int = 1 << 14


#: For machines with an L2 cache of half a mebibyte or more.
WINDOW_TUNING = WindowTuning()


@dataclass(frozen=True, slots=True)
class _Sum:
    """A linear form: a constant, a coefficient for each axis, and (quotient, coefficient) pairs."""

    constant: int
    axes: tuple[int, ...]
    quotients: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Walk:
    """A program in terms of the axes of a window, each running from 0 to below its count."""

    counts: tuple[int, ...]
    numerators: tuple[_Sum, ...]
    divisors: tuple[int, ...]
    output: _Sum


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The kernel's input for one output of a program.

    Attributes
    ----------
    numbers : int64 array
        A `WindowHeader`, the sizes of the outer axes, then the forms.
    table : int64 array
        All tables, concatenated: the differences between an element and the first one of its segment.
    element_count : int
    variables : int
        Number of values that the kernel keeps while it runs the program once.
    """

    numbers: NDArray[np.int64]
    table: NDArray[np.int64]
    element_count: int
    variables: int

    def describe(self) -> str:
        """Describe rows, segments and tables in one line."""
        row, length = int(self.numbers[WINDOW.row]), int(self.numbers[WINDOW.table])
        ends = "where a quotient changes" if self.numbers[WINDOW.counted] else "with the row"
        return (
            f"{self.element_count // row} rows of {row} elements, segments end {ends}, "
            f"{len(self.table) // length} tables of {length} elements"
        )


def window_plan(
    program: IndexProgram, output: Form, ranges: Sequence[range], tuning: WindowTuning = WINDOW_TUNING
) -> WindowPlan | None:
    """Plan one output of a program over a non-empty window, the last dimension varying fastest.

    Returns
    -------
    WindowPlan or None
        None if the quotients allow neither small tables nor long segments.

    Examples
    --------
    >>> from fastindex.index.programs import linear_program
    >>> from fastindex.core.shape import Shape
    >>> program = linear_program(Shape.parse("f32[4096,4096]{1,0:T(8,128)}"))
    >>> print(window_plan(program, program.outputs[0], (range(100, 1000), range(3, 4000))).describe())
    900 rows of 3997 elements, segments end with the row, 1 tables of 512 elements
    """
    walk = _merged(_walk(program, output, ranges))
    run, unit = _run_axis(walk.counts, tuning.least_row)
    split = _Split(walk, run, unit, tuning)
    return split.plan() if split.find_tables() else None


def _walk(program: IndexProgram, output: Form, ranges: Sequence[range]) -> _Walk:
    inputs = len(program.input_bounds)
    # At least one axis, even if it has a single element.
    kept = [d for d, along in enumerate(ranges) if len(along) > 1] or list(range(min(len(ranges), 1)))

    def summed(form: Form) -> _Sum:
        by_variable = dict(form)
        return _Sum(
            sum(c * ranges[v][0] for v, c in form if v < inputs),
            tuple(by_variable.get(d, 0) * ranges[d].step for d in kept) or (0,),
            tuple((v - inputs, c) for v, c in form if v >= inputs),
        )

    return _Walk(
        tuple(len(ranges[d]) for d in kept) or (1,),
        tuple(summed(quotient.numerator) for quotient in program.quotients),
        tuple(quotient.divisor for quotient in program.quotients),
        summed(output),
    )


def _merged(walk: _Walk) -> _Walk:
    """Merge neighbouring axes whose coefficients make them one axis in every sum."""
    sums = (*walk.numerators, walk.output)
    for axis in range(len(walk.counts) - 1):
        inner = walk.counts[axis + 1]
        if all(s.axes[axis] == inner * s.axes[axis + 1] for s in sums):
            without = [_Sum(s.constant, (*s.axes[:axis], *s.axes[axis + 1 :]), s.quotients) for s in sums]
            counts = (*walk.counts[:axis], walk.counts[axis] * inner, *walk.counts[axis + 2 :])
            return _merged(_Walk(counts, tuple(without[:-1]), walk.divisors, without[-1]))
    return walk


def _run_axis(counts: Sequence[int], least_row: int) -> tuple[int, int]:
    """Return the axis along which segments run, and the number of elements of its inner axes."""
    unit = 1
    for axis in range(len(counts) - 1, 0, -1):
        if unit * counts[axis] >= least_row:
            return axis, unit
        unit *= counts[axis]
    return 0, unit


class _Split:
    """Splits the quotients of a walk: constant along a row, in the tables, or ending segments where they change."""

    def __init__(self, walk: _Walk, run: int, unit: int, tuning: WindowTuning) -> None:
        self._tuning = tuning
        self._walk = walk
        self._run = run
        self._unit = unit
        self._steps = walk.counts[run]
        everything = range(len(walk.divisors))
        self._outer = self._dependent(everything, range(run))
        self._along = self._dependent(everything, (run,))
        self._inside = self._dependent(everything, range(run + 1, len(walk.counts)))
        self._counted: list[int] = []
        self._tabled = [j for j in everything if j in self._along | self._inside]
        self._length = 0

    def _dependent(self, quotients: Iterable[int], axes: Sequence[int]) -> set[int]:
        """Return the quotients that depend on one of `axes`, directly or through other quotients."""
        found: set[int] = set()
        for j in quotients:
            numerator = self._walk.numerators[j]
            if any(numerator.axes[axis] for axis in axes) or any(i in found for i, _ in numerator.quotients):
                found.add(j)
        return found

    def find_tables(self) -> bool:
        """Choose as few quotients to end segments as make the tables small enough; return whether that pays."""
        while True:
            length = self._table_steps()
            if length * self._unit * self._class_count() <= self._tuning.most_table:
                self._length = length
                return not self._counted or self._mean_segment() >= self._tuning.least_segment
            slowest = max((j for j in self._tabled if self._can_count(j)), key=self._pace, default=None)
            if slowest is None:
                return False
            self._tabled.remove(slowest)
            self._counted.append(slowest)

    def _gain(self, j: int) -> int:
        return self._walk.numerators[j].axes[self._run]

    def _pace(self, j: int) -> float:
        """Return the average number of steps between two changes of a quotient."""
        return self._walk.divisors[j] / abs(self._gain(j)) if self._gain(j) else math.inf

    def _mean_segment(self) -> float:
        changes = sum(1 / self._pace(j) for j in self._counted) + 1 / self._steps
        return self._unit / changes

    def _can_count(self, j: int) -> bool:
        """Whether the numerator of a quotient grows linearly along the run, and is constant within a step."""
        return j not in self._inside and all(i not in self._tabled for i, _ in self._walk.numerators[j].quotients)

    def _table_steps(self) -> int:
        """Return the length of the tables in steps: the common period of their quotients, or the whole run."""
        shifts: dict[int, tuple[int, int]] = {}
        period = 1
        for j in self._tabled:
            numerator, divisor = self._walk.numerators[j], self._walk.divisors[j]
            parts = [(shifts[i], c) for i, c in numerator.quotients if i in shifts]
            common = math.lcm(*(of_part for (of_part, _), _ in parts))
            gained = self._gain(j) * common
            gained += sum(c * shift * (common // of_part) for (of_part, shift), c in parts)
            turns = divisor // math.gcd(divisor, gained)
            if common * turns > self._steps:
                return self._steps
            shifts[j] = common * turns, gained * turns // divisor
            period = math.lcm(period, common * turns)
        repeated = period * -(-self._tuning.least_table // (period * self._unit))
        return min(repeated, self._steps)

    # The remainders at segment starts

    def _varies(self, j: int) -> bool:
        """Whether a quotient differs between segment starts."""
        return j in self._outer or (bool(self._counted) and j in self._along)

    def _spacing(self, j: int) -> int:
        """Return the spacing of the remainders at segment starts; the divisor if there is only one remainder."""
        numerator = self._walk.numerators[j]
        varying = list(numerator.axes[: self._run])
        if self._counted:
            varying.append(self._gain(j))
        varying += [c for i, c in numerator.quotients if self._varies(i)]
        return math.gcd(self._walk.divisors[j], *varying)

    def _class_count(self) -> int:
        return math.prod(self._walk.divisors[j] // self._spacing(j) for j in self._tabled)

    def plan(self) -> WindowPlan:
        numerators, quotients = _at_origin(self._walk)
        table, shift = self._table(numerators)
        varying = [j for j in range(len(quotients)) if self._varies(j)]
        constant = {j: q for j, q in enumerate(quotients) if j not in varying}
        header = WindowHeader(
            outer_axes=self._run,
            quotients=len(varying),
            counted=int(bool(self._counted)),
            row=self._steps * self._unit,
            unit=self._unit,
            table=self._length * self._unit,
            shift=shift,
            forms=WINDOW_SIZES + self._run,
        )
        numbers = [*header, *self._walk.counts[: self._run]]
        weights = self._weights()
        for j in varying:
            numbers += self._form_numbers(self._walk.numerators[j], varying, constant)
            gain = self._gain(j) if j in self._counted else 0
            numbers += [self._walk.divisors[j], gain, *weights.get(j, (1, 0))]
        numbers += self._form_numbers(self._walk.output, varying, constant)
        count = math.prod(self._walk.counts)
        wrapped = np.array([wrapped_int64(number) for number in numbers], np.int64)
        return WindowPlan(wrapped, table, count, self._run + 1 + len(varying))

    def _form_numbers(self, form: _Sum, varying: Sequence[int], constant: dict[int, int]) -> list[int]:
        total = form.constant + sum(c * constant[j] for j, c in form.quotients if j in constant)
        terms = [(axis, c) for axis, c in enumerate(form.axes[: self._run]) if c]
        if self._counted and form.axes[self._run]:
            terms.append((self._run, form.axes[self._run]))
        terms += [(self._run + 1 + varying.index(j), c) for j, c in form.quotients if j not in constant]
        return [total, len(terms), *(number for term in terms for number in term)]

    def _weights(self) -> dict[int, tuple[int, int]]:
        weights, tables = {}, 1
        for j in reversed(self._tabled):
            spacing = self._spacing(j)
            if spacing < self._walk.divisors[j]:
                weights[j] = spacing, tables
                tables *= self._walk.divisors[j] // spacing
        return weights

    def _table(self, numerators: Sequence[int]) -> tuple[NDArray[np.int64], int]:
        """Return all tables, and the increment of the output from one repetition to the next."""
        inside = self._walk.counts[self._run + 1 :]
        # Repeated tables get one step more: the start of the next repetition.
        repeats = self._length < self._steps
        sizes = (self._length + repeats, *inside)
        residues = [self._walk.divisors[j] // self._spacing(j) for j in self._tabled]
        rank = len(residues) + len(sizes)

        def along(place: int, size: int) -> NDArray[np.int64]:
            return np.arange(size).reshape([-1 if axis == place else 1 for axis in range(rank)])

        steps = [along(len(residues) + k, size) for k, size in enumerate(sizes)]
        gained: dict[int, NDArray[np.int64]] = {}

        def gain_of(form: _Sum) -> NDArray[np.int64]:
            total = np.zeros((1,) * rank, np.int64)
            for axis, step in zip(range(self._run, len(self._walk.counts)), steps, strict=False):
                total = total + wrapped_int64(form.axes[axis]) * step
            for j, c in form.quotients:
                if j in gained:
                    total = total + wrapped_int64(c) * gained[j]
            return total

        for k, j in enumerate(self._tabled):
            spacing, divisor = self._spacing(j), self._walk.divisors[j]
            remainder = numerators[j] % spacing + spacing * along(k, residues[k])
            gained[j] = (remainder + gain_of(self._walk.numerators[j])) // divisor
        whole = np.broadcast_to(gain_of(self._walk.output), (*residues, *sizes))
        whole = whole.reshape(math.prod(residues), sizes[0], -1)
        return np.array(whole[:, : self._length]).reshape(-1), int(whole[0, -1, 0]) if repeats else 0


def _at_origin(walk: _Walk) -> tuple[list[int], list[int]]:
    """Return the numerators and quotients where every axis is at 0."""
    numerators: list[int] = []
    quotients: list[int] = []
    for form, divisor in zip(walk.numerators, walk.divisors, strict=True):
        numerators.append(form.constant + sum(c * quotients[j] for j, c in form.quotients))
        quotients.append(numerators[-1] // divisor)
    return numerators, quotients


def run_plan(plan: WindowPlan, output: NDArray[np.int64], threads: int | None) -> None:
    """Write the elements of a window to an array of its shape."""
    if not output.flags.c_contiguous:
        whole = np.empty(output.shape, np.int64)
        run_plan(plan, whole, threads)
        output[...] = whole
        return
    kernel = kernel_function("run_window")
    numbers, table, target = map(address_of, (plan.numbers, plan.table, output))
    streamed = int(output.nbytes >= TUNING.streamed_bytes and output.flags.aligned)

    def chunk(begin: int, end: int) -> None:
        scratch = np.empty(window_scratch_size(plan.variables), np.int64)
        kernel(numbers, table, address_of(scratch), target, begin, end, streamed)

    workers = thread_count(threads)
    run_chunks(chunk, output.size, workers, TUNING.chunk_length(output.size, workers))
