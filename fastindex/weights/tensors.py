"""Tensors of a checkpoint: what a file says of each, and where its bytes are."""

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
        As it lies there, the last dimension the most minor; bytes, where `is_opaque`.
    start : int
        Bytes from the beginning of the file.
    dtype : str
        The file's own name of the element type.
    sizes : tuple of int
        The dimensions that the file tells.
    identity : FileIdentity
        Of the file whose header says all this.
    is_opaque : bool
        Whether its elements are not moved one by one: 6 bits without gaps, or blocks with factors among the codes.
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
        """Return what of a tensor has to stay the same for a job to go on.

        Not where its file lies: a file system may number its files again when it is mounted again.
        """
        return [self.name, self.dtype, str(self.shape), self.start, self.identity.size, self.identity.mtime_ns]


def opened(tensors: Iterable[Tensor]) -> tuple[list[InputFile], list[InputFile]]:
    """Open the bytes of tensors for reading.

    Returns
    -------
    (parts, files)
        One part for each tensor; the files that they are in, each opened once: a process may have few open.

    Raises
    ------
    FastIndexError
        A file was replaced or written to since its header was read.
    OSError
        It cannot be read.
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
    """What is in the files of a checkpoint.

    Attributes
    ----------
    tensors : mapping of str to Tensor
        By their names, in the order of the files.
    metadata : mapping of str to str
        What the files say besides.
    """

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
