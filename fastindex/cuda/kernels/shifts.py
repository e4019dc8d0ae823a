"""GPU kernels that shift unaligned runs to their new alignment, and that unpack or pack packed elements.

Memory moves in aligned granules of 16 bytes, or of the bytes of 16 packed elements, whatever the alignment of a run on
either side. A granule that is partly outside the buffer is never read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.copies import unit_kernel
from fastindex.cuda.kernels.device import cuda, device_function
from fastindex.cuda.kernels.lanes import begin_of_lane, following
from fastindex.cuda.kernels.loops import MAGIC, SHIFT, SIZE, digit_below, four_places, places, quotient
from fastindex.cuda.kernels.memory import LOAD, STORE, load_int64
from fastindex.cuda.kernels.partial_stores import put_granule
from fastindex.cuda.kernels.registers import packed_word, pair, shifted_words, spread_word, words
from fastindex.cuda.numbers import FOLLOWED

_WORD_BITS = np.uint64(32)


@cache
def shift_kernel(bits: int) -> Kernel:
    """Make the kernel that copies unaligned runs of bytes, or of packed elements, which it unpacks to a byte each.

    Parameters: destination, source, the first bit in it, table, units, loops, bytes of a run in the destination, and
    the addresses where the source begins and ends. In the loops, source strides count bits. A unit is a granule:
    16 bytes of the destination at a multiple of 16. The first loop goes over those that a run may touch, and one after
    them, unless no run is shifted; surplus granules are after the end of the run.

    A thread reads the aligned bytes in which its granule begins. The next lane, which reads for the next granule, has
    the missing bytes; so neighbouring lanes read neighbouring bytes, each once.
    """
    granule_bytes = 2 * bits
    granule_bits, granule_mask = 8 * granule_bytes, ~(granule_bytes - 1)
    load, load_byte, store_byte = LOAD[granule_bytes], LOAD[1], STORE[1]
    mask, whole = np.uint32((1 << bits) - 1), bits == 8
    spread = spread_word(bits)
    words_of_granule = max(granule_bytes // 4, 1)
    following_all, shifted = following(words_of_granule), shifted_words(words_of_granule)

    @device_function
    def extent(n: Any, s: Any, d: Any, table: Any, length: Any) -> Any:
        """Return a granule's start in the source (bits) and destination (bytes), and the range of its bytes in the run.

        The last value is the address to read from: the start, clamped to the run.
        """
        size, magic, shift = load_int64(table + SIZE), load_int64(table + MAGIC), load_int64(table + SHIFT)
        number = digit_below(n, quotient(n, magic, shift), size)
        behind = d & 15
        begin, at = 16 * number, d - behind
        p, first = s - behind * bits, s - begin * bits
        read = min(max(p, first), first + length * bits - 1) >> 3
        low, high = behind - begin, min(length - begin + behind, 16)
        return p, at, np.int32(max(low, 0)), np.int32(max(high, -1)), read & granule_mask

    @device_function
    def two_words(value: Any) -> Any:
        return np.uint32(value), np.uint32(value >> _WORD_BITS)

    @device_function
    def one_word(value: Any) -> Any:
        return (value,)

    parts = {8: words, 4: two_words}.get(bits, one_word)

    @device_function
    def aligned_words(p: Any, here: Any, behind: Any) -> Any:
        """Return the 16 bytes that begin at a bit of the first of two granules."""
        return shifted(here, behind, np.uint32(p & (granule_bits - 1)))

    @device_function
    def aligned_nibbles(p: Any, here: Any, behind: Any) -> Any:
        low, high = shifted(here, behind, np.uint32(p & (granule_bits - 1)))
        return spread(low, high)

    @device_function
    def aligned_crumbs(p: Any, here: Any, behind: Any) -> Any:
        (word,) = shifted(here, behind, np.uint32(p & (granule_bits - 1)))
        return spread(word, word)

    @device_function
    def aligned_bits(p: Any, here: Any, behind: Any) -> Any:
        both = np.uint32(here[0] | np.uint32(behind[0] << np.uint32(16)))
        word = np.uint32(both >> np.uint32(p & 15))
        return spread(word, word)

    aligned = {8: aligned_words, 4: aligned_nibbles, 2: aligned_crumbs, 1: aligned_bits}[bits]

    @device_function
    def put_each(p: Any, at: Any, low: Any, high: Any) -> None:
        for j in range(low, high):
            place = p + j * bits
            value = load_byte(place >> 3)
            if not whole:
                value = np.uint32((value >> np.uint32(place & 7)) & mask)
            store_byte(at + j, value)

    @device_function
    def takes_granules(p: Any, low: Any, high: Any, bounds: Any) -> Any:
        """Whether all bytes needed are in granules inside the buffer, and the run does not begin and end in one."""
        lowest, highest = (p + low * bits) >> 3, (p + high * bits - 1) >> 3
        inside = lowest & granule_mask >= bounds[0] and highest & granule_mask <= bounds[1]
        return inside and (low == 0 or high == 16)

    @device_function
    def finish(extent: Any, here: Any, behind: Any, bounds: Any) -> Any:
        """Write a granule; return whether it is left to be moved byte by byte."""
        p, at, low, high, _ = extent
        if low >= high:
            return False
        if takes_granules(p, low, high, bounds):
            put_granule(at, low, high, aligned(p, here, behind))
            return False
        return True

    def shift_runs(destination, source, start, table, count, loops, length, begin, end):  # type: ignore[no-untyped-def]
        lane = cuda.threadIdx.x & 31
        n = begin_of_lane(cuda.blockIdx.x, cuda.threadIdx.x)
        last_unit = count - 1
        n0, n1, n2, n3 = min(n, last_unit), min(n + 32, last_unit), min(n + 64, last_unit), min(n + 96, last_unit)
        s0, s1, s2, s3, d0, d1, d2, d3 = four_places(n0, n1, n2, n3, table, loops)
        source = source * 8 + start
        e0 = extent(n0, source + s0, destination + d0, table, length)
        e1 = extent(n1, source + s1, destination + d1, table, length)
        e2 = extent(n2, source + s2, destination + d2, table, length)
        e3 = extent(n3, source + s3, destination + d3, table, length)
        # The aligned granules inside the buffer; if there are none, one at the table: safe to load, and not used.
        first, last = (begin + granule_bytes - 1) & granule_mask, (end & granule_mask) - granule_bytes
        if last < first:
            first = last = table & granule_mask
        r0, r1 = load(min(max(e0[4], first), last)), load(min(max(e1[4], first), last))
        r2, r3 = load(min(max(e2[4], first), last)), load(min(max(e3[4], first), last))
        v0, v1, v2, v3 = parts(r0), parts(r1), parts(r2), parts(r3)
        f0, f1, f2, f3 = following_all(v0, v1, v2, v3)
        bounds, left = (first, last), False
        # The last lanes of a warp only hold the values that the next warp begins with.
        behind = min(count, n - lane + FOLLOWED)
        if n < behind:
            left = finish(e0, v0, f0, bounds)
        if n + 32 < behind:
            left = finish(e1, v1, f1, bounds) or left
        if n + 64 < behind:
            left = finish(e2, v2, f2, bounds) or left
        if n + 96 < behind:
            left = finish(e3, v3, f3, bounds) or left
        while left and n < behind:
            s, d = places(n, table, loops)
            p, at, low, high, _ = extent(n, source + s, destination + d, table, length)
            if low < high and not takes_granules(p, low, high, bounds):
                put_each(p, at, low, high)
            n += 32

    return Kernel(shift_runs, "iiiiiiiii", f"shift {bits}", resident=3)


@cache
def packing_kernel(bits: int, expand: bool) -> Kernel:
    """Make the kernel that packs runs of bytes, or unpacks them; parameters as `unit_kernel`.

    A unit is 16 bytes on the side that has bytes, and 2 * `bits` bytes on the packed side; all offsets are multiples of
    a unit.
    """
    half = np.uint64(32)
    packed, spread = packed_word(bits), spread_word(bits)

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

    @device_function
    def apart(value: Any) -> Any:
        low, high = np.uint32(value), np.uint32(np.uint64(value) >> half)
        w0, w1, w2, w3 = spread(low, high)
        return pair(w0, w1, w2, w3)

    if expand:
        return unit_kernel(f"expand runs {bits}", 2 * bits, 16, apart)
    return unit_kernel(f"compress runs {bits}", 16, 2 * bits, joined)
