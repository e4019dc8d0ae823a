"""Read some of many files in a second process, on another processor: ``python -m fastindex.hlo.read.helper``.

Its stdin is the pickled class of a reader, the arguments that make one, the files, and the number of an open pipe. This
process reads the files from the first one on, and the second process from the last one backwards, until they meet: each
takes a byte from the pipe per part of the files. The second one's stdout is pickled readers, one for each of its files.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from fastindex.first_use import PYTHON, child_environment
from fastindex.hlo.read.printing import Printer
from fastindex.hlo.read.sources import TextSource, file_source
from fastindex.runtime.machine import usable_processors

#: Starting a process takes as long as reading 4 MB.
_LEAST_NBYTES = 16 << 20
#: Fewer bytes than a pipe holds on any system.
_MOST_PARTS = 4096


class Helper:
    """A process that reads some of the sources, if they are several files that are long enough."""

    def __init__(self, kind: type, arguments: tuple[object, ...], sources: Sequence[TextSource]) -> None:
        size = -(-len(sources) // _MOST_PARTS) or 1
        self._parts = [sources[begin : begin + size] for begin in range(0, len(sources), size)]
        self._taken = 0
        self._pipe = -1
        self._child: subprocess.Popen[bytes] | None = None
        sizes = [source.nbytes if source.is_file else None for source in sources]
        is_short = len(sources) < 2 or sum(size or 0 for size in sizes) < _LEAST_NBYTES
        # On Windows a process inherits no pipes.
        if None in sizes or is_short or usable_processors() < 2 or os.name != "posix":
            return
        with contextlib.suppress(OSError):
            self._pipe, end = os.pipe()
            os.write(end, bytes(len(self._parts)))
            os.close(end)
            self._child = subprocess.Popen(
                [*PYTHON, "-m", "fastindex.hlo.read.helper"],
                env=child_environment({}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[self._pipe],
            )
            asked = cast(IO[bytes], self._child.stdin)
            files = [[(source.name, source.stage) for source in part] for part in self._parts]
            asked.write(pickle.dumps((kind, arguments, files, self._pipe)))
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
        if self._pipe >= 0:
            os.close(self._pipe)

    def own(self) -> Iterator[TextSource]:
        """Yield the sources that are to be read here."""
        for part in self._parts:
            if self._pipe >= 0 and not os.read(self._pipe, 1):
                break
            self._taken += 1
            yield from part

    def read(self, read: Callable[[TextSource], None]) -> list[Any]:
        """Read the sources that the other process does not read or fails to; return its readers."""
        for source in self.own():
            read(source)
        left = [source for part in self._parts[self._taken :] for source in part]
        if self._child is not None and left:
            # Whatever ended the process or spoilt its output may not happen here.
            with contextlib.suppress(Exception):
                return cast(list[Any], pickle.load(cast(IO[bytes], self._child.stdout)))
        for source in left:
            read(source)
        return []


def _serve() -> None:
    # The parent handles interrupts, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    kind, arguments, parts, pipe = pickle.load(sys.stdin.buffer)
    readers: list[Any] = []
    with Printer() as printer:
        while parts and os.read(pipe, 1):
            found = []
            for name, stage in parts.pop():
                found.append(kind(*arguments))
                # Shapes are parsed once.
                found[-1].share((readers or found)[0])
                found[-1].read_source(file_source(Path(name), stage), printer, lambda nbytes: None)
            readers[:0] = found
    pickle.dump(readers, sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    _serve()
