"""Zarr 3 stores through zarr-python: element types that it lacks, and limits against untrusted input.

zarr-python 3.1 neither opens nor creates arrays of bfloat16 and the other types of ml_dtypes. They are stored as
unsigned integers of the same width, so the store presents metadata with these integer types.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from functools import cache
from typing import Any

import numpy as np

from fastindex.arrays.fills import element_type_of
from fastindex.core.element_types import ElementType
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.first_use import load
from fastindex.jobs.input_files import place_inside
from fastindex.jobs.writing import writes_into_folder

METADATA = "zarr.json"

#: Parsing JSON takes about twenty times its size in memory.
_MOST_METADATA_BYTES = 4 << 20
#: Bytes that a codec may add to an incompressible chunk, and to each chunk of a shard.
_BESIDE_A_CHUNK_BYTES = 1 << 16
_BESIDE_INNER_CHUNK_BYTES = 256
#: Maximum length of a message that may repeat untrusted input.
_LONGEST_REASON = 500

#: XLA's names of the types that are stored as unsigned integers, by Zarr's names.
_UNNAMED = {
    "bfloat16": "bf16",
    "float8_e3m4": "f8e3m4",
    "float8_e4m3": "f8e4m3",
    "float8_e4m3b11fnuz": "f8e4m3b11fnuz",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e5m2": "f8e5m2",
    "float8_e5m2fnuz": "f8e5m2fnuz",
    "float8_e8m0fnu": "f8e8m0fnu",
    "float4_e2m1fn": "f4e2m1fn",
    "int2": "s2",
    "int4": "s4",
    "uint2": "u2",
    "uint4": "u4",
}


def zarr_module() -> Any:
    """Return zarr-python.

    Raises
    ------
    UnsupportedError
        zarr-python is not installed, or too old for Zarr 3.
    """
    try:
        load("zarr", "zarr.storage")
        import zarr
        import zarr.storage
    except ImportError:
        raise UnsupportedError("files in .zarr need zarr-python 3: pip install 'fastindex[zarr]'") from None
    if not hasattr(zarr.storage, "WrapperStore"):
        raise UnsupportedError(f"files in .zarr need zarr-python 3.1 or later, this is {zarr.__version__}")
    return zarr


def bits_dtype(element_type: ElementType) -> tuple[str | None, np.dtype[Any]]:
    """Return Zarr's name of a type that zarr-python lacks (else None), and the dtype to store.

    Examples
    --------
    >>> bits_dtype(ElementType.of("bf16")), bits_dtype(ElementType.of("f32"))
    (('bfloat16', dtype('uint16')), (None, dtype('float32')))
    """
    dtype = element_type.numpy_dtype
    if dtype.isbuiltin == 1:
        return None, dtype
    names = [name for name, ours in _UNNAMED.items() if ours == element_type.name]
    if not names:
        raise UnsupportedError(f"Zarr has no name for {element_type}; store its bits as another type")
    return names[0], np.dtype(f"u{dtype.itemsize}")


def stored_type(array: Any, real_type: str | None) -> ElementType | None:
    """Return the element type of a stored array, None if XLA has none; `real_type` is as from `open_stored`."""
    return ElementType.of(_UNNAMED[real_type]) if real_type is not None else element_type_of(array.dtype)


def as_bits(metadata: bytes, folder: str = "") -> tuple[bytes, str | None]:
    """Return an array's metadata with a type that zarr-python knows, and the name of the real type if it differs.

    Raises
    ------
    UnsupportedError
        The chunk grid is not regular.

    Examples
    --------
    >>> as_bits(b'{"data_type": "bfloat16", "fill_value": 1.0}')
    (b'{"data_type": "uint16", "fill_value": 16256}', 'bfloat16')
    """
    fields = json.loads(metadata)
    if not isinstance(fields, dict):
        return metadata, None
    grid, name = fields.get("chunk_grid"), fields.get("data_type")
    kind = grid.get("name") if isinstance(grid, dict) else None
    if isinstance(kind, str) and kind != "regular":
        raise UnsupportedError(
            f"{folder} has the chunk grid {kind[:80]!r}; only regular grids are read: write the array again with "
            "chunks of one size"
        )
    if not isinstance(name, str) or name not in _UNNAMED:
        return metadata, None
    dtype = ElementType.of(_UNNAMED[name]).numpy_dtype
    fields["data_type"] = f"uint{8 * dtype.itemsize}"
    fields["fill_value"] = _bits_of(fields.get("fill_value", 0), dtype)
    return json.dumps(fields).encode(), name


def _bits_of(value: Any, dtype: np.dtype[Any]) -> int:
    if isinstance(value, str) and value.startswith("0x"):
        return int(value, 16) & (1 << 8 * dtype.itemsize) - 1
    return int(np.array(float(value)).astype(dtype).view(f"u{dtype.itemsize}"))


@cache
def _store_class() -> Any:
    zarr = zarr_module()

    class InsideStore(zarr.storage.WrapperStore):  # type: ignore[misc, name-defined]
        """A read-only folder: keys cannot escape it, and its metadata uses types that zarr-python knows."""

        def __init__(self, root: str) -> None:
            super().__init__(zarr.storage.LocalStore(root, read_only=True))
            self.folder = os.path.realpath(root)
            self.real_type: str | None = None
            self.most_bytes = _MOST_METADATA_BYTES

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            _check_file(self.folder, key, byte_range, self.most_bytes)
            found = await super().get(key, prototype, byte_range)
            if found is None or key != METADATA:
                return found
            content, real_type = as_bits(found.to_bytes(), self.folder)
            self.real_type = real_type or self.real_type
            return prototype.buffer.from_bytes(content)

        async def get_partial_values(self, prototype: Any, key_ranges: Any) -> Any:
            return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    return InsideStore


@cache
def _target_class() -> Any:
    zarr = zarr_module()

    class TargetStore(zarr.storage.WrapperStore):  # type: ignore[misc, name-defined]
        """A target folder that writes do not recreate after its removal."""

        def __init__(self, root: str) -> None:
            super().__init__(zarr.storage.LocalStore(root))
            self._metadata = os.path.join(root, METADATA)

        async def set(self, key: str, value: Any) -> None:
            with writes_into_folder():
                if key != METADATA and not os.path.exists(self._metadata):
                    raise OSError(errno.ENOENT, "the unfinished store has been removed", self._metadata)
                await super().set(key, value)

        async def _set_many(self, values: Any) -> None:
            for key, value in values:
                await self.set(key, value)

    return TargetStore


def target_store(folder: str) -> Any:
    """Return a store for an incomplete target."""
    return _target_class()(folder)


def _check_file(folder: str, key: str, byte_range: Any, most_bytes: int) -> None:
    """Raise unless a key names a regular file inside the store of plausible size; a missing file is accepted.

    Raises
    ------
    FastIndexError
    """
    place = place_inside(folder, key)
    try:
        found = os.stat(place)
    except OSError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise FastIndexError(f"{key} in {folder} is not a regular file; nothing was read")
    size = found.st_size
    if byte_range is not None:
        size = min(size, getattr(byte_range, "end", size)) - getattr(byte_range, "start", 0)
        size = min(size, getattr(byte_range, "suffix", size))
    if size > most_bytes:
        raise FastIndexError(f"{key} in {folder} has {size} bytes; a valid file has at most {most_bytes}")


def open_stored(path: str) -> tuple[Any, str | None]:
    """Open an array for reading.

    Returns
    -------
    (array, name)
        zarr-python's array; the name of its type if zarr-python lacks that and sees unsigned integers instead.

    Raises
    ------
    OSError
        The folder does not exist.
    FastIndexError
        The folder contains no array of Zarr 3.
    """
    zarr = zarr_module()
    os.stat(path)
    if not os.path.isfile(os.path.join(path, METADATA)):
        older = os.path.isfile(os.path.join(path, ".zarray"))
        hint = "it is an array of Zarr 2; copy it to one of Zarr 3" if older else "name the array in its group"
        raise FastIndexError(f"{path} holds no {METADATA}, so it is not an array of Zarr 3: {hint}")
    store = _store_class()(path)
    try:
        array = zarr.open_array(store, mode="r", zarr_format=3)
        sizes = (*array.chunks, *(array.shards or ()))
    except FastIndexError:
        raise
    except Exception as error:  # codecs and untrusted metadata raise any type
        raise FastIndexError(f"{path} is not an array of Zarr 3 that can be read: {reason_of(error)}") from None
    if not isinstance(array.metadata.attributes, dict):
        raise FastIndexError(f"{path} has attributes that are not an object: {reason_of(array.metadata.attributes)}")
    if 0 in sizes:
        raise FastIndexError(f"{path} has chunks of size 0 ({array.chunks}, shards {array.shards})")
    store.most_bytes = 2 * chunk_bytes(array) + _BESIDE_A_CHUNK_BYTES + _BESIDE_INNER_CHUNK_BYTES * inner_chunks(array)
    return array, store.real_type


def reason_of(error: object) -> str:
    """Return the text of an error or value, truncated because it may repeat untrusted input."""
    reason = f"{type(error).__name__}: {error}"
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def rename_type(folder: str, name: str) -> None:
    """Write the real type name into the metadata of an array that stores the type's bits."""
    path = os.path.join(folder, METADATA)
    with open(path, "rb") as file:
        fields = json.loads(file.read())
    fields["data_type"], fields["fill_value"] = name, 0 if "int" in name else 0.0
    with open(path, "wb") as file:
        file.write(json.dumps(fields, indent=2).encode())


def chunk_bytes(array: Any) -> int:
    """Return the size of the unit of reading and writing: a shard, or a chunk."""
    nbytes: int = math.prod(array.shards or array.chunks) * array.dtype.itemsize
    return nbytes


def inner_chunks(array: Any) -> int:
    """Return the number of chunks per shard; 1 without shards."""
    return math.prod(
        -(-shard // chunk) for shard, chunk in zip(array.shards or array.chunks, array.chunks, strict=True)
    )
