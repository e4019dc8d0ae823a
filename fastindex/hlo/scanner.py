"""Find the module headers, computations and instructions of HLO text in one pass over chunks of bytes.

The scanner knows just enough of HLO's grammar to recognize instructions exactly: quotes, comments, braces, parentheses
and the attributes with free text. An instruction is ``name = SHAPE opcode(``. XLA's lexer takes a name directly
followed by ``=`` for an attribute, so the space before ``=`` distinguishes the two. Text formatted as XLA prints it is
matched line by line by `grammar`; other well-formed text is parsed by `exact_text`; only damaged text is scanned
token by token.

Source of the rule: ``xla/hlo/parser/hlo_lexer.cc`` and ``hlo_parser.cc``.
"""

from __future__ import annotations

import itertools
import re

from fastindex.hlo import grammar
from fastindex.hlo.exact_text import Begin, End, Event, ExactText, NotWellFormed, blank_end
from fastindex.hlo.grammar import HloSink, Row, match_block, match_closing, match_heading, match_rows
from fastindex.hlo.presentation import Problem

#: Limit on the length of a token, such as the shape of a tuple.
_LONGEST_TOKEN = 64 << 20
#: Lookahead required after a token, unless the input ends.
_AHEAD = 1 << 16
_BEHIND = 1 << 8
#: Limit on the text whose lines are passed on together.
_MOST_AT_ONCE = 1 << 16
_MOST_PROBLEMS = 1000
_SHOWN = 100
_NOT_WELL_FORMED = "not well formed; as much of it as can be read is counted"
_TEXT_ON_THIS_LINE = re.compile(rb"[ \t\r]*+(?:/\*(?:[^*\n]|\*(?!/))*+\*/[ \t\r]*+)*+[^ \t\r\n/]")
#: Distance between the start of an instruction and an error in it beyond which the text is not parsed twice.
_FAR = 2000
_LINE_ENDS = re.compile(rb"(?:[ \t\r]*\n)+")


class _NeedsMoreText(Exception):  # noqa: N818 - a signal, not an error
    """A token may continue beyond the text read so far."""


class HloScanner:
    """Find the instructions of one HLO text, read in chunks, and pass them to a sink.

    Attributes
    ----------
    problems : list of Problem
        The first thousand problems.
    instruction_count : int
        Number of instructions passed on.
    source : str
        File name, or "".
    saw_module : bool
        Whether the word ``HloModule`` occurred.
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
        #: An instruction whose end is not reached yet: its row up to the opcode, where its operands begin, its line.
        self._pending: tuple[bytes, bytes, bytes, bytes] | None = None
        self._pending_begin = self._pending_line = 0
        self._numbers = itertools.count()
        self._resumes = False
        self._refused = self._odd_until = 0
        self._has_open_comment = False

    def feed(self, chunk: bytes) -> None:
        """Scan the next chunk of the text."""
        self._text += chunk
        if len(self._text) - self._position >= self._wanted:
            self._scan(at_end=False)

    def close(self) -> None:
        """Scan the remaining text, and check whether it is truncated."""
        self._scan(at_end=True)
        text = self._text.rstrip()
        self._flush(len(self._text))
        whole = not self._braces if not self.problems else text.endswith(b"}") or not text
        if self.instruction_count and self.saw_module and not whole:
            self._position = len(text)
            self._complain("the text ends inside a computation; is it truncated?", max(len(text) - 1, 0))

    def _scan(self, at_end: bool) -> None:
        text = self._text
        limit = len(text) if at_end else len(text) - _AHEAD
        try:
            if self._position < 0:
                self._position = self._take_line_start(-1, 0, at_end)
            elif self._resumes:
                self._resumes = False
                self._position = self._take_well_formed(self._position, at_end)
            while (token := grammar.TOKEN.search(text, self._position)) is not None and token.start() < limit:
                self._position = self._take(token, at_end)
            self._position = max(self._position, min(limit, token.start() if token else limit))
            self._wanted = 2 * _AHEAD
        except _NeedsMoreText:
            # Doubling bounds the number of times that a long token is scanned.
            self._wanted = 2 * (len(text) - self._position)
        self._forget()

    def _forget(self) -> None:
        """Drop the text already processed."""
        begin = max(self._position - _BEHIND, 0)
        if self._pending is not None:
            begin = min(begin, self._pending_begin)
        self.saw_module = self.saw_module or b"HloModule" in self._text[: max(self._position, 0)]
        self._line = self._line_at(begin)
        self._text = self._text[begin:]
        self._position -= begin
        self._pending_begin -= begin
        self._refused -= begin
        self._odd_until -= begin
        self._line_position = 0

    def _line_at(self, position: int) -> int:
        if position < self._line_position:
            return self._line - self._text.count(b"\n", position, self._line_position)
        self._line += self._text.count(b"\n", self._line_position, position)
        self._line_position = position
        return self._line

    def _complain(self, message: str, position: int) -> None:
        if len(self.problems) >= _MOST_PROBLEMS:
            return
        begin = self._text.rfind(b"\n", 0, position) + 1
        line = self._text[begin : begin + 4 * _SHOWN].partition(b"\n")[0].decode("utf-8", "replace").strip()
        shown = line if len(line) <= _SHOWN else line[:_SHOWN] + "..."
        self.problems.append(Problem(self._line_at(position), message, shown, self.source))

    def _take(self, token: re.Match[bytes], at_end: bool) -> int:
        """Process one token; return the position after it."""
        text, begin, end = self._text, token.start(), token.end()
        match text[begin]:
            case 0x3D:  # =
                return self._take_equals(begin, at_end)
            case 0x7B:  # {
                if self._open_brace(begin):
                    return self._take_well_formed(end, at_end)
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

    def _open_brace(self, position: int) -> bool:
        """Count an opening brace; return whether it opens a computation."""
        is_outside = self._braces == 0 and self._text[position - 1 : position] != b"="
        heading = self._heading if is_outside else None
        self._braces += 1
        if heading is None:
            return False
        self._flush(position)
        self._sink.open_computation(*heading)
        self._heading = None
        return True

    def _take_equals(self, position: int, at_end: bool) -> int:
        text = self._text
        if text[position + 1 : position + 2] == b"{":
            if text.endswith(grammar.OPAQUE_ATTRIBUTES, max(position - 32, 0), position):
                return self._skip_braces(position + 1, at_end)
            return position + 1
        if text[position - 1 : position] not in (b" ", b"\n", b"\t", b"\r"):
            return position + 1
        head = grammar.ARRAY_HEAD.match(text, position + 1)
        if head is not None:
            shape, opcode, end = head.group(1), head.group(2), head.end()
        else:
            shape, opcode, end = self._match_tuple_head(position + 1, at_end)
        if shape:
            self._parentheses = 1
            before = max(position - _BEHIND, 0)
            name = grammar.NAME.search(text[before:position])
            self._flush(before + name.start() if name else position)
            root = b"ROOT " if name and name.group(1) else b""
            self._pending = root, name.group(2) if name else b"", shape, opcode
            self._pending_begin, self._pending_line = end, self._line_at(position)
            self.instruction_count += 1
            if self._braces:
                self._complain(_NOT_WELL_FORMED, position)
            return end
        self._judge_assignment(position)
        return position + 1

    def _flush(self, end: int) -> None:
        """Pass on the pending instruction, whose text ends here."""
        if self._pending is not None:
            begin = self._pending_begin
            operands, attributes = grammar.split_operands(self._text[begin : max(end, begin)])
            self._sink.instructions([(*self._pending, operands, attributes)], self._pending_line)
            self._pending = None

    def _match_tuple_head(self, begin: int, at_end: bool) -> tuple[bytes, bytes, int]:
        """Match ``(SHAPE, ...) opcode(``; return shape, opcode and end; empty texts if there is no match."""
        text = self._text
        while text[begin : begin + 1].isspace():
            begin += 1
        if text[begin : begin + 1] != b"(":
            return b"", b"", begin
        depth, position = 0, begin
        while (token := grammar.TUPLE_TOKEN.search(text, position)) is not None:
            position = token.end()
            character = text[token.start()]
            if character == 0x28:
                depth += 1
            elif character == 0x29:
                depth -= 1
                if depth == 0:
                    opcode = grammar.OPCODE.match(text, position)
                    if opcode is None:
                        self._ask_for_more(position, at_end)
                        return b"", b"", position
                    return text[begin:position], opcode.group(1), opcode.end()
            elif character == 0x0A and grammar.STATEMENT.match(text, position):
                return b"", b"", position
        self._ask_for_more(begin, at_end)
        return b"", b"", begin

    def _ask_for_more(self, position: int, at_end: bool) -> None:
        """Request more text, unless the input has ended or the token is too long to be real."""
        ahead = len(self._text) - position
        if not at_end and (ahead < _AHEAD // 2 or len(self._text) - self._position < _LONGEST_TOKEN):
            raise _NeedsMoreText

    def _judge_assignment(self, position: int) -> None:
        """Report a ``name =`` in the position of an instruction that has no shape and opcode."""
        before = grammar.NAME_BEFORE.search(self._text[max(position - _BEHIND, 0) : position])
        if before is None:
            return
        at_line_start = before.group(1) in (b"\n", b"\r") and self._braces > 0
        if before.group(2) or before.group(3) or at_line_start:
            self._complain("not an instruction, 'name = shape opcode(...)'", position)

    def _take_line_start(self, position: int, end: int, at_end: bool) -> int:
        """Process the start of a line, where modules, computations and instructions start."""
        is_outside = self._braces == 0 and self._parentheses <= 0
        text = self._text
        if not is_outside and (self._braces != 1 or self._parentheses > 0):
            is_damaged = self.problems and self._braces
            if not is_damaged or not (text[end : end + 1] == b"}" or grammar.STATEMENT.match(text, end)):
                return end
            # A broken line may leave brackets unbalanced: resynchronize at an instruction or the end of a computation.
            self._braces, self._parentheses = 1, 0
        after = self._take_well_formed(end, at_end)
        if after > end:
            # Process the newline before the remaining text again.
            return after - 1 if text[after - 1] == 0x0A else after
        if is_outside:
            return self._take_outer_line(end, at_end)
        self._parentheses = 0
        if grammar.BODY_LINE.match(text, end) is None:
            before = text[max(position - _BEHIND, 0) : max(position, 0)].rstrip()[-1:]
            if before not in grammar.CONTINUES or not before:
                self._complain("not an instruction, 'name = shape opcode(...)'", end)
        return end

    def _take_well_formed(self, begin: int, at_end: bool) -> int:
        """Pass on well-formed text; return the position of the first element that is not."""
        text = self._text
        limit = len(text) if at_end else len(text) - _AHEAD
        position = begin
        while position < limit:
            after = position
            if position == 0 or text[position - 1] == 0x0A:
                after = self._take_plain_text(position, at_end)
            if after == position:
                try:
                    after = self._take_piece(position, at_end)
                except _NeedsMoreText:
                    # Resume here: the text before has been passed on.
                    self._position, self._resumes = position, True
                    raise
                # The next lines may be plain again.
                blank = _LINE_ENDS.match(text, after) if after > position else None
                after = blank.end() if blank else after
            if after == position:
                break
            position = after
        if position >= limit and not at_end:
            self._resumes = True
        elif position > begin and text[position - 1] != 0x0A and _TEXT_ON_THIS_LINE.match(text, position):
            self._complain("text after the end of an instruction or a computation", position)
        return position

    def _take_piece(self, begin: int, at_end: bool) -> int:
        """Pass on a header, heading, table, instruction or closing brace; return its end, or `begin` if none."""
        text, sink = self._text, self._sink
        at = blank_end(text, begin)
        if at < self._refused or at >= (len(text) if at_end else len(text) - _AHEAD):
            return begin
        exact = ExactText(text, at_end, self._numbers)
        try:
            if self._braces:
                if text[at] == 0x7D:
                    end = exact.closing(at)
                    self._flush(begin)
                    sink.close_computation()
                    self._braces = 0
                else:
                    events, end = exact.instruction(at)
                    self._flush(begin)
                    self._pass_on(events)
            elif text.startswith(b"HloModule", at):
                header, end = exact.header(at)
                self._flush(begin)
                sink.header(header)
            elif grammar.TABLE.match(text, at):
                lines, end = exact.table(at)
                for line in lines:
                    sink.table_line(line)
            else:
                end = self._take_outer_piece(exact, at)
        except NotWellFormed as error:
            if error.at >= len(text):
                self._ask_for_more(begin, at_end)
            if error.at - begin > _FAR:
                # Otherwise each of its lines would be parsed up to the same error.
                self._refused = error.at
            return begin
        self._parentheses = 0
        return end

    def _take_outer_piece(self, exact: ExactText, at: int) -> int:
        """Pass on the heading of a computation, or an instruction outside of computations; return its end."""
        try:
            name, is_entry, end = exact.heading(at)
        except NotWellFormed as error:
            if error.at >= len(self._text):
                raise
            lone = None if self.instruction_count else exact.lone_instruction(at)
            if lone is not None:
                self._sink.header(b"HloModule _, is_scheduled=true")
            events, end = lone or exact.instruction(at)
            self._flush(at)
            self._pass_on(events)
            return end
        self._flush(at)
        self._heading = None
        self._sink.open_computation(name, is_entry)
        self._braces = 1
        return end

    def _pass_on(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Begin(name):
                    self._sink.open_inner(name)
                case End():
                    self._sink.close_inner()
                case _:
                    self.instruction_count += 1
                    self._sink.instructions([event.row], self._line_at(event.at))

    def _take_plain_text(self, begin: int, at_end: bool) -> int:
        """Pass on lines formatted as XLA prints them; return the start of the first line that is not."""
        text, sink, start = self._text, self._sink, begin
        limit = len(text) if at_end else len(text) - _AHEAD
        is_open = self._braces == 1
        while begin < limit:
            if not is_open:
                heading = match_heading(text, begin)
                if heading is None:
                    break
                self._flush(begin)
                self._heading = None
                name, is_entry, begin = heading
                sink.open_computation(name, is_entry)
                is_open = True
            most = min(begin + _MOST_AT_ONCE, limit)
            rows: list[Row] = []
            if begin >= self._odd_until:
                rows, end = match_block(text, begin, most)
                # Do not try suffixes of a failed block as blocks.
                self._odd_until = end
            if not rows:
                rows, end = match_rows(text, begin, most)
            if rows:
                self._flush(begin)
                self.instruction_count += len(rows)
                sink.instructions(rows, self._line_at(begin))
                begin = end
            closing = match_closing(text, begin)
            if closing >= 0:
                self._flush(begin)
                sink.close_computation()
                begin = closing
                is_open = False
            elif not rows:
                break
        if begin > start:
            self._braces, self._parentheses = int(is_open), 0
        return begin

    def _take_outer_line(self, begin: int, at_end: bool) -> int:
        """Process a line outside of computations: a module header, a table line, or the heading of a computation."""
        text = self._text
        found = grammar.OUTER_LINE.match(text, begin)
        if found is None:
            return begin
        if found.group(3) is not None:
            self._heading = found.group(3), found.group(2) is not None
            return begin
        if found.group(1) is not None:
            self.saw_module = True
            end_of_header = grammar.HEADER_END.search(text, found.end())
            if end_of_header is None:
                self._ask_for_more(begin, at_end)
            end = end_of_header.start() if end_of_header else len(text)
            self._flush(begin)
            self._sink.header(text[begin:end])
            if end_of_header and not end_of_header.group():
                self._take_outer_line(end, at_end)
            return end
        lines = grammar.TABLE_LINES.match(text, begin)
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
        """Skip a multi-line string; report it if it is not closed."""
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
        # After one unclosed comment, all later ones are unclosed too.
        end = -1 if self._has_open_comment else self._text.find(b"*/", position + 2)
        if end >= 0:
            return end + 2
        self._ask_for_more(position, at_end)
        self._has_open_comment = at_end
        self._complain("a comment that does not close", position)
        return position + 2

    def _skip_braces(self, position: int, at_end: bool) -> int:
        """Skip the braces of an attribute with free text or JSON, starting at its ``{``."""
        text = self._text
        flat = grammar.FLAT_BRACES.match(text, position)
        if flat is not None:
            return flat.end()
        depth, begin = 0, position
        while (token := grammar.OPAQUE_TOKEN.search(text, position)) is not None:
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
            elif character == 0x0A and grammar.STATEMENT.match(text, position):
                break
        else:
            self._ask_for_more(begin, at_end)
        self._complain("an attribute whose braces do not close", begin)
        return position - 1 if token is not None else len(text)
