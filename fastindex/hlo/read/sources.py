"""Sources of text: strings, files, open streams, ``--xla_dump_to`` folders, JAX objects."""

from __future__ import annotations

import codecs
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.hlo.assignments import has_total, memory_of_compiled
from fastindex.hlo.grammar import HloSink
from fastindex.hlo.log_lines import has_message
from fastindex.hlo.read.dumps import KnownMemory, dumped_modules, module_stem, stage_of, stem_of
from fastindex.hlo.read.kinds import HEAD_NBYTES, Kind, compression_of, kind_of, plain_name
from fastindex.hlo.read.protos import Profile
from fastindex.hlo.scanner import HloScanner
from fastindex.show.spelling import bytes_text

#: Stage of a JAX program that is lowered but not compiled, under the name used in dumps.
LOWERED = "before_optimizations"
_CHUNK = 1 << 20
_LOOKED_AT = 1 << 20
_COMMENT = re.compile(rb"//[^\n]*|/\*.{0,1000}?\*/", re.DOTALL)
#: Upper bound on headers, including their tables of source files and stack frames.
_LONGEST_HEADER = 32 << 20
_ONLY_A_MESSAGE = (
    "an out-of-memory message, without HLO instructions; fastindex report reads it, and the program is dumped with "
    "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text'"
)
_BINARY = "binary data of another kind; give HLO text, a .hlo.pb or an .xplane.pb, or print it with compiled.as_text()"
_CONTROL = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f]")
_FILE_ENDING = re.compile(r"\.[A-Za-z]\w{0,7}$")


class HasText(Protocol):
    """A ``jax.stages.Compiled`` or ``Lowered``."""

    def as_text(self) -> str | None:
        """Return the program as text."""


HloSource = HasText | str | bytes | os.PathLike[str] | BinaryIO | Iterable[os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class TextSource:
    """One text to read.

    Attributes
    ----------
    name : str
        File name; "" for text that is not from a file.
    chunks : iterator of bytes
    nbytes : int or None
        Size of the text; None if unknown in advance.
    stage : str
        Compilation stage, from the file name; or "".
    memory : KnownMemory or None
        XLA's own memory numbers, from a compiled object.
    notes : tuple of str
        Remarks for the reader.
    profile : Profile or None
        Measured times, from a profile.
    is_file : bool
        Whether `name` is the path of a file with the text.
    """

    name: str
    chunks: Iterator[bytes]
    nbytes: int | None
    stage: str = ""
    memory: KnownMemory | None = None
    notes: tuple[str, ...] = ()
    profile: Profile | None = None
    is_file: bool = False


def open_sources(source: HloSource) -> list[TextSource]:
    """Return the sources that `source` stands for, one per file; `opened` then yields the texts of each.

    Parameters
    ----------
    source : str, bytes, path, binary file, iterable of paths, or an object of JAX
        A str or bytes is HLO, or an XLA memory dump or message; bytes may also be protos, and compressed. A path is a
        file or a folder of dumps; of a folder, only the last stage of each module and the profiles are read.

    Raises
    ------
    FastIndexError
        A folder contains no HLO, or a path was passed as a str.
    ArgumentTypeError
        The argument is a function that is not compiled, or not a program at all.
    OSError
        A file cannot be read.
    """
    if isinstance(source, str):
        _check_not_a_path(source)
        return [TextSource("", _text_chunks(source), len(source))]
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        return [TextSource("", (data[i : i + _CHUNK] for i in range(0, len(data), _CHUNK)), len(data))]
    if isinstance(source, os.PathLike):
        return _path_sources([Path(source)])
    if hasattr(source, "as_text"):
        return [_jax_source(source)]
    if hasattr(source, "read"):
        stream = cast(BinaryIO, source)
        given = getattr(stream, "name", "")
        name = given if isinstance(given, str) else ""
        return [TextSource(name, _stream_chunks(stream, name), None)]
    if callable(source) or hasattr(source, "lower"):
        raise ArgumentTypeError(_not_compiled(source))
    try:
        paths = list(source)
    except TypeError:
        raise ArgumentTypeError(
            f"{type(source).__name__} is not a program: expected HLO text, bytes, a path, an open file, or a compiled "
            "program of JAX, jax.jit(f).lower(*arguments).compile()"
        ) from None
    for path in paths:
        if not isinstance(path, os.PathLike):
            raise ArgumentTypeError(f"a list of HLO files must hold paths, got {type(path).__name__}")
    if not paths:
        raise FastIndexError("no HLO file was given")
    return _path_sources([Path(path) for path in paths])


def _not_compiled(program: Any) -> str:
    """Return an error message that says how to compile a function (jitted or not) or a traced program."""
    if hasattr(program, "jaxpr"):
        return f"this {type(program).__name__} is not compiled; pass its lower().compile()"
    jitted = "a jitted function" if hasattr(program, "lower") else "a function"
    return f"{jitted} is compiled for given arguments; pass jax.jit(f).lower(*arguments).compile()"


def _jax_source(stage: Any) -> TextSource:
    """Return the text of a compiled or lowered JAX program; for a compiled one also the memory that XLA assigned."""
    is_lowered = hasattr(stage, "compile")
    text = stage.as_text(dialect="hlo") if is_lowered else stage.as_text()
    analysis = stage.memory_analysis() if not is_lowered and hasattr(stage, "memory_analysis") else None
    memory, notes = _memory_of(analysis, text or "") if analysis is not None else (None, ())
    if not text:
        raise FastIndexError(f"this {type(stage).__name__} has no HLO text")
    return TextSource("", _text_chunks(text), len(text), LOWERED if is_lowered else "", memory, notes)


def _memory_of(analysis: Any, text: str) -> tuple[KnownMemory | None, tuple[str, ...]]:
    """Return a program's memory in memory space 0 and notes, from JAX's ``memory_analysis()``."""
    assigned = memory_of_compiled(analysis)
    if assigned is None:
        return None, ()
    serialized: bytes = getattr(analysis, "serialized_buffer_assignment_proto", b"")
    if ":T(" not in text or serialized:
        return KnownMemory(assigned.total, "buffer assignment", assigned), ()
    # For TPUs, XLA gives sums but no buffer assignment.
    peak = getattr(analysis, "peak_memory_in_bytes", 0)
    said = f"XLA's peak_memory_in_bytes, on some TPUs with the memory of the core: {bytes_text(peak)}"
    known = KnownMemory(assigned.total, "memory analysis", assigned, is_rounded=not has_total(analysis))
    return known, (said,) if isinstance(peak, int) and peak else ()


def _path_sources(paths: list[Path]) -> list[TextSource]:
    files: dict[Path, str] = {}
    for path in paths:
        if path.is_dir():
            for file, stage in dumped_modules(path).items():
                files.setdefault(file, stage)
        else:
            files.setdefault(path, stage_of(path))
    # Memory reports are read together with their module.
    stems = {stem_of(file) for file in files}
    kept = [file for file in files if module_stem(file) not in stems]
    return [file_source(file, files[file]) for file in kept]


def file_source(file: Path, stage: str) -> TextSource:
    """Return the source of a file."""
    return TextSource(str(file), _file_chunks(file), _text_nbytes(file), stage, is_file=True)


def _text_nbytes(file: Path) -> int | None:
    """Return the size of a file's text, if the file size tells; None for compressed files and protos."""
    is_text = plain_name(file.name) == file.name and file.suffix != ".pb"
    return file.stat().st_size if is_text and file.is_file() else None


def _check_not_a_path(text: str) -> None:
    if len(text) >= 4096 or "\n" in text:
        return
    if os.path.exists(text):
        raise FastIndexError(f"{text!r} is a path, not HLO text; pass pathlib.Path({text!r})")
    # HLO lines contain spaces. A file name with spaces is recognized by its ending, which XLA messages may also have.
    is_one_word = bool(text) and not any(map(str.isspace, text))
    if has_message(text.encode("utf-8", "replace")) or not (is_one_word or _FILE_ENDING.search(text)):
        return
    raise FastIndexError(f"no such file: {text!r}; a str is taken for HLO text, so pass pathlib.Path(...) for a file")


def _text_chunks(text: str) -> Iterator[bytes]:
    for i in range(0, len(text), _CHUNK):
        yield text[i : i + _CHUNK].encode("utf-8", "surrogatepass")


def _file_chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        yield from _stream_chunks(stream, str(file))


def _stream_chunks(stream: BinaryIO, name: str) -> Iterator[bytes]:
    while True:
        try:
            chunk = stream.read(_CHUNK)
        except OSError as error:
            raise OSError(error.errno, error.strerror, name or None) from None
        if not chunk:
            return
        if not isinstance(chunk, bytes):
            raise TypeError("an HLO file must be open in binary mode; a text file has its bytes in .buffer")
        yield chunk


def beginning(chunks: Iterator[bytes], nbytes: int) -> tuple[bytes, Iterator[bytes]]:
    """Return the beginning of a text, of at least some bytes unless it is shorter, and an iterator over all of it."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= nbytes:
            break
    return head, itertools.chain((head,) if head else (), chunks)


def identified(source: TextSource) -> tuple[Kind, TextSource]:
    """Return the kind of a text, judged by its beginning, and the source with all of the text.

    Raises
    ------
    FastIndexError
        The text is of an unsupported kind.
    """
    head, chunks = beginning(source.chunks, HEAD_NBYTES)
    try:
        kind = kind_of(head)
    except FastIndexError as error:
        raise FastIndexError(f"{source.name}: {error}" if source.name else str(error)) from None
    return kind, replace(source, chunks=chunks)


def scan_source(source: TextSource, sink: HloSink, advance: Callable[[int], None]) -> HloScanner:
    """Scan one HLO text into a sink, calling `advance` with the number of bytes read.

    Raises
    ------
    FastIndexError
        The text is not HLO: binary data, another language, or no instruction.
    """
    scanner = HloScanner(sink, source.name)
    seen = 0
    nothing = "no HLO instruction, 'name = shape opcode(...)', and no out-of-memory message"
    head = b""
    for chunk in source.chunks:
        if seen < _LOOKED_AT:
            _check_is_text(chunk, source.name, first=seen == 0)
            head = head or chunk
        scanner.feed(chunk)
        seen += len(chunk)
        advance(len(chunk))
        if seen >= _LOOKED_AT and not scanner.instruction_count and not scanner.saw_module:
            refuse(source.name, f"no HLO instruction and no HloModule in the first {bytes_text(_LOOKED_AT)}")
        if seen >= _LONGEST_HEADER and not scanner.instruction_count:
            refuse(source.name, f"no HLO instruction in the first {bytes_text(_LONGEST_HEADER)}")
    scanner.close()
    if not scanner.instruction_count:
        problems = f"; first {scanner.problems[0]}" if scanner.problems else ""
        if _CONTROL.search(head):
            nothing = _BINARY
        elif has_message(head):
            nothing = _ONLY_A_MESSAGE
        refuse(source.name, (nothing if seen else "the text is empty") + problems)
    return scanner


def _check_is_text(chunk: bytes, name: str, first: bool) -> None:
    if first and compression_of(chunk):
        refuse(name, "compressed twice; decompress it first")
    if b"\0" in chunk:
        refuse(name, _BINARY)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(chunk if first else b"")
    except UnicodeDecodeError:
        # Comments and paths may be in another encoding.
        if b"HloModule" not in chunk:
            refuse(name, _BINARY)
    head = _COMMENT.sub(b"", chunk[:_LOOKED_AT]).lstrip()[:2000] if first else b""
    if first and b"HloModule" not in head and (head.startswith((b"module ", b"#loc")) or b"func.func" in head):
        refuse(name, "MLIR, not HLO; use compiled.as_text(), or lowered.as_text(dialect='hlo')")


def refuse(name: str, why: str) -> None:
    """Raise the error for a source that is not HLO text."""
    raise FastIndexError(f"{name}: not HLO text: {why}" if name else f"not HLO text: {why}")
