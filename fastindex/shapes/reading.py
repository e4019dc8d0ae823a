"""Reading the text notation of shapes: XLA's grammar, strict.

Source: ``xla/hlo/parser/hlo_{lexer,parser}.cc``. ``PAD(...)`` and ``PV(...)``, first among the attributes,
are fastindex's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from fastindex.errors import Index, InvalidShapeError, LayoutError, ShapeSyntaxError
from fastindex.shapes.element_types import BY_NAME, xla_name
from fastindex.shapes.integers import INT64_MAX, INT64_MIN
from fastindex.shapes.layout import PADDING_VALUES, Layout, SplitConfig
from fastindex.shapes.shape import Shape
from fastindex.shapes.shape_rules import UNBOUNDED
from fastindex.tiling.definition import COMBINE

_SKIPPED = r"(?:[ \t\r\n]+|//[^\r\n]*|/\*(?s:.*?)\*/)*"
_TOKEN = r"([\[\](){},:]|-?[0-9][0-9A-Za-z_.]*|[A-Za-z_][A-Za-z0-9_.\-]*[:=]?|<=|(?s:.)|\Z)"
_TOKENS = re.compile(_SKIPPED + _TOKEN)

_OPENS_LAYOUT = re.compile(r":|-?[0-9]").match
_WITHOUT_BRACKETS = ("tuple", "buffer")
_LEVELS = ("D", "C", "S", "H")


def parse_shape(text: str) -> Shape:
    """Read a shape.

    Raises
    ------
    ShapeSyntaxError
        Not a shape, with the position; an `InvalidShapeError` where the text is well formed but the
        shape cannot exist.

    Examples
    --------
    >>> parse_shape("(f32[2], token[])")
    Shape.parse('(f32[2]{0}, token[])')
    """
    parser = _Parser(text)
    shape = parser.shape()
    parser.end("shape")
    return shape


def parse_layout(text: str) -> Layout:
    """Read a layout, braces included.

    Raises
    ------
    ShapeSyntaxError
        Not a layout, with the position.

    Examples
    --------
    >>> parse_layout("{1,0:T(8,128)S(1)}").memory_space
    1
    """
    parser = _Parser(text)
    parser.expect("{", "a layout such as {1,0}")
    layout = parser.layout()
    parser.end("layout")
    return layout


class _Parser:
    """Recursive descent over a list of tokens; offsets are found again only when something is wrong."""

    __slots__ = ("at", "begins", "text", "tokens")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"expected the text of a shape, got {text!r}")
        self.text = text
        self.tokens: list[str] = _TOKENS.findall(text)
        self.at = 0
        #: Token index at which each field, or entry of a field, of the shape being read begins.
        self.begins: dict[tuple[str, Index], int] = {}

    def offset(self, token: int) -> int:
        for i, match in enumerate(_TOKENS.finditer(self.text)):
            if i == token:
                return match.start(1)
        return len(self.text)

    def fail(self, expected: str, token: int | None = None) -> NoReturn:
        token = self.at if token is None else token
        offset = self.offset(token)
        found = self.tokens[token]
        if found == "/" and self.text.startswith("/*", offset):
            raise ShapeSyntaxError("the comment /* is not closed with */", self.text, offset)
        spelled = "the end of the text" if not found else repr(found if len(found) < 40 else found[:40] + "...")
        raise ShapeSyntaxError(f"expected {expected}, found {spelled}", self.text, offset)

    def fail_integer(self, token: int) -> NoReturn:
        raise ShapeSyntaxError(
            f"integers must fit int64, {self.tokens[token][:40]} does not", self.text, self.offset(token)
        )

    def invalid(self, error: LayoutError, default: int) -> NoReturn:
        begins = self.begins
        token = begins.get((error.field, error.index), begins.get((error.field, None), default))
        raise InvalidShapeError(
            str(error), self.text, self.offset(token), field=error.field, index=error.index
        ) from None

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

    def shape(self) -> Shape:
        tokens = self.tokens
        open_tuples: list[list[Shape]] = []
        while True:
            token = tokens[self.at]
            if token == "(":
                self.at += 1
                if tokens[self.at] != ")":
                    open_tuples.append([])
                    continue
                self.at += 1
                shape = Shape.tuple()
            elif token == "b":
                self.at += 1
                self.expect("(")
                begin = self.at
                array = self.array("an array in the buffer")
                if not array.is_array:
                    self.fail("an array in the buffer", begin)
                shape = Shape.buffer(array)
                self.expect(")")
            else:
                shape = self.array("an element type such as f32, or a tuple")
            while open_tuples:
                open_tuples[-1].append(shape)
                token = tokens[self.at]
                self.at += 1
                if token == ",":
                    break
                if token != ")":
                    self.fail("',' or ')' in the tuple", self.at - 1)
                shape = Shape.tuple(open_tuples.pop())
            else:
                return shape

    def array(self, what: str) -> Shape:
        tokens = self.tokens
        begin = self.at
        element_type = BY_NAME.get(tokens[begin])
        if element_type is None or tokens[begin] in _WITHOUT_BRACKETS:
            meant = xla_name(tokens[begin]) if element_type is None else None
            self.fail(f"{meant}, XLA's name of the element type" if meant else what)
        self.begins = {}
        self.at += 1
        self.expect("[")
        if not element_type.is_array:
            self.expect("]", f"']', since {element_type} has no dimensions")
            return Shape.token() if element_type == "token" else Shape.opaque()
        dimensions, dynamic = self.dimensions()
        layout = None
        if tokens[self.at] == "{" and _OPENS_LAYOUT(tokens[self.at + 1]):
            self.begins["layout", None] = self.at
            self.at += 1
            layout = self.layout()
        try:
            return Shape(element_type, dimensions, layout, dynamic)
        except LayoutError as error:
            self.invalid(error, begin)

    def dimensions(self) -> tuple[list[int], list[bool] | None]:
        tokens = self.tokens
        self.begins["dimensions", None] = self.at
        sizes: list[int] = []
        dynamic: list[bool] = []
        if tokens[self.at] == "]":
            self.at += 1
            return sizes, None
        while True:
            self.begins["dimensions", len(sizes)] = self.at
            token = tokens[self.at]
            if token == "?":
                self.at += 1
                sizes.append(UNBOUNDED)
                dynamic.append(True)
            elif token == "<=":
                self.at += 1
                sizes.append(self.integer())
                dynamic.append(True)
            else:
                sizes.append(self.integer())
                if sizes[-1] == UNBOUNDED:
                    self.fail("a size of at least 0", self.at - 1)
                dynamic.append(False)
            token = tokens[self.at]
            self.at += 1
            if token == "]":
                return sizes, dynamic if True in dynamic else None
            if token != ",":
                self.fail("',' or ']' in the dimensions", self.at - 1)

    def layout(self) -> Layout:
        """Read what follows the opening brace."""
        tokens = self.tokens
        begin = self.at - 1
        order: list[int] = []
        if tokens[self.at] not in (":", "}"):
            order = self.integers("minor_to_major", ":", "}")
        if tokens[self.at] == "}":
            self.at += 1
            return self.checked_layout(begin, order, {})
        self.expect(":")
        values: dict[str, Any] = {}
        for letter, read in _ATTRIBUTES:
            if tokens[self.at] == letter:
                read(self, values)
        self.expect("}", "one of the attributes PAD PV D T L E S SC M, in this order, or '}'")
        return self.checked_layout(begin, order, values)

    def checked_layout(self, begin: int, order: list[int], values: dict[str, Any]) -> Layout:
        try:
            return Layout(tuple(order), **values)
        except LayoutError as error:
            self.invalid(error, begin)

    def integers(self, field: str, *ends: str) -> list[int]:
        """Read integers separated by commas up to one of `ends`, which is left."""
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

    def one_integer(self, field: str, values: dict[str, Any]) -> None:
        self.at += 1
        self.expect("(")
        self.begins[field, None] = self.at
        values[field] = self.integer()
        self.expect(")")

    def padded_dimensions(self, values: dict[str, Any]) -> None:
        self.begins["padded_dimensions", None] = self.at
        self.at += 1
        self.expect("(")
        values["padded_dimensions"] = () if self.tokens[self.at] == ")" else self.integers("padded_dimensions", ")")
        self.at += 1

    def padding_value(self, values: dict[str, Any]) -> None:
        self.at += 1
        self.expect("(")
        if self.tokens[self.at] not in PADDING_VALUES:
            self.fail("zero, one, lowest or highest")
        values["padding_value"] = self.tokens[self.at]
        self.at += 1
        self.expect(")")

    def dimension_levels(self, values: dict[str, Any]) -> None:
        tokens = self.tokens
        levels: list[str] = []
        self.begins["dimension_levels", None] = self.at
        self.at += 1
        self.expect("(")
        while tokens[self.at] != ")":
            if levels:
                self.expect(",", "',' or ')'")
            if tokens[self.at] not in _LEVELS:
                self.fail("a dimension level D, C, S or H")
            level = ""
            for expected in (_LEVELS, "+", "~"):
                if tokens[self.at] in expected:
                    level += tokens[self.at]
                    self.at += 1
            levels.append(level)
        self.at += 1
        values["dimension_levels"] = tuple(levels)

    def tiles(self, values: dict[str, Any]) -> None:
        tokens = self.tokens
        tiles: list[tuple[int, ...]] = []
        self.at += 1
        if tokens[self.at] != "(":
            self.fail("'(' and a tile after T")
        while tokens[self.at] == "(":
            self.begins["tiles", len(tiles)] = self.at
            self.at += 1
            tile: list[int] = []
            while tokens[self.at] != ")":
                if tile:
                    self.expect(",", "',' or ')' in the tile")
                self.begins["tiles", (len(tiles), len(tile))] = self.at
                if tokens[self.at] == "*":
                    self.at += 1
                    tile.append(COMBINE)
                else:
                    tile.append(self.integer("a tile size or *"))
                    if tile[-1] == -1:
                        self.fail("a tile size of at least 1, or *", self.at - 1)
            self.at += 1
            tiles.append(tuple(tile))
        values["tiles"] = tuple(tiles)

    def split_configs(self, values: dict[str, Any]) -> None:
        splits: list[SplitConfig] = []
        self.at += 1
        if self.tokens[self.at] != "(":
            self.fail("'(' and a split such as (0:4,8) after SC")
        while self.tokens[self.at] == "(":
            begin = self.begins["split_configs", len(splits)] = self.at
            self.at += 1
            dimension = self.integer()
            self.expect(":")
            indices = [] if self.tokens[self.at] == ")" else self.integers("split_indices", ")")
            self.at += 1
            try:
                splits.append(SplitConfig(dimension, tuple(indices)))
            except LayoutError as error:
                self.invalid(error, begin)
        values["split_configs"] = tuple(splits)

    def sparse_only(self, values: dict[str, Any]) -> NoReturn:
        raise InvalidShapeError(
            f"the attribute {self.tokens[self.at]}(...) is for sparse arrays, which XLA's text no longer has",
            self.text,
            self.offset(self.at),
            field="layout",
        )


_ATTRIBUTES: tuple[tuple[str, Callable[[_Parser, dict[str, Any]], None]], ...] = (
    ("PAD", _Parser.padded_dimensions),
    ("PV", _Parser.padding_value),
    ("D", _Parser.dimension_levels),
    ("T", _Parser.tiles),
    ("L", lambda parser, values: parser.one_integer("tail_padding_alignment_in_elements", values)),
    ("#", _Parser.sparse_only),
    ("*", _Parser.sparse_only),
    ("E", lambda parser, values: parser.one_integer("element_size_in_bits", values)),
    ("S", lambda parser, values: parser.one_integer("memory_space", values)),
    ("SC", _Parser.split_configs),
    ("P", _Parser.sparse_only),
    ("M", lambda parser, values: parser.one_integer("dynamic_shape_metadata_prefix_bytes", values)),
)
