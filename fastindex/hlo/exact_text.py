"""Parse HLO text by XLA's full grammar, with arbitrary spaces, line breaks and comments.

This is the slow path for text that `grammar` does not match line by line. Output is normalized to what XLA would print:
comments and line breaks removed, no spaces in attributes, free-text attributes last. Instructions nested as operands,
and computations written inline where a name could be, are emitted before the instruction that contains them. Malformed
text is left to the scanner.

Source: ``xla/hlo/parser/hlo_parser.cc`` and ``hlo_lexer.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fastindex.hlo.grammar import OPAQUE_ATTRIBUTES, QUOTED, STATEMENT, TABLE, TABLE_LINES, Row
from fastindex.hlo.inferred_shapes import INFERRED

#: Bounded, so that an unclosed comment is not searched to the end of the text; the scanner handles longer ones.
_SPACE = rb"(?:[ \t\r\n]++|/\*.{0,1000}?\*/|//[^\r\n]*+)*+"
_BLANK = re.compile(_SPACE, re.DOTALL)
_COMMAS = re.compile(_SPACE + rb"(?:," + _SPACE + rb")*+", re.DOTALL)
_COMMENT = re.compile(rb"/\*.*?\*/|//[^\r\n]*+", re.DOTALL)
_SPACES = re.compile(rb"\s+")
#: Optional spaces within an attribute.
_LOOSE = re.compile(rb"(?<=[{(\[,:=])\s+|\s+(?=[})\],:=])")
_NAME = re.compile(rb"%?([A-Za-z_][\w.\-]*)")
_OPCODE = re.compile(rb"[a-z][a-z0-9\-]*")
_ROOT = re.compile(rb"ROOT(?![\w.\-=:])")
_ENTRY = re.compile(rb"ENTRY(?![\w.\-=:])")
_ATTRIBUTE = re.compile(rb"([A-Za-z_][\w.\-]*)=")
_WORD = re.compile(rb"%?(?:[\w.?+]|-(?!>))+(?:->[\w?]+)?")
_NUMBER = re.compile(rb"\d+")
_STRING = re.compile(QUOTED + rb"|'(?:[^'\\]|\\.)*'|" + rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STRING_OR_COMMENT = re.compile(_STRING.pattern + b"|" + _COMMENT.pattern, re.DOTALL)
#: Signs of text that XLA would print differently.
_UNTIDY = re.compile(rb"[\n\t\r/]|  |= | [,:=)\]]")
#: Tokens that matter when searching for a closing bracket.
_INSIDE = re.compile(rb"""[(){}\[\]\n"]|'|/\*|//[^\r\n]*""")
_ARRAY = re.compile(rb"[a-z][a-z0-9]*+(?=" + _SPACE + rb"\[)|b(?=" + _SPACE + rb"\()", re.DOTALL)
_ELEMENT = re.compile(rb",(?=[a-z(])")
#: A layout, unlike the brace that opens a computation, begins with a number or a colon.
_LAYOUT = re.compile(rb"\{" + _SPACE + rb"[\d:}]", re.DOTALL)
_GOES_ON = re.compile(rb"[{(\[]|<=" + _SPACE + rb"\[|T" + _SPACE + rb"\((?=" + _SPACE + rb"\d)", re.DOTALL)
_CLOSING = {b"(": b")", b"[": b"]", b"{": b"}"}
#: Attributes that name a computation or contain it inline in braces; those of `_LISTS` contain a list of them.
_COMPUTATIONS = frozenset(
    (b"calls", b"to_apply", b"body", b"condition", b"select", b"scatter", b"true_computation", b"false_computation")
)
_LISTS = frozenset((b"branch_computations", b"called_computations"))
#: Opcodes whose parentheses do not contain operands.
_LITERALS = frozenset((b"constant", b"parameter"))
#: Nesting limit: far above that of programs, far below Python's recursion limit.
_DEEPEST = 100


class NotWellFormed(Exception):  # noqa: N818 - a signal, not an error
    """The text at `at` does not match XLA's grammar."""

    def __init__(self, at: int) -> None:
        self.at = at


@dataclass(frozen=True, slots=True)
class Begin:
    """Start of a computation written inline in braces."""

    name: bytes


@dataclass(frozen=True, slots=True)
class End:
    """End of the computation that was started last."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction, and its offset in the text."""

    row: Row
    at: int


Event = Begin | End | Instruction


def blank_end(text: bytes, at: int) -> int:
    """Return the offset after any spaces, line breaks and comments.

    Examples
    --------
    >>> blank_end(b"  // a comment\\n /* another */ p", 0)
    30
    """
    found = _BLANK.match(text, at)
    return found.end() if found else at


def tidied(text: bytes) -> bytes:
    r"""Return text without comments, line breaks and optional spaces; strings are kept unchanged.

    Examples
    --------
    >>> tidied(b'{ {0} : (1, /*all*/ {}),\n  x="a  b" }')
    b'{{0}:(1,{}),x="a  b"}'
    """
    if _UNTIDY.search(text) is None:
        return text
    if b"/" in text:
        text = _STRING_OR_COMMENT.sub(lambda found: b" " if found.group().startswith(b"/") else found.group(), text)
    parts = []
    begin = 0
    for string in _STRING.finditer(text):
        parts += [_LOOSE.sub(b"", _SPACES.sub(b" ", text[begin : string.start()])), string.group()]
        begin = string.end()
    return b"".join([*parts, _LOOSE.sub(b"", _SPACES.sub(b" ", text[begin:]))])


def _in_double_quotes(string: re.Match[bytes]) -> bytes:
    text = string.group()
    return b'"' + text[1:-1].replace(b'"', b'\\"') + b'"' if text.startswith(b"'") else text


class ExactText:
    """Parse elements of HLO text; an element cut off by the end of the text raises `NotWellFormed` with that offset.

    Parameters
    ----------
    text : bytes
    is_whole : bool
        Whether no more text follows.
    numbers : iterator of int
        Source of numbers for unnamed instructions and computations.
    """

    def __init__(self, text: bytes, is_whole: bool, numbers: Iterator[int]) -> None:
        self._text = text
        self._is_whole = is_whole
        self._numbers = numbers
        self._depth = 0
        #: Operands with shapes, of an instruction that is alone.
        self._parameters: dict[bytes, bytes] | None = None

    def lone_instruction(self, at: int) -> tuple[list[Event], int] | None:
        """Parse an instruction that is all of the text; None if it is not.

        As XLA reads it, it may have no name, and its operands are the parameters of a module.

        Examples
        --------
        >>> import itertools
        >>> events, end = ExactText(b"f32[2] negate(f32[2] %x)", True, itertools.count()).lone_instruction(0)
        >>> [event.row[:5] for event in events[1:-1]]
        [(b'', b'x', b'f32[2]', b'parameter', b'0'), (b'ROOT ', b'_', b'f32[2]', b'negate', b'%x')]
        """
        self._parameters = {}
        events: list[Event] = []
        at = blank_end(self._text, at)
        if self._has_shape(at):
            end = self._right_side(at, at, b"ROOT ", b"_", events, has_attributes=True)
        else:
            events, end = self.instruction(at)
        shapes, self._parameters = self._parameters, None
        if (
            shapes is None
            or b"" in shapes.values()
            or not self._is_whole
            or blank_end(self._text, end) < len(self._text)
        ):
            return None
        rows = [(b"", name, shape, b"parameter", b"%d" % i, b"") for i, (name, shape) in enumerate(shapes.items())]
        return [Begin(b"_"), *(Instruction(row, at) for row in rows), *events, End()], end

    def instruction(self, at: int) -> tuple[list[Event], int]:
        """Parse ``[ROOT] name = [shape] opcode(operands), attributes``; return its events and the end offset.

        Examples
        --------
        >>> import itertools
        >>> events, end = ExactText(b"ROOT n = negate(f32[2]{0} parameter(0))", True, itertools.count()).instruction(0)
        >>> [event.row[1:5] for event in events]
        [(b'parameter.anon.0', b'f32[2]{0}', b'parameter', b'0'), (b'n', b'', b'negate', b'%parameter.anon.0')]
        """
        events: list[Event] = []
        at = blank_end(self._text, at)
        begin = at
        root = _ROOT.match(self._text, at)
        if root is not None:
            at = blank_end(self._text, root.end())
        name, at = self._name(at, b"=")
        at = self._expected(b"=", at)
        at = self._right_side(at, begin, b"ROOT " if root else b"", name, events, has_attributes=True)
        return events, at

    def heading(self, at: int) -> tuple[bytes, bool, int]:
        """Parse ``[ENTRY] name [(parameters) -> shape] {``; return the name, an entry flag and the end offset."""
        text = self._text
        at = blank_end(text, at)
        is_entry = _ENTRY.match(text, at)
        name, at = self._name(blank_end(text, is_entry.end()) if is_entry else at, b"")
        if name in (b"HloModule", b"ENTRY", b"ROOT"):
            raise NotWellFormed(at)
        at = blank_end(text, at)
        if text[at : at + 1] == b"(":
            at = blank_end(text, self._group(at))
            at = self._expected(b"-", at)
            if text[at : at + 1] != b">":
                raise NotWellFormed(at)
            _, at = self._shape(blank_end(text, at + 1))
        return name, is_entry is not None, self._expected(b"{", at)

    def closing(self, at: int) -> int:
        """Parse the closing brace of a computation and the attributes after it; return the end offset."""
        _, at = self._attributes(self._expected(b"}", at), [], b"")
        return at

    def header(self, at: int) -> tuple[bytes, int]:
        r"""Parse ``HloModule name, attributes``; return it as XLA prints it, and the end offset.

        Examples
        --------
        >>> import itertools
        >>> ExactText(b"HloModule m, is_scheduled= true,\n  x={ }\n\nENTRY e {", True, itertools.count()).header(0)
        (b'HloModule m, is_scheduled=true, x={ }', 40)
        """
        name, at = self._name(blank_end(self._text, at + len(b"HloModule")), b"")
        attributes, at = self._attributes(at, [], b"")
        return b"HloModule " + name + attributes, at

    def table(self, at: int) -> tuple[list[bytes], int]:
        """Parse a table of files or stack frames; return its lines and the end offset."""
        text = self._text
        found = TABLE.match(text, at)
        if found is None:
            raise NotWellFormed(at)
        lines, at = [found.group()], found.end()
        # Fast path: one entry per line, as XLA prints them.
        plain = TABLE_LINES.match(text, at + 1)
        if plain is not None and text[at : at + 1] == b"\n":
            lines += plain.group().splitlines()
            at = plain.end()
        while True:
            begin = blank_end(text, at)
            if begin == len(text) and not self._is_whole:
                raise NotWellFormed(begin)
            number = _NUMBER.match(text, begin)
            if number is None:
                return lines, at
            begin = blank_end(text, number.end())
            at = self._value(begin, b"")
            lines.append(number.group() + b" " + tidied(text[begin:at]))

    def _expected(self, character: bytes, at: int) -> int:
        at = blank_end(self._text, at)
        if self._text[at : at + 1] != character:
            raise NotWellFormed(at)
        return at + 1

    def _name(self, at: int, after: bytes) -> tuple[bytes, int]:
        """Parse a name; a word without ``%`` directly before ``=`` is an attribute's name and is rejected."""
        text = self._text
        found = _NAME.match(text, at)
        if found is None or (text[found.end() : found.end() + 1] == b"=" and text[at : at + 1] != b"%"):
            raise NotWellFormed(at)
        end = found.end()
        if text[end : end + 1] == b":":
            end += 1
        return found.group(1), end

    def _right_side(
        self, at: int, begin: int, root: bytes, name: bytes, events: list[Event], has_attributes: bool
    ) -> int:
        text = self._text
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NotWellFormed(at)
        at = blank_end(text, at)
        shape = b""
        if self._has_shape(at):
            shape, at = self._shape(at)
            at = blank_end(text, at)
        found = _OPCODE.match(text, at)
        if found is None:
            raise NotWellFormed(at)
        opcode, at = found.group(), self._expected(b"(", found.end())
        if not shape and opcode not in INFERRED:
            raise NotWellFormed(at)
        if opcode in _LITERALS:
            end = self._group(at - 1)
            operands = text[at : end - 1].strip()
            if b"\n" in operands or b"/" in operands or opcode == b"parameter":
                operands = tidied(operands)
            at = end
        else:
            operands, at = self._operands(at, events)
        if not name:
            name = opcode + b".anon.%d" % next(self._numbers)
        attributes = b""
        if has_attributes:
            attributes, at = self._attributes(at, events, name)
        events.append(Instruction((root, name, shape, opcode, operands, attributes), begin))
        self._depth -= 1
        return at

    def _has_shape(self, at: int) -> bool:
        return self._text[at : at + 1] == b"(" or _ARRAY.match(self._text, at) is not None

    def _shape(self, at: int) -> tuple[bytes, int]:
        text, begin = self._text, at
        if text[at : at + 1] == b"(":
            at = self._group(at)
        else:
            found = _ARRAY.match(text, at)
            if found is None:
                raise NotWellFormed(at)
            at = self._group(blank_end(text, found.end()))
            after = blank_end(text, at)
            if text[at - 1 : at] == b"]" and _LAYOUT.match(text, after):
                at = self._group(after)
        # Only elements of tuples have a space between them.
        shape = b"".join(_COMMENT.sub(b"", text[begin:at]).split())
        return _ELEMENT.sub(b", ", shape) if shape.startswith(b"(") else shape, at

    def _operands(self, at: int, events: list[Event]) -> tuple[bytes, int]:
        text = self._text
        found: list[bytes] = []
        begin = self._after_commas(at)
        while text[begin : begin + 1] != b")":
            try:
                name, at = self._operand(begin)
            except NotWellFormed as error:
                if error.at >= len(text):
                    raise
                at = self._right_side(begin, begin, b"", b"", events, has_attributes=False)
                name = self._last_name(events)
            found.append(b"%" + name)
            at = blank_end(text, at)
            if text[at : at + 1] not in (b",", b")"):
                raise NotWellFormed(at)
            begin = self._after_commas(at)
        return b", ".join(found), begin + 1

    def _after_commas(self, at: int) -> int:
        """Return the offset after any commas: XLA reads any number of them around operands."""
        found = _COMMAS.match(self._text, at)
        return found.end() if found else at

    def _last_name(self, events: list[Event]) -> bytes:
        last = events[-1]
        assert isinstance(last, Instruction)
        return last.row[1]

    def _operand(self, at: int) -> tuple[bytes, int]:
        """Parse ``[shape] name`` or a tuple element, ``name#1#0``."""
        text = self._text
        shape = b""
        if self._has_shape(at):
            shape, at = self._shape(at)
            at = self._after_commas(at)
        name, at = self._name(at, b",")
        at = blank_end(text, at)
        while text[at : at + 1] == b"#":
            number = _NUMBER.match(text, blank_end(text, at + 1))
            if number is None:
                raise NotWellFormed(at)
            name += b"#" + number.group()
            at = blank_end(text, number.end())
        if text[at : at + 1] not in (b",", b")"):
            raise NotWellFormed(at)
        if self._parameters is not None:
            self._parameters[name] = shape
        return name, at

    def _attributes(self, at: int, events: list[Event], name: bytes) -> tuple[bytes, int]:
        """Parse repeated ``, name=value``; return them with free-text attributes last, and the end offset."""
        text = self._text
        plain: list[bytes] = []
        opaque: list[bytes] = []
        while True:
            comma = blank_end(text, at)
            if comma == len(text) and not self._is_whole:
                raise NotWellFormed(comma)
            if text[comma : comma + 1] != b",":
                return b"".join(plain + opaque), at
            begin = blank_end(text, comma + 1)
            found = _ATTRIBUTE.match(text, begin)
            if found is None:
                raise NotWellFormed(begin)
            key = found.group(1)
            begin = blank_end(text, found.end())
            if key in _COMPUTATIONS or key in _LISTS:
                value, at = self._called(begin, key, events, name)
                plain.append(b", " + key + b"=" + value)
                continue
            at = self._value(begin, key)
            value = text[begin:at]
            if b"='" in text[begin - 1 : at]:
                value = _STRING.sub(_in_double_quotes, value)
            if key in OPAQUE_ATTRIBUTES:
                opaque.append(b", " + key + b"=" + (tidied(value) if key == b"metadata" else value))
            else:
                plain.append(b", " + key + b"=" + tidied(value))

    def _called(self, at: int, key: bytes, events: list[Event], name: bytes) -> tuple[bytes, int]:
        """Parse the name of a computation, an inline computation in braces, or a list of either."""
        text = self._text
        if text[at : at + 1] != b"{":
            found, at = self._name(at, b"")
            return b"%" + found, at
        if key in _COMPUTATIONS:
            return self._computation(at, key, events, name)
        items: list[bytes] = []
        at = blank_end(text, at + 1)
        while text[at : at + 1] != b"}":
            if text[at : at + 1] == b"{":
                item, at = self._computation(at, key, events, name)
            else:
                found, at = self._name(at, b"")
                item = b"%" + found
            items.append(item)
            at = blank_end(text, at)
            if text[at : at + 1] == b",":
                at = blank_end(text, at + 1)
            elif text[at : at + 1] != b"}":
                raise NotWellFormed(at)
        return b"{" + b",".join(items) + b"}", at + 1

    def _computation(self, at: int, key: bytes, events: list[Event], name: bytes) -> tuple[bytes, int]:
        """Parse an inline computation; return a generated name for it, which no HLO text contains."""
        made = b".%s.%s.%d" % (name, key, next(self._numbers))
        events.append(Begin(made))
        outside, self._parameters = self._parameters, None
        at = blank_end(self._text, at + 1)
        while self._text[at : at + 1] != b"}":
            inner, at = self.instruction(at)
            events += inner
            at = blank_end(self._text, at)
        events.append(End())
        self._parameters = outside
        return b"%" + made, at + 1

    def _value(self, at: int, key: bytes) -> int:
        """Return the end offset of an attribute's value."""
        text = self._text
        if text[at : at + 1] in (b"{", b"(", b"["):
            at = self._group(at)
        else:
            found = _STRING.match(text, at) or _WORD.match(text, at)
            if found is None:
                raise NotWellFormed(len(text) if text[at : at + 1] in (b'"', b"'") else at)
            at = found.end()
        while True:
            found = _GOES_ON.match(text, blank_end(text, at))
            if found is None:
                break
            at = self._group(found.end() - 1)
        if key == b"literal" and text[at - 1 : at] in (b"]", b"}"):
            # The value of a scalar follows its shape.
            found = _WORD.match(text, blank_end(text, at))
            at = found.end() if found is not None else at
        return at

    def _group(self, at: int) -> int:
        """Return the end offset of the bracketed group that opens at an offset."""
        text = self._text
        expected: list[bytes] = []
        begin = at
        while True:
            token = _INSIDE.search(text, at)
            if token is None:
                raise NotWellFormed(len(text))
            at = token.end()
            character = token.group()
            if character in _CLOSING:
                expected.append(_CLOSING[character])
            elif character in (b")", b"]", b"}"):
                if not expected or expected.pop() != character:
                    raise NotWellFormed(token.start())
                if not expected:
                    return at
            elif character in (b'"', b"'"):
                string = _STRING.match(text, token.start())
                if string is None:
                    raise NotWellFormed(len(text))
                at = string.end()
            elif character == b"/*":
                at = text.find(b"*/", at) + 2
                if at < 2:
                    raise NotWellFormed(len(text))
            elif character == b"\n" and STATEMENT.match(text, at):
                # An instruction starts before the bracket is closed: it never will be.
                raise NotWellFormed(begin)
