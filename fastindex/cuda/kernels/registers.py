"""Shuffles of small blocks of elements in a thread's registers, and between the lanes of a warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastindex.cuda.kernels.device import THREADS, Each, cuda, device_function, several, written
from fastindex.cuda.numbers import FOLLOWED, WARP

_LOW_BYTES = np.uint32(0x00FF00FF)
_LOW_HALF = np.uint32(0x0000FFFF)
_HIGH_HALF = np.uint32(0xFFFF0000)
_HALF = np.uint64(32)
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
def _two_words(value: Any) -> Any:
    return np.uint32(value), np.uint32(value >> _HALF)


@device_function
def words(pair: Any) -> Any:
    (w0, w1), (w2, w3) = _two_words(pair[0]), _two_words(pair[1])
    return w0, w1, w2, w3


@device_function
def _one_word(value: Any) -> Any:
    return (value,)


@device_function
def eight(words: Any) -> Any:
    return np.uint64(words[0]) | (np.uint64(words[1]) << _HALF)


@device_function
def pair(w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
    return eight((w0, w1)), eight((w2, w3))


@device_function
def _only(words: Any) -> Any:
    return words[0]


#: Between a value and its words, by their number.
WORDS = {4: words, 2: _two_words, 1: _one_word}
VALUE = {2: eight, 1: _only}


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


@device_function
def _turned_words(rows: Any) -> Any:
    return rows


@device_function
def _turned_halves(rows: Any) -> Any:
    return low_halves(rows[0], rows[1]), high_halves(rows[0], rows[1])


@device_function
def _turned_bytes(rows: Any) -> Any:
    return turned_bytes(rows[0], rows[1], rows[2], rows[3])


#: Transpose a block: as many words as one has elements, each from another row; by the number of rows.
TURNED = {1: _turned_words, 2: _turned_halves, 4: _turned_bytes}


def interleaved(rows: int) -> Callable[[Any], Any]:
    """Return the function that interleaves 1, 2 or 4 rows of 4 / `rows` words, a tuple for each, into four words."""
    blocks = range(4 // rows)
    lines = [f"b{i} = f0(({''.join(f'rows[{row}][{i}], ' for row in range(rows))}))" for i in blocks]
    return written(
        "rows", [*lines, f"return {', '.join(f'b{i}[{k}]' for i in blocks for k in range(rows))}"], [TURNED[rows]]
    )


def deinterleaved(rows: int) -> Callable[[Any], Any]:
    """Return the inverse of `interleaved`."""
    blocks = range(4 // rows)
    lines = [f"b{i} = f0(({''.join(f'words[{i * rows + k}], ' for k in range(rows))}))" for i in blocks]
    found = (f"({''.join(f'b{i}[{row}], ' for i in blocks)})" for row in range(rows))
    return written("words", [*lines, f"return {', '.join(found)},"], [TURNED[rows]])


# Between four packed elements, in the low bits of a word, and a byte for each. Half of them move at a time: at `bits`
# of 2, `00000000 ddccbbaa` is `0000ddcc 0000bbaa` and then `dd cc bb aa`.


def _steps(bits: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the shift and the mask of pairs of elements, then of single ones."""
    pairs, single = ((1 << 2 * bits) - 1) * 0x00010001, ((1 << bits) - 1) * 0x01010101
    return (np.uint32(16 - 2 * bits), np.uint32(pairs)), (np.uint32(8 - bits), np.uint32(single))


def packed_word(bits: int) -> Callable[[Any], Any]:
    """Return the function that packs the four bytes of a word, the first into the low bits."""
    (pair_shift, pairs), (shift, single) = _steps(bits)
    low = np.uint32((1 << 4 * bits) - 1)

    @device_function
    def pack(word: Any) -> Any:
        word = np.uint32(word & single)
        word = np.uint32((word | (word >> shift)) & pairs)
        return np.uint32((word | (word >> pair_shift)) & low)

    return pack


def spread_word(bits: int) -> Callable[[Any, Any], Any]:
    """Return the function that unpacks 16 elements, in the low bits of one or two words, to a byte each: 4 words."""
    (pair_shift, pairs), (shift, single) = _steps(bits)
    low = np.uint32((1 << 4 * bits) - 1)

    @device_function
    def unpack(word: Any) -> Any:
        word = np.uint32(word & low)
        word = np.uint32((word | (word << pair_shift)) & pairs)
        return np.uint32((word | (word << shift)) & single)

    places = [divmod(4 * bits * i, 32) for i in range(4)]
    parts = [f"f0(np.uint32({('low', 'high')[word]} >> np.uint32({shift})))" for word, shift in places]
    return written("low, high", [f"return {', '.join(parts)}"], [unpack])


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
def _next_word(number: Any, first: Each, then: Each) -> Any:
    return _next(first, then)


def _next_words(count: int) -> Callable[[Any, Any], Any]:
    """Make the function of a thread's value and its next one, of `count` words each."""
    return several(count)(_next_word)


def _next_rows(rows: int, count: int) -> Callable[[Any, Any], Any]:
    """Make the same for values of `rows` tuples of words."""
    next_words = _next_words(count)

    @several(rows)
    def next_rows(number: Any, first: Each, then: Each) -> Any:
        return next_words(first, then)

    return next_rows


def of_next_lane(count: int) -> Callable[[Any], Any]:
    """Return the function that maps a thread's `count` words to those of the next lane.

    All threads of a block must call it. The result of the last lane is meaningless.
    """
    next_words = _next_words(count)

    @device_function
    def of_next(value: Any) -> Any:
        return next_words(value, value)

    return of_next


def following(rows: int, count: int) -> Callable[..., Any]:
    """Return the function that maps a thread's four values, `rows` tuples of `count` words, to those that follow them.

    All threads of a block must call it. The successor of the last value of a warp is undefined.
    """
    following_one = _next_rows(rows, count)

    @device_function
    def following_all(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
        return following_one(v0, v1), following_one(v1, v2), following_one(v2, v3), following_one(v3, v3)

    return following_all
