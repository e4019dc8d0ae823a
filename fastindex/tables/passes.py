"""The numbers of a pass over memory: as its kernel finds them, and as they are run one after the other.

Each record is written by the planner or the executor; a kernel reads it as a table of int64, by the
places of its fields.
"""

from __future__ import annotations

from typing import NamedTuple

from fastindex.tables.places import places


class PassTable(NamedTuple):
    """What the kernel of a pass gets: addresses and lengths of its tables.

    Attributes
    ----------
    loops : int
        How many loops are around the tasks.
    outer : int
        Address of these loops, innermost first: rows of an `OuterLoop`.
    first, second : int
        Addresses of the tables of byte offsets; which ones, the kernel says.
    second_length : int
    geometry : int
        Address of the kernel's own numbers.
    """

    loops: int
    outer: int
    first: int
    second: int
    second_length: int
    geometry: int


LOOPS, OUTER, FIRST, SECOND, SECOND_LENGTH, GEOMETRY = range(6)


class OuterLoop(NamedTuple):
    """A loop around the tasks of a pass; strides are in bytes."""

    size: int
    source_stride: int
    target_stride: int


OUTER_LOOP = places(OuterLoop)
OUTER_LOOP_BYTES = 8 * len(OUTER_LOOP)


class PassCall(NamedTuple):
    """A pass, ready to run.

    Attributes
    ----------
    kernel, table : int
        The address of the compiled kernel, and of its `PassTable`.
    source_start, target_start : int
        Bytes from the addresses that a call is given.
    tasks : int
    tasks_at_once, most_at_once : int
        The fewest that a thread takes at a time, and the most.
    fills : int
        Whether it writes padding, so that the padding is its source.
    """

    kernel: int
    table: int
    source_start: int
    target_start: int
    tasks: int
    tasks_at_once: int
    most_at_once: int
    fills: int


PASS_CALL = places(PassCall)
PASS_CALL_BYTES = 8 * len(PASS_CALL)


class StridedGeometry(NamedTuple):
    """What a task copies one by one: runs of elements.

    Attributes
    ----------
    element_bytes : int
        0 for nibbles. Then all strides, also those of the loops around the tasks, count nibbles.
    elements, source_stride, target_stride : int
        Of a run, and how many bytes these are apart on each side.
    runs, run_source_stride, run_target_stride : int
        The same of runs.
    source_nibble, target_nibble : int
        Where the first task begins, of nibbles.
    last_nibble : int
        The nibble in the middle of whose byte the destination ends, -1 where there is none: that byte is written whole.
    """

    element_bytes: int
    elements: int
    source_stride: int
    target_stride: int
    runs: int
    run_source_stride: int
    run_target_stride: int
    source_nibble: int = 0
    target_nibble: int = 0
    last_nibble: int = -1


STRIDED = places(StridedGeometry)


class FillGeometry(NamedTuple):
    """What a task fills: the bytes of a run, past the cache or not."""

    run_bytes: int
    streamed: int


FILL = places(FillGeometry)
