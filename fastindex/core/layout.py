"""`Layout`: the order of the dimensions, tiles and padding."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from html import escape
from typing import ClassVar, SupportsIndex

from fastindex.core.integers import as_integer, as_integers
from fastindex.core.layout_fields import LAYOUT_PARTS, LayoutFields, checked_parts, layouts_equal
from fastindex.core.layout_text import parse_layout
from fastindex.core.tiles import COMBINE
from fastindex.errors import LayoutError
from fastindex.first_use import load
from fastindex.terminal import ShownInNotebooks

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
            The bytes are not a proto, or the layout is not valid.

        Examples
        --------
        >>> str(Layout.from_proto(Layout((1, 0)).to_proto()))
        '{1,0}'
        """
        load("fastindex.core.layout_proto", "fastindex.core.wire")
        from fastindex.core.layout_proto import layout_from_bytes
        from fastindex.core.wire import bytes_of_message

        return layout_from_bytes(bytes_of_message(proto), Layout)

    def to_proto(self) -> bytes:
        """Serialise as a ``LayoutProto``, byte for byte like XLA.

        Examples
        --------
        >>> Layout((1, 0)).to_proto().hex()
        '0a020100800101'
        """
        load("fastindex.core.layout_proto")
        from fastindex.core.layout_proto import layout_to_bytes

        return layout_to_bytes(self)

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
