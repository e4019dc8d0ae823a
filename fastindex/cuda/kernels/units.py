"""GPU kernels that move a unit at a time: copy, fill, look up, interleave and deinterleave rows, pack and unpack bits.

Each takes addresses and a table in GPU memory, in the layout of `cuda.numbers`. Bytes move as unsigned integers of 1 to
16 bytes. A kernel has code for units of several kinds, and an argument chooses among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, Each, cuda, device_function, one_of, several
from fastindex.cuda.kernels.geometry import four_places, places, quotient
from fastindex.cuda.kernels.memory import LOAD, STORE, WIDTHS, load_int64, store_int64
from fastindex.cuda.kernels.registers import (
    VALUE,
    WORDS,
    deinterleaved,
    interleaved,
    packed_word,
    pair,
    spread_word,
    unit_of_numbers,
    words,
)

#: The kinds of each kernel, in the order of their numbers: bytes or bits of a unit, and for a few the direction.
PACKED_BITS = (1, 2, 4)
FEW_ROWS = (4, 2)

_HALF = np.uint64(32)

Reader = Callable[[Any, Any], Any]
Writer = Callable[[Any, Any, Any], None]


def _mover(read: Reader, write: Writer) -> Callable[..., None]:
    @several(4)
    def read_four(number: Any, source: Any, place: Each, extra: Any) -> Any:
        return read(source + place, extra)

    @several(4)
    def write_four(number: Any, destination: Any, place: Each, n: Any, count: Any, extra: Any, value: Each) -> None:
        if n + number * THREADS < count:
            write(destination + place, extra, value)

    @device_function
    def move(destination: Any, source: Any, n: Any, count: Any, places: Any, extra: Any) -> None:
        write_four(destination, places[1], n, count, extra, read_four(source, places[0], extra))

    return move


@device_function
def _places(n: Any, count: Any, table: Any, loops: Any) -> Any:
    last = count - 1
    n1, n2, n3 = min(n + THREADS, last), min(n + 2 * THREADS, last), min(n + 3 * THREADS, last)
    return four_places(n, n1, n2, n3, table, loops)


def unit_kernel(name: str, kinds: Sequence[tuple[Reader, Writer]]) -> Kernel:
    """Make a kernel that moves units along loops, four a thread.

    Its parameters: destination, source, table, units, loops, the number of the kind, and two numbers that `read` and
    `write` get.

    Parameters
    ----------
    name : str
    kinds : sequence of (read, write)
        Functions of an address and the last two parameters, and for `write`, of what `read` returned.
    """
    move = one_of([_mover(*kind) for kind in kinds])

    def move_units(destination, source, table, count, loops, kind, first, second):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * (4 * THREADS) + cuda.threadIdx.x
        if n < count:
            move(kind, destination, source, n, count, _places(n, count, table, loops), (first, second))

    return Kernel(move_units, name, resident=4)


def _whole(width: int) -> tuple[Reader, Writer]:
    load, store = LOAD[width], STORE[width]

    @device_function
    def read(at: Any, extra: Any) -> Any:
        return load(at)

    @device_function
    def write(at: Any, extra: Any, value: Any) -> None:
        store(at, value)

    return read, write


@cache
def copy_kernel() -> Kernel:
    """Make the kernel that copies units; a kind for each of `WIDTHS`."""
    return unit_kernel("copy", [_whole(width) for width in WIDTHS])


@cache
def page_kernel() -> Kernel:
    """Make the kernel that copies units at many pairs of offsets; a kind for each of `WIDTHS`.

    Parameters: destination, source, table, units of a page, loops, the number of the kind, the table of pages, (source,
    destination) for each, the number of blocks for a page, and the constants of a division by it.
    """
    move = one_of([_mover(*_whole(width)) for width in WIDTHS])

    def copy_pages(destination, source, table, count, loops, kind, pages, each, magic, shift):  # type: ignore[no-untyped-def]
        block = np.int64(cuda.blockIdx.x)
        page = np.int64(np.uint32(quotient(block, magic, shift)))
        n = (block - page * each) * (4 * THREADS) + cuda.threadIdx.x
        here, there = load_int64(pages + 16 * page), load_int64(pages + 16 * page + 8)
        if n < count:
            move(kind, destination + there, source + here, n, count, _places(n, count, table, loops), (0, 0))

    return Kernel(copy_pages, "copy pages", resident=3)


@cache
def fill_kernel() -> Kernel:
    """Make the kernel that writes one unit, whose low and high 8 bytes are its last parameters; kinds as for copies."""
    write = one_of([_filler(width) for width in WIDTHS])

    def fill_units(destination, source, table, count, loops, kind, low, high):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * (4 * THREADS) + cuda.threadIdx.x
        # One place at a time: there are no loads to overlap, and short rows of padding need few places.
        for _ in range(4):
            if n < count:
                write(kind, destination + places(n, table, loops)[1], low, high)
            n += THREADS

    return Kernel(fill_units, "fill", resident=4)


def _filler(width: int) -> Callable[..., None]:
    unit, store = unit_of_numbers(width), STORE[width]

    @device_function
    def write(at: Any, low: Any, high: Any) -> None:
        store(at, unit(low, high))

    return write


@cache
def look_up_kernel() -> Kernel:
    """Make the kernel that replaces int64 numbers by the entries of a table at these indices: numbers, table, count."""

    def look_up(numbers, table, count):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * (4 * THREADS) + cuda.threadIdx.x
        for _ in range(4):
            if n < count:
                at = numbers + 8 * n
                store_int64(at, load_int64(table + 8 * load_int64(at)))
            n += THREADS

    return Kernel(look_up, "look up", resident=4)


# Rows that are interleaved element by element

_load_vector, _store_vector = LOAD[16], STORE[16]


@device_function
def _read_vector(at: Any, extra: Any) -> Any:
    return _load_vector(at)


def _interleaving(rows: int) -> tuple[Reader, Writer]:
    load, split, interleave = LOAD[16 // rows], WORDS[4 // rows], interleaved(rows)

    @several(rows)
    def load_rows(number: Any, at: Any, step: Any) -> Any:
        return load(at + number * step)

    @several(rows)
    def words_of_rows(number: Any, found: Each) -> Any:
        return split(found)

    @device_function
    def read(at: Any, extra: Any) -> Any:
        return load_rows(at, extra[0])

    @device_function
    def write(at: Any, extra: Any, found: Any) -> None:
        w0, w1, w2, w3 = interleave(words_of_rows(found))
        _store_vector(at, pair(w0, w1, w2, w3))

    return read, write


def _deinterleaving(rows: int) -> tuple[Reader, Writer]:
    store, value, deinterleave = STORE[16 // rows], VALUE[4 // rows], deinterleaved(rows)

    @several(rows)
    def store_rows(number: Any, at: Any, step: Any, row: Each) -> None:
        store(at + number * step, value(row))

    @device_function
    def write(at: Any, extra: Any, granule: Any) -> None:
        store_rows(at, extra[0], deinterleave(words(granule)))

    return _read_vector, write


@cache
def interleave_kernel() -> Kernel:
    """Make the kernel that interleaves as many rows as `FEW_ROWS` names, a kind for each, or then deinterleaves them.

    The last parameter but one is the stride between rows in bytes. A unit is 16 bytes of the interleaved row, so that
    neighbouring threads fill whole sectors on both sides.
    """
    return unit_kernel("interleave", [*map(_interleaving, FEW_ROWS), *map(_deinterleaving, FEW_ROWS)])


# Packed elements


def _expanding(bits: int) -> tuple[Reader, Writer]:
    load, spread = LOAD[2 * bits], spread_word(bits)

    @device_function
    def read(at: Any, extra: Any) -> Any:
        return load(at)

    @device_function
    def write(at: Any, extra: Any, value: Any) -> None:
        w0, w1, w2, w3 = spread(np.uint32(value), np.uint32(np.uint64(value) >> _HALF))
        _store_vector(at, pair(w0, w1, w2, w3))

    return read, write


def _compressing(bits: int) -> tuple[Reader, Writer]:
    store, packed = STORE[2 * bits], packed_word(bits)
    kind, step = (np.uint64 if bits == 4 else np.uint32), np.uint64(4 * bits)

    @device_function
    def write(at: Any, extra: Any, value: Any) -> None:
        w0, w1, w2, w3 = words(value)
        low = np.uint64(packed(w0)) | (np.uint64(packed(w1)) << step)
        high = np.uint64(packed(w2)) | (np.uint64(packed(w3)) << step)
        store(at, kind(low | (high << np.uint64(step + step))))

    return _read_vector, write


@cache
def packing_kernel(expand: bool) -> Kernel:
    """Make the kernel that packs runs of bytes, or the one that unpacks them, with a kind for each of `PACKED_BITS`.

    A unit is 16 bytes on the side that has bytes, and 2 * `bits` bytes on the packed side; all offsets are multiples of
    a unit.
    """
    if expand:
        return unit_kernel("expand", [*map(_expanding, PACKED_BITS)])
    return unit_kernel("compress", [*map(_compressing, PACKED_BITS)])


@cache
def pack_bits_kernel() -> Kernel:
    """Make the kernel that packs the low bits of a run of bytes at any alignment; a kind for each of `PACKED_BITS`.

    The first value is in the low bits of a byte. A thread packs 8 values, at a multiple of 8, and writes the result
    with one store; the bits after the last value become 0.
    """
    load_byte, store_byte, load_eight = LOAD[1], STORE[1], LOAD[8]

    def packer(bits: int) -> Callable[..., None]:
        store_packed, packed = STORE[bits], packed_word(bits)
        mask, per_byte = np.uint32((1 << bits) - 1), 8 // bits

        @device_function
        def pack(destination: Any, source: Any, n: Any, count: Any) -> None:
            if n + 8 <= count and destination % bits == 0:
                values = load_eight(source + n)
                high = np.uint32(packed(np.uint32(values >> _HALF)) << np.uint32(4 * bits))
                store_packed(destination + n // per_byte, np.uint32(packed(np.uint32(values)) | high))
            else:
                for first in range(n, min(n + 8, count), per_byte):
                    byte = np.uint32(0)
                    for i in range(first, min(first + per_byte, count)):
                        value = np.uint32(load_byte(source + i) & mask)
                        byte = np.uint32(byte | (value << np.uint32((i - first) * bits)))
                    store_byte(destination + first // per_byte, byte)

        return pack

    pack = one_of([packer(bits) for bits in PACKED_BITS])

    def pack_bits(destination, source, table, count, loops, kind):  # type: ignore[no-untyped-def]
        pack(kind, destination, source, (np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x) * 8, count)

    return Kernel(pack_bits, "pack bits", units=8 * THREADS)
