"""A worker of a Dask cluster killed at a random moment of a job on Zarr stores: the right target, or an error and none.

Its work is done again by the other worker, and by the one that takes its place.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastindex.terminal import NoProgress
from tests.cases.hangs import HANG_SECONDS
from tests.faults.stores import StoreJob, bytes_of, make_source, store_jobs
from tests.faults.tally import Tally

#: Two processes take some seconds to start.
_LEAST_SECONDS = 20
#: Of a worker that was killed, and is started again.
_LONGEST_START_SECONDS = 20
_ROW = "Dask workers killed in the middle of a job"


def run(tally: Tally) -> None:
    """Kill workers until the time is over."""
    missing = [name for name in ("dask", "distributed", "zarr") if find_spec(name) is None]
    if missing:
        tally.skip(f"{', '.join(missing)} not installed")
        return
    if tally.seconds < _LEAST_SECONDS:
        tally.skip(f"it needs {_LEAST_SECONDS} seconds, and has {tally.seconds:.0f}")
        return
    with tempfile.TemporaryDirectory(prefix="fastindex-faults-") as name:
        jobs = store_jobs()
        for number, job in enumerate(jobs):
            make_source(job, Path(name) / f"{number}.zarr")
        while tally.going():
            _run_cluster(tally, jobs, Path(name))


def _run_cluster(tally: Tally, jobs: list[StoreJob], folder: Path) -> None:
    """Kill workers of a cluster until the time is over, or one does not come back.

    Distributed gives a worker up that is killed while it starts.
    """
    from distributed import Client

    from fastindex import Shape
    from fastindex.cli.clusters import cluster_type
    from fastindex.jobs import cluster_jobs

    # Blocks of some rows, so that there are many tasks.
    cluster_jobs._LEAST_TASK_BYTES = cluster_jobs._MOST_TASK_BYTES = 100_000
    with (
        cluster_type()(
            n_workers=2,
            threads_per_worker=1,
            memory_limit="1GiB",
            dashboard_address="127.0.0.1:0",
            local_directory=str(folder),
            silence_logs="CRITICAL",
        ) as cluster,
        Client(cluster) as client,
    ):
        longest = 0.0
        while tally.going() and (workers := _processes(client)):
            number = tally.random.randrange(len(jobs))
            command = jobs[number].job.arguments
            shapes = [Shape.parse(text) for text in command[3:] if "[" in text]
            target = folder / "target.zarr"
            arguments = (str(folder / f"{number}.zarr"), str(target), *shapes, NoProgress(), client)
            call = partial(getattr(cluster_jobs, f"{command[0]}_store"), *arguments)
            # No process is killed in the first job, which says how long they take.
            delay = tally.random.random() * longest
            victim = tally.random.choice(workers) if longest else None
            case = f"{jobs[number].name}, a worker killed after {1000 * delay:.0f} ms"
            tally.begin(case)
            began = time.monotonic()
            error, killed = _with_a_kill(victim, delay, call)
            longest = longest or time.monotonic() - began
            tally.count(_ROW, int(killed), int(error is not None))
            wrong = _what_is_wrong(target, jobs[number].expected, error)
            if wrong:
                tally.find(_ROW, f"{wrong}; {case}")
            tally.save()


def _with_a_kill(victim: int | None, delay: float, call: Callable[[], None]) -> tuple[BaseException | None, bool]:
    """Call, and kill a process meanwhile; return the error if there is one, and whether there was a process to kill."""
    found: list[BaseException] = []

    def caller() -> None:
        try:
            call()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=caller, daemon=True)
    thread.start()
    killed = False
    if victim is not None:
        time.sleep(delay)
        # Distributed itself restarts a worker that it believes lost, as on a busy machine: the job must bear that too.
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            killed = True
    thread.join(HANG_SECONDS)
    if thread.is_alive():
        raise AssertionError(f"no end after {HANG_SECONDS} s")
    return (found[0] if found else None), killed


def _processes(client: Any) -> list[int]:
    """Return the processes of both workers when they are there again; none if one does not come back."""
    deadline = time.monotonic() + _LONGEST_START_SECONDS
    while time.monotonic() < deadline:
        try:
            client.wait_for_workers(2, timeout=_LONGEST_START_SECONDS)
            return sorted(client.run(os.getpid).values())
        except TimeoutError:
            break
        except OSError:
            # The scheduler has not seen yet that one of them is gone.
            time.sleep(0.2)
    return []


def _what_is_wrong(target: Path, expected: bytes, error: BaseException | None) -> str:
    wrong = []
    if error is not None:
        from distributed.scheduler import KilledWorker

        if not isinstance(error, KilledWorker):
            wrong.append(f"{type(error).__name__}: {error}")
        if target.exists():
            wrong.append("an error, and a target")
    else:
        found = bytes_of(target)
        if found != expected:
            wrong.append(f"the target holds {found if isinstance(found, str) else 'something else'}")
    litter = sorted(path.name for path in target.parent.glob(".*partial*"))
    if litter:
        wrong.append(f"left {litter}")
    for path in (target, *target.parent.glob(".*partial*")):
        shutil.rmtree(path, ignore_errors=True)
    return "; ".join(wrong)
