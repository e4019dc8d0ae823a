"""Copies and fills that are no stream: elements one by one, slots looked up, runs of padding."""

from __future__ import annotations

from fastindex.kernels.compilation import kernel
from fastindex.kernels.lines import copy_short
from fastindex.kernels.simd import copy_element, copy_vector, fence, literal, stream_line


@kernel()
def copy_elements(width, target, source, outer, geometry, first, last):  # type: ignore[no-untyped-def]
    """Run the tasks `first` to `last` of a relayout whose elements are apart on one side: copy them one by one.

    Parameters
    ----------
    width : literal int
        Bytes of an element.
    target, source, outer
        As for `copy_chunks`.
    geometry : int64 array
        How many elements a task copies; their distance in the source and in the destination in bytes.
    """
    count, source_stride, target_stride = geometry[0], geometry[1], geometry[2]
    for task in range(first, last):
        rest, at_source, at_target = task, source, target
        for loop in range(outer.shape[0]):
            rest, place = divmod(rest, outer[loop, 0])
            at_source += place * outer[loop, 1]
            at_target += place * outer[loop, 2]
        for i in range(count):
            copy_element(width, at_target + i * target_stride, at_source + i * source_stride)


@kernel()
def gather_slots(width, target, source, slots, pattern):  # type: ignore[no-untyped-def]
    """Copy the element at each of some slots; where a slot is negative, the one at `pattern`."""
    w = literal(width)
    for i in range(slots.shape[0]):
        slot = slots[i]
        copy_element(width, target + i * w, source + slot * w if slot >= 0 else pattern)


@kernel()
def fill_runs(target, pattern, outer, geometry, first, last):  # type: ignore[no-untyped-def]
    """Write runs `first` to `last` of one repeated element.

    Parameters
    ----------
    target : int64
        Address.
    pattern : int64
        Address of 128 bytes: the element, repeated.
    outer : int64 array of (loops, 3)
        The loops around the runs, innermost first: size, nothing, stride in bytes.
    geometry : int64 array
        Bytes of a run; whether lines go past the cache.
    """
    run_bytes, streamed = geometry[0], geometry[1] != 0
    for task in range(first, last):
        start, rest = target, task
        for loop in range(outer.shape[0]):
            rest, place = divmod(rest, outer[loop, 0])
            start += place * outer[loop, 2]
        head = min((-start) & 63, run_bytes)
        copy_short(start, pattern, head)
        whole = head + ((run_bytes - head) & ~63)
        for at in range(start + head, start + whole, 64):
            if streamed:
                stream_line(at, pattern + head)
            else:
                copy_vector(at, pattern + head, 64)
        copy_short(start + whole, pattern + head, run_bytes - whole)
    fence()
