"""The package as `tests.oracles.comparison` takes it, with Dask arrays of random chunks in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import fastindex as fi

Compute = Callable[..., tuple[Any, ...]]


def random_chunks(source: random.Random, dimensions: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Cut each dimension at random places; now and then not at all, or into single elements."""
    chunks = []
    for size in dimensions:
        kind = source.choice(("whole", "random", "random", "even", "single"))
        if size < 2 or kind == "whole":
            chunks.append((size,))
        elif kind == "single":
            chunks.append((1,) * size if size < 40 else (size // 2, size - size // 2))
        elif kind == "even":
            step = source.randint(1, size)
            chunks.append((*(step for _ in range(size // step)), *((size % step,) if size % step else ())))
        else:
            edges = sorted(source.sample(range(1, size), source.randint(1, min(size - 1, 6))))
            chunks.append(tuple(b - a for a, b in zip([0, *edges], [*edges, size], strict=True)))
    return tuple(chunks)


class Chunked:
    """`fastindex` whose functions cut what they are given into random chunks, and compute what comes back."""

    Shape = fi.Shape

    def __init__(self, seed: int, compute: Compute) -> None:
        self._random = random.Random(seed)
        self._compute = compute

    def _lazy(self, values: Any) -> Any:
        import dask.array as da

        array = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else np.asarray(values)
        return da.from_array(array, chunks=random_chunks(self._random, array.shape))

    def _computed(self, lazy: Any) -> Any:
        import dask.array as da

        assert isinstance(lazy, da.Array)
        (found,) = self._compute(lazy)
        assert (found.shape, found.dtype) == (lazy.shape, lazy.dtype)
        assert type(lazy._meta) is np.ndarray
        assert all(type(size) is int for sizes in lazy.chunks for size in sizes)
        return found

    def pack(self, array: Any, text: str, **options: Any) -> Any:
        return self._computed(fi.pack(self._lazy(array), text, **options))

    def unpack(self, buffer: Any, text: str, **options: Any) -> Any:
        return self._computed(fi.unpack(self._lazy(buffer), text, **options))

    def relayout(self, buffer: Any, source: str, destination: str, **options: Any) -> Any:
        return self._computed(fi.relayout(self._lazy(buffer), source, destination, **options))

    def linear_index(self, text: str, coordinates: Sequence[Any], **options: Any) -> Any:
        if not coordinates:
            return fi.linear_index(text, (), **options)
        return self._computed(fi.linear_index(text, tuple(map(self._lazy, coordinates)), **options))

    def multi_index(self, text: str, slots: Any, **options: Any) -> Any:
        return tuple(map(self._computed, fi.multi_index(text, self._lazy(slots), **options)))

    def convert_index(self, source: str, destination: str, slots: Any, **options: Any) -> Any:
        return self._computed(fi.convert_index(source, destination, self._lazy(slots), **options))
