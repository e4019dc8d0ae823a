"""Times the GPU and not the host: a kernel that spins holds the stream until all calls are queued after it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

Run = Callable[[], object]

#: A sample keeps the GPU busy for at least this long.
LEAST_SAMPLE_SECONDS = 1e-3

_NAP_NANOSECONDS = 100_000

#: How long the GPU is kept busy to see whether a call waits for it; calls are timed that take the host far less.
LEAST_WAIT_SECONDS = 20e-3


class Clock:
    """Seconds of a call on the default stream, from CUDA events.

    Events around a call on an idle GPU would time the host, which takes about as long to start a kernel as the kernel
    takes for 256 MiB. So a spinning kernel goes first, then an event, the calls, and another event; a sample counts
    only if the first event has not happened when the last call is queued.
    """

    def __init__(self, rounds: int) -> None:
        from fastindex.cuda.kernels.device import cuda

        self._cuda = cuda
        self._rounds = rounds

        @cuda.jit("void(int64)")  # type: ignore[untyped-decorator, unused-ignore]
        def spin(naps: int) -> None:
            for _ in range(naps):
                cuda.nanosleep(_NAP_NANOSECONDS)

        self._spin = spin

    def medians(self, rivals: dict[str, Run], on_host: tuple[str, ...] = ()) -> dict[str, float]:
        """Median seconds of every rival; they take turns.

        Those of `on_host` work on their own streams, and those that wait for the GPU cannot be queued: both are
        timed from the host.
        """
        names = list(rivals)
        calls = {name: self._calls(rivals[name]) for name in names}
        on_host = (*on_host, *(name for name in names if name not in on_host and self._waits(rivals[name])))
        times: dict[str, list[float]] = {name: [] for name in names}
        for number in range(self._rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                timed = self._on_host if name in on_host else self.sample
                times[name].append(timed(rivals[name], calls[name]))
        return {name: statistics.median(found) for name, found in times.items()}

    def _calls(self, run: Run) -> int:
        """How many calls make a sample."""
        run()
        self._cuda.synchronize()
        begin = time.perf_counter()
        run()
        self._cuda.synchronize()
        return max(1, min(200, round(LEAST_SAMPLE_SECONDS / (time.perf_counter() - begin))))

    def _waits(self, run: Run) -> bool:
        """Whether a call returns only when what was queued before it is done."""
        self._cuda.synchronize()
        self._nap(LEAST_WAIT_SECONDS)
        begin = time.perf_counter()
        run()
        waited = time.perf_counter() - begin > LEAST_WAIT_SECONDS / 2
        self._cuda.synchronize()
        return waited

    def _nap(self, seconds: float) -> None:
        self._spin[1, 1, 0](max(1, round(seconds / (_NAP_NANOSECONDS * 1e-9))))

    def sample(self, run: Run, calls: int) -> float:
        """Seconds per call on the GPU."""
        nap = 2e-3
        while True:
            self._cuda.synchronize()
            begin, end = self._cuda.event(), self._cuda.event()
            self._nap(nap)
            begin.record()
            for _ in range(calls):
                run()
            end.record()
            in_time = not begin.query()
            end.synchronize()
            if in_time or nap > 1:
                return float(self._cuda.event_elapsed_time(begin, end)) / 1e3 / calls
            nap *= 2

    def _on_host(self, run: Run, calls: int) -> float:
        """Seconds per call by the host's clock: many calls, then one wait."""
        calls = max(calls, 10)
        self._cuda.synchronize()
        begin = time.perf_counter()
        found: Any = None
        for _ in range(calls):
            found = run()
        if hasattr(found, "block_until_ready"):
            found.block_until_ready()
        self._cuda.synchronize()
        return (time.perf_counter() - begin) / calls
