"""Whole arrays into buffers of devices and back, against the slow reference; JAX's maps; XLA's own partitioner."""

from __future__ import annotations

import itertools
import math
from random import Random
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from tests.cases import strategies
from tests.cases.sharding_texts import random_case, tiled_text
from tests.oracles import reference, shard_reference
from tests.oracles.hlo_shardings import ask
from tests.oracles.spmd_partitioning import device_buffers


def without_unreduced(seed: int) -> tuple[reference.ReferenceShape, str, int]:
    while True:
        case = random_case(seed)
        if "unreduced" not in case[1]:
            return case
        seed += 100_000


def random_values(shape: fi.Shape, seed: int) -> np.ndarray:
    dtype = shape.element_type.numpy_dtype
    raw = np.random.default_rng(seed).integers(0, 2, (*shape.dimensions, dtype.itemsize), dtype=np.uint8)
    raw = raw[..., 0].astype(dtype) if shape.element_bits < 8 or dtype.kind not in "iufc" else raw.view(dtype)[..., 0]
    return np.ascontiguousarray(raw).reshape(shape.dimensions)


def check_round_trip(seed: int) -> None:
    described, text, count = without_unreduced(seed)
    shape = fi.Shape.parse(str(described))
    rules = shard_reference.parse(text, shape.rank, count)
    values = random_values(shape, seed)
    buffers = fi.sharding.shard(values, shape, text, count)
    assert len(buffers) == count
    part = fi.sharding.Sharding.parse(text).shard_shape(shape)
    for device, expected in enumerate(_expected(described, rules, values, part, count)):
        assert np.array_equal(_raw(buffers[device]), _raw(expected)), (text, device)
    assert np.array_equal(_raw(fi.sharding.unshard(buffers, shape, text)), _raw(values))


def _raw(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _expected(described, rules, values, part, count):
    """Lay each device's part out on its own, padded by hand."""
    shard = shard_reference.shard_shape(described, rules)
    tiles = [np.full(shard.dimensions, _fill(part, values.dtype)) for _ in range(count)]
    for element, (devices, _) in shard_reference.places(described, rules).items():
        within = tuple(x % n for x, n in zip(element, shard.dimensions, strict=True))
        for device in devices:
            tiles[device][within] = values[element]
    return [fi.pack(tiles[device], part) for device in range(count)]


def _fill(part: fi.Shape, dtype: np.dtype) -> np.ndarray:
    from fastindex.arrays.fills import fill_pattern

    return np.frombuffer(fill_pattern(part), np.uint8)[: dtype.itemsize].view(dtype)[0]


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(240)[::20])])
def test_round_trips(first: int) -> None:
    for seed in range(first, first + 20):
        check_round_trip(seed)


@pytest.mark.in_turn(seconds=1)
def test_jax_maps_of_even_divisions() -> None:
    random = Random(11)
    questions = []
    while len(questions) < 60:
        count = random.choice((2, 4, 8, 16))
        text = tiled_text(random, count, 2)
        sharding = fi.sharding.Sharding.parse(text)
        if sharding.kind == "tiled" and sharding.subgroup_types in ((), ("replicated",)) and "shard_" not in text:
            questions.append((text, count, [parts * random.randint(1, 5) for parts in sharding.parts]))
    for (text, count, sizes), answer in zip(questions, ask([{"indices": q} for q in questions]), strict=True):
        parts = fi.sharding.shards(fi.Shape("f32", sizes), text)
        assert answer is not None
        assert [[list(span) for span in zip(p.start, p.stop, strict=True)] for p in parts] == answer["indices"], text
        assert len(parts) == count


def uneven_cases(count: int, seed: int) -> list[tuple[str, str]]:
    random = Random(seed)
    cases: list[tuple[str, str]] = []
    while len(cases) < count:
        text = tiled_text(random, 8, 2)
        sharding = fi.sharding.Sharding.parse(text)
        if sharding.kind != "tiled" or set(sharding.subgroup_types) - {"replicated"} or "shard_" in text:
            continue
        sizes = [random.randint(1, 19), random.randint(1, 19)]
        if all(size % parts == 0 for size, parts in zip(sizes, sharding.parts, strict=True)):
            continue
        cases.append((f"s32[{sizes[0]},{sizes[1]}]{random.choice(('{1,0}', '{0,1}'))}", text))
    return cases


def check_against_xla(cases: list[tuple[str, str]]) -> None:
    """Run XLA's SPMD partitioner on 8 host devices, and compare what each device then holds."""
    for (shape, text), found in zip(cases, device_buffers(cases), strict=True):
        parsed = fi.Shape.parse(shape)
        part = fi.sharding.Sharding.parse(text).shard_shape(shape)
        values = np.arange(math.prod(parsed.dimensions), dtype=np.int32).reshape(parsed.dimensions)
        buffers = fi.sharding.shard(values, shape, text)
        for piece, theirs in zip(fi.sharding.shards(shape, text), found, strict=True):
            assert tuple(theirs.shape) == part.dimensions, (shape, text)
            size = tuple(stop - start for start, stop in zip(piece.start, piece.stop, strict=True))
            held = fi.unpack(buffers[piece.device], part)[tuple(slice(n) for n in size)]
            assert np.array_equal(held, theirs[tuple(slice(n) for n in size)]), (shape, text, piece)


@pytest.mark.in_turn(seconds=1.2)
def test_xla_partitions_alike() -> None:
    check_against_xla(uneven_cases(5, 12))


@pytest.mark.sweep
def test_xla_partitions_many_alike() -> None:
    check_against_xla(uneven_cases(120, 13))


def test_bad_input() -> None:
    values = np.zeros(8, np.float32)
    with pytest.raises(fi.LayoutError, match="give device_count"):
        fi.sharding.shard(values, "f32[8]", "{replicated}")
    with pytest.raises(fi.FastIndexError):
        fi.sharding.shard(values[:7], "f32[8]", "{devices=[4]<=[4]}")
    with pytest.raises(fi.UnsupportedError, match="parts of a sum"):
        fi.sharding.shard(values, "f32[8]", "{unreduced}", 2)
    with pytest.raises(fi.LayoutError, match="4 devices, not 3"):
        fi.sharding.unshard([values[:2]] * 3, "f32[8]", "{devices=[4]<=[4]}")
    with pytest.raises(fi.FastIndexError):
        fi.sharding.unshard([values[:3]] * 4, "f32[8]", "{devices=[4]<=[4]}")
    with pytest.raises(fi.FastIndexError, match=r"buffers\[1\] is None"):
        fi.sharding.unshard([values[:4], None], "f32[8]", "{devices=[2]<=[2]}")


def test_a_bad_buffer_writes_nothing() -> None:
    """Whichever it is: all are checked before the first is read."""
    shape, sharding, out = "f32[4,4]", "{devices=[2,1]<=[2]}", np.zeros((4, 4), np.float32)
    buffers = fi.sharding.shard(np.ones((4, 4), np.float32), shape, sharding)
    for place, bad in itertools.product(range(2), (buffers[0][:1], buffers[0].view(np.int32), "x")):
        mixed: list[Any] = [*buffers]
        mixed[place] = bad
        with pytest.raises(fi.FastIndexError):
            fi.sharding.unshard(mixed, shape, sharding, out=out)
        assert not out.any()
    with pytest.raises(fi.ArgumentTypeError, match="one buffer per device, got int"):
        fi.sharding.unshard(5, shape, sharding)  # type: ignore[arg-type]


def test_replicas_have_separate_buffers() -> None:
    first, second = fi.sharding.shard(np.zeros(4, np.float32), "f32[4]", "{replicated}", 2)
    first[0] = 1
    assert second[0] == 0
    assert fi.sharding.unshard([first, None], "f32[4]", "{replicated}")[0] == 1


def test_an_empty_shard_is_padding() -> None:
    buffers = fi.sharding.shard(np.arange(9, dtype=np.int32), "s32[9]", "{devices=[8]<=[8]}", fill=-7)
    assert buffers[4].tolist() == [8, -7]
    assert buffers[5].tolist() == [-7, -7]
    empty = fi.sharding.shard(np.zeros((0, 4), np.int32), "s32[0,4]", "{devices=[2,1]<=[2]}")
    assert [buffer.size for buffer in empty] == [0, 0]


def test_maximal_fills_the_others() -> None:
    buffers = fi.sharding.shard(np.ones(3, np.int32), "s32[3]", "{maximal device=1}", 2)
    assert [buffer.tolist() for buffer in buffers] == [[0, 0, 0], [1, 1, 1]]
    assert fi.sharding.unshard(buffers, "s32[3]", "{maximal device=1}").tolist() == [1, 1, 1]


@pytest.mark.parametrize("shape", ["s32[]", "s32[]{:T(2)}", "s32[]{:PV(one)}"])
def test_scalars_of_one_device(shape: str) -> None:
    buffers = fi.sharding.shard(np.int32(5), shape, "{maximal device=2}", 3, fill=-7)
    assert [buffer[0] for buffer in buffers] == [-7, -7, 5]
    assert fi.sharding.unshard([None, None, buffers[2]], shape, "{maximal device=2}") == 5
    padding = 1 if "PV" in shape else 0
    assert fi.sharding.shard(np.int32(5), shape, "{maximal device=2}", 3)[0][0] == padding
