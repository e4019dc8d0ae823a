"""Convert a checkpoint to one that another engine loads: safetensors files, an index, and small files.

Shards are written one after the other, with a journal, into a staging folder next to the target. When all files are
complete, the folder is renamed. An interrupted job resumes after the complete shards.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastindex.algebra.casts import Casting, check_casting
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.jobs.input_files import InputFile, open_raw, path_text, read_whole
from fastindex.jobs.layout_jobs import memory_limit
from fastindex.jobs.positions import sync_folder
from fastindex.jobs.reading import StoredArray
from fastindex.jobs.writing import OutputFile, write_file
from fastindex.terminal import NoProgress, Progress
from fastindex.weights.checkpoints import checksum_of
from fastindex.weights.conversions import Conversion, conversions_of
from fastindex.weights.expressions import Box, Stored
from fastindex.weights.found_formats import shown
from fastindex.weights.gguf_files import read_tensors
from fastindex.weights.manifests import JOURNAL, MANIFEST, Journal, Piece, opened_journal
from fastindex.weights.recipes import MOST_SMALL_BYTES, recipe_of, small_files
from fastindex.weights.repack_jobs import memory_within
from fastindex.weights.rules import conversion_rules_of, errors_about
from fastindex.weights.safetensors_files import header_of, is_plain_name, json_object, opened

_FORMAT = "fastindex converted checkpoint"
#: The default shard size of Hugging Face's `save_pretrained`.
DEFAULT_SHARD_BYTES = 5 * 10**9
#: Tensors are read together up to this number of bytes: reading ahead by a small one alone gains nothing.
_GROUP_BYTES = 32 << 20
#: A tensor is checked before anything is written, if at most this many times its size is read for it.
_MOST_READ_TWICE = 4


class ConvertedCheckpoint:
    """A folder that `convert_checkpoint` has written, or would write.

    Attributes
    ----------
    folder : str
    lines : tuple of str
        One for each conversion: name, type and sizes of the source, then of the target, and the steps in between.

    Examples
    --------
    >>> print(ConvertedCheckpoint("out", ("a F32 [2] -> b F32 [2]",)))
    a F32 [2] -> b F32 [2]
    """

    def __init__(self, folder: str, lines: Sequence[str] = ()) -> None:
        self.folder = folder
        self.lines = tuple(lines)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def verify(self) -> int:
        """Compare the checksums of all files with those of the manifest, and return the number of files.

        Raises
        ------
        FastIndexError
            A file has other bytes, or there is no manifest.
        OSError
            A file cannot be read.
        """
        files = files_of(self.folder)
        if files is None:
            raise FastIndexError(f"{self.folder} holds no converted checkpoint: {MANIFEST} is not that of one")
        for name, checksum in files.items():
            file = open_raw(os.path.join(self.folder, name))
            if checksum_of(StoredArray(file, Shape("u8", (file.nbytes,)))) != checksum:
                raise FastIndexError(f"{self.folder}: {name} is not as it was written")
        return len(files)


def files_of(folder: str | os.PathLike[str]) -> dict[str, str] | None:
    """Return the checksum of each file of a converted checkpoint; None if the folder is none."""
    path = Path(folder, MANIFEST)
    if not path.is_file():
        return None
    content = json_object(read_whole(str(path), MOST_SMALL_BYTES), str(path))
    files = content.get("files")
    if content.get("format") != _FORMAT or not isinstance(files, dict):
        return None
    if not all(is_plain_name(name) and isinstance(checksum, str) for name, checksum in files.items()):
        raise FastIndexError(f"{path} does not list files of its folder")
    return files


@dataclass(frozen=True, slots=True)
class _Shard:
    """An output file of tensors."""

    name: str
    tensors: tuple[Conversion, ...]
    header: bytes

    @property
    def nbytes(self) -> int:
        return len(self.header) + sum(one.expression.nbytes for one in self.tensors)


def convert_checkpoint(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    rules: str | Iterable[Mapping[str, Any]] | Mapping[str, Any],
    *,
    dry_run: bool = False,
    casting: Casting = "same_kind",
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    max_memory: int | None = None,
    progress: Progress | None = None,
) -> ConvertedCheckpoint:
    """Convert a checkpoint to the names, shapes and formats of another engine, in bounded memory.

    The folder appears complete or not at all; an interrupted job resumes in the staging folder next to it, whose name
    ends in ``.partial``. Codes and scales are moved, never requantised: an inexact step is an error.

    Parameters
    ----------
    source : path
        A ``.safetensors`` file, the index of several, a folder with one of these, or a ``.gguf`` file (extra ``gguf``).
    folder : path
        Output folder; it must not exist, and its parent must.
    rules : str, iterable of mappings, or mapping
        The name of a recipe, rules, or ``{"rules": [...], "config": {...}, "metadata": {...}, "expects": {...}}``. The
        page *Checkpoint conversion* describes them.
    dry_run : bool
        Write nothing; the result lists the conversions.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's casting rule for the ``dtype`` of rules.
    max_shard_bytes : int
        The most bytes of tensors in a file, unless one tensor has more.
    max_memory : int, optional
        Memory limit of the whole process, in bytes; by default, 1 GiB more than it uses at the call.
    progress : optional
        An object whose ``start(total)`` and ``advance(count)`` are called with numbers of bytes.

    Returns
    -------
    ConvertedCheckpoint

    Raises
    ------
    FastIndexError
        Malformed files, rules that do not fit, a folder that exists, a value that a step does not convert exactly, or
        too little memory.
    ArgumentTypeError
        A cast that `casting` does not allow, or a rule of other types.
    UnsupportedError
        Elements that cannot be moved individually, a type that safetensors lack, or a missing extra.
    OSError
        A file cannot be read or written.

    Examples
    --------
    >>> import fastindex as fi, numpy as np, tempfile
    >>> from fastindex.weights.safetensors_files import header_of
    >>> place = tempfile.TemporaryDirectory()
    >>> with open(f"{place.name}/model.safetensors", "wb") as file:
    ...     _ = file.write(header_of({"a.w": fi.Shape.parse("f32[2,3]")}) + np.arange(6, dtype=np.float32).tobytes())
    >>> rules = [{"names": "{x}.w", "name": "{x}.weight", "transpose": "a b -> b a", "dtype": "bf16"}]
    >>> print(fi.weights.convert_checkpoint(f"{place.name}/model.safetensors", f"{place.name}/out", rules))
    a.w F32 [2, 3] -> a.weight BF16 [3, 2]  (transpose a b -> b a; dtype bf16)
    >>> place.cleanup()
    """
    check_casting(casting)
    folder = path_text(folder, "folder")
    place = Path(folder)
    if place.name.endswith((".safetensors", ".json", ".gguf")):
        raise FastIndexError(f"{place} is the name of a file, and the output is a folder: give it another name")
    if os.path.lexists(place):
        raise FastIndexError(f"{place} already exists; give another name")
    if type(max_shard_bytes) is not int or max_shard_bytes < 1:
        raise FastIndexError(f"max_shard_bytes must be a number of bytes, got {shown(max_shard_bytes)}")
    limit = memory_limit(max_memory)
    recipe = recipe_of(rules)
    found = read_tensors(source)
    parsed = conversion_rules_of({"rules": recipe["rules"], "formats": recipe["formats"]})
    conversions = conversions_of(found.tensors, parsed, casting)
    beside = small_files(os.fspath(source), recipe, conversions)
    shards = _shards_of(conversions, {**found.metadata, **recipe["metadata"]}, max_shard_bytes)
    result = ConvertedCheckpoint(folder, [str(one) for one in conversions])
    with memory_within(limit) as memory:
        for one in conversions:
            with _named(one):
                # Fail before anything is written if the smallest band does not fit.
                next(one.expression.bands(memory.free), None)
        if dry_run:
            return result
        for one in conversions:
            # Values that are not written, or small enough to be read twice: fields of blocks are not.
            is_small = _bytes_of([one]) <= _MOST_READ_TWICE * one.expression.nbytes
            if one.equals is not None or (one.expression.may_fail() and is_small):
                _check(one, memory.free)
        job = [casting, repr(parsed), [tensor.properties() for tensor in found.tensors.values()]]
        digest = hashlib.sha256(json.dumps(job).encode()).hexdigest()
        _write(place, shards, beside, digest, limit, NoProgress() if progress is None else progress)
    return result


def _write(
    place: Path,
    shards: Sequence[_Shard],
    beside: Mapping[str, bytes],
    digest: str,
    limit: int,
    progress: Progress,
) -> None:
    """Write all files into a staging folder, or resume there, and rename it; `digest` identifies the job."""
    staging = place.with_name(f"{place.name}.partial")
    by_name = {shard.name: shard for shard in shards}
    pieces = {
        name: Piece(name, shard.nbytes, [digest, hashlib.sha256(shard.header).hexdigest()])
        for name, shard in by_name.items()
    }
    small = dict(beside)
    if len(shards) > 1:
        small["model.safetensors.index.json"] = _index_of(shards)
    progress.start(sum(shard.nbytes for shard in shards))
    # Only the renamed folder is complete: a job that was interrupted after the manifest resumes, too.
    with opened_journal(staging, pieces, complete=None) as journal:
        try:
            _write_shards(staging, by_name, journal, limit, progress)
        except BaseException:
            if not journal.done:
                # Nothing is worth going on from.
                shutil.rmtree(staging, ignore_errors=True)
            raise
        files = {name: journal.done[name]["crc32"] for name in pieces}
        for name, content in small.items():
            write_file(str(staging / name), content, force=True)
            files[name] = f"{zlib.crc32(content):08x}"
        manifest = {"format": _FORMAT, "version": 1, "files": files}
        write_file(str(staging / MANIFEST), json.dumps(manifest, indent=1).encode(), force=True)
        os.rename(staging, place)
        os.unlink(place / JOURNAL)
        sync_folder(place.parent)


def _shards_of(conversions: Sequence[Conversion], metadata: Mapping[str, str], most: int) -> list[_Shard]:
    """Distribute tensors over files, in order."""
    written = [one for one in conversions if one.equals is None]
    if not written:
        raise FastIndexError("no tensor is left to write")
    groups: list[list[Conversion]] = [[]]
    size = 0
    for one in written:
        if groups[-1] and size + one.expression.nbytes > most:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += one.expression.nbytes
    count = len(groups)
    shards = []
    for number, group in enumerate(groups, 1):
        name = "model.safetensors" if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
        shapes = {one.name: Shape("u8", (one.expression.nbytes,)) for one in group}
        header = header_of(shapes, metadata, {one.name: (one.dtype, one.sizes) for one in group})
        shards.append(_Shard(name, tuple(group), header))
    return shards


def _index_of(shards: Sequence[_Shard]) -> bytes:
    names = {one.name: shard.name for shard in shards for one in shard.tensors}
    total = sum(one.expression.nbytes for shard in shards for one in shard.tensors)
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def _write_shards(
    staging: Path, shards: Mapping[str, _Shard], journal: Journal, limit: int, progress: Progress
) -> None:
    """Write the files that are missing; one is flushed to disk while the next is written."""

    def finish(written: ExitStack, name: str, crc32: str) -> None:
        written.close()
        journal.add(name, {"name": name, "crc32": crc32})

    with ExitStack() as stack:
        threads = _Threads(*(stack.enter_context(ThreadPoolExecutor(1)) for _ in _Threads._fields))
        finished: Future[None] | None = None
        for name in journal.missing(progress):
            written, crc32 = _write_shard(str(staging / name), shards[name], limit, threads, progress)
            if finished is not None:
                finished.result()
            finished = threads.flushing.submit(finish, written, name, crc32)
        if finished is not None:
            finished.result()


class _Threads(NamedTuple):
    """A thread for each thing that a job does beside moving bands."""

    reading: ThreadPoolExecutor
    writing: ThreadPoolExecutor
    checking: ThreadPoolExecutor
    flushing: ThreadPoolExecutor


class _Bands:
    """Bands on their way to a file: threads write them and compute the CRC-32, while the caller makes the next.

    Leaving the ``with`` block waits for them.

    Attributes
    ----------
    crc32 : int
        Of the header and of all bands that were written.
    """

    def __init__(self, output: OutputFile, header: bytes, threads: _Threads, progress: Progress) -> None:
        self.crc32 = zlib.crc32(header)
        self._output, self._threads, self._progress = output, threads, progress
        self._waiting: deque[tuple[int, tuple[Future[None], ...]]] = deque()
        self._at = self._held = 0

    def add(self, band: Any) -> None:
        """Write what comes next in the file."""
        written = self._threads.writing.submit(self._output.write, self._at, band)
        self._waiting.append((len(band), (written, self._threads.checking.submit(self._check, band))))
        self._at += len(band)
        self._held += len(band)

    def _check(self, band: Any) -> None:
        self.crc32 = zlib.crc32(band.data, self.crc32)

    def wait(self, most_bytes: int = 0) -> None:
        """Wait until bands of at most this many bytes are held in memory."""
        while self._waiting and self._held > most_bytes:
            nbytes, futures = self._waiting[0]
            for one in futures:
                one.result()
            self._waiting.popleft()
            self._held -= nbytes
            self._progress.advance(nbytes)

    def __enter__(self) -> _Bands:
        return self

    def __exit__(self, kind: type[BaseException] | None, *about: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            # After an error, too, nothing may write to a file that is closed.
            futures = [one for _, those in self._waiting for one in those]
            for future in futures:
                future.cancel()
            wait(futures)


def _write_shard(path: str, shard: _Shard, limit: int, threads: _Threads, progress: Progress) -> tuple[ExitStack, str]:
    """Write a file of tensors; return what flushes the file and gives it its name when closed, and its CRC-32."""
    progress.advance(len(shard.header))
    with memory_within(limit) as (_, free):
        groups = _groups_of(shard.tensors, min(_GROUP_BYTES, free // 8))
    with ExitStack() as stack:
        output = stack.enter_context(OutputFile(path, shard.nbytes - len(shard.header), shard.header))
        with _Bands(output, shard.header, threads, progress) as bands, ExitStack() as reading:
            ahead: ExitStack | None = None
            reader = _Reader(threads.reading)
            for group, following in zip(groups, [*groups[1:], []], strict=True):
                # What the program holds by now counts as taken: kernels, tensors that were read ahead, bands.
                needs_kernels = any(one.expression.needs_kernels() for one in group)
                with memory_within(limit, needs_kernels) as (_, free):
                    own = _readable(group, free // 2, reader) if ahead is None else ahead
                    reading.push(own)
                    free -= _bytes_of(group, in_memory=True)
                    nbytes = _bytes_of(following)
                    ahead = _readable(following, nbytes, reader) if nbytes <= free // 4 else None
                    if ahead is not None:
                        reading.push(ahead)
                        free -= nbytes
                    for one in group:
                        with _named(one):
                            for box in one.expression.bands(free):
                                bands.wait(free - one.expression.cost(box))
                                bands.add(_band(one, box))
                    own.close()
        return stack.pop_all(), f"{bands.crc32:08x}"


def _groups_of(conversions: Iterable[Conversion], most_bytes: int) -> list[list[Conversion]]:
    """Group consecutive conversions of the same tensors, and of small ones: while one is moved, the next is read."""
    groups: list[list[Conversion]] = [[]]
    for _, those in itertools.groupby(conversions, lambda one: list(_sources_of([one]))):
        group = list(those)
        joined = [*groups[-1], *group]
        groups[-1:] = [joined] if _bytes_of(joined) <= most_bytes else [groups[-1], group]
    return [group for group in groups if group]


def _band(one: Conversion, box: Box) -> Any:
    """Return the bytes of a band, in memory of their own: that of tensors that were read whole is used again."""
    found = one.expression.read(box)
    whole = [leaf.content.result() for leaf in one.expression.leaves() if leaf.content is not None]
    is_view = any(np.may_share_memory(found, content) for content in whole)
    return (found.copy() if is_view else np.ascontiguousarray(found)).reshape(-1).view(np.uint8)


class _Reader:
    """Reads tensors on a thread, into memory that is used again: the system clears new memory, which takes as long."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._spare: list[Any] = []

    def begin(self, leaf: Stored, file: InputFile, stack: ExitStack) -> Future[Any]:
        """Begin to read a tensor; closing `stack` takes its memory back."""
        into = self._taken(file.nbytes)
        stack.callback(self._spare.append, into)
        reading = self._thread.submit(leaf.whole, file, into[: file.nbytes])
        stack.callback(wait, [reading])
        return reading

    def _taken(self, nbytes: int) -> Any:
        """Return an array that is large enough; a new one replaces one that is not."""
        self._spare.sort(key=len)
        place = next((i for i, one in enumerate(self._spare) if len(one) >= nbytes), 0)
        found = self._spare.pop(place) if self._spare else np.empty(0, np.uint8)
        return found if len(found) >= nbytes else np.empty(nbytes, np.uint8)


def _readable(conversions: Sequence[Conversion], most_bytes: int = 0, reader: _Reader | None = None) -> ExitStack:
    """Open the tensors of conversions; closing the result requires their files to be unchanged.

    `reader` begins to read them if they take at most `most_bytes`.
    """
    leaves = [leaf for one in conversions for leaf in one.expression.leaves()]
    with _named(conversions[0]) if conversions else nullcontext():
        parts, files = opened(leaf.tensor for leaf in leaves)
    contents: dict[str, Future[Any]] = {}
    with ExitStack() as stack:
        for file in files:
            stack.enter_context(file.unchanged())
        for leaf in leaves:
            stack.callback(leaf.close)
        is_moved = not all(isinstance(one.expression, Stored) for one in conversions)
        is_small = is_moved and _bytes_of(conversions) <= most_bytes
        for leaf, part in zip(leaves, parts, strict=True):
            leaf.file = part
            if reader is not None and is_small:
                if leaf.tensor.name not in contents:
                    contents[leaf.tensor.name] = reader.begin(leaf, part, stack)
                leaf.content = contents[leaf.tensor.name]
        return stack.pop_all()


def _sources_of(conversions: Iterable[Conversion]) -> dict[str, Stored]:
    """Return the tensors that conversions read, by name."""
    return {leaf.tensor.name: leaf for one in conversions for leaf in one.expression.leaves()}


def _bytes_of(conversions: Iterable[Conversion], in_memory: bool = False) -> int:
    """Return the bytes of the tensors that conversions read, or of those that are held in memory."""
    return sum(one.nbytes for one in _sources_of(conversions).values() if one.content is not None or not in_memory)


def _check(one: Conversion, most_bytes: int) -> None:
    """Require the steps of a tensor to be exact, and its values to equal the constant of its rule, if any.

    Raises
    ------
    FastIndexError
    """
    with _named(one), _readable([one]):
        for box in one.expression.bands(most_bytes):
            found = one.expression.read(box)
            if one.equals is not None and not np.array_equal(found, wanted := one.equals.read(box)):
                at = np.unravel_index(int(np.argmax(found != wanted)), found.shape)
                place = ", ".join(str(int(i) + along.start) for i, along in zip(at, box, strict=True))
                raise FastIndexError(f"the value at ({place}) is {found[at]}, and not {wanted[at]}; {one.remedy}")


def _named(one: Conversion) -> contextlib.AbstractContextManager[None]:
    """Prefix errors with the tensor that they concern."""
    return errors_about(f"{' + '.join(one.sources)}, as {one.name or 'it has to be'}")
