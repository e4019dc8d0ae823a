"""Jobs box by box: the bytes of the slow reference, whatever the boxes, and no byte written twice.

Tests of: moving.box_jobs, algebra.segments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.segments import Box, Grid, box_sizes, box_steps, byte_segments, common_steps, segment_costs
from fastindex.arrays.fills import fill_pattern
from fastindex.moving.box_jobs import BoxJob, Bytes, plan_boxes
from tests.cases import strategies
from tests.oracles import reference


@dataclass
class Memory:
    """A buffer in memory, as source and target; it counts how often each byte is written."""

    shape: fi.Shape
    content: Bytes
    steps: tuple[int, ...] = ()
    writes: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))

    def __post_init__(self) -> None:
        self.steps = self.steps or (1,) * self.shape.rank
        self.writes = np.zeros(len(self.content), np.uint8)

    def costs(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        return segment_costs(self.shape, sizes)

    def read(self, box: Box, into: Bytes) -> None:
        parts = [self.content[start : start + size] for start, size in byte_segments(self.shape, box)]
        into[:] = np.concatenate(parts)

    def write(self, box: Box, data: Bytes) -> None:
        at = 0
        for start, size in byte_segments(self.shape, box):
            self.content[start : start + size] = data[at : at + size]
            self.writes[start : start + size] += 1
            at += size
        assert at == len(data)


def check(pair: tuple[reference.ReferenceShape, reference.ReferenceShape], seed: int) -> None:
    source, target = (fi.Shape.parse(str(shape)) for shape in pair)
    draw = strategies.RandomSource(seed)
    noise = np.random.default_rng(seed).integers(0, 256, source.nbytes, dtype=np.uint8)
    # Values of the element type, and padding that must not come through.
    data = np.frombuffer(reference.relayout(noise.tobytes(), pair[0], pair[0], fill=1), np.uint8)
    try:
        pattern = fill_pattern(target)
    except fi.UnsupportedError:
        return
    expected = np.frombuffer(reference.relayout(data.tobytes(), *pair), np.uint8)
    for steps in (box_steps(target), common_steps(source, target)):
        sizes = tuple(
            step * draw.integer(1, max(size // step, 1)) for step, size in zip(steps, target.dimensions, strict=True)
        )
        for by_numpy in (True, False):
            there, here = Memory(source, data), Memory(target, np.full(target.nbytes, 0xA5, np.uint8))
            workers = draw.integer(1, 3)
            reported: list[int] = []
            BoxJob(there, here, Grid(target.dimensions, sizes), workers, by_numpy, False).run(pattern, reported.append)
            where = (str(source), str(target), sizes, by_numpy)
            np.testing.assert_array_equal(here.content, expected, f"{where}")
            assert (here.writes == 1).all(), where
            assert sum(reported) == target.nbytes


@pytest.mark.parametrize("seed", strategies.rotating_seeds(36))
def test_any_two_layouts_in_any_boxes(seed: int) -> None:
    check(strategies.random_pair(seed), seed)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("s4[9,7]{1,0:E(4)}", "s4[9,7]{0,1:E(4)}"),
        ("s4[9,7]", "s4[9,7]{0,1:T(4,4)E(4)L(13)}"),
        ("f32[20,30]{1,0:T(6,10)}", "f32[20,30]{1,0:T(4,7)L(1000)}"),
        ("f32[4,5,6]{2,1,0:T(*,7)}", "f32[4,5,6]{0,1,2:T(*,*,5)}"),
        ("pred[5,9]{1,0:E(32)}", "pred[5,9]{0,1:PAD(8,9)PV(one)}"),
        ("bf16[0,5]{1,0}", "bf16[0,5]{1,0:PAD(3,8)PV(one)}"),
        ("f32[]", "f32[]{:T(16)}"),
    ],
)
def test_layouts_that_share_few_boxes(source: str, target: str) -> None:
    for seed in range(2):
        check((reference.parse(source), reference.parse(target)), seed)


def test_boxes_of_the_target_are_multiples_of_its_steps() -> None:
    shape = fi.Shape.parse("f32[100,100]")
    job = plan_boxes(Memory(shape, np.zeros(0, np.uint8)), Memory(shape, np.zeros(0, np.uint8), (7, 30)), 4 << 30)
    assert all(size % step == 0 or size == 100 for size, step in zip(job.grid.sizes, (7, 30), strict=True))


def test_boxes_fit_and_are_long_on_both_sides() -> None:
    shapes = fi.Shape.parse("f32[65536,65536]"), fi.Shape.parse("f32[65536,65536]{0,1:T(8,128)}")

    def costs(sizes: tuple[int, ...]) -> tuple[int, int]:
        (read, first), (written, second) = (segment_costs(shape, sizes) for shape in shapes)
        return read + written, first + second

    for most in (32 << 10, 1 << 20, 64 << 20):
        sizes = box_sizes((65536, 65536), common_steps(*shapes), costs, most)
        assert sizes is not None
        assert most // 4 < costs(sizes)[0] <= most
        assert min(4 * sizes[1], 4 * 8 * sizes[0]) ** 2 >= most / 4
    assert box_sizes((65536, 65536), common_steps(*shapes), costs, 8 * 128 * 4) is None
    counted = box_sizes((65536, 65536), common_steps(*shapes), costs, 1 << 40, counted=10)
    assert counted is not None
    assert 65536**2 / math.prod(counted) >= 10


def test_too_little_memory_is_an_error_that_says_what_is_enough() -> None:
    shape = fi.Shape.parse("f32[100000000]{0:T(100000000)}")
    memory = Memory(shape, np.zeros(0, np.uint8))
    with pytest.raises(
        fi.FastIndexError, match=r"300 MiB are too few for this program and a box.*at least \d+ MiB"
    ) as error:
        plan_boxes(memory, memory, 300 << 20)
    least = int(str(error.value).split()[-2])
    assert least > 2 * shape.nbytes >> 20
    plan_boxes(memory, memory, least + 32 << 20)
