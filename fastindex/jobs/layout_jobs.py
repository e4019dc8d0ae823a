"""Jobs on files, in bounded memory: pack, unpack, relayout, and the conversion of indices."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from types import EllipsisType
from typing import Any

import numpy as np

from fastindex import cuda
from fastindex.algebra.casts import check_casting
from fastindex.algebra.segments import box_shape, box_steps, covering
from fastindex.arrays.fills import fill_pattern, logical_result
from fastindex.arrays.index_arguments import as_window
from fastindex.core.shape import Shape, plain_shape
from fastindex.core.sizes import buffer_form, check_movable, check_placed
from fastindex.errors import ArgumentTypeError, FastIndexError, OutOfBoundsError, UnsupportedError
from fastindex.index.indices import linear_index, multi_index
from fastindex.jobs.input_files import InputFile, open_input
from fastindex.jobs.reading import (
    CheckpointArray,
    StoredArray,
    checkpoint_of,
    stored_array,
    stored_buffer,
    stored_checkpoint_array,
)
from fastindex.jobs.writing import OutputFile, WrittenArray, header_for
from fastindex.jobs.zarr_arrays import (
    ZarrArray,
    ZarrBuffer,
    is_zarr,
    new_zarr_array,
    new_zarr_buffer,
    stored_zarr_array,
    stored_zarr_buffer,
)
from fastindex.moving.box_jobs import BoxJob, BoxTarget, plan_boxes, resident_bytes
from fastindex.moving.relayout_calls import plan_relayout
from fastindex.moving.relayout_plans import require_movable_pair
from fastindex.terminal import Progress

#: The memory that a job may use, the program itself included.
DEFAULT_MEMORY_BYTES = 1 << 30
_INDICES_AT_ONCE = 1 << 20


def memory_limit(max_memory: int | None) -> int:
    """Return the limit of the process's memory in bytes: `max_memory`, or by default 1 GiB more than now.

    Examples
    --------
    >>> memory_limit(None) > 1 << 30, memory_limit(1 << 29) == 1 << 29
    (True, True)
    """
    return (resident_bytes() or 0) + DEFAULT_MEMORY_BYTES if max_memory is None else max_memory


def pack_file(
    source_path: str,
    target_path: str,
    shape: Shape,
    progress: Progress,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    force: bool = False,
    casting: str = "same_kind",
) -> None:
    """Read a logical array from a file and write its physical buffer to another.

    Parameters
    ----------
    source_path, target_path : str
    shape : Shape
    progress : Progress
    memory_bytes : int
        The memory that the process may use, the program included.
    force : bool
        Also replace a read-only file.
    casting : str
        NumPy's casting rule if a NumPy file has another element type.

    Raises
    ------
    FastIndexError
        The file does not contain such an array, or the memory does not suffice.
    ArgumentTypeError
        `casting` does not allow the element type of the file to become that of the shape.
    OSError
        A file cannot be read or written.
    """
    check_movable(shape)
    check_casting(casting)
    source: CheckpointArray | StoredArray | ZarrArray
    if checkpoint_of(source_path) is not None:
        source = stored_checkpoint_array(source_path, shape)
    elif not is_zarr(source_path):
        source = stored_array(open_input(source_path), shape, casting)
    else:
        source = stored_zarr_array(source_path, shape, casting)
    with _buffer_target(target_path, shape, force) as target, source.reading():
        _run(plan_boxes(source, target, memory_bytes, is_checked=casting != "unsafe"), progress)


def unpack_file(
    source_path: str,
    target_path: str,
    shape: Shape,
    progress: Progress,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    force: bool = False,
    casting: str = "same_kind",
    dtype: str | None = None,
) -> None:
    """Read a physical buffer from a file and write the logical array to another.

    Parameters and errors as for `pack_file`; `dtype` is the element type of the array, by default that of the shape.
    """
    check_movable(shape)
    logical = logical_result(shape, None, dtype, casting)
    unpack_stored(_buffer_source(source_path, shape), target_path, logical, progress, memory_bytes, force, casting)


def unpack_stored(
    source: StoredArray | ZarrBuffer,
    target_path: str,
    logical: Shape,
    progress: Progress,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    force: bool = False,
    casting: str = "same_kind",
) -> None:
    """Write the logical array of an open buffer to a file; parameters and errors as for `unpack_file`."""
    with _array_target(target_path, logical, force) as target, source.reading():
        _run(plan_boxes(source, target, memory_bytes, is_checked=casting != "unsafe"), progress)


def relayout_file(
    source_path: str,
    target_path: str,
    source: Shape,
    destination: Shape,
    progress: Progress,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    device: str = "cpu",
    force: bool = False,
    tune: bool = False,
    casting: str = "same_kind",
) -> None:
    """Read a physical buffer from a file and write it to another file in another layout.

    Parameters
    ----------
    source_path, target_path : str
    source, destination : Shape
    progress : Progress
    memory_bytes : int
        On the CPU, the memory that the process may use; with CUDA, the limit of pinned memory and of GPU memory.
    device : {"cpu", "cuda"}
    force : bool
        As for `pack_file`.
    tune : bool
        Whether to time all candidate plans for a box first, on zeros; the fastest is remembered.
    casting : str
        NumPy's casting rule if `destination` has another element type.

    Raises
    ------
    FastIndexError
        The shapes describe different arrays, the file does not contain such a buffer, the memory does not suffice, or
        there is no GPU.
    ArgumentTypeError
        `casting` does not allow the element types.
    UnsupportedError
        `tune` with a cast.
    OSError
        A file cannot be read or written.
    """
    require_movable_pair(source, destination, casting)
    if tune and source.element_type != destination.element_type:
        raise UnsupportedError("--tune compares ways to move elements without a cast; with a cast there is only one")
    if device == "cuda":
        _relayout_on_gpu((source_path, target_path), (source, destination), memory_bytes, force, casting)
        return
    stored = _buffer_source(source_path, source)
    with _buffer_target(target_path, destination, force, keeps_dimensions=True) as target, stored.reading():
        job = plan_boxes(stored, target, memory_bytes, is_checked=casting != "unsafe")
        if tune:
            _tune(job)
        _run(job, progress)


def _relayout_on_gpu(
    paths: tuple[str, str], shapes: tuple[Shape, Shape], memory_bytes: int, force: bool, casting: str
) -> None:
    cuda.device_name()
    (source_path, target_path), (source, destination) = paths, shapes
    if is_zarr(source_path) or is_zarr(target_path):
        raise UnsupportedError("arrays in .zarr are moved by the CPU; leave --device out")
    file = open_input(source_path)
    stored = stored_buffer(file, source)
    # The GPU copies from the memory map of the file, unless the bytes have to be converted first.
    whole = stored.whole()
    with _buffer_output(target_path, destination, force, keeps_dimensions=True) as output, file.unchanged():
        cuda.relayout_through_device(
            whole,
            source,
            destination,
            output.data,
            max_memory=memory_bytes,
            casting=casting,  # type: ignore[arg-type]
        )


def _buffer_source(path: str, shape: Shape) -> StoredArray | ZarrBuffer:
    return stored_zarr_buffer(path, shape) if is_zarr(path) else stored_buffer(open_input(path), shape)


@contextlib.contextmanager
def _array_target(path: str, shape: Shape, force: bool) -> Iterator[BoxTarget]:
    if is_zarr(path):
        with new_zarr_array(path, shape) as made:
            yield made
        return
    plain = plain_shape(shape)
    header = header_for(path, shape.element_type.numpy_dtype, shape.dimensions)
    with OutputFile(path, plain.nbytes, header, force) as output:
        yield WrittenArray(output, plain)


@contextlib.contextmanager
def _buffer_target(path: str, shape: Shape, force: bool, keeps_dimensions: bool = False) -> Iterator[BoxTarget]:
    if not is_zarr(path):
        with _buffer_output(path, shape, force, keeps_dimensions) as output:
            yield WrittenArray(output, shape)
        return
    with new_zarr_buffer(path, shape) as made:
        yield made


def _buffer_output(path: str, shape: Shape, force: bool, keeps_dimensions: bool = False) -> OutputFile:
    dtype = buffer_form(shape).dtype
    dimensions = buffer_form(shape).dimensions if keeps_dimensions else None
    if dimensions is None:
        dimensions = (shape.nbytes // dtype.itemsize,)
    return OutputFile(path, shape.nbytes, header_for(path, dtype, dimensions), force)


def _run(job: BoxJob, progress: Progress) -> None:
    progress.start(job.target.shape.nbytes)
    job.run(fill_pattern(job.target.shape), progress.advance)


def _tune(job: BoxJob) -> None:
    """Tune the plan of the first box, which has the size of most boxes; the job then uses the stored result."""
    box = job.grid.box([0] * job.target.shape.rank)
    source, target = box_shape(job.source.shape, box), box_shape(job.target.shape, box)
    if job.by_numpy or covering(box, box_steps(job.source.shape), job.source.shape.dimensions) != box:
        return
    plan_relayout(source, target).tune(np.zeros(source.nbytes, np.uint8), threads=1 if job.workers > 1 else None)


# Indices


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
        _convert_in_parts(
            places,
            lambda part: linear_index(shape, coordinates[:, part], unit=unit, out=slots[part]),
            (file, output),
            progress,
        )


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
        _convert_in_parts(
            slots.shape,
            lambda part: multi_index(
                shape, slots[part], padding, unit=unit, out=[coordinates[d, part] for d in range(shape.rank)]
            ),
            (file, output),
            progress,
        )


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
    convert: Callable[[slice | EllipsisType], Any],
    files: tuple[InputFile, OutputFile],
    progress: Progress,
) -> None:
    """Convert in parts along the first axis; error messages give positions in the whole array."""
    progress.start(math.prod(places))
    if not places or 0 in places:
        convert(...)
        return
    row = math.prod(places[1:])
    step = max(1, _INDICES_AT_ONCE // row)
    for begin in range(0, places[0], step):
        end = min(begin + step, places[0])
        try:
            convert(slice(begin, end))
        except OutOfBoundsError:
            if places[0] > step:
                convert(...)
            raise
        progress.advance((end - begin) * row)
        resident = resident_bytes()
        if resident is None or resident > DEFAULT_MEMORY_BYTES:
            for file in files:
                file.release()
