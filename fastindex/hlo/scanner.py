"""Find the module headers, computations and instructions of HLO text in one pass over chunks of bytes.

The scanner knows just enough of HLO's grammar to be exact about what is an instruction: quotes, comments,
braces, parentheses and the attributes that hold free text. An instruction is ``name = SHAPE opcode(``; XLA's
lexer takes a name directly followed by ``=`` for an attribute, so the space before ``=`` tells them apart.
Lines that hold one whole instruction, which is how XLA prints them, are matched at once.

Source of the rule: ``xla/hlo/parser/hlo_lexer.cc`` and ``hlo_parser.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from fastindex.advice.spelling import visible

#: A token of one piece, a shape of a tuple among them, may be this long.
_LONGEST_TOKEN = 64 << 20
#: Text that must lie ahead of a token for it to be judged, unless the input ends.
_AHEAD = 1 << 16
_BEHIND = 1 << 8
_MOST_PROBLEMS = 1000
_SHOWN = 100

_QUOTED = rb'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
_TOKEN = re.compile(_QUOTED + rb'|["={}()\n]|/\*|//[^\n]*', re.DOTALL)
_OPAQUE_TOKEN = re.compile(_QUOTED + rb'|["{}\n]', re.DOTALL)
_OPAQUE_ATTRIBUTES = (b"metadata", b"backend_config", b"frontend_attributes", b"statistics", b"origin")
_FLAT_BRACES = re.compile(rb'\{[^{}"\n]*+(?:' + _QUOTED + rb'[^{}"\n]*+)*+\}', re.DOTALL)
_ARRAY_HEAD = re.compile(
    rb"\s*((?:b\s*\(\s*)?[a-z][a-z0-9]*\s*\[(?:[^\]=<]|<=)*+\](?:\s*\{[^{}=]*\})?(?:\s*\))?)\s+([a-z][a-z0-9\-]*)\("
)
_TUPLE_TOKEN = re.compile(rb"[()\n]|/\*.*?\*/|//[^\n]*", re.DOTALL)
_OPCODE = re.compile(rb"\s*([a-z][a-z0-9\-]*)\(")
_STATEMENT = re.compile(rb"[ \t\r]*(?:ROOT\s+)?%?[A-Za-z_][\w.\-]*\s+=\s*[a-z(]")
_NAME_BEFORE = re.compile(rb"(?:^|([\n\r{};)]))[ \t]*(ROOT\s+)?(%?)[A-Za-z_][\w.\-]*\s+$")
_NAME = re.compile(rb"(ROOT\s+)?%?([\w.\-]+)\s*$")
_BODY_LINE = re.compile(rb"\s*(?:\}|\{|ENTRY\s|HloModule\b|(?:ROOT\s+)?%?[\w.\-]+(?:\s+=|\s*\()|/[/*]|[,)]|$)")
_CONTINUES = b",({=:>"
#: A line that is one instruction: root, name, shape, opcode, operands, attributes.
_LINE = re.compile(
    rb"[ \t]*(ROOT )?%?([A-Za-z_][\w.\-]*) = "
    rb'([a-z][a-z0-9]*\[[^\]="\n]*\](?:\{[^{}="\n]*\})?|\([^"\n]*?\)) ([a-z][a-z0-9\-]*)'
    rb'\(([^()"\n]*+(?:\([^()"\n]*+(?:\([^()"\n]*+\)[^()"\n]*+)*+\)[^()"\n]*+)*+)\)((?:,[^\n]*)?)\n'
)
_OUTER_LINE = re.compile(
    rb"[ \t]*(?:(HloModule)\b|(?:(ENTRY)\s+)?%?([A-Za-z_][\w.\-]*)\s*[({]"
    rb'|(\d+[ ]["{]|(?:FileNames|FunctionNames|FileLocations|StackFrames)\s*\n))'
)
#: Lines of the tables, as XLA prints them one below the other.
_TABLE_LINES = re.compile(rb'(?:\d+[ ]["{][^\n]*\n)+')
_HEADER_END = re.compile(rb"(?<!,)\r?\n|(?<=\s)(?=ENTRY\s[^\n]*\{)")


@dataclass(frozen=True, slots=True)
class Problem:
    """A place in the text that cannot be read.

    Attributes
    ----------
    line : int
        1-based line number; 0 for a whole file.
    message : str
        What is wrong there.
    text : str
        The beginning of the line.
    source : str
        The file, or "".
    """

    line: int
    message: str
    text: str
    source: str = ""

    def __str__(self) -> str:
        where = self.source
        if self.line:
            where = f"{self.source}:{self.line}" if self.source else f"line {self.line}"
        parts = (where, self.message, self.text)
        return visible(": ".join(part for part in parts if part))


class HloSink(Protocol):
    """Receives what the scanner finds, in the order of the text."""

    def header(self, text: bytes) -> None:
        """Receive the line that begins with ``HloModule``; a new module starts."""

    def table_line(self, text: bytes) -> None:
        """Receive a line of the tables of source files and stack frames."""

    def open_computation(self, name: bytes, is_entry: bool) -> None:
        """Receive the start of a computation."""

    def close_computation(self) -> None:
        """Receive the end of a computation."""

    def instruction(
        self, name: bytes, shape: bytes, opcode: bytes, operands: bytes, attributes: bytes, is_root: bool, line: int
    ) -> None:
        """Receive an instruction; its operands are the text between the parentheses, the attributes what follows."""


class _NeedsMoreText(Exception):  # noqa: N818 - a signal, not an error
    """A token may go on beyond the text that is there."""


@dataclass(slots=True)
class _Pending:
    """An instruction whose end has not been seen."""

    name: bytes
    shape: bytes
    opcode: bytes
    begin: int
    is_root: bool
    line: int


class HloScanner:
    """Finds the instructions of one HLO text that comes in chunks, and passes them to a sink.

    Attributes
    ----------
    problems : list of Problem
        The first thousand.
    instruction_count : int
        How many instructions were passed on.
    source : str
        The file, or "".
    saw_module : bool
        Whether the word ``HloModule`` was there.
    """

    def __init__(self, sink: HloSink, source: str = "") -> None:
        self.problems: list[Problem] = []
        self.instruction_count = 0
        self.saw_module = False
        self.source = source
        self._sink = sink
        self._text = b""
        self._position = -1
        self._line = 1
        self._line_position = 0
        self._braces = 0
        self._parentheses = 0
        self._wanted = 2 * _AHEAD
        self._heading: tuple[bytes, bool] | None = None
        self._pending: _Pending | None = None

    def feed(self, chunk: bytes) -> None:
        """Scan the next chunk of the text."""
        self._text += chunk
        if len(self._text) - self._position >= self._wanted:
            self._scan(at_end=False)

    def close(self) -> None:
        """Scan what is left and note whether the text stops in the middle."""
        self._scan(at_end=True)
        rest = self._text.rstrip()
        self._flush(len(self._text))
        whole = not self._braces if not self.problems else rest.endswith(b"}") or not rest
        if self.instruction_count and self.saw_module and not whole:
            self._position = len(rest)
            self._complain("the text ends inside a computation; is it truncated?", max(len(rest) - 1, 0))

    def _scan(self, at_end: bool) -> None:
        text = self._text
        limit = len(text) if at_end else len(text) - _AHEAD
        try:
            if self._position < 0:
                self._position = self._take_line_start(-1, 0, at_end)
            while (token := _TOKEN.search(text, self._position)) is not None and token.start() < limit:
                self._position = self._take(token, at_end)
            self._position = max(self._position, min(limit, token.start() if token else limit))
            self._wanted = 2 * _AHEAD
        except _NeedsMoreText:
            # Twice the text each time, so that a long token is looked at a few times only.
            self._wanted = 2 * (len(text) - self._position)
        self._forget()

    def _forget(self) -> None:
        """Drop the text that is done with."""
        begin = max(self._position - _BEHIND, 0)
        if self._pending is not None:
            begin = min(begin, self._pending.begin)
            self._pending.begin -= begin
        self.saw_module = self.saw_module or b"HloModule" in self._text[: max(self._position, 0)]
        self._line = self._line_at(begin)
        self._text = self._text[begin:]
        self._position -= begin
        self._line_position = 0

    def _count_lines(self, position: int) -> None:
        if position > self._line_position:
            self._line += self._text.count(b"\n", self._line_position, position)
            self._line_position = position

    def _line_at(self, position: int) -> int:
        if position < self._line_position:
            return self._line - self._text.count(b"\n", position, self._line_position)
        self._count_lines(position)
        return self._line

    def _complain(self, message: str, position: int) -> None:
        if len(self.problems) >= _MOST_PROBLEMS:
            return
        begin = self._text.rfind(b"\n", 0, position) + 1
        end = self._text.find(b"\n", position, begin + 4 * _SHOWN)
        line = self._text[begin : end if end >= 0 else begin + 4 * _SHOWN].decode("utf-8", "replace").strip()
        shown = line if len(line) <= _SHOWN else line[:_SHOWN] + "..."
        self.problems.append(Problem(self._line_at(position), message, shown, self.source))

    def _take(self, token: re.Match[bytes], at_end: bool) -> int:
        """Handle one token; return the position after it."""
        text, begin, end = self._text, token.start(), token.end()
        match text[begin]:
            case 0x3D:  # =
                return self._take_equals(begin, at_end)
            case 0x7B:  # {
                self._open_brace(begin)
            case 0x7D:  # }
                self._braces -= 1
                if self._braces == 0:
                    self._flush(begin)
                    self._sink.close_computation()
            case 0x28:  # (
                self._parentheses += 1
            case 0x29:  # )
                self._parentheses -= 1
            case 0x0A:  # \n
                return self._take_line_start(begin, end, at_end)
            case 0x22 if end == begin + 1:  # a quote that does not close on its line
                return self._take_open_quote(begin, at_end)
            case 0x2F if text[begin + 1] == 0x2A:  # /*
                return self._take_comment(begin, at_end)
        return end

    def _open_brace(self, position: int) -> None:
        if self._braces == 0 and self._heading is not None and self._text[position - 1 : position] != b"=":
            self._flush(position)
            self._sink.open_computation(*self._heading)
            self._heading = None
        self._braces += 1

    def _take_equals(self, position: int, at_end: bool) -> int:
        text = self._text
        if text[position + 1 : position + 2] == b"{":
            if text.endswith(_OPAQUE_ATTRIBUTES, max(position - 32, 0), position):
                return self._skip_braces(position + 1, at_end)
            return position + 1
        if text[position - 1 : position] not in (b" ", b"\n", b"\t", b"\r"):
            return position + 1
        head = _ARRAY_HEAD.match(text, position + 1)
        if head is not None:
            shape, opcode, end = head.group(1), head.group(2), head.end()
        else:
            shape, opcode, end = self._match_tuple_head(position + 1, at_end)
        if shape:
            self._parentheses = 1
            before = max(position - _BEHIND, 0)
            name = _NAME.search(text[before:position])
            self._flush(before + name.start() if name else position)
            is_root = bool(name and name.group(1))
            line = self._line_at(position)
            self._pending = _Pending(name.group(2) if name else b"", shape, opcode, end, is_root, line)
            self.instruction_count += 1
            return end
        self._judge_assignment(position)
        return position + 1

    def _flush(self, end: int) -> None:
        """Pass on the instruction whose text ends here."""
        pending = self._pending
        if pending is None:
            return
        self._pending = None
        operands, attributes = split_operands(self._text[pending.begin : max(end, pending.begin)])
        self._sink.instruction(
            pending.name, pending.shape, pending.opcode, operands, attributes, pending.is_root, pending.line
        )

    def _match_tuple_head(self, begin: int, at_end: bool) -> tuple[bytes, bytes, int]:
        """Match ``(SHAPE, ...) opcode(``; return the shape, the opcode and the end, or empty texts."""
        text = self._text
        while text[begin : begin + 1].isspace():
            begin += 1
        if text[begin : begin + 1] != b"(":
            return b"", b"", begin
        depth, position = 0, begin
        while (token := _TUPLE_TOKEN.search(text, position)) is not None:
            position = token.end()
            character = text[token.start()]
            if character == 0x28:
                depth += 1
            elif character == 0x29:
                depth -= 1
                if depth == 0:
                    opcode = _OPCODE.match(text, position)
                    if opcode is None:
                        self._ask_for_more(position, at_end)
                        return b"", b"", position
                    return text[begin:position], opcode.group(1), opcode.end()
            elif character == 0x0A and _STATEMENT.match(text, position):
                return b"", b"", position
        self._ask_for_more(begin, at_end)
        return b"", b"", begin

    def _ask_for_more(self, position: int, at_end: bool) -> None:
        """Wait for more text unless there is none or the token is longer than any real one."""
        ahead = len(self._text) - position
        if not at_end and (ahead < _AHEAD // 2 or len(self._text) - self._position < _LONGEST_TOKEN):
            raise _NeedsMoreText

    def _judge_assignment(self, position: int) -> None:
        """Complain about ``name =`` without a shape and an opcode where it stands for an instruction."""
        before = _NAME_BEFORE.search(self._text[max(position - _BEHIND, 0) : position])
        if before is None:
            return
        at_line_start = before.group(1) in (b"\n", b"\r") and self._braces > 0
        if before.group(2) or before.group(3) or at_line_start:
            self._complain("not an instruction, 'name = shape opcode(...)'", position)

    def _take_line_start(self, position: int, end: int, at_end: bool) -> int:
        """Look at the beginning of a line, where a module, a computation or an instruction has to begin."""
        if self._braces == 0 and self._parentheses <= 0:
            return self._take_outer_line(end, at_end)
        if self._braces != 1 or self._parentheses > 0:
            if self.problems and self._text[end : end + 1] == b"}":
                # Braces may not balance in a broken line; a computation ends with a brace of its own.
                self._braces, self._parentheses = 1, 0
            return end
        self._parentheses = 0
        after = self._take_plain_lines(end, at_end)
        if after > end:
            return after - 1
        text = self._text
        if _BODY_LINE.match(text, end) is None:
            before = text[max(position - _BEHIND, 0) : max(position, 0)].rstrip()[-1:]
            if before not in _CONTINUES or not before:
                self._complain("not an instruction, 'name = shape opcode(...)'", end)
        return end

    def _take_plain_lines(self, begin: int, at_end: bool) -> int:
        """Pass on the lines that hold one instruction each; return where another line begins."""
        text, instruction = self._text, self._sink.instruction
        match, line, first_line = _LINE.match, 0, 0
        limit = len(text) if at_end else len(text) - _AHEAD
        while begin < limit and (found := match(text, begin)) is not None:
            root, name, shape, opcode, operands, attributes = found.groups()
            if attributes and not _is_plain(attributes):
                break
            if not line:
                self._flush(begin)
                line = first_line = self._line_at(begin)
            instruction(name, shape, opcode, operands, attributes, root is not None, line)
            line += 1
            begin = found.end()
        self.instruction_count += line - first_line
        return begin

    def _take_outer_line(self, begin: int, at_end: bool) -> int:
        """Look at a line outside computations: a module's header, a line of its tables, a computation's heading."""
        text = self._text
        found = _OUTER_LINE.match(text, begin)
        if found is None:
            return begin
        if found.group(3) is not None:
            self._heading = found.group(3), found.group(2) is not None
            return begin
        if found.group(1) is not None:
            self.saw_module = True
            end_of_header = _HEADER_END.search(text, found.end())
            if end_of_header is None and not at_end:
                self._ask_for_more(begin, at_end)
            end = end_of_header.start() if end_of_header else len(text)
            self._flush(begin)
            self._sink.header(text[begin:end])
            if end_of_header and not end_of_header.group():
                self._take_outer_line(end, at_end)
            return end
        lines = _TABLE_LINES.match(text, begin)
        if lines is not None:
            for line in lines.group().split(b"\n")[:-1]:
                self._sink.table_line(line)
            return lines.end() - 1
        end = text.find(b"\n", begin)
        if end < 0:
            self._ask_for_more(begin, at_end)
            end = len(text)
        self._sink.table_line(text[begin:end])
        return end

    def _take_open_quote(self, position: int, at_end: bool) -> int:
        """Skip a string over several lines; complain about one that lacks its end."""
        text = self._text
        close = position + 1
        while (close := text.find(b'"', close)) >= 0 and text[close - 1] == 0x5C:
            close += 1
        if close >= 0:
            begin = text.rfind(b"\n", 0, close) + 1
            end = text.find(b"\n", close)
            if end < 0:
                self._ask_for_more(close, at_end)
                end = len(text)
            if len(re.findall(rb'(?<!\\)"', text[begin:end])) % 2:
                return close + 1
        else:
            self._ask_for_more(position, at_end)
        self._complain("a quote that does not close", position)
        end = text.find(b"\n", position)
        return end if end >= 0 else len(text)

    def _take_comment(self, position: int, at_end: bool) -> int:
        end = self._text.find(b"*/", position + 2)
        if end >= 0:
            return end + 2
        self._ask_for_more(position, at_end)
        self._complain("a comment that does not close", position)
        return position + 2

    def _skip_braces(self, position: int, at_end: bool) -> int:
        """Skip an attribute that holds free text or JSON, from its ``{``."""
        text = self._text
        flat = _FLAT_BRACES.match(text, position)
        if flat is not None:
            return flat.end()
        depth, begin = 0, position
        while (token := _OPAQUE_TOKEN.search(text, position)) is not None:
            position = token.end()
            character = text[token.start()]
            if character == 0x7B:
                depth += 1
            elif character == 0x7D:
                depth -= 1
                if depth == 0:
                    return position
            elif character == 0x22:
                if position == token.start() + 1:
                    position = self._take_open_quote(token.start(), at_end)
            elif character == 0x0A and _STATEMENT.match(text, position):
                break
        else:
            self._ask_for_more(begin, at_end)
        self._complain("an attribute whose braces do not close", begin)
        return position - 1 if token is not None else len(text)


def _is_plain(attributes: bytes) -> bool:
    """Whether quotes and braces of the rest of a line balance as they stand."""
    count = attributes.count
    return (
        count(b"{") == count(b"}")
        and not count(b'"') & 1
        and b"\\" not in attributes
        and b"//" not in attributes
        and b" = " not in attributes
        and b"/*" not in attributes
    )


_PARENTHESIS = re.compile(_QUOTED + rb"|[()]")


def split_operands(text: bytes) -> tuple[bytes, bytes]:
    """Split the text after ``opcode(`` into the operands and the attributes.

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


def scan_chunks(chunks: Iterator[bytes], sink: HloSink, source: str = "") -> HloScanner:
    """Scan HLO text that comes in chunks of bytes, to its end."""
    scanner = HloScanner(sink, source)
    for chunk in chunks:
        scanner.feed(chunk)
    scanner.close()
    return scanner
