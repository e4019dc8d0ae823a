"""Copies in sentences.

Tests of: hlo.copies.rows.
"""

from __future__ import annotations

import fastindex as fi
from fastindex.hlo.copies.rows import layout_text, origin_text, shared_origins_text, wanted_text

A = fi.Shape.parse("f32[8,300]{0,1:T(8,128)S(1)}")
B = fi.Shape.parse("f32[2400]{0:T(1024)}")


def test_layouts_are_named_without_memory_spaces() -> None:
    assert layout_text(A) == "{0,1:T(8,128)}"


def test_another_shape_of_the_buffer_is_named_whole() -> None:
    assert origin_text("fusion.7", "writes", B, A) == "fusion.7 writes f32[2400]{0:T(1024)}"
    assert origin_text("fusion.7", "writes", A, A, "while.2, element 3", is_invariant=True) == (
        "the carry of while.2, element 3, begun by fusion.7, is {0,1:T(8,128)}, the same in every trip"
    )


def test_consumers_are_counted_beyond_two() -> None:
    assert wanted_text([(name, "need") for name in "abcde"], A) == "a, b and 3 more need {0,1:T(8,128)}"
    assert wanted_text([], A) == "nothing else in the text takes {0,1:T(8,128)}"
    assert wanted_text([("result 0", "be"), ("result 1", "be")], A) == "result 0 and result 1 are {0,1:T(8,128)}"


def test_only_parts_of_one_result_are_advised_on() -> None:
    assert shared_origins_text([("a", "f", "jit(g)/split"), ("b", "h", "jit(g)/split")]) == []
    assert shared_origins_text([("a", "f", "jit(g)/transpose"), ("b", "f", "jit(g)/transpose")]) == []
    assert len(shared_origins_text([("a", "f", "jit(g)/slice"), ("b", "f", "jit(g)/slice")])) == 1
