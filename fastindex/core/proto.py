"""Shapes as protocol buffers, byte for byte like XLA's, without the protobuf library.

Source: ``ShapeProto`` in ``xla/xla_data.proto``; ``Shape::FromProto`` in ``xla/shape.cc``.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from fastindex.core.element_types import ElementType
from fastindex.core.integers import UNBOUNDED
from fastindex.core.layout import Layout
from fastindex.core.sizes import SizedShape
from fastindex.core.wire import Fields, bytes_field, int_field, packed_field
from fastindex.errors import LayoutError

S = TypeVar("S", bound=SizedShape)

#: Field numbers of ``ShapeProto``.
_ELEMENT_TYPE, _DIMENSIONS, _TUPLE_SHAPES, _LAYOUT, _IS_DYNAMIC = range(2, 7)


def shape_to_bytes(shape: SizedShape) -> bytes:
    """Serialise a shape as a ``ShapeProto``.

    Examples
    --------
    >>> from fastindex import Shape
    >>> shape_to_bytes(Shape("f32", (3,))).hex()
    '100b1a01032a060a0100800101320100'
    """
    written: dict[int, bytes] = {}
    # References from unfinished shapes to each element; at 0 its bytes are freed, or those of each level would stay.
    uses: Counter[int] = Counter()
    being_written: set[int] = set()
    # No recursion: tuples can nest thousands of levels deep.
    pending = [shape]
    while pending:
        current = pending[-1]
        if id(current) in written:
            pending.pop()
            continue
        if id(current) not in being_written:
            being_written.add(id(current))
            uses.update(map(id, current.tuple_shapes))
        missing = [element for element in current.tuple_shapes if id(element) not in written]
        if missing:
            pending.extend(missing)
            continue
        pending.pop()
        parts = [int_field(_ELEMENT_TYPE, current.element_type.number)]
        if current.is_array:
            parts += [
                packed_field(_DIMENSIONS, current.dimensions),
                bytes_field(_LAYOUT, current.layout.to_proto()),
                packed_field(_IS_DYNAMIC, current.dynamic_dimensions),
            ]
        parts += [bytes_field(_TUPLE_SHAPES, written[id(element)]) for element in current.tuple_shapes]
        written[id(current)] = b"".join(parts)
        being_written.remove(id(current))
        for element in current.tuple_shapes:
            uses[id(element)] -= 1
            if not uses[id(element)]:
                del written[id(element)]
    return written[id(shape)]


def shape_from_bytes(data: bytes, shape_class: type[S]) -> S:
    """Read a serialised ``ShapeProto``. Unknown fields are ignored; an absent layout means the default layout.

    Raises
    ------
    FastIndexError
        The data is not a proto, or the element type is unknown.
    LayoutError
        The shape is not valid.

    Examples
    --------
    >>> from fastindex import Shape
    >>> str(shape_from_bytes(bytes.fromhex("100b1a01032a060a0100800101320100"), Shape))
    'f32[3]{0}'
    """
    # One entry per message being read: its element type, the messages of its remaining elements in reverse, and the
    # shapes read so far. No recursion: tuples can nest thousands of levels deep.
    open_messages: list[tuple[ElementType, list[bytes], list[S]]] = []
    message = data
    while True:
        fields = Fields(message, "ShapeProto")
        element_type = ElementType.from_number(fields.integer(_ELEMENT_TYPE))
        shape = None
        if element_type.is_array:
            shape = _array_from(element_type, fields, shape_class)
        else:
            if fields.message(_LAYOUT) is not None:
                raise LayoutError(f"the ShapeProto of a {element_type} has a layout", field="layout")
            elements = fields.messages(_TUPLE_SHAPES) if element_type.name in ("tuple", "buffer") else []
            open_messages.append((element_type, elements[::-1], []))
        while open_messages:
            element_type, elements, shapes = open_messages[-1]
            if shape is not None:
                shapes.append(shape)
                shape = None
            if elements:
                message = elements.pop()
                break
            open_messages.pop()
            shape = _composite(element_type, shapes, shape_class)
        else:
            assert shape is not None
            return shape


def _composite(element_type: ElementType, shapes: list[S], shape_class: type[S]) -> S:
    if element_type == "tuple":
        return shape_class.tuple(shapes)
    if element_type == "buffer":
        if len(shapes) != 1:
            raise LayoutError(f"the ShapeProto of a buffer must have one element, got {len(shapes)}")
        return shape_class.buffer(shapes[0])
    return shape_class.token() if element_type == "token" else shape_class.opaque()


def _array_from(element_type: ElementType, fields: Fields, shape_class: type[S]) -> S:
    dimensions, dynamic = fields.integers(_DIMENSIONS), fields.integers(_IS_DYNAMIC)
    layout = fields.message(_LAYOUT)
    if not dynamic and UNBOUNDED in dimensions:
        raise LayoutError("the ShapeProto has an unbounded dimension that is not dynamic", field="dimensions")
    return shape_class(
        element_type,
        dimensions,
        None if layout is None else Layout.from_proto(layout),
        [bool(flag) for flag in dynamic] or None,
    )
