"""Axes that run backwards, ``-n`` in a pattern, against NumPy's ``[::-1]``.

Tests of: core.digits.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from tests.cases import strategies
from tests.oracles.rearranged import by_numpy, random_case

DTYPES = [np.uint8, np.uint16, np.float32, np.float64, np.complex128]


def values_of(shape: tuple[int, ...], dtype: Any, seed: int) -> NDArray[Any]:
    count = math.prod(shape) * np.dtype(dtype).itemsize
    return np.random.default_rng(seed).integers(1, 100, count, dtype=np.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("seed", strategies.seeds(40))
def test_random_patterns(seed: int) -> None:
    """Fifty patterns a seed: arrays of any strides, of all element sizes."""
    rng = random.Random(seed)
    for _ in range(50):
        one, dtype = random_case(rng, 400, backwards=True), rng.choice(DTYPES)
        array = values_of(one.dimensions, dtype, seed)
        if rng.random() < 0.5:
            # The same values in another order in memory.
            order = rng.sample(range(array.ndim), array.ndim)
            steps = tuple(slice(None, None, rng.choice([1, -1])) for _ in order)
            array = np.ascontiguousarray(array.transpose(order)[steps])[steps].transpose(np.argsort(order))
        found = fi.rearrange(array, one.pattern, **one.sizes)
        assert found.tobytes() == by_numpy(array, one).tobytes(), (one, dtype)


def layout_of(rng: random.Random, shape: tuple[int, ...], kind: str) -> str:
    order = rng.sample(range(len(shape)), len(shape))
    tiles = rng.choice(["", "", "T(4)", "T(2)", "T(2,4)", "T(4,2)(2,1)", "T(8)"])
    packed = "E(4)" if kind.endswith("4") and rng.random() < 0.7 else ""
    attributes = tiles + packed
    return f"{kind}[{','.join(map(str, shape))}]{{{','.join(map(str, order))}{':' * bool(attributes)}{attributes}}}"


@pytest.mark.parametrize("seed", strategies.seeds(40))
def test_random_layouts(seed: int) -> None:
    """Plans between tiled and packed layouts, of 4-bit elements, too, and back; refused where tiles cut unevenly."""
    rng = random.Random(seed)
    moved = 0
    for _ in range(20):
        one = random_case(rng, 400, backwards=True)
        kind, dtype = rng.choice([("u4", np.uint8), ("u8", np.uint8), ("u16", np.uint16), ("f32", np.float32)])
        source, target = (layout_of(rng, shape, kind) for shape in (one.dimensions, one.merged))
        array = values_of(one.dimensions, dtype, seed)
        array = array & 15 if kind == "u4" else array
        try:
            plan = fi.plan_rearrange(one.pattern, source, target, **one.sizes)
            buffer = plan(fi.pack(array, source))
            inverse = plan.inverse()
        except fi.UnsupportedError as error:
            assert "backwards" in str(error)  # noqa: PT017
            continue
        moved += 1
        expected = fi.pack(by_numpy(array, one), target)
        assert buffer.tobytes() == expected.tobytes(), (one, source, target)
        assert inverse(buffer).tobytes() == fi.pack(array, source).tobytes()
        plain = fi.plan_rearrange(one.pattern.replace("-a", "a"), source, target, **one.sizes)
        assert (plan == plain) == all(one.axes[name] == 1 for name in one.backwards)
    assert moved > 3


def test_gate_and_up() -> None:
    weights = np.arange(48, dtype=np.float32).reshape(8, 6)
    swapped = fi.rearrange(weights, "(two n) k -> (-two n) k", two=2)
    assert np.array_equal(swapped, np.concatenate([weights[4:], weights[:4]]))
    out = np.empty((6, 8), np.float32)
    assert fi.rearrange(weights, "... k->... -k").tobytes() == weights[:, ::-1].tobytes()
    assert fi.rearrange(weights, "n k -> k -n", out=out) is out
    assert np.array_equal(out, weights[::-1].T)
    cast = fi.rearrange(weights, "n k -> -n k", dtype="bf16")
    assert np.array_equal(cast.astype(np.float32), weights[::-1])
    padded = fi.rearrange(weights, "(n four) k -> n -k four", four=3, pad=True)
    plain = fi.rearrange(weights, "(n four) k -> n k four", four=3, pad=True)
    assert np.array_equal(padded, plain[:, ::-1])


def test_large_arrays() -> None:
    """Beyond what NumPy moves, through kernels, on several threads."""
    array = np.random.default_rng(0).integers(0, 1 << 32, (1024, 2048), dtype=np.uint32)
    for pattern, expected in (
        ("a b -> -a b", array[::-1]),
        ("a b -> a -b", array[:, ::-1]),
        ("a b -> -b a", array.T[::-1]),
        ("a b -> b -a", array.T[:, ::-1]),
        ("a b -> -b -a", array.T[::-1, ::-1]),
    ):
        for dtype in (np.uint8, np.uint16, np.uint32):
            own = expected.astype(dtype)
            assert np.array_equal(fi.rearrange(array.astype(dtype), pattern), own)
    codes = (array & 15).astype(np.uint8)
    for pattern, expected in (("(two n) k -> (-two n) k", np.roll(codes, 512, 0)), ("n k -> -n k", codes[::-1])):
        sizes = {"two": 2} if "two" in pattern else {}
        plan = fi.plan_rearrange(pattern, "u4[1024,2048]{1,0:E(4)}", "u4[1024,2048]{1,0:E(4)}", **sizes)
        packed = plan(fi.pack(codes, plan.source))
        assert packed.tobytes() == fi.pack(np.ascontiguousarray(expected), plan.destination).tobytes()


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: fi.rearrange(np.zeros((4, 2)), "-a b -> a b"), "runs backwards on the right side"),
        (lambda: fi.rearrange(np.zeros((4, 2)), "a b -> -a a b"), "the axis a is twice"),
        (lambda: fi.rearrange(np.zeros((4, 2)), "a b -> --a b"), "is not the name of an axis"),
        (lambda: fi.rearrange(np.zeros((4, 2)), "a b -> - a b"), "is not the name of an axis"),
        (lambda: fi.rearrange(np.zeros((4, 1)), "a 1 -> a -1"), "is not the name of an axis"),
        (lambda: fi.rearrange(np.zeros((4, 2)), "... -> -..."), "is not the name of an axis"),
        (lambda: fi.rearrange(np.zeros(7), "(a b) -> -a b", b=4, pad=True), "is padded, so no axis of it runs backw"),
        (lambda: fi.plan_rearrange("a b -> -a b", "u8[7,8]{1,0:T(4,4)}"), "tiles split an axis that runs backwards"),
    ],
)
def test_messages(call: Any, reason: str) -> None:
    with pytest.raises(fi.FastIndexError, match=reason):
        call()


def test_plans_that_run_backwards() -> None:
    plan, plain = (fi.plan_rearrange(text, "u8[6,4]", n=3) for text in ("(m n) k -> (-m n) k", "(m n) k -> (m n) k"))
    assert plan != plain
    assert plan == fi.plan_rearrange("(i j) k -> (-i j) k", "u8[6,4]", j=3)
    assert not plan.is_bitcast
    assert plan == plan.inverse()
    with pytest.raises(fi.UnsupportedError, match="is not composed"):
        plan.then(plain)
    assert "(-m n) k" in plan.describe()


def test_dask() -> None:
    da = pytest.importorskip("dask.array")
    array = np.arange(48).reshape(8, 6)
    found = fi.rearrange(da.from_array(array, chunks=(3, 2)), "(two n) k -> -k (-two n)", two=2)
    assert np.array_equal(found.compute(), fi.rearrange(array, "(two n) k -> -k (-two n)", two=2))


def test_traced_by_jax() -> None:
    jax = pytest.importorskip("jax")
    array = np.arange(48, dtype=np.float32).reshape(8, 6)
    for pattern in ("(two n) k -> (-two n) k", "(two n) k -> k -n two", "(two n) k -> -k (-two -n)"):
        expected = fi.rearrange(array, pattern, two=2)
        assert np.array_equal(jax.jit(lambda x, pattern=pattern: fi.rearrange(x, pattern, two=2))(array), expected)
        assert np.array_equal(fi.rearrange(jax.numpy.asarray(array), pattern, two=2), expected)
    gradient = jax.grad(lambda x: (fi.rearrange(x, "a b -> -a b") * array).sum())(jax.numpy.asarray(array))
    assert np.array_equal(gradient, array[::-1])
    with pytest.raises(fi.UnsupportedError, match="is padded, so no axis"):
        jax.jit(lambda x: fi.rearrange(x, "(a b) -> -a b", b=4, pad=True))(np.zeros(7))
