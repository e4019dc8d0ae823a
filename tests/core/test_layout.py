"""Layouts: what they accept, what they refuse and why, equality, text.

Tests of: core.integers, core.layout_fields.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex import Layout
from fastindex.xla import SplitConfig


def test_defaults() -> None:
    layout = Layout()
    assert (layout.minor_to_major, layout.tiles, layout.padded_dimensions, layout.padding_value) == (
        (),
        (),
        None,
        None,
    )
    assert (layout.element_size_in_bits, layout.memory_space) == (0, 0)
    assert layout.tail_padding_alignment_in_elements == 1


def test_orders() -> None:
    assert Layout.descending(3).minor_to_major == (2, 1, 0)
    assert Layout.ascending(3).minor_to_major == (0, 1, 2)
    assert Layout.descending(0) == Layout.ascending(0) == Layout()
    assert Layout.from_major_to_minor((0, 2, 1)).minor_to_major == (1, 2, 0)
    assert Layout((1, 2, 0)).major_to_minor == (0, 2, 1)
    assert Layout((1, 2, 0)).rank == 3


def test_sequences_and_integers_of_any_kind() -> None:
    layout = Layout(
        np.array([1, 0], np.uint8),  # type: ignore[arg-type]
        tiles=[[np.int32(8), 128], np.array([2, 1])],  # type: ignore[arg-type]
        memory_space=np.int8(5),  # type: ignore[arg-type]
    )
    assert layout == Layout((1, 0), tiles=((8, 128), (2, 1)), memory_space=5)
    assert all(type(size) is int for tile in layout.tiles for size in tile)
    assert type(layout.memory_space) is int


@pytest.mark.parametrize("star", [-1, -(2**63), Layout.COMBINE, np.int64(-1)])
def test_a_star_is_one_constant(star: Any) -> None:
    layout = Layout((1, 0), tiles=((star, 8),))
    assert layout.tiles == ((Layout.COMBINE, 8),)
    assert str(layout) == "{1,0:T(*,8)}"


#: keyword arguments, the rule
#: Those that a text can have are in `INVALID` of ``test_reading.py``.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tiles": ((8, -1),)}, r"\* has nothing to merge with: T\(8,\*\)"),
    ({"tiles": ((2**63,),)}, "must fit int64"),
    ({"padding_value": "two"}, "zero, one, lowest, highest or None, got 'two'"),
    ({"memory_space": -129}, "memory_space must be -128 to 127, got -129"),
    ({"tail_padding_alignment_in_elements": 2**63}, "must fit int64"),
    ({"dynamic_shape_metadata_prefix_bytes": 2**63}, "must fit int64"),
    ({"split_configs": (SplitConfig(1, (1,)),)}, "physical dimension, 0 to 0"),
    ({"split_configs": (SplitConfig(0, (1,)), SplitConfig(0, (2,)))}, "split once"),
    ({"dimension_levels": ("X",)}, "D, C, S or H"),
    ({"dimension_levels": ("C~+",)}, "D, C, S or H"),
    ({"dimension_levels": ("",)}, "D, C, S or H"),
]


@pytest.mark.parametrize(("arguments", "rule"), REFUSED)
def test_refused(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(fi.LayoutError, match=rule):
        Layout(**{"minor_to_major": (0,), **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"minor_to_major": (0.0,)},
        {"minor_to_major": (False,)},
        {"minor_to_major": 0},
        {"minor_to_major": "0"},
        {"tiles": ((2.5,),)},
        {"tiles": ("8",)},
        {"tiles": (8,)},
        {"memory_space": True},
        {"memory_space": np.True_},
        {"memory_space": None},
        {"split_configs": ((0, (1,)),)},
    ],
)
def test_wrong_types(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Layout(**{"minor_to_major": (0,), **arguments})


@pytest.mark.parametrize(
    ("dimension", "indices", "rule"),
    [(-1, (1,), "at least 0"), (0, (0,), "positive"), (0, (2, 2), "2 comes after 2"), (0, (-3,), "positive")],
)
def test_refused_splits(dimension: int, indices: tuple[int, ...], rule: str) -> None:
    with pytest.raises(fi.LayoutError, match=rule):
        SplitConfig(dimension, indices)


def test_layouts_are_frozen_hashable_and_copy() -> None:
    layout = Layout.parse("{1,0:PAD(8,9)PV(one)T(8,128)(*,2)L(16)E(4)S(5)SC(0:1)(1:2,3)}")
    with pytest.raises(AttributeError):
        layout.memory_space = 3  # type: ignore[misc]
    for other in (pickle.loads(pickle.dumps(layout)), copy.deepcopy(layout), Layout.parse(str(layout))):
        assert other == layout
        assert hash(other) == hash(layout)


#: Layouts that differ from ``{1,0}`` in one thing each.
DIFFERENT = [
    "{0,1}",
    "{1,0:T(2)}",
    "{1,0:L(2)}",
    "{1,0:E(4)}",
    "{1,0:S(1)}",
    "{1,0:SC(0:1)}",
    "{1,0:D(D,C)}",
    "{1,0:PAD(8,8)}",
    "{1,0:PV(zero)}",
]


@pytest.mark.parametrize("text", DIFFERENT)
def test_every_field_counts_in_equality(text: str) -> None:
    assert Layout.parse(text) != Layout((1, 0))
    assert Layout.parse(text) == Layout.parse(text)


def test_the_metadata_prefix_does_not_count_as_in_xla() -> None:
    assert Layout.parse("{1,0:M(4)}") == Layout((1, 0))
    assert hash(Layout.parse("{1,0:M(4)}")) == hash(Layout((1, 0)))
    assert str(Layout.parse("{1,0:M(4)}")) == "{1,0:M(4)}"


def test_all_dense_levels_are_absent() -> None:
    assert Layout.parse("{1,0:D(D,D)}") == Layout((1, 0))
    assert Layout((0,), dimension_levels=("D",)).dimension_levels == ()
    assert Layout.parse("{1,0:D(D,C+~)}").dimension_levels == ("D", "C+~")
