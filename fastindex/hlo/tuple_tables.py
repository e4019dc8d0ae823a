"""The memory of the table through which a program returns a tuple: one pointer for each of its elements."""

from __future__ import annotations

from fastindex.hlo.modules import Module
from fastindex.hlo.shape_table import ShapeTable

#: Bytes of a pointer, and of what tables are rounded up to; measured on what libtpu and jaxlib assign.
_ON_TPU, _ELSEWHERE = (4, 512), (8, 1)


def table_nbytes(module: Module, table: ShapeTable) -> int:
    """Return the bytes of the table of the result of a module; 0 if that is not a tuple."""
    entry = module.entry
    if entry is None or entry.root < 0:
        return 0
    texts = list(module.shapes)
    elements = len(table.entry(texts[entry.shape(entry.root)]).spans)
    pointer, unit = _ON_TPU if any(b":T(" in text for text in texts) else _ELSEWHERE
    return -(-pointer * elements // unit) * unit
