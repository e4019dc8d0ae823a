import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest

import fastindex.runtime.threads
from fastindex import FastIndexError
from fastindex.runtime.threads import run_chunks, run_together, thread_count
from tests.cases.hangs import HANG_SECONDS
from tests.moving.interrupt_points import interrupted_everywhere


def test_argument_comes_first(monkeypatch):
    monkeypatch.setenv("FASTINDEX_NUM_THREADS", "7")
    assert thread_count(3) == 3
    assert thread_count() == 7
    assert thread_count(None) == 7


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True, None])
def test_bad_thread_counts_are_refused(threads, monkeypatch):
    if threads is None:
        monkeypatch.setenv("FASTINDEX_NUM_THREADS", "many")
        with pytest.raises(FastIndexError, match=r"FASTINDEX_NUM_THREADS must be .*'many'"):
            thread_count()
    else:
        with pytest.raises(FastIndexError, match="threads must be a positive integer"):
            thread_count(threads)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("count", "chunk"), [(0, 3), (1, 3), (3, 3), (10, 3), (100, 1)])
def test_chunks_cover_the_range_once(threads, count, chunk):
    seen: list[tuple[int, int]] = []
    run_chunks(lambda begin, end: seen.append((begin, end)), count, threads, chunk)
    covered = sorted(seen)
    assert [i for begin, end in covered for i in range(begin, end)] == list(range(count))
    assert all(0 < end - begin <= chunk for begin, end in covered)


def test_one_thread_or_one_chunk_stays_on_the_callers_thread():
    names = set()
    run_chunks(lambda begin, end: names.add(threading.get_ident()), 100, 1, 1)
    run_chunks(lambda begin, end: names.add(threading.get_ident()), 100, 8, 100)
    assert names == {threading.get_ident()}


def test_threads_really_run_at_once():
    barrier = threading.Barrier(3, timeout=HANG_SECONDS)
    run_chunks(lambda begin, end: barrier.wait() and None, 3, 3, 1)


@pytest.mark.parametrize("guilty", [0, 5, 99])
def test_an_exception_reaches_the_caller_and_stops_the_job(guilty):
    started = []

    def task(begin: int, end: int) -> None:
        started.append(begin)
        if begin == guilty:
            raise ZeroDivisionError(begin)
        time.sleep(0.001)

    with pytest.raises(ZeroDivisionError):
        run_chunks(task, 100_000, 3, 1)
    # All of them would take half a minute.
    assert len(started) < 50_000


def never() -> None:
    raise AssertionError("nothing went wrong")


INTERRUPTED = """
import os, signal, threading, time
from fastindex.runtime.threads import run_chunks
started, ended, main = [], [], threading.get_ident()
def task(begin, end):
    started.append(begin)
    is_main = threading.get_ident() == main
    while is_main and len(started) < 2:
        time.sleep(0.001)
    if is_main == {by_caller}:
        {wait}
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5 if is_main else 0)
    time.sleep(0.2 if not is_main else 0)
    ended.append(begin)
try:
    run_chunks(task, {count}, 2, 1)
except KeyboardInterrupt:
    print(len(started), len(ended))
"""


@pytest.mark.in_turn(seconds=0.4)
@pytest.mark.parametrize(
    ("by_caller", "wait", "count", "left"),
    [(True, "pass", 1000, 1), (False, "while not ended: time.sleep(0.1)", 2, 0)],
    ids=["in a chunk", "waiting"],
)
def test_an_interrupted_caller_stops_the_rest_and_waits_for_what_runs(by_caller, wait, count, left):
    """Ctrl-C while a chunk runs on the caller's thread, or while that waits for a helper."""
    code = INTERRUPTED.format(by_caller=by_caller, wait=wait, count=count)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    started, ended = map(int, done.stdout.split())
    assert started - ended == left
    assert started < 500


def test_helpers_really_run_at_once():
    barrier = threading.Barrier(3, timeout=HANG_SECONDS)
    run_together(lambda: barrier.wait() and None, 2, never)


@pytest.mark.parametrize("guilty", ["caller", "helper"])
def test_what_any_of_them_raises_reaches_the_caller_after_all_have_ended(guilty):
    caller, barrier, ended = threading.get_ident(), threading.Barrier(2, timeout=HANG_SECONDS), []
    stopped = []

    def work() -> None:
        barrier.wait()
        if (threading.get_ident() == caller) == (guilty == "caller"):
            raise ZeroDivisionError
        time.sleep(0.05)
        ended.append(1)

    with pytest.raises(ZeroDivisionError):
        run_together(work, 1, lambda: stopped.append(1))
    assert ended == [1]
    assert stopped == [1]


def test_a_helper_that_comes_late_is_not_waited_for(monkeypatch):
    submitted = []

    class FullPool:
        def submit(self, task):
            submitted.append(task)

    monkeypatch.setattr(fastindex.runtime.threads, "_shared_pool", FullPool)
    callers = []
    run_together(lambda: callers.append(threading.get_ident()), 2, never)
    for task in submitted:
        task()
    assert len(submitted) == 2
    assert callers == [threading.get_ident()]


def test_an_interpreter_without_threads_works_alone(monkeypatch):
    class ClosedPool:
        def submit(self, task):
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(fastindex.runtime.threads, "_shared_pool", ClosedPool)
    callers = []
    run_together(lambda: callers.append(1), 2, never)
    assert callers == [1]


def test_many_callers_and_nested_calls():
    totals = [0] * 16

    def call(caller: int) -> None:
        lock = threading.Lock()

        def inner(begin: int, end: int) -> None:
            with lock:
                totals[caller] += end - begin

        run_chunks(lambda begin, end: run_chunks(inner, 50, 4, 7), 10, 4, 1)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(16)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=HANG_SECONDS)
    assert totals == [500] * 16


def _sum_in_child(queue) -> None:
    barrier = threading.Barrier(2, timeout=HANG_SECONDS)
    run_chunks(lambda begin, end: barrier.wait() and None, 2, 2, 1)
    queue.put("done")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_its_own_pool():
    test_threads_really_run_at_once()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_sum_in_child, args=(queue,))
    child.start()
    child.join(timeout=HANG_SECONDS)
    assert child.exitcode == 0
    assert queue.get() == "done"


def test_works_while_the_interpreter_shuts_down():
    code = (
        "import atexit\n"
        "from fastindex.runtime.threads import run_chunks\n"
        "seen = []\n"
        "def last():\n"
        "    run_chunks(lambda begin, end: seen.append(begin), 10, 4, 1)\n"
        "    print(len(seen))\n"
        "atexit.register(last)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert done.stdout == "10\n"


def functions_of(thread: int) -> set[str]:
    """The functions that a thread is in."""
    frame = sys._current_frames().get(thread)
    found = set()
    while frame is not None:
        found.add(frame.f_code.co_name)
        frame = frame.f_back
    return found


def test_wherever_an_interrupt_comes_no_thread_works_afterwards():
    """Helpers are waited for, also where an interrupt comes between two instructions of the waiting itself."""
    caller, places, works = threading.get_ident(), set(), set()

    def work() -> None:
        if threading.get_ident() == caller:
            deadline = time.monotonic() + 0.05
            while not works and time.monotonic() < deadline:
                time.sleep(0.0002)
            return
        works.add(threading.get_ident())
        # Works until the caller waits for it, or has been interrupted before; how long does not matter.
        deadline = time.monotonic() + 0.02
        while "_wait" not in functions_of(caller) and time.monotonic() < deadline:
            time.sleep(0.0002)
        works.discard(threading.get_ident())

    for place in interrupted_everywhere(lambda: run_together(work, 2, lambda: None), fastindex.runtime.threads):
        assert not works, place
        places.add(place[0])
    assert {"run_together", "ask", "lead", "_wait"} <= places
