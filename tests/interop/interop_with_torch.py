"""PyTorch's tensors; `test_interop.py` runs this file in a process of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fastindex as fi
from tests.oracles.array_places import check_places, order_of


def test_torch_memory_formats() -> None:
    x = torch.arange(120, dtype=torch.float32).reshape(2, 3, 4, 5)
    assert order_of(fi.Shape.from_torch(x)) == (3, 2, 1, 0)
    last = x.to(memory_format=torch.channels_last)
    assert str(fi.Shape.from_torch(last)) == "f32[2,3,4,5]{1,3,2,0}"
    check_places(last.numpy(), fi.Shape.from_torch(last))
    assert fi.layout_name(fi.Shape.from_torch(last)) == "NHWC"
    volume = torch.zeros(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d)
    assert order_of(fi.Shape.from_torch(volume)) == (1, 4, 3, 2, 0)
    assert order_of(fi.Shape.from_torch(x.permute(3, 1, 0, 2))) == (0, 3, 1, 2)


def test_torch_element_types() -> None:
    for dtype, name in {
        torch.bool: "pred", torch.uint8: "u8", torch.int64: "s64", torch.float16: "f16", torch.bfloat16: "bf16",
        torch.complex64: "c64", torch.float8_e4m3fn: "f8e4m3fn", torch.float8_e5m2: "f8e5m2", torch.uint16: "u16",
    }.items():  # fmt: skip
        tensor = torch.empty(2, 3, dtype=dtype)
        assert str(fi.Shape.from_torch(tensor)) == f"{name}[2,3]{{1,0}}"
        assert fi.Shape.from_torch(tensor).nbytes == tensor.untyped_storage().nbytes()


def test_torch_refusals() -> None:
    with pytest.raises(fi.UnsupportedError, match="broadcast"):
        fi.Shape.from_torch(torch.zeros(5).expand(3, 5))
    with pytest.raises(fi.UnsupportedError, match="gaps"):
        fi.Shape.from_torch(torch.zeros(3, 8)[:, :5])
    with pytest.raises(fi.UnsupportedError, match="strided"):
        fi.Shape.from_torch(torch.zeros(3, 3).to_sparse())
    with pytest.raises(fi.UnsupportedError, match="conjugate"):
        fi.Shape.from_torch(torch.zeros(3, dtype=torch.complex64).conj())
    with pytest.raises(fi.UnsupportedError, match="strided"):
        fi.Shape.from_torch(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged))


def test_tensors_are_taken_where_arrays_are() -> None:
    for dtype, name in {
        torch.float32: "f32", torch.bfloat16: "bf16", torch.float8_e4m3fn: "f8e4m3fn", torch.int64: "s64",
    }.items():  # fmt: skip
        text = f"{name}[3,5]{{1,0:T(2,2)}}"
        tensor = torch.arange(15, dtype=torch.float32).reshape(5, 3).to(dtype).T
        expected = np.arange(15, dtype=np.float32).reshape(5, 3).T.astype(fi.ElementType.of(name).numpy_dtype)
        buffer = fi.pack(tensor, text)
        assert buffer.tobytes() == fi.pack(expected, text).tobytes()
        assert np.array_equal(fi.unpack(buffer, text), expected)
        assert str(fi.Shape.from_numpy(tensor)) == f"{name}[3,5]{{0,1}}"
    slots = fi.linear_index("f32[3,5]{1,0:T(2,2)}", torch.tensor([[1, 2], [1, 2]]))
    assert list(slots) == [3, 16]
    with pytest.raises(fi.UnsupportedError, match=r"\.cpu\(\)"):
        fi.pack(torch.empty(3, 5, device="meta"), "f32[3,5]")
