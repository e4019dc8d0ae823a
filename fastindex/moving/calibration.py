"""What each count of a pass costs: the one table of fitted numbers, in cycles.

Fitted by `benchmarks/fit_costs.py` on one half of the cells that `benchmarks/regret.py` has timed, and tested on the
other. Costs rank the candidates for one relayout; they do not predict a time.

`runs` alone was set by hand, from 7.72, because `s32[98304,5]` out of `T(8,128)` went by blocks in 1.31 ms and not by
loops in 0.97. On 240 cells drawn later (seed 30500, 2026-11-25) the choice takes 1.048 times the best time with it and
1.053 with 7.72, and fits to either half of these leave it as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastindex.moving.counts import Counts, total

if TYPE_CHECKING:
    from fastindex.moving.passes import Draft

#: Where and when it was fitted.
MACHINE, DATE = "AMD EPYC, 2 processors: AVX-512 and 1 MiB of L2; AVX2 and 512 KiB", "2026-11-23 and 2026-11-25"

COEFFICIENTS = Counts(
    lines=30.1,
    filled=33.2,
    ends=75.5,
    runs=6.5,
    shuffled=4.96,
    turned=18.5,
    elements=26,
    gathered=3.67,
    blocks=116,
    vectors=5.79,
    pieces=3.51,
    missed=24.1,
    rows=9.91,
    slots=3.82,
    scratch=5.95,
    tasks=340,
)


def cycles(counts: Counts) -> float:
    """Return what counts cost together."""
    return sum([value * each for value, each in zip(counts, COEFFICIENTS, strict=True)])


def cost(found: Iterable[Draft]) -> float:
    """Return what passes cost, all tasks together."""
    return cycles(total(one.counts for one in found))
