"""Compile every kernel in advance, so that no first call has to wait."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Protocol

from fastindex.first_use import PACKAGE_FOLDER
from fastindex.moving.kernels.registry import PASS_KERNELS
from fastindex.runtime.machine import this_machine
from fastindex.runtime.machine_code import CALLED, address, is_missing
from fastindex.runtime.numbers import Kernel
from fastindex.runtime.threads import thread_count

#: Program of a worker process that compiles kernels.
_COMPILE = "from fastindex.moving.warmup import compile_on_request; compile_on_request()"
_LEAST_KERNELS_OF_A_PROCESS = 4
#: Compilers create and keep millions of reference cycles; at Python's default of 700, garbage collection takes a
#: sixth of the time.
_ALLOCATIONS_BETWEEN_COLLECTIONS = 20_000


class Progress(Protocol):
    """Receiver of progress."""

    def start(self, total: int) -> None:
        """Receive the total number of kernels."""

    def advance(self, count: int) -> None:
        """Receive the number of kernels compiled since the last call."""


def warm_up(progress: Progress | None = None) -> int:
    """Compile every kernel for the CPU into the disk cache, or load it from there.

    Missing kernels are compiled in one process per processor that this process may use. Where no cache folder is
    writable, this process compiles alone and keeps the kernels in memory only.

    Parameters
    ----------
    progress : Progress, optional

    Returns
    -------
    int
        The number of kernels.
    """
    kernels = every_kernel()
    missing = [name for name, kernel in kernels.items() if is_missing(kernel)]
    finished: set[str] = set()

    def finish(name: str) -> None:
        if progress is not None and name not in finished:
            progress.advance(1)
        finished.add(name)

    if progress is not None:
        progress.start(len(kernels))
    processes = min(thread_count(), len(missing) // _LEAST_KERNELS_OF_A_PROCESS)
    if processes > 1 and sys.executable:
        _compile_elsewhere(missing, processes, finish)
    for name, kernel in kernels.items():
        address(kernel)
        finish(name)
    return len(kernels)


def every_kernel() -> dict[str, Kernel]:
    """Return every kernel by name; names are the same in every process."""
    passes = {" ".join(map(str, (name, *key))): PASS_KERNELS[name].of(*key) for name, *key in relayout_kernels()}
    return CALLED | passes


def _compile_elsewhere(names: Sequence[str], processes: int, finish: Callable[[str], None]) -> None:
    """Compile kernels into the disk cache in worker processes; kernels that fail there are left to the caller."""
    folder = os.path.dirname(PACKAGE_FOLDER)
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    waiting, lock = deque(names), Lock()

    def drive() -> None:
        with (
            suppress(BrokenPipeError, IndexError),
            subprocess.Popen(
                [sys.executable, "-P", "-c", _COMPILE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                text=True,
            ) as child,
        ):
            questions, answers = child.stdin, child.stdout
            assert questions is not None
            assert answers is not None
            while True:
                name = waiting.popleft()
                questions.write(f"{name}\n")
                questions.flush()
                if not answers.readline():
                    return
                with lock:
                    finish(name)

    with ThreadPoolExecutor(processes) as drivers:
        try:
            for job in [drivers.submit(drive) for _ in range(processes)]:
                job.result()
        finally:
            # After an interrupt, wait only for the kernels that are being compiled.
            waiting.clear()


def compile_on_request() -> None:
    """Compile kernels of `every_kernel` named on stdin, one per line; echo each line once its kernel is compiled."""
    kernels = every_kernel()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    for line in sys.stdin:
        address(kernels[line.strip()])
        sys.stdout.write(line)
        sys.stdout.flush()


def relayout_kernels() -> Iterator[tuple[str, int, int]]:
    """Yield the name, width and variant of every kernel that a relayout may call, as `pass_kernel` takes them.

    Examples
    --------
    >>> ("transpose", 4, 0) in set(relayout_kernels())
    True
    """
    vector_bytes = this_machine().target.vector_bytes
    for one in PASS_KERNELS.values():
        for width, variant in one.compiled_at_first(vector_bytes):
            yield one.name, width, variant
