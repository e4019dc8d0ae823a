"""An HLO module as read: its header, its tables and its computations."""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from fastindex.hlo.attributes import (
    DETAIL_READERS,
    NO_DETAILS,
    Alias,
    Details,
    aliases_in,
    element_details,
    metadata_of,
)
from fastindex.hlo.compact_elements import element_shapes, places_with_elements
from fastindex.hlo.computations import Computation, OpenComputation, operand_places
from fastindex.hlo.numbers import integer
from fastindex.hlo.sink import Row

#: Opcodes whose text between the parentheses is not operands.
_NO_OPERANDS = frozenset((b"constant", b"parameter", b"iota", b"partition-id", b"replica-id", b"after-all"))
#: Reads something from the operands and the attributes of an instruction; None for nothing worth keeping.
FactReader = Callable[[bytes, bytes], object]
#: Starts with opcodes of their own; any other ``X-start`` is short for an ``async-start`` of ``X``.
_NATIVE_STARTS = frozenset(
    (b"all-gather-start", b"all-reduce-start", b"async-start", b"collective-permute-start", b"copy-start")
)


@dataclass(slots=True)
class Module:
    """An HLO module.

    Attributes
    ----------
    name : str
        From the header; "" without a header.
    header : str
        The line that begins with ``HloModule``.
    computations : dict of str to Computation
    shapes : dict of bytes to int
        The texts of the results' shapes, numbered.
    counts, first_lines : list of int
        For each shape: how many instructions have it, and the line of the first.
    async_counts : dict of int to int
        How many of `counts` are shorthands for asynchronous starts: ``slice-start`` for an ``async-start`` that
        calls a computation with a ``slice``, which is not in the text.
    metadata : dict of bytes to int
        The texts of the metadata, numbered.
    tables : list of bytes
        The lines of the tables of files, functions, locations and frames.
    """

    name: str = ""
    header: str = ""
    computations: dict[str, Computation] = field(default_factory=dict)
    shapes: dict[bytes, int] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)
    first_lines: list[int] = field(default_factory=list)
    async_counts: dict[int, int] = field(default_factory=dict)
    metadata: dict[bytes, int] = field(default_factory=dict)
    tables: list[bytes] = field(default_factory=list)

    def add_shape(self, text: bytes, line: int) -> int:
        """Number the text of a shape that the table does not have yet."""
        number = self.shapes[text] = len(self.counts)
        self.counts.append(0)
        self.first_lines.append(line)
        return number

    @property
    def instruction_count(self) -> int:
        """How many instructions the text has."""
        return sum(self.counts)

    @property
    def entry(self) -> Computation | None:
        """The computation marked ENTRY, or the last one."""
        marked = [item for item in self.computations.values() if item.is_entry]
        if marked:
            return marked[-1]
        return next(reversed(self.computations.values()), None)

    @property
    def is_scheduled(self) -> bool:
        """Whether the order of the instructions is the order in which they run."""
        return "is_scheduled=true" in self.header

    @property
    def partition_count(self) -> int:
        """``num_partitions``: over how many devices the arrays are divided; the module is the program of one."""
        found = re.search(r"\bnum_partitions=(\d+)", self.header)
        return integer(found.group(1)) if found else 1

    def input_output_aliases(self) -> tuple[Alias, ...]:
        """Return which outputs share the memory of which parameters."""
        found = re.search(rb"input_output_alias=\{", self.header.encode())
        if not found:
            return ()
        text = self.header.encode()[found.end() :]
        end = re.search(rb"\}\s*(?:,\s*[a-z_]+=|$)", text)
        return aliases_in(text[: end.start()] if end else text)


class _Opcode:
    """What an instruction's opcode says about its text."""

    __slots__ = ("has_operands", "is_short_start", "name", "read_details", "read_fact")

    def __init__(self, text: bytes, read_fact: FactReader | None) -> None:
        self.name = text.decode()
        self.has_operands = text not in _NO_OPERANDS
        self.is_short_start = text.endswith(b"-start") and text not in _NATIVE_STARTS
        self.read_details: Callable[[bytes, bytes], Details] | None = DETAIL_READERS.get(text)
        self.read_fact = read_fact


class ModuleReader:
    """A sink for the scanner that assembles modules and passes each on when it is complete.

    Parameters
    ----------
    done : callable
        Receives each module.
    facts : mapping of bytes to FactReader
        What to keep of the instructions with an opcode, in `Computation.facts`.
    """

    def __init__(self, done: Callable[[Module], None], facts: Mapping[bytes, FactReader] | None = None) -> None:
        self._done = done
        self._facts = facts or {}
        self._module = Module()
        self._computation: OpenComputation | None = None
        self._opcodes: dict[bytes, _Opcode] = {}
        self._elements: dict[int, list[bytes]] = {}

    def header(self, text: bytes) -> None:
        """Begin a module."""
        self.finish()
        header = text.decode("utf-8", "replace").strip()
        found = re.match(r"HloModule\s+([^\s,]+)", header)
        self._module.header = header
        self._module.name = found.group(1).lstrip("%") if found else ""

    def table_line(self, text: bytes) -> None:
        """Keep a line of the tables of files and frames."""
        self._module.tables.append(text.strip())

    def open_computation(self, name: bytes, is_entry: bool) -> None:
        """Begin a computation."""
        self.close_computation()
        self._computation = OpenComputation(name.decode("utf-8", "replace"), is_entry)

    def close_computation(self) -> None:
        """End a computation; of several with the same name, the first keeps it."""
        if self._computation is None:
            return
        computation = Computation(self._computation)
        self._computation = None
        known = self._module.computations
        if computation.name in known:
            # No name has a quote.
            computation.name += f"'{len(known)}"
        known[computation.name] = computation

    def finish(self) -> None:
        """End the module and pass it on."""
        self.close_computation()
        module, self._module = self._module, Module()
        self._elements = {}
        if module.counts:
            self._done(module)

    def instructions(self, rows: list[Row], line: int) -> None:
        """Add instructions on consecutive lines to the computation that is open."""
        module, computation = self._module, self._computation
        if computation is None:
            computation = self._computation = OpenComputation("", is_entry=False)
        shapes, counts, metadata = module.shapes, module.counts, module.metadata
        places, operands = computation.places, computation.operands
        numbers: list[int] = []
        for root, name, shape, opcode_text, operand_text, attributes in rows:
            number = shapes.get(shape)
            if number is None:
                number = module.add_shape(shape, line)
            counts[number] += 1
            opcode = self._opcodes.get(opcode_text)
            if opcode is None:
                opcode = self._opcodes[opcode_text] = _Opcode(opcode_text, self._facts.get(opcode_text))
            origin, details = -1, NO_DETAILS
            if attributes:
                text = metadata_of(attributes)
                if text:
                    origin = metadata.setdefault(text, len(metadata))
            if opcode.read_details is not None:
                details = opcode.read_details(operand_text, attributes)
            elif opcode.is_short_start:
                module.async_counts[number] = module.async_counts.get(number, 0) + 1
            if operand_text and opcode.has_operands:
                if b"#" in operand_text:
                    found = places_with_elements(operand_text, places, partial(self._element, numbers, line))
                else:
                    found = operand_places(operand_text, places)
                operands.extend(found)
            place = len(places)
            if opcode.read_fact is not None and (fact := opcode.read_fact(operand_text, attributes)) is not None:
                computation.facts[place] = fact
            if root is not None:
                computation.root = place
            # Names are unique where a module is whole; the first keeps its place.
            places[name if name not in places else b"%s'%d" % (name, place)] = place
            computation.opcodes.append(opcode.name)
            computation.details.append(details)
            numbers += number, origin, line, len(operands)
            line += 1
        computation.numbers.extend(array("i", numbers))

    def _element(self, numbers: list[int], line: int, place: int, index: int, name: bytes) -> int:
        """Return the place of an element of a tuple that an operand names, made if need be; -1 if there is none."""
        module, computation = self._module, self._computation
        assert computation is not None
        known = computation.elements.get((place, index))
        if known is not None:
            return known
        computation.numbers.extend(numbers)
        numbers.clear()
        shapes = self._element_shapes(computation.numbers[4 * place])
        if index >= len(shapes):
            return -1
        number = module.shapes.get(shapes[index])
        if number is None:
            number = module.add_shape(shapes[index], line)
        module.counts[number] += 1
        made = computation.elements[place, index] = len(computation.places)
        computation.places[name if name not in computation.places else b"%s'%d" % (name, made)] = made
        computation.opcodes.append("get-tuple-element")
        computation.details.append(element_details(index))
        computation.operands.append(place)
        computation.numbers.extend((number, -1, line, len(computation.operands)))
        return made

    def _element_shapes(self, number: int) -> list[bytes]:
        """Return the texts of the elements of a shape, by its number in the table."""
        known = self._elements.get(number)
        if known is None:
            text = next(itertools.islice(self._module.shapes, number, None))
            known = self._elements[number] = element_shapes(text)
        return known
