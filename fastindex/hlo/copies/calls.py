"""Call graph of a module: which computations run, the call sites of each, and how often it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Calls:
    """The computations of a module that run, with their call sites.

    Attributes
    ----------
    computations : list of Computation
        In the order in which they are first reached; the entry computation is the first.
    sites : dict of str to list of CallSite
        Call sites of each computation, by its name.
    steps : int
        Number of instructions in the schedule, counting the body of a loop once.
    """

    computations: list[Computation] = field(default_factory=list)
    sites: dict[str, list[CallSite]] = field(default_factory=dict)
    steps: int = 0
    _fused: set[str] = field(default_factory=set)
    _callees: dict[str, list[tuple[CallSite, Computation]]] = field(default_factory=dict)
    _trips: dict[str, int | None] = field(default_factory=dict)
    _begins: dict[str, tuple[int, list[tuple[int, int]]]] = field(default_factory=dict)

    def is_fused(self, computation: Computation) -> bool:
        """Whether a computation is the body of a fusion, nested fusions included."""
        return computation.name in self._fused

    def callees(self, computation: Computation, place: int) -> list[Computation]:
        """Return the computations that an instruction calls."""
        return [callee for site, callee in self._callees.get(computation.name, ()) if site.place == place]

    def is_looped(self, computation: Computation) -> bool:
        """Whether a computation runs inside a loop."""
        for _ in range(_DEEPEST):
            sites = self.sites.get(computation.name)
            if not sites:
                return False
            if sites[0].role in ("body", "condition"):
                return True
            computation = sites[0].computation
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
        total: int | None = 0 if self.sites.get(name) else 1
        # None while this count is computed: computations in a call cycle have no count.
        self._trips[name] = None
        for site in self.sites.get(name, ()):
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


def find_calls(module: Module) -> Calls:
    """Follow the calls of a module from its entry."""
    calls = Calls()
    entry = module.entry
    if entry is None:
        return calls
    waiting = [entry]
    known = {entry.name}
    while waiting:
        computation = waiting.pop()
        calls.computations.append(computation)
        calls._callees[computation.name] = _calls_of(module, computation)
        for site, callee in calls._callees[computation.name]:
            calls.sites.setdefault(callee.name, []).append(site)
            if site.role == "fused":
                calls._fused.add(callee.name)
            if callee.name not in known:
                known.add(callee.name)
                waiting.append(callee)
    calls.steps = calls._place(entry, 0, 0)
    return calls


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
