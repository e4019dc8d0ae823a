"""Reading and writing memory by address from kernels: what Numba's arrays do not offer.

Kernels get addresses, so one compilation serves arrays of every dtype and stride. Elements are opaque bits; vectors are
up to a cache line long, and LLVM splits them where the machine has shorter ones. What is streamed goes past the cache.

Loops over integers read through `load` and write through `store`, which promise LLVM that such a loop reads nothing it
writes; without that it would not vectorise. A `barrier` after each loop ends the promise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fastindex.tables.cache_lines import LINE_BYTES

#: How the integers of an operand are stored: the code is the index.
STORED = ("int64", "uint64", "int32", "uint32", "int16", "uint16", "int8", "uint8")

_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_ADDRESS = types.int64
_POINTER = types.CPointer(types.int64)
_LINE = LINE_BYTES // 8  # int64 numbers


# What vectors of `kernels.cpu.relayout.lines.vectors` are made from


def load_at(builder: Any, address: Any, count: int, width: int) -> Any:
    vector = ir.VectorType(ir.IntType(8 * width), count)
    value = builder.load(builder.inttoptr(address, vector.as_pointer()))
    value.align = 1
    return value


def store_at(builder: Any, value: Any, address: Any, streamed: bool) -> None:
    stored = builder.store(value, builder.inttoptr(address, value.type.as_pointer()))
    stored.align = LINE_BYTES if streamed else 1
    if streamed:
        stored.set_metadata("nontemporal", builder.module.add_metadata([_INT32(1)]))


def store_lines(builder: Any, lines: Iterable[tuple[Any, Any]], streamed: Any, kind: Any) -> None:
    """Store values to addresses, all past the cache or none; `kind` is the type of `streamed`, maybe a literal's.

    Where only a call knows, lines are put together once for both, and the call branches between the stores.
    """
    pairs = list(lines)
    if isinstance(kind, types.Literal):
        for value, address in pairs:
            store_at(builder, value, address, bool(kind.literal_value))
        return
    with builder.if_else(streamed) as (past_cache, through_cache):
        with past_cache:
            for value, address in pairs:
                store_at(builder, value, address, True)
        with through_cache:
            for value, address in pairs:
                store_at(builder, value, address, False)


def prefetch_at(builder: Any, address: Any, to_write: int = 0, nearness: int = 3) -> None:
    pointer = _INT8.as_pointer()
    declared = ir.FunctionType(ir.VoidType(), [pointer, _INT32, _INT32, _INT32])
    name = "llvm.prefetch.p0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, declared, name)
    builder.call(function, [builder.inttoptr(address, pointer), _INT32(to_write), _INT32(nearness), _INT32(1)])


def offset_by(builder: Any, address: Any, offset_bytes: int) -> Any:
    return builder.add(address, _INT64(offset_bytes))


# Tables and single elements


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def literal(typingctx: Any, value: Any) -> Any:
    """Return a literal argument as a constant that the compiler folds."""
    constant = value.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.int64, constant)

    return types.int64(value), generate


@intrinsic  # type: ignore[untyped-decorator]
def entry(typingctx: Any, table: Any, position: Any) -> Any:
    """Read the int64 at a position of the table at an address, or at a pointer.

    Helpers take addresses of tables, not arrays: counting references locks the bus, which ends all streaming.
    """
    table = table if isinstance(table, types.CPointer) else _ADDRESS

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_place(builder, *arguments), align=8)

    return types.int64(table, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def set_entry(typingctx: Any, table: Any, position: Any, value: Any) -> Any:
    """Set the int64 at a position of the table at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table, position, value = arguments
        builder.store(value, _place(builder, table, position), align=8)
        return context.get_dummy_value()

    return types.void(_ADDRESS, types.int64, types.int64), generate


def _place(builder: Any, table: Any, position: Any) -> Any:
    """Return a pointer to an int64 of a table, which is an address or a pointer itself."""
    if isinstance(table.type, ir.PointerType):
        return builder.gep(table, [position])
    return builder.inttoptr(builder.add(table, builder.mul(position, _INT64(8))), _INT64.as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def byte_at(typingctx: Any, address: Any) -> Any:
    """Read the byte at an address as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.load(builder.inttoptr(arguments[0], _INT8.as_pointer())), _INT64)

    return types.int64(_ADDRESS), generate


@intrinsic  # type: ignore[untyped-decorator]
def set_byte(typingctx: Any, address: Any, value: Any) -> Any:
    """Set the byte at an address to the low bits of an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = builder.trunc(arguments[1], _INT8)
        builder.store(byte, builder.inttoptr(arguments[0], _INT8.as_pointer()))
        return context.get_dummy_value()

    return types.void(_ADDRESS, types.int64), generate


# Copies, and what goes with them


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def copy_vector(typingctx: Any, target: Any, source: Any, size_bytes: Any) -> Any:
    """Copy 1, 2, 4 ... 64 bytes, a literal number, between any two addresses."""
    size = size_bytes.literal_value
    width = min(size, 8)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        store_at(builder, load_at(builder, arguments[1], size // width, width), arguments[0], False)
        return context.get_dummy_value()

    return types.void(_ADDRESS, _ADDRESS, size_bytes), generate


@intrinsic  # type: ignore[untyped-decorator]
def stream_line(typingctx: Any, target: Any, source: Any) -> Any:
    """Copy a line past the cache to a target on a line boundary."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        store_at(builder, load_at(builder, arguments[1], 8, 8), arguments[0], True)
        return context.get_dummy_value()

    return types.void(_ADDRESS, _ADDRESS), generate


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typingctx: Any, address: Any) -> Any:
    """Prefetch the line at an address, which need not be mapped."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        prefetch_at(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(_ADDRESS), generate


@intrinsic  # type: ignore[untyped-decorator]
def prefetch_to_l2(typingctx: Any, address: Any) -> Any:
    """Prefetch the line at an address, which need not be mapped, to L2 only.

    Lines at distances of powers of two meet in few sets of L1, which would lose them before they are read.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        prefetch_at(builder, arguments[0], nearness=2)
        return context.get_dummy_value()

    return types.void(_ADDRESS), generate


@intrinsic  # type: ignore[untyped-decorator]
def prefetch_to_write(typingctx: Any, address: Any) -> Any:
    """Prefetch the line at an address, which need not be mapped, in order to write a part of it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        prefetch_at(builder, arguments[0], 1)
        return context.get_dummy_value()

    return types.void(_ADDRESS), generate


@intrinsic  # type: ignore[untyped-decorator]
def fence(typingctx: Any) -> Any:
    """Make streamed lines visible to other threads before whatever tells them that they are there."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


# Loops over integers


def _written_scope(builder: Any) -> Any:
    """Return the alias scope of all writes."""
    module = builder.module
    domain = module.add_metadata([ir.MetaDataString(module, "fastindex")])
    return module.add_metadata([module.add_metadata([ir.MetaDataString(module, "written"), domain])])


@intrinsic  # type: ignore[untyped-decorator]
def pointer(typingctx: Any, address: Any) -> Any:
    """Return a pointer to int64 from an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _INT64.as_pointer())

    return _POINTER(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def load(typingctx: Any, source: Any, index: Any) -> Any:
    """Read the int64 at ``source[index]``, which nothing writes before the next `barrier`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(builder.gep(arguments[0], [arguments[1]]), align=1)
        value.set_metadata("noalias", _written_scope(builder))
        return value

    return types.int64(_POINTER, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store(typingctx: Any, target: Any, index: Any, value: Any) -> Any:
    """Write an int64 to ``target[index]``, which nothing reads before the next `barrier`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        written = builder.store(arguments[2], builder.gep(arguments[0], [arguments[1]]), align=1)
        written.set_metadata("alias.scope", _written_scope(builder))
        return context.get_dummy_value()

    return types.void(_POINTER, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def load_stored(typingctx: Any, source: Any, offset_bytes: Any, code: Any) -> Any:
    """Read one integer, stored as the literal `code` says, `offset_bytes` behind `source`, as int64."""
    name = STORED[code.literal_value]
    width = ir.IntType(int(name.lstrip("uint")))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.bitcast(arguments[0], ir.IntType(8).as_pointer())
        place = builder.bitcast(builder.gep(start, [arguments[1]]), width.as_pointer())
        value = builder.load(place, align=1)
        value.set_metadata("noalias", _written_scope(builder))
        if width.width == 64:
            return value
        return builder.zext(value, _INT64) if name.startswith("u") else builder.sext(value, _INT64)

    return types.int64(_POINTER, types.int64, code), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def gather_line(typingctx: Any, target: Any, index: Any, source: Any, offset_bytes: Any, apart: Any) -> Any:
    """Copy 8 int64 to ``target[index]``; they are `apart` (a literal) int64 apart, `offset_bytes` behind `source`."""
    step = apart.literal_value
    line = ir.VectorType(_INT64, _LINE)
    # Nothing behind the last of the eight is read.
    starts = [min(_LINE * part, (_LINE - 1) * (step - 1)) for part in range(step)]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = builder.gep(builder.bitcast(arguments[2], ir.IntType(8).as_pointer()), [arguments[3]])
        numbers = builder.bitcast(start, _INT64.as_pointer())
        gathered: Any = ir.Constant(line, ir.Undefined)
        for part, first in enumerate(starts):
            loaded = builder.load(builder.bitcast(builder.gep(numbers, [_INT64(first)]), line.as_pointer()), align=1)
            loaded.set_metadata("noalias", _written_scope(builder))
            mask = [_LINE + k * step - first if k * step // _LINE == part else k for k in range(_LINE)]
            gathered = builder.shuffle_vector(gathered, loaded, ir.Constant(ir.VectorType(_INT32, _LINE), mask))
        place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), line.as_pointer())
        written = builder.store(gathered, place, align=8)
        written.set_metadata("alias.scope", _written_scope(builder))
        return context.get_dummy_value()

    return types.void(_POINTER, types.int64, _POINTER, types.int64, apart), generate


@intrinsic  # type: ignore[untyped-decorator]
def barrier(typingctx: Any) -> Any:
    """Keep the compiler from moving reads and writes from one side to the other; costs nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        nothing = ir.FunctionType(ir.VoidType(), [])
        builder.asm(nothing, "", "~{memory}", [], side_effect=True)
        return context.get_dummy_value()

    return types.void(), generate
