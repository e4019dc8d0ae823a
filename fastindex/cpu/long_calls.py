"""The memory of a call that takes long: the counters of its passes, and after how long it looks for signals."""

from __future__ import annotations

import ctypes
import threading
import time
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fastindex.tables.pass_jobs import CALL_COUNTERS, LongCall

# A slice costs what Python takes for a call, 2 us; where another thread runs Python meanwhile, 5 ms until it gives way.
_SLICE_NANOSECONDS = 50_000_000


def looks_for_signals() -> bool:
    """Whether handlers of signals run on this thread."""
    return threading.main_thread().ident == threading.get_ident()


def long_call(passes: int) -> NDArray[np.int64]:
    """Return a `LongCall`, and a counter for each pass behind it, all 0.

    Examples
    --------
    >>> long_call(3)[CALL_COUNTERS:]
    array([0, 0, 0])
    """
    memory = np.zeros(CALL_COUNTERS + passes, np.int64)
    memory[:CALL_COUNTERS] = _with_slices() if looks_for_signals() else _without_slices()
    return memory


@cache
def _with_slices() -> NDArray[np.int64]:
    return np.array(
        LongCall(
            clock=_address("clock_gettime"),
            clock_id=time.CLOCK_MONOTONIC,
            seconds=0,
            nanoseconds=0,
            slice_nanoseconds=_SLICE_NANOSECONDS,
            slice_end=0,
            nap=_address("usleep"),
        ),
        np.int64,
    )


@cache
def _without_slices() -> NDArray[np.int64]:
    return np.array(LongCall(0, 0, 0, 0, 0, 0, _address("usleep")), np.int64)


def _address(function: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), function), ctypes.c_void_p).value or 0
