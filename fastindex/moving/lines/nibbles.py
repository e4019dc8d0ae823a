"""Stores of single nibbles, where another thread may be writing the other nibble of the byte."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastindex.runtime.kernels import instructions, subroutine


@instructions()
def _put_bits(builder: Any, address: Any, kept: Any, added: Any) -> None:
    """Mask the byte at an address with `kept`, then OR `added`: two atomics, as other threads write its other bits."""
    byte = ir.IntType(8)
    place = builder.inttoptr(address, byte.as_pointer())
    builder.atomic_rmw("and", place, builder.trunc(kept, byte), "monotonic")
    builder.atomic_rmw("or", place, builder.trunc(added, byte), "monotonic")


@subroutine()
def put_nibble(address, high, value):  # type: ignore[no-untyped-def]
    """Set the low nibble of a byte, or the high nibble if `high` is 1; `value` is below 16."""
    _put_bits(address, 0xF0 >> 4 * high, value << 4 * high)
