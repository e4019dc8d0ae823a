"""An HLO module in memory (header, tables, computations), and the reader that assembles it."""

from __future__ import annotations

import itertools
import re
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.hlo.attributes import (
    BARE_PARAMETERS,
    DETAIL_READERS,
    NO_DETAILS,
    SHARED,
    Alias,
    Details,
    FactReader,
    aliases_in,
    details_of_shared,
    element_details,
    metadata_of,
    output_aliases,
)
from fastindex.hlo.computations import (
    MADE,
    Computation,
    LateCall,
    OpenComputation,
    element_shapes,
    operand_places,
    places_with_elements,
)
from fastindex.hlo.grammar import Row, integer
from fastindex.hlo.inferred_shapes import inferred_shape

#: Opcodes whose parentheses do not contain operands.
_NO_OPERANDS = frozenset((b"constant", b"parameter", b"iota", b"partition-id", b"replica-id", b"after-all"))
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_HAS_DIMENSIONS = re.compile(rb"\[[\d<?]")
#: Prefix of the placeholder for an omitted shape that cannot be inferred.
OMITTED = b"? of "
#: ``X-start`` opcodes in their own right; any other ``X-start`` is short for an ``async-start`` of ``X``.
_NATIVE_STARTS = frozenset((b"all-gather-start", b"all-reduce-start", b"collective-permute-start", b"copy-start"))


@dataclass(slots=True)
class Module:
    """An HLO module.

    Attributes
    ----------
    name : str
        From the header; "" without a header.
    header : str
        The line that starts with ``HloModule``.
    computations : dict of str to Computation
    shapes : dict of bytes to int
        Numbers of the distinct texts of result shapes.
    counts, first_lines : list of int
        For each shape, the number of instructions with it, and the line of the first.
    metadata : dict of bytes to int
        Numbers of the distinct metadata texts.
    tables : list of bytes
        Lines of the tables of files, functions, locations and frames.
    """

    name: str = ""
    header: str = ""
    computations: dict[str, Computation] = field(default_factory=dict)
    shapes: dict[bytes, int] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)
    first_lines: list[int] = field(default_factory=list)
    metadata: dict[bytes, int] = field(default_factory=dict)
    tables: list[bytes] = field(default_factory=list)

    def add_shape(self, text: bytes, line: int) -> int:
        """Add the text of a new shape to the table; return its number."""
        number = self.shapes[text] = len(self.counts)
        self.counts.append(0)
        self.first_lines.append(line)
        return number

    @property
    def instruction_count(self) -> int:
        """Number of instructions in the text."""
        return sum(self.counts)

    @property
    def entry(self) -> Computation | None:
        """The computation marked ENTRY, or the last one."""
        marked = [item for item in self.computations.values() if item.is_entry]
        if marked:
            return marked[-1]
        return next(reversed(self.computations.values()), None)

    @property
    def _attributes(self) -> str:
        """The header without its strings."""
        return _STRING.sub('""', self.header)

    @property
    def is_scheduled(self) -> bool:
        """Whether instructions are listed in execution order."""
        return "is_scheduled=true" in self._attributes

    @property
    def is_for_tpu(self) -> bool:
        """Whether layouts have tiles, which only TPU compilers assign."""
        return any(b":T(" in text or b")T(" in text for text in self.shapes)

    @property
    def is_before_layouts(self) -> bool:
        """Whether layouts are not assigned yet: some arrays have none, or all are default and there is no schedule."""
        arrays = [text for text in self.shapes if _HAS_DIMENSIONS.search(text)]
        if not arrays or self.is_for_tpu:
            return False
        return not self.is_scheduled or not any(b"{" in text for text in arrays)

    @property
    def partition_count(self) -> int:
        """``num_partitions``, the number of devices over which arrays are partitioned; the program is that of one."""
        found = re.search(r"\bnum_partitions=(\d+)", self._attributes)
        return integer(found.group(1)) if found else 1

    def input_output_aliases(self) -> tuple[Alias, ...]:
        """Return the pairs of outputs and parameters that share memory."""
        _, found, after = self._attributes.partition("input_output_alias={")
        if not found:
            return ()
        text = after.encode()
        end = re.search(rb"\}\s*(?:,\s*[a-z_]+=|$)", text)
        return aliases_in(text[: end.start()] if end else text)


class _Opcode:
    """Properties of an opcode that determine how its instructions are read."""

    __slots__ = ("bare", "has_operands", "is_part_of_a_call", "name", "read_details", "read_fact")

    def __init__(self, text: bytes, read_fact: FactReader | None) -> None:
        self.name = text.decode()
        self.has_operands = text not in _NO_OPERANDS
        is_start = text.endswith(b"-start") and text not in _NATIVE_STARTS
        self.is_part_of_a_call = is_start or text.endswith(b"-update")
        self.read_details: Callable[[bytes, bytes], Details] | None = DETAIL_READERS.get(text)
        self.read_fact = read_fact
        #: Details of instructions without attributes, by operand text.
        self.bare: Mapping[bytes, Details] = BARE_PARAMETERS if text == b"parameter" else {}


class _Opcodes(dict[bytes, _Opcode]):
    """Cache of `_Opcode` objects by the text of the opcode."""

    def __init__(self, facts: Mapping[bytes, FactReader]) -> None:
        super().__init__()
        self._facts = facts

    def __missing__(self, text: bytes) -> _Opcode:
        opcode = self[text] = _Opcode(text, self._facts.get(text))
        return opcode


class ModuleReader:
    """Sink for the scanner that assembles modules, and passes each on when it is complete.

    Parameters
    ----------
    done : callable
        Called with each module.
    facts : mapping of bytes to FactReader
        Facts to extract, by opcode; stored in `Computation.facts`.
    """

    def __init__(self, done: Callable[[Module], None], facts: Mapping[bytes, FactReader] | None = None) -> None:
        self._done = done
        self._facts = facts or {}
        self._module = Module()
        self._computation: OpenComputation | None = None
        self._around: list[OpenComputation | None] = []
        self._opcodes = _Opcodes(self._facts)
        self._elements: dict[int, list[bytes]] = {}
        self._texts: list[bytes] = []
        #: The first name that is given twice, and its line.
        self.repeated: tuple[str, int] | None = None

    def header(self, text: bytes) -> None:
        """Start a module."""
        self.finish()
        header = text.decode("utf-8", "replace").strip()
        found = re.match(r"HloModule\s+([^\s,]+)", header)
        self._module.header = header
        self._module.name = found.group(1).lstrip("%") if found else ""

    def table_line(self, text: bytes) -> None:
        """Store a line of the tables of files and frames."""
        self._module.tables.append(text.strip())

    def open_computation(self, name: bytes, is_entry: bool) -> None:
        """Start a computation."""
        self.close_computation()
        self._computation = OpenComputation(name.decode("utf-8", "replace"), is_entry)

    def open_inner(self, name: bytes) -> None:
        """Start a computation nested in the open one."""
        self._around.append(self._computation)
        self._computation = OpenComputation(name.decode("utf-8", "replace"), is_entry=False)

    def close_inner(self) -> None:
        """End the nested computation and resume the enclosing one."""
        self.close_computation()
        self._computation = self._around.pop()

    def close_computation(self) -> None:
        """End the open computation; if the name is taken, it gets a suffix."""
        if self._computation is None:
            return
        computation = Computation(self._computation)
        self._computation = None
        known = self._module.computations
        if computation.name in known:
            if computation.name and len(computation):
                self.repeated = self.repeated or (computation.name, computation.line(0))
            # No name in HLO text contains a quote.
            computation.name += f"'{len(known)}"
        known[computation.name] = computation

    def finish(self) -> None:
        """End the module and pass it on."""
        self.close_computation()
        module, self._module = self._module, Module()
        self._elements, self._texts = {}, []
        if module.counts:
            self._done(module)

    def instructions(self, rows: list[Row], line: int) -> None:
        """Add instructions on consecutive lines to the open computation."""
        module, computation = self._module, self._computation
        if computation is None:
            computation = self._computation = OpenComputation("", is_entry=False)
        counts, metadata = module.counts, module.metadata
        places, operands = computation.places, computation.operands
        known, number_of, place_of = self._opcodes, module.shapes.get, places.get
        add_opcode, add_details = computation.opcodes.append, computation.details.append
        numbers: list[int] = []
        for root, name, shape, opcode_text, operand_text, attributes in rows:
            opcode = known[opcode_text]
            origin, details = -1, NO_DETAILS
            found: Sequence[int] = ()
            if attributes:
                text = metadata_of(attributes)
                if text:
                    origin = metadata.setdefault(text, len(metadata))
                if opcode.read_details is not None:
                    details = opcode.read_details(operand_text, attributes)
                elif SHARED in attributes:
                    details = details_of_shared(attributes)
            elif opcode.read_details is not None:
                # Fast path: most parameters are those of fusions, without attributes.
                details = opcode.bare.get(operand_text) or opcode.read_details(operand_text, attributes)
            if operand_text and opcode.has_operands:
                only = place_of(operand_text[1:], -1)
                if only >= 0 and operand_text[0] == 0x25:
                    # Fast path: a single operand as XLA prints it.
                    found = (only,)
                elif b"#" in operand_text:
                    found = places_with_elements(operand_text, places, partial(self._element, numbers, line))
                else:
                    found = operand_places(operand_text, places)
            number = number_of(shape)
            if number is None and shape:
                number = module.add_shape(shape, line)
            if number is None or opcode.is_part_of_a_call:
                computation.numbers.extend(numbers)
                numbers.clear()
                row = root, name, shape, opcode_text, operand_text, attributes
                number, details = self._take_shorthand(row, opcode, details, found, line)
            counts[number] += 1
            if found:
                operands.extend(found)
            place = len(places)
            if opcode.read_fact is not None and (fact := opcode.read_fact(operand_text, attributes)) is not None:
                computation.facts[place] = fact
            if root:
                computation.root = place
            if name in places:
                # XLA refuses this, but prints it on request. The first instruction keeps the name.
                self.repeated = self.repeated or (name.decode("utf-8", "replace"), line)
                name = b"%s'%d" % (name, place)
            places[name] = place
            add_opcode(opcode.name)
            add_details(details)
            numbers += number, origin, line, len(operands)
            line += 1
        computation.numbers.extend(array("i", numbers))

    def _take_shorthand(
        self, row: Row, opcode: _Opcode, details: Details, operands: Sequence[int], line: int
    ) -> tuple[int, Details]:
        """Return shape number and details of an instruction with an omitted shape or in an asynchronous call."""
        module, (root, name, shape, _, operand_text, attributes) = self._module, row
        if not shape:
            shape = self._inferred(opcode.name, operands, attributes, name)
        number = module.shapes.get(shape)
        if number is None:
            number = module.add_shape(shape, line)
        if opcode.is_part_of_a_call:
            details = self._call_details((root, name, shape, row[3], operand_text, attributes), details, operands, line)
        return number, details

    def _inferred(self, opcode: str, operands: Sequence[int], attributes: bytes, name: bytes) -> bytes:
        """Return the omitted shape of an instruction, or a placeholder that is no shape if it cannot be inferred."""
        try:
            shapes = [Shape.parse(self._shape_text(place).decode()) for place in operands]
        except (FastIndexError, UnicodeDecodeError, IndexError):
            shapes = []
        shape = inferred_shape(opcode, shapes, attributes.decode("utf-8", "replace"), self._root_shape)
        return str(shape).encode() if shape is not None else OMITTED + name

    def _root_shape(self, name: str) -> Shape | None:
        computation = self._module.computations.get(name)
        if computation is None or computation.root < 0:
            return None
        return Shape.parse(self._text_of(computation.shape(computation.root)).decode())

    def _shape_text(self, place: int) -> bytes:
        """Return the shape text of an instruction of the open computation."""
        if self._computation is None or place < 0:
            raise IndexError
        return self._text_of(self._computation.numbers[4 * place])

    def _text_of(self, number: int) -> bytes:
        texts = self._texts
        if number >= len(texts):
            texts += itertools.islice(self._module.shapes, len(texts), None)
        return texts[number]

    def _call_details(self, row: Row, details: Details, operands: Sequence[int], line: int) -> Details:
        """Return the details of an instruction that is part of an asynchronous call.

        ``X-start`` is short for an ``async-start`` of a computation that contains only X, which is created here. If the
        operands are bound by an ``X-update``, the computation runs at that instruction.
        """
        opcode, attributes = row[3], row[5]
        computation = self._computation
        assert computation is not None
        place = len(computation.places)
        if opcode.endswith(b"-start"):
            if opcode != b"async-start":
                details = Details(aliases=output_aliases(attributes))
            late = LateCall(details.callees, opcode.removesuffix(b"-start"), attributes)
            if not operands:
                computation.late[place] = late
                return details._replace(callees=())
            bound = operands
        else:
            waiting = computation.late.get(operands[0]) if operands else None
            if waiting is None:
                return details
            if len(operands) == 1:
                computation.late[place] = waiting
                return details
            late, bound = waiting, operands[1:]
            details = Details(late.callees, output_aliases(attributes))
        return details if details.callees else self._wrapped(row, late, bound, line, details)

    def _wrapped(self, row: Row, late: LateCall, operands: Sequence[int], line: int, details: Details) -> Details:
        """Create the computation that an asynchronous shorthand omits; return details that call it."""
        name, elements = row[1], self._element_shapes_of(row[2])
        if len(elements) < 2:
            return details
        rows: list[Row] = [
            (b"", b"operand.%d" % number, self._shape_text(operand), b"parameter", b"%d" % number, b"")
            for number, operand in enumerate(operands)
            if operand >= 0
        ]
        given = b", ".join(b"%" + each[1] for each in rows)
        rows.append((b"ROOT ", name, elements[1], late.opcode, given, late.attributes))
        made = f"{MADE}{name.decode('utf-8', 'replace')}.{len(self._module.computations)}"
        self.open_inner(made.encode())
        self.instructions(rows, line)
        if self._computation is not None:
            # All its instructions come from the line of the shorthand.
            for place in range(len(rows)):
                self._computation.numbers[4 * place + 2] = line
        self.close_inner()
        return details._replace(callees=(sys.intern(made),))

    def _element_shapes_of(self, text: bytes) -> list[bytes]:
        number = self._module.shapes.get(text)
        return element_shapes(text) if number is None else self._element_shapes(number)

    def _element(self, numbers: list[int], line: int, place: int, index: int, name: bytes) -> int:
        """Return the position of a tuple element named by an operand, created on first use; -1 if it does not exist."""
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
        """Return the texts of the element shapes of a tuple shape, by its number in the table."""
        known = self._elements.get(number)
        if known is None:
            known = self._elements[number] = element_shapes(self._text_of(number))
        return known
