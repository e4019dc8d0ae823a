"""What reshapes and transposes do to dimensions, and layouts that make them free."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

import fastindex as fi
from fastindex import Shape, xla
from fastindex.core.integers import common_factors
from tests.cases.strategies import factors, seeds


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((), (), [(0, 0)]),
        ((2, 3), (2, 3), [(0, 0), (1, 1), (2, 2)]),
        ((2, 3, 4), (6, 4), [(0, 0), (2, 1), (3, 2)]),
        ((2, 6), (4, 3), [(0, 0), (2, 2)]),
        ((1, 2, 6), (4, 1, 3, 1), [(0, 0), (1, 0), (3, 3), (3, 4)]),
        ((2, 5, 1, 3), (1, 10, 3, 1), [(0, 0), (0, 1), (2, 2), (3, 2), (4, 3), (4, 4)]),
        ((1, 1), (), [(0, 0), (1, 0), (2, 0)]),
        ((0, 10), (0, 10, 3), [(0, 0), (1, 1), (2, 2), (2, 3)]),
        ((2, 0, 3), (0, 7), [(0, 0), (3, 2)]),
    ],
)
def test_common_factors(a: tuple[int, ...], b: tuple[int, ...], expected: list[tuple[int, int]]) -> None:
    assert common_factors(a, b) == expected


def test_common_factors_are_the_finest_cut() -> None:
    for seed in seeds(300):
        rng = random.Random(seed)
        count = rng.choice((1, 6, 8, 12, 24, 36))
        a, b = (factors(rng, count) for _ in range(2))
        bounds = common_factors(a, b)
        assert bounds[0] == (0, 0)
        assert bounds[-1] == (len(a), len(b))
        for (i, j), (k, m) in itertools.pairwise(bounds):
            assert (i, j) < (k, m)
            assert math.prod(a[i:k]) == math.prod(b[j:m])
            # No run can be cut into two that both hold something.
            for x, y in itertools.product(range(i, k + 1), range(j, m + 1)):
                parts = (math.prod(a[i:x]), math.prod(a[x:k]))
                if parts == (math.prod(b[j:y]), math.prod(b[y:m])):
                    assert 1 in parts, (a, b, bounds)


def test_common_factors_need_the_same_product() -> None:
    with pytest.raises(fi.LayoutError, match="same number of elements"):
        common_factors((2, 3), (5,))


@pytest.mark.parametrize(
    ("a", "b", "unmodified", "ones"),
    [
        ((1, 1, 1, 1), (1, 1, 1), [(0, 0), (1, 1), (2, 2)], ([3], [])),
        ((1, 3, 4), (3, 1, 4), [(1, 0), (2, 2)], ([0], [1])),
        ((2, 3, 4), (6, 4), [(2, 1)], None),
        ((2, 3), (3, 2), [], None),
        ((2, 3), (2, 3), [(0, 0), (1, 1)], ([], [])),
        ((6,), (1, 6, 1), [(0, 1)], ([], [0, 2])),
        ((2, 3, 1, 5), (6, 5), [(3, 1)], None),
    ],
)
def test_what_a_reshape_leaves(
    a: tuple[int, ...],
    b: tuple[int, ...],
    unmodified: list[tuple[int, int]],
    ones: tuple[list[int], list[int]] | None,
) -> None:
    left, right = Shape("f32", a), Shape("f32", b)
    assert xla.dimensions_unmodified_by_reshape(left, right) == unmodified
    assert xla.inserted_or_deleted_1_sized_dimensions(left, right) == ones
    for i in range(len(a)):
        became = dict(unmodified).get(i)
        expected = None if became is None else (became,)
        assert xla.reshape_leaves_dimensions_unmodified(left, right, (i,)) == expected
    kept = [i for i, _ in unmodified]
    assert xla.reshape_leaves_dimensions_unmodified(left, right, kept) == tuple(j for _, j in unmodified)
    if len(kept) > 1:
        assert xla.reshape_leaves_dimensions_unmodified(left, right, kept[::-1]) is None


def test_normalized_transposes_are_the_same_transpose() -> None:
    for seed in seeds(300):
        rng = random.Random(seed)
        sizes = tuple(rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(0, 5)))
        order = tuple(rng.sample(range(len(sizes)), len(sizes)))
        a, b = Shape("f32", sizes), Shape("f32", [sizes[i] for i in order])
        found, permutation = xla.normalized_logical_transpose_shape(a, b, order)
        values = np.arange(math.prod(sizes))
        before = [found[permutation.index(i)] for i in range(len(found))]
        small = values.reshape(before).transpose(permutation)
        assert small.shape == found
        assert (small.ravel() == values.reshape(sizes).transpose(order).ravel()).all()
        # As few dimensions as there can be: no two neighbours stay neighbours.
        assert all(right != left + 1 for left, right in itertools.pairwise(permutation))


def test_transposes_that_cannot_be_normalized() -> None:
    a, b = Shape("f32", (2, 3)), Shape.parse("f32[3,2]{0,1}")
    with pytest.raises(fi.UnsupportedError, match="default order"):
        xla.normalized_logical_transpose_shape(a, b, (1, 0))
    with pytest.raises(fi.LayoutError, match="does not transpose"):
        xla.normalized_logical_transpose_shape(a, a, (1, 0))


#: From XLA's own test of AlignLayouts, and more.
ALIGNED = [
    ("f32[4,6,5]{1,0,2}", "f32[24,5]", "f32[24,5]{0,1}"),
    ("f32[4,6,5]{0,1,2}", "f32[24,5]", None),
    ("f32[4,6,5]{2,1,0}", "f32[24,5]", "f32[24,5]{1,0}"),
    ("f32[24,5]{0,1}", "f32[4,6,5]", "f32[4,6,5]{1,0,2}"),
    ("f32[2,3]{0,1}", "f32[6]", None),
    ("f32[1,2,1,3]{2,3,0,1}", "f32[1,2,3]", "f32[1,2,3]{2,1,0}"),
    ("f32[1,2,1,3]{1,2,3,0}", "f32[2,1,3]", "f32[2,1,3]{0,2,1}"),
    ("f32[2,3]{1,0:T(8,128)}", "f32[2,3,1]", None),
    ("f32[1]{0}", "f32[]", "f32[]"),
    ("s4[2,3]{1,0:E(4)}", "s4[6]", "s4[6]{0:E(4)}"),
]


@pytest.mark.parametrize(("a", "b", "expected"), ALIGNED)
def test_aligned_layouts(a: str, b: str, expected: str | None) -> None:
    found = xla.align_layouts(Shape.parse(a), Shape.parse(b))
    assert (None if found is None else str(found)) == expected


def test_aligned_layouts_are_found_where_there_are_any() -> None:
    for seed in seeds(200):
        rng = random.Random(seed)
        count = rng.choice((6, 8, 12, 24))
        sizes, others = factors(rng, count), factors(rng, count)
        order = tuple(rng.sample(range(len(sizes)), len(sizes)))
        a, b = Shape("f32", sizes, fi.Layout(order)), Shape("f32", others)
        found = xla.align_layouts(a, b)
        if found is not None:
            assert fi.xla.reshape_is_bitcast(a, found)
            continue
        for layout in itertools.permutations(range(len(others))):
            assert not fi.xla.reshape_is_bitcast(a, Shape("f32", others, fi.Layout(layout))), (a, layout)


def test_decomposed_bitcasts_are_bitcasts_step_by_step() -> None:
    for seed in seeds(200):
        rng = random.Random(seed)
        count = rng.choice((1, 6, 8, 12, 24))
        a, b = (
            Shape("f32", sizes, fi.Layout(tuple(rng.sample(range(len(sizes)), len(sizes)))))
            for sizes in (factors(rng, count), factors(rng, count))
        )
        found = xla.decompose_bitcast(a, b)
        assert found is not None
        assert fi.xla.transpose_is_bitcast(a, found.transpose1_shape, found.transpose1_dimensions)
        assert fi.xla.reshape_is_bitcast(found.transpose1_shape, found.reshape_shape)
        assert fi.xla.transpose_is_bitcast(found.reshape_shape, b, found.transpose2_dimensions)
        assert found.is_transpose1_identity == (a.layout == fi.Layout.descending(a.rank))
        assert found.is_transpose2_identity == (b.layout == fi.Layout.descending(b.rank))


def test_what_is_not_decomposed() -> None:
    a = Shape.parse("f32[2,3]")
    for other in ("f32[7]", "s8[2,3]", "f32[2,3]{1,0:T(8,128)}", "f32[2,3]{1,0:PAD(4,4)}"):
        assert xla.decompose_bitcast(a, Shape.parse(other)) is None
