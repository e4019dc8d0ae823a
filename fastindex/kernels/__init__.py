"""Loops that see numbers, for CPUs and GPUs. No shapes, no layouts, no checks of arguments."""

from __future__ import annotations

import sys

from fastindex.kernels.address_space import TO_LOAD_BYTES, check_address_space

if "numba" not in sys.modules:
    check_address_space(TO_LOAD_BYTES)
