"""Plans between any layouts: against the definition, composed, inverted and compared.

Tests of: patterns.grammar, algebra.sides, patterns.same_moves.
"""

from __future__ import annotations

import itertools
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest

import fastindex as fi
from fastindex import RearrangePlan
from fastindex.moving.movements import Movement
from fastindex.runtime.machine import EPYC_1M
from tests.cases import rearrangement_cases, strategies
from tests.oracles import reference
from tests.oracles.rearranged import Case, random_case
from tests.oracles.reference import ReferenceShape


@pytest.mark.parametrize("first", strategies.rotating_seeds(30))
def test_random_plans(first: int) -> None:
    for seed in range(20 * first, 20 * first + 20):
        rearrangement_cases.check(seed)


@pytest.mark.parametrize("seed", strategies.rotating_seeds(60))
def test_reshape_between_any_layouts(seed: int) -> None:
    source = strategies.RandomSource(seed)
    rng = random.Random(seed)
    factors = [rng.choice((1, 2, 2, 3, 3, 5, 7)) for _ in range(rng.randint(1, 5))]

    def side() -> ReferenceShape:
        sizes: list[int] = []
        for factor in rng.sample(factors, len(factors)):
            if sizes and rng.random() < 0.5:
                sizes[-1] *= factor
            else:
                sizes.append(factor)
        return strategies.draw_layout(source, kind, tuple(sizes), True)

    kind = rng.choice(rearrangement_cases.TYPES)
    left, right = side(), side()
    bits = 1 if kind == "pred" else reference.VALUE_BITS[kind]
    values = [rng.getrandbits(bits) for _ in range(int(np.prod(left.dimensions)))]
    buffers = [
        np.frombuffer(reference.pack(s, dict(zip(reference.every_index(s.dimensions), values, strict=True))), np.uint8)
        for s in (left, right)
    ]
    assert fi.reshape(buffers[0], str(left), str(right)).tobytes() == buffers[1].tobytes(), (left, right)
    if fi.layouts.same_bytes(str(left), str(right)):
        places = [[reference.linear_index(s, i) for i in reference.every_index(s.dimensions)] for s in (left, right)]
        assert places[0] == places[1], (left, right)


def test_same_bytes_knows_every_reshape_that_moves_nothing() -> None:
    texts = [
        "u8[4,6]",
        "u8[24]",
        "u8[2,2,6]",
        "u8[6,4]{0,1}",
        "u8[4,6]{1,0:T(2,6)}",
        "u8[6,2,2]{2,1,0}",
        "u8[24]{0:L(32)}",
    ]
    texts += [
        "u8[4,6]{1,0:T(2,3)}",
        "u8[2,2,2,3]{3,1,2,0}",
        "u8[4,6]{1,0:T(3,6)}",
        "s8[24]",
        "u4[24]",
        "u4[24]{0:E(4)}",
    ]
    for a, b in itertools.product(texts, texts):
        left, right = (reference.parse(text) for text in (a, b))
        same = left.element_type == right.element_type and reference.element_bits(left) == reference.element_bits(right)
        same = same and reference.slot_count(left) == reference.slot_count(right)
        places = [[reference.linear_index(s, i) for i in reference.every_index(s.dimensions)] for s in (left, right)]
        assert fi.layouts.same_bytes(a, b) == (same and places[0] == places[1]), (a, b)


def test_relayout_names_reshape() -> None:
    with pytest.raises(fi.FastIndexError, match="reshape"):
        fi.relayout(np.zeros(24, np.uint8), "u8[4,6]", "u8[6,4]")
    with pytest.raises(fi.FastIndexError, match=r"24, .* has 25"):
        fi.reshape(np.zeros(24, np.uint8), "u8[4,6]", "u8[25]")
    with pytest.raises(fi.FastIndexError, match="element type"):
        fi.reshape(np.zeros(24, np.uint8), "u8[4,6]", "s8[24]")


@pytest.mark.parametrize("seed", strategies.rotating_seeds(60))
def test_then_is_one_after_the_other(seed: int) -> None:
    rng = random.Random(seed)
    dimensions = tuple(rng.choice((1, 2, 3, 4, 6, 8)) for _ in range(rng.randint(1, 3)))
    plan = some_plan(rng, fi.Shape("u8", dimensions))
    other = some_plan(rng, plan.destination)
    buffer = np.arange(plan.source.slot_count, dtype=np.uint8)
    try:
        both = plan.then(other)
    except fi.UnsupportedError:
        return
    assert np.array_equal(both(buffer), other(plan(buffer))), (plan, other)
    assert plan.then(plan.inverse()).is_bitcast
    third = some_plan(rng, other.destination)
    try:
        left, right = plan.then(other).then(third), plan.then(other.then(third))
    except fi.UnsupportedError:
        return
    assert left == right
    assert hash(left) == hash(right)


def some_plan(rng: random.Random, source: fi.Shape) -> RearrangePlan:
    """Split what divides, reorder, merge, into a layout with or without tiles."""
    groups, names, sizes = [], [], {}
    for d, size in enumerate(source.dimensions):
        parts = [f"x{d}"]
        factor = rng.choice((1, 2, 3))
        if size % factor == 0 and size:
            parts.append(f"y{d}")
            sizes[f"y{d}"] = factor
        groups.append(parts)
        names += parts
    rng.shuffle(names)
    right: list[list[str]] = []
    for name in names:
        if right and rng.random() < 0.5:
            right[-1].append(name)
        else:
            right.append([name])
    pattern = " -> ".join(" ".join(f"({' '.join(g)})" for g in side) for side in (groups, right))
    plain = fi.plan_rearrange(pattern, source, **sizes)
    rank = plain.destination.rank
    tiles = rng.choice(((), ((2,),), ((2, 2),)))
    order = tuple(rng.sample(range(rank), rank))
    return fi.plan_rearrange(pattern, source, plain.destination.with_layout(fi.Layout(order, tiles=tiles)), **sizes)


def test_known_cases() -> None:
    """Axes of size 1 that leave room, in layouts whose digits share no loops."""
    for seed in (283,):
        rearrangement_cases.check(seed)


def test_then_cuts_what_the_first_plan_merged() -> None:
    merged = fi.plan_rearrange("a b -> (a b)", "u8[10,8]")
    split = fi.plan_rearrange("(x y) -> y x", merged.destination, y=32, pad=True)
    buffer = np.arange(1, 81, dtype=np.uint8)
    assert np.array_equal(merged.then(split)(buffer), split(merged(buffer)))
    assert np.array_equal(split.inverse().then(merged.inverse())(split(buffer)), buffer)
    odd = fi.plan_rearrange("a b -> b a", "u8[10,7]").then(fi.plan_rearrange("b a -> (b a)", "u8[7,10]"))
    cut = fi.plan_rearrange("(x y) -> y x", "u8[70]", y=32, pad=True)
    assert np.array_equal(odd.then(cut)(buffer[:70]), cut(odd(buffer[:70])))


def places_of(plan: RearrangePlan) -> tuple[int, ...]:
    count = plan.source.slot_count
    return tuple(plan(np.arange(1, count + 1, dtype=np.uint8)).tolist())


@pytest.mark.in_turn(seconds=0.9)
def test_plans_are_equal_where_they_move_the_same() -> None:
    rng = random.Random(1)
    plans = [some_plan(rng, fi.Shape("u8", dims)) for dims in ((24,), (4, 6), (2, 12), (2, 2, 6)) for _ in range(12)]
    equal = 0
    for a, b in itertools.combinations(plans, 2):
        same = a.destination.nbytes == b.destination.nbytes and places_of(a) == places_of(b)
        equal += same
        assert (a == b) == same, (a, b)
        if same:
            assert hash(a) == hash(b)
    assert equal > 5


def respelled(rng: random.Random, case: Case) -> tuple[str, dict[str, int]]:
    """The pattern of a case with some axes written as two, and its sizes."""
    parts: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for name, size in case.axes.items():
        inner = rng.choice([factor for factor in range(1, size + 1) if size % factor == 0])
        parts[name] = [name] if rng.random() < 0.5 else [f"{name}x", f"{name}y"]
        sizes |= {name: size} if len(parts[name]) == 1 else {f"{name}x": size // inner, f"{name}y": inner}
    sides = (
        " ".join(f"({' '.join(part for name in group for part in parts[name])})" for group in side)
        for side in (case.source, case.destination)
    )
    return " -> ".join(sides), sizes


@pytest.mark.parametrize("first", strategies.rotating_seeds(30))
def test_plans_are_equal_however_patterns_are_written(first: int) -> None:
    for seed in range(20 * first, 20 * first + 20):
        rng = random.Random(seed)
        case = random_case(rng, 120)
        sides = tuple(map(str, rearrangement_cases.layouts(seed, case)))
        if case.pad:
            continue
        plan = fi.plan_rearrange(case.pattern, *sides, **case.sizes)
        pattern, sizes = respelled(rng, case)
        other = fi.plan_rearrange(pattern, *sides, **sizes)
        assert plan == other, (seed, case.pattern, pattern, sizes, sides)
        assert hash(plan) == hash(other)
        # Loops are found for both, or for none.
        assert (plan._movement.slots.loops is None) == (other._movement.slots.loops is None), (seed, pattern, sides)


def test_tiles_that_cut_where_no_pattern_does_are_loops() -> None:
    sides = "f32[40,8]{1,0:T(5,4)}", "f32[40,8]{1,0:T(10,4)}"
    plan = fi.plan_rearrange("(a b) c -> (a b) c", *sides, b=8)
    assert plan == fi.plan_rearrange("a c -> a c", *sides)
    assert "slot by slot" not in plan.describe()
    assert plan.describe().split("\n")[2:] == fi.plan_relayout(*sides).describe().split("\n")[1:]


def test_padded_plans_compare_by_what_moves() -> None:
    one = fi.plan_rearrange("(a b) -> a b", "u8[70]", b=32, pad=True)
    assert one == fi.plan_rearrange("(a b c) -> a b c", "u8[70]", b=4, c=8, pad=True)
    assert one == fi.plan_rearrange("(a b c) -> (a b c)", "u8[70]", a=3, b=4, c=8, pad=True)
    assert one != fi.plan_rearrange("(a b) -> a b", "u8[71]", b=32, pad=True)
    assert one != fi.plan_rearrange("(a b) -> b a", "u8[70]", b=32, pad=True)
    assert one != fi.plan_rearrange("(a b) -> a b", "u8[70]", "u8[3,32]{1,0:PV(highest)}", b=32, pad=True)


def test_plans_are_kept_and_pickled() -> None:
    plan = fi.plan_rearrange("(a b) -> b a", "u8[70]", b=32, pad=True)
    assert fi.plan_rearrange("(a b) -> b a", "u8[70]", b=32, pad=True) is plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert "(a b) -> b a" in repr(plan)
    assert isinstance(plan._movement, Movement)
    assert "fill" in replace(plan._movement, machine=EPYC_1M).describe()


def test_errors_of_plans() -> None:
    plan = fi.plan_rearrange("a b -> b a", "u8[4,6]")
    with pytest.raises(fi.FastIndexError, match="begin with"):
        plan.then(plan)
    with pytest.raises(fi.ArgumentTypeError, match="must come from plan_rearrange"):
        plan.then(fi.plan_relayout("u8[6,4]", "u8[6,4]{0,1}"))  # type: ignore[arg-type]
    with pytest.raises(fi.FastIndexError, match="2 dimensions, the destination 1"):
        fi.plan_rearrange("a b -> b a", "u8[4,6]", "u8[24]")
    with pytest.raises(fi.FastIndexError, match="has 6 elements, the dimension 7"):
        fi.plan_rearrange("a b -> b a", "u8[4,6]", "u8[7,4]")
    with pytest.raises(fi.UnsupportedError, match="both cut"):
        fi.plan_rearrange("(a b) -> (b a)", "u8[7]", "u8[7]", b=2, pad=True)
    with pytest.raises(fi.FastIndexError, match="takes 24 bytes"):
        fi.plan_rearrange("a b -> b a", "u8[4,6]")(np.zeros(23, np.uint8))


@pytest.mark.parametrize("source", ["", "{0:T(6)(4)}"])
@pytest.mark.parametrize("tiles", ["2,1,0:T(3)", "0,1,2:T(3)", "2,1,0:T(3,2,5)", "1,2,0:T(2,3)(5)"])
@pytest.mark.parametrize(("size", "y", "p", "q"), [(23, 6, 5, 2), (50, 8, 6, 2), (37, 12, 4, 6)])
def test_room_that_a_digit_leaves_is_no_element(source: str, tiles: str, size: int, y: int, p: int, q: int) -> None:
    """The second plan pads what is a digit for both together: its room holds no values of the digits above."""
    first = fi.plan_rearrange("(x y) -> x y", f"u8[{size}]{source}", y=y, pad=True)
    destination = f"u8[{p},{-(-size // y)},{q}]{{{tiles}}}"
    second = fi.plan_rearrange("x (p q) -> p x q", first.destination, destination, p=p, q=q, pad=True)
    both = first.then(second)
    buffer = np.arange(1, first.source.slot_count + 1, dtype=np.uint8)
    assert np.array_equal(both(buffer), second(first(buffer)))
    assert np.array_equal(both.inverse()(both(buffer)), first.inverse()(first(buffer)))


def test_room_is_found_without_shared_loops() -> None:
    first = fi.plan_rearrange("(x y) -> x y", "u8[50]{0:T(6)(4)}", y=8, pad=True)
    second = fi.plan_rearrange("x (p q) -> p x q", first.destination, "u8[6,7,2]{2,1,0:T(3)}", p=6, q=2, pad=True)
    both = first.then(second)
    assert both._movement.slots.loops is None
    buffer = np.arange(1, first.source.slot_count + 1, dtype=np.uint8)
    assert np.array_equal(both(buffer), second(first(buffer)))


def test_lazy_buffers_are_refused() -> None:
    lazy = pytest.importorskip("dask.array").from_array(np.arange(16, dtype=np.uint8))
    for plan in (fi.plan_rearrange("a b -> b a", "u8[4,4]"), fi.plan_rearrange("(a b) -> b a", "u8[16]", b=2)):
        with pytest.raises(fi.UnsupportedError, match="compute it first"):
            plan(lazy)
    with pytest.raises(fi.UnsupportedError, match="compute it first"):
        fi.reshape(lazy, "u8[4,4]{0,1}", "u8[16]")
