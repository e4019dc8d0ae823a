"""A permutation of bits as a table, for packers whose order is not an order of digits, such as an XOR swizzle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.moving.relayout_calls import relayout

Table = NDArray[np.int64]
# Elements gathered at a time, of as many arrays of a batch: few enough for their temporaries to stay small.
_AT_ONCE = 1 << 22


class GatherPlan:
    """A move between plain codes and what a packer makes of them, by a table; made by `Discovery.plan`.

    Elements of the table are the largest that stay whole: up to 8 bytes, one code, or one bit. A table is for arrays of
    one shape, or batches of them.

    Attributes
    ----------
    shape : tuple of int
        Of the codes.
    bits : int
        Of a code.
    nbytes : int
        Of a packed array.
    unit_bits : int
        Bits of an element of the table.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> order = np.arange(16) ^ np.arange(16) // 4
    >>> found = fi.weights.discover(lambda codes: codes[order], (16,), np.uint8)
    >>> plan = found.plan()
    >>> plan(np.arange(16, dtype=np.uint8))
    array([ 0,  1,  2,  3,  5,  4,  7,  6, 10, 11,  8,  9, 15, 14, 13, 12],
          dtype=uint8)
    >>> plan.inverse(plan(np.arange(16, dtype=np.uint8)))[:4], plan.unit_bits
    (array([0, 1, 2, 3], dtype=uint8), 8)
    """

    def __init__(self, places: Table, shape: tuple[int, ...], bits: int, flipped_bits: int = 0) -> None:
        self.shape = shape
        self.bits = bits
        self.nbytes = len(places) // 8
        self._flipped = flipped_bits
        widths = [width for width in (64, 32, 16, 8) if bits % 8 == 0] + [bits] * (bits in (1, 2, 4))
        self.unit_bits, self._table = next(
            ((width, table) for width in widths if (table := in_units(places, width)) is not None), (1, places)
        )
        self._is_of_bits = self.unit_bits == 1 < bits
        total = math.prod(shape) * bits // self.unit_bits
        self._inverse = np.empty(total, np.int64)
        taken = np.flatnonzero(self._table >= 0)
        self._inverse[self._table[taken]] = taken

    def __repr__(self) -> str:
        return f"<GatherPlan {self.shape} of {self.bits} bits, a table of {len(self._table)} elements>"

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(f"u{max(self.bits // 8, 1)}")

    def __call__(self, codes: Any, out: Any = None) -> NDArray[Any]:
        """Pack an array of codes, or a batch of them.

        Parameters
        ----------
        codes : array
            Integers of the width of a code, one per byte if it is narrower; of `shape`, batch dimensions before it.
        out : array, optional
            Contiguous, of as many bytes as the result.

        Returns
        -------
        uint8 array
            In one dimension; padding is 0.

        Raises
        ------
        FastIndexError, ArgumentTypeError
        """
        array = np.asarray(codes)
        if array.dtype.kind not in "iub" or array.dtype.itemsize != self._dtype.itemsize:
            raise ArgumentTypeError(f"codes must be {self._dtype}, or signed, got dtype {array.dtype}")
        rank = len(self.shape)
        if array.shape[max(array.ndim - rank, 0) :] != self.shape:
            raise FastIndexError(
                f"the table is for {self.shape}, or a batch of these, got {array.shape}; discover the packer there"
            )
        count = math.prod(array.shape[: array.ndim - rank])
        flat = np.ascontiguousarray(array).view(self._dtype).reshape(count, -1)
        if self.bits < 8 and flat.size and int(flat.max()) >> self.bits:
            raise FastIndexError(
                f"codes of {self.bits} bits must be from 0 to {(1 << self.bits) - 1}, got {flat.max()}"
            )
        target = _output(out, count * self.nbytes, flat)
        for part, packed in self._parts(flat, target.reshape(count, -1)):
            packed[...] = self._packed(part)
        return target if out is None else out

    def inverse(self, buffer: Any, out: Any = None) -> NDArray[Any]:
        """Unpack a packed array, or a batch of them.

        Parameters
        ----------
        buffer : array or bytes
            Of `nbytes` bytes, or a multiple.
        out : array, optional
            Contiguous, of as many bytes as the codes.

        Returns
        -------
        array
            Of `shape`, with a batch dimension before it if there are several.

        Raises
        ------
        FastIndexError
        """
        data = np.ascontiguousarray(np.frombuffer(buffer, np.uint8) if isinstance(buffer, bytes) else buffer)
        data = data.reshape(-1).view(np.uint8)
        count = len(data) // max(self.nbytes, 1)
        if count * self.nbytes != len(data):
            raise FastIndexError(f"a packed array has {self.nbytes} bytes, the buffer {len(data)}")
        target = _output(out, count * math.prod(self.shape) * self._dtype.itemsize, data)
        codes = target.view(self._dtype).reshape(count, -1)
        for part, made in self._parts(data.reshape(count, -1), codes):
            made[...] = self._unpacked(part) ^ self._dtype.type(self._flipped)
        if out is not None:
            return out  # type: ignore[no-any-return]
        return codes.reshape(self.shape if count == 1 else (count, *self.shape))

    def _parts(self, source: NDArray[Any], target: NDArray[Any]) -> Any:
        step = max(_AT_ONCE // max(len(self._table), 1), 1)
        for begin in range(0, len(source), step):
            yield source[begin : begin + step], target[begin : begin + step]

    def _packed(self, codes: NDArray[Any]) -> NDArray[np.uint8]:
        if self._flipped:
            codes = codes ^ self._dtype.type(self._flipped)
        if self._is_of_bits:
            each = np.unpackbits(codes.view(np.uint8), axis=1, bitorder="little")
            codes = each.reshape(*codes.shape, -1)[:, :, : self.bits].reshape(len(codes), -1)
        elif self.unit_bits >= 8:
            codes = codes.view(f"u{self.unit_bits // 8}")
        taken = np.take(codes, self._table, axis=1, mode="clip")
        taken[:, self._table < 0] = 0
        if self.unit_bits >= 8:
            return taken.view(np.uint8)
        if self.unit_bits == 1:
            return np.packbits(taken, axis=1, bitorder="little")
        width = self.unit_bits
        packed = relayout(taken.reshape(-1), f"u{width}[{taken.size}]", f"u{width}[{taken.size}]{{0:E({width})}}")
        return packed.reshape(len(taken), -1)  # type: ignore[no-any-return]

    def _unpacked(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        width, count = self.unit_bits, len(data)
        if width >= 8:
            return np.take(data.view(f"u{width // 8}"), self._inverse, axis=1).view(self._dtype)
        if width == 1:
            each = np.take(np.unpackbits(data, axis=1, bitorder="little"), self._inverse, axis=1)
            if not self._is_of_bits:
                return each
            whole = np.zeros((count, math.prod(self.shape), 8 * self._dtype.itemsize), np.uint8)
            whole[:, :, : self.bits] = each.reshape(count, -1, self.bits)
            return np.packbits(whole.reshape(count, -1), axis=1, bitorder="little").view(self._dtype)
        number = data.size * 8 // width
        plain = relayout(data.reshape(-1), f"u{width}[{number}]{{0:E({width})}}", f"u{width}[{number}]")
        return np.take(plain.view(np.uint8).reshape(count, -1), self._inverse, axis=1)


def in_units(places: Table, width: int) -> Table | None:
    """Return a table of bits as one of aligned units of `width` bits; None if a unit does not stay whole.

    Examples
    --------
    >>> in_units(np.array([2, 3, -1, -1, 0, 1]), 2).tolist()
    [1, -1, 0]
    """
    if len(places) % width:
        return None
    units = places.reshape(-1, width)
    first = units[:, 0]
    padding = first < 0
    steps = np.where(padding[:, None], -1, first[:, None] + np.arange(width))
    if not np.array_equal(steps, units) or (first[~padding] % width).any():
        return None
    return np.where(padding, -1, first // width)


def _output(out: Any, nbytes: int, data: NDArray[Any]) -> NDArray[np.uint8]:
    if out is None:
        return np.empty(nbytes, np.uint8)
    if not isinstance(out, np.ndarray) or not out.flags.c_contiguous or not out.flags.writeable:
        raise ArgumentTypeError(f"out must be a contiguous NumPy array that can be written, got {type(out).__name__}")
    if out.nbytes != nbytes:
        raise FastIndexError(f"out must have {nbytes} bytes, it has {out.nbytes}")
    if np.may_share_memory(out, data):
        raise FastIndexError("out must not overlap the input")
    return out.reshape(-1).view(np.uint8)


def units_of(places: Table, sizes: Sequence[int], bits: int) -> tuple[int, Table]:
    """Return the largest unit, up to a code, in which a table of bits can be written, and that table."""
    total = math.prod(sizes) * bits
    for width in range(bits, 0, -1):
        if total % width == 0 and (table := in_units(places, width)) is not None:
            return width, table
    return 1, places
