"""A transfer between two caches in numbers: the pages of tokens to move, and the loop nest that moves one page.

Tokens move in granules: the most consecutive tokens within one block of both caches, with the same strides in every
granule. A granule of all layers, heads and elements is a loop nest; a transfer applies this nest at many offsets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fastindex.algebra.loops import Loop, Nest, coalesced, products
from fastindex.arrays.arrays import address_of
from fastindex.core.integers import as_integer
from fastindex.errors import FastIndexError, OutOfBoundsError
from fastindex.index.box_nests import joined_nests, table_nests
from fastindex.paged.caches import Cache, check_cache
from fastindex.paged.planes import Numbers, Plane
from fastindex.paged.tables import flat_integers
from fastindex.runtime.first_answer import indices_by_numpy, kernel_function

#: The source and target plane of one name.
Pair = tuple[Plane, Plane]


@dataclass(frozen=True, eq=False, slots=True)
class Granules:
    """The granules of a transfer.

    Attributes
    ----------
    tokens : int
        Tokens per granule.
    count : int
    tail : int
        Tokens of the last granule if it is partial; else 0.
    places : pair of (int64 array, int64 array), or None
        For both sides, the index of each granule's block in the list of blocks, and the granule's index in its block;
        None if granules are consecutive on both sides.
    """

    tokens: int
    count: int
    tail: int
    places: tuple[tuple[Numbers, Numbers], tuple[Numbers, Numbers]] | None

    @property
    def whole(self) -> int:
        """Number of full granules."""
        return self.count - (self.tail > 0)

    def last(self, side: int, block_size: int) -> tuple[int, int]:
        """Return the block of the last granule on a side, in the list of blocks, and its index in the block."""
        if not self.count:
            return -1, 0
        if self.places is None:
            return divmod(self.count - 1, block_size // self.tokens)
        columns, parts = self.places[side]
        return int(columns[-1]), int(parts[-1])


@dataclass(frozen=True, eq=False, slots=True)
class Transfer:
    """A validated transfer.

    Attributes
    ----------
    source, target : Cache
    blocks : (int64 array, int64 array)
        The blocks that hold the tokens, on both sides.
    granules : Granules
    groups : sequence of sequences of Pair
        Planes that share page offsets.
    heads : (int, int, int)
        Source and target index of the first common head, and the number of common heads.
    """

    source: Cache
    target: Cache
    blocks: tuple[Numbers, Numbers]
    granules: Granules
    groups: Sequence[Sequence[Pair]]
    heads: tuple[int, int, int]

    def pages(self, group: Sequence[Pair], side: int) -> Numbers:
        """Return the offset of each granule on a side, relative to the first token of block 0."""
        plane, places = group[0][side], self.granules.places
        blocks, offsets = self.blocks[side] * plane.block_stride, granule_offsets(plane, self.granules)
        if places is None:
            return (blocks[:, None] + offsets).reshape(-1)[: self.granules.count]
        columns, parts = places[side]
        return blocks[columns] + offsets[parts]


@lru_cache(maxsize=256)
def page_nests(
    pairs: tuple[Pair, ...], heads: tuple[int, int, int], tokens: int, one_layer: bool, in_bytes: bool = True
) -> tuple[Nest, ...]:
    """Return the loops that move `tokens` tokens of a granule, relative to the page offsets of a group.

    Strides are in bytes; with `in_bytes`, the innermost loop runs over the bytes of a unit.
    """
    first, there, count = heads
    layers, nests = slice(0, 1) if one_layer else slice(None), list[Nest]()
    for a, b in pairs:
        axes = (
            (a.layer_offsets[layers], b.layer_offsets[layers]),
            (a.head_offsets[first : first + count], b.head_offsets[there : there + count]),
            (a.token_offsets[:tokens], b.token_offsets[:tokens]),
            (a.dim_offsets, b.dim_offsets),
        )
        nests += nests_over(axes, a.unit_bytes if in_bytes else 1)
    return tuple(coalesced(nest) for nest in joined_nests(nests))


def nests_over(axes: Iterable[tuple[Numbers, Numbers]], unit: int) -> Iterator[Nest]:
    """Yield the loops over the bytes of a unit and over axes; an axis is its (source, target) offset tables."""
    for nest in products([table_nests(*axis) for axis in axes]):
        yield coalesced(Nest((Loop(unit, 1, 1), *nest.loops), *nest[1:]))


def transfer_of(
    source: Cache,
    target: Cache,
    source_blocks: Any,
    target_blocks: Any,
    num_tokens: int | None,
    casts: bool = False,
) -> Transfer:
    """Validate a transfer and return it.

    Raises
    ------
    FastIndexError
        Caches with different layers, planes or elements, or without a common head; too few blocks; a repeated target
        block, or the null block as a target.
    OutOfBoundsError
        A block outside its pool.
    """
    check_cache(source, "source")
    check_cache(target, "target")
    pairs, heads, size = _matched(source, target, casts)
    blocks = flat_integers(source_blocks, "source_blocks"), flat_integers(target_blocks, "target_blocks")
    tokens = _token_count(source, target, blocks, num_tokens)
    granules = _granules(source, target, size, tokens)
    used = []
    for side, (cache, what) in enumerate(((source, "source_blocks"), (target, "target_blocks"))):
        needed, known = granules.last(side, cache.block_size)[0] + 1, blocks[side]
        if needed > len(known):
            raise FastIndexError(f"{tokens} tokens need {needed} {what} of {cache.block_size} tokens, got {len(known)}")
        used.append(checked_blocks(cache, known[:needed], what, is_written=side == 1))
    return Transfer(source, target, (used[0], used[1]), granules, groups_of(pairs, granules), heads)


@lru_cache(maxsize=256)
def _matched(source: Cache, target: Cache, casts: bool) -> tuple[list[Pair], tuple[int, int, int], int]:
    """Return the pairs of planes, the common heads, and the tokens of a granule."""
    pairs = plane_pairs(source, target, casts)
    return pairs, common_heads(source, target), _granule(source, target, pairs)


def plane_pairs(source: Cache, target: Cache, casts: bool = False) -> list[Pair]:
    """Return the planes of both caches, matched by name.

    Raises
    ------
    FastIndexError
        The planes differ in more than their offsets; with `casts`, element types may differ.
    """
    if set(source.planes) != set(target.planes):
        names = [", ".join(cache.planes) for cache in (source, target)]
        raise FastIndexError(
            f"the source holds the planes {names[0]} and the target {names[1]}; planes of one name move to each other"
        )
    if source.num_layers != target.num_layers:
        raise FastIndexError(f"the source has {source.num_layers} layers, the target {target.num_layers}")
    found = []
    for name, here in source.planes.items():
        there = target.planes[name]
        if here.head_dim != there.head_dim:
            raise FastIndexError(f"a head of {name} has {here.head_dim} elements in the source, {there.head_dim} there")
        if here.element_type != there.element_type and not casts:
            raise FastIndexError(
                f"elements of {name} are {here.element_type} in the source and {there.element_type} in the target; "
                "copy casts with casting='unsafe', and runs move bytes"
            )
        if here.per_unit != there.per_unit:
            raise FastIndexError(f"elements of {name} are packed on one side only; unpack them first")
        found.append((here, there))
    return found


def common_heads(source: Cache, target: Cache) -> tuple[int, int, int]:
    """Return the local index of the first common head on both ranks, and the number of common heads.

    Raises
    ------
    FastIndexError
        No head is common.
    """
    first, end = max(source.heads.start, target.heads.start), min(source.heads.stop, target.heads.stop)
    if first >= end:
        spans = [f"{cache.heads.start}..{cache.heads.stop - 1}" for cache in (source, target)]
        raise FastIndexError(f"the source holds heads {spans[0]} and the target {spans[1]}: none is common")
    return first - source.heads.start, first - target.heads.start, end - first


# Tokens


def _token_count(source: Cache, target: Cache, blocks: Sequence[Numbers], num_tokens: int | None) -> int:
    if num_tokens is not None:
        count = as_integer(num_tokens, "num_tokens")
        if count < 0:
            raise FastIndexError(f"num_tokens must be at least 0, got {count}")
        return count
    held = [len(ids) * cache.block_size * cache.cp[0] for ids, cache in zip(blocks, (source, target), strict=True)]
    if held[0] != held[1]:
        raise FastIndexError(
            f"the source blocks hold {held[0]} tokens and the target blocks {held[1]}; give num_tokens"
        )
    return held[0]


def _granule(source: Cache, target: Cache, pairs: Sequence[Pair]) -> int:
    """Return the largest granule: tokens within one block of both caches, with the same offsets in every granule."""
    most = math.gcd(source.block_size, target.block_size)
    for cache in (source, target):
        if cache.cp[0] > 1:
            most = math.gcd(most, cache.interleave)
    tables = [plane.token_offsets for pair in pairs for plane in pair]
    divisors = (count for count in range(most, 0, -1) if most % count == 0)
    return next(count for count in divisors if all(_repeats(table, count) for table in tables))


def _repeats(table: Numbers, count: int) -> bool:
    groups = table.reshape(-1, count)
    return bool(np.all(groups - groups[:, :1] == groups[0] - groups[0, 0]))


def _granules(source: Cache, target: Cache, size: int, tokens: int) -> Granules:
    splits = [(cache.cp, cache.interleave if cache.cp[0] > 1 else 1) for cache in (source, target)]
    if splits[0] == splits[1]:
        # Both sides have the same tokens, so local token numbers of the rank are enough.
        tokens = local_count(tokens, *splits[0])
        return Granules(size, -(-tokens // size), tokens % size, None)
    begins = np.arange(0, tokens, size)
    for cp, interleave in splits:
        begins = begins[begins // interleave % cp[0] == cp[1]]
    sides = []
    for cache, (cp, interleave) in zip((source, target), splits, strict=True):
        local = begins // (interleave * cp[0]) * interleave + begins % interleave
        sides.append((local // cache.block_size, local % cache.block_size // size))
    has_tail = len(begins) > 0 and begins[-1] + size > tokens
    return Granules(size, len(begins), tokens % size if has_tail else 0, (sides[0], sides[1]))


def local_count(tokens: int, cp: tuple[int, int], interleave: int) -> int:
    """Return how many of the first `tokens` tokens belong to a rank.

    Examples
    --------
    >>> [local_count(21, (2, rank), 4) for rank in range(2)]
    [12, 9]
    """
    turns, remainder = divmod(tokens, cp[0] * interleave)
    return turns * interleave + min(max(remainder - cp[1] * interleave, 0), interleave)


# Blocks


def first_outside(numbers: Numbers, bound: int) -> int:
    """Return the index of the first number that is not in ``range(bound)``, or -1.

    Examples
    --------
    >>> first_outside(np.array([3, 4, -1]), 4)
    1
    """
    # As unsigned numbers, negative ones are the largest.
    unsigned = numbers.view(np.dtype(f"u{numbers.itemsize}").newbyteorder(numbers.dtype.byteorder))
    return int((unsigned >= bound).argmax()) if len(numbers) and unsigned.max() >= bound else -1


def checked_blocks(
    cache: Cache, numbers: Numbers, name: str, per: int = 1, is_written: bool = True, places: Numbers | None = None
) -> Numbers:
    """Return the numbers of blocks, or of slots if there are `per` of them in a block, as int64.

    Messages use `name`, and the places of the numbers in it.

    Raises
    ------
    OutOfBoundsError
        A number outside the pool.
    FastIndexError
        The pool is written, and a number is of the null block or repeated.
    """

    def entry(at: int) -> str:
        return f"{name}[{at if places is None else places[at]}] is {numbers[at]}"

    bound, null = cache.num_blocks * per, cache.null_block
    at = first_outside(numbers, bound)
    if at >= 0:
        raise OutOfBoundsError(f"{entry(at)}, out of bounds for the {cache.num_blocks} blocks of {cache}")
    found = np.ascontiguousarray(numbers, np.int64)
    if is_written and null is not None and (found // per == null).any():
        at = int(np.flatnonzero(found // per == null)[0])
        raise FastIndexError(f"{entry(at)}, of the null block {null}, which is never written")
    twice = first_repeated(found, bound) if is_written else -1
    if twice >= 0:
        raise FastIndexError(f"{entry(twice)}, which an earlier entry names too")
    return found


def first_repeated(blocks: Numbers, num_blocks: int) -> int:
    """Return the index of the first entry that repeats an earlier one, or -1.

    Examples
    --------
    >>> first_repeated(np.array([3, 1, 2, 1, 3]), 4)
    3
    """
    if (blocks[1:] > blocks[:-1]).all():
        return -1
    if 16 * len(blocks) >= num_blocks and not indices_by_numpy(len(blocks)):
        seen = np.zeros(num_blocks, np.uint8)
        if kernel_function("are_distinct")(address_of(blocks), len(blocks), address_of(seen)):
            return -1
    order = np.argsort(blocks, kind="stable")
    again = order[1:][np.diff(blocks[order]) == 0]
    return int(again.min()) if len(again) else -1


def groups_of(pairs: Iterable[Pair], granules: Granules) -> list[list[Pair]]:
    """Group planes that share page offsets and are cast alike, if at all."""
    kinds: dict[tuple[Any, ...], list[Pair]] = {}
    for a, b in pairs:
        steps = [granule_offsets(plane, granules).tobytes() for plane in (a, b)]
        layers = [(p.layer_offsets - p.layer_offsets[0]).tobytes() for p in (a, b)]
        types = None if a.element_type == b.element_type else (a.element_type, b.element_type)
        kinds.setdefault((a.block_stride, b.block_stride, *steps, *layers, types), []).append((a, b))
    return list(kinds.values())


def granule_offsets(plane: Plane, granules: Granules) -> Numbers:
    """Return the offsets of the granules of a block, relative to the block."""
    offsets: Numbers = plane.token_offsets[:: granules.tokens] - plane.token_offsets[0]
    return offsets
