"""Reading and writing memory by address from kernels, which Numba's arrays do not offer.

Kernels get addresses, so one compilation serves arrays of every dtype and stride. Elements are opaque bits; vectors are
up to a cache line long, and LLVM splits them if the machine has shorter ones. Streamed stores are non-temporal.

Loops over integers read through `load` and write through `store`, which promise LLVM that such a loop reads nothing it
writes; without that it would not vectorise. A `barrier` after each loop ends the promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from fastindex.runtime.kernels import instructions
from fastindex.runtime.numbers import LINE_BYTES, STORED

#: Sizes of a single vector copy, in bytes.
VECTOR_BYTES = (1, 2, 4, 8, 16, 32, 64)

_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_LINE = LINE_BYTES // 8  # int64 numbers


# Building blocks of `runtime.lines.lines`


def load_at(builder: Any, address: Any, count: int, width: int) -> Any:
    vector = ir.VectorType(ir.IntType(8 * width), count)
    value = builder.load(builder.inttoptr(address, vector.as_pointer()))
    value.align = 1
    return value


def store_at(builder: Any, value: Any, address: Any, streamed: bool) -> None:
    stored = builder.store(value, builder.inttoptr(address, value.type.as_pointer()))
    stored.align = min(LINE_BYTES, value.type.count * value.type.element.width // 8) if streamed else 1
    if streamed:
        stored.set_metadata("nontemporal", builder.module.add_metadata([_INT32(1)]))


def store_lines(builder: Any, lines: Iterable[tuple[Any, Any]], streamed: Any) -> None:
    """Store values to addresses, all with non-temporal stores or none; `streamed` is a number or an LLVM boolean.

    If it is known only at run time, lines are put together once for both, and the code branches between the stores.
    """
    pairs = list(lines)
    if isinstance(streamed, int):
        for value, address in pairs:
            store_at(builder, value, address, bool(streamed))
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


def for_each(builder: Any, number: Any, choices: Sequence[int], write: Callable[[int], Any]) -> None:
    """Emit a switch over an int64: `write` emits the code for each choice, the last of which is also the default."""
    blocks, end = [builder.append_basic_block() for _ in choices], builder.append_basic_block()
    taken = builder.switch(number, blocks[-1])
    for choice, block in zip(choices, blocks, strict=True):
        taken.add_case(_INT64(choice), block)
        builder.position_at_end(block)
        write(choice)
        builder.branch(end)
    builder.position_at_end(end)


def offset_by(builder: Any, address: Any, offset_bytes: int) -> Any:
    return builder.add(address, _INT64(offset_bytes))


# Tables and single elements


@instructions()
def entry(builder: Any, table: Any, position: Any) -> Any:
    """Read the int64 at a position of the table at an address, or at a pointer.

    Subroutines take addresses of tables, not arrays: counting references locks the bus, which ends all streaming.
    """
    return builder.load(_place(builder, table, position), align=8)


@instructions()
def set_entry(builder: Any, table: Any, position: Any, value: Any) -> None:
    """Set the int64 at a position of the table at an address."""
    builder.store(value, _place(builder, table, position), align=8)


def _place(builder: Any, table: Any, position: Any) -> Any:
    """Return a pointer to an int64 of a table, which is an address or a pointer itself."""
    if isinstance(table.type, ir.PointerType):
        return builder.gep(table, [position])
    return builder.inttoptr(builder.add(table, builder.mul(position, _INT64(8))), _INT64.as_pointer())


@instructions()
def byte_at(builder: Any, address: Any) -> Any:
    """Read the byte at an address as int64."""
    return builder.zext(builder.load(builder.inttoptr(address, _INT8.as_pointer())), _INT64)


@instructions()
def set_byte(builder: Any, address: Any, value: Any) -> None:
    """Set the byte at an address to the low bits of an int64."""
    builder.store(builder.trunc(value, _INT8), builder.inttoptr(address, _INT8.as_pointer()))


@instructions()
def int32_at(builder: Any, address: Any) -> Any:
    """Read the int32 at an address as int64."""
    return builder.sext(builder.load(builder.inttoptr(address, _INT32.as_pointer()), align=4), _INT64)


@instructions()
def set_int32(builder: Any, address: Any, value: Any) -> None:
    """Set the int32 at an address."""
    builder.store(builder.trunc(value, _INT32), builder.inttoptr(address, _INT32.as_pointer()), align=4)


# Copies, prefetches and fences


@instructions("size_bytes")
def copy_vector(builder: Any, target: Any, source: Any, size_bytes: Any) -> None:
    """Copy 1, 2, 4 ... 64 bytes between any two addresses; if the size is not a literal, a branch selects it."""
    if isinstance(size_bytes, int):
        _copy(builder, target, source, size_bytes)
    else:
        for_each(builder, size_bytes, VECTOR_BYTES, lambda size: _copy(builder, target, source, size))


def _copy(builder: Any, target: Any, source: Any, size_bytes: int) -> None:
    width = min(size_bytes, 8)
    store_at(builder, load_at(builder, source, size_bytes // width, width), target, False)


@instructions()
def copy_strided(builder: Any, target: Any, source: Any, size_bytes: Any, count: Any, strides: Any) -> None:
    """Copy `count` elements of 1, 2, 4 ... 64 bytes at `strides` (target, source) in bytes."""

    def write(size: int) -> None:
        with cgutils.for_range(builder, count) as loop:
            offsets = [builder.mul(loop.index, stride) for stride in strides]
            _copy(builder, builder.add(target, offsets[0]), builder.add(source, offsets[1]), size)

    for_each(builder, size_bytes, VECTOR_BYTES, write)


@instructions()
def stream_line(builder: Any, target: Any, source: Any) -> None:
    """Copy a line with non-temporal stores to a target on a line boundary."""
    store_at(builder, load_at(builder, source, 8, 8), target, True)


@instructions()
def prefetch(builder: Any, address: Any) -> None:
    """Prefetch the line at an address, which need not be mapped."""
    prefetch_at(builder, address)


@instructions()
def prefetch_to_l2(builder: Any, address: Any) -> None:
    """Prefetch the line at an address, which need not be mapped, to L2 only.

    Lines at distances of powers of two map to few sets of L1, which would evict them before they are read.
    """
    prefetch_at(builder, address, nearness=2)


@instructions()
def prefetch_to_write(builder: Any, address: Any) -> None:
    """Prefetch the line at an address, which need not be mapped, in order to write a part of it."""
    prefetch_at(builder, address, 1)


@instructions()
def fence(builder: Any) -> None:
    """Make streamed lines visible to other threads before a later store announces them."""
    builder.fence("seq_cst")


# Loops over integers


def _written_scope(builder: Any) -> Any:
    """Return the alias scope of all writes."""
    module = builder.module
    domain = module.add_metadata([ir.MetaDataString(module, "fastindex")])
    return module.add_metadata([module.add_metadata([ir.MetaDataString(module, "written"), domain])])


@instructions()
def pointer(builder: Any, address: Any) -> Any:
    """Return a pointer to int64 from an address."""
    return builder.inttoptr(address, _INT64.as_pointer())


@instructions()
def load(builder: Any, source: Any, index: Any) -> Any:
    """Read the int64 at ``source[index]``, which nothing writes before the next `barrier`."""
    return _not_written(builder, builder.load(builder.gep(source, [index]), align=1))


def _not_written(builder: Any, value: Any) -> Any:
    value.set_metadata("noalias", _written_scope(builder))
    return value


@instructions()
def store(builder: Any, target: Any, index: Any, value: Any) -> None:
    """Write an int64 to ``target[index]``, which nothing reads before the next `barrier`."""
    written = builder.store(value, builder.gep(target, [index]), align=1)
    written.set_metadata("alias.scope", _written_scope(builder))


@instructions("code")
def load_stored(builder: Any, source: Any, offset_bytes: Any, code: Any) -> Any:
    """Read one integer of storage type `code`, `offset_bytes` after `source`, as int64."""
    if isinstance(code, int):
        return _load_stored(builder, source, offset_bytes, code)
    found = cgutils.alloca_once(builder, _INT64)
    codes = range(len(STORED))
    for_each(builder, code, codes, lambda k: builder.store(_load_stored(builder, source, offset_bytes, k), found))
    return builder.load(found)


def _load_stored(builder: Any, source: Any, offset_bytes: Any, code: int) -> Any:
    name = STORED[code]
    width = ir.IntType(int(name.lstrip("uint")))
    place = builder.bitcast(_bytes_after(builder, source, offset_bytes), width.as_pointer())
    value = _not_written(builder, builder.load(place, align=1))
    if width.width == 64:
        return value
    return builder.zext(value, _INT64) if name.startswith("u") else builder.sext(value, _INT64)


def _bytes_after(builder: Any, source: Any, offset_bytes: Any) -> Any:
    return builder.gep(builder.bitcast(source, _INT8.as_pointer()), [offset_bytes])


@instructions("stride")
def gather_line(builder: Any, target: Any, index: Any, source: Any, offset_bytes: Any, stride: int) -> None:
    """Copy 8 int64 at a stride of `stride` (a literal) int64, `offset_bytes` after `source`, to ``target[index]``."""
    line = ir.VectorType(_INT64, _LINE)
    numbers = builder.bitcast(_bytes_after(builder, source, offset_bytes), _INT64.as_pointer())
    gathered: Any = ir.Constant(line, ir.Undefined)
    for part in range(stride):
        # Nothing after the last of the eight is read.
        first = min(_LINE * part, (_LINE - 1) * (stride - 1))
        place = builder.bitcast(builder.gep(numbers, [_INT64(first)]), line.as_pointer())
        loaded = _not_written(builder, builder.load(place, align=1))
        mask = [_LINE + k * stride - first if k * stride // _LINE == part else k for k in range(_LINE)]
        gathered = builder.shuffle_vector(gathered, loaded, ir.Constant(ir.VectorType(_INT32, _LINE), mask))
    place = builder.bitcast(builder.gep(target, [index]), line.as_pointer())
    written = builder.store(gathered, place, align=8)
    written.set_metadata("alias.scope", _written_scope(builder))


@instructions()
def barrier(builder: Any) -> None:
    """Keep the compiler from moving reads and writes across this point; costs nothing at run time."""
    builder.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], side_effect=True)
