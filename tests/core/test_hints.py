"""Hints in errors for users of another library's notation, and that what they propose is right."""

from __future__ import annotations

import re

import pytest

import fastindex as fi

#: text with ^ before the place of the error, and the hint
HINTS = [
    ("^tensor<2x3xf32>", "XLA writes 'tensor<2x3xf32>' as f32[2,3]"),
    ("^tensor<2x?x3xi8>", "XLA writes 'tensor<2x?x3xi8>' as s8[2,?,3]"),
    ("^tensor<f32>", "XLA writes 'tensor<f32>' as f32[]"),
    ("(^memref<4xbf16>)", "XLA writes 'memref<4xbf16>' as bf16[4]"),
    ("^2x3xf32", "XLA writes '2x3xf32' as f32[2,3]"),
    ("f32[^2x3]", "XLA writes '2x3' as 2,3"),
    ("f32[4,^2x3]", "XLA writes '2x3' as 2,3"),
    ("f32[2,^None]", "XLA writes an unbounded dimension as ?"),
    ("f32[2,3]{1,0}^T(8,128)", "T(8,128) belongs inside the braces, after a colon, as in {1,0:T(8,128)}"),
    ("f32[2,3]{1,0}^T(8,128)(2,1)",
     "T(8,128)(2,1) belongs inside the braces, after a colon, as in {1,0:T(8,128)(2,1)}"),
    ("f32[2,3]{1,0:T(8,128)}^S(1)", "S(1) belongs inside the braces, after a colon, as in {1,0:S(1)}"),
    ("f32[2,3]^S(1)", "S(1) belongs inside the braces, after a colon, as in {1,0:S(1)}"),
    ("f32[2,3]{1,0,^S(1)}", "S(1) belongs inside the braces, after a colon, as in {1,0:S(1)}"),
    ("f32[2,3]^{major_to_minor=(0,1)}", "JAX's major_to_minor=(0,1) is {1,0} here, the most minor dimension first"),
    ("^Layout(major_to_minor=(0, 2, 1), tiling=((8, 128), (2, 1)), sub_byte_element_size_in_bits=0)",
     "JAX's major_to_minor=(0, 2, 1) is {1,2,0:T(8,128)(2,1)} here, the most minor dimension first"),
    ("^Layout(major_to_minor=(0, 1), tiling=((8,),), sub_byte_element_size_in_bits=0)",
     "JAX's major_to_minor=(0, 1) is {1,0:T(8)} here, the most minor dimension first"),
    ("^{1,0:T(8,128)}", "a layout is written after the element type and the sizes, as in f32[3,5]{1,0}"),
    ("^%p.1 = f32[2]{0} parameter(0)",
     "of an HLO instruction, only the shape is read: the text from '=' to the opcode"),
    ("  ^ROOT r = f32[2]{0} add(a, b)",
     "of an HLO instruction, only the shape is read: the text from '=' to the opcode"),
    # Nothing is proposed where it is not known what is meant.
    ("f32[2,3]{1,0:S(1)^T(8,128)}", ""),
    ("^x3xf33", ""),
    ("^tensor<2xf33>", ""),
    ("f32[2,3]{1,0}^T", ""),
    ("f32[2,3]^{}", ""),
    ("^", ""),
]  # fmt: skip


@pytest.mark.parametrize(("marked", "hint"), HINTS)
def test_hints(marked: str, hint: str) -> None:
    with pytest.raises(fi.ParseError) as caught:
        fi.Shape.parse(marked.replace("^", ""))
    assert (caught.value.position, caught.value.hint) == (marked.index("^"), hint)
    assert not hint or f"; {hint}\n" in str(caught.value)


@pytest.mark.parametrize(("text", "name"), [("half[2]", "f16"), ("fp32[2]", "f32"), ("i4[2]", "s4")])
def test_element_types_of_other_libraries(text: str, name: str) -> None:
    with pytest.raises(fi.ParseError, match=f"expected {name}, XLA's name of the element type"):
        fi.Shape.parse(text)


@pytest.mark.parametrize("text", ["{1,0}T(8,128)", "{1,0}S(1)", "T(8,128)", "{major_to_minor=(0,1)}"])
def test_layouts_have_hints_too(text: str) -> None:
    with pytest.raises(fi.ParseError) as caught:
        fi.Layout.parse(text)
    assert caught.value.hint


def test_what_is_proposed_can_be_read() -> None:
    for _, hint in HINTS:
        proposed = re.search(r"as ([a-z]\w*\[.*\])$|as in (\{.*\})$|is (\{.*\}) here", hint)
        if proposed is not None:
            text = next(group for group in proposed.groups() if group)
            assert str(fi.Layout.parse(text) if text[0] == "{" else fi.Shape.parse(text)).startswith(text)
