"""The tokens of XLA's text, and errors that point into it.

Source: ``xla/hlo/parser/hlo_lexer.cc``.
"""

from __future__ import annotations

import re
from typing import ClassVar, NoReturn

from fastindex.errors import (
    ArgumentTypeError,
    Index,
    LayoutError,
    ParseError,
)
from fastindex.shapes.integers import INT64_MAX, INT64_MIN

SKIPPED = r"(?:[ \t\r\n]+|//[^\r\n]*|/\*(?s:.*?)\*/)*"
_TOKEN = r"([\[\](){},:]|-?[0-9][0-9A-Za-z_.]*|[A-Za-z_][A-Za-z0-9_.\-]*[:=]?|<=|(?s:.)|\Z)"
TOKENS = re.compile(SKIPPED + _TOKEN)


class TokenReader:
    """A list of tokens and the current position in it. Offsets into the text are computed only for errors."""

    __slots__ = ("at", "begins", "text", "tokens")

    #: What is read, and the tokens of its notation.
    notation: ClassVar[str] = "shape"
    pattern: ClassVar[re.Pattern[str]] = TOKENS

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ArgumentTypeError(f"expected the text of a {self.notation}, got {text!r}")
        self.text = text
        self.tokens: list[str] = self.pattern.findall(text)
        self.at = 0
        #: Token index at which each field, or entry of a field, of what is being read begins.
        self.begins: dict[tuple[str, Index], int] = {}

    def offset(self, token: int) -> int:
        for i, match in enumerate(self.pattern.finditer(self.text)):
            if i == token:
                return match.start(1)
        return len(self.text)

    def fail(self, expected: str, token: int | None = None) -> NoReturn:
        token = self.at if token is None else token
        offset = self.offset(token)
        found = self.tokens[token]
        if found == "/" and self.text.startswith("/*", offset):
            raise ParseError("the comment /* is not closed with */", self.text, offset)
        spelled = "the end of the text" if not found else repr(found if len(found) < 40 else found[:40] + "...")
        self.fail_at(f"expected {expected}, found {spelled}", offset)

    def fail_at(self, rule: str, offset: int) -> NoReturn:
        raise ParseError(rule, self.text, offset)

    def fail_integer(self, token: int) -> NoReturn:
        raise ParseError(f"integers must fit int64, {self.tokens[token][:40]} does not", self.text, self.offset(token))

    def invalid(self, error: LayoutError, default: int) -> NoReturn:
        begins = self.begins
        token = begins.get((error.field, error.index), begins.get((error.field, None), default))
        raise ParseError(str(error), self.text, self.offset(token), field=error.field, index=error.index) from None

    def end(self, what: str) -> None:
        if self.tokens[self.at] == "{" and what == "shape":
            self.fail("a layout such as {1,0} or {:T(256)}, or none")
        if self.tokens[self.at]:
            self.fail(f"nothing more after the {what}")

    def expect(self, token: str, what: str | None = None) -> None:
        if self.tokens[self.at] != token:
            self.fail(what or repr(token))
        self.at += 1

    def integer(self, what: str = "an integer") -> int:
        token = self.tokens[self.at]
        digits = token[1:] if token[:1] == "-" else token
        if not digits.isdecimal() or not digits.isascii():
            self.fail(what)
        if len(digits) > 18:
            digits = digits.lstrip("0") or "0"
            if len(digits) > 19:
                self.fail_integer(self.at)
        value = -int(digits) if token[0] == "-" else int(digits)
        if not INT64_MIN <= value <= INT64_MAX:
            self.fail_integer(self.at)
        self.at += 1
        return value

    def integers(self, field: str, *ends: str) -> list[int]:
        """Read integers separated by commas, up to but not including one of `ends`."""
        values: list[int] = []
        while True:
            self.begins[field, len(values)] = self.at
            values.append(self.integer())
            token = self.tokens[self.at]
            if token in ends:
                return values
            if token != ",":
                self.fail(f"',' or {' or '.join(map(repr, ends))}")
            self.at += 1
