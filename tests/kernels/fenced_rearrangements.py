"""Run rearrangements and named formats on buffers beside pages that may not be touched. A program: it may die.

Usage: fenced_rearrangements.py first|last
"""

from __future__ import annotations

import random
import sys

import numpy as np

import fastindex as fi
import fastindex.runtime.machine_code
from tests.cases import strategies
from tests.cases.rearrangement_cases import layouts
from tests.kernels.fenced_relayouts import FencedMemory
from tests.oracles.rearranged import by_numpy, random_case
from tests.weights.test_repacking import CASES, codes_of


def move_everything(memory: FencedMemory) -> int:
    count = 0
    for seed in strategies.rotating_seeds(600):
        case = random_case(random.Random(seed), 3000 if seed % 4 == 0 else 200)
        array = case.array()
        fenced = memory(array.nbytes, 0).view(array.dtype).reshape(array.shape)
        fenced[...] = array
        expected = by_numpy(array, case)
        out = memory(expected.nbytes, 0).view(array.dtype).reshape(expected.shape)
        fi.rearrange(fenced, case.pattern, out=out, pad=case.pad, fill=case.fill if case.pad else None, **case.sizes)
        assert np.array_equal(out, expected), case
        left, right = layouts(seed, case) if seed % 4 else (None, None)
        if left is not None:
            plan = fi.plan_rearrange(case.pattern, str(left), str(right), pad=case.pad, **case.sizes)
            source = memory(plan.source.nbytes, 0)
            source[...] = np.random.default_rng(seed).integers(0, 2, len(source))
            plan(source, memory(plan.destination.nbytes, 0).view(plan(source).dtype))
        count += 1
    for name, bits, parameters, shapes in CASES:
        codes = codes_of(shapes[-1], bits)
        expected = fi.weights.repack(codes, "plain", name, shape=codes.shape, bits=bits, **parameters)
        fenced, out = (memory(one.nbytes, 0) for one in (codes, expected))
        fenced[...] = codes.reshape(-1).view(np.uint8)
        plain = fenced.view(codes.dtype).reshape(codes.shape)
        fi.weights.repack(plain, "plain", name, shape=codes.shape, bits=bits, out=out, **parameters)
        assert np.array_equal(out, expected), name
        fi.weights.repack(out, name, "plain", shape=codes.shape, bits=bits, out=plain, **parameters)
        assert np.array_equal(plain, codes), name
        count += 1
    return count


if __name__ == "__main__":
    print(move_everything(FencedMemory(sys.argv[1] == "last")))  # noqa: T201
