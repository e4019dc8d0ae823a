"""Rearrangements by NumPy's pad, reshape and transpose, and random cases; nothing of the package is imported."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Groups = list[list[str]]


@dataclass
class Case:
    """A pattern, the sizes of all its axes, and the dimensions that it is for."""

    source: Groups
    destination: Groups
    axes: dict[str, int]
    dimensions: tuple[int, ...]
    pad: bool
    fill: int
    dtype: str
    sizes: dict[str, int]
    backwards: frozenset[str] = frozenset()

    @property
    def pattern(self) -> str:
        turned = [[f"-{name}" if name in self.backwards else name for name in group] for group in self.destination]
        return " -> ".join(
            " ".join(group[0] if len(group) == 1 else f"({' '.join(group)})" for group in side)
            for side in (self.source, turned)
        )

    @property
    def merged(self) -> tuple[int, ...]:
        """The dimensions of the result."""
        return tuple(math.prod(self.axes[name] for name in group) for group in self.destination)

    def array(self) -> NDArray[Any]:
        count = math.prod(self.dimensions)
        return (np.arange(count) * 7 + 1).astype(self.dtype).reshape(self.dimensions)


def random_case(rng: random.Random, most: int = 20000, backwards: bool = False) -> Case:
    """Split, merge and permute, up to `most` elements; also pad, or reverse some axes."""
    names = [f"a{i}" for i in range(rng.randint(1, 6))]
    axes = {name: rng.choice((1, 2, 2, 3, 4, 5, 7, 8, 16, 33)) for name in names}
    while math.prod(axes.values()) > most:
        axes[rng.choice(names)] = rng.choice((1, 2))
    source = _grouped(rng, names)
    destination = _grouped(rng, rng.sample(names, len(names)))
    pad = rng.random() < 0.5 and not backwards
    dimensions = []
    for group in source:
        whole = math.prod(axes[name] for name in group)
        inner = whole // axes[group[0]] if group else 1
        dimensions.append(rng.randint(whole - inner + 1, whole) if pad and len(group) > 1 else whole)
    sizes = {name: axes[name] for group in source for name in group[1:]}
    return Case(
        source,
        destination,
        axes,
        tuple(dimensions),
        pad,
        rng.randint(0, 100),
        rng.choice(("u1", "i2", "f4", "i8")),
        sizes,
        frozenset(name for name in names if backwards and rng.random() < 0.5),
    )


def _grouped(rng: random.Random, names: list[str]) -> Groups:
    groups: Groups = []
    for name in names:
        if groups and rng.random() < 0.4:
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def by_numpy(array: NDArray[Any], case: Case) -> NDArray[Any]:
    """Pad, split, reverse, transpose, merge."""
    whole = [math.prod(case.axes[name] for name in group) for group in case.source]
    room = [(0, more - size) for more, size in zip(whole, array.shape, strict=True)]
    padded = np.pad(array, room, constant_values=case.fill if case.pad else 0)
    before = [name for group in case.source for name in group]
    after = [name for group in case.destination for name in group]
    split = padded.reshape([case.axes[name] for name in before])
    split = split[tuple(slice(None, None, -1 if name in case.backwards else 1) for name in before)]
    return split.transpose([before.index(name) for name in after]).reshape(case.merged)
