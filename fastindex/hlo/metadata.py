"""From the metadata of an instruction to the operation and the line of the program it comes from.

Newer modules have tables of files, locations and frames, and the metadata names a frame; older ones name the
file and the line themselves. Source: ``xla/hlo/ir/hlo_module_metadata``, ``stack_frame_index`` of ``hlo.proto``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastindex.hlo.numbers import integer

_FIELD = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\d+))')
_ESCAPE = re.compile(r"\\(.)")
_NAMED = re.compile(rb'(\d+)\s+"((?:[^"\\]|\\.)*)"')
_NUMBERED = re.compile(rb"(\d+)\s*\{([^}]*)\}")
_NUMBER = re.compile(rb"(\w+)=(\d+)")
#: Frames of files under these folders belong to libraries, not to the program.
_LIBRARIES = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Origin:
    """The operation and the line that an instruction comes from."""

    op_name: str = ""
    source_file: str = ""
    source_line: int = 0


class MetadataReader:
    """Reads the metadata of one module.

    Examples
    --------
    >>> reader = MetadataReader([])
    >>> reader.origin(b'op_name="jit(f)/add" source_file="a.py" source_line=7')
    Origin(op_name='jit(f)/add', source_file='a.py', source_line=7)
    """

    def __init__(self, tables: list[bytes]) -> None:
        self._files: dict[int, str] = {}
        self._locations: dict[int, tuple[int, int]] = {}
        self._frames: dict[int, tuple[int, int]] = {}
        self._read(tables)

    def origin(self, metadata: bytes) -> Origin:
        """Return where an instruction comes from, by the text between the braces of its metadata."""
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
        """Return the file and line of the innermost frame outside libraries, or of the innermost."""
        innermost = ("", 0)
        seen = 0
        while frame in self._frames and seen <= len(self._frames):
            location, parent = self._frames[frame]
            number, line = self._locations.get(location, (0, 0))
            file = self._files.get(number, "")
            if file and not any(folder in file for folder in _LIBRARIES):
                return file, line
            if file and not innermost[0]:
                innermost = file, line
            # Parents are printed one too high, so that 1 stands for none.
            frame = parent - 1
            seen += 1
        return innermost

    def _read(self, tables: list[bytes]) -> None:
        table = b""
        for line in tables:
            if line[:1].isalpha():
                table = line.strip()
            elif table == b"FileNames" and (named := _NAMED.match(line)):
                self._files[integer(named.group(1))] = named.group(2).decode("utf-8", "replace")
            elif table in (b"FileLocations", b"StackFrames") and (entry := _NUMBERED.match(line)):
                number = integer(entry.group(1))
                fields = {name: integer(value) for name, value in _NUMBER.findall(entry.group(2))}
                if table == b"FileLocations":
                    self._locations[number] = fields.get(b"file_name_id", 0), fields.get(b"line", 0)
                else:
                    self._frames[number] = fields.get(b"file_location_id", 0), fields.get(b"parent_frame_id", 0)
