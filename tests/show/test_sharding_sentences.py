"""What is said of a divided array: the numbers against `fastindex.sharding.shards`.

Tests of: show.sentences.
"""

from __future__ import annotations

import contextlib
from random import Random

import pytest

import fastindex as fi
from fastindex.show.sentences import cheapest_division
from tests.cases.sharding_texts import tiled_text
from tests.faults import divisions


def test_the_issue_in_words() -> None:
    said = fi.explain("f32[17,1024]", "{devices=[8,1]<=[8]}")
    assert "17 over 8 devices pads to 24: 29% of the buffers. Over 17 or 1 devices nothing is padded." in said
    assert "Divided as {devices=[1,8]<=[8]}, each device holds 8.5 KiB, 29% less." in said
    assert "padding" not in fi.explain("f32[16,1024]", "{devices=[8,1]<=[8]}")


@pytest.mark.parametrize(
    ("sharding", "words"),
    [
        ("{replicated}", "every device holds the whole array"),
        ("{maximal device=3}", "only device 3 has the array"),
        ("{unreduced}", "a part of a sum"),
        ("{mesh['a'=2], unreduced=max}", "a part of a maximum"),
        ("{mesh['a'=2,'b'=2], [{'a'}, {}], unreduced=min{'b'}}", "2 devices each hold parts of a minimum"),
        ("{manual}", "the program itself"),
        ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "4 devices each hold the same part"),
        ("{devices=[1,8]<=[8]}", "Tile padding comes on top"),
    ],
)
def test_every_kind(sharding: str, words: str) -> None:
    assert words in fi.explain("f32[24,64]{1,0:T(8,128)}", sharding)


@pytest.mark.parametrize(
    "sharding",
    [
        "{mesh['0z'=4,'a'=8,'x_y'=128], [], manual={'0z', 'a'}}",
        "{devices=[2,2]<=[4] last_tile_dims={manual,replicated}}",
        "{devices=[1,3]<=[3] last_tile_dims={replicated,unreduced}}",
    ],
)
def test_a_scalar_with_subgroups_has_no_other_division(sharding: str) -> None:
    assert cheapest_division(fi.Shape.parse("f32[]"), fi.sharding.Sharding.parse(sharding)) is None
    assert "no dimension is divided" in fi.explain("f32[]", sharding)


@pytest.mark.parametrize("first", range(6))
def test_random_questions(first: int) -> None:
    """`tests/faults/campaign.py` asks a hundred thousand."""
    source, answered = Random(first), 0
    for _ in range(40):
        with contextlib.suppress(fi.FastIndexError):
            divisions.check(source, *divisions.random_question(source))
            answered += 1
    assert answered


def test_numbers_of_random_divisions() -> None:
    random = Random(3)
    for _ in range(150):
        text = tiled_text(random, random.choice((2, 4, 6, 8, 12)), 2)
        shape = fi.Shape("f32", (random.randint(1, 30), random.randint(1, 30)))
        sharding = fi.sharding.Sharding.parse(text)
        said = fi.explain(shape, sharding)
        if sharding.kind != "tiled":
            continue
        parts = fi.sharding.shards(shape, sharding)
        idle = [str(part.device) for part in parts if not part.logical_nbytes]
        assert bool(idle) == ("only padding" in said), (text, said)
        if 0 < len(idle) <= 4:
            assert all(name in said for name in idle)
        better = cheapest_division(shape, sharding)
        if better is not None:
            assert better.shard_shape(shape).nbytes < parts[0].nbytes
            assert better.device_count == sharding.device_count
