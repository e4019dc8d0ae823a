"""Arrays and buffers at the edge: what is taken, what is refused, what is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex import ArgumentTypeError

TILED = "f32[3,5]{1,0:T(2,2)}"
ARRAY = np.arange(15, dtype=np.float32).reshape(3, 5)

#: The functions that read a buffer of `TILED`.
READERS: list[Callable[[Any], Any]] = [
    lambda buffer: fi.unpack(buffer, TILED),
    lambda buffer: fi.relayout(buffer, TILED, "f32[3,5]"),
    fi.plan_relayout(TILED, "f32[3,5]"),
]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_new_memory_begins_at_a_line(size: int) -> None:
    buffer = fi.pack(np.zeros(size, np.uint8), f"u8[{size}]")
    for memory in (buffer, fi.unpack(buffer, f"u8[{size}]")):
        assert memory.nbytes == size
        assert memory.flags.writeable
        assert not size or memory.__array_interface__["data"][0] % 64 == 0


@pytest.mark.parametrize(
    ("text", "dtype", "slots"),
    [
        (TILED, np.float32, 24),
        ("u4[3,5]{1,0:E(4)}", np.uint8, 8),
        ("pred[3]{0:E(32)}", np.uint8, 12),
        ("f64[]", np.float64, 1),
    ],
)
def test_new_buffers_and_arrays_have_the_type_of_the_shape(text: str, dtype: Any, slots: int) -> None:
    shape = fi.Shape.parse(text)
    buffer = fi.pack(np.zeros(shape.dimensions, shape.element_type.numpy_dtype), text)
    array = fi.unpack(buffer, text)
    assert (buffer.dtype, buffer.shape) == (dtype, (slots,))
    assert (array.dtype, array.shape) == (shape.element_type.numpy_dtype, shape.dimensions)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8, "V1"])
def test_buffers_are_of_the_element_type_or_bytes(dtype: Any) -> None:
    memory = fi.pack(ARRAY, TILED).view(dtype)
    assert all(np.array_equal(np.ravel(read(memory)), np.ravel(ARRAY)) for read in READERS)


@pytest.mark.parametrize("dtype", [np.int32, np.float64, np.uint32, np.complex64, "V4", bool, ">f4"])
def test_buffers_of_another_type(dtype: Any) -> None:
    for read in READERS:
        with pytest.raises(ArgumentTypeError, match=r"holds float32 or raw bytes"):
            read(np.zeros(96, np.uint8).view(dtype))


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
        (np.zeros(0, np.float32), "takes 96 bytes"),
        (np.zeros(97, np.uint8), "got 97"),
        (np.zeros((4, 6), np.float32), "one dimension, got 2"),
        (np.zeros((), np.float32), "one dimension, got 0"),
        (bytes(95), "got 95"),
        (bytes(3), "got 3"),
        (None, "a buffer"),
        (3, "a buffer"),
        ("text", "reads a file"),
        (object(), "a buffer"),
    ],
)
def test_buffers_of_another_form(buffer: Any, message: str) -> None:
    for read in READERS:
        with pytest.raises(fi.FastIndexError, match=message):
            read(buffer)


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
    assert fi.unpack(np.asfortranarray(square), "f32[4,4]{0,1}").tolist() == square.tolist()
    assert fi.unpack(square, "f32[4,4]").tolist() == square.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_output_buffers(dtype: Any) -> None:
    out = fi.pack(np.zeros_like(ARRAY), TILED).view(dtype)
    assert fi.pack(ARRAY, TILED, out=out) is out
    assert out.tobytes() == fi.pack(ARRAY, TILED).tobytes()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (bytearray(96), "must be a NumPy array, got bytearray"),
        (np.zeros(48, np.float32)[::2], "contiguous"),
        (np.zeros(24, np.float32)[::-1], "contiguous"),
        (np.frombuffer(bytes(96), np.float32), "read-only"),
        (np.zeros(23, np.float32), "takes 96 bytes"),
        (np.zeros(24), "float64"),
        (np.zeros((2, 24), np.float32), "one dimension"),
    ],
)
def test_wrong_output_buffers(out: Any, message: str) -> None:
    for write in (
        lambda: fi.pack(ARRAY + 1, TILED, out=out),
        lambda: fi.relayout(np.ravel(ARRAY + 1), "f32[3,5]", TILED, out=out),
        lambda: fi.plan_relayout("f32[3,5]", TILED)(np.ravel(ARRAY + 1), out),
    ):
        with pytest.raises(fi.FastIndexError, match=message):
            write()
    assert not np.any(np.frombuffer(out, np.uint8) if isinstance(out, bytearray) else out)


@pytest.mark.parametrize(
    "strides", [(0, 4), (4, 4), (20, 0), (8, 4), (16, 4), (20, 2), (4, 8), (-8, 4)], ids=lambda s: f"{s[0]},{s[1]}"
)
def test_output_arrays_that_overlap_themselves(strides: tuple[int, int]) -> None:
    memory = np.zeros(200, np.float32)[100:]
    out = np.lib.stride_tricks.as_strided(memory, (3, 5), strides, writeable=True)
    with pytest.raises(fi.FastIndexError, match="overlap"):
        fi.unpack(fi.pack(ARRAY, TILED), TILED, out=out)


def test_strides_of_size_one_do_not_matter() -> None:
    out = np.lib.stride_tricks.as_strided(np.zeros(5, np.float32), (1, 5), (0, 4), writeable=True)
    assert fi.unpack(ARRAY[0], "f32[1,5]", out=out) is out


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.zeros((3, 5), np.int32), ArgumentTypeError, "s32"),
        ([[0] * 5] * 3, ArgumentTypeError, "got list"),
        (np.zeros((3, 5), ">f4"), ArgumentTypeError, "dtype"),
        (np.zeros((5, 3), np.float32), fi.FastIndexError, "out has"),
        (np.broadcast_to(np.float32(0), (3, 5)), fi.FastIndexError, "read-only"),
    ],
)
def test_wrong_output_arrays(out: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fi.unpack(fi.pack(ARRAY, TILED), TILED, out=out, casting="no")


@pytest.mark.parametrize("start", [0, 1, 49])
def test_outputs_may_not_share_memory_with_the_input(start: int) -> None:
    memory = np.zeros(100, np.uint8)
    fi.relayout(memory[:50], "u8[50]", "u8[50]", out=memory[50:])
    with pytest.raises(fi.FastIndexError, match="overlaps the input"):
        fi.relayout(memory[:50], "u8[50]", "u8[50]", out=memory[start : start + 50])
