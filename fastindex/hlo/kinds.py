"""Recognize the kind of a text by its beginning: HLO, a memory dump, or a log with an out-of-memory message."""

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
