"""`rearrange` on arrays: einops' own tests, and random patterns against NumPy.

Tests of: patterns.grammar, dask.arrays.
"""

from __future__ import annotations

import importlib
import math
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from tests.child_process import in_its_own_process
from tests.oracles.rearranged import by_numpy, random_case

einops = pytest.importorskip("einops", reason="einops is not installed; pip install einops")

EINOPS_TESTS = [
    ("test_ops", "test_collapsed_ellipsis_errors_out"),
    ("test_ops", "test_ellipsis_ops_numpy"),
    ("test_ops", "test_ellipsis_ops_imperative"),
    ("test_ops", "test_rearrange_consistency_numpy"),
    ("test_ops", "test_rearrange_permutations_numpy"),
    ("test_ops", "test_concatenations_and_stacking"),
    ("test_ops", "test_list_inputs"),
    ("test_examples", "test_rearrange_examples"),
]


def backends() -> str:
    found = ["numpy"]
    for name in ("torch", "jax"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        found.append(name)
    return ",".join(found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("module", "name"), EINOPS_TESTS)
def test_einops_own_test(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs as einops wrote it, with our `rearrange` and our error in place of einops'."""
    monkeypatch.setenv("EINOPS_TEST_BACKENDS", backends())
    tests = importlib.import_module(f"einops.tests.{module}")
    monkeypatch.setattr(tests, "rearrange", fi.rearrange)
    if hasattr(tests, "EinopsError"):
        monkeypatch.setattr(tests, "EinopsError", fi.FastIndexError)
    getattr(tests, name)()


@pytest.mark.parametrize("seed", range(40))
def test_random_patterns(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        case = random_case(rng)
        array = case.array()
        expected = by_numpy(array, case)
        got = fi.rearrange(array, case.pattern, pad=case.pad, fill=case.fill if case.pad else None, **case.sizes)
        assert got.shape == expected.shape, case
        assert np.array_equal(got, expected), case
        if not case.pad:
            assert np.array_equal(einops.rearrange(array, case.pattern, **case.sizes), expected), case
            empty = np.empty([2 * size for size in expected.shape], expected.dtype)
            out = empty[tuple(slice(None, None, 2) for _ in expected.shape)]
            assert fi.rearrange(array, case.pattern, out=out, **case.sizes) is out
            assert np.array_equal(out, expected), case


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.float16, ml_dtypes.bfloat16, "M8[s]", np.complex128, np.longdouble, object, "U5", "V3", "S7"]
)
def test_every_dtype(dtype: Any) -> None:
    array = np.arange(5 * 6 * 4).reshape(5, 6, 4).astype("U5" if dtype in ("U5", "V3") else "i8").astype(dtype)
    expected = array.reshape(5, 3, 2, 4).transpose(2, 0, 3, 1).reshape(10, 12)
    got = fi.rearrange(array, "a (b two) c -> (two a) (c b)", two=2)
    assert got.dtype == array.dtype
    assert got.tolist() == expected.tolist()


def test_strides_of_every_kind() -> None:
    base = np.arange(6 * 8 * 10, dtype=np.int16).reshape(6, 8, 10)
    odd = np.frombuffer(bytes(range(200)) + b"\0" * 5, np.uint8)[1:193].view([("a", "u1"), ("b", "u2")])["b"]
    views = [base[::-1], base[:, ::2], base.transpose(2, 0, 1), np.broadcast_to(base[:1], base.shape), base[..., ::-3]]
    for view in views:
        expected = view.reshape(view.shape[0], view.shape[1] // 2, 2, view.shape[2])
        got = fi.rearrange(view, "a (b c) d -> d c (a b)", c=2)
        assert np.array_equal(got, expected.transpose(3, 2, 0, 1).reshape(got.shape))
    assert np.array_equal(fi.rearrange(odd, "(a b) -> b a", b=8), odd.reshape(-1, 8).T)


def test_zero_sizes() -> None:
    assert fi.rearrange(np.zeros((0, 6)), "a (b c) -> c (a b)", c=2).shape == (2, 0)
    assert fi.rearrange(np.zeros((0, 7)), "a (b c) -> c (a b)", c=2, pad=True).shape == (2, 0)
    padded = fi.rearrange(np.zeros(0), "(a b) -> b a", a=3, b=2, pad=True, fill=7)
    assert padded.tolist() == [[7.0] * 3] * 2


def test_padding_and_fill() -> None:
    array = np.arange(70, dtype=np.int32).reshape(7, 10)
    got = fi.rearrange(array, "(a b) (c d) -> a c (b d)", b=4, d=4, pad=True, fill=-3)
    padded = np.pad(array, ((0, 1), (0, 2)), constant_values=-3)
    assert np.array_equal(got, padded.reshape(2, 4, 3, 4).transpose(0, 2, 1, 3).reshape(2, 3, 16))


@in_its_own_process
def test_torch_and_jax_arrays_stay_what_they_are() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import jax.numpy as jnp

    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = einops.rearrange(array, "a (b c) -> c (a b)", c=3)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        got = fi.rearrange(torch.from_numpy(array).to(dtype).t(), "(b c) a -> c (a b)", c=3)
        assert got.dtype == dtype
        assert got.tolist() == expected.tolist()
    got = fi.rearrange(jnp.asarray(array, jnp.bfloat16), "a (b c) -> c (a b)", c=3)
    assert got.dtype == jnp.bfloat16
    assert got.tolist() == expected.tolist()
    leaf = torch.arange(7.0, requires_grad=True)
    weights = torch.arange(8.0).reshape(2, 4)
    (fi.rearrange(leaf, "(a b) -> b a", b=2, pad=True) * weights).sum().backward()
    assert leaf.grad.tolist() == weights.t().reshape(-1)[:7].tolist()
    squares = fi.rearrange(leaf, "(a b) -> b a", b=2, pad=True).square().sum()
    (first,) = torch.autograd.grad(squares, leaf, create_graph=True)
    assert torch.autograd.grad(first.sum(), leaf)[0].tolist() == [2] * 7


def test_dask_arrays_stay_lazy() -> None:
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    rng = random.Random(5)
    for _ in range(30):
        case = random_case(rng)
        array = case.array()
        if 0 in array.shape:
            continue
        lazy = da.from_array(array, chunks=tuple(max(size // 2, 1) for size in array.shape))
        got = fi.rearrange(lazy, case.pattern, pad=case.pad, fill=case.fill if case.pad else None, **case.sizes)
        assert isinstance(got, da.Array)
        assert np.array_equal(got.compute(), by_numpy(array, case)), case
    for array in (np.array([[1, "a", None]], object), np.array([[1, 2, 3]], ">f4")):
        for fill in (None, 5):
            pattern = "a (b c) -> (a c) b"
            lazy = fi.rearrange(da.from_array(array, chunks=2), pattern, c=2, pad=True, fill=fill)
            expected = fi.rearrange(array, pattern, c=2, pad=True, fill=fill)
            assert lazy.dtype == lazy.compute().dtype == expected.dtype
            assert lazy.compute().tolist() == expected.tolist()
    array = np.arange(6).reshape(2, 3)
    lazy = da.from_array(array.reshape(3, 2), chunks=((1, 0, 2), 2))
    assert fi.rearrange(lazy, "a b -> (a b)").compute().tolist() == [*range(6)]
    lazy = da.from_array(array, chunks=2)
    got = fi.rearrange([array, lazy], "n a b -> b (n a)")
    assert isinstance(got, da.Array)
    assert np.array_equal(got.compute(), np.concatenate([array, array]).T)
    for values, out in ((lazy, array), (array, lazy)):
        with pytest.raises(fi.FastIndexError, match="out is for arrays in memory"):
            fi.rearrange(values, "a b -> a b", out=out)


BAD = [
    ("a b", {}, "one '->'"),
    ("a b -> b a -> a b", {}, "one '->'"),
    ("a b -> a", {}, "b is not on the right; it does not reduce as einops.reduce"),
    ("a b -> a b c", {}, "c is not on the left; it does not repeat as einops.repeat"),
    ("a b -> a b 2", {}, "does not repeat as einops.repeat"),
    ("a (b c) -> a b c", {"c": np.array([2])}, r"an integer, got c=array\(\[2\]\)"),
    ("a (b c) -> a b c", {"c": np.array([2, 3])}, "an integer"),
    ("a (b c) -> a b c", {"c": [2]}, "an integer"),
    ("a (b c) -> a b c", {"c": np.True_}, "an integer"),
    ("a (b out) -> a b out", {"out": 2}, "out is an option, so out= is not the size of an axis"),
    ("a (b dtype) -> a b dtype", {"dtype": 2}, "dtype is an option"),
    ("a (b casting) -> a b casting", {"casting": 2}, "casting is an option"),
    ("a (b pad) -> a b pad", {"pad": 2}, "pad is an option"),
    ("a (b fill) -> a b fill", {"fill": 2}, "fill is an option"),
    ("a (b threads) -> a b threads", {"threads": 2}, "threads is an option"),
    ("a (b pad) -> a b pad", {}, "as in b="),
    ("a (fill pad) -> a fill pad", {}, "names that are not options"),
    ("a a -> a", {}, "twice"),
    ("(a b -> a b", {}, "not closed"),
    ("a) b -> a b", {}, "not opened"),
    ("((a) b) -> a b", {}, "not nested"),
    ("a 2 -> a 2", {}, "write h with h=2"),
    ("a _b -> a _b", {}, "not the name"),
    ("a b c -> a b c", {}, "for 3 dimensions, the array has 2"),
    ("a (b c) -> a b c", {}, "sizes of b and c cannot be inferred"),
    ("a (b c) -> a b c", {"c": 4}, "dimension of 6 is not divisible by 4.*pad=True"),
    ("a (b c) -> a b c", {"b": 4, "c": 4}, "has 16 elements, the dimension 6.*pad=True"),
    ("a (b c) -> a b c", {"z": 4}, "is not an axis"),
    ("a (b c) -> a b c", {"c": -2}, "0 or more"),
    ("a 1 -> a", {}, "1 stands for"),
]


@pytest.mark.parametrize(("pattern", "sizes", "words"), BAD)
def test_errors(pattern: str, sizes: dict[str, int], words: str) -> None:
    with pytest.raises(fi.FastIndexError, match=words):
        fi.rearrange(np.zeros((4, 6)), pattern, **sizes)


def test_axes_may_have_the_names_of_what_comes_first() -> None:
    array = np.arange(6)
    assert fi.rearrange(array, "(array pattern) -> pattern array", array=2).tolist() == array.reshape(2, 3).T.tolist()
    plan = fi.plan_rearrange("(source pattern) -> pattern source", "f32[6]", source=2)
    assert str(plan.destination) == "f32[3,2]{1,0}"


def test_axes_may_have_the_names_of_options() -> None:
    array = np.arange(24).reshape(4, 6)
    assert np.array_equal(
        fi.rearrange(array, "out (pad b) -> pad (out b)", b=3), fi.rearrange(array, "c (a b) -> a (c b)", b=3)
    )
    assert fi.plan_rearrange("(out pad) -> pad out", "u8[6]", out=2).destination.dimensions == (3, 2)
    with pytest.raises(fi.FastIndexError, match="pad is an option"):
        fi.plan_rearrange("(out pad) -> pad out", "u8[6]", pad=2)
    with pytest.raises(fi.FastIndexError, match="destination is an option"):
        fi.plan_rearrange("(a destination) -> destination a", "u8[6]", destination=2)


@pytest.mark.parametrize("fill", ["x", 2**70, 1j, 300])
def test_fills_of_lazy_arrays(fill: Any) -> None:
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    with pytest.raises(fi.FastIndexError, match="fill must be"):
        fi.rearrange(da.zeros(5, dtype=np.uint8), "(a b) -> a b", b=4, pad=True, fill=fill)


def test_other_errors() -> None:
    array = np.zeros((4, 6), np.uint8)
    with pytest.raises(fi.ArgumentTypeError, match="integer"):
        fi.rearrange(array, "a (b c) -> a b c", c=2.0)
    with pytest.raises(fi.ArgumentTypeError, match="text"):
        fi.rearrange(array, 5)  # type: ignore[arg-type]
    with pytest.raises(fi.FastIndexError, match="an integer from 0 to 255 for u8"):
        fi.rearrange(array, "a (b c) -> a b c", c=4, pad=True, fill=300)
    with pytest.raises(fi.FastIndexError, match="pad=True"):
        fi.rearrange(array, "a b -> b a", fill=3)
    with pytest.raises(fi.FastIndexError, match="out must have the shape of the result"):
        fi.rearrange(array, "a b -> b a", out=np.zeros((4, 6), np.uint8))
    with pytest.raises(fi.ArgumentTypeError, match="f32 is not cast to u8"):
        fi.rearrange(array.astype(np.float32), "a b -> b a", out=np.zeros((6, 4), np.uint8))
    with pytest.raises(fi.FastIndexError, match="overlaps"):
        fi.rearrange(array, "a b -> b a", out=array.reshape(6, 4))


def test_more_than_two_to_the_31_elements_are_planned() -> None:
    plan = fi.plan_rearrange("(a b) c -> c b a", f"u8[{2**33 + 5},3]", b=64, pad=True)
    assert plan.destination.dimensions == (3, 64, math.ceil((2**33 + 5) / 64))
