"""Checkpoints whose tensors are laid out for a device: a folder with a file for each array, and a manifest.

A folder is whole when it has its manifest. Until then a journal lists the arrays that are complete, each with its
checksum; a job that was stopped goes on behind them. The files of arrays appear whole or not at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastindex.arguments.arrays import buffer_dtype
from fastindex.arguments.buffers import check_movable
from fastindex.arguments.castings import Casting, check_casting
from fastindex.arguments.fills import fill_pattern
from fastindex.cpu.box_jobs import plan_boxes
from fastindex.errors import FastIndexError
from fastindex.files.checkpoint_rules import Array, arrays_of, rules_of
from fastindex.files.input_files import Bytes, open_raw
from fastindex.files.layout_jobs import DEFAULT_MEMORY_BYTES, Progress, WrittenArray
from fastindex.files.reading import StoredArray
from fastindex.files.safetensors_files import header_of, is_plain_name, json_object, tensors_of
from fastindex.files.writing import OutputFile
from fastindex.lowering.subarrays.segments import Box, byte_segments
from fastindex.lowering.subarrays.sizes import segment_costs
from fastindex.shapes.layout import Layout
from fastindex.shapes.shape import Shape

MANIFEST, JOURNAL = "manifest.json", "manifest.partial"
_FORMAT, _VERSION = "fastindex checkpoint", 1
_AT_ONCE = 4 << 20


class _NoProgress:
    def start(self, total: int) -> None:
        pass

    def advance(self, count: int) -> None:
        pass


def pack_checkpoint(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    rules: Iterable[Mapping[str, str]] = (),
    *,
    tpu: str | None = None,
    casting: Casting = "same_kind",
    max_memory: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
) -> Checkpoint:
    """Lay the tensors of a safetensors checkpoint out for a device, each in one stream, in bounded memory.

    A job that was stopped goes on where it was: arrays that are complete are not written again.

    Parameters
    ----------
    source : path
        A ``.safetensors`` file, the index of several, or a folder with one of these.
    folder : path
        Where to write; it may not hold anything else.
    rules : iterable of mappings
        The first whose ``names``, a pattern as ``"model.layers.*.weight"``, has the name of a tensor says what becomes
        of it: ``layout``, a text such as ``"{1,0:T(8,128)(2,1)}"`` or ``"tpu"``; ``dtype``, to which elements are cast
        on the way; ``transpose``, such as ``"out in -> in out"``; ``stack``, the name of the one array that all these
        tensors become, by the number that the ``*`` stands for. Other tensors stay as they are.
    tpu : {"v4", "v5e", "v6e"}, optional
        Give arrays whose rule names no layout the one that the TPU compiler chooses by default.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for casts, as for `fastindex.pack`.
    max_memory : int
        The most bytes that this process may have in memory, everything else of it included.
    progress : optional
        Has ``start(total)`` and ``advance(count)`` called with bytes.

    Returns
    -------
    Checkpoint

    Raises
    ------
    FastIndexError
        Files that are not as the format says, rules that do not fit, a folder that holds something else or is whole
        already, or too little memory.
    ArgumentTypeError
        A cast that `casting` does not allow.
    OSError
        A file cannot be read or written.

    Examples
    --------
    >>> import fastindex as fi, tempfile
    >>> from fastindex.files.safetensors_files import header_of
    >>> place = tempfile.TemporaryDirectory()
    >>> with open(f"{place.name}/model.safetensors", "wb") as file:
    ...     _ = file.write(header_of({"w": fi.Shape.parse("f32[2,3]")}) + np.arange(6, dtype=np.float32).tobytes())
    >>> rules = [{"names": "w", "transpose": "a b -> b a", "dtype": "bf16"}]
    >>> found = fi.pack_checkpoint(f"{place.name}/model.safetensors", f"{place.name}/out", rules, max_memory=4 << 30)
    >>> found["w"]
    memmap([0, 3, 1, 4, 2, 5], dtype=bfloat16)
    >>> place.cleanup()
    """
    check_casting(casting)
    arrays = arrays_of(tensors_of(os.fspath(source)), rules_of(rules), tpu, casting)
    for array in arrays:
        check_movable(array.shape)
    place = Path(folder)
    reporting = progress or _NoProgress()
    done = _begun(place, arrays)
    reporting.start(sum(array.shape.nbytes for array in arrays))
    with open(place / JOURNAL, "ab") as journal:
        for number, array in enumerate(arrays):
            if array.name in done:
                reporting.advance(array.shape.nbytes)
            else:
                record = _pack_array(place, f"{number:05}.bin", array, max_memory, reporting)
                journal.write(json.dumps({"source": _identity(array), "array": record}).encode() + b"\n")
                journal.flush()
                os.fsync(journal.fileno())
                done[array.name] = record
    content = {"format": _FORMAT, "version": _VERSION, "arrays": [done[array.name] for array in arrays]}
    data = json.dumps(content, indent=1, ensure_ascii=False).encode()
    with OutputFile(str(place / MANIFEST), len(data)) as output:
        output.write(0, np.frombuffer(data, np.uint8))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place / JOURNAL)
    return open_checkpoint(place)


def _begun(place: Path, arrays: list[Array]) -> dict[str, dict[str, Any]]:
    """Make a folder, or return the records of the arrays that are complete in it.

    Raises
    ------
    FastIndexError
    """
    place.mkdir(parents=True, exist_ok=True)
    there = set(os.listdir(place))
    if MANIFEST in there:
        raise FastIndexError(f"{place} is a complete checkpoint; give another folder")
    if there and JOURNAL not in there:
        raise FastIndexError(f"{place} holds {min(there)!r}, and no job that was stopped; give an empty folder")
    known = {array.name: (number, array) for number, array in enumerate(arrays)}
    found: dict[str, dict[str, Any]] = {}
    lines = (place / JOURNAL).read_bytes().split(b"\n") if there else []
    # The last line ends where the job did.
    for line in lines[:-1]:
        entry = json_object(line, str(place / JOURNAL))
        record = entry.get("array")
        name = record.get("name") if isinstance(record, dict) else ""
        if record is None or name not in known or entry.get("source") != _identity(known[name][1]):
            raise FastIndexError(f"{place} was begun with other rules or another checkpoint; give an empty folder")
        path = place / f"{known[name][0]:05}.bin"
        if path.is_file() and path.stat().st_size == known[name][1].shape.nbytes:
            found[name] = record
    if lines and lines[-1]:
        # What follows begins with a line of its own.
        with open(place / JOURNAL, "r+b") as journal:
            journal.truncate(sum(len(line) + 1 for line in lines[:-1]))
    return found


def _identity(array: Array) -> list[Any]:
    """Return what has to be the same for what was written to be what would be written."""
    parts = []
    for tensor in array.tensors:
        status = os.stat(tensor.path)
        parts.append([tensor.name, str(tensor.shape), tensor.start, status.st_size, status.st_mtime_ns])
    return [str(array.shape), list(array.order), parts]


def _pack_array(place: Path, file: str, array: Array, max_memory: int, progress: Progress) -> dict[str, Any]:
    """Write the file of an array, and return its record."""
    shape = array.shape
    inner = _stored_shape(array.tensors[0].shape, array.order)
    files = [tensor.open() for tensor in array.tensors]
    parts = [StoredArray(one, inner) for one in files]
    source = _Stack(parts) if array.is_stacked else parts[0]
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(OutputFile(str(place / file), shape.nbytes))
        for one in files:
            stack.enter_context(one.unchanged())
        plan_boxes(source, WrittenArray(output, shape), max_memory).run(fill_pattern(shape), progress.advance)
    return {
        "name": array.name,
        "shape": str(shape),
        "file": file,
        "offset": 0,
        "nbytes": shape.nbytes,
        "sha256": _checksum(place / file),
        "order": list(array.order),
        "is_stacked": array.is_stacked,
        "tensors": [tensor.name for tensor in array.tensors],
    }


def _stored_shape(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Return a tensor as it lies in its file, with its dimensions in another order."""
    minor_to_major = tuple(order.index(d) for d in reversed(range(shape.rank)))
    return Shape(shape.element_type, tuple(shape.dimensions[d] for d in order), Layout(minor_to_major))


def _stacked_shape(inner: Shape, count: int) -> Shape:
    """Return arrays one after the other, as one with a new first dimension."""
    layout = Layout((*(d + 1 for d in inner.layout.minor_to_major), 0))
    return Shape(inner.element_type, (count, *inner.dimensions), layout)


class _Stack:
    """Arrays of one shape as one, with a new first dimension: a source of boxes, or a target."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts
        self.shape = _stacked_shape(parts[0].shape, len(parts))
        self.steps = (1,) * self.shape.rank

    def costs(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Return the memory and the cost of a box."""
        return segment_costs(self.shape, sizes)

    def read(self, box: Box, into: Bytes) -> None:
        """Read a box, packed as by `box_shape`."""
        for part, content in self._of_parts(box, into):
            part.read(box[1:], content)

    def write(self, box: Box, data: Bytes) -> None:
        """Write a box, packed as by `box_shape`."""
        for part, content in self._of_parts(box, data):
            part.write(box[1:], content)

    def _of_parts(self, box: Box, content: Bytes) -> Iterator[tuple[Any, Bytes]]:
        nbytes = len(content) // max(len(box[0]), 1)
        for i, number in enumerate(box[0]):
            yield self._parts[number], content[i * nbytes : (i + 1) * nbytes]


@dataclass(frozen=True, slots=True)
class _PartOfFile:
    """A tensor that is written to a part of a file."""

    file: OutputFile
    shape: Shape
    start: int

    @property
    def steps(self) -> tuple[int, ...]:
        return (1,) * self.shape.rank

    def costs(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        return segment_costs(self.shape, sizes)

    def write(self, box: Box, data: Bytes) -> None:
        at = 0
        for start, nbytes in byte_segments(self.shape, box):
            self.file.write(self.start + start, data[at : at + nbytes])
            at += nbytes


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(_AT_ONCE):
            digest.update(part)
    return digest.hexdigest()


class Checkpoint(Mapping[str, NDArray[Any]]):
    """A folder that `pack_checkpoint` has written: its arrays by name, as read-only memory maps of physical buffers.

    Attributes
    ----------
    folder : str
    shapes : dict of str to Shape
    """

    def __init__(self, folder: str, arrays: list[dict[str, Any]]) -> None:
        self.folder = folder
        self._arrays = {one["name"]: one for one in arrays}
        self.shapes = {name: Shape.parse(one["shape"]) for name, one in self._arrays.items()}

    def __getitem__(self, name: str) -> NDArray[Any]:
        one, shape = self._arrays[name], self.shapes[name]
        dtype = buffer_dtype(shape)
        if not shape.nbytes:
            return np.empty(0, dtype)
        path = os.path.join(self.folder, one["file"])
        return np.memmap(path, dtype, "r", shape=(shape.nbytes // dtype.itemsize,))

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<Checkpoint {self.folder}: {len(self)} arrays, {sum(s.nbytes for s in self.shapes.values())} bytes>"

    def verify(self) -> None:
        """Compare the checksums of all files with those of the manifest.

        Raises
        ------
        FastIndexError
            A file has other bytes.
        OSError
            A file cannot be read.
        """
        for name, one in self._arrays.items():
            if _checksum(Path(self.folder, one["file"])) != one["sha256"]:
                raise FastIndexError(f"{self.folder}: {one['file']} is not as it was written; it holds {name!r}")

    def unpack(
        self,
        target: str | os.PathLike[str],
        *,
        max_memory: int = DEFAULT_MEMORY_BYTES,
        progress: Progress | None = None,
    ) -> None:
        """Write the tensors to a safetensors file, by their own names, in their own order of dimensions.

        What was not cast is as it was, bit for bit.

        Parameters
        ----------
        target : path
        max_memory, progress
            As for `pack_checkpoint`.

        Raises
        ------
        UnsupportedError
            An element type that the format lacks.
        FastIndexError
            Too little memory.
        OSError
            A file cannot be read or written.
        """
        shapes: dict[str, Shape] = {}
        for name, one in self._arrays.items():
            dimensions = self.shapes[name].dimensions[1 if one["is_stacked"] else 0 :]
            own = tuple(dimensions[one["order"].index(d)] for d in range(len(dimensions)))
            shapes |= dict.fromkeys(one["tensors"], Shape(self.shapes[name].element_type, own))
        reporting = progress or _NoProgress()
        reporting.start(sum(shape.nbytes for shape in shapes.values()))
        starts, at = {}, 0
        for name, shape in shapes.items():
            starts[name] = at
            at += shape.nbytes
        with OutputFile(os.fspath(target), at, header_of(shapes)) as output:
            for name, one in self._arrays.items():
                inner = [
                    _PartOfFile(output, _stored_shape(shapes[part], tuple(one["order"])), starts[part])
                    for part in one["tensors"]
                ]
                to: Any = _Stack(inner) if one["is_stacked"] else inner[0]
                file = open_raw(os.path.join(self.folder, one["file"]), 0, self.shapes[name].nbytes)
                job = plan_boxes(StoredArray(file, self.shapes[name]), to, max_memory)
                with file.unchanged():
                    job.run(bytes(16), reporting.advance)


def open_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint:
    """Open a folder that `pack_checkpoint` has written.

    Parameters
    ----------
    folder : path

    Returns
    -------
    Checkpoint
        ``checkpoint["name"]`` maps the physical buffer of one array, read-only; ``checkpoint.shapes["name"]`` is how it
        is laid out.

    Raises
    ------
    FastIndexError
        The folder is not complete, or its manifest is not what one is.
    OSError
        The folder or the manifest cannot be read.

    Examples
    --------
    >>> import fastindex as fi
    >>> fi.open_checkpoint(".")
    Traceback (most recent call last):
        ...
    fastindex.errors.FastIndexError: . holds no complete checkpoint: manifest.json is not there
    """
    path = Path(folder, MANIFEST)
    try:
        written = path.read_bytes()
    except FileNotFoundError:
        os.stat(folder)
        raise FastIndexError(f"{os.fspath(folder)} holds no complete checkpoint: {MANIFEST} is not there") from None
    content = json_object(written, str(path))
    if content.get("format") != _FORMAT or content.get("version") != _VERSION:
        raise FastIndexError(f"{path} is no manifest of a checkpoint that this version of fastindex reads")
    arrays = content.get("arrays")
    if not isinstance(arrays, list):
        raise FastIndexError(f"{path} lists no arrays")
    seen: set[str] = set()
    for one in arrays:
        _check_record(path, one)
        if one["name"] in seen:
            raise FastIndexError(f"{path} has {one['name'][:80]!r} twice")
        seen.add(one["name"])
    return Checkpoint(os.fspath(folder), arrays)


_FIELDS = {
    "name": str,
    "shape": str,
    "file": str,
    "offset": int,
    "nbytes": int,
    "sha256": str,
    "order": list,
    "is_stacked": bool,
    "tensors": list,
}


def _check_record(path: Path, one: Any) -> None:
    """Raise FastIndexError unless a manifest tells an array as `pack_checkpoint` does."""
    if not isinstance(one, dict) or any(type(one.get(name)) is not kind for name, kind in _FIELDS.items()):
        raise FastIndexError(f"{path}: an array has {', '.join(_FIELDS)}; got {str(one)[:200]}")
    where = f"{path}: {one['name'][:80]!r}"
    if not is_plain_name(one["file"]) or one["offset"]:
        raise FastIndexError(f"{where} is in {one['file'][:80]!r}, which is no file of the folder")
    shape = Shape.parse(one["shape"])
    check_movable(shape)
    rank = shape.rank - one["is_stacked"]
    count = shape.dimensions[0] if one["is_stacked"] and shape.rank else 1
    is_order = sorted(map(str, one["order"])) == sorted(map(str, range(rank)))
    if not is_order or not all(type(d) is int for d in one["order"]) or len(one["tensors"]) != count:
        raise FastIndexError(f"{where} does not say which dimensions and tensors it was made of")
    if not all(isinstance(name, str) for name in one["tensors"]):
        raise FastIndexError(f"{where} was made of tensors that have no names")
    file = path.parent / one["file"]
    if shape.nbytes != one["nbytes"] or not file.is_file() or file.stat().st_size != shape.nbytes:
        raise FastIndexError(f"{where} takes {shape.nbytes} bytes; {one['file']} is not there, or has others")
