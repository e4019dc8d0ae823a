"""Call graph of a module: which computations run, the call sites of each, and how often it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastindex.hlo.computations import Computation
from fastindex.hlo.copies.trips import loop_trips
from fastindex.hlo.modules import Module

#: Depth limit on nested computations; a cycle of calls would never end.
_DEEPEST = 200
_CALLERS = ("while", "conditional", "call", "fusion")


@dataclass(frozen=True, slots=True)
class CallSite:
    """An instruction that calls a computation.

    Attributes
    ----------
    computation, place : Computation, int
        The calling instruction: its computation, and its position there.
    role : str
        "body", "condition", "branch", "fused" or "called".
    number : int
        Position among the computations that the instruction calls; for a branch, its number.
    trips : int or None
        Executions of the computation per execution of the instruction; None if unknown.
    """

    computation: Computation
    place: int
    role: str
    number: int = 0
    trips: int | None = 1


class Calls:
    """The computations of a module that run, with their call sites.

    Attributes
    ----------
    computations : list of Computation
        In the order in which they are first reached; the entry computation is the first.
    steps : int
        Number of instructions in the schedule, counting the body of a loop once.
    """

    def __init__(self, module: Module) -> None:
        self.computations: list[Computation] = []
        self._sites: dict[str, list[CallSite]] = {}
        self._fused: set[str] = set()
        self._callees: dict[str, list[tuple[CallSite, Computation]]] = {}
        self._trips: dict[str, int | None] = {}
        self._begins: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        entry = module.entry
        if entry is not None:
            self._follow(module, entry)
        self.steps = 0 if entry is None else self._place(entry, 0, 0)

    def site(self, computation: Computation) -> CallSite | None:
        """Return the first call site of a computation; None for the entry computation."""
        sites = self._sites.get(computation.name)
        return sites[0] if sites else None

    def _follow(self, module: Module, entry: Computation) -> None:
        waiting = [entry]
        known = {entry.name}
        while waiting:
            computation = waiting.pop()
            self.computations.append(computation)
            found = self._callees[computation.name] = _calls_of(module, computation)
            for site, callee in found:
                self._sites.setdefault(callee.name, []).append(site)
                if site.role == "fused":
                    self._fused.add(callee.name)
                if callee.name not in known:
                    known.add(callee.name)
                    waiting.append(callee)

    def is_fused(self, computation: Computation) -> bool:
        """Whether a computation is the body of a fusion, nested fusions included."""
        return computation.name in self._fused

    def callees(self, computation: Computation, place: int) -> list[Computation]:
        """Return the computations that an instruction calls."""
        return [callee for site, callee in self._callees.get(computation.name, ()) if site.place == place]

    def is_looped(self, computation: Computation) -> bool:
        """Whether a computation runs inside a loop."""
        for _ in range(_DEEPEST):
            site = self.site(computation)
            if site is None:
                return False
            if site.role in ("body", "condition"):
                return True
            computation = site.computation
        return False

    def trips(self, computation: Computation) -> int | None:
        """Return how often a computation runs; None if unknown."""
        return self._count(computation.name, 0)

    def step(self, computation: Computation, place: int) -> int:
        """Return the schedule step at which an instruction (or the fusion that contains it) first runs."""
        begin, inner = self._begins.get(computation.name, (0, []))
        if self.is_fused(computation):
            return begin
        return begin + place + sum(length for before, length in inner if before < place)

    def _count(self, name: str, depth: int) -> int | None:
        if name in self._trips:
            return self._trips[name]
        if depth > _DEEPEST:
            return None
        total: int | None = 0 if self._sites.get(name) else 1
        # None while this count is computed: computations in a call cycle have no count.
        self._trips[name] = None
        for site in self._sites.get(name, ()):
            outer = self._count(site.computation.name, depth + 1)
            if total is None or outer is None or site.trips is None:
                total = None
                break
            total += outer * site.trips
        self._trips[name] = total
        return total

    def _place(self, computation: Computation, begin: int, depth: int) -> int:
        """Assign schedule steps to the computations called by one; return its length in steps, calls included."""
        inner: list[tuple[int, int]] = []
        self._begins[computation.name] = begin, inner
        more = 0
        for site, callee in self._callees.get(computation.name, ()) if depth < _DEEPEST else ():
            if callee.name in self._begins:
                continue
            length = self._place(callee, begin + site.place + more, depth + 1)
            if site.role != "fused":
                inner.append((site.place, length))
                more += length
        return len(computation) + more


def _calls_of(module: Module, computation: Computation) -> list[tuple[CallSite, Computation]]:
    found = []
    for place, details in enumerate(computation.details):
        opcode = computation.opcodes[place]
        if not details.callees or not (opcode in _CALLERS or opcode.endswith(("-start", "-update"))):
            continue
        callees = [module.computations.get(name) for name in details.callees]
        if opcode == "while":
            trips = loop_trips(module, computation, place)
            roles: Sequence[tuple[str, int | None]] = (
                ("condition", None if trips is None else trips + 1),
                ("body", trips),
            )
        else:
            role = {"conditional": "branch", "fusion": "fused"}.get(opcode, "called")
            roles = [(role, 1)] * len(callees)
        for number, (callee, (role, count)) in enumerate(zip(callees, roles, strict=False)):
            if callee is not None:
                found.append((CallSite(computation, place, role, number, count), callee))
    return found
