"""Where the padding of a shape comes from, and the cheapest change of the layout that avoids it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fastindex.advice.tpu_layouts import orders_of_two_minor, tpu_tiles
from fastindex.shapes.layout import Layout
from fastindex.shapes.shape import Shape
from fastindex.tiling.definition import (
    COMBINE,
    Axis,
    CountAxis,
    DimensionAxis,
    MergedAxis,
    OffsetAxis,
    physical_axes,
    slot_count,
    tile_axes,
)

#: A change that saves this much of what the best change saves is as good, and taken if it is cheaper.
_GOOD_ENOUGH = 0.9
_TPU_LANES = 128


@dataclass(frozen=True, slots=True)
class PaddingStep:
    """One step of the layout that makes the buffer larger.

    Attributes
    ----------
    kind : {"padded_dimensions", "tile", "tail"}
    dimensions : tuple of int
        The dimensions whose axis is padded, most major first; empty for an axis that the array lacks.
    size, padded_size : int
        Of the axis, or of the whole buffer in slots for "tail".
    tile : int
        Which tile, counted from 0; -1 where it is no tile.
    entry : int
        The entry of the tile.
    """

    kind: str
    dimensions: tuple[int, ...]
    size: int
    padded_size: int
    tile: int = -1
    entry: int = 1

    @property
    def ratio(self) -> float:
        """How many times larger the step makes the buffer.

        Examples
        --------
        >>> padding_steps(Shape.parse("f32[100,3]{1,0:T(8,128)}"))[1].ratio
        42.666666666666664
        """
        return self.padded_size / self.size if self.size else math.inf


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a shape that makes its buffer smaller.

    Attributes
    ----------
    description : str
        What to do, in words.
    shape : Shape
        The shape after the change.
    saved_nbytes : int
        How much smaller one buffer gets.
    """

    description: str
    shape: Shape
    saved_nbytes: int


def padding_steps(shape: Shape) -> tuple[PaddingStep, ...]:
    """Give the steps of the layout that pad, in the order in which they apply.

    The product of their ratios is `slot_count` / `element_count`.

    Examples
    --------
    >>> steps = padding_steps(Shape.parse("f32[3,5]{1,0:T(2,2)}"))
    >>> [(step.dimensions, step.size, step.padded_size) for step in steps]
    [((0,), 3, 4), ((1,), 5, 6)]
    """
    layout = shape.layout
    slots = shape.slot_count
    padded = layout.padded_dimensions or shape.dimensions
    steps = [
        PaddingStep("padded_dimensions", (d,), shape.dimensions[d], padded[d])
        for d in layout.major_to_minor
        if padded[d] != shape.dimensions[d]
    ]
    axes = physical_axes(shape.dimensions, layout.minor_to_major, layout.padded_dimensions, ())
    for number, tile in enumerate(layout.tiles):
        before = {id(axis) for axis in axes}
        axes = tile_axes(axes, tile)
        for axis in axes:
            if isinstance(axis, CountAxis) and id(axis) not in before:
                rounded = axis.size * axis.tile_size
                if rounded != axis.whole.size:
                    dimensions = axis_dimensions(axis.whole)
                    steps.append(PaddingStep("tile", dimensions, axis.whole.size, rounded, number, axis.tile_size))
    without_tail = slot_count(axes, 1)
    if without_tail != slots:
        steps.append(PaddingStep("tail", (), without_tail, slots, -1, layout.tail_padding_alignment_in_elements))
    return tuple(steps)


def axis_dimensions(axis: Axis) -> tuple[int, ...]:
    """Give the dimensions an axis of a physical array is made of, most major first.

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
    """Give the step that pads most; None where nothing pads.

    Examples
    --------
    >>> main_cause(Shape.parse("f32[100,3]{1,0:T(8,128)}")).dimensions
    (1,)
    """
    return max(padding_steps(shape), key=lambda step: step.ratio, default=None)


def describe_step(shape: Shape, step: PaddingStep) -> str:
    """Say in words what a step pads and why.

    Examples
    --------
    >>> shape = Shape.parse("f32[100,3]{1,0:T(8,128)}")
    >>> describe_step(shape, main_cause(shape))
    'dimension 1 (size 3) is padded to 128 by the tile (8,128), 42.7 times its size'
    """
    times = "" if not step.size else f", {times_text(step.ratio)} its size"
    if step.kind == "tail":
        return f"the buffer of {step.size} slots is rounded up to {step.padded_size} by L({step.entry})"
    if step.kind == "padded_dimensions":
        return f"{_named(shape, step)} is padded to {step.padded_size} by padded_dimensions{times}"
    tile = f"the tile {tile_text(shape.layout.tiles[step.tile])}"
    return f"{_named(shape, step)} is padded to {step.padded_size} by {tile}{times}"


def times_text(ratio: float) -> str:
    """Spell a ratio.

    Examples
    --------
    >>> times_text(42.67), times_text(1.024), times_text(8)
    ('42.7 times', '1.024 times', '8 times')
    """
    if ratio == round(ratio):
        return f"{ratio:.0f} times"
    return f"{ratio:.1f} times" if ratio >= 2 else f"{ratio:.4g} times"


def tile_text(tile: tuple[int, ...]) -> str:
    """Spell a tile as XLA does.

    Examples
    --------
    >>> tile_text((COMBINE, 2))
    '(*,2)'
    """
    return "(" + ",".join("*" if size == COMBINE else str(size) for size in tile) + ")"


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


def cheapest_change(shape: Shape) -> Change | None:
    """Give the cheapest change that avoids most of the padding; None where nothing worth it is known.

    Changes of the layout alone come before changes of the dimensions: dropping attributes that only pad,
    swapping the two minor dimensions, another tile that the TPU compiler uses, another order, and then folding
    two dimensions into one. The first that saves at least 90 % of what the best one saves is given.

    Examples
    --------
    >>> change = cheapest_change(Shape.parse("f32[100000,3]{1,0:T(8,128)}"))
    >>> change.description, str(change.shape), change.saved_nbytes
    ('swap the two minor dimensions', 'f32[100000,3]{0,1:T(8,128)}', 47996928)
    """
    if shape.nbytes <= shape.logical_nbytes:
        return None
    changes = [
        Change(description, changed, shape.nbytes - changed.nbytes)
        for description, changed in _candidates(shape)
        if changed.nbytes < shape.nbytes
    ]
    best = max((change.saved_nbytes for change in changes), default=0)
    return next((change for change in changes if change.saved_nbytes >= _GOOD_ENOUGH * best), None)


def _candidates(shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Shapes to try, the cheapest change first."""
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
    if shape.rank >= 2:
        swapped = (order[1], order[0], *order[2:])
        yield "swap the two minor dimensions", _with_layout(shape, replace(layout, minor_to_major=swapped))
    if on_tpu:
        tiles = tpu_tiles(shape.element_bits, shape.dimensions, order)
        yield f"use {_tiles_text(tiles)}", _with_layout(shape, replace(layout, tiles=tiles))
    if shape.rank >= 2 and on_tpu:
        tiles = tpu_tiles(shape.element_bits, shape.dimensions, swapped)
        description = f"swap the two minor dimensions and use {_tiles_text(tiles)}"
        yield description, _with_layout(shape, replace(layout, minor_to_major=swapped, tiles=tiles))
    for other in orders_of_two_minor(shape.rank) if shape.rank >= 3 else ():
        tiles = tpu_tiles(shape.element_bits, shape.dimensions, other) if on_tpu else layout.tiles
        names = ",".join(map(str, other))
        description = f"use the order {{{names}}}" + (f" and {_tiles_text(tiles)}" if tiles != layout.tiles else "")
        yield description, _with_layout(shape, replace(layout, minor_to_major=other, tiles=tiles))


def _folds(shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Fold two dimensions that are neighbours in the array and in memory; needs a reshape in the program."""
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
            layout = replace(layout, tiles=tpu_tiles(shape.element_bits, folded, new_order))
        yield f"fold dimension {minor} into {major}", Shape(shape.element_type, folded, layout)


def _with_layout(shape: Shape, layout: Layout) -> Shape:
    """The same dimensions in another layout; splits name physical places and do not outlive a new order."""
    without_splits = replace(layout, split_configs=())
    return Shape(shape.element_type, shape.dimensions, without_splits, shape.dynamic_dimensions)


def _is_tpu_like(shape: Shape) -> bool:
    """Whether the tiles are of the family that TPU compilers use."""
    first = shape.layout.tiles[0]
    return first[-1] % _TPU_LANES == 0 and COMBINE not in first


def _tiles_text(tiles: tuple[tuple[int, ...], ...]) -> str:
    return "T" + "".join(map(tile_text, tiles))
