"""Reading and writing memory by address from kernels: what Numba's arrays do not offer.

Kernels get addresses, so one compilation serves arrays of every dtype and stride. Loops read through `load` and
write through `store`, which promise LLVM that such a loop reads nothing it writes; without that it would not
vectorise. A `barrier` after each loop ends the promise. `stream` writes whole cache lines past the cache.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

#: How the integers of an operand are stored: the code is the index.
STORED = ("int64", "uint64", "int32", "uint32", "int16", "uint16", "int8", "uint8")

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_POINTER = types.CPointer(types.int64)
_LINE = 8  # int64 numbers


def _metadata(builder: Any) -> tuple[Any, Any]:
    """Give the alias scope of all writes, and the marker of stores that bypass the cache."""
    module = builder.module
    domain = module.add_metadata([ir.MetaDataString(module, "fastindex")])
    scope = module.add_metadata([ir.MetaDataString(module, "written"), domain])
    return module.add_metadata([scope]), module.add_metadata([_INT32(1)])


@intrinsic  # type: ignore[untyped-decorator]
def pointer(typingctx: Any, address: Any) -> Any:
    """Give a pointer to int64 from an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _INT64.as_pointer())

    return _POINTER(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def read(typingctx: Any, source: Any, index: Any) -> Any:
    """Read the int64 at ``source[index]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.gep(arguments[0], [arguments[1]]), align=8)

    return types.int64(_POINTER, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def load(typingctx: Any, source: Any, index: Any) -> Any:
    """Read the int64 at ``source[index]``, which nothing writes before the next `barrier`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(builder.gep(arguments[0], [arguments[1]]), align=1)
        value.set_metadata("noalias", _metadata(builder)[0])
        return value

    return types.int64(_POINTER, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store(typingctx: Any, target: Any, index: Any, value: Any) -> Any:
    """Write an int64 to ``target[index]``, which nothing reads before the next `barrier`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        written = builder.store(arguments[2], builder.gep(arguments[0], [arguments[1]]), align=1)
        written.set_metadata("alias.scope", _metadata(builder)[0])
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
        value.set_metadata("noalias", _metadata(builder)[0])
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
            loaded.set_metadata("noalias", _metadata(builder)[0])
            mask = [_LINE + k * step - first if k * step // _LINE == part else k for k in range(_LINE)]
            gathered = builder.shuffle_vector(gathered, loaded, ir.Constant(ir.VectorType(_INT32, _LINE), mask))
        place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), line.as_pointer())
        written = builder.store(gathered, place, align=8)
        written.set_metadata("alias.scope", _metadata(builder)[0])
        return context.get_dummy_value()

    return types.void(_POINTER, types.int64, _POINTER, types.int64, apart), generate


@intrinsic  # type: ignore[untyped-decorator]
def stream(typingctx: Any, target: Any, index: Any, source: Any, source_index: Any) -> Any:
    """Copy 8 int64 to ``target[index]``, whose address is a multiple of 64, past the cache."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = ir.VectorType(_INT64, _LINE).as_pointer()
        source = builder.bitcast(builder.gep(arguments[2], [arguments[3]]), line)
        target = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), line)
        written = builder.store(builder.load(source, align=8), target, align=64)
        written.set_metadata("nontemporal", _metadata(builder)[1])
        return context.get_dummy_value()

    return types.void(_POINTER, types.int64, _POINTER, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def barrier(typingctx: Any) -> Any:
    """Keep the compiler from moving reads and writes from one side to the other; costs nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        nothing = ir.FunctionType(ir.VoidType(), [])
        builder.asm(nothing, "", "~{memory}", [], side_effect=True)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic  # type: ignore[untyped-decorator]
def publish(typingctx: Any) -> Any:
    """Order streamed writes before whatever tells another thread that they are there."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
