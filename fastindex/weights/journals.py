"""The folder of a checkpoint while it is written: locked by one job, with a journal of complete pieces."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fastindex.errors import FastIndexError
from fastindex.first_use import load
from fastindex.jobs.layout_jobs import Progress
from fastindex.jobs.positions import OPEN_FLAGS
from fastindex.weights.safetensors_files import json_object

MANIFEST, JOURNAL = "manifest.json", "manifest.partial"
_CANNOT_LOCK = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit of output that a job writes and completes as a whole: an array, or a shard.

    Attributes
    ----------
    file : str
        Its name in the folder; a folder in a Zarr store.
    nbytes : int
    identity : list
        Properties that must be unchanged for a piece written earlier to be reused.
    """

    file: str
    nbytes: int
    identity: list[Any]


class Journal:
    """The pieces of a folder that are complete, each on a line of a file.

    Attributes
    ----------
    done : dict of str to dict
        The records of complete pieces by name.
    """

    def __init__(self, file: IO[bytes], done: dict[str, dict[str, Any]], pieces: Mapping[str, Piece]) -> None:
        self._file = file
        self._pieces = pieces
        self.done = done

    def missing(self, progress: Progress) -> Iterator[str]:
        """Yield the names of the pieces that are not complete; `progress` advances by the size of the others."""
        for name, piece in self._pieces.items():
            if name in self.done:
                progress.advance(piece.nbytes)
            else:
                yield name

    def add(self, name: str, record: dict[str, Any]) -> None:
        """Record that a piece is complete; the record is on disk when this returns."""
        self._file.write(json.dumps({"source": self._pieces[name].identity, "array": record}).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done[name] = record


@contextlib.contextmanager
def opened_journal(place: Path, pieces: Mapping[str, Piece], complete: str | None = MANIFEST) -> Iterator[Journal]:
    """Create a folder, or resume in that of an interrupted job; a lock keeps other jobs out meanwhile.

    Parameters
    ----------
    place : Path
        Its parent has to exist.
    pieces : mapping of str to Piece
        By name, which their records have too.
    complete : str, optional
        The file that marks a folder as complete.

    Raises
    ------
    FastIndexError
        The folder is complete, holds something else, is of another job, or is being written.
    OSError
        The folder cannot be written.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(place)
    there = set(os.listdir(place))
    _check_incomplete(place, complete)
    if there and JOURNAL not in there:
        raise FastIndexError(f"{place} holds {min(there)!r}, and no job that was stopped; give an empty folder")
    with _opened(place / JOURNAL) as file:
        _lock(place, file)
        # Another job may have completed the folder before it was locked.
        _check_incomplete(place, complete)
        _remove_unfinished(place)
        yield Journal(file, _read(place, file, pieces), pieces)


def _opened(path: Path) -> IO[bytes]:
    """Open a journal for reading and appending, never through a link.

    Raises
    ------
    FastIndexError
        The journal is a link, or no regular file.
    OSError
        It cannot be opened.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            what = "a link" if stat.S_ISLNK(mode) else "not a regular file"
            raise FastIndexError(f"{path} is {what}, and no job writes such a journal; give an empty folder")
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return open(path, "a+b", opener=lambda name, _: os.open(name, flags | OPEN_FLAGS, 0o666))


def _remove_unfinished(place: Path) -> None:
    """Remove the unfinished files of an interrupted job; links are removed, not followed.

    Raises
    ------
    FastIndexError
        An array is a link: writes would go elsewhere.
    OSError
        Something cannot be removed.
    """
    for left in place.glob(".*.partial"):
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    links = [one.name for one in place.iterdir() if one.is_symlink()]
    if links:
        raise FastIndexError(f"{place / min(links)} is a link, and no job writes links; give an empty folder")


def _check_incomplete(place: Path, complete: str | None) -> None:
    if complete is not None and os.path.lexists(place / complete):
        raise FastIndexError(f"{place} is a complete checkpoint; give another folder")


def _lock(place: Path, file: IO[bytes]) -> None:
    """Lock a file until it is closed, or the process ends; no-op if the system or the file system has no locks.

    Raises
    ------
    FastIndexError
        Another job holds the lock.
    """
    try:
        load("fcntl")
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _CANNOT_LOCK:
            return
        raise FastIndexError(f"another job is writing into {place}; wait for it, or give another folder") from None
    if not (place / JOURNAL).exists() or os.fstat(file.fileno()).st_ino != os.stat(place / JOURNAL).st_ino:
        raise FastIndexError(f"another job has just ended in {place}; start again")


def _read(place: Path, file: IO[bytes], pieces: Mapping[str, Piece]) -> dict[str, dict[str, Any]]:
    """Return the records of complete pieces, and truncate an incomplete last line."""
    found: dict[str, dict[str, Any]] = {}
    file.seek(0)
    *lines, rest = file.read().split(b"\n")
    for line in lines:
        entry = json_object(line, str(place / JOURNAL))
        record = entry.get("array")
        name = str(record.get("name")) if isinstance(record, dict) else ""
        if not isinstance(record, dict) or name not in pieces or entry.get("source") != pieces[name].identity:
            raise FastIndexError(f"{place} was begun with other rules or another checkpoint; give an empty folder")
        path = place / pieces[name].file
        if path.is_dir() or (path.is_file() and path.stat().st_size == pieces[name].nbytes):
            found[name] = record
    if rest:
        # The job was interrupted while it wrote the last line.
        file.truncate(sum(len(line) + 1 for line in lines))
    return found
