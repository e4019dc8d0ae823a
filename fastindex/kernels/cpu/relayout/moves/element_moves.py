"""Moves that are not streams: strided elements one by one, looked-up slots, runs of padding."""

from __future__ import annotations

from numba import njit

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import byte_at, copy_vector, entry, fence, literal, set_byte, stream_line
from fastindex.kernels.cpu.relayout.lines.lines import copy_short
from fastindex.kernels.cpu.relayout.lines.nibbles import put_nibble
from fastindex.kernels.cpu.relayout.passes.table import outer_place
from fastindex.tables.passes import (
    ELEMENT_BYTES,
    ELEMENTS,
    FILL_RUN_BYTES,
    FILL_STREAMED,
    GEOMETRY,
    LAST_NIBBLE,
    RUN_SOURCE_STRIDE,
    RUN_TARGET_STRIDE,
    RUNS,
    SOURCE_NIBBLE,
    SOURCE_STRIDE,
    TARGET_NIBBLE,
    TARGET_STRIDE,
)


@njit(nogil=True, inline="always")
def _copy_runs(width, target, source, geometry):  # type: ignore[no-untyped-def]
    """Copy the runs of a task, element by element."""
    count, source_stride, target_stride = (
        entry(geometry, ELEMENTS),
        entry(geometry, SOURCE_STRIDE),
        entry(geometry, TARGET_STRIDE),
    )
    for _ in range(entry(geometry, RUNS)):
        for i in range(count):
            copy_vector(target + i * target_stride, source + i * source_stride, width)
        source += entry(geometry, RUN_SOURCE_STRIDE)
        target += entry(geometry, RUN_TARGET_STRIDE)


@njit(nogil=True)
def _copy_nibbles(target, source, table, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a copy of nibbles; the other nibbles of their bytes stay as they are."""
    geometry = entry(table, GEOMETRY)
    source_start, target_start = entry(geometry, SOURCE_NIBBLE), entry(geometry, TARGET_NIBBLE)
    end = entry(geometry, LAST_NIBBLE)
    for task in range(first, last):
        read, place = outer_place(table, task, source_start, target_start)
        for _ in range(entry(geometry, ELEMENTS)):
            value = (byte_at(source + (read >> 1)) >> (read & 1) * 4) & 15
            if place == end:
                set_byte(target + (place >> 1), value)
            else:
                put_nibble(target + (place >> 1), place & 1, value)
            read += entry(geometry, SOURCE_STRIDE)
            place += entry(geometry, TARGET_STRIDE)


@kernel()
def copy_elements(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a strided copy, element by element.

    Parameters
    ----------
    target, source, table
        As for `copy_chunks`; the kernel's own numbers are a `StridedGeometry`.
    width, ways, scratch
        Not used.
    """
    geometry = entry(table, GEOMETRY)
    size = entry(geometry, ELEMENT_BYTES)
    if size == 0:
        _copy_nibbles(target, source, table, first, last)
        return
    for task in range(first, last):
        at_source, at_target = outer_place(table, task, source, target)
        if size == 1:
            _copy_runs(1, at_target, at_source, geometry)
        elif size == 2:
            _copy_runs(2, at_target, at_source, geometry)
        elif size == 4:
            _copy_runs(4, at_target, at_source, geometry)
        elif size == 8:
            _copy_runs(8, at_target, at_source, geometry)
        elif size == 16:
            _copy_runs(16, at_target, at_source, geometry)
        elif size == 32:
            _copy_runs(32, at_target, at_source, geometry)
        else:
            _copy_runs(64, at_target, at_source, geometry)


@njit(nogil=True, inline="always")
def _copy_slots(width, target, source, slots, pattern):  # type: ignore[no-untyped-def]
    w = literal(width)
    for i in range(slots.shape[0]):
        slot = slots[i]
        copy_vector(target + i * w, source + slot * w if slot >= 0 else pattern, width)


@kernel("void(int64,int64,int64,int64[::1],int64)")
def gather_slots(size, target, source, slots, pattern):  # type: ignore[no-untyped-def]
    """Copy the element of `size` bytes at each of some slots; where a slot is negative, the one at `pattern`."""
    if size == 1:
        _copy_slots(1, target, source, slots, pattern)
    elif size == 2:
        _copy_slots(2, target, source, slots, pattern)
    elif size == 4:
        _copy_slots(4, target, source, slots, pattern)
    elif size == 8:
        _copy_slots(8, target, source, slots, pattern)
    else:
        _copy_slots(16, target, source, slots, pattern)


@kernel()
def fill_runs(width, ways, target, pattern, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Write runs `first` to `last` of one repeated element.

    Parameters
    ----------
    target : int64
        Address.
    pattern : int64
        Address of 128 bytes: the element, repeated.
    table : int64
        As for `copy_chunks`; the kernel's own numbers are a `FillGeometry`.
    scratch : int64
        Address of a line for this thread alone.
    width, ways
        Not used.
    """
    geometry = entry(table, GEOMETRY)
    run_bytes, streamed = entry(geometry, FILL_RUN_BYTES), entry(geometry, FILL_STREAMED) != 0
    for task in range(first, last):
        _, start = outer_place(table, task, 0, target)
        head = min((-start) & 63, run_bytes)
        copy_short(start, pattern, head)
        whole = head + ((run_bytes - head) & ~63)
        # The pattern as every whole line has it, on a line boundary.
        copy_vector(scratch, pattern + head, 64)
        for at in range(start + head, start + whole, 64):
            if streamed:
                stream_line(at, scratch)
            else:
                copy_vector(at, scratch, 64)
        copy_short(start + whole, scratch, run_bytes - whole)
    fence()
