"""Which segments of a buffer a box owns, against the slow reference: cell by cell.

Tests of: algebra.segments.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest

import fastindex as fi
from fastindex.algebra.segments import (
    Box,
    Grid,
    box_segments,
    box_shape,
    box_steps,
    common_steps,
    covering,
    slab_grid,
    slab_order,
)
from tests.cases import strategies
from tests.oracles import reference


def cells_of(shape: reference.ReferenceShape) -> list[reference.Cell]:
    return list(reference.slots(shape))


def owned(shape: fi.Shape, box: Box) -> list[int]:
    """The slots that a box owns, in the order of its own buffer."""
    return [
        slot
        for record in box_segments(shape, box)
        for start in record.starts().tolist()
        for slot in range(start, start + record.length)
    ]


def check_box(shape: fi.Shape, cells: list[reference.Cell], box: Box) -> list[int]:
    slots = owned(shape, box)
    part = box_shape(shape, box)
    inside = reference.slots(reference.parse(str(part)))
    starts = [along.start for along in box]
    expected = [None if c is None else tuple(i + at for i, at in zip(c, starts, strict=True)) for c in inside]
    assert [cells[slot] for slot in slots] == expected, (shape, box, part)
    return slots


def check_grid(shape: fi.Shape, grid: Grid) -> None:
    """The boxes own every slot once, and every byte of packed elements."""
    cells = cells_of(reference.parse(str(shape)))
    slots = [check_box(shape, cells, box) for box in grid.boxes()]
    assert sorted(itertools.chain(*slots)) == list(range(shape.slot_count)), (shape, grid)
    per_byte = 8 // math.gcd(shape.element_bits, 8)
    owners = [{slot // per_byte for slot in of_box} for of_box in slots]
    assert sum(map(len, owners)) == len(set().union(*owners)), (shape, grid)


def drawn_grid(source: strategies.Source, shape: fi.Shape, steps: tuple[int, ...]) -> Grid:
    return Grid(
        shape.dimensions,
        tuple(
            step * source.integer(1, max(size // step, 1)) for step, size in zip(steps, shape.dimensions, strict=True)
        ),
    )


@pytest.mark.parametrize("seed", strategies.rotating_seeds(210))
def test_boxes_of_any_layout(seed: int) -> None:
    source = strategies.RandomSource(seed)
    shape = fi.Shape.parse(str(strategies.draw_shape(source)))
    check_grid(shape, Grid(shape.dimensions, box_steps(shape)))
    check_grid(shape, drawn_grid(source, shape, box_steps(shape)))


@pytest.mark.parametrize("seed", strategies.rotating_seeds(210))
def test_slabs_are_the_buffer_in_order(seed: int) -> None:
    source = strategies.RandomSource(seed)
    drawn = strategies.draw_shape(source)
    shape = fi.Shape.parse(str(drawn))
    most = source.integer(1, max(shape.nbytes, 1))
    grid = slab_grid(shape, most)
    at = 0
    for box in grid.boxes(slab_order(shape)):
        (segment,) = box_segments(shape, box)
        assert (segment.start, segment.piece_count) == (at, 1), (shape, most)
        assert segment.length == box_shape(shape, box).slot_count
        at += segment.length
    assert at == shape.slot_count
    # Merged dimensions and padded ones may leave no contiguous boxes that are smaller.
    if shape.layout.padded_dimensions is None and "*" not in str(shape):
        untailed = fi.Shape.parse(str(dataclasses.replace(drawn, tail_alignment=1)))
        largest = max(box_shape(untailed, box).nbytes for box in grid.boxes())
        least = all(n <= max(step, 1) for n, step in zip(grid.sizes, box_steps(shape), strict=True))
        assert largest <= most or least, (shape, most, grid)


def test_slabs_are_as_large_as_they_may_be() -> None:
    shape = fi.Shape.parse("f32[1000,1000]{1,0:T(8,128)}")
    assert slab_grid(shape, 8 * 1024 * 4).sizes == (8, 1000)
    assert slab_grid(shape, 8 * 1024 * 4 - 1).sizes == (8, 7 * 128)
    assert slab_grid(shape, 1).sizes == (8, 128)
    assert slab_grid(shape, shape.nbytes).sizes == (1000, 1000)
    turned = fi.Shape.parse("f32[1000,1000]{0,1}")
    assert slab_grid(turned, 9999).sizes == (1000, 2)


@pytest.mark.parametrize("seed", strategies.rotating_seeds(90))
def test_boxes_that_both_layouts_own(seed: int) -> None:
    shapes = [fi.Shape.parse(str(shape)) for shape in strategies.random_pair(seed)]
    grid = drawn_grid(strategies.RandomSource(seed), shapes[0], common_steps(*shapes))
    for shape in shapes:
        check_grid(shape, grid)


@pytest.mark.parametrize("seed", strategies.rotating_seeds(90))
def test_what_an_output_box_needs(seed: int) -> None:
    source, target = (fi.Shape.parse(str(shape)) for shape in strategies.random_pair(seed))
    cells = cells_of(reference.parse(str(source)))
    for box in Grid(target.dimensions, box_steps(target)).boxes():
        needed = covering(box, box_steps(source), source.dimensions)
        held = {cells[slot] for slot in check_box(source, cells, needed)}
        assert held >= set(itertools.product(*box))
        for along, wanted, step in zip(needed, box, box_steps(source), strict=True):
            assert along.start > wanted.start - step
            assert along.stop < wanted.stop + step


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("f32[]", ()),
        ("f32[]{:T(256)}", ()),
        ("f32[7]", (1,)),
        ("f32[5000]{0:T(1024)}", (1024,)),
        ("bf16[64,3,1000]{2,1,0:T(8,128)(2,1)}", (1, 3, 128)),
        ("bf16[64,1000]{0,1:T(8,128)(2,1)}", (64, 8)),
        # A second tile that reaches the counts of the first one.
        ("f32[64,64]{1,0:T(8,16)(2,1,1,1)}", (16, 16)),
        # Combined dimensions act as one, unless tiles end where the minor one does.
        ("f32[4,6]{1,0:T(*,4)}", (2, 6)),
        ("f32[4,8]{1,0:T(*,4)}", (1, 4)),
        ("f32[4,5,6]{2,1,0:T(*,*,7)}", (4, 5, 6)),
        ("s4[7]{0:E(4)}", (2,)),
        ("s4[9,7]{1,0:E(4)}", (2, 7)),
        ("s4[9,8]{1,0:E(4)}", (1, 2)),
        ("s4[9,8]{1,0:T(2,4)E(4)}", (2, 4)),
        ("u2[9,9]{1,0:T(3,3)E(2)}", (9, 9)),
        ("u1[9,9,8]{2,1,0:T(3,3)E(1)}", (8, 9, 8)),
        ("u4[0,5]{1,0:PAD(3,5)E(4)}", (1, 5)),
    ],
)
def test_steps(text: str, steps: tuple[int, ...]) -> None:
    shape = fi.Shape.parse(text)
    assert box_steps(shape) == steps


@pytest.mark.parametrize("edges", [(range(4), range(128)), (range(8), range(1, 128)), (range(8), range(129))])
def test_edges_inside_tiles_are_refused(edges: Box) -> None:
    shape = fi.Shape.parse("f32[64,256]{1,0:T(8,128)}")
    for function in (box_shape, box_segments):
        with pytest.raises(fi.FastIndexError, match="begins and ends at multiples of"):
            function(shape, edges)
    with pytest.raises(fi.FastIndexError, match="has 2 ranges"):
        box_shape(shape, edges[:1])


def test_large_arrays_take_no_time() -> None:
    shape = fi.Shape.parse("bf16[100000,1000,1000,100]{3,2,1,0:T(8,128)(2,1)}")
    grid = slab_grid(shape, 128 << 20)
    assert grid.counts[1:] == (2, 1, 1) or math.prod(grid.counts) > 2**17
    last = grid.box([n - 1 for n in grid.counts])
    (segment,) = box_segments(shape, last)
    assert segment.start + segment.length == shape.slot_count
