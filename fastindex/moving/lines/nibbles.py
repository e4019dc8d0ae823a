"""Nibbles: elements of four bits, whose byte another thread may be writing to as well."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fastindex.runtime.kernels import instructions, subroutine


@instructions()
def _put_bits(builder: Any, address: Any, kept: Any, added: Any) -> None:
    """Keep some bits of the byte at an address and add others, while other threads change the rest of it."""
    byte = ir.IntType(8)
    place = builder.inttoptr(address, byte.as_pointer())
    builder.atomic_rmw("and", place, builder.trunc(kept, byte), "monotonic")
    builder.atomic_rmw("or", place, builder.trunc(added, byte), "monotonic")


@subroutine()
def put_nibble(address, high, value):  # type: ignore[no-untyped-def]
    """Set the low nibble, or if `high` is 1 the high nibble; `value` is below 16."""
    _put_bits(address, 0xF0 >> 4 * high, value << 4 * high)
