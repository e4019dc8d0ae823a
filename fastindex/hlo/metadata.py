"""Resolve the metadata of an instruction to an operation and a source line of the program.

Newer modules have tables of files, locations and stack frames, and the metadata refers to a frame. In older modules the
metadata contains the file and the line. Source: ``xla/hlo/ir/hlo_module_metadata``, ``stack_frame_index`` of
``hlo.proto``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fastindex.hlo.grammar import integer

_FIELD = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\d+))')
_ESCAPE = re.compile(r"\\(.)")
_NAME = re.compile(rb'\s*"((?:[^"\\]|\\.)*)"')
_NUMBER = re.compile(rb"(\w+)=(\d+)")
#: Folders of libraries: frames in them are not part of the program.
_LIBRARIES = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Origin:
    """The operation and the source line from which an instruction was compiled."""

    op_name: str = ""
    source_file: str = ""
    source_line: int = 0


_NO_ORIGIN = Origin()


class MetadataReader:
    """Resolve the metadata of one module's instructions.

    Parameters
    ----------
    tables : list of bytes
        Lines of the module's tables.
    texts : iterable of bytes
        Metadata texts, which `origin_at` numbers.

    Examples
    --------
    >>> reader = MetadataReader([])
    >>> reader.origin(b'op_name="jit(f)/add" source_file="a.py" source_line=7')
    Origin(op_name='jit(f)/add', source_file='a.py', source_line=7)
    """

    def __init__(self, tables: list[bytes], texts: Iterable[bytes] = ()) -> None:
        self._texts = list(texts)
        self._entries: dict[bytes, dict[int, bytes]] = {}
        self._places: dict[int, tuple[str, int]] = {}
        self._origins: dict[bytes, Origin] = {}
        self._split(tables)

    def origin_at(self, number: int) -> Origin:
        """Return the origin of an instruction by the number of its metadata; -1 for none."""
        return self.origin(self._texts[number]) if number >= 0 else _NO_ORIGIN

    def origin(self, metadata: bytes) -> Origin:
        """Return the origin of an instruction, given the text between the braces of its metadata."""
        origin = self._origins.get(metadata)
        if origin is None:
            origin = self._origins[metadata] = self._read(metadata)
        return origin

    def _read(self, metadata: bytes) -> Origin:
        fields = {
            name: _ESCAPE.sub(r"\1", text) if text or not number else number
            for name, text, number in _FIELD.findall(metadata.decode("utf-8", "replace"))
        }
        file, line = fields.get("source_file", ""), fields.get("source_line", "0")
        frame = fields.get("stack_frame_id", "")
        if not file and frame.isdigit():
            return Origin(fields.get("op_name", ""), *self._place_of(integer(frame)))
        return Origin(fields.get("op_name", ""), file, integer(line) if line.isdigit() else 0)

    def _place_of(self, frame: int) -> tuple[str, int]:
        """Return the file and line of the innermost frame outside libraries, or else of the innermost frame."""
        place = self._places.get(frame)
        if place is None:
            place = self._places[frame] = self._find_place(frame)
        return place

    def _find_place(self, frame: int) -> tuple[str, int]:
        innermost = ("", 0)
        frames = self._entries.get(b"StackFrames", {})
        for _ in range(len(frames) + 1):
            if frame not in frames:
                break
            fields = _numbers(frames[frame])
            location = self._fields(b"FileLocations", fields.get(b"file_location_id", 0))
            line = location.get(b"line", 0)
            file = self._file(location.get(b"file_name_id", 0))
            if file and not any(folder in file for folder in _LIBRARIES):
                return file, line
            if file and not innermost[0]:
                innermost = file, line
            # Parent ids are stored plus one, so that 1 stands for no parent.
            frame = fields.get(b"parent_frame_id", 0) - 1
        return innermost

    def _fields(self, table: bytes, number: int) -> dict[bytes, int]:
        return _numbers(self._entries.get(table, {}).get(number, b""))

    def _file(self, number: int) -> str:
        name = _NAME.match(self._entries.get(b"FileNames", {}).get(number, b""))
        return name.group(1).decode("utf-8", "replace") if name else ""

    def _split(self, tables: list[bytes]) -> None:
        """Index the lines by table and number; entries are parsed on demand, and few are needed."""
        entries: dict[int, bytes] = {}
        for line in tables:
            if line[:1].isalpha():
                entries = self._entries.setdefault(line.strip(), {})
            else:
                number, _, text = line.partition(b" ")
                entries[integer(number)] = text


def _numbers(entry: bytes) -> dict[bytes, int]:
    """Parse an entry such as ``{file_location_id=1 parent_frame_id=2}``."""
    return {name: integer(value) for name, value in _NUMBER.findall(entry.partition(b"}")[0])}
