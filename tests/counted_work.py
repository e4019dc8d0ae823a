"""How much work a call is, counted and not timed: the same on a busy machine, on a slow one and on a fast one.

Counted are the lines of Python that run and the bytes of each that asks for more than a few objects, at its worst
moment. Work that runs no line and asks for no memory, such as a search in a list, is not seen.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

#: What a line may have for a few objects, and the counting itself.
_FEW_BYTES = 512


class Work(NamedTuple):
    """Lines that ran; bytes that they asked for, given back or not; and the most bytes at one time."""

    lines: int
    asked_bytes: int
    peak_bytes: int


def work_of(call: Callable[[], Any]) -> Work:
    """Call and count."""
    lines = asked = most = before = 0

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines, asked, most, before
        now, peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        lines += event == "line"
        # What the line before has had more than there was when it began.
        if peak - before > _FEW_BYTES:
            asked += peak - before
        most = max(most, peak)
        before = now
        return note

    is_collecting = gc.isenabled()
    gc.disable()
    # Empties the interpreter's own lists of free objects, without a look at the whole heap.
    gc.freeze()
    gc.collect()
    gc.unfreeze()
    tracemalloc.start()
    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(None)
        most = max(most, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        if is_collecting:
            gc.enable()
    return Work(lines, asked, most)
