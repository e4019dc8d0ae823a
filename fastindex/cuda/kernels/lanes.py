"""Warp shuffles that read the value of the next lane, as if the values of 32 threads were contiguous."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fastindex.cuda.kernels.device import SIMULATED, THREADS, cuda, device_function, several
from fastindex.cuda.numbers import FOLLOWED, WARP

_WARPS = THREADS // WARP

_EVERYBODY = np.uint32(0xFFFFFFFF)
_LAST_LANE = np.uint32(31)


@device_function
def begin_of_lane(block: Any, thread: Any) -> Any:
    """Return the number of a thread's first value of four; the others follow with a stride of 32.

    The values of a warp from `FOLLOWED` on are the first ones of the next warp, too: its last value has no successor.
    """
    return (np.int64(block) * _WARPS + np.int64(thread >> 5)) * FOLLOWED + np.int64(thread & 31)


def _of_the_next_lane(first: Any, then: Any) -> Any:
    """Return the word of the next lane; the last lane gets `then` of the first lane."""
    lane = np.uint32(np.uint32(cuda.threadIdx.x) & _LAST_LANE)
    held = np.int32(then if lane == 0 else first)
    return np.uint32(cuda.shfl_sync(_EVERYBODY, held, np.int32(np.uint32(lane + 1) & _LAST_LANE)))


_next = device_function(_of_the_next_lane)


@device_function
def _next_word(number: Any, first: Any, then: Any) -> Any:
    return _next(first, then)


def _next_words(count: int) -> Callable[[Any, Any], Any]:
    """Make the function of a thread's value and its next one, of `count` words each."""
    return several(count, _next_word, ("first", "then"))


def _next_rows(rows: int, count: int) -> Callable[[Any, Any], Any]:
    """Make the same for values of `rows` tuples of words."""
    next_words = _next_words(count)

    @device_function
    def next_row(number: Any, first: Any, then: Any) -> Any:
        return next_words(first, then)

    return several(rows, next_row, ("first", "then"))


def _simulated_following(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    block: Any = threading.current_thread()
    held = block._manager.__dict__.setdefault("fastindex_lanes", {})
    thread = block.threadIdx.x
    held[thread] = v0, v1, v2, v3
    block.syncthreads()
    lane = thread & 31
    beside = held[thread - lane + (lane + 1) % 32]
    block.syncthreads()
    return beside if lane < 31 else (*beside[1:], beside[3])


def _simulated_next(value: Any) -> Any:
    return _simulated_following(value, value, value, value)[0]


def of_next_lane(count: int) -> Callable[[Any], Any]:
    """Return the function that maps a thread's `count` words to those of the next lane.

    All threads of a block must call it. The result of the last lane is meaningless.
    """
    if SIMULATED:
        return _simulated_next
    next_words = _next_words(count)

    @device_function
    def of_next(value: Any) -> Any:
        return next_words(value, value)

    return of_next


def following(rows: int, count: int) -> Callable[..., Any]:
    """Return the function that maps a thread's four values, `rows` tuples of `count` words, to those that follow them.

    All threads of a block must call it. The successor of the last value of a warp is undefined.
    """
    if SIMULATED:
        return _simulated_following
    following_one = _next_rows(rows, count)

    @device_function
    def following_all(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
        return following_one(v0, v1), following_one(v1, v2), following_one(v2, v3), following_one(v3, v3)

    return following_all
