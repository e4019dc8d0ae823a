"""The errors: what they are, how they read, that they survive a pickle; options that are no option."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest

import fastindex as fi


def test_the_tree_of_errors() -> None:
    for kind in (fi.ParseError, fi.LayoutError, fi.OutOfBoundsError, fi.UnsupportedError):
        assert issubclass(kind, fi.FastIndexError)
    assert issubclass(fi.FastIndexError, ValueError)
    assert issubclass(fi.OutOfBoundsError, IndexError)
    assert issubclass(fi.ArgumentTypeError, TypeError)
    assert issubclass(fi.ParseError, fi.LayoutError)
    assert issubclass(fi.cuda.DeviceMemoryError, MemoryError)


def error_of(text: str) -> fi.ParseError:
    with pytest.raises(fi.ParseError) as caught:
        fi.Shape.parse(text)
    return caught.value


def test_a_message_names_rule_column_and_shows_the_place() -> None:
    assert str(error_of("f32[3,5]{1,0:T(0,2)}")) == (
        "tile sizes must be at least 1: 0 in T(0,2), at column 16\n  f32[3,5]{1,0:T(0,2)}\n                 ^"
    )


def test_a_message_on_a_later_line_shows_that_line_only() -> None:
    assert str(error_of("(f32[3],\n  f3[5])")) == (
        "expected an element type such as f32, or a tuple, found 'f3', at line 2, column 3\n    f3[5])\n    ^"
    )


def test_a_message_about_a_long_text_is_short_and_points_at_the_place() -> None:
    text = "(" + "f32[8,128]{1,0:T(8,128)}, " * 10_000 + "oops[], " + "f32[], " * 1000 + "f32[])"
    rule, shown, caret = str(error_of(text)).splitlines()
    assert len(shown) < 120
    assert shown[caret.index("^") :].startswith("oops[]")
    assert f"column {text.index('oops') + 1}" in rule


def test_a_message_at_the_end_of_the_text() -> None:
    error = error_of("f32[3")
    assert error.position == 5
    assert str(error).splitlines()[2] == "       ^"
    assert "found the end of the text" in str(error)


def test_unprintable_characters_are_not_printed() -> None:
    shown = str(error_of("f32[\x00\x1b[31m]")).splitlines()[1]
    assert "\x00" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("text", ["f32[3", "f32[3]{0:T(0)}", "2x3xf32"])
def test_errors_survive_a_pickle(text: str) -> None:
    error = error_of(text)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (copy.rule, copy.text, copy.position, copy.hint, str(copy)) == (
        error.rule,
        error.text,
        error.position,
        error.hint,
        str(error),
    )


def test_a_layout_error_names_its_field() -> None:
    with pytest.raises(fi.LayoutError) as caught:
        fi.Layout((0,), tiles=((2,), (3, 0)))
    assert (caught.value.field, caught.value.index) == ("tiles", (1, 1))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.field, copy.index, str(copy)) == ("tiles", (1, 1), str(caught.value))


@pytest.mark.parametrize("kind", [fi.FastIndexError, fi.LayoutError, fi.UnsupportedError, fi.ArgumentTypeError])
def test_long_messages_are_cut(kind: type[fi.FastIndexError]) -> None:
    """What they repeat may be of any length; what is wrong stands first, what to do last."""
    error = kind("it is wrong: " + "x" * 100_000 + "; do this")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert len(str(one)) < 2000
        assert str(one).startswith("it is wrong: x")
        assert str(one).endswith("x; do this")
    assert str(kind("x" * 1900)) == "x" * 1900


# Options


class NoTruth:
    """Neither true nor false, nor equal to anything, as arrays are."""

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError


ODD = (np.array(["raise", "slot"]), np.zeros(0), np.array([True]), [], {}, {1}, b"raise", 1.5, NoTruth(), str)
SHAPE = "f32[6,10]{0,1:T(4,3)}"
ARRAY, BUFFER = np.zeros((6, 10), np.float32), np.zeros(fi.Shape.parse(SHAPE).slot_count, np.float32)
INDICES = ([1, 2], [3, 4])
OPTIONS = {
    "mode": partial(fi.linear_index, SHAPE, INDICES),
    "unit": partial(fi.linear_index, SHAPE, INDICES),
    "unit of a window": partial(fi.linear_index, SHAPE, np.s_[1:]),
    "unit of slots": partial(fi.multi_index, SHAPE, [1, 2]),
    "unit of two": partial(fi.convert_index, SHAPE, "f32[6,10]", [1, 2]),
    "mode of a window": partial(fi.linear_index, SHAPE, np.s_[1:]),
    "padding": partial(fi.multi_index, SHAPE, [1, 2]),
    "flat": partial(fi.tile_index, SHAPE, INDICES),
    "unit of tiles": partial(fi.tile_index, SHAPE, INDICES, flat=True),
    "flat of tiles": partial(fi.from_tile_index, SHAPE, [0], [0]),
    "unit of runs": partial(fi.runs, SHAPE),
    "padding of runs": partial(fi.strided_runs, SHAPE),
    "threads": partial(fi.pack, ARRAY, SHAPE),
    "casting": partial(fi.relayout, BUFFER, SHAPE, "f32[6,10]"),
    "as_array": partial(fi.relayout, BUFFER, SHAPE, "f32[6,10]"),
    "as_array of plans": partial(fi.plan_relayout(SHAPE, "f32[6,10]"), BUFFER),
    "max_memory": partial(fi.relayout, BUFFER, SHAPE, "f32[6,10]"),
    "pad": partial(fi.rearrange, ARRAY, "a b -> b a"),
    "pad of plans": partial(fi.plan_rearrange, "a b -> b a", SHAPE),
    "casting of patterns": partial(fi.rearrange, ARRAY, "a b -> b a"),
    "bits": partial(fi.weights.repack, np.zeros(60, np.uint8), "plain", "gptq", shape=(6, 10)),
    **{f"{name} of layouts": partial(fi.Layout, (1, 0)) for name in ("padding_value", "index_primitive_type")},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_take_no_other_objects(name: str) -> None:
    option = name.split()[0]
    for value in ODD:
        with pytest.raises(fi.FastIndexError, match=option):
            OPTIONS[name](**{option: value})


@pytest.mark.parametrize("name", ["tiles", "split_configs", "dimension_levels"])
def test_layouts_take_no_other_objects(name: str) -> None:
    for value in (np.array([[8, 128]]), np.array([1, 2]), NoTruth(), 1.5, str):
        with pytest.raises(fi.FastIndexError):
            fi.Layout((1, 0), **{name: value})
    with pytest.raises(fi.ArgumentTypeError, match="sequence of flags"):
        fi.Shape("f32", (2,), None, NoTruth())  # type: ignore[arg-type]
