"""NumPy's own tests of ravel_multi_index and unravel_index, run on fastindex; and both side by side."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from tests.cases import strategies

index_tricks = pytest.importorskip(
    "numpy.lib.tests.test_index_tricks", reason="this NumPy was installed without its tests"
)


class NumPyWithOurs:
    """NumPy, but for the two functions; counts the calls of these."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        if name not in ("ravel_multi_index", "unravel_index"):
            return getattr(np, name)
        self.calls += 1
        return getattr(fi.numpy, name)


class TestNumPysOwn(index_tricks.TestRavelUnravelIndex):  # type: ignore[misc]
    @pytest.fixture(autouse=True)
    def _ours_in_place(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        ours = NumPyWithOurs()
        monkeypatch.setattr(index_tricks, "np", ours)
        yield
        assert ours.calls > 0


def outcome(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a call gives: the kind of result and the numbers, or the class of the error."""
    try:
        result = function(*arguments, **options)
    except (ValueError, TypeError) as error:
        return "TypeError" if isinstance(error, TypeError) else "ValueError"
    parts = result if isinstance(result, tuple) else (result,)
    described = [(type(part), np.asarray(part).dtype, np.asarray(part).tolist()) for part in parts]
    return type(result), described


DTYPES = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)


def differences(seed: int, package: Any = fi.numpy) -> list[str]:
    """Calls, drawn from a seed, that end otherwise than NumPy's."""
    source = random.Random(seed)
    dims = tuple(source.randint(1, 9) for _ in range(source.randint(1, 5)))
    common = tuple(source.randint(0 if source.random() < 0.1 else 1, 4) for _ in range(source.randint(0, 3)))
    dtype = source.choice(DTYPES)
    lowest = -3 if np.issubdtype(dtype, np.signedinteger) else 0
    spread = source.choice((0, 0, 4))
    numbers = np.random.default_rng(seed)
    multi = tuple(
        numbers.integers(lowest if spread else 0, size + spread, common if source.random() < 0.8 else ()).astype(dtype)
        for size in dims
    )
    mode: Any = source.choice(("raise", "wrap", "clip", tuple(source.choice(("raise", "wrap", "clip")) for _ in dims)))
    order = source.choice("CF")
    total = int(np.prod(dims))
    linear = numbers.integers(0, min(total + spread, 127), common).astype(dtype)
    found = []
    for name, arguments, options in (
        ("ravel_multi_index", (multi, dims), {"mode": mode, "order": order}),
        ("unravel_index", (linear, dims), {"order": order}),
    ):
        ours = outcome(getattr(package, name), *arguments, **options)
        numpys = outcome(getattr(np, name), *arguments, **options)
        if ours != numpys:
            found.append(f"seed {seed}: {name}{arguments} {options}: {ours}, NumPy gives {numpys}")
    return found


def test_same_as_numpy_on_random_calls() -> None:
    assert list(itertools.chain.from_iterable(map(differences, strategies.seeds(400)))) == []


def test_a_planted_bug_shows() -> None:
    """Planted: orders swapped."""

    class Swapped:
        @staticmethod
        def ravel_multi_index(multi: Any, dims: Any, mode: Any, order: str) -> Any:
            return fi.numpy.ravel_multi_index(multi, dims, mode=mode, order="CF"[order == "C"])

        @staticmethod
        def unravel_index(linear: Any, dims: Any, order: str) -> Any:
            return fi.numpy.unravel_index(linear, dims, order="CF"[order == "C"])

    found = list(itertools.chain.from_iterable(differences(seed, Swapped) for seed in range(50)))
    assert any("ravel_multi" in line for line in found)
    assert any("unravel_index" in line for line in found)


@pytest.mark.parametrize(
    ("indices", "shape"),
    [
        (5, (2, 3)),
        (np.int8(5), (2, 3)),
        ([1, 2, 3], (2, 3)),
        ([[1, 2], [3, 4]], [2, 3]),
        (3, 7),
        ([True, False], (2, 3)),
        (0, ()),
        ([0], ()),
        ([1.5], (2, 3)),
        (-1, (2, 3)),
        (6, (2, 3)),
        ("a", (2, 3)),
        (None, (2, 3)),
        (1, (2, -3)),
        (1, (2.0, 3)),
        (2**63, (2, 3)),
        (np.uint64(2**63), (2, 3)),
        (np.zeros((0, 2), np.int64), (2, 3)),
        (np.arange(6).reshape(2, 3).T, (2, 3)),
        (np.arange(6, dtype=">i4"), (2, 3)),
        (np.arange(12)[::2], (4, 3)),
        (np.ma.masked_array([1, 2], mask=[0, 1]), (2, 3)),
    ],
)
def test_unravel_index_ends_as_numpys(indices: Any, shape: Any) -> None:
    assert outcome(fi.numpy.unravel_index, indices, shape) == outcome(np.unravel_index, indices, shape)


@pytest.mark.parametrize(
    ("multi_index", "dims"),
    [
        ((1, 2), (2, 3)),
        ((1, [0, 1, 2]), (2, 3)),
        (([[0], [1]], [0, 1, 2]), (2, 3)),
        ((), ()),
        (([],), (2,)),
        ((1,), (2, 3)),
        ((1, 2, 0), (2, 3)),
        ((1.0, 2), (2, 3)),
        ((True, False), (2, 3)),
        ((np.uint64(1), np.int8(2)), (2, 3)),
        ((np.uint64(2**63), 0), (2, 3)),
        ((-1, 0), (2, 3)),
        (([0, 1], [0, 1, 2]), (2, 3)),
        ((0, 0), (2**32, 2**31)),
        ((0, 0), (2, -3)),
        (("a", 0), (2, 3)),
        (np.arange(6).reshape(2, 3), (9, 9)),
        (np.arange(12).reshape(2, 6)[:, ::-2], (12, 12)),
        ((np.arange(3, dtype=">i2"), np.arange(3)), (3, 3)),
        (5, (9,)),
        ([5], (9,)),
    ],
)
@pytest.mark.parametrize("mode", ["raise", "wrap", "clip", "other", ("wrap",), ("raise", "clip")])
def test_ravel_multi_index_ends_as_numpys(multi_index: Any, dims: Any, mode: Any) -> None:
    ours = outcome(fi.numpy.ravel_multi_index, multi_index, dims, mode=mode)
    assert ours == outcome(np.ravel_multi_index, multi_index, dims, mode=mode)
