"""Stdin, stdout and stderr where the shell has closed them (``>&-``)."""

from __future__ import annotations

import os
import sys
from typing import Any

_WRONG_WAY = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))


def occupy_closed_streams() -> None:
    """Give the numbers 0, 1 and 2 to nothing, where they are free.

    The next file that is opened would get them, and what is meant for stderr would be written into it. Whoever reads
    stdin or writes to stdout then gets the error that a closed file gives; Python would drop the output, and a command
    would seem to have worked.
    """
    for number, (name, flags) in enumerate(_WRONG_WAY):
        try:
            os.fstat(number)
            continue
        except OSError:
            # The lowest free number is the one that has just been found free.
            os.set_inheritable(os.open(os.devnull, flags), True)
        if getattr(sys, name) is None:
            stream: Any = open(number, "rww"[number], closefd=False)  # noqa: SIM115
            stream.buffer.raw.name = f"<{name}>"
            setattr(sys, name, stream)
