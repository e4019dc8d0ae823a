"""Calls of kernels: checks of two NumPy arrays, read from the array objects themselves, and time slices.

From Python, each property (type, dtype, size, flags, address) costs as much to read as moving 4 KiB. The fields are
those of ``PyArrayObject_fields`` in NumPy's ``ndarraytypes.h``, which every compiled extension relies on.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastindex.runtime.kernels import instructions, subroutine
from fastindex.runtime.lines.memory import entry, set_entry
from fastindex.runtime.numbers import CALL, CONTIGUOUS, PAIR, WRITEABLE

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
    fields, array_type = entry(expected, PAIR.fields), entry(expected, PAIR.array_type)
    # The type is the last field that every object has.
    if entry(source + fields - 8, 0) != array_type or entry(target + fields - 8, 0) != array_type:
        return 0, 0
    source += fields
    target += fields
    if (entry(source, _RANK) & 0xFFFFFFFF) != 1 or (entry(target, _RANK) & 0xFFFFFFFF) != 1:
        return 0, 0
    if entry(source, _DTYPE) != entry(expected, PAIR.source_dtype) or entry(target, _DTYPE) != entry(
        expected, PAIR.target_dtype
    ):
        return 0, 0
    if entry(entry(source, _SIZES), 0) != entry(expected, PAIR.source_count):
        return 0, 0
    if entry(entry(target, _SIZES), 0) != entry(expected, PAIR.target_count):
        return 0, 0
    wanted = CONTIGUOUS | WRITEABLE
    if not entry(source, _FLAGS) & CONTIGUOUS or (entry(target, _FLAGS) & wanted) != wanted:
        return 0, 0
    begin, place = entry(source, _DATA), entry(target, _DATA)
    if place & entry(expected, PAIR.target_offset_bits):
        return 0, 0
    if begin + entry(expected, PAIR.source_bytes) > place and place + entry(expected, PAIR.target_bytes) > begin:
        return 0, 0
    return begin, place


# Time slices of a long call


_INT32, _INT64 = ir.IntType(32), ir.IntType(64)


@instructions()
def _ask_clock(builder: Any, function: Any, clock: Any, address: Any) -> None:
    """Call a C function like ``clock_gettime`` by its address; it writes two int64 to another address."""
    declared = ir.FunctionType(_INT32, [_INT32, _INT64])
    builder.call(builder.inttoptr(function, declared.as_pointer()), [builder.trunc(clock, _INT32), address])


@subroutine()
def _now(call):  # type: ignore[no-untyped-def]
    """Return the time on the clock of a `LongCall`, in nanoseconds."""
    _ask_clock(entry(call, CALL.clock), entry(call, CALL.clock_id), call + 8 * CALL.seconds)
    return entry(call, CALL.seconds) * 1_000_000_000 + entry(call, CALL.nanoseconds)


@subroutine()
def begin_slice(call):  # type: ignore[no-untyped-def]
    """Begin a slice of a `LongCall`; return the address of the call, or 0 if its slices have no end."""
    if not entry(call, CALL.clock):
        return 0
    set_entry(call, CALL.slice_end, _now(call) + entry(call, CALL.slice_nanoseconds))
    return call


@subroutine()
def slice_is_over(call):  # type: ignore[no-untyped-def]
    """Whether the slice has ended, so that it is time to check for signals."""
    return _now(call) >= entry(call, CALL.slice_end)
