"""Processes that end while their daemon threads are in calls: the status is that of the main thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cases.hangs import HANG_SECONDS
from tests.faults.tally import Tally

_ROOT = Path(__file__).resolve().parents[2]
_ROW = "processes that end while daemon threads are in calls"

#: What daemon threads call, over and over.
CALLS = {
    "pack": "fi.pack(array, TILED, threads=threads)",
    "unpack": "fi.unpack(packed, TILED, threads=threads)",
    "relayout": "fi.relayout(packed, TILED, PLAIN, threads=threads)",
    "a plan": "plan(packed, out=moved, threads=threads)",
    "a small plan": "small(array.reshape(-1)[:4096], out=few, threads=threads)",
    "ascontiguousarray": "fi.numpy.ascontiguousarray(array.T)",
    "copyto": "fi.numpy.copyto(turned, array.T)",
    "linear_index": "fi.linear_index(TILED, (rows, columns), threads=threads)",
    "multi_index": "fi.multi_index(TILED, slots, threads=threads)",
    "a window": "fi.linear_index(TILED, np.s_[1:, ::2], threads=threads)",
    "slot by slot": "fi.pack(array, 'f32[3000,3001]{0,1:T(7,5)(3,2)}', threads=threads)",
    "a new plan": "(n := next(sizes), fi.pack(array[:n], f'f32[{n},3001]{{0,1:T(8,128)}}', threads=threads))",
}
#: How the main thread ends, and the status then.
ENDINGS = {"": 0, "sys.exit(7)": 7, "raise ValueError(7)": 1, "os.kill(os.getpid(), signal.SIGINT)": -2}

_PROGRAM = """
import itertools, os, signal, sys, threading, time
import numpy as np
import fastindex as fi
PLAIN, TILED = "f32[3000,3001]", "f32[3000,3001]{{0,1:T(8,128)}}"
threads, sizes = {threads}, itertools.cycle(range(200, 1000))
array = np.zeros((3000, 3001), np.float32)
packed, turned = np.zeros(fi.Shape.parse(TILED).slot_count, np.float32), np.empty((3001, 3000), np.float32)
rows, columns, slots = np.arange(3000)[:, None], np.arange(3001), np.arange(3000)
moved, few = np.empty(3000 * 3001, np.float32), np.empty(4096, np.float32)
plan, small = fi.plan_relayout(TILED, PLAIN), fi.plan_relayout("f32[64,64]", "f32[64,64]{{0,1}}")
if {loaded}:
    {call}
begun = threading.Barrier({callers} + 1)
def loop():
    begun.wait()
    while True:
        {call}
for _ in range({callers}):
    threading.Thread(target=loop, daemon=True).start()
begun.wait()
time.sleep({seconds})
{ending}
"""


def wrong_end(
    call: str, ending: str, seconds: float, *, threads: int | None = None, callers: int = 1, loaded: bool = True
) -> str:
    """Return what is wrong with the end of a process whose daemon threads make calls; nothing if nothing is."""
    program = _PROGRAM.format(
        call=CALLS[call], ending=ending, seconds=seconds, threads=threads, callers=callers, loaded=loaded
    )
    command = [sys.executable, "-c", program]
    # Memory of this size is then unmapped as soon as it is freed, so that no access to it goes unnoticed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    try:
        done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        return "it did not end"
    if done.returncode != ENDINGS[ending]:
        return f"ended with {done.returncode}, not {ENDINGS[ending]}: {done.stderr[-500:]}"
    if "Exception in thread" in done.stderr or ("ValueError: 7" in done.stderr) != ("raise" in ending):
        return f"said {done.stderr[-500:]}"
    return ""


def run(tally: Tally) -> None:
    """End processes until the time is over."""
    while tally.going():
        call, ending = tally.random.choice([*CALLS]), tally.random.choice([*ENDINGS])
        seconds, threads = tally.random.random() * 0.6, tally.random.choice((None, 1, 2, 3))
        callers, loaded = tally.random.choice((1, 1, 2, 3)), tally.random.random() < 0.7
        case = f"{call}, {ending or 'the end'} after {seconds:.3f} s, threads={threads}, callers={callers}, {loaded=}"
        tally.begin(case)
        wrong = wrong_end(call, ending, seconds, threads=threads, callers=callers, loaded=loaded)
        tally.count(_ROW)
        if wrong:
            tally.find(_ROW, f"{wrong}; {case}")
        tally.save()
