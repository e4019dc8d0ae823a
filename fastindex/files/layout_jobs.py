"""Jobs on files: pack, unpack and relayout, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fastindex import cuda
from fastindex.arguments.arrays import buffer_dtype
from fastindex.arguments.buffers import check_movable, memory_dimensions, require_movable_pair
from fastindex.arguments.fills import fill_pattern
from fastindex.cpu.box_jobs import BoxSource, plan_boxes
from fastindex.files.reading import Bytes, open_input, plain_shape, stored_array, stored_buffer
from fastindex.files.writing import OutputFile, header_for
from fastindex.lowering.box_segments import Box, byte_segments
from fastindex.lowering.box_sizes import segment_costs
from fastindex.shapes.shape import Shape

#: What a job may have in memory at a time, the program itself included.
DEFAULT_MEMORY_BYTES = 1 << 30


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

    Parameters
    ----------
    source_path, target_path : str
    shape : Shape
    progress : Progress
    memory_bytes : int
        What the process may have in memory, the program included.

    Raises
    ------
    FastIndexError
        The file does not hold such an array, or the memory is too little.
    OSError
        A file cannot be read or written.
    """
    check_movable(shape)
    file = open_input(source_path)
    source = stored_array(file, shape)
    with _buffer_output(target_path, shape) as output, file.unchanged():
        _move(source, WrittenArray(output, shape), progress, memory_bytes)


def unpack_file(
    source_path: str,
    target_path: str,
    shape: Shape,
    progress: Progress,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> None:
    """Read a physical buffer from a file and write the logical array to another.

    Parameters and errors as for `pack_file`.
    """
    check_movable(shape)
    file = open_input(source_path)
    source = stored_buffer(file, shape)
    plain = plain_shape(shape)
    header = header_for(target_path, shape.element_type.numpy_dtype, shape.dimensions)
    with OutputFile(target_path, plain.nbytes, header) as output, file.unchanged():
        _move(source, WrittenArray(output, plain), progress, memory_bytes)


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
        Shapes of different arrays, the file does not hold such a buffer, the memory is too little, or there is no GPU.
    OSError
        A file cannot be read or written.
    """
    require_movable_pair(source, destination)
    if device == "cuda":
        cuda.device_name()
    file = open_input(source_path)
    stored, several = stored_buffer(file, source), len(file.dimensions) > 1
    # The GPU reads from a map, which has to be there before it is watched.
    whole = stored.whole() if device == "cuda" else None
    with _buffer_output(target_path, destination, keeps_dimensions=several) as output, file.unchanged():
        if whole is not None:
            cuda.relayout_through_device(whole, source, destination, output.data, max_memory=memory_bytes)
        else:
            _move(stored, WrittenArray(output, destination), progress, memory_bytes)


def _buffer_output(path: str, shape: Shape, keeps_dimensions: bool = False) -> OutputFile:
    dtype = buffer_dtype(shape)
    dimensions = memory_dimensions(shape) if keeps_dimensions else None
    return OutputFile(path, shape.nbytes, header_for(path, dtype, dimensions or (shape.nbytes // dtype.itemsize,)))


@dataclass(frozen=True, slots=True)
class WrittenArray:
    """An array that is written to a file, in a layout.

    Attributes
    ----------
    file : OutputFile
    shape : Shape
    """

    file: OutputFile
    shape: Shape

    @property
    def steps(self) -> tuple[int, ...]:
        """Boxes may have any edges that the layout allows."""
        return (1,) * self.shape.rank

    def costs(self, sizes: tuple[int, ...]) -> tuple[int, int]:
        """Return the memory and the cost of a box of some sizes."""
        return segment_costs(self.shape, sizes)

    def write(self, box: Box, data: Bytes) -> None:
        """Write a box as `box_shape` packs it."""
        at = 0
        for start, nbytes in byte_segments(self.shape, box):
            self.file.write(start, data[at : at + nbytes])
            at += nbytes


def _move(source: BoxSource, target: WrittenArray, progress: Progress, memory_bytes: int) -> None:
    pattern = fill_pattern(target.shape)
    progress.start(target.shape.nbytes)
    plan_boxes(source, target, memory_bytes).run(pattern, progress.advance)
