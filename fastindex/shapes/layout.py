"""Layouts: the order of the dimensions, tiles and padding; frozen, hashable, validated once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

from fastindex.errors import LayoutError
from fastindex.shapes.integers import as_integer, as_integers, spelled
from fastindex.tiling.definition import COMBINE

__all__ = ["COMBINE", "Layout", "PADDING_VALUES", "SplitConfig"]

#: What legacy padding may hold; "lowest" and "highest" are infinities where the element type has them.
PADDING_VALUES = ("zero", "one", "lowest", "highest")


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """Where one physical dimension is cut into parts; changes no index.

    Source: ``SplitConfig`` in ``xla/layout.h``.

    Parameters
    ----------
    dimension : int
        Physical dimension, 0 is the most major.
    split_indices : sequence of int
        Where the parts begin, strictly increasing, each at least 1.

    Raises
    ------
    LayoutError
        Negative dimension, or indices that are not positive and strictly increasing.

    Examples
    --------
    >>> str(SplitConfig(0, (4, 8)))
    '(0:4,8)'
    """

    dimension: int
    split_indices: tuple[int, ...]

    def __post_init__(self) -> None:
        dimension = as_integer(self.dimension, "split dimension")
        indices = as_integers(self.split_indices, "split_indices")
        if dimension < 0:
            raise LayoutError(f"a split dimension must be at least 0, got {dimension}", field="split_configs")
        previous = 0
        for index in indices:
            if index <= previous:
                raise LayoutError(
                    f"split indices must be positive and strictly increasing: {index} comes after {previous}",
                    field="split_configs",
                )
            previous = index
        object.__setattr__(self, "dimension", dimension)
        object.__setattr__(self, "split_indices", indices)

    def __str__(self) -> str:
        return f"({self.dimension}:{','.join(map(str, self.split_indices))})"


@dataclass(frozen=True, slots=True)
class Layout:
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
    TypeError
        One of the values is not an integer.

    Examples
    --------
    >>> layout = Layout((1, 0), tiles=((8, 128), (2, 1)))
    >>> str(layout)
    '{1,0:T(8,128)(2,1)}'
    >>> layout == Layout.parse("{1,0:T(8,128)(2,1)}")
    True
    """

    minor_to_major: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    padded_dimensions: tuple[int, ...] | None = None
    padding_value: str | None = None
    element_size_in_bits: int = 0
    memory_space: int = 0
    tail_padding_alignment_in_elements: int = 1
    split_configs: tuple[SplitConfig, ...] = ()
    dynamic_shape_metadata_prefix_bytes: int = field(default=0, compare=False)
    dimension_levels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__
        order = _checked_order(self.minor_to_major)
        put(self, "minor_to_major", order)
        put(self, "tiles", tuple(_checked_tiles(self.tiles)) if self.tiles else ())
        if self.padded_dimensions is not None:
            put(self, "padded_dimensions", _checked_padding(self.padded_dimensions, len(order)))
        if self.padding_value not in (None, *PADDING_VALUES):
            raise LayoutError(
                f"padding_value must be {', '.join(PADDING_VALUES)} or None, got {self.padding_value!r}",
                field="padding_value",
            )
        for name, lowest, highest in _BOUNDS:
            value = as_integer(getattr(self, name), name)
            if not lowest <= value <= highest:
                limit = f"at least {lowest}" if highest > 2**62 else f"{lowest} to {highest}"
                raise LayoutError(f"{name} must be {limit}, got {value}", field=name)
            put(self, name, value)
        put(
            self,
            "split_configs",
            _checked_splits(self.split_configs, len(order)) if self.split_configs else (),
        )
        if self.dimension_levels:
            put(self, "dimension_levels", _checked_levels(self.dimension_levels))

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
        from fastindex.shapes.reading import parse_layout

        return parse_layout(text)

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
        from fastindex.shapes.proto import bytes_of_message, layout_from_bytes

        return layout_from_bytes(bytes_of_message(proto))

    def to_proto(self) -> bytes:
        """Serialise as a ``LayoutProto``, byte for byte as XLA.

        Examples
        --------
        >>> Layout((1, 0)).to_proto().hex()
        '0a020100800101'
        """
        from fastindex.shapes.proto import layout_to_bytes

        return layout_to_bytes(self)

    @property
    def rank(self) -> int:
        """Number of dimensions.

        Examples
        --------
        >>> Layout((1, 0)).rank
        2
        """
        return len(self.minor_to_major)

    @property
    def major_to_minor(self) -> tuple[int, ...]:
        """The dimensions, most major first.

        Examples
        --------
        >>> Layout((1, 2, 0)).major_to_minor
        (0, 2, 1)
        """
        return self.minor_to_major[::-1]

    def __str__(self) -> str:
        # As ``Layout::ToString`` in xla/layout.cc.
        order = ",".join(map(str, self.minor_to_major))
        attributes = ""
        if self.padded_dimensions is not None:
            attributes += f"PAD({','.join(map(str, self.padded_dimensions))})"
        if self.padding_value is not None:
            attributes += f"PV({self.padding_value})"
        if self.dimension_levels:
            attributes += f"D({','.join(self.dimension_levels)})"
        if self.tiles:
            attributes += "T"
            for tile in self.tiles:
                attributes += f"({','.join(['*' if size == COMBINE else str(size) for size in tile])})"
        if self.tail_padding_alignment_in_elements != 1:
            attributes += f"L({self.tail_padding_alignment_in_elements})"
        if self.element_size_in_bits:
            attributes += f"E({self.element_size_in_bits})"
        if self.memory_space:
            attributes += f"S({self.memory_space})"
        if self.split_configs:
            attributes += "SC" + "".join(map(str, self.split_configs))
        if self.dynamic_shape_metadata_prefix_bytes > 0:
            attributes += f"M({self.dynamic_shape_metadata_prefix_bytes})"
        return f"{{{order}:{attributes}}}" if attributes else f"{{{order}}}"


_BOUNDS = (
    ("element_size_in_bits", 0, 2**63 - 1),
    ("memory_space", -128, 127),
    ("tail_padding_alignment_in_elements", 1, 2**63 - 1),
    ("dynamic_shape_metadata_prefix_bytes", -(2**63), 2**63 - 1),
)


def _rank(rank: SupportsIndex) -> int:
    checked = as_integer(rank, "rank")
    if checked < 0:
        raise LayoutError(f"rank must be at least 0, got {checked}", field="rank")
    return checked


def _checked_order(values: Iterable[SupportsIndex]) -> tuple[int, ...]:
    order = as_integers(values, "minor_to_major")
    seen = set()
    for i, dimension in enumerate(order):
        if not 0 <= dimension < len(order):
            raise LayoutError(
                f"minor_to_major of {len(order)} dimensions must hold 0 to {len(order) - 1}:"
                f" {dimension} in {spelled(order)}",
                field="minor_to_major",
                index=i,
            )
        if dimension in seen:
            raise LayoutError(
                f"minor_to_major must name each dimension once: {dimension} is twice in {spelled(order)}",
                field="minor_to_major",
                index=i,
            )
        seen.add(dimension)
    return order


def _checked_tiles(tiles: Sequence[Iterable[SupportsIndex]]) -> Iterable[tuple[int, ...]]:
    for i, values in enumerate(tiles):
        tile = as_integers(values, "tiles")
        if not tile:
            raise LayoutError("a tile must have at least one entry: T()", field="tiles", index=i)
        if min(tile) < 1:
            tile = tuple([COMBINE if size == -1 else size for size in tile])
            text = ",".join("*" if size == COMBINE else str(size) for size in tile)
            for j, size in enumerate(tile):
                if size < 1 and size != COMBINE:
                    raise LayoutError(
                        f"tile sizes must be at least 1: {size} in T({text})", field="tiles", index=(i, j)
                    )
            if tile[-1] == COMBINE:
                raise LayoutError(
                    f"the last entry of a tile must be a size, * has nothing to merge with: T({text})",
                    field="tiles",
                    index=(i, len(tile) - 1),
                )
        yield tile


def _checked_padding(values: Iterable[SupportsIndex], rank: int) -> tuple[int, ...]:
    padded = as_integers(values, "padded_dimensions")
    if len(padded) != rank:
        raise LayoutError(
            f"padded_dimensions must have one size per dimension: {spelled(padded)} for {rank} dimensions",
            field="padded_dimensions",
        )
    for i, size in enumerate(padded):
        if size < 0:
            raise LayoutError(
                f"padded_dimensions must be at least 0: {size} in {spelled(padded)}",
                field="padded_dimensions",
                index=i,
            )
    return padded


def _checked_splits(splits: Iterable[SplitConfig], rank: int) -> tuple[SplitConfig, ...]:
    checked = tuple(splits)
    seen = set()
    for i, split in enumerate(checked):
        if not isinstance(split, SplitConfig):
            raise TypeError(f"split_configs must hold SplitConfig, got {split!r}")
        if split.dimension >= rank:
            raise LayoutError(
                f"a split must name a physical dimension, 0 to {rank - 1}: SC{split}",
                field="split_configs",
                index=i,
            )
        if split.dimension in seen:
            raise LayoutError(
                f"a physical dimension may be split once: SC{split} splits {split.dimension} again",
                field="split_configs",
                index=i,
            )
        seen.add(split.dimension)
    return checked


def _checked_levels(levels: Iterable[str]) -> tuple[str, ...]:
    checked = tuple(levels)
    for i, level in enumerate(checked):
        if not isinstance(level, str) or level[:1] not in ("D", "C", "S", "H") or level[1:] not in _LEVEL_FLAGS:
            raise LayoutError(
                f"a dimension level must be D, C, S or H, then + and ~ where they apply, got {level!r}",
                field="dimension_levels",
                index=i,
            )
    return () if all(level[0] == "D" for level in checked) else checked


_LEVEL_FLAGS = ("", "+", "~", "+~")
