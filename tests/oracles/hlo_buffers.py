"""Count the buffers of an HLO module the slow way; run as a separate process, since XLA may abort.

``python hlo_buffers.py FILE`` prints, as JSON, a list of [shape text, count]. The module is read by jaxlib and
decoded with a small reader of protobuf's wire format, so no text is parsed here. Values flow until nothing changes:
sets of (instruction, leaf) pairs that an instruction's leaves may hold, joined where XLA wants one buffer. Written from
XLA's analyses, independently of the package.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

if __package__:
    from tests.oracles.hlo_instructions import blob, fields, integers, leaf_texts
else:
    from hlo_instructions import blob, fields, integers, leaf_texts

Leaf = tuple[int, int]
FORWARD = {"bitcast", "opt-barrier", "domain", "all-reduce-done"}
WRITES = {"dynamic-update-slice", "scatter", "all-reduce-start"}


class Instruction:
    def __init__(self, data: bytes, owner: int) -> None:
        found: dict[int, list[Any]] = {}
        for number, value in fields(data):
            found.setdefault(number, []).append(value)
        self.owner = owner
        self.id = found.get(35, [0])[0]
        self.name = found[1][0].decode()
        self.opcode = found[2][0].decode()
        self.shape = blob(found[3][0])
        self.leaves = list(leaf_texts(self.shape))
        self.operands = [i for value in found.get(36, []) for i in integers(value)]
        self.callees = [i for value in found.get(38, []) for i in integers(value)]
        self.number = found.get(9, [0])[0]
        self.index = found.get(13, [0])[0]
        self.kind = found.get(11, [b""])[0].decode()
        self.spans = spans(self.shape)
        self.target = found.get(28, [b""])[0].decode()
        config = found.get(43, [b""])[0]
        lists = json.loads(config).get("aliasing_operands", {}).get("lists", []) if config.startswith(b"{") else []
        self.shared = [[int(number) for number in each["indices"]] for each in lists]


def spans(shape: bytes) -> list[tuple[int, int]]:
    """Where the leaves of each element of a tuple begin and end."""
    found, at = [], 0
    kind = next((value for number, value in fields(shape) if number == 2), 0)
    for number, value in fields(shape):
        if number == 4 and kind == 13:
            count = len(list(leaf_texts(blob(value))))
            found.append((at, at + count))
            at += count
    return found


class Module:
    def __init__(self, data: bytes) -> None:
        self.all: dict[int, Instruction] = {}
        self.body: dict[int, list[int]] = {}
        self.root: dict[int, int] = {}
        self.entry = 0
        self.aliases: list[tuple[list[int], int, list[int]]] = []
        for number, value in fields(data):
            if number == 6:
                self.entry = int(value)
            elif number == 3:
                self._computation(blob(value))
            elif number == 8:
                self._aliases(blob(value))

    def _computation(self, data: bytes) -> None:
        parts = list(fields(data))
        owner = next((int(value) for number, value in parts if number == 5), 0)
        self.root[owner] = next((int(value) for number, value in parts if number == 6), 0)
        self.body[owner] = []
        for number, value in parts:
            if number == 2:
                item = Instruction(blob(value), owner)
                self.all[item.id] = item
                self.body[owner].append(item.id)

    def _aliases(self, data: bytes) -> None:
        for number, value in fields(data):
            if number == 1:
                parts: dict[int, list[Any]] = {}
                for inner, content in fields(blob(value)):
                    parts.setdefault(inner, []).append(content)
                output = [i for item in parts.get(1, []) for i in integers(item)]
                path = [i for item in parts.get(3, []) for i in integers(item)]
                self.aliases.append((output, parts.get(2, [0])[0], path))

    def running(self) -> list[int]:
        """The computations that run: the entry and what loops, calls and branches call."""
        found, pending = [], [self.entry]
        while pending:
            owner = pending.pop()
            if owner in found:
                continue
            found.append(owner)
            for item in map(self.all.__getitem__, self.body[owner]):
                if item.opcode in ("while", "call", "conditional", "async-start"):
                    pending += item.callees
        return found


def at(item: Instruction, path: list[int]) -> list[int]:
    if not path:
        return list(range(len(item.leaves)))
    begin, end = item.spans[path[0]]
    return list(range(begin, end))


def is_called(module: Module, item: Instruction) -> bool:
    """Whether an instruction is a parameter that a caller gives."""
    return item.opcode == "parameter" and item.owner != module.entry


def flow(module: Module) -> tuple[dict[Leaf, set[Leaf]], list[tuple[Leaf, Leaf]]]:
    """The values that each leaf may hold, and the pairs of leaves that share a buffer."""
    running = module.running()
    items = [module.all[i] for owner in running for i in module.body[owner]]
    calls = [item for item in items if item.opcode in ("while", "call", "conditional", "async-start")]
    parameters = {(module.all[i].owner, module.all[i].number): i for o in running for i in module.body[o]
                  if module.all[i].opcode == "parameter"}  # fmt: skip
    edges: list[tuple[Leaf, Leaf]] = []
    joined: list[tuple[Leaf, Leaf]] = []

    def link(source: int, target: int, first: int = 0, onto: int = 0, count: int | None = None) -> None:
        number = len(module.all[target].leaves) if count is None else count
        edges.extend(((source, first + i), (target, onto + i)) for i in range(number))

    defined = set()
    for item in items:
        leaves = {(item.id, i) for i in range(len(item.leaves))}
        operands = item.operands
        if item.opcode in FORWARD or item.opcode == "async-update":
            link(operands[0], item.id)
            leaves = set()
        elif item.opcode == "get-tuple-element":
            link(operands[0], item.id, first=module.all[operands[0]].spans[item.index][0])
            leaves = set()
        elif item.opcode == "tuple":
            for operand, (begin, end) in zip(operands, item.spans, strict=True):
                link(operand, item.id, onto=begin, count=end - begin)
            leaves = set()
        elif item.opcode in ("copy-done", "async-done", "all-gather-done", "collective-permute-done"):
            element = 0 if item.opcode == "copy-done" else 1
            link(operands[0], item.id, first=module.all[operands[0]].spans[element][0])
            leaves = set()
        elif item.opcode in ("copy-start", "async-start", "all-gather-start", "collective-permute-start"):
            begin, end = item.spans[1 if item.opcode == "copy-start" else 0]
            place = begin
            for operand in operands:
                link(operand, item.id, onto=place, count=len(module.all[operand].leaves))
                place += len(module.all[operand].leaves)
            leaves -= {(item.id, i) for i in range(begin, min(end, place))}
        elif item.opcode in ("while", "call", "conditional") or is_called(module, item):
            leaves = set()
        defined |= leaves
        if item.opcode in WRITES:
            joined += [((operands[0], i), (item.id, i)) for i in range(len(module.all[operands[0]].leaves))]
        if item.opcode == "fusion":
            joined += fused_writes(module, item)
        # Numbers of results come after those of operands; what is listed has one array each.
        places = [(operand, 0) for operand in operands] + [(item.id, i) for i in range(len(item.leaves))]
        for first, *others in item.shared:
            joined += [(places[first], places[other]) for other in others]
    for item in calls:
        operands, callees = item.operands, item.callees
        if item.opcode == "while":
            for owner in callees:
                link(operands[0], parameters[owner, 0])
                link(module.root[callees[0]], parameters[owner, 0])
            for source in (operands[0], module.root[callees[0]]):
                link(source, item.id)
                joined += [((source, i), (item.id, i)) for i in range(len(item.leaves))]
        elif item.opcode == "conditional":
            for owner, operand in zip(callees, operands[1:], strict=True):
                link(operand, parameters[owner, 0])
                link(module.root[owner], item.id)
                joined += [((module.root[owner], i), (item.id, i)) for i in range(len(item.leaves))]
        else:
            for number, operand in enumerate(operands):
                link(operand, parameters[callees[0], number])
            if item.opcode == "call":
                link(module.root[callees[0]], item.id)
            else:
                root = module.root[callees[0]]
                begin = item.spans[1][0]
                joined += [((root, i), (item.id, begin + i)) for i in range(len(module.all[root].leaves))]
    for output, number, path in module.aliases:
        root, parameter = module.all[module.root[module.entry]], parameters[module.entry, number]
        joined += [((root.id, a), (parameter, b)) for a, b in zip(at(root, output), at(module.all[parameter], path),
                                                                 strict=True)]  # fmt: skip
    holds: dict[Leaf, set[Leaf]] = {leaf: {leaf} for leaf in defined}
    changed = True
    while changed:
        changed = False
        for source, target in edges:
            more = holds.get(source, set()) - holds.setdefault(target, set())
            if more:
                holds[target] |= more
                changed = True
    return holds, joined


def fused_writes(module: Module, item: Instruction) -> list[tuple[Leaf, Leaf]]:
    """Results of a fusion that are written over one of its operands."""
    found = []
    root = module.all[module.root[item.callees[0]]]
    outputs = root.operands if root.opcode == "tuple" else [root.id]
    for place, output in enumerate(outputs):
        source = module.all[output]
        while source.opcode in ("bitcast", "opt-barrier"):
            source = module.all[source.operands[0]]
        if source.opcode not in WRITES:
            continue
        target = module.all[source.operands[0]]
        while target.opcode in ("bitcast", "opt-barrier"):
            target = module.all[target.operands[0]]
        if target.opcode == "parameter":
            found.append(((item.operands[target.number], 0), (item.id, place)))
    return found


def buffers(module: Module) -> Counter[str]:
    """How many buffers have each shape."""
    holds, joined = flow(module)
    stands: dict[Leaf, Leaf] = {leaf: leaf for leaf, held in holds.items() if leaf in held}

    def find(leaf: Leaf) -> Leaf:
        while stands[leaf] != leaf:
            leaf = stands[leaf]
        return leaf

    for a, b in joined:
        values = sorted(holds.get(a, set()) | holds.get(b, set()))
        for other in values[1:]:
            stands[find(other)] = find(values[0])
    # What one place may hold, of several, is one buffer too: the carries of loops.
    for held in holds.values():
        values = sorted(held)
        for other in values[1:]:
            stands[find(other)] = find(values[0])
    # The pieces that a TPU puts one after the other lie in the memory of the whole.
    for owner in module.running():
        for item in map(module.all.__getitem__, module.body[owner]):
            for operand in item.operands if item.target == "ConcatBitcast" else ():
                for value in holds.get((operand, 0), set()):
                    stands[find(value)] = find((item.id, 0))
    roots = {find(leaf) for leaf in stands}
    return Counter(module.all[instruction].leaves[place] for instruction, place in roots)


def main() -> None:
    from jaxlib import _hlo

    with open(sys.argv[1], encoding="utf-8") as file:
        module = Module(_hlo.hlo_module_from_text(file.read()).as_serialized_hlo_module_proto())
    json.dump(sorted(buffers(module).items()), sys.stdout)


if __name__ == "__main__":
    main()
