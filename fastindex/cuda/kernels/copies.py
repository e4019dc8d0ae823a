"""GPU kernels that move a unit at a time: copy, fill, look up, interleave and deinterleave rows, and pack bits.

Each takes addresses and a table in GPU memory, in the layout of `cuda.numbers`. Bytes move as unsigned integers of 1 to
16 bytes. A kernel is made once for each width.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fastindex.cuda.kernels.compilation import Kernel
from fastindex.cuda.kernels.device import THREADS, cuda, device_function
from fastindex.cuda.kernels.loops import four_places
from fastindex.cuda.kernels.memory import LOAD, STORE, load_int64, store_int64
from fastindex.cuda.kernels.registers import (
    high_halves,
    low_halves,
    packed_word,
    pair,
    turned_bytes,
    unit_of_numbers,
    words,
)


@device_function
def _unchanged(value: Any) -> Any:
    return value


def unit_kernel(name: str, source_bytes: int, destination_bytes: int, converted: Any = _unchanged) -> Kernel:
    """Make a kernel that moves units along loops: destination, source, table, units, loops.

    A unit of `source_bytes` is loaded, mapped by `converted` to `destination_bytes`, and stored.
    """
    load, store = LOAD[source_bytes], STORE[destination_bytes]

    def move_units(destination, source, table, count, loops):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * (4 * THREADS) + cuda.threadIdx.x
        last = count - 1
        n1, n2, n3 = n + THREADS, n + 2 * THREADS, n + 3 * THREADS
        s0, s1, s2, s3, d0, d1, d2, d3 = four_places(
            min(n, last), min(n1, last), min(n2, last), min(n3, last), table, loops
        )
        v0, v1, v2, v3 = load(source + s0), load(source + s1), load(source + s2), load(source + s3)
        if n < count:
            store(destination + d0, converted(v0))
        if n1 < count:
            store(destination + d1, converted(v1))
        if n2 < count:
            store(destination + d2, converted(v2))
        if n3 < count:
            store(destination + d3, converted(v3))

    return Kernel(move_units, "iiiii", name, resident=4)


@cache
def copy_kernel(width: int) -> Kernel:
    """Make the kernel that copies units of `width` bytes; parameters as `unit_kernel`."""
    return unit_kernel(f"copy {width}", width, width)


@cache
def fill_kernel(width: int) -> Kernel:
    """Make the kernel that writes one unit along loops: destination, its low and high 8 bytes, table, units, loops."""
    store = STORE[width]

    unit = unit_of_numbers(width)

    def fill_units(destination, low, high, table, count, loops):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * (4 * THREADS) + cuda.threadIdx.x
        value = unit(low, high)
        last = count - 1
        n1, n2, n3 = n + THREADS, n + 2 * THREADS, n + 3 * THREADS
        _, _, _, _, d0, d1, d2, d3 = four_places(
            min(n, last), min(n1, last), min(n2, last), min(n3, last), table, loops
        )
        if n < count:
            store(destination + d0, value)
        if n1 < count:
            store(destination + d1, value)
        if n2 < count:
            store(destination + d2, value)
        if n3 < count:
            store(destination + d3, value)

    return Kernel(fill_units, "iuuiii", f"fill {width}", resident=4)


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

    return Kernel(look_up, "iii", "look up", resident=4)


@cache
def weave_kernel(width: int, apart: bool) -> Kernel:
    """Make the kernel that interleaves rows element by element, or with `apart` deinterleaves them.

    The 4 // `width` rows have a stride of `step` bytes. Parameters: destination, source, table, units, loops, step. A
    unit is 16 bytes of the interleaved row, so that neighbouring threads fill whole sectors on both sides.
    """
    load, store = LOAD[16], STORE[16]
    load_half, store_half = LOAD[8], STORE[8]
    load_word, store_word = LOAD[4], STORE[4]
    half = np.uint64(32)

    @device_function
    def read_halves(at: Any, step: Any) -> Any:
        return load_half(at), load_half(at + step)

    @device_function
    def write_woven_halves(at: Any, rows: Any) -> None:
        a, b = rows
        a0, a1, b0, b1 = np.uint32(a), np.uint32(a >> half), np.uint32(b), np.uint32(b >> half)
        store(at, pair(low_halves(a0, b0), high_halves(a0, b0), low_halves(a1, b1), high_halves(a1, b1)))

    @device_function
    def read_bytes(at: Any, step: Any) -> Any:
        return load_word(at), load_word(at + step), load_word(at + 2 * step), load_word(at + 3 * step)

    @device_function
    def write_woven_bytes(at: Any, rows: Any) -> None:
        a, b, c, d = rows
        w0, w1, w2, w3 = turned_bytes(a, b, c, d)
        store(at, pair(w0, w1, w2, w3))

    @device_function
    def write_parted_halves(at: Any, step: Any, woven: Any) -> None:
        a0, a1, a2, a3 = words(woven)
        store_half(at, np.uint64(low_halves(a0, a1)) | (np.uint64(low_halves(a2, a3)) << half))
        store_half(at + step, np.uint64(high_halves(a0, a1)) | (np.uint64(high_halves(a2, a3)) << half))

    @device_function
    def write_parted_bytes(at: Any, step: Any, woven: Any) -> None:
        a0, a1, a2, a3 = words(woven)
        w0, w1, w2, w3 = turned_bytes(a0, a1, a2, a3)
        store_word(at, w0)
        store_word(at + step, w1)
        store_word(at + 2 * step, w2)
        store_word(at + 3 * step, w3)

    read_rows, write_woven = (read_halves, write_woven_halves) if width == 2 else (read_bytes, write_woven_bytes)
    write_parted = write_parted_halves if width == 2 else write_parted_bytes

    def weave(destination, source, table, count, loops, step):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * (4 * THREADS) + cuda.threadIdx.x
        last = count - 1
        n1, n2, n3 = n + THREADS, n + 2 * THREADS, n + 3 * THREADS
        s0, s1, s2, s3, d0, d1, d2, d3 = four_places(
            min(n, last), min(n1, last), min(n2, last), min(n3, last), table, loops
        )
        v0, v1 = read_rows(source + s0, step), read_rows(source + s1, step)
        v2, v3 = read_rows(source + s2, step), read_rows(source + s3, step)
        if n < count:
            write_woven(destination + d0, v0)
        if n1 < count:
            write_woven(destination + d1, v1)
        if n2 < count:
            write_woven(destination + d2, v2)
        if n3 < count:
            write_woven(destination + d3, v3)

    def part(destination, source, table, count, loops, step):  # type: ignore[no-untyped-def]
        n = np.int64(cuda.blockIdx.x) * (4 * THREADS) + cuda.threadIdx.x
        last = count - 1
        n1, n2, n3 = n + THREADS, n + 2 * THREADS, n + 3 * THREADS
        s0, s1, s2, s3, d0, d1, d2, d3 = four_places(
            min(n, last), min(n1, last), min(n2, last), min(n3, last), table, loops
        )
        v0, v1, v2, v3 = load(source + s0), load(source + s1), load(source + s2), load(source + s3)
        if n < count:
            write_parted(destination + d0, step, v0)
        if n1 < count:
            write_parted(destination + d1, step, v1)
        if n2 < count:
            write_parted(destination + d2, step, v2)
        if n3 < count:
            write_parted(destination + d3, step, v3)

    return Kernel(part if apart else weave, "iiiiii", f"{'part' if apart else 'weave'} {width}", resident=4)


@cache
def pack_bits_kernel(bits: int) -> Kernel:
    """Make the kernel that packs the low `bits` bits of bytes: destination, source, count.

    The first value is in the low bits of a byte. A thread packs 8 values, at a multiple of 8, and writes the result
    with one store; the bits after the last value become 0.
    """
    mask = np.uint32((1 << bits) - 1)
    load_byte, store_byte, store_packed, load_eight = LOAD[1], STORE[1], STORE[bits], LOAD[8]
    packed = packed_word(bits)
    per_byte, half = 8 // bits, np.uint64(32)

    def pack_bits(destination, source, count):  # type: ignore[no-untyped-def]
        n = (np.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x) * 8
        if n + 8 <= count and destination % bits == 0:
            values = load_eight(source + n)
            high = np.uint32(packed(np.uint32(values >> half)) << np.uint32(4 * bits))
            store_packed(destination + n // per_byte, np.uint32(packed(np.uint32(values)) | high))
        else:
            for first in range(n, min(n + 8, count), per_byte):
                byte = np.uint32(0)
                for i in range(first, min(first + per_byte, count)):
                    value = np.uint32(load_byte(source + i) & mask)
                    byte = np.uint32(byte | (value << np.uint32((i - first) * bits)))
                store_byte(destination + first // per_byte, byte)

    return Kernel(pack_bits, "iii", f"pack bits {bits}")
