"""Copy between strided arrays that begin, or end, at a page that may not be touched. A separate program: it may crash.

Usage: python -m tests.moving.fenced_copies first|last COUNT FIRST_SEED
"""

from __future__ import annotations

import random
import sys

from fastindex.moving import numpy_copies
from tests.cases.strided_arrays import random_pair
from tests.kernels.fenced_relayouts import FencedMemory


def main() -> None:
    # Kernels, also for what NumPy would copy while none is loaded.
    numpy_copies._left_to_numpy = lambda nbytes: False
    fenced = FencedMemory(sys.argv[1] == "last")
    count, first_seed = map(int, sys.argv[2:])
    copied = 0
    for seed in range(first_seed, first_seed + count):
        destination, source = random_pair(random.Random(seed), lambda size: fenced(size, 0))
        expected = source.tobytes()
        if numpy_copies._copied(destination, source, 1):
            copied += 1
            assert destination.tobytes() == expected, seed
    print(copied)  # noqa: T201


if __name__ == "__main__":
    main()
