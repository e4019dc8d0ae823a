"""Yes-or-no questions about shapes, single indices, and the shapes inside shapes.

Tests of: xla.shape_queries, xla.shape_trees.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import fastindex as fi
from fastindex import Shape, xla

ANSWERS: list[tuple[Callable[[Shape], Any], dict[str, Any]]] = [
    (xla.is_dynamic, {"f32[2]": False, "(f32[2], s8[?])": True, "f32[<=2]": True, "token[]": False}),
    (xla.last_dimension_is_minor_most, {"f32[2,3]{1,0}": True, "f32[2,3]{0,1}": False, "f32[]": False}),
    (xla.extent_product, {"f32[]": 1, "f32[2,<=3,?]": 6, "f32[2,0]": 0}),
    (xla.static_extent_product, {"f32[]": 1, "f32[2,3]": 6}),
    (
        lambda s: [xla.is_effectively_most_major_dimension(s, i) for i in range(s.rank)],
        {"f32[1,3,5]": [True, True, False], "f32[1,3,1]{1,0,2}": [True, True, True], "f32[2,3]{0,1}": [False, True]},
    ),
    (xla.packed_factor_for_1d_interleaved_array, {"bf16[9]{0:T(1024)(128)(2,1)}": 2, "s8[9]{0:T(8)(4)(4,1)}": 4}),
]


@pytest.mark.parametrize(
    ("question", "text", "answer"),
    [(question, text, answer) for question, answers in ANSWERS for text, answer in answers.items()],
)
def test_answers(question: Callable[[Shape], Any], text: str, answer: Any) -> None:
    assert question(Shape.parse(text)) == answer


@pytest.mark.parametrize("question", [xla.last_dimension_is_minor_most, xla.extent_product])
def test_questions_about_arrays_only(question: Callable[[Shape], Any]) -> None:
    with pytest.raises(fi.UnsupportedError, match="only arrays"):
        question(Shape.parse("(f32[2])"))


def test_questions_without_an_answer() -> None:
    with pytest.raises(fi.UnsupportedError, match="dynamic"):
        xla.static_extent_product(Shape.parse("f32[<=2]"))
    for text in ("f32[8]{0:T(8)}", "f32[8,8]{1,0:T(8)(4)(2,1)}", "f32[8]{0:T(8)(4)(2)}"):
        with pytest.raises(fi.UnsupportedError, match="interleaved"):
            xla.packed_factor_for_1d_interleaved_array(Shape.parse(text))
    with pytest.raises(fi.OutOfBoundsError):
        xla.is_effectively_most_major_dimension(Shape.parse("f32[2]"), 1)


SIZES = [(), (1,), (4,), (2, 3), (3, 1, 2), (2, 2, 2)]


@pytest.mark.parametrize("sizes", SIZES)
def test_bumping_visits_every_index_in_order(sizes: tuple[int, ...]) -> None:
    shape = Shape("f32", sizes)
    visited = []
    index: tuple[int, ...] | None = (0,) * len(sizes)
    while index is not None:
        visited.append(index)
        index = xla.bump_index(shape, index)
    assert visited == list(itertools.product(*map(range, sizes)))


def test_bounds() -> None:
    shape = Shape("f32", (2, 3))
    inside = set(itertools.product(range(2), range(3)))
    for index in itertools.product(range(-2, 4), repeat=2):
        assert xla.index_in_bounds(shape, index) == (index in inside)
    assert not xla.index_in_bounds(shape, (1,))
    assert not xla.index_in_bounds(Shape("f32", (0,)), (0,))
    assert xla.index_in_bounds(Shape("f32"), ())
    with pytest.raises(fi.OutOfBoundsError, match=r"index \(2, 0\) is out of bounds"):
        xla.bump_index(shape, (2, 0))
    with pytest.raises(fi.UnsupportedError):
        xla.index_in_bounds(Shape.token(), ())


@pytest.mark.parametrize("sizes", SIZES)
def test_indices_come_in_the_order_of_the_layout(sizes: tuple[int, ...]) -> None:
    for order in itertools.permutations(range(len(sizes))):
        shape = Shape("f32", sizes, fi.Layout(order))
        expected = sorted(itertools.product(*map(range, sizes)), key=lambda i: [i[d] for d in reversed(order)])
        assert list(xla.indices(shape)) == expected


def test_some_indices() -> None:
    shape = Shape.parse("f32[4,6]{0,1}")
    assert list(xla.indices(shape, (1, 2), (2, 3), (1, 2))) == [(1, 2), (2, 2), (1, 4), (2, 4)]
    assert list(xla.indices(shape, (3, 2), (0, 3), (0, 1))) == [(3, 2), (3, 3), (3, 4)]
    assert list(xla.indices(shape, base=(2, 5))) == [(2, 5), (3, 5)]
    assert list(xla.indices(Shape("f32", (0, 2)))) == []
    assert list(xla.indices(Shape("f32"))) == [()]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (((0,), None, None), fi.LayoutError),
        (((0, 0), (1,), None), fi.LayoutError),
        (((0, 0), (1, 1), (1,)), fi.LayoutError),
        (((0, 0), (4, 6), (0, 1)), fi.LayoutError),
        (((0, 0), (4, 6), (-1, 1)), fi.LayoutError),
        (((-1, 0), None, None), fi.OutOfBoundsError),
        (((0, 7), None, None), fi.OutOfBoundsError),
        (((1, 0), (4, 6), None), fi.OutOfBoundsError),
        (((0, 0), (-1, 6), None), fi.OutOfBoundsError),
    ],
)
def test_indices_that_cannot_be(arguments: tuple[Any, ...], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        xla.indices(Shape("f32", (4, 6)), *arguments)


TREE = Shape.parse("(f32[1], (s8[2], (), token[]), b(f32[3]))")


def test_subshapes() -> None:
    found = {index: str(shape) for index, shape in xla.subshapes(TREE)}
    assert list(found) == [(), (0,), (1,), (1, 0), (1, 1), (1, 2), (2,)]
    assert found[1, 0] == "s8[2]{0}"
    for index, shape in xla.subshapes(TREE):
        assert xla.get_subshape(TREE, index) is shape
        assert xla.try_get_subshape(TREE, index) is shape
    assert [index for index, _ in xla.leaf_shapes(TREE)] == [(0,), (1, 0), (1, 2), (2,)]
    assert [str(leaf) for leaf in TREE.leaves()] == ["f32[1]{0}", "s8[2]{0}", "token[]", "b(f32[3]{0})"]
    assert xla.leaf_shapes(Shape("f32")) == [((), Shape("f32"))]


@pytest.mark.parametrize("index", [(3,), (-1,), (0, 0), (1, 1, 0), (2, 0)])
def test_subshapes_that_are_not_there(index: tuple[int, ...]) -> None:
    assert xla.try_get_subshape(TREE, index) is None
    with pytest.raises(fi.OutOfBoundsError, match="does not exist in"):
        xla.get_subshape(TREE, index)


def test_mapped_leaves() -> None:
    seen = []

    def change(leaf: Shape) -> Shape:
        seen.append(str(leaf))
        return Shape("pred", (len(seen),))

    assert str(xla.map_leaves(TREE, change)) == "(pred[1]{0}, (pred[2]{0}, (), pred[3]{0}), pred[4]{0})"
    assert seen == ["f32[1]{0}", "s8[2]{0}", "token[]", "b(f32[3]{0})"]
    assert xla.map_leaves(Shape.tuple(), change) == Shape.tuple()
    assert str(xla.map_leaves("(s8[], f32[])", lambda leaf: "f32[2]")) == "(f32[2]{0}, f32[2]{0})"
    with pytest.raises(fi.ArgumentTypeError, match="a shape must be a Shape or its text, got None"):
        xla.map_leaves("(f32[])", lambda leaf: None)
