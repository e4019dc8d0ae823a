"""Nibbles: elements of four bits, whose byte another thread may be writing to as well."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def _put_bits(typingctx: Any, address: Any, kept: Any, added: Any) -> Any:
    """Keep some bits of the byte at an address and add others, while other threads change the rest of it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8)
        place = builder.inttoptr(arguments[0], byte.as_pointer())
        builder.atomic_rmw("and", place, builder.trunc(arguments[1], byte), "monotonic")
        builder.atomic_rmw("or", place, builder.trunc(arguments[2], byte), "monotonic")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@njit(nogil=True)
def put_nibble(address, high, value):  # type: ignore[no-untyped-def]
    """Set the low nibble, or if `high` is 1 the high nibble; `value` is below 16."""
    _put_bits(address, 0xF0 >> 4 * high, value << 4 * high)
