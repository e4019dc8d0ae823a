"""Measure relayout cases beside every rival and beside the copy ceiling; every result is checked first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastindex as fi
from benchmarks.cases import RELAYOUT_CASES, RelayoutCase
from benchmarks.measure import Run, medians, random_bytes, touched_bytes
from benchmarks.peers import rivals
from benchmarks.problems import Rival

#: Source bytes of the sweep over sizes.
SWEEP_BYTES = (1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 24)
#: More than NumPy answers.
LOADING_BYTES = 1 << 24
#: Cases of that sweep, by name.
SWEEP_CASES = (
    "f32 4096x4096 transpose",
    "u8 8192x8192 transpose",
    "f32 NCHW to NHWC",
    "f32 64^4 reversal",
    "f32 to T(8,128)",
    "bf16 from T(8,128)(2,1)",
)


def source_buffer(text: str) -> NDArray[np.uint8]:
    """A buffer of random elements, zero where the shape pads."""
    shape = fi.Shape.parse(text)
    if shape.element_bits < 8:
        return random_bytes(shape.nbytes)
    array = random_bytes(shape.element_count * shape.element_type.nbytes)
    if shape.element_type.nbytes > 1:
        # Neither NaNs nor denormal numbers: oneDNN changes the bits of these.
        array.view(np.uint16)[...] &= 0xBFFF
        array.view(np.uint16)[...] |= 0x0080
    if shape.slot_count == shape.element_count:
        return array
    buffer = touched_bytes(shape.nbytes)
    dtype = shape.element_type.numpy_dtype
    fi.pack(array.view(dtype).reshape(shape.dimensions), shape, out=buffer.view(dtype))
    return buffer


def ours(source: str, destination: str, buffer: NDArray[np.uint8], threads: int) -> Rival:
    """The plan's call, with its output allocated and touched before."""
    plan = fi.plan_relayout(source, destination)
    shapes = fi.Shape.parse(source), fi.Shape.parse(destination)
    given, output = buffer, touched_bytes(shapes[1].nbytes)
    if shapes[0].element_bits >= 8:
        given = buffer.view(shapes[0].element_type.numpy_dtype)
    if shapes[1].element_bits >= 8:
        output = output.view(shapes[1].element_type.numpy_dtype)
    return Rival(lambda: plan(given, out=output, threads=threads), lambda: output)


def moved_bytes(source: str, destination: str) -> int:
    """Bytes read and written: the elements of the source, and the destination with its padding."""
    return int(fi.Shape.parse(source).logical_nbytes + fi.Shape.parse(destination).nbytes)


def prepared(source: str, destination: str, threads: int) -> dict[str, Rival]:
    """fastindex and every rival on the same random buffer, all results equal to NumPy's."""
    buffer = source_buffer(source)
    found = {"fastindex": ours(source, destination, buffer, threads), **rivals(source, destination, buffer)}
    for rival in found.values():
        rival.run()
    expected = as_bytes(found["NumPy"].result())
    for name, rival in found.items():
        if not np.array_equal(as_bytes(rival.result()), expected):
            raise AssertionError(f"{name} gives a wrong result for {source} to {destination}")
    return found


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def row(
    source: str, destination: str, threads: int, rounds: int, ceiling: dict[str, Run], ceiling_nbytes: int
) -> dict[str, Any]:
    """Measure one pair of shapes: gigabytes per second of all, the ceiling in the same rounds."""
    runs: dict[str, Run] = {name: rival.run for name, rival in prepared(source, destination, threads).items()}
    seconds = medians({**runs, **ceiling}, rounds)
    nbytes = moved_bytes(source, destination)
    speeds = {name: nbytes / seconds[name] / 1e9 for name in runs}
    copy_speed = max(2 * ceiling_nbytes / seconds[name] / 1e9 for name in ceiling)
    peers = {name: speed for name, speed in speeds.items() if name != "fastindex"}
    best = max(peers, key=peers.__getitem__)
    return {
        "source": source,
        "destination": destination,
        "threads": threads,
        "nbytes": nbytes,
        "gigabytes_per_second": speeds,
        "copy_ceiling": copy_speed,
        "fraction_of_copy": speeds["fastindex"] / copy_speed,
        "best_peer": best,
        "ratio_to_best_peer": speeds["fastindex"] / peers[best],
        "plan": fi.plan_relayout(source, destination).describe(),
    }


def case_rows(
    cases: tuple[RelayoutCase, ...],
    sizes: tuple[str, ...],
    threads: int,
    rounds: int,
    ceiling: dict[str, Run],
    ceiling_nbytes: int,
) -> Iterator[dict[str, Any]]:
    """One row for each case and size, with its target."""
    for case in cases:
        for size in sizes:
            measured = row(case.source(size), case.destination(size), threads, rounds, ceiling, ceiling_nbytes)
            yield {"case": case.name, "size": size, "target": case.target, **measured}


def sweep_rows(
    cases: tuple[RelayoutCase, ...],
    threads: int,
    rounds: int,
    ceiling: dict[str, Run],
    ceiling_nbytes: int,
) -> Iterator[dict[str, Any]]:
    """The same cases from 4 KiB up: a library must not be slow on small arrays."""
    # Until something large has loaded the kernels, NumPy answers what is small.
    fi.relayout(touched_bytes(LOADING_BYTES), f"u8[{LOADING_BYTES}]", f"u8[{LOADING_BYTES}]", threads=threads)
    for case in cases:
        if case.name not in SWEEP_CASES:
            continue
        itemsize = fi.Shape.parse(case.source()).element_type.nbytes
        for nbytes in SWEEP_BYTES:
            source, destination = case.scaled(nbytes // itemsize)
            measured = row(source, destination, threads, rounds, ceiling, ceiling_nbytes)
            yield {"case": case.name, "size": f"{nbytes >> 10} KiB", **measured}


def named(part: str) -> tuple[RelayoutCase, ...]:
    """The cases whose name contains `part`."""
    return tuple(case for case in RELAYOUT_CASES if part in case.name)
