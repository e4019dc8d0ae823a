"""Call graph of a module: which computations run, the call sites of each, and how often it runs.

The trip count of a loop is XLA's own, or derived from the condition, the initial values and the body. A counted loop
compares an integer counter with an integer limit: ``compare(counter, limit), direction=LT``. The counter starts at a
constant and the body adds a constant; the limit is a constant, possibly carried unchanged by the loop. Any other loop
has an unknown trip count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastindex.hlo.computations import Computation
from fastindex.hlo.modules import Module

#: Limit on the instructions followed to reach a constant.
_FURTHEST = 100
#: Opcodes that pass a scalar on unchanged.
_PASSING = frozenset(("copy", "bitcast", "reshape", "convert", "copy-done", "copy-start", "opt-barrier", "broadcast"))
_FLIPPED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


@dataclass(frozen=True, slots=True)
class _Sum:
    """An integer: an element of the loop's carry, if any, plus a constant."""

    element: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class _Scope:
    """A computation with its call site, to resolve the parameters of fusions and calls."""

    computation: Computation
    outer: _Scope | None = None
    place: int = -1


def loop_trips(module: Module, computation: Computation, place: int) -> int | None:
    """Return how often the body of the ``while`` at a position runs; None if unknown."""
    known = computation.facts.get(place)
    if isinstance(known, int):
        return known
    callees = [module.computations.get(name) for name in computation.details[place].callees]
    if len(callees) != 2 or callees[0] is None or callees[1] is None:
        return None
    return _Loop(module, computation, place, callees[0], callees[1]).trips()


def is_unchanged(body: Computation, element: int) -> bool:
    """Whether the body of a loop passes an element of its carry through unchanged."""
    place = _element(body, body.root, element)
    for _ in range(_FURTHEST):
        if not 0 <= place < len(body):
            return False
        operands = body.operands(place)
        if body.opcodes[place] == "get-tuple-element":
            is_carry = len(operands) > 0 and operands[0] >= 0 and body.opcodes[operands[0]] == "parameter"
            return is_carry and body.details[place].number == element
        if body.opcodes[place] not in ("copy", "bitcast", "opt-barrier") or not len(operands):
            return False
        place = operands[0]
    return False


def _count(begin: int, limit: int, step: int, direction: str) -> int | None:
    """Return how often a counter passes the test; None if it passes until overflow, or for other comparisons."""
    if direction == "NE":
        trips = divmod(limit - begin, step) if step else (0, begin != limit)
        return trips[0] if not trips[1] and trips[0] >= 0 else None
    if direction in ("GT", "GE"):
        begin, limit, step = -begin, -limit, -step
    elif direction not in ("LT", "LE"):
        return None
    left = limit - begin + (direction in ("LE", "GE"))
    if left <= 0:
        return 0
    return -(-left // step) if step > 0 else None


def _element(computation: Computation, place: int, element: int) -> int:
    """Return the position of the operand for a tuple element; -1 if there is no such tuple or element."""
    if not 0 <= place < len(computation) or computation.opcodes[place] != "tuple":
        return -1
    operands = computation.operands(place)
    return operands[element] if 0 <= element < len(operands) else -1


class _Loop:
    """A loop, and the remaining budget of instructions to follow."""

    def __init__(
        self, module: Module, computation: Computation, place: int, condition: Computation, body: Computation
    ) -> None:
        self._module = module
        self._computation = computation
        self._place = place
        self._condition = condition
        self._body = body
        self._left = _FURTHEST

    def trips(self) -> int | None:
        test = self._comparison()
        if test is None:
            return None
        scope, compared, direction = test
        sides = [self._evaluate(scope, operand) for operand in scope.computation.operands(compared)]
        counter, limit = sides if len(sides) == 2 else (None, None)
        if counter is None or limit is None:
            return None
        if counter.element is None or (limit.element is not None and is_unchanged(self._body, counter.element)):
            counter, limit, direction = limit, counter, _FLIPPED.get(direction, "")
        if counter.element is None:
            return None
        last, begin, step = self._limit(limit), self._initial(counter.element), self._step(counter.element)
        if last is None or begin is None or step is None:
            return None
        return _count(begin + counter.offset, last, step, direction)

    def _comparison(self) -> tuple[_Scope, int, str] | None:
        """Return the comparison that the condition evaluates, through copies and fusions."""
        scope, place = _Scope(self._condition), self._condition.root
        for _ in range(_FURTHEST):
            computation = scope.computation
            if not 0 <= place < len(computation):
                return None
            if computation.opcodes[place] == "compare":
                direction = computation.facts.get(place)
                return (scope, place, direction) if isinstance(direction, str) else None
            inner = self._inner(scope, place)
            if inner is not None:
                scope, place = inner, inner.computation.root
                continue
            operands = computation.operands(place)
            if computation.opcodes[place] not in _PASSING or not len(operands):
                return None
            place = operands[0]
        return None

    def _inner(self, scope: _Scope, place: int) -> _Scope | None:
        """Return the computation that a fusion or call runs."""
        if scope.computation.opcodes[place] not in ("fusion", "call"):
            return None
        callees = scope.computation.details[place].callees
        callee = self._module.computations.get(callees[0]) if callees else None
        return _Scope(callee, scope, place) if callee is not None else None

    def _evaluate(self, scope: _Scope, place: int) -> _Sum | None:
        """Return an integer value as a sum over the parameter of the outermost scope."""
        self._left -= 1
        computation = scope.computation
        if self._left < 0 or not 0 <= place < len(computation):
            return None
        opcode, operands = computation.opcodes[place], computation.operands(place)
        if opcode == "constant":
            value = computation.facts.get(place)
            return _Sum(None, value) if isinstance(value, int) else None
        if opcode == "parameter":
            return self._evaluate_parameter(scope, computation.details[place].number)
        if opcode == "get-tuple-element":
            is_carry = len(operands) > 0 and operands[0] >= 0 and computation.opcodes[operands[0]] == "parameter"
            return _Sum(computation.details[place].number, 0) if is_carry and scope.outer is None else None
        if opcode in ("add", "subtract") and len(operands) == 2:
            left, right = (self._evaluate(scope, operand) for operand in operands)
            return _sum(left, right, -1 if opcode == "subtract" else 1)
        inner = self._inner(scope, place)
        if inner is not None:
            return self._evaluate(inner, inner.computation.root)
        return self._evaluate(scope, operands[0]) if opcode in _PASSING and len(operands) else None

    def _evaluate_parameter(self, scope: _Scope, number: int) -> _Sum | None:
        if scope.outer is None:
            return None
        given = scope.outer.computation.operands(scope.place)
        return self._evaluate(scope.outer, given[number]) if 0 <= number < len(given) else None

    def _step(self, element: int) -> int | None:
        found = self._evaluate(_Scope(self._body), _element(self._body, self._body.root, element))
        return found.offset if found is not None and found.element == element else None

    def _initial(self, element: int) -> int | None:
        operands = self._computation.operands(self._place)
        begin = _element(self._computation, operands[0], element) if len(operands) else -1
        found = self._evaluate(_Scope(self._computation), begin) if begin >= 0 else None
        return found.offset if found is not None and found.element is None else None

    def _limit(self, limit: _Sum) -> int | None:
        if limit.element is None:
            return limit.offset
        begin = self._initial(limit.element) if is_unchanged(self._body, limit.element) else None
        return begin + limit.offset if begin is not None else None


def _sum(left: _Sum | None, right: _Sum | None, sign: int) -> _Sum | None:
    if left is None or right is None or (right.element is not None and (sign < 0 or left.element is not None)):
        return None
    element = left.element if left.element is not None else right.element
    return _Sum(element, left.offset + sign * right.offset)


#: Depth limit on nested computations; a cycle of calls would never end.
_DEEPEST = 200
_CALLERS = ("while", "conditional", "call", "fusion", "custom-call")


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
        #: The first step of a computation, the places of its calls, and the steps that these have taken by then.
        self._begins: dict[str, tuple[int, list[int], list[int]]] = {}
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
        return any(site.role in ("body", "condition") for site in self._outer_sites(computation))

    def is_on_host(self, computation: Computation) -> bool:
        """Whether the host of a TPU runs a computation."""
        return any(site.computation.opcodes[site.place] == "custom-call" for site in self._outer_sites(computation))

    def _outer_sites(self, computation: Computation) -> Iterator[CallSite]:
        """Yield the first call site of a computation, that of its caller, and so on."""
        site = self.site(computation)
        for _ in range(_DEEPEST):
            if site is None:
                return
            yield site
            site = self.site(site.computation)

    def trips(self, computation: Computation) -> int | None:
        """Return how often a computation runs; None if unknown."""
        return self._count(computation.name, 0)

    def step(self, computation: Computation, place: int) -> int:
        """Return the schedule step at which an instruction (or the fusion that contains it) first runs."""
        begin, places, taken = self._begins.get(computation.name, (0, [], [0]))
        if self.is_fused(computation):
            return begin
        return begin + place + taken[bisect_left(places, place)]

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
        places: list[int] = []
        taken = [0]
        self._begins[computation.name] = begin, places, taken
        for site, callee in self._callees.get(computation.name, ()) if depth < _DEEPEST else ():
            if callee.name in self._begins:
                continue
            length = self._place(callee, begin + site.place + taken[-1], depth + 1)
            if site.role != "fused":
                places.append(site.place)
                taken.append(taken[-1] + length)
        return len(computation) + taken[-1]


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
