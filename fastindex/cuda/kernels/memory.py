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
# the bytes of a run in the aligned unit where it begins or ends. Each store has 1, 2, 4 or 8 bytes at a multiple of
# its size.

_HALF = np.uint32(16)


@device_function
def _word_from(at: Any, low: Any, word: Any) -> Any:
    """Write the bytes of a word from `low` to the next word; return the offset of that, `low` if it begins there."""
    if low & 1:
        _store_byte(at + low, np.uint32(word >> np.uint32(8 * (low & 3))))
        low += 1
    if low & 2:
        _store_half(at + low, np.uint32(word >> _HALF))
        low += 2
    return low


@device_function
def _word_up_to(at: Any, high: Any, word: Any) -> None:
    """Write the bytes of a word up to `high`, of which only the remainder modulo 4 counts."""
    if high & 2:
        _store_half(at, word)
    if high & 1:
        _store_byte(at + (high & 2), np.uint32(word >> np.uint32(8 * (high & 2))))


@device_function
def put_word(at: Any, low: Any, high: Any, values: Any) -> None:
    """Write the bytes from `low` to `high` of an aligned word, a tuple of one; the bounds may be outside it."""
    (word,) = values
    if low <= 0 and high >= 4:
        _store_word(at, word)
    elif high >= 4:
        _word_from(at, low, word)
    elif low <= 0:
        _word_up_to(at, high, word)
    else:
        for j in range(1, 3):
            if low <= j and j < high:
                _store_byte(at + j, np.uint32(word >> np.uint32(8 * j)))


@device_function
def put_eight(at: Any, low: Any, high: Any, values: Any) -> None:
    """Write the bytes from `low` to `high` of 8, given as two words; `low` is 0 or `high` is 8."""
    w0, w1 = values
    if low == 0 and high == 8:
        _store_eight(at, eight((w0, w1)))
    elif high == 8:
        low = _word_from(at, low, w0 if low < 4 else w1)
        if low == 4:
            _store_word(at + 4, w1)
    else:
        if high & 4:
            _store_word(at, w0)
        _word_up_to(at + (high & 4), high, w0 if high < 4 else w1)


@device_function
def put_granule(at: Any, low: Any, high: Any, values: Any) -> None:
    """Write the bytes from `low` to `high` of 16, given as four words; `low` is 0 or `high` is 16."""
    w0, w1, w2, w3 = values
    if low == 0 and high == 16:
        _store_vector(at, pair(w0, w1, w2, w3))
    elif high == 16:
        low = _word_from(at, low, w0 if low < 4 else w1 if low < 8 else w2 if low < 12 else w3)
        if low & 4:
            _store_word(at + low, w1 if low < 8 else w3)
        if low <= 8:
            _store_eight(at + 8, eight((w2, w3)))
    else:
        if high & 8:
            _store_eight(at, eight((w0, w1)))
        if high & 4:
            _store_word(at + (high & 8), w0 if high < 8 else w2)
        _word_up_to(at + (high & 12), high, w0 if high < 4 else w1 if high < 8 else w2 if high < 12 else w3)
