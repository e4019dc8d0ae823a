"""Layouts in other notations: steps, applied with NumPy alone, and linear forms, against the slow reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fastindex as fi
from fastindex.layouts import Steps
from tests.cases.strategies import random_shape, seeds
from tests.oracles import reference


def applied(steps: Steps, array: np.ndarray) -> np.ndarray:
    for step in steps:
        array = np.pad(array, step.argument) if step.kind == "pad" else getattr(array, step.kind)(step.argument)
    return array.reshape(-1)


def expected(text: str) -> np.ndarray:
    """For each slot as the reference numbers them, 1 + the position of its element; 0 for padding."""
    shape = reference.parse(text)
    slots = np.zeros(reference.slot_count(shape), np.int64)
    found = reference.linear_indices(shape)
    for position, index in enumerate(np.ndindex(*shape.dimensions)):
        slots[found[index]] = position + 1
    return slots


def check(text: str) -> None:
    shape = fi.Shape.parse(text)
    array = np.arange(1, shape.element_count + 1).reshape(shape.dimensions)
    assert np.array_equal(applied(fi.layouts.steps(shape), array), expected(text)), text


@pytest.mark.parametrize("seed", seeds(150))
def test_random_layouts(seed: int) -> None:
    check(str(random_shape(seed)))


@pytest.mark.parametrize(
    "text",
    [
        "f32[]",
        "f32[]{:T(256)}",
        "f32[0,5]{1,0:T(8,128)}",
        "f32[3,5]{0,1}",
        "f32[5]{0:T(2)L(16)}",
        "f32[3,5]{1,0:L(16)}",
        "f32[3,5]{1,0:PAD(4,8)T(2,2)}",
        "f32[6,4,5]{2,1,0:T(*,3)(2,1)}",
        "bf16[16,300]{1,0:T(8,128)(2,1)}",
        "f32[4,8]{1,0:T(2,4)(2,1,1,1)}",
        "f32[7]{0:T(3)(2)}",
        "s4[3,5]{1,0:T(2,2)E(4)}",
    ],
)
def test_layouts_of_every_kind(text: str) -> None:
    check(text)


def test_printed_steps_run() -> None:
    text = "f32[3,5]{0,1:T(2,2)(2,1)L(32)}"
    names = {"np": np, "x": np.arange(1, 16).reshape(3, 5)}
    exec(str(fi.layouts.steps(text)), names)
    assert np.array_equal(names["x"], expected(text))


def test_what_changes_nothing_is_left_out() -> None:
    assert fi.layouts.steps("f32[4,8]") == ()
    assert str(fi.layouts.steps("f32[4,8]")) == "x = x.reshape(-1)"
    assert [step.kind for step in fi.layouts.steps("f32[4,8]{1,0:T(2,4)}")] == ["reshape", "transpose"]


def test_each_step_names_its_cause() -> None:
    found = [step.cause for step in fi.layouts.steps("f32[6,4,5]{0,2,1:PAD(6,4,8)T(*,3)L(100)}")]
    assert found == ["{0,2,1}", "PAD(6,4,8)", "T(*,3)", "T(*,3)", "L(100)", "L(100)"]


@pytest.mark.parametrize("text", ["f32[?]", "token[]", "(f32[2])", "f32[4]{0:D(C)}"])
def test_what_has_no_slots_has_no_steps(text: str) -> None:
    with pytest.raises(fi.UnsupportedError):
        fi.layouts.steps(text)


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
