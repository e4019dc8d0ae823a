"""Compile every kernel in advance, so that no first call has to wait."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import MappingProxyType

from fastindex.errors import FastIndexError
from fastindex.first_use import PYTHON, child_environment
from fastindex.moving.moves import PASS_KERNELS
from fastindex.runtime.machine import Target, this_machine
from fastindex.runtime.machine_code import CALLED, LEVELS, Level, address, is_missing, target, write_kernel
from fastindex.runtime.numbers import Kernel
from fastindex.runtime.threads import thread_count
from fastindex.terminal import Progress

#: Program of a worker process that compiles kernels.
_COMPILE = "import sys; from fastindex.moving.warmup import compile_on_request; compile_on_request(*sys.argv[1:])"
_LEAST_KERNELS_OF_A_PROCESS = 4
#: Compilers create and keep millions of reference cycles; at Python's default of 700, garbage collection takes a
#: sixth of the time.
_ALLOCATIONS_BETWEEN_COLLECTIONS = 20_000


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


def warm_up_for(levels: Sequence[Level], folder: Path, progress: Progress | None = None) -> int:
    """Compile every kernel for other processors, into a folder from which they load.

    Parameters
    ----------
    levels : sequence of Level
    folder : Path
        `COMPILED_FOLDER` of the package that loads the kernels, or what is copied there.
    progress : Progress, optional

    Returns
    -------
    int
        How many kernels there are, of all levels.

    Raises
    ------
    OSError
        The folder cannot be written.
    FastIndexError
        A kernel does not compile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kernels = {level: list(every_kernel(Target.of(level.instructions).vector_bytes)) for level in levels}
    total = sum(map(len, kernels.values()))
    if progress is not None:
        progress.start(total)
    for level, names in kernels.items():
        _compile_level(level, names, folder, progress)
    return total


def _compile_level(level: Level, names: Sequence[str], folder: Path, progress: Progress | None) -> None:
    missing = set(names)

    def finish(name: str) -> None:
        missing.discard(name)
        if progress is not None:
            progress.advance(1)

    _compile_elsewhere(names, thread_count(), finish, [level.name, str(folder)], level.variables)
    if missing:
        raise FastIndexError(
            f"{len(missing)} kernels for {level.name} were not compiled, or not written to {folder}: "
            f"{', '.join(sorted(missing)[:3])} ..."
        )


def every_kernel(vector_bytes: int | None = None) -> dict[str, Kernel]:
    """Return every kernel by a name that is the same in every process.

    Parameters
    ----------
    vector_bytes : int, optional
        Of the processor that they are for, as in `Target`; without it, this one.
    """
    found = relayout_kernels(vector_bytes)
    return CALLED | {" ".join(map(str, (name, *key))): PASS_KERNELS[name].of(*key) for name, *key in found}


def _compile_elsewhere(
    names: Sequence[str],
    processes: int,
    finish: Callable[[str], None],
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Have worker processes compile and cache kernels; the caller compiles what fails there."""
    waiting, lock = deque(names), Lock()

    def drive() -> None:
        with (
            suppress(BrokenPipeError, IndexError),
            subprocess.Popen(
                [*PYTHON, "-c", _COMPILE, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment(variables),
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


def compile_on_request(level: str = "", folder: str = "") -> None:
    """Compile the kernels of `every_kernel` whose names come on stdin, a line each; answer each by its line.

    With a level, they are written to a folder and not loaded; the process was started with the level's `variables`.
    """
    if level:
        from fastindex.runtime.kernels import machine_code
    kernels = every_kernel()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)
    for line in sys.stdin:
        kernel = kernels[line.strip()]
        if level:
            write_kernel(
                Path(folder), kernel, machine_code(kernel, LEVELS[level].on(target()[0])), LEVELS[level].target
            )
        else:
            address(kernel)
        sys.stdout.write(line)
        sys.stdout.flush()


def relayout_kernels(vector_bytes: int | None = None) -> Iterator[tuple[str, int, int]]:
    """Yield the name, width and variant of every kernel that a relayout may call, as for `pass_kernel`.

    Examples
    --------
    >>> ("transpose", 4, 0) in set(relayout_kernels())
    True
    """
    vector_bytes = vector_bytes or this_machine().target.vector_bytes
    for one in PASS_KERNELS.values():
        for width, variant in one.compiled_at_first(vector_bytes):
            yield one.name, width, variant
