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
#: In place of an error: the call does half of what is asked, which is allowed.
SHORT = -1
# The page that the library writes to.
_LONGEST, _MOST = 16, 4000


def started_with_failing_calls(module: str = "tests.fault_parts") -> None:
    """Build the library and start this process again with it, where there is a compiler and it is not there yet.

    Parameters
    ----------
    module : str
        What this process runs.
    """
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
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


class FailingCalls:
    """The calls for files of a forked job, counted, and one of them failing."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._shared = mmap.mmap(-1, 1 << 16)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._shared))
        library.fault_share(ctypes.c_void_p(address))
        self._calls: dict[tuple[str, bool], list[str]] = {}

    @classmethod
    def loaded(cls) -> FailingCalls | None:
        """Return the calls of this process, or None where the library is not in front of it."""
        library = ctypes.CDLL(None)
        return cls(library) if hasattr(library, "fault_arm") else None

    def arm(self, at: int, error: int) -> None:
        """Let the call number `at` from now on fail with an error, or do half of it if that is `SHORT`."""
        self._library.fault_arm(at, error)

    def calls_of(self, job: Job, folder: Path, before: bytes | None) -> list[str]:
        """Return the names of the calls that a job makes, in their order."""
        key = job.name, before is None
        if key not in self._calls:
            prepare_files(job, folder, before)
            self._shared[:] = bytes(len(self._shared))
            start(job, folder, lambda: self.arm(1 << 30, 0)).wait()
            count = int.from_bytes(self._shared[:4], "little")
            self._calls[key] = [self._text(_LONGEST * (number + 2)) for number in range(min(count, _MOST))]
            prepare_files(job, folder, before)
        return self._calls[key]

    def forget_last(self) -> None:
        """Clear what `last` returns."""
        self._shared[4:_LONGEST] = bytes(_LONGEST - 4)

    def last(self) -> str:
        """Return the name of the call that failed last; empty if none has."""
        return self._text(4)

    def _text(self, at: int) -> str:
        return self._shared[at : at + _LONGEST].split(b"\0")[0].decode()
