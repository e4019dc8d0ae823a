"""Addresses of NumPy arrays at the least cost, on which a small call spends its time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.runtime.numbers import CONTIGUOUS, WRITEABLE, PlainPair


def _slow_address(array: NDArray[Any]) -> int:
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def _fast_address(array: NDArray[Any]) -> int:
    # The data pointer is the first field of NumPy's array object, after the object header; seven times faster.
    return ctypes.c_ssize_t.from_address(id(array) + object.__basicsize__).value


def _choose_address() -> Callable[[NDArray[Any]], int]:
    probes: list[NDArray[Any]] = [np.empty(3), np.empty((2, 5), np.int8)[1:, ::2]]
    fits = ctypes.sizeof(ctypes.c_ssize_t) == ctypes.sizeof(ctypes.c_void_p)
    if fits and all(_fast_address(probe) == _slow_address(probe) for probe in probes):
        return _fast_address
    return _slow_address


#: Returns the address of the first element of an array.
address_of = _choose_address()


def expected_pair(source: tuple[np.dtype[Any], int], target: tuple[np.dtype[Any], int], multiple: int = 1) -> PlainPair:
    """Return the record by which `plain_addresses` recognises the two arrays of a typical call.

    Parameters
    ----------
    source, target : (dtype, int)
        The dtype and the number of elements of each array. The caller keeps the dtypes alive.
    multiple : int
        A power of two: the required alignment of the target's address.
    """
    # No object is of type 0: then every pair takes the slow path.
    array_type = id(np.ndarray) if _fields_are_known() else 0
    (read, read_count), (written, written_count) = source, target
    return PlainPair(
        fields=object.__basicsize__,
        array_type=array_type,
        source_dtype=id(read),
        source_count=read_count,
        source_bytes=read_count * read.itemsize,
        target_dtype=id(written),
        target_count=written_count,
        target_bytes=written_count * written.itemsize,
        target_offset_bits=multiple - 1,
    )


@cache
def _fields_are_known() -> bool:
    """Whether the fields of array objects are at the offsets at which `plain_addresses` reads them."""
    if address_of is not _fast_address:
        return False
    read_only = np.empty(5, np.int16)
    read_only.flags.writeable = False
    probes: list[NDArray[Any]] = [np.empty(3), np.empty((7, 2), np.int8)[:, 1], np.empty((2, 4)), read_only]
    return all(map(_has_known_fields, probes))


def _has_known_fields(array: NDArray[Any]) -> bool:
    begin = id(array) + object.__basicsize__
    kind, _, rank, sizes, _, _, dtype, flags = (ctypes.c_ssize_t * 8).from_address(begin - 8)
    if (kind, rank & 0xFFFFFFFF, dtype) != (id(np.ndarray), array.ndim, id(array.dtype)):
        return False
    known = array.flags.c_contiguous * CONTIGUOUS + array.flags.writeable * WRITEABLE
    return ctypes.c_ssize_t.from_address(sizes).value == array.shape[0] and flags & (CONTIGUOUS | WRITEABLE) == known
