"""Relayouts that cast, beside the same relayout without a cast, and beside ``astype`` followed by a copy.

Usage::

    python benchmarks/casts.py [--threads 1] [--repeats 15] [--size 4096] [--all]

For each pair of element types and each pair of layouts of a square array it prints four numbers. The first is the time
against that of the relayout alone of the wider type: as many elements, and at least as many bytes as the cast. The
second is stricter, the time for a byte that is read or written, against that of the relayout alone: of the two types,
the one whose relayout takes longer for a byte. The third is how often the time goes into that of ``astype`` and of the
relayout that has to follow. The fourth is the time for a byte against that of a copy. All are timed in turn in one
process, and medians are compared; with one thread by its processor time, which other jobs disturb less. ``--all`` adds
the pairs that look results up, or are of 8 bytes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import fastindex as fi
from fastindex.arrays.buffers import aligned_bytes

FAST = (
    *(("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("f16", "f32")),
    *(("u8", "f32"), ("s8", "f32"), ("u8", "bf16"), ("s8", "bf16")),
)
OTHERS = (("f32", "f8e4m3fn"), ("f8e4m3fn", "bf16"), ("f32", "s8"), ("s32", "f32"), ("f64", "f32"), ("bf16", "f8e5m2"))

#: Layouts of the source and of the destination; T stands for the tiles that a TPU gives the type.
LAYOUTS = {
    "in place": ("{1,0}", "{1,0}"),
    "to tiles": ("{1,0}", "{1,0:T}"),
    "from tiles": ("{1,0:T}", "{1,0}"),
    "transpose": ("{1,0}", "{0,1}"),
    "transpose to tiles": ("{1,0}", "{0,1:T}"),
}
TILES = {1: "T(8,128)(4,1)", 2: "T(8,128)(2,1)", 4: "T(8,128)", 8: "T(8,128)"}


class Side:
    """A buffer of a type in a layout."""

    def __init__(self, name: str, size: int, layout: str) -> None:
        width = fi.Shape.parse(f"{name}[1]").element_type.nbytes
        self.shape = fi.Shape.parse(f"{name}[{size},{size}]{layout.replace('T', TILES[width])}")
        self.buffer = aligned_bytes(self.shape.nbytes)
        # Numbers that every type holds: NumPy takes a hundred times as long for those that overflow.
        values = self.buffer.view(self.shape.element_type.numpy_dtype)
        values[:] = np.random.default_rng(0).integers(0, 120, self.shape.slot_count, np.uint8)


def moving(source: Side, target: Side, threads: int) -> tuple[Callable[[], object], int]:
    """Return a call that moves one buffer into the other, and the bytes that it reads and writes."""
    plan = fi.plan_relayout(source.shape, target.shape, casting="unsafe")
    return lambda: plan(source.buffer, target.buffer, threads=threads), source.shape.nbytes + target.shape.nbytes


def casting_first(source: Side, target: Side, threads: int) -> Callable[[], object]:
    """Return a call that casts a buffer as it lies by NumPy, into memory that is there, and then moves it."""
    between = Side(target.shape.element_type.name, source.shape.dimensions[0], "{1,0}")
    layout = str(source.shape)[str(source.shape).index("]") + 1 :]
    between.shape = fi.Shape.parse(
        f"{target.shape.element_type}[{','.join(map(str, source.shape.dimensions))}]{layout}"
    )
    values = source.buffer.view(source.shape.element_type.numpy_dtype)
    cast = between.buffer.view(target.shape.element_type.numpy_dtype)
    move, _ = moving(between, target, threads)

    def call() -> None:
        with np.errstate(all="ignore"):
            np.copyto(cast, values, casting="unsafe")
        move()

    return call


def row_of(
    pair: tuple[str, str], layouts: tuple[str, str], arguments: argparse.Namespace
) -> tuple[float, float, float, float]:
    """Return the four numbers of a pair."""
    source, target = (Side(name, arguments.size, layout) for name, layout in zip(pair, layouts, strict=True))
    fused, moved = moving(source, target, arguments.threads)
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "cast": (fused, moved),
        "two steps": (casting_first(source, target, arguments.threads), moved),
        "copy": (lambda: np.copyto(target.buffer, source.buffer[: target.buffer.size], "no"), 2 * target.buffer.size),
    }
    if target.buffer.size > source.buffer.size:
        calls["copy"] = lambda: np.copyto(source.buffer, target.buffer[: source.buffer.size]), 2 * source.buffer.size
    for name in pair:
        sides = (Side(name, arguments.size, layout) for layout in layouts)
        calls[f"alone {name}"] = moving(*sides, arguments.threads)
    times: dict[str, list[float]] = {name: [] for name in calls}
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    for _ in range(arguments.repeats + 1):
        for name, (call, _) in calls.items():
            began = clock()
            call()
            times[name].append(clock() - began)
    # The first round compiles.
    taken = {name: statistics.median(of[1:]) for name, of in times.items()}
    a_byte = {name: taken[name] / nbytes for name, (_, nbytes) in calls.items()}
    wider = max((calls[f"alone {name}"][1], f"alone {name}") for name in pair)[1]
    return (
        taken["cast"] / taken[wider],
        a_byte["cast"] / max(a_byte[f"alone {name}"] for name in pair),
        taken["two steps"] / taken["cast"],
        a_byte["cast"] / a_byte["copy"],
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    print("| from | to | layouts | of the wider relayout | a byte | times `astype`, then the relayout | of a copy |")
    print("|---|---|---|--:|--:|--:|--:|")
    for pair in (*FAST, *(OTHERS if arguments.all else ())):
        for name, layouts in LAYOUTS.items():
            alone, byte, steps, copy = row_of(pair, layouts, arguments)
            row = f"{alone:.2f} | {byte:.2f} | {steps:.1f} | {copy:.2f}"
            print(f"| {pair[0]} | {pair[1]} | {name} | {row} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
