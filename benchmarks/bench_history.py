"""asv: the history of the project in ratios that mean something on any machine, lower is better.

Every figure is a time beside that of a copy, or of NumPy, in the same process and the same moment, the best of many on
both sides. Only what every commit since the first fast one has is used: `relayout` plans, `pack`, `linear_index`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fastindex as fi

#: Where `history.py` has put the package of the commit that it measures.
if not fi.__file__.startswith(os.environ.get("FASTINDEX_HISTORY_FOLDER", "")):
    raise ImportError(f"the package measured is {fi.__file__}")

#: Name -> source, destination; 8 MiB and more, so that memory is what limits a copy. Only appended to.
MOVES = {
    "transpose f32": ("f32[2048,2048]{1,0}", "f32[2048,2048]{0,1}"),
    "transpose f32, odd": ("f32[2039,2053]{1,0}", "f32[2039,2053]{0,1}"),
    "transpose u8": ("u8[4096,4096]{1,0}", "u8[4096,4096]{0,1}"),
    "NCHW to NHWC f32": ("f32[8,96,64,80]{3,2,1,0}", "f32[8,96,64,80]{1,3,2,0}"),
    "to T(8,128) f32": ("f32[2048,2048]{1,0}", "f32[2048,2048]{1,0:T(8,128)}"),
    "from T(8,128)(2,1) bf16": ("bf16[2048,2048]{1,0:T(8,128)(2,1)}", "bf16[2048,2048]{1,0}"),
    "to T(8,128)(2,1) bf16, odd": ("bf16[2039,2053]{1,0}", "bf16[2039,2053]{1,0:T(8,128)(2,1)}"),
    "to T(8,128)(4,1) s8": ("s8[4096,4096]{1,0}", "s8[4096,4096]{1,0:T(8,128)(4,1)}"),
    "reversal f32": ("f32[48,48,48,48]{3,2,1,0}", "f32[48,48,48,48]{0,1,2,3}"),
}

#: Of each pair, as long as both rivals together take.
SECONDS = 0.5


def best_ratio(ours: Callable[[], object], rival: Callable[[], object], seconds: float) -> float:
    """The best time of one over the best time of the other, in turn."""
    best = [float("inf"), float("inf")]
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 5 or time.perf_counter() < end:
        for which, run in enumerate((ours, rival)):
            begin = time.perf_counter()
            run()
            best[which] = min(best[which], time.perf_counter() - begin)
        rounds += 1
    return best[0] / best[1]


class History:
    """How many times as long as a copy of as many bytes a relayout takes on one thread, output given and touched."""

    params = (tuple(MOVES),)
    param_names = ("move",)
    timeout = 300
    unit = "times a copy"
    seconds = SECONDS

    def track_relayout(self, name: str) -> float:
        source, destination = (fi.Shape.parse(text) for text in MOVES[name])
        plan = fi.plan_relayout(source, destination)
        dtype = source.element_type.numpy_dtype
        # All ones are a number in every type.
        given = np.ones(source.nbytes, np.uint8).view(dtype)
        out = np.zeros(destination.nbytes, np.uint8).view(dtype)
        plan(given, out=out, threads=1)
        half = (source.nbytes + destination.nbytes) // 2
        copied, copy = np.ones(half, np.uint8), np.zeros(half, np.uint8)
        return best_ratio(lambda: plan(given, out=out, threads=1), lambda: np.copyto(copy, copied), self.seconds)


class HistoryOfCalls:
    """What calls take beside NumPy's own."""

    timeout = 300
    unit = "times NumPy"
    seconds = SECONDS

    def track_small_relayout(self) -> float:
        """16 by 16 numbers, the plan at hand."""
        # Large enough that kernels are loaded: while none is, NumPy answers small questions.
        fi.relayout(np.zeros(1 << 19, np.float32), "f32[512,1024]", "f32[512,1024]{0,1}")
        plan = fi.plan_relayout("f32[16,16]", "f32[16,16]{0,1}")
        given, out = np.ones(256, np.float32), np.zeros(256, np.float32)
        square, turned = given.reshape(16, 16).T, out.reshape(16, 16)
        return best_ratio(
            self._many(lambda: plan(given, out=out)), self._many(lambda: np.copyto(turned, square)), self.seconds
        )

    def track_linear_index(self) -> float:
        """A million random elements of a tiled array, beside NumPy's expressions for the same."""
        rows, columns = (np.random.default_rng(0).integers(0, 4096, 1 << 20) for _ in range(2))
        out = np.zeros(1 << 20, np.int64)
        shape = fi.Shape.parse("f32[4096,4096]{1,0:T(8,128)}")

        def by_numpy() -> Any:
            return ((rows // 8 * 32 + columns // 128) * 8 + rows % 8) * 128 + columns % 128

        fi.linear_index(shape, (rows, columns), out=out, threads=1)
        if not np.array_equal(out, by_numpy()):
            raise AssertionError("linear_index gives a wrong result")
        return best_ratio(lambda: fi.linear_index(shape, (rows, columns), out=out, threads=1), by_numpy, self.seconds)

    def track_pack(self) -> float:
        """An array to padded tiles, beside NumPy's pad, reshape and transpose."""
        array = np.ones((1000, 1000), np.float32)
        buffer = np.zeros(1000 * 1024, np.float32)
        shape = fi.Shape.parse("f32[1000,1000]{1,0:T(8,128)}")
        tiles = np.zeros((125, 8, 8, 128), np.float32)

        def by_numpy() -> None:
            padded = np.pad(array, ((0, 0), (0, 24)))
            np.copyto(tiles, padded.reshape(125, 8, 8, 128).transpose(0, 2, 1, 3))

        fi.pack(array, shape, out=buffer, threads=1)
        return best_ratio(lambda: fi.pack(array, shape, out=buffer, threads=1), by_numpy, self.seconds)

    @staticmethod
    def _many(run: Callable[[], object]) -> Callable[[], object]:
        def often() -> None:
            for _ in range(200):
                run()

        return often
