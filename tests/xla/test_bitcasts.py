"""Bitcasts and strides against the slots of every element, as the reference has them, and on large arrays."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest

import fastindex as fi
from fastindex import Shape, xla
from fastindex.xla import bitcasts
from tests.cases.strategies import OTHER_SEEDS, factors, random_pair, random_shape, seeds
from tests.oracles import reference
from tests.oracles.reference import ReferenceShape


def slots_in_order(shape: ReferenceShape) -> list[int]:
    slots = reference.linear_indices(shape)
    return [slots[index] for index in reference.every_index(shape.dimensions)]


def same_buffer(a: ReferenceShape, b: ReferenceShape) -> bool:
    return (
        reference.slot_count(a) == reference.slot_count(b)
        and reference.element_bits(a) == reference.element_bits(b)
        and a.element_type == b.element_type
    )


def is_reshape_bitcast(a: ReferenceShape, b: ReferenceShape) -> bool:
    return same_buffer(a, b) and slots_in_order(a) == slots_in_order(b)


def is_transpose_bitcast(a: ReferenceShape, b: ReferenceShape, dimensions: tuple[int, ...]) -> bool:
    of_a, of_b = reference.linear_indices(a), reference.linear_indices(b)
    return same_buffer(a, b) and all(of_b[tuple(i[d] for d in dimensions)] == slot for i, slot in of_a.items())


def similar_shape(rng: random.Random, count: int) -> str:
    """Make one of few shapes of `count` elements, so that two often are bitcasts of each other."""
    sizes = factors(rng, count)
    order = list(range(len(sizes) - 1, -1, -1))
    if rng.random() < 0.2:
        rng.shuffle(order)
    tiles = ""
    for _ in range(rng.choice((0, 1, 1, 2, 2))):
        tile = [str(rng.choice((1, 2, 2, 3, 4, 6, 8))) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
        for i in range(len(tile) - 1):
            tile[i] = "*" if rng.random() < 0.25 else tile[i]
        tiles += f"({','.join(tile)})"
    layout = ",".join(map(str, order)) + (f":T{tiles}" if tiles else "")
    return f"f32[{','.join(map(str, sizes))}]" + (f"{{{layout}}}" if layout else "")


def test_reshapes_of_similar_shapes() -> None:
    found: Counter[bool] = Counter()
    for seed in seeds(1500):
        rng = random.Random(seed)
        count = rng.choice((4, 6, 8, 12, 16, 18, 24, 30, 36))
        a, b = similar_shape(rng, count), similar_shape(rng, count)
        expected = is_reshape_bitcast(reference.parse(a), reference.parse(b))
        assert fi.xla.reshape_is_bitcast(Shape.parse(a), Shape.parse(b)) == expected, (a, b)
        found[expected] += 1
    assert found[True] > 100 or OTHER_SEEDS, found


def test_reshapes_of_random_pairs() -> None:
    for seed in seeds(300):
        a, b = random_pair(seed)
        expected = is_reshape_bitcast(a, b)
        assert fi.xla.reshape_is_bitcast(Shape.parse(str(a)), Shape.parse(str(b))) == expected, (a, b)


def test_transposes() -> None:
    found: Counter[bool] = Counter()
    for seed in seeds(300):
        rng = random.Random(seed)
        a, b = random_pair(seed)
        dimensions = tuple(rng.sample(range(len(a.dimensions)), len(a.dimensions)))
        if b.padded_dimensions is not None or b.splits:
            continue
        b = dataclasses.replace(b, dimensions=tuple(a.dimensions[i] for i in dimensions))
        expected = is_transpose_bitcast(a, b, dimensions)
        assert fi.xla.transpose_is_bitcast(Shape.parse(str(a)), Shape.parse(str(b)), dimensions) == expected, (a, b)
        found[expected] += 1
    assert found[True] > 10 or OTHER_SEEDS, found


def test_proofs_do_not_need_to_visit_the_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitcasts, "MOST_ELEMENTS_VISITED", 0)
    unproven = 0
    for seed in seeds(500):
        rng = random.Random(seed)
        count = rng.choice((8, 12, 16, 24, 36))
        a, b = similar_shape(rng, count), similar_shape(rng, count)
        expected = is_reshape_bitcast(reference.parse(a), reference.parse(b))
        found = fi.xla.reshape_is_bitcast(Shape.parse(a), Shape.parse(b))
        assert not found or expected, (a, b)
        unproven += found != expected
    assert unproven < 5


@pytest.mark.parametrize("seed", seeds(100))
def test_every_shape_is_a_bitcast_of_itself_and_of_its_permutations(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitcasts, "MOST_ELEMENTS_VISITED", 0)
    shape = Shape.parse(str(random_shape(seed)))
    assert fi.xla.reshape_is_bitcast(shape, shape)
    dimensions = random.Random(seed).sample(range(shape.rank), shape.rank)
    moved = shape.transposed(dimensions)
    assert fi.xla.transpose_is_bitcast(shape, moved, dimensions)
    assert xla.deduce_transpose_dimensions_for_bitcast(shape, moved) is not None
    assert xla.is_reshape_or_transpose_bitcast(shape, moved)


#: Too large to visit.
LARGE = [
    ("bf16[4096,4096]{1,0:T(8,128)(2,1)}", "bf16[512,8,4096]{2,1,0:T(8,128)(2,1)}", True),
    ("bf16[4096,4096]{1,0:T(8,128)(2,1)}", "bf16[1024,4,4096]{2,1,0:T(8,128)(2,1)}", False),
    ("bf16[4096,4096]{1,0:T(8,128)(2,1)}", "bf16[1,4096,4096,1]{2,1,0,3:T(8,128)(2,1)}", True),
    ("bf16[4096,4096]{1,0:T(8,128)(2,1)}", "bf16[4096,4096]{1,0:T(8,128)}", False),
    ("f32[4096,128]{1,0:T(8,128)}", "f32[524288]{0:T(1024)}", True),
    ("f32[4096,256]{1,0:T(8,128)}", "f32[1048576]{0:T(1024)}", False),
    ("f32[4096,1024]{1,0}", "f32[4194304]{0}", True),
    ("f32[4096,1024]{0,1}", "f32[4194304]{0}", False),
    ("f32[1000,1000,1000]{2,1,0:T(8,128)}", "f32[1000,1000,1000]{2,1,0:T(8,128)S(1)}", True),
    ("f32[1000003,7]{1,0:T(3)(2)}", "f32[1000003,7]{1,0:T(3)(2)}", True),
    ("f32[1000003,7]{1,0:T(3)(2)}", "f32[7000021]{0:T(3)(2)}", False),
    # The padding differs at the end only: the buffers do too.
    ("f32[1000000]{0:T(1024)}", "f32[1000000]{0}", False),
]


@pytest.mark.parametrize(("a", "b", "expected"), LARGE)
def test_large_reshapes(a: str, b: str, expected: bool) -> None:
    assert fi.xla.reshape_is_bitcast(Shape.parse(a), Shape.parse(b)) == expected
    assert fi.xla.reshape_is_bitcast(Shape.parse(b), Shape.parse(a)) == expected


def test_large_transposes() -> None:
    a = Shape.parse("bf16[4096,1,4096]{2,0,1:T(8,128)(2,1)}")
    assert fi.xla.transpose_is_bitcast(a, Shape.parse("bf16[4096,4096,1]{0,1,2:T(8,128)(2,1)}"), (2, 0, 1))
    assert not fi.xla.transpose_is_bitcast(a, Shape.parse("bf16[4096,4096,1]{1,0,2:T(8,128)(2,1)}"), (2, 0, 1))
    assert not fi.xla.transpose_is_bitcast(a, Shape.parse("bf16[4096,1,4096]{2,0,1:T(8,128)}"), (0, 1, 2))


def test_what_is_never_a_bitcast() -> None:
    a = Shape.parse("f32[2,3]{1,0}")
    assert not fi.xla.reshape_is_bitcast(a, Shape.parse("s32[2,3]{1,0}"))
    assert not fi.xla.reshape_is_bitcast(a, Shape.parse("f32[2,4]{1,0}"))
    assert not fi.xla.reshape_is_bitcast(Shape.parse("s4[4]{0:E(4)}"), Shape.parse("s4[4]{0}"))
    assert not fi.xla.transpose_is_bitcast(a, a, (1, 0))
    assert fi.xla.reshape_is_bitcast(Shape.parse("f32[0,3]"), Shape.parse("f32[5,0]"))
    assert xla.deduce_transpose_dimensions_for_bitcast(a, Shape.parse("f32[6]")) is None


def test_what_bitcasts_refuse() -> None:
    a = Shape.parse("f32[2,3]{1,0}")
    for dimensions in ((0,), (0, 0), (0, 2), (0, 1, 2)):
        with pytest.raises(fi.LayoutError, match="permutation"):
            fi.xla.transpose_is_bitcast(a, a, dimensions)
    for other in ("token[]", "(f32[2,3])", "f32[?,3]", "f32[2,3]{1,0:D(D,C)}"):
        with pytest.raises(fi.UnsupportedError):
            fi.xla.reshape_is_bitcast(a, Shape.parse(other))


def test_untiled() -> None:
    for seed in seeds(200):
        tiled = random_shape(seed)
        plain = dataclasses.replace(tiled, tiles=())
        assert xla.is_untiled(Shape.parse(str(tiled))) == is_reshape_bitcast(tiled, plain), tiled
