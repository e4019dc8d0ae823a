"""The contiguous segments of the physical buffer that hold a box of the array, for any layout.

A *box* is a range of coordinates for each dimension. Where its edges fall between tiles (`box_steps`), the box owns
whole segments of the buffer, padding included, and their concatenation is the box itself packed in the same layout
(`box_shape`). So any job on a large array is the same job on its boxes: read segments, call the function for whole
arrays, write segments. Files, Zarr and Dask all work this way.

Everything is derived from the axes of `fastindex.core.tiles`: the buffer is the merge of all its axes, and the
selection of a box on an axis follows from its selection on the parts of that axis.

A box of a given size costs less the longer its segments are on both sides; its memory is limited. `box_sizes` starts
from the smallest box and doubles the dimension that leaves the least cost per element, while memory suffices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fastindex.algebra.strided_runs import StridedRun
from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.core.sizes import axes_of, check_placed
from fastindex.core.tiles import Axis, CountAxis, DimensionAxis, MergedAxis, OffsetAxis, parts_first, physical_axes
from fastindex.errors import FastIndexError

#: A range of coordinates for each dimension, each with step 1; empty only along dimensions of size 0.
Box = tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of boxes that covers an array: each dimension is cut at equal distances.

    Attributes
    ----------
    dimensions : tuple of int
        Sizes of the array.
    sizes : tuple of int
        Sizes of a box, at least 1; the last box along a dimension may be smaller.

    Examples
    --------
    >>> grid = Grid((5, 4), (2, 4))
    >>> grid.counts, grid.box((2, 0))
    ((3, 1), (range(4, 5), range(0, 4)))
    """

    dimensions: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of boxes along each dimension; along a dimension of size 0, one that is empty."""
        return tuple(max(-(-n // size), 1) for n, size in zip(self.dimensions, self.sizes, strict=True))

    def box(self, place: Sequence[int]) -> Box:
        """Return the box at a position in the grid."""
        return tuple(
            range(i * size, min((i + 1) * size, n))
            for i, size, n in zip(place, self.sizes, self.dimensions, strict=True)
        )

    def boxes(self, order: Sequence[int] | None = None) -> Iterator[Box]:
        """Yield all boxes; the last dimension of `order` varies fastest, by default the last dimension.

        Examples
        --------
        >>> [box[0].start for box in Grid((4, 4), (2, 2)).boxes(order=(1, 0))]
        [0, 2, 0, 2]
        """
        order = range(len(self.sizes)) if order is None else order
        return (self.numbered(number, order) for number in range(math.prod(self.counts)))

    def numbered(self, number: int, order: Sequence[int]) -> Box:
        """Return box `number` in the order of `boxes`.

        Examples
        --------
        >>> Grid((4, 4), (2, 2)).numbered(1, order=(1, 0))
        (range(2, 4), range(0, 2))
        """
        counts, place = self.counts, [0] * len(order)
        for d in reversed(order):
            number, place[d] = divmod(number, counts[d])
        return self.box(place)


@lru_cache(maxsize=512)
def box_steps(shape: Shape) -> tuple[int, ...]:
    """Return the steps of box edges, per dimension: at their multiples a box owns whole bytes and segments.

    The end of a dimension is always an edge. A dimension that cannot be cut has its size.

    Raises
    ------
    UnsupportedError, LayoutError
        `shape` has no slots.

    Examples
    --------
    >>> box_steps(Shape.parse("bf16[1024,1000]{1,0:T(8,128)(2,1)}"))
    (8, 128)
    >>> box_steps(Shape.parse("u8[4,6,9]{2,1,0:T(*,4)}"))
    (1, 4, 9)
    >>> box_steps(Shape.parse("s4[5,7]{1,0:E(4)}"))
    (2, 7)
    """
    whole, bits = _whole_buffer(shape), shape.element_bits
    needed: dict[Axis, int] = {whole: 8 // math.gcd(bits, 8)}
    steps = [1] * shape.rank

    def require(axis: Axis, step: int) -> None:
        needed[axis] = math.lcm(needed.get(axis, 1), step)

    for axis in reversed(parts_first([whole])):
        step = needed.get(axis, 1)
        match axis:
            case DimensionAxis(dimension=dimension):
                steps[dimension] = step
            case CountAxis(whole=part, tile_size=tile_size):
                require(part, tile_size * step)
            case MergedAxis(outer=outer, inner=inner) if inner.size % step:
                # Steps cross the ends of `inner`: it must be whole, and `outer` a multiple that makes whole steps.
                require(inner, inner.size)
                require(outer, step // math.gcd(step, inner.size))
            case MergedAxis(inner=inner):
                require(inner, step)
    return tuple(min(step, max(size, 1)) for step, size in zip(steps, shape.dimensions, strict=True))


def _whole_buffer(shape: Shape) -> Axis:
    """Return the axis of all slots, without tail padding."""
    check_placed(shape)
    whole, *others = axes_of(shape) or [Axis(1)]
    for axis in others:
        whole = MergedAxis(whole.size * axis.size, whole, axis)
    return whole


def common_steps(*shapes: Shape) -> tuple[int, ...]:
    """Return the steps of boxes that own whole segments in several layouts of one array.

    Examples
    --------
    >>> common_steps(Shape.parse("f32[99,999]{1,0:T(8,128)}"), Shape.parse("f32[99,999]{0,1:T(4,12)}"))
    (24, 128)
    """
    return joint_steps(shapes[0].dimensions, *map(box_steps, shapes))


def joint_steps(dimensions: Sequence[int], *steps: Sequence[int]) -> tuple[int, ...]:
    """Return the least common multiples of steps along each dimension, at most the whole dimension.

    Examples
    --------
    >>> joint_steps((99, 9), (8, 4), (6, 3))
    (24, 9)
    """
    along = zip(dimensions, *steps, strict=True)
    return tuple(min(math.lcm(*of_dimension), max(size, 1)) for size, *of_dimension in along)


def covering(box: Box, steps: Sequence[int], dimensions: Sequence[int]) -> Box:
    """Return the smallest box with edges at multiples of `steps` that contains `box`.

    With the steps of a source and a box of a destination, this is the region to read for that box.

    Examples
    --------
    >>> covering((range(3, 9), range(0, 5)), (8, 4), (20, 6))
    (range(0, 16), range(0, 6))
    """
    return tuple(
        range(along.start // step * step, min(-(-along.stop // step) * step, size))
        for along, step, size in zip(box, steps, dimensions, strict=True)
    )


def box_shape(shape: Shape, box: Box) -> Shape:
    """Return the shape whose packed buffer is the concatenation of the segments of a box.

    Parameters
    ----------
    shape : Shape
    box : Box
        Edges at multiples of `box_steps`, or at the end of the dimension.

    Raises
    ------
    FastIndexError
        An edge lies elsewhere.

    Examples
    --------
    >>> str(box_shape(Shape.parse("f32[20,300]{1,0:T(8,128)L(65536)}"), (range(8, 20), range(128))))
    'f32[12,128]{1,0:T(8,128)}'
    """
    _check_edges(shape, box)
    layout, padded = shape.layout, shape.layout.padded_dimensions
    sizes = tuple(len(along) for along in box)
    if padded is not None:
        padded = tuple(
            (whole if along.stop == size else along.stop) - along.start
            for along, size, whole in zip(box, shape.dimensions, padded, strict=True)
        )

    def with_tail(alignment: int) -> Shape:
        return Shape(
            shape.element_type,
            sizes,
            Layout(
                layout.minor_to_major,
                tiles=layout.tiles,
                padded_dimensions=padded,
                padding_value=layout.padding_value,
                element_size_in_bits=layout.element_size_in_bits,
                memory_space=layout.memory_space,
                tail_padding_alignment_in_elements=alignment,
            ),
        )

    part = with_tail(1)
    tail = _tail(shape) if _is_last(shape, box) else 0
    return with_tail(part.slot_count + tail) if tail else part


def first_box(shape: Shape, sizes: tuple[int, ...]) -> Box:
    """Return the box of the given sizes at the origin.

    Examples
    --------
    >>> first_box(Shape.parse("f32[5,4]"), (2, 8))
    (range(0, 2), range(0, 4))
    """
    return Grid(shape.dimensions, sizes).box((0,) * shape.rank)


def box_segments(shape: Shape, box: Box) -> tuple[StridedRun, ...]:
    """Return the segments of the buffer that a box owns, in slots, in the order in which `box_shape` packs them.

    The segments of boxes that cover the array once partition the buffer: padding belongs to the box next to it, the
    tail to the last box.

    Parameters and errors as for `box_shape`.

    Returns
    -------
    tuple of StridedRun
        One record; a second one for tail padding that does not directly follow the segments of the first.

    Examples
    --------
    >>> shape = Shape.parse("f32[16,256]{1,0:T(8,128)}")
    >>> box_segments(shape, (range(16), range(128, 256)))
    (StridedRun(start=1024, length=1024, counts=(2,), strides=(2048,)),)
    >>> box_segments(shape, (range(8, 16), range(256)))
    (StridedRun(start=2048, length=2048, counts=(), strides=()),)
    """
    _check_edges(shape, box)
    whole = _whole_buffer(shape)
    known: dict[Axis, StridedRun] = {}
    for axis in parts_first([whole]):
        known[axis] = _selected(axis, box, known)
    run, tail = known[whole], _tail(shape) if _is_last(shape, box) else 0
    if not tail:
        return (run,)
    if run.piece_count == 1 and run.start + run.length == whole.size:
        return (StridedRun(run.start, run.length + tail),)
    return run, StridedRun(whole.size, tail)


def byte_segments(shape: Shape, box: Box) -> Iterator[tuple[int, int]]:
    """Yield the first byte and the length in bytes of each segment of a box, in the order of `box_segments`.

    Examples
    --------
    >>> list(byte_segments(Shape.parse("s4[4,6]{1,0:E(4)}"), (range(1, 4), range(2, 6))))
    [(4, 2), (7, 2), (10, 2)]
    """
    bits = shape.element_bits
    for run in box_segments(shape, box):
        nbytes = -(-run.length * bits // 8)
        for start in run.starts().tolist():
            yield start * bits // 8, nbytes


def _selected(axis: Axis, box: Box, known: dict[Axis, StridedRun]) -> StridedRun:
    """Return the indices along an axis at which a box has elements or owns padding."""
    match axis:
        case DimensionAxis(size=size, dimension=dimension, extent=extent):
            along = box[dimension]
            stop = size if along.stop == extent else along.stop
            return StridedRun(along.start, stop - along.start)
        case CountAxis(whole=part, tile_size=tile_size):
            run = known[part]
            first, last = run.start // tile_size, -(-(run.start + run.length) // tile_size)
            return StridedRun(first, last - first, run.counts, tuple(stride // tile_size for stride in run.strides))
        case MergedAxis(outer=outer, inner=inner):
            above, below = known[outer], known[inner]
            strides = tuple(stride * inner.size for stride in above.strides)
            if below.length == inner.size or above.length == 0:
                return StridedRun(above.start * inner.size, above.length * inner.size, above.counts, strides)
            start = above.start * inner.size + below.start
            lengths = (above.length,) if above.length > 1 else ()
            counts, strides = (*above.counts, *lengths), (*strides, *(inner.size for _ in lengths))
            return StridedRun(start, below.length, (*counts, *below.counts), (*strides, *below.strides))
        case OffsetAxis(size=size):
            return StridedRun(0, size)
        case _:
            return StridedRun(0, axis.size)


def _tail(shape: Shape) -> int:
    return shape.slot_count - _whole_buffer(shape).size


def _is_last(shape: Shape, box: Box) -> bool:
    return all(along.stop == size for along, size in zip(box, shape.dimensions, strict=True))


def _check_edges(shape: Shape, box: Box) -> None:
    if len(box) != shape.rank:
        raise FastIndexError(f"a box of {shape.cut_text()} has {shape.rank} ranges, got {len(box)}")
    for d, (along, size, step) in enumerate(zip(box, shape.dimensions, box_steps(shape), strict=True)):
        inside = 0 <= along.start < along.stop <= size or (size == 0 and along == range(0))
        if not inside or along.step != 1 or along.start % step or (along.stop % step and along.stop != size):
            raise FastIndexError(
                f"dimension {d} of {shape.cut_text()}: a box begins and ends at multiples of {step} or at {size}, got "
                f"{along}"
            )


def slab_grid(shape: Shape, most_nbytes: int) -> Grid:
    """Cut a buffer into contiguous segments that are boxes, as large as possible up to `most_nbytes` bytes.

    The boxes in the order of `slab_order`, each packed in its `box_shape`, concatenate to the buffer.

    Parameters
    ----------
    shape : Shape
    most_nbytes : int
        Exceeded where the smallest contiguous boxes are larger; the tail is not counted.

    Raises
    ------
    UnsupportedError, LayoutError
        `shape` has no slots.

    Examples
    --------
    >>> shape = Shape.parse("f32[1000,1000]{1,0:T(8,128)}")
    >>> grid = slab_grid(shape, 1 << 20)
    >>> grid.sizes, [box_segments(shape, box)[0].start for box in grid.boxes(slab_order(shape))]
    ((256, 1000), [0, 262144, 524288, 786432])
    """
    steps = box_steps(shape)
    # Padding at the high end of a dimension is part of the last box along it.
    padded = shape.layout.padded_dimensions or shape.dimensions
    owned = [whole - size for whole, size in zip(padded, shape.dimensions, strict=True)]
    grid = Grid(shape.dimensions, tuple(max(size, 1) for size in shape.dimensions))
    for d in slab_order(shape):
        if _most_bytes(shape, grid, owned) <= most_nbytes:
            break
        if steps[d] >= shape.dimensions[d]:
            continue
        smaller = _resized(grid, d, steps[d])
        one = _most_bytes(shape, smaller, [*owned[:d], 0, *owned[d + 1 :]])
        fitting = steps[d] * max(most_nbytes // max(one, 1) - -(-owned[d] // steps[d]), 1)
        smaller = _resized(grid, d, min(fitting, shape.dimensions[d]))
        if not is_contiguous(shape, smaller.sizes):
            break
        grid = smaller
    return grid


def _resized(grid: Grid, dimension: int, size: int) -> Grid:
    return Grid(grid.dimensions, (*grid.sizes[:dimension], size, *grid.sizes[dimension + 1 :]))


def _most_bytes(shape: Shape, grid: Grid, owned: Sequence[int]) -> int:
    """Return the most bytes of a box, if the last one along each dimension has `owned` more padding."""
    sizes = tuple(min(size, n) + more for size, n, more in zip(grid.sizes, shape.dimensions, owned, strict=True))
    axes = physical_axes(sizes, shape.layout.minor_to_major, None, shape.layout.tiles)
    return -(-math.prod([axis.size for axis in axes]) * shape.element_bits // 8)


def is_contiguous(shape: Shape, sizes: tuple[int, ...]) -> bool:
    """Whether boxes of the given sizes are contiguous: all are if the first and the last, which own padding, are.

    Examples
    --------
    >>> shape = Shape.parse("f32[64,64]")
    >>> is_contiguous(shape, (8, 64)), is_contiguous(shape, (8, 32))
    (True, False)
    """
    grid = Grid(shape.dimensions, sizes)
    corners = (0,) * shape.rank, tuple(count - 1 for count in grid.counts)
    return all(box_segments(shape, grid.box(corner))[0].piece_count == 1 for corner in corners)


def slab_order(shape: Shape) -> tuple[int, ...]:
    """Return the dimensions from the most major to the most minor: the order of the boxes of `slab_grid` in memory.

    Examples
    --------
    >>> slab_order(Shape.parse("f32[3,4,5]{0,2,1}"))
    (1, 2, 0)
    """
    return shape.layout.minor_to_major[::-1]


#: Cost of one more segment, in bytes moved: a system call, and half a page at each end. Measured on an AMD EPYC
#: (family 26), 2026-11-22: a `pread` of 4 KiB takes as long as two thirds of a 12 KiB one.
SEGMENT_COST_BYTES = 8 << 10
#: Cost of one more segment where a disk has to seek to it before the job can continue. Same machine: 105 us for
#: 32 KiB anywhere, 33 us for the next 32 KiB; two boxes are read at a time.
SOUGHT_SEGMENT_COST_BYTES = 32 << 10

#: Memory and cost of a box of some sizes, both in bytes.
BoxCosts = Callable[[tuple[int, ...]], tuple[int, int]]


def segment_costs(shape: Shape, sizes: tuple[int, ...], segment_cost: int = SEGMENT_COST_BYTES) -> tuple[int, int]:
    """Return the bytes of a box in a layout, and the cost of reading or writing its segments.

    Examples
    --------
    >>> shape = Shape.parse("f32[4096,4096]")
    >>> segment_costs(shape, (1, 4096)), segment_costs(shape, (4096, 1))
    ((16384, 24576), (16384, 33570816))
    """
    box = first_box(shape, sizes)
    nbytes = box_shape(shape, box).nbytes
    return nbytes, nbytes + segment_cost * sum(run.piece_count for run in box_segments(shape, box))


def box_sizes(
    dimensions: Sequence[int], steps: Sequence[int], costs: BoxCosts, most_bytes: int, counted: int | None = None
) -> tuple[int, ...] | None:
    """Choose the sizes of boxes.

    Parameters
    ----------
    dimensions : sequence of int
        Sizes of the array.
    steps : sequence of int
        Sizes are multiples of these, or the whole dimension.
    costs : callable
        Memory and cost of a box; memory grows with every size.
    most_bytes : int
        Memory limit of a box.
    counted : int, optional
        The least number of boxes, for several threads to work on and for progress; fewer where the array has no more.

    Returns
    -------
    tuple of int or None
        None where the smallest box takes more memory.

    Examples
    --------
    >>> rows, columns = Shape.parse("f32[4096,4096]{1,0}"), Shape.parse("f32[4096,4096]{0,1}")
    >>> def costs(sizes):
    ...     sides = [segment_costs(shape, sizes) for shape in (rows, columns)]
    ...     return sum(memory for memory, _ in sides), sum(cost for _, cost in sides)
    >>> box_sizes((4096, 4096), (1, 1), costs, 8 << 20)
    (1024, 1024)
    """
    whole = [max(size, 1) for size in dimensions]
    sizes = [min(step, size) for step, size in zip(steps, whole, strict=True)]
    if costs(tuple(sizes))[0] > most_bytes:
        return None
    most_elements = math.prod(whole) // (counted or 1)
    growing = {d for d, size in enumerate(sizes) if size < whole[d]}
    while growing:
        options = []
        for d in growing:
            grown = [*sizes]
            grown[d] = min(2 * sizes[d], whole[d])
            memory, cost = costs(tuple(grown))
            elements = math.prod(grown)
            options.append((cost / elements, memory, d, grown, elements))
        # Grow the dimension that leaves the least cost per element.
        _, memory, d, grown, elements = min(options)
        if memory > most_bytes or elements > max(most_elements, 1):
            growing.remove(d)
            continue
        sizes = grown
        if sizes[d] == whole[d]:
            growing.remove(d)
    return tuple(sizes)
