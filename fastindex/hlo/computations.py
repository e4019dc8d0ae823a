"""A computation of an HLO module, stored compactly: a module may have hundreds of thousands of instructions."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from fastindex.hlo.attributes import Details

#: Shared by all computations without facts.
_NO_FACTS: dict[int, object] = {}
#: A name, with or without "%", alone or after a shape.
_OPERAND = re.compile(rb"(?:(?<=[\s,)}\]%])|^)([A-Za-z_][\w.\-]*):?\s*(?=,|$)")
_LAYOUT_OR_COMMENT = re.compile(rb"\{[^{}]*\}|/\*.*?\*/", re.DOTALL)


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

    def names(self) -> list[str]:
        """Return the names of the instructions, without ``%``."""
        return self._names.decode("utf-8", "replace").split("\n") if self.opcodes else []

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
