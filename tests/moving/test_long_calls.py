"""Long calls on the main thread end at interrupts, and leave no thread at work.

Tests of: moving.pass_threads, runtime.lines.calls.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.arrays.buffers import aligned_bytes
from fastindex.moving import compiled_passes, pass_threads
from fastindex.moving import pass_threads as long_calls
from fastindex.moving.numbers import PASS_CALL
from fastindex.moving.pass_threads import long_call, looks_for_signals
from fastindex.runtime.machine_code import function
from fastindex.runtime.numbers import CALL, UNFINISHED
from tests.faults.interrupts import wrong_in_long_calls

SHAPE = "f32[2048,1031]"
VALUES = np.arange(2048 * 1031, dtype=np.float32)
TURNED = VALUES.reshape(2048, 1031).T.reshape(-1)


def replaced(name: str, by: Callable[..., int]) -> Callable[[str], Callable[..., int]]:
    return lambda asked: by if asked == name else function(asked)


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What native calls of a plan return, each slice of which ends with the first tasks that it takes."""
    monkeypatch.setattr(pass_threads, "_pool", made := pass_threads._Pool())
    shortest = long_call(0)
    shortest[CALL.slice_nanoseconds] = 0
    unlimited = long_calls._slices(False)
    monkeypatch.setattr(long_calls, "_slices", lambda is_limited: shortest if is_limited else unlimited)
    lead, found = function("lead_plain"), list[int]()

    def lead_and_tell(*arguments: int) -> int:
        found.append(lead(*arguments))
        return found[-1]

    monkeypatch.setattr(compiled_passes, "function", replaced("lead_plain", lead_and_tell))
    yield found
    made.close()


@pytest.mark.in_turn(seconds=8)
@pytest.mark.parametrize("threads", [1, 2])
def test_interrupted_calls_leave_work_undone_and_no_thread_at_work(threads: int) -> None:
    wrong, cut, parts = wrong_in_long_calls(threads, 18, threads)
    assert wrong == ""
    assert cut >= parts > 0


@pytest.mark.parametrize("threads", [1, 2])
def test_handlers_run_between_slices_and_may_call_too(threads: int, results: list[int]) -> None:
    """What a handler moves meanwhile has separate counters and helpers."""
    plan, out, inner = fi.plan_relayout(SHAPE, f"{SHAPE}{{0,1}}"), np.zeros_like(VALUES), list[Any]()

    def move(*_: object) -> None:
        inner.append(np.array_equal(plan(VALUES, threads=threads), TURNED))

    before = signal.signal(signal.SIGALRM, move)
    try:
        for _ in range(20):
            out[:] = -1
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
            plan(VALUES, out=out, threads=threads)
            assert np.array_equal(out, TURNED)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert inner
    assert all(inner)
    # With two threads, the other one may have been faster.
    assert threads == 2 or any(found & UNFINISHED for found in results)


def test_an_array_that_changes_between_slices_ends_the_call(
    results: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The native call is made for an array that begins with a line: it would leave another one to other kernels.
    plan, out = fi.plan_relayout(SHAPE, f"{SHAPE}{{0,1}}"), aligned_bytes(VALUES.nbytes).view(np.float32)
    out[:] = -1
    lead = vars(compiled_passes)["function"]("lead_plain")

    def lead_and_freeze(*arguments: int) -> int:
        found = lead(*arguments)
        out.flags.writeable = False
        return found

    monkeypatch.setattr(compiled_passes, "function", replaced("lead_plain", lead_and_freeze))
    with pytest.raises(fi.FastIndexError, match="writ"):
        plan(VALUES, out=out, threads=1)
    frozen = out.copy()
    assert not np.array_equal(plan(VALUES + 1, threads=1), frozen)
    assert np.array_equal(out, frozen)
    assert results[0] & UNFINISHED


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("u8[262144,65536]", "u8[262144,65536]{0,1}"),
        ("s4[20288,105849]", "s4[20288,105849]{0,1:T(1024)}"),
        ("u8[5903,16,6,3693]{3,0,1,2:T(2,128)}", "u8[5903,16,6,3693]{1,0,3,2:T(8,128)(2,1)}"),
        ("f32[65536,65536]", "f32[65536,65536]{1,0:T(8,128)}"),
    ],
)
def test_what_is_taken_at_a_time_is_not_too_much(source: str, destination: str) -> None:
    """However large arrays are: no signal is checked in between."""
    plan = fi.plan_relayout(source, destination)
    rows = plan._movement.compiled._calls
    assert len(rows) == len(plan._movement.passes)
    for one, row in zip(plan._movement.passes, rows, strict=True):
        assert 1 <= row[PASS_CALL.tasks_at_once] <= row[PASS_CALL.most_at_once] <= 4 * row[PASS_CALL.tasks_at_once]
        assert row[PASS_CALL.most_at_once] * one.task_bytes <= 128 << 20


def test_other_threads_are_not_cut(results: list[int]) -> None:
    found: list[Any] = []

    def work() -> None:
        found.extend((looks_for_signals(), long_call(2)[CALL.clock]))
        plan = fi.plan_relayout(SHAPE, f"{SHAPE}{{0,1}}")
        found.append(np.array_equal(plan(VALUES, threads=2), TURNED))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False, 0, True]
    assert not any(result & UNFINISHED for result in results)
    assert looks_for_signals()
    assert long_call(2)[CALL.clock]
