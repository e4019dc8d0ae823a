"""Tensors of a checkpoint: the metadata of each, and the place of its bytes in a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastindex.core.shape import Shape
from fastindex.jobs.input_files import FileIdentity, InputFile, open_raw


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

    def told(self) -> list[Any]:
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
            files[tensor.path] = open_raw(tensor.path, 0, None, tensor.identity)
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
