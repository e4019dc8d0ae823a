"""Interrupts at random moments: of the first call of a process, and of long calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cases.hangs import HANG_SECONDS
from tests.fault_parts.tally import Tally

_ROOT = Path(__file__).resolve().parents[2]
#: In one process.
_LONG_CALLS = 24

_FIRST_USE = """
import signal, sys, time
import numpy as np
import fastindex as fi
class Interrupt(KeyboardInterrupt):
    pass
def interrupt(*_):
    raise Interrupt
signal.signal(signal.SIGALRM, interrupt)
array = np.random.default_rng(1).random((600, 701), np.float32)
padded = np.zeros((600, 768), np.float32)
padded[:, :701] = array
expected = padded.reshape(75, 8, 6, 128).transpose(0, 2, 1, 3)
rows, columns = np.arange(600)[:, None], np.arange(701)
def call():
    packed = fi.pack(array, "f32[600,701]{{1,0:T(8,128)}}", threads=2)
    assert np.array_equal(packed, expected.reshape(-1))
    slots = fi.linear_index("f32[600,701]{{1,0:T(8,128)}}", (rows, columns), threads=2)
    assert np.array_equal(packed[slots], array)
cut = 0
for seconds in {delays}:
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        cut += 1
call()
print(cut)
"""


def wrong_after_interrupts(delays: list[float]) -> tuple[str, int]:
    """Interrupt the first calls of a process, each after some seconds; return what is wrong, and how many were cut."""
    command = [sys.executable, "-c", _FIRST_USE.format(delays=delays)]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        return "it did not end", 0
    if done.returncode or done.stderr:
        return f"ended with {done.returncode}: {done.stderr[-1500:]}", 0
    return "", int(done.stdout)


def wrong_in_long_calls(seed: int, times: int, threads: int) -> tuple[str, int, int]:
    """Interrupt long calls in a process; return what is wrong, how many were ended, and how many in the middle."""
    command = [sys.executable, "-m", "tests.fault_parts.long_calls", *map(str, (seed, times, threads))]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        return "it did not end", 0, 0
    if done.returncode or done.stderr:
        return f"ended with {done.returncode}: {done.stderr[-1500:]}", 0, 0
    _, cut, parts = map(int, done.stdout.split())
    return "", cut, parts


def run(tally: Tally) -> None:
    """Interrupt until the time is over."""
    row, long_row = "first calls after interrupted ones", "long calls that are interrupted"
    while tally.going():
        delays = [tally.random.random() * 0.7 + 1e-4 for _ in range(3)]
        tally.begin(f"{row}: {delays}")
        wrong, cut = wrong_after_interrupts(delays)
        tally.count(row, 1, cut)
        if wrong:
            tally.find(row, f"{wrong}; after {delays} s")
        tally.save()
        arguments = tally.random.randrange(1 << 30), _LONG_CALLS, tally.random.randint(1, 3)
        tally.begin(f"{long_row}: seed, times, threads {arguments}")
        wrong, cut, _ = wrong_in_long_calls(*arguments)
        tally.count(long_row, _LONG_CALLS, cut)
        if wrong:
            tally.find(long_row, f"{wrong}; seed, times, threads {arguments}")
        tally.save()
