"""Two array objects are looked at in one native call: it must say what NumPy's own attributes say.

Tests of: runtime.lines.calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.arrays.arrays import address_of, expected_pair
from fastindex.runtime.kernels import kernel
from fastindex.runtime.lines.calls import plain_addresses
from fastindex.runtime.lines.memory import set_entry
from tests.cases.written_kernels import kept

COUNT = 6


@kernel
def look(found, source, target, expected):  # type: ignore[no-untyped-def]
    """Write what `plain_addresses` returns, which Python cannot call."""
    first, second = plain_addresses(source, target, expected)
    set_entry(found, 0, first)
    set_entry(found, 1, second)


def addresses_of(source: int, target: int, expected: int) -> tuple[int, int]:
    found = np.zeros(2, np.int64)
    kept(__name__, "look")(address_of(found), source, target, expected)
    return int(found[0]), int(found[1])


class Named(np.ndarray[Any, Any]):
    """A subclass, which may mean anything."""


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


MEMORY = np.zeros(10 * COUNT, np.float32)
OBJECTS: list[Any] = [
    np.zeros(COUNT, np.float32),
    np.zeros(COUNT, np.float32),
    MEMORY[:COUNT],
    MEMORY[1 : COUNT + 1],
    MEMORY[COUNT : 2 * COUNT],
    MEMORY[: 2 * COUNT : 2],
    MEMORY[COUNT - 1 :: -1],
    np.zeros(COUNT, np.int32),
    np.zeros(COUNT, ">f4"),
    np.zeros(4 * COUNT, np.uint8),
    np.zeros(COUNT - 1, np.float32),
    np.zeros((COUNT, 1), np.float32),
    np.zeros((1, COUNT), np.float32),
    np.float32(1),
    np.zeros((), np.float32),
    read_only(np.zeros(COUNT, np.float32)),
    np.broadcast_to(np.float32(0), (COUNT,)),
    np.zeros(COUNT, np.float32).view(Named),
    np.zeros(4 * COUNT + 1, np.uint8)[1:].view(np.float32),
    bytes(4 * COUNT),
    bytearray(4 * COUNT),
    [0.0] * COUNT,
    None,
    COUNT,
    object(),
    np.ndarray,
]


def is_plain(array: Any) -> bool:
    return (
        type(array) is np.ndarray
        and array.dtype == np.float32
        and array.shape == (COUNT,)
        and bool(array.flags.c_contiguous)
    )


@pytest.mark.parametrize("source", OBJECTS, ids=range(len(OBJECTS)))
def test_the_pair_is_plain_where_numpy_says_so(source: Any) -> None:
    single = np.dtype(np.float32)
    table = np.array(expected_pair((single, COUNT), (single, COUNT)))
    for target in OBJECTS:
        expected = 0, 0
        if is_plain(source) and is_plain(target) and target.flags.writeable and not np.shares_memory(source, target):
            expected = source.ctypes.data, target.ctypes.data
        assert addresses_of(id(source), id(target), address_of(table)) == expected


def test_some_pairs_are_plain_and_sizes_may_differ() -> None:
    table = np.array(expected_pair((np.dtype(np.uint8), 3), (np.dtype(np.int64), 0)))
    memory = np.zeros(24, np.uint8)
    source, target = memory[5:8], memory[8:8].view(np.int64)
    assert addresses_of(id(source), id(target), address_of(table)) == (address_of(source), address_of(target))


def test_a_target_begins_where_it_is_expected_to() -> None:
    table = np.array(expected_pair((np.dtype(np.uint8), 3), (np.dtype(np.uint8), 3), 64))
    memory, source = np.zeros(256, np.uint8), np.zeros(3, np.uint8)
    begin = -address_of(memory) % 64
    for offset in (0, 1, 16, 63, 64):
        target = memory[begin + offset : begin + offset + 3]
        expected = (address_of(source), address_of(target)) if offset % 64 == 0 else (0, 0)
        assert addresses_of(id(source), id(target), address_of(table)) == expected


@pytest.mark.parametrize("other", range(len(OBJECTS)))
def test_a_plan_takes_the_same_arguments_either_way(other: int) -> None:
    """What the native look does not know, the checks one by one accept or refuse."""
    plan = fi.plan_relayout("f32[2,3]{1,0}", "f32[2,3]{0,1}")
    given = np.arange(COUNT, dtype=np.float32)
    accepted = (1, 4, 17, 18)
    out = OBJECTS[other]
    if other in accepted or other in (0, 2, 3):
        assert plan(given, out) is out
        assert out.tolist() == [0, 3, 1, 4, 2, 5]
    elif other == 9:
        assert plan(given, out).view(np.float32).tolist() == [0, 3, 1, 4, 2, 5]
    elif out is None:
        assert plan(given, out).tolist() == [0, 3, 1, 4, 2, 5]
    else:
        with pytest.raises(fi.FastIndexError):
            plan(given, out)


def test_overlapping_ends_are_refused_and_touching_ones_are_not() -> None:
    plan = fi.plan_relayout("f32[2,3]{1,0}", "f32[2,3]{0,1}")
    memory = np.arange(2 * COUNT, dtype=np.float32)
    assert plan(memory[:COUNT], memory[COUNT:]).tolist() == [0, 3, 1, 4, 2, 5]
    assert plan(memory[COUNT:], memory[:COUNT]).tolist() == [0, 4, 3, 2, 1, 5]
    for start in (0, 1, COUNT - 1):
        with pytest.raises(fi.FastIndexError, match="overlaps"):
            plan(memory[:COUNT], memory[start : start + COUNT])
        with pytest.raises(fi.FastIndexError, match="overlaps"):
            plan(memory[start : start + COUNT], memory[:COUNT])
