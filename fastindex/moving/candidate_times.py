"""Times every candidate of a relayout on the caller's buffers."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from fastindex.moving.choice import plans
from fastindex.moving.movements import Movement
from fastindex.moving.timed_choices import Choice
from fastindex.runtime.threads import thread_count

# Samples of each candidate, and how long a sample lasts at least. Candidates that take `_HOPELESS` times as long as the
# fastest in their first timed run are not timed further.
_ROUNDS, _SAMPLE_SECONDS, _HOPELESS = 7, 1e-3, 4


def timed(moved: Movement, addresses: tuple[int, int], pattern: bytes, threads: int | None) -> Choice | None:
    """Time the candidates in turn, and return the best one; None where every slot has to be looked up.

    Parameters
    ----------
    moved : Movement
    addresses : (int, int)
        Of source and destination; what is written there is the result of the relayout.
    pattern : bytes
        An unpacked value for the padding.
    threads : int, optional
    """
    movements = {plan.name: replace(moved, choice=plan.name) for plan in plans(moved.problem)}
    if not movements:
        return None

    def seconds(one: Movement, repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            one.run_kernels(*addresses, pattern, threads)
        return (time.perf_counter() - begin) / repeats

    for one in movements.values():
        # Kernels that are missing are compiled here.
        one.run_kernels(*addresses, pattern, threads)
    best = {name: seconds(one, 1) for name, one in movements.items()}
    least = min(best.values())
    hopeful = {name: one for name, one in movements.items() if best[name] <= _HOPELESS * least}
    repeats = max(1, math.ceil(_SAMPLE_SECONDS / least))
    for _ in range(_ROUNDS if len(hopeful) > 1 else 0):
        for name, one in hopeful.items():
            best[name] = min(best[name], seconds(one, repeats))
    return Choice(min(best, key=best.__getitem__), thread_count(threads), best)
