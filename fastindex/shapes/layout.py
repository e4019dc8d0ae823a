"""Layouts: the order of the dimensions, tiles and padding; frozen, hashable, validated once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import SupportsIndex

from fastindex.errors import LayoutError
from fastindex.shapes.integers import as_integer, as_integers
from fastindex.shapes.layout_equality import LAYOUT_PARTS, checked_parts, layouts_equal
from fastindex.shapes.layout_fields import LayoutFields
from fastindex.shapes.layout_proto import layout_from_bytes, layout_to_bytes
from fastindex.shapes.layout_reading import parse_layout
from fastindex.shapes.wire import bytes_of_message


class Layout(LayoutFields):
    """How the dimensions of an array are laid out in memory.

    Source: ``LayoutProto`` in ``xla/xla_data.proto``, ``LayoutUtil::ValidateLayoutForShape``.

    Parameters
    ----------
    minor_to_major : sequence of int
        The dimensions, most minor first.
    tiles : sequence of sequences of int
        Tiles in the order in which they apply; `COMBINE` (or -1) merges an axis with the next more minor one.
    padded_dimensions : sequence of int, optional
        Legacy padded sizes, one per dimension.
    padding_value : {"zero", "one", "lowest", "highest"}, optional
        What padding holds; None says nothing, and fastindex fills with zero.
    element_size_in_bits : int
        Bits an element takes in the buffer; 0 is the unpacked width of the type.
    memory_space : int
        -128 to 127.
    tail_padding_alignment_in_elements : int
        The number of slots is rounded up to a multiple of this.
    split_configs : sequence of SplitConfig
    dynamic_shape_metadata_prefix_bytes : int
        Bytes in front of the data, none where it is not positive; takes no part in equality, as in XLA.
    dimension_levels : sequence of str
        Sparse levels: each "D", "C", "S" or "H", then "+" (not unique), then "~" (not ordered).
        All dense is stored as absent.

    Raises
    ------
    LayoutError
        One of the values is not allowed.
    ArgumentTypeError
        One of the values is not an integer.

    Examples
    --------
    >>> layout = Layout((1, 0), tiles=((8, 128), (2, 1)))
    >>> str(layout)
    '{1,0:T(8,128)(2,1)}'
    >>> layout == Layout.parse("{1,0:T(8,128)(2,1)}")
    True
    """

    __slots__ = ()

    @staticmethod
    def descending(rank: SupportsIndex) -> Layout:
        """Give the default layout: the last dimension is the most minor.

        Examples
        --------
        >>> str(Layout.descending(3))
        '{2,1,0}'
        """
        return Layout(tuple(range(_rank(rank) - 1, -1, -1)))

    @staticmethod
    def ascending(rank: SupportsIndex) -> Layout:
        """Give the layout whose first dimension is the most minor.

        Examples
        --------
        >>> str(Layout.ascending(3))
        '{0,1,2}'
        """
        return Layout(tuple(range(_rank(rank))))

    @staticmethod
    def from_major_to_minor(major_to_minor: Iterable[SupportsIndex]) -> Layout:
        """Give the layout with the dimensions listed from most major to most minor.

        Examples
        --------
        >>> str(Layout.from_major_to_minor((0, 2, 1)))
        '{1,2,0}'
        """
        return Layout(as_integers(major_to_minor, "major_to_minor")[::-1])

    @staticmethod
    def parse(text: str) -> Layout:
        """Read a layout from XLA's text, braces included.

        Raises
        ------
        ShapeSyntaxError
            Not a layout; its `position` says where.

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
            The bytes are not a proto, or not of a valid layout.

        Examples
        --------
        >>> str(Layout.from_proto(Layout((1, 0)).to_proto()))
        '{1,0}'
        """
        return layout_from_bytes(bytes_of_message(proto), Layout)

    def to_proto(self) -> bytes:
        """Serialise as a ``LayoutProto``, byte for byte as XLA.

        Examples
        --------
        >>> Layout((1, 0)).to_proto().hex()
        '0a020100800101'
        """
        return layout_to_bytes(self)

    def equals(self, other: Layout | str, ignore: Collection[str] = ()) -> bool:
        """Whether this layout equals another but for the parts in `ignore`.

        Source: ``Layout::Equal`` in ``xla/layout.h``.

        Parameters
        ----------
        other : Layout or str
        ignore : collection of str
            Names of fields, any but ``minor_to_major``; ``dynamic_shape_metadata_prefix_bytes`` is never compared.

        Raises
        ------
        FastIndexError
            `ignore` names something else.

        Examples
        --------
        >>> Layout((1, 0), tiles=((8, 128),)).equals("{1,0:S(1)}", ignore=("tiles", "memory_space"))
        True
        """
        layout = Layout.parse(other) if isinstance(other, str) else other
        return layouts_equal(self, layout, checked_parts(ignore, LAYOUT_PARTS))


def _rank(rank: SupportsIndex) -> int:
    checked = as_integer(rank, "rank")
    if checked < 0:
        raise LayoutError(f"rank must be at least 0, got {checked}", field="rank")
    return checked
