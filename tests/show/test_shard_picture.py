"""Pictures of divided arrays: every part with its devices, padding where it is, any rank."""

from __future__ import annotations

from random import Random
from xml.etree import ElementTree

import pytest

import fastindex as fi
from fastindex.show.shard_picture import ShardPicture
from tests.cases.sharding_texts import random_case


def test_parts_are_those_of_shards() -> None:
    for seed in range(120):
        shape, text, count = random_case(seed, movable=False)
        picture = ShardPicture(str(shape), text, count)
        parts = fi.sharding.shards(str(shape), text, count)
        for label, grid in picture.panels():
            for part in (part for line in grid for part in line):
                assert part.devices
                held = parts[part.devices[0]]
                sizes = [stop - start for start, stop in zip(held.start, held.stop, strict=True)]
                if len(sizes) > 1:
                    assert (part.rows, part.columns) == (sizes[-2], sizes[-1]), (shape, text, label)
        assert picture.text(colour=True, width=60)
        ElementTree.fromstring(picture.svg())


def test_dimensions_and_tiles() -> None:
    shape, sharding = "f32[5,64,512]{2,1,0:T(8,128)}", "{devices=[5,2,2]<=[20]}"
    picture = ShardPicture(shape, sharding, dimensions=(0, 2))
    assert "rows: dimension 0 (5, parts of 1), columns: dimension 2" in picture.text(colour=False, width=80)
    assert len(list(picture.panels())) == 2
    assert 'class="tile"' in ShardPicture(shape, sharding, tiles=True).svg()
    assert 'class="tile"' not in ShardPicture(shape, sharding).svg()
    with pytest.raises(fi.OutOfBoundsError):
        ShardPicture(shape, sharding, dimensions=(0, 3))


def test_large_ones_are_cut_and_say_so() -> None:
    random = Random(0)
    ids = list(range(4096))
    random.shuffle(ids)
    text = ShardPicture("f32[4096,4096]", fi.sharding.Sharding("tiled", (64, 64), ids)).text(colour=False, width=120)
    assert "the first 32 of 64 parts along the rows" in text
    assert len(ShardPicture("f32[4096,4096]", "{devices=[1024,1024]<=[1048576]}").svg()) < 600_000
