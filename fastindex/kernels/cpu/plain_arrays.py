"""What a call needs to know of two NumPy arrays, read from the array objects at once.

In Python each question (the type, the dtype, the size, the flags, the address) costs as much as moving 4 KiB. The
fields are those of ``PyArrayObject_fields`` in NumPy's ``ndarraytypes.h``, which every compiled extension relies on.
"""

from __future__ import annotations

from numba import njit

from fastindex.kernels.cpu.vectors import entry

#: Places in the table of what two arrays have to be: where NumPy's fields begin, in bytes, and the type of both; then
#: for each array its dtype object, its number of elements and its bytes.
FIELDS, ARRAY_TYPE, SOURCE, TARGET = 0, 1, 2, 5
#: How many numbers that table has.
PAIR_NUMBERS = 8

_DATA, _RANK, _SIZES, _DTYPE, _FLAGS = 0, 1, 2, 5, 6

#: Flags.
CONTIGUOUS, WRITEABLE = 0x1, 0x400


@njit(nogil=True)
def plain_addresses(source, target, expected):  # type: ignore[no-untyped-def]
    """Give the addresses of the elements of two arrays, twice 0 if they are not what is expected, as (source, target).

    Parameters
    ----------
    source, target : int64
        The addresses of two Python objects, which ``id`` gives.
    expected : int64
        Address of `PAIR_NUMBERS` int64; see the names of their places above. Both are contiguous arrays of one
        dimension, exactly of NumPy's own type, share no memory, and the target can be written to.
    """
    fields, array_type = entry(expected, FIELDS), entry(expected, ARRAY_TYPE)
    # The type is the last field that every object has.
    if entry(source + fields - 8, 0) != array_type or entry(target + fields - 8, 0) != array_type:
        return 0, 0
    source += fields
    target += fields
    if (entry(source, _RANK) & 0xFFFFFFFF) != 1 or (entry(target, _RANK) & 0xFFFFFFFF) != 1:
        return 0, 0
    if entry(source, _DTYPE) != entry(expected, SOURCE) or entry(target, _DTYPE) != entry(expected, TARGET):
        return 0, 0
    counts = entry(entry(source, _SIZES), 0), entry(entry(target, _SIZES), 0)
    if counts != (entry(expected, SOURCE + 1), entry(expected, TARGET + 1)):
        return 0, 0
    wanted = CONTIGUOUS | WRITEABLE
    if not entry(source, _FLAGS) & CONTIGUOUS or (entry(target, _FLAGS) & wanted) != wanted:
        return 0, 0
    begin, place = entry(source, _DATA), entry(target, _DATA)
    if begin + entry(expected, SOURCE + 2) > place and place + entry(expected, TARGET + 2) > begin:
        return 0, 0
    return begin, place
