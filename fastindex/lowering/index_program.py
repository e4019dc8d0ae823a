"""Index programs: how coordinates become slots, and back, as sums of floor divisions.

One form serves every direction and every chain of tiles. A program has inputs (coordinates, or one slot),
then quotients, each the floor of a linear combination of inputs and earlier quotients over a constant, then
outputs, each a linear combination of all of these. Everything is a non-negative integer.

Why this is enough: a tile cuts an axis ``x`` into ``x // t`` and ``x - t * (x // t)``, merging makes
``outer * size + inner``, and both undo each other. Why it is short: ``(x // a) // b`` is ``x // (a * b)``,
and ``(D * a + b) // D`` is ``a + b // D``, so chains of tiles that divide each other need one division per
tile and nothing nested.

Source of the rule: `fastindex.tiling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from fastindex.errors import LayoutError
from fastindex.shape import Shape
from fastindex.tiling import (
    COMBINE,
    Axis,
    CountAxis,
    DimensionAxis,
    MergedAxis,
    OffsetAxis,
    axis_strides,
    physical_axes,
)

#: A linear combination: (variable, coefficient) pairs, sorted by variable, no coefficient 0.
Form = tuple[tuple[int, int], ...]

_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Quotient:
    """``numerator // divisor``; `limit` is the largest value that the numerator takes."""

    numerator: Form
    divisor: int
    limit: int


@dataclass(frozen=True, slots=True)
class Check:
    """``value < bound``; where it fails, the slot is padding."""

    value: Form
    bound: int


@dataclass(frozen=True)
class IndexProgram:
    """Inputs, quotients, outputs and checks of one conversion.

    Variables are numbered: the inputs first, then the quotients in order. Coefficients are Python integers;
    sums may be taken modulo 2**64, since every numerator, output and checked value lies within int64.

    Attributes
    ----------
    input_bounds : tuple of int
        Each input lies in ``range(bound)``.
    quotients : tuple of Quotient
    outputs : tuple of Form
    checks : tuple of Check
        A slot is padding where one of these fails. Outputs mean nothing there.

    Examples
    --------
    >>> program = linear_program(Shape.parse("bf16[1024,1000]{1,0:T(8,128)(2,1)}"))
    >>> print(program.describe())
    x0 < 1024, x1 < 1000
    q0 = x0 // 8
    q1 = x1 // 128
    q2 = x0 // 2
    y0 = x0 + 2 x1 + 7168 q0 + 768 q1 + 254 q2
    >>> program.evaluate((9, 130))
    ((9221,), True)
    """

    input_bounds: tuple[int, ...]
    quotients: tuple[Quotient, ...]
    outputs: tuple[Form, ...]
    checks: tuple[Check, ...] = ()
    _derived: dict[Callable[..., Any], Any] = field(default_factory=dict, compare=False, repr=False)

    def evaluate(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """Give the outputs, and whether all checks hold, for inputs within their bounds.

        Parameters
        ----------
        inputs : sequence of int, or of int64 arrays of one shape
        """
        values = list(inputs)
        for quotient in self.quotients:
            values.append(_combined(quotient.numerator, values) // quotient.divisor)
        holds: Any = True
        for check in self.checks:
            holds = holds & (_combined(check.value, values) < check.bound)
        return tuple(_combined(form, values) for form in self.outputs), holds

    def describe(self) -> str:
        """Spell the program, one line per quotient, output and check."""
        inputs = len(self.input_bounds)
        lines = [", ".join(f"x{i} < {bound}" for i, bound in enumerate(self.input_bounds)) or "no inputs"]
        for i, quotient in enumerate(self.quotients):
            numerator = _spelled(quotient.numerator, inputs)
            if len(quotient.numerator) > 1 or quotient.numerator[0][1] != 1:
                numerator = f"({numerator})"
            lines.append(f"q{i} = {numerator} // {quotient.divisor}")
        lines += [f"y{i} = {_spelled(form, inputs)}" for i, form in enumerate(self.outputs)]
        lines += [f"padding unless {_spelled(c.value, inputs)} < {c.bound}" for c in self.checks]
        return "\n".join(lines)

    def derived(self, make: Callable[[IndexProgram], Any]) -> Any:
        """Give ``make(self)``, made once: a backend's own numbers for this program."""
        found = self._derived.get(make)
        if found is None:
            found = self._derived[make] = make(self)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexProgram, (self.input_bounds, self.quotients, self.outputs, self.checks)


def _combined(form: Form, values: Sequence[Any]) -> Any:
    total: Any = 0
    for variable, coefficient in form:
        total = total + values[variable] * wrapped_int64(coefficient)
    return total


def wrapped_int64(number: int) -> int:
    """Give the int64 that is equal to `number` modulo 2**64.

    Examples
    --------
    >>> wrapped_int64(2**64 - 1)
    -1
    """
    return (number + 2**63) % 2**64 - 2**63


def _spelled(form: Form, inputs: int) -> str:
    if not form:
        return "0"
    text = ""
    for variable, coefficient in form:
        name = f"x{variable}" if variable < inputs else f"q{variable - inputs}"
        sign = (" - " if coefficient < 0 else " + ") if text else ("-" if coefficient < 0 else "")
        text += sign + (name if abs(coefficient) == 1 else f"{abs(coefficient)} {name}")
    return text


def _form(pairs: Iterable[tuple[int, int]]) -> Form:
    total: dict[int, int] = {}
    for variable, coefficient in pairs:
        total[variable] = total.get(variable, 0) + coefficient
    return tuple(sorted((v, c) for v, c in total.items() if c))


def _sum(*parts: tuple[int, Form]) -> Form:
    """Give the sum of ``factor * form`` over `parts`."""
    return _form((v, factor * c) for factor, form in parts for v, c in form)


class _Builder:
    """Collects quotients; with `simplify`, writes each as the sum of as few and as plain ones as it can."""

    def __init__(self, input_bounds: Sequence[int], simplify: bool = True) -> None:
        self._input_bounds = tuple(input_bounds)
        self._simplify = simplify
        self._limits = [max(bound - 1, 0) for bound in input_bounds]
        self._quotients: list[Quotient] = []
        self._known: dict[tuple[Form, int], int] = {}

    def variable(self, number: int) -> Form:
        """Give an input; one that is always 0 needs no variable."""
        return () if self._simplify and self._limits[number] == 0 else ((number, 1),)

    def quotient(self, numerator: Form, divisor: int, limit: int) -> Form:
        """Give ``numerator // divisor``, where the numerator lies in ``range(limit + 1)``."""
        if not self._simplify:
            return self._new_quotient(numerator, divisor, limit)
        limit = min(limit, self._upper_bound(numerator))
        if divisor == 1:
            return numerator
        if limit < divisor:
            return ()
        pulled, rest = self._pull_out(numerator, divisor)
        if pulled:
            return _sum((1, pulled), (1, self.quotient(rest, divisor, self._upper_bound(rest))))
        common = math.gcd(divisor, *(c for _, c in numerator))
        if common > 1:
            reduced = tuple((v, c // common) for v, c in numerator)
            return self.quotient(reduced, divisor // common, limit // common)
        inner = self._lone_quotient(numerator)
        if inner is not None:
            return self.quotient(inner.numerator, inner.divisor * divisor, inner.limit)
        return self._new_quotient(numerator, divisor, limit)

    def _new_quotient(self, numerator: Form, divisor: int, limit: int) -> Form:
        key = (numerator, divisor)
        if key not in self._known:
            self._known[key] = len(self._limits)
            self._quotients.append(Quotient(numerator, divisor, limit))
            self._limits.append(limit // divisor)
        return ((self._known[key], 1),)

    def _upper_bound(self, form: Form) -> int:
        return sum(c * self._limits[v] for v, c in form if c > 0)

    def _pull_out(self, numerator: Form, divisor: int) -> tuple[Form, Form]:
        """Split ``divisor * pulled + rest``; floors agree since ``pulled`` is whole and ``rest >= 0``."""
        pulled = tuple((v, c // divisor) for v, c in numerator if c % divisor == 0)
        rest = tuple((v, c) for v, c in numerator if c % divisor)
        if any(c < 0 for _, c in rest) or self._upper_bound(rest) > _LARGEST:
            return (), numerator
        return pulled, rest

    def _lone_quotient(self, numerator: Form) -> Quotient | None:
        if len(numerator) == 1 and numerator[0][1] == 1 and numerator[0][0] >= len(self._input_bounds):
            return self._quotients[numerator[0][0] - len(self._input_bounds)]
        return None

    def program(self, outputs: Iterable[Form], checks: Iterable[Check] = ()) -> IndexProgram:
        """Give the program; what nothing needs is left out."""
        kept_checks = tuple(c for c in checks if not self._simplify or self._upper_bound(c.value) >= c.bound)
        whole = IndexProgram(self._input_bounds, tuple(self._quotients), tuple(outputs), kept_checks)
        return without_unused_quotients(whole) if self._simplify else whole


def without_unused_quotients(program: IndexProgram) -> IndexProgram:
    """Drop the quotients that no output and no check needs, and renumber the rest."""
    inputs = len(program.input_bounds)
    needed = {v for form in program.outputs for v, _ in form}
    needed |= {v for check in program.checks for v, _ in check.value}
    for i in range(len(program.quotients) - 1, -1, -1):
        if inputs + i in needed:
            needed |= {v for v, _ in program.quotients[i].numerator}
    kept = [i for i in range(len(program.quotients)) if inputs + i in needed]
    number = {variable: variable for variable in range(inputs)}
    number.update({inputs + i: inputs + new for new, i in enumerate(kept)})

    def renumbered(form: Form) -> Form:
        return _form((number[v], c) for v, c in form)

    return IndexProgram(
        program.input_bounds,
        tuple(Quotient(renumbered(q.numerator), q.divisor, q.limit) for q in (program.quotients[i] for i in kept)),
        tuple(renumbered(form) for form in program.outputs),
        tuple(Check(renumbered(c.value), c.bound) for c in program.checks),
    )


# From coordinates to slots


def _origins(axis: Axis) -> tuple[Axis, ...]:
    if isinstance(axis, CountAxis | OffsetAxis):
        return (axis.whole,)
    if isinstance(axis, MergedAxis):
        return (axis.outer, axis.inner)
    return ()


def _origins_first(axes: Iterable[Axis]) -> list[Axis]:
    """Give `axes` and all axes behind them, each after those it is made of."""
    ordered: dict[Axis, None] = {}
    pending = list(reversed(list(axes)))
    while pending:
        axis = pending[-1]
        missing = [origin for origin in _origins(axis) if origin not in ordered]
        if missing:
            pending.extend(missing)
        else:
            ordered[pending.pop()] = None
    return list(ordered)


def _axis_values(builder: _Builder, axes: Sequence[Axis], coordinates: Sequence[Form]) -> dict[Axis, Form]:
    """Give the value of every axis as a combination of the coordinates."""
    values: dict[Axis, Form] = {}

    def count(whole: Axis, tile_size: int) -> Form:
        return builder.quotient(values[whole], tile_size, max(whole.size - 1, 0))

    for axis in _origins_first(axes):
        if isinstance(axis, DimensionAxis):
            values[axis] = coordinates[axis.dimension]
        elif isinstance(axis, MergedAxis):
            values[axis] = _sum((axis.inner.size, values[axis.outer]), (1, values[axis.inner]))
        elif isinstance(axis, CountAxis):
            values[axis] = count(axis.whole, axis.tile_size)
        elif isinstance(axis, OffsetAxis):
            values[axis] = _sum((1, values[axis.whole]), (-axis.size, count(axis.whole, axis.size)))
        else:
            values[axis] = ()
    return values


def _slot(builder: _Builder, axes: Sequence[Axis], coordinates: Sequence[Form]) -> Form:
    values = _axis_values(builder, axes, coordinates)
    return _sum(*zip(axis_strides(axes), [values[axis] for axis in axes], strict=True))


# From slots to coordinates


class _Undoing:
    """The value of each axis as a combination of quotients of a slot, from the last tile to the first."""

    def __init__(self, builder: _Builder, axes: Sequence[Axis], slot: Form, last_slot: int) -> None:
        self._builder = builder
        self.values: dict[Axis, Form] = {}
        self.limits: dict[Axis, int] = {}
        self._take_digits(axes, slot, last_slot)
        self._parts: dict[Axis, tuple[Axis, Axis]] = {}
        self._merged: dict[Axis, MergedAxis] = {}
        ordered = _origins_first(axes)
        for axis in ordered:
            self._note_what_it_is_made_of(axis)
        for axis in reversed(ordered):
            if axis not in self.values:
                self._undo(axis)

    def _take_digits(self, axes: Sequence[Axis], slot: Form, last_slot: int) -> None:
        for i, (axis, stride) in enumerate(zip(axes, axis_strides(axes), strict=True)):
            value = self._builder.quotient(slot, stride, last_slot)
            limit = last_slot // stride
            # The most major axis keeps what lies beyond it: the tail of the buffer.
            if i > 0:
                above = self._builder.quotient(slot, stride * axis.size, last_slot)
                value = _sum((1, value), (-axis.size, above))
                limit = min(limit, axis.size - 1)
            self.values[axis] = value
            self.limits[axis] = limit

    def _note_what_it_is_made_of(self, axis: Axis) -> None:
        if isinstance(axis, CountAxis):
            _, offset = self._parts.get(axis.whole, (axis, axis))
            self._parts[axis.whole] = (axis, offset)
        elif isinstance(axis, OffsetAxis):
            count, _ = self._parts.get(axis.whole, (axis, axis))
            self._parts[axis.whole] = (count, axis)
        elif isinstance(axis, MergedAxis):
            self._merged[axis.outer] = self._merged[axis.inner] = axis

    def _undo(self, axis: Axis) -> None:
        if axis in self._parts:
            count, offset = self._parts[axis]
            self.values[axis] = _sum((offset.size, self.values[count]), (1, self.values[offset]))
            self.limits[axis] = offset.size * self.limits[count] + self.limits[offset]
            return
        merged = self._merged[axis]
        whole, limit, inner_size = self.values[merged], self.limits[merged], merged.inner.size
        outer = self._builder.quotient(whole, inner_size, limit)
        if axis is merged.outer:
            self.values[axis], self.limits[axis] = outer, limit // inner_size
        else:
            self.values[axis] = _sum((1, whole), (-inner_size, outer))
            self.limits[axis] = min(limit, inner_size - 1)

    def checks(self, every: bool) -> list[Check]:
        """Give what holds for a slot that holds an element, and fails somewhere for any other.

        A value beyond its axis also shows where the axis came from: that of a count in the whole, that of a
        merged axis in its outer part. So only the other axes are checked, unless `every` one is asked for.
        """
        checks: list[Check] = []
        suspects = [axis for axis in self.values if self.limits[axis] >= _bound(axis)]
        seen: set[Axis] = set()
        while suspects:
            axis = suspects.pop()
            if axis in seen:
                continue
            seen.add(axis)
            implied = isinstance(axis, CountAxis | MergedAxis)
            if isinstance(axis, CountAxis):
                suspects.append(axis.whole)
            elif isinstance(axis, MergedAxis):
                suspects.append(axis.outer)
            if every or not implied:
                checks.append(Check(self.values[axis], _bound(axis)))
        return checks


def _bound(axis: Axis) -> int:
    return axis.extent if isinstance(axis, DimensionAxis) else axis.size


def _coordinates(
    builder: _Builder, shape: Shape, slot: Form, every_check: bool = False
) -> tuple[list[Form], list[Check]]:
    """Give the coordinates of a slot below the slot count, one per dimension, and the padding checks."""
    axes = _axes(shape)
    if not axes:
        return [], [Check(slot, 1)]
    undoing = _Undoing(builder, axes, slot, shape.slot_count - 1)
    by_dimension = {a.dimension: v for a, v in undoing.values.items() if isinstance(a, DimensionAxis)}
    return [by_dimension[d] for d in range(shape.rank)], undoing.checks(every_check)


def _axes(shape: Shape, tile_count: int | None = None) -> list[Axis]:
    layout = shape.layout
    tiles = layout.tiles[:tile_count]
    return physical_axes(shape.dimensions, layout.minor_to_major, layout.padded_dimensions, tiles)


# The programs


@lru_cache(maxsize=1024)
def linear_program(shape: Shape, simplify: bool = True) -> IndexProgram:
    """Give the program from the coordinates of an element, one per dimension, to its slot.

    Raises
    ------
    UnsupportedError
        `shape` is no array, is sparse, or has an unbounded dimension.
    LayoutError
        The slots do not fit int64.
    """
    builder = _Builder(shape.dimensions, simplify)
    if shape.slot_count == 0:
        return builder.program([()])
    coordinates = [builder.variable(d) for d in range(shape.rank)]
    return builder.program([_slot(builder, _axes(shape), coordinates)])


@lru_cache(maxsize=1024)
def multi_program(shape: Shape, simplify: bool = True) -> IndexProgram:
    """Give the program from a slot to the coordinates of its element, with checks that fail for padding.

    Raises
    ------
    UnsupportedError, LayoutError
        As `linear_program`.

    Examples
    --------
    >>> print(multi_program(Shape.parse("f32[3,5]{1,0:T(2,2)}")).describe())
    x0 < 24
    q0 = x0 // 12
    q1 = x0 // 4
    q2 = x0 // 2
    y0 = 2 q0 - 2 q1 + q2
    y1 = x0 - 6 q0 + 2 q1 - 2 q2
    padding unless 2 q0 - 2 q1 + q2 < 3
    padding unless x0 - 6 q0 + 2 q1 - 2 q2 < 5
    """
    builder = _Builder((shape.slot_count,), simplify)
    if shape.slot_count == 0:
        return builder.program([()] * shape.rank)
    return builder.program(*_coordinates(builder, shape, builder.variable(0), every_check=not simplify))


@lru_cache(maxsize=1024)
def tile_program(shape: Shape, level: int, simplify: bool = True) -> IndexProgram:
    """Give the program from coordinates to all axes after tile number `level` has been applied.

    Raises
    ------
    UnsupportedError, LayoutError
        As `linear_program`.
    """
    builder = _Builder(shape.dimensions, simplify)
    axes = _axes(shape, level + 1)
    if shape.slot_count == 0:
        return builder.program([()] * len(axes))
    values = _axis_values(builder, axes, [builder.variable(d) for d in range(shape.rank)])
    return builder.program([values[axis] for axis in axes])


def within_tile_count(shape: Shape, level: int) -> int:
    """Give how many of the axes of `tile_program`, the last ones, lie within the tile."""
    return sum(size != COMBINE for size in shape.layout.tiles[level])


@lru_cache(maxsize=1024)
def conversion_program(source: Shape, destination: Shape, simplify: bool = True) -> IndexProgram:
    """Give the program from a slot of `source` to the slot of the same element in `destination`.

    Raises
    ------
    LayoutError
        The dimensions differ, or as `linear_program`.
    UnsupportedError
        As `linear_program`.
    """
    if source.dimensions != destination.dimensions:
        raise LayoutError(f"both layouts must be of one array: the dimensions of {source} and {destination} differ")
    builder = _Builder((source.slot_count,), simplify)
    if source.slot_count == 0:
        return builder.program([()])
    slot = builder.variable(0)
    coordinates, checks = _coordinates(builder, source, slot, every_check=not simplify)
    if destination.slot_count == 0:
        return builder.program([()], checks)
    if simplify and source.layout == destination.layout:
        return builder.program([slot], checks)
    return builder.program([_slot(builder, _axes(destination), coordinates)], checks)
