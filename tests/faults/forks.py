"""Children forked and spawned while threads of the parent work: each child works, and so does the parent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

# NumPy imports it on first use: a fork meanwhile is NumPy's affair, not what is tried here.
import numpy.random

import fastindex as fi
from tests.cases.hangs import HANG_SECONDS
from tests.faults.tally import Tally

_ROOT = Path(__file__).resolve().parents[2]
#: One in this many is forked by processes whose threads make their first calls, several by each.
_FRESH, _FORKS = 8, 4
#: One in this many children is spawned: a fresh process takes a second.
_SPAWNED = 25


def run(tally: Tally) -> None:
    """Fork and spawn until the time is over."""
    works(0, 2)
    stop = threading.Event()
    wrong: list[str] = []

    def busy() -> None:
        while not stop.is_set():
            if not works(1, 2):
                wrong.append("the parent's own work is wrong")

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        number = 0
        while tally.going():
            number += 1
            if number % _FRESH == 0:
                _fork_in_first_use(tally)
            is_spawned = number % _SPAWNED == 0
            row = "children spawned under load" if is_spawned else "children forked under load"
            tally.begin(row)
            status = _in_a_spawned_child() if is_spawned else in_a_fork(lambda seed=number: works(seed, 2))
            tally.count(row)
            if status:
                tally.find(row, f"ended with {status}")
            tally.save()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for what in wrong:
        tally.find("children forked under load", what)


def _fork_in_first_use(tally: Tally) -> None:
    row, seed, seconds = "children forked during first use", tally.random.randrange(1 << 30), tally.random.random()
    tally.begin(f"{row}: {seed}, {seconds}")
    wrong = wrong_in_first_use(seed, _FORKS, seconds)
    tally.count(row, _FORKS)
    if wrong:
        tally.find(row, f"statuses {wrong}; seed {seed}, {seconds} s")


def works(seed: int, threads: int, count: int = 600) -> bool:
    """Whether packing, indices, and unpacking give what NumPy says they do: `count` rows, in tiles of eight."""
    plain = f"f32[{count},701]"
    tiled = plain + "{1,0:T(8,128)}"
    array = np.random.default_rng(seed).random((count, 701), np.float32)
    padded = np.zeros((count, 768), np.float32)
    padded[:, :701] = array
    expected = padded.reshape(count // 8, 8, 6, 128).transpose(0, 2, 1, 3).reshape(-1)
    packed = fi.pack(array, tiled, threads=threads)
    rows, columns = np.arange(count)[:, None], np.arange(701)
    slots = fi.linear_index(tiled, (rows, columns), threads=threads)
    return bool(
        (packed == expected).all()
        and (packed[slots] == array).all()
        and (fi.relayout(packed, tiled, plain, threads=threads).reshape(count, 701) == array).all()
    )


_FIRST_USE = """
import sys, threading, time
from random import Random
from tests.faults.forks import in_a_fork, works
random, forks = Random({seed}), {forks}
stop, wrong = threading.Event(), []
def busy(first):
    for count in range(first, 1 << 20, 16):
        # Every call plans again.
        if not works(1, 2, count):
            wrong.append(count)
        if stop.is_set():
            return
threads = [threading.Thread(target=busy, args=(600 + 8 * k,)) for k in range(2)]
for thread in threads:
    thread.start()
statuses = []
for number in range(forks):
    time.sleep(random.random() * {seconds})
    statuses.append(in_a_fork(lambda: works(number, 2, random.choice((600, 608, 1600)))))
stop.set()
for thread in threads:
    thread.join()
print(*statuses)
sys.exit(any(statuses) or len(wrong) > 0)
"""


def wrong_in_first_use(seed: int, forks: int, seconds: float) -> str:
    """Fork while two threads make their first calls, and new plans; return what is wrong with the children."""
    program = _FIRST_USE.format(seed=seed, forks=forks, seconds=seconds)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=(forks + 2) * HANG_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "it did not end"
    return f"{done.stdout}{done.stderr[-500:]}" if done.returncode else ""


def in_a_fork(task: Callable[[], bool]) -> int:
    """Return the exit status of a task in a forked child, 3 if it hangs."""
    with warnings.catch_warnings():
        # Python 3.12 and later, and JAX, warn of other threads; that a child works all the same is the point.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        status = 1
        try:
            watchdog = threading.Timer(HANG_SECONDS, os._exit, (3,))
            watchdog.daemon = True
            watchdog.start()
            status = 0 if task() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_a_spawned_child() -> int:
    program = "import sys; from tests.faults.forks import works; sys.exit(0 if works(9, 2) else 2)"
    return subprocess.run([sys.executable, "-c", program], cwd=_ROOT, timeout=HANG_SECONDS).returncode
