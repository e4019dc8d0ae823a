"""PyTorch's tensors; `test_interop.py` runs this file in a separate process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import fastindex as fi
from fastindex.moving import rearranged_arrays
from tests.oracles.array_places import check_places, order_of


def test_torch_memory_formats() -> None:
    x = torch.arange(120, dtype=torch.float32).reshape(2, 3, 4, 5)
    assert order_of(fi.Shape.from_torch(x)) == (3, 2, 1, 0)
    last = x.to(memory_format=torch.channels_last)
    assert str(fi.Shape.from_torch(last)) == "f32[2,3,4,5]{1,3,2,0}"
    check_places(last.numpy(), fi.Shape.from_torch(last))
    assert fi.layouts.layout_name(fi.Shape.from_torch(last)) == "NHWC"
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
    with pytest.raises(fi.UnsupportedError, match="a tensor on meta"):
        fi.pack(torch.empty(3, 5, device="meta"), "f32[3,5]")


# What PyTorch traces: each of these ended in PyTorch's own error, or in its tracer's crash.

CALLS = {
    "rearrange": lambda x: fi.rearrange(x, "a b -> b a"),
    "pack": lambda x: torch.from_numpy(fi.pack(x, "f32[2,3]{0,1}")),
    "unpack": lambda x: torch.from_numpy(fi.unpack(x.reshape(-1), "f32[2,3]{0,1}")),
    "relayout": lambda x: torch.from_numpy(fi.relayout(x.reshape(-1), "f32[2,3]", "f32[2,3]{0,1}")),
    "plan": lambda x: torch.from_numpy(fi.plan_relayout("f32[2,3]", "f32[2,3]{0,1}")(x.reshape(-1).numpy())),
    "linear_index": lambda x: torch.from_numpy(fi.linear_index("f32[2,3]", (x[0].int() % 2, x[0].int() % 3))),
    "shape": lambda x: x * fi.Shape.parse("f32[2,3]{1,0:T(8,128)}").nbytes,
    "reshard": lambda x: torch.from_numpy(
        fi.sharding.plan_reshard("f32[2,3]", "{devices=[2,1]<=[2]}", "{devices=[1,2]<=[2]}")([x[0], x[1]])[0]
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_compiled_functions_call_us(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return CALLS[name](x * 2) + 1

    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(torch.compile(function, backend="eager")(x), function(x))
    # Once PyTorch's tracer is loaded, outside of compiled functions too.
    assert torch.equal(function(x + 1), CALLS[name](2 * x + 2) + 1)


@pytest.mark.filterwarnings("ignore")
def test_the_gradient_of_a_compiled_function() -> None:
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    weights = torch.arange(6.0).reshape(3, 2)
    torch.compile(lambda x: (fi.rearrange(x, "a b -> b a") * weights).sum(), backend="eager")(x).backward()
    assert torch.equal(x.grad, weights.t())


def test_a_gradient_is_never_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weights, out = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2), torch.zeros(3, 2)
    leaf = x.clone().requires_grad_()
    for array, target in ((leaf, out), (leaf * 2, out.numpy()), (x, out.clone().requires_grad_())):
        with pytest.raises(fi.UnsupportedError, match="a result in out has no gradient"):
            fi.rearrange(array, "a b -> b a", out=target)
    with pytest.raises(fi.UnsupportedError, match="dtype= is not supported for tensors that require gradients"):
        fi.rearrange([leaf, leaf], "n a b -> n b a", dtype="bf16")
    with torch.no_grad():
        assert torch.equal(fi.rearrange(leaf, "a b -> b a", out=out), x.t())
    squares = (saved := out.clone().requires_grad_()).square()
    with torch.no_grad():
        fi.rearrange(x, "a b -> b a", out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squares.sum().backward()
    empty = torch.zeros(3, 0)
    assert fi.rearrange(torch.zeros(0, 3), "a b -> b a", out=empty) is empty
    # A GPU whose function loses the gradient, as kernels do.
    monkeypatch.setattr(rearranged_arrays, "place_of", lambda *_: "cuda")
    monkeypatch.setattr(rearranged_arrays, "hook", lambda _: lambda tensor, *_: tensor.detach().mT.clone())
    (fi.rearrange([leaf], "n a b -> b (n a)") * weights).sum().backward()
    assert torch.equal(leaf.grad, weights.t())


def padded(x: torch.Tensor) -> torch.Tensor:
    return fi.rearrange(x, "(a c) b -> a b c", c=4, pad=True, fill=7)


def padded_by_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, torch.full((2, 3), 7, dtype=x.dtype)]).reshape(1, 4, 3).permute(0, 2, 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_rearrangements_that_pytorch_traces(dtype: torch.dtype) -> None:
    x = torch.arange(24).reshape(4, 2, 3).to(dtype)
    turned = CALLS["rearrange"]
    assert torch.equal(torch.vmap(turned)(x), x.transpose(1, 2))
    if dtype != torch.bool:
        assert torch.equal(torch.vmap(padded)(x), torch.stack([padded_by_torch(one) for one in x]))
    assert torch.equal(
        torch.vmap(lambda x: fi.rearrange([x, x], "l a b -> b (a l)"))(x)[0], turned(x[0]).repeat_interleave(2, 1)
    )
    on_meta = turned(torch.ones(2, 3, dtype=dtype, device="meta"))
    assert (on_meta.shape, on_meta.dtype, on_meta.is_contiguous()) == ((3, 2), dtype, True)


@pytest.mark.filterwarnings("ignore")
def test_derivatives_and_exported_programs() -> None:
    x, weights = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(1, 3, 4)
    assert torch.equal(torch.func.grad(lambda x: (padded(x) * weights).sum())(x), weights[0, :, :2].t())
    value, tangent = torch.func.jvp(CALLS["rearrange"], (x,), (2 * x,))
    assert torch.equal(value, x.t())
    assert torch.equal(tangent, 2 * x.t())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, 3 * x)
        found = torch.autograd.forward_ad.unpack_dual(CALLS["rearrange"](dual)).tangent
    assert torch.equal(found, 3 * x.t())

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return padded(x)

    program = torch.export.export(Module(), (x,), strict=False).module()
    assert torch.equal(program(x + 1), padded_by_torch(x + 1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("rearrange", "shape", "plan")])
def test_what_needs_values_says_so(name: str) -> None:
    """Of a plan, `Tensor.numpy` raises PyTorch's own error before the call."""
    x, call = torch.ones(4, 2, 3), CALLS[name]
    with pytest.raises(fi.UnsupportedError, match=r"inside torch\.vmap, torch\.func or torch\.export, has no values"):
        torch.vmap(call)(x)
    with pytest.raises(fi.UnsupportedError, match="a tensor on meta"):
        call(x[0].to("meta"))
    for options in ({"out": torch.zeros(3, 2)}, {"dtype": "bf16"}):
        with pytest.raises(fi.UnsupportedError, match="neither out nor dtype"):
            torch.vmap(lambda x, options=options: fi.rearrange(x, "a b -> b a", **options))(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "instead"),
    [
        (lambda x: x.view(torch.float4_e2m1fn_x2), r"view\(torch.uint8\)"),
        (lambda x: x.view(torch.int4), r"view\(torch.uint8\)"),
        (lambda x: x.to(torch.complex32), r"view\(torch.uint8\)"),
        (lambda x: torch.quantize_per_tensor(x.float(), 1.0, 0, torch.qint8), r"int_repr\(\)"),
        (lambda x: x.to_sparse(), r"to_dense\(\)"),
        (lambda x: x.float().to_mkldnn(), r"to_dense\(\)"),
    ],
)
def test_tensors_that_numpy_has_not(make: Callable[[torch.Tensor], torch.Tensor], instead: str) -> None:
    tensor = make(torch.arange(6, dtype=torch.uint8).reshape(2, 3))
    for call in (CALLS["rearrange"], lambda x: fi.pack(x, "u8[2,3]"), lambda x: fi.relayout(x, "u8[6]", "u8[6]")):
        with pytest.raises(fi.UnsupportedError, match=instead):
            call(tensor)
