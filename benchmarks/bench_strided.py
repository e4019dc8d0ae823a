"""asv: copies between strided NumPy arrays, as times and as ratios to `numpy.copyto` in the same process."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

import fastindex as fi

Array = np.ndarray[Any, Any]


def _images(dtype: str) -> Array:
    return np.random.default_rng(0).integers(0, 100, (24, 96, 128, 112)).astype(dtype)


def _square(size: int, dtype: str) -> Array:
    return np.random.default_rng(0).integers(0, 100, (size, size)).astype(dtype)


#: Name -> the source, a view; only appended to.
CASES: dict[str, Callable[[], Array]] = {
    "NCHW to NHWC, f32": lambda: _images("f4").transpose(0, 2, 3, 1),
    "NHWC to NCHW, f32": lambda: _images("f4").transpose(0, 3, 1, 2),
    "transpose 16, f32": lambda: _square(16, "f4").T,
    "transpose 257, f64": lambda: _square(257, "f8").T,
    "transpose 4096, f32": lambda: _square(4096, "f4").T,
    "transpose 8192, u8": lambda: _square(8192, "u1").T,
    "reversed rows, f32": lambda: _square(4096, "f4")[:, ::-1],
    "every second column, f32": lambda: _square(4096, "f4")[:, ::2],
    "257^3 reversed axes, f64": lambda: np.random.default_rng(0).random((257, 257, 257)).T,
}


class Copyto:
    """One call with the output given and touched."""

    params = (list(CASES), (1, 2))
    param_names = ("case", "threads")
    timeout = 300

    def setup(self, name: str, threads: int) -> None:
        self.src = CASES[name]()
        self.dst = np.zeros(self.src.shape, self.src.dtype)
        fi.numpy.copyto(self.dst, self.src, threads=threads)

    def time_copyto(self, name: str, threads: int) -> None:
        fi.numpy.copyto(self.dst, self.src, threads=threads)

    def track_times_numpy(self, name: str, threads: int) -> float:
        """How many times as fast as NumPy: best of five of each, in turn."""
        ours, numpys = [], []
        number = max(1, 100_000 // self.src.size)
        for _ in range(5):
            ours.append(timeit.timeit(lambda: fi.numpy.copyto(self.dst, self.src, threads=threads), number=number))
            numpys.append(timeit.timeit(lambda: np.copyto(self.dst, self.src), number=number))
        return min(numpys) / min(ours)


class Contiguous:
    """Whole calls that allocate their result, as NumPy's do."""

    params = (["NCHW to NHWC, f32", "transpose 4096, f32"],)
    param_names = ("case",)
    timeout = 300

    def setup(self, name: str) -> None:
        self.src = CASES[name]()
        fi.numpy.ascontiguousarray(self.src)

    def time_ascontiguousarray(self, name: str) -> None:
        fi.numpy.ascontiguousarray(self.src)

    def time_numpy_ascontiguousarray(self, name: str) -> None:
        np.ascontiguousarray(self.src)
