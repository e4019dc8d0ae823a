"""Copy pages on the GPU: the same loops at many pairs of offsets, in one launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.forms import NARROW, division
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, grouped, in_bytes
from fastindex.cuda.arrays import DeviceArray, new_device_array
from fastindex.cuda.kernels.memory import WIDTHS
from fastindex.cuda.kernels.units import page_kernel
from fastindex.cuda.launches.records import table_numbers
from fastindex.cuda.movements import Movement
from fastindex.cuda.queues import Queue, Tables, queue_for
from fastindex.errors import UnsupportedError


def copy_pages(
    nests: Sequence[Nest],
    pages: NDArray[np.int64],
    addresses: tuple[int, int],
    arrays: Sequence[DeviceArray],
) -> None:
    """Copy pages; nests with the same loops share a launch.

    Parameters
    ----------
    nests : sequence of Nest
        The loops over the bytes of a page.
    pages : int64 array of (n, 2)
        Source and target offset of each page.
    addresses : (int, int)
        Source and target.
    arrays : sequence of DeviceArray
        The memory of both.
    """
    starts: dict[tuple[Loop, ...], list[tuple[int, int]]] = {}
    for nest in nests:
        starts.setdefault(nest.loops, []).append((nest.source_start, nest.destination_start))
    with queue_for(None, arrays) as queue:
        for loops, of_loops in starts.items():
            places = (np.array(of_loops, np.int64)[:, None] + pages).reshape(-1, 2)
            _launch(loops, places, addresses, arrays, queue)


def fill_with_zeros(nests: Sequence[Nest], address: int, arrays: Sequence[DeviceArray]) -> None:
    """Write zeros along loops over the bytes of the target."""
    with queue_for(None, arrays) as queue:
        target = replace(arrays[-1], address=address)
        Movement(RelayoutLoops((), tuple(nests)), 1).run(target, target, bytes(1), queue)


def new_memory(like: DeviceArray, shape: tuple[int, ...], dtype: Any) -> tuple[Any, DeviceArray]:
    """Return an uninitialised array of the library of `like`, and its description."""
    with queue_for(None, [like]) as queue:
        return new_device_array(like, shape, dtype, queue.handle)


def _launch(
    loops: tuple[Loop, ...],
    places: NDArray[np.int64],
    addresses: tuple[int, int],
    arrays: Sequence[DeviceArray],
    queue: Queue,
) -> None:
    aligned = math.gcd(*addresses, int(np.gcd.reduce(places, axis=None)))
    nest, width = _in_units(Nest(loops), aligned)
    steps = sorted(in_bytes(nest, width).loops, key=lambda loop: abs(loop.destination_stride))
    numbers = table_numbers(steps)
    table = Tables().place(None, np.concatenate([numbers, places.reshape(-1)]), queue)
    units = nest.element_count
    kernel = page_kernel()
    each = kernel.blocks(units)
    if max(units, len(places) * each) >= NARROW:
        raise UnsupportedError(
            f"{len(places)} pages of {units} units of {width} bytes are more than a launch takes; copy fewer at once"
        )
    constants = division(each, NARROW - 1)
    others = units, len(steps), WIDTHS.index(width), table.address + numbers.nbytes, each
    sides = addresses[1], addresses[0], table.address
    queue.launch(kernel, len(places) * each * kernel.units, *sides, *others, constants.magic, constants.shift)


def _in_units(nest: Nest, aligned: int) -> tuple[Nest, int]:
    """Return loops over the largest unit that all addresses are multiples of, and the bytes of the unit."""
    for width in (16, 8, 4, 2):
        found = grouped(RelayoutLoops((nest,), ()), width) if aligned % width == 0 else None
        if found is not None:
            return found.copies[0], width
    return nest, 1
