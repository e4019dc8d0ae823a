"""The package as `tests.oracles.comparison` takes it, with memory maps of files, and `max_memory`, in between."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastindex as fi

#: More than the process of any test has.
ENOUGH = 64 << 30

_BESIDE = 0xC3


def strided_map(path: Path, source: random.Random, dimensions: tuple[int, ...], dtype: Any, mode: Any) -> NDArray[Any]:
    """Map a new file as an array that lies in it in any order and direction, with gaps or without."""
    dtype = np.dtype(dtype)
    order = source.sample(range(len(dimensions)), len(dimensions))
    if source.random() < 0.4:
        order = [*range(len(dimensions))]
    gaps = [source.choice((0, 0, 0, 1, 3)) for _ in dimensions]
    steps = [source.choice((1, 1, 1, 2, -1)) for _ in dimensions]
    whole = [max(dimensions[d], 1) * abs(steps[d]) + gaps[d] for d in order]
    start = source.choice((0, 1, 3, 4096)) * dtype.itemsize
    nbytes = int(np.prod(whole, dtype=int)) * dtype.itemsize
    path.write_bytes(bytes([_BESIDE]) * (start + nbytes + source.choice((0, 5, 5000))))
    mapped = np.memmap(path, np.uint8, mode, start, (nbytes,)).view(dtype).reshape(whole)
    places = (*(slice(None, None, steps[d]) for d in order), ...)
    mapped = mapped[places].transpose(np.argsort(order))
    return mapped[(*(slice(0, size) for size in dimensions), ...)]


class Mapped:
    """`fastindex` whose functions read memory maps and write to others; it looks at what lies beside the outputs."""

    Shape = fi.Shape

    def __init__(self, seed: int, folder: Path) -> None:
        self._random = random.Random(seed)
        self._folder = folder
        self._number = 0

    def _path(self) -> Path:
        self._number += 1
        return self._folder / str(self._number)

    def _map(self, values: Any) -> NDArray[Any]:
        """Map a file with the values of an array, of any strides, or of a buffer."""
        array = np.frombuffer(values, np.uint8) if isinstance(values, bytes) else np.asarray(values)
        path = self._path()
        if isinstance(values, bytes):
            path.write_bytes(b"\x5a" * 7 + values + b"\x5a" * 9)
            return np.memmap(path, np.uint8, "r", 7, array.shape) if array.size else array
        dtype = array.dtype.newbyteorder(self._random.choice("=<>")) if array.dtype.isbuiltin == 1 else array.dtype
        strided_map(path, random.Random(self._number), array.shape, dtype, "r+")[...] = array
        content = path.read_bytes()
        mapped = strided_map(path, random.Random(self._number), array.shape, dtype, "r+")
        path.write_bytes(content)
        mapped.flags.writeable = False
        return mapped

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {**options, "threads": self._random.choice((1, 2, None)), "max_memory": ENOUGH}

    def _buffer(self, shape: fi.Shape) -> NDArray[Any]:
        path = self._path()
        path.write_bytes(bytes([_BESIDE]) * (shape.nbytes + 12))
        return np.memmap(path, np.uint8, "r+", 5, (shape.nbytes,)) if shape.nbytes else np.empty(0, np.uint8)

    def _check_beside(self, inside: int) -> None:
        content = (self._folder / str(self._number)).read_bytes()
        assert content[:5] == bytes([_BESIDE]) * 5
        assert content[5 + inside :] == bytes([_BESIDE]) * 7

    def pack(self, array: Any, text: str, **options: Any) -> Any:
        shape, values = fi.Shape.parse(text), self._map(array)
        out = self._buffer(shape)
        assert fi.pack(values, text, out=out, **self._options(options)) is out
        self._check_beside(shape.nbytes)
        return out

    def relayout(self, buffer: Any, source: str, destination: str, **options: Any) -> Any:
        shape, values = fi.Shape.parse(destination), self._map(buffer)
        out = self._buffer(shape)
        assert fi.relayout(values, source, destination, out=out, **self._options(options)) is out
        self._check_beside(shape.nbytes)
        return out

    def unpack(self, buffer: Any, text: str, **options: Any) -> Any:
        shape, values = fi.Shape.parse(text), self._map(buffer)
        dtype = shape.element_type.numpy_dtype
        path = self._path()
        out = strided_map(path, random.Random(self._number), shape.dimensions, dtype, "r+")
        assert fi.unpack(values, text, out=out, **self._options(options)) is out
        found = np.array(out)
        out.view(f"u{dtype.itemsize}" if dtype.itemsize <= 8 else dtype)[...] = np.frombuffer(
            bytes([_BESIDE]) * dtype.itemsize, f"u{dtype.itemsize}" if dtype.itemsize <= 8 else dtype
        )[0]
        assert set(path.read_bytes()) <= {_BESIDE}
        return found
