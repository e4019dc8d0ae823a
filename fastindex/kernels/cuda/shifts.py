"""The GPU kernels for runs that start anywhere, which shift them, and for packed elements, which unpack or pack them.

Memory moves in aligned words of 4 bytes, or 16 bytes at once, wherever a run starts on either side. A word that is
partly outside the buffer is never touched.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fastindex.kernels.cuda.compilation import Kernel
from fastindex.kernels.cuda.device import THREADS, cuda, device_function
from fastindex.kernels.cuda.loops import MAGIC, SHIFT, SIZE, four_places, quotient
from fastindex.kernels.cuda.memory import LOAD, STORE, load_int64
from fastindex.kernels.cuda.registers import funnelled, packed_word, pair, spread_word, words

#: A buffer of fewer bytes need not hold an aligned word.
_FEWEST_BYTES = 8

_LOW_BYTE = np.uint32(0xFF)


_store_word, _store_byte = STORE[4], STORE[1]


@device_function
def put_word(at: Any, word: Any, low: Any, high: Any) -> None:
    """Write the bytes of an aligned word from `low` to `high`; these may lie outside it."""
    if low <= 0 and high >= 4:
        _store_word(at, word)
    else:
        for j in range(4):
            if low <= j and j < high:
                _store_byte(at + j, np.uint32((word >> np.uint32(8 * j)) & _LOW_BYTE))


@cache
def shift_kernel(bits: int) -> Kernel:
    """Make the kernel that copies runs, of bytes or of packed elements that get a byte each.

    Parameters: destination, source, the first bit in it, table, units, loops, bytes of a run in the destination, and
    the addresses where the source begins and ends. In the loops, steps in the source count bits. A unit is a granule:
    16 bytes of the destination at a multiple of 16. The first loop goes over those that a run touches, or might: what
    it has too many of lies behind the end.
    """
    load, store = LOAD[4], STORE[16]
    load_byte, store_byte = LOAD[1], STORE[1]
    mask, whole = np.uint32((1 << bits) - 1), bits == 8
    spread = spread_word(bits)
    granule_bits = 16 * bits
    words_in_granule = max(granule_bits // 32, 1)

    @device_function
    def extent(n: Any, s: Any, d: Any, table: Any, length: Any) -> Any:
        """Return where a granule begins in both, in bits and bytes, and which of its 16 places its run fills."""
        size, magic, shift = load_int64(table + SIZE), load_int64(table + MAGIC), load_int64(table + SHIFT)
        number = n - quotient(n, magic, shift) * size
        behind = d & 15
        begin = d - 16 * number
        at = d - behind
        return s - behind * bits, at, max(begin - at, 0), min(begin + length - at, 16)

    @device_function
    def fetch(p: Any, first: Any, last: Any) -> Any:
        """Return five aligned words from a bit on, or as many as a granule takes; `first` and `last` bound them."""
        at = (p >> 5) << 2
        w0, w1 = load(min(max(at, first), last)), load(min(max(at + 4, first), last))
        if words_in_granule == 1:
            return w0, w1, w1, w1, w1
        w2 = load(min(max(at + 8, first), last))
        if words_in_granule == 2:
            return w0, w1, w2, w2, w2
        return w0, w1, w2, load(min(max(at + 12, first), last)), load(min(max(at + 16, first), last))

    @device_function
    def aligned(p: Any, fetched: Any) -> Any:
        """Return the 16 bytes that begin at a bit."""
        w0, w1, w2, w3, w4 = fetched
        by = np.uint64(p & 31)
        v0 = funnelled(w0, w1, by)
        if words_in_granule == 1:
            return spread(v0, v0)
        if words_in_granule == 2:
            return spread(v0, funnelled(w1, w2, by))
        return v0, funnelled(w1, w2, by), funnelled(w2, w3, by), funnelled(w3, w4, by)

    @device_function
    def put(at: Any, low: Any, high: Any, values: Any) -> None:
        if low == 0 and high == 16:
            store(at, pair(values[0], values[1], values[2], values[3]))
        elif low < high:
            put_word(at, values[0], low, high)
            put_word(at + 4, values[1], low - 4, high - 4)
            put_word(at + 8, values[2], low - 8, high - 8)
            put_word(at + 12, values[3], low - 12, high - 12)

    @device_function
    def put_each(p: Any, at: Any, low: Any, high: Any) -> None:
        for j in range(low, high):
            place = p + j * bits
            value = load_byte(place >> 3)
            if not whole:
                value = np.uint32((value >> np.uint32(place & 7)) & mask)
            store_byte(at + j, value)

    @device_function
    def finish(p: Any, at: Any, low: Any, high: Any, fetched: Any, first: Any, last: Any) -> None:
        if ((p + low * bits) >> 5) << 2 >= first and ((p + high * bits - 1) >> 5) << 2 <= last:
            put(at, low, high, aligned(p, fetched))
        else:
            put_each(p, at, low, high)

    def shift_runs(destination, source, start, table, count, loops, length, begin, end):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * (4 * THREADS) + cuda.threadIdx.x
        last_unit = count - 1
        n0, n1 = min(n, last_unit), min(n + THREADS, last_unit)
        n2, n3 = min(n + 2 * THREADS, last_unit), min(n + 3 * THREADS, last_unit)
        s0, s1, s2, s3, d0, d1, d2, d3 = four_places(n0, n1, n2, n3, table, loops)
        source = source * 8 + start
        p0, a0, low0, high0 = extent(n0, source + s0, destination + d0, table, length)
        p1, a1, low1, high1 = extent(n1, source + s1, destination + d1, table, length)
        p2, a2, low2, high2 = extent(n2, source + s2, destination + d2, table, length)
        p3, a3, low3, high3 = extent(n3, source + s3, destination + d3, table, length)
        # The aligned words that are inside the buffer; where it may hold none, a word of the table, which no run needs.
        first, last = (begin + 3) & ~3, (end & ~3) - 4
        if end - begin < _FEWEST_BYTES:
            first = last = table
        f0, f1 = fetch(p0, first, last), fetch(p1, first, last)
        f2, f3 = fetch(p2, first, last), fetch(p3, first, last)
        if n < count:
            finish(p0, a0, low0, high0, f0, first, last)
        if n + THREADS < count:
            finish(p1, a1, low1, high1, f1, first, last)
        if n + 2 * THREADS < count:
            finish(p2, a2, low2, high2, f2, first, last)
        if n + 3 * THREADS < count:
            finish(p3, a3, low3, high3, f3, first, last)

    return Kernel(shift_runs, "iiiiiiiii", f"shift {bits}", resident=3)


@cache
def compress_kernel(bits: int) -> Kernel:
    """Make the kernel that packs runs of bytes: destination, source, table, units, loops.

    A unit is 16 bytes of the source, and 2 * `bits` bytes of the destination; all places are multiples of a unit.
    """
    load, store = LOAD[16], STORE[2 * bits]
    packed = packed_word(bits)
    half = np.uint64(32)

    @device_function
    def joined(value: Any) -> Any:
        w0, w1, w2, w3 = words(value)
        if bits == 4:
            low = np.uint32(packed(w0) | np.uint32(packed(w1) << np.uint32(16)))
            high = np.uint32(packed(w2) | np.uint32(packed(w3) << np.uint32(16)))
            return np.uint64(low) | (np.uint64(high) << half)
        low = np.uint32(packed(w0) | np.uint32(packed(w1) << np.uint32(4 * bits)))
        high = np.uint32(packed(w2) | np.uint32(packed(w3) << np.uint32(4 * bits)))
        return np.uint32(low | np.uint32(high << np.uint32(8 * bits)))

    def compress_runs(destination, source, table, count, loops):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * (4 * THREADS) + cuda.threadIdx.x
        last = count - 1
        n1, n2, n3 = n + THREADS, n + 2 * THREADS, n + 3 * THREADS
        s0, s1, s2, s3, d0, d1, d2, d3 = four_places(
            min(n, last), min(n1, last), min(n2, last), min(n3, last), table, loops
        )
        v0, v1, v2, v3 = load(source + s0), load(source + s1), load(source + s2), load(source + s3)
        if n < count:
            store(destination + d0, joined(v0))
        if n1 < count:
            store(destination + d1, joined(v1))
        if n2 < count:
            store(destination + d2, joined(v2))
        if n3 < count:
            store(destination + d3, joined(v3))

    return Kernel(compress_runs, "iiiii", f"compress runs {bits}", resident=4)
