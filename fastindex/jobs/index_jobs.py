"""Index conversion on files, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fastindex.arrays.windows import as_window
from fastindex.core.shape import Shape
from fastindex.core.sizes import check_placed
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError
from fastindex.index.indices import linear_index, multi_index
from fastindex.jobs.input_files import InputFile, open_input
from fastindex.jobs.layout_jobs import DEFAULT_MEMORY_BYTES, Progress
from fastindex.jobs.writing import OutputFile, header_for
from fastindex.moving.box_jobs import resident_bytes

_INDICES_AT_ONCE = 1 << 20


def _release_above(limit: int, file: InputFile, output: OutputFile) -> None:
    resident = resident_bytes()
    if resident is None or resident > limit:
        file.release()
        output.release()


def linear_index_file(
    source_path: str, target_path: str, shape: Shape, progress: Progress, unit: str = "slot", force: bool = False
) -> None:
    """Read coordinates, an array of (rank, ...), from a file and write their slots, an array of (...), to another.

    With `force`, a read-only target is replaced, too.

    Raises
    ------
    FastIndexError
        The file does not contain integers, one row per dimension.
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
    with _indices_output(target_path, places, force) as output, file.unchanged():
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


def window_file(target_path: str, shape: Shape, window: Any, unit: str = "slot", force: bool = False) -> None:
    """Write the linear indices of a window's elements to a file, as an array with the window's dimensions.

    With `force`, a read-only target is replaced, too.

    Raises
    ------
    FastIndexError
        Not a window of `shape`.
    OSError
        The file cannot be written.
    """
    dimensions = as_window(window, shape).shape
    with _indices_output(target_path, dimensions, force) as output:
        linear_index(shape, window, unit=unit, out=output.data.view(np.int64).reshape(dimensions))


def multi_index_file(
    source_path: str,
    target_path: str,
    shape: Shape,
    progress: Progress,
    unit: str = "slot",
    padding: str = "raise",
    force: bool = False,
) -> None:
    """Read slots, an array of (...), from a file and write their coordinates, an array of (rank, ...), to another.

    With `force`, a read-only target is replaced, too.

    Raises
    ------
    FastIndexError
        The file does not contain integers.
    OutOfBoundsError
        A slot is outside the buffer, or is padding.
    OSError
        A file cannot be read or written.
    """
    check_placed(shape)
    file = _integers_in(source_path)
    slots = file.array()
    with _indices_output(target_path, (shape.rank, *slots.shape), force) as output, file.unchanged():
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


def _indices_output(path: str, dimensions: tuple[int, ...], force: bool) -> OutputFile:
    dtype = np.dtype(np.int64)
    return OutputFile(path, math.prod(dimensions) * dtype.itemsize, header_for(path, dtype, dimensions), force)


def _convert_in_parts(
    places: tuple[int, ...],
    convert: Callable[[int, int], None],
    convert_all: Callable[[], None],
    advance: Callable[[int], None],
) -> None:
    """Convert in parts along the first axis; error messages give positions in the whole array."""
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
