"""Index programs as sums of floor divisions: their simplification, and division by a constant.

For ``n < 2**w`` and a divisor ``d`` with ``s = ceil(log2(d))``, take ``m = ceil(2**(w + s) / d)``. Then
``m * d = 2**(w + s) + e`` with ``0 <= e < d <= 2**s``, so ``n * m / 2**(w + s)`` exceeds ``n / d`` by
``n * e / (d * 2**(w + s)) < 1 / d``, too little to reach the next integer: both have the same floor. ``m`` has
``w + 1`` bits at most.

Source: T. Granlund and P. Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994.

A program has inputs (coordinates, or one slot), then quotients, each the floor of a linear combination of inputs
and earlier quotients over a constant, then outputs, each a linear combination of all of these. Everything is a
non-negative integer.

Two identities keep programs short: ``(x // a) // b`` is ``x // (a * b)``, and ``(D * a + b) // D`` is ``a + b // D``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastindex.core.integers import INT64_MAX

#: Numerators below this take the narrow path: the product fits 63 bits.
NARROW = 2**31


@dataclass(frozen=True, slots=True)
class Division:
    """Constants for ``numerator // divisor``.

    Attributes
    ----------
    magic : int
        Below 2**32 where narrow, below 2**64 where wide.
    shift : int
        Narrow: of the 64-bit product. Wide: of the high half of the 128-bit product.
    wide : bool
    """

    magic: int
    shift: int
    wide: bool


def division(divisor: int, limit: int) -> Division:
    """Return the constants that divide every numerator in ``range(limit + 1)`` by `divisor`.

    Parameters
    ----------
    divisor : int
        At least 1, and below 2**63. Where wide, at least 2.
    limit : int
        Below 2**63.

    Examples
    --------
    >>> constants = division(7, 1000)
    >>> (1000 * constants.magic) >> constants.shift
    142
    """
    rounded_up = (divisor - 1).bit_length()
    if limit < NARROW and divisor < NARROW:
        return Division(-(-(2 ** (31 + rounded_up)) // divisor), 31 + rounded_up, False)
    return Division(-(-(2 ** (63 + rounded_up)) // divisor), rounded_up - 1, True)


#: A linear combination: (variable, coefficient) pairs, sorted by variable, no coefficient 0.
Form = tuple[tuple[int, int], ...]


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
        A slot is padding where one of these fails; the outputs are then meaningless.

    Examples
    --------
    >>> from fastindex.index.programs import linear_program
    >>> from fastindex.core.shape import Shape
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
    _derived: dict[tuple[Any, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    def evaluate(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """Return the outputs, and whether all checks hold, for inputs within their bounds.

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
        """Return the program as text, one line per quotient, output and check."""
        inputs = len(self.input_bounds)
        lines = [", ".join(f"x{i} < {bound}" for i, bound in enumerate(self.input_bounds)) or "no inputs"]
        for i, quotient in enumerate(self.quotients):
            numerator = _spelled(quotient.numerator, inputs)
            if quotient.divisor > 1 and (len(quotient.numerator) > 1 or quotient.numerator[0][1] != 1):
                numerator = f"({numerator})"
            lines.append(f"q{i} = {numerator}" + (f" // {quotient.divisor}" if quotient.divisor > 1 else ""))
        lines += [f"y{i} = {_spelled(form, inputs)}" for i, form in enumerate(self.outputs)]
        lines += [f"padding unless {_spelled(c.value, inputs)} < {c.bound}" for c in self.checks]
        return "\n".join(lines)

    def derived(self, make: Callable[..., Any], *options: bool) -> Any:
        """Return ``make(self, *options)``, computed once: the tables of a back end for this program."""
        key = make, options
        found = self._derived.get(key)
        if found is None:
            found = self._derived[key] = make(self, *options)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexProgram, (self.input_bounds, self.quotients, self.outputs, self.checks)


def _combined(form: Form, values: Sequence[Any]) -> Any:
    total: Any = 0
    for variable, coefficient in form:
        total = total + values[variable] * wrapped_int64(coefficient)
    return total


def wrapped_int64(number: int) -> int:
    """Return the int64 that equals `number` modulo 2**64.

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


def scaled_sum(*parts: tuple[int, Form]) -> Form:
    """Return the sum of ``factor * form`` over `parts`."""
    return _form((v, factor * c) for factor, form in parts for v, c in form)


class ProgramBuilder:
    """Collects quotients; each becomes a sum of as few and as simple quotients as possible."""

    def __init__(self, input_bounds: Sequence[int]) -> None:
        self._input_bounds = tuple(input_bounds)
        self._limits = [max(bound - 1, 0) for bound in input_bounds]
        self._quotients: list[Quotient] = []
        self._known: dict[tuple[Form, int], int] = {}

    def variable(self, number: int) -> Form:
        """Return an input as a form, which is empty if the input is always 0."""
        return () if self._limits[number] == 0 else ((number, 1),)

    def quotient(self, numerator: Form, divisor: int, limit: int) -> Form:
        """Return ``numerator // divisor`` as a form; the numerator lies in ``range(limit + 1)``."""
        limit = min(limit, self._upper_bound(numerator))
        if divisor == 1:
            return numerator
        if limit < divisor:
            return ()
        pulled, remainder = self._pull_out(numerator, divisor)
        if pulled:
            return scaled_sum((1, pulled), (1, self.quotient(remainder, divisor, self._upper_bound(remainder))))
        common = math.gcd(divisor, *(c for _, c in numerator))
        if common > 1:
            reduced = tuple((v, c // common) for v, c in numerator)
            return self.quotient(reduced, divisor // common, limit // common)
        inner = self._lone_quotient(numerator)
        if inner is not None:
            return self.quotient(inner.numerator, inner.divisor * divisor, inner.limit)
        return self._new_quotient(numerator, divisor, limit)

    def in_units(self, number: Form, bits: int, unit_bits: int, last: int) -> Form:
        """Return the number of the unit, of `unit_bits` bits, in which an item begins.

        `number` is the number of the item, at most `last`; items have `bits` bits each.

        Examples
        --------
        >>> builder = ProgramBuilder((8,))
        >>> builder.in_units(builder.variable(0), 16, 8, 7)
        ((0, 2),)
        """
        common = math.gcd(bits, unit_bits)
        factor, divisor = bits // common, unit_bits // common
        scaled = scaled_sum((factor, number))
        return scaled if divisor == 1 else self.quotient(scaled, divisor, last * factor)

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
        """Split a numerator into ``divisor * pulled + remainder``; the floors agree since ``remainder >= 0``."""
        pulled = tuple((v, c // divisor) for v, c in numerator if c % divisor == 0)
        remainder = tuple((v, c) for v, c in numerator if c % divisor)
        if any(c < 0 for _, c in remainder) or self._upper_bound(remainder) > INT64_MAX:
            return (), numerator
        return pulled, remainder

    def _lone_quotient(self, numerator: Form) -> Quotient | None:
        if len(numerator) == 1 and numerator[0][1] == 1 and numerator[0][0] >= len(self._input_bounds):
            return self._quotients[numerator[0][0] - len(self._input_bounds)]
        return None

    def program(self, outputs: Iterable[Form], checks: Iterable[Check] = ()) -> IndexProgram:
        """Return the program, without unused quotients and checks that always hold."""
        kept_checks = tuple(c for c in checks if self._upper_bound(c.value) >= c.bound)
        whole = IndexProgram(self._input_bounds, tuple(self._quotients), tuple(outputs), kept_checks)
        return without_unused_quotients(narrowed(whole))


def narrowed(program: IndexProgram) -> IndexProgram:
    """Divide an input of more than 31 bits only once, and derive everything else from the two narrow parts.

    With ``q = x // b`` and ``r = x - b * q``, which is a quotient by 1, ``x // (k * b)`` is ``q // k``, and ``x // d``
    is ``q * (b // d) + r // d`` where `d` divides `b`.
    """
    inputs = len(program.input_bounds)
    forms: list[Form] = [((v, 1),) for v in range(inputs)]
    quotients: list[Quotient] = []

    def add(numerator: Form, divisor: int, limit: int) -> Form:
        quotients.append(Quotient(numerator, divisor, limit))
        return ((inputs + len(quotients) - 1, 1),)

    def replaced(form: Form) -> Form:
        return scaled_sum(*((c, forms[v]) for v, c in form))

    parts: dict[Form, tuple[int, int, Form, Form]] = {}
    for v in range(inputs):
        divisor, last = _parting_divisor(program, v), program.input_bounds[v] - 1
        if divisor is not None:
            above = add(((v, 1),), divisor, last)
            below = add(scaled_sum((1, ((v, 1),)), (-divisor, above)), 1, divisor - 1)
            parts[((v, 1),)] = divisor, last, above, below
            forms[v] = scaled_sum((divisor, above), (1, below))
    if not parts:
        return program
    for quotient in program.quotients:
        if quotient.numerator not in parts:
            forms.append(add(replaced(quotient.numerator), quotient.divisor, quotient.limit))
            continue
        divisor, last, above, below = parts[quotient.numerator]
        if quotient.divisor == divisor:
            forms.append(above)
        elif quotient.divisor > divisor:
            forms.append(add(above, quotient.divisor // divisor, last // divisor))
        else:
            factor = divisor // quotient.divisor
            forms.append(scaled_sum((factor, above), (1, add(below, quotient.divisor, divisor - 1))))
    return IndexProgram(
        program.input_bounds,
        tuple(quotients),
        tuple(replaced(form) for form in program.outputs),
        tuple(Check(replaced(check.value), check.bound) for check in program.checks),
    )


def _parting_divisor(program: IndexProgram, variable: int) -> int | None:
    """Return a divisor that splits an input into two narrow parts, if all others divide it or are multiples of it."""
    last = program.input_bounds[variable] - 1
    divisors = {q.divisor for q in program.quotients if q.numerator == ((variable, 1),)}
    if last < NARROW or len(divisors) < 2:
        return None
    for divisor in sorted(divisors, reverse=True):
        leaves_narrow = divisor <= NARROW and last // divisor < NARROW
        if leaves_narrow and all(divisor % other == 0 or other % divisor == 0 for other in divisors):
            return divisor
    return None


def without_unused_quotients(program: IndexProgram) -> IndexProgram:
    """Drop the quotients that no output and no check uses, and renumber the others."""
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
