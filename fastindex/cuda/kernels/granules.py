"""GPU kernels for runs and rows of any alignment, which move in aligned granules of 16 bytes.

A shift realigns runs, of bytes or of packed elements, which it unpacks. Rows are interleaved into tiles that begin at
multiples of 16 bytes, or deinterleaved. A thread reads aligned granules, and gets the bytes that it needs of its
neighbour's from the next lane, so that each is read once:

    source       | . . . a | b c d e | f g h i |        lanes read granules
    destination      | a b c d | e f g h | i . .        and write those shifted, over two of them

A granule that is partly outside the buffer is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, Each, cuda, device_function, one_of, several
from fastindex.cuda.kernels.geometry import digit_below, four_places, places, quotient
from fastindex.cuda.kernels.memory import LOAD, STORE, load_int64, put_eight, put_granule, put_word
from fastindex.cuda.kernels.registers import (
    WORDS,
    begin_of_lane,
    deinterleaved,
    following,
    interleaved,
    shifted_words,
    spread_word,
    words,
)
from fastindex.cuda.numbers import DESTINATION, FOLLOWED, LOOP_BYTES, MAGIC, SHIFT, SIZE, SOURCE, WARP

#: The kinds of the kernels: bits of an element, and numbers of rows.
SHIFTED_BITS = (1, 2, 4, 8)
ROW_COUNTS = (1, 2, 4)

_GRANULE = 16
_load_byte, _store_byte = LOAD[1], STORE[1]


def _granule_kernel(name: str, kinds: Sequence[Callable[..., None]], resident: int) -> Kernel:
    """Make a kernel of several kinds.

    Its parameters: destination, source (for shifts, in bits), table, units, loops, the number of the kind, bytes of a
    run (of each row, on the side of rows), the stride between rows in bytes, and the addresses where the source begins
    and ends. For rows the table begins with the pieces of the interleaved side: the number of granules of a piece, and
    the stride to the next one. Then come the loops: the first goes over the granules of a run, and one after them that
    is only read for its neighbour.
    """
    move = one_of(kinds)

    def move_granules(destination, source, table, count, loops, kind, length, step, begin, end):  # type: ignore[no-untyped-def]
        move(kind, destination, source, table, count, loops, (length, step), (begin, end))

    return Kernel(move_granules, name, resident, units=THREADS // WARP * FOLLOWED)


def _four_granules(
    in_bits: bool,
    read_bytes: int,
    words_of_value: tuple[int, int],
    extent: Callable[..., Any],
    read: tuple[Callable[..., Any], Callable[..., Any]],
    finish: Callable[..., Any],
    put_each: Callable[..., None],
) -> Callable[..., None]:
    """Make the function of a thread that moves four units, with the bytes that the next lane has read.

    The functions get `run`: the table, the bytes of a run, the stride between rows, and the first and last address from
    which `read_bytes` can be read.

    Parameters
    ----------
    in_bits : bool
        Whether source offsets are in bits, and the table begins with the loops.
    read_bytes : int
        Bytes of an aligned load.
    words_of_value : pair of int
        The value of a unit that lanes exchange: a tuple of tuples of words.
    extent : callable
        Maps number, source and destination of a unit, and `run`, to what the other functions need to know of the unit.
    read : pair of callable
        Load what a thread reads for a unit, and make words of it: all loads come first.
    finish : callable
        Writes a unit, given its extent, its words and those of the next, and `run`; returns whether it is left to be
        moved byte by byte.
    put_each : callable
        Moves a unit byte by byte if `finish` left it, given its extent and `run`.
    """
    following_all, mask = following(*words_of_value), ~(read_bytes - 1)
    load, words_of = read
    loops_at = 0 if in_bits else LOOP_BYTES

    @device_function
    def move(destination: Any, source: Any, table: Any, count: Any, loops: Any, row: Any, bounds: Any) -> None:
        (length, step), (begin, end) = row, bounds
        lane = cuda.threadIdx.x & 31
        n = begin_of_lane(cuda.blockIdx.x, cuda.threadIdx.x)
        last_unit = count - 1
        n0, n1, n2, n3 = min(n, last_unit), min(n + 32, last_unit), min(n + 64, last_unit), min(n + 96, last_unit)
        (s0, s1, s2, s3), (d0, d1, d2, d3) = four_places(n0, n1, n2, n3, table + loops_at, loops)
        # The aligned addresses inside the buffer; if there are none, one at the table: safe to load, and not used.
        first, last = (begin + read_bytes - 1) & mask, (end & mask) - read_bytes
        if last < first:
            first = last = table & mask
        run = table, length, step, first, last, end
        e0, e1 = extent(n0, source + s0, destination + d0, run), extent(n1, source + s1, destination + d1, run)
        e2, e3 = extent(n2, source + s2, destination + d2, run), extent(n3, source + s3, destination + d3, run)
        r0, r1, r2, r3 = load(e0, run), load(e1, run), load(e2, run), load(e3, run)
        v0, v1, v2, v3 = words_of(r0), words_of(r1), words_of(r2), words_of(r3)
        f0, f1, f2, f3 = following_all(v0, v1, v2, v3)
        left = False
        # The last lanes of a warp only hold the values that the next warp begins with.
        stop = min(count, n - lane + FOLLOWED)
        if n < stop:
            left = finish(e0, v0, f0, run)
        if n + 32 < stop:
            left = finish(e1, v1, f1, run) or left
        if n + 64 < stop:
            left = finish(e2, v2, f2, run) or left
        if n + 96 < stop:
            left = finish(e3, v3, f3, run) or left
        while left and n < stop:
            s, d = places(n, table + loops_at, loops)
            put_each(extent(n, source + s, destination + d, run), run)
            n += 32

    return move


@device_function
def _number(n: Any, loop: Any) -> Any:
    """Return the number of a step's granule within its run, given the first loop."""
    above = quotient(n, load_int64(loop + MAGIC), load_int64(loop + SHIFT))
    return digit_below(n, above, load_int64(loop + SIZE))


# Runs


@cache
def shift_kernel() -> Kernel:
    """Make the kernel that copies unaligned runs of packed elements or bytes; a kind for each of `SHIFTED_BITS`.

    Packed elements are unpacked to a byte each.

    Source strides count bits. A unit is a granule: 16 bytes of the destination at a multiple of 16. The first loop goes
    over those that a run may touch, and one after them, unless no run is shifted; surplus granules are after the end of
    the run.
    """
    return _granule_kernel("shift", [_shifting(bits) for bits in SHIFTED_BITS], resident=3)


def _shifting(bits: int) -> Callable[..., None]:
    granule_bytes = 2 * bits
    granule_bits, granule_mask = 8 * granule_bytes, ~(granule_bytes - 1)
    load = LOAD[granule_bytes]
    mask, whole = np.uint32((1 << bits) - 1), bits == 8
    spread: Any = None if whole else spread_word(bits)
    word_count = max(granule_bytes // 4, 1)
    last_word = word_count - 1
    shifted = shifted_words(word_count)
    split = WORDS[word_count]

    @device_function
    def extent(n: Any, s: Any, d: Any, run: Any) -> Any:
        """Return a granule's start in the source (bits) and destination (bytes), and the range of its bytes in the run.

        The last value is the address to read from: the start, clamped to the run.
        """
        table, length, _, _, _, _ = run
        skipped = d & 15
        begin, at = 16 * _number(n, table), d - skipped
        p, first = s - skipped * bits, s - begin * bits
        read = min(max(p, first), first + length * bits - 1) >> 3
        low, high = skipped - begin, min(length - begin + skipped, 16)
        return p, at, np.int32(max(low, 0)), np.int32(max(high, -1)), read & granule_mask

    @device_function
    def read(extent: Any, run: Any) -> Any:
        return load(min(max(extent[4], run[3]), run[4]))

    @device_function
    def words_of(value: Any) -> Any:
        return (split(value),)

    @device_function
    def aligned_bytes(p: Any, here: Any, after: Any) -> Any:
        """Return the 16 bytes that begin at a bit of the first of two granules."""
        return shifted(here[0], after[0], np.uint32(p & (granule_bits - 1)))

    @device_function
    def aligned_elements(p: Any, here: Any, after: Any) -> Any:
        found = shifted(here[0], after[0], np.uint32(p & (granule_bits - 1)))
        return spread(found[0], found[last_word])

    @device_function
    def aligned_bits(p: Any, here: Any, after: Any) -> Any:
        both = np.uint32(here[0][0] | np.uint32(after[0][0] << np.uint32(16)))
        word = np.uint32(both >> np.uint32(p & 15))
        return spread(word, word)

    aligned = {8: aligned_bytes, 1: aligned_bits}.get(bits, aligned_elements)

    @device_function
    def takes_granules(p: Any, low: Any, high: Any, run: Any) -> Any:
        """Whether all bytes needed are in granules inside the buffer, and the run does not begin and end in one."""
        lowest, highest = (p + low * bits) >> 3, (p + high * bits - 1) >> 3
        inside = lowest & granule_mask >= run[3] and highest & granule_mask <= run[4]
        return inside and (low == 0 or high == 16)

    @device_function
    def finish(extent: Any, here: Any, after: Any, run: Any) -> Any:
        p, at, low, high, _ = extent
        if low >= high:
            return False
        if takes_granules(p, low, high, run):
            put_granule(at, low, high, aligned(p, here, after))
            return False
        return True

    @device_function
    def put_each(extent: Any, run: Any) -> None:
        p, at, low, high, _ = extent
        if low < high and not takes_granules(p, low, high, run):
            for j in range(low, high):
                place = p + j * bits
                value = _load_byte(place >> 3)
                if not whole:
                    value = np.uint32((value >> np.uint32(place & 7)) & mask)
                _store_byte(at + j, value)

    reads = read, words_of
    return _four_granules(True, granule_bytes, (1, word_count), extent, reads, finish, put_each)


# Rows


def _interleaved_place(stride: int) -> Any:
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
def interleave_rows_kernel() -> Kernel:
    """Make the kernel that interleaves rows; a kind for each of `ROW_COUNTS`.

    An element of each row together makes a word. A unit is a granule of the destination.
    """
    return _granule_kernel("interleave rows", [_interleaving(rows) for rows in ROW_COUNTS], resident=2)


def _interleaving(rows: int) -> Callable[..., None]:
    part, width = _GRANULE // rows, 4 // rows
    mask = ~(part - 1)
    load, split, shifted, interleave = LOAD[part], WORDS[part // 4], shifted_words(part // 4), interleaved(rows)
    interleaved_place = _interleaved_place(DESTINATION)

    @device_function
    def loaded(at: Any, run: Any) -> Any:
        return load(min(max(at & mask, run[3]), run[4]))

    @several(rows)
    def load_rows(number: Any, at: Any, run: Any) -> Any:
        return loaded(at + number * run[2], run)

    @device_function
    def read(extent: Any, run: Any) -> Any:
        return load_rows(extent[3], run)

    @several(rows)
    def words_of(number: Any, found: Each) -> Any:
        return split(found)

    @several(rows)
    def shift_rows(number: Any, at: Any, step: Any, here: Each, after: Each) -> Any:
        return shifted(here, after, _by(at + number * step, part))

    @device_function
    def extent(n: Any, s: Any, d: Any, run: Any) -> Any:
        """Return a granule's number in its run, the addresses of its row 0 and of its run, and that to read from."""
        table, length, _, _, _, _ = run
        number = _number(n, table + LOOP_BYTES)
        return number, s, d, min(s, s - part * number + length - 1)

    @device_function
    def takes_words(s: Any, count: Any, run: Any) -> Any:
        """Whether all bytes that are needed are in aligned parts inside the buffer."""
        across = (rows - 1) * run[2]
        lowest, highest = (s + min(across, 0)) & mask, (s + max(across, 0) + count - 1) & mask
        return lowest >= run[3] and highest <= run[4]

    @device_function
    def finish(extent: Any, here: Any, after: Any, run: Any) -> Any:
        number, s, d, _ = extent
        table, length, step, _, _, _ = run
        count = min(length - part * number, part)
        if count <= 0:
            return False
        if takes_words(s, count, run):
            found = interleave(shift_rows(s, step, here, after))
            put_granule(d + interleaved_place(number, table), 0, count * rows, found)
            return False
        return True

    @device_function
    def put_each(extent: Any, run: Any) -> None:
        number, s, d, _ = extent
        table, length, step, _, _, _ = run
        count = min(length - part * number, part)
        if count > 0 and not takes_words(s, count, run):
            at = d + interleaved_place(number, table)
            for j in range(count * rows):
                column, inside = j >> 2, j & 3
                _store_byte(at + j, _load_byte(s + inside // width * step + column * width + inside % width))

    return _four_granules(False, part, (rows, part // 4), extent, (read, words_of), finish, put_each)


@cache
def deinterleave_rows_kernel(rows: int) -> Kernel:
    """Make the kernel that deinterleaves 1, 2 or 4 rows, the inverse of `interleave_rows_kernel`.

    A unit is 16 / `rows` bytes of each row, aligned to that size. They are in one granule of the source, or in two, of
    which the next lane reads the second.
    """
    return _granule_kernel(f"deinterleave rows {rows}", [_deinterleaving(rows)], resident=2)


def _deinterleaving(rows: int) -> Callable[..., None]:
    part, width = _GRANULE // rows, 4 // rows
    interleaved_place, load, shifted = _interleaved_place(SOURCE), LOAD[_GRANULE], shifted_words(part // 4)
    put = {1: put_granule, 2: put_eight, 4: put_word}[rows]

    @device_function
    def extent(n: Any, s: Any, d: Any, run: Any) -> Any:
        """Return a unit's number in its run, the addresses of its rows and of the first piece, and that to read."""
        table, length, _, _, last, _ = run
        number = _number(n, table + LOOP_BYTES)
        granule = min(max(number - 1, 0), (length - 1) // part)
        return number, d - part * number, s, min(s + interleaved_place(granule, table), last)

    @device_function
    def read(extent: Any, run: Any) -> Any:
        return load(extent[3])

    @device_function
    def bounds(at: Any, number: Any, length: Any) -> Any:
        """Return the address of a unit of the row that starts at `at`, and the range of its bytes in the row."""
        skipped = at & (part - 1)
        before = part * number - skipped
        return at + before, np.int32(max(-before, 0)), np.int32(max(min(length - before, part), -1))

    @several(rows)
    def put_rows(row: Any, d: Any, step: Any, number: Any, length: Any, here: Each, after: Each) -> None:
        at = d + row * step
        to, low, high = bounds(at, number, length)
        by = _by(-at, part)
        if low < high:
            put(to, low, high, shifted(after if by == 0 else here, after, by))

    @device_function
    def is_cut(number: Any, s: Any, run: Any) -> Any:
        """Whether a unit needs the last granule of its run, and the buffer ends within that granule."""
        table, length, _, _, _, end = run
        last = (length - 1) // part
        return number >= last and s + interleaved_place(last, table) + _GRANULE > end

    @device_function
    def finish(extent: Any, here: Any, after: Any, run: Any) -> Any:
        number, d, s, _ = extent
        if is_cut(number, s, run):
            return True
        put_rows(d, run[2], number, run[1], here, after)
        return False

    @device_function
    def put_each(extent: Any, run: Any) -> None:
        number, d, s, _ = extent
        table, length, step, _, _, _ = run
        if is_cut(number, s, run):
            for row in range(rows):
                to, low, high = bounds(d + row * step, number, length)
                for j in range(low, high):
                    place = to + j - d - row * step
                    interleaved = (
                        interleaved_place(place // part, table) + (place // width & 3) * 4 + row * width + place % width
                    )
                    _store_byte(to + j, _load_byte(s + interleaved))

    deinterleave = deinterleaved(rows)

    @device_function
    def rows_of(granule: Any) -> Any:
        return deinterleave(words(granule))

    return _four_granules(False, _GRANULE, (rows, part // 4), extent, (read, rows_of), finish, put_each)
