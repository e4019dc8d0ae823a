"""The rules that the fields of a layout must satisfy, independent of any shape.

Source: ``LayoutUtil::ValidateLayoutForShape`` in ``xla/layout_util.cc``, ``Layout::FromProto`` in ``xla/layout.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import SupportsIndex

from fastindex.errors import ArgumentTypeError, LayoutError
from fastindex.shapes.element_types import INTEGER_TYPES
from fastindex.shapes.integers import INT64_MAX, INT64_MIN, as_integers, counted, spelled
from fastindex.shapes.split_config import SplitConfig
from fastindex.tiling.definition import COMBINE

#: Limits, so that no text or proto of a stranger takes more time or memory than its length is worth: dimensions of an
#: array and entries of a tile, as many as NumPy's arrays have dimensions; and tiles of a layout.
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

#: The fields that name the type of the integers with which sparse arrays are indexed.
INDEX_TYPES = ("index_primitive_type", "pointer_primitive_type")

_LEVEL_FLAGS = ("", "+", "~", "+~")


def checked_index_type(value: str, field: str) -> str:
    """Return the name of an integer type, or ""."""
    if value and (not isinstance(value, str) or value not in INTEGER_TYPES):
        raise LayoutError(f"{field} must be an integer type such as u32, got {value!r}", field=field)
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
    if len(tiles) > MOST_TILES:
        raise LayoutError(f"a layout has at most {MOST_TILES} tiles here, not {len(tiles)}", field="tiles")
    for i, values in enumerate(tiles):
        if isinstance(values, int | str):
            raise ArgumentTypeError(f"tiles must be a sequence of tiles, such as ((8, 128), (2, 1)), got {tiles!r}")
        tile = as_integers(values, "tiles")
        if not tile:
            raise LayoutError("a tile must have at least one entry: T()", field="tiles", index=i)
        if len(tile) > MOST_DIMENSIONS:
            raise LayoutError(
                f"a tile has at most {MOST_DIMENSIONS} entries here, not {len(tile)}", field="tiles", index=i
            )
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


def checked_padding(values: Iterable[SupportsIndex], rank: int) -> tuple[int, ...]:
    padded = as_integers(values, "padded_dimensions")
    if len(padded) != rank:
        raise LayoutError(
            f"padded_dimensions must have one size per dimension: {spelled(padded)} for {counted(rank, 'dimension')}",
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


def checked_splits(splits: Iterable[SplitConfig], rank: int) -> tuple[SplitConfig, ...]:
    checked = tuple(splits)
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
    checked = tuple(levels)
    for i, level in enumerate(checked):
        if not isinstance(level, str) or level[:1] not in ("D", "C", "S", "H") or level[1:] not in _LEVEL_FLAGS:
            raise LayoutError(
                f"a dimension level must be D, C, S or H, optionally followed by + and ~, got {level!r}",
                field="dimension_levels",
                index=i,
            )
    return () if all(level[0] == "D" for level in checked) else checked
