"""Pack one array of a checkpoint from its tensors, and flush it to disk while the next one is packed."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from fastindex.arrays.fills import fill_pattern
from fastindex.jobs.input_files import Bytes, InputFile
from fastindex.jobs.layout_jobs import Progress, WrittenArray
from fastindex.jobs.reading import StoredArray
from fastindex.jobs.writing import OutputFile
from fastindex.jobs.zarr_arrays import ZarrBuffer, new_zarr_buffer
from fastindex.moving.box_jobs import plan_boxes, taken_bytes
from fastindex.weights.buffers import checksum_of_new
from fastindex.weights.journals import Journal
from fastindex.weights.manifests import ZARR, record_of
from fastindex.weights.repack_jobs import Formats, cut_of_parts, move_parts, parts_of
from fastindex.weights.rules import Array
from fastindex.weights.stacks import Stack, ordered_shape
from fastindex.weights.tensors import opened

#: Worker threads that flush arrays to disk.
_FINISHERS = 2
#: How many arrays may wait for that: each has an open file, and its bytes in the page cache.
_MOST_WAITING = 4


class Packed:
    """An array that is written, but perhaps not yet flushed to disk, and not yet renamed."""

    def __init__(self, path: str, store: str, open_files: contextlib.ExitStack) -> None:
        self.path = path
        self.store = store
        self._open_files = open_files

    def finish(self) -> None:
        """Flush the array to disk, and rename it."""
        self._open_files.close()


def pack_array(path: str, array: Array, limit: int, store: str, progress: Progress | None, casting: str) -> Packed:
    """Write the buffer of an array; `Packed.finish` gives it its name.

    Parameters
    ----------
    path : str
    array : Array
    limit : int
        Memory limit of the process, in bytes.
    store : {"raw", "zarr"}
    progress : Progress, optional
    casting : str
        NumPy's rule for casts; already checked.
    """
    advance = _ignore if progress is None else progress.advance
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
                _move_formats(array, array.formats, tensors, target, limit, advance)
            else:
                inner = ordered_shape(array.tensors[0].shape, array.order)
                parts = [StoredArray(one, inner) for one in tensors]
                source: Any = Stack(parts) if array.is_stacked else parts[0]
                plan_boxes(source, target, limit, casting=casting).run(fill_pattern(array.shape), advance)
        return Packed(path, store, stack.pop_all())


def _move_formats(
    array: Array, formats: Formats, files: list[InputFile], target: WrittenArray | ZarrBuffer, limit: int, advance: Any
) -> None:
    """Move tensors to another named format, one after the other."""
    plan, taken = formats.plan(), taken_bytes()
    cut = cut_of_parts(plan, limit - taken, taken)
    given = array.tensors[0].shape.element_type
    signed = given.bits if given.kind == "signed" else 0
    for number, file in enumerate(files):
        begin = number * plan.ends[1].side.nbytes

        def write(start: int, content: Bytes, begin: int = begin) -> None:
            if isinstance(target, ZarrBuffer):
                target.array[begin + start : begin + start + len(content)] = content
            else:
                target.file.write(begin + start, content)

        move_parts(parts_of(plan, cut, limit - taken, formats), file.read, write, (signed, 0), advance)


class Finishing:
    """Worker threads that flush arrays, read them back for their checksums, and record them in the journal.

    Parameters
    ----------
    journal : Journal
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_FINISHERS, "fastindex-checkpoint")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> Finishing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Even after an error, finish the packed arrays: a resumed job reuses them.
        self._threads.shutdown(wait=True)

    def take(self, array: Array, file: str, packed: Packed) -> None:
        """Queue a packed array to be finished; block while too many wait.

        Raises
        ------
        OSError
            This array, or an earlier one, cannot be written.
        """
        if packed.store == ZARR:
            # Zarr's settings belong to the whole process: the thread that set them resets them.
            self._finish(array, file, packed)
            return
        self._waiting.append(self._threads.submit(self._finish, array, file, packed))
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft().result()

    def wait(self) -> None:
        """Wait until all arrays are on disk, and recorded."""
        while self._waiting:
            self._waiting.popleft().result()

    def _finish(self, array: Array, file: str, packed: Packed) -> None:
        packed.finish()
        record = record_of(array, file, checksum_of_new(packed.path, array.shape, packed.store))
        with self._lock:
            self._journal.add(array.name, record)


def _ignore(count: int) -> None:
    """No-op progress callback."""
