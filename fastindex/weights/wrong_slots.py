"""Find the first slot of a buffer that does not hold its element, in a layout or in a named format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.segments import Box, box_shape, slab_grid, slab_order
from fastindex.arrays.buffers import aligned_bytes, logical_array
from fastindex.core.foreign_arrays import host_array
from fastindex.core.shape import Shape, as_shape
from fastindex.core.sizes import check_movable
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.index.indices import multi_index
from fastindex.moving.relayout_calls import pack, unpack
from fastindex.patterns.known_names import PLAIN, known_name, takes_any_width
from fastindex.weights.repack_arguments import (
    checked_bits,
    checked_parameters,
    checked_sizes,
    element_bits,
    given_array,
)
from fastindex.weights.repack_plans import repack_plan
from fastindex.weights.repacking import repack

Bytes = NDArray[np.uint8]

#: Bytes packed and compared at a time: few enough to stay in the cache, enough to make calls rare.
_PART_BYTES = 2 << 20


@dataclass(frozen=True)
class WrongSlot:
    """The first slot of a buffer that does not hold its element.

    Attributes
    ----------
    index : tuple of int
        The element that the slot is for.
    found : tuple of int or None
        The element whose value is there, if only one has it.
    slot, byte, bit : int
        Where: the slot, its first byte, and the first bit within that byte.
    expected, got : number

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> wrong = fi.weights.check(np.array([[1, 2], [3, 4]], np.uint8), bytes([1, 2, 3, 4]), "u8[2,2]{0,1}")
    >>> wrong.slot, wrong.index, wrong.found
    (1, (1, 0), (0, 1))
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


def check(
    before: Any,
    after: Any,
    layout: Shape | str,
    *,
    shape: Sequence[int] | None = None,
    bits: int | None = None,
    **parameters: Any,
) -> WrongSlot | None:
    """Return the first slot of a buffer that does not hold its element, or None; padding is never compared.

    Elements are compared bit by bit, a few MiB at a time, so little memory is used.

    Parameters
    ----------
    before : array
        The logical array.
    after : array or bytes
        The physical buffer to check: as many bytes as the layout takes, of any dtype and dimensions, in C order.
    layout : Shape or str
        The array and its layout; or the name of a format that `formats` lists, whose check takes several times the
        memory of the array.
    shape, bits, **parameters
        Of a named format, as for `repack`; `shape` is by default that of the array.

    Returns
    -------
    WrongSlot or None

    Raises
    ------
    FastIndexError
        An array of other dimensions, or a buffer of another size.
    ArgumentTypeError
        An array of a type that `pack` does not accept for the layout; or a buffer of no numbers.

    Examples
    --------
    >>> import fastindex as fi, numpy as np
    >>> array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    >>> fi.weights.check(array, fi.pack(array, "u8[2,3]{0,1}"), "u8[2,3]{0,1}") is None
    True
    >>> print(fi.weights.check(array, array.tobytes(), "u8[2,3]{0,1}"))
    slot 1 (byte 1, bit 0) is for the element at (1, 0), 3; it holds 1, which is the element at (0, 1)
    >>> codes = np.arange(16, dtype=np.uint8).reshape(2, 8)
    >>> print(fi.weights.check(codes, fi.weights.repack(codes, "plain", "nvfp4"), "awq", bits=4))
    slot 1 (byte 0, bit 4) is for the element at (0, 2), 2; it holds 1, which is the element at (0, 1)
    """
    if isinstance(layout, str) and "[" not in layout:
        return _checked_format(before, after, layout, shape, bits, parameters)
    if shape is not None or bits is not None or parameters:
        raise FastIndexError("shape, bits and parameters are of named formats; a layout says them itself")
    return _checked_layout(before, after, as_shape(layout))


def _checked_format(
    before: Any, after: Any, name: str, shape: Sequence[int] | None, bits: int | None, parameters: dict[str, Any]
) -> WrongSlot | None:
    name = known_name(name)
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
    # Pack a mask of all bits of wrong codes: its first set bit is the first one in memory.
    every = np.where(differ, np.uint64((1 << width) - 1), np.uint64(0)).astype(unsigned)
    nothing = np.zeros(sizes, unsigned)
    repack(nothing, PLAIN, name, out=expected, **keys)
    marked = repack(every, PLAIN, name, **keys) ^ expected
    byte = int(np.argmax(marked != 0))
    bit = int(np.argmax(np.unpackbits(marked[byte : byte + 1], bitorder="little")))
    # Unpacked, this single bit shows which code it belongs to.
    expected[byte] ^= np.uint8(1 << bit)
    index = _index_of(repack(expected, name, PLAIN, out=nothing, **keys) != 0)
    same = ~_differ(codes, np.full_like(codes, held[index]))
    found = _index_of(same) if np.count_nonzero(same) == 1 else None
    return WrongSlot(index, found, (8 * byte + bit) // width, byte, bit, codes[index].item(), held[index].item())


def _index_of(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the index of the first element that is true."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _checked_layout(before: Any, after: Any, shape: Shape) -> WrongSlot | None:
    check_movable(shape)
    values = logical_array(before, shape, "same_kind")
    buffer = _bytes_of(after)
    if buffer.nbytes != shape.nbytes:
        raise FastIndexError(f"a buffer of {shape.cut_text()} takes {shape.nbytes} bytes, got {buffer.nbytes}")
    parts, at = _Parts(values, shape), 0
    for box in parts.boxes:
        part, packed = parts.packed(box)
        held = buffer[at : at + part.nbytes]
        slot = None if _are_same(packed, held) else _first_difference(packed, held, part)
        if slot is not None:
            inside = [int(one[0]) for one in multi_index(part, np.array([slot]))]
            expected, got = (unpack(side, part)[tuple(inside)] for side in (packed, held))
            slot += at * 8 // shape.element_bits
            return _described(shape, slot, _whole_index(box, inside), expected, got, parts)
        at += part.nbytes
    return None


def _described(shape: Shape, slot: int, index: tuple[int, ...], expected: Any, got: Any, parts: _Parts) -> WrongSlot:
    byte, bit = divmod(slot * shape.element_bits, 8)
    return WrongSlot(index, parts.only_index(got), slot, byte, bit, expected.item(), got.item())


def _bytes_of(after: Any) -> Bytes:
    if isinstance(after, memoryview) and not after.c_contiguous:
        after = after.tobytes()
    given = np.frombuffer(after, np.uint8) if isinstance(after, bytes | bytearray | memoryview) else host_array(after)
    if given.dtype.hasobject or given.dtype.kind in "SUMm":
        raise ArgumentTypeError(
            f"a buffer must be bytes or an array of numbers, got {type(after).__name__} of {given.dtype}"
        )
    return np.ascontiguousarray(given).reshape(-1).view(np.uint8)


class _Parts:
    """The parts of an array that fill its buffer one after the other, and scratch memory to pack one at a time."""

    def __init__(self, values: NDArray[Any], shape: Shape) -> None:
        self._values, self._shape = values, shape
        self._memory = aligned_bytes(0)
        self.boxes = list(slab_grid(shape, _PART_BYTES).boxes(slab_order(shape)))

    def packed(self, box: Box) -> tuple[Shape, Bytes]:
        """Pack a part, and return its shape and its buffer, which the next call overwrites."""
        part = box_shape(self._shape, box)
        if len(self._memory) < part.nbytes:
            self._memory = aligned_bytes(part.nbytes)
        memory = self._memory[: part.nbytes]
        # The ellipsis keeps a zero-dimensional array an array.
        place: tuple[Any, ...] = (*(slice(along.start, along.stop) for along in box), ...)
        pack(self._values[place], part, out=memory)
        return part, memory

    def only_index(self, value: Any) -> tuple[int, ...] | None:
        """Return the element that has a value, if only one has it."""
        found: list[tuple[int, ...]] = []
        for box in self.boxes:
            part, packed = self.packed(box)
            places = np.flatnonzero(~_differ(unpack(packed, part), np.full(part.dimensions, value)))
            found += [_whole_index(box, np.unravel_index(place, part.dimensions)) for place in places[:2]]
            if len(found) > 1:
                return None
        return found[0] if found else None


def _whole_index(box: Box, inside: Sequence[Any]) -> tuple[int, ...]:
    return tuple(along.start + int(i) for along, i in zip(box, inside, strict=True))


def _are_same(one: Bytes, other: Bytes) -> bool:
    """Whether two buffers are equal, compared eight bytes at a time."""
    end = len(one) // 8 * 8
    same = (one[:end].view(np.uint64) == other[:end].view(np.uint64)).all()
    return bool(same) and bool((one[end:] == other[end:]).all())


def _first_difference(one: Bytes, other: Bytes, shape: Shape) -> int | None:
    """Return the first slot whose elements differ; padding is ignored."""
    differ = _differ(unpack(one, shape), unpack(other, shape))
    if not differ.any():
        return None
    # In the order of slots, False for padding.
    return int(pack(differ, shape.with_element_type("pred"), False).argmax())


def _differ(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the mask of the elements whose bits differ."""
    width = min(one.itemsize, 8)
    words = [side.reshape(-1).view(f"u{width}").reshape(one.size, -1) for side in (one, other)]
    differ = words[0] != words[1]
    # Each element is one word or two.
    found: NDArray[np.bool_] = differ[:, 0]
    found |= differ[:, -1]
    return found.reshape(one.shape)
