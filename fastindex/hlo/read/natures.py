"""Recognize common file types that are not HLO, and say what to pass instead."""

from __future__ import annotations

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
)
_TRACE = "a trace in Chrome's format, which has times and no program; give the .xplane.pb beside it"


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
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") and head[2:6].count(0) == 2:
        return "text in UTF-16, which is what PowerShell's > writes; save it as UTF-8"
    if head.lstrip().startswith((b"{", b"[")) and b'"traceEvents"' in head[:4096]:
        return _TRACE
    if b".version" in head[:2000] and b".target sm_" in head[:2000]:
        return f"PTX of a kernel; {_BESIDE}"
    return ""
