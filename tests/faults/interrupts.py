"""Interrupts at random moments: of the first call of a process, and of long calls.

``python -m tests.faults.interrupts SEED TIMES THREADS`` interrupts long calls, and prints how many calls were made, how
many of them an interrupt ended, and how many it ended in the middle of the work. Calls continue until there is at least
one of the last. After an interrupted call, `out` holds new values and values from before, nothing else, and no further
writes happen.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastindex as fi
import fastindex.runtime.machine_code
from fastindex.moving import pass_threads
from fastindex.runtime.numbers import ASLEEP, JOB, WAITING
from tests.cases.hangs import HANG_SECONDS
from tests.faults.tally import Tally

_ROOT = Path(__file__).resolve().parents[2]
#: In one process.
_LONG_CALLS = 24
_ROWS, _COLUMNS = 4095, 4090
_PLAIN, _TILED = f"f32[{_ROWS},{_COLUMNS}]", f"f32[{_ROWS},{_COLUMNS}]{{1,0:T(8,128)}}"
_HALVES = "u4[8192,8192]{1,0:E(4)}", "u4[8192,8192]{0,1:E(4)}"
#: Short, so that calls of some milliseconds have several.
_SLICE_NANOSECONDS = 200_000

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
    command = [sys.executable, "-m", "tests.faults.interrupts", *map(str, (seed, times, threads))]
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


class Interrupt(KeyboardInterrupt):
    """What the handler raises."""


def _interrupt(*_: object) -> None:
    raise Interrupt


#: What is called with `out` and `threads`; an array like `out`; what it holds in the end.
Case = tuple[Callable[[Any, int], object], NDArray[Any]]


def cases() -> dict[str, Case]:
    """Return the calls by name."""
    values = (np.arange(_ROWS * _COLUMNS, dtype=np.int64) & 0xFFFFF).astype(np.float32).reshape(_ROWS, _COLUMNS)
    padded = np.full((4096, 4096), 3, np.float32)
    padded[:_ROWS, :_COLUMNS] = values
    tiles = padded.reshape(512, 8, 32, 128).transpose(0, 2, 1, 3).reshape(-1)
    flat, columns = values.reshape(-1), np.ascontiguousarray(values.T)
    nibbles = np.random.default_rng(1).integers(0, 255, 1 << 25, np.uint8)
    digits = np.stack((nibbles & 15, nibbles >> 4), -1).reshape(8192, 8192).T.reshape(-1, 2)
    turned = digits[:, 0] | digits[:, 1] << 4
    plan = fi.plan_relayout(_PLAIN, f"{_PLAIN}{{0,1}}")
    return {
        "a plan": (lambda out, threads: plan(flat, out=out, threads=threads), columns.reshape(-1)),
        "relayout": (lambda out, threads: fi.relayout(flat, _PLAIN, _TILED, 3, out=out, threads=threads), tiles),
        "relayout of halves": (lambda out, threads: fi.relayout(nibbles, *_HALVES, out=out, threads=threads), turned),
        "pack": (lambda out, threads: fi.pack(columns.T, _TILED, 3, out=out, threads=threads), tiles),
        "unpack": (lambda out, threads: fi.unpack(tiles, _TILED, out=out, threads=threads), values),
        "copyto": (lambda out, threads: fi.numpy.copyto(out, values.T, threads=threads), columns),
    }


def are_idle() -> bool:
    """Whether no helper belongs to a call."""
    helpers = pass_threads._pool.helpers
    return all(one.fields[JOB.owner] == 0 and one.fields[JOB.state] in (WAITING, ASLEEP) for one in helpers)


def interrupted(case: Case, out: NDArray[Any], seconds: float, threads: int) -> bool | None:
    """Interrupt a call after some seconds; return whether it has done a part of its work, None if it did all of it."""
    call, expected = case
    before: Any = out.dtype.type(255)
    out[...] = before
    has_ended = False
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        call(out, threads)
        has_ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        assert are_idle(), "a helper belongs to a call that has raised"
    if has_ended:
        assert np.array_equal(out, expected), "wrong values"
        return None
    old, new = out == before, out == expected
    assert (old | new).all(), "neither what was there nor new values"
    is_part = bool((old & ~new).any() and (new & ~old).any())
    out[...] = later = out.dtype.type(254)
    time.sleep(0.001)
    assert (out == later).all(), "a thread writes after the call has raised"
    return is_part


def main() -> None:
    seed, times, threads = (int(text) for text in sys.argv[1:])
    pass_threads._SLICE_NANOSECONDS = _SLICE_NANOSECONDS
    signal.signal(signal.SIGALRM, _interrupt)
    generator, chosen = random.Random(seed), cases()
    outs = {name: np.empty_like(expected) for name, (_, expected) in chosen.items()}
    cut = parts = 0
    seconds = {}
    for name, (call, expected) in chosen.items():
        for _ in range(2):
            begin = time.perf_counter()
            call(outs[name], threads)
            seconds[name] = time.perf_counter() - begin
        assert np.array_equal(outs[name], expected), name
    number = -1
    while number + 1 < times or not parts:
        number += 1
        name = [*chosen][number % len(chosen)]
        # As long as the call takes here and now, at most.
        is_part = interrupted(chosen[name], outs[name], generator.random() * seconds[name] + 1e-4, threads)
        cut += is_part is not None
        parts += bool(is_part)
        if is_part is not None and number % 4 == 0:
            chosen[name][0](outs[name], threads)
            assert np.array_equal(outs[name], chosen[name][1]), f"{name} after an interrupt"
    sys.stdout.write(f"{number + 1} {cut} {parts}\n")


if __name__ == "__main__":
    main()
