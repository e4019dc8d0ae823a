"""Rewrites HLO text as XLA's grammar allows: other spaces, line breaks and comments, parts left out, moved or added.

Begins with text as jaxlib prints it: an instruction to a line. Whether a rewriting is legal, jaxlib decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random

_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_INSTRUCTION = re.compile(r"^\s*(ROOT )?(%?[\w.\-]+) = ")
_SHAPE = re.compile(r"[a-z][a-z0-9]*\[[^\]]*\](?:\{[^{}]*\})?")
_TOKEN = re.compile(
    r"""(?s)"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|/\*.*?\*/|//[^\n]*"""
    r"""|[0-9bf?]{2,}_[0-9io?]{2,}->[0-9bf?]{2,}|->|<=|\.\.\."""
    r"""|%?[A-Za-z_][\w.\-]*[=:]|%?[A-Za-z_][\w.\-]*|-?[0-9](?:[\w.]|(?<=[eEx_])[+\-])*|-inf|-nan|\s+|."""
)
_WORDS = re.compile(r"[\w.\-%+]")
#: Attributes that name one computation.
_CALLS = ("calls", "to_apply", "body", "condition", "select", "scatter", "true_computation", "false_computation")
#: Opcodes whose shape XLA infers from operands of these.
_INFERRED = (
    "abs", "add", "and", "call", "compare", "concatenate", "conditional", "divide", "dot",
    "exponential", "gather", "get-tuple-element", "is-finite", "maximum", "multiply", "negate", "or", "pad", "reduce",
    "reverse", "scatter", "select", "sine", "sort", "subtract", "tanh", "transpose", "tuple", "while", "sqrt", "log",
    "convolution", "reduce-window", "cholesky", "triangular-solve", "fft", "map", "select-and-scatter", "real", "imag",
    "complex", "after-all", "partition-id", "replica-id", "power", "minimum", "clamp", "xor", "not",
)  # fmt: skip
#: Opcodes whose asynchronous form XLA prints short, ``NAME-start``, and without the computation that it calls.
_SHORT = ("call", "custom-call", "dynamic-slice", "dynamic-update-slice", "fusion", "slice", "transpose", "while")
#: Attributes that may be added: what they say of other things is not of the instruction.
_ADDED = (
    ("sharding", '{replicated metadata={op_name="} q"}}'), ("sharding", '{devices=[2]<=[2] metadata={op_name="x"}}'),
    ("metadata", '{op_name="\u00e9\\303\\251 // {" source_file="a b.py" source_line=3}'),
    ("metadata", '{op_name="/* \\""}'),
    ("frontend_attributes", '{a="calls=%x, metadata={",kernel_metadata={}}'), ("backend_config", '{"a":{"b":["}",1]}}'),
    ("backend_config", '"{\\"known_trip_count\\":{\\"n\\":\\"6\\"}}"'), ("control-predecessors", "{}"),
)  # fmt: skip
#: A string that may have quotes of the other kind.
_PLAIN_STRING = re.compile(r'="([^"\'\\\n]*)"')
#: What is changed, each as often as a module's chances say.
_CHANGES = (
    "space", "percent", "shapes", "order", "omit", "inline", "nest", "headings", "header", "async", "added", "quotes",
)  # fmt: skip
#: Their values are read as they are.
_RAW = ("backend_config=", "frontend_attributes=")


@dataclass
class Line:
    """An instruction."""

    is_root: bool
    name: str
    shape: str
    opcode: str
    operands: str
    attributes: list[tuple[str, str]]


@dataclass
class Block:
    """A computation: what stands before its name, the name, the parameters and result, and what follows its brace."""

    is_entry: bool
    name: str
    signature: str
    lines: list[Line] = field(default_factory=list)
    after: str = ""


def closing(text: str, at: int) -> int:
    """Return the place after the bracket that closes the one at `at`."""
    depth = []
    while True:
        character = text[at]
        if character == '"':
            found = _STRING.match(text, at)
            assert found is not None
            at = found.end()
            continue
        if text.startswith("/*", at):
            at = text.index("*/", at) + 2
            continue
        if character in _BRACKETS:
            depth.append(_BRACKETS[character])
        elif character in ")]}":
            assert depth.pop() == character
            if not depth:
                return at + 1
        at += 1


def parts(text: str) -> list[str]:
    """Split at the commas outside brackets and strings."""
    found, begin, at = [], 0, 0
    while at < len(text):
        if text[at] in _BRACKETS:
            at = closing(text, at)
        elif text[at] == '"':
            string = _STRING.match(text, at)
            assert string is not None
            at = string.end()
        elif text.startswith("/*", at):
            at = text.index("*/", at) + 2
        elif text[at] == ",":
            found.append(text[begin:at].strip())
            begin = at = at + 1
        else:
            at += 1
    last = text[begin:].strip()
    return [*found, last] if last else found


def taken_apart(text: str) -> tuple[str, list[Block]]:
    """Return the header with its tables, and the computations."""
    header: list[str] = []
    blocks: list[Block] = []
    is_open = False
    for line in text.splitlines():
        if is_open and line.startswith("}"):
            is_open = False
            blocks[-1].after = line[1:]
        elif is_open and _INSTRUCTION.match(line):
            blocks[-1].lines.append(_line(line))
        elif line.endswith("{") and not line.startswith("HloModule") and (line[0] == "%" or line.startswith("ENTRY")):
            heading = line[:-1].strip()
            is_entry = heading.startswith("ENTRY ")
            name, _, signature = heading.removeprefix("ENTRY ").partition(" ")
            blocks.append(Block(is_entry, name, signature))
            is_open = True
        elif not blocks:
            header.append(line)
    return "\n".join(header), blocks


def _line(text: str) -> Line:
    found = _INSTRUCTION.match(text)
    assert found is not None
    at = found.end()
    if text[at] == "(":
        end = closing(text, at)
    else:
        shape = _SHAPE.match(text, at)
        assert shape is not None, text
        end = shape.end()
    opening = text.index("(", end)
    end_of_operands = closing(text, opening)
    attributes = [part.partition("=") for part in parts(text[end_of_operands:].lstrip(", "))]
    return Line(
        found[1] is not None, found[2], text[at:end], text[end:opening].strip(),
        text[opening + 1 : end_of_operands - 1],
        [(name, value) for name, _, value in attributes],
    )  # fmt: skip


def _write_out(block: Block) -> None:
    """Replace the short forms of asynchronous operations by calls of computations that are written in place."""
    shapes = {line.name.lstrip("%"): line.shape for line in block.lines}
    for line in block.lines:
        opcode, _, stage = line.opcode.rpartition("-")
        if opcode not in _SHORT or stage not in ("start", "update", "done"):
            continue
        line.opcode = f"async-{stage}"
        if stage == "start":
            own = [each for each in line.attributes if each[0].startswith("async_")]
            tail = "".join(f", {name}={value}" for name, value in line.attributes if (name, value) not in own)
            given = [each.split()[-1].lstrip("%") for each in parts(line.operands)]
            inner = [f"w.{i} = {shapes[name]} parameter({i})" for i, name in enumerate(given)]
            names = ", ".join(f"w.{i}" for i in range(len(given)))
            result = parts(line.shape[1:-1])[1]
            inner.append(f"ROOT w = {re.sub('/[*].*?[*]/', '', result)} {opcode}({names}){tail}")
            line.attributes = [*own, ("calls", "{ " + " ".join(inner) + " }")]


class Rewriter:
    """Rewrites one module at random."""

    def __init__(self, source: Random) -> None:
        self.source = source
        # How often each change is made; most rewritings make few kinds.
        self.chances = {name: source.choice((0, 0, 0.05, 0.3, 0.9)) for name in _CHANGES}

    def happens(self, name: str) -> bool:
        return self.source.random() < self.chances[name]

    def rewritten(self, text: str) -> str:
        """Return another text of the same module, or of one much like it."""
        header, blocks = taken_apart(text)
        if self.happens("async"):
            for block in blocks:
                _write_out(block)
        by_name = {block.name.lstrip("%"): block for block in blocks}
        uses: dict[str, int] = {}
        for block in blocks:
            for line in block.lines:
                for name in re.findall(r"%[\w.\-]+", " ".join(value for _, value in line.attributes)):
                    uses[name.lstrip("%")] = uses.get(name.lstrip("%"), 0) + 1
        inlined: set[str] = set()
        bodies = {name: self.body(block, by_name, uses, inlined) for name, block in by_name.items()}
        shown = []
        for name, block in by_name.items():
            if name in inlined:
                continue
            body = bodies[name]
            while "\0" in body:
                # Results that are written where they are named.
                body = re.sub("\0([^\0]*)\0", lambda found: "{" + bodies[found[1]] + "}", body)
            entry = "ENTRY " if block.is_entry and not (self.happens("headings") and block is blocks[-1]) else ""
            shown.append(f"{entry}{self.percent(block.name)}{self.signature(block)} {{{body}\n}}{block.after}")
        gap = "\n" if self.happens("space") else "\n\n"
        return self.quoted(self.header(header) + gap + self.spaced(gap.join(shown)) + "\n")

    def quoted(self, text: str) -> str:
        return _PLAIN_STRING.sub(lambda found: f"='{found[1]}'" if self.happens("quotes") else found[0], text)

    def percent(self, name: str) -> str:
        return name.lstrip("%") if self.happens("percent") else name

    def header(self, text: str) -> str:
        first, newline, tables = text.partition("\n")
        name, _, rest = first.partition(", ")
        attributes = parts(rest)
        if self.happens("header"):
            self.source.shuffle(attributes)
        if self.happens("header"):
            attributes = [each for each in attributes if not each.startswith("entry_computation_layout")]
        if self.happens("header") and self.source.random() < 0.3:
            return ""
        return self.spaced(", ".join([name, *attributes])) + newline + self.spaced(tables)

    def signature(self, block: Block) -> str:
        if not block.signature or self.happens("headings"):
            return ""
        text = " " + block.signature
        if self.happens("headings"):
            parameters, arrow, result = text.rpartition(" -> ")
            root = next((line for line in block.lines if line.is_root), None)
            text = parameters + arrow + (root.shape if root else result)
        return text

    def body(self, block: Block, by_name: dict[str, Block], uses: dict[str, int], inlined: set[str]) -> str:
        shapes = {line.name.lstrip("%"): line.shape for line in block.lines}
        named: dict[str, int] = {}
        for line in block.lines:
            for name in re.findall(r"%([\w.\-]+)", line.operands + " ".join(v for _, v in line.attributes)):
                named[name] = named.get(name, 0) + 1
        nested: dict[str, str] = {}
        shown = []
        for line in block.lines:
            if line.opcode not in ("constant", "parameter", "iota"):
                operands = [self.operand(each, shapes, nested) for each in parts(line.operands)]
                operands_text = ", ".join(operands)
            else:
                operands_text = line.operands
            attributes = [self.attribute(name, value, by_name, uses, inlined) for name, value in line.attributes]
            name, value = self.source.choice(_ADDED)
            if self.happens("added") and name not in dict(line.attributes):
                attributes.append(f"{name}={value}")
            if self.happens("order"):
                self.source.shuffle(attributes)
            omitted = line.opcode in _INFERRED and self.happens("omit")
            right = ("" if omitted else line.shape + " ") + f"{line.opcode}({operands_text})"
            name = line.name.lstrip("%")
            if not attributes and not line.is_root and named.get(name) == 1 and self.happens("nest"):
                nested[name] = right
                continue
            tail = "".join(f", {each}" for each in attributes)
            root = "ROOT " if line.is_root else ""
            shown.append(f"\n  {root}{self.percent(line.name)} = {right}{tail}")
        return "".join(shown)

    def operand(self, text: str, shapes: dict[str, str], nested: dict[str, str]) -> str:
        name = text.split()[-1].lstrip("%")
        if name in nested:
            return nested.pop(name)
        shape = shapes.get(name, "")
        if shape and self.happens("shapes"):
            if self.source.random() < 0.5:
                shape = re.sub(r"\{[^{}]*\}", "", shape)
            return f"{shape} {self.percent('%' + name)}"
        return self.percent(text)

    def attribute(
        self, name: str, value: str, by_name: dict[str, Block], uses: dict[str, int], inlined: set[str]
    ) -> str:
        if name in ("branch_computations", "called_computations"):
            items = [self.called(item, by_name, uses, inlined) for item in parts(value[1:-1])]
            return f"{name}={{{', '.join(items)}}}"
        return f"{name}={self.called(value, by_name, uses, inlined) if name in _CALLS else value}"

    def called(self, value: str, by_name: dict[str, Block], uses: dict[str, int], inlined: set[str]) -> str:
        """Name a computation, or write it here."""
        callee = value.lstrip("%")
        if callee not in by_name:
            return value
        if uses.get(callee) == 1 and not by_name[callee].after.strip() and self.happens("inline"):
            inlined.add(callee)
            return f"\0{callee}\0"
        return self.percent(value)

    def spaced(self, text: str) -> str:
        """Put other spaces between the tokens."""
        if not self.chances["space"]:
            return text
        written: list[str] = []
        at = 0
        gap = ""
        while at < len(text):
            found = _TOKEN.match(text, at)
            assert found is not None
            token = found.group()
            at = found.end()
            if token.isspace() or token.startswith("/"):
                gap += token
                continue
            if token in _RAW and text[at : at + 1] == "{":
                end = closing(text, at)
                token, at = token + text[at:end], end
            before = written[-1][-1:] if written else ""
            if self.happens("space"):
                gap = self.gap()
            is_needed = (before and _WORDS.match(before) and _WORDS.match(token)) or (
                token == "=" and not written[-1].startswith("%")
            )
            if before and not gap.strip(" \t\r\n") and is_needed and not gap:
                gap = " "
            written += [gap, token] if gap else [token]
            gap = ""
        return "".join(written)

    def gap(self) -> str:
        return self.source.choice(
            ("", "", " ", "  ", "\n", "\n    ", "\t", "\r\n", " /*a*/ ", "/* b = f32[2]{0} c( */", " // d = f32[] e(\n")
        )
