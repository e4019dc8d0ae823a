"""Conversions of elements to another type: vectors of bits, read, converted and written."""

from __future__ import annotations

from typing import Any

from fastindex.kernels.compilation import instructions
from fastindex.kernels.conversions import Conversion
from fastindex.kernels.cpu.memory import load_at, store_at
from fastindex.tables.casts import bytes_read, names_of


@instructions("code", "lanes")
def cast_elements(builder: Any, code: int, lanes: int, target: Any, source: Any, table: Any) -> None:
    """Convert a literal number of elements that follow each other, as the literal `code` says.

    `table` is the address of a table of results, where the conversion has one.
    """
    names = names_of(code)
    values = load_at(builder, source, lanes, bytes_read(names[0]))
    store_at(builder, Conversion(builder, names, lanes).converted(values, table), target, False)
