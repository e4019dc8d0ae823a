"""Linear forms against the definition of a layout, and back."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fastindex as fi
from tests.oracles import reference

TEXTS = [
    "f32[4,8]",
    "f32[4,8]{0,1}",
    "f32[4,8]{1,0:T(2,4)}",
    "f32[4,8]{1,0:T(2,4)(2,1)}",
    "f32[2,4,8]{0,2,1:T(4,2)(2,2)}",
    "bf16[16,256]{1,0:T(8,128)(2,1)}",
    "f32[4,8]{1,0:T(*,8)}",
    "f32[1,8]",
    "f32[1]",
]


@pytest.mark.parametrize("text", TEXTS)
def test_bases_are_the_slots_of_one_bit(text: str) -> None:
    shape = reference.parse(text) if "{" in text else reference.parse(str(fi.Shape.parse(text)))
    form = fi.layouts.LinearForm.from_shape(text)
    for index in itertools.product(*map(range, shape.dimensions)):
        slot = reference.linear_index(shape, index)
        found = (0,) * len(index)
        for bit, base in enumerate(form.bases):
            if slot >> bit & 1:
                found = tuple(a ^ b for a, b in zip(found, base, strict=True))
        assert found == index
    split = form.to_shape("f32")
    array = np.arange(split.element_count, dtype=np.float32)
    expected = fi.pack(array.reshape(shape.dimensions), fi.Shape.parse(text).with_element_type("f32"))
    assert np.array_equal(fi.pack(array.reshape(split.dimensions), split), expected)
    bits = np.array([form.matrix.shape[1]])
    assert form.matrix.shape[0] == bits[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f32[4,6]", "dimension 1 of .* has 6 elements"),
        ("f32[0,4]", "dimension 0 of .* has 0 elements"),
        ("f32[4,8]{1,0:T(2,3)}", "a tile of .* has 3 elements"),
        ("f32[4,8]{1,0:T(8,128)}", "padded to 1024 slots"),
    ],
)
def test_what_has_no_linear_form(text: str, words: str) -> None:
    with pytest.raises(fi.UnsupportedError, match=words):
        fi.layouts.LinearForm.from_shape(text)


def test_errors_of_bases() -> None:
    for dimensions, bases, words in [
        ((3,), ((1,), (2,)), "powers of two"),
        ((4,), ((1,),), "takes 2 bases"),
        ((4,), ((1,), (4,)), "not an element"),
        ((4,), ((1,), (1,)), "linearly dependent"),
    ]:
        with pytest.raises(fi.FastIndexError, match=words):
            fi.layouts.LinearForm(dimensions, bases)
    with pytest.raises(fi.UnsupportedError, match="swizzle"):
        fi.layouts.LinearForm((2, 2), ((0, 1), (1, 1))).to_shape("f32")
    with pytest.raises(fi.ArgumentTypeError, match=r"dimensions\[0\] must be an integer, got 4.0"):
        fi.layouts.LinearForm((4.0,), ((1,), (2,)))  # type: ignore[arg-type]


def test_integers_of_any_kind() -> None:
    expected = fi.layouts.LinearForm((4, 2), ((1, 0), (0, 1), (2, 0)))
    given = fi.layouts.LinearForm(np.array([4, 2]), np.array([[1, 0], [0, 1], [2, 0]]))  # type: ignore[arg-type]
    assert given == expected
    assert hash(given) == hash(fi.layouts.LinearForm([4, 2], [[1, 0], [0, 1], [2, 0]])) == hash(expected)  # type: ignore[arg-type]
