"""Memory between pages that may not be touched, on POSIX systems."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE


def guarded_pages(nbytes: int) -> NDArray[np.uint8]:
    """Return whole pages of at least `nbytes`; an access to the page before or after them ends the process."""
    inside = -(-max(nbytes, 1) // PAGE) * PAGE
    pages = np.frombuffer(mmap.mmap(-1, inside + 2 * PAGE), np.uint8)
    address = pages.__array_interface__["data"][0]
    library = ctypes.CDLL(None, use_errno=True)
    for guard in (address, address + PAGE + inside):
        if library.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return pages[PAGE : PAGE + inside]
