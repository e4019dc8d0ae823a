"""Which arrays lie in memory maps of files, and how their pages leave the memory of this process.

The pages of a shared map are the system's cache of the file: dropping them loses nothing, and the next access loads
them again. The pages of all other memory are the only place where its content is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.addresses import address_of
from fastindex.arrays.arrays import Array

_PAGES_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class Mapping:
    """The memory of an array, or of a part of it, as the system has it.

    Attributes
    ----------
    begin, end : int
        Addresses, at the edges of pages.
    is_shared : bool
        Whether the pages are those of a file, or of memory that has no name; writing to them changes it.
    device, inode : str, int
        The file; inode 0 for memory that is not of a file.
    offset : int
        Where in the file it begins.
    """

    begin: int
    end: int
    is_shared: bool
    device: str
    inode: int
    offset: int


def mappings_of(array: Array) -> list[Mapping] | None:
    """Return where the memory of an array comes from, in the order of addresses; None where the system does not say.

    Examples
    --------
    >>> import numpy as np
    >>> from fastindex.arrays.arrays import described
    >>> found = mappings_of(described(np.zeros(3)))
    >>> found is None or [mapping.is_shared for mapping in found]
    [False]
    """
    begin, end = _pages(*array.extent)
    try:
        with open("/proc/self/maps", "rb") as file:
            lines = file.read().decode("ascii", "replace").splitlines()
    except OSError:
        return None
    found, at = [], begin
    for line in lines:
        addresses, access, offset, device, inode = line.split(maxsplit=5)[:5]
        first, last = (int(address, 16) for address in addresses.split("-"))
        if first <= at < min(last, end):
            inside = Mapping(at, min(last, end), access[3] == "s", device, int(inode), int(offset, 16) + at - first)
            found.append(inside)
            at = inside.end
    return found if at >= end else None


def _pages(begin: int, end: int) -> tuple[int, int]:
    """Return the edges of the pages that have some of the addresses."""
    return begin & -mmap.PAGESIZE, end + -end % mmap.PAGESIZE


def bytes_to_come(array: Array, mappings: list[Mapping] | None, is_written: bool) -> int:
    """Return by how much the resident memory of this process may grow if all of an array is read, or written.

    Shared maps count nothing: their pages can be dropped. So does memory that only this process has and that is read:
    what it holds has been written before, so it is resident.
    """
    if mappings is None:
        begin, end = array.extent
        return end - begin
    count = 0
    for mapping in mappings:
        if mapping.is_shared:
            continue
        if mapping.inode:
            # A private map of a file: pages that were read stay, and which were written is not known.
            count += mapping.end - mapping.begin
        elif is_written:
            count += _absent_bytes(mapping)
    return count


def _absent_bytes(mapping: Mapping) -> int:
    """Return how many bytes of memory that is not of a file have no pages yet."""
    size = mapping.end - mapping.begin
    if _library is None:
        return size
    there = 0
    for begin in range(mapping.begin, mapping.end, _PAGES_AT_ONCE * mmap.PAGESIZE):
        length = min(_PAGES_AT_ONCE * mmap.PAGESIZE, mapping.end - begin)
        pages = np.zeros(length // mmap.PAGESIZE, np.uint8)
        if _library.mincore(begin, length, address_of(pages)) == 0:
            there += int(np.count_nonzero(pages & 1)) * mmap.PAGESIZE
    return size - there


def drop_pages(mappings: list[Mapping] | None, begin: int, end: int) -> None:
    """Drop the pages between two addresses that lie in shared maps; the next access loads them again."""
    if _library is None:
        return
    begin, end = _pages(begin, end)
    for mapping in mappings or ():
        first, last = max(begin, mapping.begin), min(end, mapping.end)
        if mapping.is_shared and first < last:
            _library.madvise(first, last - first, mmap.MADV_DONTNEED)


def share_bytes(some: list[Mapping] | None, others: list[Mapping] | None) -> bool:
    """Whether two arrays have bytes of a file in common, through one map or two."""
    return any(
        one.is_shared
        and other.is_shared
        and (one.device, one.inode) == (other.device, other.inode)
        and one.offset < other.offset + other.end - other.begin
        and other.offset < one.offset + one.end - one.begin
        for one in some or ()
        for other in others or ()
    )


def may_share_file(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays may be maps of one file, where the system does not say what memory is of.

    Maps that NumPy has made know the name of their file. Of others nothing is known, so two of these may share one.

    Examples
    --------
    >>> may_share_file(np.zeros(3), np.zeros(3))
    False
    """
    names = [_mapped_file(array) for array in (one, other)]
    if None in names:
        return False
    return "" in names or os.path.samefile(*(name for name in names if name))


def _mapped_file(array: Any) -> str | None:
    """Return the file that an array is a map of: empty if it has no name, None if it is no map."""
    while array is not None:
        name = getattr(array, "filename", None)
        if isinstance(array, np.memmap) and name is not None:
            return str(os.fspath(name))
        if isinstance(array, mmap.mmap):
            return ""
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return None


def _loaded() -> Any:
    """Return the C library, or None where it cannot do this."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return None
    library = ctypes.CDLL(None)
    if not (hasattr(library, "madvise") and hasattr(library, "mincore")):
        return None
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return library


_library = _loaded()
