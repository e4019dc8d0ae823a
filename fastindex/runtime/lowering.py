"""From a kernel's bytecode to LLVM instructions, by one walk over its blocks.

Kernels are functions of int64 numbers, booleans, addresses and tuples of these, so their types need no inference, which
takes most of Numba's time. Numba only reads the bytecode, once for each function. Each of its statements is written as
LLVM instructions here; `fastindex.runtime.operations` has those of Python's operators.

A branch on a known number has one side. A variable that is assigned in several places is memory on the stack, which
LLVM turns into registers; the temporaries of conditional expressions are phi nodes.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import bytecode, cgutils, interpreter
from numba.core import ir as numba_ir

from fastindex.runtime.operations import (
    BUILT_IN,
    Items,
    as_int64,
    binary,
    common,
    converted,
    flat,
    in_registers,
    is_known,
    kind_of,
    like,
    truth,
    unary,
)

_IN_PLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.ior: operator.or_,
    operator.iand: operator.and_,
    operator.ixor: operator.xor,
    operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
}


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters of a Python function."""
    return function.__code__.co_varnames[: function.__code__.co_argcount]


class Function:
    """A function that kernels call, and each kernel itself.

    Parameters
    ----------
    function : callable
    literals : sequence of str
        Parameters for whose constants it is compiled separately; other constants are passed as numbers.
    inline : bool
        Whether LLVM inlines it into every caller.
    unrolled : bool
        Of a kernel: whether LLVM unrolls its loops, at its level 3.
    """

    def __init__(
        self, function: Callable[..., Any], literals: Sequence[str] = (), inline: bool = False, unrolled: bool = False
    ) -> None:
        self.function, self.inline, self.unrolled = function, inline, unrolled
        self.are_literals = tuple(name in literals for name in parameters_of(function))
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def of_literals(self, count: int) -> Function:
        """Return the function compiled for constants of its first `count` arguments."""
        return Function(self.function, parameters_of(self.function)[:count], self.inline)

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.__name__} is a part of kernels, which Python cannot call")


class Instructions:
    """A function whose calls in a kernel are LLVM instructions: it gets the builder, then the arguments."""

    def __init__(self, write: Callable[..., Any], literals: Sequence[str] = ()) -> None:
        self.write = write
        self.are_literals = tuple(name in literals for name in parameters_of(write)[1:])


@cache
def _of_others(function: Callable[..., Any]) -> Function:
    """Return a function that Python may call, too."""
    return Function(function)


# Numba's reading of bytecode


class _Blocks(NamedTuple):
    """The basic blocks of a function by label, their order, and the variables that are assigned in several places."""

    blocks: dict[int, Any]
    order: list[int]
    variables: frozenset[str]


@cache
def _read(function: Callable[..., Any]) -> _Blocks:
    identity = bytecode.FunctionIdentity.from_function(function)
    blocks = interpreter.Interpreter(identity).interpret(bytecode.ByteCode(func_id=identity)).blocks
    counts = Counter(
        one.target.name for block in blocks.values() for one in block.body if isinstance(one, numba_ir.Assign)
    )
    several = frozenset(name for name, count in counts.items() if count > 1)
    return _Blocks(blocks, _in_order(blocks), several)


def _in_order(blocks: dict[int, Any]) -> list[int]:
    """Return the labels of blocks, each after all that lead to it but the ends of loops: reverse postorder."""
    found: list[int] = []
    seen: set[int] = set()
    waiting = [(min(blocks), False)]
    while waiting:
        label, is_done = waiting.pop()
        if is_done:
            found.append(label)
        elif label not in seen:
            seen.add(label)
            waiting.append((label, True))
            waiting.extend((one, False) for one in blocks[label].terminator.get_targets())
    return found[::-1]


# Functions


class _Written(NamedTuple):
    """A function of a module, and a value of the type that it returns."""

    function: Any
    result: Any


class Writer:
    """Writes kernels to a module, and what they call: once for each set of literals and types.

    Parameters
    ----------
    module : llvmlite.ir.Module
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._written: dict[Hashable, _Written] = {}

    def call(self, builder: Any, callee: Any, arguments: Sequence[Any]) -> Any:
        """Write a call, and return its result."""
        if isinstance(callee, Instructions):
            pairs = zip(callee.are_literals, arguments, strict=True)
            return callee.write(builder, *(_for_instructions(builder, *pair) for pair in pairs))
        if callee in BUILT_IN:
            return BUILT_IN[callee](builder, *arguments)
        callee = callee if isinstance(callee, Function) else _of_others(callee)
        pairs = zip(callee.are_literals, arguments, strict=True)
        given = [one if is_kept and is_known(one) else in_registers(one) for is_kept, one in pairs]
        written = self._function(callee, given)
        found = builder.call(written.function, list(flat(tuple(given))))
        count = len(list(flat((written.result,))))
        parts = [found] if count == 1 else [builder.extract_value(found, place) for place in range(count)]
        return like(written.result, iter(parts))

    def _function(self, callee: Function, given: Sequence[Any]) -> _Written:
        key = callee, *map(kind_of, given)
        if key not in self._written:
            kinds = [one.type for one in flat(tuple(given))]
            name = self._module.get_unique_name(f"fastindex.{callee.__name__}")
            function = ir.Function(self._module, ir.FunctionType(ir.VoidType(), kinds), name)
            function.linkage = "internal"
            function.attributes.add("nounwind")
            if callee.inline:
                function.attributes.add("alwaysinline")
            result = _Body(self, callee, function, like(tuple(given), iter(function.args))).write()
            self._written[key] = _Written(function, result)
        return self._written[key]


def _for_instructions(builder: Any, is_literal: bool, value: Any) -> Any:
    """Return an argument of `Instructions`: constants only for literals, which may be booleans."""
    if is_literal:
        return value
    return tuple(as_int64(builder, one) for one in value) if isinstance(value, tuple) else as_int64(builder, value)


class _Body:
    """The body of a function while it is written."""

    def __init__(self, writer: Writer, callee: Function, function: Any, arguments: Sequence[Any]) -> None:
        self._writer, self._callee, self._function, self._arguments = writer, callee, function, arguments
        self._read = _read(callee.function)
        entry = function.append_basic_block()
        self._blocks: dict[int, Any] = {}
        self._edges: set[tuple[Any, Any]] = set()
        self._start = entry
        self.builder = ir.IRBuilder(entry)
        self.builder.branch(self._block(self._read.order[0]))
        self._values: dict[str, Any] = {}
        self._slots: dict[str, Any] = {}
        #: Of temporaries that several blocks assign: the blocks and the values.
        self._incoming: dict[str, list[tuple[Any, Any]]] = {}
        self._returned: list[tuple[Any, Any]] = []

    def _block(self, label: int) -> Any:
        """Return the block of a label, to which the current one branches."""
        if label not in self._blocks:
            self._blocks[label] = self._function.append_basic_block()
        self._edges.add((self.builder.block, self._blocks[label]))
        return self._blocks[label]

    def write(self) -> Any:
        """Write all blocks that can be reached; return a value of the type of the result."""
        for label in self._read.order:
            if label in self._blocks:
                self._start = self._blocks[label]
                self.builder.position_at_end(self._start)
                for statement in self._read.blocks[label].body:
                    try:
                        self._statement(statement)
                    except Exception as error:
                        error.add_note(f"in {self._callee.__name__}: {statement.loc}")
                        raise
        return self._write_returns()

    def _write_returns(self) -> Any:
        values = [in_registers(value) for _, value in self._returned]
        if not values or values[0] is None:
            for block, _ in self._returned:
                self.builder.position_at_end(block)
                self.builder.ret_void()
            return None
        result, end = common(values), self._function.append_basic_block()
        rows = []
        for block, value in self._returned:
            self.builder.position_at_end(block)
            rows.append(list(flat((converted(self.builder, value, result),))))
            self.builder.branch(end)
        self.builder.position_at_end(end)
        parts = []
        for column in zip(*rows, strict=True):
            parts.append(self.builder.phi(column[0].type))
            for (block, _), value in zip(self._returned, column, strict=True):
                parts[-1].add_incoming(value, block)
        kinds = [part.type for part in parts]
        kind = kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds)
        self._function.ftype.return_type = self._function.return_value.type = kind
        if len(parts) == 1:
            self.builder.ret(parts[0])
        else:
            self.builder.ret(self._struct(kind, parts))
        return result

    def _struct(self, kind: Any, parts: Sequence[Any]) -> Any:
        found: Any = ir.Constant(kind, ir.Undefined)
        for place, part in enumerate(parts):
            found = self.builder.insert_value(found, part, place)
        return found

    def _statement(self, statement: Any) -> None:
        if isinstance(statement, numba_ir.Assign):
            self._assign(statement.target.name, self._value(statement.value))
        elif isinstance(statement, numba_ir.Jump):
            self.builder.branch(self._block(statement.target))
        elif isinstance(statement, numba_ir.Branch):
            condition = truth(self.builder, self._load(statement.cond))
            if is_known(condition):
                self.builder.branch(self._block(statement.truebr if condition else statement.falsebr))
            else:
                self.builder.cbranch(condition, self._block(statement.truebr), self._block(statement.falsebr))
        elif isinstance(statement, numba_ir.Return):
            self._returned.append((self.builder.block, self._load(statement.value)))
        else:
            raise TypeError(f"kernels cannot contain: {statement}")

    # Variables

    def _assign(self, name: str, value: Any) -> None:
        if name not in self._read.variables:
            self._values[name] = value
        elif name.startswith("$"):
            self._incoming.setdefault(name, []).append((self.builder.block, value))
        else:
            value = in_registers(value)
            if name not in self._slots:
                kinds = (cgutils.alloca_once(self.builder, one.type) for one in flat((value,)))
                self._slots[name] = like(value, kinds), value
            places, first = self._slots[name]
            pairs = zip(flat((places,)), flat((converted(self.builder, value, first),)), strict=True)
            for place, one in pairs:
                self.builder.store(one, place)

    def _load(self, variable: Any) -> Any:
        name = variable.name
        if name in self._values:
            return self._values[name]
        if name in self._incoming:
            incoming = [one for one in self._incoming[name] if (one[0], self._start) in self._edges]
            self._values[name] = self._joined(incoming)
            return self._values[name]
        places, _ = self._slots[name]
        return like(places, (self.builder.load(place) for place in flat((places,))))

    def _joined(self, incoming: Sequence[tuple[Any, Any]]) -> Any:
        """Return the value of a temporary, at the start of the block that those which assign it lead to."""
        first = incoming[0][1]
        if all(value is first or (kind_of(value) == kind_of(first) and is_known(first)) for _, value in incoming):
            return first
        wanted = common([in_registers(value) for _, value in incoming])
        rows = []
        for block, value in incoming:
            with self.builder.goto_block(block):
                rows.append(list(flat((converted(self.builder, value, wanted),))))
        joined = []
        with self.builder.goto_block(self.builder.block):
            self.builder.position_at_start(self._start)
            for column in zip(*rows, strict=True):
                joined.append(self.builder.phi(column[0].type))
                for (block, _), value in zip(incoming, column, strict=True):
                    joined[-1].add_incoming(value, block)
        return like(wanted, iter(joined))

    # Expressions

    def _value(self, value: Any) -> Any:
        if isinstance(value, numba_ir.Var):
            return self._load(value)
        if isinstance(value, numba_ir.Arg):
            return self._arguments[value.index]
        if isinstance(value, (numba_ir.Const, numba_ir.Global, numba_ir.FreeVar)):
            return value.value
        return getattr(self, f"_{value.op}")(value)

    def _binop(self, one: Any) -> Any:
        return binary(self.builder, one.fn, self._load(one.lhs), self._load(one.rhs))

    def _inplace_binop(self, one: Any) -> Any:
        return binary(self.builder, _IN_PLACE[one.fn], self._load(one.lhs), self._load(one.rhs))

    def _unary(self, one: Any) -> Any:
        return unary(self.builder, one.fn, self._load(one.value))

    def _call(self, one: Any) -> Any:
        return self._writer.call(self.builder, self._load(one.func), [self._load(argument) for argument in one.args])

    def _build_tuple(self, one: Any) -> Any:
        return tuple(map(self._load, one.items))

    def _getattr(self, one: Any) -> Any:
        return getattr(self._load(one.value), one.attr)

    def _getitem(self, one: Any) -> Any:
        return self._load(one.value)[self._load(one.index)]

    def _static_getitem(self, one: Any) -> Any:
        return self._load(one.value)[one.index]

    def _exhaust_iter(self, one: Any) -> Any:
        return self._load(one.value)

    _cast = _exhaust_iter

    def _getiter(self, one: Any) -> Any:
        found = self._load(one.value)
        return Items(self.builder, found) if isinstance(found, tuple) else found

    def _iternext(self, one: Any) -> Any:
        return self._load(one.value).next(self.builder)

    def _pair_first(self, one: Any) -> Any:
        return self._load(one.value)[0]

    def _pair_second(self, one: Any) -> Any:
        return self._load(one.value)[1]
