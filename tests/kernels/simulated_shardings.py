"""`shard_index`, `unshard_index` and `shard` for arrays in GPU memory, against the CPU, which other tests compare with
the definition; `test_cuda_simulator` runs this in a process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fastindex as fi
from tests.cases import strategies
from tests.cases.sharding_texts import random_case
from tests.kernels.gpu_package import error_of, to_gpu, to_host

LISTED = "{devices=[2,2]0,3,1,2}"
COUNTED = "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}"
SHAPE = "f32[7,10]{1,0:T(2,4)}"


def coordinates() -> tuple[Any, Any]:
    return np.divmod(np.random.default_rng(3).permutation(70), 10)


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(60)[::10])])
def test_random_shardings(first: int) -> None:
    for seed in range(first, first + 10):
        shape, sharding, count = random_case(seed, movable=False)
        rng, text = np.random.default_rng(seed), str(shape)
        if 0 in shape.dimensions or not shape.dimensions:
            continue
        index = [rng.integers(size, size=20) for size in shape.dimensions]
        for replica in (0, None):
            options = {"replica": replica, "device_count": count}
            expected = fi.sharding.shard_index(text, sharding, index, **options)
            found = fi.sharding.shard_index(text, sharding, tuple(map(to_gpu, index)), **options)
            for own, cpus in zip(found, expected, strict=True):
                assert np.array_equal(to_host(own), cpus), f"seed {seed}"
        slots = fi.sharding.Sharding.parse(sharding).shard_shape(text).slot_count
        places = rng.integers(count, size=30), rng.integers(slots, size=30)
        back = fi.sharding.unshard_index(text, sharding, *map(to_gpu, places), padding="mark")
        assert np.array_equal(
            [to_host(one) for one in back], fi.sharding.unshard_index(text, sharding, *places, padding="mark")
        )


@pytest.mark.parametrize("sharding", [LISTED, COUNTED, "{maximal device=3}", "{replicated}"])
def test_kinds(sharding: str) -> None:
    index = coordinates()
    for replica in (0, 1, None):
        if replica == 1 and sharding in (LISTED, "{maximal device=3}"):
            continue
        expected = fi.sharding.shard_index(SHAPE, sharding, index, replica, device_count=4)
        found = fi.sharding.shard_index(SHAPE, sharding, tuple(map(to_gpu, index)), replica, device_count=4)
        assert [to_host(one).tolist() for one in found] == [one.tolist() for one in expected]


@pytest.mark.parametrize("sharding", [LISTED, COUNTED])
def test_out_with_strides_and_inputs_without_memory(sharding: str) -> None:
    rows, _ = coordinates()
    expected = fi.sharding.shard_index(SHAPE, sharding, (rows, 4))
    whole = [to_gpu(np.full(140, -7)) for _ in range(2)]
    out = whole[0][::2], whole[1][::-2]
    assert fi.sharding.shard_index(SHAPE, sharding, (to_gpu(rows), 4), out=out) == out
    assert [to_host(one).tolist() for one in out] == [one.tolist() for one in expected]
    assert to_host(whole[0])[1::2].tolist() == [-7] * 70
    device, slot = expected[0][:16], expected[1][:16]
    for places in ((device.astype("u1"), slot), (device, range(16)), (2, slot), (range(4), slot[:4])):
        found = fi.sharding.unshard_index(
            SHAPE, sharding, *(to_gpu(p) if isinstance(p, np.ndarray) else p for p in places), "mark"
        )
        assert [to_host(one).tolist() for one in found] == [
            one.tolist() for one in fi.sharding.unshard_index(SHAPE, sharding, *places, "mark")
        ]


@pytest.mark.parametrize(("sharding", "padding"), [(LISTED, 9), (COUNTED, 18)])
def test_errors_are_the_cpus(sharding: str, padding: int) -> None:
    rows, columns = coordinates()
    rows[44], columns[51] = 9, -1
    on_cpu = error_of(fi.sharding.shard_index, SHAPE, sharding, (rows, columns))
    assert error_of(fi.sharding.shard_index, SHAPE, sharding, (to_gpu(rows), to_gpu(columns))) == on_cpu
    for device, slot in (([0, 4, 1], [0, 0, 0]), ([0, -1], [0, 0]), ([1, 1], [0, 99]), ([3, 3], [0, padding])):
        places = np.array(device), np.array(slot)
        on_cpu = error_of(fi.sharding.unshard_index, SHAPE, sharding, *places)
        assert error_of(fi.sharding.unshard_index, SHAPE, sharding, *map(to_gpu, places)) == on_cpu


def test_what_is_refused() -> None:
    rows, columns = map(to_gpu, coordinates())
    with pytest.raises(fi.UnsupportedError, match="takes no maximal sharding"):
        fi.sharding.unshard_index(SHAPE, "{maximal device=3}", rows, columns)
    with pytest.raises(fi.OutOfBoundsError, match="replica 2 is out of bounds"):
        fi.sharding.shard_index(SHAPE, COUNTED, (rows, columns), 2)
    with pytest.raises(fi.FastIndexError, match="out must hold 2 arrays, got 1"):
        fi.sharding.shard_index(SHAPE, LISTED, (rows, columns), out=(rows,))


@pytest.mark.parametrize("sharding", [LISTED, COUNTED])
def test_buffers(sharding: str) -> None:
    array = np.arange(70, dtype=np.float32).reshape(7, 10)
    found, expected = fi.sharding.shard(to_gpu(array), SHAPE, sharding), fi.sharding.shard(array, SHAPE, sharding)
    assert [to_host(one).tolist() for one in found] == [one.tolist() for one in expected]
