"""The record of an array and its checks, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import fastindex as fi
from fastindex.arrays.arrays import (
    broadcast_strides,
    check_no_overlap,
    check_target,
    contiguous_strides,
    described,
    element_strides,
    merged_axes,
    strides_overlap,
)

WHOLE = np.zeros((6, 5, 4), np.int32)
VIEWS = [
    WHOLE,
    WHOLE[::2],
    WHOLE[:, ::-1],
    WHOLE.T,
    WHOLE[:, 1:2],
    WHOLE[:0],
    WHOLE[2, 3],
    WHOLE[1, 1, 1:2],
    WHOLE[::-3, 1:],
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: str(view.strides))
def test_a_record_says_what_numpy_says(view: np.ndarray) -> None:
    found = described(view)
    assert (found.size, found.nbytes, found.is_contiguous) == (view.size, view.nbytes, view.flags.c_contiguous)
    assert found.extent == np.lib.array_utils.byte_bounds(view) or view.size == 0
    assert found.read_only is False
    assert contiguous_strides(view.shape, 4) == np.ascontiguousarray(view).strides or view.size == 0


def test_elements_that_share_memory() -> None:
    assert strides_overlap((4, 3), 4, (4, 4))
    assert strides_overlap((4,), 4, (0,))
    assert not strides_overlap((4, 1), 4, (4, 0))
    assert not strides_overlap((0, 5), 8, (0, 0))
    with pytest.raises(fi.FastIndexError, match="the elements of out overlap"):
        check_target(described(np.lib.stride_tricks.as_strided(WHOLE, (3, 3), (4, 4))))


def test_arrays_that_share_memory() -> None:
    check_no_overlap(described(WHOLE[:3]), (described(WHOLE[3:]),))
    with pytest.raises(fi.FastIndexError, match="out overlaps"):
        check_no_overlap(described(WHOLE[:3]), (described(WHOLE[3:]), described(WHOLE[2:3])))


def test_strides_in_elements() -> None:
    odd = np.zeros(40, np.uint8)[:36].view([("a", "u1"), ("b", "<f4"), ("c", "u1")])["b"]
    assert element_strides(described(odd)) is None
    found = element_strides(described(WHOLE[:, 1:2, ::-1]))
    assert found is not None
    assert found.strides == (20, 0, -1)


@pytest.mark.parametrize("view", [np.zeros((5, 1)), np.zeros(4), np.zeros(()), np.zeros((3, 1, 4))[:, :, ::-1]])
def test_broadcasting(view: np.ndarray) -> None:
    wide = np.broadcast_to(view, (3, 5, 4))
    found = broadcast_strides(view.shape, view.strides, (3, 5, 4))
    assert [s for s, n in zip(found, wide.shape, strict=True) if n > 1] == list(wide.strides)


def test_axes_are_merged_where_every_array_allows_it() -> None:
    assert merged_axes((6, 5, 4), [WHOLE.strides]) == ([120], [[4]])
    assert merged_axes((6, 5, 4), [WHOLE.strides, (0, 16, 4)]) == ([6, 20], [[80, 4], [0, 4]])
    assert merged_axes((1, 1), [(7, 9)]) == ([], [[]])
