"""Sets of nests that are cut in different ways, compared with what NumPy enumerates.

Tests of: patterns.same_moves, algebra.sides.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.loops import Loop, Nest
from fastindex.patterns.same_moves import same_nests
from tests.cases import strategies


def copied(nests: Sequence[Nest]) -> list[tuple[int, int]]:
    """Each slot of the destination with the one of the source, in order."""
    found = []
    for nest in nests:
        steps = np.zeros(1, np.int64), np.zeros(1, np.int64)
        for loop in nest.loops:
            count = np.arange(loop.size)
            steps = tuple(  # type: ignore[assignment]
                np.add.outer(s, count * k).reshape(-1)
                for s, k in zip(steps, (loop.destination_stride, loop.source_stride), strict=True)
            )
        found += zip((steps[0] + nest.destination_start).tolist(), (steps[1] + nest.source_start).tolist(), strict=True)
    return sorted(found)


#: A box of 4 by 3 by 5 places, of which the middle digit has room for 4: what the other cases change.
WHOLE = Nest((Loop(5, 12, 1), Loop(3, 4, 8), Loop(4, 1, 32)), 7, 2)


def moved(nest: Nest, source: int, destination: int, *loops: Loop) -> Nest:
    return Nest(loops or nest.loops, nest.source_start + source, nest.destination_start + destination)


PAIRS: list[tuple[str, list[Nest], bool]] = [
    ("the same", [WHOLE], True),
    ("in another order", [moved(WHOLE, 0, 0, *WHOLE.loops[::-1])], True),
    ("a loop in two", [moved(WHOLE, 0, 0, *WHOLE.loops[:2], Loop(2, 1, 32), Loop(2, 2, 64))], True),
    (
        "cut along the last digit",
        [
            moved(WHOLE, 0, 0, *WHOLE.loops[:2], Loop(1, 1, 32)),
            moved(WHOLE, 1, 32, *WHOLE.loops[:2], Loop(3, 1, 32)),
        ],
        True,
    ),
    (
        "cut along the first digit",
        [
            moved(WHOLE, 0, 0, Loop(2, 12, 1), *WHOLE.loops[1:]),
            moved(WHOLE, 24, 2, Loop(3, 12, 1), *WHOLE.loops[1:]),
        ],
        True,
    ),
    ("another source", [moved(WHOLE, 1, 0)], False),
    ("another place", [moved(WHOLE, 0, 1)], False),
    (
        "the second part from elsewhere",
        [
            moved(WHOLE, 0, 0, Loop(2, 12, 1), *WHOLE.loops[1:]),
            moved(WHOLE, 25, 2, Loop(3, 12, 1), *WHOLE.loops[1:]),
        ],
        False,
    ),
    (
        "the two parts from each other's source",
        [
            moved(WHOLE, 2, 0, *WHOLE.loops[:2], Loop(2, 1, 32)),
            moved(WHOLE, 0, 64, *WHOLE.loops[:2], Loop(2, 1, 32)),
        ],
        False,
    ),
    ("another stride", [moved(WHOLE, 0, 0, Loop(5, 11, 1), *WHOLE.loops[1:])], False),
    ("strides of two digits exchanged", [moved(WHOLE, 0, 0, Loop(5, 12, 1), Loop(3, 1, 8), Loop(4, 4, 32))], False),
    ("another digit of as many elements", [moved(WHOLE, 0, 0, Loop(3, 12, 1), Loop(5, 4, 8), Loop(4, 1, 64))], False),
    (
        "a part twice",
        [moved(WHOLE, 0, 0, *WHOLE.loops[:2], Loop(2, 1, 32)), moved(WHOLE, 2, 128, *WHOLE.loops[:2], Loop(2, 1, 32))],
        False,
    ),
]


@pytest.mark.parametrize(("what", "nests", "same"), PAIRS, ids=[what for what, *_ in PAIRS])
def test_one_box_cut_in_two(what: str, nests: list[Nest], same: bool) -> None:
    assert (copied([WHOLE]) == copied(nests)) == same
    # None: strides that do not divide each other.
    known = (True,) if same else (False, None) if what == "another digit of as many elements" else (False,)
    assert same_nests([WHOLE], nests) in known
    assert same_nests(nests, [WHOLE]) in known


def cut(rng: random.Random, nest: Nest) -> list[Nest]:
    """Cut a loop of a nest in two, where it starts again, or in two loops."""
    at = rng.randrange(len(nest.loops))
    loop, rest = nest.loops[at], (*nest.loops[:at], *nest.loops[at + 1 :])
    if loop.size == 1:
        return [nest]
    if loop.size % 2 == 0 and rng.random() < 0.3:
        more = Loop(loop.size // 2, 2 * loop.source_stride, 2 * loop.destination_stride)
        return [Nest((Loop(2, *loop[1:]), more, *rest), nest.source_start, nest.destination_start)]
    count = rng.randrange(1, loop.size)
    behind = nest.source_start + count * loop.source_stride, nest.destination_start + count * loop.destination_stride
    return [
        Nest((Loop(count, *loop[1:]), *rest), nest.source_start, nest.destination_start),
        Nest((Loop(loop.size - count, *loop[1:]), *rest), *behind),
    ]


def spoiled(rng: random.Random, nests: list[Nest]) -> list[Nest]:
    """Change one number."""
    at = rng.randrange(len(nests))
    nest = nests[at]
    if rng.random() < 0.5:
        changed = moved(nest, rng.choice((1, -1, 2)), 0)
    else:
        loops = list(nest.loops)
        k = rng.randrange(len(loops))
        loops[k] = loops[k]._replace(source_stride=loops[k].source_stride + rng.choice((1, 2)))
        changed = moved(nest, 0, 0, *loops)
    return [*nests[:at], changed, *nests[at + 1 :]]


@pytest.mark.parametrize("seed", strategies.rotating_seeds(60))
def test_nests_cut_at_random(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        sizes = [rng.choice((2, 3, 4, 5)) for _ in range(rng.randint(1, 4))]
        rooms = [size + rng.choice((0, 0, 1)) for size in sizes]
        strides = list(itertools.accumulate([1, *rooms[:-1]], lambda a, b: a * b))
        sources = rng.sample([1, 7, 50, 400], len(sizes))
        box = Nest(tuple(map(Loop, sizes, sources, strides)), rng.randrange(9), 0)
        sides = []
        for _ in range(2):
            nests = [box]
            for _ in range(rng.randint(0, 3)):
                at = rng.randrange(len(nests))
                nests[at : at + 1] = cut(rng, nests[at])
            sides.append(rng.sample(nests, len(nests)))
        assert copied(sides[0]) == copied(sides[1])
        # Loops in two may have strides that do not divide those of others.
        assert same_nests(*sides) is not False, sides
        wrong = spoiled(rng, sides[1])
        assert same_nests(sides[0], wrong) in (copied(sides[0]) == copied(wrong), None), wrong


SPELLED = [
    # What shares no loops: tiles of both sides cut each other.
    ("a b -> b a", "x y -> y x", {}),
    ("a b -> b a", "(x y) b -> b (x y)", {"y": 3}),
    ("a b -> b a", "a (x y) -> (x y) a", {"x": 5}),
    ("(x y) b -> b (y x)", "(x y) (c d) -> (c d) (y x)", {"y": 3}),
    ("a b -> b a", "(u v w) (x y) -> (x y) (u v w)", {"u": 2, "v": 2, "x": 2}),
]


@pytest.mark.parametrize(("one", "other", "sizes"), SPELLED)
def test_plans_without_shared_loops_are_equal_by_digits(one: str, other: str, sizes: dict[str, int]) -> None:
    source, destination = "u8[12,10]{1,0:T(5,4)}", "u8[10,12]{1,0:T(3,7)}"

    def plan(pattern: str, **more: int) -> fi.RearrangePlan:
        names = set(pattern.replace("(", " ").replace(")", " ").split())
        return fi.plan_rearrange(
            pattern, source, destination, **{k: v for k, v in {**sizes, **more}.items() if k in names}
        )

    left, right = plan(one), plan(other, d=2)
    assert left._movement.slots.loops is None or right._movement.slots.loops is None
    buffer = np.arange(left.source.slot_count, dtype=np.uint8)
    same = np.array_equal(left(buffer), right(buffer))
    assert (left == right) is same, (one, other)


def test_reshapes_without_shared_loops_are_equal_by_digits() -> None:
    """Other dimensions of the same bytes."""
    merged = fi.plan_rearrange("a b c -> c (b a)", "u8[2,6,10]{2,1,0:T(5,4)}", "u8[10,12]{1,0:T(3,7)}")
    split = fi.plan_rearrange("d a b c -> c (d b a)", "u8[1,2,6,10]{3,2,1,0:T(5,4)}", "u8[10,12]{1,0:T(3,7)}")
    assert merged._movement.slots.loops is None
    assert merged == split
    assert hash(merged) == hash(split)
    assert merged != fi.plan_rearrange("a b c -> c (a b)", "u8[2,6,10]{2,1,0:T(5,4)}", "u8[10,12]{1,0:T(3,7)}")
    padded = fi.plan_rearrange("(a b) c -> c a b", "u8[11,10]{1,0:T(5,4)}", "u8[10,3,4]{2,1,0:T(3,7)}", b=4, pad=True)
    other = fi.plan_rearrange(
        "(a b) (c d) -> (c d) a b", "u8[11,10]{1,0:T(5,4)}", "u8[10,3,4]{2,1,0:T(3,7)}", b=4, d=5, pad=True
    )
    assert padded._movement.slots.loops is None
    assert padded == other


def test_composed_plans_without_shared_loops_are_equal_by_digits() -> None:
    """Digits of one variable against separate variables, and a variable that does not fill its digits."""
    flat = fi.plan_rearrange("a b -> (a b)", "u8[12,10]{1,0:T(5,4)}")
    both = flat.then(fi.plan_rearrange("(x y) -> y x", flat.destination, "u8[5,24]{1,0:T(3,7)}", y=5))
    assert both._movement.slots.loops is None
    assert both == fi.plan_rearrange("a (b y) -> y (a b)", both.source, both.destination, y=5)
    assert both != fi.plan_rearrange("a (b y) -> y (b a)", both.source, both.destination, y=5)
    turned = fi.plan_rearrange("(x y) -> y x", "u8[120]", "u8[20,6]{1,0:T(3,7)}", y=20)
    back = fi.plan_rearrange("(x y z) -> (y z) x", "u8[120]", turned.destination, y=2, z=10)
    for move in (turned, back, turned.inverse().inverse()):
        assert (flat.then(move)) == flat.then(turned)
    rows = fi.plan_rearrange("(x c) -> x c", "u8[121]", "u8[11,11]{1,0:T(5,4)}", c=11).inverse()
    cut = fi.plan_rearrange("(x c) -> x c", "u8[121]", c=11)
    tiles = "u8[3,44]{1,0:T(2,7)}"
    composed = cut.then(fi.plan_rearrange("(a b) c -> a (b c)", cut.destination, tiles, b=4, pad=True))
    assert composed == fi.plan_rearrange("(a b c) -> a (b c)", "u8[121]", tiles, b=4, c=11, pad=True)
    assert rows.then(composed)._movement.slots.loops is None
    whole = fi.plan_rearrange("(a b c) -> a (b c)", "u8[121]", tiles, b=4, c=11, pad=True)
    assert rows.then(composed) == rows.then(whole)
