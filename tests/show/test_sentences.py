"""Sentences about layouts, with numbers that the reference confirms.

Tests of: show.padding, show.sentences, show.spelling.
"""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given

import fastindex as fi
from fastindex.hlo import report
from fastindex.show.sentences import info
from tests.cases import strategies
from tests.oracles import reference


def numbers(text: str) -> list[int]:
    return [int(found.replace(",", "")) for found in re.findall(r"\d[\d,]*", text)]


def line(text: str, beginning: str) -> str:
    """The one line of an explanation that begins so."""
    found = [line for line in fi.explain(text).splitlines() if line.startswith(beginning)]
    assert len(found) == 1, fi.explain(text)
    return found[0]


def test_two_rows_share_a_word() -> None:
    text = "bf16[1024,1000]{1,0:T(8,128)(2,1)}"
    assert line(text, "Dimension") == "Dimension 1 (x) is the most minor, then 0 (y)."
    assert line(text, "The tile (8,128)") == (
        "The tile (8,128) groups 8 along dimension 0 and 128 along dimension 1: "
        "1,024 elements, 2,048 bytes, in one piece."
    )
    assert line(text, "The tile (2,1)") == (
        "The tile (2,1), within each (8,128), groups 2 along dimension 0: the two elements share a 32-bit word."
    )
    # The sentence is true: the neighbours along dimension 0 lie in one aligned pair of slots.
    slow = reference.parse(text)
    for row, column in ((0, 0), (6, 127), (1022, 999), (8, 128)):
        slots = [reference.linear_index(slow, (row + i, column)) for i in (0, 1)]
        assert slots[0] % 2 == 0
        assert slots[1] == slots[0] + 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("s8[64,256]{1,0:T(8,128)(4,1)}", "the four elements share a 32-bit word"),
        ("s4[64,256]{1,0:T(8,128)(8,1)E(4)}", "the eight elements share a 32-bit word"),
        ("bf16[5000]{0:T(1024)(128)(2,1)}", "groups 2 along the tiles (128) of dimension 0: the two elements share"),
        ("f32[6,5]{1,0:T(2,4)(2,1,1,1)}", "groups 2 along the tiles (2,4) of dimension 0"),
        ("f32[4,6]{1,0:T(*,4)}", "groups 4 along dimension 0 combined with dimension 1"),
        ("f32[4]{0:T(1)}", "groups single elements, which changes nothing: one element"),
        ("f32[5]{0:T(2,4)}", "groups 2 along the missing major dimension and 4 along dimension 0"),
    ],
)
def test_tile_sentences(text: str, sentence: str) -> None:
    assert sentence in fi.explain(text)


@pytest.mark.in_turn(seconds=0.7)
@given(strategies.array_shapes())
def test_numbers_are_the_reference_s(slow: reference.ReferenceShape) -> None:
    text = str(slow)
    slots, nbytes = reference.slot_count(slow), reference.nbytes(slow)
    found = next(line for line in fi.explain(text).splitlines() if re.match(r"[\d,]+ slots?, ", line))
    expected = [slots, nbytes]
    elements = reference.element_count(slow)
    if slots > elements:
        expected.append(slots - elements)
        assert numbers(found)[:3] == expected
        assert "padded to" in fi.explain(text) or "rounded up" in fi.explain(text)
    else:
        assert numbers(found) == expected
        assert found.endswith("; no padding.")


def test_strides_only_where_they_exist() -> None:
    assert line("f32[3,5]{0,1}", "Byte strides") == "Byte strides: 4, 12."
    assert line("f32[3,100]{1,0:T(8,128)}", "Byte strides") == "Byte strides: 512, 4."
    assert "no constant distance" in line("f32[3,5]{1,0:T(2,2)}", "No byte strides")
    assert "whole number of bytes" in line("s4[3,5]{1,0:E(4)}", "No byte strides")


def test_padding_names_its_cause_and_its_cure() -> None:
    text = fi.explain("f32[100000,3]{1,0:T(8,128)}")
    assert "dimension 1 (size 3) is padded to 128 by the tile (8,128), 42.7 times its size" in text
    assert (
        "swap the two minor dimensions and use T(4,128): f32[100000,3]{0,1:T(4,128)} is 49,598,464 bytes smaller"
        in text
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("f32[8,64,7,7]{1,3,2,0}", "also called NHWC"),
        ("f32[8,64,7,7]{3,2,1,0:T(16,1,1)}", "also called nChw16c"),
        ("f32[1000,1024]{1,0:T(8,128)}", "TPU compiler"),
        ("f32[3]{0:S(1)}", "memory space 1"),
        ("f32[3]{0:M(8)}", "8 bytes before the data"),
        ("f32[3]{0:PV(one)}", "padding holds one"),
        ("pred[3]{0:E(32)}", "low bits, and the other bits are zero"),
        ("f32[<=3,5]", "The size of dimension 0 is an upper bound"),
        ("f32[?,5]", "unbounded"),
        ("f32[3]{0:D(C)}", "sparse"),
        ("f32[4]{0:SC(0:2)}", "split into parts"),
        ("f32[]", "A scalar"),
        ("token[]", "no elements"),
        ("opaque[]", "no elements"),
        ("b(f32[3])", "A buffer that holds the array"),
        ("(f32[2], (s8[3], token[]))", "A tuple of 2, with 3 leaves, 11 bytes in all"),
        ("f32[0,3]{1,0:T(2,2)}", "0 slots, 0 bytes; no padding."),
    ],
)
def test_other_sentences(text: str, sentence: str) -> None:
    assert sentence in fi.explain(text)
    assert fi.explain(fi.Shape.parse(text)) == fi.explain(text)


def test_bad_text() -> None:
    with pytest.raises(fi.ParseError):
        fi.explain("f32[3")


@given(strategies.array_shapes())
def test_info_is_the_numbers_of_the_reference(slow: reference.ReferenceShape) -> None:
    text = str(slow)
    found = info(text)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found) == {
        "text", "element_type", "dimensions", "minor_to_major", "tiles", "rank", "true_rank", "element_count",
        "slot_count", "nbytes", "logical_nbytes", "padding_ratio",
    }  # fmt: skip
    assert found["text"] == text
    assert found["dimensions"] == list(slow.dimensions)
    assert found["tiles"] == [list(tile) for tile in slow.tiles]
    assert found["slot_count"] == reference.slot_count(slow)
    assert found["nbytes"] == reference.nbytes(slow)
    assert found["logical_nbytes"] == reference.logical_nbytes(slow)


def test_info_of_what_is_no_array() -> None:
    assert info("(f32[2], token[])") == {
        "text": "(f32[2]{0}, token[])", "element_type": "tuple", "leaves": ["f32[2]{0}", "token[]"],
        "nbytes": 8, "logical_nbytes": 8, "padding_ratio": 1.0,
    }  # fmt: skip
    with pytest.raises(fi.UnsupportedError):
        info("f32[?]")


def test_suggestions_are_marked_and_pad_least() -> None:
    suggestion = fi.layouts.suggest_tiles("f32[100000,3]")
    assert str(suggestion.shape) == "f32[100000,3]{0,1:T(4,128)}"
    assert "heuristic" in str(suggestion)
    assert suggestion.shape.nbytes < suggestion.in_order.nbytes
    assert suggestion.tiles == ((4, 128),)
    assert suggestion.layout.minor_to_major == (0, 1)
    assert str(fi.layouts.suggest_tiles("bf16[1024,1024]").shape) == "bf16[1024,1024]{1,0:T(8,128)(2,1)}"
    with pytest.raises(fi.UnsupportedError, match="unbounded"):
        fi.layouts.suggest_tiles("f32[?,3]")
    with pytest.raises(fi.FastIndexError):
        fi.layouts.suggest_tiles("f33[3]")


def test_explanations_and_reports_agree() -> None:
    text = "f32[100000,3]{1,0:T(8,128)}"
    (use,) = report(f"HloModule m\nENTRY e {{ ROOT p = {text} parameter(0) }}").uses
    assert use.cause_text in fi.explain(text)


@pytest.mark.parametrize(
    "text", ["f32[1000000007,998244353]{1,0:T(1000003,17)(13,19)}", "u8[72057594037927935,3]{1,0:T(1,128)}"]
)
def test_changes_whose_bytes_overflow_are_not_advised(text: str) -> None:
    """The array has a size, and other layouts of it do not."""
    said = fi.explain(text)
    assert said.startswith(text)


def test_arrays_larger_than_any_buffer_have_indices() -> None:
    text = "s8[3,400000000000000000]{1,0:T(4,1)E(128)}"
    assert line(text, "1,600").startswith("1,600,000,000,000,000,000 slots, 25,600,000,000,000,000,000 bytes; 400,")
    assert line(text, "No buffer") in fi.explain(text)
    assert (info(text)["nbytes"], info(text)["padding_ratio"]) == (25_600_000_000_000_000_000, 4 / 3)
    assert fi.linear_index(text, (2, 399999999999999999)) == 1_599_999_999_999_999_998


def test_two_shapes_are_a_question_about_a_relayout() -> None:
    shape = fi.Shape.parse("f32[3]")
    for other in ("f32[3]{0:T(2)}", " (f32[3])", shape):
        with pytest.raises(fi.ArgumentTypeError, match=r"plan_relayout\(a, b\)\.describe\(\)"):
            fi.explain(shape, other)
