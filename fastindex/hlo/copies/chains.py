"""Where the operand of a copy gets its layout, and who wants the other one: chains through what passes values on."""

from __future__ import annotations

from dataclasses import dataclass

from fastindex.hlo.computations import Computation
from fastindex.hlo.copies.calls import Calls
from fastindex.hlo.copies.trips import is_unchanged
from fastindex.hlo.modules import Module

#: How far to follow a chain, and how many instructions to look at for consumers.
_FURTHEST = 400
#: Opcodes whose result is their first operand, in the same layout.
_THROUGH = frozenset(
    ("bitcast", "copy-start", "copy-done", "opt-barrier", "domain", "add-dependency", "async-done", "async-update")
)
#: Opcodes whose result is a part of their first operand, in the same layout.
_SLICES = frozenset(("slice", "dynamic-slice"))

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from.

    Attributes
    ----------
    kind : str
        "argument", "constant" or "instruction".
    computation, place : Computation, int
        The instruction that defines it.
    path : tuple of int
        The element of its tuple.
    chain : tuple of str
        The instructions on the way back to it, nearest first.
    carry : str
        The loop that carries it, and the element: "while.4, element 1"; or "".
    is_invariant : bool
        Whether the innermost loop around the copy passes it on unchanged.
    is_sliced : bool
        Whether it is a part of what is there.
    """

    kind: str
    computation: Computation
    place: int
    path: Path
    chain: tuple[str, ...]
    carry: str = ""
    is_invariant: bool = False
    is_sliced: bool = False


@dataclass(frozen=True, slots=True)
class Consumer:
    """Who wants a value in its layout.

    Attributes
    ----------
    kind : str
        "instruction", "result" (of the program), "loop carry" or "branch".
    computation, place : Computation, int
        The instruction.
    path : tuple of int
        The element of the result or of the carry.
    """

    kind: str
    computation: Computation
    place: int
    path: Path = ()


class Chains:
    """Follows values through a module."""

    def __init__(self, module: Module, calls: Calls) -> None:
        self._module = module
        self._calls = calls
        self._names: dict[str, list[str]] = {}
        self._users: dict[str, dict[int, list[int]]] = {}

    def name(self, computation: Computation, place: int) -> str:
        """Return the name of an instruction."""
        names = self._names.get(computation.name)
        if names is None:
            names = self._names[computation.name] = computation.names()
        return names[place]

    def users(self, computation: Computation, place: int) -> list[int]:
        """Return the instructions of a computation that take the result of one."""
        users = self._users.get(computation.name)
        if users is None:
            users = self._users[computation.name] = {}
            for user in range(len(computation)):
                for operand in dict.fromkeys(computation.operands(user)):
                    users.setdefault(operand, []).append(user)
        return users.get(place, [])

    def origin(self, computation: Computation, place: int, passes: frozenset[tuple[str, int]]) -> Origin:
        """Follow a value back to where its layout comes from.

        Parameters
        ----------
        computation, place : Computation, int
            The instruction whose result it is.
        passes : frozenset of (str, int)
            The copies that keep the layout, by computation and place.
        """
        path: Path = ()
        chain: list[str] = []
        carry, is_invariant, is_sliced = "", False, False
        for _ in range(_FURTHEST):
            opcode, operands = computation.opcodes[place], computation.operands(place)
            first = operands[0] if len(operands) else -1
            chain.append(self.name(computation, place))
            step: tuple[Computation, int, Path] | None = None
            if opcode == "parameter":
                step = self._argument(computation, place, path)
                role = self._role(computation)
                if step is not None and role in ("body", "condition"):
                    element = path[0] if path else 0
                    # Slices are of another part in each trip.
                    is_still = role == "body" and not carry and not is_sliced
                    is_invariant = is_invariant or (is_still and is_unchanged(computation, element))
                    carry = carry or self._carry_text(computation, element)
            elif first < 0:
                pass
            elif opcode == "get-tuple-element":
                step = computation, first, (computation.details[place].number, *path)
            elif opcode == "tuple" and path and 0 <= path[0] < len(operands) and operands[path[0]] >= 0:
                step = computation, operands[path[0]], path[1:]
            elif opcode == "while" and path:
                carry = carry or f"{self.name(computation, place)}, element {path[0]}"
                step = computation, first, path
            elif opcode in _THROUGH or (opcode == "copy" and (computation.name, place) in passes):
                step = computation, first, path
            elif carry:
                # What a loop begins with is not what it carries.
                pass
            elif opcode in _SLICES:
                step, is_sliced = (computation, first, path), True
            elif opcode == "fusion" and not path:
                step = self._sliced_operand(computation, place)
                is_sliced = is_sliced or step is not None
            if step is None:
                break
            computation, place, path = step
        opcode = computation.opcodes[place]
        kind = "instruction"
        if opcode == "parameter" and not self._calls.sites.get(computation.name):
            kind = "argument"
        elif opcode in ("constant", "iota"):
            kind = "constant"
        return Origin(kind, computation, place, path, tuple(dict.fromkeys(chain)), carry, is_invariant, is_sliced)

    def _sliced_operand(self, computation: Computation, place: int) -> tuple[Computation, int, Path] | None:
        """Return the operand of a fusion that does nothing but slice it; None for another fusion."""
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

    def _role(self, computation: Computation) -> str:
        sites = self._calls.sites.get(computation.name)
        return sites[0].role if sites else ""

    def _carry_text(self, computation: Computation, element: int) -> str:
        site = self._calls.sites[computation.name][0]
        return f"{self.name(site.computation, site.place)}, element {element}"

    def _argument(self, computation: Computation, place: int, path: Path) -> tuple[Computation, int, Path] | None:
        """Return what a call gives for a parameter; None for one of the entry."""
        sites = self._calls.sites.get(computation.name)
        if not sites:
            return None
        site = sites[0]
        operands = site.computation.operands(site.place)
        number = computation.details[place].number
        if site.role in ("body", "condition"):
            number = 0
        elif site.role == "branch":
            number = site.number + 1
        if not 0 <= number < len(operands) or operands[number] < 0:
            return None
        return site.computation, operands[number], path

    def consumers(self, computation: Computation, place: int, passes: frozenset[tuple[str, int]]) -> list[Consumer]:
        """Follow a value to the instructions that take it, through those that pass it on."""
        found: dict[tuple[str, int, Path], Consumer] = {}
        waiting: list[tuple[Computation, int, Path]] = [(computation, place, ())]
        seen: set[tuple[str, int, Path]] = {(computation.name, place, ())}
        for _ in range(_FURTHEST):
            if not waiting:
                break
            here, value, path = waiting.pop(0)
            steps: list[tuple[Computation, int, Path]] = []
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

    def _leave(
        self, computation: Computation, path: Path, found: dict[tuple[str, int, Path], Consumer]
    ) -> list[tuple[Computation, int, Path]]:
        """Follow the root of a computation to the instruction that calls it."""
        sites = self._calls.sites.get(computation.name)
        if not sites:
            _add(found, Consumer("result", computation, computation.root, path))
            return []
        site = sites[0]
        if site.role == "body":
            _add(found, Consumer("loop carry", site.computation, site.place, path))
            return []
        if site.role == "condition":
            return []
        if site.role == "branch":
            _add(found, Consumer("branch", site.computation, site.place, path))
            return []
        return [(site.computation, site.place, path)]

    def _use(
        self,
        computation: Computation,
        user: int,
        value: int,
        path: Path,
        passes: frozenset[tuple[str, int]],
        found: dict[tuple[str, int, Path], Consumer],
    ) -> list[tuple[Computation, int, Path]]:
        """Return where a value goes on to from an instruction that takes it; otherwise note that this one wants it."""
        opcode = computation.opcodes[user]
        if opcode in _THROUGH or (opcode == "copy" and (computation.name, user) in passes):
            return [(computation, user, path)]
        if opcode == "tuple":
            places = [number for number, operand in enumerate(computation.operands(user)) if operand == value]
            return [(computation, user, (number, *path)) for number in places]
        if opcode == "get-tuple-element":
            taken = path and path[0] == computation.details[user].number
            return [(computation, user, path[1:])] if taken else []
        if opcode == "call" and computation.details[user].callees:
            return self._enter(computation, user, value, path)
        kind = {"while": "loop carry", "conditional": "branch"}.get(opcode, "instruction")
        _add(found, Consumer(kind, computation, user, path if kind == "loop carry" else ()))
        return []

    def _enter(
        self, computation: Computation, user: int, value: int, path: Path
    ) -> list[tuple[Computation, int, Path]]:
        callee = self._module.computations.get(computation.details[user].callees[0])
        if callee is None:
            return []
        numbers = {number for number, operand in enumerate(computation.operands(user)) if operand == value}
        return [
            (callee, place, path)
            for place, opcode in enumerate(callee.opcodes)
            if opcode == "parameter" and callee.details[place].number in numbers
        ]


def _add(found: dict[tuple[str, int, Path], Consumer], consumer: Consumer) -> None:
    found.setdefault((consumer.computation.name, consumer.place, consumer.path), consumer)
