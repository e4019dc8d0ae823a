"""A computation of an HLO module, stored compactly: a module may have hundreds of thousands of instructions."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from fastindex.hlo.attributes import Details

#: One for all computations.
_NO_FACTS: dict[int, object] = {}
#: A name, after a shape or alone, with or without "%".
_OPERAND = re.compile(rb"(?:(?<=[\s,)}\]%])|^)([A-Za-z_][\w.\-]*):?\s*(?=,|$)")
_LAYOUT_OR_COMMENT = re.compile(rb"\{[^{}]*\}|/\*.*?\*/", re.DOTALL)


#: The name of a computation that is made for a shorthand begins so, as no name in a text does.
MADE = ".async."


@dataclass(frozen=True, slots=True)
class LateCall:
    """An asynchronous call whose operands are bound after it has started.

    Attributes
    ----------
    callees : tuple of str
        The computation; none for a shorthand, whose computation is made when its operands are known.
    opcode, attributes : bytes
        What a shorthand wraps.
    """

    callees: tuple[str, ...]
    opcode: bytes
    attributes: bytes


class Computation:
    """A computation: its instructions in the order of the text, which is the schedule of a scheduled module.

    Attributes
    ----------
    name : str
    is_entry : bool
    opcodes : tuple of str
    details : tuple of Details
        The attributes of each instruction.
    root : int
        The place of the root instruction: the one marked, or the last.
    facts : dict of int to object
        What was asked for about an instruction, by its place.
    """

    __slots__ = ("_names", "_numbers", "details", "facts", "is_entry", "name", "opcodes", "root")

    def __init__(self, source: OpenComputation) -> None:
        self.name = source.name
        self.is_entry = source.is_entry
        self.opcodes = tuple(source.opcodes)
        self.details = tuple(source.details)
        # Most computations are fusions without any.
        self.facts = source.facts or _NO_FACTS
        self.root = source.root if source.root >= 0 else len(self.opcodes) - 1
        self._names = b"\n".join(source.places)
        # A single array: most computations are fusions of a few instructions, and each array takes 80 bytes more.
        self._numbers = source.numbers + source.operands

    def __len__(self) -> int:
        return len(self.opcodes)

    @property
    def is_made(self) -> bool:
        """Whether the text has a shorthand for it: its root stands for the instruction that calls it."""
        return self.name.startswith(MADE)

    def names(self) -> list[str]:
        """Return the names of the instructions, without ``%``."""
        return self._names.decode("utf-8", "replace").split("\n") if self.opcodes else []

    def shape(self, place: int) -> int:
        """Return the number of an instruction's shape in the table of the module."""
        return self._numbers[4 * place]

    def metadata(self, place: int) -> int:
        """Return the number of an instruction's metadata in the table of the module; -1 for none."""
        return self._numbers[4 * place + 1]

    def line(self, place: int) -> int:
        """Return the line of an instruction in the text."""
        return self._numbers[4 * place + 2]

    def operands(self, place: int) -> Sequence[int]:
        """Return the places of the operands of an instruction; -1 for one that is not in the computation."""
        numbers = self._numbers
        first = 4 * len(self.opcodes)
        begin = numbers[4 * place - 1] if place else 0
        return numbers[first + begin : first + numbers[4 * place + 3]]


class OpenComputation:
    """A computation whose instructions are still being read.

    Attributes
    ----------
    name : str
    is_entry : bool
    root : int
        The place of the instruction marked ROOT; -1 before it is seen.
    places : dict of bytes to int
        The instructions by name.
    opcodes : list of str
    details : list of Details
    numbers : array of int
        Four for each instruction: its shape and its metadata in the tables of the module, its line, and where its
        operands end in `operands`.
    operands : array of int
        The places of the operands of all.
    facts : dict of int to object
        What was asked for about an instruction, by its place.
    elements : dict of (int, int) to int
        The elements of tuples that operands have named, by the place of the tuple and the index.
    late : dict of int to LateCall
        The asynchronous calls that wait for their operands, by the place of their last part.
    """

    __slots__ = (
        "details", "elements", "facts", "is_entry", "late", "name", "numbers", "opcodes", "operands", "places", "root"
    )  # fmt: skip

    def __init__(self, name: str, is_entry: bool) -> None:
        # Instructions that call it refer to it by the same string.
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
    """Return the places of operands, given the text between the parentheses; -1 for one that is not known.

    Examples
    --------
    >>> operand_places(b"%b, %a", {b"a": 0, b"b": 1}), operand_places(b"f32[2]{0} %a, s32[] c, b", {b"a": 0, b"b": 1})
    ([1, 0], [0, -1, 1])
    """
    place_of = places.get
    # XLA prints names alone, with or without "%".
    names = text[1:].split(b", %") if text[:1] == b"%" else text.split(b", ")
    known = [place_of(name, -1) for name in names]
    if -1 in known:
        if b"{" in text or b"/" in text:
            text = _LAYOUT_OR_COMMENT.sub(b"", text)
        names = _OPERAND.findall(text)
        known = [place_of(name, -1) for name in names]
    return known
