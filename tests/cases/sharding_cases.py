"""Divided arrays: a shape with any layout, a sharding that fits it, and how many devices there are."""

from __future__ import annotations

import dataclasses
from random import Random

from tests.cases import strategies
from tests.cases.sharding_texts import tiled_text
from tests.oracles.reference import ReferenceShape


def random_sharding(random: Random, rank: int, count: int) -> str:
    """Return the text of a sharding for arrays of `rank` dimensions over `count` devices."""
    if random.random() < 0.15 or rank == 0:
        return random.choice(("{replicated}", "{manual}", "{unknown}"))
    return tiled_text(random, count, rank)


def divisible(shape: ReferenceShape) -> ReferenceShape:
    """Return the shape without what is of the whole array only."""
    return dataclasses.replace(shape, padded_dimensions=None, splits=())


def random_case(seed: int, movable: bool = True) -> tuple[ReferenceShape, str, int]:
    """Return a shape, the text of a sharding, and the number of devices."""
    random = Random(seed)
    shape = divisible(strategies.random_shape(seed, movable))
    count = random.choice((1, 2, 3, 4, 6, 8, 12, 16, 30))
    return shape, random_sharding(random, len(shape.dimensions), count), count
