"""Packed elements of less than a byte, to bytes and back."""

from __future__ import annotations

from fastindex.kernels.compilation import kernel
from fastindex.kernels.cpu.vectors import byte_at, compress_line, expand_line, set_byte


@kernel()
def expand_bits(bits, target, source, first, last):  # type: ignore[no-untyped-def]
    """Give elements of `bits` bits, packed from the low bits of each byte on, a byte each: `first` to `last`.

    `first` is a multiple of 64. Nothing is read behind the byte that holds the last element.
    """
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    whole = last - (last - first) % 64
    for i in range(first, whole, 64):
        expand_line(bits, 0, target + i, source + i // per_byte)
    for i in range(whole, last):
        set_byte(target + i, (byte_at(source + i // per_byte) >> (i % per_byte * bits)) & mask)


@kernel()
def compress_bits(bits, target, source, first, last):  # type: ignore[no-untyped-def]
    """Pack elements of a byte each into `bits` bits, from the low bits of each byte on; unused bits become 0.

    `first` is a multiple of 64.
    """
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    whole = last - (last - first) % 64
    for i in range(first, whole, 64):
        compress_line(bits, target + i // per_byte, source + i)
    for byte in range(whole // per_byte, (last + per_byte - 1) // per_byte):
        value = 0
        for k in range(min(per_byte, last - byte * per_byte)):
            value |= (byte_at(source + byte * per_byte + k) & mask) << (k * bits)
        set_byte(target + byte, value)
