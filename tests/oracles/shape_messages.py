"""The messages of shapes as classes of the protobuf library: a second reader and writer of protos.

The classes are in a separate descriptor pool, so they do not clash with those of TensorFlow or XLA.

Source: ``xla/xla_data.proto``, including the fields of layouts that are reserved today.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
    return _classes()[name]


@cache
def _classes() -> dict[str, Any]:
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
