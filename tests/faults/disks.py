"""Full disks and failing calls under every file job: one line of an error, and the target absent, old or whole.

The disk is a small tmpfs where this process may mount one, in a separate mount namespace; else a limit on the size of
files. Failing calls come from a library that stands between the job and the C library, where there is a C compiler.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults.every_call import FailingCalls, started_with_failing_calls
from tests.faults.file_jobs import Job, file_jobs, load_kernels, prepare_files, start, what_is_wrong
from tests.faults.tally import Tally

_NEW_NAMESPACE, _PRIVATE, _RECURSIVE, _DETACH = 0x20000, 1 << 18, 1 << 14, 2
_DISK_BYTES = 256 << 20
_ERRORS = errno.EIO, errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EACCES


def run(tally: Tally) -> None:
    """Fill disks and let calls fail until the time is over."""
    started_with_failing_calls()
    jobs = file_jobs()
    with tempfile.TemporaryDirectory(prefix="fastindex-faults-") as name:
        plain, disk = Path(name) / "plain", Path(name) / "disk"
        load_kernels(jobs, [plain] * len(jobs))
        failing = FailingCalls.loaded()
        disk.mkdir()
        with _mounted(disk) as is_small:
            while tally.going():
                job = tally.random.choice(jobs)
                if failing is not None and tally.random.random() < 0.6:
                    _fail(tally, job, plain, failing)
                elif is_small and tally.random.random() < 0.7:
                    _fill(tally, job, disk)
                else:
                    _limit(tally, job, plain)
                tally.save()


@contextmanager
def _mounted(folder: Path) -> Iterator[bool]:
    """Mount a small disk that only this process and its children see, if they may."""
    library = ctypes.CDLL(None, use_errno=True)
    size = f"size={_DISK_BYTES}".encode()
    if (
        os.geteuid() != 0
        or library.unshare(_NEW_NAMESPACE)
        or library.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
        or library.mount(b"none", str(folder).encode(), b"tmpfs", 0, size)
    ):
        yield False
        return
    try:
        yield True
    finally:
        library.umount2(str(folder).encode(), _DETACH)


def _before(tally: Tally) -> bytes | None:
    return tally.random.choice((None, b"what was there before"))


def _end(
    tally: Tally, row: str, job: Job, folder: Path, before: bytes | None, case: str, status: int, message: str
) -> None:
    tally.count(row, 1, int(status == 1))
    wrong = what_is_wrong(job, folder, before, status, message)
    if wrong:
        tally.find(row, f"{wrong}; {case}")


def _fill(tally: Tally, job: Job, disk: Path) -> None:
    """A disk with room for less than the job needs, or a little more."""
    before, folder, filler = _before(tally), disk / "job", disk / "filler"
    prepare_files(job, folder, before)
    free = int(tally.random.random() * 2.2 * len(job.expected))
    status = os.statvfs(folder)
    with open(filler, "wb") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(status.f_bavail * status.f_frsize - free, 1))
    case = f"{job.name}, {free} bytes free of a tmpfs"
    tally.begin(case)
    ended = start(job, folder).wait()
    filler.unlink()
    _end(tally, "full disks under file jobs", job, folder, before, case, *ended)
    shutil.rmtree(folder)


def _limit(tally: Tally, job: Job, folder: Path) -> None:
    """No file may become as large as the target."""
    before = _before(tally)
    prepare_files(job, folder, before)
    most = int(tally.random.random() * 1.2 * len(job.expected))

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    case = f"{job.name}, files of at most {most} bytes"
    tally.begin(case)
    ended = start(job, folder, limit).wait()
    _end(tally, "limits of file sizes under file jobs", job, folder, before, case, *ended)


def _fail(tally: Tally, job: Job, folder: Path, failing: FailingCalls) -> None:
    """One call for files fails."""
    before = _before(tally)
    prepare_files(job, folder, before)
    number = tally.random.choice(_ERRORS)
    at = tally.random.randint(1, len(failing.calls_of(job, folder, before)))
    case = f"{job.name}, call {at} fails with {errno.errorcode[number]}"
    tally.begin(case)
    prepare_files(job, folder, before)
    ended = start(job, folder, lambda: failing.arm(at, number)).wait()
    _end(tally, "failing calls under file jobs", job, folder, before, f"{case}: {failing.last()}", *ended)
