"""Conversions of elements to another type: vectors of bits, read, converted and written."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from fastindex.kernels.conversions import Conversion
from fastindex.kernels.cpu.memory import load_at, store_at
from fastindex.tables.casts import bytes_read, names_of


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def cast_elements(typingctx: Any, code: Any, lanes: Any, target: Any, source: Any, table: Any) -> Any:
    """Convert a literal number of elements that follow each other, as the literal `code` says.

    `table` is the address of a table of results, where the conversion has one.
    """
    names, count = names_of(code.literal_value), lanes.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, target, source, table = arguments
        values = load_at(builder, source, count, bytes_read(names[0]))
        store_at(builder, Conversion(builder, names, count).converted(values, table), target, False)
        return context.get_dummy_value()

    return types.void(code, lanes, types.int64, types.int64, types.int64), generate
