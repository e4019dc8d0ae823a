"""What the scanner finds, as it hands it on."""

from __future__ import annotations

from typing import Protocol

#: An instruction: its ROOT mark or b"", name, shape, opcode, the text between the parentheses, and what follows them.
Row = tuple[bytes, bytes, bytes, bytes, bytes, bytes]


class HloSink(Protocol):
    """Receives what the scanner finds, in the order of the text."""

    def header(self, text: bytes) -> None:
        """Receive the line that begins with ``HloModule``; a new module starts."""

    def table_line(self, text: bytes) -> None:
        """Receive a line of the tables of source files and stack frames."""

    def open_computation(self, name: bytes, is_entry: bool) -> None:
        """Receive the start of a computation."""

    def close_computation(self) -> None:
        """Receive the end of a computation."""

    def open_inner(self, name: bytes) -> None:
        """Receive the start of a computation written within another, where an instruction names one."""

    def close_inner(self) -> None:
        """Receive its end; the computation around it goes on."""

    def instructions(self, rows: list[Row], line: int) -> None:
        """Receive instructions on consecutive lines, and the number of the first."""
