"""Load and store GPU memory by address, 1 to 16 bytes at once, and shared memory of a block.

Numba's arrays load 16 bytes as sixteen single bytes or two 8-byte halves; these functions are one instruction. Values
of 1, 2 and 4 bytes are uint32, of 8 bytes uint64, of 16 bytes a pair of uint64. Each address is a multiple of the
number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from fastindex.cuda.kernels.device import OF_MLIR, device_function, intrinsic, types
from fastindex.cuda.kernels.registers import eight, pair

WIDTHS = (1, 2, 4, 8, 16)

GLOBAL = 1
_SHARED = 3
#: Bytes of all banks.
SHARED_ALIGNMENT = 128
_INT64 = ir.IntType(64)
_INT32 = ir.IntType(32)
_PAIR = ir.VectorType(_INT64, 2)
_PAIR_TYPE = types.UniTuple(types.uint64, 2)


def _value_type(width: int) -> Any:
    return {8: types.uint64, 16: _PAIR_TYPE}.get(width, types.uint32)


def _make_load(width: int, space: int) -> Any:
    memory = _PAIR if width == 16 else ir.IntType(8 * width)

    def load(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(builder.inttoptr(arguments[0], memory.as_pointer(space)), align=width)
            if width == 16:
                halves = [builder.extract_element(value, _INT32(i)) for i in range(2)]
                return context.make_tuple(builder, signature.return_type, halves)
            return builder.zext(value, _INT32) if width < 4 else value

        return _value_type(width)(types.int64), generate

    return intrinsic(load)


def _make_store(width: int, space: int) -> Any:
    memory = _PAIR if width == 16 else ir.IntType(8 * width)

    def store(typingctx: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target = builder.inttoptr(arguments[0], memory.as_pointer(space))
            value = arguments[1]
            if width == 16:
                pair = ir.Constant(memory, ir.Undefined)
                for i in range(2):
                    pair = builder.insert_element(pair, builder.extract_value(value, i), _INT32(i))
                value = pair
            elif width < 4:
                value = builder.trunc(value, memory)
            builder.store(value, target, align=width)
            return context.get_dummy_value()

        return types.void(types.int64, _value_type(width)), generate

    return intrinsic(store)


def shared_memory(size: int) -> Callable[[], int]:
    """Make the function that returns the address, a multiple of 128, of `size` bytes of shared memory of a block."""

    def shared(typingctx: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if OF_MLIR:
                return builder.shared(size, _SHARED, SHARED_ALIGNMENT)
            name = builder.module.get_unique_name("fastindex_shared")
            memory = ir.GlobalVariable(builder.module, ir.ArrayType(ir.IntType(8), size), name, addrspace=_SHARED)
            memory.align = SHARED_ALIGNMENT
            memory.linkage = "internal"
            memory.initializer = ir.Constant(memory.value_type, ir.Undefined)
            return builder.ptrtoint(memory, _INT64)

        return types.int64(), generate

    return intrinsic(shared)  # type: ignore[no-any-return]


def _make_lower_to() -> Any:
    def lower_to(typingctx: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target = builder.inttoptr(arguments[0], _INT64.as_pointer(GLOBAL))
            builder.atomic_rmw("min", target, arguments[1], "monotonic")
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return intrinsic(lower_to)


LOAD = {width: _make_load(width, GLOBAL) for width in WIDTHS}
STORE = {width: _make_store(width, GLOBAL) for width in WIDTHS}
LOAD_SHARED = {width: _make_load(width, _SHARED) for width in WIDTHS}
STORE_SHARED = {width: _make_store(width, _SHARED) for width in WIDTHS}
lower_to = _make_lower_to()


def load_integer(bits: int, signed: bool) -> Callable[[Any], Any]:
    """Make the function that loads an integer of global memory as int64."""
    load, kind = LOAD[bits // 8], np.dtype(f"{'i' if signed else 'u'}{bits // 8}").type

    @device_function
    def load_as_int64(address: Any) -> Any:
        return np.int64(kind(load(address)))

    return load_as_int64


_store_vector, _store_eight, _store_word, _store_half, _store_byte = (STORE[width] for width in (16, 8, 4, 2, 1))

#: Loads an int64 from global memory.
load_int64 = load_integer(64, True)


@device_function
def store_int64(address: Any, value: Any) -> None:
    _store_eight(address, np.uint64(value))


# Parts of 4, 8 or 16 aligned bytes, stored with as few stores as alignment allows. `low` and `high` bound the part:
# the bytes of a run in the aligned unit where it begins or ends; they may be outside the unit. Each store has 1, 2, 4,
# 8 or 16 bytes at a multiple of its size.


@device_function
def put_word(at: Any, low: Any, high: Any, values: Any) -> None:
    """Write the bytes from `low` to `high` of an aligned word, a tuple of one."""
    (word,) = values
    if low <= 0 and high >= 4:
        _store_word(at, word)
        return
    for half in range(2):
        first, pair = 2 * half, np.uint32(word >> np.uint32(16 * half))
        if low <= first and first + 2 <= high:
            _store_half(at + first, pair)
        else:
            if low <= first and first < high:
                _store_byte(at + first, pair)
            if low <= first + 1 and first + 1 < high:
                _store_byte(at + first + 1, np.uint32(pair >> np.uint32(8)))


@device_function
def put_eight(at: Any, low: Any, high: Any, values: Any) -> None:
    """Write the bytes from `low` to `high` of 8, given as two words; `low` is at most 0 or `high` at least 8."""
    if low <= 0 and high >= 8:
        _store_eight(at, eight(values))
        return
    # One word is cut; the other is inside or outside.
    place = (high if low <= 0 else low) & 4
    cut, other = (values[1], values[0]) if place else (values[0], values[1])
    if (low <= 0) == (place == 4):
        _store_word(at + 4 - place, other)
    put_word(at + place, low - place, high - place, (cut,))


@device_function
def put_granule(at: Any, low: Any, high: Any, values: Any) -> None:
    """Write the bytes from `low` to `high` of 16, given as four words; `low` is 0 or `high` is 16."""
    w0, w1, w2, w3 = values
    if low == 0 and high == 16:
        _store_vector(at, pair(w0, w1, w2, w3))
        return
    place = (low or high) & 8
    if (low == 0) == (place == 8):
        _store_eight(at + 8 - place, eight((w0, w1) if place else (w2, w3)))
    put_eight(at + place, low - place, high - place, (w2, w3) if place else (w0, w1))
