"""Decompress files one chunk at a time: gzip, xz, zstd.

Memory use is bounded by one chunk and the decompressor's window, whatever the input. Suspiciously high compression
ratios are rejected; HLO text compresses by factors of 5 to 100.
"""

from __future__ import annotations

import itertools
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from fastindex.errors import FastIndexError

#: File name endings of compressed files.
ENDINGS = (".gz", ".xz", ".zst")
_MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
#: Length of the longest magic number.
MAGIC_NBYTES = 6
_CHUNK = 1 << 20
#: Limits against decompression bombs: bytes of output, and the ratio of output to input.
_UNSUSPICIOUS, _MOST_RATIO = 64 << 20, 1000
#: Decompressor memory limit; the highest levels of xz need 65 MiB.
_XZ_MEMORY = 256 << 20
#: zstandard cannot limit its output, so its input is split; each part yields at most a few MiB.
_PIECE = 1 << 10
_NO_ZSTD = "compressed with zstd, which Python has from 3.14 on: pip install 'fastindex[zstd]', or decompress it first"


class _Decompressor(Protocol):
    """Interface of the decompressors in `lzma` and `compression.zstd`."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Gzip:
    """zlib's decompressor with the interface of lzma's."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = 0) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class _Zstandard:
    """The zstandard package's decompressor with the interface of lzma's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._waiting = b""

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def needs_input(self) -> bool:
        return not self._waiting

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data) + self._waiting

    def decompress(self, data: bytes, max_length: int = 0) -> bytes:
        whole = self._waiting + data
        self._waiting = whole[_PIECE:]
        return bytes(self._inner.decompress(whole[:_PIECE]))


def compression_of(head: bytes) -> str:
    """Return the compression of a file from its first bytes: "gzip", "xz" or "zstd"; "" if uncompressed.

    Examples
    --------
    >>> compression_of(b"\\x1f\\x8b\\x08"), compression_of(b"HloModule m")
    ('gzip', '')
    """
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")


def plain_name(name: str) -> str:
    """Return a file name without its compression ending.

    Examples
    --------
    >>> plain_name("m.hlo.pb.gz"), plain_name("m.txt")
    ('m.hlo.pb', 'm.txt')
    """
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)


def decompressed(chunks: Iterator[bytes], compression: str, name: str) -> Iterator[bytes]:
    """Yield the contents of a compressed file, in chunks of at most a few MiB.

    Raises
    ------
    FastIndexError
        The data is damaged, truncated or expands beyond the limit, or no zstd decompressor is installed.

    Examples
    --------
    >>> import gzip
    >>> b"".join(decompressed(iter([gzip.compress(b"HloModule m")]), "gzip", ""))
    b'HloModule m'
    """
    prefix = f"{name}: " if name else ""
    make, errors = _engine(compression, prefix)
    read = written = 0
    engine: _Decompressor | None = None
    for chunk in chunks:
        data = chunk
        read += len(chunk)
        # Another stream, or padding, may follow the end of a stream.
        while data or (engine is not None and not engine.needs_input):
            if engine is None or engine.eof:
                data = data.lstrip(b"\0") if engine is not None else data
                if not data:
                    break
                engine = make()
            try:
                out = engine.decompress(data, _CHUNK)
            except errors as error:
                raise FastIndexError(f"{prefix}damaged: {compression} cannot be decompressed: {error}") from None
            data = engine.unused_data if engine.eof else b""
            written += len(out)
            if written > _UNSUSPICIOUS and written > _MOST_RATIO * read:
                raise FastIndexError(
                    f"{prefix}{compression} that decompresses to more than {_MOST_RATIO:,} times its size, which no "
                    "HLO does; decompress it yourself if it is sound"
                )
            if out:
                yield out
            if engine.eof and not data:
                break
    if engine is None or not engine.eof:
        raise FastIndexError(f"{prefix}cut short: the {compression} data does not end")


def _engine(compression: str, prefix: str) -> tuple[Callable[[], _Decompressor], tuple[type[Exception], ...]]:
    """Return a factory for decompressors, and the exceptions that they raise."""
    if compression == "gzip":
        return _Gzip, (zlib.error,)
    if compression == "xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY), (lzma.LZMAError, MemoryError)
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        try:
            from backports import zstd  # type: ignore[import-not-found,no-redef,unused-ignore]
        except ImportError:
            return _zstandard(prefix)
    return zstd.ZstdDecompressor, (zstd.ZstdError,)


def _zstandard(prefix: str) -> tuple[Callable[[], _Decompressor], tuple[type[Exception], ...]]:
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise FastIndexError(f"{prefix}{_NO_ZSTD}") from None
    return lambda: _Zstandard(zstandard.ZstdDecompressor().decompressobj()), (zstandard.ZstdError,)


def read_whole(file: Path, limit: int) -> bytes:
    """Return the first `limit` bytes of a file, decompressed.

    Raises
    ------
    FastIndexError
        The file cannot be decompressed.
    OSError
        The file cannot be read.
    """
    parts: list[bytes] = []
    left = limit
    with file.open("rb") as stream:
        chunks = iter(lambda: stream.read(min(_CHUNK, max(limit, MAGIC_NBYTES))), b"")
        first = next(chunks, b"")
        compression = compression_of(first)
        pieces = itertools.chain((first,), chunks)
        for piece in decompressed(pieces, compression, str(file)) if compression else pieces:
            parts.append(piece[:left])
            left -= len(parts[-1])
            if not left:
                break
    return b"".join(parts)
