"""Shapes: attributes, sizes, what the constructors accept and refuse, freezing, depth.

Tests of: xla.shape_trees, core.shape_fields, core.sizes.
"""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex import Layout, Shape
from tests.cases.strategies import random_shape, seeds
from tests.oracles import reference


def test_an_array() -> None:
    s = Shape("bf16", (1024, 1000), Layout((1, 0), tiles=((8, 128), (2, 1))))
    assert s == Shape.parse("bf16[1024,1000]{1,0:T(8,128)(2,1)}")
    assert str(s) == "bf16[1024,1000]{1,0:T(8,128)(2,1)}"
    assert repr(s) == "Shape.parse('bf16[1024,1000]{1,0:T(8,128)(2,1)}')"
    assert eval(repr(s), {"Shape": Shape}) == s
    assert (s.rank, s.true_rank, s.dimensions) == (2, 2, (1024, 1000))
    assert (s.element_count, s.slot_count, s.element_bits) == (1024000, 1024 * 1024, 16)
    assert (s.nbytes, s.logical_nbytes) == (2 * 1024 * 1024, 2 * 1024000)
    assert s.padding_ratio == 1024 / 1000
    assert s.is_array
    assert not s.is_tuple


def test_a_missing_layout_is_descending() -> None:
    assert Shape("f32", (2, 3, 4)).layout == Layout((2, 1, 0))
    assert Shape("f32").layout == Layout()


@pytest.mark.parametrize("kind", ["f32", np.float32, np.dtype("f4"), Shape("f32").element_type])
def test_element_types_of_any_kind(kind: Any) -> None:
    assert Shape(kind, (2,)) == Shape.parse("f32[2]")


def test_dimensions_of_any_kind() -> None:
    assert Shape("f32", np.array([2, 3], np.int16)).dimensions == (2, 3)  # type: ignore[arg-type]
    assert Shape("f32", [np.uint64(2), 3]).dimensions == (2, 3)
    assert all(type(size) is int for size in Shape("f32", np.zeros((2, 3)).shape).dimensions)


def test_dimension_takes_negative_numbers() -> None:
    s = Shape("f32", (2, 3, 5))
    assert [s.dimension(i) for i in (0, 1, 2, -1, -2, -3)] == [2, 3, 5, 5, 3, 2]
    assert s.dimension_number(-1) == 2
    for number in (3, -4):
        with pytest.raises(fi.OutOfBoundsError, match=f"dimension {number} is out of bounds"):
            s.dimension(number)
    with pytest.raises(fi.OutOfBoundsError):
        Shape("f32").dimension(-1)
    with pytest.raises(TypeError):
        s.dimension(True)


def test_letters() -> None:
    letters = ["".join(Shape("f32", (1,) * rank).dimension_letters) for rank in range(6)]
    assert letters == ["", "x", "yx", "zyx", "pzyx", ""]


def test_true_rank() -> None:
    assert Shape("f32", (1, 3, 1, 0)).true_rank == 2


@pytest.mark.parametrize("seed", seeds(300))
def test_sizes_are_the_reference_s(seed: int) -> None:
    expected = random_shape(seed)
    shape = Shape.parse(str(expected))
    assert str(shape) == str(expected)
    assert shape.element_count == reference.element_count(expected)
    assert shape.slot_count == reference.slot_count(expected)
    assert shape.element_bits == reference.element_bits(expected)
    assert shape.nbytes == reference.nbytes(expected)
    assert shape.logical_nbytes == reference.logical_nbytes(expected)


@pytest.mark.parametrize(
    ("text", "slots", "nbytes"),
    [
        ("f32[]", 1, 4),
        ("bf16[]{:T(512)(2,1)}", 1024, 2048),
        ("f32[10]{0:L(16)}", 16, 64),
        ("f32[0,5]{1,0:T(8,128)}", 0, 0),
        ("s4[3]{0:E(4)}", 3, 2),
        ("s4[3]{0}", 3, 3),
        ("u1[9]{0:E(1)}", 9, 2),
        ("pred[3]{0:E(32)}", 3, 12),
        ("f6e3m2fn[3]{0:E(6)}", 3, 3),
        ("f32[3,5]{1,0:PAD(4,8)}", 32, 128),
        ("f32[0]{0:PAD(4)}", 4, 16),
        ("f32[<=3,5]{1,0:T(2,2)}", 24, 96),
        ("f32[2,3]{1,0:M(64)}", 6, 24),
        ("f32[2,3]{1,0:SC(0:1)}", 6, 24),
    ],
)
def test_sizes_by_hand(text: str, slots: int, nbytes: int) -> None:
    shape = Shape.parse(text)
    assert (shape.slot_count, shape.nbytes) == (slots, nbytes)


def test_padding_ratio_without_elements() -> None:
    assert Shape("f32", (0,)).padding_ratio == 1.0
    assert Shape.parse("f32[0]{0:PAD(4)}").padding_ratio == math.inf


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("f32", (-1,)), "at least 0: -1"),
        (("f32", (2,), Layout((1, 0))), "2 entries for 1 dimension$"),
        (("f32", (2**62, 4)), "int64 overflow"),
        (("f32", (2**61,)), "int64 overflow: the bytes"),
        (("f32", (2**63,)), "must fit int64"),
        (("f32", (2**40, 2**40, 0)), "int64 overflow"),
        (("f32", (4,), Layout((0,), padded_dimensions=(3,))), "at least its dimension: 3 for 4"),
        (("f32", (4,), Layout((0,), split_configs=(fi.xla.SplitConfig(0, (4,)),))), "below the dimension's size 4"),
        (("f32", (4,), None, (True, False)), "one flag per dimension"),
        (("f32", (Shape.UNBOUNDED,), None, (False,)), "is dynamic"),
        (("tuple", ()), r"Shape.tuple\(\)"),
        (("token", ()), r"Shape.token\(\)"),
    ],
)
def test_refused(arguments: tuple[Any, ...], rule: str) -> None:
    with pytest.raises(fi.LayoutError, match=rule):
        Shape(*arguments)


def test_a_zero_before_an_overflow_is_fine_as_in_xla() -> None:
    assert Shape("f64", (0, 2**62, 2**62)).element_count == 0
    assert Shape("pred", (2**63 - 1,)).nbytes == 2**63 - 1


@pytest.mark.parametrize(
    "arguments", [("f32", 3), ("f32", "3"), ("f32", (2.0,)), ("f32", (True,)), ("f32", (2,), (0,)), (3, (2,))]
)
def test_wrong_types(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        Shape(*arguments)


def test_padding_that_overflows_is_an_error_where_a_size_is_asked_for() -> None:
    shape = Shape.parse("f32[3]{0:T(9223372036854775807)}")
    assert shape.slot_count == 2**63 - 1
    with pytest.raises(fi.LayoutError, match="int64 overflow"):
        shape.nbytes  # noqa: B018
    with pytest.raises(fi.LayoutError, match="int64 overflow"):
        Shape.parse("f32[3,3]{1,0:T(9223372036854775807,2)}").slot_count  # noqa: B018


def test_unbounded_dimensions_print_and_have_no_size() -> None:
    shape = Shape.parse("f32[?,784]{1,0:T(8,128)}")
    assert shape == Shape("f32", (Shape.UNBOUNDED, 784), Layout((1, 0), tiles=((8, 128),)))
    assert shape.dynamic_dimensions == (True, False)
    assert str(shape) == "f32[?,784]{1,0:T(8,128)}"
    for name in ("element_count", "slot_count", "nbytes", "logical_nbytes", "padding_ratio"):
        with pytest.raises(fi.UnsupportedError, match="unbounded"):
            getattr(shape, name)


def test_sparse_arrays_print_and_have_no_slots() -> None:
    shape = Shape.parse("f32[3,5]{1,0:D(D,C+)}")
    assert str(shape) == "f32[3,5]{1,0:D(D,C+)}"
    assert shape.element_count == 15
    for name in ("slot_count", "nbytes"):
        with pytest.raises(fi.UnsupportedError, match="sparse"):
            getattr(shape, name)


def test_tuples_and_the_rest() -> None:
    array = Shape.parse("f32[3,5]{1,0:T(2,2)}")
    shape = Shape.tuple([array, Shape.token(), Shape.tuple(), Shape.opaque(), Shape.buffer(array)])
    assert str(shape) == "(f32[3,5]{1,0:T(2,2)}, token[], (), opaque[], b(f32[3,5]{1,0:T(2,2)}))"
    assert shape.element_type == "tuple"
    assert (shape.nbytes, shape.logical_nbytes) == (192, 120)
    assert [leaf.element_type for leaf in shape.leaves()] == ["f32", "token", "opaque", "buffer"]
    assert (Shape.token().nbytes, Shape.opaque().nbytes, Shape.tuple().nbytes) == (0, 0, 0)
    assert (shape.rank, shape.dimensions) == (0, ())
    for other in (shape, Shape.token(), Shape.opaque(), Shape.buffer(array)):
        assert other == Shape.parse(str(other))
        for name in ("layout", "element_count", "slot_count", "element_bits"):
            with pytest.raises(fi.UnsupportedError, match="only arrays have"):
                getattr(other, name)


def test_what_tuples_and_buffers_refuse() -> None:
    with pytest.raises(TypeError, match="a tuple must hold shapes"):
        Shape.tuple(["f32[2]"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="a buffer must hold a shape"):
        Shape.buffer("f32[2]")  # type: ignore[arg-type]
    for inner in (Shape.token(), Shape.tuple(), Shape.buffer(Shape("f32"))):
        with pytest.raises(fi.LayoutError, match="a buffer must hold an array"):
            Shape.buffer(inner)


def test_the_bytes_of_a_tuple_may_overflow() -> None:
    big = Shape("pred", (2**62,))
    with pytest.raises(fi.LayoutError, match="int64 overflow"):
        Shape.tuple([big, big]).nbytes  # noqa: B018


def test_shapes_are_frozen_hashable_and_copy() -> None:
    texts = ["f32[<=3,5]{0,1:T(2,2)E(4)}", "(f32[], (token[], b(s8[2]{0})))", "f32[?]{0:PAD(7)}", "opaque[]"]
    for text in texts:
        shape = Shape.parse(text)
        with pytest.raises(AttributeError, match="frozen"):
            shape.dimensions = (1,)  # type: ignore[misc]
        with pytest.raises(AttributeError, match="frozen"):
            del shape.dimensions
        with pytest.raises(AttributeError):
            shape.anything = 1  # type: ignore[attr-defined]
        for other in (pickle.loads(pickle.dumps(shape)), copy.copy(shape), copy.deepcopy(shape)):
            assert other == shape
            assert hash(other) == hash(shape)
    assert len({Shape.parse(text) for text in texts * 2}) == len(texts)


@pytest.mark.parametrize(
    "text", ["f32[3]", "s32[2]", "f32[<=2]", "f32[2,1]", "f32[2]{0:T(2)}", "token[]", "()", "(f32[2])", "b(f32[2])"]
)
def test_every_part_counts_in_equality(text: str) -> None:
    assert Shape.parse(text) != Shape.parse("f32[2]")
    assert Shape.parse(text) == Shape.parse(text)
    assert Shape("f32", (2,)) != "f32[2]{0}"


def test_a_layout_as_text() -> None:
    assert Shape("bf16", (1024, 1000), layout="{1,0:T(8,128)}") == Shape.parse("bf16[1024,1000]{1,0:T(8,128)}")
    with pytest.raises(fi.ParseError, match="found the end of the text, at column 5"):
        Shape("bf16", (2, 3), "{1,0")
    with pytest.raises(fi.ArgumentTypeError, match=r"layout must be a Layout or its text such as '\{1,0\}'"):
        Shape("bf16", (2, 3), (1, 0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((2, 3), "f32"), r"before the dimensions: write Shape\('f32', \(2, 3\)\)"),
        (([2, 3], np.float32), r"before the dimensions: write Shape\('f32', \[2, 3\]\)"),
        (("f32", 3), "dimensions must be a sequence of integers, got 3"),
        (("f32", (2, 3.0)), r"dimensions\[1\] must be an integer, got 3.0"),
        (("f32", (2, 2**63)), r"dimensions\[1\] must fit int64"),
        (("f32", (2, True)), r"dimensions\[1\] must be an integer, got True"),
    ],
)
def test_arguments_in_the_wrong_place(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(fi.FastIndexError, match=message):
        Shape(*arguments)


def test_tuples_thousands_deep() -> None:
    text = "(" * 3000 + "f32[3,5]{1,0:T(2,2)}" + ")" * 3000
    shape, same = Shape.parse(text), Shape.parse(text)
    assert str(shape) == text
    assert shape == same
    assert hash(shape) == hash(same)
    assert shape != Shape.parse(text.replace("3,5", "3,6"))
    assert (shape.nbytes, shape.logical_nbytes) == (96, 60)
    assert pickle.loads(pickle.dumps(shape)) == shape
    assert Shape.from_proto(shape.to_proto()) == shape
    assert fi.xla.with_default_layout(shape) == Shape.parse(text.replace(":T(2,2)", ""))
    assert fi.xla.compatible(shape, fi.xla.with_default_layout(shape))
    assert len(str(shape.cut_text())) < 210


@pytest.mark.in_turn(seconds=1.2)
@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.sweep)])
def test_wide_tuples(count: int) -> None:
    shape = Shape.tuple([Shape("f32", (i,)) for i in range(count)])
    assert Shape.parse(str(shape)) == shape
