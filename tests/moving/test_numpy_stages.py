"""Copies block by block: what NumPy copies, and nothing beside it.

Tests of: moving.numpy_moves.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from fastindex.moving import numpy_moves as numpy_stages
from fastindex.runtime.machine import EPYC_1M, Machine
from tests.cases import strategies
from tests.cases.machines import EPYC_512K_AVX2, SMALL_256K, XEON_2M


def strided(draw: strategies.RandomSource, sizes: list[int], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """An array of any order and with any gaps, and the memory it lies in."""
    strides, step = [0] * len(sizes), 1
    for d in strategies.draw_permutation(draw, len(sizes)):
        step += draw.integer(0, 3) if draw.integer(0, 2) == 0 else 0
        strides[d] = step
        step *= sizes[d]
    memory = np.full(step + 20, 0x5A, "u1").repeat(np.dtype(dtype).itemsize).view(dtype)
    view = np.lib.stride_tricks.as_strided(memory[10:], sizes, [stride * memory.itemsize for stride in strides])
    return view, memory


@pytest.mark.parametrize("seed", strategies.rotating_seeds(60))
def test_any_strides(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = strategies.RandomSource(seed)
    dtype = draw.pick(["u1", "u2", "u4", "u8", "c16"])
    monkeypatch.setattr(numpy_stages, "_LEAST_BYTES", 0)
    monkeypatch.setattr(numpy_stages, "collides", lambda target, source, l2: True)
    monkeypatch.setattr(numpy_stages, "_BLOCK_BYTES", draw.pick([16, 64, 500, 4096]))
    sizes = [draw.integer(1, 12) for _ in range(draw.integer(1, 5))]
    (source, read), (target, written) = strided(draw, sizes, dtype), strided(draw, sizes, dtype)
    content = np.random.default_rng(seed).integers(0, 256, read.nbytes, dtype=np.uint8)
    read.view(np.uint8)[:] = content
    expected = written.copy()
    np.lib.stride_tricks.as_strided(expected[10:], sizes, target.strides)[...] = source
    numpy_stages.copy(target, source)
    assert written.tobytes() == expected.tobytes()
    assert read.view(np.uint8).tobytes() == content.tobytes()


@pytest.mark.parametrize(
    ("sizes", "order", "dtype", "expected"),
    [
        ((4096, 2048), (1, 0), "u4", True),
        ((1000, 8000), (1, 0), "u4", False),
        ((4096, 2048), (0, 1), "u4", False),
        ((64, 64, 64, 32), (3, 2, 1, 0), "u4", True),
        ((8, 8), (1, 0), "u4", False),
        # Whole lines are read at once.
        ((4096, 256, 16), (1, 0, 2), "u4", False),
        # Pairs of elements are not.
        ((4096, 1024, 2), (1, 0, 2), "u2", True),
        # Every line has but one element.
        ((4096, 512), (1, 0), "c16", True),
    ],
)
def test_what_goes_through_a_stage(sizes: tuple[int, ...], order: tuple[int, ...], dtype: str, expected: bool) -> None:
    source = np.zeros(sizes, dtype)
    target = np.empty([sizes[d] for d in order], dtype).transpose(np.argsort(order))
    assert target.shape == source.shape
    assert numpy_stages.collides(target, source, EPYC_1M.caches.l2) is expected


@pytest.mark.parametrize(("machine", "expected"), [(SMALL_256K, True), (EPYC_512K_AVX2, False), (XEON_2M, False)])
def test_a_small_cache_keeps_fewer_lines(machine: Machine, expected: bool) -> None:
    """1000 lines, 32,000 bytes apart, meet in 128 of the 512 sets of 256 KiB."""
    source = np.zeros((1000, 8000), "u4")
    assert numpy_stages.collides(np.empty((8000, 1000), "u4").T, source, machine.caches.l2) is expected


def test_rows_of_a_stage_are_an_odd_number_of_lines_apart() -> None:
    source = np.zeros((512, 2048, 8), np.uint32)
    stage = numpy_stages._stage(source, (64, 32, 8))
    assert stage.strides[1:] == (32, 4)
    lines, rest = divmod(stage.strides[0], 64)
    assert rest == 0
    assert lines % 2 == 1
    assert stage.strides[0] >= 1024


def test_the_real_sizes() -> None:
    source = np.random.default_rng(0).integers(0, 2**32, (8, 128, 300, 8), dtype=np.uint32)
    source = np.lib.stride_tricks.as_strided(source, source.shape, source.strides)
    target = np.zeros((300, 8, 8, 128), np.uint32)
    numpy_stages.copy(target.transpose(1, 3, 0, 2), source)
    np.testing.assert_array_equal(target, source.transpose(2, 0, 3, 1))
    assert math.prod(numpy_stages._block_sizes(target.transpose(1, 3, 0, 2), source)) <= 1 << 16
