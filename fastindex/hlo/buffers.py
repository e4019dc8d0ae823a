"""From a module to its buffers: which results get memory, and when each is alive.

Computations that run (the entry, bodies of loops, branches, calls) are walked in the order in which they run.
Each result is a list of values, one for each array in it; values that must share memory are joined. A value is
alive from the instruction that defines it to the last that sees it, both included.

Sources: ``xla/hlo/analysis/hlo_alias_analysis.cc``, ``xla/hlo/utils/hlo_live_range.cc``,
``xla/service/heap_simulator/heap_simulator.cc``; the opcodes are in `flow_rules`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastindex.hlo.flow_rules import IN_PLACE, FusionFlow, Rule, control_flow_callees, fusion_flow, may_reuse, rule_of
from fastindex.hlo.modules import Computation, Details, Module
from fastindex.hlo.shape_table import ShapeTable

Role = Literal["argument", "output", "constant", "temporary"]
Values = tuple[int, ...]
Interval = tuple[int, int]
#: Computations nest this deep at most; a cycle of calls would have no end.
_DEEPEST = 200


@dataclass(slots=True)
class Buffer:
    """Memory that one value, or several that share it, live in.

    Attributes
    ----------
    leaf : int
        The number of its shape in the `ShapeTable`: of its largest value.
    computation, place : Computation, int
        The instruction that defines it first.
    role : {"argument", "output", "constant", "temporary"}
        An argument may also be an output: ``input_output_alias``.
    start, end : int
        When its first value lives, in steps of the schedule, both included.
    is_output : bool
    pieces : list of (int, int) or None
        Where several values share it: the stretches in which one of them lives.
    """

    leaf: int
    computation: Computation
    place: int
    role: Role
    start: int
    end: int
    is_output: bool = False
    pieces: list[Interval] | None = None

    @property
    def intervals(self) -> list[Interval]:
        """When a value lives in it, in steps of the schedule, both ends included."""
        return self.pieces if self.pieces is not None else [(self.start, self.end)]


class _TooDeep(Exception):  # noqa: N818 - a signal, not an error
    """Computations call each other deeper than any program does."""


class _Walk:
    """Walks the computations of a module that run, and keeps the values in parallel lists."""

    def __init__(self, module: Module, table: ShapeTable) -> None:
        self.module = module
        entries = [table.entry(text) for text in module.shapes]
        self.leaves = [entry.leaves for entry in entries]
        self.entries = entries
        self.table = table
        self.clock = 0
        self.leaf = array("i")
        self.start = array("i")
        self.end = array("i")
        self.parent = array("i")
        self.places = array("i")
        self.owners: list[Computation] = []
        self.reuses: list[tuple[int, int]] = []
        self.schedule: list[tuple[Computation, int, int]] = []
        self._fusions: dict[str, FusionFlow] = {}
        self._walked: set[str] = set()
        self._depth = 0

    def new_values(self, leaves: Sequence[int], computation: Computation, place: int, time: int) -> Values:
        """Add a value for each leaf."""
        first = len(self.leaf)
        for number, leaf in enumerate(leaves, first):
            self.leaf.append(leaf)
            self.start.append(time)
            self.end.append(time)
            self.parent.append(number)
            self.places.append(place)
            self.owners.append(computation)
        return tuple(range(first, len(self.leaf)))

    def find(self, value: int) -> int:
        """Return the value that stands for all that share its buffer."""
        parent = self.parent
        while parent[value] != value:
            parent[value] = parent[parent[value]]
            value = parent[value]
        return value

    def join(self, first: Values, second: Values) -> None:
        """Let values share buffers, each with its counterpart."""
        for a, b in zip(first, second, strict=False):
            x, y = self.find(a), self.find(b)
            if x != y:
                # The earlier one stands for both.
                self.parent[max(x, y)] = min(x, y)

    def see(self, values: Sequence[int], time: int) -> None:
        """Keep values alive to a step; steps only grow."""
        end = self.end
        for value in values:
            end[value] = time

    def run(self, computation: Computation, arguments: list[Values] | None) -> list[Values]:
        """Walk a computation; return the values of its instructions."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _TooDeep
        self._walked.add(computation.name)
        begin = self.clock
        results: list[Values] = []
        leaves, shapes = self.leaves, computation.shapes
        end = self.end
        for place, opcode in enumerate(computation.opcodes):
            operands = computation.operands(place)
            rule = rule_of(opcode)
            if rule is None:
                time = self.clock
                for operand in operands:
                    if operand >= 0:
                        for value in results[operand]:
                            end[value] = time
                values = self.new_values(leaves[shapes[place]], computation, place, time)
                self._share(computation, place, opcode, operands, results, values)
            else:
                if rule.flow in ("while", "call", "conditional", "start"):
                    values = self._control_flow(rule, computation, place, operands, results)
                else:
                    given = arguments if rule.flow == "parameter" else None
                    values = self._pass_on(rule, computation, place, operands, results, given, begin)
                for value in values:
                    end[value] = self.clock
            results.append(values)
            self.clock += 1
        self.schedule.append((computation, begin, self.clock))
        if computation.root >= 0:
            self.see(results[computation.root], self.clock)
        self._depth -= 1
        return results

    def _pass_on(
        self,
        rule: Rule,
        computation: Computation,
        place: int,
        operands: Sequence[int],
        results: list[Values],
        arguments: list[Values] | None,
        begin: int,
    ) -> Values:
        """Return the values of an instruction that hands its operands on."""
        leaves = self.leaves[computation.shapes[place]]
        if rule.flow == "parameter":
            number = computation.details_of(place).number
            if arguments is not None and 0 <= number < len(arguments):
                return arguments[number]
            # A parameter is there before the first instruction.
            return self.new_values(leaves, computation, place, begin)
        if rule.flow == "tuple":
            return tuple(value for operand in operands if operand >= 0 for value in results[operand])
        first = operands[0] if len(operands) and operands[0] >= 0 else -1
        if first < 0:
            return self.new_values(leaves, computation, place, self.clock)
        values = results[first]
        if rule.flow == "operand":
            return values
        spans = self.entries[computation.shapes[first]].spans
        part = computation.details_of(place).number if rule.flow == "element" else rule.part
        if not 0 <= part < len(spans):
            return self.new_values(leaves, computation, place, self.clock)
        taken = values[spans[part][0] : spans[part][1]]
        if rule.flow == "part":
            self.see(values, self.clock)
            # What is left of the result, a token, is new.
            taken += self.new_values(leaves[len(taken) :], computation, place, self.clock)
        return taken

    def _control_flow(
        self, rule: Rule, computation: Computation, place: int, operands: Sequence[int], results: list[Values]
    ) -> Values:
        """Walk what an instruction calls; return its values."""
        given = [results[operand] if operand >= 0 else () for operand in operands]
        details = computation.details_of(place)
        callees = [c for c in control_flow_callees(self.module, details) if c.name not in self._walked]
        if rule.flow == "start":
            return self._start(rule, computation, place, given, callees)
        if rule.flow == "while" and len(callees) == 2 and given:
            return self._loop(computation, place, given[0], callees)
        if rule.flow == "call" and callees:
            return self.run(callees[0], given)[callees[0].root]
        roots = []
        if rule.flow == "conditional":
            for callee, argument in zip(callees, given[1:], strict=False):
                roots.append(self.run(callee, [argument])[callee.root])
        for values in given:
            self.see(values, self.clock)
        values = self.new_values(self.leaves[computation.shapes[place]], computation, place, self.clock)
        for root in roots:
            self.join(values, root)
        if rule.flow == "while" and given:
            self.join(values, given[0])
        return values

    def _loop(self, computation: Computation, place: int, init: Values, callees: list[Computation]) -> Values:
        """Walk a loop: its operand, the parameters, the root of the body and its result share buffers."""
        condition, body = callees
        leaves = self.leaves[computation.shapes[place]]
        carried = self.new_values(leaves, condition, _parameter(condition), self.clock)
        self.join(init, carried)
        self.run(condition, [carried])
        # The initial values are needed up to the parameter of the body, which is first in it.
        self.see(init, self.clock)
        carried = self.new_values(leaves, body, _parameter(body), self.clock)
        self.join(init, carried)
        root = self.run(body, [carried])[body.root]
        self.join(init, root)
        values = self.new_values(leaves, computation, place, self.clock)
        self.join(init, values)
        return values

    def _start(
        self, rule: Rule, computation: Computation, place: int, given: list[Values], callees: list[Computation]
    ) -> Values:
        """Walk an asynchronous start: a tuple that holds its operands, and results that are new."""
        root: Values = ()
        if callees:
            root = self.run(callees[0], given)[callees[0].root]
        for values in given:
            self.see(values, self.clock)
        number = computation.shapes[place]
        leaves, spans = self.leaves[number], self.entries[number].spans
        begin, end = spans[rule.part] if rule.part < len(spans) else (0, 0)
        held = tuple(value for item in given for value in item)[: end - begin]
        values = (
            self.new_values(leaves[:begin], computation, place, self.clock)
            + held
            + self.new_values(leaves[begin + len(held) :], computation, place, self.clock)
        )
        if root and len(spans) > 1:
            self.join(root, values[spans[1][0] : spans[1][1]])
        return values

    def _share(
        self,
        computation: Computation,
        place: int,
        opcode: str,
        operands: Sequence[int],
        results: list[Values],
        values: Values,
    ) -> None:
        """Join what is written in place, and note what may take the memory of an operand."""
        if opcode == "fusion":
            self._share_fusion(computation, place, operands, results, values)
        elif opcode in IN_PLACE:
            written = (len(operands) - 1) // 2 if opcode == "scatter" else len(values)
            for number, operand in enumerate(operands[:written]):
                if operand >= 0 and number < len(values):
                    self.join(results[operand], values[number : number + 1])
        elif opcode == "custom-call":
            self._share_listed(computation, place, computation.details_of(place), operands, results, values)
        else:
            for number, operand in enumerate(operands):
                if operand >= 0 and may_reuse(opcode, number):
                    result = values[number : number + 1] if opcode == "sort" else values
                    self._note_reuse(computation, operand, results[operand], result)

    def _share_fusion(
        self, computation: Computation, place: int, operands: Sequence[int], results: list[Values], values: Values
    ) -> None:
        details = computation.details_of(place)
        if details.aliases:
            self._share_listed(computation, place, details, operands, results, values)
        name = details.callees[0] if details.callees else ""
        fused = self.module.computations.get(name)
        if fused is None:
            return
        flow = self._fusions.get(name)
        if flow is None:
            flow = self._fusions[name] = fusion_flow(fused, details)
        for path, number in flow.in_place:
            if 0 <= number < len(operands) and operands[number] >= 0:
                begin, end = self.entries[computation.shapes[place]].at(path, self.table)
                self.join(results[operands[number]], values[begin:end])
        if flow.elementwise and not flow.in_place:
            for number in flow.elementwise:
                if 0 <= number < len(operands) and operands[number] >= 0:
                    self._note_reuse(computation, operands[number], results[operands[number]], values)

    def _share_listed(
        self,
        computation: Computation,
        place: int,
        details: Details,
        operands: Sequence[int],
        results: list[Values],
        values: Values,
    ) -> None:
        """Join what ``output_to_operand_aliasing`` lists."""
        for output, number, path in details.aliases:
            if number < len(operands) and operands[number] >= 0:
                begin, end = self.entries[computation.shapes[place]].at(output, self.table)
                operand = operands[number]
                first, last = self.entries[computation.shapes[operand]].at(path, self.table)
                self.join(results[operand][first:last], values[begin:end])

    def _note_reuse(self, computation: Computation, operand: int, given: Values, values: Values) -> None:
        """Note that new values may take the memory of an operand that ends here."""
        if len(given) == 1 and self.places[given[0]] == operand and self.owners[given[0]] is computation:
            for value in values:
                if self.leaf[value] == self.leaf[given[0]]:
                    self.reuses.append((value, given[0]))


def _parameter(computation: Computation) -> int:
    return computation.opcodes.index("parameter") if "parameter" in computation.opcodes else 0


@dataclass(slots=True)
class ModuleBuffers:
    """The buffers of a module.

    Attributes
    ----------
    buffers : list of Buffer
        In the order in which they are defined.
    steps : int
        How many instructions run, the bodies of loops once.
    schedule : list of (Computation, int, int)
        When each computation runs: its first step and the one after its last.
    too_deep : bool
        Computations call each other in a circle; there are no buffers then.
    """

    buffers: list[Buffer]
    steps: int
    schedule: list[tuple[Computation, int, int]]
    too_deep: bool = False


def module_buffers(module: Module, table: ShapeTable) -> ModuleBuffers:
    """Find the buffers of a module and when each is alive."""
    walk = _Walk(module, table)
    entry = module.entry
    if entry is None:
        return ModuleBuffers([], 0, [])
    try:
        results = walk.run(entry, None)
    except _TooDeep:
        return ModuleBuffers([], 0, [], too_deep=True)
    outputs = results[entry.root] if entry.root >= 0 else ()
    parameters = {
        entry.details_of(place).number: (place, results[place])
        for place, opcode in enumerate(entry.opcodes)
        if opcode == "parameter"
    }
    for output, number, path in module.input_output_aliases():
        if number in parameters and entry.root >= 0:
            place, values = parameters[number]
            begin, end = walk.entries[entry.shapes[entry.root]].at(output, table)
            first, last = walk.entries[entry.shapes[place]].at(path, table)
            walk.join(values[first:last], outputs[begin:end])
    arguments = {walk.find(value) for _, values in parameters.values() for value in values}
    return ModuleBuffers(_collect(walk, arguments, {walk.find(value) for value in outputs}), walk.clock, walk.schedule)


def _collect(walk: _Walk, arguments: set[int], outputs: set[int]) -> list[Buffer]:
    roots = [walk.find(value) for value in range(len(walk.leaf))]
    groups: dict[int, list[int]] = {}
    for value, root in enumerate(roots):
        # Most values have a buffer of their own and need no list.
        if value != root:
            groups.setdefault(root, [root]).append(value)
    ends = _ends_after_reuse(walk, groups, arguments, outputs)
    nbytes = walk.table.nbytes
    buffers = []
    for root, found in enumerate(roots):
        if found != root:
            continue
        leaf, values = walk.leaf[root], groups.get(root)
        if values:
            leaf = max((walk.leaf[value] for value in values), key=nbytes.__getitem__)
        if nbytes[leaf] < 0:
            continue
        role: Role = "temporary"
        if root in arguments:
            role = "argument"
        elif root in outputs:
            role = "output"
        elif walk.owners[root].opcodes[walk.places[root]] == "constant":
            role = "constant"
        buffer = Buffer(leaf, walk.owners[root], walk.places[root], role, walk.start[root], ends[root], root in outputs)
        if values:
            buffer.pieces = union([(walk.start[value], ends[value]) for value in values])
        buffers.append(buffer)
    return buffers


def _ends_after_reuse(walk: _Walk, groups: dict[int, list[int]], arguments: set[int], outputs: set[int]) -> array[int]:
    """Let a value end a step earlier where the one defined in its last step takes its memory."""
    ends = walk.end
    done: set[int] = set()
    for value, operand in walk.reuses:
        if (
            value in done
            or operand in done
            or ends[operand] != walk.start[value]
            or ends[operand] == walk.start[operand]
        ):
            continue
        giver, taker = walk.find(operand), walk.find(value)
        if giver in groups or taker in groups or giver in arguments or giver in outputs:
            continue
        if walk.owners[operand].opcodes[walk.places[operand]] != "constant":
            done.update((value, operand))
            ends[operand] -= 1
    return ends


def union(intervals: list[Interval]) -> list[Interval]:
    """Join intervals that overlap or touch.

    Examples
    --------
    >>> union([(4, 5), (0, 2), (3, 3), (7, 9)])
    [(0, 5), (7, 9)]
    """
    if len(intervals) == 1:
        return intervals
    intervals.sort()
    merged = [intervals[0]]
    for start, end in intervals[1:]:
        if start <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged
