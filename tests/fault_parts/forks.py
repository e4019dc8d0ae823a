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

import fastindex as fi
from tests.fault_parts.tally import Tally

_ROOT = Path(__file__).resolve().parents[2]
_PLAIN, _TILED = "f32[600,701]", "f32[600,701]{1,0:T(8,128)}"
#: One in so many children is spawned: a fresh process takes a second.
_SPAWNED = 25
#: A child that takes longer hangs.
_SECONDS = 60


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
            is_spawned = number % _SPAWNED == 0
            row = "children spawned under load" if is_spawned else "children forked under load"
            tally.begin(row)
            status = _in_a_spawned_child() if is_spawned else _in_a_fork(lambda seed=number: works(seed, 2))
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


def works(seed: int, threads: int) -> bool:
    """Whether packing, indices, and unpacking give what NumPy says they do: rows and columns of tiles."""
    array = np.random.default_rng(seed).random((600, 701), np.float32)
    padded = np.zeros((600, 768), np.float32)
    padded[:, :701] = array
    expected = padded.reshape(75, 8, 6, 128).transpose(0, 2, 1, 3).reshape(-1)
    packed = fi.pack(array, _TILED, threads=threads)
    rows, columns = np.arange(600)[:, None], np.arange(701)
    slots = fi.linear_index(_TILED, (rows, columns), threads=threads)
    return bool(
        (packed == expected).all()
        and (packed[slots] == array).all()
        and (fi.relayout(packed, _TILED, _PLAIN, threads=threads).reshape(600, 701) == array).all()
    )


def _in_a_fork(task: Callable[[], bool]) -> int:
    with warnings.catch_warnings():
        # Python 3.12 and later warn of other threads; that a child works all the same is the point.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        status = 1
        try:
            watchdog = threading.Timer(_SECONDS, os._exit, (3,))
            watchdog.daemon = True
            watchdog.start()
            status = 0 if task() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_a_spawned_child() -> int:
    program = "import sys; from tests.fault_parts.forks import works; sys.exit(0 if works(9, 2) else 2)"
    return subprocess.run([sys.executable, "-c", program], cwd=_ROOT, timeout=_SECONDS).returncode
