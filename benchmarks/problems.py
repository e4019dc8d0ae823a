"""A relayout case in the terms of libraries that know strides, not layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastindex as fi
from benchmarks.measure import touched_bytes


@dataclass(frozen=True)
class Rival:
    """A call to time, and the buffer it fills, or a function that gives it."""

    run: Callable[[], object]
    result: Callable[[], NDArray[Any]]


@dataclass(frozen=True)
class Digit:
    """One loop of a relayout whose tiles all divide: its size and how far a step goes, in elements."""

    size: int
    source_stride: int
    destination_stride: int


class Problem:
    """A relayout as loops over strides.

    Where a layout pads, the loops run over the padded array: a source without padding is copied into a padded
    one first, a destination without padding is cut out of a padded one last.
    """

    def __init__(self, source: str, destination: str, buffer: NDArray[np.uint8]) -> None:
        self.source, self.destination = fi.Shape.parse(source), fi.Shape.parse(destination)
        self.buffer = buffer
        self.packed_source = self.source.element_bits < 8
        self.itemsize = self.destination.element_bits // 8
        #: Elements as opaque numbers: nothing here computes with them.
        self.dtype = np.dtype({1: "i1", 2: "i2", 4: "f4", 8: "f8", 16: "c16"}[self.itemsize])
        self.dimensions = self.source.dimensions
        pairs = zip(covered(self.source), covered(self.destination), strict=True)
        self.padded = tuple(max(pair) for pair in pairs)
        for shape in (self.source, self.destination):
            if shape.layout.tiles and covered(shape) != self.padded:
                raise ValueError(f"{shape} pads less than the other layout: no common loops")

    @cached_property
    def pads(self) -> bool:
        """Whether the source lacks padding that the loops run over."""
        return covered(self.source) != self.padded

    @cached_property
    def crops(self) -> bool:
        """Whether the destination lacks padding that the loops run over."""
        return covered(self.destination) != self.padded

    @cached_property
    def digits(self) -> list[Digit]:
        """The loops over the padded array."""
        first, second = (
            with_dimensions(shape, self.padded) for shape in (without_packing(self.source), self.destination)
        )
        found: list[Digit] = []
        for dimension, size in enumerate(self.padded):
            index = [np.int64(0)] * len(self.padded)
            index[dimension] = np.arange(size)  # type: ignore[call-overload]
            slots = [np.atleast_1d(fi.linear_index(shape, tuple(index))) for shape in (first, second)]
            found += split_into_digits(*slots)
        return found

    @cached_property
    def major_first(self) -> list[Digit]:
        """The loops in the order of the destination."""
        return sorted(self.digits, key=lambda digit: -digit.destination_stride)

    @property
    def source_order(self) -> tuple[int, ...]:
        return tuple(reversed(self.source.layout.minor_to_major))

    @property
    def destination_order(self) -> tuple[int, ...]:
        return tuple(reversed(self.destination.layout.minor_to_major))

    def new_padded(self) -> NDArray[Any]:
        return touched_bytes(math.prod(self.padded) * self.itemsize).view(self.dtype)

    def new_output(self) -> NDArray[Any]:
        return touched_bytes(self.destination.slot_count * self.itemsize).view(self.dtype)

    def views(self, source: NDArray[Any], output: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Source and destination as strided arrays of the same shape."""
        strided = np.lib.stride_tricks.as_strided
        sizes = [digit.size for digit in self.major_first]
        return (
            strided(source, sizes, [digit.source_stride * self.itemsize for digit in self.major_first]),
            strided(output, sizes, [digit.destination_stride * self.itemsize for digit in self.major_first]),
        )


def covered(shape: Any) -> tuple[int, ...]:
    """The dimensions with the padding that the first tile adds; later tiles of the cases divide it."""
    dimensions = list(shape.dimensions)
    if shape.layout.tiles:
        tile = shape.layout.tiles[0]
        for dimension, tile_size in zip(shape.layout.minor_to_major, reversed(tile), strict=False):
            dimensions[dimension] = -(-dimensions[dimension] // tile_size) * tile_size
    return tuple(dimensions)


def with_dimensions(shape: Any, dimensions: tuple[int, ...]) -> Any:
    return fi.Shape(shape.element_type, dimensions, shape.layout)


def without_packing(shape: Any) -> Any:
    layout = shape.layout
    return fi.Shape(shape.element_type, shape.dimensions, fi.Layout(layout.minor_to_major, tiles=layout.tiles))


def split_into_digits(source: NDArray[np.int64], destination: NDArray[np.int64]) -> Iterator[Digit]:
    """Read loops off the slots along one dimension; raises where there are none."""
    while len(source) > 1:
        steps = np.arange(len(source))
        strides = int(source[1]), int(destination[1])
        regular = (source == steps * strides[0]) & (destination == steps * strides[1])
        size = len(source) if regular.all() else int(regular.argmin())
        if len(source) % size:
            raise ValueError("the layouts do not split into common loops")
        yield Digit(size, *strides)
        source, destination = source[::size], destination[::size]


def in_order(flat: NDArray[Any], dimensions: tuple[int, ...], order: tuple[int, ...]) -> NDArray[Any]:
    """A flat buffer, its axes in `order`, most major first, as the logical array."""
    physical = flat[: math.prod(dimensions)].reshape([dimensions[d] for d in order])
    return physical.transpose(np.argsort(order))
