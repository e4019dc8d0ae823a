"""Records shared by planner and kernels: pass tables, and one geometry record per kind of move.

The planner or the executor writes each record; a kernel reads it as a table of int64, indexed by field.
"""

from __future__ import annotations

from typing import NamedTuple

from fastindex.runtime.numbers import LINE_BYTES, places

#: Bytes in front of a kernel's scratch memory.
SCRATCH_FRONT_BYTES = LINE_BYTES


class PassTable(NamedTuple):
    """The argument of a pass's kernel: addresses and lengths of its tables.

    Attributes
    ----------
    loops : int
        Number of loops around the tasks.
    outer : int
        Address of these loops, innermost first: an array of `OuterLoop`.
    first, second : int
        Addresses of two tables of byte offsets; their meaning depends on the kernel.
    second_length : int
    geometry : int
        Address of the kernel's geometry record.
    """

    loops: int
    outer: int
    first: int
    second: int
    second_length: int
    geometry: int


TABLE = places(PassTable)


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
        Addresses of the compiled kernel and of its `PassTable`.
    source_start, target_start : int
        Byte offsets from the source and target addresses of a call.
    tasks : int
    tasks_at_once, most_at_once : int
        Fewest and most tasks that a thread takes at a time.
    fills : int
        Whether the pass writes padding: its source is then the padding pattern.
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


class Chunks(NamedTuple):
    """The chunks of a task; the geometry of kernels that move chunks begins with these numbers.

    Attributes
    ----------
    per_task, total : int
        A task moves `per_task` of `total` chunks; the last task moves the remainder.
    source_stride, target_stride : int
        Bytes from the chunks of one task to those of the next.
    """

    per_task: int
    total: int
    source_stride: int
    target_stride: int


CHUNKS = places(Chunks)


class StridedGeometry(NamedTuple):
    """A task of a strided copy: runs of elements, copied one element at a time.

    Attributes
    ----------
    element_bytes : int
        0 for nibbles; all strides, those of the loops around the tasks included, then count nibbles.
    elements, source_stride, target_stride : int
        Elements of a run, and their stride in bytes on each side.
    runs, run_source_stride, run_target_stride : int
        Number of runs, and their stride in bytes on each side.
    source_nibble, target_nibble : int
        Start of the first task, in nibbles; for nibbles only.
    last_nibble : int
        The last nibble of a destination that ends in the middle of a byte, else -1; that byte is written whole.
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
    """A task of a fill: the bytes of a run, and whether to use non-temporal stores."""

    run_bytes: int
    streamed: int


FILL = places(FillGeometry)

#: The longest column that an interleave collects, in bytes: its scratch memory holds 64 of these.
MOST_COLUMN_BYTES = 512


#: Bytes of each half of the scratch memory for boxes. With packed elements, one half holds a box as read and the other
#: as written, a byte per element.
BOX_BYTES = 256 << 10


class BoxGeometry(NamedTuple):
    """Geometry of a pass over boxes.

    Attributes
    ----------
    calls : int
        Number of calls that move a box, one after the other.
    readable_bytes : int
        Bytes that may be read, counted from the first box, for calls that need this bound.
    """

    calls: int
    readable_bytes: int = 0


BOX = places(BoxGeometry)


class BoxCall(NamedTuple):
    """A pass that runs within each box.

    Attributes
    ----------
    kernel, table, tasks : int
        As in a `PassCall`.
    from_scratch, to_scratch : int
        Whether it reads from scratch memory instead of the source, or writes there instead of the destination.
    source_start, target_start : int
        Byte offsets from there.
    """

    kernel: int
    table: int
    tasks: int
    from_scratch: int
    to_scratch: int
    source_start: int
    target_start: int


BOX_CALL = places(BoxCall)
BOX_CALL_BYTES = 8 * len(BOX_CALL)


#: Bits of the packed elements that permutations support.
NIBBLE_BITS = 4

#: Flags in a pattern byte: take nothing from the fragment; take the high nibble, for packed elements.
NOTHING, HIGH_NIBBLE = 0x80, 0x40
