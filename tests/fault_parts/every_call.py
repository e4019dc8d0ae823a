"""Every call for files of every file job, one at a time: failing, interrupted, or doing half of what is asked.

In order, from where the seed says, until all have had their turn. Calls that do half or are interrupted must not show:
the job ends with the right file. After any other error it may end in a line and the target that was there before.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tests.fault_parts.failing_calls import SHORT, FailingCalls, started_with_failing_calls
from tests.fault_parts.file_jobs import Job, load_kernels, prepare_files, small_jobs, start, what_is_wrong
from tests.fault_parts.tally import Tally

_KINDS = {"half": SHORT, **{name: getattr(errno, name) for name in ("EINTR", "EIO", "ENOSPC", "EDQUOT")}}
_IN_PARTS = {"read", "pread", "preadv", "write", "pwrite", "pwritev"}
_MUST_NOT_FAIL = {"fallocate", "pwritev", "fsync", "close"}
_BEFORE = None, b"what was there before"
_ROW = "failing calls one by one"


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
    started_with_failing_calls("tests.fault_parts.every_call")
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
    # Python closes the number that a map has of its own, and asks nobody.
    is_map = failing.last() == "close" and case.job.arguments[0] == "index"
    if status == 0 and failing.last() in _MUST_NOT_FAIL and not is_map and case.kind in ("EIO", "ENOSPC", "EDQUOT"):
        wrong = "status 0 although the system said that something was not written"
    if wrong:
        tally.find(_ROW, f"{wrong}; {case}")
    tally.save()


if __name__ == "__main__":
    run_some(Tally(Path(sys.argv[1]), 600.0, 0))
