"""Whether the compiler fits into the addresses that a process may have: where it does not, LLVM ends the process."""

from __future__ import annotations

import sys

if sys.platform.startswith("linux"):
    import resource

#: What Numba 0.68 and LLVM take on Linux before the first kernel is 184 MiB.
TO_LOAD_BYTES = 192 << 20
#: Room for compiling all kernels; with 390 MiB in all, LLVM ended the process.
TO_COMPILE_BYTES = 512 << 20


def check_address_space(needed: int) -> None:
    """Raise where ``ulimit -v`` leaves less than some bytes.

    Parameters
    ----------
    needed : int

    Raises
    ------
    MemoryError

    Examples
    --------
    >>> check_address_space(1)
    """
    left = _bytes_left()
    if left is not None and left < needed:
        raise MemoryError(
            f"the compiler of kernels takes {needed >> 20} MiB of addresses, and the limit of this process (ulimit -v) "
            f"leaves {max(left, 0) >> 20} MiB"
        )


def _bytes_left() -> int | None:
    """Return how many bytes may still be mapped; None where there is no limit, or nobody says what is mapped."""
    if not sys.platform.startswith("linux"):
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    with open("/proc/self/statm") as file:
        return limit - int(file.read().split()[0]) * resource.getpagesize()
