"""Lay out the tensors of a checkpoint for a device, one after the other: pack, flush to disk, list in a manifest.

A folder is complete once it has its manifest. Until then a journal lists the complete arrays, each with its checksum;
an interrupted job resumes after them. The files of arrays appear complete or not at all. While an array is packed,
worker threads flush the ones before it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from fastindex.arrays.buffers import check_movable
from fastindex.arrays.fills import Casting, check_casting, fill_pattern
from fastindex.errors import FastIndexError
from fastindex.jobs.layout_jobs import NoProgress, Progress, memory_limit
from fastindex.jobs.reading import StoredArray
from fastindex.jobs.writing import OutputFile, WrittenArray, write_file
from fastindex.jobs.zarr_arrays import ZarrBuffer, is_zarr, new_zarr_buffer
from fastindex.moving.box_jobs import plan_boxes
from fastindex.weights.checkpoints import Checkpoint, checksum_of, open_checkpoint, opened_buffer
from fastindex.weights.gguf_files import read_tensors
from fastindex.weights.manifests import (
    JOURNAL,
    MANIFEST,
    RAW,
    ZARR,
    Journal,
    Manifest,
    Piece,
    opened_journal,
    record_of,
)
from fastindex.weights.repack_jobs import memory_within, move_parts, parts_of
from fastindex.weights.rules import Array, arrays_of, rules_of
from fastindex.weights.tensors import Stack, opened, ordered_shape

#: Zarr's metadata of a folder of arrays.
_GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'
#: Worker threads that flush arrays to disk.
_FLUSHING_THREADS = 2
#: How many arrays may wait for that: each has an open file, and its bytes in the page cache.
_MOST_WAITING = 4


def pack_checkpoint(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    rules: Iterable[Mapping[str, Any]] | Mapping[str, Any] = (),
    *,
    tpu: str | None = None,
    casting: Casting = "same_kind",
    max_memory: int | None = None,
    progress: Progress | None = None,
) -> Checkpoint:
    """Lay the tensors of a checkpoint out for a device, each in one stream, in bounded memory.

    An interrupted job resumes: complete arrays are not written again. Only one job at a time writes into a folder.

    Parameters
    ----------
    source : path
        A ``.safetensors`` file, the index of several, a folder with one of these, or a ``.gguf`` file, for which the
        extra ``gguf`` is needed.
    folder : path
        Output folder; it may not hold anything else, and its parent must exist. A name that ends in ``.zarr`` makes a
        Zarr store with an array of bytes for each buffer; any other name, a file for each.
    rules : iterable of mappings
        Or ``{"rules": [...]}``, as in files. A tensor follows the first rule whose ``names``, a pattern such as
        ``"model.layers.*.weight"``, matches its name; other tensors stay as they are. A rule has ``layout``, a text
        such as ``"{1,0:T(8,128)(2,1)}"`` or ``"tpu"``; ``dtype``, the element type to cast to; ``transpose``, such as
        ``"out in -> in out"``; ``stack``, the name of the array into which all its tensors are stacked, in the order of
        the numbers that the ``*`` matches. Instead of layout, dtype and transpose, ``format`` gives the source and the
        target format: ``{"from": "awq", "to": "marlin"}``, with parameters as for `repack`, and ``shape`` if the tensor
        does not determine it. ``{"formats": {"mine": ...}, "rules": [...]}`` names formats that were discovered, as
        `Discovery.to_json` returns them.
    tpu : {"v2", "v3", "v4", "v5e", "v5p", "v6e", "tpu7x"}, optional
        Use the default layout of this TPU's compiler for arrays whose rule names no layout. A topology, as for
        `try_layouts`, is accepted too: ``"v5p:2x2x1"``.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's rule for casts, as for `fastindex.pack`.
    max_memory : int, optional
        Memory limit of the whole process, in bytes; by default, 1 GiB more than it uses at the call.
    progress : optional
        An object whose ``start(total)`` and ``advance(count)`` are called with numbers of bytes.

    Returns
    -------
    Checkpoint

    Raises
    ------
    FastIndexError
        Malformed files, rules that do not fit, a folder that holds something else or is complete already, or too little
        memory.
    ArgumentTypeError
        A cast that `casting` does not allow.
    UnsupportedError
        A rule that needs the elements of a type that is copied as bytes, such as Q4_K; a missing extra.
    OSError
        A file cannot be read or written.

    Examples
    --------
    >>> import fastindex as fi, numpy as np, tempfile
    >>> from fastindex.weights.safetensors_files import header_of
    >>> place = tempfile.TemporaryDirectory()
    >>> with open(f"{place.name}/model.safetensors", "wb") as file:
    ...     _ = file.write(header_of({"w": fi.Shape.parse("f32[2,3]")}) + np.arange(6, dtype=np.float32).tobytes())
    >>> rules = [{"names": "w", "transpose": "a b -> b a", "dtype": "bf16"}]
    >>> found = fi.weights.pack_checkpoint(f"{place.name}/model.safetensors", f"{place.name}/out", rules)
    >>> found["w"]
    memmap([0, 3, 1, 4, 2, 5], dtype=bfloat16)
    >>> place.cleanup()
    """
    check_casting(casting)
    if os.fspath(folder).endswith((".safetensors", ".json", ".gguf")):
        raise FastIndexError(
            f"{os.fspath(folder)} is the name of a file, and the output is a folder of buffers: give it another "
            "name; unpack writes the tensors back to a .safetensors file"
        )
    limit, progress = memory_limit(max_memory), NoProgress() if progress is None else progress
    found = read_tensors(source)
    arrays = {array.name: array for array in arrays_of(found.tensors, rules_of(rules), tpu, casting)}
    for array in arrays.values():
        check_movable(array.shape)
    place = Path(folder)
    store = ZARR if is_zarr(os.fspath(folder)) else RAW
    files = {name: f"{number:05}{'' if store == ZARR else '.bin'}" for number, name in enumerate(arrays)}
    progress.start(sum(array.shape.nbytes for array in arrays.values()))
    pieces = {name: Piece(files[name], array.shape.nbytes, array.identity()) for name, array in arrays.items()}
    with opened_journal(place, pieces) as journal, _Flushing(journal, place, store) as flushing:
        for name in journal.missing(progress):
            array, path = arrays[name], str(place / files[name])
            flushing.take(array, files[name], _packed(path, array, limit, store, progress, casting))
        flushing.wait()
        records = [journal.done[name] for name in arrays]
        if store == ZARR:
            write_file(str(place / "zarr.json"), _GROUP)
        content = Manifest(records, dict(found.metadata), store, list(found.tensors)).content()
        write_file(str(place / MANIFEST), json.dumps(content, indent=1, ensure_ascii=False).encode())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place / JOURNAL)
    return open_checkpoint(place)


def _packed(path: str, array: Array, limit: int, store: str, progress: Progress, casting: str) -> contextlib.ExitStack:
    """Write the buffer of an array; closing the result flushes the buffer to disk and gives it its name."""
    tensors, files = opened(array.tensors)
    with contextlib.ExitStack() as stack:
        target: WrittenArray | ZarrBuffer
        if store == ZARR:
            target = stack.enter_context(new_zarr_buffer(path, array.shape))
        else:
            target = WrittenArray(stack.enter_context(OutputFile(path, array.shape.nbytes)), array.shape)
        with contextlib.ExitStack() as reading:
            for one in files:
                reading.enter_context(one.unchanged())
            if array.formats is not None:
                given, nbytes = array.tensors[0].shape.element_type, array.formats.plan().ends[1].side.nbytes
                signed = given.bits if given.kind == "signed" else 0, 0
                memory = reading.enter_context(memory_within(limit))
                for number, tensor in enumerate(tensors):
                    parts, starts = parts_of(array.formats, memory), (0, number * nbytes)
                    move_parts(parts, tensor.read, target.write_bytes, signed, progress.advance, starts)
            else:
                inner = ordered_shape(array.tensors[0].shape, array.order)
                stored = [StoredArray(one, inner) for one in tensors]
                source: Any = Stack(stored) if array.is_stacked else stored[0]
                plan_boxes(source, target, limit, casting=casting).run(fill_pattern(array.shape), progress.advance)
        return stack.pop_all()


class _Flushing:
    """Worker threads that flush arrays, read them back for their checksums, and record them in the journal."""

    def __init__(self, journal: Journal, place: Path, store: str) -> None:
        self._journal, self._place, self._store = journal, place, store
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_FLUSHING_THREADS, "fastindex-checkpoint")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> _Flushing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Even after an error, finish the packed arrays: a resumed job reuses them.
        self._threads.shutdown(wait=True)

    def take(self, array: Array, file: str, packed: contextlib.ExitStack) -> None:
        """Queue a packed array to be finished; block while too many wait.

        Raises
        ------
        OSError
            This array, or an earlier one, cannot be written.
        """
        if self._store == ZARR:
            # Zarr's settings belong to the whole process: the thread that set them resets them.
            self._finish(array, file, packed)
            return
        self._waiting.append(self._threads.submit(self._finish, array, file, packed))
        self.wait(_MOST_WAITING)

    def wait(self, most: int = 0) -> None:
        """Wait until all arrays but `most` are on disk, and recorded."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def _finish(self, array: Array, file: str, packed: contextlib.ExitStack) -> None:
        packed.close()
        buffer = opened_buffer(str(self._place / file), array.shape, self._store)
        record = record_of(array, file, checksum_of(buffer))
        with self._lock:
            self._journal.add(array.name, record)
