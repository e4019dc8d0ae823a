"""Conversions of elements in a thread's registers, by the instructions of `runtime.lines.conversions`.

A vector is a uint32, a uint64 or a pair of these, as `cuda.kernels.memory` reads it. In the simulator the same
instructions are compiled for the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from fastindex.algebra.cast_numbers import names_of
from fastindex.cuda.kernels.device import SIMULATED, intrinsic, types
from fastindex.cuda.kernels.memory import GLOBAL
from fastindex.runtime.lines.conversions import Conversion

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)


class Vectors:
    """`count` vectors of `elements` elements of `width` bytes."""

    def __init__(self, count: int, elements: int, width: int) -> None:
        self.count, self.elements, self.width = count, elements, width

    @property
    def _one(self) -> Any:
        nbytes = self.elements * self.width
        return types.UniTuple(types.uint64, 2) if nbytes == 16 else types.uint64 if nbytes == 8 else types.uint32

    @property
    def type(self) -> Any:
        return types.UniTuple(self._one, self.count)

    def parted(self, builder: Any, given: Any) -> list[Any]:
        """Return the elements of vectors, as integers of their width."""
        found = []
        kind, per_half = ir.IntType(8 * self.width), 8 // self.width
        for number in range(self.count):
            vector = builder.extract_value(given, number)
            for i in range(self.elements):
                part = vector
                if self.elements * self.width == 16:
                    part = builder.extract_value(vector, i // per_half)
                shift = 8 * self.width * (i % per_half)
                if shift:
                    part = builder.lshr(part, ir.Constant(part.type, shift))
                found.append(builder.trunc(part, kind) if part.type.width > kind.width else part)
        return found

    def joined(self, context: Any, builder: Any, elements: list[Any]) -> Any:
        """Return the vectors that consist of these elements."""
        made = []
        for number in range(self.count):
            mine = elements[number * self.elements : (number + 1) * self.elements]
            if self.elements * self.width == 16:
                half = self.elements // 2
                parts = [self._word(builder, some, _INT64) for some in (mine[:half], mine[half:])]
                made.append(context.make_tuple(builder, self._one, parts))
            else:
                made.append(self._word(builder, mine, _INT64 if self._one == types.uint64 else _INT32))
        return context.make_tuple(builder, self.type, made)

    def _word(self, builder: Any, elements: list[Any], kind: Any) -> Any:
        found = None
        for i, one in enumerate(elements):
            wide = builder.zext(one, kind) if one.type.width < kind.width else one
            if i:
                wide = builder.shl(wide, ir.Constant(kind, 8 * self.width * i))
            found = wide if found is None else builder.or_(found, wide)
        return found


def converter(code: int | None, given: Vectors, made: Vectors, order: list[int]) -> Callable[[Any, Any], Any]:
    """Make the function that converts vectors, given them and the address of a table of results.

    Parameters
    ----------
    code : int or None
        Of the conversion, as `fastindex.algebra.cast_numbers.conversion_code` numbers them; None keeps elements as
        they are.
    given, made : Vectors
        With equal numbers of elements in total.
    order : list of int
        For each element of the result, the number of its source element.
    """

    def convert(typingctx: Any, vectors: Any, table: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            elements = given.parted(builder, arguments[0])
            if code is not None:
                space = 0 if SIMULATED else GLOBAL
                conversion = Conversion(builder, names_of(code), space=space, keeps_nan=SIMULATED)
                elements = [conversion.converted(one, arguments[1]) for one in elements]
            return made.joined(context, builder, [elements[i] for i in order])

        return made.type(given.type, types.int64), generate

    if not SIMULATED:
        return intrinsic(convert)  # type: ignore[no-any-return]
    import numba
    from numba.extending import intrinsic as of_processors

    inner = of_processors(convert)
    return numba.njit(made.type(given.type, types.int64))(lambda vectors, table: inner(vectors, table))  # type: ignore[no-any-return]
