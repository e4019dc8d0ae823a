"""From a kernel's bytecode to LLVM instructions, by one walk over its blocks.

Kernels are functions of int64 numbers, booleans, addresses and tuples of these, so their types need no inference:
Numba's takes most of the time that compiling takes. Here Numba only reads the bytecode, once for each function.

A value is a Python object where it is known, else an LLVM value, or a tuple of values. What is computed from known
numbers is known, and a branch on one has one side. A variable that is assigned in several places is memory on the
stack, which LLVM turns into registers; the temporaries of conditional expressions are phi nodes.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import bytecode, cgutils, interpreter
from numba.core import ir as numba_ir

_BOOL, _INT32, _INT64 = (ir.IntType(bits) for bits in (1, 32, 64))
_MASK = (1 << 64) - 1

_COMPARISONS: dict[Any, str] = {
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
_BITS = {operator.and_: "and_", operator.or_: "or_", operator.xor: "xor"}
_ARITHMETIC = {operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.lshift: "shl"}
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


class Unsigned(NamedTuple):
    """A uint64, which kernels write as ``np.uint64(number)``."""

    value: Any


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
    """

    def __init__(self, function: Callable[..., Any], literals: Sequence[str] = (), inline: bool = False) -> None:
        self.function, self.inline = function, inline
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


# Values


def _is_known(value: Any) -> bool:
    return not isinstance(value, (ir.Value, tuple))


def in_registers(value: Any) -> Any:
    """Return a value with its known numbers as LLVM constants."""
    if isinstance(value, Unsigned):
        return Unsigned(in_registers(value.value))
    if isinstance(value, tuple):
        return tuple(map(in_registers, value))
    if isinstance(value, bool):
        return _BOOL(int(value))
    return _INT64(value) if isinstance(value, int) else value


def kind_of(value: Any) -> Hashable:
    """Return what distinguishes the machine code for a value: a type, the types of a tuple, or a known object."""
    if isinstance(value, tuple):
        return (type(value) is Unsigned, *map(kind_of, value))
    return value.type if isinstance(value, ir.Value) else (type(value), value)


def _flat(value: Any) -> Iterator[Any]:
    """Yield the LLVM values of a value."""
    if isinstance(value, tuple):
        for one in value:
            yield from _flat(one)
    elif isinstance(value, ir.Value):
        yield value


def _like(value: Any, flat: Iterator[Any]) -> Any:
    """Return a value with its LLVM values replaced."""
    if isinstance(value, Unsigned):
        return Unsigned(next(flat))
    if isinstance(value, tuple):
        return tuple(_like(one, flat) for one in value)
    return next(flat) if isinstance(value, ir.Value) else value


def as_int64(builder: Any, value: Any) -> Any:
    """Return a number or boolean as an LLVM int64; other values as they are."""
    value = in_registers(value)
    return builder.zext(value, _INT64) if isinstance(value, ir.Value) and value.type == _BOOL else value


def _common(values: Sequence[Any]) -> Any:
    """Return a value of the type that several have in common; None where known objects are the same for all."""
    first = values[0]
    if isinstance(first, Unsigned):
        return first
    if isinstance(first, tuple):
        return tuple(_common(parts) for parts in zip(*values, strict=True))
    return _INT64(0) if any(one.type == _INT64 for one in values) else first


def _converted(builder: Any, value: Any, wanted: Any) -> Any:
    """Return a value as one of the type of another: booleans become numbers where the other is one."""
    if isinstance(wanted, Unsigned):
        return Unsigned(in_registers(value).value)
    if isinstance(wanted, tuple):
        return tuple(_converted(builder, *pair) for pair in zip(value, wanted, strict=True))
    value = as_int64(builder, value) if wanted.type == _INT64 else in_registers(value)
    if value.type != wanted.type:
        raise TypeError(f"a value of type {value.type} cannot become {wanted.type}")
    return value


# Operations


def _truth(builder: Any, value: Any) -> Any:
    if _is_known(value):
        return bool(value)
    return value if value.type == _BOOL else builder.icmp_unsigned("!=", value, value.type(0))


def _binary(builder: Any, function: Any, left: Any, right: Any) -> Any:
    if isinstance(left, Unsigned):
        return _of_unsigned(builder, function, left.value, right.value)
    if _is_known(left) and _is_known(right):
        return function(left, right)
    bits = _BITS.get(function)
    if bits:
        pair = in_registers(left), in_registers(right)
        if pair[0].type != pair[1].type:
            pair = as_int64(builder, left), as_int64(builder, right)
        return getattr(builder, bits)(*pair)
    if function in (operator.floordiv, operator.mod):
        return _divided(builder, left, right)[function is operator.mod]
    pair = as_int64(builder, left), as_int64(builder, right)
    if function in _COMPARISONS:
        return builder.icmp_signed(_COMPARISONS[function], *pair)
    if function is operator.rshift:
        return builder.ashr(*pair)
    return getattr(builder, _ARITHMETIC[function])(*pair)


def _of_unsigned(builder: Any, function: Any, left: Any, right: Any) -> Any:
    if _is_known(left) and _is_known(right):
        found = function(left, right)
        return found if function in _COMPARISONS else Unsigned(found & _MASK)
    left, right = in_registers(left), in_registers(right)
    if function in _COMPARISONS:
        return builder.icmp_unsigned(_COMPARISONS[function], left, right)
    names = {operator.rshift: "lshr", operator.floordiv: "udiv", operator.mod: "urem"}
    return Unsigned(getattr(builder, _BITS.get(function) or names.get(function) or _ARITHMETIC[function])(left, right))


def _divided(builder: Any, left: Any, right: Any) -> tuple[Any, Any]:
    """Return a quotient rounded down and its remainder, as Python does; both are 0 where they are not defined."""
    if _is_known(left) and _is_known(right):
        return divmod(left, right)
    number, divisor, zero = as_int64(builder, left), as_int64(builder, right), _INT64(0)
    if _is_known(right) and right > 0 and right & (right - 1) == 0:
        return builder.ashr(number, _INT64(right.bit_length() - 1)), builder.and_(number, _INT64(right - 1))
    if _is_known(right) and right not in (0, -1):
        return _rounded_down(builder, number, divisor)
    places = [cgutils.alloca_once(builder, _INT64) for _ in range(2)]
    for place in places:
        builder.store(zero, place)
    is_overflow = builder.and_(
        builder.icmp_signed("==", number, _INT64(-1 << 63)), builder.icmp_signed("==", divisor, _INT64(-1))
    )
    is_undefined = builder.or_(builder.icmp_signed("==", divisor, zero), is_overflow)
    with builder.if_then(builder.not_(is_undefined), likely=True):
        for found, place in zip(_rounded_down(builder, number, divisor), places, strict=True):
            builder.store(found, place)
    return builder.load(places[0]), builder.load(places[1])


def _rounded_down(builder: Any, number: Any, divisor: Any) -> tuple[Any, Any]:
    quotient, remainder = builder.sdiv(number, divisor), builder.srem(number, divisor)
    differ = builder.icmp_signed("<", builder.xor(divisor, remainder), _INT64(0))
    is_below = builder.and_(builder.icmp_signed("!=", remainder, _INT64(0)), differ)
    lowered = builder.sub(quotient, builder.zext(is_below, _INT64))
    return lowered, builder.add(remainder, builder.select(is_below, divisor, _INT64(0)))


def _unary(builder: Any, function: Any, value: Any) -> Any:
    if _is_known(value):
        return function(value)
    if function is operator.not_:
        return builder.not_(_truth(builder, value))
    number = as_int64(builder, value)
    return builder.not_(number) if function is operator.invert else builder.neg(number)


def _least(builder: Any, sign: str, values: Sequence[Any]) -> Any:
    found = values[0]
    for value in values[1:]:
        if _is_known(found) and _is_known(value):
            found = min(found, value) if sign == "<" else max(found, value)
        else:
            pair = as_int64(builder, found), as_int64(builder, value)
            found = builder.select(builder.icmp_signed(sign, *pair), *pair)
    return found


def _signed(builder: Any, value: Any) -> Any:
    if isinstance(value, Unsigned):
        value = value.value
    return int(np.uint64(value & _MASK).astype(np.int64)) if _is_known(value) else as_int64(builder, value)


def _int32(builder: Any, value: Any) -> Any:
    """Return the low half of a number, as a number."""
    return builder.sext(builder.trunc(as_int64(builder, value), _INT32), _INT64)


def _unsigned(builder: Any, value: Any) -> Any:
    return Unsigned(value & _MASK if _is_known(value) else as_int64(builder, value))


def _absolute(builder: Any, value: Any) -> Any:
    return _least(builder, ">", (value, _unary(builder, operator.neg, value)))


class _Range:
    """The state of a loop over a range; the next number is in memory on the stack."""

    def __init__(self, builder: Any, *numbers: Any) -> None:
        first, last, step = {1: lambda: (0, *numbers, 1), 2: lambda: (*numbers, 1), 3: lambda: numbers}[len(numbers)]()
        self.last, self.step = as_int64(builder, last), step
        self.place = cgutils.alloca_once(builder, _INT64)
        builder.store(as_int64(builder, first), self.place)

    def next(self, builder: Any) -> tuple[Any, Any]:
        """Return the next number, and whether there is one."""
        number, step = builder.load(self.place), as_int64(builder, self.step)
        builder.store(builder.add(number, step, flags=("nsw",)), self.place)
        up, down = (lambda sign=sign: builder.icmp_signed(sign, number, self.last) for sign in "<>")
        if _is_known(self.step):
            return number, up() if self.step > 0 else down()
        return number, builder.select(builder.icmp_signed(">", step, _INT64(0)), up(), down())


class _Items:
    """The state of a loop over a tuple, whose values have one type: in memory on the stack."""

    def __init__(self, builder: Any, values: Sequence[Any]) -> None:
        self._first, self._count = in_registers(values[0]), _INT64(len(values))
        columns = zip(*(_flat((in_registers(value),)) for value in values), strict=True)
        self._columns = [self._stored(builder, column) for column in columns]
        self._place = cgutils.alloca_once(builder, _INT64)
        builder.store(_INT64(0), self._place)

    @staticmethod
    def _stored(builder: Any, column: Sequence[Any]) -> Any:
        memory = cgutils.alloca_once(builder, column[0].type, size=_INT64(len(column) + 1))
        for number, value in enumerate(column):
            builder.store(value, builder.gep(memory, [_INT64(number)]))
        return memory

    def next(self, builder: Any) -> tuple[Any, Any]:
        """Return the next value, and whether there is one; without one, what is returned is not defined."""
        number = builder.load(self._place)
        builder.store(builder.add(number, _INT64(1)), self._place)
        flat = (builder.load(builder.gep(memory, [number])) for memory in self._columns)
        return _like(self._first, flat), builder.icmp_signed("<", number, self._count)


_BUILT_IN: dict[Any, Callable[..., Any]] = {
    bool: _truth,
    range: _Range,
    divmod: _divided,
    abs: _absolute,
    len: lambda builder, values: len(values),
    min: lambda builder, *values: _least(builder, "<", values),
    max: lambda builder, *values: _least(builder, ">", values),
    np.int64: _signed,
    np.int32: _int32,
    np.uint64: _unsigned,
}


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
        if callee in _BUILT_IN:
            return _BUILT_IN[callee](builder, *arguments)
        callee = callee if isinstance(callee, Function) else _of_others(callee)
        pairs = zip(callee.are_literals, arguments, strict=True)
        given = [one if is_kept and _is_known(one) else in_registers(one) for is_kept, one in pairs]
        written = self._function(callee, given)
        found = builder.call(written.function, list(_flat(tuple(given))))
        parts = len(list(_flat((written.result,))))
        flat = [found] if parts == 1 else [builder.extract_value(found, part) for part in range(parts)]
        return _like(written.result, iter(flat))

    def _function(self, callee: Function, given: Sequence[Any]) -> _Written:
        key = callee, *map(kind_of, given)
        if key not in self._written:
            kinds = [one.type for one in _flat(tuple(given))]
            name = self._module.get_unique_name(f"fastindex.{callee.__name__}")
            function = ir.Function(self._module, ir.FunctionType(ir.VoidType(), kinds), name)
            function.linkage = "internal"
            function.attributes.add("nounwind")
            if callee.inline:
                function.attributes.add("alwaysinline")
            result = _Body(self, callee, function, _like(tuple(given), iter(function.args))).write()
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
        result, end = _common(values), self._function.append_basic_block()
        rows = []
        for block, value in self._returned:
            self.builder.position_at_end(block)
            rows.append(list(_flat((_converted(self.builder, value, result),))))
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
            condition = _truth(self.builder, self._load(statement.cond))
            if _is_known(condition):
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
                kinds = (cgutils.alloca_once(self.builder, one.type) for one in _flat((value,)))
                self._slots[name] = _like(value, kinds), value
            places, first = self._slots[name]
            pairs = zip(_flat((places,)), _flat((_converted(self.builder, value, first),)), strict=True)
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
        return _like(places, (self.builder.load(place) for place in _flat((places,))))

    def _joined(self, incoming: Sequence[tuple[Any, Any]]) -> Any:
        """Return the value of a temporary, at the start of the block that those which assign it lead to."""
        first = incoming[0][1]
        if all(value is first or kind_of(value) == kind_of(first) and _is_known(first) for _, value in incoming):
            return first
        wanted = _common([in_registers(value) for _, value in incoming])
        rows = []
        for block, value in incoming:
            with self.builder.goto_block(block):
                rows.append(list(_flat((_converted(self.builder, value, wanted),))))
        joined = []
        with self.builder.goto_block(self.builder.block):
            self.builder.position_at_start(self._start)
            for column in zip(*rows, strict=True):
                joined.append(self.builder.phi(column[0].type))
                for (block, _), value in zip(incoming, column, strict=True):
                    joined[-1].add_incoming(value, block)
        return _like(wanted, iter(joined))

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
        return _binary(self.builder, one.fn, self._load(one.lhs), self._load(one.rhs))

    def _inplace_binop(self, one: Any) -> Any:
        return _binary(self.builder, _IN_PLACE[one.fn], self._load(one.lhs), self._load(one.rhs))

    def _unary(self, one: Any) -> Any:
        return _unary(self.builder, one.fn, self._load(one.value))

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
        return _Items(self.builder, found) if isinstance(found, tuple) else found

    def _iternext(self, one: Any) -> Any:
        return self._load(one.value).next(self.builder)

    def _pair_first(self, one: Any) -> Any:
        return self._load(one.value)[0]

    def _pair_second(self, one: Any) -> Any:
        return self._load(one.value)[1]
