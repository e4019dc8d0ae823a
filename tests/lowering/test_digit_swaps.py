"""Digits of places that are permuted in registers, against NumPy: any order of them, gaps, streamed and not.

Tests of: lowering.relayout.moves.digit_swaps, tables.digit_swaps, kernels.cpu.relayout.moves.digit_swaps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fastindex as fi
from fastindex.cpu.movements import sure_movement
from fastindex.lowering.relayout.plan.choice import plans
from fastindex.lowering.tuning import TUNING
from tests.oracles import reference


def nibbles(buffer: np.ndarray) -> np.ndarray:
    """The elements of a packed buffer, the low half of a byte first."""
    return np.stack([buffer & 15, buffer >> 4], axis=-1).reshape(-1)


def moved(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """The elements of an array in a layout without tiles, `order` minor to major."""
    return array.transpose(order[::-1]).reshape(-1)


def run(source: str, destination: str, streamed: bool, given: np.ndarray, offset: int = 0) -> np.ndarray | None:
    """What the candidate makes of a buffer, None where it does not apply; what is around the target stays."""
    tuning = replace(TUNING, streamed_bytes=0) if streamed else TUNING
    movement = sure_movement(fi.Shape.parse(source), fi.Shape.parse(destination), tuning)
    if movement.problem.vector_bytes != 64:
        pytest.skip("no instruction permutes 64 bytes here")
    if not any(one.name == "digits" for one in plans(movement.problem)):
        return None
    size = fi.Shape.parse(destination).nbytes
    room = np.full(size + 256, 0x5A, np.uint8)
    begin = -room.ctypes.data % 64 + 64 + offset
    replace(movement, choice="digits").run_kernels(given.ctypes.data, room.ctypes.data + begin, bytes(16), 1)
    assert (room[:begin] == 0x5A).all()
    assert (room[begin + size :] == 0x5A).all()
    return room[begin : begin + size]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_binary_digits(seed: int, streamed: bool) -> None:
    rng = np.random.default_rng(seed)
    applied = 0
    for _ in range(60):
        rank = int(rng.integers(9, 13))
        sizes = [2] * rank
        if rng.random() < 0.5:
            sizes[int(rng.integers(rank))] = int(rng.choice([3, 6, 12, 5]))
        left, right = (tuple(int(i) for i in rng.permutation(rank)) for _ in range(2))
        if rng.random() < 0.7:
            # Most of the digits of a vector stay in one.
            right = (*rng.permutation(left[:8]).tolist(), *left[8:])
        text = ",".join(map(str, sizes))
        source, destination = (f"u4[{text}]{{{','.join(map(str, order))}:E(4)}}" for order in (left, right))
        array = rng.integers(0, 16, sizes).astype(np.uint8)
        flat = moved(array, left)
        given = flat[0::2] | flat[1::2] << 4
        got = run(source, destination, streamed, given, int(rng.choice([0, 1, 16])))
        if got is not None:
            applied += 1
            assert np.array_equal(nibbles(got), moved(array, right)), (source, destination)
    assert applied > 5


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("u4[64,256]{1,0:E(4)}", "u4[64,256]{1,0:T(8,1)E(4)}"),
        ("u4[64,256]{1,0:T(8,1)E(4)}", "u4[64,256]{1,0:E(4)}"),
        ("u4[48,256]{1,0:T(8,128)E(4)}", "u4[48,256]{1,0:T(16,128)(8,1)E(4)}"),
        # Padding of the destination.
        ("u4[24,384]{1,0:T(8,128)E(4)}", "u4[24,384]{1,0:T(16,128)(8,1)E(4)}"),
    ],
)
def test_tiles(source: str, destination: str) -> None:
    sides = reference.parse(source), reference.parse(destination)
    given = np.random.default_rng(0).integers(0, 256, fi.Shape.parse(source).nbytes, np.uint8)
    got = run(source, destination, False, given)
    assert got is not None
    assert got.tobytes() == reference.relayout(given.tobytes(), *sides)
