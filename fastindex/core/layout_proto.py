"""Layouts as protocol buffers, byte for byte like XLA's.

Source: ``LayoutProto``, ``TileProto``, ``SplitConfigProto`` in ``xla/xla_data.proto``; ``Layout::FromProto`` in
``xla/layout.cc``.
"""

from __future__ import annotations

from typing import TypeVar

from fastindex.core.element_types import BY_NAME, INTEGER_NAMES
from fastindex.core.layout_fields import LayoutFields, SplitConfig
from fastindex.core.wire import Fields, bytes_field, int_field, packed_field
from fastindex.errors import LayoutError, UnsupportedError

L = TypeVar("L", bound=LayoutFields)

#: Legacy fields of ``LayoutProto``, reserved today.
_PADDED_DIMENSIONS, _PADDING_VALUE, _FORMAT = 2, 3, 4
_PADDING_NUMBERS = {"zero": 1, "one": 2, "lowest": 3, "highest": 4}
_PADDING_NAMES = {number: name for name, number in _PADDING_NUMBERS.items()}
_SPARSE_FORMAT = 2
_INDEX_TYPE, _POINTER_TYPE = 11, 12

_LEVELS = "DCSH"


def layout_to_bytes(layout: LayoutFields) -> bytes:
    """Serialise a layout as a ``LayoutProto``.

    Examples
    --------
    >>> layout_to_bytes(LayoutFields((1, 0))).hex()
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
            int_field(_INDEX_TYPE, _number_of(layout.index_primitive_type)),
            int_field(_POINTER_TYPE, _number_of(layout.pointer_primitive_type)),
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


def _number_of(element_type: str) -> int:
    return BY_NAME[element_type].number if element_type else 0


def layout_from_bytes(data: bytes, layout_class: type[L]) -> L:
    """Read a serialised ``LayoutProto``, including legacy padding. Unknown fields are ignored.

    Raises
    ------
    FastIndexError
        The data is not a proto.
    LayoutError
        The layout is not valid.
    UnsupportedError
        The layout has the legacy sparse format.

    Examples
    --------
    >>> str(layout_from_bytes(bytes.fromhex("0a020100800101"), LayoutFields))
    '{1,0}'
    """
    fields = Fields(data, "LayoutProto")
    if fields.integer(_FORMAT) == _SPARSE_FORMAT:
        raise UnsupportedError("the LayoutProto has the legacy sparse format, which fastindex does not support")
    if fields.messages(10):
        raise LayoutError("the LayoutProto has a physical_shape, which only sparse arrays have", field="layout")
    tiles = [Fields(tile, "TileProto").integers(1) for tile in fields.messages(6)]
    splits = [Fields(split, "SplitConfigProto") for split in fields.messages(17)]
    padding = fields.integer(_PADDING_VALUE)
    return layout_class(
        tuple(fields.integers(1)),
        tiles=tuple([tuple(tile) for tile in tiles]),
        padded_dimensions=tuple(fields.integers(_PADDED_DIMENSIONS)) or None,
        padding_value=_PADDING_NAMES.get(padding),
        element_size_in_bits=fields.integer(7),
        memory_space=fields.integer(8),
        # It is 0 if absent.
        tail_padding_alignment_in_elements=fields.integer(16) or 1,
        split_configs=tuple([SplitConfig(split.integer(1), tuple(split.integers(2))) for split in splits]),
        dynamic_shape_metadata_prefix_bytes=fields.integer(15),
        dimension_levels=_levels_from(fields),
        index_primitive_type=_index_type(fields.integer(_INDEX_TYPE), "index_primitive_type"),
        pointer_primitive_type=_index_type(fields.integer(_POINTER_TYPE), "pointer_primitive_type"),
    )


def _index_type(number: int, field: str) -> str:
    if number and number not in INTEGER_NAMES:
        raise LayoutError(f"{field} must be an integer type, got the element type {number}", field=field)
    return INTEGER_NAMES.get(number, "")


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
