"""Relayouts as loops, against the slow reference: every slot once, from the right slot."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import example, given

import fastindex as fi
from fastindex.algebra import loops as module
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced, grouped, padding_nests, relayout_loops
from fastindex.algebra.shared_digits import Strides
from fastindex.core.digits import Names, Variable, digit, slot_digits
from fastindex.core.sizes import axes_of
from tests.cases import strategies
from tests.oracles import reference
from tests.oracles.nest_places import loops, places
from tests.oracles.reference import ReferenceShape

Sources = dict[int, int]


def parsed(shape: ReferenceShape) -> fi.Shape:
    return fi.Shape.parse(str(shape))


def moved_by(found: RelayoutLoops) -> Sources:
    """Which slot of the source each slot of the destination gets; fails where one is written twice."""
    sources: Sources = {}
    for nest in found.copies:
        for source, destination in zip(*(side.tolist() for side in places(nest)), strict=True):
            assert destination not in sources, f"slot {destination} is written twice"
            sources[destination] = source
    return sources


def filled_by(nests: tuple[Nest, ...] | list[Nest]) -> list[int]:
    for nest in nests:
        assert nest.source_start == 0
        assert all(loop.source_stride == 0 for loop in nest.loops)
    return sorted(int(slot) for nest in nests for slot in places(nest)[1])


def expected_sources(source: ReferenceShape, destination: ReferenceShape) -> Sources:
    from_slot = reference.linear_indices(source)
    return {slot: from_slot[cell] for cell, slot in reference.linear_indices(destination).items()}


def padding_of(shape: ReferenceShape) -> list[int]:
    return [slot for slot, cell in enumerate(reference.slots(shape)) if cell is None]


def check(source: ReferenceShape, destination: ReferenceShape) -> bool:
    """Whether there are loops; those that there are have to be right."""
    found = relayout_loops(parsed(source), parsed(destination))
    if found is None:
        return False
    assert moved_by(found) == expected_sources(source, destination)
    assert filled_by(found.fills) == padding_of(destination)
    return True


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(900)[::300])])
def test_random_pairs(first: int) -> None:
    """All features; most pairs have loops, or this proves nothing."""
    found = 0
    for seed in range(first, first + 300):
        source, destination = strategies.random_pair(seed)
        try:
            found += check(source, destination)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {source} to {destination}") from error
    assert found > 150 or strategies.OTHER_SEEDS


@given(strategies.shape_pairs())
@example((reference.parse("f32[4,6]{1,0:T(2,3)(*,*,*,5)}"), reference.parse("f32[4,6]{0,1:PAD(5,7)T(3)(2)}")))
@example((reference.parse("f32[]"), reference.parse("f32[]{:T(512)(2,1)}")))
@example((reference.parse("f32[1,5]{0,1:PAD(3,7)}"), reference.parse("f32[1,5]{1,0:PAD(3,7)T(2,2)}")))
@example((reference.parse("f32[7]{0:T(4)(2)}"), reference.parse("f32[7]{0:T(8)(4)(2)}")))
def test_any_pair(pair: tuple[ReferenceShape, ReferenceShape]) -> None:
    check(*pair)


#: What has to be loops, or the product is slow where it should not be: the cases of the benchmarks, made small.
FAST_PAIRS = [
    ("f32[12,10]{1,0}", "f32[12,10]{0,1}"),
    ("f32[2,3,5,4]{3,2,1,0}", "f32[2,3,5,4]{1,3,2,0}"),
    ("f32[2,19,5,4]{3,2,1,0}", "f32[2,19,5,4]{3,2,1,0:T(16,1,1)}"),
    ("f32[4,4,4,4]{3,2,1,0}", "f32[4,4,4,4]{0,1,2,3}"),
    ("f32[2,3,2,2,3,2]{5,4,3,2,1,0}", "f32[2,3,2,2,3,2]{3,1,4,0,2,5}"),
    ("f32[21,150]{1,0}", "f32[21,150]{1,0:T(8,128)}"),
    ("bf16[21,150]{1,0}", "bf16[21,150]{1,0:T(8,128)(2,1)}"),
    ("s8[21,150]{1,0}", "s8[21,150]{1,0:T(8,128)(4,1)}"),
    ("bf16[21,150]{1,0:T(8,128)(2,1)}", "bf16[21,150]{1,0:T(16,128)(2,1)}"),
    ("f32[3,5,21,20]{0,3,2,1}", "f32[3,5,21,20]{3,2,1,0:T(8,128)}"),
    ("bf16[300]{0:T(256)(128)(2,1)}", "bf16[300]"),
    ("f32[4,5,6]{2,1,0:T(*,8,*,4)}", "f32[4,5,6]{2,1,0}"),
    ("f32[5,6]{1,0:PAD(7,9)T(2,4)L(100)}", "f32[5,6]{0,1:PAD(6,8)T(4,2)(2,1)L(7)}"),
    ("f32[1,1,1]{2,1,0:T(8,128)}", "f32[1,1,1]{0,1,2:T(2,4)(2)}"),
]


@pytest.mark.parametrize(("source", "destination"), FAST_PAIRS)
def test_usual_pairs_are_loops(source: str, destination: str) -> None:
    assert check(reference.parse(source), reference.parse(destination))
    assert check(reference.parse(destination), reference.parse(source))


def test_what_does_not_divide_has_no_loops() -> None:
    assert relayout_loops(fi.Shape.parse("f32[12]"), fi.Shape.parse("f32[12]{0:T(3)(2)}")) is None
    assert relayout_loops(fi.Shape.parse("f32[12]{0:T(2)}"), fi.Shape.parse("f32[12]{0:T(3)}")) is not None
    assert relayout_loops(fi.Shape.parse("f32[13,2]{1,0:T(2,1)}"), fi.Shape.parse("f32[13,2]{1,0:T(3,1)}")) is None


def test_too_many_boxes_are_no_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dimension of 7 = 4 + 2 + 1 is cut in three; the cap says when that is too many."""
    source = reference.parse("f32[7,7]{1,0:T(4,4)(2,2)}")
    destination = reference.parse("f32[7,7]{0,1:T(4,4)(2,2)}")
    found = relayout_loops(parsed(source), parsed(destination))
    assert found is not None
    assert len(found.copies) == 9
    monkeypatch.setattr(module, "MOST_NESTS", 9)
    assert check(source, destination)
    monkeypatch.setattr(module, "MOST_NESTS", 8)
    assert relayout_loops(parsed(source), parsed(destination)) is None


def test_the_cap_holds_for_many_dimensions() -> None:
    """3^6 boxes: more than looking every slot up is worth."""
    shape = "f32[7,7,7,7,7,7]{5,4,3,2,1,0:T(4,4,4,4,4,4)(2,2,2,2,2,2)}"
    assert relayout_loops(fi.Shape.parse(shape), fi.Shape.parse("f32[7,7,7,7,7,7]")) is None
    for seed in strategies.seeds(200):
        found = relayout_loops(*(parsed(shape) for shape in strategies.medium_pair(seed)))
        assert found is None or len(found.copies) <= module.MOST_NESTS


# Arrays without elements, arrays in memory


def test_arrays_without_elements() -> None:
    shape = fi.Shape.parse("f32[0,3]{1,0:PAD(2,3)L(8)}")
    found = relayout_loops(fi.Shape.parse("f32[0,3]"), shape)
    assert found is not None
    assert found.copies == ()
    assert filled_by(found.fills) == list(range(8))
    assert relayout_loops(shape, fi.Shape.parse("f32[0,3]")) == RelayoutLoops((), ())
    assert relayout_loops(shape, Strides((0, 3), (3, 1))) == RelayoutLoops((), ())
    back = relayout_loops(Strides((0, 3), (0, 0)), shape)
    assert back is not None
    assert filled_by(back.fills) == list(range(8))


def strided_slots(side: Strides) -> dict[reference.MultiIndex, int]:
    return {
        index: sum(i * stride for i, stride in zip(index, side.strides, strict=True))
        for index in reference.every_index(side.dimensions)
    }


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(300)[::100])])
def test_strides_on_either_side(first: int) -> None:
    """Any strides in the source, negative and zero ones too; in the destination those that do not overlap."""
    found = 0
    for seed in range(first, first + 100):
        rng = random.Random(seed)
        shape = strategies.random_shape(seed)
        if not shape.dimensions:
            continue
        slots = reference.linear_indices(shape)
        source = Strides(shape.dimensions, tuple(rng.choice((-7, -1, 0, 1, 2, 30)) for _ in shape.dimensions))
        into = relayout_loops(source, parsed(shape))
        if into is not None:
            found += 1
            begins = strided_slots(source)
            assert moved_by(into) == {slot: begins[index] for index, slot in slots.items()}, f"seed {seed}"
            assert filled_by(into.fills) == padding_of(shape), f"seed {seed}"
        destination = disjoint_strides(shape.dimensions, rng)
        out_of = relayout_loops(parsed(shape), destination)
        if out_of is not None:
            found += 1
            ends = strided_slots(destination)
            assert moved_by(out_of) == {ends[index]: slot for index, slot in slots.items()}, f"seed {seed}"
            assert out_of.fills == ()
    assert found > 90 or strategies.OTHER_SEEDS


def disjoint_strides(dimensions: tuple[int, ...], rng: random.Random) -> Strides:
    order = list(range(len(dimensions)))
    rng.shuffle(order)
    strides, step = [0] * len(dimensions), rng.choice((1, 1, 2, 3))
    for d in order:
        strides[d] = step * rng.choice((1, 1, 1, -1)) if dimensions[d] > 1 else 0
        step *= max(dimensions[d], 1) + rng.choice((0, 0, 1))
    return Strides(dimensions, tuple(strides))


def test_strides_on_both_sides() -> None:
    source, destination = Strides((4, 6), (-6, 1)), Strides((4, 6), (1, -4))
    found = relayout_loops(source, destination)
    assert found is not None
    ends = strided_slots(destination)
    assert moved_by(found) == {ends[index]: slot for index, slot in strided_slots(source).items()}


def test_a_broadcast_source_is_read_again() -> None:
    found = relayout_loops(Strides((4, 6), (0, 0)), fi.Shape.parse("f32[4,6]"))
    assert found == RelayoutLoops((Nest((Loop(24, 0, 1),)),), ())


# Simplifications preserve the mapping


def random_nest(rng: random.Random) -> Nest:
    """Loops that often continue each other on one side or on both."""
    found, steps = [], [1, 1]
    for _ in range(rng.randint(0, 5)):
        size = rng.choice((1, 2, 2, 3, 4))
        found.append(Loop(size, steps[0] * rng.choice((1, 1, 1, -1, 0)), steps[1]))
        steps = [step * size + rng.choice((0, 0, 0, 1)) for step in steps]
    rng.shuffle(found)
    return Nest(tuple(found), rng.randint(0, 9), rng.randint(0, 9))


def mapping(nest: Nest) -> list[tuple[int, ...]]:
    source, destination = places(nest)
    return sorted(zip(destination.tolist(), source.tolist(), strict=True))


@pytest.mark.parametrize("seed", strategies.seeds(200))
def test_coalescing_preserves_the_mapping(seed: int) -> None:
    nest = random_nest(random.Random(seed))
    simple = coalesced(nest)
    assert mapping(simple) == mapping(nest)
    assert simple.element_count == nest.element_count
    assert all(loop.size > 1 for loop in simple.loops)
    assert len(simple.loops) <= len(nest.loops)
    for inner, outer in itertools.permutations(simple.loops, 2):
        continues = inner.size * inner.source_stride, inner.size * inner.destination_stride
        assert continues != (outer.source_stride, outer.destination_stride)


def test_coalescing_joins_what_continues_on_both_sides_only() -> None:
    both = Nest(loops((4, 12, 12), (3, 4, 4), (4, 1, 1)))
    assert coalesced(both).loops == loops((48, 1, 1))
    assert coalesced(Nest(loops((4, 12, 13), (12, 1, 1)))).loops == loops((12, 1, 1), (4, 12, 13))
    assert coalesced(Nest(loops((4, 13, 12), (12, 1, 1)))).loops == loops((12, 1, 1), (4, 13, 12))
    assert coalesced(Nest(loops((1, 5, 7), (1, 9, 9)), 3, 4)) == Nest((), 3, 4)


@pytest.mark.in_turn(seconds=0.2)
@pytest.mark.parametrize("per_byte", [2, 4, 8])
def test_grouping_moves_the_same_elements(per_byte: int) -> None:
    grouped_pairs = 0
    for seed in strategies.seeds(300):
        source, destination = strategies.random_pair(seed)
        if seed % 2:
            # Rows of whole bytes on both sides.
            texts = f"u4[5,{per_byte * (seed % 7 + 1)}]", f"{{1,0:T(2,{per_byte * (seed % 3 + 1)})L(8)}}"
            source, destination = reference.parse(texts[0] + "{1,0}"), reference.parse(texts[0] + texts[1])
        found = relayout_loops(parsed(source), parsed(destination))
        together = None if found is None else grouped(found, per_byte)
        if found is None or together is None:
            continue
        grouped_pairs += 1
        inside = range(per_byte)
        whole = {d * per_byte + k: s * per_byte + k for d, s in moved_by(together).items() for k in inside}
        assert whole == moved_by(found), f"seed {seed}"
        fills = sorted(slot * per_byte + k for slot in filled_by(together.fills) for k in inside)
        assert fills == filled_by(found.fills), f"seed {seed}"
    assert grouped_pairs > 50 or strategies.OTHER_SEEDS


def test_grouping_refuses_what_splits_a_byte() -> None:
    def one(nest: Nest) -> RelayoutLoops:
        return RelayoutLoops((nest,), ())

    assert grouped(one(Nest(loops((4, 1, 1), (3, 4, 6)))), 2) is not None
    assert grouped(one(Nest(loops((3, 1, 1)))), 2) is None
    assert grouped(one(Nest(loops((4, 1, 1)), 1, 0)), 2) is None
    assert grouped(one(Nest(loops((4, 1, 1)), 0, 1)), 2) is None
    assert grouped(one(Nest(loops((4, 1, 1), (3, 5, 4)))), 2) is None
    assert grouped(one(Nest(loops((4, 1, 1), (3, 4, 5)))), 2) is None
    assert grouped(one(Nest(loops((4, 2, 1)))), 2) is None
    good, bad = Nest(loops((4, 0, 1)), 0, 8), Nest(loops((4, 0, 1)), 0, 7)
    assert grouped(RelayoutLoops((), (good,)), 2) is not None
    assert grouped(RelayoutLoops((), (good, bad)), 2) is None


# Padding alone


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(600)[::200])])
def test_padding_is_covered_once(first: int) -> None:
    found = 0
    for seed in range(first, first + 200):
        expected = strategies.random_shape(seed)
        if 0 in expected.dimensions:
            continue
        shape = parsed(expected)
        variables = [Variable(d, size, True) for d, size in enumerate(shape.dimensions)]
        names: Names = {}
        digits = slot_digits(axes_of(shape), [digit(1, variable, 1, None) for variable in variables], names)
        if not all(d.variable.is_coordinate for d in digits):
            continue
        nests = padding_nests(variables, digits, shape)
        if nests is None:
            continue
        found += 1
        assert filled_by(nests) == padding_of(expected), f"seed {seed}: {expected}"
    assert found > 100 or strategies.OTHER_SEEDS


@pytest.mark.parametrize(
    "text",
    [
        "f32[5]{0:L(8)}",
        "f32[5]{0:PAD(9)}",
        "f32[5]{0:T(4)(3)}",
        "f32[]{:T(8)}",
        "f32[]{:T(512)(2,1)}",
        "f32[1,3]{0,1:PAD(2,4)}",
        "f32[3,1]{0,1:PAD(4,2)T(2)}",
        "f32[5,7]{1,0:T(2,3)L(50)}",
        "f32[7]{0:T(8)(4)(2)}",
        "f32[5,5]{1,0:PAD(11,7)T(4,4)(2,1)}",
    ],
)
def test_padding_of_every_kind(text: str) -> None:
    destination = reference.parse(text)
    plain = dataclasses.replace(destination, tiles=(), padded_dimensions=None, tail_alignment=1)
    found = relayout_loops(parsed(plain), parsed(destination))
    if found is None:
        assert text == "f32[5]{0:T(4)(3)}"
        return
    assert filled_by(found.fills) == padding_of(destination)
    assert padding_of(destination)


# What the loops tell


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(300)[::100])])
def test_keeping_places(first: int) -> None:
    for seed in range(first, first + 100):
        source, destination = strategies.random_pair(seed)
        for pair in ((source, destination), (source, source)):
            found = relayout_loops(*map(parsed, pair))
            if found is not None:
                same = all(d == s for d, s in expected_sources(*pair).items())
                assert not (found.keeps_places and not same), f"seed {seed}"
                assert found.keeps_places or not same or pair[0] != pair[1], f"seed {seed}"


def test_element_counts() -> None:
    assert Nest(()).element_count == 1
    assert Nest(loops((3, 1, 1), (5, 3, 9))).element_count == 15
    for seed in strategies.seeds(50):
        source, destination = strategies.random_pair(seed)
        found = relayout_loops(parsed(source), parsed(destination))
        if found is not None:
            assert sum(nest.element_count for nest in found.copies) == math.prod(source.dimensions)
            total = sum(nest.element_count for nest in (*found.copies, *found.fills))
            assert total == reference.slot_count(destination)


def test_large_layouts_take_no_longer() -> None:
    """Loops are found from digits, never by visiting elements."""
    found = relayout_loops(fi.Shape.parse("f32[1000000,1000003]"), fi.Shape.parse("f32[1000000,1000003]{0,1:T(8,128)}"))
    assert found is not None
    assert sum(nest.element_count for nest in found.copies) == 1000000 * 1000003
    assert np.sum([nest.element_count for nest in found.fills]) == 1000064 * 1000008 - 1000000 * 1000003
