"""From one division to another: every transfer against the slow reference, what must move, and moving it.

Tests of: index.box_nests, sharding.transfers.
"""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest

import fastindex as fi
from tests.cases import strategies
from tests.cases.sharding_texts import divisible, random_sharding
from tests.oracles import reference, shard_reference


def random_reshard(seed: int) -> tuple[str, str, str, str, int]:
    """Return two layouts of one array, two shardings, and the number of devices."""
    random = Random(seed)
    while True:
        before, after = (divisible(shape) for shape in strategies.random_pair(seed))
        count = random.choice((1, 2, 3, 4, 6, 8))
        shardings = [random_sharding(random, len(before.dimensions), count) for _ in range(2)]
        whole = all(reference.element_bits(shape) % 8 == 0 for shape in (before, after))
        alike = reference.element_bits(before) == reference.element_bits(after)
        if whole and alike and not any("unreduced" in text for text in shardings):
            return str(before), str(after), *shardings, count
        seed += 100_000


def places_of(text: str, sharding: str, count: int) -> dict[tuple[int, ...], tuple[list[int], int]]:
    shape = reference.parse(text)
    return shard_reference.places(shape, shard_reference.parse(sharding, len(shape.dimensions), count))


def bytes_of_rows(rows: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Return every byte that moves: source device, source byte, target device, target byte."""
    found = []
    for row in rows:
        for place in itertools.product(*(range(n) for n in row["counts"])):
            source = row["source_byte"] + sum(i * s for i, s in zip(place, row["source_strides"], strict=True))
            target = row["target_byte"] + sum(i * s for i, s in zip(place, row["target_strides"], strict=True))
            ends = row["source_device"], row["target_device"]
            found += [(ends[0], int(source) + at, ends[1], int(target) + at) for at in range(row["length"])]
    return found


def piece_count(moves: set[tuple[int, int, int, int]]) -> int:
    """Return how many pieces are contiguous on both sides, as long as they can be."""
    return sum((a, b - 1, c, d - 1) not in moves for a, b, c, d in moves)


def check_plan(seed: int) -> None:
    before, after, source, target, count = random_reshard(seed)
    plan = fi.sharding.plan_reshard(before, source, target, target_shape=after, device_count=count)
    width = reference.element_bits(reference.parse(before)) // 8
    holders, receivers = places_of(before, source, count), places_of(after, target, count)
    must_move = 0
    expected = set()
    senders = {}
    for row in (*plan.copies, *plan.transfers):
        for a, b, c, d in bytes_of_rows([row]):
            assert (c, d) not in senders, "a byte arrives twice"
            senders[c, d] = a, b
    for element, (devices, slot) in receivers.items():
        held_by, held_at = holders[element]
        for device in devices:
            must_move += (device not in held_by) * width
            for byte in range(width):
                sender = senders.pop((device, slot * width + byte))
                assert sender[0] in held_by
                assert sender[1] == held_at * width + byte
                assert (sender[0] == device) == (device in held_by)
                expected.add((*sender, device, slot * width + byte))
    assert senders == {}, "padding is sent"
    assert plan.moved_nbytes == must_move == plan.least_nbytes
    assert plan.bytes_between.sum() == len(expected)
    assert plan.bytes_between.sum() - np.trace(plan.bytes_between) == must_move
    rows = [*plan.copies, *plan.transfers]
    pieces = sum(int(np.prod(row["counts"])) for row in rows)
    assert pieces <= 2 * piece_count(expected) + len(rows)
    values = np.random.default_rng(seed).integers(0, 2, fi.Shape.parse(before).dimensions)
    values = values.astype(fi.Shape.parse(before).element_type.numpy_dtype)
    made = plan(fi.sharding.shard(values, before, source, count))
    for found, wanted in zip(made, fi.sharding.shard(values, after, target, count), strict=True):
        assert np.array_equal(np.asarray(found).view(np.uint8), np.asarray(wanted).view(np.uint8)), seed
    assert plan.describe()


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(300)[::20])])
def test_random_pairs(first: int) -> None:
    for seed in range(first, first + 20):
        check_plan(seed)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(50_000, 50_600, 50))
def test_many_pairs(first: int) -> None:
    for seed in range(first, first + 50):
        check_plan(seed)


@pytest.mark.parametrize(
    ("source", "target", "collective", "messages"),
    [
        ("{devices=[8,1]<=[8]}", "{devices=[1,8]<=[8]}", "all-to-all", 56),
        ("{devices=[8,1]<=[8]}", "{replicated}", "all-gather", 56),
        ("{replicated}", "{devices=[8,1]<=[8]}", "dynamic-slice", 0),
        ("{devices=[8,1]<=[8]}", "{devices=[8,1]<=[2,4]T(1,0)}", "collective-permute", 6),
        ("{devices=[8,1]<=[8]}", "{devices=[8,1]<=[8]}", "nothing", 0),
        ("{devices=[2,4]<=[8]}", "{devices=[4,2]<=[8]}", "collective-permute and all-to-all", 12),
        ("{devices=[8,1]<=[8]}", "{devices=[1,8]7,1,2,3,5,4,6,0}", None, 56),
        ("{maximal device=3}", "{devices=[1,8]<=[8]}", None, 7),
    ],
)
def test_collectives(source: str, target: str, collective: str | None, messages: int) -> None:
    plan = fi.sharding.plan_reshard("f32[64,64]", source, target, device_count=8)
    if collective is not None:
        assert plan.collective == collective
    sent = {(row["source_device"], row["target_device"]) for row in plan.transfers}
    assert len(sent) == messages
    assert len(plan.transfers) == messages


@pytest.mark.parametrize("shape", ["f32[]", "f32[1]"])
def test_least_bytes_of_one_element(shape: str) -> None:
    for source, target, nbytes in (("1", "2", 4), ("1", "1", 0), ("1", None, 8), (None, "1", 0)):
        texts = ["{replicated}" if device is None else f"{{maximal device={device}}}" for device in (source, target)]
        plan = fi.sharding.plan_reshard(shape, *texts, device_count=3)
        assert plan.moved_nbytes == plan.least_nbytes == nbytes


def source_of(row: np.void, byte: int) -> int | None:
    """Return the source byte of a byte of the target, or None if the row does not write it."""
    byte -= int(row["target_byte"])
    source = int(row["source_byte"])
    for count, step, stride in zip(row["counts"], row["source_strides"], row["target_strides"], strict=True):
        place = min(max(byte // int(stride), 0), int(count) - 1) if stride else 0
        byte, source = byte - place * int(stride), source + place * int(step)
    return source + byte if 0 <= byte < row["length"] else None


@pytest.mark.parametrize(
    ("before", "after", "source", "target", "most"),
    [
        ("f32[2097152,2097152]", "f32[2097152,2097152]{0,1:T(8,128)(2,1)}", (8, 1), (1, 8), 65),
        ("f32[2097153,2097151]", "f32[2097153,2097151]{1,0:T(8,128)(2,1)}", (7, 1), (2, 5), 700),
        ("f32[4398046511104]{0:T(1024)}", "f32[4398046511104]{0:T(1000)(3)}", (8,), (2,), 100),
        ("f32[1099511627776,4]{1,0:T(8,128)}", "f32[1099511627776,4]{0,1:T(3,1)}", (8, 1), (1, 2), 100),
    ],
)
def test_arrays_of_any_size(
    before: str, after: str, source: tuple[int, ...], target: tuple[int, ...], most: int
) -> None:
    sizes = [int(np.prod(counts)) for counts in (source, target)]
    texts = [
        f"{{devices={list(parts)}<=[{size}]}}".replace(" ", "")
        for parts, size in zip((source, target), sizes, strict=True)
    ]
    plan = fi.sharding.plan_reshard(before, *texts, target_shape=after)
    assert plan.describe()
    rows = np.concatenate([plan.transfers, plan.copies])
    assert len(rows) < most
    assert sum(int(row["length"]) * np.prod(row["counts"]) for row in rows) == fi.Shape.parse(before).logical_nbytes
    random = Random(0)
    shapes = [reference.parse(text) for text in (before, after)]
    sharded = [shard_reference.parse(text, len(source), size) for text, size in zip(texts, sizes, strict=True)]
    parts = [shard_reference.shard_shape(*pair) for pair in zip(shapes, sharded, strict=True)]
    for _ in range(100):
        element = [random.choice((0, size - 1, random.randrange(size))) for size in shapes[0].dimensions]
        ends = []
        for part, sharding in zip(parts, sharded, strict=True):
            tile = tuple(x // size for x, size in zip(element, part.dimensions, strict=True))
            within = [x % size for x, size in zip(element, part.dimensions, strict=True)]
            (device,) = sharding.devices_of(tile)
            ends.append((device, 4 * reference.linear_index(part, within)))
        found = [
            source_of(row, ends[1][1])
            for row in rows
            if (row["source_device"], row["target_device"]) == (ends[0][0], ends[1][0])
        ]
        assert [byte for byte in found if byte is not None] == [ends[0][1]], element


def test_large_boxes_go_through_kernels() -> None:
    shape, tiled = "f32[1024,1100]", "f32[1024,1100]{1,0:T(8,128)}"
    values = np.arange(1024 * 1100, dtype=np.float32).reshape(1024, 1100)
    plan = fi.sharding.plan_reshard(shape, "{devices=[2,1]<=[2]}", "{devices=[1,2]<=[2]}", target_shape=tiled)
    made = plan(fi.sharding.shard(values, shape, "{devices=[2,1]<=[2]}"))
    for found, wanted in zip(made, fi.sharding.shard(values, tiled, "{devices=[1,2]<=[2]}"), strict=True):
        assert np.array_equal(found, wanted)
    assert len(plan.transfers) < 12


def test_other_devices_after() -> None:
    values = np.arange(10, dtype=np.int32)
    plan = fi.sharding.plan_reshard("s32[10]", "{devices=[4]<=[4]}", "{devices=[3]<=[3]}")
    made = plan(fi.sharding.shard(values, "s32[10]", "{devices=[4]<=[4]}"))
    assert np.array_equal(fi.sharding.unshard(made, "s32[10]", "{devices=[3]<=[3]}"), values)


def test_replicas_take_turns() -> None:
    plan = fi.sharding.plan_reshard("f32[8]", "{devices=[2,4]<=[8] last_tile_dim_replicate}", "{replicated}")
    sent = plan.bytes_between - np.diag(np.diag(plan.bytes_between))
    assert sent.sum(axis=1).tolist() == [16] * 8


def test_packed_elements() -> None:
    shape = "s4[8,64]{1,0:E(4)}"
    values = np.random.default_rng(0).integers(-8, 8, (8, 64)).astype(fi.Shape.parse(shape).element_type.numpy_dtype)
    plan = fi.sharding.plan_reshard(shape, "{devices=[4,1]<=[4]}", "{devices=[1,4]<=[4]}")
    made = plan(fi.sharding.shard(values, shape, "{devices=[4,1]<=[4]}"))
    assert np.array_equal(fi.sharding.unshard(made, shape, "{devices=[1,4]<=[4]}"), values)
    with pytest.raises(fi.UnsupportedError, match="whole bytes"):
        fi.sharding.plan_reshard("s4[6,5]{1,0:E(4)}", "{devices=[2,1]<=[2]}", "{devices=[1,2]<=[2]}").transfers  # noqa: B018


def test_bad_input() -> None:
    with pytest.raises(fi.LayoutError, match="one array"):
        fi.sharding.plan_reshard("f32[8]", "{devices=[2]<=[2]}", "{devices=[2]<=[2]}", target_shape="f32[9]")
    with pytest.raises(fi.LayoutError, match="give device_count"):
        fi.sharding.plan_reshard("f32[8]", "{replicated}", "{manual}")
    with pytest.raises(fi.LayoutError, match="for 2 devices, not 4"):
        fi.sharding.plan_reshard("f32[8]", "{devices=[2]<=[2]}", "{replicated}", device_count=4)
    with pytest.raises(fi.UnsupportedError, match="parts of a sum"):
        fi.sharding.plan_reshard("f32[8]", "{unreduced}", "{devices=[2]<=[2]}")
    merged = "f32[65536,65536]{1,0:T(*,128)}"
    with pytest.raises(fi.UnsupportedError, match="2147483648 elements of a box one by one"):
        fi.sharding.plan_reshard(
            merged, "{devices=[2,1]<=[2]}", "{devices=[1,1,2]<=[2] last_tile_dim_replicate}"
        ).describe()
    plan = fi.sharding.plan_reshard("f32[8]", "{devices=[2]<=[2]}", "{replicated}")
    with pytest.raises(fi.FastIndexError, match="needs 2 buffers"):
        plan([np.zeros(4, np.float32)])
    with pytest.raises(fi.FastIndexError):
        plan([np.zeros(5, np.float32)] * 2)
    assert len(fi.sharding.plan_reshard("f32[0,8]", "{devices=[2,1]<=[2]}", "{devices=[1,2]<=[2]}").transfers) == 0
