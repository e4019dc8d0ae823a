"""Strict parser for the text of a layout by XLA's grammar: tokens, errors with positions, hints.

Source: ``xla/hlo/parser/hlo_lexer.cc``.

Source: ``HloParserImpl::ParseLayout`` in ``xla/hlo/parser/hlo_parser.cc``. ``PAD(...)`` and ``PV(...)``, first among
the attributes, are extensions of fastindex.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from fastindex.core.element_types import INTEGER_TYPES, xla_name
from fastindex.core.integers import INT64_MAX, INT64_MIN
from fastindex.core.layout_fields import PADDING_VALUES, LayoutFields, SplitConfig
from fastindex.core.tiles import COMBINE
from fastindex.errors import ArgumentTypeError, Index, LayoutError, ParseError

SKIPPED = r"(?:[ \t\r\n]+|//[^\r\n]*|/\*(?s:.*?)\*/)*"
_TOKEN = r"([\[\](){},:]|-?[0-9][0-9A-Za-z_.]*|[A-Za-z_][A-Za-z0-9_.\-]*[:=]?|<=|(?s:.)|\Z)"
TOKENS = re.compile(SKIPPED + _TOKEN)


class TokenReader:
    """A list of tokens and the current position in it. Offsets into the text are computed only for errors."""

    __slots__ = ("at", "begins", "text", "tokens")

    #: The notation's name in error messages, and the pattern of its tokens.
    notation: ClassVar[str] = "shape"
    pattern: ClassVar[re.Pattern[str]] = TOKENS

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ArgumentTypeError(f"expected the text of a {self.notation}, got {text!r}")
        self.text = text
        self.tokens: list[str] = self.pattern.findall(text)
        self.at = 0
        #: Token index at which each field, or entry of a field, of the value being parsed begins.
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


L = TypeVar("L", bound=LayoutFields)

_LEVELS = ("D", "C", "S", "H")


def parse_layout(text: str, layout_class: type[L]) -> L:
    """Parse a layout, with its braces.

    Parameters
    ----------
    text : str
    layout_class : type
        The class of the result.

    Raises
    ------
    ParseError
        The text is not a layout.

    Examples
    --------
    >>> parse_layout("{1,0:T(8,128)S(1)}", LayoutFields).memory_space
    1
    """
    reader = LayoutReader(text, layout_class)
    reader.expect("{", "a layout such as {1,0}")
    layout = reader.layout()
    reader.end("layout")
    return layout


class LayoutReader(TokenReader, Generic[L]):
    """Recursive descent over the tokens of a layout."""

    __slots__ = ("layout_class",)

    def __init__(self, text: str, layout_class: type[L]) -> None:
        super().__init__(text)
        self.layout_class = layout_class

    def fail_at(self, rule: str, offset: int) -> NoReturn:
        raise ParseError(rule, self.text, offset, hint_for(self.text, offset))

    def layout(self) -> L:
        """Parse a layout after its opening brace."""
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
        self.expect("}", "one of the attributes PAD PV D T L # * E S SC M, in this order, or '}'")
        return self.checked_layout(begin, order, values)

    def checked_layout(self, begin: int, order: list[int], values: dict[str, Any]) -> L:
        try:
            return self.layout_class(tuple(order), **values)
        except LayoutError as error:
            self.invalid(error, begin)

    def one_integer(self, field: str, values: dict[str, Any]) -> None:
        self.at += 1
        self.expect("(")
        self.begins[field, None] = self.at
        values[field] = self.integer()
        self.expect(")")

    def one_name(self, field: str, names: Collection[str], expected: str, values: dict[str, Any]) -> None:
        self.at += 1
        self.expect("(")
        if self.tokens[self.at] not in names:
            self.fail(expected)
        values[field] = self.tokens[self.at]
        self.at += 1
        self.expect(")")

    def integer_type(self, field: str, values: dict[str, Any]) -> None:
        self.one_name(field, INTEGER_TYPES, "an integer type such as u32", values)

    def padding_value(self, values: dict[str, Any]) -> None:
        self.one_name("padding_value", PADDING_VALUES, "zero, one, lowest or highest", values)

    def padded_dimensions(self, values: dict[str, Any]) -> None:
        self.begins["padded_dimensions", None] = self.at
        self.at += 1
        self.expect("(")
        values["padded_dimensions"] = () if self.tokens[self.at] == ")" else self.integers("padded_dimensions", ")")
        self.at += 1

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
                # The end of the text is an empty token, which every string contains.
                if tokens[self.at] and tokens[self.at] in expected:
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
        raise ParseError(
            f"the attribute {self.tokens[self.at]}(...) is for sparse arrays, which XLA's text no longer has",
            self.text,
            self.offset(self.at),
            field="layout",
        )


_ATTRIBUTES: tuple[tuple[str, Callable[[LayoutReader[Any], dict[str, Any]], None]], ...] = (
    ("PAD", LayoutReader.padded_dimensions),
    ("PV", LayoutReader.padding_value),
    ("D", LayoutReader.dimension_levels),
    ("T", LayoutReader.tiles),
    ("L", lambda parser, values: parser.one_integer("tail_padding_alignment_in_elements", values)),
    ("#", lambda parser, values: parser.integer_type("index_primitive_type", values)),
    ("*", lambda parser, values: parser.integer_type("pointer_primitive_type", values)),
    ("E", lambda parser, values: parser.one_integer("element_size_in_bits", values)),
    ("S", lambda parser, values: parser.one_integer("memory_space", values)),
    ("SC", LayoutReader.split_configs),
    ("P", LayoutReader.sparse_only),
    ("M", lambda parser, values: parser.one_integer("dynamic_shape_metadata_prefix_bytes", values)),
)


# Hints: how XLA writes what other libraries write differently. Compiled when first needed, not at import.

#: MLIR: ``tensor<2x3xf32>``, ``memref<...>``, or only the part in brackets.
_MLIR = r"(?:(?:tensor|memref)\s*<\s*)?((?:(?:\d+|\?)\s*x\s*)*)([A-Za-z]\w*)\s*>?"
_CROSSES = r"\d+(?:x\d+)+"
_ATTRIBUTE = r"(?:PAD|PV|SC|[DTLESM])(?:\s*\([^()]*\))+"
_INSTRUCTION = r"(?:ROOT\s+)?%?[\w.\-]+\s*=\s"
_JAX_ORDER = r"major_to_minor=\(([\d,\s]*)\)"
_JAX_TILES = r"tiling=\(((?:\([\d,\s]*\)[,\s]*)+)\)"


def hint_for(text: str, offset: int) -> str:
    """Return a hint about what to write instead of the text at `offset`; "" if there is none.

    Examples
    --------
    >>> hint_for("tensor<2x3xf32>", 0)
    "XLA writes 'tensor<2x3xf32>' as f32[2,3]"
    >>> hint_for("f32[2,3]{1,0}S(1)", 13)
    'S(1) belongs inside the braces, after a colon, as in {1,0:S(1)}'
    >>> hint_for("f32[2,3]", 0)
    ''
    """
    order = re.search(_JAX_ORDER, text)
    if order is not None:
        found = f"{{{','.join(reversed(_numbers(order[1])))}{_jax_tiles(text)}}}"
        return f"JAX's {order[0]} is {found} here, the most minor dimension first"
    if not text[:offset].strip():
        if text.startswith("{", offset):
            return "a layout is written after the element type and the sizes, as in f32[3,5]{1,0}"
        if re.compile(_INSTRUCTION).match(text, offset) is not None:
            return "of an HLO instruction, only the shape is read: the text from '=' to the opcode"
    if text.startswith("None", offset):
        return "XLA writes an unbounded dimension as ?"
    crosses = re.compile(_CROSSES).match(text, offset)
    if crosses is not None and text[offset - 1 : offset] in ("[", ","):
        return f"XLA writes {crosses[0]!r} as {crosses[0].replace('x', ',')}"
    mlir = re.compile(_MLIR).match(text, offset)
    if mlir is not None and (mlir[1] or "<" in mlir[0]):
        name = xla_name(mlir[2])
        if name is not None:
            sizes = ",".join(re.findall(r"\d+|\?", mlir[1]))
            return f"XLA writes {mlir[0]!r} as {name}[{sizes}]"
    attribute = re.compile(_ATTRIBUTE).match(text, offset)
    if attribute is not None and not _is_among_attributes(text, offset):
        return f"{attribute[0]} belongs inside the braces, after a colon, as in {{1,0:{attribute[0]}}}"
    return ""


def _is_among_attributes(text: str, offset: int) -> bool:
    begin = text.rfind("{", 0, offset)
    before = text[begin:offset]
    return begin >= 0 and "}" not in before and ":" in before


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def _jax_tiles(text: str) -> str:
    tiles = re.search(_JAX_TILES, text)
    if tiles is None:
        return ""
    return ":T" + "".join(f"({','.join(_numbers(tile))})" for tile in re.findall(r"\([^()]*\)", tiles[1]))
