"""Random rearrangements between any two layouts, checked against the definition and NumPy's reshape, transpose and pad.

``python -m tests.cases.rearrangement_cases FIRST COUNT`` runs a campaign.
"""

from __future__ import annotations

import itertools
import math
import random
import sys

import numpy as np

import fastindex as fi
from tests.cases import strategies
from tests.oracles import reference
from tests.oracles.rearranged import Case, by_numpy, random_case
from tests.oracles.reference import ReferenceShape

TYPES = ("u8", "u8", "s4", "u2", "u1", "pred", "bf16", "f32", "s64", "c128", "u4", "f8e4m3fn")


def layouts(seed: int, case: Case) -> tuple[ReferenceShape, ReferenceShape]:
    """Layouts for both sides of a case."""
    source = strategies.RandomSource(seed)
    element_type = source.pick(TYPES)
    made = tuple(math.prod(case.axes[name] for name in group) for group in case.destination)
    left = strategies.draw_layout(source, element_type, case.dimensions, True)
    return left, strategies.draw_layout(source, element_type, made, True)


def check(seed: int) -> None:
    """Move there and back, by the plan and by the definition."""
    rng = random.Random(seed)
    case = random_case(rng, 200)
    left, right = layouts(seed, case)
    bits = reference.VALUE_BITS[left.element_type]
    elements = {index: rng.getrandbits(bits) for index in reference.every_index(left.dimensions)}
    if left.element_type == "pred":
        elements = {index: value & 1 for index, value in elements.items()}
    # Which element of the source each of the destination is, counted from 1; 0 is padding.
    numbers = np.arange(1, math.prod(left.dimensions) + 1).reshape(left.dimensions)
    case.fill = 0
    places = by_numpy(numbers, case)
    ordered = list(elements.values())
    padding = reference.padding_pattern(right.element_type, right.padding_value)
    moved = {
        index: ordered[places[index] - 1] if places[index] else padding
        for index in itertools.product(*map(range, places.shape))
    }
    plan = fi.plan_rearrange(case.pattern, str(left), str(right), pad=case.pad, **case.sizes)
    source = np.frombuffer(reference.pack(left, elements), np.uint8)
    what = f"seed {seed}: {case.pattern!r} {case.sizes} {left} -> {right}"
    got = plan(source)
    assert got.tobytes() == reference.pack(right, moved), what
    back = plan.inverse()(got)
    assert back.tobytes() == reference.pack(left, elements), what
    assert plan == plan.inverse().inverse(), what


def main() -> None:
    first, count = map(int, sys.argv[1:])
    for seed in range(first, first + count):
        check(seed)
        if seed % 1000 == 999:
            sys.stdout.write(f"{seed + 1}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
