"""Index functions on Dask arrays of random chunks, against the slow reference; errors name places in the whole array.

Tests of: dask.indices.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from tests.cases import strategies
from tests.dask.chunked import Chunked
from tests.oracles.comparison import differences_in_conversion, differences_in_indices

dask = pytest.importorskip("dask", reason="dask is not installed; pip install 'fastindex[dask]'")
da = pytest.importorskip("dask.array")

from dask.array.utils import assert_eq  # noqa: E402

TILED, PLAIN = "f32[300,500]{1,0:T(8,128)}", "f32[300,500]"


def at_once(*lazy: Any) -> Any:
    return dask.compute(*lazy, scheduler="sync")


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(120)[::20])])
def test_random_layouts(first: int) -> None:
    for seed in range(first, first + 20):
        shape = strategies.random_shape(seed, movable=False)
        if shape.dimensions and 0 not in shape.dimensions:
            assert differences_in_indices(shape, package=Chunked(seed, at_once)) == [], f"seed {seed}"
        source, destination = strategies.random_pair(seed)
        if 0 not in source.dimensions:
            package = Chunked(seed, at_once)
            assert differences_in_conversion(source, destination, package=package) == [], f"seed {seed}"


def test_coordinates_broadcast_with_anything() -> None:
    rows, columns = np.arange(300)[:, None], np.arange(0, 500, 7, dtype=np.uint16)
    lazy = da.from_array(rows, chunks=(70, 1)), da.from_array(columns, chunks=20)
    expected = fi.linear_index(TILED, (rows, columns))
    assert_eq(fi.linear_index(TILED, lazy), expected)
    assert_eq(fi.linear_index(TILED, (lazy[0], columns)), expected)
    assert_eq(fi.linear_index(TILED, [lazy[0], range(0, 500, 7)]), expected)
    assert_eq(fi.linear_index(TILED, (lazy[0], 3)), fi.linear_index(TILED, (rows, 3)))
    assert_eq(fi.linear_index(TILED, (lazy[0][5, 0], 3)), fi.linear_index(TILED, (5, 3)))
    both = np.stack([np.arange(200), np.arange(200)])
    assert_eq(fi.linear_index(TILED, da.from_array(both, chunks=(1, 60))), fi.linear_index(TILED, both))


def test_modes_and_units() -> None:
    both = np.random.default_rng(0).integers(-900, 900, (2, 1000))
    lazy = tuple(da.from_array(both, chunks=(2, 100)))
    for mode in ("wrap", "clip", ("wrap", "clip")):
        for unit in ("slot", "byte", "bit"):
            assert_eq(fi.linear_index(TILED, lazy, mode, unit=unit), fi.linear_index(TILED, both, mode, unit=unit))
    places = np.arange(0, 300 * 512 * 4, 997)
    found = fi.multi_index(TILED, da.from_array(places, chunks=33), "mark", unit="byte")
    for lazily, expected in zip(found, fi.multi_index(TILED, places, "mark", unit="byte"), strict=True):
        assert_eq(lazily, expected)


def test_results_are_int64_whatever_comes_in() -> None:
    slots = da.arange(100, chunks=7, dtype=np.uint8)
    assert fi.convert_index(PLAIN, TILED, slots).dtype == np.int64
    assert_eq(fi.convert_index(PLAIN, TILED, slots), fi.convert_index(PLAIN, TILED, np.arange(100, dtype=np.uint8)))
    assert fi.multi_index("f32[]", da.zeros((3, 2), dtype=np.int64, chunks=1)) == ()


def message(call: Any, *arguments: Any) -> str:
    with pytest.raises(fi.OutOfBoundsError) as found:
        call(*arguments)
    return str(found.value)


def test_errors_name_the_place_in_the_whole_array() -> None:
    rows = np.zeros((40, 30), np.int64)
    rows[33, 21] = 300
    slots = np.zeros(100, np.int64)
    slots[77] = 1 << 40
    for chunks in (7, (40, 4), -1):
        lazy = da.from_array(rows, chunks=chunks)
        for function in (lambda x: fi.linear_index(TILED, (x, 0)),):
            assert message(lambda f=function, x=lazy: f(x).compute(scheduler="sync")) == message(function, rows)
    lazy = da.from_array(slots, chunks=9)
    for function in (lambda x: fi.multi_index(TILED, x), lambda x: fi.convert_index(TILED, PLAIN, x)):
        assert message(lambda f=function: at_once(f(lazy))) == message(function, slots)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: fi.linear_index(TILED, (x,)), fi.FastIndexError, "2 for"),
        (lambda x: fi.linear_index(TILED, (x, x[:3])), fi.FastIndexError, "do not broadcast together"),
        (lambda x: fi.linear_index(TILED, (x, slice(3))), fi.ArgumentTypeError, "do not mix"),
        (lambda x: fi.linear_index(TILED, (x, 1.5)), fi.ArgumentTypeError, "must hold integers"),
        (lambda x: fi.linear_index(TILED, (x, x), "warp"), fi.FastIndexError, "mode must be"),
        (lambda x: fi.linear_index(TILED, (x, x), unit="word"), fi.FastIndexError, "unit"),
        (lambda x: fi.linear_index(TILED, (x, x), out=np.empty(100, np.int64)), fi.FastIndexError, "out is for"),
        (lambda x: fi.multi_index(TILED, x, "skip"), fi.FastIndexError, "padding must be"),
        (lambda x: fi.multi_index(TILED, x.astype(float)), fi.ArgumentTypeError, "must hold integers"),
        (lambda x: fi.multi_index(TILED, x[x > 3]), fi.FastIndexError, "compute_chunk_sizes"),
        (lambda x: fi.convert_index(TILED, "f32[3]", x), fi.LayoutError, "dimensions"),
        (lambda x: fi.convert_index(TILED, PLAIN, x, threads=0), fi.FastIndexError, "threads"),
    ],
)
def test_bad_input_raises_at_once(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as found:
        call(da.arange(100, chunks=10))
    assert text in str(found.value)


@pytest.mark.parametrize(
    "call", [fi.linear_index, fi.tile_index, partial(fi.sharding.shard_index, sharding="{replicated}")]
)
def test_coordinates_that_lie_across_are_not_iterated(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(da.Array, "__getitem__", lambda *_: pytest.fail("it was iterated"))
    monkeypatch.setattr(da.Array, "__iter__", lambda *_: pytest.fail("it was iterated"))
    with pytest.raises(fi.FastIndexError, match=r"2 for .* got 50000000: its shape is \(50000000, 2\), transpose it"):
        call(TILED, multi_index=da.zeros((50_000_000, 2), dtype=np.int64, chunks=(1_000_000, 2)))


def test_ravel_multi_index_does_not_iterate_either(monkeypatch: pytest.MonkeyPatch) -> None:
    across = da.zeros((50_000_000, 2), dtype=np.int64, chunks=(1_000_000, 2))
    both = da.from_array(np.array([[3, 6, 6], [4, 5, 1]]), chunks=2)
    assert fi.numpy.ravel_multi_index(both, (7, 6)).compute().tolist() == [22, 41, 37]
    monkeypatch.setattr(da.Array, "__iter__", lambda *_: pytest.fail("it was iterated"))
    with pytest.raises(ValueError, match=r"must be a sequence of length 2: its shape is \(50000000, 2\), transpose it"):
        fi.numpy.ravel_multi_index(across, (300, 500))


def test_names_are_deterministic_and_readable() -> None:
    slots = da.arange(100, chunks=10)
    assert fi.convert_index(PLAIN, TILED, slots).name == fi.convert_index(PLAIN, TILED, slots).name
    assert fi.convert_index(PLAIN, TILED, slots).name != fi.convert_index(TILED, PLAIN, slots).name
    assert fi.convert_index(PLAIN, TILED, slots).name.startswith("fastindex-convert-index-")
    assert fi.linear_index(PLAIN, (slots, 0)).name.startswith("fastindex-linear-index-")


def test_functions_without_tasks_compute_what_is_lazy() -> None:
    coordinates = np.array([1, 2, 299]), np.array([3, 4, 499])
    lazy = tuple(da.from_array(one, chunks=2) for one in coordinates)
    halves = "{devices=[2,1]<=[2]}"
    expected = fi.sharding.shard_index(PLAIN, halves, coordinates)
    for found, wanted in zip(fi.sharding.shard_index(PLAIN, halves, lazy), expected, strict=True):
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, wanted)
