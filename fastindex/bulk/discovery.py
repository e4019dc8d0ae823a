"""Find the layout that a packer writes by what it does to code words, and find the first wrong slot of a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.bulk.indices import linear_index, multi_index
from fastindex.bulk.relayouts import pack
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.interop.host_arrays import host_array
from fastindex.patterns.bit_orders import BitOrder, found_order
from fastindex.shapes.shape import Shape, as_shape

Bits = NDArray[np.uint8]
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
        The proof that it is no permutation of bits: one bit of the result, and inputs that disprove it.
    places : int64 array
        The source bit of each bit of the result, -1 for padding.
    confirmed : tuple of tuples of int
        Other sizes for which the layout was found to hold.
    stream : int or None
        A dimension whose codes, bit after bit, are one row of bits, because codes lie across words: `layout` and
        `split` count that dimension in bits.
    unit_order : tuple of int
        Where bit i of a unit of so many bits lies, if the most minor ones are in no order of digits, as with the first
        code in the high half of a byte. `layout` says where all bits would be if they were in order in their units.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> found = fi.discover(lambda codes: codes.reshape(4, 2, 4).transpose(1, 0, 2), (4, 8), np.uint8)
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


def discover(packer: Callable[[Any], Any], shape: Sequence[int], dtype: Any, bits: int | None = None) -> Discovery:
    """Find out which layout a packer writes, or prove that it is no permutation of bits.

    The packer is called about ``2 log2(bits of the array)`` times with code words: once for each bit of the number of
    a source bit, and with all inverted. Where the layout is found, a second size, twice as large in each dimension, is
    tried.

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
    >>> fi.discover(pairs, (4, 8), np.uint8, bits=4).layout
    'u4[4,8]{1,0:E(4)}'
    >>> high_first = fi.discover(lambda codes: codes[:, 0::2] << 4 | codes[:, 1::2], (4, 8), np.uint8, bits=4)
    >>> high_first.layout, high_first.unit_order
    ('u4[4,8]{1,0:E(4)}', (4, 5, 6, 7, 0, 1, 2, 3))
    >>> print(fi.discover(lambda codes: codes + 1, (2, 2), np.uint8).reason)
    bit 1 of byte 0 of the result is no bit of the input: with all bits 0 it is 0, with all bits 1 it is 0, and no \
single bit does that for the words in between
    """
    sizes = tuple(int(size) for size in shape)
    kind = np.dtype(dtype)
    if kind.kind not in "iub":
        raise ArgumentTypeError(f"codes are integers, got dtype {kind}")
    width = 8 * kind.itemsize if bits is None else int(bits)
    if not 1 <= width <= 8 * kind.itemsize:
        raise FastIndexError(f"bits is from 1 to {8 * kind.itemsize} for {kind}, got {bits!r}")
    total = math.prod(sizes) * width
    if not 0 < total <= _MOST_BITS:
        raise FastIndexError(
            f"{sizes} has {total} bits; give an array of 1 to {_MOST_BITS} bits: small ones show the layout"
        )
    probed = _probed(packer, sizes, kind, width)
    if isinstance(probed, str):
        return Discovery(reason=probed)
    places, inverted = probed
    flipped = _flipped(places, inverted, width)
    if isinstance(flipped, str):
        return Discovery(reason=flipped, places=places)
    padding = int((places < 0).sum())
    found = found_order(places, sizes, width)
    if isinstance(found, str):
        return Discovery(flipped_bits=flipped, padding=padding, reason=found, places=places)
    confirmed = _confirmed(packer, found, sizes, kind, width)
    of_words = found.stream, found.unit_order
    return Discovery(found.text, found.split, found.order, flipped, padding, None, places, confirmed, *of_words)


def _probed(
    packer: Callable[[Any], Any], sizes: tuple[int, ...], kind: np.dtype[Any], width: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | str:
    """Return the source bit of each bit of the result, and whether it is inverted; or the proof that there is none."""
    total = math.prod(sizes) * width
    numbers = np.arange(1, total + 1)
    steps = int(total).bit_length()

    def run(word: NDArray[Any]) -> Bits:
        weights = (1 << np.arange(width, dtype=np.uint64)).astype(np.uint64)
        codes = (word.reshape(-1, width).astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64)
        array = codes.astype(f"u{kind.itemsize}").view(kind).reshape(sizes)
        result = np.ascontiguousarray(host_array(packer(array)))
        return np.unpackbits(result.reshape(-1).view(np.uint8), bitorder="little")

    zeros, ones = run(np.zeros(total, np.uint8)), run(np.ones(total, np.uint8))
    plain = [run((numbers >> step & 1).astype(np.uint8)) for step in range(steps)]
    turned = [run(1 - (numbers >> step & 1).astype(np.uint8)) for step in range(steps)]
    if any(one.shape != zeros.shape for one in (ones, *plain, *turned)):
        return "the size of the result depends on what the array holds"
    inverted = (zeros == 1) & (ones == 0)
    constant = zeros == ones
    found = np.zeros(len(zeros), np.int64)
    for step, (one, other) in enumerate(zip(plain, turned, strict=True)):
        found |= (one ^ inverted).astype(np.int64) << step
        wrong = np.flatnonzero(np.where(constant, (one != zeros) | (other != zeros), one == other))
        if len(wrong):
            return _disproved(int(wrong[0]), zeros, ones)
    beyond = np.flatnonzero(~constant & ((found < 1) | (found > total)))
    if len(beyond):
        return _disproved(int(beyond[0]), zeros, ones)
    places = np.where(constant, -1, found - 1)
    counts = np.bincount(places[places >= 0], minlength=total)
    if (counts != 1).any():
        at = int(np.flatnonzero(counts != 1)[0])
        index = tuple(int(i) for i in np.unravel_index(at // width, sizes))
        how = "is lost" if counts[at] == 0 else f"is in the result {counts[at]} times"
        return f"bit {at % width} of the element at {index} {how}"
    return places, inverted


def _disproved(at: int, zeros: Bits, ones: Bits) -> str:
    return (
        f"bit {at % 8} of byte {at // 8} of the result is no bit of the input: with all bits 0 it is {zeros[at]}, "
        f"with all bits 1 it is {ones[at]}, and no single bit does that for the words in between"
    )


def _flipped(places: NDArray[np.int64], inverted: NDArray[np.bool_], width: int) -> int | str:
    """Return the bits of a code that are stored inverted; they are the same in all."""
    flipped = 0
    for bit in range(width):
        of_bit = inverted[(places >= 0) & (places % width == bit)]
        if of_bit.any() != of_bit.all():
            return f"bit {bit} of some codes is inverted, of others it is not: that depends on the place"
        flipped |= int(of_bit.any()) << bit
    return flipped


def _confirmed(
    packer: Callable[[Any], Any], found: BitOrder, sizes: tuple[int, ...], kind: np.dtype[Any], width: int
) -> tuple[tuple[int, ...], ...]:
    """Try sizes twice as large, of which the outermost parts of the split have twice as much."""
    larger = tuple(2 * size for size in sizes)
    if math.prod(larger) * width > _MOST_BITS:
        return ()
    try:
        probed = _probed(packer, larger, kind, width)
    except Exception:
        # It may refuse them.
        return ()
    if isinstance(probed, str):
        return ()
    second = found_order(probed[0], larger, width)
    if isinstance(second, str):
        return ()
    same = (second.order, second.stream, second.unit_order) == (found.order, found.stream, found.unit_order)
    same = same and all(a[1:] == b[1:] for a, b in zip(second.split, found.split, strict=True))
    return (larger,) if same else ()


@dataclass(frozen=True)
class WrongSlot:
    """The first slot of a buffer that does not hold what it should.

    Attributes
    ----------
    index : tuple of int
        The element that the slot is for.
    found : tuple of int or None
        The element whose value is there, if only one has it.
    slot, byte, bit : int
        Where: the slot, its first byte, and the first bit within that byte.
    expected, got : number
    """

    index: tuple[int, ...]
    found: tuple[int, ...] | None
    slot: int
    byte: int
    bit: int
    expected: Any
    got: Any

    def __str__(self) -> str:
        other = f", which is the element at {self.found}" if self.found is not None else ""
        return (
            f"slot {self.slot} (byte {self.byte}, bit {self.bit}) is for the element at {self.index}, {self.expected}; "
            f"it holds {self.got}{other}"
        )


def check(before: Any, after: Any, layout: Shape | str) -> WrongSlot | None:
    """Return the first slot of a buffer that does not hold its element, or None; padding is never compared.

    Parameters
    ----------
    before : array
        The logical array.
    after : array or bytes
        The physical buffer that is to hold it.
    layout : Shape or str
        The array and its layout.

    Returns
    -------
    WrongSlot or None

    Raises
    ------
    FastIndexError
        An array of other dimensions, or a buffer of another size.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    >>> fi.check(array, fi.pack(array, "u8[2,3]{0,1}"), "u8[2,3]{0,1}") is None
    True
    >>> print(fi.check(array, array.tobytes(), "u8[2,3]{0,1}"))
    slot 1 (byte 1, bit 0) is for the element at (1, 0), 3; it holds 1, which is the element at (0, 1)
    """
    shape = as_shape(layout)
    values = host_array(before)
    wanted = np.ascontiguousarray(pack(values, shape)).reshape(-1).view(np.uint8)
    given = np.frombuffer(after, np.uint8) if isinstance(after, bytes | bytearray | memoryview) else host_array(after)
    got = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
    if got.nbytes != wanted.nbytes:
        raise FastIndexError(f"a buffer of {shape.cut_text()} takes {wanted.nbytes} bytes, got {got.nbytes}")
    for slot in _different_slots(wanted, got, shape):
        index = multi_index(shape, np.array([slot]), padding="mark")
        # A scalar has no coordinate that could be marked.
        if int(index[0][0]) < 0 if index else slot != int(linear_index(shape, ())):
            continue
        place = tuple(int(one[0]) for one in index)
        first = slot * shape.element_bits
        values_there = [_value_at(buffer, first, shape) for buffer in (wanted, got)]
        same = np.argwhere(values == values_there[1]) if values.dtype.kind in "biuf" else np.empty((0, 0))
        found = tuple(int(i) for i in same[0]) if len(same) == 1 else None
        return WrongSlot(place, found, int(slot), first // 8, first % 8, values_there[0], values_there[1])
    return None


def _different_slots(wanted: Bits, got: Bits, shape: Shape) -> Any:
    """Yield the slots that differ, in order; a step at a time, since most may be padding."""
    per = max(shape.element_bits // 8, 1)
    for begin in range(0, len(wanted), per << 16):
        part = slice(begin, begin + (per << 16))
        for byte in np.flatnonzero(wanted[part] != got[part]) + begin:
            if shape.element_bits >= 8:
                if byte % per == 0 or not (wanted[byte // per * per : byte] != got[byte // per * per : byte]).any():
                    yield int(byte) // per
                continue
            changed = int(wanted[byte] ^ got[byte])
            for low in range(0, 8, shape.element_bits):
                slot = (int(byte) * 8 + low) // shape.element_bits
                if changed >> low & (1 << shape.element_bits) - 1 and slot < shape.slot_count:
                    yield slot


def _value_at(buffer: Bits, first: int, shape: Shape) -> Any:
    if shape.element_bits < 8:
        return int(buffer[first // 8]) >> first % 8 & (1 << shape.element_bits) - 1
    dtype = shape.element_type.numpy_dtype
    return buffer[first // 8 : first // 8 + dtype.itemsize].view(dtype)[0].item()
