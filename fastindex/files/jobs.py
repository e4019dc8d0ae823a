"""The jobs of the command line on files: pack, unpack, relayout, and index conversion, in bounded memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastindex import cuda
from fastindex.arguments.arrays import buffer_dtype
from fastindex.arguments.buffers import check_movable, memory_dimensions
from fastindex.arguments.windows import as_window
from fastindex.bulk.indices import linear_index, multi_index
from fastindex.cpu.blockwise import Surroundings, relayout_in_blocks, written_bytes
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError
from fastindex.files.reading import InputFile, open_input, plain_shape, stored_array, stored_buffer
from fastindex.files.writing import OutputFile, header_for
from fastindex.shapes.shape import Shape
from fastindex.shapes.shape_sizes import check_placed

#: What a job may hold in memory at a time, the program itself included.
DEFAULT_MEMORY_BYTES = 1 << 30

#: A block takes at least this much, whatever the limit.
_LEAST_BYTES = 16 << 20
#: When everything fits: small enough for progress to show.
_BLOCK_BYTES_IN_MEMORY = 128 << 20
_INDICES_AT_ONCE = 1 << 20

Bytes = NDArray[np.uint8]


class Progress(Protocol):
    """Receives the progress of a job."""

    def start(self, total: int) -> None:
        """Receive the total number of bytes to write."""

    def advance(self, count: int) -> None:
        """Receive the number of bytes written since the last call."""


def pack_file(
    source_path: str,
    target_path: str,
    shape: Shape,
    progress: Progress,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> None:
    """Read a logical array from a file and write its physical buffer to another.

    Raises
    ------
    FastIndexError
        The file does not hold such an array.
    OSError
        A file cannot be read or written.
    """
    check_movable(shape)
    file = open_input(source_path)
    with _buffer_output(target_path, shape) as output, file.unchanged():
        room = _Room(memory_bytes, file, output, progress)
        read, plain = stored_array(file, shape, room.scratch)
        room.move(plain, shape, read)


def unpack_file(
    source_path: str,
    target_path: str,
    shape: Shape,
    progress: Progress,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> None:
    """Read a physical buffer from a file and write the logical array to another.

    Raises
    ------
    FastIndexError
        The file does not hold such a buffer.
    OSError
        A file cannot be read or written.
    """
    check_movable(shape)
    file = open_input(source_path)
    plain = plain_shape(shape)
    header = header_for(target_path, shape.element_type.numpy_dtype, shape.dimensions)
    with OutputFile(target_path, plain.nbytes, header) as output, file.unchanged():
        room = _Room(memory_bytes, file, output, progress)
        room.move(shape, plain, stored_buffer(file, shape, room.scratch))


def relayout_file(
    source_path: str,
    target_path: str,
    source: Shape,
    destination: Shape,
    progress: Progress,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    device: str = "cpu",
) -> None:
    """Read a physical buffer from a file and write it in another layout to another.

    Parameters
    ----------
    source_path, target_path : str
    source, destination : Shape
    progress : Progress
    memory_bytes : int
        On the CPU what the process may have in memory; with CUDA what is pinned, and on the GPU, at a time.
    device : {"cpu", "cuda"}

    Raises
    ------
    FastIndexError
        Shapes of different arrays, the file does not hold such a buffer, or there is no GPU.
    OSError
        A file cannot be read or written.
    """
    written_bytes(source, destination)
    if device == "cuda":
        cuda.device_name()
    file = open_input(source_path)
    several = len(file.dimensions) > 1
    with _buffer_output(target_path, destination, keeps_dimensions=several) as output, file.unchanged():
        room = _Room(memory_bytes, file, output, progress)
        read = stored_buffer(file, source, room.scratch)
        if device == "cuda":
            cuda.relayout_through_device(read, source, destination, output.data, max_memory=memory_bytes)
        else:
            room.move(source, destination, read)


def _buffer_output(path: str, shape: Shape, keeps_dimensions: bool = False) -> OutputFile:
    dtype = buffer_dtype(shape)
    dimensions = memory_dimensions(shape) if keeps_dimensions else None
    return OutputFile(path, shape.nbytes, header_for(path, dtype, dimensions or (shape.nbytes // dtype.itemsize,)))


class _Room:
    """The memory that a job on two mapped files may use."""

    def __init__(self, memory_bytes: int, file: InputFile, output: OutputFile, progress: Progress) -> None:
        self._limit = memory_bytes
        self._file = file
        self._output = output
        self._progress = progress
        self._budget = max(memory_bytes - (resident_bytes() or 0), _LEAST_BYTES)
        self._all_fits = False

    def scratch(self, nbytes: int) -> Bytes:
        if nbytes > self._budget // 4:
            return self._output.scratch(nbytes)
        self._budget -= nbytes
        return np.empty(nbytes, np.uint8)

    def move(self, source: Shape, destination: Shape, read: Bytes) -> None:
        written = written_bytes(source, destination)
        self._all_fits = len(read) + written <= self._budget
        self._progress.start(written)
        block = _BLOCK_BYTES_IN_MEMORY if self._all_fits else self._budget // 2
        surroundings = Surroundings(block, self.scratch, self._after_block)
        relayout_in_blocks(source, destination, read, self._output.data, surroundings)

    def _after_block(self, written: int) -> None:
        self._progress.advance(written)
        if not self._all_fits:
            _release_above(self._limit - self._budget // 2, self._file, self._output)


def _release_above(limit: int, file: InputFile, output: OutputFile) -> None:
    resident = resident_bytes()
    if resident is None or resident > limit:
        file.release()
        output.release()


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes, mapped files included, or None if it is unknown.

    Examples
    --------
    >>> resident_bytes() is None or resident_bytes() > 1 << 20
    True
    """
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError, IndexError):
        return None


def linear_index_file(source_path: str, target_path: str, shape: Shape, progress: Progress, unit: str = "slot") -> None:
    """Read coordinates, an array of (rank, ...), from a file and write their slots, an array of (...), to another.

    Raises
    ------
    FastIndexError
        The file does not hold integers, one row per dimension.
    OutOfBoundsError
        A coordinate is out of bounds.
    OSError
        A file cannot be read or written.
    """
    check_placed(shape)
    file = _integers_in(source_path)
    coordinates = file.array()
    if coordinates.ndim == 0 or len(coordinates) != shape.rank:
        hint = "; transpose it" if coordinates.ndim == 2 and coordinates.shape[1] == shape.rank else ""
        raise FastIndexError(
            f"{source_path} has the dimensions {coordinates.shape}; coordinates of {shape.cut_text()} are an array of "
            f"({shape.rank}, ...), one row per dimension{hint}"
        )
    places = coordinates.shape[1:]
    with _indices_output(target_path, places) as output, file.unchanged():
        slots = output.data.view(np.int64).reshape(places)

        def convert(begin: int, end: int) -> None:
            linear_index(shape, coordinates[:, begin:end], unit=unit, out=slots[begin:end])

        def convert_all() -> None:
            slots[...] = linear_index(shape, coordinates, unit=unit)

        def advance(count: int) -> None:
            progress.advance(count)
            _release_above(DEFAULT_MEMORY_BYTES, file, output)

        progress.start(slots.size)
        _convert_in_parts(places, convert, convert_all, advance)


def window_file(target_path: str, shape: Shape, window: Any, unit: str = "slot") -> None:
    """Write the places of the elements of a window to a file, in the window's own dimensions.

    Raises
    ------
    FastIndexError
        Not a window of `shape`.
    OSError
        The file cannot be written.
    """
    dimensions = as_window(window, shape).shape
    with _indices_output(target_path, dimensions) as output:
        linear_index(shape, window, unit=unit, out=output.data.view(np.int64).reshape(dimensions))


def multi_index_file(
    source_path: str,
    target_path: str,
    shape: Shape,
    progress: Progress,
    unit: str = "slot",
    padding: str = "raise",
) -> None:
    """Read slots, an array of (...), from a file and write their coordinates, an array of (rank, ...), to another.

    Raises
    ------
    FastIndexError
        The file does not hold integers.
    OutOfBoundsError
        A slot is outside the buffer, or is padding.
    OSError
        A file cannot be read or written.
    """
    check_placed(shape)
    file = _integers_in(source_path)
    slots = file.array()
    with _indices_output(target_path, (shape.rank, *slots.shape)) as output, file.unchanged():
        coordinates = output.data.view(np.int64).reshape(shape.rank, *slots.shape)

        def convert(begin: int, end: int) -> None:
            multi_index(shape, slots[begin:end], padding, unit=unit, out=list(coordinates[:, begin:end]))

        def convert_all() -> None:
            for number, found in enumerate(multi_index(shape, slots, padding, unit=unit)):
                coordinates[number] = found

        def advance(count: int) -> None:
            progress.advance(count)
            _release_above(DEFAULT_MEMORY_BYTES, file, output)

        progress.start(slots.size)
        _convert_in_parts(slots.shape, convert, convert_all, advance)


def _integers_in(path: str) -> InputFile:
    file = open_input(path)
    if file.dtype is None:
        raise FastIndexError(f"{path} must be a .npy file: raw bytes do not say how wide its integers are")
    if file.dtype.kind not in "iu":
        raise ArgumentTypeError(f"{path} must hold integers, got dtype {file.dtype}")
    return file


def _indices_output(path: str, dimensions: tuple[int, ...]) -> OutputFile:
    dtype = np.dtype(np.int64)
    return OutputFile(path, math.prod(dimensions) * dtype.itemsize, header_for(path, dtype, dimensions))


def _convert_in_parts(
    places: tuple[int, ...],
    convert: Callable[[int, int], None],
    convert_all: Callable[[], None],
    advance: Callable[[int], None],
) -> None:
    """Convert parts along the first axis; an error names its place in the whole."""
    if not places or 0 in places:
        convert_all()
        return
    row = math.prod(places[1:])
    step = max(1, _INDICES_AT_ONCE // row)
    for begin in range(0, places[0], step):
        end = min(begin + step, places[0])
        try:
            convert(begin, end)
        except OutOfBoundsError:
            if places[0] > step:
                convert_all()
            raise
        advance((end - begin) * row)
