"""A computation of an HLO module, stored compactly: a module may have hundreds of thousands of instructions.

Operands may be tuple elements, such as ``negate(%p#1#0)``: XLA prints them so since jaxlib 0.12. Each stands for a
get-tuple-element that the text omits. XLA's parser creates one for each path in a computation, before the first
instruction that names it, and calls it ``p_1_0``.

Source: ``xla_dump_compact_gte`` in ``xla/debug_options_flags.cc``; the parser as executed by jaxlib 0.12.
"""

from __future__ import annotations

import itertools
import re
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastindex.hlo.attributes import Details

#: Shared by all computations without facts.
_NO_FACTS: dict[int, object] = {}
#: A name, with or without "%", alone or after a shape.
_OPERAND = re.compile(rb"(?:(?<=[\s,)}\]%])|^)([A-Za-z_][\w.\-]*):?\s*(?=,|$)")
_OPERAND_OR_ELEMENT = re.compile(rb"(?:(?<=[\s,)}\]%])|^)([A-Za-z_][\w.\-]*)((?:\s*#\s*\d+)*)\s*(?=,|$)")
_LAYOUT_OR_COMMENT = re.compile(rb"\{[^{}]*\}|/\*.*?\*/", re.DOTALL)
_COMMENT = re.compile(rb"/\*.*?\*/", re.DOTALL)
_BRACKET = re.compile(rb"[()\[\]{},]")
_NEWLINE = re.compile(rb"\n")
#: No tuple index has this many digits or more.
_MOST_DIGITS = 9

#: Name prefix of computations created for a shorthand; no name in HLO text starts like this.
MADE = ".async."


@dataclass(frozen=True, slots=True)
class LateCall:
    """An asynchronous call whose operands are bound after its start.

    Attributes
    ----------
    callees : tuple of str
        The called computation; empty for a shorthand, whose computation is created once its operands are known.
    opcode, attributes : bytes
        The instruction that a shorthand wraps.
    """

    callees: tuple[str, ...]
    opcode: bytes
    attributes: bytes


class Computation:
    """A computation: its instructions in text order, which is the schedule of a scheduled module.

    Attributes
    ----------
    name : str
    is_entry : bool
    opcodes : tuple of str
    details : tuple of Details
        The attributes of each instruction.
    root : int
        Position of the root instruction: the one marked ROOT, or else the last.
    facts : dict of int to object
        Results of the `FactReader` functions, by the position of the instruction.
    """

    __slots__ = ("_names", "_numbers", "details", "facts", "is_entry", "name", "opcodes", "root")

    def __init__(self, source: OpenComputation) -> None:
        self.name = source.name
        self.is_entry = source.is_entry
        self.opcodes = tuple(source.opcodes)
        self.details = tuple(source.details)
        # Most computations are fusions without facts.
        self.facts = source.facts or _NO_FACTS
        self.root = source.root if source.root >= 0 else len(self.opcodes) - 1
        self._names = b"\n".join(source.places)
        # One array, not two: most computations are small fusions, and each array costs 80 bytes.
        self._numbers = source.numbers + source.operands

    def __len__(self) -> int:
        return len(self.opcodes)

    @property
    def is_made(self) -> bool:
        """Whether it was created for a shorthand in the text: its root stands for the calling instruction."""
        return self.name.startswith(MADE)

    def names(self) -> Sequence[str]:
        """Return the names of the instructions, without ``%``."""
        return _Names(self._names, len(self.opcodes))

    def shape(self, place: int) -> int:
        """Return the number of an instruction's shape in the module's table."""
        return self._numbers[4 * place]

    def metadata(self, place: int) -> int:
        """Return the number of an instruction's metadata in the module's table; -1 for none."""
        return self._numbers[4 * place + 1]

    def line(self, place: int) -> int:
        """Return the line number of an instruction in the text."""
        return self._numbers[4 * place + 2]

    def operands(self, place: int) -> Sequence[int]:
        """Return the positions of an instruction's operands; -1 for one that is not in the computation."""
        numbers = self._numbers
        first = 4 * len(self.opcodes)
        begin = numbers[4 * place - 1] if place else 0
        return numbers[first + begin : first + numbers[4 * place + 3]]

    def all_operands(self) -> Iterator[Sequence[int]]:
        """Yield what `operands` returns for each instruction, in less time."""
        numbers, begin = self._numbers, 0
        first = 4 * len(self.opcodes)
        operands = numbers[first:]
        for end in numbers[3:first:4]:
            yield operands[begin:end]
            begin = end

    def first_parameter(self) -> int:
        """Return the place of the first parameter, or 0."""
        return self.opcodes.index("parameter") if "parameter" in self.opcodes else 0

    def last_parameter(self) -> int:
        """Return the place of the last parameter, or -1; they are in the order of their numbers, or reversed.

        The TPU compiler moves what it fetches for the next run of the program to the start.
        """
        places = [place for place, opcode in enumerate(self.opcodes) if opcode == "parameter"]
        numbers = [self.details[place].number for place in places]
        is_reversed = numbers[-1:] < numbers[-2:-1]
        return places[numbers.index(min(numbers) if is_reversed else max(numbers))] if places else -1

    def copies_element(self, place: int) -> bool:
        """Whether an instruction starts a copy of the element of a tuple that is taken directly before it."""
        names = self.opcodes[place - 1], self.opcodes[place]
        return names == ("get-tuple-element", "copy-start") and place - 1 in self.operands(place)


class _Names(Sequence[str]):
    """The names of instructions: lines of one text, since few of them are looked up."""

    __slots__ = ("_ends", "_text")

    def __init__(self, text: bytes, count: int) -> None:
        self._text = text
        ends = (found.start() for found in _NEWLINE.finditer(text))
        self._ends = array("q", itertools.chain((-1,), ends, (len(text),)) if count else ())

    def __len__(self) -> int:
        return max(len(self._ends) - 1, 0)

    def __getitem__(self, place: Any) -> Any:
        return self._text[self._ends[place] + 1 : self._ends[place + 1]].decode("utf-8", "replace")


class OpenComputation:
    """A computation that is still being read.

    Attributes
    ----------
    name : str
    is_entry : bool
    root : int
        Position of the instruction marked ROOT; -1 until it is read.
    places : dict of bytes to int
        Positions of the instructions, by name.
    opcodes : list of str
    details : list of Details
    numbers : array of int
        Four per instruction: the numbers of its shape and its metadata in the module's tables, its line, and the end of
        its operands in `operands`.
    operands : array of int
        Positions of the operands of all instructions.
    facts : dict of int to object
        Results of the `FactReader` functions, by the position of the instruction.
    elements : dict of (int, int) to int
        Tuple elements named by operands, by the position of the tuple and the index.
    late : dict of int to LateCall
        Asynchronous calls that wait for their operands, by the position of their last part.
    """

    __slots__ = (
        "details", "elements", "facts", "is_entry", "late", "name", "numbers", "opcodes", "operands", "places", "root"
    )  # fmt: skip

    def __init__(self, name: str, is_entry: bool) -> None:
        # Interned: calling instructions refer to it by the same string.
        self.name = sys.intern(name)
        self.is_entry = is_entry
        self.root = -1
        self.places: dict[bytes, int] = {}
        self.opcodes: list[str] = []
        self.details: list[Details] = []
        self.facts: dict[int, object] = {}
        self.elements: dict[tuple[int, int], int] = {}
        self.late: dict[int, LateCall] = {}
        self.numbers = array("i")
        self.operands = array("i")


def operand_places(text: bytes, places: dict[bytes, int]) -> list[int]:
    """Return the positions of operands, given the text between the parentheses; -1 for an unknown one.

    Examples
    --------
    >>> operand_places(b"%b, %a", {b"a": 0, b"b": 1}), operand_places(b"f32[2]{0} %a, s32[] c, b", {b"a": 0, b"b": 1})
    ([1, 0], [0, -1, 1])
    """
    place_of = places.get
    # Fast path: XLA prints bare names, with or without "%".
    names = text[1:].split(b", %") if text[:1] == b"%" else text.split(b", ")
    known = [place_of(name, -1) for name in names]
    if -1 in known:
        if b"{" in text or b"/" in text:
            text = _LAYOUT_OR_COMMENT.sub(b"", text)
        names = _OPERAND.findall(text)
        known = [place_of(name, -1) for name in names]
    return known


def places_with_elements(text: bytes, places: dict[bytes, int], element: Callable[[int, int, bytes], int]) -> list[int]:
    """Return the positions of operands, like `operand_places`, where operands may be tuple elements.

    Parameters
    ----------
    text : bytes
        The text between the parentheses.
    places : dict of bytes to int
        Positions of the instructions, by name.
    element : callable
        Takes the position of a tuple, an index and the name of the element; returns the element's position, or -1.

    Examples
    --------
    >>> places_with_elements(b"%p#1#0, %a", {b"p": 0, b"a": 7}, lambda place, index, name: print(place, name) or 8)
    0 b'p_1'
    8 b'p_1_0'
    [8, 7]
    """
    found = []
    for name, path in _OPERAND_OR_ELEMENT.findall(_LAYOUT_OR_COMMENT.sub(b"", text)):
        place = places.get(name, -1)
        for index in path.split(b"#")[1:]:
            digits = index.strip()
            if place < 0 or len(digits) > _MOST_DIGITS:
                place = -1
                break
            name = b"%s_%d" % (name, int(digits))
            place = element(place, int(digits), name)
        found.append(place)
    return found


def element_shapes(text: bytes) -> list[bytes]:
    """Return the texts of the element shapes of a tuple shape; empty for any other or malformed shape.

    Examples
    --------
    >>> element_shapes(b"(f32[2,3]{1,0:T(8,128)}, /*index=1*/(s32[], pred[]))")
    [b'f32[2,3]{1,0:T(8,128)}', b'(s32[], pred[])']
    """
    text = _COMMENT.sub(b"", text).strip()
    if not (text.startswith(b"(") and text.endswith(b")")):
        return []
    found, begin, depth = [], 1, 0
    for token in _BRACKET.finditer(text, 1, len(text) - 1):
        character = token.group()
        if character in b"([{":
            depth += 1
        elif character in b")]}":
            depth -= 1
        elif depth == 0:
            found.append(text[begin : token.start()].strip())
            begin = token.end()
    last = text[begin:-1].strip()
    return [*found, last] if last else found
