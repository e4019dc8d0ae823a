"""Reading and printing the text of a shape by XLA's grammar.

Source: ``HloParserImpl::ParseShape`` in ``xla/hlo/parser/hlo_parser.cc``.

Source: ``ShapeUtil::HumanStringWithLayout`` in ``xla/shape_util.cc``.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

from fastindex.core.element_types import BY_NAME, xla_name
from fastindex.core.integers import UNBOUNDED
from fastindex.core.layout import Layout
from fastindex.core.layout_text import LayoutReader
from fastindex.core.sizes import SizedShape
from fastindex.errors import LayoutError

S = TypeVar("S", bound=SizedShape)

_OPENS_LAYOUT = re.compile(r":|-?[0-9]").match
_WITHOUT_BRACKETS = ("tuple", "buffer")


def parse_shape(text: str, shape_class: type[S]) -> S:
    """Parse a shape.

    Parameters
    ----------
    text : str
    shape_class : type
        The class of the result.

    Raises
    ------
    ParseError
        The text is not a shape, or the shape cannot exist.

    Examples
    --------
    >>> from fastindex import Shape
    >>> parse_shape("(f32[2], token[])", Shape)
    Shape.parse('(f32[2]{0}, token[])')
    """
    reader = ShapeReader(text, shape_class)
    shape = reader.shape()
    reader.end("shape")
    return shape


class ShapeReader(LayoutReader[Layout], Generic[S]):
    """Recursive descent over the tokens of a shape."""

    __slots__ = ("shape_class",)

    def __init__(self, text: str, shape_class: type[S]) -> None:
        super().__init__(text, Layout)
        self.shape_class = shape_class

    def shape(self) -> S:
        tokens = self.tokens
        open_tuples: list[list[S]] = []
        while True:
            token = tokens[self.at]
            if token == "(":
                self.at += 1
                if tokens[self.at] != ")":
                    open_tuples.append([])
                    continue
                self.at += 1
                shape = self.shape_class.tuple()
            elif token == "b":
                self.at += 1
                self.expect("(")
                begin = self.at
                array = self.array("an array in the buffer")
                if not array.is_array:
                    self.fail("an array in the buffer", begin)
                shape = self.shape_class.buffer(array)
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
                shape = self.shape_class.tuple(open_tuples.pop())
            else:
                return shape

    def name(self) -> str:
        """Read the name of a parameter, as in ``x: f32[2]``; "" if there is none or it is ``(unknown)``."""
        token = self.tokens[self.at]
        named = len(token) > 1 and token[-1] == ":"
        if self.tokens[self.at : self.at + 4] == ["(", "unknown", ")", ":"]:
            self.at += 4
        self.at += named
        return token[:-1] if named else ""

    def array(self, what: str) -> S:
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
            return self.shape_class.token() if element_type == "token" else self.shape_class.opaque()
        dimensions, dynamic = self.dimensions()
        layout = None
        if tokens[self.at] == "{" and _OPENS_LAYOUT(tokens[self.at + 1]):
            self.begins["layout", None] = self.at
            self.at += 1
            layout = self.layout()
        try:
            return self.shape_class(element_type, dimensions, layout, dynamic)
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


def format_shape(shape: SizedShape, *, with_layout: bool = True) -> str:
    """Return the text of a shape, exactly like XLA's.

    Parameters
    ----------
    shape : Shape
    with_layout : bool
        Whether to include the layouts of arrays; that of a scalar is left out if it is ``{}``.

    Examples
    --------
    >>> from fastindex import Shape
    >>> format_shape(Shape.tuple([Shape("f32", (2, 3)), Shape("s32")]))
    '(f32[2,3]{1,0}, s32[])'
    >>> format_shape(Shape("f32", (2, 3)), with_layout=False)
    'f32[2,3]'
    """
    if shape.is_array:
        return _format_array(shape, with_layout)
    pieces: list[str] = []
    # Items still to be printed, the next one last. No recursion: tuples can nest thousands of levels deep.
    pending: list[SizedShape | str] = [shape]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif item.is_tuple:
            pieces.append("(")
            pending.append(")")
            for i in range(len(item.tuple_shapes) - 1, -1, -1):
                pending.append(item.tuple_shapes[i])
                if i:
                    pending.append(", " if i % 5 else f", /*index={i}*/")
        elif item.is_buffer:
            pieces.append(f"b({_format_array(item.tuple_shapes[0], with_layout)})")
        elif item.is_array:
            pieces.append(_format_array(item, with_layout))
        else:
            pieces.append(f"{item.element_type}[]")
    return "".join(pieces)


def _format_array(shape: SizedShape, with_layout: bool) -> str:
    if True in shape.dynamic_dimensions:
        sizes = ",".join(
            [
                "?" if size == UNBOUNDED else f"<={size}" if dynamic else str(size)
                for size, dynamic in zip(shape.dimensions, shape.dynamic_dimensions, strict=True)
            ]
        )
    else:
        sizes = ",".join(map(str, shape.dimensions))
    text = f"{shape.element_type.name}[{sizes}]"
    if not with_layout:
        return text
    layout = str(shape.layout)
    return text if layout == "{}" else text + layout
