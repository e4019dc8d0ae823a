"""Moves that are not streams: strided elements one by one, looked-up slots, runs of padding."""

from __future__ import annotations

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.memory import copy_vector, entry, fence, literal, stream_line
from fastindex.kernels.cpu.relayout.lines.lines import copy_short
from fastindex.kernels.cpu.relayout.passes.table import outer_place
from fastindex.tables.passes import (
    ELEMENTS,
    FILL_RUN_BYTES,
    FILL_STREAMED,
    GEOMETRY,
    RUN_SOURCE_STRIDE,
    RUN_TARGET_STRIDE,
    RUNS,
    SOURCE_STRIDE,
    TARGET_STRIDE,
)


@kernel()
def copy_elements(width, ways, target, source, table, scratch, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a strided copy, element by element.

    Parameters
    ----------
    width : literal int
        Bytes of an element.
    target, source, table
        As for `copy_chunks`; the kernel's own numbers are a `StridedGeometry`.
    ways, scratch
        Not used.
    """
    geometry = entry(table, GEOMETRY)
    count, runs = entry(geometry, ELEMENTS), entry(geometry, RUNS)
    source_stride, target_stride = entry(geometry, SOURCE_STRIDE), entry(geometry, TARGET_STRIDE)
    for task in range(first, last):
        at_source, at_target = outer_place(table, task, source, target)
        for _ in range(runs):
            for i in range(count):
                copy_vector(at_target + i * target_stride, at_source + i * source_stride, width)
            at_source += entry(geometry, RUN_SOURCE_STRIDE)
            at_target += entry(geometry, RUN_TARGET_STRIDE)


@kernel()
def gather_slots(width, target, source, slots, pattern):  # type: ignore[no-untyped-def]
    """Copy the element at each of some slots; where a slot is negative, the one at `pattern`."""
    w = literal(width)
    for i in range(slots.shape[0]):
        slot = slots[i]
        copy_vector(target + i * w, source + slot * w if slot >= 0 else pattern, width)


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
        # What every line is, as a line.
        copy_vector(scratch, pattern + head, 64)
        for at in range(start + head, start + whole, 64):
            if streamed:
                stream_line(at, scratch)
            else:
                copy_vector(at, scratch, 64)
        copy_short(start + whole, scratch, run_bytes - whole)
    fence()
