"""Where output is shown: terminals, which may show colours, and notebooks; who is told how far a long job is.

Source: "Integrating your objects with IPython", https://ipython.readthedocs.io/en/latest/config/integrating.html
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import Any, Protocol


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
    """Whether stdout is a terminal that shows colours, or ``FORCE_COLOR`` is set; never if ``NO_COLOR`` is set."""
    shows = is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"
    return bool(shows or os.environ.get("FORCE_COLOR")) and not os.environ.get("NO_COLOR")


class ShownInNotebooks:
    """An object that notebooks show as HTML and terminals as `repr`; subclasses define `_repr_html_`."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        forms = {"text/html": self._repr_html_, "text/plain": self.__repr__}
        return {
            kind: form()
            for kind, form in forms.items()
            if (include is None or kind in include) and (exclude is None or kind not in exclude)
        }


class Progress(Protocol):
    """Receives the progress of a job, in bytes to write or kernels to compile."""

    def start(self, total: int) -> None:
        """Receive the total."""

    def advance(self, count: int) -> None:
        """Receive what was done since the last call."""


class NoProgress:
    """Discards the progress of a job."""

    def start(self, total: int) -> None:
        """Ignore the total."""

    def advance(self, count: int) -> None:
        """Ignore what was done."""
