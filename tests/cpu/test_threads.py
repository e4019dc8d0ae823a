import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fastindex.cpu.threads
from fastindex.cpu.threads import cgroup_quota, run_chunks, run_together, thread_count
from fastindex.errors import FastIndexError


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def mount(mount_root: str, point: str, kind: str, options: str) -> str:
    return f"30 25 0:26 {mount_root} {point} rw,nosuid shared:4 - {kind} cgroup {options}\n"


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


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs processor affinity")
def test_affinity_is_honoured(monkeypatch):
    monkeypatch.delenv("FASTINDEX_NUM_THREADS", raising=False)
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert thread_count() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_quota_of_a_version_2_group_and_its_parents(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "proc/self/mountinfo": mount("/", "/sys/fs/cgroup", "cgroup2", "rw"),
            "sys/fs/cgroup/slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
        },
    )
    assert cgroup_quota(tmp_path) == 1.5
    write(tmp_path, {"sys/fs/cgroup/slice/job/cpu.max": "50000 100000\n"})
    assert cgroup_quota(tmp_path) == 0.5


def test_quota_of_a_version_1_container_mounted_at_its_own_group(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            "proc/self/mountinfo": mount("/docker/abc", "/sys/fs/cgroup/memory", "cgroup", "rw,memory")
            + mount("/docker/abc", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct"),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_quota(tmp_path) == 2.5


@pytest.mark.parametrize("text", ["max 100000", "-1", "", "0 0"])
def test_no_quota(tmp_path, text):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "short line\n" + mount("/", "/sys/fs/cgroup", "cgroup2", "rw"),
            "sys/fs/cgroup/cpu.max": text,
        },
    )
    assert cgroup_quota(tmp_path) is None
    assert cgroup_quota(tmp_path / "nowhere") is None


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
    barrier = threading.Barrier(3, timeout=20)
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
    assert len(started) < 1000


def test_helpers_really_run_at_once():
    barrier = threading.Barrier(3, timeout=20)
    run_together(lambda: barrier.wait() and None, 2)


@pytest.mark.parametrize("guilty", ["caller", "helper"])
def test_what_any_of_them_raises_reaches_the_caller_after_all_have_ended(guilty):
    caller, barrier, ended = threading.get_ident(), threading.Barrier(2, timeout=20), []

    def work() -> None:
        barrier.wait()
        if (threading.get_ident() == caller) == (guilty == "caller"):
            raise ZeroDivisionError
        time.sleep(0.05)
        ended.append(1)

    with pytest.raises(ZeroDivisionError):
        run_together(work, 1)
    assert ended == [1]


def test_a_helper_that_comes_late_is_not_waited_for(monkeypatch):
    submitted = []

    class FullPool:
        def submit(self, task):
            submitted.append(task)

    monkeypatch.setattr(fastindex.cpu.threads, "_shared_pool", FullPool)
    callers = []
    run_together(lambda: callers.append(threading.get_ident()), 2)
    for task in submitted:
        task()
    assert len(submitted) == 2
    assert callers == [threading.get_ident()]


def test_an_interpreter_without_threads_works_alone(monkeypatch):
    class ClosedPool:
        def submit(self, task):
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(fastindex.cpu.threads, "_shared_pool", ClosedPool)
    callers = []
    run_together(lambda: callers.append(1), 2)
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
        caller.join(timeout=60)
    assert totals == [500] * 16


def _sum_in_child(queue) -> None:
    barrier = threading.Barrier(2, timeout=20)
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
    child.join(timeout=60)
    assert child.exitcode == 0
    assert queue.get() == "done"


def test_works_while_the_interpreter_shuts_down():
    code = (
        "import atexit\n"
        "from fastindex.cpu.threads import run_chunks\n"
        "seen = []\n"
        "def last():\n"
        "    run_chunks(lambda begin, end: seen.append(begin), 10, 4, 1)\n"
        "    print(len(seen))\n"
        "atexit.register(last)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "10\n"
