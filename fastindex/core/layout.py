"""`Layout`: the order of the dimensions, tiles and padding; its proto, byte for byte like XLA's.

Source: ``LayoutProto``, ``TileProto``, ``SplitConfigProto`` in ``xla/xla_data.proto``; ``Layout::FromProto`` in
``xla/layout.cc``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from html import escape
from typing import ClassVar, SupportsIndex

from fastindex.core.element_types import BY_NAME, INTEGER_NAMES
from fastindex.core.integers import as_integer, as_integers
from fastindex.core.layout_fields import LAYOUT_PARTS, LayoutFields, SplitConfig, checked_parts, layouts_equal
from fastindex.core.layout_text import parse_layout
from fastindex.core.tiles import COMBINE
from fastindex.core.wire import Fields, bytes_field, bytes_of_message, int_field, packed_field
from fastindex.errors import LayoutError, UnsupportedError
from fastindex.terminal import ShownInNotebooks

#: Legacy fields of ``LayoutProto``, reserved today.
_PADDED_DIMENSIONS, _PADDING_VALUE, _FORMAT = 2, 3, 4
_PADDING_NUMBERS = {"zero": 1, "one": 2, "lowest": 3, "highest": 4}
_PADDING_NAMES = {number: name for name, number in _PADDING_NUMBERS.items()}
_SPARSE_FORMAT = 2
_INDEX_TYPE, _POINTER_TYPE = 11, 12

_LEVELS = "DCSH"

#: Fields that the first rows describe in words.
_IN_WORDS = ("minor_to_major", "tiles")


def layout_html(layout: LayoutFields) -> str:
    """Return the HTML that a notebook shows for a layout.

    Examples
    --------
    >>> layout_html(LayoutFields((1, 0)))[:38]
    '<div><code>{1,0}</code></div><table><t'
    """
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in _rows(layout))
    return f"<div><code>{escape(str(layout))}</code></div>" + (f"<table>{rows}</table>" if rows else "")


def _rows(layout: LayoutFields) -> Iterator[tuple[str, str]]:
    order = layout.minor_to_major
    if len(order) > 1:
        yield "order", f"dimension {order[0]} is the most minor, then {', then '.join(map(str, order[1:]))}"
    for level, tile in enumerate(layout.tiles):
        sizes = " by ".join("*" if size == COMBINE else str(size) for size in tile)
        combined = "; * combines a dimension with the next more minor one" if COMBINE in tile else ""
        yield f"tile, level {level}", f"{sizes}{combined}"
    for field in fields(layout):
        value = getattr(layout, field.name)
        if field.name not in _IN_WORDS and value != field.default:
            yield field.name.replace("_", " "), str(value)


class Layout(LayoutFields, ShownInNotebooks):
    """How the dimensions of an array are laid out in memory. Immutable, hashable, and always valid.

    Source: ``LayoutProto`` in ``xla/xla_data.proto``, ``LayoutUtil::ValidateLayoutForShape``.

    Parameters
    ----------
    minor_to_major : sequence of int
        The dimensions, most minor first.
    tiles : sequence of sequences of int
        Tiles in the order in which they apply; `Layout.COMBINE` (or -1) merges an axis with the next more minor one.
    padded_dimensions : sequence of int, optional
        Legacy padded sizes, one per dimension.
    padding_value : {"zero", "one", "lowest", "highest"}, optional
        The value of padding elements. None leaves it open; fastindex then writes zeros.
    element_size_in_bits : int
        Number of bits per element in the buffer; 0 means the unpacked width of the type.
    memory_space : int
        -128 to 127.
    tail_padding_alignment_in_elements : int
        The number of slots is rounded up to a multiple of this number.
    split_configs : sequence of SplitConfig
    dynamic_shape_metadata_prefix_bytes : int
        Number of bytes in front of the data; not compared by ``==``, as in XLA. Negative numbers mean 0.
    dimension_levels : sequence of str
        Sparse levels: "D", "C", "S" or "H", each followed by "+" (not unique) and "~" (not ordered) as needed.
        If all are "D", the field becomes ().
    index_primitive_type, pointer_primitive_type : str
        The integer types that index a sparse array; "" for none. They say nothing about a dense one.

    Raises
    ------
    LayoutError
        A value is not allowed.
    ArgumentTypeError
        A value is not an integer.

    Examples
    --------
    >>> layout = Layout((1, 0), tiles=((8, 128), (2, 1)))
    >>> str(layout)
    '{1,0:T(8,128)(2,1)}'
    >>> layout == Layout.parse("{1,0:T(8,128)(2,1)}")
    True
    """

    __slots__ = ()

    #: A tile entry that merges its axis with the next more minor one, ``*`` in text.
    COMBINE: ClassVar[int] = COMBINE

    @staticmethod
    def descending(rank: SupportsIndex) -> Layout:
        """Return the default layout, with the last dimension the most minor.

        Examples
        --------
        >>> str(Layout.descending(3))
        '{2,1,0}'
        """
        return Layout(tuple(range(_rank(rank) - 1, -1, -1)))

    @staticmethod
    def ascending(rank: SupportsIndex) -> Layout:
        """Return the layout with the first dimension the most minor.

        Examples
        --------
        >>> str(Layout.ascending(3))
        '{0,1,2}'
        """
        return Layout(tuple(range(_rank(rank))))

    @staticmethod
    def from_major_to_minor(major_to_minor: Iterable[SupportsIndex]) -> Layout:
        """Return the layout with this order of dimensions, most major first.

        Examples
        --------
        >>> str(Layout.from_major_to_minor((0, 2, 1)))
        '{1,2,0}'
        """
        return Layout(as_integers(major_to_minor, "major_to_minor")[::-1])

    @staticmethod
    def parse(text: str) -> Layout:
        """Parse a layout from XLA's text, with its braces.

        Raises
        ------
        ParseError
            The text is not a layout; `position` says where it goes wrong.

        Examples
        --------
        >>> Layout.parse("{0,1:T(2,128)}").tiles
        ((2, 128),)
        """
        return parse_layout(text, Layout)

    @staticmethod
    def from_proto(proto: object) -> Layout:
        """Read a ``LayoutProto``: its bytes, or a message object of the protobuf library.

        Raises
        ------
        FastIndexError
            The bytes are not a proto, or the layout is not valid, or sparse in the legacy format.

        Examples
        --------
        >>> str(Layout.from_proto(Layout((1, 0)).to_proto()))
        '{1,0}'
        """
        found = Fields(bytes_of_message(proto), "LayoutProto")
        if found.integer(_FORMAT) == _SPARSE_FORMAT:
            raise UnsupportedError("the LayoutProto has the legacy sparse format, which fastindex does not support")
        if found.messages(10):
            raise LayoutError("the LayoutProto has a physical_shape, which only sparse arrays have", field="layout")
        tiles = [Fields(tile, "TileProto").integers(1) for tile in found.messages(6)]
        splits = [Fields(split, "SplitConfigProto") for split in found.messages(17)]
        padding = found.integer(_PADDING_VALUE)
        return Layout(
            tuple(found.integers(1)),
            tiles=tuple([tuple(tile) for tile in tiles]),
            padded_dimensions=tuple(found.integers(_PADDED_DIMENSIONS)) or None,
            padding_value=_PADDING_NAMES.get(padding),
            element_size_in_bits=found.integer(7),
            memory_space=found.integer(8),
            # It is 0 if absent.
            tail_padding_alignment_in_elements=found.integer(16) or 1,
            split_configs=tuple([SplitConfig(split.integer(1), tuple(split.integers(2))) for split in splits]),
            dynamic_shape_metadata_prefix_bytes=found.integer(15),
            dimension_levels=_levels_from(found),
            index_primitive_type=_index_type(found.integer(_INDEX_TYPE), "index_primitive_type"),
            pointer_primitive_type=_index_type(found.integer(_POINTER_TYPE), "pointer_primitive_type"),
        )

    def to_proto(self) -> bytes:
        """Serialise as a ``LayoutProto``, byte for byte like XLA.

        Examples
        --------
        >>> Layout((1, 0)).to_proto().hex()
        '0a020100800101'
        """
        levels = self.dimension_levels
        return b"".join(
            [
                packed_field(1, self.minor_to_major),
                packed_field(_PADDED_DIMENSIONS, self.padded_dimensions or ()),
                int_field(_PADDING_VALUE, _PADDING_NUMBERS.get(self.padding_value or "", 0)),
                *[bytes_field(6, packed_field(1, tile)) for tile in self.tiles],
                int_field(7, self.element_size_in_bits),
                int_field(8, self.memory_space),
                packed_field(9, [_LEVELS.index(level[0]) for level in levels]),
                int_field(_INDEX_TYPE, _number_of(self.index_primitive_type)),
                int_field(_POINTER_TYPE, _number_of(self.pointer_primitive_type)),
                packed_field(13, ["+" not in level for level in levels]),
                packed_field(14, ["~" not in level for level in levels]),
                int_field(15, self.dynamic_shape_metadata_prefix_bytes),
                int_field(16, self.tail_padding_alignment_in_elements),
                *[
                    bytes_field(17, int_field(1, split.dimension) + packed_field(2, split.split_indices))
                    for split in self.split_configs
                ],
            ]
        )

    def equals(self, other: Layout | str, ignore: Collection[str] = ()) -> bool:
        """Whether this layout equals another, except for the fields in `ignore`.

        Source: ``Layout::Equal`` in ``xla/layout.h``.

        Parameters
        ----------
        other : Layout or str
        ignore : collection of str
            Names of fields; ``minor_to_major`` is always compared, ``dynamic_shape_metadata_prefix_bytes`` never.

        Raises
        ------
        FastIndexError
            `ignore` has an unknown name.

        Examples
        --------
        >>> Layout((1, 0), tiles=((8, 128),)).equals("{1,0:S(1)}", ignore=("tiles", "memory_space"))
        True
        """
        layout = Layout.parse(other) if isinstance(other, str) else other
        return layouts_equal(self, layout, checked_parts(ignore, LAYOUT_PARTS))

    def _repr_html_(self) -> str:
        return layout_html(self)


def _rank(rank: SupportsIndex) -> int:
    checked = as_integer(rank, "rank")
    if checked < 0:
        raise LayoutError(f"rank must be at least 0, got {checked}", field="rank")
    return checked


def _number_of(element_type: str) -> int:
    return BY_NAME[element_type].number if element_type else 0


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
