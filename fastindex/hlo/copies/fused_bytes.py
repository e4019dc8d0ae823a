"""What a copy inside a fusion reads and writes: the operands and the results of the fusion, not its own shapes."""

from __future__ import annotations

from collections.abc import Callable

from fastindex.hlo.computations import Computation
from fastindex.hlo.copies.calls import Calls
from fastindex.hlo.copies.chains import Chains

#: How many instructions to look at.
_FURTHEST = 1000
#: Opcodes that read only as much of their operand as they return.
_PARTS = frozenset(("slice", "dynamic-slice", "gather"))
_EMPTY = frozenset(("constant", "iota", "broadcast", "partition-id", "replica-id", "rng"))

#: Bytes of the result of an instruction, and of one element of it if that is at least 0.
NbytesOf = Callable[[Computation, int, int], int]


class FusedBytes:
    """Adds up the buffers that instructions inside fusions come from and go to."""

    def __init__(self, calls: Calls, chains: Chains, nbytes_of: NbytesOf) -> None:
        self._calls = calls
        self._chains = chains
        self._nbytes_of = nbytes_of

    def read(self, computation: Computation, place: int) -> int:
        """Return the bytes that the fusion reads for the result of an instruction."""
        total = 0
        seen: set[tuple[str, int]] = set()
        waiting = [(computation, place)]
        while waiting and len(seen) < _FURTHEST:
            here, value = waiting.pop()
            if value < 0 or (here.name, value) in seen:
                continue
            seen.add((here.name, value))
            opcode = here.opcodes[value]
            if not self._calls.is_fused(here) or opcode in _PARTS:
                total += self._nbytes_of(here, value, -1)
            elif opcode == "parameter":
                site = self._calls.sites[here.name][0]
                operands = site.computation.operands(site.place)
                number = here.details[value].number
                if 0 <= number < len(operands):
                    waiting.append((site.computation, operands[number]))
            elif opcode not in _EMPTY:
                waiting += [(here, operand) for operand in here.operands(value)]
        return total

    def written(self, computation: Computation, place: int) -> int:
        """Return the bytes that the fusion writes with the result of an instruction."""
        total = 0
        seen: set[tuple[str, int, int]] = set()
        waiting = [(computation, place, -1)]
        while waiting and len(seen) < _FURTHEST:
            here, value, element = waiting.pop()
            if (here.name, value, element) in seen:
                continue
            seen.add((here.name, value, element))
            if not self._calls.is_fused(here):
                total += self._nbytes_of(here, value, element)
                continue
            if value == here.root:
                site = self._calls.sites[here.name][0]
                waiting.append((site.computation, site.place, element))
            for user in self._chains.users(here, value):
                operands = here.operands(user)
                if here.opcodes[user] == "dynamic-update-slice" and len(operands) > 1 and operands[1] == value:
                    total += self._nbytes_of(here, value, -1)
                elif here.opcodes[user] == "tuple":
                    waiting += [(here, user, number) for number, item in enumerate(operands) if item == value]
                elif here.opcodes[user] == "get-tuple-element":
                    if here.details[user].number == element:
                        waiting.append((here, user, -1))
                else:
                    waiting.append((here, user, -1))
        return total
