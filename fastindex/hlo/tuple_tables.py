"""Memory of index tables, through which programs access tuple elements: one pointer per element."""

from __future__ import annotations

from collections.abc import Sequence

from fastindex.core.shape import Shape
from fastindex.hlo.computations import Computation
from fastindex.hlo.flow_rules import rule_of
from fastindex.hlo.modules import Module
from fastindex.hlo.shape_table import ShapeTable

#: Pointer size and rounding unit of the result's table, in bytes; measured on assignments of libtpu and jaxlib.
_ON_TPU, _ELSEWHERE = (4, 512), (8, 1)
#: Distance between consecutive inner tables on a TPU, in bytes.
INNER_NBYTES = 1 << 14
_DEEPEST = 200


def table_nbytes(module: Module, table: ShapeTable) -> int:
    """Return the bytes of the index table of a module's result; 0 if the result is not a tuple."""
    entry = module.entry
    if entry is None or entry.root < 0:
        return 0
    elements = len(table.entry(list(module.shapes)[entry.shape(entry.root)]).spans)
    pointer, unit = _ON_TPU if module.is_for_tpu else _ELSEWHERE
    return -(-pointer * elements // unit) * unit


def inner_tables_nbytes(module: Module, table: ShapeTable) -> int:
    """Return the bytes of the index tables inside a TPU program, other than that of its result.

    On other devices these are a few pointers that share memory with other buffers.
    """
    count = inner_table_count(module, table) if module.is_for_tpu else 0
    # The tables are evenly spaced, and the last one is short.
    return (count - 1) * INNER_NBYTES + _ON_TPU[1] if count else 0


def inner_table_count(module: Module, table: ShapeTable) -> int:
    """Return the number of index tables inside a TPU module, other than that of its result.

    Each instruction that creates a tuple has a table, plus one per nested tuple. A loop shares one table with its
    initial value and the result of its body.

    Examples
    --------
    >>> from fastindex.hlo.modules import ModuleReader
    >>> from fastindex.hlo.scanner import HloScanner
    >>> found = []
    >>> reader = ModuleReader(found.append)
    >>> scanner = HloScanner(reader)
    >>> scanner.feed(b'''HloModule m
    ... ENTRY e {
    ...   p = f32[8]{0} parameter(0)
    ...   c = (f32[8]{0:S(1)}, f32[8]{0}, u32[]{:S(2)}) copy-start(p)
    ...   d = f32[8]{0:S(1)} copy-done(c)
    ...   ROOT t = (f32[8]{0:S(1)}, f32[8]{0}) tuple(d, p)
    ... }''')
    >>> scanner.close()
    >>> reader.finish()
    >>> inner_table_count(found[0], ShapeTable())
    1
    """
    entry = module.entry
    return _Tables(module, table).count(entry) if entry is not None and entry.root >= 0 else 0


class _Tables:
    """Traces index tables through a module; shared tables are joined in a union-find structure."""

    def __init__(self, module: Module, table: ShapeTable) -> None:
        self._module = module
        entries = [table.entry(text) for text in module.shapes]
        self._tuples = [
            _tuple_count(entry.elements) if text.startswith(b"(") else 0
            for text, entry in zip(module.shapes, entries, strict=True)
        ]
        self._parent: list[int] = []
        self._inner = 0
        self._walked: set[str] = set()

    def count(self, entry: Computation) -> int:
        """Return the number of tables in the program, without those of its result and its arguments."""
        # Table 0 stands for all tables that are not counted.
        self._parent.append(0)
        root = self._run(entry, [], 0)
        self._join(0, root)
        return self._inner + sum(self._find(number) == number for number in range(1, len(self._parent)))

    def _new(self) -> int:
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def _find(self, number: int) -> int:
        parent = self._parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    def _join(self, first: int, second: int) -> None:
        if first >= 0 and second >= 0:
            a, b = self._find(first), self._find(second)
            self._parent[max(a, b)] = min(a, b)

    def _run(self, computation: Computation, arguments: Sequence[int], depth: int) -> int:
        """Walk a computation; return the table of its root, or -1 if it has none."""
        self._walked.add(computation.name)
        tops: dict[int, int] = {}
        for place, opcode in enumerate(computation.opcodes):
            tuples = self._tuples[computation.shape(place)]
            callees = computation.details[place].callees
            if not tuples and opcode not in ("while", "conditional", "call"):
                continue
            given = [tops.get(operand, -1) for operand in computation.operands(place)]
            top = self._table(opcode, tuples, computation.details[place].number, given, arguments, callees, depth)
            if tuples:
                tops[place] = top
        return tops.get(computation.root, -1)

    def _table(
        self,
        opcode: str,
        tuples: int,
        number: int,
        given: list[int],
        arguments: Sequence[int],
        callees: Sequence[str],
        depth: int,
    ) -> int:
        """Return the table of an instruction's result."""
        first = given[0] if given else -1
        if opcode == "parameter":
            return arguments[number] if 0 <= number < len(arguments) else 0
        if opcode in ("while", "call", "conditional"):
            return self._called(opcode, tuples, given, callees, depth)
        rule = rule_of(opcode)
        if rule is not None and rule.flow == "operand" and len(given) == 1:
            return first
        if rule is not None and rule.flow in ("element", "part"):
            # A nested tuple is counted at the instruction that creates it.
            return 0
        if opcode != "tuple":
            self._inner += tuples - 1
        return self._new()

    def _called(self, opcode: str, tuples: int, given: list[int], callees: Sequence[str], depth: int) -> int:
        top = given[0] if opcode == "while" and given and given[0] >= 0 else self._new() if tuples else -1
        for place, name in enumerate(callees):
            callee = self._module.computations.get(name)
            if callee is None or not len(callee) or name in self._walked or depth >= _DEEPEST:
                continue
            passed = {"while": [top], "conditional": given[place + 1 : place + 2]}.get(opcode, given)
            root = self._run(callee, passed, depth + 1)
            if tuples and not (opcode == "while" and place == 0):
                self._join(top, root)
        return top


def _tuple_count(elements: Sequence[Shape]) -> int:
    """Return the number of non-empty tuples in a tuple, itself included."""
    return bool(elements) + sum(_tuple_count(each.tuple_shapes) for each in elements if each.is_tuple)
