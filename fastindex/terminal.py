"""Whether output streams are terminals, and show colours."""

from __future__ import annotations

import os
import sys
from typing import Any


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal; false for None, which Python has in place of a closed standard stream.

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
    """Whether stdout is a terminal that shows colours, and ``NO_COLOR`` is not set."""
    return is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
