"""Recognize the kind of a file by its beginning: HLO, a memory dump, a log with an out-of-memory message, or no HLO.

Compressed files (gzip, xz, zstd) are decompressed one chunk at a time: memory use is bounded by one chunk and the
decompressor's window, whatever the input. Suspiciously high compression ratios are rejected; HLO text compresses by
factors of 5 to 100.
"""

from __future__ import annotations

import binascii
import codecs
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

from fastindex.errors import FastIndexError
from fastindex.hlo.log_lines import has_message

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
_QUOTED_MAIL = re.compile(rb"^content-transfer-encoding:\s*quoted-printable", re.IGNORECASE | re.MULTILINE)
_BASE64_MAIL = re.compile(rb"^content-transfer-encoding:\s*base64", re.IGNORECASE | re.MULTILINE)
_IN_QUOTED_MAIL = re.compile(rb"=3D|(?<=[^\n]{70})=\r?\n")
_NOT_ESCAPED = re.compile(rb"=(?![0-9A-F]{2}|[ \t]*\r?\n|[0-9A-F]?$)")
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


def is_utf16(head: bytes) -> bool:
    """Whether a file begins as text in UTF-16, which PowerShell's ``>`` writes.

    Examples
    --------
    >>> is_utf16("HloModule m".encode("utf-16")), is_utf16(b"HloModule m")
    (True, False)
    """
    return head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and head[2:6].count(0) == 2


def in_utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield text in UTF-16 as UTF-8; damaged characters are replaced.

    Examples
    --------
    >>> b"".join(in_utf8(iter([b"\\xff\\xfeH", b"\\0l\\0"])))
    b'Hl'
    """
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode()


def without_marks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield text in UTF-8 without byte order marks, which editors on Windows write; joined files have several.

    Examples
    --------
    >>> b"".join(without_marks(iter([b"\\xef\\xbb\\xbfHlo\\xef", b"\\xbb\\xbfModule"])))
    b'HloModule'
    """
    held = b""
    for chunk in chunks:
        text = (held + chunk).replace(codecs.BOM_UTF8, b"")
        # A mark may be split between chunks.
        held = text[len(text.rstrip(b"\xef\xbb")) :]
        yield text[: len(text) - len(held)]
    yield held


def is_quoted_printable(head: bytes) -> bool:
    """Whether a file is mail, or a part of it, in which "=" starts an escape.

    Examples
    --------
    >>> is_quoted_printable(b"%n =3D f32[8]"), is_quoted_printable(b"%n = f32[8]")
    (True, False)
    """
    if b"quoted-printable" in head.lower() and _QUOTED_MAIL.search(head):
        return True
    # All other text that has equals signs fails the first test, which takes next to no time.
    return _NOT_ESCAPED.search(head) is None and _IN_QUOTED_MAIL.search(head) is not None


def from_quoted_printable(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the text of mail.

    Examples
    --------
    >>> b"".join(from_quoted_printable(iter([b"%n =3D f3=", b"\\n2[8]"])))
    b'%n = f32[8]'
    """
    unfinished = b""
    for chunk in chunks:
        text, newline, unfinished = (unfinished + chunk).rpartition(b"\n")
        yield binascii.a2b_qp(text + newline)
    yield binascii.a2b_qp(unfinished)


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


Kind = Literal["module", "buffer assignment", "memory usage report", "log"]

#: Length of the beginning that is examined.
HEAD_NBYTES = 1 << 20
_MODULE = re.compile(rb"\bHloModule\s+[\w.%\-]")
_INSTRUCTION = re.compile(rb"(?:^|\n)[^\n]{0,200}?%?[A-Za-z_][\w.\-]* = [a-z(][^\n]*?\(")
_VALUES = re.compile(rb"\s*Total bytes used: \d+[^\n]*\n\s*Used values:")

_COMPILED = "print the compiled program with compiled.as_text()"
_UNPACK = "unpack it first"
_DECOMPRESS = "decompress it first"
_BESIDE = "give the module beside it, *after_optimizations.txt"
#: Magic bytes and the message for the file type.
_BY_BEGINNING = (
    (b"ML\xefR", f"MLIR bytecode, a program before compilation; compile it, and {_COMPILED}"),
    (b"BC\xc0\xde", f"LLVM bitcode of a kernel; {_BESIDE}"),
    (b"; ModuleID", f"LLVM IR of a kernel; {_BESIDE}"),
    (b"\x7fELF", f"machine code (ELF); {_COMPILED}"),
    (b"PK\x03\x04", f"a zip archive; {_UNPACK}"),
    (b"7z\xbc\xaf\x27\x1c", f"a 7z archive; {_UNPACK}"),
    (b"BZh", f"compressed with bzip2; {_DECOMPRESS}"),
    (b"\x04\x22\x4d\x18", f"compressed with lz4; {_DECOMPRESS}"),
    (b"\x1f\x9d", f"compressed with compress (.Z); {_DECOMPRESS}"),
    (b"\x80\x03", f"a Python pickle; load it, and {_COMPILED}"),
    (b"\x80\x04", f"a Python pickle; load it, and {_COMPILED}"),
    (b"\x80\x05", f"a Python pickle; load it, and {_COMPILED}"),
    (b"SQLite format 3\0", "an SQLite database, which has times and no program; give an .xplane.pb of jax.profiler"),
    (b"\x93NUMPY", f"a NumPy array; {_COMPILED}"),
    (b"\x89HDF", f"an HDF5 file; {_COMPILED}"),
    (b"\x89PNG", f"an image; {_COMPILED}"),
    (b"%PDF", f"a PDF; {_COMPILED}"),
    (b"{\\rtf", "rich text; save it as plain text"),
)
_HEX_DUMP = re.compile(rb"\s*0{7,8}:? +[0-9a-f]{2,4} +[0-9a-f]{2,4} [^\n]*\r?\n(?:0{4,6}10:? |\*\r?\n)")
_TRACE = "a trace in Chrome's format, which has times and no program; give the .xplane.pb beside it"


def kind_of(head: bytes) -> Kind:
    """Return the kind of a text.

    Parameters
    ----------
    head : bytes
        The first `HEAD_NBYTES` of the text, or all of it.

    Raises
    ------
    FastIndexError
        The text is a dump without the information that a report needs.

    Examples
    --------
    >>> kind_of(b"HloModule m"), kind_of(b"BufferAssignment:\\nallocation 0: size 8")
    ('module', 'buffer assignment')
    """
    begin = head.lstrip()[:4096]
    if begin.startswith((b"BufferAssignment:", b"allocation 0: size")):
        return "buffer assignment"
    if _VALUES.match(begin):
        raise FastIndexError(
            "a list of values without their places in memory (*-buffer-assignment-values.txt); "
            "report the module, or *-buffer-assignment.txt beside it"
        )
    if begin.startswith(b"HloLiveRange"):
        raise FastIndexError("a list of live ranges without shapes (*-live-range.txt); report the module beside it")
    if b"cumulative_size;" in begin and b"Total bytes" in begin:
        return "memory usage report"
    module = _MODULE.search(head)
    # A module after the message is the one that the message quotes.
    end = len(head) if module is None else module.start()
    if has_message(head[:end]):
        return "log"
    if module is not None:
        return "module"
    # A log can run long before an error; HLO without a header starts with instructions.
    may_be_log = b"\n" in head and len(head) >= HEAD_NBYTES and b"\0" not in head
    return "log" if may_be_log and not _INSTRUCTION.search(head) else "module"


def nature_of(head: bytes) -> str:
    """Return the file type that the first bytes indicate, and advice; "" if the file may be HLO.

    Examples
    --------
    >>> nature_of(b"PK\\x03\\x04")
    'a zip archive; unpack it first'
    >>> nature_of(b"HloModule m")
    ''
    """
    for beginning, sentence in _BY_BEGINNING:
        if head.startswith(beginning):
            return sentence
    if head[257:262] == b"ustar":
        return f"a tar archive; {_UNPACK}"
    if head.lstrip().startswith((b"{", b"[")) and b'"traceEvents"' in head[:4096]:
        return _TRACE
    if _HEX_DUMP.match(head):
        return "a hex dump; give the file that it shows"
    if b"base64" in head and _BASE64_MAIL.search(head) and not has_message(head):
        return "mail in base64; save its text"
    if b".version" in head[:2000] and b".target sm_" in head[:2000]:
        return f"PTX of a kernel; {_BESIDE}"
    return ""
