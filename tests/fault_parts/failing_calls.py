"""Calls of the C library that fail on demand, by a small library that is loaded in front of it."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fault_parts.file_jobs import Job, prepare_files, start

_SOURCE = Path(__file__).with_suffix(".c")


def started_with_failing_calls() -> None:
    """Build the library and start this process again with it, where there is a compiler and it is not there yet."""
    library = os.environ.pop("LD_PRELOAD", None)
    if library is not None:
        shutil.rmtree(Path(library).parent)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if library is not None or compiler is None or not sys.platform.startswith("linux"):
        return
    folder = Path(tempfile.mkdtemp(prefix="fastindex-faults-"))
    made = folder / "failing_calls.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(_SOURCE), "-ldl"]
    if subprocess.run(command, capture_output=True).returncode == 0:
        os.environ["LD_PRELOAD"] = str(made)
        os.execv(sys.executable, [sys.executable, "-m", "tests.fault_parts", *sys.argv[1:]])


class FailingCalls:
    """The calls for files of a forked job, counted, and one of them failing."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._shared))
        library.fault_share(ctypes.c_void_p(address))
        self._counts: dict[str, int] = {}

    @classmethod
    def loaded(cls) -> FailingCalls | None:
        """Return the calls of this process, or None where the library is not in front of it."""
        library = ctypes.CDLL(None)
        return cls(library) if hasattr(library, "fault_arm") else None

    def arm(self, at: int, error: int) -> None:
        """Let the call number `at` from now on fail, in this process."""
        self._library.fault_arm(at, error)

    def count_of(self, job: Job, folder: Path) -> int:
        """Return how many calls a job makes."""
        if job.name not in self._counts:
            self._shared[:8] = bytes(8)
            start(job, folder, lambda: self.arm(1 << 30, 0)).wait()
            self._counts[job.name] = max(int.from_bytes(self._shared[:4], "little"), 1)
            prepare_files(job, folder, None)
        return self._counts[job.name]

    def last(self) -> str:
        """Return the name of the call that failed last."""
        return self._shared[4:68].split(b"\0")[0].decode()
