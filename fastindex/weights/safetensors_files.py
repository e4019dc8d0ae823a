"""The tensors of checkpoints, and a strict reader of safetensors files: one file, or several with an index.

The format: 8 bytes with the length of the header, little-endian; a JSON object with the dtype, shape and byte range of
each tensor; the bytes of all tensors, without gaps or overlaps. Source: huggingface/safetensors, README, "Format".
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastindex.core.element_types import ElementType
from fastindex.core.integers import INT64_MAX
from fastindex.core.layout import Layout
from fastindex.core.layout_fields import MOST_DIMENSIONS
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.jobs.input_files import FileIdentity, InputFile, check_readable, open_raw, read_whole

#: The longest header that the format allows.
MOST_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
#: The longest file name that Linux, macOS and Windows accept.
_MOST_NAME_BYTES = 255
_METADATA = "__metadata__"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

#: XLA's names for the dtypes of the format.
ELEMENT_TYPES = {
    "BOOL": "pred",
    "F64": "f64",
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "C64": "c64",
    **{f"{sign}{bits}": f"{name}{bits}" for sign, name in (("I", "s"), ("U", "u")) for bits in (8, 16, 32, 64)},
    "F8_E4M3": "f8e4m3fn",
    "F8_E5M2": "f8e5m2",
    "F8_E4M3FNUZ": "f8e4m3fnuz",
    "F8_E5M2FNUZ": "f8e5m2fnuz",
    "F8_E8M0": "f8e8m0fnu",
    # Two per byte, the first one in the low bits, as in PyTorch's float4_e2m1fn_x2.
    "F4": "f4e2m1fn",
}
DTYPES = {name: dtype for dtype, name in ELEMENT_TYPES.items()}
#: Element widths, in bits, of dtypes whose packed elements cannot be moved individually.
OPAQUE_BITS = {"F6_E2M3": 6, "F6_E3M2": 6}


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


def tensors_of(path: str) -> TensorFiles:
    """Return the tensors of a checkpoint by name, in the order of the file, and the metadata of its files.

    A key of the metadata on which files of one checkpoint disagree is left out.

    Parameters
    ----------
    path : str
        A ``.safetensors`` file, an index ``.safetensors.index.json``, or a folder with one of the two.

    Raises
    ------
    FastIndexError
        The files are malformed; the message has the reason.
    UnsupportedError
        An unknown dtype.
    OSError
        A file cannot be read.
    """
    if os.path.isdir(path):
        path = _file_of_folder(path)
    check_readable(path)
    if not path.endswith(".json"):
        return read_header(path)
    shards = _shards_of(path)
    names_in: dict[str, set[str]] = {}
    for name, file in shards.items():
        names_in.setdefault(file, set()).add(name)
    found: dict[str, Tensor] = {}
    metadata: dict[str, set[str]] = {}
    for shard, listed in names_in.items():
        header = read_header(os.path.join(os.path.dirname(path), shard))
        there = header.tensors
        for key, text in header.metadata.items():
            metadata.setdefault(key, set()).add(text)
        if listed != set(there):
            odd = min(listed ^ set(there))
            shown = repr(odd[:80])
            where = f"lists {shown} in {shard}, which lacks it" if odd in listed else f"leaves out {shown} of {shard}"
            raise FastIndexError(f"{path} {where}")
        found |= there
    return TensorFiles(found, {key: texts.pop() for key, texts in metadata.items() if len(texts) == 1})


def _file_of_folder(path: str) -> str:
    found = sorted(Path(path).glob("*.safetensors.index.json")) or sorted(Path(path).glob("*.safetensors"))
    if len(found) != 1:
        raise FastIndexError(f"{path} holds {len(found)} safetensors checkpoints; name one file, or its index")
    return str(found[0])


def _shards_of(path: str) -> dict[str, str]:
    """Return the file of each tensor that an index lists."""
    index = json_object(read_whole(path, MOST_HEADER_BYTES), path)
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise FastIndexError(f"{path} is not an index of safetensors files: it has no weight_map")
    for name, file in shards.items():
        if not isinstance(file, str) or not is_plain_name(file):
            raise FastIndexError(
                f"{path}: {name[:80]!r} is in {str(file)[:80]!r}, which is not the name of a file in the same folder"
            )
    return shards


def is_plain_name(name: str) -> bool:
    """Whether a name is that of a file directly in a folder: no path, and valid on Linux, macOS and Windows.

    Examples
    --------
    >>> is_plain_name("model.safetensors"), is_plain_name("../model.safetensors"), is_plain_name("x" * 256)
    (True, False, False)
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return 0 < size <= _MOST_NAME_BYTES and name not in (".", "..") and not set(name) & {"/", "\\", "\0", ":"}


def json_object(data: bytes, path: str) -> dict[str, Any]:
    """Read a JSON object as `json_value` does.

    Raises
    ------
    FastIndexError
    """
    found = json_value(data, path)
    if not isinstance(found, dict):
        raise FastIndexError(f"{path} holds no JSON object, but {type(found).__name__}")
    return found


def json_value(data: bytes, path: str) -> Any:
    """Parse JSON strictly: no duplicate keys in an object, and no lone surrogates in texts.

    -0 becomes a float, as in the safetensors library.

    Raises
    ------
    FastIndexError
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise FastIndexError(f"{path} has {name[:80]!r} twice")
            found[name] = value
        return found

    def whole(text: str) -> int | float:
        return -0.0 if text == "-0" else int(text)

    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=once, parse_int=whole)
        if _SURROGATE.search(data) is not None:
            # A lone surrogate cannot be encoded as UTF-8, for files or terminals; only an escape can produce one.
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except FastIndexError:
        raise
    except UnicodeEncodeError as error:
        before = error.object[max(error.start - 40, 0) : error.start]
        raise FastIndexError(f"{path} has half a surrogate pair in a text, after {before!r}") from None
    except (ValueError, RecursionError) as error:
        reason = "it nests too deep" if isinstance(error, RecursionError) else str(error)[:200]
        raise FastIndexError(f"{path} holds no JSON: {reason}") from None
    return found


def read_header(path: str) -> TensorFiles:
    """Return the tensors of one file by name, in the order of their bytes, and its metadata.

    Raises
    ------
    FastIndexError, UnsupportedError, OSError
        As `tensors_of`.
    """
    file = open_raw(path)
    length = np.empty(min(_LENGTH_BYTES, file.nbytes), np.uint8)
    file.read(0, length)
    header_bytes = int.from_bytes(length.tobytes(), "little")
    if len(length) < _LENGTH_BYTES or header_bytes > file.nbytes - _LENGTH_BYTES:
        raise FastIndexError(f"{path} is not a safetensors file: {file.nbytes} bytes do not hold its header")
    if header_bytes > MOST_HEADER_BYTES:
        raise FastIndexError(f"{path} has a header of {header_bytes} bytes; the most is {MOST_HEADER_BYTES}")
    header = np.empty(header_bytes, np.uint8)
    file.read(_LENGTH_BYTES, header)
    entries = json_object(header.tobytes(), f"the header of {path}")
    metadata = entries.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise FastIndexError(f"the header of {path}: {_METADATA} maps texts to texts")
    begin = _LENGTH_BYTES + header_bytes
    spans = {name: _span(name, entry, path) for name, entry in entries.items()}
    at = 0
    ordered = sorted(spans.items(), key=lambda one: one[1])
    for name, (first, end) in ordered:
        if first != at:
            what = "overlap with those before them" if first < at else f"leave a gap of {first - at} bytes before them"
            raise FastIndexError(f"the header of {path}: the bytes of {name[:80]!r} {what}")
        at = end
    if begin + at != file.nbytes:
        raise FastIndexError(f"{path} has {file.nbytes - begin} bytes of tensors; its header says {at}")
    return TensorFiles({name: _tensor(name, entries[name], file, begin) for name, _ in ordered}, metadata)


def _span(name: str, entry: Any, path: str) -> tuple[int, int]:
    """Return the byte range of a tensor, relative to the end of the header."""
    where = f"the header of {path}: {name[:80]!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FastIndexError(f"{where} has to have dtype, shape and data_offsets, and nothing else")
    dtype, sizes, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in (*ELEMENT_TYPES, *OPAQUE_BITS):
        known = ", ".join((*ELEMENT_TYPES, *OPAQUE_BITS))
        raise UnsupportedError(f"{where} has the dtype {str(dtype)[:80]}; these are read: {known}")
    if not _are_sizes(sizes) or len(sizes) > MOST_DIMENSIONS:
        raise FastIndexError(f"{where} has the shape {str(sizes)[:80]}, which is none")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise FastIndexError(f"{where} has the data_offsets {str(offsets)[:80]}; they are two numbers of bytes")
    bits = math.prod(sizes) * bits_of(dtype)
    if bits % 8:
        raise FastIndexError(f"{where}: {dtype} of {sizes} takes {bits} bits, which are not whole bytes")
    if offsets[1] - offsets[0] != bits // 8:
        raise FastIndexError(f"{where}: {dtype} of {sizes} takes {bits // 8} bytes, got {offsets[1] - offsets[0]}")
    return offsets[0], offsets[1]


def bits_of(dtype: str) -> int:
    """Return the bits that an element takes in a file.

    Examples
    --------
    >>> bits_of("BF16"), bits_of("BOOL"), bits_of("F6_E2M3"), bits_of("F4")
    (16, 8, 6, 4)
    """
    if dtype in OPAQUE_BITS:
        return OPAQUE_BITS[dtype]
    element_type = ElementType.of(ELEMENT_TYPES[dtype])
    return element_type.bits if element_type.is_sub_byte else 8 * element_type.nbytes


def _tensor(name: str, entry: dict[str, Any], file: InputFile, begin: int) -> Tensor:
    dtype, sizes, (first, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    is_opaque = dtype in OPAQUE_BITS
    shape = Shape("u8", (end - first,)) if is_opaque else packed_shape(ElementType.of(ELEMENT_TYPES[dtype]), sizes)
    return Tensor(name, file.path, shape, begin + first, dtype, sizes, file.identity, is_opaque)


def packed_shape(element_type: ElementType, sizes: tuple[int, ...]) -> Shape:
    """Return the shape of elements as stored in a file: the last dimension most minor, those below a byte packed.

    Examples
    --------
    >>> print(packed_shape(ElementType.of("f4e2m1fn"), (3, 4)))
    f4e2m1fn[3,4]{1,0:E(4)}
    """
    bits = element_type.bits if element_type.is_sub_byte else 0
    return Shape(element_type, sizes, Layout(tuple(reversed(range(len(sizes)))), element_size_in_bits=bits))


def stored_as(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and sizes of a tensor in a safetensors file; those of its bytes if the format lacks its dtype.

    Examples
    --------
    >>> from fastindex.jobs.input_files import FileIdentity
    >>> identity = FileIdentity(0, 0, 288, 0, 0)
    >>> stored_as(Tensor("w", "x.gguf", Shape("u8", (2, 144)), 0, "Q4_K", (2, 256), identity, is_opaque=True))
    ('U8', (2, 144))
    """
    is_known = tensor.dtype in ELEMENT_TYPES or tensor.dtype in OPAQUE_BITS
    return (tensor.dtype, tensor.sizes) if is_known else ("U8", tensor.shape.dimensions)


def is_stored_as(dtype: Any, sizes: Any, nbytes: int) -> bool:
    """Whether these are a dtype of the format, and sizes that take `nbytes` bytes with it.

    Examples
    --------
    >>> is_stored_as("F4", [3, 4], 6), is_stored_as("F4", [3, 4], 12), is_stored_as("F5", [], 0)
    (True, False, False)
    """
    is_known = isinstance(dtype, str) and (dtype in ELEMENT_TYPES or dtype in OPAQUE_BITS)
    return is_known and _are_sizes(sizes) and math.prod(sizes) * bits_of(dtype) == 8 * nbytes


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(size) is int and 0 <= size <= INT64_MAX for size in values)


def header_of(
    shapes: Mapping[str, Shape],
    metadata: Mapping[str, str] | None = None,
    opaque: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
) -> bytes:
    """Return the header of a file with these tensors, one after the other, padded to the first of their bytes.

    Parameters
    ----------
    shapes : mapping of str to Shape
        Each as stored in the file.
    metadata : mapping of str to str, optional
    opaque : mapping of str to (str, tuple of int), optional
        The dtype and sizes of the tensors that `shapes` gives as bytes.

    Raises
    ------
    UnsupportedError
        An element type that the format lacks, or a number of elements that does not fill bytes.

    Examples
    --------
    >>> header_of({"x": Shape.parse("bf16[2,3]")})[8:]
    b'{"x":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}      '
    """
    entries: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name, shape in shapes.items():
        dtype, sizes = (opaque or {}).get(name) or (DTYPES.get(shape.element_type.name), shape.dimensions)
        if dtype is None:
            raise UnsupportedError(f"{name[:80]!r}: safetensors files have no {shape.element_type}; read it by itself")
        if math.prod(sizes) * bits_of(dtype) != 8 * shape.nbytes:
            raise UnsupportedError(
                f"{name[:80]!r}: safetensors files have no {dtype} of {list(sizes)}, which fills no bytes"
            )
        entries[name] = {"dtype": dtype, "shape": list(sizes), "data_offsets": [at, at + shape.nbytes]}
        at += shape.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
