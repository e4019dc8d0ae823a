"""Arrays and buffers at the edge: what is taken, what is refused, what is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex import ArgumentTypeError
from fastindex.arrays.arrays import check_no_overlap, described
from fastindex.arrays.buffers import (
    aligned_bytes,
    as_buffer_bytes,
    as_logical_array,
    buffer_dtype,
    check_output_array,
    check_output_buffer,
    new_array,
    new_buffer,
)
from fastindex.core.sizes import check_movable
from fastindex.moving.relayout_plans import require_movable_pair

TILED = fi.Shape.parse("f32[3,5]{1,0:T(2,2)}")
PACKED = fi.Shape.parse("u4[3,5]{1,0:E(4)}")


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_new_memory_begins_at_a_line(size: int) -> None:
    for memory in (aligned_bytes(size), new_buffer(fi.Shape("u8", (size,))), new_array(fi.Shape("u8", (size,)))):
        assert memory.nbytes == size
        assert memory.flags.writeable
        assert not size or memory.__array_interface__["data"][0] % 64 == 0


def test_new_buffers_and_arrays_have_the_type_of_the_shape() -> None:
    assert (new_buffer(TILED).dtype, new_buffer(TILED).shape) == (np.dtype(np.float32), (24,))
    assert (new_array(TILED).dtype, new_array(TILED).shape) == (np.dtype(np.float32), (3, 5))
    assert (new_buffer(PACKED).dtype, new_buffer(PACKED).shape) == (np.dtype(np.uint8), (8,))
    assert new_array(PACKED).shape == (3, 5)
    assert new_array(fi.Shape.parse("f64[]")).shape == ()
    wide = fi.Shape.parse("pred[3]{0:E(32)}")
    assert buffer_dtype(wide) == np.uint8
    assert new_buffer(wide).shape == (12,)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8, "V1"])
def test_buffers_are_of_the_element_type_or_bytes(dtype: Any) -> None:
    memory = np.arange(96, dtype=np.uint8)
    assert as_buffer_bytes(memory.view(dtype), TILED).tobytes() == memory.tobytes()


@pytest.mark.parametrize("dtype", [np.int32, np.float64, np.uint32, np.complex64, "V4", bool, ">f4"])
def test_buffers_of_another_type(dtype: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"holds float32 or raw bytes"):
        as_buffer_bytes(np.zeros(96, np.uint8).view(dtype), TILED)


def test_bits_read_as_unsigned_integers_are_to_be_viewed() -> None:
    for text, name in [("bf16[4]", r"ml_dtypes\.bfloat16"), ("f16[4]", r"numpy\.float16")]:
        with pytest.raises(ArgumentTypeError, match=rf"got dtype uint16; .* pass array\.view\({name}\)"):
            fi.unpack(np.zeros(4, np.uint16), text)
    with pytest.raises(ArgumentTypeError, match=r"got dtype uint32$"):
        fi.unpack(np.zeros(4, np.uint32), "bf16[4]")


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (np.zeros(23, np.float32), "takes 96 bytes"),
        (np.zeros(25, np.float32), "got 100"),
        (np.zeros((4, 6), np.float32), "one dimension, got 2"),
        (np.zeros((), np.float32), "one dimension, got 0"),
        (bytes(95), "got 95"),
    ],
)
def test_buffers_of_another_form(buffer: Any, message: str) -> None:
    with pytest.raises(fi.FastIndexError, match=message):
        as_buffer_bytes(buffer, TILED)


@pytest.mark.parametrize(
    ("buffer", "text", "strides"),
    [
        (np.zeros((5, 3), np.float32).T, "f32[3,5]{1,0}", r"\(4, 12\), not \(20, 4\)"),
        (np.zeros((3, 10), np.float32)[:, ::2], "f32[3,5]{1,0}", r"\(40, 8\), not \(20, 4\)"),
        (np.zeros((3, 5), np.float32), "f32[3,5]{0,1}", r"\(20, 4\), not \(4, 12\)"),
        (np.zeros((5, 6), np.float32)[:, ::2], "f32[3,5]{0,1}", r"\(24, 8\), not \(12, 4\)"),
    ],
)
@pytest.mark.parametrize("call", [lambda buffer, text: fi.relayout(buffer, text, "f32[3,5]{1,0:T(2,2)}"), fi.unpack])
def test_views_that_are_not_contiguous(call: Any, buffer: Any, text: str, strides: str) -> None:
    with pytest.raises(fi.FastIndexError, match=rf"is not contiguous.*{strides}; pack takes arrays of any strides"):
        call(buffer, text)


def test_a_square_may_be_in_memory_order() -> None:
    """Its strides do not tell, so the error says what each would be."""
    square = np.arange(16, dtype=np.float32).reshape(4, 4)
    with pytest.raises(fi.FastIndexError, match=r"if its dimensions are in memory order, array.reshape\(-1\) is"):
        fi.relayout(square, "f32[4,4]{0,1}", "f32[4,4]")
    assert fi.relayout(square.reshape(-1), "f32[4,4]{0,1}", "f32[4,4]", as_array=True).tolist() == square.T.tolist()


@pytest.mark.parametrize("buffer", [None, 3, "text", object()])
def test_what_is_no_buffer(buffer: Any) -> None:
    with pytest.raises((ArgumentTypeError, fi.FastIndexError)):
        as_buffer_bytes(buffer, TILED)


def test_logical_arrays() -> None:
    array = np.arange(15, dtype=np.float32).reshape(3, 5)
    assert as_logical_array(array, TILED) is array
    swapped = as_logical_array(array.astype(">f4"), TILED)
    assert swapped.dtype == np.dtype(np.float32)
    np.testing.assert_array_equal(swapped, array)
    np.testing.assert_array_equal(as_logical_array(array[:, ::-1], TILED), array[:, ::-1])
    with pytest.raises(ArgumentTypeError, match="needs an array of dtype float32, got float64"):
        as_logical_array(array.astype(np.float64), TILED)
    with pytest.raises(fi.FastIndexError, match=r"dimensions \(3, 5\), the array has \(5, 3\)"):
        as_logical_array(array.T, TILED)


def test_output_buffers() -> None:
    out = np.zeros(24, np.float32)
    assert check_output_buffer(out, TILED) is out
    raw = np.zeros(96, np.uint8)
    assert check_output_buffer(raw, TILED) is raw
    with pytest.raises(ArgumentTypeError, match="must be a NumPy array, got bytearray"):
        check_output_buffer(bytearray(96), TILED)
    with pytest.raises(fi.FastIndexError, match="contiguous"):
        check_output_buffer(np.zeros(48, np.float32)[::2], TILED)
    with pytest.raises(fi.FastIndexError, match="contiguous"):
        check_output_buffer(out[::-1], TILED)
    out.flags.writeable = False
    with pytest.raises(fi.FastIndexError, match="read-only"):
        check_output_buffer(out, TILED)


FITTING: list[Callable[[], Any]] = [
    lambda: np.zeros((3, 5), np.float32),
    lambda: np.zeros((5, 3), np.float32).T,
    lambda: np.zeros((6, 15), np.float32)[::-2, ::3],
    lambda: np.zeros((3, 5, 2), np.float32)[..., 1],
    lambda: np.ndarray((3, 5), np.float32, bytearray(61), 1),
]


@pytest.mark.parametrize("make", FITTING)
def test_output_arrays_of_any_strides(make: Callable[[], Any]) -> None:
    out = make()
    assert check_output_array(out, TILED) is out


@pytest.mark.parametrize(
    "strides", [(0, 4), (4, 4), (20, 0), (8, 4), (16, 4), (20, 2), (4, 8), (-8, 4)], ids=lambda s: f"{s[0]},{s[1]}"
)
def test_output_arrays_that_overlap_themselves(strides: tuple[int, int]) -> None:
    memory = np.zeros(200, np.float32)[100:]
    out = np.lib.stride_tricks.as_strided(memory, (3, 5), strides, writeable=True)
    with pytest.raises(fi.FastIndexError, match="overlap"):
        check_output_array(out, TILED)


def test_strides_of_size_one_do_not_matter() -> None:
    memory = np.zeros(5, np.float32)
    out = np.lib.stride_tricks.as_strided(memory, (1, 5), (0, 4), writeable=True)
    assert check_output_array(out, fi.Shape.parse("f32[1,5]")) is out


def test_wrong_output_arrays() -> None:
    for out, message in (
        (np.zeros((3, 5)), "dtype float64"),
        ([[0] * 5] * 3, "got list"),
        (np.zeros((3, 5), ">f4"), "dtype"),
    ):
        with pytest.raises(ArgumentTypeError, match=message):
            check_output_array(out, TILED)
    with pytest.raises(fi.FastIndexError, match="out has"):
        check_output_array(np.zeros((5, 3), np.float32), TILED)
    with pytest.raises(fi.FastIndexError, match=r"read-only"):
        check_output_array(np.broadcast_to(np.float32(0), (3, 5)), TILED)


def test_outputs_may_not_share_memory_with_the_input() -> None:
    memory = np.zeros(100, np.uint8)
    check_no_overlap(described(memory[:50]), (described(memory[50:]),))
    for start in (0, 1, 49):
        with pytest.raises(fi.FastIndexError, match="overlaps the input"):
            check_no_overlap(described(memory[:50]), (described(memory[start : start + 50]),))


def test_pairs_are_layouts_of_one_array() -> None:
    require_movable_pair(TILED, fi.Shape.parse("f32[3,5]{0,1}"), "no")
    require_movable_pair(fi.Shape.parse("f32[<=3,5]"), fi.Shape.parse("f32[3,5]"), "no")
    for other in ("f32[5,3]", "s32[5,3]", "f32[3,5,1]", "f32[15]"):
        with pytest.raises(fi.FastIndexError, match="keeps the array"):
            require_movable_pair(TILED, fi.Shape.parse(other), "no")
    with pytest.raises(fi.ArgumentTypeError, match="not cast"):
        require_movable_pair(TILED, fi.Shape.parse("s32[3,5]"), "no")
    with pytest.raises(fi.UnsupportedError, match=r"E\(3\)"):
        require_movable_pair(fi.Shape.parse("u2[3]"), fi.Shape.parse("u2[3]{0:E(3)}"), "no")


@pytest.mark.parametrize("text", ["f32[?]", "(f32[2])", "token[]", "u8[3]{0:E(12)}", "f32[3]{0:E(16)}"])
def test_what_does_not_move(text: str) -> None:
    with pytest.raises(fi.UnsupportedError):
        check_movable(fi.Shape.parse(text))
