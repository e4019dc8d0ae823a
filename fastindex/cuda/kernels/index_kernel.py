"""The GPU kernel of index programs: generated for the form of a program, run with the numbers of any such program.

The form says which variables a quotient, an output or a check sums up. Most programs have numbers of 32 bits: their
quotients are padded to 2, 4 or 8, and each sum is over all variables before it, with coefficient 0 for those that a
program does not use, so that few kernels serve them. A larger program has sums of 64 bits, over its own variables
alone. Bounds, coefficients and the constants of divisions come from a table in GPU memory.

A gather is a program from slot to slot that copies the element, or writes padding, instead of the number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, cuda, device_function
from fastindex.cuda.kernels.memory import LOAD, STORE, WIDTHS, load_int64, load_integer, lower_to, store_int64
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
class ProgramForm:
    """The part of a program that a kernel depends on; variables are numbered: inputs, then quotients.

    Attributes
    ----------
    quotients : tuple of (variables, wide)
    outputs : tuple of tuples of variables
    checks : tuple of variables
        Variables of any check; empty if there are no checks.
    narrow : bool
        Whether sums have 32 bits.
    """

    quotients: tuple[tuple[tuple[int, ...], bool], ...]
    outputs: tuple[tuple[int, ...], ...]
    checks: tuple[int, ...]
    narrow: bool


@dataclass(frozen=True, slots=True)
class KernelForm:
    """The form that a kernel is generated for.

    Attributes
    ----------
    inputs : tuple of InputForm
    program : ProgramForm
    strided : bool
        Whether arrays are walked by strides; otherwise all are contiguous.
    gathered : bool
        Whether the one output is the slot of an element to copy, and a failed check means padding.
    """

    inputs: tuple[InputForm, ...]
    program: ProgramForm
    strided: bool = False
    gathered: bool = False

    @property
    def elements(self) -> int:
        """How many elements a thread converts, with a stride of a block: 1, 2 or 4."""
        return next((n for n in (MOST_ELEMENTS, 2) if n * self._variables <= MOST_VARIABLES), 1)

    @property
    def resident(self) -> int:
        """How many blocks must be resident on a multiprocessor at once."""
        few = self.elements * self._variables <= FEW_VARIABLES and not self.strided
        return 3 if few and self.program.narrow else 2

    @property
    def _variables(self) -> int:
        operands, quotients = len(self.inputs) + len(self.program.outputs), len(self.program.quotients)
        # Strided arrays need an offset for each operand.
        return operands * (2 if self.strided else 1) + quotients


@device_function
def _beyond(value: Any, bound: Any) -> Any:
    return np.uint64(value) >= np.uint64(bound)


@device_function
def _reported(value: Any, bound: Any, failed: Any, n: Any) -> Any:
    # The value is used all the same: what is computed from it is discarded.
    if _beyond(value, bound):
        lower_to(failed, n)
    return value


@device_function
def _wrapped(value: Any, bound: Any, failed: Any, n: Any) -> Any:
    return np.int64(value % bound) if _beyond(value, bound) else value


@device_function
def _wrapped_unsigned(value: Any, bound: Any, failed: Any, n: Any) -> Any:
    return np.int64(np.uint64(value) % np.uint64(bound)) if _beyond(value, bound) else value


@device_function
def _clipped(value: Any, bound: Any, failed: Any, n: Any) -> Any:
    if _beyond(value, bound):
        return np.int64(0) if value < 0 else bound - 1
    return value


@device_function
def _clipped_unsigned(value: Any, bound: Any, failed: Any, n: Any) -> Any:
    return bound - 1 if _beyond(value, bound) else value


#: The functions that bring an input within its bound, by its treatment and whether it is signed.
_WITHIN = {
    ("raise", True): _reported,
    ("raise", False): _reported,
    ("wrap", True): _wrapped,
    ("wrap", False): _wrapped_unsigned,
    ("clip", True): _clipped,
    ("clip", False): _clipped_unsigned,
}


class _Writer:
    """Generates the source of a kernel, and assigns each number its place in the table.

    The order of the numbers is: 1 if a failed check gives -1 in all outputs, 0 if it is reported to the host; the
    number of checks; the bound of each input; magic, shift and coefficients of each quotient; the coefficients of each
    output; the bound and the coefficients of each check; and for strided arrays the number of axes, then for each axis,
    the last first, its size, magic and shift and the stride of each input and output.

    A thread reads the inputs of all its elements before it
    writes: an output may alias an input, so the compiler cannot move the loads of the next element above the stores of
    the last one.
    """

    def __init__(self, form: KernelForm) -> None:
        self._form = form
        self._each = range(form.elements)
        self._inputs, self._outputs = range(len(form.inputs)), range(len(form.program.outputs))

    def source(self) -> str:
        form, program = self._form, self._form.program
        addresses = [f"a{i}" for i in self._inputs] + [f"b{i}" for i in self._outputs]
        operands = ["target", "memory", "width", "low", "high"] if form.gathered else addresses
        body = ["mark, checks = load_int64(table), load_int64(table + 8)"]
        body.append(f"first = int64(cuda.blockIdx.x) * {form.elements * THREADS} + cuda.threadIdx.x")
        body += [f"n{k} = min(first + {k * THREADS}, count - 1)" for k in self._each]
        numbers = 2 + len(form.inputs) + sum(2 + len(variables) for variables, _ in program.quotients)
        numbers += sum(map(len, program.outputs))
        if form.strided:
            body.append(f"axes = table + {8 * numbers} + checks * {8 * (1 + len(program.checks))}")
            offsets = "".join(f"o{i}_K, " for i in range(len(addresses)))
            body += self._of_each(f"{offsets}= walked(nK, axes)")
        for i in self._inputs:
            body += self._of_each(self._input(i))
        if not form.gathered:
            for i in self._inputs:
                body.append(f"bound = load_int64(table + {16 + 8 * i})")
                body += self._of_each(f"v{i}_K = {self._kind}(within{i}(x{i}_K, bound, failed, nK))")
        results = "".join(f"y{i}_K, " for i in self._outputs)
        values = ", ".join(f"v{i}_K" for i in self._inputs)
        start = 16 + 8 * len(form.inputs)
        body += self._of_each(f"{results}hole_K = element(table + {start}, checks, {values})")
        body += self._gathering() if form.gathered else self._storing()
        head = [f"def convert({', '.join(['table', 'count', 'failed', *operands])}):"]
        lines = [*self._element(), *(self._walk() if form.strided else ()), *head, *(f"    {line}" for line in body)]
        return "\n".join(lines) + "\n"

    @property
    def _kind(self) -> str:
        return "uint32" if self._form.program.narrow else "int64"

    def _of_each(self, line: str) -> list[str]:
        return [line.replace("K", str(k)) for k in self._each]

    def _input(self, i: int) -> str:
        form, bits = self._form, self._form.inputs[i].bits
        if form.gathered:
            return f"v{i}_K = {self._kind}(nK)"
        place = f"o{i}_K" if form.strided else f"nK * {max(bits // 8, 1)}"
        return f"x{i}_K = load{i}(a{i} + {place})" if bits else f"x{i}_K = a{i} + {place}"

    def _element(self) -> list[str]:
        """Generate the function that maps variables to outputs, and to whether a check failed."""
        program, kind, inputs = self._form.program, self._kind, len(self._form.inputs)
        body: list[str] = []
        read = 0

        def number() -> str:
            nonlocal read
            read += 8
            return f"table + {read - 8}"

        def total(variables: tuple[int, ...]) -> str:
            found = ""
            for v in variables:
                product = f"{kind}(number({number()}) * v{v})"
                found = f"{kind}({found} + {product})" if found else product
            return found or f"{kind}(0)"

        for i, (variables, wide) in enumerate(program.quotients, inputs):
            magic, shift = number(), number()
            if program.narrow and not wide:
                # Factors that are loaded as 32 bits make one instruction of their product.
                product = f"uint64({total(variables)}) * uint64(number({magic}))"
                body.append(f"v{i} = uint32(({product}) >> uint64(number({shift})))")
                continue
            divide = "wide_quotient" if wide else "quotient"
            given = f"int64({total(variables)}), load_int64({magic}), load_int64({shift})"
            body.append(f"v{i} = {kind}({divide}({given}))")
        body += [f"y{i} = {total(variables)}" for i, variables in enumerate(program.outputs)]
        body += ["hole = False", f"table += {read}"]
        if program.checks:
            read = 0
            bound = f"load_int64({number()})"
            body += [
                "for _ in range(checks):",
                f"    if beyond({total(program.checks)}, {bound}):",
                "        hole = True",
            ]
            body.append(f"    table += {read}")
        head = f"def element({', '.join(['table', 'checks', *(f'v{i}' for i in self._inputs)])}):"
        results = ", ".join([*(f"y{i}" for i in self._outputs), "hole"])
        return ["@device_function", head, *(f"    {line}" for line in body), f"    return {results}"]

    def _storing(self) -> Iterator[str]:
        yield from (line for i in self._outputs for line in self._of_each(f"y{i}_K = int64(y{i}_K)"))
        if self._form.program.checks:
            for k in self._each:
                yield f"if hole_{k}:"
                yield from (f"    y{i}_{k} = int64(-1)" for i in self._outputs)
                yield from ("    if not mark:", f"        lower_to(failed, n{k})")
        for k in self._each:
            yield f"if first + {k * THREADS} < count:"
            for i in self._outputs:
                place = f"o{len(self._inputs) + i}_{k}" if self._form.strided else f"n{k} * 8"
                yield f"    store_int64(b{i} + {place}, y{i}_{k})"

    def _gathering(self) -> Iterator[str]:
        # Padding loads slot 0, which is safe, and ignores it.
        yield from self._of_each("y0_K = int64(0) if hole_K else int64(y0_K)")
        for width in WIDTHS:
            yield f"if width == {width}:"
            yield from self._of_each(f"    e{width}_K = load_{width}(memory + y0_K * {width})")
            for k in self._each:
                yield f"    if first + {k * THREADS} < count:"
                yield f"        put_{width}(target + n{k} * {width}, e{width}_{k}, hole_{k}, low, high)"

    def _walk(self) -> list[str]:
        """Generate the function that maps the number of an element to the offset of each operand."""
        operands = len(self._inputs) + len(self._outputs)
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


def _putting(width: int) -> Any:
    """Make the function that stores an element of a gather, or padding."""
    store, padding = STORE[width], unit_of_numbers(width)

    @device_function
    def put(at: Any, value: Any, hole: Any, low: Any, high: Any) -> None:
        store(at, padding(low, high) if hole else value)

    return put


@lru_cache(maxsize=1024)
def index_kernel(form: KernelForm) -> Kernel:
    """Make the kernel of a form.

    Its parameters: the table; the number of elements; the address of the number of the first failed element; then the
    address of each input and output, or for a gather those of destination and source, the bytes of an element, and 16
    bytes of padding.
    """
    names: dict[str, Any] = {
        "cuda": cuda,
        "device_function": device_function,
        "int64": np.int64,
        "uint32": np.uint32,
        "uint64": np.uint64,
        "number": LOAD[4] if form.program.narrow else load_int64,
        "quotient": _quotient,
        "wide_quotient": _wide_quotient,
        "load_int64": load_int64,
        "store_int64": store_int64,
        "lower_to": lower_to,
        "beyond": _beyond,
    }
    for i, given in enumerate(form.inputs):
        names[f"within{i}"] = _WITHIN[given.treatment, given.signed]
        if given.bits:
            names[f"load{i}"] = load_integer(given.bits, given.signed)
    if form.gathered:
        for width in WIDTHS:
            names[f"load_{width}"], names[f"put_{width}"] = LOAD[width], _putting(width)
    source = _Writer(form).source()
    exec(compile(source, "<fastindex index kernel>", "exec"), names)
    return Kernel(
        names["convert"], f"{'gather' if form.gathered else 'index'} {form}", form.resident, form.elements * THREADS
    )
