"""Reading and writing text: the grammar, the position of every kind of error, XLA's printing.

What XLA accepts and prints is compared with jaxlib in test_against_jaxlib.py; here are positions, strictness and depth.

Tests of: core.layout_text, core.shape_text.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastindex as fi
from fastindex import Layout, Shape
from fastindex.core.shape_text import format_shape
from tests.cases.shape_texts import TextMaker
from tests.cases.strategies import array_shapes, seeds
from tests.oracles import reference

#: text with ^ before the place of the error, and the rule
SYNTAX = [
    ("^", "an element type"),
    ("  ^", "an element type"),
    ("^f33[2]", "an element type such as f32, or a tuple, found 'f33'"),
    ("^F32[2]", "found 'F32'"),
    ("^tuple[]", "found 'tuple'"),
    ("^buffer[]", "found 'buffer'"),
    ("^f32:[2]", "found 'f32:'"),
    ("^f32.[2]", "found 'f32.'"),
    ("f32^", r"'\['"),
    ("f32^{0}", r"'\['"),
    ("f32[^", "an integer, found the end"),
    ("f32[^,2]", "an integer, found ','"),
    ("f32[2,^]", "an integer, found ']'"),
    ("f32[2 ^3]", "',' or ']' in the dimensions, found '3'"),
    ("f32[^2.0]", "found '2.0'"),
    ("f32[^1e3]", "found '1e3'"),
    ("f32[^2x3]", "found '2x3'"),
    ("f32[^2_3]", "found '2_3'"),
    ("f32[^+2]", r"found '\+'"),
    ("f32[^٣]", "found '٣'"),
    ("f32[^²]", "found '²'"),
    ("f32[<=^?]", r"an integer, found '\?'"),
    ("f32[^< =2]", "found '<'"),
    ("f32[2^\x0b]", "in the dimensions"),
    ("f32[2^\x00]", "in the dimensions"),
    ("f32[^9223372036854775808]", "integers must fit int64, 9223372036854775808 does not"),
    ("f32[^-9223372036854775809]", "integers must fit int64"),
    ("f32[^" + "9" * 5000 + "]", "integers must fit int64, 9{40} does not"),
    ("f32[<=^9223372036854775808]", "integers must fit int64"),
    ("f32[^-9223372036854775808]", "a size of at least 0"),
    ("f32[2]^{}", r"a layout such as \{1,0\}"),
    ("f32[]^{}", r"a layout such as \{1,0\}"),
    ("f32[2]^{a}", "a layout"),
    ("f32[2]^{,0}", "a layout"),
    ("f32[2]{^2x3}", "an integer"),
    ("f32[2]{0,^}", "an integer"),
    ("s4[2]{0:D(D,D^", "',' or '\\)'"),
    ("f32[2]{0^", "',' or ':' or '}'"),
    ("f32[2]{0:^", "one of the attributes"),
    ("f32[2]{0:^X(2)}", r"one of the attributes PAD PV D T L # \* E S SC M, in this order, or '}', found 'X'"),
    ("f32[2]{0:#(^f32)}", "an integer type such as u32"),
    ("f32[2]{0:*(^pred)}", "an integer type such as u32"),
    ("f32[2]{0:*(u16)^#(u32)}", "in this order"),
    ("f32[2]{0:^T:(2)}", "found 'T:'"),
    ("f32[2]{0:T(2)^T(2)}", "one of the attributes"),
    ("f32[2]{0:S(1)^E(4)}", "in this order"),
    ("f32[2]{0:T(2)^,S(1)}", "one of the attributes"),
    ("f32[2]{0:T^}", r"'\(' and a tile"),
    ("f32[2]{0:T(2^}", r"',' or '\)' in the tile"),
    ("f32[2]{0:T(^,2)}", r"a tile size or \*"),
    ("f32[2]{0:T(2,^)}", r"a tile size or \*"),
    ("f32[2]{0:T(*^*,2)}", r"',' or '\)' in the tile"),
    ("f32[2]{0:T(^-1,2)}", r"a tile size of at least 1, or \*"),
    ("f32[2]{0:L^}", r"'\('"),
    ("f32[2]{0:L(^)}", "an integer"),
    ("f32[2]{0:L(2^}", r"'\)'"),
    ("f32[2]{0:E(4^,4)}", r"'\)'"),
    ("f32[2]{0:SC^}", "a split such as"),
    ("f32[2]{0:SC(0^)}", "':'"),
    ("f32[2]{0:SC(0:1^}", r"',' or '\)'"),
    ("f32[2]{0:D(^X)}", "a dimension level"),
    ("f32[2]{0:D(C~^+)}", r"',' or '\)'"),
    ("f32[2]{0:PV(^two)}", "zero, one, lowest or highest"),
    ("f32[2]{0:T(2)^PAD(3)}", "in this order"),
    ("f32[2]{0} ^x", "nothing more after the shape"),
    ("f32[2]^, f32[3]", "nothing more after the shape"),
    ("f32[2]^)", "nothing more after the shape"),
    ("f32[2]^/*", "comment"),
    ("f32[2]^/ /", "nothing more"),
    ("token[^3]", "token has no dimensions"),
    ("opaque[]^{0}", "a layout such as"),
    ("token^", r"'\['"),
    ("(^", "an element type"),
    ("(f32[2],^)", "an element type"),
    ("(f32[2] ^f32[3])", r"',' or '\)' in the tuple"),
    ("(f32[2]^", r"',' or '\)' in the tuple, found the end"),
    ("(f32[2])^)", "nothing more"),
    ("(f32[2]\n, ^g[3])", "at line 2, column 3"),
    ("b^[2]", r"'\('"),
    ("b(^token[])", "an array in the buffer"),
    ("b(^(f32[2]))", "an array in the buffer"),
    ("b(^b(f32[2]))", "an array in the buffer"),
    ("b(f32[2]^, f32[3])", r"'\)'"),
]
#: The text is well formed, the shape is not.
INVALID = [
    ("f32[2,^-1]", "dimensions must be at least 0: -1"),
    ("f32[4611686018427387904,^4]", "int64 overflow"),
    ("f64[^1152921504606846976]", "int64 overflow: the bytes"),
    ("f32[2]^{1,0}", "2 entries for 1 dimension,"),
    ("f32[2,3]^{0}", "1 entry for 2 dimensions"),
    ("f32[2]^{:T(2)}", "0 entries for 1 dimension,"),
    ("f32[2,3]{0,^0}", "0 is twice"),
    ("f32[2,3]{^5,1}", "must hold 0 to 1: 5"),
    ("f32[2,3]{1,^-1}", "must hold 0 to 1: -1"),
    ("f32[2,3]{1,0:T(2)^()}", "at least one entry"),
    ("f32[2,3]{1,0:T(8,^0)}", r"at least 1: 0 in T\(8,0\)"),
    ("f32[2,3]{1,0:T(2)(8,^*)}", r"\* has nothing to merge with"),
    ("f32[2,3]{1,0:T(^-2,8)}", "at least 1: -2"),
    ("f32[2]{0:L(^0)}", "tail_padding_alignment_in_elements must be at least 1"),
    ("f32[2]{0:E(^-4)}", "element_size_in_bits must be at least 0"),
    ("f32[2]{0:S(^128)}", "memory_space must be -128 to 127"),
    ("f32[2]{0:^P(f32[2])}", "sparse arrays"),
    ("f32[9]{0:SC(0:1)^(0:2)}", "split once"),
    ("f32[9]{0:SC^(0:3,3)}", "strictly increasing"),
    ("f32[9]{0:SC^(1:3)}", "physical dimension, 0 to 0"),
    ("f32[9]{0:SC^(0:9)}", "below the dimension's size 9"),
    ("f32[?]{0:SC^(0:3)}", "below the dimension's size"),
    ("f32[9,9]{1,0:PAD(9,^8)}", "at least its dimension: 8 for 9"),
    ("f32[9]{0:^PAD(9,9)}", "one size per dimension"),
    ("f32[9]{0:PAD(^-9)}", "at least 0: -9"),
    ("(f32[2], (f32[2]{0:L(^0)}))", "must be at least 1"),
    ("b(f32[2]{0:L(^0)})", "must be at least 1"),
]


def check(marked: str, rule: str, kind: type[fi.FastIndexError]) -> None:
    position = marked.index("^")
    text = marked[:position] + marked[position + 1 :]
    with pytest.raises(fi.ParseError, match=rule) as caught:
        Shape.parse(text)
    assert caught.value.position == position
    assert type(caught.value) is kind
    assert caught.value.text == text


@pytest.mark.parametrize(("marked", "rule"), SYNTAX)
def test_syntax_errors(marked: str, rule: str) -> None:
    check(marked, rule, fi.ParseError)


@pytest.mark.parametrize(("marked", "rule"), INVALID)
def test_invalid_shapes(marked: str, rule: str) -> None:
    check(marked, rule, fi.ParseError)


#: text, canonical text
CANONICAL = [
    ("f32[2,3]", "f32[2,3]{1,0}"),
    ("f32[]", "f32[]"),
    ("f32[]{:}", "f32[]"),
    ("f32[]{:T(256)}", "f32[]{:T(256)}"),
    (" f32 [ 2 ] { 0 : T ( 2 ) } ", "f32[2]{0:T(2)}"),
    ("f32[2]\t\r\n{0}", "f32[2]{0}"),
    ("/* a */f32/**/[2// b ] {\n]", "f32[2]{0}"),
    ("f32[2] // the end", "f32[2]{0}"),
    ("f32[2,3]// {1,0}\r{0,1}", "f32[2,3]{0,1}"),
    ("f32[2,3]// {1,0}\x0b{1,0}\n{0,1}", "f32[2,3]{0,1}"),
    ("f32[2,3]/* // */{0,1}// /*", "f32[2,3]{0,1}"),
    ("f32[2]/*/ */", "f32[2]{0}"),
    ("f32[007,-0]{01,00}", "f32[7,0]{1,0}"),
    ("f32[" + "0" * 5000 + "7]", "f32[7]{0}"),
    ("f32[<= 3, ?]", "f32[<=3,?]{1,0}"),
    ("f32[<=-9223372036854775808]", "f32[?]{0}"),
    ("pred[9223372036854775807]", "pred[9223372036854775807]{0}"),
    ("f32[2]{0:L(1)E(0)S(0)M(0)}", "f32[2]{0}"),
    ("f32[2]{0:M(-5)}", "f32[2]{0}"),
    ("f32[2]{0:E(32)}", "f32[2]{0:E(32)}"),
    ("f32[2,3]{1,0:T(-9223372036854775808,2)}", "f32[2,3]{1,0:T(*,2)}"),
    ("f32[2]{0:T(2)(2)L(2)E(8)S(2)SC(0:1)M(4)}", "f32[2]{0:T(2)(2)L(2)E(8)S(2)SC(0:1)M(4)}"),
    ("f32[2]{0:PAD(3)PV(one)T(2)}", "f32[2]{0:PAD(3)PV(one)T(2)}"),
    ("f32[2]{0:SC(0:)}", "f32[2]{0:SC(0:)}"),
    ("f32[2]{0:D()}", "f32[2]{0}"),
    ("f32[2]{0:D(D)T(2)}", "f32[2]{0:T(2)}"),
    ("f32[2]{0:D(C+~,S~)}", "f32[2]{0:D(C+~,S~)}"),
    ("( )", "()"),
    ("(f32[2],token[ ],opaque[])", "(f32[2]{0}, token[], opaque[])"),
    ("b (f32[2])", "b(f32[2]{0})"),
    (
        "((s8[],s8[],s8[],s8[],s8[],s8[]),u8[],u8[],u8[],u8[],u8[])",
        "((s8[], s8[], s8[], s8[], s8[], /*index=5*/s8[]), u8[], u8[], u8[], u8[], /*index=5*/u8[])",
    ),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_canonical_text(text: str, canonical: str) -> None:
    assert str(Shape.parse(text)) == canonical
    assert str(Shape.parse(canonical)) == canonical


def test_text_without_layout() -> None:
    shape = Shape.parse("(f32[2,3]{0,1:T(2)}, b(s8[<=4]), token[])")
    assert format_shape(shape, with_layout=False) == "(f32[2,3], b(s8[<=4]), token[])"


@pytest.mark.parametrize("text", [b"f32[2]", None, 3, Shape("f32")])
def test_only_text_is_parsed(text: object) -> None:
    with pytest.raises(TypeError, match="expected the text of a shape"):
        Shape.parse(text)  # type: ignore[arg-type]


@given(array_shapes())
def test_text_round_trips(expected: reference.ReferenceShape) -> None:
    shape = Shape.parse(str(expected))
    assert str(shape) == str(expected)
    assert Shape.parse(str(shape)) == shape
    if str(shape.layout) != "{}":
        assert Layout.parse(str(shape.layout)) == shape.layout


def check_any(text: str) -> None:
    """A text is a shape, which its canonical text is too, or an error with a place in the text."""
    error = None
    try:
        shape = Shape.parse(text)
    except fi.ParseError as found:
        error = found
    if error is None:
        assert Shape.parse(str(shape)) == shape, text
    else:
        assert 0 <= error.position <= len(text), text
        assert str(error)


@given(st.text(alphabet="fbs0123468[]{}(),:TLESCDPM*#<=? /\n-~+", max_size=60))
def test_any_text_is_a_shape_or_a_syntax_error(text: str) -> None:
    check_any(text)


def test_damaged_texts_have_positions_inside() -> None:
    for seed in seeds(2000):
        check_any(TextMaker(seed).damaged())


@pytest.mark.parametrize(
    ("text", "canonical"), [("{1,0}", "{1,0}"), ("{ : T(2) }", "{:T(2)}"), ("{:}", "{}"), ("{0:S(5)}", "{0:S(5)}")]
)
def test_layouts_alone(text: str, canonical: str) -> None:
    assert str(Layout.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "position"), [("", 0), ("1,0", 0), ("{1,0", 4), ("{1,0}x", 5), ("{0,0}", 3), ("{}x", 2), ("{0}{0}", 3)]
)
def test_layouts_alone_that_are_none(text: str, position: int) -> None:
    with pytest.raises(fi.ParseError) as caught:
        Layout.parse(text)
    assert caught.value.position == position


def test_unclosed_tuples_thousands_deep() -> None:
    for text in ("(" * 50_000, "(" * 50_000 + ")" * 49_999, "b(" * 50_000):
        with pytest.raises(fi.ParseError):
            Shape.parse(text)


@pytest.mark.in_turn(seconds=4)
def test_long_texts_take_time_in_proportion() -> None:
    """2 MB of tuple and a comment that never ends: a second, and hours where the time is that of the square."""
    Shape.parse("(" + "f32[8,128]{1,0:T(8,128)}," * 40_000 + "f32[])")
    for text in ("f32[2] /*" + "*" * 1_000_000, "f32[2]" + " /" * 500_000, "f32[2]" + "//\n" * 300_000 + "x"):
        with pytest.raises(fi.ParseError):
            Shape.parse(text)
