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

_LINE = re.compile(r"\s*(?:ROOT )?%?([\w.\-]+) = (\S+) ([a-z\-]+)\(%?([\w.\-]*)")


def moved(a: fi.Shape, b: fi.Shape) -> np.ndarray | None:
    """Number the elements of `a`, apply the steps, and return the number at each element of `b`; -1 for padding."""
    found = xla.bitcast_sequence(a, b)
    if found is None:
        return None
    numbers = np.arange(a.element_count).reshape(a.dimensions)
    room = [(0, more - size) for size, more in zip(a.dimensions, found.padded_dimensions, strict=False)]
    padded = np.pad(numbers, room, constant_values=-1) if a.rank else np.pad(numbers.reshape(1), (0, 0))
    split = padded.reshape(found.split_dimensions).transpose(found.permutation)
    joined = split.reshape(found.joined_dimensions)
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
        result = moved(a, b)
        if result is None:
            continue
        wanted = expected(a, b)
        assert result.reshape(-1).tolist() == wanted.reshape(-1).tolist(), (str(a), str(b))
        # The one with fewer elements has none in padding of the other.
        assert len(set(wanted.ravel().tolist()) - {-1}) == min(a.element_count, b.element_count)
        found += 1
    assert found


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("f32[8,3]{1,0:T(8,128)}", "f32[3,8]{1,0:T(8,128)}"),
        ("f32[8,128]", "f32[8,64]"),
        ("f32[8,128]", "bf16[8,128]"),
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
    """All but three of 300, two of which lead to an elementwise operation and back, through buffers without padding.

    There the rows of tiles of one shape are split unevenly among those of the other; such a bitcast is no sequence of a
    transpose between two reshapes.
    """
    for a, b, is_fused in bitcasts(text_of(path)):
        if xla.bitcast_sequence(a, b) is None:
            before, after = fi.Shape.parse(a), fi.Shape.parse(b)
            assert before.element_count == after.element_count
            assert is_fused or before.slot_count == before.element_count == after.slot_count
            assert path.name.startswith("kernel_call")


def test_there_are_many_bitcasts_in_them() -> None:
    assert sum(len(bitcasts(text_of(path))) for path in [*COPIES, *OTHERS]) == 300


@pytest.mark.parametrize("path", OTHERS, ids=name_of)
def test_those_of_the_older_modules_decompose_as_in_xla(path: Path) -> None:
    for a, b, _ in bitcasts(text_of(path)):
        assert xla.is_reshape_or_transpose_bitcast(a, b) or xla.decompose_bitcast(a, b) is not None, (a, b)
