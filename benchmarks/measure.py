"""How everything here is timed: rivals take turns in one process, medians count, memory is touched before."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Run = Callable[[], object]

#: A timed sample lasts at least this long; shorter calls are repeated within it.
LEAST_SAMPLE_SECONDS = 2e-3


def aligned_bytes(nbytes: int, alignment: int = 4096) -> NDArray[np.uint8]:
    """Give uninitialised memory that starts at a page, as a large allocation usually does."""
    block = np.empty(nbytes + alignment, np.uint8)
    begin = -block.ctypes.data % alignment
    return block[begin : begin + nbytes]


def random_bytes(nbytes: int, seed: int = 0) -> NDArray[np.uint8]:
    """Give random bytes in page-aligned memory."""
    data = aligned_bytes(nbytes)
    whole = nbytes // 8 * 8
    generator = np.random.default_rng(seed)
    step = 1 << 24
    for begin in range(0, whole, step):
        end = min(begin + step, whole)
        data[begin:end] = generator.integers(0, 2**64, (end - begin) // 8, np.uint64).view(np.uint8)
    data[whole:] = generator.integers(0, 256, nbytes - whole, np.uint8)
    return data


def touched_bytes(nbytes: int) -> NDArray[np.uint8]:
    """Give page-aligned memory whose pages are already mapped."""
    data = aligned_bytes(nbytes)
    data[:] = 0
    return data


def repeats_for(run: Run) -> int:
    """How often to call within one sample."""
    run()
    begin = time.perf_counter()
    run()
    seconds = max(time.perf_counter() - begin, 1e-9)
    return max(1, min(10_000, round(LEAST_SAMPLE_SECONDS / seconds)))


def sample(run: Run, repeats: int) -> float:
    """Seconds per call."""
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin) / repeats


def medians(rivals: Mapping[str, Run], rounds: int = 7) -> dict[str, float]:
    """Median seconds per call of every rival; they take turns, and each round starts with another one."""
    repeats = {name: repeats_for(run) for name, run in rivals.items()}
    names = list(rivals)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(rounds):
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(sample(rivals[name], repeats[name]))
    return {name: statistics.median(times) for name, times in seconds.items()}


def use_processors(threads: int) -> None:
    """Keep this process, and every thread pool made in it from now on, on `threads` processors."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    if threads > len(allowed):
        raise SystemExit(f"{threads} threads asked for, but only {len(allowed)} processors are allowed")
    os.sched_setaffinity(0, allowed[:threads])
    os.environ["OMP_NUM_THREADS"] = str(threads)


def machine() -> dict[str, Any]:
    """What a table of results has to say about where it was made."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "processor": model,
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
