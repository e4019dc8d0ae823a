"""Shapes as protocol buffers, byte for byte like XLA's, without the protobuf library.

Source: ``ShapeProto`` in ``xla/xla_data.proto``; ``Shape::FromProto`` in ``xla/shape.cc``.

`Shape.to_proto` and `Shape.from_proto` do not need `message_class`; it is for reading, changing and printing messages.
Its classes are in a separate descriptor pool, so they do not clash with those of TensorFlow or XLA.

Source: ``xla/xla_data.proto``, including the fields of layouts that are reserved today.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any, TypeVar

from fastindex.core.element_types import ElementType
from fastindex.core.integers import UNBOUNDED
from fastindex.core.layout import Layout
from fastindex.core.layout_proto import layout_from_bytes, layout_to_bytes
from fastindex.core.shape_fields import ShapeFields
from fastindex.core.wire import Fields, bytes_field, int_field, packed_field
from fastindex.errors import FastIndexError, LayoutError

S = TypeVar("S", bound=ShapeFields)

#: Field numbers of ``ShapeProto``.
_ELEMENT_TYPE, _DIMENSIONS, _TUPLE_SHAPES, _LAYOUT, _IS_DYNAMIC = range(2, 7)


def shape_to_bytes(shape: ShapeFields) -> bytes:
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
                bytes_field(_LAYOUT, layout_to_bytes(current.layout)),
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
        None if layout is None else layout_from_bytes(layout, Layout),
        [bool(flag) for flag in dynamic] or None,
    )


_INT64, _BOOL, _MESSAGE, _ENUM, _STRING = 3, 8, 11, 14, 9
_ONE, _MANY = 1, 3

#: The fields of each message: (name, number, one or many, kind, message name). Enums are int32 here, which keeps
#: unknown numbers.
_FIELDS: dict[str, tuple[tuple[str, int, int, int, str], ...]] = {
    "TileProto": (("dimensions", 1, _MANY, _INT64, ""),),
    "SplitConfigProto": (("dimension", 1, _ONE, _INT64, ""), ("split_indices", 2, _MANY, _INT64, "")),
    "LayoutProto": (
        ("minor_to_major", 1, _MANY, _INT64, ""),
        ("padded_dimensions", 2, _MANY, _INT64, ""),
        ("padding_value", 3, _ONE, _ENUM, ""),
        ("format", 4, _ONE, _ENUM, ""),
        ("max_sparse_elements", 5, _ONE, _INT64, ""),
        ("tiles", 6, _MANY, _MESSAGE, "TileProto"),
        ("element_size_in_bits", 7, _ONE, _INT64, ""),
        ("memory_space", 8, _ONE, _INT64, ""),
        ("dim_level_types", 9, _MANY, _ENUM, ""),
        ("physical_shape", 10, _ONE, _MESSAGE, "ShapeProto"),
        ("index_primitive_type", 11, _ONE, _ENUM, ""),
        ("pointer_primitive_type", 12, _ONE, _ENUM, ""),
        ("dim_unique", 13, _MANY, _BOOL, ""),
        ("dim_ordered", 14, _MANY, _BOOL, ""),
        ("dynamic_shape_metadata_prefix_bytes", 15, _ONE, _INT64, ""),
        ("tail_padding_alignment_in_elements", 16, _ONE, _INT64, ""),
        ("split_configs", 17, _MANY, _MESSAGE, "SplitConfigProto"),
    ),
    "ShapeProto": (
        ("element_type", 2, _ONE, _ENUM, ""),
        ("dimensions", 3, _MANY, _INT64, ""),
        ("tuple_shapes", 4, _MANY, _MESSAGE, "ShapeProto"),
        ("layout", 5, _ONE, _MESSAGE, "LayoutProto"),
        ("is_dynamic_dimension", 6, _MANY, _BOOL, ""),
    ),
    "ProgramShapeProto": (
        ("parameters", 1, _MANY, _MESSAGE, "ShapeProto"),
        ("result", 2, _ONE, _MESSAGE, "ShapeProto"),
        ("parameter_names", 3, _MANY, _STRING, ""),
    ),
}


@cache
def message_class(name: str) -> Any:
    """Return a message class by its name, such as ``ShapeProto`` or ``LayoutProto``.

    Raises
    ------
    FastIndexError
        There is no such message, or the protobuf library is not installed.

    Examples
    --------
    >>> from fastindex import Shape
    >>> message = message_class("ShapeProto").FromString(Shape.parse("f32[3,5]{1,0}").to_proto())
    >>> list(message.dimensions), list(message.layout.minor_to_major)
    ([3, 5], [1, 0])
    >>> message.layout.minor_to_major[:] = [0, 1]
    >>> Shape.from_proto(message)
    Shape.parse('f32[3,5]{0,1}')
    """
    if name not in _FIELDS:
        raise FastIndexError(f"no message is called {name!r}; the names are {', '.join(_FIELDS)}")
    return _classes()[name]


@cache
def _classes() -> dict[str, Any]:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise FastIndexError("message classes need the protobuf library: pip install 'fastindex[proto]'") from error

    file = descriptor_pb2.FileDescriptorProto(name="xla/xla_data.proto", package="xla", syntax="proto3")
    for message_name, fields in _FIELDS.items():
        message = file.message_type.add(name=message_name)
        for name, number, label, kind, inner in fields:
            field = message.field.add(name=name, number=number, label=label, type=5 if kind == _ENUM else kind)
            if inner:
                field.type_name = f".xla.{inner}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"xla.{name}")) for name in _FIELDS}
