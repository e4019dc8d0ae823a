"""Every call for files of every file job, one at a time: failing, interrupted, or doing half of what is asked.

In order, from where the seed says, until all have had their turn. Calls that do half or are interrupted must not show:
the job ends with the right file. After any other error it may end in a line and the target that was there before.
A small library, loaded in front of the C library, makes calls fail on demand.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tests.faults.file_jobs import Job, load_kernels, prepare_files, small_jobs, start, what_is_wrong
from tests.faults.tally import Tally

_SOURCE = Path(__file__).with_name("failing_calls.c")
#: In place of an error: the call does half of what is asked, which is allowed.
SHORT = -1
# The page that the library writes to.
_LONGEST, _MOST = 16, 4000
_KINDS = {"half": SHORT, **{name: getattr(errno, name) for name in ("EINTR", "EIO", "ENOSPC", "EDQUOT")}}
_IN_PARTS = {"read", "pread", "preadv", "write", "pwrite", "pwritev"}
_MUST_NOT_FAIL = {"fallocate", "pwritev", "fsync", "close"}
_BEFORE = None, b"what was there before"
_ROW = "failing calls one by one"


def started_with_failing_calls(module: str = "tests.faults") -> None:
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


class Case(NamedTuple):
    """A call of a job, and what happens to it.

    Attributes
    ----------
    job : Job
    before : bytes or None
    at : int
        The number of the call, from 1.
    call : str
    kind : str
    """

    job: Job
    before: bytes | None
    at: int
    call: str
    kind: str

    def __str__(self) -> str:
        target = "a new target" if self.before is None else "an old target"
        return f"{self.job.name}, {target}, call {self.at} ({self.call}): {self.kind}"


def run(tally: Tally) -> None:
    """Let each call fail in each way, until all have or the time is over."""
    os.environ["FASTINDEX_DISABLE_JIT"] = "1"
    started_with_failing_calls()
    failing = FailingCalls.loaded()
    if failing is None:
        tally.skip("a C compiler is not installed")
        return
    for cases, folder in _all_cases(failing):
        for case in _in_turn(tally.seed, cases):
            if not tally.going():
                return
            _try(tally, case, folder, failing)


def run_some(tally: Tally) -> None:
    """Let each kind of call of each kind of job fail once in each way."""
    # Jobs are forks, and each would load the compiler.
    os.environ["FASTINDEX_DISABLE_JIT"] = "1"
    started_with_failing_calls("tests.faults.every_call")
    failing = FailingCalls.loaded()
    if failing is None:
        tally.skip("a C compiler is not installed")
        return
    for cases, folder in _all_cases(failing):
        chosen = {(case.job.arguments[0], case.call, case.kind): case for case in _in_turn(1, cases)}
        for case in chosen.values():
            _try(tally, case, folder, failing)


def _all_cases(failing: FailingCalls) -> Iterator[tuple[list[Case], Path]]:
    """Yield the cases of jobs with a limit to their memory, and of those without, with their folder."""
    with tempfile.TemporaryDirectory(prefix="fastindex-faults-") as name:
        folder = Path(name) / "files"
        limited = [_limited(job) for job in small_jobs() if job.arguments[0] != "index"]
        for jobs in (limited, small_jobs()):
            load_kernels(jobs, [folder] * len(jobs))
            yield [*_cases(jobs, folder, failing)], folder


def _limited(job: Job) -> Job:
    arguments = (*job.arguments, "--max-memory", "400MiB")
    return replace(job, name=f"{job.name} in 400 MiB", arguments=arguments)


def _cases(jobs: list[Job], folder: Path, failing: FailingCalls) -> Iterator[Case]:
    """Yield what can happen to the first call of each name, to the last, and to one between them."""
    for job in jobs:
        for before in _BEFORE:
            calls = failing.calls_of(job, folder, before)
            for call in dict.fromkeys(calls):
                places = [number for number, name in enumerate(calls, 1) if name == call]
                for number in dict.fromkeys((places[0], places[len(places) // 2], places[-1])):
                    for kind in _KINDS:
                        if kind != "half" or call in _IN_PARTS:
                            yield Case(job, before, number, call, kind)


def _in_turn(seed: int, cases: list[Case]) -> list[Case]:
    """Order cases so that any beginning of the list has some of each job."""
    step = next(step for step in (37, 41, 43, 47) if len(cases) % step)
    return [cases[(seed + number * step) % len(cases)] for number in range(len(cases))]


def _try(tally: Tally, case: Case, folder: Path, failing: FailingCalls) -> None:
    tally.begin(str(case))
    prepare_files(case.job, folder, case.before)
    failing.forget_last()
    status, message = start(case.job, folder, lambda: failing.arm(case.at, _KINDS[case.kind])).wait()
    tally.count(f"{_ROW}: {case.call}, {case.kind}", 1, int(status == 1))
    wrong = what_is_wrong(case.job, folder, case.before, status, message)
    target = case.job.files(folder)[1]
    if status == 1 and not wrong and (target.read_bytes() if target.exists() else None) != case.before:
        wrong = "status 1, and another target than before"
    if status != 0 and case.kind in ("half", "EINTR"):
        wrong = f"status {status}, {message[:300]!r}; {wrong}"
    # Python closes the number that a map has itself, without any call.
    is_map = failing.last() == "close" and case.job.arguments[0] == "index"
    if status == 0 and failing.last() in _MUST_NOT_FAIL and not is_map and case.kind in ("EIO", "ENOSPC", "EDQUOT"):
        wrong = "status 0 although the system said that something was not written"
    if wrong:
        tally.find(_ROW, f"{wrong}; {case}")
    tally.save()


if __name__ == "__main__":
    run_some(Tally(Path(sys.argv[1]), 600.0, 0))
