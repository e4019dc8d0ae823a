"""The GPU kernel of index programs: generated for the form of a program, run with the numbers of any such program.

The form says which variables a quotient, an output or a check sums up, and how wide a division is. All tiled layouts of
a kind have one form, so they share a kernel; bounds, coefficients and the constants of divisions come from a table in
GPU memory. Divisions use the arithmetic of `element`, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, cuda, device_function
from fastindex.cuda.kernels.memory import LOAD, STORE, load_int64, load_integer, lower_to, store_int64
from fastindex.cuda.kernels.registers import unit_of_numbers
from fastindex.index.numbers import high_product, narrow_quotient

#: Most elements of a thread; most variables of all its elements before registers spill; and the most variables that fit
#: the registers of three resident blocks. Chosen by the register counts that NVIDIA's assembler reports.
MOST_ELEMENTS, MOST_VARIABLES, FEW_VARIABLES = 4, 52, 32

#: The number of the first failed element if none has failed.
NOWHERE = 2**63 - 1

#: Marks an input that is start + step * position, not an array: its "address" is the start.
COUNTED = 0

_quotient = device_function(narrow_quotient)
_high_product = device_function(high_product)


@device_function
def _wide_quotient(numerator: Any, magic: Any, shift: Any) -> Any:
    return np.int64(_high_product(np.uint64(numerator), np.uint64(magic)) >> np.uint64(shift))


@dataclass(frozen=True, slots=True)
class InputForm:
    """How an input is stored, and what happens out of bounds.

    Attributes
    ----------
    bits : int
        8 to 64, or `COUNTED`.
    signed : bool
    treatment : {"raise", "wrap", "clip"}
    """

    bits: int
    signed: bool = True
    treatment: str = "raise"


@dataclass(frozen=True, slots=True)
class KernelForm:
    """The form that a kernel is generated for.

    Attributes
    ----------
    inputs : tuple of InputForm
    quotients : tuple of (variables, wide)
        Variables are numbered: inputs, then quotients.
    outputs, checks : tuple of tuples of variables
    strided : bool
        Whether arrays are walked by strides; otherwise all are contiguous.
    gathered : int
        0, or the bytes of an element: the one output is then the slot of the element to copy, and a failed check means
        padding.
    """

    inputs: tuple[InputForm, ...]
    quotients: tuple[tuple[tuple[int, ...], bool], ...]
    outputs: tuple[tuple[int, ...], ...]
    checks: tuple[tuple[int, ...], ...] = ()
    strided: bool = False
    gathered: int = 0

    @property
    def elements(self) -> int:
        """How many elements a thread converts, with a stride of a block: 1, 2 or 4."""
        return next((n for n in (MOST_ELEMENTS, 2) if n * self._variables <= MOST_VARIABLES), 1)

    @property
    def resident(self) -> int:
        """How many blocks must be resident on a multiprocessor at once."""
        return 3 if self.elements * self._variables <= FEW_VARIABLES and not self.strided else 2

    @property
    def _variables(self) -> int:
        operands = len(self.inputs) + len(self.outputs)
        # Strided arrays need an offset for each operand.
        return operands * (2 if self.strided else 1) + len(self.quotients)

    def blocks(self, count: int) -> int:
        """Return the number of blocks that convert `count` elements."""
        return -(-count // (self.elements * THREADS))


@device_function
def _beyond(value: Any, bound: Any) -> Any:
    return np.uint64(value) >= np.uint64(bound)


@device_function
def _wrapped(value: Any, bound: Any) -> Any:
    return np.int64(value % bound)


@device_function
def _wrapped_unsigned(value: Any, bound: Any) -> Any:
    return np.int64(np.uint64(value) % np.uint64(bound))


@device_function
def _clipped(value: Any, bound: Any) -> Any:
    return np.int64(0) if value < 0 else bound - 1


@device_function
def _clipped_unsigned(value: Any, bound: Any) -> Any:
    return bound - 1


class _Writer:
    """Generates the source of a kernel, and assigns each number its place in the table.

    The order of the numbers is: the bound of each input; magic, shift and coefficients of each quotient; the
    coefficients of each output; the bound and the coefficients of each check; if there are checks and no gather, 1 if a
    failed one gives -1 in all outputs, 0 if it is reported to the host; and for strided arrays the number of axes, then
    for each axis, the last first, its size, magic and shift and the stride of each input and output.

    A thread reads the inputs of all its elements before it writes: an output may alias an input, so the compiler cannot
    move the loads of the next element above the stores of the last one.
    """

    def __init__(self, form: KernelForm) -> None:
        self._form = form
        self._numbers = 0

    def source(self) -> str:
        element, constants = self._element(), self._numbers
        given = ", ".join(f"c{i}" for i in range(constants))
        form, inputs, outputs = self._form, len(self._form.inputs), len(self._form.outputs)
        addresses = [f"a{i}" for i in range(inputs)] + [f"b{i}" for i in range(outputs)]
        operands = ["target", "memory", "low", "high"] if form.gathered else addresses
        lines = [f"def convert({', '.join(['table', 'count', 'failed', *operands])}):"]
        lines += [f"    c{i} = load_int64(table + {8 * i})" for i in range(constants)]
        lines.append(f"    first = int64(cuda.blockIdx.x) * {form.elements * THREADS} + cuda.threadIdx.x")
        for k in range(form.elements):
            lines.append(f"    n{k} = min(first + {k * THREADS}, count - 1)")
            if form.strided:
                offsets = "".join(f"o{i}_{k}, " for i in range(inputs + outputs))
                lines.append(f"    {offsets}= walked(n{k}, table + {8 * constants})")
        for k in range(form.elements):
            lines += [f"    {line}" for line in self._reads(k)]
        for k in range(form.elements):
            values = "".join(f"x{i}_{k}, " for i in range(inputs))
            results = "".join(f"y{i}_{k}, " for i in range(outputs))
            lines.append(f"    {results}hole_{k} = element(failed, n{k}, {values}{given})")
        if form.gathered:
            lines += [f"    v_{k} = taken(memory, y0_{k}, hole_{k}, low, high)" for k in range(form.elements)]
        for k in range(form.elements):
            lines.append(f"    if first + {k * THREADS} < count:")
            lines += [f"        {line}" for line in self._writes(k)]
        return "\n".join([*element, *(self._walk() if form.strided else ()), *lines]) + "\n"

    def _element(self) -> list[str]:
        """Generate the function that maps the inputs of an element to its outputs, and to whether a check failed."""
        form = self._form
        body: list[str] = []
        bounds = [self._constant() for _ in form.inputs]
        quotients = [(self._constant(), self._constant(), self._coefficients(v)) for v, _ in form.quotients]
        sums = [self._coefficients(variables) for variables in form.outputs]
        checks = [(self._constant(), self._coefficients(variables)) for variables in form.checks]
        for i, (given, bound) in enumerate(zip(form.inputs, bounds, strict=True)):
            if not form.gathered:
                body += self._checked(i, given, bound)
        for i, ((variables, wide), (magic, shift, numbers)) in enumerate(zip(form.quotients, quotients, strict=True)):
            divide = "wide_quotient" if wide else "quotient"
            body.append(f"q{i} = {divide}({self._sum(variables, numbers)}, {magic}, {shift})")
        for i, (variables, numbers) in enumerate(zip(form.outputs, sums, strict=True)):
            body.append(f"y{i} = {self._sum(variables, numbers)}")
        body.append("hole = False")
        for variables, (bound, numbers) in zip(form.checks, checks, strict=True):
            body.append(f"hole |= beyond({self._sum(variables, numbers)}, {bound})")
        if form.checks and not form.gathered:
            body += ["if hole:", *(f"    y{i} = int64(-1)" for i in range(len(form.outputs)))]
            body += [f"    if not {self._constant()}:", "        lower_to(failed, n)"]
        values = [f"x{i}" for i in range(len(form.inputs))]
        parameters = ["failed", "n", *values, *(f"c{i}" for i in range(self._numbers))]
        results = [f"y{i}" for i in range(len(form.outputs))]
        head = ["@device_function", f"def element({', '.join(parameters)}):"]
        return [*head, *(f"    {line}" for line in body), f"    return {', '.join([*results, 'hole'])}"]

    def _constant(self) -> str:
        self._numbers += 1
        return f"c{self._numbers - 1}"

    def _coefficients(self, variables: tuple[int, ...]) -> list[str]:
        return [self._constant() for _ in variables]

    def _sum(self, variables: tuple[int, ...], numbers: list[str]) -> str:
        inputs = len(self._form.inputs)
        names = (f"x{v}" if v < inputs else f"q{v - inputs}" for v in variables)
        return " + ".join(f"{number} * {name}" for number, name in zip(numbers, names, strict=True)) or "int64(0)"

    def _checked(self, i: int, given: InputForm, bound: str) -> Iterator[str]:
        yield f"if beyond(x{i}, {bound}):"
        if given.treatment == "raise":
            yield from ("    lower_to(failed, n)", f"    x{i} = int64(0)")
        else:
            name = {"wrap": "wrapped", "clip": "clipped"}[given.treatment]
            yield f"    x{i} = {name}{'' if given.signed else '_unsigned'}(x{i}, {bound})"

    def _reads(self, k: int) -> Iterator[str]:
        form = self._form
        for i, given in enumerate(form.inputs):
            place = f"o{i}_{k}" if form.strided else f"n{k} * {max(given.bits // 8, 1)}"
            if form.gathered:
                yield f"x{i}_{k} = n{k}"
            elif given.bits:
                yield f"x{i}_{k} = load{i}(a{i} + {place})"
            else:
                yield f"x{i}_{k} = a{i} + {place}"

    def _writes(self, k: int) -> Iterator[str]:
        form = self._form
        if form.gathered:
            yield f"put(target + n{k} * {form.gathered}, v_{k})"
            return
        for i in range(len(form.outputs)):
            place = f"o{len(form.inputs) + i}_{k}" if form.strided else f"n{k} * 8"
            yield f"store_int64(b{i} + {place}, y{i}_{k})"

    def _walk(self) -> list[str]:
        """Generate the function that maps the number of an element to the offset of each operand."""
        operands = len(self._form.inputs) + len(self._form.outputs)
        offsets = [f"o{i}" for i in range(operands)]
        body = [
            f"{', '.join(offsets)} = {', '.join(['int64(0)'] * operands)}",
            "at = axes + 8",
            "for _axis in range(load_int64(axes)):",
            "    above = wide_quotient(n, load_int64(at + 8), load_int64(at + 16))",
            "    digit = n - above * load_int64(at)",
            *(f"    {offset} += digit * load_int64(at + {24 + 8 * i})" for i, offset in enumerate(offsets)),
            "    n = above",
            f"    at += {24 + 8 * operands}",
            f"return {', '.join(offsets)}",
        ]
        return ["@device_function", "def walked(n, axes):", *(f"    {line}" for line in body)]


@lru_cache(maxsize=8)
def _taking(width: int) -> Any:
    """Make the function that loads an element of a gather, or returns padding."""
    get, padding = LOAD[width], unit_of_numbers(width)

    @device_function
    def taken(memory: Any, slot: Any, hole: Any, low: Any, high: Any) -> Any:
        return padding(low, high) if hole else get(memory + slot * width)

    return taken


@lru_cache(maxsize=1024)
def index_kernel(form: KernelForm) -> Kernel:
    """Make the kernel of a form.

    Its parameters: the table; the number of elements; the address of the number of the first failed element; then the
    address of each input and output, or for a gather those of destination and source and 16 bytes of padding.
    """
    names: dict[str, Any] = {
        "cuda": cuda,
        "device_function": device_function,
        "int64": np.int64,
        "quotient": _quotient,
        "wide_quotient": _wide_quotient,
        "load_int64": load_int64,
        "store_int64": store_int64,
        "lower_to": lower_to,
        "beyond": _beyond,
        "wrapped": _wrapped,
        "wrapped_unsigned": _wrapped_unsigned,
        "clipped": _clipped,
        "clipped_unsigned": _clipped_unsigned,
    }
    for i, given in enumerate(form.inputs):
        if given.bits:
            names[f"load{i}"] = load_integer(given.bits, given.signed)
    arguments = "i" * (3 + len(form.inputs) + len(form.outputs))
    if form.gathered:
        names["taken"], names["put"] = _taking(form.gathered), STORE[form.gathered]
        arguments = "iiiiiuu"
    source = _Writer(form).source()
    exec(compile(source, "<fastindex index kernel>", "exec"), names)
    return Kernel(names["convert"], arguments, f"index {form}", form.resident)
