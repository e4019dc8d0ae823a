"""The causes of padding in a shape, and layout changes that reduce it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fastindex.core.integers import counted
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of, slots_before_tail
from fastindex.core.tiles import COMBINE, Axis, CountAxis, DimensionAxis, MergedAxis, OffsetAxis, tile_axes, tile_text
from fastindex.errors import LayoutError
from fastindex.show.spelling import tiles_text, times_text
from fastindex.show.tpu_layouts import default_like, orders_of_two_minor, tpu_layout_in_order

#: A cheaper change is preferred if it saves at least this fraction of the bytes that the best one saves.
_GOOD_ENOUGH = 0.9
#: Smallest fraction of padding for which a change is suggested.
_WORTHWHILE = 0.05
_TPU_LANES = 128


@dataclass(frozen=True, slots=True)
class PaddingStep:
    """One cause of padding: a part of the layout that enlarges the buffer.

    Attributes
    ----------
    kind : {"padded_dimensions", "tile", "tail"}
    dimensions : tuple of int
        The dimensions of the padded axis, most major first; empty if the axis was added because a tile has more
        entries than there are axes.
    size, padded_size : int
        Size of the axis before and after padding; for "tail", of the whole buffer in slots.
    tile : int
        The index of the tile; -1 if the cause is not a tile.
    entry : int
        The tile size or the alignment.
    """

    kind: str
    dimensions: tuple[int, ...]
    size: int
    padded_size: int
    tile: int = -1
    entry: int = 1

    @property
    def ratio(self) -> float:
        """The factor by which the buffer grows.

        Examples
        --------
        >>> padding_steps(Shape.parse("f32[100,3]{1,0:T(8,128)}"))[1].ratio
        42.666666666666664
        """
        return self.padded_size / self.size if self.size else math.inf


def padding_steps(shape: Shape) -> tuple[PaddingStep, ...]:
    """Return the causes of padding in the order in which they apply.

    The product of their ratios is `slot_count` / `element_count`.

    Examples
    --------
    >>> steps = padding_steps(Shape.parse("f32[3,5]{1,0:T(2,2)}"))
    >>> [(step.dimensions, step.size, step.padded_size) for step in steps]
    [((0,), 3, 4), ((1,), 5, 6)]
    """
    steps = [step for _, step in padded_axes(shape)[1]]
    without_tail = slots_before_tail(shape)
    if without_tail != shape.slot_count:
        tail = shape.layout.tail_padding_alignment_in_elements
        steps.append(PaddingStep("tail", (), without_tail, shape.slot_count, -1, tail))
    return tuple(steps)


def padded_axes(shape: Shape) -> tuple[list[Axis], list[tuple[Axis, PaddingStep]]]:
    """Return the axes of the physical array, and each axis that padding enlarges, at any tile, with its cause.

    Examples
    --------
    >>> axes, padded = padded_axes(Shape.parse("f32[3,5]{1,0:T(2,2)}"))
    >>> len(axes), [step.padded_size for _, step in padded]
    (4, [4, 6])
    """
    axes = axes_of(shape, 0)
    padded: list[tuple[Axis, PaddingStep]] = [
        (axis, PaddingStep("padded_dimensions", (axis.dimension,), axis.extent, axis.size))
        for axis in axes
        if isinstance(axis, DimensionAxis) and axis.size != axis.extent
    ]
    for number, tile in enumerate(shape.layout.tiles):
        before = set(axes)
        axes = tile_axes(axes, tile)
        for axis in axes:
            if isinstance(axis, CountAxis) and axis not in before:
                rounded = axis.size * axis.tile_size
                if rounded != axis.whole.size:
                    dimensions = axis_dimensions(axis.whole)
                    step = PaddingStep("tile", dimensions, axis.whole.size, rounded, number, axis.tile_size)
                    padded.append((axis, step))
    return axes, padded


def axis_dimensions(axis: Axis) -> tuple[int, ...]:
    """Return the dimensions that an axis of a physical array comes from, most major first.

    Examples
    --------
    >>> axis_dimensions(MergedAxis(6, DimensionAxis(2, 1, 2), DimensionAxis(3, 0, 3)))
    (1, 0)
    """
    found: dict[int, None] = {}
    pending = [axis]
    while pending:
        match pending.pop():
            case DimensionAxis() as leaf:
                found[leaf.dimension] = None
            case MergedAxis() as merged:
                pending += [merged.inner, merged.outer]
            case CountAxis() | OffsetAxis() as part:
                pending.append(part.whole)
    return tuple(found)


def main_cause(shape: Shape) -> PaddingStep | None:
    """Return the largest cause of padding, or None if there is no padding.

    Examples
    --------
    >>> main_cause(Shape.parse("f32[100,3]{1,0:T(8,128)}")).dimensions
    (1,)
    """
    return max(padding_steps(shape), key=lambda step: step.ratio, default=None)


def describe_step(shape: Shape, step: PaddingStep) -> str:
    """Describe a cause of padding.

    Examples
    --------
    >>> shape = Shape.parse("f32[100,3]{1,0:T(8,128)}")
    >>> describe_step(shape, main_cause(shape))
    'dimension 1 (size 3) is padded to 128 by the tile (8,128), 42.7 times its size'
    """
    times = "" if not step.size else f", {times_text(step.ratio)} its size"
    if step.kind == "tail":
        return f"the buffer of {counted(step.size, 'slot')} is rounded up to {step.padded_size:,} by L({step.entry})"
    if step.kind == "padded_dimensions":
        return f"{_named(shape, step)} is padded to {step.padded_size} by padded_dimensions{times}"
    tile = f"the tile {tile_text(shape.layout.tiles[step.tile])}"
    return f"{_named(shape, step)} is padded to {step.padded_size} by {tile}{times}"


def _named(shape: Shape, step: PaddingStep) -> str:
    if not step.dimensions:
        return "the missing major dimension (size 1)" if shape.rank else "the scalar (size 1)"
    layout = shape.layout
    padded = layout.padded_dimensions or shape.dimensions
    if len(step.dimensions) == 1:
        d = step.dimensions[0]
        if step.size in (shape.dimensions[d], padded[d]):
            return f"dimension {d} (size {shape.dimensions[d]})"
        return f"an axis of size {step.size} of dimension {d}"
    joined = " and ".join(map(str, step.dimensions))
    if step.size == math.prod(padded[d] for d in step.dimensions):
        return f"the combination of dimensions {joined} (size {step.size})"
    return f"an axis of size {step.size} of dimensions {joined}"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a shape that makes its buffer smaller.

    Attributes
    ----------
    description : str
        The change in words, as an instruction.
    shape : Shape
        The shape after the change.
    saved_nbytes : int
        Number of bytes saved in one buffer.
    """

    description: str
    shape: Shape
    saved_nbytes: int


def cheapest_change(shape: Shape) -> Change | None:
    """Return the cheapest change that avoids most of the padding; None if none helps, or less than 5% is padding.

    This applies to an array that the caller lays out. Inside a compiled program the compiler chooses the layouts, and
    the effect of a change is known only after recompilation: see `fastindex.hlo.try_layouts`.

    Changes are tried from cheap to expensive: dropping attributes that only pad, using the tiles of the TPU compiler,
    swapping the two minor dimensions, using another order, and folding two dimensions into one. The result is the
    first change that saves at least 90 % of the bytes that the best one saves. For a layout with TPU tiles, each order
    uses the compiler's tiles for that order, because the compiler rejects others.

    Examples
    --------
    >>> change = cheapest_change(Shape.parse("f32[100000,3]{1,0:T(8,128)}"))
    >>> change.description, str(change.shape), change.saved_nbytes
    ('swap the two minor dimensions and use T(4,128)', 'f32[100000,3]{0,1:T(4,128)}', 49598464)
    """
    if not _has_size(shape) or shape.nbytes == shape.logical_nbytes:
        return None
    if shape.nbytes - shape.logical_nbytes < _WORTHWHILE * shape.nbytes:
        return None
    changes = [
        Change(description, changed, shape.nbytes - changed.nbytes)
        for description, changed in _candidates(shape)
        if _has_size(changed) and changed.nbytes < shape.nbytes
    ]
    best = max((change.saved_nbytes for change in changes), default=0)
    return next((change for change in changes if change.saved_nbytes >= _GOOD_ENOUGH * best), None)


def _has_size(shape: Shape) -> bool:
    """Whether the bytes of a shape fit int64; those of a very large array may only in its own layout."""
    try:
        return shape.nbytes >= 0
    except LayoutError:
        return False


def change_sentence(shape: Shape) -> str:
    """Return the cheapest change as a sentence; empty if there is none.

    Examples
    --------
    >>> change_sentence(Shape.parse("f32[5,4]{1,0:L(64)}"))
    'If you lay it out yourself, drop L(64): f32[5,4]{1,0} is 176 bytes smaller.'
    """
    change = cheapest_change(shape)
    if change is None:
        return ""
    smaller = f"{change.shape} is {counted(change.saved_nbytes, 'byte')} smaller"
    return f"If you lay it out yourself, {change.description}: {smaller}."


def _candidates(shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Yield the description and the result of each change, the cheapest change first."""
    layout = shape.layout
    if layout.padded_dimensions is not None:
        yield "drop padded_dimensions", _with_layout(shape, replace(layout, padded_dimensions=None))
    if layout.tail_padding_alignment_in_elements > 1:
        tail = layout.tail_padding_alignment_in_elements
        yield f"drop L({tail})", _with_layout(shape, replace(layout, tail_padding_alignment_in_elements=1))
    if not layout.tiles:
        return
    yield from _other_orders_and_tiles(shape)
    yield from _folds(shape)


def _other_orders_and_tiles(shape: Shape) -> Iterator[tuple[str, Shape]]:
    layout = shape.layout
    order = layout.minor_to_major
    on_tpu = _is_tpu_like(shape)

    def in_order(description: str, other: tuple[int, ...]) -> tuple[str, Shape]:
        tiles = tpu_layout_in_order(shape.element_type, shape.dimensions, other).tiles if on_tpu else layout.tiles
        words = [description] if description else []
        words += [f"use {tiles_text(tiles)}"] if tiles != layout.tiles else []
        return " and ".join(words), _with_layout(shape, replace(layout, minor_to_major=other, tiles=tiles))

    if on_tpu:
        yield in_order("", order)
    if shape.rank >= 2:
        yield in_order("swap the two minor dimensions", (order[1], order[0], *order[2:]))
    for other in orders_of_two_minor(shape.rank) if shape.rank >= 3 else ():
        yield in_order(f"use the order {{{','.join(map(str, other))}}}", other)


def _folds(shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Yield folds of two dimensions adjacent in the array and in memory; the program then needs a reshape."""
    if shape.layout.padded_dimensions is not None or shape.layout.split_configs:
        return
    order = shape.layout.minor_to_major
    for minor, major in itertools.pairwise(order[:3]):
        if major + 1 != minor or shape.dynamic_dimensions[minor] or shape.dynamic_dimensions[major]:
            continue
        sizes = shape.dimensions
        folded = (*sizes[:major], sizes[major] * sizes[minor], *sizes[minor + 1 :])
        new_order = tuple(d - (d > major) for d in order if d != minor)
        layout = replace(shape.layout, minor_to_major=new_order)
        if _is_tpu_like(shape):
            default = default_like(shape, folded, new_order)
            if default is None:
                continue
            layout = replace(layout, tiles=default.tiles)
        yield f"fold dimension {minor} into {major}", Shape(shape.element_type, folded, layout)


def _with_layout(shape: Shape, layout: Layout) -> Shape:
    """Return the array in another layout, without split configs, which refer to the old order."""
    without_splits = replace(layout, split_configs=())
    return Shape(shape.element_type, shape.dimensions, without_splits, shape.dynamic_dimensions)


def _is_tpu_like(shape: Shape) -> bool:
    """Whether the tiles and the element width match those of TPU compilers."""
    layout = shape.layout
    first = layout.tiles[0]
    if first[-1] % _TPU_LANES or COMBINE in first:
        return False
    default = default_like(shape, shape.dimensions, layout.minor_to_major)
    return default is not None and default.element_size_in_bits == layout.element_size_in_bits
