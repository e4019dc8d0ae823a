"""Discovered formats used as formats: packed and unpacked as the packer does, at other sizes, from JSON and rules.

Tests of: weights.found_formats, weights.gathers.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from fastindex.weights.gathers import GatherPlan
from tests.cases import strategies
from tests.weights.test_discovery import FOUND

Codes = NDArray[Any]
Packer = Callable[[Codes], Codes]


def random_codes(shape: tuple[int, ...], bits: int, seed: int = 0) -> Codes:
    kind = np.dtype(f"u{max(bits // 8, 1)}")
    return np.random.default_rng([seed, bits, *shape]).integers(0, 1 << bits, shape, dtype=np.uint64).astype(kind)


def check_both_ways(found: Any, packer: Packer, shape: tuple[int, ...], bits: int) -> None:
    codes = random_codes(shape, bits)
    expected = np.ascontiguousarray(packer(codes)).reshape(-1).view(np.uint8)
    packed = fi.weights.repack(codes, "plain", found)
    assert np.array_equal(packed, expected)
    assert np.array_equal(fi.weights.repack(expected, found, "plain", shape=shape), codes)
    out = np.empty_like(codes)
    assert fi.weights.repack(expected, found, "plain", shape=shape, out=out) is out
    assert np.array_equal(out, codes)


def loaded(found: Any) -> Any:
    return fi.weights.Discovery.from_json(json.loads(json.dumps(found.to_json())))


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.parametrize(("name", "shape", "bits", "parameters"), FOUND)
def test_named_formats_as_discovered(name: str, shape: tuple[int, ...], bits: int, parameters: dict[str, Any]) -> None:
    def packer(codes: Codes) -> Codes:
        packed: Codes = fi.weights.repack(codes, "plain", name, shape=codes.shape, bits=bits, **parameters)
        return packed

    found = fi.weights.discover(packer, shape, np.uint8, bits)
    if found.has_ones:
        codes = random_codes(shape, bits)
        assert np.array_equal(fi.weights.repack(packer(codes), found, "plain"), codes)
        with pytest.raises(fi.UnsupportedError, match="ones in its padding"):
            fi.weights.repack(codes, "plain", found)
        return
    for one in (found, loaded(found)):
        check_both_ways(one, packer, shape, bits)
        if one.grows:
            # A stream that ends within a word is whole words at 32 times its size.
            factor = 32 if math.prod(shape) * bits < math.prod(map(math.prod, one.split)) else 3
            check_both_ways(one, packer, tuple(factor * size for size in shape), bits)
        else:
            with pytest.raises(fi.FastIndexError, match=r"the discovered format was found at .* discover it at"):
                fi.weights.repack(random_codes((*shape[:-1], 7 * shape[-1]), bits), "plain", one)
    codes = random_codes(shape, bits)
    assert np.array_equal(found.plan()(codes), packer(codes))
    assert np.array_equal(found.plan().inverse(packer(codes)), codes)
    # To and from the format itself, nothing changes its place.
    packed = packer(codes)
    if found.flipped_bits == 0 and (name != "bnb_nf4" or len(shape) == 1):
        kept = fi.weights.repack(packed, found, name, shape=shape, bits=bits, **parameters)
        assert np.array_equal(kept, packed)
        assert np.array_equal(fi.weights.repack(packed, name, found, shape=shape, bits=bits, **parameters), packed)


class RandomPacker:
    """A random order of random digits of two dimensions, at any sizes that have its blocks."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.bits = rng.choice([1, 2, 4, 8, 8, 16, 32])
        self.blocks = [[rng.choice([2, 3, 4, 5]) for _ in range(rng.randint(0, 2))] for _ in range(rng.choice([1, 2]))]
        # The part that grows is anywhere in its dimension: {0} is the place of the rest.
        self.grows = [rng.randint(0, len(blocks)) for blocks in self.blocks]
        count = sum(len(blocks) + 1 for blocks in self.blocks)
        self.order = rng.sample(range(count), count)
        self.mask = rng.choice([0, 0, rng.randrange(1 << self.bits)])
        self.pitch = rng.choice([0, 0, 0, 8])
        self.multiples = [math.prod(blocks) for blocks in self.blocks]

    def shape(self, rng: random.Random) -> tuple[int, ...]:
        sizes = [multiple * rng.randint(2, 4) for multiple in self.multiples]
        if math.prod(sizes) * self.bits % 8:
            sizes[0] *= 8
        return tuple(sizes)

    def __call__(self, codes: Codes) -> Codes:
        parts: list[int] = []
        for size, blocks, at in zip(codes.shape, self.blocks, self.grows, strict=True):
            parts += [*blocks[:at], size // math.prod(blocks), *blocks[at:]]
        moved = np.ascontiguousarray((codes ^ codes.dtype.type(self.mask)).reshape(parts).transpose(self.order))
        if self.bits < 8:
            each = np.unpackbits(moved.reshape(-1, 1), axis=1, bitorder="little")[:, : self.bits]
            moved = np.packbits(each.reshape(-1), bitorder="little")
        return moved.reshape(-1)


@pytest.mark.parametrize("seed", strategies.seeds(60))
def test_random_orders_of_digits(seed: int) -> None:
    packer, rng = RandomPacker(seed), random.Random(seed)
    shape = packer.shape(rng)
    found = fi.weights.discover(packer, shape, f"u{max(packer.bits // 8, 1)}", packer.bits)
    assert found.layout is not None and found.flipped_bits == packer.mask, found
    for one in (found, loaded(found)):
        check_both_ways(one, packer, shape, packer.bits)
        if found.grows:
            for _ in range(3):
                check_both_ways(one, packer, packer.shape(rng), packer.bits)
    # A batch is one array after the other.
    codes = random_codes((3, *shape), packer.bits)
    if len(shape) > 1:
        expected = np.concatenate([packer(one).view(np.uint8) for one in codes])
        assert np.array_equal(fi.weights.repack(codes, "plain", found), expected)
        assert np.array_equal(fi.weights.repack(expected, found, "plain", shape=codes.shape), codes)
    assert np.array_equal(found.plan()(codes), np.concatenate([packer(one).view(np.uint8) for one in codes]))


@pytest.mark.parametrize("seed", strategies.seeds(40))
def test_random_permutations(seed: int) -> None:
    """Permutations of elements, codes or bits, with padding, go by a table."""
    rng = np.random.default_rng(seed)
    bits = int(rng.choice([1, 2, 3, 4, 5, 8, 16, 32, 64]))
    width = int(rng.choice([one for one in (1, 2, 4, 8, 16, 32, 64) if bits % one == 0]))
    shape = (int(rng.integers(3, 9)), 8)
    units = math.prod(shape) * bits // width
    places = np.concatenate([rng.permutation(units), np.full(int(rng.integers(0, 3)) * 64 // width, -1)])
    rng.shuffle(places)
    places = np.concatenate([places, np.full(-len(places) * width % 8 // width, -1)])
    mask = int(rng.integers(0, 1 << min(bits, 62))) * int(rng.integers(0, 2))

    def packer(codes: Codes) -> Codes:
        flipped = (codes ^ codes.dtype.type(mask)).reshape(-1, 1)
        each = np.unpackbits(flipped.view(np.uint8), axis=1, bitorder="little")[:, :bits].reshape(-1, width)
        moved = np.where(places[:, None] < 0, 0, each[np.maximum(places, 0)])
        return np.packbits(moved.astype(np.uint8).reshape(-1), bitorder="little")

    found = fi.weights.discover(packer, shape, f"u{max(bits // 8, 1)}", bits)
    assert found.layout is None and found.reason is not None and found.flipped_bits == mask
    for one in (found, loaded(found)):
        check_both_ways(one, packer, shape, bits)
        codes = random_codes((2, *shape), bits)
        expected = np.concatenate([packer(codes[0]), packer(codes[1])])
        assert np.array_equal(fi.weights.repack(codes, "plain", one), expected)
        assert np.array_equal(fi.weights.repack(expected, one, "plain", shape=codes.shape), codes)
        assert isinstance(one.plan(), GatherPlan) and one.plan().unit_bits >= (width if width in (bits, 8, 16, 32, 64) else 1)
