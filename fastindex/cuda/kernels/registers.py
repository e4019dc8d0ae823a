"""Shuffles of small blocks of elements in a thread's registers, and between the lanes of a warp."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fastindex.cuda.kernels.device import SIMULATED, THREADS, cuda, device_function, several
from fastindex.cuda.numbers import FOLLOWED, WARP

_LOW_BYTES = np.uint32(0x00FF00FF)
_LOW_HALF = np.uint32(0x0000FFFF)
_HIGH_HALF = np.uint32(0xFFFF0000)
_LOW_BYTE = np.uint32(0x000000FF)
_NIBBLE = np.uint32(0x0000000F)
_LOW_NIBBLES = np.uint32(0x000F000F)
_NIBBLES = np.uint32(0x0F0F0F0F)
_CRUMBS = np.uint32(0x03030303)
_ONES = np.uint32(0x01010101)
_TWO_WORDS, _ONE_WORD, _IN_WORD = np.uint32(64), np.uint32(32), np.uint32(31)


@device_function
def _eight(low: Any, high: Any) -> Any:
    return np.uint64(np.int64(low))


@device_function
def _pair(low: Any, high: Any) -> Any:
    return _eight(low, high), _eight(high, low)


@device_function
def _word(low: Any, high: Any) -> Any:
    return np.uint32(_eight(low, high))


def unit_of_numbers(width: int) -> Callable[[Any, Any], Any]:
    """Return the function that makes a unit of `width` bytes from the low and high 8 bytes of a pattern, as int64."""
    return {16: _pair, 8: _eight}.get(width, _word)


@device_function
def words(pair: Any) -> Any:
    half = np.uint64(32)
    return np.uint32(pair[0]), np.uint32(pair[0] >> half), np.uint32(pair[1]), np.uint32(pair[1] >> half)


@device_function
def pair(w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
    half = np.uint64(32)
    return np.uint64(w0) | (np.uint64(w1) << half), np.uint64(w2) | (np.uint64(w3) << half)


@device_function
def funnelled(low: Any, high: Any, by: Any) -> Any:
    """Funnel shift: return the word that begins `by` bits into two words; `by` is a uint64 up to 32."""
    return np.uint32(((np.uint64(high) << np.uint64(32)) | np.uint64(low)) >> by)


@device_function
def _shifted_one(here: Any, after: Any, by: Any) -> Any:
    return (funnelled(here[0], after[0], np.uint64(by)),)


@device_function
def _shifted_two(here: Any, after: Any, by: Any) -> Any:
    w0, w1, w2 = here[0], here[1], after[0]
    if by & _ONE_WORD:
        w0, w1, w2 = w1, w2, after[1]
    by = np.uint64(by & _IN_WORD)
    return funnelled(w0, w1, by), funnelled(w1, w2, by)


@device_function
def _shifted_four(here: Any, after: Any, by: Any) -> Any:
    w0, w1, w2, w3 = here
    w4, w5, w6, w7 = after
    if by & _TWO_WORDS:
        w0, w1, w2, w3, w4, w5 = w2, w3, w4, w5, w6, w7
    if by & _ONE_WORD:
        w0, w1, w2, w3, w4 = w1, w2, w3, w4, w5
    by = np.uint64(by & _IN_WORD)
    return funnelled(w0, w1, by), funnelled(w1, w2, by), funnelled(w2, w3, by), funnelled(w3, w4, by)


def shifted_words(count: int) -> Callable[[Any, Any, Any], Any]:
    """Return the funnel shift of `count` words: those that begin some bits into them, filled from as many that follow.

    Both are tuples; the number of bits is a uint32, less than the words have.
    """
    return {1: _shifted_one, 2: _shifted_two, 4: _shifted_four}[count]


@device_function
def low_halves(a: Any, b: Any) -> Any:
    return np.uint32((a & _LOW_HALF) | (b << np.uint32(16)))


@device_function
def high_halves(a: Any, b: Any) -> Any:
    return np.uint32((a >> np.uint32(16)) | (b & _HIGH_HALF))


@device_function
def turned_bytes(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Transpose four words as four rows of four bytes."""
    byte = np.uint32(8)
    ab_even = np.uint32((a & _LOW_BYTES) | ((b & _LOW_BYTES) << byte))
    ab_odd = np.uint32(((a >> byte) & _LOW_BYTES) | (b & ~_LOW_BYTES))
    cd_even = np.uint32((c & _LOW_BYTES) | ((d & _LOW_BYTES) << byte))
    cd_odd = np.uint32(((c >> byte) & _LOW_BYTES) | (d & ~_LOW_BYTES))
    return (
        low_halves(ab_even, cd_even),
        low_halves(ab_odd, cd_odd),
        high_halves(ab_even, cd_even),
        high_halves(ab_odd, cd_odd),
    )


# Packed elements: between four of them and the four bytes of a word


def packed_word(bits: int) -> Callable[[Any], Any]:
    """Return the function that packs the four bytes of a word, the first into the low bits."""

    @device_function
    def nibbles(word: Any) -> Any:
        word = np.uint32(word & _NIBBLES)
        word = np.uint32((word | (word >> np.uint32(4))) & _LOW_BYTES)
        return np.uint32((word | (word >> np.uint32(8))) & _LOW_HALF)

    @device_function
    def crumbs(word: Any) -> Any:
        word = np.uint32(word & _CRUMBS)
        word = np.uint32((word | (word >> np.uint32(6))) & _LOW_NIBBLES)
        return np.uint32((word | (word >> np.uint32(12))) & _LOW_BYTE)

    @device_function
    def single(word: Any) -> Any:
        # The product puts the four bits side by side in its high byte.
        return np.uint32(np.uint32(np.uint32(word & _ONES) * np.uint32(0x01020408)) >> np.uint32(24)) & _NIBBLE

    return {4: nibbles, 2: crumbs, 1: single}[bits]


def spread_word(bits: int) -> Callable[[Any, Any], Any]:
    """Return the function that unpacks 16 elements, in the low bits of one or two words, to a byte each: 4 words."""

    @device_function
    def nibbles(half: Any) -> Any:
        half = np.uint32((half | (half << np.uint32(8))) & _LOW_BYTES)
        return np.uint32((half | (half << np.uint32(4))) & _NIBBLES)

    @device_function
    def crumbs(byte: Any) -> Any:
        byte = np.uint32((byte | (byte << np.uint32(12))) & _LOW_NIBBLES)
        return np.uint32((byte | (byte << np.uint32(6))) & _CRUMBS)

    @device_function
    def single(nibble: Any) -> Any:
        # The product copies each bit to the low bit of its own byte.
        return np.uint32(np.uint32(nibble * np.uint32(0x00204081)) & _ONES)

    @device_function
    def two_words(low: Any, high: Any) -> Any:
        return (
            nibbles(np.uint32(low & _LOW_HALF)),
            nibbles(np.uint32(low >> np.uint32(16))),
            nibbles(np.uint32(high & _LOW_HALF)),
            nibbles(np.uint32(high >> np.uint32(16))),
        )

    one = crumbs if bits == 2 else single
    step, mask = np.uint32(4 * bits), np.uint32((1 << 4 * bits) - 1)

    @device_function
    def one_word(low: Any, high: Any) -> Any:
        second, third = np.uint32(low >> step), np.uint32(low >> np.uint32(step + step))
        fourth = np.uint32(third >> step)
        return (
            one(np.uint32(low & mask)),
            one(np.uint32(second & mask)),
            one(np.uint32(third & mask)),
            one(np.uint32(fourth & mask)),
        )

    return two_words if bits == 4 else one_word


# Warp shuffles that read the value of the next lane, as if the values of 32 threads were contiguous

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
