"""Moves that are not streams: strided elements or nibbles one by one, gathers of slots, runs of padding."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastindex.moving.kernels.passes import outer_place
from fastindex.moving.numbers import FILL, STRIDED, TABLE
from fastindex.runtime.kernels import instructions, kernel, subroutine
from fastindex.runtime.lines.lines import copy_short
from fastindex.runtime.lines.memory import byte_at, copy_strided, copy_vector, entry, fence, set_byte, stream_line


@instructions()
def _put_bits(builder: Any, address: Any, kept: Any, added: Any) -> None:
    """Mask the byte at an address with `kept`, then OR `added`: two atomics, as other threads write its other bits."""
    byte = ir.IntType(8)
    place = builder.inttoptr(address, byte.as_pointer())
    builder.atomic_rmw("and", place, builder.trunc(kept, byte), "monotonic")
    builder.atomic_rmw("or", place, builder.trunc(added, byte), "monotonic")


@subroutine()
def put_nibble(address, high, value):  # type: ignore[no-untyped-def]
    """Set the low nibble of a byte, or the high nibble if `high` is 1; `value` is below 16."""
    _put_bits(address, 0xF0 >> 4 * high, value << 4 * high)


@subroutine()
def _copy_nibbles(target, source, table, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a copy of nibbles; the other nibble of each byte is preserved."""
    geometry = entry(table, TABLE.geometry)
    source_start, target_start = entry(geometry, STRIDED.source_nibble), entry(geometry, STRIDED.target_nibble)
    end = entry(geometry, STRIDED.last_nibble)
    for task in range(first, last):
        read, place = outer_place(table, task, source_start, target_start)
        for _ in range(entry(geometry, STRIDED.elements)):
            value = (byte_at(source + (read >> 1)) >> (read & 1) * 4) & 15
            if place == end:
                set_byte(target + (place >> 1), value)
            else:
                put_nibble(target + (place >> 1), place & 1, value)
            read += entry(geometry, STRIDED.source_stride)
            place += entry(geometry, STRIDED.target_stride)


@kernel
def copy_elements(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a strided copy, element by element.

    Parameters
    ----------
    target, source, table
        As for `copy_chunks`; the kernel's own numbers are a `StridedGeometry`.
    width, ways, scratch
        Not used.
    """
    geometry = entry(table, TABLE.geometry)
    size = entry(geometry, STRIDED.element_bytes)
    if size == 0:
        _copy_nibbles(target, source, table, first, last)
        return
    strides = entry(geometry, STRIDED.target_stride), entry(geometry, STRIDED.source_stride)
    for task in range(first, last):
        read, place = outer_place(table, task, source, target)
        for _ in range(entry(geometry, STRIDED.runs)):
            copy_strided(place, read, size, entry(geometry, STRIDED.elements), strides)
            read += entry(geometry, STRIDED.run_source_stride)
            place += entry(geometry, STRIDED.run_target_stride)


@kernel
def gather_slots(size, target, source, slots, count, pattern):  # type: ignore[no-untyped-def]
    """Gather the elements of `size` bytes at `count` slots; for a negative slot, copy the element at `pattern`."""
    for i in range(count):
        slot = entry(slots, i)
        copy_vector(target + i * size, source + slot * size if slot >= 0 else pattern, size)


@kernel
def fill_runs(width, ways, target, pattern, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Write runs `first` to `last` of one repeated element.

    Parameters
    ----------
    target : int64
        Address.
    pattern : int64
        Address of 128 bytes of the element, repeated.
    table : int64
        As for `copy_chunks`; the kernel's own numbers are a `FillGeometry`.
    scratch : int64
        Address of a line for this thread alone.
    width, ways
        Not used.
    """
    geometry = entry(table, TABLE.geometry)
    run_bytes, streamed = entry(geometry, FILL.run_bytes), entry(geometry, FILL.streamed) != 0
    for task in range(first, last):
        _, start = outer_place(table, task, 0, target)
        head = min((-start) & 63, run_bytes)
        copy_short(start, pattern, head)
        whole = head + ((run_bytes - head) & ~63)
        # The pattern of every whole line, copied to a line boundary.
        copy_vector(scratch, pattern + head, 64)
        for at in range(start + head, start + whole, 64):
            if streamed:
                stream_line(at, scratch)
            else:
                copy_vector(at, scratch, 64)
        copy_short(start + whole, scratch, run_bytes - whole)
    fence()
