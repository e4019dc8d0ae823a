"""The errors: what they are, how they read, that they survive a pickle."""

from __future__ import annotations

import pickle

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
