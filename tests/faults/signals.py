"""SIGKILL, SIGTERM and SIGINT at random moments of file jobs: the target is absent, old or whole, and no litter."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.faults.file_jobs import Job, file_jobs, load_kernels, prepare_files, seconds_of, start, what_is_wrong
from tests.faults.tally import Tally

_SIGNALS = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
#: One in this many jobs is a separate process.
_FRESH = 40


def run(tally: Tally) -> None:
    """End jobs until the time is over."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs = file_jobs()
    with tempfile.TemporaryDirectory(prefix="fastindex-faults-") as name:
        folders = [Path(name) / str(number) for number in range(len(jobs))]
        load_kernels(jobs, folders)
        seconds = [seconds_of(job, folder) for job, folder in zip(jobs, folders, strict=True)]
        while tally.going():
            number = tally.random.randrange(len(jobs))
            fresh = tally.random.randrange(_FRESH) == 0
            duration = 1.2 if fresh else 1.1 * seconds[number]
            _hit(tally, jobs[number], folders[number], duration, fresh)
            tally.save()


def _hit(tally: Tally, job: Job, folder: Path, duration: float, fresh: bool) -> None:
    before = tally.random.choice((None, b"what was there before"))
    prepare_files(job, folder, before)
    hit = hit_once(tally, job, folder, duration, fresh)
    row = f"{hit.number.name} during file jobs"
    tally.count(row, 1, int(hit.status != 0))
    wrong = what_is_wrong(job, folder, before, hit.status, hit.message, hit.number == signal.SIGKILL, ended=True)
    allowed = {0, -int(hit.number), 128 + int(hit.number)}
    if hit.status not in allowed:
        wrong += f"; status {hit.status}, {hit.message[:300]!r}"
    if wrong:
        tally.find(row, f"{wrong}; {hit.case}")


class Hit(NamedTuple):
    """A job that got a signal, and how it ended."""

    case: str
    number: signal.Signals
    status: int
    message: str


def hit_once(tally: Tally, job: Job, folder: Path, duration: float, fresh: bool) -> Hit:
    """Start a job, and send it one of the signals at a random moment within `duration` seconds."""
    number = tally.random.choice(_SIGNALS)
    delay = tally.random.random() * duration
    case = f"{job.name}, {number.name} after {1000 * delay:.1f} ms{', a fresh process' if fresh else ''}"
    tally.begin(case)
    started = start(job, folder, fresh=fresh)
    time.sleep(delay)
    os.kill(started.process, number)
    return Hit(case, number, *started.wait())
