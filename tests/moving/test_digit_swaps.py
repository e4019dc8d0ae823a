"""Digits of places that are permuted in registers, against NumPy: any order of them, gaps, streamed and not.

Vectors of 64 bytes and of 16 on every machine, its own each day: kernels do without the instructions that it lacks.

Tests of: moving.moves.digit_swaps.plan, moving.numbers, moving.moves.digit_swaps.kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import fastindex as fi
from fastindex.moving.choice import plans
from fastindex.moving.movements import Movement, movement
from fastindex.moving.moves.digit_swaps import OF_ROWS, WITHIN, SwapGeometry
from fastindex.moving.numbers import CHUNKS
from fastindex.moving.passes import Draft
from fastindex.runtime.machine import EPYC_1M, this_machine
from fastindex.runtime.tuning import TUNING
from tests.cases import strategies
from tests.cases.machines import run_here
from tests.oracles import reference

#: The vectors of the machine, whose kernels are compiled ahead, and others. Where the machine has no instruction for 64
#: bytes, their kernels take half a minute to compile: there a plain run only plans with them.
TODAY = sorted({this_machine().target.vector_bytes, *([16] if strategies.PART is not None else [16, 64])})


@pytest.fixture(params=TODAY)
def vector_bytes(request: pytest.FixtureRequest) -> int:
    """How many bytes the machine permutes with one instruction."""
    return int(request.param)


def nibbles(buffer: np.ndarray) -> np.ndarray:
    """The elements of a packed buffer, the low half of a byte first."""
    return np.stack([buffer & 15, buffer >> 4], axis=-1).reshape(-1)


def moved(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """The elements of an array in a layout without tiles, `order` minor to major."""
    return array.transpose(order[::-1]).reshape(-1)


def movement_of(source: str, destination: str, streamed: bool, vector_bytes: int) -> Movement:
    """A movement that runs here, for vectors of a length."""
    tuning = replace(TUNING, streamed_bytes=0) if streamed else TUNING
    machine = run_here(EPYC_1M, vector_bytes)
    return movement(fi.Shape.parse(source), fi.Shape.parse(destination), tuning, machine)


def run(movement: Movement, given: np.ndarray, offset: int = 0) -> np.ndarray | None:
    """What the candidate makes of a buffer, None where it does not apply; what is around the target stays."""
    if not any(one.name == "digits" for one in plans(movement.problem)):
        return None
    assert isinstance(movement.destination, fi.Shape)
    size = movement.destination.nbytes
    room = np.full(size + 256, 0x5A, np.uint8)
    begin = -room.ctypes.data % 64 + 64 + offset
    replace(movement, choice="digits").run_kernels(given.ctypes.data, room.ctypes.data + begin, bytes(16), 1)
    assert (room[:begin] == 0x5A).all()
    assert (room[begin + size :] == 0x5A).all()
    return room[begin : begin + size]


#: Orders of binary digits in the destination, those of the source being 0, 1, ...; 0 to 6 are a vector of the source.
#: With them how the half of a byte is found (tables.digit_swaps), whether the first digit of the row is swapped again,
#: how many digits distinguish rows, and the bytes of a piece; for vectors of 64 bytes.
CHOSEN: list[tuple[tuple[int, ...], tuple[int, int, int, int]]] = [
    # It is another digit of the vector.
    ((3, 0, 1, 2, 4, 5, 7, 6, 8), (WITHIN, 0, 1, 64)),
    ((6, 7, 8, 2, 1, 0, 3, 4, 5), (WITHIN, 0, 2, 64)),
    ((1, 7, 8, 9, 2, 3, 4, 5, 6, 0), (WITHIN, 0, 3, 64)),
    ((2, 10, 9, 8, 7, 0, 1, 6, 5, 4, 3), (WITHIN, 0, 4, 64)),
    # It is a digit of the row; the digit that was there stays in the vector, or does not.
    ((7, 0, 1, 2, 3, 4, 5, 6, 8), (OF_ROWS, 1, 1, 64)),
    ((7, 6, 5, 4, 3, 2, 1, 0, 8), (OF_ROWS, 0, 1, 64)),
    ((8, 1, 0, 7, 3, 4, 5, 6, 2), (OF_ROWS, 1, 2, 64)),
    ((8, 7, 9, 1, 2, 3, 4, 5, 0, 6), (OF_ROWS, 0, 3, 64)),
    ((9, 0, 10, 7, 8, 1, 2, 3, 4, 5, 6), (OF_ROWS, 1, 4, 64)),
    # Five digits of rows are too many for whole vectors, and not for halves of them.
    ((2, 7, 8, 9, 10, 1, 11, 0, 3, 4, 5, 6), (WITHIN, 0, 4, 32)),
    ((7, 8, 0, 9, 10, 1, 11, 2, 3, 4, 5, 6), (OF_ROWS, 1, 4, 32)),
]
#: The same for vectors of 16 bytes, which 0 to 4 are; and whether a line of the destination is written at once.
CHOSEN_LANES: list[tuple[tuple[int, ...], tuple[int, int, int, bool]]] = [
    # It is another digit of the lane.
    ((1, 7, 8, 9, 2, 5, 6, 0, 3, 4), (WITHIN, 0, 3, True)),
    ((2, 10, 9, 8, 7, 0, 1, 6, 5, 4, 3), (WITHIN, 0, 4, False)),
    # It is a digit of the row; the digit that was there stays in the lane, or does not.
    ((7, 0, 1, 2, 3, 8, 9, 4, 5, 6), (OF_ROWS, 1, 1, True)),
    ((8, 1, 0, 7, 3, 4, 5, 6, 2), (OF_ROWS, 1, 2, False)),
    ((8, 7, 9, 1, 2, 10, 11, 3, 4, 5, 0, 6), (OF_ROWS, 0, 3, True)),
    ((7, 8, 0, 9, 10, 1, 11, 2, 3, 4, 5, 6), (OF_ROWS, 1, 4, False)),
    # That of the source that distinguishes lanes is one of the row.
    ((10, 3, 7, 4, 5, 8, 9, 2, 0, 1, 6), (OF_ROWS, 0, 3, True)),
    # Lanes are neighbours in both, in another order.
    ((7, 0, 1, 2, 3, 6, 5, 4, 8), (OF_ROWS, 1, 1, True)),
]
#: No row to swap with, whole bytes that stay together, and more rows than stay in registers.
REFUSED = [
    (0, 1, 2, 3, 4, 5, 6, 8, 7),
    (1, 0, 2, 3, 4, 5, 6, 8, 7),
    (0, 2, 1, 4, 3, 5, 7, 6, 8),
    (8, 7, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6),
]


def sides(sizes: Sequence[int], left: Sequence[int], right: Sequence[int]) -> tuple[str, str]:
    text = ",".join(map(str, sizes))
    first, last = (f"u4[{text}]{{{','.join(map(str, order))}:E(4)}}" for order in (left, right))
    return first, last


def check(
    sizes: Sequence[int], left: tuple[int, ...], right: tuple[int, ...], how: tuple[int, bool], offset: int
) -> bool:
    """Whether the candidate applies; if it does, what it makes is what NumPy makes.

    `how` is the bytes of a vector, and whether stores are non-temporal.
    """
    source, destination = sides(sizes, left, right)
    array = np.random.default_rng(0).integers(0, 16, sizes).astype(np.uint8)
    flat = moved(array, left)
    vector_bytes, streamed = how
    movement = movement_of(source, destination, streamed, vector_bytes)
    got = run(movement, flat[0::2] | flat[1::2] << 4, offset)
    assert got is None or np.array_equal(nibbles(got), moved(array, right)), (source, destination)
    return got is not None


def draft_of(order: tuple[int, ...], streamed: bool, vector_bytes: int) -> tuple[Draft, SwapGeometry]:
    """The draft for binary digits in an order; what it does is compared with NumPy before, with vectors of today."""
    rank = len(order)
    for offset in (0, 1, 16) if vector_bytes in TODAY else ():
        assert check([2] * rank, tuple(range(rank)), order, (vector_bytes, streamed), offset)
    problem = movement_of(*sides([2] * rank, range(rank), order), streamed, vector_bytes).problem
    (draft,) = next(one.drafts for one in plans(problem) if one.name == "digits")
    return draft, SwapGeometry(*draft.geometry[len(CHUNKS) :])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("order", "steps"), CHOSEN)
@pytest.mark.parametrize("vector_bytes", [64], indirect=True)
def test_chosen_orders_of_binary_digits(
    order: tuple[int, ...], steps: tuple[int, int, int, int], streamed: bool, vector_bytes: int
) -> None:
    draft, geometry = draft_of(order, streamed, vector_bytes)
    assert (geometry.halves, geometry.again, draft.ways, draft.width) == steps


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("order", "steps"), CHOSEN_LANES)
@pytest.mark.parametrize("vector_bytes", [16], indirect=True)
def test_chosen_orders_of_binary_digits_in_lanes(
    order: tuple[int, ...], steps: tuple[int, int, int, bool], streamed: bool, vector_bytes: int
) -> None:
    draft, geometry = draft_of(order, streamed, vector_bytes)
    halves, again, rows, is_whole = steps
    assert (geometry.halves, geometry.again, draft.ways, draft.width) == (halves, again, rows, 16)
    assert geometry.streamed == (streamed and is_whole)


@pytest.mark.parametrize("size", [3, 5, 6, 12])
def test_digits_around_what_is_no_power_of_two(size: int, vector_bytes: int) -> None:
    """Loops outside the vectors on both sides, on one, and between rows."""
    chosen = CHOSEN if vector_bytes == 64 else CHOSEN_LANES
    for (order, _), place in itertools.product(chosen, (7, 8)):
        rank = len(order) + 1
        left = [*range(place), rank - 1, *range(place, rank - 1)]
        right = [*order, rank - 1]
        sizes = [2] * (rank - 1) + [size]
        assert check(sizes, tuple(left), tuple(right), (vector_bytes, False), 0)


@pytest.mark.parametrize("order", REFUSED)
def test_orders_that_are_no_swaps_with_rows(order: tuple[int, ...], vector_bytes: int) -> None:
    assert not check([2] * len(order), tuple(range(len(order))), order, (vector_bytes, False), 0)


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_binary_digits(seed: int, streamed: bool, vector_bytes: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(60):
        rank = int(rng.integers(9, 13))
        sizes = [2] * rank
        if rng.random() < 0.5:
            sizes[int(rng.integers(rank))] = int(rng.choice([3, 6, 12, 5]))
        left, right = (tuple(int(i) for i in rng.permutation(rank)) for _ in range(2))
        if rng.random() < 0.7:
            # Most of the digits of a vector stay in one.
            right = (*rng.permutation(left[:8]).tolist(), *left[8:])
        check(sizes, left, right, (vector_bytes, streamed), int(rng.choice([0, 1, 16])))


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
def test_tiles(source: str, destination: str, vector_bytes: int) -> None:
    both = reference.parse(source), reference.parse(destination)
    given = np.random.default_rng(0).integers(0, 256, fi.Shape.parse(source).nbytes, np.uint8)
    got = run(movement_of(source, destination, False, vector_bytes), given)
    assert got is not None
    assert got.tobytes() == reference.relayout(given.tobytes(), *both)
