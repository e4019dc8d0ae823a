"""The drop-ins in bulk, where they do not pass the call on to NumPy, beside NumPy.

Tests of: index.indices.
"""

import random

import numpy as np
import pytest

import fastindex as fi
from fastindex.index import executors, indices

DTYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4")


@pytest.fixture
def calls(monkeypatch):
    """Count the calls that reach the kernel."""

    count = [0]
    right = executors.run

    def counted(*arguments, **options):
        count[0] += 1
        return right(*arguments, **options)

    monkeypatch.setattr(executors, "run", counted)
    return count


def same(ours, numpys):
    if isinstance(numpys, tuple):
        assert type(ours) is tuple
        assert len(ours) == len(numpys)
        for one, other in zip(ours, numpys, strict=True):
            same(one, other)
        return
    assert type(ours) is type(numpys)
    assert ours.dtype == numpys.dtype
    assert ours.shape == numpys.shape
    assert ours.flags.writeable
    np.testing.assert_array_equal(ours, numpys)


def both(name, *arguments, **options):
    """Call ours and NumPy's; the same result, or an error of the same class and text."""
    results = []
    for module in (fi.numpy, np):
        try:
            results.append(getattr(module, name)(*arguments, **options))
        except (ValueError, TypeError) as error:
            results.append((type(error), str(error)))
    if isinstance(results[1], tuple) and isinstance(results[1][0], type):
        assert results[0] == results[1]
    else:
        same(*results)


@pytest.mark.parametrize("seed", range(60))
def test_bulk_calls(seed, calls):
    source = random.Random(seed)
    numbers = np.random.default_rng(seed)
    dims = tuple(source.randint(1, 40) for _ in range(source.randint(1, 6)))
    common = source.choice([(5000,), (70, 80), (17, 18, 19), (4096,)])
    dtype = np.dtype(source.choice(DTYPES))
    order, mode = source.choice("CF"), source.choice(("raise", "wrap", "clip"))
    low = 0 if mode == "raise" or dtype.kind == "u" else -90
    high = 0 if mode == "raise" else 60
    multi = [numbers.integers(low, size + high, common).astype(dtype) for size in dims]
    if source.random() < 0.3:
        multi = [np.asfortranarray(array) for array in multi]
    if source.random() < 0.3:
        multi[0] = multi[0][..., :1]
    plain = dtype.isnative and dtype != np.uint64
    both("ravel_multi_index", tuple(multi), dims, mode=mode, order=order)
    ravelled = plain and np.broadcast(*multi).size >= indices.SMALLEST
    assert calls[0] == ravelled
    linear = numbers.integers(0, np.prod(dims), common)
    if source.random() < 0.3:
        linear = np.asfortranarray(linear)
    both("unravel_index", linear, dims, order=order)
    assert calls[0] == 1 + ravelled


def test_modes_for_each_dimension(calls):
    numbers = np.random.default_rng(1)
    multi = numbers.integers(-50, 50, (3, 5000))
    multi[1] %= 7
    both("ravel_multi_index", multi, (5, 7, 9), mode=("wrap", "raise", "clip"))
    assert calls == [1]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("bad", [-1, 12, 2**31, 2**40, -(2**63), 2**63 - 1])
def test_errors_are_numpys(order, bad):
    linear = np.zeros(5000, np.int64)
    linear[4321] = bad
    both("unravel_index", linear, (3, 4), order=order)
    both("ravel_multi_index", (linear, linear), (12, 3), order=order)
    both("ravel_multi_index", (linear % 3, linear), (3, 12), order=order)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((([0] * 5000, [0] * 5000), (2, 2)), {}),
        (((np.zeros(5000), np.zeros(5000)), (2, 2)), {}),
        (((np.zeros(5000, int), np.zeros(4999, int)), (2, 2)), {}),
        (((np.zeros(5000, int),), (2, 2)), {}),
        (((np.zeros(5000, int),) * 2, (2, 0)), {}),
        (((np.zeros(5000, int),) * 2, (2, -1)), {}),
        (((np.zeros(5000, int),) * 2, (2**40, 2**40)), {}),
        (((np.zeros(5000, int),) * 2, (2.0, 2)), {}),
        (((np.zeros(5000, int),) * 2, (2, 2)), {"mode": "other"}),
        (((np.zeros(5000, int),) * 2, (2, 2)), {"mode": ("wrap",)}),
        (((np.zeros(5000, int),) * 2, (2, 2)), {"order": "X"}),
        (((np.zeros(5000, bool),) * 2, (2, 2)), {}),
        ((np.zeros((2, 5000), int), (2, 2)), {"mode": ["clip", "raise"]}),
        (((np.zeros(5000, int),), 7), {}),
    ],
)
def test_odd_calls_end_as_numpys(arguments, options):
    both("ravel_multi_index", *arguments, **options)


@pytest.mark.parametrize("shape", [(), 7, (7,), [7, 3], (0, 3), (-1, 3), (2**40, 2**40), (2.0, 3), "ab"])
def test_odd_shapes_end_as_numpys(shape):
    both("unravel_index", np.zeros(5000, np.int64), shape)


def test_small_arrays_that_make_a_large_one(calls):
    both("ravel_multi_index", np.ix_(np.arange(90), np.arange(80)), (90, 80))
    assert calls == [1]


def test_masked_arrays_and_other_subclasses_are_numpys(calls):
    masked = np.ma.masked_array(np.zeros(5000, np.int64), mask=True)
    both("unravel_index", masked, (2, 3))
    assert calls == [0]


def test_wide_dimensions_are_exact(calls):
    numbers = np.random.default_rng(2)
    for dims in [(2**31 - 1, 2**31 + 11), (3, 2**40 + 7, 5), (2**62,), (10**6 + 3, 10**6 + 33, 1000)]:
        total = np.prod(dims, dtype=object)
        linear = numbers.integers(0, int(total), 5000)
        linear[:3] = (0, int(total) - 1, int(total) // 2)
        both("unravel_index", linear, dims)
        both("ravel_multi_index", np.unravel_index(linear, dims), dims, order="C")
    assert calls == [8]


def test_small_calls_are_numpys(calls):
    both("unravel_index", np.arange(6), (2, 3))
    assert calls == [0]
    assert indices.SMALLEST > 6
