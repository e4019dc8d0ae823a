"""Child process in which jaxlib prints HLO modules: ``python -m fastindex.hlo.read.child``.

Requests on stdin: an 8-byte length and a serialized module. Replies on stdout: one byte (1 for text, 0 for an error
message), an 8-byte length and the text. A separate process, because some damaged modules make jaxlib abort.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def printer() -> Any:
    """Return jaxlib's HloModule class.

    Raises
    ------
    ImportError
        This version of jaxlib does not have the class in a known place.
    """
    try:
        from jaxlib import _hlo as classes
    except ImportError:
        from jaxlib import _jax as classes
    try:
        return classes.HloModule
    except AttributeError as error:
        raise ImportError(str(error)) from None


def main() -> None:
    """Serve requests until stdin is closed."""
    # The parent handles interrupts, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source = sys.stdin.buffer
    # Keep stdout for replies: whatever libraries print goes to stderr.
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module: Any = None
    while len(size := source.read(8)) == 8:
        data = source.read(int.from_bytes(size, "little"))
        try:
            module = module or printer()
            answer, is_text = module.from_serialized_hlo_module_proto(data).to_string().encode(), True
        except Exception as error:
            # jaxlib raises many classes of exceptions.
            line = str(error).strip().split("\n")[0][:300]
            answer, is_text = (line or type(error).__name__).encode("utf-8", "replace"), False
        target.write(bytes((is_text,)) + len(answer).to_bytes(8, "little"))
        target.write(answer)
        target.flush()


if __name__ == "__main__":
    main()
