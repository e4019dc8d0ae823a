"""Device and slot of every element, and back, against the slow reference; what each device holds.

Tests of: sharding.transfers, sharding.indices.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import fastindex as fi
from tests.cases import strategies
from tests.cases.sharding_texts import random_case
from tests.oracles import reference, shard_reference


def check_places(seed: int) -> None:
    shape, text, count = random_case(seed, movable=False)
    dimensions = shape.dimensions
    rules = shard_reference.parse(text, len(dimensions), count)
    shard = shard_reference.shard_shape(shape, rules)
    sharding = fi.sharding.Sharding.parse(text)
    assert str(sharding.shard_shape(str(shape))) == str(fi.Shape.parse(str(shard)))
    expected = shard_reference.places(shape, rules)
    elements = np.array(list(expected), np.int64).reshape(len(expected), len(dimensions)).T
    devices, slots = fi.sharding.shard_index(str(shape), sharding, elements, replica=None, device_count=count)
    holders = {}
    for i, (element, (held_by, slot)) in enumerate(expected.items()):
        assert sorted(devices[:, i].tolist()) == sorted(held_by), (text, element)
        assert (slots[:, i] == slot).all(), (text, element)
        holders.update({(device, slot): element for device in held_by})
    if len(expected):
        first, slot = fi.sharding.shard_index(str(shape), sharding, elements)
        assert np.array_equal(first, devices[0])
        assert np.array_equal(slot, slots[0])
        last, _ = fi.sharding.shard_index(str(shape), sharding, elements, len(devices) - 1, device_count=count)
        assert np.array_equal(last, devices[-1])
    every = np.arange(count)[:, None], np.arange(reference.slot_count(shard))[None]
    found = fi.sharding.unshard_index(str(shape), sharding, *every, padding="mark")
    for device in range(count):
        for slot in range(reference.slot_count(shard)):
            element = holders.get((device, slot), (-1,) * len(dimensions))
            assert tuple(int(c[device, slot]) for c in found) == element, (text, device, slot)


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(300)[::20])])
def test_every_element(first: int) -> None:
    for seed in range(first, first + 10):
        check_places(seed)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(10_000, 12_000, 100))
def test_many_elements(first: int) -> None:
    for seed in range(first, first + 100):
        check_places(seed)


@pytest.mark.parametrize("seed", strategies.rotating_seeds(120))
def test_what_devices_hold(seed: int) -> None:
    shape, text, count = random_case(seed, movable=False)
    rules = shard_reference.parse(text, len(shape.dimensions), count)
    shard = shard_reference.shard_shape(shape, rules)
    holds: dict[int, list[tuple[int, ...]]] = {device: [] for device in range(count)}
    for element, (devices, _) in shard_reference.places(shape, rules).items():
        for device in devices:
            holds[device].append(element)
    parts = fi.sharding.shards(str(shape), text, count)
    assert [part.device for part in parts] == list(range(count))
    for part in parts:
        inside = list(reference.every_index([b - a for a, b in zip(part.start, part.stop, strict=True)]))
        moved = [tuple(x + a for x, a in zip(element, part.start, strict=True)) for element in inside]
        assert moved == holds[part.device], text
        assert part.nbytes == reference.nbytes(shard)
        assert part.logical_nbytes == -(-len(moved) * reference.element_bits(shape) // 8)


def test_large_assignments_need_no_table() -> None:
    sharding = fi.sharding.Sharding.parse("{devices=[1024,1024]<=[1024,1024]T(1,0)}")
    device, slot = fi.sharding.shard_index("f32[4096,4096]", sharding, ([5, 4095], [9, 0]))
    assert device.tolist() == [2 * 1024 + 1, 1023]
    assert slot.tolist() == [5, 12]
    back = fi.sharding.unshard_index("f32[4096,4096]", sharding, device, slot)
    assert [c.tolist() for c in back] == [[5, 4095], [9, 0]]


def test_lists_without_a_counter_in_bulk() -> None:
    random = Random(1)
    ids = list(range(64))
    random.shuffle(ids)
    sharding = fi.sharding.Sharding.parse("{devices=[8,8]" + ",".join(map(str, ids)) + "}")
    shape = fi.Shape.parse("f32[1000,900]{1,0:T(8,128)}")
    grid = np.indices(shape.dimensions)
    device, slot = fi.sharding.shard_index(shape, sharding, grid)
    tile = sharding.shard_shape(shape).dimensions
    assert np.array_equal(device, np.array(ids).reshape(8, 8)[grid[0] // tile[0], grid[1] // tile[1]])
    back = fi.sharding.unshard_index(shape, sharding, device, slot)
    assert np.array_equal(np.stack(back), grid)
    strided = np.empty((1000, 1800), np.int64)[:, ::2]
    fi.sharding.shard_index(shape, sharding, grid, out=(strided, slot))
    assert np.array_equal(strided, device)


def test_scalars_and_outputs() -> None:
    device, slot = fi.sharding.shard_index("f32[8]", "{devices=[4]<=[4]}", (5,))
    assert (int(device), int(slot)) == (2, 1)
    assert np.ndim(device) == 0
    out = np.empty(1, np.int64), np.empty(1, np.int64)
    assert fi.sharding.shard_index("f32[8]", "{devices=[4]<=[4]}", ([5],), out=out)[0] is out[0]
    assert int(fi.sharding.unshard_index("f32[8]", "{devices=[4]<=[4]}", 2, 1)[0]) == 5


def test_maximal() -> None:
    sharding = "{maximal device=3}"
    assert fi.sharding.shard_index("f32[8]", sharding, ([5],))[0].tolist() == [3]
    assert [part.stop for part in fi.sharding.shards("f32[8]", sharding, 4)] == [(0,), (0,), (0,), (8,)]
    assert fi.sharding.unshard_index("f32[8]", sharding, [3, 2], 5, padding="mark")[0].tolist() == [5, -1]
    with pytest.raises(fi.OutOfBoundsError, match="only defines the contents of device 3"):
        fi.sharding.unshard_index("f32[8]", sharding, 2, 5)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: fi.sharding.shards("f32[8]", "{replicated}"), fi.LayoutError, "give device_count"),
        (lambda: fi.sharding.shards("f32[8]", "{devices=[4]<=[4]}", 5), fi.LayoutError, "for 4 devices, not 5"),
        (lambda: fi.sharding.shards("f32[8]", "{maximal device=3}", 3), fi.LayoutError, "too small"),
        (lambda: fi.sharding.shards("f32[8]", "{{replicated}}", 3), fi.LayoutError, "tuple"),
        (lambda: fi.sharding.shards("f32[8,8]", "{devices=[4]<=[4]}"), fi.LayoutError, "1 dimensions"),
        (lambda: fi.sharding.shard_index("f32[8]", "{devices=[4]<=[4]}", ([8],)), fi.OutOfBoundsError, "coordinate 8"),
        (lambda: fi.sharding.shard_index("f32[0]", "{devices=[4]<=[4]}", ([0],)), fi.OutOfBoundsError, "size 0"),
        (lambda: fi.sharding.shard_index("f32[8]", "{devices=[4]<=[4]}", ([0],), 1), fi.OutOfBoundsError, "replica 1"),
        (lambda: fi.sharding.shard_index("f32[8]", "{replicated}", ([0],), None), fi.LayoutError, "device_count"),
        (lambda: fi.sharding.shard_index("f32[8]", "{devices=[4]<=[4]}", ([0.5],)), fi.ArgumentTypeError, "integers"),
        (lambda: fi.sharding.unshard_index("f32[8]", "{devices=[4]<=[4]}", [4], 0), fi.OutOfBoundsError, "device 4"),
        (
            lambda: fi.sharding.unshard_index("f32[8]", "{devices=[4]1,0,3,2}", [-1], 0),
            fi.OutOfBoundsError,
            "device -1",
        ),
        (lambda: fi.sharding.unshard_index("f32[8]", "{devices=[4]<=[4]}", [0], 2), fi.OutOfBoundsError, "slot 2"),
        (
            lambda: fi.sharding.unshard_index("f32[7]", "{devices=[4]<=[4]}", [3], 1),
            fi.OutOfBoundsError,
            "device 3.*padding",
        ),
        (
            lambda: fi.sharding.unshard_index("f32[7]", "{devices=[4]1,0,3,2}", [2], 1),
            fi.OutOfBoundsError,
            "device 2.*padding",
        ),
        (
            lambda: fi.sharding.unshard_index("f32[7]", "{devices=[4]<=[4]}", 0, 0, "no"),
            fi.FastIndexError,
            "padding must be",
        ),
    ],
)
def test_bad_input(call, error, match) -> None:
    with pytest.raises(error, match=match):
        call()
