"""Conversions of elements to another type: vectors of bits, read, converted and written."""

from __future__ import annotations

from typing import Any

from fastindex.kernels.compilation import instructions
from fastindex.kernels.conversions import Conversion
from fastindex.kernels.cpu.memory import load_at, store_at
from fastindex.tables.cache_lines import LINE_BYTES
from fastindex.tables.casts import bytes_read, bytes_written, names_of


@instructions("code", "lanes")
def cast_elements(builder: Any, code: int, lanes: int, target: Any, source: Any, table: Any) -> None:
    """Convert a literal number of elements that follow each other, as the literal `code` says.

    `table` is the address of a table of results, where the conversion has one.
    """
    names = names_of(code)
    values = load_at(builder, source, lanes, bytes_read(names[0]))
    store_at(builder, Conversion(builder, names, lanes).converted(values, table), target, False)


@instructions("code")
def cast_line(builder: Any, code: int, target: Any, source: Any, table: Any) -> None:
    """Convert the elements of a line of the target, and write it past the cache."""
    names = names_of(code)
    count = LINE_BYTES // bytes_written(names[1])
    values = load_at(builder, source, count, bytes_read(names[0]))
    store_at(builder, Conversion(builder, names, count).converted(values, table), target, True)
