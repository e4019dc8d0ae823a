"""Threads that help with passes: they look out for work, sleep, are woken, and never work on after a call.

Tests of: moving.pass_threads, moving.kernels.passes, runtime.numbers.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
import fastindex.runtime.machine_code
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops
from fastindex.arrays.arrays import address_of
from fastindex.moving import pass_threads
from fastindex.moving import pass_threads as long_calls
from fastindex.moving.compiled_passes import CompiledPasses, thread_scratch
from fastindex.moving.moves.nests.plan import passes
from fastindex.moving.pass_threads import long_call
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.numbers import ASLEEP, CALL, CALL_COUNTERS, JOB, POOL_JOBS, UNFINISHED, WAITING, WORKING
from fastindex.runtime.tuning import TUNING
from tests.moving.interrupt_points import interrupted_everywhere

ROOT = Path(__file__).resolve().parents[2]
ROWS, COLUMNS = 1100, 1024


def transposed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.reshape(ROWS, COLUMNS).T.reshape(-1)


def is_free(pool: Any) -> bool:
    """Whether no helper works or belongs to a call."""
    return all(one.fields[JOB.owner] == 0 and one.fields[JOB.state] in (WAITING, ASLEEP) for one in pool.helpers)


def wait_until_asleep(one: Any) -> None:
    while one.fields[JOB.state] != ASLEEP:
        time.sleep(0.001)


@pytest.fixture
def plan() -> Any:
    """A relayout that is large enough to wake a thread for."""
    return fi.plan_relayout(f"f32[{ROWS},{COLUMNS}]", f"f32[{ROWS},{COLUMNS}]{{0,1}}")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = pass_threads._Pool()
    monkeypatch.setattr(pass_threads, "_pool", made)
    yield made
    made.close()


@pytest.mark.in_turn(seconds=2)
def test_calls_that_follow_each_other_are_shared(plan: Any, pool: Any) -> None:
    generator = np.random.default_rng(5)
    outs = [np.empty(ROWS * COLUMNS, np.float32) for _ in range(4)]
    for _ in range(40):
        values = generator.random(ROWS * COLUMNS, np.float32)
        for out in outs:
            out[:] = -1
        for out in outs:
            plan(values, out=out, threads=2)
        # What the helper writes is there when the call returns.
        assert all(np.array_equal(out, transposed(values)) for out in reversed(outs))
    assert len(pool.helpers) == 1
    assert is_free(pool)


def test_each_pass_has_a_counter(pool: Any) -> None:
    """More passes than a helper has counters for, then fewer; none of the counters is old."""
    rng = np.random.default_rng(3)
    values = rng.random(600 * 2000, np.float32)
    loops = tuple(Nest((Loop(2000, 1, 1), Loop(6, 2000, 2000)), 12000 * k, 12000 * (99 - k)) for k in range(100))
    tuning = replace(TUNING, small_call_bytes=0, share_bytes=1 << 10)
    for count in (100, 1, 100, 3):
        made = CompiledPasses(passes(RelayoutLoops(loops[:count], ()), 4, EPYC_1M, tuning), tuning)
        assert made.count == count
        out = np.zeros_like(values)
        made.run(address_of(values), address_of(out), b"\0", 3)
        wanted = np.zeros_like(values).reshape(100, -1)
        wanted[100 - count :] = values.reshape(100, -1)[:count][::-1]
        assert np.array_equal(out, wanted.reshape(-1))
    assert [one.fields[JOB.pass_count] > 0 for one in pool.helpers] == [True, True]
    assert is_free(pool)


def test_arrays_that_a_plan_does_not_expect_go_the_long_way(plan: Any, pool: Any) -> None:
    values = np.random.default_rng(2).random(ROWS * COLUMNS, np.float32)
    out = np.zeros_like(values)
    assert plan(values, out=out, threads=2) is out
    frozen = out.copy()
    frozen.flags.writeable = False
    for bad in (frozen, np.zeros(2 * len(out), np.float32)[::2], values, np.zeros(len(out)), np.zeros(7, np.float32)):
        with pytest.raises(fi.FastIndexError):
            plan(values, out=bad, threads=2)
    for good in (values.tobytes(), values.view(np.uint8), values[None][0]):
        assert np.array_equal(plan(good, threads=2), transposed(values))
    assert len(pool.helpers) == 1
    assert is_free(pool)


def test_small_calls_wake_no_thread(pool: Any) -> None:
    small = fi.plan_relayout("f32[700,1024]", "f32[700,1024]{0,1}")
    values = np.random.default_rng(2).random(700 * 1024, np.float32)
    for _ in range(3):
        assert np.array_equal(small(values, threads=3), values.reshape(700, 1024).T.reshape(-1))
    assert not pool.helpers


def test_a_thread_sleeps_after_a_while_and_is_woken(plan: Any, pool: Any) -> None:
    values = np.random.default_rng(2).random(ROWS * COLUMNS, np.float32)
    for _ in range(3):
        assert np.array_equal(plan(values, threads=2), transposed(values))
        (one,) = pool.helpers
        wait_until_asleep(one)


@pytest.mark.in_turn(seconds=0.8)
def test_many_callers_have_separate_helpers(plan: Any, pool: Any) -> None:
    def work(seed: int) -> bool:
        values = np.random.default_rng(seed).random(ROWS * COLUMNS, np.float32)
        out = np.empty_like(values)
        for k in range(8):
            out[:] = -1
            plan(values, out=out, threads=1 + k % 3)
            plan(values, out=out, threads=1 + k % 3)
            if not np.array_equal(out, transposed(values)):
                return False
        return True

    with ThreadPoolExecutor(6) as callers:
        assert all(callers.map(work, range(12)))
    assert is_free(pool)


def test_a_caller_without_helpers_works_alone_and_has_some_the_next_time(plan: Any, pool: Any) -> None:
    values = np.random.default_rng(2).random(ROWS * COLUMNS, np.float32)
    plan(values, threads=2)
    (taken,) = pool.helpers
    taken.fields[JOB.owner] = 1
    assert np.array_equal(plan(values, threads=2), transposed(values))
    assert len(pool.helpers) == 2
    assert np.array_equal(plan(values, threads=2), transposed(values))
    assert len(pool.helpers) == 2
    assert pool.helpers[1].fields[JOB.pass_count] == 1
    taken.fields[JOB.owner] = 0
    assert is_free(pool)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_call_that_ends_early_leaves_no_thread_at_work(pool: Any, error: type[BaseException]) -> None:
    def fails(*_: int) -> None:
        raise error

    with pytest.raises(error):
        pass_threads.run_with_helpers(fails, (), 1, lambda: thread_scratch.address, 2)
    assert len(pool.helpers) == 2
    assert is_free(pool)


def test_a_call_that_is_interrupted_waits_for_its_helpers(plan: Any, pool: Any) -> None:
    """A helper that has not ended when the call does is waited for, with the interrupt at the end."""
    values = np.random.default_rng(2).random(ROWS * COLUMNS, np.float32)
    plan(values, threads=2)
    (one,) = pool.helpers
    wait_until_asleep(one)
    begun: list[tuple[int, int]] = []

    def leaves_it_working(pool_address: int, helpers: int, scratch: int, call: int) -> int:
        assert (scratch, helpers) == (thread_scratch.address, 1)
        counters = (ctypes.c_int64 * 3).from_address(call + 8 * CALL_COUNTERS)
        assert [*counters] == [0, 0, 0]
        one.fields[JOB.owner], one.fields[JOB.state] = call, WORKING

        def end() -> None:
            begun.append((one.fields[JOB.owner] - call, min(counters)))
            one.fields[JOB.state] = ASLEEP

        threading.Timer(0.05, end).start()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pass_threads.run_with_helpers(leaves_it_working, (), 3, lambda: thread_scratch.address, 1)
    assert begun == [(0, 1 << 62)], "it is not free while it works, and finds nothing more to do"
    assert is_free(pool)
    assert np.array_equal(plan(values, threads=2), transposed(values))


def test_wherever_an_interrupt_comes_no_thread_works_afterwards(
    plan: Any, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helpers are waited for, also where an interrupt comes between two instructions of the waiting itself."""
    # A slice ends with what is taken first.
    shortest = long_call(0)
    shortest[CALL.slice_nanoseconds] = 0
    unlimited = long_calls._slices(False)
    monkeypatch.setattr(long_calls, "_slices", lambda is_limited: shortest if is_limited else unlimited)
    values, out = np.random.default_rng(2).random(ROWS * COLUMNS, np.float32), np.empty(ROWS * COLUMNS, np.float32)
    plan(values, out=out, threads=2)
    places = set()
    for place in interrupted_everywhere(lambda: plan(values, out=out, threads=2), pass_threads):
        assert is_free(pool), place
        out[:] = -1
        time.sleep(0.0005)
        assert (out == -1).all(), place
        places.add(place[0])
    assert places == {"run_with_helpers", "long_call", "looks_for_signals"}
    assert plan(values, out=out, threads=2) is out
    assert np.array_equal(out, transposed(values))


def test_wherever_an_interrupt_comes_between_slices_helpers_are_freed(plan: Any, pool: Any) -> None:
    """However many slices there are: how many a real call has depends on what its helpers take."""
    plan(np.random.default_rng(2).random(ROWS * COLUMNS, np.float32), threads=2)
    (one,) = pool.helpers
    calls = []

    def comes_back_thrice(pool_address: int, helpers: int, scratch: int, call: int) -> int:
        calls.append(helpers)
        if helpers:
            one.fields[JOB.owner] = call
        if len(calls) % 4:
            return UNFINISHED
        one.fields[JOB.owner] = 0
        return 0

    def call() -> None:
        calls.clear()
        pass_threads.run_with_helpers(comes_back_thrice, (), 1, lambda: thread_scratch.address, 1)

    for place in interrupted_everywhere(call, pass_threads):
        assert is_free(pool), place
    assert calls == [1, 0, 0, 0]


def test_an_interrupt_while_threads_are_started_leaves_all_or_none(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).random(ROWS * COLUMNS, np.float32)
    pools = [pass_threads._Pool()]

    def call() -> None:
        monkeypatch.setattr(pass_threads, "_pool", pools[-1])
        plan(values, threads=3)

    for place in interrupted_everywhere(call, pass_threads):
        assert np.array_equal(plan(values, threads=3), transposed(values)), place
        jobs = [one.job for one in pools[-1].helpers]
        assert (len(jobs), [*pools[-1]._table[POOL_JOBS:][:3]]) == (2, [*jobs, 0]), place
        pools[-1].close()
        pools.append(pass_threads._Pool())
    pools[-1].close()


PROGRAM = f"""
import numpy as np
import fastindex as fi
import fastindex.runtime.machine_code
plan = fi.plan_relayout("f32[{ROWS},{COLUMNS}]", "f32[{ROWS},{COLUMNS}]{{0,1}}")
values = np.arange({ROWS * COLUMNS}, dtype=np.float32)
out = np.empty_like(values)
for _ in range(50):
    plan(values, out=out, threads=2)
assert (out == values.reshape({ROWS}, {COLUMNS}).T.reshape(-1)).all()
plan(values, threads=3)
"""


@pytest.mark.in_turn(seconds=2)
@pytest.mark.parametrize("microseconds", ["0", "100000"])
def test_a_process_ends_while_threads_look_out(microseconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pass_threads.SPIN_VARIABLE, microseconds)
    """A thread that looked out for ever would keep the process alive for ever."""
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], cwd=ROOT, check=True)


@pytest.mark.parametrize("microseconds", ["-1", "x", "1.5", "1000001"])
def test_bad_settings_are_refused(microseconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pass_threads.SPIN_VARIABLE, microseconds)
    with pytest.raises(fi.FastIndexError, match=f"{pass_threads.SPIN_VARIABLE} must be an integer from 0 to 1000000"):
        pass_threads._spins.__wrapped__()
