"""The options `--workers` and `--scheduler`: jobs on Zarr stores that several processes or machines do together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fastindex.cli.progress import ProgressBar

if TYPE_CHECKING:
    from fastindex.shapes.shape import Shape

Command = TypeVar("Command", bound=Callable[..., Any])

#: The interpreter, Dask and the kernels take about 200 MiB.
_LEAST_WORKER_MEMORY = 384 << 20
_PATIENCE_SECONDS = 30


def cluster_options(command: Command) -> Command:
    """Add the options; the command gets `workers` and `scheduler`, None without them."""
    named = click.option("--scheduler", metavar="ADDRESS", help="A Dask scheduler whose workers do it (.zarr).")
    counted = click.option(
        "--workers",
        type=click.IntRange(min=1),
        metavar="N",
        help="Do it in N processes, which share --max-memory (.zarr).",
    )
    return named(counted(command))


def done_by_workers(
    job: str,
    paths: tuple[str, str],
    shapes: tuple[Shape, ...],
    max_memory: int,
    cluster: tuple[int | None, str | None],
) -> bool:
    """Do a job with workers where the options say so; False where they do not.

    Parameters
    ----------
    job : {"pack", "unpack", "relayout"}
    paths : tuple of str
        The stores to read and to write.
    shapes : tuple of Shape
    max_memory : int
        Of all workers that are started here.
    cluster : tuple
        The values of `--workers` and `--scheduler`.
    """
    workers, scheduler = cluster
    if workers is None and scheduler is None:
        return False
    with _connected(workers, scheduler, paths, max_memory) as client, ProgressBar(job) as progress:
        from distributed.scheduler import KilledWorker

        from fastindex.files import cluster_jobs

        run: Callable[..., None] = getattr(cluster_jobs, f"{job}_store")
        try:
            run(*paths, *shapes, progress, client)
        except KilledWorker as error:
            raise click.ClickException(
                f"workers ended again and again at one task, most likely for want of memory; give each more: {error}"
            ) from None
    return True


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
    import dask
    from distributed import Client, LocalCluster

    from fastindex.dask.warming import WarmUp

    if workers is None:
        try:
            client = Client(scheduler, timeout=_PATIENCE_SECONDS)
        except (OSError, ValueError) as error:
            raise click.ClickException(f"no scheduler at {scheduler}: {error}") from None
        with client:
            yield client
        return

    # What does not fit in memory lies beside the target for a while, on a disk that holds as much.
    beside = os.path.dirname(os.path.abspath(paths[1]))
    local = LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        memory_limit=max_memory // workers,
        dashboard_address="127.0.0.1:0",
        local_directory=dask.config.get("temporary-directory", None) or beside,
        silence_logs="ERROR",
    )
    with local, Client(local) as client:
        client.register_plugin(WarmUp())
        yield client
