"""Calls from many threads at once, and after a fork: data loaders do both."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from tests.cases.hangs import HANG_SECONDS
from tests.faults.forks import in_a_fork

ROOT = Path(__file__).resolve().parents[2]
TEXT = "bf16[700,701]{1,0:T(8,128)(2,1)}"
PLAIN = "bf16[700,701]"
INDICES = np.indices((700, 701)).reshape(2, -1)


def work(seed: int, threads: int) -> bool:
    """Convert, pack, move and unpack; whether everything came back."""
    dtype = fi.Shape.parse(PLAIN).element_type.numpy_dtype
    array = np.random.default_rng(seed).integers(0, 100, (700, 701)).astype(dtype)
    packed = fi.pack(array, TEXT, threads=threads)
    slots = fi.linear_index(TEXT, INDICES, threads=threads)
    back = fi.multi_index(TEXT, slots, threads=threads)
    moved = fi.relayout(packed, TEXT, PLAIN, threads=threads)
    return bool(
        (packed[slots] == array.ravel()).all()
        and (np.stack(back) == INDICES).all()
        and (moved == array.ravel()).all()
        and (fi.unpack(packed, TEXT, threads=threads) == array).all()
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_many_callers_at_once(threads: int) -> None:
    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(lambda seed: work(seed, threads), range(16)))


def test_the_first_call_from_many_threads_at_once() -> None:
    """A fresh process, every thread at the same barrier, nothing imported or compiled yet."""
    program = """
import threading
import numpy as np
import fastindex as fi

barrier = threading.Barrier(6)
answers = []

def first(k):
    barrier.wait()
    slots = fi.linear_index("f32[3,5]{1,0:T(2,2)}", (np.array([2]), np.array([3])), threads=2)
    buffer = fi.pack(np.full((30, 50), k, np.float32), "f32[30,50]{0,1:T(8,128)}", threads=2)
    answers.append((int(slots[0]), float(fi.unpack(buffer, "f32[30,50]{0,1:T(8,128)}")[29, 49]) == k))

callers = [threading.Thread(target=first, args=(k,)) for k in range(6)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
assert answers == [(17, True)] * 6, answers
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=ROOT, check=True, timeout=HANG_SECONDS)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@needs_fork
def test_a_child_works_after_the_parent_has_worked() -> None:
    assert work(0, 2)
    assert in_a_fork(lambda: work(1, 2)) == 0
    assert work(2, 2)


@needs_fork
def test_a_child_of_a_child_works() -> None:
    assert work(0, 2)
    assert in_a_fork(lambda: work(1, 2) and in_a_fork(lambda: work(2, 2)) == 0) == 0


@pytest.mark.in_turn(seconds=0.7)
@needs_fork
def test_children_forked_while_other_threads_work() -> None:
    # A child that is forked while another thread imports a module waits for it for ever; that is Python's.
    assert work(0, 2)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            work(3, 2)

    callers = [threading.Thread(target=busy) for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        statuses = [in_a_fork(lambda: work(4, 2)) for _ in range(3)]
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    assert statuses == [0, 0, 0]


@needs_fork
def test_a_failing_child_shows() -> None:
    assert in_a_fork(lambda: False) == 2


def test_an_error_in_one_chunk_reaches_the_caller() -> None:
    columns = np.zeros(500_000, np.int64)
    columns[[123_456, 400_000]] = 701
    for threads in (1, 2, 4):
        with pytest.raises(fi.OutOfBoundsError, match="123456"):
            fi.linear_index(TEXT, (np.int64(0), columns), threads=threads)
    assert work(5, 2)
