"""Prints which GPU kernels the relayouts, packs and indices of `test_gpu` and its random shapes take, and runs none.

`test_cuda_simulator` asks for it in a process: in Numba's simulator nothing is compiled.
"""

from __future__ import annotations

import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import json
import sys
import warnings
from typing import Any

import numpy as np

import fastindex as fi
from fastindex.cuda.kernels.compilation import Kernel
from tests.cases import strategies
from tests.cases.gpu_cases import LARGE_SHAPES, RELAYOUTS, SHAPES
from tests.kernels import gpu_package, simulator  # noqa: F401  (its import starts it)
from tests.oracles import reference
from tests.oracles.comparison import (
    differences_in_conversion,
    differences_in_indices,
    differences_in_packing,
    differences_in_relayout,
    differences_in_tiles,
)

names: set[str] = set()


def note(kernel: Kernel, *arguments: Any) -> None:
    names.add(kernel.name)


def main() -> None:
    warnings.simplefilter("ignore")
    Kernel.launch = note  # type: ignore[method-assign]
    for text in RELAYOUTS:
        source, destination = map(reference.parse, text)
        differences_in_relayout(source, destination, 1, package=gpu_package)
        differences_in_relayout(destination, source, 2, package=gpu_package)
        differences_in_packing(source, 1, package=gpu_package)
    for text in SHAPES:
        shape = reference.parse(text)
        differences_in_indices(shape, package=gpu_package)
        differences_in_tiles(shape, package=gpu_package)
        differences_in_conversion(shape, reference.parse(text[: text.index("]") + 1]), package=gpu_package)
    for text in LARGE_SHAPES:
        gpu_package.linear_index(text, tuple(np.zeros(4, np.int64) for _ in fi.Shape.parse(text).dimensions))
        gpu_package.multi_index(text, np.zeros(4, np.int64))
    for seed in range(int(sys.argv[1])):
        source, destination = strategies.random_pair(seed)
        differences_in_packing(source, seed, package=gpu_package)
        differences_in_relayout(source, destination, seed, package=gpu_package)
    sys.stdout.write(json.dumps(sorted(names)))


if __name__ == "__main__":
    main()
