"""Strict reader of the headers of GGUF files; names and blocks of quantised types are those of gguf-py.

The format: a magic number, a version and two counts; key-value pairs; for each tensor its name, its dimensions (the
first one most minor), its type and the offset of its bytes after the header; the bytes, each tensor aligned.
Source: ggml, docs/gguf.md. gguf-py's own reader trusts any length in a file, so it is not used on untrusted input.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import BinaryIO

from fastindex.core.element_types import ElementType
from fastindex.core.integers import INT64_MAX
from fastindex.errors import FastIndexError, UnsupportedError
from fastindex.first_use import load
from fastindex.jobs.input_files import FileIdentity, open_raw, path_text
from fastindex.weights.safetensors_files import MOST_HEADER_BYTES, Tensor, TensorFiles, packed_shape, tensors_of

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MOST_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
#: The bytes of a value by its type number; texts and lists state their own lengths.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_U32, _TEXT, _LIST = 4, 8, 9
_SIZE_BYTES = 8

#: XLA's names for types without blocks.
ELEMENT_TYPES = {
    "F64": "f64",
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    **{f"I{bits}": f"s{bits}" for bits in (8, 16, 32, 64)},
}

#: The fields of a block: first byte, end, and dtype of each. Source: ggml-common.h.
FIELDS: dict[str, dict[str, tuple[int, int, str]]] = {
    "Q4_0": {"scale": (0, 2, "f2"), "codes": (2, 18, "u1")},
    "Q4_1": {"scale": (0, 2, "f2"), "min": (2, 4, "f2"), "codes": (4, 20, "u1")},
    "Q5_0": {"scale": (0, 2, "f2"), "high": (2, 6, "u1"), "codes": (6, 22, "u1")},
    "Q5_1": {"scale": (0, 2, "f2"), "min": (2, 4, "f2"), "high": (4, 8, "u1"), "codes": (8, 24, "u1")},
    "Q8_0": {"scale": (0, 2, "f2"), "codes": (2, 34, "u1")},
    "IQ4_NL": {"scale": (0, 2, "f2"), "codes": (2, 18, "u1")},
    "IQ4_XS": {"scale": (0, 2, "f2"), "scales": (2, 8, "u1"), "codes": (8, 136, "u1")},
    "TQ2_0": {"codes": (0, 64, "u1"), "scale": (64, 66, "f2")},
    "Q1_0": {"scale": (0, 2, "f2"), "codes": (2, 18, "u1")},
    "Q8_K": {"scale": (0, 4, "f4"), "codes": (4, 260, "u1"), "sums": (260, 292, "i2")},
    "NVFP4": {"scales": (0, 4, "u1"), "codes": (4, 36, "u1")},
    "MXFP4": {"scale": (0, 1, "u1"), "codes": (1, 17, "u1")},
    "Q2_K": {"scales": (0, 16, "u1"), "codes": (16, 80, "u1"), "scale": (80, 82, "f2"), "min": (82, 84, "f2")},
    "Q3_K": {"high": (0, 32, "u1"), "codes": (32, 96, "u1"), "scales": (96, 108, "u1"), "scale": (108, 110, "f2")},
    "Q4_K": {"scale": (0, 2, "f2"), "min": (2, 4, "f2"), "scales": (4, 16, "u1"), "codes": (16, 144, "u1")},
    "Q5_K": {
        "scale": (0, 2, "f2"),
        "min": (2, 4, "f2"),
        "scales": (4, 16, "u1"),
        "high": (16, 48, "u1"),
        "codes": (48, 176, "u1"),
    },
    "Q6_K": {"codes": (0, 128, "u1"), "high": (128, 192, "u1"), "scales": (192, 208, "i1"), "scale": (208, 210, "f2")},
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """The header's entry of a tensor."""

    sizes: tuple[int, ...]
    type_number: int
    start: int


class _Header:
    """The header of a file, read sequentially."""

    def __init__(self, path: str, file: BinaryIO, nbytes: int) -> None:
        self.path = path
        self.at = 0
        self._file = file
        self._size = min(nbytes, MOST_HEADER_BYTES)

    def error(self, reason: str) -> FastIndexError:
        return FastIndexError(f"{self.path} is not a GGUF file: {reason}")

    def read(self, nbytes: int) -> bytes:
        self._check(nbytes)
        self.at += nbytes
        found = self._file.read(nbytes)
        if len(found) < nbytes:
            raise self.error("it has become shorter while it was read")
        return found

    def skip(self, nbytes: int) -> None:
        self._check(nbytes)
        self.at += nbytes
        self._file.seek(self.at)

    def _check(self, nbytes: int) -> None:
        if nbytes > self._size - self.at:
            raise self.error(
                f"its header wants {nbytes} bytes from {self.at} on; files end before, or headers are longer than "
                f"{MOST_HEADER_BYTES}"
            )

    def number(self, nbytes: int) -> int:
        return int.from_bytes(self.read(nbytes), "little")

    def text(self) -> str:
        try:
            return self.read(self.number(_SIZE_BYTES)).decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"a name before {self.at} is not UTF-8") from None

    def skip_value(self, kind: int) -> None:
        count, what = 1, "a value has"
        if kind == _LIST:
            kind, count, what = self.number(4), self.number(_SIZE_BYTES), "a list has values of"
        if kind == _TEXT:
            for _ in range(count):
                self.skip(self.number(_SIZE_BYTES))
        elif kind in _VALUE_BYTES:
            self.skip(count * _VALUE_BYTES[kind])
        else:
            raise self.error(f"{what} kind {kind}")


def read_tensors(source: str | os.PathLike[str]) -> TensorFiles:
    """Return the tensors of a checkpoint, of safetensors or GGUF, as `tensors_of` and `read_gguf` do."""
    path = path_text(source, "source")
    return read_gguf(path) if path.endswith(".gguf") else tensors_of(path)


def read_gguf(path: str) -> TensorFiles:
    """Return the tensors of a GGUF file by name, in the order of their bytes.

    Quantised types are blocks that mix scales and codes: these become u8 arrays whose last dimension is the bytes of a
    row.

    Parameters
    ----------
    path : str

    Raises
    ------
    FastIndexError
        The file is malformed; the message has the reason.
    UnsupportedError
        gguf-py is not installed, or does not know a type; the file is one part of several.
    OSError
        The file cannot be read.
    """
    file = open_raw(path)
    nbytes = file.nbytes
    with file.stream() as stream:
        header = _Header(path, stream, nbytes)
        entries, alignment = _entries(header)
    begin = -(-header.at // alignment) * alignment
    tensors = [_tensor(path, name, entry, begin, file.identity) for name, entry in entries.items()]
    tensors.sort(key=lambda one: (one.start, one.shape.nbytes))
    at = begin
    for tensor in tensors:
        if not 0 <= tensor.start - at < alignment:
            what = "overlap with those before them" if tensor.start < at else "leave a gap before them"
            raise header.error(f"the bytes of {tensor.name[:80]!r} {what}")
        at = tensor.start + tensor.shape.nbytes
    if tensors and not 0 <= nbytes - at < alignment:
        raise header.error(f"it has {nbytes} bytes; its tensors end at {at}")
    return TensorFiles({tensor.name: tensor for tensor in tensors})


def _entries(header: _Header) -> tuple[dict[str, _Entry], int]:
    """Return the header's entry of each tensor, and the alignment."""
    if header.read(len(_MAGIC)) != _MAGIC:
        raise header.error("it does not begin with GGUF")
    version = header.number(4)
    if version not in _VERSIONS:
        raise header.error(f"versions {_VERSIONS[0]} and {_VERSIONS[1]}, little-endian, are read; it has {version}")
    tensor_count, key_count = header.number(_SIZE_BYTES), header.number(_SIZE_BYTES)
    alignment, keys = _DEFAULT_ALIGNMENT, set[str]()
    for _ in range(key_count):
        key, kind = header.text(), header.number(4)
        if key in keys:
            raise header.error(f"it has {key[:80]!r} twice")
        keys.add(key)
        if key == "general.alignment":
            alignment = header.number(4)
            if kind != _U32 or alignment <= 0 or alignment & (alignment - 1):
                raise header.error(f"general.alignment must be a power of two in a u32, got {alignment}")
        elif key == "split.count" and kind == 2:
            if (count := header.number(2)) > 1:
                raise UnsupportedError(
                    f"{header.path} is one of {count} parts; join them with llama-gguf-split --merge"
                )
        else:
            header.skip_value(kind)
    entries: dict[str, _Entry] = {}
    for _ in range(tensor_count):
        name = header.text()
        if name in entries:
            raise header.error(f"it has {name[:80]!r} twice")
        count = header.number(4)
        if count > _MOST_DIMENSIONS:
            raise header.error(f"{name[:80]!r} has {count} dimensions; the most is {_MOST_DIMENSIONS}")
        sizes = tuple(header.number(_SIZE_BYTES) for _ in range(count))
        entries[name] = _Entry(sizes[::-1], header.number(4), header.number(_SIZE_BYTES))
        if math.prod(sizes) > INT64_MAX or max(sizes, default=0) > INT64_MAX:
            raise header.error(f"{name[:80]!r} has the dimensions {sizes}")
        if entries[name].start % alignment:
            raise header.error(f"{name[:80]!r} begins at {entries[name].start}, no multiple of {alignment}")
    return entries, alignment


def _tensor(path: str, name: str, entry: _Entry, begin: int, identity: FileIdentity) -> Tensor:
    try:
        load("gguf.constants")
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError:
        raise UnsupportedError("GGUF files need gguf-py: pip install 'fastindex[gguf]'") from None
    try:
        kind = GGMLQuantizationType(entry.type_number)
        elements, nbytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise UnsupportedError(
            f"{path}: {name[:80]!r} has type {entry.type_number}, which the installed gguf-py does not know"
        ) from None
    sizes = entry.sizes
    if kind.name in ELEMENT_TYPES:
        shape = packed_shape(ElementType.of(ELEMENT_TYPES[kind.name]), sizes)
        return Tensor(name, path, shape, begin + entry.start, kind.name, sizes, identity)
    if not sizes or sizes[-1] % elements:
        raise FastIndexError(f"{path}: {name[:80]!r} has rows of {sizes[-1:]}, {kind.name} has blocks of {elements}")
    stored = (*sizes[:-1], sizes[-1] // elements * nbytes)
    shape = packed_shape(ElementType.of("u8"), stored)
    return Tensor(name, path, shape, begin + entry.start, kind.name, sizes, identity, is_opaque=True)
