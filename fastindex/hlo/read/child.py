"""The process in which jaxlib prints modules: ``python -m fastindex.hlo.read.child``.

It takes serialized modules from stdin, each after its length in eight bytes, and answers each on stdout with a byte (1
for text, 0 for the reason why not), a length and the text. jaxlib ends the process on some damaged modules, so it lives
here.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def printer() -> Any:
    """Return jaxlib's class of modules.

    Raises
    ------
    ImportError
        It has none: older or newer than those that are known.
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
    """Answer until stdin ends."""
    # An interrupt is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source = sys.stdin.buffer
    # What libraries print goes elsewhere.
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module: Any = None
    while len(size := source.read(8)) == 8:
        data = source.read(int.from_bytes(size, "little"))
        try:
            module = module or printer()
            answer, is_text = module.from_serialized_hlo_module_proto(data).to_string().encode(), True
        except Exception as error:
            # jaxlib raises errors of many classes.
            line = str(error).strip().split("\n")[0][:300]
            answer, is_text = (line or type(error).__name__).encode("utf-8", "replace"), False
        target.write(bytes((is_text,)) + len(answer).to_bytes(8, "little"))
        target.write(answer)
        target.flush()


if __name__ == "__main__":
    main()
