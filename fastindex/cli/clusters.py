"""The options `--workers` and `--scheduler`: jobs on Zarr stores in several processes or on several machines."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fastindex.cli.group import ProgressBar
from fastindex.cli.process import signals_raised, stopped_by_signals

if TYPE_CHECKING:
    from fastindex.core.shape import Shape

Command = TypeVar("Command", bound=Callable[..., Any])

#: The interpreter, Dask and the kernels take about 200 MiB.
_LEAST_WORKER_MEMORY = 384 << 20
_PATIENCE_SECONDS = 30
#: A worker that has been lost for this long is replaced.
_LOST_AFTER_SECONDS = 3
_MOST_STARTS = 3
_LONGEST_END_SECONDS = 5.0


def cluster_options(command: Command) -> Command:
    """Add the options; the command gets `workers` and `scheduler`, None without them."""
    named = click.option("--scheduler", metavar="ADDRESS", help="Dask scheduler whose workers run the job (.zarr).")
    counted = click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Run the job in N processes, which share --max-memory (.zarr).",
    )
    return named(counted(command))


def done_by_workers(
    job: str,
    paths: tuple[str, str],
    shapes: tuple[Shape, ...],
    max_memory: int,
    cluster: tuple[int | None, str | None],
    **cast: Any,
) -> bool:
    """Run a job on workers if the options ask for it; return whether they do.

    Parameters
    ----------
    job : {"pack", "unpack", "relayout"}
    paths : tuple of str
        The stores to read and to write.
    shapes : tuple of Shape
    max_memory : int
        Shared by all workers that are started here.
    cluster : tuple
        The values of `--workers` and `--scheduler`.
    **cast
        The casting rule, and the target type.
    """
    workers, scheduler = cluster
    if workers is None and scheduler is None:
        return False
    with _connected(workers, scheduler, paths, max_memory) as client, ProgressBar(job) as progress:
        _run(job, (*paths, *shapes, progress, client), scheduler, cast)
    return True


def _run(job: str, arguments: tuple[Any, ...], scheduler: str | None, cast: dict[str, Any]) -> None:
    from distributed.client import CancelledError
    from distributed.scheduler import KilledWorker

    from fastindex.jobs import cluster_jobs

    run: Callable[..., None] = getattr(cluster_jobs, f"{job}_store")
    client = arguments[-1]
    try:
        run(*arguments, **cast)
    except KilledWorker as error:
        raise click.ClickException(
            f"one task ended several workers, most likely for lack of memory; give each more: {error}"
        ) from None
    except (OSError, CancelledError, TimeoutError) as error:
        if isinstance(error, CancelledError) or client.status != "running":
            where = f"at {scheduler}" if scheduler else "of the workers"
            raise click.ClickException(f"the scheduler {where} was lost; nothing was written") from None
        raise


@contextmanager
def _connected(workers: int | None, scheduler: str | None, paths: tuple[str, str], max_memory: int) -> Iterator[Any]:
    """Connect to the workers; those started here end with the job.

    Raises
    ------
    click.UsageError
        Both options, files that are not Zarr stores, too little memory, or libraries are missing.
    """
    if workers is not None and scheduler is not None:
        raise click.UsageError("--workers and --scheduler: give one of them")
    for path in paths:
        if not path.rstrip("/").endswith(".zarr"):
            raise click.UsageError(f"--workers and --scheduler take Zarr stores; {path} does not end in .zarr")
    missing = [name for name in ("dask", "distributed", "zarr") if find_spec(name) is None]
    if missing:
        raise click.UsageError(f"{', '.join(missing)} not installed: pip install 'fastindex[dask,zarr]'")
    if workers is not None and max_memory < workers * _LEAST_WORKER_MEMORY:
        raise click.UsageError(
            f"--max-memory: {max_memory} bytes are too little for {workers} workers; give at least "
            f"{workers * _LEAST_WORKER_MEMORY >> 20}MiB"
        )
    if workers is not None:
        with _own_workers(workers, paths[1], max_memory) as client:
            yield client
        return
    from distributed import Client

    try:
        client = Client(scheduler, timeout=_PATIENCE_SECONDS)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"no scheduler at {scheduler}: {error}") from None
    # Workers of another owner are asked to stop, never killed.
    with _logs_silenced(), client, signals_raised():
        yield client


@contextmanager
def _logs_silenced() -> Iterator[None]:
    """Silence library logs, some with tracebacks, of errors that are reported anyway."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        # Tasks left by a lost connection log when they are collected.
        gc.collect()
        logging.disable(before)


@contextmanager
def _own_workers(workers: int, target: str, max_memory: int) -> Iterator[Any]:
    """Start workers that end with the block, however it ends."""
    import dask
    from distributed import Client

    from fastindex.jobs.writing import removed_unless_finished

    # Spilled data goes next to the target, whose disk has to hold as much anyway.
    beside = dask.config.get("temporary-directory", None) or os.path.dirname(os.path.abspath(target))
    with dask.config.set({"distributed.deploy.lost-worker-timeout": f"{_LOST_AFTER_SECONDS}s"}):
        scratch = tempfile.mkdtemp(prefix=f".{os.path.basename(target)[:200]}.", suffix=".partial", dir=beside)
        with removed_unless_finished(Path(scratch)), stopped_by_signals(_kill_children):
            try:
                with (
                    _logs_silenced(),
                    _cluster(workers, max_memory // workers, scratch) as local,
                    _lost_replaced(local, workers),
                    Client(local) as client,
                ):
                    _warm_up(client)
                    yield client
            finally:
                shutil.rmtree(scratch, ignore_errors=True)


def _cluster(workers: int, memory: int, scratch: str) -> Any:
    """Start the workers; retry if one is lost during start-up."""
    loop = _loop_without_interrupts()
    for attempt in range(1, _MOST_STARTS + 1):
        try:
            return cluster_type()(
                n_workers=workers,
                threads_per_worker=1,
                memory_limit=memory,
                dashboard_address="127.0.0.1:0",
                local_directory=scratch,
                silence_logs="CRITICAL",
                loop=loop,
            )
        except (RuntimeError, OSError, TimeoutError) as error:
            if attempt == _MOST_STARTS:
                reason = str(error) or type(error).__name__
                raise click.ClickException(f"{workers} workers could not be started: {reason}") from None
    raise AssertionError


def cluster_type() -> Any:
    """Return Distributed's local cluster class, fixed to close after the loss of a worker that it did not know yet.

    Distributed looks up the worker's name, fails, stops receiving worker updates, and raises a KeyError on close.
    """
    from distributed import LocalCluster

    class Cluster(LocalCluster):  # type: ignore[misc]
        def _update_worker_status(self, op: str, msg: Any) -> None:
            with suppress(KeyError):
                super()._update_worker_status(op, msg)

    return Cluster


def _warm_up(client: Any) -> None:
    """Load kernels on all workers; the scheduler does so on each new one too, even if one is lost meanwhile."""
    from fastindex.dask.warming import WarmUp

    for _ in range(_MOST_STARTS):
        with suppress(OSError):
            client.register_plugin(WarmUp())
            return


def _loop_without_interrupts() -> Any:
    """Start a loop in a thread that blocks SIGINT; workers inherit the mask and print no tracebacks on Ctrl-C."""
    from multiprocessing import resource_tracker

    from distributed.utils import LoopRunner

    runner = LoopRunner(asynchronous=False)
    if not hasattr(signal, "pthread_sigmask"):
        runner.start()
        return runner.loop
    # Otherwise the thread that starts the first child would start the tracker too, which unblocks SIGINT there.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        runner.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return runner.loop


def _kill_children() -> None:
    """Kill the child processes, and prevent the start of new ones."""
    import multiprocessing.util

    import psutil

    def wait(*arguments: Any) -> None:
        threading.Event().wait()

    # Other threads start children, and do not know yet that the process is ending.
    vars(multiprocessing.util)["spawnv_passfds"] = wait
    process, deadline = psutil.Process(), time.monotonic() + _LONGEST_END_SECONDS
    while (children := _running(process.children(recursive=True))) and time.monotonic() < deadline:
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, timeout=1)


def _running(processes: list[Any]) -> list[Any]:
    """Return the processes that have not ended; a zombie is still a child until it is waited for."""
    import psutil

    running = []
    for process in processes:
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


@contextmanager
def _lost_replaced(local: Any, workers: int) -> Iterator[None]:
    """Restart workers that die during start-up; Distributed does not."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOST_AFTER_SECONDS):
            with suppress(Exception):
                local.scale(workers)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
