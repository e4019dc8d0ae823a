"""The first wrong slot of a buffer in a named format: unpacking tells which codes are wrong, packing marks where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.bulk.repack_arguments import checked_bits, checked_parameters, checked_sizes, element_bits, given_array
from fastindex.bulk.repack_plans import repack_plan
from fastindex.bulk.repacking import repack
from fastindex.patterns.named_formats import PLAIN, check_name, takes_any_width


@dataclass(frozen=True)
class WrongCode:
    """A code that a buffer does not hold.

    Attributes
    ----------
    index : tuple of int
    place : int
        The first of its bits in the buffer.
    bits : int
        How many it has.
    codes, held : array
        What the buffer is to hold, and what it holds.
    """

    index: tuple[int, ...]
    place: int
    bits: int
    codes: NDArray[Any]
    held: NDArray[Any]


def first_wrong_code(
    before: Any, after: Any, name: str, shape: Sequence[int] | None, bits: int | None, parameters: dict[str, Any]
) -> WrongCode | None:
    """Return the first code in memory that a buffer of a named format does not hold, or None.

    Raises
    ------
    FastIndexError, ArgumentTypeError, UnsupportedError
        As `repack`.

    Examples
    --------
    >>> codes = np.arange(16, dtype=np.uint8).reshape(2, 8)
    >>> buffer = repack(codes, "plain", "awq")
    >>> buffer[1] ^= 0x10
    >>> wrong = first_wrong_code(codes, buffer, "awq", None, None, {})
    >>> wrong.index, wrong.place, wrong.held[wrong.index]
    ((0, 6), 12, np.uint8(7))
    """
    check_name(name)
    plain = given_array(before)
    sizes = plain.shape if shape is None else checked_sizes(shape)
    width = checked_bits(bits)
    if width is None and (takes_any_width(name) or element_bits(before, plain.dtype) < 8):
        width = element_bits(before, plain.dtype)
    width = repack_plan(PLAIN, name, sizes, width, checked_parameters(parameters)).ends[0].bits
    keys: dict[str, Any] = {"shape": sizes, "bits": width, **parameters}
    expected = repack(before, PLAIN, name, **keys)
    held = repack(after, name, PLAIN, out=np.empty(sizes, plain.dtype), **keys)
    codes = np.ascontiguousarray(plain).reshape(sizes)
    unsigned = f"u{plain.itemsize}"
    differ = codes.view(unsigned) != held.view(unsigned)
    if not differ.any():
        return None
    # All bits of the wrong codes, packed: the first one that is set is the first in memory.
    every = np.where(differ, np.uint64((1 << width) - 1), np.uint64(0)).astype(unsigned)
    nothing = np.zeros(sizes, unsigned)
    repack(nothing, PLAIN, name, out=expected, **keys)
    marked = repack(every, PLAIN, name, **keys) ^ expected
    byte = int(np.argmax(marked != 0))
    bit = int(np.argmax(np.unpackbits(marked[byte : byte + 1], bitorder="little")))
    # That bit alone, unpacked, is in the code it belongs to.
    expected[byte] ^= np.uint8(1 << bit)
    found = int(np.argmax(repack(expected, name, PLAIN, out=nothing, **keys) != 0))
    return WrongCode(tuple(int(i) for i in np.unravel_index(found, sizes)), 8 * byte + bit, width, codes, held)
