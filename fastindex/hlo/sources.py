"""Where HLO text comes from: strings, files, open streams, folders that ``--xla_dump_to`` fills."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from fastindex.advice.spelling import bytes_text
from fastindex.errors import FastIndexError
from fastindex.hlo.scanner import HloScanner, HloSink

_CHUNK = 1 << 20
_LOOKED_AT = 1 << 20
#: Headers with their tables of source files and frames are shorter than this.
_LONGEST_HEADER = 32 << 20
_SUFFIXES = (".txt", ".hlo")
#: ``module_0001.jit_f.cpu_after_optimizations.txt``, ``module_0001.jit_f.0003.pass.after_x.before_y.txt``
_DUMP_NAME = re.compile(
    r"(module_\d+\..+?)\.(\d{4}\..*|[\w.]*?(?:before|after)_(?:optimizations|codegen)\w*)\.(?:txt|hlo)"
)
#: How the names of stages end, in the order in which XLA dumps them; passes come after the first.
_STAGES = (
    "before_optimizations",
    "_pass",
    "after_optimizations_before_buffer_assignment",
    "after_optimizations",
    "after_optimizations_after_buffer_assignment",
    "after_codegen",
)
_MODULE_START = re.compile(rb"\s*(?:(?://[^\n]*\n|/\*.*?\*/)\s*)*HloModule\b", re.DOTALL)

HloSource = str | bytes | os.PathLike[str] | BinaryIO | Iterable[os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class TextSource:
    """One HLO text.

    Attributes
    ----------
    name : str
        The file, or "" for text that has no name.
    chunks : iterator of bytes
    nbytes : int or None
        None where it is not known beforehand.
    stage : str
        The stage of compilation, from the name of the file; or "".
    """

    name: str
    chunks: Iterator[bytes]
    nbytes: int | None
    stage: str = ""


def open_sources(source: HloSource) -> list[TextSource]:
    """Return the HLO texts that `source` means.

    Parameters
    ----------
    source : str, bytes, path, binary file, or iterable of paths
        Text or bytes are HLO; a path is a file or a folder of dumps. Of a folder, the files that begin with
        ``HloModule`` are taken, and of a module dumped at several stages the one after optimizations.

    Raises
    ------
    FastIndexError
        A folder without HLO, a path where text was expected.
    OSError
        A file that cannot be read.
    """
    if isinstance(source, str):
        _check_not_a_path(source)
        return [TextSource("", _text_chunks(source), len(source))]
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        return [TextSource("", (data[i : i + _CHUNK] for i in range(0, len(data), _CHUNK)), len(data))]
    if isinstance(source, os.PathLike):
        return _path_sources([Path(source)])
    if hasattr(source, "read"):
        stream = cast(BinaryIO, source)
        name = getattr(stream, "name", "")
        return [TextSource(name if isinstance(name, str) else "", _stream_chunks(stream), None)]
    paths = list(source)
    for path in paths:
        if not isinstance(path, os.PathLike):
            raise TypeError(f"a list of HLO files must hold paths, got {type(path).__name__}")
    if not paths:
        raise FastIndexError("no HLO file was given")
    return _path_sources([Path(path) for path in paths])


def _path_sources(paths: list[Path]) -> list[TextSource]:
    files: dict[Path, str] = {}
    for path in paths:
        if path.is_dir():
            for file, stage in dumped_modules(path).items():
                files.setdefault(file, stage)
        else:
            name = _DUMP_NAME.match(path.name)
            files.setdefault(path, _stage(name) if name else "")
    return [
        TextSource(str(file), _file_chunks(file), file.stat().st_size if file.is_file() else None, stage)
        for file, stage in files.items()
    ]


def dumped_modules(folder: Path) -> dict[Path, str]:
    """Return the files of a dump folder to read, and their stages: one for each module.

    Raises
    ------
    FastIndexError
        No file begins with ``HloModule``.
    """
    stages: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix not in _SUFFIXES or not file.is_file() or not _begins_module(file):
            continue
        name = _DUMP_NAME.match(file.name)
        module = str(file.parent / (name.group(1) if name else file.name))
        stages.setdefault(module, {})[_stage(name) if name else ""] = file
    if not stages:
        raise FastIndexError(
            f"no HLO text in {folder}: no .txt or .hlo file begins with HloModule; dump with --xla_dump_hlo_as_text"
        )
    chosen = {}
    for files in stages.values():
        stage = max(files, key=_lateness)
        dropped = len(files) - 1
        chosen[files[stage]] = f"{stage} (of {dropped + 1} stages)" if dropped else stage
    return chosen


def _stage(name: re.Match[str]) -> str:
    return name.group(2)


def _lateness(stage: str) -> tuple[int, str]:
    """Order stages by when they are dumped; among passes, by their number."""
    ranks = [rank for rank, ending in enumerate(_STAGES) if stage.endswith(ending)]
    return (ranks[-1] + 1 if ranks else 0, stage) if not stage[:4].isdigit() else (1, stage)


def _begins_module(file: Path) -> bool:
    with file.open("rb") as stream:
        return _MODULE_START.match(stream.read(4096)) is not None


def _check_not_a_path(text: str) -> None:
    if len(text) >= 4096 or "\n" in text or "=" in text:
        return
    if os.path.exists(text):
        raise FastIndexError(f"{text!r} is the path of a file, not HLO text; pass pathlib.Path({text!r})")
    if text.endswith(_SUFFIXES) or (os.sep in text and " " not in text):
        raise FastIndexError(
            f"there is no file {text!r}; a str is taken for HLO text, so pass pathlib.Path(...) for a file"
        )


def _text_chunks(text: str) -> Iterator[bytes]:
    for i in range(0, len(text), _CHUNK):
        yield text[i : i + _CHUNK].encode("utf-8", "surrogatepass")


def _file_chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        yield from _stream_chunks(stream)


def _stream_chunks(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        if not isinstance(chunk, bytes):
            raise TypeError("an HLO file must be open in binary mode; a text file has its bytes in .buffer")
        yield chunk


def scan_source(source: TextSource, sink: HloSink, advance: Callable[[int], None]) -> HloScanner:
    """Scan one HLO text into a sink, and call `advance` with the bytes read.

    Raises
    ------
    FastIndexError
        No HLO text: binary data, another language, no instruction.
    """
    scanner = HloScanner(sink, source.name)
    seen = 0
    for chunk in source.chunks:
        if seen < _LOOKED_AT:
            _check_is_text(chunk, source.name, first=seen == 0)
        scanner.feed(chunk)
        seen += len(chunk)
        advance(len(chunk))
        if seen >= _LOOKED_AT and not scanner.instruction_count and not scanner.saw_module:
            _refuse(source.name, f"no HLO instruction and no HloModule in the first {bytes_text(_LOOKED_AT)}")
        if seen >= _LONGEST_HEADER and not scanner.instruction_count:
            _refuse(source.name, f"no HLO instruction in the first {bytes_text(_LONGEST_HEADER)}")
    scanner.close()
    if not scanner.instruction_count:
        problems = f"; first {scanner.problems[0]}" if scanner.problems else ""
        _refuse(
            source.name,
            ("the text is empty" if not seen else "no HLO instruction, 'name = shape opcode(...)'") + problems,
        )
    return scanner


def _check_is_text(chunk: bytes, name: str, first: bool) -> None:
    if first and chunk[:2] == b"\x1f\x8b":
        _refuse(name, "compressed with gzip; decompress it first")
    if b"\0" in chunk:
        _refuse(name, "binary data; a serialized HloModuleProto has to be printed as text first")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(chunk if first else b"")
    except UnicodeDecodeError:
        _refuse(name, "binary data, not UTF-8; a serialized HloModuleProto has to be printed as text first")
    head = chunk.lstrip()[:2000]
    if first and b"HloModule" not in head and (head.startswith((b"module ", b"#loc")) or b"func.func" in head):
        _refuse(name, "MLIR, not HLO; use compiled.as_text(), or lowered.as_text(dialect='hlo')")


def _refuse(name: str, why: str) -> None:
    raise FastIndexError(f"not HLO text{f' in {name}' if name else ''}: {why}")
