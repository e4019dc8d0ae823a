"""A plugin for Dask workers: kernels are ready before the first task."""

from __future__ import annotations

from typing import Any

from distributed import WorkerPlugin


class WarmUp(WorkerPlugin):  # type: ignore[misc]
    """Has each worker compile the kernels, or load them from the cache on disk, when it starts.

    Workers on one machine share the cache: the first one compiles, the others load. Without the plugin, the first
    tasks of a worker wait for what they need.

    Examples
    --------
    >>> from distributed import Client, LocalCluster
    >>> import fastindex.dask
    >>> client = Client(LocalCluster(n_workers=2))  # doctest: +SKIP
    >>> client.register_plugin(fastindex.dask.WarmUp())  # doctest: +SKIP
    """

    name = "fastindex-warm-up"

    def setup(self, worker: Any) -> None:
        """Compile or load the kernels."""
        from fastindex.cpu.warmup import warm_up

        warm_up()
