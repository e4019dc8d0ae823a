"""Compile every kernel before it is needed, so that no first call has to wait."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any, Protocol

import fastindex.index.kernels.programs
import fastindex.index.kernels.windows  # noqa: F401
from fastindex.algebra.cast_numbers import conversion_code
from fastindex.first_use import PACKAGE_FOLDER
from fastindex.moving.compiled_passes import dispatcher_of
from fastindex.moving.moves.column_gather.plan import ELEMENT_BYTES
from fastindex.moving.numbers import MOST_ROW_DIGITS, PIECES, UNIT_BYTES, VECTOR_WAYS
from fastindex.runtime.kernels import is_missing, registered_kernels
from fastindex.runtime.machine import this_machine
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES
from fastindex.runtime.threads import thread_count

#: What a process that compiles for another one runs.
_COMPILE = "from fastindex.moving.warmup import compile_on_request; compile_on_request()"
_LEAST_KERNELS_OF_A_PROCESS = 4
#: Compilers make reference cycles by the million and keep them; at Python's default of 700, garbage collection takes a
#: sixth of the time.
_ALLOCATIONS_BETWEEN_COLLECTIONS = 20_000


class Progress(Protocol):
    """Receives progress."""

    def start(self, total: int) -> None:
        """Receive the number of kernels."""

    def advance(self, count: int) -> None:
        """Receive how many have been compiled since the last call."""


def warm_up(progress: Progress | None = None) -> int:
    """Compile every kernel for the CPU, or load it from the cache on disk, where the next process finds it.

    Missing kernels are compiled in as many processes as this one may use processors. Where no cache folder can
    be written, this process compiles alone, and only for itself.

    Parameters
    ----------
    progress : Progress, optional

    Returns
    -------
    int
        How many kernels there are.
    """
    kernels = every_kernel()
    missing = [name for name, kernel in kernels.items() if is_missing(*kernel)]
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
    for name, (dispatcher, signature) in kernels.items():
        dispatcher.compile(signature)
        finish(name)
    return len(kernels)


def every_kernel() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the dispatcher and the signature of every kernel, by a name that is the same in every process."""
    named = {dispatcher.__name__: (dispatcher, signature) for dispatcher, signature in registered_kernels()}
    return named | {" ".join(map(str, key)): dispatcher_of(*key) for key in relayout_kernels()}


def _compile_elsewhere(names: Sequence[str], processes: int, finish: Callable[[str], None]) -> None:
    """Have other processes compile kernels and keep them; what fails there is left to the caller."""
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
            # An interrupted caller waits for no more than what is being compiled.
            waiting.clear()


def compile_on_request() -> None:
    """Compile the kernels of `every_kernel` whose names come on stdin, a line each; answer each by its line."""
    kernels = every_kernel()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    for line in sys.stdin:
        dispatcher, signature = kernels[line.strip()]
        dispatcher.compile(signature)
        sys.stdout.write(line)
        sys.stdout.flush()


#: The casts of weights and images; others are compiled when they are first used.
CASTS = (
    *(("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("f16", "f32"), ("f16", "bf16"), ("bf16", "f16")),
    *(("u8", "f32"), ("s8", "f32"), ("u8", "bf16"), ("s8", "bf16"), ("f32", "s8"), ("f32", "narrow")),
    *(("byte", "two bytes"), ("byte", "four bytes")),
)


def relayout_kernels() -> Iterator[tuple[str, int, int]]:
    """Yield the name, width and variant of every kernel that a relayout may call, as `dispatcher_of` takes them.

    Examples
    --------
    >>> ("transpose", 4, 0) in set(relayout_kernels())
    True
    """
    # Those that take longest to compile come first, so that no process is left with one at the end.
    for width in UNIT_BYTES:
        yield "transpose", width, 0
    for kernel, of_widths in VECTOR_WAYS.items():
        for width, numbers in of_widths.items():
            for ways in numbers:
                yield kernel, width, ways
    yield "interleave", 1, 0
    yield "deinterleave", 1, 0
    vector_bytes = this_machine().target.vector_bytes
    pieces = PIECES if vector_bytes == LINE_BYTES else (LANE_BYTES,)
    for piece_bytes, row_digits in itertools.product(pieces, range(MOST_ROW_DIGITS, 0, -1)):
        yield "swap digits", piece_bytes, row_digits
    for nibbles in (1, 2):
        yield "block permute", vector_bytes, nibbles
    for width in ELEMENT_BYTES:
        yield "column gather", width, 1
    yield "column gather", 1, 2
    for pair in CASTS:
        yield "cast", conversion_code(*pair), 0
    for name, variant in (("packed runs", 0), ("packed runs", 1)):
        yield name, 1, variant
    for name in ("boxes", "copy", "strided", "gather pieces", "fill", "pair nibbles"):
        yield name, 1, 0
