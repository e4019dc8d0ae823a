"""Bitcasts as steps: what they do to numbered elements, against the slots of the reference; and real modules."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from fastindex import xla
from tests.cases.strategies import seeds
from tests.hlo.copies.recorded import COPIES, OTHERS, name_of, text_of
from tests.oracles import reference

#: Elements of a shape whose every element is looked at.
MOST_NUMBERED = 4096
_LINE = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (\S+) ([a-z\-]+)\(%?([\w.\-]*)")


def moved(a: fi.Shape, b: fi.Shape) -> np.ndarray | None:
    """Number the elements of `a`, apply the steps, and return the number at each element of `b`; -1 for padding."""
    found = xla.bitcast_sequence(a, b)
    if found is None:
        return None
    sizes = a.dimensions or (1,)
    room = [(0, more - size) for size, more in zip(sizes, found.padded_dimensions, strict=True)]
    padded = np.pad(np.arange(a.element_count).reshape(sizes), room, constant_values=-1)
    split = padded.reshape(found.split_dimensions).transpose(found.permutation)
    regrouped = split.reshape(found.regrouped_dimensions).transpose(found.second_permutation)
    joined = regrouped.reshape(found.joined_dimensions)
    assert found.dimensions == b.dimensions
    return joined[tuple(slice(size) for size in b.dimensions)] if b.rank else joined.ravel()[:1]


def expected(a: fi.Shape, b: fi.Shape) -> np.ndarray:
    """The number of the element of `a` in the slot of each element of `b`; -1 where that is padding."""
    at = {slot: number for number, slot in enumerate(slots(a))}
    return np.array([at.get(slot, -1) for slot in slots(b)]).reshape(b.dimensions)


def slots(shape: fi.Shape) -> list[int]:
    parsed = reference.parse(str(shape))
    linear = reference.linear_indices(parsed)
    return [linear[index] for index in reference.every_index(parsed.dimensions)]


def random_tiled(rng: random.Random) -> fi.Shape:
    sizes = [rng.choice((1, 2, 3, 4, 5, 6, 8, 12, 16)) for _ in range(rng.choice((1, 2, 2, 3)))]
    order = rng.sample(range(len(sizes)), len(sizes))
    tiles = rng.choice(("", ":T(4)", ":T(2,4)", ":T(4,4)(2,1)", ":T(8)", ":T(2,4)"))
    return fi.Shape.parse(f"f32{str(sizes).replace(' ', '')}{{{','.join(map(str, order))}{tiles}}}")


def test_the_steps_move_every_element_as_the_layouts_say() -> None:
    found = 0
    shapes = [random_tiled(random.Random(seed)) for seed in range(400)]
    for seed in seeds(400):
        rng = random.Random(seed)
        a = rng.choice(shapes)
        b = rng.choice([shape for shape in shapes if shape.slot_count == a.slot_count])
        result, wanted = moved(a, b), expected(a, b)
        # The one with fewer elements has none in padding of the other.
        lies_within = len(set(wanted.ravel().tolist()) - {-1}) == min(a.element_count, b.element_count)
        # A tile with more dimensions than the array puts padding between the digits of its dimension.
        if result is None:
            assert not lies_within or 1 in (a.rank, b.rank), (str(a), str(b))
            continue
        assert lies_within, (str(a), str(b))
        assert result.reshape(-1).tolist() == wanted.reshape(-1).tolist(), (str(a), str(b))
        found += 1
    assert found


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("f32[8,3]{1,0:T(8,128)}", "f32[3,8]{1,0:T(8,128)}"),
        ("f32[8,128]", "f32[8,64]"),
        ("f32[8,128]", "bf16[8,128]"),
        ("f32[0,5]", "f32[7,0]{1,0:T(*,2)}"),
    ],
)
def test_what_is_no_bitcast(a: str, b: str) -> None:
    assert xla.bitcast_sequence(a, b) is None


def bitcasts(text: str) -> list[tuple[str, str, bool]]:
    """Return the bitcasts of a module: from, to, and whether inside a fusion."""
    fused = set(re.findall(r" fusion\(.*?calls=%?([\w.\-]+)", text))
    found, shapes, name = [], {}, ""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            shapes, name = {}, line.removeprefix("ENTRY ").lstrip("%").split(" ")[0]
        match = _LINE.match(line)
        if match:
            shapes[match[1]] = match[2]
            if match[3] == "bitcast":
                found.append((shapes[match[4]], match[2], name in fused))
    return found


@pytest.mark.parametrize("path", [*COPIES, *OTHERS], ids=name_of)
def test_bitcasts_of_real_modules_are_recognised(path: Path) -> None:
    """Every one, inside fusions too, and what becomes of the numbered elements of the small ones."""
    for a, b, _ in dict.fromkeys(bitcasts(text_of(path))):
        before, after = fi.Shape.parse(a), fi.Shape.parse(b)
        assert xla.bitcast_sequence(before, after) is not None, (a, b)
        if before.element_count <= MOST_NUMBERED and after.element_count <= MOST_NUMBERED:
            result = moved(before, after)
            assert result is not None
            assert np.array_equal(result.ravel(), expected(before, after).ravel()), (a, b)


def test_there_are_many_bitcasts_in_them() -> None:
    assert sum(len(bitcasts(text_of(path))) for path in [*COPIES, *OTHERS]) == 472


@pytest.mark.parametrize("path", OTHERS, ids=name_of)
def test_those_of_the_older_modules_decompose_as_in_xla(path: Path) -> None:
    for a, b, _ in bitcasts(text_of(path)):
        assert xla.is_reshape_or_transpose_bitcast(a, b) or xla.decompose_bitcast(a, b) is not None, (a, b)
