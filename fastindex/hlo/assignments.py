"""XLA's own memory reports: files dumped next to a module, and the memory analysis of compiled objects.

Supported are ``*-buffer-assignment.txt`` (allocations, and the values in them by offset), ``*-memory-usage-report.txt``
(sums and slots, without layouts) and the serialized assignment of ``compiled.memory_analysis()``.

Sources: ``BufferAllocation::ToString`` and ``BufferAssignment::MemoryUsageReport`` of
``xla/service/buffer_assignment.cc``; ``BufferAllocationProto`` of ``xla/service/hlo.proto``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastindex.core.shape import Shape
from fastindex.core.wire import Fields
from fastindex.errors import FastIndexError
from fastindex.hlo.grammar import integer, rounded
from fastindex.hlo.rows import Place, ShapeUse
from fastindex.hlo.totals import AssignedMemory

_ALLOCATION = re.compile(r"allocation (\d+): size (\d+)(.*?):?\s*$")
_VALUE = re.compile(r"\s+value: <(\d+) (.*) @\d+> \(size=(\d+),offset=(\d+)\): (.*)$")
_NAME = re.compile(r"([^\s{]+)(\{[\d,]*\})?( \(phi\))?$")
_COLOR = re.compile(r", color (\d+)")
_SPACE = re.compile(r"Memory Space: (.*) \(color=(\d+)\)")
#: Older versions of XLA print "used", and have no memory spaces.
_TOTAL = re.compile(r"Total bytes(?: used)?: (\d+)")
_SLOT = re.compile(r"\s*[\d.]+\w*\(\s*\d+%\);\s*(\d+(?:\.\d*)?)([A-Za-z]+);\s*(\d+);\s*(\d+); (.*)$")
#: A shape may follow its number of occurrences and a multiplication sign.
_REPEATED = re.compile("(?:\\d+\u00d7)?(.+)$")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class Allocation:
    """A region of memory that XLA assigned.

    Attributes
    ----------
    nbytes, color : int
        Size, and color: the number of the memory space.
    kinds : frozenset of str
        Subset of "parameter", "constant", "thread-local", "maybe-live-out".
    slots : tuple of Slot
        The values placed in it.
    """

    nbytes: int
    color: int
    kinds: frozenset[str]
    slots: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """A value in an allocation.

    Attributes
    ----------
    value : str
        Name of the instruction that defines it.
    nbytes, offset : int
    shape : str
    """

    value: str
    nbytes: int
    offset: int
    shape: str


def assigned_memory(allocations: list[Allocation]) -> AssignedMemory:
    """Sum the allocations of memory space 0, and all of each other one.

    Thread-local allocations are not counted: the program does not hold them.

    Examples
    --------
    >>> donated = Allocation(8, 0, frozenset(("parameter", "maybe-live-out")))
    >>> found = assigned_memory([donated, Allocation(4, 0, frozenset()), Allocation(16, 1, frozenset())])
    >>> found.arguments, found.aliased, found.temporaries, found.total, found.other_spaces
    (8, 8, 4, 12, ((1, 16),))
    """
    held = [item for item in allocations if "thread-local" not in item.kinds]
    here = [item for item in held if item.color == 0]
    others: dict[int, int] = {}
    for item in held:
        if item.color:
            others[item.color] = others.get(item.color, 0) + item.nbytes

    def of(*kinds: str) -> int:
        return sum(item.nbytes for item in here if item.kinds.issuperset(kinds))

    plain = sum(item.nbytes for item in here if not item.kinds)
    return AssignedMemory(
        arguments=of("parameter"),
        outputs=of("maybe-live-out"),
        temporaries=plain,
        constants=of("constant"),
        aliased=of("parameter", "maybe-live-out"),
        total=sum(item.nbytes for item in here),
        other_spaces=tuple(sorted(others.items())),
    )


def read_buffer_assignment(text: str) -> list[Allocation]:
    """Parse a ``*-buffer-assignment.txt``.

    Raises
    ------
    FastIndexError
        The text contains no allocation.

    Examples
    --------
    >>> text = '''BufferAssignment:
    ... allocation 0: size 8, parameter 0, shape |f32[2]| at ShapeIndex {}:
    ...  value: <1 p @0> (size=8,offset=0): f32[2]{0}
    ... '''
    >>> read_buffer_assignment(text)[0].slots
    (Slot(value='p', nbytes=8, offset=0, shape='f32[2]{0}'),)
    """
    found: list[tuple[int, str, list[Slot]]] = []
    for line in text.splitlines():
        allocation = _ALLOCATION.match(line)
        if allocation:
            found.append((integer(allocation.group(2)), allocation.group(3), []))
            continue
        value = _VALUE.match(line)
        if value and found:
            name = _NAME.match(value.group(2))
            slot = Slot(name.group(1) if name else "", integer(value.group(3)), integer(value.group(4)), value.group(5))
            found[-1][2].append(slot)
        elif found and not line.strip():
            # Some versions append a list of used values.
            break
    if not found:
        raise FastIndexError("no allocation in the buffer assignment")
    return [
        Allocation(nbytes, _color(attributes), _kinds(attributes), tuple(slots)) for nbytes, attributes, slots in found
    ]


def _color(attributes: str) -> int:
    color = _COLOR.search(attributes)
    return integer(color.group(1)) if color else 0


def _kinds(attributes: str) -> frozenset[str]:
    # Remove shapes, printed between bars: an unknown shape text must not be searched for kinds.
    words = re.sub(r"\|.*?\|", "", attributes)
    return frozenset(
        kind for kind in ("parameter", "constant", "thread-local", "maybe-live-out") if re.search(rf", {kind}\b", words)
    )


def read_memory_usage_report(text: str) -> tuple[int, list[Slot]]:
    """Parse a ``*-memory-usage-report.txt``; return the bytes of memory space 0, and its slots.

    The file has rounded slot sizes, and shapes without layouts.

    Raises
    ------
    FastIndexError
        The text contains no total.
    """
    color, total, slots = 0, -1, []
    for line in text.splitlines():
        if space := _SPACE.match(line):
            color = integer(space.group(2))
        elif (sum_of_space := _TOTAL.match(line)) and color == 0:
            total = integer(sum_of_space.group(1))
        elif (slot := _SLOT.match(line)) and color == 0:
            nbytes = rounded(slot.group(1), _UNITS.get(slot.group(2), 1))
            shapes = [shape for shape in _split_shapes(slot.group(5)) if not shape.startswith("(")]
            slots += [Slot("", nbytes, integer(slot.group(3)), shape) for shape in shapes[:1]]
    if total < 0:
        raise FastIndexError("no 'Total bytes' of memory space 0 in the memory usage report")
    return total, slots


def _split_shapes(text: str) -> Iterator[str]:
    """Split a list of shapes at commas outside brackets, and drop their repeat counts."""
    depth, begin = 0, 0
    for place, character in enumerate(text + ","):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            repeated = _REPEATED.match(text[begin:place].strip())
            if repeated:
                yield repeated.group(1)
            begin = place + 1


def slot_rows(slots: list[tuple[int, Slot]], label: str) -> tuple[list[ShapeUse], list[str]]:
    """Make rows of the distinct slots of allocations; also return the shapes that cannot be parsed.

    A slot reused by several values counts once, with the array of its first value.
    """
    seen: dict[tuple[int, int, int], tuple[Shape, list[Place]]] = {}
    unread: list[str] = []
    for allocation, slot in slots:
        try:
            shape = Shape.parse(slot.shape)
        except FastIndexError:
            unread.append(slot.shape)
            continue
        if not shape.is_array:
            continue
        _, places = seen.setdefault((allocation, slot.offset, slot.nbytes), (shape, []))
        if slot.value:
            places.append(Place(slot.value))
    rows: dict[tuple[Shape, int], tuple[int, list[Place]]] = {}
    for (_, _, nbytes), (shape, places) in seen.items():
        count, known = rows.setdefault((shape, nbytes), (0, []))
        rows[shape, nbytes] = count + 1, known + places
    uses = [
        ShapeUse(shape, count, max(nbytes, shape.logical_nbytes), shape.logical_nbytes, label, tuple(places))
        for (shape, nbytes), (count, places) in rows.items()
    ]
    return sorted(uses, key=ShapeUse.waste_key, reverse=True), unread


def memory_of_compiled(analysis: Any) -> AssignedMemory | None:
    """Return the sizes from ``compiled.memory_analysis()``; None if it has none.

    The serialized buffer assignment is preferred, since it includes constants; otherwise the sums are used. If they
    include the total of the assignment (jaxlib 0.12), constants count as temporaries; else see `has_total`.
    """
    serialized = getattr(analysis, "serialized_buffer_assignment_proto", b"")
    if isinstance(serialized, bytes) and serialized:
        return memory_of_serialized(serialized)
    names = ("argument", "output", "temp", "alias")
    sizes = [getattr(analysis, f"{name}_size_in_bytes", None) for name in names]
    if not all(isinstance(size, int) for size in sizes):
        return None
    arguments, outputs, temporaries, aliased = (int(size or 0) for size in sizes)
    held = arguments + outputs - aliased
    if has_total(analysis):
        temporaries = max(analysis.total_allocation_bytes - held, 0)
    return AssignedMemory(arguments, outputs, temporaries, 0, aliased, held + temporaries)


def has_total(analysis: Any) -> bool:
    """Whether a memory analysis has the total of the buffer assignment, which the sums for a TPU only approximate."""
    total = getattr(analysis, "total_allocation_bytes", 0)
    return isinstance(total, int) and total > 0


def memory_of_serialized(serialized: bytes) -> AssignedMemory:
    """Sum the allocations of a serialized BufferAssignmentProto.

    Raises
    ------
    FastIndexError
        The proto is damaged.
    """
    return assigned_memory([_allocation(item) for item in Fields(serialized, "BufferAssignmentProto").messages(3)])


def _allocation(serialized: bytes) -> Allocation:
    message = Fields(serialized, "BufferAllocationProto")
    kinds = {"thread-local": 3, "parameter": 5, "maybe-live-out": 7, "constant": 12}
    return Allocation(
        message.integer(2),
        message.integer(8),
        frozenset(kind for kind, number in kinds.items() if message.integer(number)),
    )
