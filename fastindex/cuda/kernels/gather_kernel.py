"""GPU kernels that gather slot by slot: the numbers of an index program come from a table, like those of loops.

`index_kernel` generates a kernel for each form of a program. Here three kernels serve all programs: they divide up to
2, 4 or 8 times, and each quotient is taken of a sum over all variables before it, with coefficient 0 for those that a
program does not use. Sums have 32 bits, for buffers of at most 2**31 slots.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, cuda, device_function
from fastindex.cuda.kernels.loops import quotient
from fastindex.cuda.kernels.memory import LOAD, STORE
from fastindex.cuda.kernels.registers import unit_of_numbers

#: The most divisions of each kernel.
QUOTIENTS = (2, 4, 8)

_HOLE = np.uint32(0xFFFFFFFF)


def _slot_source(quotients: int) -> str:
    """Generate the function that maps a slot to that of the same element on the other side, `_HOLE` for padding.

    The order of the numbers, 8 bytes each, is: magic, shift and coefficients of each quotient; the coefficients of the
    slot; then for each check its bound and coefficients.
    """
    at = 0
    lines = ["def slot(x0, table, checks):"]

    def number() -> str:
        nonlocal at
        at += 8
        return f"number(table + {at - 8})"

    def total(variables: int) -> str:
        found = f"uint32({number()} * x0)"
        for i in range(1, variables):
            found = f"uint32({found} + uint32({number()} * x{i}))"
        return found

    for i in range(1, quotients + 1):
        magic, shift = number(), number()
        lines.append(f"    x{i} = uint32(quotient(int64({total(i)}), int64({magic}), int64({shift})))")
    lines.append(f"    found = {total(quotients + 1)}")
    lines.append(f"    table += {at}")
    at = 0
    lines.append("    for _ in range(checks):")
    lines.append(f"        bound = {number()}")
    lines.append(f"        if {total(quotients + 1)} >= bound:")
    lines.append("            found = hole")
    lines += [f"        table += {at}", "    return found"]
    return "\n".join(lines) + "\n"


@cache
def gather_kernel(quotients: int) -> Kernel:
    """Make the kernel that gathers, for each slot of the target, its element of the source, or padding.

    Parameters: target, source, table, number of slots, number of checks, bytes of an element, and 16 bytes of padding
    as two numbers.
    """
    load_word = LOAD[4]
    names: dict[str, Any] = {
        "int64": np.int64,
        "uint32": np.uint32,
        "quotient": quotient,
        "number": load_word,
        "hole": _HOLE,
    }
    exec(compile(_slot_source(quotients), "<fastindex gather kernel>", "exec"), names)
    slot = device_function(names["slot"])

    @device_function
    def place(found: Any, width: Any) -> Any:
        return np.int64(0) if found == _HOLE else np.int64(found) * width

    def mover(width: int) -> Any:
        load, store = LOAD[width], STORE[width]
        padding = unit_of_numbers(width)

        @device_function
        def put(at: Any, found: Any, value: Any, low: Any, high: Any) -> None:
            if found == _HOLE:
                store(at, padding(low, high))
            else:
                store(at, value)

        @device_function
        def move(target: Any, source: Any, n: Any, count: Any, slots: Any, low: Any, high: Any) -> None:
            y0, y1, y2, y3 = slots
            # Padding loads slot 0, which is safe, and ignores it.
            v0, v1 = load(source + place(y0, width)), load(source + place(y1, width))
            v2, v3 = load(source + place(y2, width)), load(source + place(y3, width))
            at, step = target + n * width, THREADS * width
            put(at, y0, v0, low, high)
            if n + THREADS < count:
                put(at + step, y1, v1, low, high)
            if n + 2 * THREADS < count:
                put(at + 2 * step, y2, v2, low, high)
            if n + 3 * THREADS < count:
                put(at + 3 * step, y3, v3, low, high)

        return move

    move_1, move_2, move_4, move_8, move_16 = (mover(width) for width in (1, 2, 4, 8, 16))

    def gather(target, source, table, count, checks, width, low, high):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * (4 * THREADS) + cuda.threadIdx.x
        last = count - 1
        if n < count:
            slots = (
                slot(np.uint32(n), table, checks),
                slot(np.uint32(min(n + THREADS, last)), table, checks),
                slot(np.uint32(min(n + 2 * THREADS, last)), table, checks),
                slot(np.uint32(min(n + 3 * THREADS, last)), table, checks),
            )
            if width == 1:
                move_1(target, source, n, count, slots, low, high)
            elif width == 2:
                move_2(target, source, n, count, slots, low, high)
            elif width == 4:
                move_4(target, source, n, count, slots, low, high)
            elif width == 8:
                move_8(target, source, n, count, slots, low, high)
            else:
                move_16(target, source, n, count, slots, low, high)

    return Kernel(gather, "iiiiiiuu", f"gather {quotients}")
