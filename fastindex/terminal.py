"""Whether anybody watches: what a stream shows on a terminal, and in colours."""

from __future__ import annotations

import os
import sys
from typing import Any


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal; None, as Python has it where a standard stream is closed, is none.

    Examples
    --------
    >>> is_terminal(None)
    False
    """
    try:
        return stream is not None and bool(stream.isatty())
    except (OSError, ValueError):
        return False


def shows_colours() -> bool:
    """Whether stdout is a terminal that shows colours, and nobody has said no to them."""
    return is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
