"""Intrinsics for numba-cuda-mlir: llvmlite's interface to LLVM instructions, for MLIR's dialect of LLVM.

So functions that generate instructions are written once, for `llvmlite.ir.IRBuilder`, of which `Builder` has what they
use. `device` alone imports this module, where numba-cuda-mlir compiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import wraps
from typing import Any

from llvmlite import ir
from numba_cuda_mlir._mlir import ir as mlir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from numba_cuda_mlir._mlir.dialects import llvm  # type: ignore[import-not-found, import-untyped, unused-ignore]
from numba_cuda_mlir.extending import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    intrinsic as of_mlir,
)

_numbers = itertools.count()

#: The number of each comparison in MLIR.
_UNSIGNED = {"==": 0, "!=": 1, "<": 6, "<=": 7, ">": 8, ">=": 9}
_ORDERED = {"==": 1, ">": 2, ">=": 3, "<": 4, "<=": 5}
_UNORDERED = {"uno": 14}


class Value:
    """A value of MLIR, with its type of llvmlite."""

    def __init__(self, held: Any, kind: Any = None) -> None:
        self.held, self.type = held, kind

    def set_metadata(self, name: str, node: Any) -> None:
        """Set what llvmlite calls metadata, and MLIR attributes without a value."""
        self.held.owner.attributes[name.partition(".")[0]] = mlir.UnitAttr.get()


def _type_of(kind: Any) -> Any:
    if isinstance(kind, ir.PointerType):
        return llvm.PointerType.get(kind.addrspace)
    text = {ir.FloatType: "f32", ir.DoubleType: "f64"}.get(type(kind)) or str(kind)
    return mlir.Type.parse(text if not isinstance(kind, ir.VectorType) else f"vector<{kind.count}x{kind.element}>")


class Builder:
    """The instructions that this package generates, by llvmlite's names."""

    def __init__(self, lowering: Any) -> None:
        self.module, self._lowering = self, lowering

    def _add(self, name: str, kind: Any, operands: tuple[Any, ...], **attributes: Any) -> Value:
        held = [self._held(one) for one in operands]
        results = [] if kind is None else [_type_of(kind)]
        made = mlir.Operation.create(f"llvm.{name}", results=results, operands=held, attributes=attributes)
        return Value(made.results[0] if results else None, kind)

    def _held(self, given: Any) -> Any:
        if isinstance(given, Value):
            return given.held
        kind, number = _type_of(given.type), given.constant
        if number is ir.Undefined or isinstance(given.type, ir.VectorType):
            return llvm.mlir_undef(kind)
        if isinstance(given.type, ir.IntType):
            half = 1 << given.type.width - 1
            return llvm.mlir_constant(mlir.IntegerAttr.get(kind, (number + half) % (2 * half) - half))
        return llvm.mlir_constant(mlir.FloatAttr.get(kind, number))

    def __getattr__(self, name: str) -> Callable[..., Value]:
        """Return the function that adds an instruction of two operands, or one of a type."""
        plain = name.rstrip("_")

        def add(first: Any, second: Any) -> Value:
            if isinstance(second, ir.Type):
                return self._add(plain, second, (first,))
            return self._add(plain, first.type, (first, second))

        return add

    def select(self, condition: Any, first: Any, second: Any) -> Value:
        return self._add("select", first.type, (condition, first, second))

    def _compare(self, name: str, number: int, first: Any, second: Any) -> Value:
        predicate = mlir.IntegerAttr.get(mlir.IntegerType.get_signless(64), number)
        return self._add(name, ir.IntType(1), (first, second), predicate=predicate)

    def icmp_unsigned(self, how: str, first: Any, second: Any) -> Value:
        return self._compare("icmp", _UNSIGNED[how], first, second)

    def fcmp_ordered(self, how: str, first: Any, second: Any) -> Value:
        return self._compare("fcmp", _ORDERED[how], first, second)

    def fcmp_unordered(self, how: str, first: Any, second: Any) -> Value:
        return self._compare("fcmp", _UNORDERED[how], first, second)

    # Memory; llvmlite's pointers know what they point to, and MLIR's do not.

    def load(self, address: Any, align: int) -> Value:
        kind = address.type.pointee
        return Value(llvm.load(_type_of(kind), address.held, alignment=align), kind)

    def store(self, value: Any, address: Any, align: int) -> None:
        llvm.store(self._held(value), address.held, alignment=align)

    def atomic_rmw(self, how: str, address: Any, value: Any, order: str) -> None:
        llvm.atomicrmw(llvm.AtomicBinOp[how], address.held, value.held, llvm.AtomicOrdering[order])

    def shared(self, size: int, space: int, align: int) -> Value:
        """Return the address of memory of a block."""
        name = f"fastindex_shared_{next(_numbers)}"
        with mlir.InsertionPoint.at_block_begin(self._lowering.mlir_gpu_module.bodyRegion.blocks[0]):
            linkage = mlir.Attribute.parse("#llvm.linkage<internal>")
            kind = mlir.Type.parse(f"!llvm.array<{size} x i8>")
            llvm.GlobalOp(kind, name, linkage, addr_space=space, alignment=align)
        pointer = llvm.PointerType.get(space)
        return Value(llvm.ptrtoint(_type_of(ir.IntType(64)), llvm.mlir_addressof(pointer, name)), ir.IntType(64))

    # Vectors, and tuples

    def extract_element(self, vector: Any, number: Any) -> Value:
        return self._add("extractelement", vector.type.element, (vector, number))

    def insert_element(self, vector: Any, value: Any, number: Any) -> Value:
        return self._add("insertelement", vector.type, (vector, value, number))

    def extract_value(self, values: Value, number: int) -> Value:
        return _value(values.held[number])

    def add_metadata(self, fields: list[Any]) -> None:
        return None


class _Context:
    """What generators ask llvmlite's context for."""

    def make_tuple(self, builder: Any, kind: Any, values: list[Value]) -> Value:
        return Value(tuple(one.held for one in values))

    def get_dummy_value(self) -> Value:
        return Value(None)


def _value(held: Any) -> Value:
    if isinstance(held, tuple):
        return Value(held)
    return Value(held, ir.IntType(held.type.width))


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a device function from one that generates LLVM instructions through llvmlite's interface."""

    # The compiler asks for the names of the parameters.
    @wraps(function)
    def typed(typingctx: Any, *given: Any) -> Any:
        signature, generate = function(typingctx, *given)

        def add(lowering: Any, target: Any, arguments: Any, keywords: Any) -> None:
            values = [
                _value(lowering.lower_cast(lowering.get_numba_type(one.name), kind, lowering.load_var(one)))
                for one, kind in zip(arguments, signature.args, strict=True)
            ]
            lowering.store_var(target, generate(_Context(), Builder(lowering), signature, values).held)

        return signature, add

    return of_mlir(typed)
