"""Shapes and layouts as XLA's protocol buffers, byte for byte as XLA serialises them; needs no protobuf
library.

Source: ``ShapeProto``, ``LayoutProto``, ``TileProto``, ``SplitConfigProto`` in ``xla/xla_data.proto``;
``Shape::FromProto`` and ``Layout::FromProto`` in ``xla/shape.cc`` and ``xla/layout.cc``.
"""

from __future__ import annotations

from fastindex.errors import FastIndexError, LayoutError, UnsupportedError
from fastindex.shapes.element_types import ElementType
from fastindex.shapes.layout import Layout, SplitConfig
from fastindex.shapes.shape import Shape
from fastindex.shapes.shape_rules import UNBOUNDED
from fastindex.shapes.wire import Fields, bytes_field, int_field, packed_field

#: Field numbers of ``ShapeProto``.
_ELEMENT_TYPE, _DIMENSIONS, _TUPLE_SHAPES, _LAYOUT, _IS_DYNAMIC = range(2, 7)

#: Legacy fields of ``LayoutProto``, reserved today.
_PADDED_DIMENSIONS, _PADDING_VALUE, _FORMAT = 2, 3, 4
_PADDING_NUMBERS = {"zero": 1, "one": 2, "lowest": 3, "highest": 4}
_PADDING_NAMES = {number: name for name, number in _PADDING_NUMBERS.items()}
_SPARSE_FORMAT = 2

_LEVELS = "DCSH"


def layout_to_bytes(layout: Layout) -> bytes:
    """Serialise a layout as a ``LayoutProto``.

    Examples
    --------
    >>> layout_to_bytes(Layout((1, 0))).hex()
    '0a020100800101'
    """
    levels = layout.dimension_levels
    return b"".join(
        [
            packed_field(1, layout.minor_to_major),
            packed_field(_PADDED_DIMENSIONS, layout.padded_dimensions or ()),
            int_field(_PADDING_VALUE, _PADDING_NUMBERS.get(layout.padding_value or "", 0)),
            *[bytes_field(6, packed_field(1, tile)) for tile in layout.tiles],
            int_field(7, layout.element_size_in_bits),
            int_field(8, layout.memory_space),
            packed_field(9, [_LEVELS.index(level[0]) for level in levels]),
            packed_field(13, ["+" not in level for level in levels]),
            packed_field(14, ["~" not in level for level in levels]),
            int_field(15, layout.dynamic_shape_metadata_prefix_bytes),
            int_field(16, layout.tail_padding_alignment_in_elements),
            *[
                bytes_field(17, int_field(1, split.dimension) + packed_field(2, split.split_indices))
                for split in layout.split_configs
            ],
        ]
    )


def layout_from_bytes(data: bytes) -> Layout:
    """Read a serialised ``LayoutProto``, old ones with padding included; unknown fields are skipped.

    Raises
    ------
    FastIndexError
        Not a proto.
    LayoutError
        Not a valid layout.
    UnsupportedError
        A sparse layout of the legacy format.

    Examples
    --------
    >>> str(layout_from_bytes(bytes.fromhex("0a020100800101")))
    '{1,0}'
    """
    fields = Fields(data, "LayoutProto")
    if fields.integer(_FORMAT) == _SPARSE_FORMAT:
        raise UnsupportedError("the LayoutProto has the legacy sparse format, which fastindex does not read")
    for number, name in (
        (10, "physical_shape"),
        (11, "index_primitive_type"),
        (12, "pointer_primitive_type"),
    ):
        if fields.messages(number) if number == 10 else fields.integer(number):
            raise LayoutError(f"the LayoutProto has a {name}, which only sparse arrays have", field="layout")
    tiles = [Fields(tile, "TileProto").integers(1) for tile in fields.messages(6)]
    splits = [Fields(split, "SplitConfigProto") for split in fields.messages(17)]
    padding = fields.integer(_PADDING_VALUE)
    return Layout(
        tuple(fields.integers(1)),
        tiles=tuple([tuple(tile) for tile in tiles]),
        padded_dimensions=tuple(fields.integers(_PADDED_DIMENSIONS)) or None,
        padding_value=_PADDING_NAMES.get(padding),
        element_size_in_bits=fields.integer(7),
        memory_space=fields.integer(8),
        # An absent alignment is 0.
        tail_padding_alignment_in_elements=fields.integer(16) or 1,
        split_configs=tuple([SplitConfig(split.integer(1), tuple(split.integers(2))) for split in splits]),
        dynamic_shape_metadata_prefix_bytes=fields.integer(15),
        dimension_levels=_levels_from(fields),
    )


def _levels_from(fields: Fields) -> tuple[str, ...]:
    kinds, unique, ordered = fields.integers(9), fields.integers(13), fields.integers(14)
    count = max(len(kinds), len(unique), len(ordered))
    levels = []
    for i in range(count):
        kind = kinds[i] if i < len(kinds) else 0
        if not 0 <= kind < len(_LEVELS):
            raise LayoutError(f"the LayoutProto has the unknown dimension level {kind}", field="dimension_levels")
        level = _LEVELS[kind]
        level += "+" if i < len(unique) and not unique[i] else ""
        level += "~" if i < len(ordered) and not ordered[i] else ""
        levels.append(level)
    return tuple(levels)


def shape_to_bytes(shape: Shape) -> bytes:
    """Serialise a shape as a ``ShapeProto``.

    Examples
    --------
    >>> shape_to_bytes(Shape("f32", (3,))).hex()
    '100b1a01032a060a0100800101320100'
    """
    written: dict[int, bytes] = {}
    # No recursion, since tuples nest thousands deep.
    pending = [shape]
    while pending:
        current = pending[-1]
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
    return written[id(shape)]


def shape_from_bytes(data: bytes) -> Shape:
    """Read a serialised ``ShapeProto``; unknown fields are skipped, an absent layout is the default one.

    Raises
    ------
    FastIndexError
        Not a proto, or an unknown element type.
    LayoutError
        Not a valid shape.

    Examples
    --------
    >>> str(shape_from_bytes(bytes.fromhex("100b1a01032a060a0100800101320100")))
    'f32[3]{0}'
    """
    # One entry per message being read: its element type, the messages of its elements still to be read, the
    # last first, and the shapes read so far. No recursion, since tuples nest thousands deep.
    open_messages: list[tuple[ElementType, list[bytes], list[Shape]]] = []
    message = data
    while True:
        fields = Fields(message, "ShapeProto")
        element_type = ElementType.from_number(fields.integer(_ELEMENT_TYPE))
        shape = None
        if element_type.is_array:
            shape = _array_from(element_type, fields)
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
            shape = _composite(element_type, shapes)
        else:
            assert shape is not None
            return shape


def _composite(element_type: ElementType, shapes: list[Shape]) -> Shape:
    if element_type == "tuple":
        return Shape.tuple(shapes)
    if element_type == "buffer":
        if len(shapes) != 1:
            raise LayoutError(f"the ShapeProto of a buffer must have one element, got {len(shapes)}")
        return Shape.buffer(shapes[0])
    return Shape.token() if element_type == "token" else Shape.opaque()


def _array_from(element_type: ElementType, fields: Fields) -> Shape:
    dimensions, dynamic = fields.integers(_DIMENSIONS), fields.integers(_IS_DYNAMIC)
    layout = fields.message(_LAYOUT)
    if not dynamic and UNBOUNDED in dimensions:
        raise LayoutError("the ShapeProto has an unbounded dimension that is not dynamic", field="dimensions")
    return Shape(
        element_type,
        dimensions,
        None if layout is None else layout_from_bytes(layout),
        [bool(flag) for flag in dynamic] or None,
    )


def bytes_of_message(message: object) -> bytes:
    """Give the bytes of a serialised message, or of a message object of the protobuf library.

    Raises
    ------
    TypeError
        Neither.

    Examples
    --------
    >>> bytes_of_message(bytearray(b"ab"))
    b'ab'
    """
    if isinstance(message, bytes | bytearray | memoryview):
        return bytes(message)
    serialize = getattr(message, "SerializeToString", None)
    if serialize is None:
        raise TypeError(f"expected the bytes of a proto, or a message object, got {type(message).__name__}")
    data = serialize()
    if not isinstance(data, bytes):
        raise FastIndexError(f"SerializeToString of {type(message).__name__} gave no bytes")
    return data
