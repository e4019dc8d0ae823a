"""A Dask worker plugin that makes kernels ready before the first task."""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import Any

from distributed import WorkerPlugin


class WarmUp(WorkerPlugin):  # type: ignore[misc]
    """Worker plugin that compiles the kernels, or loads them from the cache on disk, at worker start.

    Workers on one machine share the cache and a lock: the first one compiles, the others load. Without the plugin, the
    first tasks of a worker wait for their kernels.

    Examples
    --------
    >>> from distributed import Client, LocalCluster
    >>> import fastindex.dask
    >>> client = Client(LocalCluster(n_workers=2))  # doctest: +SKIP
    >>> client.register_plugin(fastindex.dask.WarmUp())  # doctest: +SKIP
    """

    name = "fastindex-warm-up"

    async def setup(self, worker: Any) -> None:
        """Compile or load the kernels in a thread, so that the worker stays responsive to the scheduler."""
        await asyncio.to_thread(_warm_up_in_turn)


def _warm_up_in_turn() -> None:
    import fcntl

    from fastindex.moving.warmup import warm_up

    path = os.path.join(tempfile.gettempdir(), f"fastindex-warm-up-{os.getuid()}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        warm_up()
    finally:
        os.close(descriptor)
