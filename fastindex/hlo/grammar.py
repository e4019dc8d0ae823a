"""What the readers of HLO text share: byte patterns for HLO's grammar, rows, and numbers in untrusted text.

Source: ``xla/hlo/parser/hlo_lexer.cc`` and ``hlo_parser.cc``.
"""

from __future__ import annotations

import re
from typing import Protocol

from fastindex.core.integers import INT64_MAX

QUOTED = rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
TOKEN = re.compile(QUOTED + rb'|["={}()\n]|/\*|//[^\n]*', re.DOTALL)
#: Tokens that matter in an attribute that contains free text or JSON.
OPAQUE_TOKEN = re.compile(QUOTED + rb'|["{}\n]', re.DOTALL)
OPAQUE_ATTRIBUTES = (b"metadata", b"backend_config", b"frontend_attributes", b"statistics", b"origin")
#: Braces that contain no other braces, except in strings.
FLAT_BRACES = re.compile(rb'\{[^{}"\n]*+(?:' + QUOTED + rb'[^{}"\n]*+)*+\}', re.DOTALL)
#: ``SHAPE opcode(`` where the shape is an array or a buffer; a tuple may be too long for a pattern.
ARRAY_HEAD = re.compile(
    rb"\s*((?:b\s*\(\s*)?[a-z][a-z0-9]*\s*\[(?:[^\]=<]|<=)*+\](?:\s*\{[^{}=]*\})?(?:\s*\))?)\s+([a-z][a-z0-9\-]*)\("
)
TUPLE_TOKEN = re.compile(rb"[()\n]|/\*.*?\*/|//[^\n]*", re.DOTALL)
OPCODE = re.compile(rb"\s*([a-z][a-z0-9\-]*)\(")
#: Start of a line that can only be an instruction.
STATEMENT = re.compile(rb"[ \t\r]*(?:ROOT\s+)?%?[A-Za-z_][\w.\-]*\s+=\s*[a-z(]")
#: Text before an ``=`` that should belong to an instruction.
NAME_BEFORE = re.compile(rb"(?:^|([\n\r{};)]))[ \t]*(ROOT\s+)?(%?)[A-Za-z_][\w.\-]*\s+$")
NAME = re.compile(rb"(ROOT\s+)?%?([\w.\-]+)\s*$")
#: Possible starts of a line inside a computation.
BODY_LINE = re.compile(rb"\s*(?:\}|\{|ENTRY\s|HloModule\b|(?:ROOT\s+)?%?[\w.\-]+(?:\s+=|\s*\()|/[/*]|[,)]|$)")
#: After one of these characters, an instruction continues on the next line.
CONTINUES = b",({=:>"
#: A line outside computations: a module, a heading (entry, name), a line of the tables of files and frames.
OUTER_LINE = re.compile(
    rb"[ \t]*(?:(HloModule)\b|(?:(ENTRY)\s+)?%?([A-Za-z_][\w.\-]*)\s*[({]"
    rb'|(\d+[ ]["{]|(?:FileNames|FunctionNames|FileLocations|StackFrames)\s*\n))'
)
TABLE = re.compile(rb"(?:FileNames|FunctionNames|FileLocations|StackFrames)(?![\w.\-=:])")
#: Table lines as XLA prints them, one entry per line.
TABLE_LINES = re.compile(rb'(?:\d+[ ](?:"[^"\\\n]*+"|\{[^{}"\n]*+\})\n)+')
#: XLA ends the header with a newline; other printers continue after a comma, or omit the newline.
HEADER_END = re.compile(rb"(?<!,)\r?\n|(?<=\s)(?=ENTRY\s[^\n]*\{)")
_PARENTHESIS = re.compile(QUOTED + rb"|[()]")


def split_operands(text: bytes) -> tuple[bytes, bytes]:
    """Split the text after ``opcode(`` into operands and attributes.

    Examples
    --------
    >>> split_operands(b"f32[2]{0:T(4)} %a, %b), index=0")
    (b'f32[2]{0:T(4)} %a, %b', b', index=0')
    """
    depth = 1
    for token in _PARENTHESIS.finditer(text):
        character = token.group()
        if character == b"(":
            depth += 1
        elif character == b")":
            depth -= 1
            if depth == 0:
                return text[: token.start()], text[token.end() :]
    return text, b""


def integer(text: str | bytes) -> int:
    """Return a non-negative integer; 0 if it exceeds int64 or is too long for Python to parse.

    Examples
    --------
    >>> integer("17"), integer(b"3"), integer("9" * 5000)
    (17, 3, 0)
    """
    try:
        value = int(text)
    except ValueError:
        return 0
    return value if value <= INT64_MAX else 0


def rounded(text: str, unit: int) -> int:
    """Return a decimal number of units, rounded to an integer; 0 if it exceeds int64.

    Examples
    --------
    >>> rounded("1.5", 1024), rounded("9" * 400, 1)
    (1536, 0)
    """
    value = float(text) * unit
    return round(value) if value <= INT64_MAX else 0


#: An instruction: its ROOT mark or b"", name, shape, opcode, operand text, and attribute text.
Row = tuple[bytes, bytes, bytes, bytes, bytes, bytes]


class HloSink(Protocol):
    """Receives the elements that the scanner finds, in text order."""

    def header(self, text: bytes) -> None:
        """Receive the line that starts with ``HloModule``; a new module starts."""

    def table_line(self, text: bytes) -> None:
        """Receive a line of the tables of source files and stack frames."""

    def open_computation(self, name: bytes, is_entry: bool) -> None:
        """Receive the start of a computation."""

    def close_computation(self) -> None:
        """Receive the end of a computation."""

    def open_inner(self, name: bytes) -> None:
        """Receive the start of a computation written inline, where an instruction could name one."""

    def close_inner(self) -> None:
        """Receive the end of the inline computation; the enclosing one continues."""

    def instructions(self, rows: list[Row], line: int) -> None:
        """Receive instructions on consecutive lines, with the line number of the first."""
