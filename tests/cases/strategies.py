"""Shapes with every feature of a layout, from Hypothesis or from a seeded random generator.

Both sources feed the same builder, `draw_shape`, so a feature added there reaches every test. Shapes come as
`reference.ReferenceShape`; ``str()`` of one is the text to parse.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tests.oracles import reference
from tests.oracles.reference import STAR, ReferenceShape

T = TypeVar("T")

#: Random tests use the seeds from here on; pytest prints this number in its header.
FIRST_SEED = int(os.environ.get("FASTINDEX_TEST_SEED", "0"))

#: Says which part of what rotates a run takes: "3/12", "2/6", "1/4", or "all". Without it a run is "plain": the same
#: seeds each day, no sweeps, and nothing that runs in turn. `.ci/run` names another part each day.
PART_VARIABLE = "FASTINDEX_TEST_PART"
PLAIN = os.environ.setdefault(PART_VARIABLE, "plain") == "plain"
_PLAIN_PART = "9/12"


def _part() -> tuple[int | None, int]:
    """The part that runs, from 0 on, the same in all processes of a run, or None for all; and of how many."""
    name = _PLAIN_PART if PLAIN else os.environ[PART_VARIABLE]
    parts = {f"{part + 1}/{count}": (part, count) for count in (4, 6, 12) for part in range(count)}
    if name not in ("all", *parts):
        raise ValueError(f"{PART_VARIABLE} is {name!r}; it must be 'plain', 'all' or one of {', '.join(parts)}")
    return parts.get(name, (None, 12))


PART, PARTS = _part()

#: Larger buffers make the reference slow.
MOST_SLOTS = 3000
MOST_ELEMENTS = 400

DIMENSION_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31)
TILE_SIZES = (1, 2, 2, 3, 4, 5, 7, 8, 16)
KNOWN_TILES: tuple[tuple[tuple[int | str, ...], ...], ...] = (
    ((8, 128),),
    ((8, 128), (2, 1)),
    ((8, 128), (4, 1)),
    ((16, 128), (2, 1)),
    ((2, 128),),
    ((512,), (2, 1)),
    ((256,),),
    ((2, 4), (2, 1)),
    ((2, 4), (2, 1, 1, 1)),
    ((8, 16), (2, 1, 1, 1)),
    ((16, 1, 1),),
    ((3,), (2,)),
    ((4,), (6,)),
    ((STAR, 6), (4,)),
    ((2, 3), (STAR, 2)),
    ((2, 3), (STAR, STAR, STAR, 5)),
    ((2, 2), (2, 2), (2, 2)),
)


class Source(Protocol):
    """Where decisions come from."""

    def integer(self, low: int, high: int) -> int: ...

    def pick(self, options: Sequence[T]) -> T: ...


class RandomSource:
    """Decisions from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, options: Sequence[T]) -> T:
        return self._random.choice(options)


class HypothesisSource:
    """Decisions that Hypothesis makes and can shrink."""

    def __init__(self, draw: Any) -> None:
        # Imported here and below: a machine with a GPU may lack it, and `test_gpu` does without.
        from hypothesis import strategies

        self._draw = draw
        self._strategies = strategies

    def integer(self, low: int, high: int) -> int:
        return self._draw(self._strategies.integers(low, high))  # type: ignore[no-any-return]

    def pick(self, options: Sequence[T]) -> T:
        return self._draw(self._strategies.sampled_from(options))  # type: ignore[no-any-return]


def seeds(count: int, skip: int = 0) -> range:
    """`count` seeds; `skip` of them, counted from the first, belong to other tests."""
    return range(FIRST_SEED + skip, FIRST_SEED + skip + count)


def rotating_seeds(count: int) -> range:
    """The part of `count` seeds that runs: for tests of seconds, that do not assert what all seeds reach."""
    whole = seeds(count)
    if PART is None:
        return whole
    first = count * PART // PARTS
    return whole[first : max(count * (PART + 1) // PARTS, first + 1)]


def rotating(cases: Iterable[T]) -> Iterator[T]:
    """The part of some cases that runs, such as every twelfth: for sweeps over what `rotating_seeds` cannot draw.

    Of fewer cases than parts, one runs.
    """
    found = list(cases)
    if PART is None:
        return iter(found)
    return iter(found[PART::PARTS] or found[PART % max(len(found), 1) :][:1])


#: Whether the seeds are others than those of a plain run. What seeds reach together, a share or a count, is asserted
#: of a plain run's alone, where it is always the same: `assert reached > 20 or strategies.OTHER_SEEDS`.
OTHER_SEEDS = FIRST_SEED != 0


def dealt(seconds: Mapping[str, float]) -> set[str]:
    """The names of tests that run, of some that take many seconds: all parts take about as long."""
    if PART is None:
        return set(seconds)
    parts: list[set[str]] = [set() for _ in range(PARTS)]
    taken = [0.0] * PARTS
    for name in sorted(seconds, key=lambda name: (-seconds[name], name)):
        least = taken.index(min(taken))
        parts[least].add(name)
        taken[least] += seconds[name]
    return parts[PART]


def one_in(source: Source, chances: int) -> bool:
    return source.integer(1, chances) == chances


def draw_permutation(source: Source, count: int) -> tuple[int, ...]:
    left = list(range(count))
    return tuple(left.pop(source.integer(0, len(left) - 1)) for _ in range(count))


def draw_dimensions(source: Source) -> tuple[int, ...]:
    rank = source.pick((0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6))
    dimensions: list[int] = []
    budget = MOST_ELEMENTS
    for _ in range(rank):
        size = source.pick([size for size in DIMENSION_SIZES if size <= budget])
        budget //= size
        dimensions.append(size)
    if dimensions and one_in(source, 15):
        dimensions[source.integer(0, rank - 1)] = 0
    return tuple(dimensions)


def draw_tile(source: Source, axis_count: int) -> tuple[int | str, ...]:
    """One tile for an array of `axis_count` axes; now and then longer than that, often shorter."""
    length = source.integer(1, max(1, min(axis_count + source.pick((0, 0, 0, 1, 2)), 6)))
    entries: list[int | str] = [STAR if one_in(source, 6) else source.pick(TILE_SIZES) for _ in range(length)]
    if entries[-1] == STAR:
        entries[-1] = source.pick(TILE_SIZES)
    return tuple(entries)


def draw_tiles(source: Source, shape: ReferenceShape) -> tuple[tuple[int | str, ...], ...]:
    """A chain of up to four tiles that keeps the buffer small."""
    if one_in(source, 6):
        known = source.pick(KNOWN_TILES)
        if reference.slot_count(dataclasses.replace(shape, tiles=known)) <= MOST_SLOTS:
            return known
    tiles: list[tuple[int | str, ...]] = []
    axis_count = len(shape.dimensions)
    for _ in range(source.pick((0, 1, 1, 1, 2, 2, 3, 4))):
        tile = draw_tile(source, axis_count)
        if reference.slot_count(dataclasses.replace(shape, tiles=(*tiles, tile))) > MOST_SLOTS:
            continue
        tiles.append(tile)
        sizes = sum(entry != STAR for entry in tile)
        axis_count = max(axis_count - len(tile), 0) + 2 * sizes
    return tuple(tiles)


def draw_element_size(source: Source, element_type: str, movable: bool) -> int:
    """Bits for ``E``: absent, packed, natural, wider; anything where nothing is moved."""
    value_bits = reference.VALUE_BITS[element_type]
    if not movable and one_in(source, 10):
        return source.pick((1, 3, 5, 8, 12, 24))
    wider = [bits for bits in (1, 2, 4, 8, 16, 24, 32, 64) if bits >= value_bits]
    if value_bits < 8 and not one_in(source, 3):
        return source.pick(wider[:3])
    return source.pick((0, 0, 0, 0, 0, value_bits if value_bits >= 8 else 0, source.pick(wider or [0])))


def draw_layout(source: Source, element_type: str, dimensions: tuple[int, ...], movable: bool) -> ReferenceShape:
    """A shape of this type and these dimensions, with any layout."""
    rank = len(dimensions)
    shape = ReferenceShape(element_type, dimensions, draw_permutation(source, rank))
    if rank and one_in(source, 5):
        padded = tuple(size + source.pick((0, 0, 1, 2, 3)) for size in dimensions)
        shape = dataclasses.replace(shape, padded_dimensions=padded)
        if reference.slot_count(shape) > MOST_SLOTS:
            shape = dataclasses.replace(shape, padded_dimensions=dimensions)
    shape = dataclasses.replace(shape, tiles=draw_tiles(source, shape))
    values = ("zero", "zero", "one") if element_type in ("c64", "c128") else ("zero", "one", "lowest", "highest")
    return dataclasses.replace(
        shape,
        tail_alignment=source.pick((1, 1, 1, 1, 2, 3, 7, 16, 128)),
        element_size_in_bits=draw_element_size(source, element_type, movable),
        padding_value=source.pick(values) if one_in(source, 4) else "zero",
        splits=draw_splits(source, shape),
        bounded=tuple(d for d in range(rank) if one_in(source, 25)),
    )


def draw_window(source: Source, dimensions: Sequence[int]) -> tuple[slice | range | int, ...]:
    """A window by NumPy's rules: whole, slices with steps of either sign, ranges, integers; now and then empty."""
    entries: list[slice | range | int] = []
    for size in dimensions:
        kind = source.pick(("whole", "slice", "slice", "slice", "range", "integer"))
        step = source.pick((1, 1, 1, 2, 3, 5, 7, -1, -1, -2, -3))
        low = source.integer(0, max(size - 1, 0))
        high = source.integer(low, size)
        if kind == "whole" or size == 0:
            entries.append(slice(None))
        elif kind == "integer":
            entries.append(source.pick((low, low - size)))
        elif kind == "range":
            numbers = range(low, high, abs(step))
            entries.append(numbers if step > 0 else numbers[::-1])
        elif step > 0:
            entries.append(slice(source.pick((low, low - size)), high, step))
        else:
            entries.append(slice(high, source.pick((low, low - size, None)), step))
    return tuple(entries)


def draw_splits(source: Source, shape: ReferenceShape) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Now and then one dimension cut in two: carried, and without influence on any index."""
    sizes = [shape.dimensions[d] for d in reversed(shape.minor_to_major)]
    axes = [axis for axis, size in enumerate(sizes) if size > 1]
    if not axes or not one_in(source, 15):
        return ()
    axis = source.pick(axes)
    return ((axis, (source.integer(1, sizes[axis] - 1),)),)


def draw_shape(source: Source, movable: bool = True) -> ReferenceShape:
    """An array shape with any features. `movable`: its elements can be moved, not only counted."""
    element_type = source.pick(tuple(reference.VALUE_BITS))
    return draw_layout(source, element_type, draw_dimensions(source), movable)


def draw_pair(source: Source) -> tuple[ReferenceShape, ReferenceShape]:
    """Two layouts of one array."""
    first = draw_shape(source)
    return first, draw_layout(source, first.element_type, first.dimensions, True)


def random_shape(seed: int, movable: bool = True) -> ReferenceShape:
    return draw_shape(RandomSource(seed), movable)


def random_pair(seed: int) -> tuple[ReferenceShape, ReferenceShape]:
    return draw_pair(RandomSource(seed))


MEDIUM_ELEMENTS = 150_000
MEDIUM_DIMENSIONS = (1, 2, 3, 4, 7, 8, 12, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 200, 256, 300)
MEDIUM_TILES = (2, 3, 4, 5, 8, 8, 12, 16, 16, 32, 64, 128, 128)


def draw_medium_layout(
    source: Source, element_type: str, dimensions: tuple[int, ...], most_slots: int
) -> ReferenceShape:
    """A layout of an array that is large enough for every kernel: mostly tiles of the usual sizes."""
    rank = len(dimensions)
    shape = ReferenceShape(element_type, dimensions, draw_permutation(source, rank))
    if source.integer(0, 1):
        shape = dataclasses.replace(shape, minor_to_major=tuple(reversed(range(rank))))
    tiles: list[tuple[int | str, ...]] = []
    for _ in range(source.pick((0, 0, 1, 1, 1, 2, 2, 3))):
        length = source.integer(1, min(rank, 3)) if not tiles else source.pick((1, 2, 2, 2, 3, 4))
        tile = tuple(source.pick(MEDIUM_TILES if not tiles else (1, 1, 2, 2, 4, 8, 3)) for _ in range(length))
        if reference.slot_count(dataclasses.replace(shape, tiles=(*tiles, tile))) <= most_slots:
            tiles.append(tile)
    bits = reference.VALUE_BITS[element_type]
    size = bits if bits < 8 and source.integer(0, 1) else 0
    tail = source.pick((1, 1, 1, 64, 1000))
    return dataclasses.replace(shape, tiles=tuple(tiles), element_size_in_bits=size, tail_alignment=tail)


def medium_pair(seed: int, most_elements: int = MEDIUM_ELEMENTS) -> tuple[ReferenceShape, ReferenceShape]:
    """Two layouts of one array that is large enough for every kernel, and too large for the reference."""
    source = RandomSource(seed)
    element_type = source.pick(
        ("u8", "s8", "bf16", "f16", "f32", "f32", "f64", "c64", "c128", "u4", "u2", "u1", "pred")
    )
    dimensions: list[int] = []
    budget = most_elements
    for _ in range(source.integer(1, 5)):
        size = source.pick([size for size in MEDIUM_DIMENSIONS if size <= budget])
        budget //= size
        dimensions.append(size)
    if most_elements > MEDIUM_ELEMENTS and len(dimensions) > 1:
        dimensions[source.integer(0, len(dimensions) - 1)] *= max(budget, 1)
    array = element_type, tuple(dimensions)
    return (
        draw_medium_layout(source, *array, 8 * most_elements),
        draw_medium_layout(source, *array, 8 * most_elements),
    )


def array_shapes(movable: bool = True) -> Any:
    """Return a Hypothesis strategy: array shapes with every feature of a layout."""
    from hypothesis import strategies

    return strategies.composite(lambda draw: draw_shape(HypothesisSource(draw), movable))()


def shape_pairs() -> Any:
    """Return a Hypothesis strategy: two layouts of one array."""
    from hypothesis import strategies

    return strategies.composite(lambda draw: draw_pair(HypothesisSource(draw)))()


def factors(rng: random.Random, count: int) -> list[int]:
    """Return sizes whose product is `count`, at least 1, in a random order."""
    sizes = []
    while count > 1:
        sizes.append(rng.choice([size for size in range(2, count + 1) if count % size == 0]))
        count //= sizes[-1]
    sizes += [1] * (rng.random() < 0.3)
    rng.shuffle(sizes)
    return sizes
