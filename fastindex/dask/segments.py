"""Split a physical buffer into contiguous segments, each of which is the packed buffer of a box of the array.

Independent of Dask: sizes in, sizes out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

from fastindex.algebra.segments import Box, box_shape, box_steps, common_steps, first_box, is_contiguous, slab_order
from fastindex.core.shape import Shape

#: A segment may exceed the requested size by this factor before it is split, because of tile padding.
_TOLERANCE = 1.5


@dataclass(frozen=True)
class Segments:
    """A buffer split into contiguous segments.

    Attributes
    ----------
    shape : Shape
    edges : tuple of tuple of int
        The boundaries of the boxes along each dimension, from 0 to its size.
    dimensions : tuple of int
        The dimensions that are split, most major first. All but the last are split into the smallest possible boxes.
    """

    shape: Shape
    edges: tuple[tuple[int, ...], ...]
    dimensions: tuple[int, ...]
    _known: dict[tuple[tuple[int, bool], ...], Shape] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[object, ...]:
        return Segments, (self.shape, self.edges, self.dimensions)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """The sizes of the boxes along each dimension of the array."""
        return tuple(tuple(b - a for a, b in pairwise(edges)) for edges in self.edges)

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of boxes along each of `dimensions`."""
        return tuple(len(self.edges[d]) - 1 for d in self.dimensions)

    def places(self) -> Iterator[tuple[int, ...]]:
        """Yield the position of each segment in `counts`, in the order of the buffer."""
        return product(*map(range, self.counts))

    def box_shape(self, place: Sequence[int]) -> Shape:
        """Return the shape of a box, whose packed buffer is its segment.

        Examples
        --------
        >>> segments = cut(Shape.parse("f32[36,5]{1,0:T(8,128)}"), 8192)
        >>> [str(segments.box_shape(place)) for place in segments.places()]
        ['f32[8,5]{1,0:T(8,128)}', 'f32[16,5]{1,0:T(8,128)}', 'f32[12,5]{1,0:T(8,128)}']
        """
        at = dict(zip(self.dimensions, place, strict=True))
        ends = [(edges[at.get(d, 0)], edges[at.get(d, 0) + 1]) for d, edges in enumerate(self.edges)]
        # Boxes of equal size differ only at the end of a dimension, because of padding.
        key = tuple((b - a, b == size) for (a, b), size in zip(ends, self.shape.dimensions, strict=True))
        found = self._known.get(key)
        if found is None:
            box: Box = tuple(range(a, b) for a, b in ends)
            found = self._known[key] = box_shape(self.shape, box)
        return found

    def box_start(self, place: Sequence[int]) -> tuple[int, ...]:
        """Return the coordinates of the start of a box.

        Examples
        --------
        >>> segments = cut(Shape.parse("f32[36,5]{1,0:T(8,128)}"), 8192)
        >>> [segments.box_start(place) for place in segments.places()]
        [(0, 0), (8, 0), (24, 0)]
        """
        at = dict(zip(self.dimensions, place, strict=True))
        return tuple(edges[at.get(d, 0)] for d, edges in enumerate(self.edges))

    def lengths(self, itemsize: int) -> tuple[int, ...]:
        """Return the sizes of the segments in items of `itemsize` bytes, in the order of the buffer."""
        return tuple(self.box_shape(place).nbytes // itemsize for place in self.places())


def cut(
    shape: Shape,
    segment_bytes: float,
    most_bytes: float = 0,
    edges: Sequence[Iterable[int]] = (),
    byte_edges: Iterable[int] = (),
) -> Segments:
    """Split a buffer into segments.

    Parameters
    ----------
    shape : Shape
    segment_bytes : float
        The approximate size of a segment.
    most_bytes : float
        If the smallest segments along one dimension exceed this, a more minor dimension is split as well.
    edges : sequence of iterables of int
        Preferred boundaries along each dimension.
    byte_edges : iterable of int
        Preferred boundaries in the buffer, in bytes.

    Examples
    --------
    >>> shape = Shape.parse("f32[32,4096]{1,0:T(8,128)}")
    >>> cut(shape, 1 << 18).counts, cut(shape, 1 << 16).dimensions, cut(shape, 1 << 16).counts
    ((2,), (0, 1), (4, 2))
    """
    whole = tuple(max(size, 1) for size in shape.dimensions)
    steps, sizes, chosen = box_steps(shape), whole, []
    nbytes = shape.nbytes
    for d in slab_order(shape):
        if whole[d] <= steps[d] or shape.element_count == 0:
            continue
        smaller = (*sizes[:d], steps[d], *sizes[d + 1 :])
        if not is_contiguous(shape, smaller):
            break
        sizes = smaller
        chosen.append(d)
        nbytes = box_shape(shape, first_box(shape, sizes)).nbytes
        if nbytes <= max(segment_bytes, most_bytes):
            break
    found: list[tuple[int, ...]] = [(0, size) for size in shape.dimensions]
    for d in chosen[:-1]:
        found[d] = (*range(0, shape.dimensions[d], steps[d]), shape.dimensions[d])
    if chosen:
        d = chosen[-1]
        wanted = [edge / steps[d] for edge in edges[d]] if edges else []
        if len(chosen) == 1:
            wanted += [edge / nbytes for edge in byte_edges]
        found[d] = _edges_along(shape.dimensions[d], steps[d], wanted, max(segment_bytes / nbytes, 1))
    return Segments(shape, tuple(found), tuple(chosen))


def _edges_along(size: int, step: int, wanted: Iterable[float], most: float) -> tuple[int, ...]:
    """Split `size` elements at multiples of `step` near `wanted`; split parts of more than `most` steps evenly."""
    count = -(-size // step)
    marks = sorted({0, count, *(round(at) for at in wanted if 0 < round(at) < count)})
    cuts = [0]
    for begin, end in pairwise(marks):
        steps = end - begin
        pieces = min(math.ceil(steps / most), steps) if steps > most * _TOLERANCE else 1
        cuts += [begin + steps * i // pieces for i in range(1, pieces + 1)]
    return tuple(min(at * step, size) for at in cuts)


def cut_together(source: Segments, destination: Shape) -> tuple[Segments, Segments] | None:
    """Split two layouts of an array into segments of the same boxes in the same order.

    Parameters
    ----------
    source : Segments
        The boundaries along its last split dimension may change.
    destination : Shape

    Returns
    -------
    Segments of both, or None if there are none of about the size of those of `source`

    Examples
    --------
    >>> plain = cut(Shape.parse("f32[64,128]"), 8192)
    >>> [one.edges[0] for one in cut_together(plain, Shape.parse("f32[64,128]{1,0:T(8,128)}"))]
    [(0, 16, 32, 48, 64), (0, 16, 32, 48, 64)]
    >>> cut_together(plain, Shape.parse("f32[64,128]{0,1}")) is None
    True
    """
    shapes = source.shape, destination
    cut_dimensions = source.dimensions
    if not cut_dimensions:
        return Segments(source.shape, source.edges, ()), Segments(destination, source.edges, ())
    steps, d = common_steps(*shapes), cut_dimensions[-1]
    widest = max(b - a for a, b in pairwise(source.edges[d]))
    if steps[d] > 2 * widest:
        return None
    sizes = tuple(steps[k] if k in cut_dimensions else max(size, 1) for k, size in enumerate(destination.dimensions))
    for shape in shapes:
        in_order = tuple(k for k in slab_order(shape) if k in cut_dimensions)
        if in_order != cut_dimensions or not is_contiguous(shape, sizes):
            return None
    edges = list(source.edges)
    for k in cut_dimensions[:-1]:
        edges[k] = (*range(0, destination.dimensions[k], steps[k]), destination.dimensions[k])
    edges[d] = _edges_along(destination.dimensions[d], steps[d], [edge / steps[d] for edge in edges[d]], math.inf)
    first, second = (Segments(shape, tuple(edges), cut_dimensions) for shape in shapes)
    return first, second
