"""Where the elements of NumPy arrays are, at the least cost: a small call spends its time on this."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from fastindex.kernels import plain_arrays


def _slow_address(array: NDArray[Any]) -> int:
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def _fast_address(array: NDArray[Any]) -> int:
    # The address is the first field of NumPy's array object, behind what every object has; seven times faster.
    return ctypes.c_ssize_t.from_address(id(array) + object.__basicsize__).value


def _choose_address() -> Callable[[NDArray[Any]], int]:
    probes: list[NDArray[Any]] = [np.empty(3), np.empty((2, 5), np.int8)[1:, ::2]]
    fits = ctypes.sizeof(ctypes.c_ssize_t) == ctypes.sizeof(ctypes.c_void_p)
    if fits and all(_fast_address(probe) == _slow_address(probe) for probe in probes):
        return _fast_address
    return _slow_address


#: Give the address of the first element of an array.
address_of = _choose_address()

PlainAddresses = Callable[[int, int, NDArray[np.int64]], tuple[int, int]]


def _never_plain(source: int, target: int, expected: NDArray[np.int64]) -> tuple[int, int]:
    return 0, 0


#: What `plain_pair` gives where both arrays always have to be looked at one by one.
NEVER_PLAIN: tuple[PlainAddresses, NDArray[np.int64]] = (_never_plain, np.empty(0, np.int64))


def plain_pair(
    source: tuple[np.dtype[Any], int], target: tuple[np.dtype[Any], int]
) -> tuple[PlainAddresses, NDArray[np.int64]]:
    """Make the test for the two arrays that a call usually gets: contiguous, of one dimension, apart in memory.

    Parameters
    ----------
    source, target : (dtype, int)
        What they hold, and how many elements. The caller keeps the dtypes alive.

    Returns
    -------
    function, int64 array
        The function takes the ``id`` of two objects and the array, and gives the addresses of the elements; twice 0
        where it cannot tell.
    """
    if not _fields_are_known():
        return NEVER_PLAIN
    sizes = ((id(dtype), count, count * dtype.itemsize) for dtype, count in (source, target))
    numbers = [object.__basicsize__, id(np.ndarray), *(number for size in sizes for number in size)]
    return _plain_addresses(), np.array(numbers, np.int64)


@cache
def _plain_addresses() -> PlainAddresses:
    found: PlainAddresses = plain_arrays.plain_addresses.compile((types.int64, types.int64, types.int64[::1]))
    return found


@cache
def _fields_are_known() -> bool:
    """Whether the fields of array objects lie where `plain_addresses` reads them."""
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
    known = array.flags.c_contiguous * plain_arrays.CONTIGUOUS + array.flags.writeable * plain_arrays.WRITEABLE
    return (
        ctypes.c_ssize_t.from_address(sizes).value == array.shape[0]
        and flags & (plain_arrays.CONTIGUOUS | plain_arrays.WRITEABLE) == known
    )
