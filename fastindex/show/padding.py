"""The causes of padding in a shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastindex.core.integers import counted
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of
from fastindex.core.tiles import Axis, CountAxis, DimensionAxis, MergedAxis, OffsetAxis, slot_count, tile_axes
from fastindex.show.spelling import tile_text, times_text


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
    layout = shape.layout
    slots = shape.slot_count
    padded = layout.padded_dimensions or shape.dimensions
    steps = [
        PaddingStep("padded_dimensions", (d,), shape.dimensions[d], padded[d])
        for d in layout.major_to_minor
        if padded[d] != shape.dimensions[d]
    ]
    axes = axes_of(shape, 0)
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
