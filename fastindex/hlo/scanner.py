"""Find the instructions of HLO text and count their result shapes, in one pass over chunks of bytes.

The scanner knows just enough of HLO's grammar to be exact about what is an instruction: quotes, comments,
braces, parentheses and the attributes that hold free text. An instruction is ``name = SHAPE opcode(``; XLA's
lexer takes a name directly followed by ``=`` for an attribute, so the space before ``=`` tells them apart.

Source of the rule: ``xla/hlo/parser/hlo_lexer.cc`` and ``hlo_parser.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

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
#: Starts with opcodes of their own; any other ``X-start`` is short for an ``async-start`` of ``X``.
_NATIVE_STARTS = (
    b"all-gather-start",
    b"all-reduce-start",
    b"async-start",
    b"collective-permute-start",
    b"copy-start",
)
_STATEMENT = re.compile(rb"[ \t\r]*(?:ROOT\s+)?%?[A-Za-z_][\w.\-]*\s+=\s*[a-z(]")
_NAME_BEFORE = re.compile(rb"(?:^|([\n\r{};)]))[ \t]*(ROOT\s+)?(%?)[A-Za-z_][\w.\-]*\s+$")
_BODY_LINE = re.compile(rb"\s*(?:\}|\{|ENTRY\s|HloModule\b|(?:ROOT\s+)?%?[\w.\-]+(?:\s+=|\s*\()|/[/*]|[,)]|$)")
_CONTINUES = b",({=:>"


@dataclass(frozen=True, slots=True)
class Problem:
    """A place in the text that is not HLO.

    Attributes
    ----------
    line : int
        1-based line number.
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
        where = f"{self.source}:{self.line}" if self.source else f"line {self.line}"
        return f"{where}: {self.message}: {self.text}"


class _NeedsMoreText(Exception):  # noqa: N818 - a signal, not an error
    """A token may go on beyond the text that is there."""


class HloScanner:
    """Counts the result shapes of the instructions of one HLO text that comes in chunks.

    Attributes
    ----------
    counts : dict of bytes to int
        How often each shape is the result of an instruction, by its text as written.
    async_counts : dict of bytes to int
        The part of them that is the result of an asynchronous start written short, ``slice-start`` for an
        ``async-start`` that calls a computation with a ``slice``, which is not in the text.
    first_lines : dict of bytes to int
        The line where each was seen first.
    problems : list of Problem
        The first thousand.
    source : str
        The file, or "".
    saw_module : bool
        Whether the word ``HloModule`` was there.

    Examples
    --------
    >>> scanner = HloScanner()
    >>> scanner.feed(b"HloModule m\\nENTRY e {\\n  ROOT p = f32[3]{0} parameter(0)")
    >>> scanner.feed(b', metadata={op_name="q = s8[] add("} }')
    >>> scanner.close()
    >>> scanner.counts
    {b'f32[3]{0}': 1}
    """

    def __init__(self, source: str = "") -> None:
        self.counts: dict[bytes, int] = {}
        self.async_counts: dict[bytes, int] = {}
        self.first_lines: dict[bytes, int] = {}
        self.problems: list[Problem] = []
        self.saw_module = False
        self.source = source
        self._text = b""
        self._position = 0
        self._line = 1
        self._line_position = 0
        self._braces = 0
        self._parentheses = 0
        self._wanted = 2 * _AHEAD

    def feed(self, chunk: bytes) -> None:
        """Scan the next chunk of the text."""
        self._text += chunk
        if len(self._text) - self._position >= self._wanted:
            self._scan(at_end=False)

    def close(self) -> None:
        """Scan what is left and note whether the text stops in the middle."""
        self._scan(at_end=True)
        rest = self._text.rstrip()
        whole = not self._braces if not self.problems else rest.endswith(b"}") or not rest
        if self.counts and self.saw_module and not whole:
            self._position = len(rest)
            self._complain("the text ends inside a computation; is it truncated?", max(len(rest) - 1, 0))

    def _scan(self, at_end: bool) -> None:
        text = self._text
        limit = len(text) if at_end else len(text) - _AHEAD
        try:
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
        self.saw_module = self.saw_module or b"HloModule" in self._text[: self._position]
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
        """Deal with one token; give the position after it."""
        text, begin, end = self._text, token.start(), token.end()
        match text[begin]:
            case 0x3D:  # =
                return self._take_equals(begin, at_end)
            case 0x7B:  # {
                self._braces += 1
            case 0x7D:  # }
                self._braces -= 1
            case 0x28:  # (
                self._parentheses += 1
            case 0x29:  # )
                self._parentheses -= 1
            case 0x0A:  # \n
                return self._take_line_start(begin, end)
            case 0x22 if end == begin + 1:  # a quote that does not close on its line
                return self._take_open_quote(begin, at_end)
            case 0x2F if text[begin + 1] == 0x2A:  # /*
                return self._take_comment(begin, at_end)
        return end

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
            count = self.counts.get(shape, 0)
            self.counts[shape] = count + 1
            if not count:
                self.first_lines[shape] = self._line_at(position)
            if opcode.endswith(b"-start") and opcode not in _NATIVE_STARTS:
                self.async_counts[shape] = self.async_counts.get(shape, 0) + 1
            return end
        self._judge_assignment(position)
        return position + 1

    def _match_tuple_head(self, begin: int, at_end: bool) -> tuple[bytes, bytes, int]:
        """Match ``(SHAPE, ...) opcode(``; give the shape, the opcode and the end, or empty texts."""
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

    def _take_line_start(self, position: int, end: int) -> int:
        """Look at the beginning of a line where an instruction has to begin."""
        if self._braces != 1 or self._parentheses > 0:
            if self.problems and self._text[end : end + 1] == b"}":
                # Braces may not balance in a broken line; a computation ends with a brace of its own.
                self._braces, self._parentheses = 1, 0
            return end
        self._parentheses = 0
        text = self._text
        if _BODY_LINE.match(text, end) is None:
            before = text[max(position - _BEHIND, 0) : position].rstrip()[-1:]
            if before not in _CONTINUES or not before:
                self._complain("not an instruction, 'name = shape opcode(...)'", end)
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


def scan_chunks(chunks: Iterator[bytes], source: str = "") -> HloScanner:
    """Scan HLO text that comes in chunks of bytes.

    Examples
    --------
    >>> scan_chunks(iter([b"p = f32[2]{0} para", b"meter(0)"])).counts
    {b'f32[2]{0}': 1}
    """
    scanner = HloScanner(source)
    for chunk in chunks:
        scanner.feed(chunk)
    scanner.close()
    return scanner
