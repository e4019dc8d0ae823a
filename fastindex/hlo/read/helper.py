"""Read half of many files in a second process, on another processor: ``python -m fastindex.hlo.read.helper``.

Its stdin is the pickled class of a reader, the arguments that make one, and the files; its stdout is the pickled reader
that has read them.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

from fastindex.first_use import PYTHON, child_environment
from fastindex.hlo.read.sources import TextSource, file_source
from fastindex.runtime.machine import usable_processors

#: Starting a process takes as long as reading 4 MB.
_LEAST_NBYTES = 16 << 20


class Helper:
    """A process that reads some of the sources, if they are several files that are long enough.

    Attributes
    ----------
    own : sequence of TextSource
        Nearly half of the sources, by size, the first ones, at least one; the process reads the others.
    """

    def __init__(self, kind: type, arguments: tuple[object, ...], sources: Sequence[TextSource]) -> None:
        self.own = sources
        self._others: Sequence[TextSource] = ()
        self._child: subprocess.Popen[bytes] | None = None
        sizes = [source.nbytes if source.is_file else None for source in sources]
        is_short = len(sources) < 2 or sum(size or 0 for size in sizes) < _LEAST_NBYTES
        if None in sizes or is_short or usable_processors() < 2:
            return
        sums = list(itertools.accumulate(size or 0 for size in sizes))
        # This process also joins the results and shows them.
        count = max(1, sum(each <= sums[-1] * 9 // 20 for each in sums))
        request = kind, arguments, [(source.name, source.stage) for source in sources[count:]]
        with contextlib.suppress(OSError):
            self._child = subprocess.Popen(
                [*PYTHON, "-m", "fastindex.hlo.read.helper"],
                env=child_environment({}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self.own, self._others = sources[:count], sources[count:]
            asked = cast(IO[bytes], self._child.stdin)
            asked.write(pickle.dumps(request))
            asked.close()

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *error: object) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                # Closing writes what the process did not take.
                with contextlib.suppress(OSError):
                    cast(IO[bytes], pipe).close()

    def result(self) -> tuple[Any, Sequence[TextSource]]:
        """Return the reader of the other sources, or None; and the sources that are still to be read."""
        if self._child is None:
            return None, self._others
        try:
            return pickle.load(cast(IO[bytes], self._child.stdout)), ()
        except Exception:
            # Whatever ended the process or spoilt its output may not happen here.
            return None, self._others


def _serve() -> None:
    # The parent handles interrupts, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    kind, arguments, files = pickle.load(sys.stdin.buffer)
    reader = kind(*arguments)
    reader.read_each([file_source(Path(name), stage) for name, stage in files], lambda nbytes: None)
    pickle.dump(reader, sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    _serve()
