"""The GPU kernel of index programs: written for the form of a program, run with the numbers of any program of it.

The form says which variables a quotient, an output or a check adds up, and how wide a division is. All tiled layouts of
a kind share it, so they share a kernel; bounds, coefficients and the constants of divisions come from a table in GPU
memory. The arithmetic of a division is `element`'s, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fastindex.kernels import element
from fastindex.kernels.cuda.compilation import Kernel
from fastindex.kernels.cuda.device import THREADS, cuda, device_function
from fastindex.kernels.cuda.memory import LOAD, STORE, load_int64, load_integer, lower_to, store_int64
from fastindex.kernels.cuda.registers import unit_of_numbers

#: Elements that a thread converts, a block apart.
ELEMENTS = 4

#: Where no element has failed.
NOWHERE = 2**63 - 1

#: An input that is no array but start + step * place: its "address" is the start.
COUNTED = 0

_quotient = device_function(element.narrow_quotient)
_high_product = device_function(element.high_product)
_wide_quotient = device_function(element.wide_quotient)


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
    """What a kernel is written for.

    Attributes
    ----------
    inputs : tuple of InputForm
    quotients : tuple of (variables, wide)
        Variables are numbered: inputs, then quotients.
    outputs, checks : tuple of tuples of variables
    mark : bool
        Whether a failed check gives -1 in all outputs, instead of telling the host.
    strided : bool
        Whether arrays are walked by strides; otherwise all are contiguous.
    gathered : int
        0, or bytes of an element: the one output is then the slot of an element to copy, or of padding where a check
        fails.
    """

    inputs: tuple[InputForm, ...]
    quotients: tuple[tuple[tuple[int, ...], bool], ...]
    outputs: tuple[tuple[int, ...], ...]
    checks: tuple[tuple[int, ...], ...] = ()
    mark: bool = False
    strided: bool = False
    gathered: int = 0


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
    """Writes the source of a kernel, and knows where in the table each number stands.

    The order of the numbers is: the bound of each input; magic, shift and coefficients of each quotient; the
    coefficients of each output; the bound and the coefficients of each check; and for strided arrays the number of
    axes, then for each axis, the last first, its size, magic and shift and the stride of each input and output.
    """

    def __init__(self, form: KernelForm) -> None:
        self._form = form
        self._numbers = 0
        self._constants: list[str] = []
        self._body: list[str] = []

    def source(self) -> str:
        form = self._form
        inputs = [f"a{i}" for i in range(len(form.inputs))]
        outputs = [f"b{i}" for i in range(len(form.outputs))]
        operands = ["target", "memory", "low", "high"] if form.gathered else [*inputs, *outputs]
        bounds = [self._constant() for _ in form.inputs]
        quotients = [(self._constant(), self._constant(), self._coefficients(v)) for v, _ in form.quotients]
        sums = [self._coefficients(variables) for variables in form.outputs]
        checks = [(self._constant(), self._coefficients(variables)) for variables in form.checks]
        self._read_inputs(bounds)
        for i, ((variables, wide), (magic, shift, numbers)) in enumerate(zip(form.quotients, quotients, strict=True)):
            divide = "wide_quotient" if wide else "quotient"
            self._body.append(f"q{i} = {divide}({self._sum(variables, numbers)}, {magic}, {shift})")
        for i, (variables, numbers) in enumerate(zip(form.outputs, sums, strict=True)):
            self._body.append(f"y{i} = {self._sum(variables, numbers)}")
        self._body.append("hole = False")
        for variables, (bound, numbers) in zip(form.checks, checks, strict=True):
            self._body.append(f"hole |= beyond({self._sum(variables, numbers)}, {bound})")
        self._write_outputs()
        lines = [f"def convert({', '.join(['table', 'count', 'failed', *operands])}):"]
        lines += [f"    {line}" for line in self._constants]
        lines.append(f"    n = int64(cuda.blockIdx.x) * {ELEMENTS * THREADS} + cuda.threadIdx.x")
        lines.append(f"    for _ in range({ELEMENTS}):")
        lines.append("        if n < count:")
        lines += [f"            {line}" for line in self._body]
        lines.append(f"        n += {THREADS}")
        return "\n".join(lines) + "\n"

    def _constant(self) -> str:
        name = f"c{self._numbers}"
        self._constants.append(f"{name} = load_int64(table + {8 * self._numbers})")
        self._numbers += 1
        return name

    def _coefficients(self, variables: tuple[int, ...]) -> list[str]:
        return [self._constant() for _ in variables]

    def _sum(self, variables: tuple[int, ...], numbers: list[str]) -> str:
        inputs = len(self._form.inputs)
        names = (f"x{v}" if v < inputs else f"q{v - inputs}" for v in variables)
        return " + ".join(f"{number} * {name}" for number, name in zip(numbers, names, strict=True)) or "int64(0)"

    def _read_inputs(self, bounds: list[str]) -> None:
        form = self._form
        if form.strided:
            self._body += self._walk()
        for i, (given, bound) in enumerate(zip(form.inputs, bounds, strict=True)):
            if form.gathered:
                self._body.append(f"x{i} = n")
                continue
            place = f"o{i}" if form.strided else f"n * {max(given.bits // 8, 1)}"
            self._body.append(f"x{i} = load{i}(a{i} + {place})" if given.bits else f"x{i} = a{i} + {place}")
            self._body.append(f"if beyond(x{i}, {bound}):")
            if given.treatment == "raise":
                self._body += ["    lower_to(failed, n)", f"    x{i} = int64(0)"]
            else:
                name = {"wrap": "wrapped", "clip": "clipped"}[given.treatment]
                self._body.append(f"    x{i} = {name}{'' if given.signed else '_unsigned'}(x{i}, {bound})")

    def _walk(self) -> Iterator[str]:
        """Turn the number of an element into the offset of each operand."""
        operands = len(self._form.inputs) + len(self._form.outputs)
        start = 8 * self._numbers
        offsets = [f"o{i}" for i in range(operands)]
        yield from (f"{offset} = int64(0)" for offset in offsets)
        yield "rest = n"
        yield f"at = table + {start + 8}"
        yield f"for _axis in range(load_int64(table + {start})):"
        yield "    above = wide_quotient(rest, load_int64(at + 8), load_int64(at + 16))"
        yield "    digit = rest - above * load_int64(at)"
        for i, offset in enumerate(offsets):
            yield f"    {offset} += digit * load_int64(at + {24 + 8 * i})"
        yield "    rest = above"
        yield f"    at += {24 + 8 * operands}"

    def _write_outputs(self) -> None:
        form = self._form
        if form.gathered:
            width = form.gathered
            self._body += ["if hole:", f"    put(target + n * {width}, padding(low, high))", "else:"]
            self._body.append(f"    put(target + n * {width}, get(memory + y0 * {width}))")
            return
        if form.checks:
            self._body.append("if hole:")
            if form.mark:
                self._body += [f"    y{i} = int64(-1)" for i in range(len(form.outputs))]
            else:
                self._body.append("    lower_to(failed, n)")
        for i in range(len(form.outputs)):
            place = f"o{len(form.inputs) + i}" if form.strided else "n * 8"
            self._body.append(f"store_int64(b{i} + {place}, y{i})")


@lru_cache(maxsize=1024)
def index_kernel(form: KernelForm) -> Kernel:
    """Make the kernel of a form.

    Its parameters: the table; how many elements; the address of the number of the first element that failed; then the
    address of each input and output, or for a gather those of destination and source and 16 bytes of padding.
    """
    names: dict[str, Any] = {
        "cuda": cuda,
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
        names["get"], names["put"] = LOAD[form.gathered], STORE[form.gathered]
        names["padding"] = unit_of_numbers(form.gathered)
        arguments = "iiiiiuu"
    source = _Writer(form).source()
    exec(compile(source, "<fastindex index kernel>", "exec"), names)
    return Kernel(names["convert"], arguments, f"index {form}")


def blocks(count: int) -> int:
    """Return how many blocks convert `count` elements."""
    return -(-count // (ELEMENTS * THREADS))
