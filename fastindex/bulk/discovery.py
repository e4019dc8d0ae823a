"""Find the layout that a packer writes by what it does to code words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.bulk.repack_arguments import checked_bits, checked_sizes
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.patterns.bit_orders import BitOrder, found_order
from fastindex.patterns.code_words import Disproof, Packer, probed

#: Larger arrays are not probed: a source bit takes a row of about twenty code words.
_MOST_BITS = 1 << 24


@dataclass(frozen=True)
class Discovery:
    """What a packer does.

    Attributes
    ----------
    layout : str or None
        XLA's text of the array once its dimensions are split; None where there is none, and `reason` says why. Of bits,
        ``u1``, where codes are torn or have a width that no element type has: the bits of a code are then a last
        dimension, or those of `stream`.
    split : tuple of tuples of int
        What each dimension is split into, most major first.
    order : tuple of int
        The parts of all dimensions, numbered in order, the most minor first in memory.
    flipped_bits : int
        The bits of a code that are stored inverted.
    padding : int
        How many bits of the result hold no bit of the array.
    reason : str or None
        The proof that it is no permutation of bits: one bit of the result, or of the array.
    inputs : tuple of arrays
        What the packer was given for that proof; none where `reason` is about the order of bits that are permuted.
    places : int64 array
        The source bit of each bit of the result, -1 for padding.
    confirmed : tuple of tuples of int
        Other sizes for which the layout was found to hold.
    advice : str or None
        What was found at twice the sizes, where the layout was not confirmed, and which sizes to try.
    stream : int or None
        A dimension whose codes, bit after bit, are one row of bits, because codes lie across words: `layout` and
        `split` count that dimension in bits.
    unit_order : tuple of int
        Where bit i of a unit of so many bits lies, if the most minor ones are in no order of digits, as with the first
        code in the high half of a byte. `layout` says where all bits would be if they were in order in their units.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> found = fi.weights.discover(lambda codes: codes.reshape(4, 2, 4).transpose(1, 0, 2), (4, 8), np.uint8)
    >>> found.layout, found.split, found.flipped_bits, found.padding
    ('u8[4,2,4]{2,0,1}', ((4,), (2, 4)), 0, 0)
    """

    layout: str | None = None
    split: tuple[tuple[int, ...], ...] = ()
    order: tuple[int, ...] = ()
    flipped_bits: int = 0
    padding: int = 0
    reason: str | None = None
    places: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    confirmed: tuple[tuple[int, ...], ...] = ()
    stream: int | None = None
    unit_order: tuple[int, ...] = ()
    inputs: tuple[NDArray[Any], ...] = field(default=(), repr=False)
    advice: str | None = None


def discover(packer: Packer, shape: Sequence[int], dtype: Any, bits: int | None = None) -> Discovery:
    """Find out which layout a packer writes, or prove that it is no permutation of bits.

    The packer is called about ``2 log2(bits of the array)`` times with code words: once for each bit of the number of
    a source bit, and with all inverted; then with all codes of a byte at most, since code words have few of them. A
    second size, twice as large in each dimension, is tried: it shows what small sizes hide.

    Parameters
    ----------
    packer : callable
        Takes an array of `shape` and `dtype`, and returns an array; its bytes in C order are the result.
    shape : sequence of int
    dtype : dtype
        An integer type.
    bits : int, optional
        Of a code: only so many low bits of each element are used. By default, all.

    Returns
    -------
    Discovery

    Raises
    ------
    FastIndexError
        An empty array, or one of more than 2**24 bits: a smaller one shows the same layout.
    ArgumentTypeError
        `dtype` is no integer type.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> def pairs(codes):
    ...     return codes[:, 0::2] | codes[:, 1::2] << 4
    >>> fi.weights.discover(pairs, (4, 8), np.uint8, bits=4).layout
    'u4[4,8]{1,0:E(4)}'
    >>> high_first = fi.weights.discover(lambda codes: codes[:, 0::2] << 4 | codes[:, 1::2], (4, 8), np.uint8, bits=4)
    >>> high_first.layout, high_first.unit_order
    ('u4[4,8]{1,0:E(4)}', (4, 5, 6, 7, 0, 1, 2, 3))
    >>> print(fi.weights.discover(lambda codes: codes + 1, (2, 2), np.uint8).reason)
    bit 1 of byte 0 of the result is no bit of the input: with all bits 0 it is 0, with all bits 1 it is 0, and no \
single bit does that and is 1 and 1 for a word and its complement
    """
    sizes, given = checked_sizes(shape), checked_bits(bits)
    kind = np.dtype(dtype)
    if kind.kind not in "iub":
        raise ArgumentTypeError(f"codes are integers, got dtype {kind}")
    width = given or 8 * kind.itemsize
    if not 1 <= width <= 8 * kind.itemsize:
        raise FastIndexError(f"bits is from 1 to {8 * kind.itemsize} for {kind}, got {bits!r}")
    total = math.prod(sizes) * width
    if not 0 < total <= _MOST_BITS:
        raise FastIndexError(
            f"{sizes} has {total} bits; give an array of 1 to {_MOST_BITS} bits: small ones show the layout"
        )
    probe = probed(packer, sizes, kind, width)
    if isinstance(probe, Disproof):
        return Discovery(reason=probe.reason, inputs=probe.inputs)
    places = probe.places
    flipped = _flipped(places, probe.inverted, width)
    if isinstance(flipped, str):
        return Discovery(reason=flipped, places=places)
    known = Discovery(flipped_bits=flipped, padding=int((places < 0).sum()), places=places)
    found = found_order(places, sizes, width)
    if isinstance(found, str):
        _, advice = _second(packer, None, sizes, kind, width)
        return replace(known, reason=found, advice=advice)
    confirmed, advice = _second(packer, found, sizes, kind, width)
    layout = replace(known, layout=found.text, split=found.split, order=found.order)
    return replace(layout, confirmed=confirmed, stream=found.stream, unit_order=found.unit_order, advice=advice)


def _flipped(places: NDArray[np.int64], inverted: NDArray[np.bool_], width: int) -> int | str:
    """Return the bits of a code that are stored inverted; they are the same in all."""
    flipped = 0
    for bit in range(width):
        of_bit = inverted[(places >= 0) & (places % width == bit)]
        if of_bit.any() != of_bit.all():
            return f"bit {bit} of some codes is inverted, of others it is not: that depends on the place"
        flipped |= int(of_bit.any()) << bit
    return flipped


def _second(
    packer: Packer, found: BitOrder | None, sizes: tuple[int, ...], kind: np.dtype[Any], width: int
) -> tuple[tuple[tuple[int, ...], ...], str | None]:
    """Try sizes twice as large: return them if one part of each dimension is twice as large, else what is there."""
    larger = tuple(2 * size for size in sizes)
    if math.prod(larger) * width > _MOST_BITS:
        return (), f"{larger} has more than {_MOST_BITS} bits and was not tried; give smaller sizes"
    try:
        probe = probed(packer, larger, kind, width)
    except Exception as error:
        return (), f"the packer refuses {larger} ({error}); try sizes that it takes, with two or more of each block"
    if isinstance(probe, Disproof):
        return (), f"at {larger} it is no permutation of bits: {probe.reason}"
    second = found_order(probe.places, larger, width)
    if isinstance(second, str):
        return (), f"at {larger} {second}"
    if found is not None and _grows_to(found, second, len(sizes)):
        return (larger,), None
    return (), f"at {larger} it is {second.text}: small sizes hide parts, so discover it with those"


def _grows_to(one: BitOrder, two: BitOrder, rank: int) -> bool:
    """Whether a layout is another one at twice the sizes of an array; dimensions behind its own are bits."""
    if (two.order, two.stream, two.unit_order) != (one.order, one.stream, one.unit_order):
        return False
    ratios = [[b / a for a, b in zip(*parts, strict=True)] for parts in zip(one.split, two.split, strict=True)]
    return all(sorted(ratio) == [1] * (len(ratio) - 1) + [2 if d < rank else 1] for d, ratio in enumerate(ratios))
