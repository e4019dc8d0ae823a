"""Stdin, stdout and stderr where the shell has closed them (``>&-``)."""

from __future__ import annotations

import os
import sys
from typing import Any

_WRONG_WAY = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))


def occupy_closed_streams() -> None:
    """Open the null device as descriptors 0, 1 and 2 where they are closed.

    Otherwise the next opened file would get the number, and messages for stderr would be written into it. It is opened
    in the wrong direction, so reading stdin or writing to stdout fails as on a closed file; Python would drop the
    output, and a command would seem to have worked.
    """
    for number, (name, flags) in enumerate(_WRONG_WAY):
        try:
            os.fstat(number)
            continue
        except OSError:
            # Opening returns the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, flags), True)
        if getattr(sys, name) is None:
            stream: Any = open(number, "rww"[number], closefd=False)  # noqa: SIM115
            stream.buffer.raw.name = f"<{name}>"
            setattr(sys, name, stream)
