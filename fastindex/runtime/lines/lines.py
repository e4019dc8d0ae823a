"""Writing runs of bytes as whole cache lines, and transposing staged lines into such runs.

A line that is written whole by a non-temporal store costs one transfer; a line that is written in part is read first.
So kernels collect their output until lines are complete, and write only the two ends of a run in part.
"""

from __future__ import annotations

from fastindex.runtime.kernels import subroutine
from fastindex.runtime.lines.memory import copy_vector, entry, literal, prefetch, prefetch_to_write, stream_line
from fastindex.runtime.lines.vectors import transpose_stage


@subroutine()
def copy_short(target, source, size_bytes):  # type: ignore[no-untyped-def]
    """Copy fewer than 64 bytes; two overlapping moves serve every size between two powers of two."""
    if size_bytes >= 32:
        last = size_bytes - 32
        copy_vector(target, source, 32)
        copy_vector(target + last, source + last, 32)
    elif size_bytes >= 16:
        last = size_bytes - 16
        copy_vector(target, source, 16)
        copy_vector(target + last, source + last, 16)
    elif size_bytes >= 8:
        last = size_bytes - 8
        copy_vector(target, source, 8)
        copy_vector(target + last, source + last, 8)
    elif size_bytes >= 4:
        last = size_bytes - 4
        copy_vector(target, source, 4)
        copy_vector(target + last, source + last, 4)
    else:
        for i in range(size_bytes):
            copy_vector(target + i, source + i, 1)


@subroutine()
def copy_run(target, source, size_bytes, streamed):  # type: ignore[no-untyped-def]
    """Copy bytes; if `streamed`, write whole lines of the target with non-temporal stores."""
    head = min((-target) & 63, size_bytes) if streamed else 0
    copy_short(target, source, head)
    lines_end = head + ((size_bytes - head) & ~63)
    if streamed:
        for at in range(head, lines_end, 64):
            stream_line(target + at, source + at)
    else:
        for at in range(head, lines_end, 64):
            copy_vector(target + at, source + at, 64)
    copy_short(target + lines_end, source + lines_end, size_bytes - lines_end)


@subroutine("width")
def transpose_square(width, target, pitch_bytes, stage):  # type: ignore[no-untyped-def]
    """Transpose a square of staged rows, one line each, into one line per column, at a pitch of `pitch_bytes`."""
    w = literal(width)
    if w <= 2:
        for part in range(4):
            transpose_stage(width, target + part * (16 // w) * pitch_bytes, pitch_bytes, stage + 16 * part)
    else:
        transpose_stage(width, target, pitch_bytes, stage)


@subroutine("size", inline=True)
def place_ahead(source, upcoming, later, size):  # type: ignore[no-untyped-def]
    """Return the address `later` bytes into the run of `size` bytes at `source`, continued by the one at `upcoming`."""
    return source + later if later < size else upcoming + later - size


@subroutine()
def prefetch_bytes(start, size):  # type: ignore[no-untyped-def]
    """Prefetch every line of a run."""
    for line in range(start & ~63, start + size, 64):
        prefetch(line)


@subroutine()
def prefetch_rows(source, rows, count, size):  # type: ignore[no-untyped-def]
    """Prefetch every line of a run of `size` bytes in each of `count` rows."""
    for i in range(count):
        prefetch_bytes(source + entry(rows, i), size)


@subroutine()
def prefetch_ends(target, size):  # type: ignore[no-untyped-def]
    """Prefetch the lines that a run shares with its neighbours."""
    if target & 63:
        prefetch_to_write(target)
    if (target + size) & 63:
        prefetch_to_write(target + size)
