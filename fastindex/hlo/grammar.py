"""What the readers of HLO text share: byte patterns for HLO's grammar, rows, and numbers in untrusted text.

Nearly all text is formatted as XLA prints it: one heading, instruction or closing brace per line. Whole lines are
matched many times faster than tokens; anything else is left to the scanner.

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
TABLE_LINES = re.compile(rb'(?:\d+[ ](?:"[^"\\\n]*+"|\{[^{}"\n/]*+\})\n)+')
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


_NAME = rb"[A-Za-z_][0-9A-Za-z_.\-]*+"
_INSTRUCTION = re.compile(
    rb"^[ \t]*+(ROOT )?%?(" + _NAME + rb") = "
    rb'([a-z][a-z0-9]*+\[[^\]="\n]*+\](?:\{[^{}="\s/]*+\})?+|\([^"\n]*?\)) ([a-z][a-z0-9\-]*+)'
    # A parenthesis after a small letter, a digit or "name " opens operands: an instruction nested as an operand.
    rb'\(([^()"\n]*+(?:(?<![a-z0-9_.\-])(?<![^,][ \t])\([^()"\n]*+(?:\([^()"\n]*+\)[^()"\n]*+)*+\)[^()"\n]*+)*+)\)'
    rb"((?:, ?[A-Za-z_][A-Za-z0-9_.\-]*+=[^\n]*+)?+)\r?\n",
    re.MULTILINE,
)
_HEADING = re.compile(
    rb"[ \t]*+(?!HloModule\b)(?:(ENTRY) )?%?(" + _NAME + rb") "
    # A number on the line after the brace means that the brace opens a layout.
    rb'(\([^"={}\n/]*+(?:/\*[^*"()\n]*+\*/[^"={}\n/]*+)*+)?\{\r?\n(?![ \t\r\n]*[\d:/])'
)
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
#: A tuple that XLA prints differently, or that another instruction or an opcode without a space before it follows.
_ODD_TUPLE = re.compile(rb"\)\s*[a-z]|(?<!,)\s|(?<![*, ])/")
#: Start of a line that may continue the previous instruction: neither a name nor the end of the computation.
_CONTINUATION = re.compile(rb"[ \t\r\n]*(?:[^ \t\r\n%A-Za-z_}]|T[ \t]*\()")
#: Last characters of a line whose instruction continues on the next line.
_GOES_ON = frozenset(b",= ")
#: The brace that closes a computation, with following blank lines, unless attributes follow.
_CLOSING = re.compile(rb'[ \t]*\}(?:, execution_thread="[^"\\\n]*+")?+\r?\n(?:[ \t\r]*\n)*+(?![ \t]*[,/])')


def match_heading(text: bytes, begin: int) -> tuple[bytes, bool, int] | None:
    r"""Match the heading of a computation; return its name, whether it is the entry, and the end offset.

    Examples
    --------
    >>> match_heading(b"ENTRY %main (p: f32[2]) -> f32[2] {\n  %p =", 0)
    (b'main', True, 36)
    """
    found = _HEADING.match(text, begin)
    if found is None:
        return None
    signature = found.group(3)
    if signature is not None and signature.count(b"(") != signature.count(b")"):
        return None
    return found.group(2), found.group(1) is not None, found.end()


def match_block(text: bytes, begin: int, limit: int) -> tuple[list[Row], int]:
    r"""Match all lines up to the end of a computation, or of the text before the limit, at once.

    Returns no rows, but the end offset, if a line is not an instruction that `match_rows` would match. Most blocks have
    no such line, and checking a whole block takes a third of the time of checking its lines.

    Examples
    --------
    >>> match_block(b"  %n = f32[2]{0} negate(%p), metadata={}\n}\n", 0, 44)
    ([(b'', b'n', b'f32[2]{0}', b'negate', b'%p', b', metadata={}')], 41)
    >>> match_block(b"  %n = f32[2]{0} negate(%p), metadata={\n}\n", 0, 43)
    ([], 40)
    """
    end = text.find(b"\n}", begin, limit) + 1
    is_whole = end > 0
    if not is_whole:
        end = text.rfind(b"\n", begin, limit) + 1
    if end <= begin:
        return [], end
    rows: list[Row] = _INSTRUCTION.findall(text, begin, end)
    block = text[begin:end]
    count = len(rows)
    if not (
        block.count(b"\n") == count
        # One per instruction: no others within attributes.
        and block.count(b"= ") == count
        and block.count(b" =") == count
        and 0x09 not in block
        and 0x0D not in block
    ):
        return [], end
    # A search for one byte is several times faster than for two.
    is_odd = 0x5C in block or 0x27 in block or (0x2F in block and (b"//" in block or b"/*" in block))
    for row in rows:
        attributes = row[5]
        if attributes and (
            not _ends_with_its_line(attributes)
            if is_odd and (0x5C in attributes or 0x2F in attributes or 0x27 in attributes)
            else attributes.count(b"{") != attributes.count(b"}")
            or attributes.count(b'"') & 1
            or attributes[-1] in _GOES_ON
        ):
            return [], end
        if row[2][0] == 0x28 and _ODD_TUPLE.search(row[2]) is not None:
            return [], end
    if not is_whole and _CONTINUATION.match(text, end):
        return [], end
    return rows, end


def match_rows(text: bytes, begin: int, limit: int) -> tuple[list[Row], int]:
    r"""Match lines with one instruction each that start before the limit; return the rows and the end offset.

    Examples
    --------
    >>> match_rows(b"  %n = f32[2]{0} negate(%p), metadata={}\n}\n", 0, 40)
    ([(b'', b'n', b'f32[2]{0}', b'negate', b'%p', b', metadata={}')], 41)
    """
    rows: list[Row] = []
    match, last = _INSTRUCTION.match, begin
    while begin < limit and (found := match(text, begin)) is not None:
        row: Row = found.groups(b"")  # type: ignore[assignment]
        if row[5] and not _ends_with_its_line(row[5]):
            break
        if row[2][0] == 0x28 and _ODD_TUPLE.search(row[2]) is not None:
            break
        rows.append(row)
        last, begin = begin, found.end()
    if rows and _CONTINUATION.match(text, begin):
        rows.pop()
        begin = last
    return rows, begin


def _ends_with_its_line(attributes: bytes) -> bool:
    """Whether the instruction ends on this line, outside strings, braces and comments, and no other follows on it."""
    if 0x5C in attributes:
        # Strings may contain escaped quotes, and anything else.
        attributes = _STRING.sub(b'""', attributes)
    count = attributes.count
    return (
        count(b"{") == count(b"}")
        and not count(b'"') & 1
        and 0x5C not in attributes
        and (0x2A not in attributes or b"/*" not in attributes)
        and (0x2F not in attributes or b"//" not in attributes)
        and b"='" not in attributes
        and b"= " not in attributes
        and b" =" not in attributes
        and 0x09 not in attributes
        and attributes.rstrip(b"\r")[-1] not in _GOES_ON
    )


def match_closing(text: bytes, begin: int) -> int:
    r"""Match a closing brace alone on its line; return the end offset, or -1.

    Examples
    --------
    >>> match_closing(b"}\n\nENTRY", 0), match_closing(b"}, execution_thread=", 0)
    (3, -1)
    """
    found = _CLOSING.match(text, begin)
    return found.end() if found else -1
