"""Tensors as parts of arrays and files: transposed, stacked to one array, or at an offset of a larger file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from fastindex.algebra.segments import Box, byte_segments, segment_costs
from fastindex.core.shape import Shape
from fastindex.jobs.input_files import Bytes
from fastindex.jobs.writing import OutputFile


def ordered_shape(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Return a shape with its dimensions permuted and its order in memory unchanged.

    Examples
    --------
    >>> print(ordered_shape(Shape.parse("f32[2,3]"), (1, 0)))
    f32[3,2]{0,1}
    """
    layout = replace(shape.layout, minor_to_major=tuple(order.index(d) for d in shape.layout.minor_to_major))
    return Shape(shape.element_type, tuple(shape.dimensions[d] for d in order), layout)


def _stacked_shape(inner: Shape, count: int) -> Shape:
    """Return the shape of contiguous arrays as one array with a new first, most major dimension."""
    layout = replace(inner.layout, minor_to_major=(*(d + 1 for d in inner.layout.minor_to_major), 0))
    return Shape(inner.element_type, (count, *inner.dimensions), layout)


class Stack:
    """Arrays of one shape, stacked along a new first dimension: a source or a target of boxes."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts
        self.shape = _stacked_shape(parts[0].shape, len(parts))
        self.steps = (1,) * self.shape.rank

    def costs(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Return the memory and the cost of a box."""
        return segment_costs(self.shape, sizes)

    def read(self, box: Box, into: Bytes) -> None:
        """Read a box, packed as by `box_shape`."""
        for part, content in self._of_parts(box, into):
            part.read(box[1:], content)

    def write(self, box: Box, data: Bytes) -> None:
        """Write a box, packed as by `box_shape`."""
        for part, content in self._of_parts(box, data):
            part.write(box[1:], content)

    def _of_parts(self, box: Box, content: Bytes) -> Iterator[tuple[Any, Bytes]]:
        nbytes = len(content) // max(len(box[0]), 1)
        for i, number in enumerate(box[0]):
            yield self._parts[number], content[i * nbytes : (i + 1) * nbytes]


@dataclass(frozen=True, slots=True)
class PartOfFile:
    """A tensor that is written to a part of a file.

    Attributes
    ----------
    file : OutputFile
    shape : Shape
    start : int
        Byte offset of the tensor, the header of the file not counted.
    """

    file: OutputFile
    shape: Shape
    start: int

    @property
    def steps(self) -> tuple[int, ...]:
        """The granularity of boxes: any edges that the layout allows."""
        return (1,) * self.shape.rank

    def costs(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Return the memory that a box of these sizes takes, and its cost."""
        return segment_costs(self.shape, sizes)

    def write(self, box: Box, data: Bytes) -> None:
        """Write a box, packed as by `box_shape`."""
        at = 0
        for start, nbytes in byte_segments(self.shape, box):
            self.file.write(self.start + start, data[at : at + nbytes])
            at += nbytes
