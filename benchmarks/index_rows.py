"""Measure index conversion in bulk beside NumPy: its own functions, or the same arithmetic as expressions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastindex as fi
from benchmarks.cases import EXPRESSION_TARGETS, INDEX_CASES, INDEX_TARGETS, NUMPY_TARGETS, IndexCase
from benchmarks.measure import Run, medians

Indices = tuple[NDArray[np.int64], ...]
Axes = list[tuple[Any, int]]


def random_indices(shape: Any, count: int) -> Indices:
    generator = np.random.default_rng(0)
    return tuple(generator.integers(0, size, count) for size in shape.dimensions)


def merged(axes: Axes, tile: tuple[int, ...]) -> tuple[Axes, list[int]]:
    """The axes that a tile reaches, each `*` merged with the next more minor one, and the sizes left."""
    result: Axes = []
    coordinate, size = None, 1
    for (axis_coordinate, axis_size), tile_size in zip(axes, tile, strict=True):
        whole = axis_coordinate if coordinate is None else coordinate * axis_size + axis_coordinate
        size *= axis_size
        if tile_size == fi.Layout.COMBINE:
            coordinate = whole
            continue
        result.append((whole, size))
        coordinate, size = None, 1
    return result, [tile_size for tile_size in tile if tile_size != fi.Layout.COMBINE]


def numpy_linear_index(shape: Any, indices: Indices) -> NDArray[np.int64]:
    """The definition of the layout as NumPy expressions."""
    axes: Axes = [(indices[d], shape.dimensions[d]) for d in reversed(shape.layout.minor_to_major)]
    for tile in shape.layout.tiles:
        first = len(axes) - len(tile)
        reached, sizes = merged(axes[first:], tile)
        counts = [(c // t, -(-n // t)) for (c, n), t in zip(reached, sizes, strict=True)]
        axes = axes[:first] + counts + [(c % t, t) for (c, _), t in zip(reached, sizes, strict=True)]
    slots = axes[0][0]
    for coordinate, size in axes[1:]:
        slots = slots * size + coordinate
    return np.asarray(slots)


def numpy_multi_index(shape: Any, slots: NDArray[np.int64]) -> Indices:
    """The inverse as NumPy expressions."""
    sizes = [shape.dimensions[d] for d in reversed(shape.layout.minor_to_major)]
    levels: list[tuple[list[int], tuple[int, ...]]] = []
    for tile in shape.layout.tiles:
        levels.append((sizes, tile))
        first = len(sizes) - len(tile)
        reached, tile_sizes = merged([(0, size) for size in sizes[first:]], tile)
        counts = [-(-n // t) for (_, n), t in zip(reached, tile_sizes, strict=True)]
        sizes = [*sizes[:first], *counts, *tile_sizes]
    coordinates = split(slots, sizes)
    for sizes, tile in reversed(levels):
        first = len(sizes) - len(tile)
        tile_sizes = [size for size in tile if size != fi.Layout.COMBINE]
        counts = coordinates[first : first + len(tile_sizes)]
        offsets = coordinates[first + len(tile_sizes) :]
        wholes = [c * t + o for c, t, o in zip(counts, tile_sizes, offsets, strict=True)]
        coordinates = coordinates[:first] + unmerged(wholes, sizes[first:], tile)
    result: list[Any] = [None] * shape.rank
    for coordinate, dimension in zip(coordinates, reversed(shape.layout.minor_to_major), strict=True):
        result[dimension] = coordinate
    return tuple(result)


def split(whole: Any, sizes: list[int]) -> list[Any]:
    """One number into coordinates, the last fastest."""
    coordinates = []
    for size in reversed(sizes[1:]):
        whole, coordinate = np.divmod(whole, size)
        coordinates.append(coordinate)
    return [whole, *reversed(coordinates)]


def unmerged(wholes: list[Any], sizes: list[int], tile: tuple[int, ...]) -> list[Any]:
    result: list[Any] = []
    group: list[int] = []
    remaining = iter(wholes)
    for size, tile_size in zip(sizes, tile, strict=True):
        group.append(size)
        if tile_size != fi.Layout.COMBINE:
            result += split(next(remaining), group)
            group = []
    return result


def touched_nbytes(shape: Any, count: int) -> int:
    """One int64 for each coordinate and one for the slot."""
    return 8 * count * (int(shape.rank) + 1)


def prepared(case: IndexCase, count: int, threads: int) -> dict[str, dict[str, Run]]:
    """For each function: fastindex and its rivals on the same random indices, results equal."""
    shape = fi.Shape.parse(case.shape)
    indices = random_indices(shape, count)
    slots = numpy_linear_index(shape, indices)
    out = np.zeros(count, np.int64)
    outs = tuple(np.zeros(count, np.int64) for _ in indices)
    fi.linear_index(shape, indices, out=out, threads=threads)
    fi.multi_index(shape, slots, out=outs, threads=threads)
    back = numpy_multi_index(shape, slots)
    if not (np.array_equal(out, slots) and all(map(np.array_equal, outs, indices))):
        raise AssertionError(f"fastindex gives a wrong result for {case.shape}")
    if not all(map(np.array_equal, back, indices)):
        raise AssertionError(f"NumPy's expressions are wrong for {case.shape}")
    runs: dict[str, dict[str, Run]] = {
        "linear_index": {
            "fastindex": lambda: fi.linear_index(shape, indices, out=out, threads=threads),
            "NumPy expressions": lambda: numpy_linear_index(shape, indices),
        },
        "multi_index": {
            "fastindex": lambda: fi.multi_index(shape, slots, out=outs, threads=threads),
            "NumPy expressions": lambda: numpy_multi_index(shape, slots),
        },
    }
    if not shape.layout.tiles:
        sizes = shape.dimensions
        runs["linear_index"]["NumPy"] = lambda: np.ravel_multi_index(indices, sizes)
        runs["multi_index"]["NumPy"] = lambda: np.unravel_index(slots, sizes)
    return runs


def row(
    case: IndexCase,
    function: str,
    runs: dict[str, Run],
    nbytes: int,
    threads: int,
    rounds: int,
    ceiling: dict[str, Run],
    ceiling_nbytes: int,
) -> dict[str, Any]:
    seconds = medians({**runs, **ceiling}, rounds)
    speeds = {name: nbytes / seconds[name] / 1e9 for name in runs}
    copy_speed = max(2 * ceiling_nbytes / seconds[name] / 1e9 for name in ceiling)
    peers = {name: speed for name, speed in speeds.items() if name != "fastindex"}
    best = max(peers, key=peers.__getitem__)
    own_name = {"linear_index": "ravel_multi_index", "multi_index": "unravel_index"}[function]
    rival, targets = ("NumPy", NUMPY_TARGETS[own_name])
    if "NumPy" not in speeds:
        rival, targets = "NumPy expressions", EXPRESSION_TARGETS[function]
    return {
        "case": case.name,
        "shape": case.shape,
        "function": function,
        "threads": threads,
        "gigabytes_per_second": speeds,
        "copy_ceiling": copy_speed,
        "fraction_of_copy": speeds["fastindex"] / copy_speed,
        "target": INDEX_TARGETS[function],
        "best_peer": best,
        "ratio_to_best_peer": speeds["fastindex"] / peers[best],
        "ratio_to_numpy": speeds["fastindex"] / speeds[rival],
        "numpy_target": targets.get(threads),
    }


def index_rows(
    count: int, threads: int, rounds: int, ceiling: dict[str, Run], ceiling_nbytes: int
) -> Iterator[dict[str, Any]]:
    """Two rows for each case: to slots and back."""
    for case in INDEX_CASES:
        nbytes = touched_nbytes(fi.Shape.parse(case.shape), count)
        for function, runs in prepared(case, count, threads).items():
            yield row(case, function, runs, nbytes, threads, rounds, ceiling, ceiling_nbytes)


def drop_in_runs(count: int) -> dict[str, dict[str, Run]]:
    """NumPy's two functions and ours under the same names, on the same random indices; results equal.

    Coordinates come as separate arrays, and side by side in memory as NumPy's `unravel_index` gives them.
    """
    dimensions = (250, 300, 400)
    generator = np.random.default_rng(0)
    slots = generator.integers(0, math.prod(dimensions), count)
    together = np.unravel_index(slots, dimensions)
    apart = tuple(np.ascontiguousarray(numbers) for numbers in together)
    inputs = {
        "ravel_multi_index": ("ravel_multi_index", (apart, dimensions)),
        "ravel_multi_index, coordinates side by side": ("ravel_multi_index", (together, dimensions)),
        "unravel_index": ("unravel_index", (slots, dimensions)),
    }
    runs: dict[str, dict[str, Run]] = {}
    for name, (function, arguments) in inputs.items():
        ours, numpys = (partial(getattr(library, function), *arguments) for library in (fi.numpy, np))
        if not np.array_equal(np.stack(np.atleast_1d(ours())), np.stack(np.atleast_1d(numpys()))):
            raise AssertionError(f"{name} differs from NumPy's")
        runs[name] = {"fastindex": ours, "NumPy": numpys}
    return runs


def drop_in_rows(count: int, threads: int, rounds: int) -> Iterator[dict[str, Any]]:
    """One row for each of `drop_in_runs`; ours use the default number of threads, and all allocate their results."""
    for name, runs in drop_in_runs(count).items():
        seconds = medians(runs, rounds)
        yield {
            "function": name,
            "threads": threads,
            "ratio_to_numpy": seconds["NumPy"] / seconds["fastindex"],
            "numpy_target": NUMPY_TARGETS[name.partition(",")[0]].get(threads),
        }
