"""GPU kernels that interleave rows into tiles, or deinterleave them, where rows are unaligned and tiles aligned.

The interleaved side, usually tiles, begins at multiples of 16 bytes. A table begins with the pieces of the interleaved
side: the number of 16-byte granules of a piece, and the stride to the next one; then come the loops. The rows are
contiguous through all pieces. A thread gets the bytes that it needs of its neighbour from the next lane.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import cuda, device_function
from fastindex.cuda.kernels.lanes import begin_of_lane, following
from fastindex.cuda.kernels.loops import (
    DESTINATION,
    LOOP_BYTES,
    MAGIC,
    SHIFT,
    SIZE,
    SOURCE,
    digit_below,
    four_places,
    places,
    quotient,
)
from fastindex.cuda.kernels.memory import LOAD, STORE, load_int64
from fastindex.cuda.kernels.partial_stores import put_eight, put_granule, put_word
from fastindex.cuda.kernels.registers import high_halves, low_halves, shifted_words, turned_bytes, words
from fastindex.cuda.numbers import FOLLOWED

_GRANULE = 16
_following = following(4)
_load_byte, _store_byte, _load_granule = LOAD[1], STORE[1], LOAD[16]
_shifted_one, _shifted_two, _shifted_four = (shifted_words(count) for count in (1, 2, 4))


@device_function
def _number(n: Any, table: Any) -> Any:
    """Return the number of a step's granule within its run."""
    loop = table + LOOP_BYTES
    above = quotient(n, load_int64(loop + MAGIC), load_int64(loop + SHIFT))
    return digit_below(n, above, load_int64(loop + SIZE))


def _woven_place(stride: int) -> Any:
    @device_function
    def place(number: Any, table: Any) -> Any:
        """Return the offset of a granule of a run on the interleaved side."""
        piece = quotient(number, load_int64(table + MAGIC), load_int64(table + SHIFT))
        inside = digit_below(number, piece, load_int64(table + SIZE))
        return piece * load_int64(table + stride) + inside * _GRANULE

    return place


@device_function
def _by(place: Any, part: Any) -> Any:
    """Return the misalignment of an address to `part` bytes, in bits."""
    return np.uint32(8 * (place & (part - 1)))


@cache
def weave_rows_kernel(rows: int) -> Kernel:
    """Make the kernel that interleaves 1, 2 or 4 rows; an element of each row together makes a word.

    Parameters: destination, source, table, units, loops, bytes of a row in a run, the stride between rows in bytes, and
    the addresses where the source begins and ends. A unit is a granule of the destination; the first loop goes over
    those of a run, and one after them that is only read for its neighbour.
    """
    part, width = _GRANULE // rows, 4 // rows
    mask = ~(part - 1)
    load = LOAD[part]
    woven_place = _woven_place(DESTINATION)
    half = np.uint64(32)

    @device_function
    def one_row(at: Any, step: Any, first: Any, last: Any) -> Any:
        return load(min(max(at & mask, first), last))

    @device_function
    def two_rows(at: Any, step: Any, first: Any, last: Any) -> Any:
        return load(min(max(at & mask, first), last)), load(min(max((at + step) & mask, first), last))

    @device_function
    def four_rows(at: Any, step: Any, first: Any, last: Any) -> Any:
        return (
            load(min(max(at & mask, first), last)),
            load(min(max((at + step) & mask, first), last)),
            load(min(max((at + 2 * step) & mask, first), last)),
            load(min(max((at + 3 * step) & mask, first), last)),
        )

    @device_function
    def words_of_two(read: Any) -> Any:
        a, b = read
        return np.uint32(a), np.uint32(a >> half), np.uint32(b), np.uint32(b >> half)

    @device_function
    def words_of_four(read: Any) -> Any:
        return read

    @device_function
    def columns_of_one(at: Any, step: Any, here: Any, behind: Any) -> Any:
        return _shifted_four(here, behind, _by(at, part))

    @device_function
    def columns_of_two(at: Any, step: Any, here: Any, behind: Any) -> Any:
        a0, a1 = _shifted_two((here[0], here[1]), (behind[0], behind[1]), _by(at, part))
        b0, b1 = _shifted_two((here[2], here[3]), (behind[2], behind[3]), _by(at + step, part))
        return low_halves(a0, b0), high_halves(a0, b0), low_halves(a1, b1), high_halves(a1, b1)

    @device_function
    def columns_of_four(at: Any, step: Any, here: Any, behind: Any) -> Any:
        (a,) = _shifted_one((here[0],), (behind[0],), _by(at, part))
        (b,) = _shifted_one((here[1],), (behind[1],), _by(at + step, part))
        (c,) = _shifted_one((here[2],), (behind[2],), _by(at + 2 * step, part))
        (d,) = _shifted_one((here[3],), (behind[3],), _by(at + 3 * step, part))
        return turned_bytes(a, b, c, d)

    read = {1: one_row, 2: two_rows, 4: four_rows}[rows]
    words_of = {1: words, 2: words_of_two, 4: words_of_four}[rows]
    columns_of = {1: columns_of_one, 2: columns_of_two, 4: columns_of_four}[rows]

    @device_function
    def extent(n: Any, s: Any, table: Any, length: Any) -> Any:
        """Return a granule's number in its run, the address of its row 0, and that to read from, within the run."""
        number = _number(n, table)
        return number, s, min(s, s - part * number + length - 1)

    @device_function
    def put_each(at: Any, s: Any, step: Any, count: Any) -> None:
        for j in range(count):
            column, inside = j >> 2, j & 3
            _store_byte(at + j, _load_byte(s + inside // width * step + column * width + inside % width))

    @device_function
    def takes_words(s: Any, step: Any, count: Any, bounds: Any) -> Any:
        """Whether all bytes that are needed are in aligned parts inside the buffer."""
        across = (rows - 1) * step
        lowest, highest = (s + min(across, 0)) & mask, (s + max(across, 0) + count - 1) & mask
        return lowest >= bounds[0] and highest <= bounds[1]

    @device_function
    def finish(extent: Any, d: Any, table: Any, here: Any, behind: Any, length: Any, step: Any, bounds: Any) -> Any:
        """Write a granule; return whether it is left to be moved byte by byte."""
        number, s, _ = extent
        count = min(length - part * number, part)
        if count <= 0:
            return False
        if takes_words(s, step, count, bounds):
            put_granule(d + woven_place(number, table), 0, count * rows, columns_of(s, step, here, behind))
            return False
        return True

    def weave_rows(destination, source, table, count, loops, length, step, begin, end):  # type: ignore[no-untyped-def]
        lane = cuda.threadIdx.x & 31
        n = begin_of_lane(cuda.blockIdx.x, cuda.threadIdx.x)
        last_unit = count - 1
        n0, n1, n2, n3 = min(n, last_unit), min(n + 32, last_unit), min(n + 64, last_unit), min(n + 96, last_unit)
        s0, s1, s2, s3, d0, d1, d2, d3 = four_places(n0, n1, n2, n3, table + LOOP_BYTES, loops)
        e0, e1 = extent(n0, source + s0, table, length), extent(n1, source + s1, table, length)
        e2, e3 = extent(n2, source + s2, table, length), extent(n3, source + s3, table, length)
        first, last = (begin + part - 1) & mask, (end & mask) - part
        if last < first:
            first = last = table & mask
        r0, r1 = read(e0[2], step, first, last), read(e1[2], step, first, last)
        r2, r3 = read(e2[2], step, first, last), read(e3[2], step, first, last)
        v0, v1, v2, v3 = words_of(r0), words_of(r1), words_of(r2), words_of(r3)
        f0, f1, f2, f3 = _following(v0, v1, v2, v3)
        bounds, left = (first, last), False
        # The last lanes of a warp only hold the values that the next warp begins with.
        behind = min(count, n - lane + FOLLOWED)
        if n < behind:
            left = finish(e0, destination + d0, table, v0, f0, length, step, bounds)
        if n + 32 < behind:
            left = finish(e1, destination + d1, table, v1, f1, length, step, bounds) or left
        if n + 64 < behind:
            left = finish(e2, destination + d2, table, v2, f2, length, step, bounds) or left
        if n + 96 < behind:
            left = finish(e3, destination + d3, table, v3, f3, length, step, bounds) or left
        while left and n < behind:
            s, d = places(n, table + LOOP_BYTES, loops)
            number, s, _ = extent(n, source + s, table, length)
            many = min(length - part * number, part)
            if many > 0 and not takes_words(s, step, many, bounds):
                put_each(destination + d + woven_place(number, table), s, step, many * rows)
            n += 32

    return Kernel(weave_rows, "iiiiiiiii", f"weave rows {rows}")


@cache
def part_rows_kernel(rows: int) -> Kernel:
    """Make the kernel that deinterleaves 1, 2 or 4 rows, the inverse of `weave_rows_kernel`; same parameters.

    A unit is 16 / `rows` bytes of each row, aligned to as many. They are in one granule of the source, or in two, of
    which the next lane reads the second.
    """
    part, width = _GRANULE // rows, 4 // rows
    woven_place = _woven_place(SOURCE)

    @device_function
    def rows_of_two(read: Any) -> Any:
        a0, a1, a2, a3 = words(read)
        return low_halves(a0, a1), low_halves(a2, a3), high_halves(a0, a1), high_halves(a2, a3)

    @device_function
    def rows_of_four(read: Any) -> Any:
        a0, a1, a2, a3 = words(read)
        return turned_bytes(a0, a1, a2, a3)

    rows_of = {1: words, 2: rows_of_two, 4: rows_of_four}[rows]

    @device_function
    def extent(n: Any, s: Any, table: Any, length: Any, end: Any) -> Any:
        """Return a unit's number in its run, the address to read from, and that of the run's first piece."""
        number = _number(n, table)
        granule = min(max(number - 1, 0), (length - 1) // part)
        return number, min(s + woven_place(granule, table), (end & -_GRANULE) - _GRANULE), s

    @device_function
    def bounds(at: Any, number: Any, length: Any) -> Any:
        """Return the address of a unit of the row that starts at `at`, and the range of its bytes in the row."""
        behind = at & (part - 1)
        before = part * number - behind
        return at + before, np.int32(max(-before, 0)), np.int32(max(min(length - before, part), -1))

    @device_function
    def put_four(at: Any, number: Any, length: Any, here: Any, behind: Any) -> None:
        to, low, high = bounds(at, number, length)
        by = _by(-at, part)
        if low < high:
            put_granule(to, low, high, _shifted_four(behind if by == 0 else here, behind, by))

    @device_function
    def put_two(at: Any, number: Any, length: Any, here: Any, behind: Any) -> None:
        to, low, high = bounds(at, number, length)
        by = _by(-at, part)
        if low < high:
            put_eight(to, low, high, _shifted_two(behind if by == 0 else here, behind, by))

    @device_function
    def put_one(at: Any, number: Any, length: Any, here: Any, behind: Any) -> None:
        to, low, high = bounds(at, number, length)
        by = _by(-at, part)
        if low < high:
            (word,) = _shifted_one(behind if by == 0 else here, behind, by)
            put_word(to, low, high, word)

    @device_function
    def put_one_row(d: Any, step: Any, number: Any, length: Any, here: Any, behind: Any) -> None:
        put_four(d, number, length, here, behind)

    @device_function
    def put_two_rows(d: Any, step: Any, number: Any, length: Any, here: Any, behind: Any) -> None:
        put_two(d, number, length, (here[0], here[1]), (behind[0], behind[1]))
        put_two(d + step, number, length, (here[2], here[3]), (behind[2], behind[3]))

    @device_function
    def put_four_rows(d: Any, step: Any, number: Any, length: Any, here: Any, behind: Any) -> None:
        put_one(d, number, length, (here[0],), (behind[0],))
        put_one(d + step, number, length, (here[1],), (behind[1],))
        put_one(d + 2 * step, number, length, (here[2],), (behind[2],))
        put_one(d + 3 * step, number, length, (here[3],), (behind[3],))

    put_rows = {1: put_one_row, 2: put_two_rows, 4: put_four_rows}[rows]

    @device_function
    def put_each(d: Any, s: Any, step: Any, number: Any, length: Any, table: Any) -> None:
        for row in range(rows):
            to, low, high = bounds(d + row * step, number, length)
            for j in range(low, high):
                place = to + j - d - row * step
                woven = woven_place(place // part, table) + (place // width & 3) * 4 + row * width + place % width
                _store_byte(to + j, _load_byte(s + woven))

    @device_function
    def is_cut(number: Any, s: Any, table: Any, length: Any, end: Any) -> Any:
        """Whether a unit needs the last granule of its run, and the buffer ends within that granule."""
        last = (length - 1) // part
        return number >= last and s + woven_place(last, table) + _GRANULE > end

    @device_function
    def finish(extent: Any, d: Any, table: Any, here: Any, behind: Any, length: Any, step: Any, end: Any) -> Any:
        """Write a unit of each row; return whether it is left to be moved byte by byte."""
        number, _, s = extent
        if is_cut(number, s, table, length, end):
            return True
        put_rows(d - part * number, step, number, length, here, behind)
        return False

    def part_rows(destination, source, table, count, loops, length, step, begin, end):  # type: ignore[no-untyped-def]
        lane = cuda.threadIdx.x & 31
        n = begin_of_lane(cuda.blockIdx.x, cuda.threadIdx.x)
        last_unit = count - 1
        n0, n1, n2, n3 = min(n, last_unit), min(n + 32, last_unit), min(n + 64, last_unit), min(n + 96, last_unit)
        s0, s1, s2, s3, d0, d1, d2, d3 = four_places(n0, n1, n2, n3, table + LOOP_BYTES, loops)
        e0, e1 = extent(n0, source + s0, table, length, end), extent(n1, source + s1, table, length, end)
        e2, e3 = extent(n2, source + s2, table, length, end), extent(n3, source + s3, table, length, end)
        r0, r1, r2, r3 = _load_granule(e0[1]), _load_granule(e1[1]), _load_granule(e2[1]), _load_granule(e3[1])
        v0, v1, v2, v3 = rows_of(r0), rows_of(r1), rows_of(r2), rows_of(r3)
        f0, f1, f2, f3 = _following(v0, v1, v2, v3)
        left = False
        behind = min(count, n - lane + FOLLOWED)
        if n < behind:
            left = finish(e0, destination + d0, table, v0, f0, length, step, end)
        if n + 32 < behind:
            left = finish(e1, destination + d1, table, v1, f1, length, step, end) or left
        if n + 64 < behind:
            left = finish(e2, destination + d2, table, v2, f2, length, step, end) or left
        if n + 96 < behind:
            left = finish(e3, destination + d3, table, v3, f3, length, step, end) or left
        while left and n < behind:
            s, d = places(n, table + LOOP_BYTES, loops)
            number, _, s = extent(n, source + s, table, length, end)
            if is_cut(number, s, table, length, end):
                put_each(destination + d - part * number, s, step, number, length, table)
            n += 32

    return Kernel(part_rows, "iiiiiiiii", f"part rows {rows}", resident=3)
