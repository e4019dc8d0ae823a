"""The least that a relayout has to do: read each line of the source that holds an element, write the destination.

This is that and nothing else, independent of the package: one byte of each of the source's lines is read, in order
of address, with none and with three ways to prefetch, and in between the destination's lines are written past the
cache. What a copy's speed is to dense layouts, this is to padded ones.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from benchmarks.copy_ceiling import LINE_BYTES, in_threads
from benchmarks.measure import Run

#: How many lines ahead; with 0, there are no prefetches.
AHEAD = (0, 16, 64, 128)
FEW_LINES = 1 << 16
_FIXED_POINT_BITS = 24


def address_of(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The address of a byte of an array of bytes, in an intrinsic of array and offset."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return cgutils.pointer_add(builder, array.data, arguments[1])


@cache
def prefetch(locality: int) -> Any:
    """An intrinsic that asks for the line of an offset: 3 is into L1, 2 into L2, 0 past the caches."""

    @intrinsic  # type: ignore[untyped-decorator]
    def ask(typing_context: Any, memory: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = address_of(context, builder, signature, arguments)
            i32 = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
            called = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            pointer = builder.bitcast(address, ir.IntType(8).as_pointer())
            builder.call(called, [pointer, i32(0), i32(locality), i32(1)])
            return context.get_dummy_value()

        return types.void(memory, types.intp), generate

    return ask


@intrinsic  # type: ignore[untyped-decorator]
def clear_line(typing_context: Any, output: Any, offset: Any) -> Any:
    """Write 64 zeros at an aligned offset with a non-temporal store."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(64), LINE_BYTES // 8)
        pointer = builder.bitcast(address_of(context, builder, signature, arguments), vector.as_pointer())
        store = builder.store(ir.Constant(vector, None), pointer, align=LINE_BYTES)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(output, types.intp), generate


@cache
def kernel() -> Any:
    ask = prefetch(3)

    @njit("uint64(u1[::1], i4[::1], u1[::1], intp, intp, intp)", nogil=True)  # type: ignore[untyped-decorator]
    def touch(source: Any, lines: Any, output: Any, begin: int, end: int, ahead: int) -> Any:
        total = np.uint64(0)
        a_line = ((len(output) // LINE_BYTES) << _FIXED_POINT_BITS) // len(lines)
        due = begin * a_line
        written = due >> _FIXED_POINT_BITS
        for k in range(begin, end):
            if ahead > 0:
                ask(source, lines[min(k + ahead, len(lines) - 1)] * LINE_BYTES)
            total += np.uint64(source[lines[k] * LINE_BYTES])
            due += a_line
            while written < due >> _FIXED_POINT_BITS:
                clear_line(output, written * LINE_BYTES)
                written += 1
        return total

    return touch


def touches(source: NDArray[np.uint8], lines: NDArray[np.int32], output: NDArray[np.uint8], threads: int) -> list[Run]:
    """The ways to read the numbered lines of a source and to write all of an output, both from a line's start on."""
    touch = kernel()

    def way(ahead: int, threads: int) -> Run:
        def part(begin: int, end: int) -> None:
            touch(source, lines, output, begin, end, ahead)

        return lambda: in_threads(part, len(lines), threads)

    # Few lines are touched before a second thread has begun.
    numbers = {1, threads} if len(lines) < FEW_LINES else {threads}
    return [way(ahead, number) for number in sorted(numbers) for ahead in AHEAD]
