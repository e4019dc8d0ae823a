"""An HLO module as it was read: its header, its computations and their instructions, kept small.

A module may have hundreds of thousands of instructions, so a computation keeps them in parallel arrays of
numbers: names as one text, shapes and metadata as places in tables of the module.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from fastindex.hlo.numbers import integer

Path = tuple[int, ...]
#: (path in the output, operand number, path in that operand)
Alias = tuple[Path, int, Path]

_OPERAND = re.compile(rb"%([\w.\-]+)")
_BARE_OPERAND = re.compile(rb"([A-Za-z_][\w.\-]*)\s*(?=,|$)")
_METADATA = re.compile(rb'metadata=\{([^"}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"}]*+)*+)\}', re.DOTALL)
_INDEX = re.compile(rb"index=(\d+)")
_CALLEES = {
    "fusion": re.compile(rb"\bcalls=%?([\w.\-]+)"),
    "call": re.compile(rb"\bto_apply=%?([\w.\-]+)"),
    "async-start": re.compile(rb"\bcalls=%?([\w.\-]+)"),
}
_WHILE = re.compile(rb"\bcondition=%?([\w.\-]+), body=%?([\w.\-]+)|\bbody=%?([\w.\-]+), condition=%?([\w.\-]+)")
_BRANCHES = re.compile(rb"\bbranch_computations=\{([^{}]*)\}")
_TRUE_FALSE = re.compile(rb"\btrue_computation=%?([\w.\-]+), false_computation=%?([\w.\-]+)")
_ALIASING = re.compile(rb"output_to_operand_aliasing=\{((?:[^{}]|\{[^{}]*\})*)\}")
_ALIAS = re.compile(rb"\{([\d,\s]*)\}:\s*\((\d+),\s*\{([\d,\s]*)\}")
_KIND = re.compile(rb"\bkind=k(\w+)")
_SHARDING = re.compile(rb"\bsharding=(\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})")
_SDY_SHARDING = re.compile(rb'\bxla\.sdy\.sharding="((?:[^"\\]|\\.)*)"')
#: Opcodes whose text between the parentheses is not operands.
_NO_OPERANDS = frozenset(("constant", "parameter", "iota", "partition-id", "replica-id", "after-all"))
#: Starts with opcodes of their own; any other ``X-start`` is short for an ``async-start`` of ``X``.
NATIVE_STARTS = frozenset(
    ("all-gather-start", "all-reduce-start", "async-start", "collective-permute-start", "copy-start")
)


@dataclass(frozen=True, slots=True)
class Details:
    """What the attributes of an instruction say about the flow of values.

    Attributes
    ----------
    callees : tuple of str
        Computations that run as part of the instruction: of a while, the condition and the body.
    aliases : tuple of Alias
        ``output_to_operand_aliasing``.
    kind : str
        Of a fusion: "Loop", "Input", "Output", "Custom".
    number : int
        Of a parameter, its number; of a get-tuple-element, its index.
    sharding : str
        Of an entry parameter: its sharding as written.
    """

    callees: tuple[str, ...] = ()
    aliases: tuple[Alias, ...] = ()
    kind: str = ""
    number: int = -1
    sharding: str = ""


_NO_DETAILS = Details()


class Computation:
    """A computation: its instructions in the order of the text, which is the schedule of a scheduled module.

    Attributes
    ----------
    name : str
    is_entry : bool
    opcodes : list of str
    shapes, metadata, lines : array of int
        Places in the tables of the module; -1 for no metadata.
    root : int
        The place of the root instruction: the one marked, or the last.
    """

    __slots__ = (
        "_ends", "_names", "_operands", "_places", "details", "is_entry", "lines", "metadata", "name",
        "opcodes", "root", "shapes",
    )  # fmt: skip

    def __init__(self, name: str, is_entry: bool) -> None:
        self.name = name
        self.is_entry = is_entry
        self.opcodes: list[str] = []
        self.shapes = array("i")
        self.metadata = array("i")
        self.lines = array("i")
        self.details: list[Details] = []
        self.root = -1
        self._operands = array("i")
        self._ends = array("i")
        self._places: dict[bytes, int] = {}
        self._names = b""

    def __len__(self) -> int:
        return len(self.opcodes)

    def add(self, name: bytes, opcode: str, shape: int, operands: bytes, metadata: int, line: int) -> int:
        """Add an instruction; return its place."""
        places = self._places
        place = len(places)
        self.opcodes.append(opcode)
        self.details.append(_NO_DETAILS)
        self.shapes.append(shape)
        self.metadata.append(metadata)
        self.lines.append(line)
        if operands and opcode not in _NO_OPERANDS:
            if operands[0] == 0x25 and (known := places.get(operands[1:])) is not None:
                self._operands.append(known)
            else:
                names = _OPERAND.findall(operands) if b"%" in operands else _BARE_OPERAND.findall(operands)
                self._operands.extend([places.get(operand, -1) for operand in names])
        self._ends.append(len(self._operands))
        if name in places:
            # Names are unique where a module is whole; the first keeps its place.
            name = b"%s'%d" % (name, place)
        places[name] = place
        return place

    def close(self) -> None:
        """Drop what is needed only while instructions are added."""
        self._names = b"\n".join(self._places)
        self._places = {}
        if self.root < 0:
            self.root = len(self.opcodes) - 1

    def names(self) -> list[str]:
        """Return the names of the instructions, without ``%``."""
        return self._names.decode("utf-8", "replace").split("\n") if self.opcodes else []

    def operands(self, place: int) -> Sequence[int]:
        """Return the places of the operands of an instruction; -1 for one that is not in the computation."""
        return self._operands[self._ends[place - 1] if place else 0 : self._ends[place]]

    def details_of(self, place: int) -> Details:
        """Return what the attributes of an instruction say."""
        return self.details[place]


@dataclass(slots=True)
class Module:
    """An HLO module.

    Attributes
    ----------
    name : str
        As the header says; "" where there is no header.
    header : str
        The line that begins with ``HloModule``.
    computations : dict of str to Computation
    shapes : dict of bytes to int
        The texts of the results' shapes, numbered.
    counts, first_lines : list of int
        By number of the shape: how many instructions have it, and the line of the first.
    async_counts : dict of int to int
        The part of `counts` that are asynchronous starts written short, ``slice-start`` for an ``async-start``
        that calls a computation with a ``slice``, which is not in the text.
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
        """``num_partitions``: how many devices share the arrays; the module is the program of one."""
        found = re.search(r"\bnum_partitions=(\d+)", self.header)
        return integer(found.group(1)) if found else 1

    def input_output_aliases(self) -> tuple[Alias, ...]:
        """Return which outputs take the memory of which parameters."""
        found = re.search(rb"input_output_alias=\{", self.header.encode())
        if not found:
            return ()
        text = self.header.encode()[found.end() :]
        end = re.search(rb"\}\s*(?:,\s*[a-z_]+=|$)", text)
        return _aliases(text[: end.start()] if end else text)


class ModuleReader:
    """A sink for the scanner that puts modules together and hands each on when it is complete."""

    def __init__(self, done: Callable[[Module], None]) -> None:
        self._done = done
        self._module = Module()
        self._computation: Computation | None = None
        self._opcodes: dict[bytes, str] = {}

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
        self._computation = Computation(name.decode("utf-8", "replace"), is_entry)

    def close_computation(self) -> None:
        """End a computation; of two with a name, the first keeps it."""
        computation = self._computation
        if computation is None:
            return
        self._computation = None
        computation.close()
        known = self._module.computations
        name = computation.name
        while name in known:
            name += "'"
        computation.name = name
        known[name] = computation

    def finish(self) -> None:
        """End the module and hand it on."""
        self.close_computation()
        module, self._module = self._module, Module()
        if module.counts:
            self._done(module)

    def instruction(
        self, name: bytes, shape: bytes, opcode: bytes, operands: bytes, attributes: bytes, is_root: bool, line: int
    ) -> None:
        """Add an instruction to the computation that is open."""
        module, computation = self._module, self._computation
        if computation is None:
            computation = self._computation = Computation("", is_entry=False)
        number = module.shapes.get(shape)
        if number is None:
            number = module.shapes[shape] = len(module.counts)
            module.counts.append(0)
            module.first_lines.append(line)
        module.counts[number] += 1
        code = self._opcodes.get(opcode)
        if code is None:
            code = self._opcodes[opcode] = opcode.decode()
        metadata = -1
        begin = attributes.find(b"metadata={")
        if begin >= 0:
            text = attributes[begin + 10 : attributes.find(b"}", begin)]
            metadata = module.metadata.get(text, -1)
            if metadata < 0:
                if text.count(b'"') & 1 or b"\\" in text:
                    # A brace in a string does not end it.
                    whole = _METADATA.search(attributes, begin)
                    text = whole.group(1) if whole else text
                metadata = module.metadata.setdefault(text, len(module.metadata))
        place = computation.add(name, code, number, operands, metadata, line)
        if is_root:
            computation.root = place
        if code in _READERS:
            computation.details[place] = _READERS[code](operands, attributes)
        elif code.endswith("-start") and code not in NATIVE_STARTS:
            module.async_counts[number] = module.async_counts.get(number, 0) + 1


def _aliases(text: bytes) -> tuple[Alias, ...]:
    return tuple(
        (_path(output), integer(operand), _path(path)) for output, operand, path in _ALIAS.findall(text)
    )  # fmt: skip


def _path(text: bytes) -> Path:
    return tuple(integer(part) for part in text.split(b",")) if text.strip() else ()


def _output_aliases(attributes: bytes) -> tuple[Alias, ...]:
    found = _ALIASING.search(attributes)
    return _aliases(found.group(1)) if found else ()


def _names(found: re.Match[bytes] | None) -> tuple[str, ...]:
    return tuple(name.decode() for name in found.groups() if name is not None) if found else ()


def _read_parameter(operands: bytes, attributes: bytes) -> Details:
    number = operands.strip()
    sharding = None
    if b"sharding=" in attributes:
        sharding = _SHARDING.search(attributes) or _SDY_SHARDING.search(attributes)
    return Details(
        number=integer(number) if number.isdigit() else -1,
        sharding=sharding.group(1).decode("utf-8", "replace").replace('\\"', '"') if sharding else "",
    )


_ELEMENTS = [Details(number=number) for number in range(256)]


def _read_element(operands: bytes, attributes: bytes) -> Details:
    found = _INDEX.search(attributes)
    number = integer(found.group(1)) if found else -1
    return _ELEMENTS[number] if 0 <= number < len(_ELEMENTS) else Details(number=number)


def _read_fusion(operands: bytes, attributes: bytes) -> Details:
    kind = _KIND.search(attributes)
    aliases = _output_aliases(attributes) if b"aliasing" in attributes else ()
    callee = _CALLEES["fusion"].search(attributes)
    return _fusion_details(callee.group(1) if callee else b"", aliases, kind.group(1) if kind else b"")


@lru_cache(maxsize=4096)
def _fusion_details(callee: bytes, aliases: tuple[Alias, ...], kind: bytes) -> Details:
    return Details((callee.decode(),) if callee else (), aliases, kind.decode())


def _read_call(operands: bytes, attributes: bytes) -> Details:
    return Details(_names(_CALLEES["call"].search(attributes)))


def _read_async_start(operands: bytes, attributes: bytes) -> Details:
    return Details(_names(_CALLEES["async-start"].search(attributes)), _output_aliases(attributes))


def _read_custom_call(operands: bytes, attributes: bytes) -> Details:
    return Details(aliases=_output_aliases(attributes))


def _read_while(operands: bytes, attributes: bytes) -> Details:
    found = _WHILE.search(attributes)
    if found is None:
        return Details()
    condition, body, body_first, condition_last = found.groups()
    names = (condition, body) if body is not None else (condition_last, body_first)
    return Details(tuple(name.decode() for name in names))


def _read_conditional(operands: bytes, attributes: bytes) -> Details:
    found = _BRANCHES.search(attributes)
    if found is None:
        return Details(_names(_TRUE_FALSE.search(attributes)))
    return Details(tuple(name.strip().lstrip(b"%").decode() for name in found.group(1).split(b",")))


_READERS: dict[str, Callable[[bytes, bytes], Details]] = {
    "parameter": _read_parameter,
    "get-tuple-element": _read_element,
    "fusion": _read_fusion,
    "call": _read_call,
    "async-start": _read_async_start,
    "custom-call": _read_custom_call,
    "while": _read_while,
    "conditional": _read_conditional,
}
