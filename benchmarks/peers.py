"""The rivals: NumPy, torch, oneDNN and XLA, each doing a relayout case as its own users would.

Every rival gets the same source buffer and, where its interface takes one, an separate output buffer,
allocated and touched before. What a rival cannot do in one step, a padded copy for instance, is part of what
is timed. A rival that is not installed, or cannot express a case, is left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import touched_bytes
from benchmarks.onednn import onednn_rivals
from benchmarks.problems import Problem, Rival, in_order

Copy = Callable[[Any, Any], object]


def staged_rival(problem: Problem, wrap: Callable[[NDArray[Any]], Any], copy: Copy, library: Any) -> Rival:
    """Strided views and one copy between them; a copy into padding before and a cut after where needed."""
    output = problem.new_output()
    whole = tuple(slice(0, size) for size in problem.dimensions)
    copies: list[tuple[Any, Any]] = []
    stages: list[Callable[[], object]] = []
    source = problem.buffer
    if problem.packed_source:
        unpacked = touched_bytes(2 * len(source))
        stages += nibble_stages(wrap(source), wrap(unpacked), library)
        source = unpacked
    source = source.view(problem.dtype)
    if problem.pads:
        padded = problem.new_padded()
        target = in_order(padded, problem.padded, problem.source_order)[whole]
        copies.append((target, in_order(source, problem.dimensions, problem.source_order)))
        source = padded
    moved = problem.new_padded() if problem.crops else output
    given, made = problem.views(source, moved)
    copies.append((made, given))
    if problem.crops:
        cut = in_order(moved, problem.padded, problem.destination_order)[whole]
        copies.append((in_order(output, problem.dimensions, problem.destination_order), cut))
    stages += [partial(copy, wrap(to), wrap(what)) for to, what in copies]
    return Rival(lambda: [stage() for stage in stages], lambda: output)


def nibble_stages(packed: Any, unpacked: Any, library: Any) -> list[Callable[[], object]]:
    """Two bytes out of one, the low half first."""
    pairs = unpacked.reshape(-1, 2)
    shift = getattr(library, "bitwise_right_shift", None) or library.right_shift
    return [
        lambda: library.bitwise_and(packed, 15, out=pairs[:, 0]),
        lambda: shift(packed, 4, out=pairs[:, 1]),
    ]


def numpy_rival(problem: Problem) -> Rival:
    return staged_rival(problem, lambda array: array, np.copyto, np)


def torch_rival(problem: Problem) -> Rival | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return staged_rival(problem, torch.from_numpy, lambda to, what: to.copy_(what), torch)


# XLA


def xla_rivals(problem: Problem) -> dict[str, Rival]:
    """`jax.device_put` of a strided array, and a compiled relayout; both allocate their output."""
    if importlib.util.find_spec("jax") is None or problem.packed_source:
        return {}
    import jax

    jax.config.update("jax_enable_x64", True)
    cpu = jax.devices("cpu")[0]
    found: dict[str, Rival] = {}
    if not (problem.pads or problem.crops):
        view = problem.views(problem.buffer.view(problem.dtype), problem.new_output())[0]
        found["XLA device_put"] = jax_rival(lambda: jax.device_put(view, cpu))
    moved = jax.jit(lambda flat: by_jax(problem, flat))
    flat = jax.device_put(problem.buffer.view(problem.dtype), cpu)
    found["XLA jit"] = jax_rival(lambda: moved(flat))
    return found


def jax_rival(call: Callable[[], Any]) -> Rival:
    latest: list[Any] = [None]

    def run() -> None:
        latest[0] = None
        latest[0] = call().block_until_ready()

    return Rival(run, lambda: np.asarray(latest[0]).ravel())


def by_jax(problem: Problem, flat: Any) -> Any:
    """The definition of the two layouts in XLA operations."""
    import jax.numpy as jnp

    order = problem.source_order
    tiles = [tuple(tile) for tile in problem.source.layout.tiles]
    array = jax_untile(flat, [problem.dimensions[d] for d in order], tiles)
    array = jnp.transpose(array, np.argsort(order).tolist())
    array = jnp.transpose(array, problem.destination_order)
    for tile in problem.destination.layout.tiles:
        first = array.ndim - len(tile)
        array = jnp.pad(array, [(0, 0)] * first + padding(array.shape[first:], tile))
        array = jnp.transpose(array.reshape(split_sizes(array.shape, tile)), tile_order(array.ndim, len(tile)))
    return array.ravel()


def padding(sizes: tuple[int, ...], tile: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(0, -size % tile_size) for size, tile_size in zip(sizes, tile, strict=True)]


def split_sizes(sizes: tuple[int, ...], tile: tuple[int, ...]) -> list[int]:
    first = len(sizes) - len(tile)
    split = [part for size, t in zip(sizes[first:], tile, strict=True) for part in (size // t, t)]
    return [*sizes[:first], *split]


def tile_order(rank: int, tile_rank: int) -> list[int]:
    first = rank - tile_rank
    return [
        *range(first),
        *(first + 2 * axis for axis in range(tile_rank)),
        *(first + 2 * axis + 1 for axis in range(tile_rank)),
    ]


def jax_untile(flat: Any, sizes: list[int], tiles: list[tuple[int, ...]]) -> Any:
    """The inverse of the tiles: from the flat buffer back to the array, padding cut off."""
    before = [list(sizes)]
    for tile in tiles:
        last = before[-1]
        first = len(last) - len(tile)
        counts = [-(-size // t) for size, t in zip(last[first:], tile, strict=True)]
        before.append([*last[:first], *counts, *tile])
    array = flat.reshape(before[-1])
    for tile, sizes_before in zip(reversed(tiles), reversed(before[:-1]), strict=True):
        rank = len(sizes_before)
        array = array.transpose(np.argsort(tile_order(rank, len(tile))).tolist())
        first = rank - len(tile)
        merged = list(array.shape[:first])
        merged += [array.shape[axis] * array.shape[axis + 1] for axis in range(first, array.ndim, 2)]
        array = array.reshape(merged)[tuple(slice(0, size) for size in sizes_before)]
    return array


# All of them


def rivals(source: str, destination: str, buffer: NDArray[np.uint8]) -> dict[str, Rival]:
    """Every installed rival that can do the case, by name."""
    problem = Problem(source, destination, buffer)
    found: dict[str, Rival | None] = {"NumPy": numpy_rival(problem), "torch": torch_rival(problem)}
    found |= onednn_rivals(problem)
    found |= xla_rivals(problem)
    return {name: rival for name, rival in found.items() if rival is not None}
