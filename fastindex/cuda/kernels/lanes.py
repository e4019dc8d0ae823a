"""Warp shuffles that read the value of the next lane, as if the values of 32 threads were contiguous."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fastindex.cuda.kernels.device import SIMULATED, THREADS, cuda, device_function
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
def _following_word(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    return (_next(v0[0], v1[0]),), (_next(v1[0], v2[0]),), (_next(v2[0], v3[0]),), (_next(v3[0], v3[0]),)


@device_function
def _next_two(a: Any, b: Any) -> Any:
    return _next(a[0], b[0]), _next(a[1], b[1])


@device_function
def _following_two(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    return _next_two(v0, v1), _next_two(v1, v2), _next_two(v2, v3), _next_two(v3, v3)


@device_function
def _next_four(a: Any, b: Any) -> Any:
    return _next(a[0], b[0]), _next(a[1], b[1]), _next(a[2], b[2]), _next(a[3], b[3])


@device_function
def _following_four(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    return _next_four(v0, v1), _next_four(v1, v2), _next_four(v2, v3), _next_four(v3, v3)


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


@device_function
def _next_one(word: Any) -> Any:
    return (_next(word[0], word[0]),)


@device_function
def _next_pair(pair: Any) -> Any:
    return _next_two(pair, pair)


@device_function
def _next_quad(quad: Any) -> Any:
    return _next_four(quad, quad)


def _simulated_next(value: Any) -> Any:
    return _simulated_following(value, value, value, value)[0]


def of_next_lane(count: int) -> Callable[[Any], Any]:
    """Return the function that maps a thread's `count` words to those of the next lane.

    All threads of a block must call it. The result of the last lane is meaningless.
    """
    if SIMULATED:
        return _simulated_next
    return {1: _next_one, 2: _next_pair, 4: _next_quad}[count]


def following(count: int) -> Callable[..., Any]:
    """Return the function that maps a thread's four values, of `count` words each, to those that follow them.

    All threads of a block must call it. The successor of the last value of a warp is undefined.
    """
    if SIMULATED:
        return _simulated_following
    return {1: _following_word, 2: _following_two, 4: _following_four}[count]
