"""PTX as statements: a kernel's parameters, its registers and shared memory, and its instructions with their lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: Bits of the types of PTX that have a size of their own.
TYPE_BITS = {"pred": 1} | {f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)}
TYPE_BITS |= {"f16": 16, "f32": 32, "f64": 64}

#: Bytes that a kernel may declare; what is more is asked for at the launch.
MOST_STATIC_SHARED = 48 << 10


class PtxError(Exception):
    """What the emulator does not know, or PTX does not allow; `line` counts from 1."""

    def __init__(self, message: str, line: int, text: str = "") -> None:
        super().__init__(f"line {line}, `{text.strip()}`: {message}" if text else f"line {line}: {message}")
        self.line = line


@dataclass(frozen=True, slots=True)
class Statement:
    """An instruction: ``@guard opcode operands;``."""

    line: int
    text: str
    guard: str | None
    negated: bool
    opcode: str
    operands: tuple[str, ...]


@dataclass(slots=True)
class Entry:
    """A kernel.

    Attributes
    ----------
    name : str
    parameters : dict
        Name to (offset, bytes).
    registers : dict
        Name to the name of its type.
    shared : dict
        Name to (offset, bytes).
    shared_bytes, most_threads : int
    statements : list of Statement
    labels : dict
        Name to the number of the statement behind it.
    """

    name: str
    parameters: dict[str, tuple[int, int]] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    shared: dict[str, tuple[int, int]] = field(default_factory=dict)
    shared_bytes: int = 0
    most_threads: int = 1024
    statements: list[Statement] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    @property
    def parameter_bytes(self) -> int:
        return max((offset + size for offset, size in self.parameters.values()), default=0)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NAME = r"[\w$%.]+"
_SHARED = re.compile(rf"(?:\.extern\s+)?\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+({_NAME})\s*(?:\[(\d*)\])?")
_PARAMETER = re.compile(
    rf"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\S*\s+(?:\.\w+\s+\d*\s*)*)?({_NAME})(?:\[(\d+)\])?"
)
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.*)")
_LABEL = re.compile(r"\s*([\w$]+)\s*:(?!:)")
_GUARD = re.compile(r"@(!?)\s*(%?[\w$]+)\s+")
#: What says nothing about what the kernel does.
_IGNORED = (".pragma", ".loc", ".file", ".section")


def read(text: str) -> Entry:
    """Return the one kernel of a text of PTX.

    Raises
    ------
    PtxError
        There is none or more than one, or something is not understood.
    """
    lines = text.split("\n")
    bare = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    heads = list(re.finditer(rf"\.entry\s+({_NAME})\s*\(", bare))
    if len(heads) != 1:
        raise PtxError(f"{len(heads)} kernels where one is expected", 1)
    if re.search(r"\.func\b", bare):
        raise PtxError("a function that is called", 1 + bare[: bare.index(".func")].count("\n"))
    (head,) = heads
    entry = Entry(head[1])
    closing = bare.index(")", head.end())
    _read_parameters(entry, bare[head.end() : closing], 1 + bare[: head.end()].count("\n"))
    opening = bare.index("{", closing)
    limit = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", bare[closing:opening])
    if limit:
        entry.most_threads = int(limit[1]) * int(limit[2] or 1) * int(limit[3] or 1)
    # Shared memory may stand before the kernel.
    for found in _SHARED.finditer(bare[: head.start()]):
        _place_shared(entry, found)
    _Body(entry, lines).read(bare[opening + 1 :], 1 + bare[: opening + 1].count("\n"))
    if entry.shared_bytes > MOST_STATIC_SHARED:
        line = 1 + bare[: head.start()].count("\n")
        raise PtxError(f"declares {entry.shared_bytes} bytes of shared memory, of at most {MOST_STATIC_SHARED}", line)
    return entry


def _read_parameters(entry: Entry, text: str, line: int) -> None:
    offset = 0
    for part in filter(None, map(str.strip, text.split(","))):
        found = _PARAMETER.fullmatch(part)
        if found is None or found[2] not in TYPE_BITS:
            raise PtxError(f"a parameter that is not understood: {part}", line)
        size = TYPE_BITS[found[2]] // 8
        alignment = max(int(found[1] or 1), size)
        offset = -(-offset // alignment) * alignment
        nbytes = size * int(found[4] or 1)
        entry.parameters[found[3]] = offset, nbytes
        offset += nbytes


def _place_shared(entry: Entry, found: re.Match[str]) -> None:
    size = TYPE_BITS[found[2]] // 8
    alignment = max(int(found[1] or 1), size)
    offset = -(-entry.shared_bytes // alignment) * alignment
    # What has no size of its own begins behind all that has.
    nbytes = size * int(found[4] or (0 if found[4] == "" else 1))
    entry.shared[found[3]] = offset, nbytes
    entry.shared_bytes = offset + nbytes


class _Body:
    """The statements between the braces of a kernel; registers of inner braces have names of their own."""

    def __init__(self, entry: Entry, lines: list[str]) -> None:
        self.entry = entry
        self.lines = lines
        self.scopes: list[dict[str, str]] = [{}]
        self.opened = 0

    def read(self, body: str, line: int) -> None:
        at = 0
        while True:
            space = re.match(r"\s*", body[at:])
            assert space is not None
            line += space[0].count("\n")
            at += space.end()
            if body[at] == "{":
                self.opened += 1
                self.scopes.append({})
                at += 1
                continue
            if body[at] == "}":
                at += 1
                self.scopes.pop()
                if not self.scopes:
                    return
                continue
            label = _LABEL.match(body, at)
            if label:
                self.entry.labels[label[1]] = len(self.entry.statements)
                line += label[0].count("\n")
                at = label.end()
                continue
            end = body.find(";", at)
            if end < 0:
                raise PtxError("a statement that does not end", line)
            self.statement(body[at:end], line)
            line += body[at:end].count("\n")
            at = end + 1

    def statement(self, text: str, line: int) -> None:
        shown = self.lines[line - 1]
        if text.startswith(_IGNORED):
            return
        if text.startswith(".reg"):
            self.registers(text, line)
            return
        shared = _SHARED.fullmatch(text.strip())
        if shared:
            _place_shared(self.entry, shared)
            return
        if text.startswith("."):
            raise PtxError("a directive that the emulator does not know", line, shown)
        guard = _GUARD.match(text)
        rest = text[guard.end() :] if guard else text
        opcode, operands = [*re.split(r"\s+", rest.strip(), maxsplit=1), ""][:2]
        parts = tuple(self.renamed(part) for part in _operands(operands))
        name = self.renamed(guard[2]) if guard else None
        self.entry.statements.append(Statement(line, shown, name, bool(guard and guard[1]), opcode, parts))

    def registers(self, text: str, line: int) -> None:
        found = _REGISTERS.fullmatch(text.strip())
        if found is None or found[1] not in TYPE_BITS:
            raise PtxError("registers of a type that the emulator does not know", line, text)
        for name in map(str.strip, found[2].split(",")):
            many = re.fullmatch(r"(.*)<(\d+)>", name)
            for one in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]:
                inner = one if len(self.scopes) == 1 else f"{one}@{self.opened}"
                self.scopes[-1][one] = inner
                self.entry.registers[inner] = found[1]

    def renamed(self, operand: str) -> str:
        if len(self.scopes) == 1:
            return operand

        def new(found: re.Match[str]) -> str:
            return next((scope[found[0]] for scope in reversed(self.scopes) if found[0] in scope), found[0])

        return re.sub(r"%?[\w$]+(?:\.\w+)?", new, operand)


def _operands(text: str) -> list[str]:
    """Split at commas, but not within braces and brackets."""
    parts, depth, begin = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            parts.append(text[begin:i].strip())
            begin = i + 1
    parts.append(text[begin:].strip())
    return [part for part in parts if part]
