"""The fields of a layout: the rules they satisfy, their text, and equality that ignores some of them.

Source: ``LayoutUtil::ValidateLayoutForShape`` in ``xla/layout_util.cc``, ``Layout::FromProto`` in ``xla/layout.cc``.

Source: ``Layout::Equal`` in ``xla/layout.h``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, SupportsIndex, TypeVar

from fastindex.core.element_types import INTEGER_TYPES
from fastindex.core.integers import INT64_MAX, INT64_MIN, as_integer, as_integers, check_at_least, counted, spelled
from fastindex.core.tiles import COMBINE, tile_text
from fastindex.errors import ArgumentTypeError, FastIndexError, LayoutError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """Where one physical dimension is split into parts. It does not affect indices.

    Source: ``SplitConfig`` in ``xla/layout.h``.

    Parameters
    ----------
    dimension : int
        Physical dimension; 0 is the most major.
    split_indices : sequence of int
        Where the second and later parts begin: positive and strictly increasing.

    Raises
    ------
    LayoutError
        The dimension is negative, or the indices are not positive and strictly increasing.

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


#: Limits against untrusted input: they keep time and memory proportional to the length of a text or proto. Dimensions
#: of an array and entries of a tile (NumPy's limit on dimensions), and tiles of a layout.
MOST_DIMENSIONS, MOST_TILES = 64, 32

#: Values of legacy padding; "lowest" and "highest" are infinities if the element type has them.
PADDING_VALUES = ("zero", "one", "lowest", "highest")

#: The integer fields, with the lowest and highest value of each.
BOUNDS = (
    ("element_size_in_bits", 0, INT64_MAX),
    ("memory_space", -128, 127),
    ("tail_padding_alignment_in_elements", 1, INT64_MAX),
    ("dynamic_shape_metadata_prefix_bytes", INT64_MIN, INT64_MAX),
)

#: The fields that name the integer types that index a sparse array.
INDEX_TYPES = ("index_primitive_type", "pointer_primitive_type")

_LEVEL_FLAGS = ("", "+", "~", "+~")


def checked_index_type(value: str, field: str) -> str:
    """Return the name of an integer type, or ""."""
    if not isinstance(value, str) or (value and value not in INTEGER_TYPES):
        raise LayoutError(f"{field} must be an integer type such as u32, got {value!r:.80}", field=field)
    return value


def check_dimension_count(count: int, field: str) -> None:
    if count > MOST_DIMENSIONS:
        raise LayoutError(f"an array has at most {MOST_DIMENSIONS} dimensions here, not {count}", field=field)


def checked_order(values: Iterable[SupportsIndex]) -> tuple[int, ...]:
    order = as_integers(values, "minor_to_major")
    check_dimension_count(len(order), "minor_to_major")
    seen = set()
    for i, dimension in enumerate(order):
        if not 0 <= dimension < len(order):
            raise LayoutError(
                f"minor_to_major of {counted(len(order), 'dimension')} must hold 0 to {len(order) - 1}:"
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


def checked_tiles(tiles: Sequence[Iterable[SupportsIndex]]) -> Iterable[tuple[int, ...]]:
    if not isinstance(tiles, Sequence) or any(isinstance(values, int | str) for values in tiles):
        raise ArgumentTypeError(f"tiles must be a sequence of tiles, such as ((8, 128), (2, 1)), got {tiles!r}")
    if len(tiles) > MOST_TILES:
        raise LayoutError(f"a layout has at most {MOST_TILES} tiles here, not {len(tiles)}", field="tiles")
    for i, values in enumerate(tiles):
        tile = as_integers(values, "tiles")
        if not tile:
            raise LayoutError("a tile must have at least one entry: T()", field="tiles", index=i)
        if len(tile) > MOST_DIMENSIONS:
            raise LayoutError(
                f"a tile has at most {MOST_DIMENSIONS} entries here, not {len(tile)}", field="tiles", index=i
            )
        if min(tile) < 1:
            tile = tuple([COMBINE if size == -1 else size for size in tile])
            text = f"T{tile_text(tile)}"
            for j, size in enumerate(tile):
                if size < 1 and size != COMBINE:
                    raise LayoutError(f"tile sizes must be at least 1: {size} in {text}", field="tiles", index=(i, j))
            if tile[-1] == COMBINE:
                raise LayoutError(
                    f"the last entry of a tile must be a size, * has nothing to merge with: {text}",
                    field="tiles",
                    index=(i, len(tile) - 1),
                )
        yield tile


def checked_padding(values: Iterable[SupportsIndex], rank: int) -> tuple[int, ...]:
    padded = as_integers(values, "padded_dimensions")
    if len(padded) != rank:
        raise LayoutError(
            f"padded_dimensions must have one size per dimension: {spelled(padded)} for {counted(rank, 'dimension')}",
            field="padded_dimensions",
        )
    check_at_least(0, padded, "padded_dimensions", "padded_dimensions")
    return padded


def _entries(values: Iterable[T], field: str, what: str) -> tuple[T, ...]:
    try:
        return tuple(values)
    except TypeError:
        raise ArgumentTypeError(f"{field} must be a sequence of {what}, got {values!r:.80}") from None


def checked_splits(splits: Iterable[SplitConfig], rank: int) -> tuple[SplitConfig, ...]:
    checked = _entries(splits, "split_configs", "SplitConfig")
    seen = set()
    for i, split in enumerate(checked):
        if not isinstance(split, SplitConfig):
            raise ArgumentTypeError(f"split_configs must hold SplitConfig, got {split!r}")
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


def checked_levels(levels: Iterable[str]) -> tuple[str, ...]:
    checked = _entries(levels, "dimension_levels", "text")
    for i, level in enumerate(checked):
        if not isinstance(level, str) or level[:1] not in ("D", "C", "S", "H") or level[1:] not in _LEVEL_FLAGS:
            raise LayoutError(
                f"a dimension level must be D, C, S or H, optionally followed by + and ~, got {level!r}",
                field="dimension_levels",
                index=i,
            )
    return () if all(level[0] == "D" for level in checked) else checked


@dataclass(frozen=True, slots=True)
class LayoutFields:
    """The fields of a `Layout`, as readers and writers need them; `Layout` documents them."""

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
    index_primitive_type: str = ""
    pointer_primitive_type: str = ""

    def __post_init__(self) -> None:
        put = object.__setattr__
        order = checked_order(self.minor_to_major)
        put(self, "minor_to_major", order)
        # Most fields have their defaults. Arrays have no truth value.
        if type(self.tiles) is not tuple or self.tiles:
            put(self, "tiles", () if self.tiles is None else tuple(checked_tiles(self.tiles)))
        if self.padded_dimensions is not None:
            put(self, "padded_dimensions", checked_padding(self.padded_dimensions, len(order)))
        value = self.padding_value
        if value is not None and (not isinstance(value, str) or value not in PADDING_VALUES):
            raise LayoutError(
                f"padding_value must be {', '.join(PADDING_VALUES)} or None, got {value!r:.80}",
                field="padding_value",
            )
        for name, lowest, highest in BOUNDS:
            number = as_integer(getattr(self, name), name)
            if not lowest <= number <= highest:
                limit = f"at least {lowest}" if highest > 2**62 else f"{lowest} to {highest}"
                raise LayoutError(f"{name} must be {limit}, got {number}", field=name)
            put(self, name, number)
        if type(self.split_configs) is not tuple or self.split_configs:
            put(self, "split_configs", checked_splits(self.split_configs, len(order)))
        if type(self.dimension_levels) is not tuple or self.dimension_levels:
            put(self, "dimension_levels", checked_levels(self.dimension_levels))
        for name in INDEX_TYPES:
            value = getattr(self, name)
            if type(value) is not str or value:
                put(self, name, checked_index_type(value, name))

    @property
    def rank(self) -> int:
        """Number of dimensions.

        Examples
        --------
        >>> LayoutFields((1, 0)).rank
        2
        """
        return len(self.minor_to_major)

    @property
    def major_to_minor(self) -> tuple[int, ...]:
        """The dimensions, most major first.

        Examples
        --------
        >>> LayoutFields((1, 2, 0)).major_to_minor
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
            attributes += "T" + "".join(map(tile_text, self.tiles))
        if self.tail_padding_alignment_in_elements != 1:
            attributes += f"L({self.tail_padding_alignment_in_elements})"
        if self.index_primitive_type:
            attributes += f"#({self.index_primitive_type})"
        if self.pointer_primitive_type:
            attributes += f"*({self.pointer_primitive_type})"
        if self.element_size_in_bits:
            attributes += f"E({self.element_size_in_bits})"
        if self.memory_space:
            attributes += f"S({self.memory_space})"
        if self.split_configs:
            attributes += "SC" + "".join(map(str, self.split_configs))
        if self.dynamic_shape_metadata_prefix_bytes > 0:
            attributes += f"M({self.dynamic_shape_metadata_prefix_bytes})"
        return f"{{{order}:{attributes}}}" if attributes else f"{{{order}}}"


#: The parts of a layout that a comparison can ignore: all but the order of dimensions.
LAYOUT_PARTS: Final = frozenset(
    (
        "tiles",
        "padded_dimensions",
        "padding_value",
        "element_size_in_bits",
        "memory_space",
        "tail_padding_alignment_in_elements",
        "split_configs",
        "dimension_levels",
        "index_primitive_type",
        "pointer_primitive_type",
    )
)


def checked_parts(ignore: Collection[str], known: frozenset[str]) -> frozenset[str]:
    """Return `ignore` as a set, checked to hold names from `known`.

    Raises
    ------
    ArgumentTypeError
        `ignore` is no collection.
    FastIndexError
        A name is not in `known`.

    Examples
    --------
    >>> checked_parts(["tiles"], LAYOUT_PARTS)
    frozenset({'tiles'})
    """
    if isinstance(ignore, str) or not isinstance(ignore, Collection):
        raise ArgumentTypeError(f"ignore must be a collection of names, such as ('tiles',), got {ignore!r}")
    unknown = [name for name in ignore if not isinstance(name, str) or name not in known]
    if unknown:
        raise FastIndexError(f"cannot ignore {unknown}; what can be ignored: {', '.join(sorted(known))}")
    return frozenset(ignore)


def layouts_equal(a: LayoutFields, b: LayoutFields, ignored: frozenset[str]) -> bool:
    """Whether two layouts are equal, except for the parts in `ignored` (names from `LAYOUT_PARTS`).

    Examples
    --------
    >>> layouts_equal(LayoutFields((1, 0)), LayoutFields((1, 0), memory_space=1), frozenset(("memory_space",)))
    True
    """
    compared = LAYOUT_PARTS - ignored
    return a.minor_to_major == b.minor_to_major and all(getattr(a, name) == getattr(b, name) for name in compared)
