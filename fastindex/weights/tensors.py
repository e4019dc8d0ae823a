"""Tensors of a checkpoint: the metadata of each, the place of its bytes in a file, and stacks of several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastindex.algebra.segments import Box, segment_costs
from fastindex.core.shape import Shape
from fastindex.jobs.input_files import Bytes, FileIdentity, InputFile, open_raw


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file.

    Attributes
    ----------
    name, path : str
    shape : Shape
        As stored, the last dimension most minor; bytes if `is_opaque`.
    start : int
        Byte offset in the file.
    dtype : str
        The file's own name of the element type.
    sizes : tuple of int
        The dimensions that the header states.
    identity : FileIdentity
        Of the file whose header was read.
    is_opaque : bool
        Whether elements cannot be moved individually: 6-bit elements packed without gaps, or blocks that mix scales
        and codes.
    """

    name: str
    path: str
    shape: Shape
    start: int
    dtype: str
    sizes: tuple[int, ...]
    identity: FileIdentity
    is_opaque: bool = False

    def properties(self) -> list[Any]:
        """Return the properties of a tensor that must be unchanged for a job to resume.

        Device and inode of its file are left out: they may change when a file system is remounted.
        """
        return [self.name, self.dtype, str(self.shape), self.start, self.identity.size, self.identity.mtime_ns]


def opened(tensors: Iterable[Tensor]) -> tuple[list[InputFile], list[InputFile]]:
    """Open the bytes of tensors for reading.

    Returns
    -------
    (parts, files)
        One part for each tensor; the files that hold them, each opened once: open files are a limited resource.

    Raises
    ------
    FastIndexError
        A file was replaced or written to since its header was read.
    OSError
        A file cannot be read.
    """
    files: dict[str, InputFile] = {}
    parts = []
    for tensor in tensors:
        if tensor.path not in files:
            files[tensor.path] = open_raw(tensor.path, None, tensor.identity)
        parts.append(files[tensor.path].part(tensor.start, tensor.shape.nbytes))
    return parts, list(files.values())


@dataclass(frozen=True, slots=True)
class TensorFiles:
    """The tensors and metadata in the files of a checkpoint.

    Attributes
    ----------
    tensors : mapping of str to Tensor
        By name, in the order of the files.
    metadata : mapping of str to str
        Of the files.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)


def ordered_shape(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Return a shape with its dimensions permuted and its order in memory unchanged.

    Examples
    --------
    >>> print(ordered_shape(Shape.parse("f32[2,3]"), (1, 0)))
    f32[3,2]{0,1}
    """
    layout = replace(shape.layout, minor_to_major=tuple(order.index(d) for d in shape.layout.minor_to_major))
    return Shape(shape.element_type, tuple(shape.dimensions[d] for d in order), layout)


class Stack:
    """Arrays of one shape, stacked along a new first dimension: a source or a target of boxes."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts
        inner: Shape = parts[0].shape
        layout = replace(inner.layout, minor_to_major=(*(d + 1 for d in inner.layout.minor_to_major), 0))
        self.shape = Shape(inner.element_type, (len(parts), *inner.dimensions), layout)
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
