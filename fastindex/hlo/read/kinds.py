"""Recognize the kind of a file by its beginning: HLO, a memory dump, a log with an out-of-memory message, or no HLO."""

from __future__ import annotations

import re
from typing import Literal

from fastindex.errors import FastIndexError
from fastindex.hlo.out_of_memory import MARKERS

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
)
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
    if any(head.find(marker, 0, end + len(marker)) >= 0 for marker in MARKERS):
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
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") and head[2:6].count(0) == 2:
        return "text in UTF-16, which is what PowerShell's > writes; save it as UTF-8"
    if head.lstrip().startswith((b"{", b"[")) and b'"traceEvents"' in head[:4096]:
        return _TRACE
    if b".version" in head[:2000] and b".target sm_" in head[:2000]:
        return f"PTX of a kernel; {_BESIDE}"
    return ""
