"""Bytes that a copy inside a fusion reads and writes: those of the fusion's operands and results."""

from __future__ import annotations

from collections.abc import Sequence

from fastindex.hlo.computations import Computation
from fastindex.hlo.copies.calls import Calls
from fastindex.hlo.copies.chains import Chains
from fastindex.hlo.shape_table import Sizes

#: Limit on the instructions visited.
_FURTHEST = 1000
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
        while waiting and len(seen) < _FURTHEST:
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

    def follows(self, computation: Computation, place: int, movers: frozenset[tuple[str, int]]) -> bool:
        """Whether an operand of an instruction depends on one of `movers` within the same fusion."""
        seen: set[tuple[str, int]] = set()
        waiting = [(computation, operand) for operand in computation.operands(place)]
        while waiting and len(seen) < _FURTHEST:
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
        while waiting and len(seen) < _FURTHEST:
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
