"""Memory maps of files: find those of an array, drop their resident pages, and turn faults into errors.

The pages of a shared map are the system's page cache of the file: dropping them loses nothing, and the next access
loads them again. The pages of all other memory hold the only copy of their content.

An access to a page of a map beyond the end of its file, or that cannot be read, raises SIGBUS. While maps are watched,
a handler maps empty memory over missing pages, so that loops over them can finish; then an error is raised.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arrays.arrays import Array, address_of, described

_PAGES_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class Mapping:
    """A system mapping that holds an array or a part of it, restricted to the array's pages.

    Attributes
    ----------
    begin, end : int
        Addresses, on page boundaries.
    is_shared : bool
        Whether the pages are shared, with a file or with anonymous shared memory; writes change it.
    device, inode : str, int
        The file; inode 0 for memory without a file.
    offset : int
        Offset in the file.
    """

    begin: int
    end: int
    is_shared: bool
    device: str
    inode: int
    offset: int


def mappings_of(array: Array) -> list[Mapping] | None:
    """Return the mappings of the memory of an array, by address; None where the system does not tell.

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
    """Round an address range to page boundaries, outwards."""
    return begin & -mmap.PAGESIZE, end + -end % mmap.PAGESIZE


def bytes_to_come(array: Array, mappings: list[Mapping] | None, is_written: bool) -> int:
    """Return by how many bytes the resident memory of this process may grow if a whole array is read, or written.

    Shared maps do not count: their pages can be dropped. Private memory that is only read does not count either: its
    content was written before, so it is resident.
    """
    if mappings is None:
        begin, end = array.extent
        return end - begin
    count = 0
    for mapping in mappings:
        if mapping.is_shared:
            continue
        if mapping.inode:
            # A private map of a file: read pages stay resident, and it is unknown which were written.
            count += mapping.end - mapping.begin
        elif is_written:
            count += _absent_bytes(mapping)
    return count


def _absent_bytes(mapping: Mapping) -> int:
    """Return how many bytes of a mapping without a file have no resident pages yet."""
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
    """Drop the pages of shared maps between two addresses; the next access loads them again."""
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
    """Whether two arrays may be maps of one file, for systems that do not list mappings.

    Maps made by NumPy have the name of their file. Other maps may share a file with any map.

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
    """Return the file name of a mapped array: empty if unknown, None if the array is not a map."""
    while array is not None:
        name = getattr(array, "filename", None)
        if isinstance(array, np.memmap) and name is not None:
            return str(os.fspath(name))
        if isinstance(array, mmap.mmap):
            return ""
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return None


def _loaded() -> Any:
    """Return the C library, or None without ``madvise`` and ``mincore``."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return None
    library = ctypes.CDLL(None)
    if not (hasattr(library, "madvise") and hasattr(library, "mincore")):
        return None
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return library


_library = _loaded()


# Files that shrink or cannot be read

_WITH_DETAILS = 4  # SA_SIGINFO
_FIXED, _ANONYMOUS, _PRIVATE = 0x10, 0x20, 0x02
# Offset of the address in `siginfo_t`, on every 64-bit Linux.
_ADDRESS_AT = 16
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """A ``struct sigaction`` of Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@dataclass(slots=True)
class Watched:
    """A watched address range of a map.

    Attributes
    ----------
    begin, end : int
        The addresses.
    error : OSError
        The error to raise if a page is missing.
    has_failed : bool
        Whether a missing page has been accessed.
    """

    begin: int
    end: int
    error: OSError
    has_failed: bool = False

    def check(self) -> None:
        """Raise the error if a missing page has been accessed: further work is useless."""
        if self.has_failed:
            raise self.error


_lock = threading.Lock()
_watched: list[Watched] = []
_before: _Action | None = None


@contextlib.contextmanager
def faults_raised(data: NDArray[Any], error: OSError) -> Iterator[Watched]:
    """Raise `error` at the end of the block if a missing page of a memory map was accessed.

    Parameters
    ----------
    data : array
        The map, or a part of it; memory after the part is not watched.
    error : OSError

    Yields
    ------
    Watched
        Its `check` raises the error earlier.

    Raises
    ------
    OSError
        `error`.
    """
    begin, end = described(data).extent
    watched = Watched(begin, end + -end % mmap.PAGESIZE, error)
    if data.nbytes == 0 or not sys.platform.startswith("linux"):
        yield watched
        return
    _add(watched)
    try:
        yield watched
    finally:
        _remove(watched)
        if watched.has_failed:
            raise watched.error from None


def _add(watched: Watched) -> None:
    global _before
    with _lock:
        _watched.append(watched)
        if _before is None:
            before = _Action()
            action = _Action(handler=ctypes.cast(_handler, ctypes.c_void_p).value, flags=_WITH_DETAILS)
            _held_library.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(before))
            _before = before


def _remove(watched: Watched) -> None:
    global _before
    with _lock:
        _watched.remove(watched)
        if not _watched and _before is not None:
            _held_library.sigaction(signal.SIGBUS, ctypes.byref(_before), None)
            _before = None


def _handle(number: int, details: int, context: int) -> None:
    """Handle SIGBUS, in the thread that accessed the memory, possibly inside a native loop."""
    has_memory = False
    try:
        has_memory = _put_memory(ctypes.c_void_p.from_address(details + _ADDRESS_AT).value or 0)
    finally:
        if not has_memory:
            # Not in a watched map: restore the previous handler; on return the access faults again.
            before = _before if _before is not None else _Action()
            _held_library.sigaction(signal.SIGBUS, ctypes.byref(before), None)


def _put_memory(address: int) -> bool:
    """Map empty memory over the pages from an address to the end of its watched map; return whether it worked."""
    for watched in [*_watched]:
        if watched.begin <= address < watched.end:
            begin = address & -mmap.PAGESIZE
            flags = _PRIVATE | _ANONYMOUS | _FIXED
            access = mmap.PROT_READ | mmap.PROT_WRITE
            watched.has_failed = True
            return bool(_held_library.mmap(begin, watched.end - begin, access, flags, -1, 0) == begin)
    return False


# PyDLL holds the GIL: otherwise another thread could run between the fault and its repair.
_held_library: Any = None
if sys.platform.startswith("linux"):
    _held_library = ctypes.PyDLL(None)
    _held_library.mmap.restype = ctypes.c_void_p
    _held_library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_handler = _Handler(_handle)
