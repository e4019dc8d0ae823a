"""The one definition of a tiled layout, as a fold over axes.

The physical array starts as the dimensions of the shape, most major first, with legacy padding. Each tile then merges,
pads and splits axes, and moves the tile-size axes to the end. The meaning of an axis is recorded as a small tree: a
dimension, a merge of two axes, or one of the two parts of a split. Sizes, index programs and relayout plans are derived
from these trees.

Source of the rule: ``xla/layout.h``, and XLA "Tiled layout", https://openxla.org/xla/tiled_layout
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: A tile entry that merges its axis with the next more minor one: ``*`` in text, -1 in XLA's documents.
COMBINE = -(2**63)


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """One axis of the physical array after some tiles; compared by identity."""

    size: int

    @property
    def parts(self) -> tuple[Axis, ...]:
        """The axes that this one is made of."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class DimensionAxis(Axis):
    """A whole dimension. ``size`` includes legacy padding, ``extent`` does not."""

    dimension: int
    extent: int


@dataclass(frozen=True, slots=True, eq=False)
class UnitAxis(Axis):
    """A major axis of size 1, added for a tile that is longer than the array."""


@dataclass(frozen=True, slots=True, eq=False)
class MergedAxis(Axis):
    """``outer * inner.size + inner``."""

    outer: Axis
    inner: Axis

    @property
    def parts(self) -> tuple[Axis, ...]:
        return (self.outer, self.inner)


@dataclass(frozen=True, slots=True, eq=False)
class CountAxis(Axis):
    """``whole // tile_size``: the number of the tile."""

    whole: Axis
    tile_size: int

    @property
    def parts(self) -> tuple[Axis, ...]:
        return (self.whole,)


@dataclass(frozen=True, slots=True, eq=False)
class OffsetAxis(Axis):
    """``whole % tile_size``: the position in the tile. Its size is the tile size."""

    whole: Axis

    @property
    def parts(self) -> tuple[Axis, ...]:
        return (self.whole,)


def tile_text(tile: Iterable[int]) -> str:
    """Return a tile as XLA writes it.

    Examples
    --------
    >>> tile_text((COMBINE, 2))
    '(*,2)'
    """
    return f"({','.join(['*' if size == COMBINE else str(size) for size in tile])})"


def tile_axes(axes: Sequence[Axis], tile: Sequence[int]) -> list[Axis]:
    """Apply one tile to the axes of a physical array, most major first.

    Parameters
    ----------
    axes : sequence of Axis
    tile : sequence of int
        Tile sizes, most major first; `COMBINE` merges an axis with the next more minor one.

    Returns
    -------
    list of Axis
        The axes that the tile does not cover, then the tile counts in place, then the tile sizes in order.
    """
    missing = max(len(tile) - len(axes), 0)
    padded: list[Axis] = [UnitAxis(1) for _ in range(missing)] + list(axes)
    untouched, reached = padded[: len(padded) - len(tile)], padded[len(padded) - len(tile) :]
    counts: list[Axis] = []
    offsets: list[Axis] = []
    pending: Axis | None = None
    for axis, tile_size in zip(reached, tile, strict=True):
        whole = axis if pending is None else MergedAxis(pending.size * axis.size, pending, axis)
        if tile_size == COMBINE:
            pending = whole
            continue
        pending = None
        counts.append(CountAxis(-(-whole.size // tile_size), whole, tile_size))
        offsets.append(OffsetAxis(tile_size, whole))
    return untouched + counts + offsets


def physical_axes(
    dimensions: Sequence[int],
    minor_to_major: Sequence[int],
    padded_dimensions: Sequence[int] | None,
    tiles: Sequence[Sequence[int]],
) -> list[Axis]:
    """Return the axes of the physical array after all `tiles`, most major first.

    Parameters
    ----------
    dimensions : sequence of int
        Logical sizes, one per dimension.
    minor_to_major : sequence of int
        XLA's dimension order, most minor first.
    padded_dimensions : sequence of int or None
        Legacy padded sizes, one per dimension.
    tiles : sequence of sequence of int
        Tiles in the order in which they are applied.

    Examples
    --------
    >>> [axis.size for axis in physical_axes((3, 5), (1, 0), None, ((2, 2),))]
    [2, 3, 2, 2]
    """
    sizes = dimensions if padded_dimensions is None else padded_dimensions
    axes: list[Axis] = [DimensionAxis(sizes[d], d, dimensions[d]) for d in reversed(minor_to_major)]
    for tile in tiles:
        axes = tile_axes(axes, tile)
    return axes


def parts_first(axes: Iterable[Axis]) -> list[Axis]:
    """Return `axes` and all their parts in topological order: each once, after its parts.

    Examples
    --------
    >>> whole = DimensionAxis(5, 0, 5)
    >>> [axis.size for axis in parts_first([CountAxis(3, whole, 2), OffsetAxis(2, whole)])]
    [5, 3, 2]
    """
    found: dict[Axis, None] = {}
    # No recursion: chains of tiles can be long, and they share axes.
    pending = list(axes)[::-1]
    while pending:
        missing = [part for part in pending[-1].parts if part not in found]
        if missing:
            pending += missing
        else:
            found[pending.pop()] = None
    return list(found)


def axis_strides(axes: Sequence[Axis]) -> list[int]:
    """Return the distance in slots between neighbours along each axis; the last axis is the most minor."""
    strides = [1] * len(axes)
    for i in range(len(axes) - 2, -1, -1):
        strides[i] = strides[i + 1] * axes[i + 1].size
    return strides


def axis_values(axes: Sequence[Axis], multi_index: Sequence[int]) -> list[int]:
    """Return the coordinates along `axes` of the element at `multi_index`.

    Examples
    --------
    >>> axis_values([CountAxis(3, DimensionAxis(5, 0, 5), 2)], [4])
    [2]
    """
    known: dict[Axis, int] = {}
    for axis in parts_first(axes):
        match axis:
            case DimensionAxis(dimension=dimension):
                known[axis] = multi_index[dimension]
            case MergedAxis(outer=outer, inner=inner):
                known[axis] = known[outer] * inner.size + known[inner]
            case CountAxis(whole=whole, tile_size=tile_size):
                known[axis] = known[whole] // tile_size
            case OffsetAxis(whole=whole):
                known[axis] = known[whole] % axis.size
            case _:
                known[axis] = 0
    return [known[axis] for axis in axes]


def slot_of(axes: Sequence[Axis], multi_index: Sequence[int]) -> int:
    """Return the slot of the element at `multi_index`, which must be in bounds.

    Parameters
    ----------
    axes : sequence of Axis
        The axes of the physical array, from `fastindex.core.tiles.physical_axes`.
    multi_index : sequence of int
        One coordinate per dimension.

    Examples
    --------
    >>> from fastindex.core.tiles import physical_axes
    >>> slot_of(physical_axes((3, 5), (1, 0), None, ((2, 2),)), [2, 3])
    17
    """
    values = axis_values(axes, multi_index)
    return sum(stride * value for stride, value in zip(axis_strides(axes), values, strict=True))
