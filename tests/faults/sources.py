"""Sources that shrink, grow or change while they are read: an error, or the whole result of what was there.

A memory map of a file that shrinks sends SIGBUS to whoever reads beyond its new end; that must be an error too, never
the end of the process.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from tests.faults.file_jobs import Job, file_jobs, load_kernels, prepare_files, seconds_of, start, what_is_wrong
from tests.faults.tally import Tally

_PAGE = 4096
#: File systems see that a file was written again after a tick of their clocks.
_TICK_SECONDS = 0.012


def run(tally: Tally) -> None:
    """Change sources until the time is over."""
    jobs = file_jobs()
    with tempfile.TemporaryDirectory(prefix="fastindex-faults-") as name:
        folders = [Path(name) / str(number) for number in range(len(jobs))]
        load_kernels(jobs, folders)
        seconds = [seconds_of(job, folder) for job, folder in zip(jobs, folders, strict=True)]
        while tally.going():
            number = tally.random.randrange(len(jobs))
            how = tally.random.choice(("shrinks", "shrinks", "grows", "changes", "is replaced"))
            _change(tally, jobs[number], folders[number], seconds[number], how)
            tally.save()


def _change(tally: Tally, job: Job, folder: Path, seconds: float, how: str) -> None:
    before = tally.random.choice((None, b"what was there before"))
    prepare_files(job, folder, before)
    source = job.files(folder)[0]
    delay = tally.random.random() * seconds
    at = int(tally.random.random() * len(job.source))
    case = f"{job.name}, the source {how} at {at} of {len(job.source)} after {1000 * delay:.1f} ms"
    tally.begin(case)
    time.sleep(_TICK_SECONDS)
    started = start(job, folder)
    time.sleep(delay)
    was_open = _is_mapped(started.process, source)
    if how == "shrinks":
        os.truncate(source, at)
    elif how == "grows":
        os.truncate(source, len(job.source) + 1 + at)
    elif how == "changes":
        with open(source, "r+b") as file:
            file.seek(at)
            file.write(bytes(byte ^ 0xFF for byte in job.source[at : at + _PAGE]))
    else:
        other = source.with_suffix(".other")
        other.write_bytes(job.source[:at])
        other.replace(source)
    status, message = started.wait()
    source.write_bytes(job.source)
    row = "sources that change while file jobs read"
    tally.count(row, 1, int(status == 1))
    if not was_open and status == 0 and how != "is replaced":
        # It read what was there after the change, or had read everything before.
        job.files(folder)[1].write_bytes(job.expected)
    wrong = what_is_wrong(job, folder, before, status, message)
    if wrong:
        tally.find(row, f"{wrong}; {case}")


def _is_mapped(process: int, path: Path) -> bool:
    """Whether a process has a file in its memory."""
    try:
        return str(path) in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False
