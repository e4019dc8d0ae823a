"""Checks of two NumPy arrays, read from the array objects themselves.

From Python, each property (type, dtype, size, flags, address) costs as much to read as moving 4 KiB. The fields are
those of ``PyArrayObject_fields`` in NumPy's ``ndarraytypes.h``, which every compiled extension relies on.
"""

from __future__ import annotations

from fastindex.runtime.kernels import subroutine
from fastindex.runtime.lines.memory import entry
from fastindex.runtime.numbers import (
    ARRAY_TYPE,
    CONTIGUOUS,
    FIELDS,
    SOURCE_BYTES,
    SOURCE_COUNT,
    SOURCE_DTYPE,
    TARGET_BYTES,
    TARGET_COUNT,
    TARGET_DTYPE,
    TARGET_OFFSET_BITS,
    WRITEABLE,
)

_DATA, _RANK, _SIZES, _DTYPE, _FLAGS = 0, 1, 2, 5, 6


@subroutine()
def plain_addresses(source, target, expected):  # type: ignore[no-untyped-def]
    """Return the addresses of the elements of two arrays, (source, target), or (0, 0) if they are not as expected.

    Parameters
    ----------
    source, target : int64
        The addresses of two Python objects, as ``id`` returns them.
    expected : int64
        Address of a `PlainPair`. Both must be contiguous one-dimensional arrays, exactly of NumPy's own type, that do
        not overlap; the target must be writeable and aligned as expected.
    """
    fields, array_type = entry(expected, FIELDS), entry(expected, ARRAY_TYPE)
    # The type is the last field that every object has.
    if entry(source + fields - 8, 0) != array_type or entry(target + fields - 8, 0) != array_type:
        return 0, 0
    source += fields
    target += fields
    if (entry(source, _RANK) & 0xFFFFFFFF) != 1 or (entry(target, _RANK) & 0xFFFFFFFF) != 1:
        return 0, 0
    if entry(source, _DTYPE) != entry(expected, SOURCE_DTYPE) or entry(target, _DTYPE) != entry(expected, TARGET_DTYPE):
        return 0, 0
    counts = entry(entry(source, _SIZES), 0), entry(entry(target, _SIZES), 0)
    if counts != (entry(expected, SOURCE_COUNT), entry(expected, TARGET_COUNT)):
        return 0, 0
    wanted = CONTIGUOUS | WRITEABLE
    if not entry(source, _FLAGS) & CONTIGUOUS or (entry(target, _FLAGS) & wanted) != wanted:
        return 0, 0
    begin, place = entry(source, _DATA), entry(target, _DATA)
    if place & entry(expected, TARGET_OFFSET_BITS):
        return 0, 0
    if begin + entry(expected, SOURCE_BYTES) > place and place + entry(expected, TARGET_BYTES) > begin:
        return 0, 0
    return begin, place
