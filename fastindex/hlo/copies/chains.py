"""Trace a copy's layout to its producer and its consumers through pass-through instructions.

    parameter 0 -> get-tuple-element -> bitcast -> COPY -> bitcast -> dot
    origin         (passed through)                        (passed)   consumer

The origin is the instruction that decides the layout of the copy's operand. The consumers are the instructions that
take the copy's result. Chains cross calls, loops, branches and asynchronous calls.

A copy inside a fusion reads and writes those of the fusion's operands and results that it is connected with.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import cache

from fastindex.hlo.computations import Computation
from fastindex.hlo.copies.calls import Calls, is_unchanged
from fastindex.hlo.flow_rules import RULES, rule_of
from fastindex.hlo.modules import Module
from fastindex.hlo.shape_table import Sizes

#: Limit on the length of a chain, and on the instructions visited when searching for consumers.
_FURTHEST = 400
#: Opcodes whose result is their first operand, in the same layout.
_THROUGH = frozenset(("bitcast", "copy-start", "copy-done", "opt-barrier", "domain", "add-dependency"))
#: Opcodes that pass their operand through if they move no data.
_MAY_PASS = frozenset(("copy", "reshape", "transpose"))
#: Opcodes whose result is a part of their first operand, in the same layout.
_SLICES = frozenset(("slice", "dynamic-slice"))

Path = tuple[int, ...]
#: An instruction (computation and position), and the path to an element of its result tuple.
_Step = tuple[Computation, int, Path]


@dataclass(slots=True)
class Origin:
    """The producer of a value, where its layout is decided; while it is searched, the instruction reached so far.

    Attributes
    ----------
    computation, place : Computation, int
        The instruction that defines the value.
    path : tuple of int
        Path to the value within the instruction's result tuple.
    kind : str
        "argument", "constant" or "instruction".
    chain : list of str
        Names of the instructions between the value and its origin, nearest to the value first.
    carry : str
        The loop that carries the value, and the element: "while.4, element 1"; or "".
    is_invariant : bool
        Whether the innermost loop around the copy carries the value unchanged.
    is_sliced : bool
        Whether the value is a slice of the result of the origin.
    is_changed : bool
        Whether that loop changes the value: the origin is then only the initial value of the carry.
    """

    computation: Computation
    place: int
    path: Path = ()
    kind: str = "instruction"
    chain: list[str] = field(default_factory=list)
    carry: str = ""
    is_invariant: bool = False
    is_sliced: bool = False
    is_changed: bool = False


@dataclass(frozen=True, slots=True)
class Consumer:
    """An instruction that takes a value in its layout.

    Attributes
    ----------
    kind : str
        "instruction", "result" (of the program), "loop carry" or "branch".
    computation, place : Computation, int
        The instruction.
    path : tuple of int
        Path to the element of the result or of the carry.
    """

    kind: str
    computation: Computation
    place: int
    path: Path = ()


class Chains:
    """Traces values through a module, backward to their origins and forward to their consumers.

    Parameters
    ----------
    module : Module
    calls : Calls
    sizes : Sizes
    """

    def __init__(self, module: Module, calls: Calls, sizes: Sizes) -> None:
        self._module = module
        self._calls = calls
        self._sizes = sizes
        self._names = cache(Computation.names)
        self._users = cache(_Users)

    def name(self, computation: Computation, place: int) -> str:
        """Return the name of an instruction."""
        return self._names(computation)[place]

    def users(self, computation: Computation, place: int) -> list[int]:
        """Return the instructions of a computation that have a given one as an operand."""
        return self._users(computation).of(place)

    def origin(self, computation: Computation, place: int, passes: frozenset[tuple[str, int]]) -> Origin:
        """Trace a value back to the instruction that decides its layout.

        Parameters
        ----------
        computation, place : Computation, int
            The instruction whose result is traced.
        passes : frozenset of (str, int)
            Copies, reshapes and transposes that keep the layout, by computation name and position.
        """
        found = Origin(computation, place)
        for _ in range(_FURTHEST):
            found.chain.append(self.name(found.computation, found.place))
            step = self._before(found, passes)
            if step is None:
                break
            found.computation, found.place, found.path = step
        found.chain = list(dict.fromkeys(found.chain))
        opcode = found.computation.opcodes[found.place]
        if opcode == "parameter" and self._calls.site(found.computation) is None:
            found.kind = "argument"
        elif opcode in ("constant", "iota"):
            found.kind = "constant"
        return found

    def _before(self, found: Origin, passes: frozenset[tuple[str, int]]) -> _Step | None:
        """Return the value that an instruction passes through; None if the layout is decided here."""
        computation, place, path = found.computation, found.place, found.path
        opcode, operands = computation.opcodes[place], computation.operands(place)
        first = operands[0] if len(operands) else -1
        if opcode == "parameter":
            return self._before_parameter(found)
        if opcode == "call":
            return self._before_call(computation, place, path)
        if first < 0:
            return None
        if opcode == "get-tuple-element":
            return computation, first, (computation.details[place].number, *path)
        if opcode == "tuple":
            is_there = path and 0 <= path[0] < len(operands) and operands[path[0]] >= 0
            return (computation, operands[path[0]], path[1:]) if is_there else None
        if opcode == "while" and path:
            self._carried(found, computation, place, path[0])
            return computation, first, path
        if opcode in _THROUGH or (opcode in _MAY_PASS and (computation.name, place) in passes):
            # XLA also writes a bitcast for a leading slice of an array.
            if opcode == "bitcast" and 0 <= self._sizes.element_count(computation, place) < self._sizes.element_count(
                computation, first
            ):
                found.is_sliced = True
            return computation, first, path
        if (called := self._before_async(computation, place, path)) is not None:
            return called
        if found.carry:
            # The initial value of a carry is not the value carried later: stop here.
            return None
        return self._before_part(found, passes, first)

    def _before_parameter(self, found: Origin) -> _Step | None:
        computation, path = found.computation, found.path
        step = self.argument(computation, found.place, path)
        site = self._calls.site(computation)
        if step is not None and site is not None and site.role in ("body", "condition"):
            element = path[0] if path else 0
            # A slice in a loop usually takes a different part in each trip.
            is_still = site.role == "body" and not found.carry and not found.is_sliced
            found.is_invariant = found.is_invariant or (is_still and is_unchanged(computation, element))
            self._carried(found, site.computation, site.place, element)
        return step

    def _carried(self, found: Origin, computation: Computation, place: int, element: int) -> None:
        """Record a loop that carries the value; the innermost loop that changes it takes precedence."""
        names = computation.details[place].callees
        body = self._module.computations.get(names[1]) if len(names) > 1 else None
        is_changed = body is None or not is_unchanged(body, element)
        text = f"{self.name(computation, place)}, element {element}"
        if is_changed and not found.is_changed:
            found.carry, found.is_changed = text, True
        found.carry = found.carry or text

    def _before_call(self, computation: Computation, place: int, path: Path) -> _Step | None:
        """Return the root of the called computation; None if its parameters are those of another call."""
        callees = computation.details[place].callees
        callee = self._module.computations.get(callees[0]) if callees else None
        site = self._calls.site(callee) if callee is not None and len(callee) else None
        if callee is None or site is None or site.computation is not computation or site.place != place:
            return None
        return callee, callee.root, path

    def _before_async(self, computation: Computation, place: int, path: Path) -> _Step | None:
        """Return the input of an asynchronous instruction, whose result is {operands, result, contexts}."""
        opcode, operands = computation.opcodes[place], computation.operands(place)
        details = computation.details[place]
        if opcode.endswith("-done") and rule_of(opcode) is RULES["async-done"]:
            return computation, operands[0], (1, *path)
        if not details.callees or not path or not opcode.endswith(("-start", "-update")):
            is_update = opcode.endswith("-update") and rule_of(opcode) is RULES["async-update"]
            return (computation, operands[0], path) if is_update else None
        callee = self._module.computations.get(details.callees[0])
        if path[0] == 1 and callee is not None and len(callee):
            return callee, callee.root, path[1:]
        bound = operands[1:] if opcode.endswith("-update") else operands
        if path[0] == 0 and len(path) > 1 and 0 <= path[1] < len(bound) and bound[path[1]] >= 0:
            return computation, bound[path[1]], path[2:]
        return None

    def _before_part(self, found: Origin, passes: frozenset[tuple[str, int]], first: int) -> _Step | None:
        """Return the array that a value is a slice of, or that was assembled from its slices."""
        computation, place, path = found.computation, found.place, found.path
        opcode = computation.opcodes[place]
        step: _Step | None = None
        if opcode in _SLICES:
            step = computation, first, path
            found.is_sliced = True
        elif opcode == "fusion" and not path:
            step = self._sliced_operand(computation, place)
            found.is_sliced = found.is_sliced or step is not None
        elif opcode == "custom-call" and computation.details[place].kind == "ConcatBitcast":
            operands = computation.operands(place)
            parts = [self.origin(computation, operand, passes) for operand in operands if operand >= 0]
            wholes = {(part.computation.name, part.place, part.path) for part in parts}
            if len(wholes) == 1 and len(parts) == len(operands) and not any(part.carry for part in parts):
                found.chain += [name for part in parts for name in part.chain]
                step = parts[0].computation, parts[0].place, parts[0].path
        return step

    def _sliced_operand(self, computation: Computation, place: int) -> _Step | None:
        """Return the operand of a fusion that only slices it; None for any other fusion."""
        names = computation.details[place].callees
        inner = self._module.computations.get(names[0]) if names else None
        operands = computation.operands(place)
        value = inner.root if inner is not None else -1
        for _ in range(_FURTHEST):
            if inner is None or not 0 <= value < len(inner):
                return None
            if inner.opcodes[value] == "parameter":
                number = inner.details[value].number
                return (computation, operands[number], ()) if 0 <= number < len(operands) else None
            given = inner.operands(value)
            if inner.opcodes[value] not in (*_SLICES, "bitcast") or not len(given):
                return None
            value = given[0]
        return None

    def argument(self, computation: Computation, place: int, path: Path = ()) -> _Step | None:
        """Return the operand that a call site binds to a parameter; None for a parameter of the entry computation."""
        site = self._calls.site(computation)
        if site is None:
            return None
        operands = site.computation.operands(site.place)
        number = computation.details[place].number
        if site.computation.opcodes[site.place].endswith("-update"):
            # The first operand is the asynchronous call itself.
            number += number >= 0
        elif site.role in ("body", "condition"):
            number = 0
        elif site.role == "branch":
            number = site.number + 1
        if not 0 <= number < len(operands) or operands[number] < 0:
            return None
        return site.computation, operands[number], path

    def consumers(self, computation: Computation, place: int, passes: frozenset[tuple[str, int]]) -> list[Consumer]:
        """Follow a value forward to its consumers, through pass-through instructions."""
        found: dict[tuple[str, int, Path], Consumer] = {}
        waiting: list[_Step] = [(computation, place, ())]
        seen: set[tuple[str, int, Path]] = {(computation.name, place, ())}
        for _ in range(_FURTHEST):
            if not waiting:
                break
            here, value, path = waiting.pop(0)
            steps: list[_Step] = []
            if value == here.root:
                steps += self._leave(here, path, found)
            for user in self.users(here, value):
                steps += self._use(here, user, value, path, passes, found)
            for step in steps:
                key = step[0].name, step[1], step[2]
                if key not in seen:
                    seen.add(key)
                    waiting.append(step)
        return list(found.values())

    def _leave(self, computation: Computation, path: Path, found: dict[tuple[str, int, Path], Consumer]) -> list[_Step]:
        """Step from the root of a computation to its call site, or record a consumer there."""
        site = self._calls.site(computation)
        if site is None:
            _add(found, Consumer("result", computation, computation.root, path))
            return []
        if site.role in ("body", "condition", "branch"):
            if site.role != "condition":
                kind = "loop carry" if site.role == "body" else "branch"
                _add(found, Consumer(kind, site.computation, site.place, path))
            return []
        # The result is element 1 of the tuple of an asynchronous start.
        is_async = site.computation.opcodes[site.place].endswith(("-start", "-update"))
        return [(site.computation, site.place, (1, *path) if is_async else path)]

    def _use(
        self,
        computation: Computation,
        user: int,
        value: int,
        path: Path,
        passes: frozenset[tuple[str, int]],
        found: dict[tuple[str, int, Path], Consumer],
    ) -> list[_Step]:
        """Return where a user passes a value on to; if it does not, record the user as a consumer."""
        opcode = computation.opcodes[user]
        if opcode in _THROUGH or (opcode in _MAY_PASS and (computation.name, user) in passes):
            return [(computation, user, path)]
        if opcode == "tuple":
            places = [number for number, operand in enumerate(computation.operands(user)) if operand == value]
            return [(computation, user, (number, *path)) for number in places]
        if opcode == "get-tuple-element":
            taken = path and path[0] == computation.details[user].number
            return [(computation, user, path[1:])] if taken else []
        if opcode.endswith("-done") and rule_of(opcode) is RULES["async-done"]:
            return [(computation, user, path[1:])] if path[:1] == (1,) else []
        if opcode.endswith("-update") and value == computation.operands(user)[0]:
            return [(computation, user, path)]
        if computation.details[user].callees and (opcode == "call" or opcode.endswith(("-start", "-update"))):
            return self._enter(computation, user, value, path)
        kind = {"while": "loop carry", "conditional": "branch"}.get(opcode, "instruction")
        _add(found, Consumer(kind, computation, user, path if kind == "loop carry" else ()))
        return []

    def _enter(self, computation: Computation, user: int, value: int, path: Path) -> list[_Step]:
        callee = self._module.computations.get(computation.details[user].callees[0])
        if callee is None:
            return []
        operands = computation.operands(user)
        bound = operands[1:] if computation.opcodes[user].endswith("-update") else operands
        numbers = {number for number, operand in enumerate(bound) if operand == value}
        return [
            (callee, place, path)
            for place, opcode in enumerate(callee.opcodes)
            if opcode == "parameter" and callee.details[place].number in numbers
        ]


class _Users:
    """The users of each instruction of a computation, as lists linked from the last user to the first."""

    def __init__(self, computation: Computation) -> None:
        self._last = array("i", [-1]) * len(computation)
        self._users, self._before = array("i"), array("i")
        for user, operands in enumerate(computation.all_operands()):
            for operand in operands if len(operands) < 2 else dict.fromkeys(operands):
                if operand >= 0:
                    self._before.append(self._last[operand])
                    self._last[operand] = len(self._users)
                    self._users.append(user)

    def of(self, place: int) -> list[int]:
        """Return the users of an instruction, in text order."""
        found, at = [], self._last[place]
        while at >= 0:
            found.append(self._users[at])
            at = self._before[at]
        return found[::-1]


def _add(found: dict[tuple[str, int, Path], Consumer], consumer: Consumer) -> None:
    found.setdefault((consumer.computation.name, consumer.place, consumer.path), consumer)


#: Limit on the instructions visited.
_MOST_VISITED = 1000
#: Opcodes that read only as many bytes of their operand as they return.
_PARTS = frozenset(("slice", "dynamic-slice", "gather"))
_EMPTY = frozenset(("constant", "iota", "broadcast", "partition-id", "replica-id", "rng"))

_UPDATES = frozenset(("dynamic-update-slice", "scatter"))
_INDEXED = _PARTS | _UPDATES


def _updates(opcode: str, operands: Sequence[int]) -> Sequence[int]:
    """Return the update operands; those of a scatter of n arrays follow the n arrays and the indices."""
    return operands[1:2] if opcode == "dynamic-update-slice" else operands[(len(operands) - 1) // 2 + 1 :]


class FusedBytes:
    """Add up the buffers that instructions inside fusions read from and write to."""

    def __init__(self, calls: Calls, chains: Chains, sizes: Sizes) -> None:
        self._calls = calls
        self._chains = chains
        self._sizes = sizes

    def read(self, computation: Computation, place: int) -> int:
        """Return the bytes that the fusion reads to compute the result of an instruction."""
        total = 0
        seen: set[tuple[str, int]] = set()
        waiting = [(computation, place)]
        while waiting and len(seen) < _MOST_VISITED:
            here, value = waiting.pop()
            if value < 0 or (here.name, value) in seen:
                continue
            seen.add((here.name, value))
            opcode = here.opcodes[value]
            if not self._calls.is_fused(here) or opcode in _PARTS:
                total += self._sizes.nbytes(here, value, -1)
            elif opcode == "parameter":
                waiting += self._argument(here, value)
            elif opcode not in _EMPTY:
                waiting += [(here, operand) for operand in here.operands(value)]
        return total

    def follows(self, computation: Computation, place: int, movers: Set[tuple[str, int]]) -> bool:
        """Whether an operand of an instruction depends on one of `movers` within the same fusion."""
        seen: set[tuple[str, int]] = set()
        waiting = [(computation, operand) for operand in computation.operands(place)]
        while waiting and len(seen) < _MOST_VISITED:
            here, value = waiting.pop()
            if value < 0 or (here.name, value) in seen or not self._calls.is_fused(here):
                continue
            if (here.name, value) in movers:
                return True
            seen.add((here.name, value))
            if here.opcodes[value] == "parameter":
                waiting += self._argument(here, value)
            elif here.opcodes[value] == "fusion":
                waiting += [(inner, inner.root) for inner in self._calls.callees(here, value)]
            else:
                waiting += [(here, operand) for operand in here.operands(value)]
        return False

    def written(self, computation: Computation, place: int) -> int:
        """Return the bytes of fusion results that depend on the result of an instruction."""
        total = 0
        seen: set[tuple[str, int, int]] = set()
        waiting = [(computation, place, -1)]
        while waiting and len(seen) < _MOST_VISITED:
            here, value, element = waiting.pop()
            if (here.name, value, element) in seen:
                continue
            seen.add((here.name, value, element))
            if not self._calls.is_fused(here):
                total += self._sizes.nbytes(here, value, element)
                continue
            site = self._calls.site(here)
            if value == here.root and site is not None:
                waiting.append((site.computation, site.place, element))
            for user in self._chains.users(here, value):
                operands = here.operands(user)
                if here.opcodes[user] in _INDEXED and value not in operands[:1]:
                    # An update is written into a larger array: count only the update. Indices are not written.
                    is_update = here.opcodes[user] in _UPDATES and value in _updates(here.opcodes[user], operands)
                    total += self._sizes.nbytes(here, value, -1) if is_update else 0
                elif here.opcodes[user] == "tuple":
                    waiting += [(here, user, number) for number, item in enumerate(operands) if item == value]
                elif here.opcodes[user] == "get-tuple-element":
                    if here.details[user].number == element:
                        waiting.append((here, user, -1))
                else:
                    waiting.append((here, user, -1))
        return total

    def _argument(self, computation: Computation, place: int) -> list[tuple[Computation, int]]:
        step = self._chains.argument(computation, place)
        return [] if step is None else [step[:2]]
