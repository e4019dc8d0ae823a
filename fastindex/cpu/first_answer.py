"""Which way a question is answered: by NumPy at once, or by kernels, which take seconds to load or to compile.

While no kernel is loaded, small questions are answered by NumPy from the same lowered form, and what they have cost is
added up. Once that is as much as loading kernels would have been, kernels take over for good.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from importlib.util import find_spec

from fastindex.errors import UnsupportedError

#: Environment variable that leaves everything to NumPy, whatever its size.
DISABLE_VARIABLE = "FASTINDEX_DISABLE_JIT"

# Measured on an AMD EPYC (family 26), 2026-11-22: NumPy converts 2**18 indices in 5 to 13 ms and moves a mebibyte in
# 0.1 to 4 ms; a process that loads kernels from their cache takes 0.8 s as a whole, one that compiles them 6 s.

#: Up to this many indices are converted by NumPy.
MOST_INDICES = 1 << 18

#: Up to this many bytes are moved by NumPy.
MOST_BYTES = 1 << 20

# What one index and one call cost, in the cost of moving a byte by NumPy; and what loading kernels costs.
_INDEX_COST = 8
_CALL_COST = 4096
_LOADING_COST = 100 << 20

_log = logging.getLogger("fastindex")


class _Spent:
    """What NumPy has cost in this process so far."""

    cost = 0


def indices_by_numpy(count: int) -> bool:
    """Decide, and note, whether NumPy converts so many indices now.

    Raises
    ------
    UnsupportedError
        They are too many for that, and numba is not installed.
    """
    return _decided("converts %d indices", count, MOST_INDICES, _INDEX_COST)


def bytes_by_numpy(nbytes: int) -> bool:
    """Decide, and note, whether NumPy moves so many bytes now.

    Raises
    ------
    UnsupportedError
        They are too many for that, and numba is not installed.
    """
    return _decided("moves %d bytes", nbytes, MOST_BYTES, 1)


def _decided(what: str, size: int, most: int, cost: int) -> bool:
    if not may_be_numpy(size, most):
        return False
    _Spent.cost += _CALL_COST + size * cost
    _log.debug("NumPy " + what + " by the lowered form: no kernel is loaded", size)
    return True


def may_be_numpy(size: int, most: int) -> bool:
    """Whether NumPy answers a question of a size, of which it answers those up to `most`.

    Raises
    ------
    UnsupportedError
        It is too large for that, and numba is not installed.

    Examples
    --------
    >>> from fastindex.kernels import compilation
    >>> may_be_numpy(1, MOST_BYTES)
    False
    """
    if is_disabled():
        return True
    if "fastindex.kernels.compilation" in sys.modules:
        return False
    small = size <= most
    if not _numba_is_there():
        if small:
            return True
        raise UnsupportedError(
            f"this is too large for NumPy alone, and numba is not installed; install it, or set {DISABLE_VARIABLE}=1 "
            "and be patient"
        )
    return small and _Spent.cost < _LOADING_COST


@cache
def is_disabled() -> bool:
    """Whether the environment leaves everything to NumPy; it is read once."""
    return os.environ.get(DISABLE_VARIABLE, "0").strip() not in ("", "0")


@cache
def _numba_is_there() -> bool:
    return find_spec("numba") is not None
