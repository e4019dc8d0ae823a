"""Find the values of a module: the defining instruction of each, the values that share memory, and live ranges.

Computations that run (the entry, loop bodies, branches, calls) are walked in execution order. The result of an
instruction is a list of values, one per array; values that must share memory are joined in a union-find structure. The
live range of a value extends from its definition to its last use, both included. The text may be an excerpt, or
damaged: an unknown result is treated as a new value.

Sources: ``xla/hlo/analysis/hlo_alias_analysis.cc``, ``xla/hlo/utils/hlo_live_range.cc``; the opcodes are in
`flow_rules`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from fastindex.hlo.computations import Computation
from fastindex.hlo.flow.bytes_accessed import Accessed, BytesAccessed
from fastindex.hlo.flow.fast_memory import LOOP_WEIGHT, SPACES
from fastindex.hlo.flow.joined import Joined
from fastindex.hlo.flow_rules import IN_PLACE, RULES, FusionFlow, Rule, fusion_flow, may_reuse, rule_of
from fastindex.hlo.modules import Module
from fastindex.hlo.shape_table import ShapeTable

Values = tuple[int, ...]
#: Nesting limit of computations: far above that of programs, far below Python's recursion limit.
DEEPEST = 200
#: By this number of values the columns grow that only modules with fast memory have.
_MORE_VALUES = 4096


class TooDeep(Exception):  # noqa: N818 - a signal, not an error
    """Computations are nested too deeply for a real program."""


class Walk:
    """Walks the computations of a module that run, and stores the values in columns: there may be millions."""

    def __init__(self, module: Module, table: ShapeTable) -> None:
        self.module = module
        entries = [table.entry(text) for text in module.shapes]
        self.leaves = [entry.leaves for entry in entries]
        self.entries = entries
        self.table = table
        self.clock = 0
        #: Place and values of each parameter of the entry, by its number.
        self.parameters: dict[int, tuple[int, Values]] = {}
        self.leaf = array("i")
        self.start = array("i")
        self.end = array("i")
        self.places = array("i")
        self.owners: list[Computation] = []
        #: Values that share a buffer.
        self.joined = Joined()
        #: Pairs of values of which the second may reuse the memory of the first.
        self.reused, self.reusing = array("i"), array("i")
        #: Pairs of values that share memory by the choice of the TPU compiler, after it assigned fast memory.
        self.listed, self.listed_with = array("i"), array("i")
        #: Values whose buffers are written slice by slice, and values that are the results of asynchronous calls.
        self.whole: set[int] = set()
        self.returned: set[int] = set()
        self.schedule: list[tuple[Computation, int, int]] = []
        #: In modules with fast memory: bytes read and written of each value, in loops `LOOP_WEIGHT` times, and at each
        #: step; the steps at which each value is used, other than by copies; pairs of a copy and its source.
        self.nbytes_read, self.nbytes_written, self.nbytes_at = array("d"), array("d"), array("d")
        self.used, self.used_at = array("i"), array("i")
        self.copies, self.copied = array("i"), array("i")
        #: Steps of the instructions that the compiler inserts after it assigned fast memory, and of those it removes.
        self.inserted, self.removed = array("i"), array("i")
        #: Step after the one at which the last parameter and the results of asynchronous calls become available; or 0.
        self.ready = array("i")
        #: Values that the previous run of the program leaves in memory for the next one.
        self.across_programs: list[int] = []
        self._fast = {leaf for leaves in self.leaves for leaf in leaves if table.spaces[leaf] in SPACES}
        self.has_fast_memory = bool(self._fast)
        self._weight = 1
        self._accessed = BytesAccessed(module, table) if self._fast else None
        self._fusions: dict[str, FusionFlow] = {}
        self._walked: set[str] = set()
        self._moved: set[int] = set()
        self._bitcasts: set[tuple[Values, int]] = set()
        self._last_parameter = module.entry.last_parameter() if self._fast and module.entry is not None else -1
        self._depth = 0

    def new_values(self, leaves: Sequence[int], computation: Computation, place: int, time: int) -> Values:
        """Add a value for each leaf."""
        first = len(self.leaf)
        for leaf in leaves:
            self.leaf.append(leaf)
            self.start.append(time)
            self.end.append(time)
            self.joined.add()
            self.places.append(place)
            self.owners.append(computation)
        if self._fast and len(self.leaf) > len(self.ready):
            more = len(self.leaf) - len(self.ready) + _MORE_VALUES
            self.nbytes_read.frombytes(bytes(8 * more))
            self.nbytes_written.frombytes(bytes(8 * more))
            self.ready.frombytes(bytes(4 * more))
        return tuple(range(first, len(self.leaf)))

    def join(self, first: Sequence[int], second: Sequence[int]) -> None:
        """Join two lists of values pairwise: each pair shares a buffer."""
        for a, b in zip(first, second, strict=False):
            self.joined.join(a, b)

    def see(self, values: Sequence[int], time: int) -> None:
        """Extend the live ranges of values to a step; calls come in the order of steps."""
        end = self.end
        for value in values:
            end[value] = time

    def use(self, values: Sequence[int], time: int) -> None:
        """Extend live ranges to a step at which values are used, not only copied."""
        self.see(values, time)
        self._note_use(values, time)

    def _set_ready(self, values: Sequence[int]) -> None:
        for value in values:
            self.ready[value] = self.clock + 1

    def _note_use(self, values: Sequence[int], time: int) -> None:
        if self._fast:
            self.used.extend(values)
            self.used_at.extend([time] * len(values))

    def run(self, computation: Computation, arguments: list[Values] | None) -> Values:
        """Walk a computation; return the values of its root."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise TooDeep
        self._walked.add(computation.name)
        begin = self.clock
        results: list[Values] = []
        leaves = self.leaves
        end = self.end
        for place, (opcode, operands) in enumerate(zip(computation.opcodes, computation.all_operands(), strict=True)):
            rule, nbytes = rule_of(opcode), 0
            if rule is None:
                time = self.clock
                for operand in operands:
                    if operand >= 0:
                        for value in results[operand]:
                            end[value] = time
                values = self.new_values(leaves[computation.shape(place)], computation, place, time)
                self._share(computation, place, opcode, operands, results, values)
                if self._accessed is not None:
                    nbytes = self._count_bytes(self._accessed.of(computation, place), operands, results, values)
            else:
                if rule.flow in ("while", "call", "conditional", "start") or computation.details[place].callees:
                    values = self._control_flow(rule, computation, place, operands, results)
                else:
                    given = arguments if rule.flow == "parameter" else None
                    values = self._pass_on(rule, computation, place, operands, results, given, begin)
                values = self._fitted(values, computation, place)
                for value in values:
                    end[value] = self.clock
            results.append(values)
            self.clock += 1
            if self._accessed is not None:
                self.nbytes_at.append(nbytes)
        self.schedule.append((computation, begin, self.clock))
        root: Values = ()
        if computation.root >= 0:
            root = results[computation.root]
            # XLA counts a tuple as a use of its elements, but the end of the program as none.
            note = self.use if computation.opcodes[computation.root] == "tuple" else self.see
            note(root, self.clock)
        self._depth -= 1
        return root

    def _count_bytes(self, accessed: Accessed, operands: Sequence[int], results: list[Values], values: Values) -> int:
        """Count what an instruction reads of its operands and writes of its result; return the sum."""
        weight, read = self._weight, self.nbytes_read
        for operand in operands:
            self.use(results[operand] if operand >= 0 else (), self.clock)
        for operand, nbytes in zip(operands, accessed[0], strict=False):
            for value in results[operand] if operand >= 0 else ():
                read[value] += weight * nbytes
        for value, nbytes in zip(values, accessed[1], strict=False):
            self.nbytes_written[value] = weight * nbytes
        return weight * (sum(accessed[0]) + sum(accessed[1]))

    def _fitted(self, values: Values, computation: Computation, place: int) -> Values:
        """Return the values passed through by an instruction, cut or extended to the number of arrays in its shape.

        If the text contradicts itself, such as a call whose callee returns too few arrays, the missing values are new.
        """
        entry = self.entries[computation.shape(place)]
        if len(values) == len(entry.leaves) or (entry.problem and not entry.leaves):
            return values
        return values[: len(entry.leaves)] + self.new_values(
            entry.leaves[len(values) :], computation, place, self.clock
        )

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
        """Return the values of an instruction that passes its operands through."""
        leaves = self.leaves[computation.shape(place)]
        if rule.flow == "parameter":
            number = computation.details[place].number
            if arguments is not None and 0 <= number < len(arguments):
                return arguments[number]
            # Parameters are live from the start of the computation.
            values = self.new_values(leaves, computation, place, begin)
            if computation is self.module.entry:
                self.parameters[number] = place, values
                if place == self._last_parameter:
                    self._set_ready(values)
            return values
        if rule.flow == "tuple":
            return tuple(value for operand in operands if operand >= 0 for value in results[operand])
        first = operands[0] if len(operands) and operands[0] >= 0 else -1
        if first < 0:
            return self.new_values(leaves, computation, place, self.clock)
        values = results[first]
        if rule.flow == "operand":
            if computation.opcodes[place] == "bitcast" and not self._fast.isdisjoint(leaves):
                self._note_bitcast(values[:1], computation.shape(place), self.clock - place + first)
            return values
        spans = self.entries[computation.shape(first)].spans
        part = computation.details[place].number if rule.flow == "element" else rule.part
        if not 0 <= part < len(spans):
            return self.new_values(leaves, computation, place, self.clock)
        taken = values[spans[part][0] : spans[part][1]]
        if rule.flow == "part":
            self.see(values, self.clock)
            if self._fast and not self._moved.isdisjoint(values):
                if not computation.copies_element(first):
                    self.inserted.append(self.clock)
            elif self._fast:
                self._set_ready(taken)
            # Further arrays of the result, such as a token, are new values.
            taken += self.new_values(leaves[len(taken) :], computation, place, self.clock)
        return taken

    def _note_bitcast(self, value: Values, shape: int, operand: int) -> None:
        """Count a bitcast, which the compiler repeats for each user, once, directly after its operand."""
        self.inserted.append(self.clock)
        if (value, shape) not in self._bitcasts:
            self.removed.append(operand)
            self._bitcasts.add((value, shape))

    def _control_flow(
        self, rule: Rule, computation: Computation, place: int, operands: Sequence[int], results: list[Values]
    ) -> Values:
        """Walk the computations that an instruction calls; return the values of its result."""
        given = [results[operand] if operand >= 0 else () for operand in operands]
        names = computation.details[place].callees
        if rule.flow == "start":
            return self._start(rule.part, computation, place, given, names)
        if rule is RULES["async-update"] and len(given) > 1:
            return self._bind(computation, place, given, names)
        if rule.flow == "while" and len(names) == 2 and given:
            return self._loop(computation, place, given[0], names)
        called = self._callee(names[0]) if rule.flow == "call" and names else None
        if called is not None:
            return self.run(called, given)
        roots = self._branches(given, names) if rule.flow == "conditional" else []
        for values in given:
            self.use([value for value in values if not roots or self.leaf[value] not in self._fast], self.clock)
        values = self.new_values(self.leaves[computation.shape(place)], computation, place, self.clock)
        for root in roots:
            self.join(values, root)
        if rule.flow == "while" and given:
            self.join(values, given[0])
        return values

    def _branches(self, given: list[Values], names: Sequence[str]) -> list[Values]:
        """Walk the branches of a conditional; return the values of their roots.

        Its operands are there until its end, but in fast memory each branch keeps them to its own last use.
        """
        roots = []
        for values in given:
            self.see(values, self.clock)
        for number, name in enumerate(names, 1):
            branch = self._callee(name)
            if branch is not None:
                inner: list[int] = []
                for value in given[number] if number < len(given) else ():
                    fast = (self.leaf[value],) if self.leaf[value] in self._fast else ()
                    new = self.new_values(fast, branch, branch.first_parameter(), self.clock)
                    self.join((value,), new)
                    inner += new or (value,)
                roots.append(self.run(branch, [tuple(inner)]))
        return roots

    def _callee(self, name: str) -> Computation | None:
        """Return a computation to walk; None (unknown result) if it is missing, empty or already walked."""
        callee = self.module.computations.get(name)
        return callee if callee is not None and len(callee) and name not in self._walked else None

    def _loop(self, computation: Computation, place: int, init: Values, names: Sequence[str]) -> Values:
        """Walk a loop: its operand, its parameters, the root of its body and its result share buffers."""
        leaves = self.leaves[computation.shape(place)]
        self._weight *= LOOP_WEIGHT
        for is_body, name in enumerate(names):
            # Initial values are live up to the parameter of the body, which is its first instruction.
            self.see(init, self.clock)
            self._note_use(init, self.clock - 1)
            callee = self._callee(name)
            if callee is not None:
                carried = self.new_values(leaves, callee, callee.first_parameter(), self.clock)
                self.join(init, carried)
                root = self.run(callee, [carried])
                if is_body:
                    self.join(init, root)
        self._weight //= LOOP_WEIGHT
        values = self.new_values(leaves, computation, place, self.clock)
        self.join(init, values)
        return values

    def _start(
        self, part: int, computation: Computation, place: int, given: list[Values], names: Sequence[str]
    ) -> Values:
        """Walk an asynchronous start: its result is a tuple whose given part is its operands; the others are new."""
        root = self._run_called(computation, place, given, names)
        for values in given:
            self.see(values, self.clock)
        number = computation.shape(place)
        leaves, spans = self.leaves[number], self.entries[number].spans
        begin, end = spans[part] if part < len(spans) else (0, 0)
        held = tuple(value for item in given for value in item)[: end - begin]
        values = (
            self.new_values(leaves[:begin], computation, place, self.clock)
            + held
            + self.new_values(leaves[begin + len(held) :], computation, place, self.clock)
        )
        if root and len(spans) > 1:
            self.returned.update(root)
            self.join(root, values[spans[1][0] : spans[1][1]])
        if self._fast and len(given) == 1 and len(given[0]) == 1:
            self._note_moves(computation, place, given[0][0], values, names)
        return values

    def _note_moves(
        self, computation: Computation, place: int, source: int, values: Values, names: Sequence[str]
    ) -> None:
        """Record the copies that an asynchronous start makes of its operand, or of slices of it, in another memory."""
        callee = self.module.computations.get(names[0]) if names else None
        moved = callee.opcodes[callee.root] if callee is not None and callee.root >= 0 else computation.opcodes[place]
        if moved not in ("copy-start", "slice", "dynamic-slice"):
            return
        for value in values[:2]:
            if (self.leaf[value] in self._fast) != (self.leaf[source] in self._fast) and value != source:
                self.copies.append(value)
                self.copied.append(source)
                self._moved.add(value)
                self.inserted.append(self.clock)
                if computation.copies_element(place):
                    # The compiler moves the element to the start of its copy, from the end.
                    self.inserted.append(self.clock - 1)
                if computation.details[place].kind == "CrossProgram":
                    self.across_programs.append(value)

    def _run_called(self, computation: Computation, place: int, given: list[Values], names: Sequence[str]) -> Values:
        """Walk the computation of an asynchronous call; return the values of its root."""
        callee = self._callee(names[0]) if names else None
        if callee is None:
            return ()
        # The compiler decides before it makes asynchronous copies.
        weight, self._weight = self._weight, 0
        root = self.run(callee, given)
        self._weight = weight
        if callee.is_made:
            for value in root:
                if self.owners[value] is callee:
                    self.owners[value], self.places[value] = computation, place
        return root

    def _bind(self, computation: Computation, place: int, given: list[Values], names: Sequence[str]) -> Values:
        """Walk an asynchronous call with late operands; its result becomes {operands, result, contexts}."""
        started = given[0]
        for value in (value for item in given[1:] for value in item):
            if self._fast:
                self.nbytes_read[value] += self._weight * self.table.nbytes[self.leaf[value]]
        values = self._start(0, computation, place, given[1:], names)
        self.see(started, self.clock)
        number = computation.shape(place)
        spans = self.entries[number].spans
        first = computation.operands(place)[0]
        before = self.entries[computation.shape(first)].spans if first >= 0 else ()
        if len(spans) > 1 and len(before) > 1:
            result, result_before = values[slice(*spans[1])], started[slice(*before[1])]
            if len(result) == before[1][1] - before[1][0]:
                self.join(result, result_before)
        for output, operand, path in computation.details[place].aliases:
            if operand == 0 and first >= 0:
                a, b = self.entries[number].at(output), self.entries[computation.shape(first)].at(path)
                self.join(started[b[0] : b[1]], values[a[0] : a[1]])
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
        """Join values updated in place, and record values that may reuse the memory of an operand."""
        shared = computation.details[place].shared
        if shared is not None:
            self._share_numbered(shared, operands, computation.shape(place), results, values)
        if opcode == "fusion":
            self._share_fusion(computation, place, operands, results, values)
        elif opcode in IN_PLACE:
            written = (len(operands) - 1) // 2 if opcode == "scatter" else len(values)
            for number, operand in enumerate(operands[:written]):
                if operand >= 0 and number < len(values):
                    self.join(results[operand], values[number : number + 1])
        elif opcode == "custom-call" and computation.details[place].kind == "ConcatBitcast":
            for operand in operands:
                if operand >= 0:
                    self.join(results[operand], values)
            self.whole.update(values)
            self.inserted.append(self.clock)
        elif opcode == "custom-call":
            self._share_listed(computation, place, operands, results, values)
        elif shared is None:
            for number, operand in enumerate(operands):
                if operand >= 0 and may_reuse(opcode, number):
                    result = values[number : number + 1] if opcode == "sort" else values
                    self._note_reuse(computation, operand, results[operand], result)

    def _share_fusion(
        self, computation: Computation, place: int, operands: Sequence[int], results: list[Values], values: Values
    ) -> None:
        details = computation.details[place]
        if details.aliases:
            self._share_listed(computation, place, operands, results, values)
        name = details.callees[0] if details.callees else ""
        fused = self.module.computations.get(name)
        if fused is None:
            return
        flow = self._fusions.get(name)
        if flow is None:
            flow = self._fusions[name] = fusion_flow(fused, details)
        for path, number in flow.in_place:
            if 0 <= number < len(operands) and operands[number] >= 0:
                begin, end = self.entries[computation.shape(place)].at(path)
                self.join(results[operands[number]], values[begin:end])
        if flow.elementwise and not flow.in_place and details.shared is None:
            for number in flow.elementwise:
                if 0 <= number < len(operands) and operands[number] >= 0:
                    self._note_reuse(computation, operands[number], results[operands[number]], values)

    def _share_numbered(
        self,
        shared: Sequence[Sequence[int]],
        operands: Sequence[int],
        shape: int,
        results: list[Values],
        values: Values,
    ) -> None:
        """Record the operands and results that the TPU compiler lists as sharing memory."""
        spans = self.entries[shape].spans or ((0, len(values)),)
        for numbers in shared:
            taken = [
                results[operands[number]] for number in numbers if number < len(operands) and operands[number] >= 0
            ]
            given = [number - len(operands) for number in numbers if number >= len(operands)]
            taken += [values[spans[number][0] : spans[number][1]] for number in given if number < len(spans)]
            for pair in (pair for other in taken[1:] for pair in zip(taken[0], other, strict=False)):
                self.listed.append(pair[0])
                self.listed_with.append(pair[1])

    def _share_listed(
        self, computation: Computation, place: int, operands: Sequence[int], results: list[Values], values: Values
    ) -> None:
        """Join the values that ``output_to_operand_aliasing`` lists."""
        for output, number, path in computation.details[place].aliases:
            if number < len(operands) and operands[number] >= 0:
                begin, end = self.entries[computation.shape(place)].at(output)
                operand = operands[number]
                first, last = self.entries[computation.shape(operand)].at(path)
                self.join(results[operand][first:last], values[begin:end])

    def _note_reuse(self, computation: Computation, operand: int, given: Values, values: Values) -> None:
        """Record that new values may reuse the memory of an operand whose live range ends here."""
        if len(given) == 1 and self.places[given[0]] == operand and self.owners[given[0]] is computation:
            for value in values:
                if self.leaf[value] == self.leaf[given[0]]:
                    self.reused.append(given[0])
                    self.reusing.append(value)
