"""How threads share the tasks of a pass."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fastindex.moving.kernels.passes import _take
from fastindex.runtime.kernels import kernel
from fastindex.runtime.lines.memory import set_entry
from tests.cases.written_kernels import kept


@kernel
def take_one(taken, counter, tasks, least, most):  # type: ignore[no-untyped-def]
    """Write what `_take` returns, which Python cannot call."""
    first, end = _take(counter, tasks, least, most)
    set_entry(taken, 0, first)
    set_entry(taken, 1, end)


def take(counter: int, tasks: int, least: int, most: int) -> tuple[int, int]:
    taken = np.zeros(2, np.int64)
    kept(__name__, "take_one")(taken.ctypes.data, counter, tasks, least, most)
    return int(taken[0]), int(taken[1])


@pytest.mark.parametrize(("tasks", "least"), [(1, 1), (7, 3), (1000, 1), (1000, 7), (5000, 5000), (3, 10)])
def test_every_task_is_taken_once(tasks: int, least: int) -> None:
    counter = np.zeros(1, np.int64)

    def share(_: int) -> list[tuple[int, int]]:
        taken = []
        while (some := take(counter.ctypes.data, tasks, least, 4 * least))[0] < tasks:
            taken.append(some)
        return taken

    with ThreadPoolExecutor(4) as pool:
        ranges = sorted(some for part in pool.map(share, range(4)) for some in part)
    assert [first for first, _ in ranges] == [0, *(behind for _, behind in ranges[:-1])]
    assert ranges[-1][1] == tasks
    lengths = [behind - first for first, behind in ranges]
    assert all(length >= min(least, tasks - first) for length, (first, _) in zip(lengths, ranges, strict=True))
    assert max(lengths) <= 4 * least
    # Threads end together: towards the end they take little.
    assert all(
        length == least for length, (first, _) in zip(lengths[:-1], ranges, strict=False) if first + 16 * least > tasks
    )


def test_no_task_is_taken_once_all_are_marked_as_taken() -> None:
    counter = np.full(1, 1 << 62, np.int64)
    assert take(counter.ctypes.data, 1000, 1, 4) == (1000, 1000)
