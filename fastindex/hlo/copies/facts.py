"""Parse attributes of instructions: cycle estimates, permutations, scalar constants, comparisons, trip counts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fastindex.hlo.modules import FactReader
from fastindex.hlo.numbers import integer

_CYCLES = b'"estimated_cycles":"'
_DIMENSIONS = re.compile(rb"\bdimensions=\{([\d,\s]*)\}")
_INTEGER = re.compile(rb"(?:\s|/\*.*?\*/)*(?:[a-z]\w*\[\]\S*\s+)?(-?\d+)(?:\s|/\*.*?\*/)*", re.DOTALL)
_DIRECTION = re.compile(rb"\bdirection=(\w+)")
#: As JSON, or as JSON escaped within a string.
_TRIPS = re.compile(rb'"known_trip_count\\?"\s*:\s*\{\s*\\?"n\\?"\s*:\s*\\?"(\d+)')
#: Longer constants are not loop counters.
_LONGEST_CONSTANT = 64


def estimated_cycles(operands: bytes, attributes: bytes) -> int | None:
    """Return XLA's cycle estimate for an instruction; None if it has none.

    Examples
    --------
    >>> estimated_cycles(b"", b', backend_config={"window_config":{"estimated_cycles":"2212","x":[]}}')
    2212
    """
    begin = attributes.find(_CYCLES)
    if begin < 0:
        return None
    begin += len(_CYCLES)
    number = attributes[begin : attributes.find(b'"', begin)]
    return integer(number) if number.isdigit() else None


def _permutation(operands: bytes, attributes: bytes) -> tuple[int, ...] | None:
    found = _DIMENSIONS.search(attributes)
    if found is None:
        return None
    return tuple(integer(number) for number in found.group(1).split(b",") if number.strip())


def _scalar(operands: bytes, attributes: bytes) -> int | None:
    if len(operands) > _LONGEST_CONSTANT:
        return None
    found = _INTEGER.fullmatch(operands)
    return integer(found.group(1)) if found else None


def _direction(operands: bytes, attributes: bytes) -> str | None:
    found = _DIRECTION.search(attributes)
    return found.group(1).decode() if found else None


def _known_trips(operands: bytes, attributes: bytes) -> int | None:
    found = _TRIPS.search(attributes)
    return integer(found.group(1)) if found else None


#: Parser by opcode; the result is an integer, a permutation or a direction.
FACT_READERS: Mapping[bytes, FactReader] = {
    b"copy": estimated_cycles,
    b"fusion": estimated_cycles,
    b"transpose": _permutation,
    b"constant": _scalar,
    b"compare": _direction,
    b"while": _known_trips,
}
