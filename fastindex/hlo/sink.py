"""Interface between the scanner and its consumers."""

from __future__ import annotations

from typing import Protocol

#: An instruction: its ROOT mark or b"", name, shape, opcode, operand text, and attribute text.
Row = tuple[bytes, bytes, bytes, bytes, bytes, bytes]


class HloSink(Protocol):
    """Receives the elements that the scanner finds, in text order."""

    def header(self, text: bytes) -> None:
        """Receive the line that starts with ``HloModule``; a new module starts."""

    def table_line(self, text: bytes) -> None:
        """Receive a line of the tables of source files and stack frames."""

    def open_computation(self, name: bytes, is_entry: bool) -> None:
        """Receive the start of a computation."""

    def close_computation(self) -> None:
        """Receive the end of a computation."""

    def open_inner(self, name: bytes) -> None:
        """Receive the start of a computation written inline, where an instruction could name one."""

    def close_inner(self) -> None:
        """Receive the end of the inline computation; the enclosing one continues."""

    def instructions(self, rows: list[Row], line: int) -> None:
        """Receive instructions on consecutive lines, with the line number of the first."""
