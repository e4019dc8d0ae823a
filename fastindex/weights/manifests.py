"""The manifest of a checkpoint's folder, and the journal of one that is being written.

The manifest has the file, layout and source tensors of each array. The journal lists complete pieces; one job at a time
has it locked.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fastindex.core.shape import Shape
from fastindex.core.sizes import check_movable
from fastindex.errors import FastIndexError
from fastindex.first_use import load
from fastindex.jobs.input_files import FileIdentity, check_regular, place_inside, read_whole
from fastindex.jobs.positions import OPEN_FLAGS
from fastindex.patterns.known_names import known_name
from fastindex.terminal import Progress
from fastindex.weights.found_formats import found_format_of
from fastindex.weights.repack_arguments import checked_bits, checked_parameters, checked_sizes
from fastindex.weights.repack_jobs import Formats, shape_of
from fastindex.weights.repack_plans import Format
from fastindex.weights.safetensors_files import (
    MOST_HEADER_BYTES,
    Tensor,
    is_plain_name,
    is_stored_as,
    json_object,
    stored_as,
)

MANIFEST, JOURNAL = "manifest.json", "manifest.partial"
_CANNOT_LOCK = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_FORMAT, _VERSION = "fastindex checkpoint", 1
#: How arrays are stored: a file each, or in a Zarr store.
RAW, ZARR = "raw", "zarr"
#: A record is several times as long as the header entry that it describes.
_MOST_MANIFEST_BYTES = 16 * MOST_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Array:
    """An array to write.

    Attributes
    ----------
    name : str
    shape : Shape
        As written.
    tensors : tuple of Tensor
        Its sources; several if they are stacked.
    order : tuple of int
        For each dimension, the stacking one left out, the dimension of the tensors that it is.
    is_stacked : bool
    formats : Formats, optional
        The named formats that each tensor is moved between; the result is bytes, or the codes of a plain array.
    """

    name: str
    shape: Shape
    tensors: tuple[Tensor, ...]
    order: tuple[int, ...]
    is_stacked: bool
    formats: Formats | None = None

    def identity(self) -> list[Any]:
        """Return the properties that must be unchanged for an array written earlier to be reused."""
        formats = None if self.formats is None else repr(self.formats)
        return [str(self.shape), list(self.order), formats, [tensor.properties() for tensor in self.tensors]]


@dataclass(frozen=True, slots=True)
class Moved:
    """The formats that tensors were moved between, with the data needed to move them back.

    Attributes
    ----------
    back : Formats
        From the written format to the original one.
    is_signed : bool
        Whether the plain elements that were read are signed.
    """

    back: Formats
    is_signed: bool


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a manifest.

    Attributes
    ----------
    arrays : list of dict
        The records that `record_of` makes, checked.
    metadata : dict of str to str
        Of the source files.
    store : {"raw", "zarr"}
    tensors : list of str
        The names of all tensors, in the order of the files.
    folder : str
        The folder it was read from, with links resolved.
    identities : mapping of str to FileIdentity
        The file, or folder of a store, of each array when the manifest was read, by the array's name.
    """

    arrays: list[dict[str, Any]]
    metadata: dict[str, str]
    store: str
    tensors: list[str]
    folder: str = ""
    identities: Mapping[str, FileIdentity] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Return the JSON object to write."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "store": self.store,
            "metadata": self.metadata,
            "tensors": self.tensors,
            "arrays": self.arrays,
        }


def record_of(array: Array, file: str, crc32: str) -> dict[str, Any]:
    """Return the manifest's record of an array."""
    first = array.tensors[0]
    record: dict[str, Any] = {
        "name": array.name,
        "shape": str(array.shape),
        "file": file,
        "offset": 0,
        "nbytes": array.shape.nbytes,
        "crc32": crc32,
        "order": list(array.order),
        "is_stacked": array.is_stacked,
        "tensors": [tensor.name for tensor in array.tensors],
    }
    if array.formats is not None or first.is_opaque:
        dtype, sizes = stored_as(first)
        record["stored"] = {"dtype": dtype, "sizes": list(sizes), "nbytes": first.shape.nbytes}
    if first.is_opaque:
        record["type"] = first.dtype
    if array.formats is not None:
        ends = array.formats.plan().ends
        record["format"] = {
            "from": _named(array.formats.names[0]),
            "to": _named(array.formats.names[1]),
            "shape": list(ends[1].sizes),
            "bits": ends[1].bits,
            "parameters": dict(array.formats.parameters),
            "is_signed": first.shape.element_type.kind == "signed",
        }
    return record


def moved_of(record: dict[str, Any]) -> Moved | None:
    """Return the formats that the tensors of an array were moved between; None if they were not.

    Raises
    ------
    FastIndexError
        The record is not one that `record_of` makes.
    """
    given = record.get("format")
    if given is None:
        return None
    if not isinstance(given, dict) or set(given) != {"from", "to", "shape", "bits", "parameters", "is_signed"}:
        raise FastIndexError(f"{str(given)[:200]} is not a format that tensors were moved to")
    if not isinstance(given["parameters"], dict) or not isinstance(given["is_signed"], bool):
        raise FastIndexError(f"{str(given)[:200]} is not a format that tensors were moved to")
    names = _format_of(given["to"]), _format_of(given["from"])
    parameters = checked_parameters(given["parameters"])
    return Moved(
        Formats(names, checked_sizes(given["shape"]), checked_bits(given["bits"]), parameters), given["is_signed"]
    )


def _named(one: Format) -> Any:
    """Return a format as JSON: its name, or all of a discovered one."""
    return one if isinstance(one, str) else {"name": one.name, **one.to_json()}


def _format_of(given: Any) -> Format:
    if isinstance(given, dict):
        return found_format_of(given, given.get("name"))
    return known_name(given)


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a folder.

    Raises
    ------
    FastIndexError
        The folder is not complete, or its manifest is malformed.
    OSError
        The folder or the manifest cannot be read.
    """
    path, inside = Path(folder, MANIFEST), os.path.realpath(folder)
    try:
        written = read_whole(place_inside(inside, MANIFEST), _MOST_MANIFEST_BYTES)
    except FileNotFoundError:
        os.stat(folder)
        raise FastIndexError(f"{os.fspath(folder)} holds no complete checkpoint: {MANIFEST} is missing") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    content = json_object(written, str(path))
    if content.get("format") != _FORMAT or content.get("version") != _VERSION:
        raise FastIndexError(f"{path} is not a manifest of a checkpoint that this version of fastindex reads")
    arrays = content.get("arrays")
    metadata, store = content.get("metadata"), content.get("store")
    if store not in (RAW, ZARR):
        raise FastIndexError(f"{path} says that arrays are stored as {str(store)[:80]}; known are {RAW} and {ZARR}")
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise FastIndexError(f"{path} has metadata that maps no texts to texts")
    if not isinstance(arrays, list):
        raise FastIndexError(f"{path} lists no arrays")
    identities: dict[str, FileIdentity] = {}
    made: list[str] = []
    for one in arrays:
        _check_record(path, one)
        if one["name"] in identities:
            raise FastIndexError(f"{path} has {one['name'][:80]!r} twice")
        identities[one["name"]] = _identity_of(path, inside, one, store)
        made.extend(one["tensors"])
    tensors = content.get("tensors")
    if not isinstance(tensors, list) or sorted(map(str, tensors)) != sorted(made) or len(set(made)) < len(made):
        raise FastIndexError(f"{path} does not list each tensor that its arrays were made of once")
    return Manifest(arrays, metadata, store, tensors, inside, identities)


_FIELDS = {
    "name": str,
    "shape": str,
    "file": str,
    "offset": int,
    "nbytes": int,
    "crc32": str,
    "order": list,
    "is_stacked": bool,
    "tensors": list,
}


def _check_record(path: Path, one: Any) -> None:
    """Raise FastIndexError unless a record is one that `pack_checkpoint` writes."""
    if not isinstance(one, dict) or any(type(one.get(name)) is not kind for name, kind in _FIELDS.items()):
        raise FastIndexError(f"{path}: an array has {', '.join(_FIELDS)}; got {str(one)[:200]}")
    where = f"{path}: {one['name'][:80]!r}"
    if not is_plain_name(one["file"]) or one["offset"]:
        raise FastIndexError(f"{where} is in {one['file'][:80]!r}, which is not a file of the folder")
    shape = Shape.parse(one["shape"])
    check_movable(shape)
    count = shape.dimensions[0] if one["is_stacked"] and shape.rank else 1
    if len(one["tensors"]) != count or not all(isinstance(name, str) for name in one["tensors"]):
        raise FastIndexError(f"{where} was made of {count} tensors, and has to name each")
    if one.get("format") is not None:
        _check_moved(where, one, shape)
    else:
        order = [str(d) for d in range(shape.rank - one["is_stacked"])]
        if sorted(map(str, one["order"])) != sorted(order) or not all(type(d) is int for d in one["order"]):
            raise FastIndexError(f"{where} does not say which dimensions it was made of")
    if "stored" in one:
        _check_stored(where, one["stored"], None if one.get("format") is not None else shape.nbytes // max(count, 1))
    if shape.nbytes != one["nbytes"]:
        raise FastIndexError(f"{where} takes {shape.nbytes} bytes; the manifest says {one['nbytes']}")


def _identity_of(path: Path, inside: str, one: dict[str, Any], store: str) -> FileIdentity:
    """Return the identity of the file, or folder of a store, that holds the buffer of an array.

    Raises
    ------
    FastIndexError
        It is missing, of another kind or size, or outside the folder of the manifest.
    """
    place = place_inside(inside, one["file"])
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        found = os.stat(place)
        if store != ZARR:
            check_regular(place, found.st_mode)
        if stat.S_ISDIR(found.st_mode) if store == ZARR else found.st_size == one["nbytes"]:
            return FileIdentity.of(found)
    raise FastIndexError(
        f"{path}: {one['name'][:80]!r} takes {one['nbytes']} bytes; {one['file']} is missing or has another size"
    )


def _check_moved(where: str, one: dict[str, Any], shape: Shape) -> None:
    moved = moved_of(one)
    assert moved is not None
    plan = moved.back.plan()
    there, back = plan.ends
    own = shape.dimensions[1:] if one["is_stacked"] else shape.dimensions
    written = shape_of(there)
    stored = one.get("stored")
    if own != written.dimensions or shape.element_type != written.element_type or not isinstance(stored, dict):
        raise FastIndexError(f"{where} is {shape.cut_text()}; {there.name} of {there.sizes} is {written}")
    if stored.get("nbytes") != back.side.nbytes:
        raise FastIndexError(f"{where} was made of {back.side.nbytes} bytes, not of {str(stored.get('nbytes'))[:80]}")


def _check_stored(where: str, stored: Any, nbytes: int | None) -> None:
    known = isinstance(stored, dict) and set(stored) == {"dtype", "sizes", "nbytes"} and type(stored["nbytes"]) is int
    if not known or not is_stored_as(stored["dtype"], stored["sizes"], stored["nbytes"]):
        raise FastIndexError(f"{where} was stored as {str(stored)[:200]}, which is none of the format")
    if nbytes is not None and stored["nbytes"] != nbytes:
        raise FastIndexError(f"{where} was stored in {stored['nbytes']} bytes, and has {nbytes}")


# The journal


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
        self._lock = threading.Lock()
        self.done = done

    def missing(self, progress: Progress) -> Iterator[str]:
        """Yield the names of the pieces that are not complete; `progress` advances by the size of the others."""
        for name, piece in self._pieces.items():
            if name in self.done:
                progress.advance(piece.nbytes)
            else:
                yield name

    def add(self, name: str, record: dict[str, Any]) -> None:
        """Record that a piece is complete; the record is on disk when this returns. Thread-safe."""
        with self._lock:
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
    with _open_journal(place / JOURNAL) as file:
        _lock_folder(place, file)
        # Another job may have completed the folder before it was locked.
        _check_incomplete(place, complete)
        _remove_unfinished(place)
        yield Journal(file, _complete_pieces(place, file, pieces), pieces)


def _open_journal(path: Path) -> IO[bytes]:
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


def _lock_folder(place: Path, file: IO[bytes]) -> None:
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


def _complete_pieces(place: Path, file: IO[bytes], pieces: Mapping[str, Piece]) -> dict[str, dict[str, Any]]:
    """Return the records of complete pieces, and truncate an incomplete last line."""
    found: dict[str, dict[str, Any]] = {}
    file.seek(0)
    *lines, unfinished = file.read().split(b"\n")
    for line in lines:
        entry = json_object(line, str(place / JOURNAL))
        record = entry.get("array")
        name = str(record.get("name")) if isinstance(record, dict) else ""
        if not isinstance(record, dict) or name not in pieces or entry.get("source") != pieces[name].identity:
            raise FastIndexError(f"{place} was begun with other rules or another checkpoint; give an empty folder")
        path = place / pieces[name].file
        if path.is_dir() or (path.is_file() and path.stat().st_size == pieces[name].nbytes):
            found[name] = record
    if unfinished:
        # The job was interrupted while it wrote the last line.
        file.truncate(sum(len(line) + 1 for line in lines))
    return found
