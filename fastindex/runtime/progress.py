"""Who is told how far a long job is."""

from __future__ import annotations

from typing import Protocol


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
