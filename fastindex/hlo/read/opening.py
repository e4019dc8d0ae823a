"""Read sources one after the other: decompress each, print protos as text, split profiles into their modules."""

from __future__ import annotations

import codecs
import contextlib
import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fastindex.errors import FastIndexError
from fastindex.hlo.attributes import FactReader
from fastindex.hlo.modules import Module, ModuleReader
from fastindex.hlo.presentation import Problem
from fastindex.hlo.read.dumps import KnownMemory
from fastindex.hlo.read.helper import Helper
from fastindex.hlo.read.kinds import (
    compression_of,
    decompressed,
    from_quoted_printable,
    in_utf8,
    is_quoted_printable,
    is_utf16,
    nature_of,
    without_marks,
)
from fastindex.hlo.read.printing import Printer
from fastindex.hlo.read.protos import HEAD_NBYTES, Form, ModuleProto, form_of, module_of_proto, modules_of_profile
from fastindex.hlo.read.sources import HloSource, TextSource, beginning, open_sources, refuse, scan_source
from fastindex.terminal import is_terminal

#: Called with the number of bytes read.
Advance = Callable[[int], None]

#: Size limit of the protobuf library.
_LONGEST_PROTO = 2**31 - 1
_REPEATED = "this name is given twice, and what refers to it is taken for the first; print the module with its ids"


class SourceReader:
    """Base class of readers that collect what the modules of several sources contain.

    Parameters
    ----------
    arguments
        Those of the class.

    Attributes
    ----------
    problems : list of Problem
        Lines and files that could not be read.
    """

    #: Attributes that are only needed while sources are read.
    _working: tuple[str, ...] = ("_source",)

    def __init__(self, *arguments: object) -> None:
        self.problems: list[Problem] = []
        self._arguments = arguments
        self._errors: list[Exception] = []
        self._counts: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._source = TextSource("", iter(()), None)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in self._working}

    def read(self, source: TextSource, advance: Advance) -> None:
        """Read one text.

        Raises
        ------
        FastIndexError
            The text is of a kind that cannot be read.
        OSError
            The text cannot be read.
        """
        raise NotImplementedError

    def add_module(self, module: Module) -> None:
        """Collect what one module contains."""
        raise NotImplementedError

    def read_modules(
        self, source: TextSource, advance: Advance, facts: Mapping[bytes, FactReader] | None = None
    ) -> None:
        """Read the modules of a text of HLO, which is the current source meanwhile."""
        self._source = source
        reader = ModuleReader(self.add_module, facts)
        scanner = scan_source(source, reader, advance)
        reader.finish()
        self.problems += scanner.problems
        if reader.repeated is not None:
            name, line = reader.repeated
            self.problems.append(Problem(line, _REPEATED, name, source.name))

    def read_all(self, source: HloSource, show_progress: bool) -> list[TextSource]:
        """Read all sources that `source` stands for, and return them; those that cannot be read become problems.

        Raises
        ------
        FastIndexError
            No source can be read, or it is no source.
        OSError
            The only file cannot be read.
        """
        sources = open_sources(source)
        with (
            _no_collections(),
            Helper(type(self), self._arguments, sources) as helper,
            _progress(sources, show_progress) as advance,
            Printer() as printer,
        ):
            for other in helper.read(lambda item: self.read_source(item, printer, advance, raises=len(sources) == 1)):
                self._errors += other._errors
                self.problems += other.problems
                self.add_all(other, {label: self.label(name) for label, name in other._names.items()})
        if self._errors and not self._counts:
            raise self._errors[0]
        return sources

    def read_source(self, source: TextSource, printer: Printer, advance: Advance, raises: bool = False) -> None:
        """Read one source; if it cannot be read, that is a problem, unless errors are raised."""
        try:
            for text in opened(source, printer):
                try:
                    self.read(text, advance)
                except (FastIndexError, OSError) as error:
                    if text.profile is None:
                        raise
                    # The profile may contain other modules: continue with them.
                    self._errors.append(error)
                    self._fail(text, error)
        except (FastIndexError, OSError) as error:
            if raises:
                raise
            self._errors.append(error)
            self._fail(source, error)

    def share(self, other: SourceReader) -> None:
        """Use what another reader of this class needs while it reads."""
        vars(self).update({name: vars(other)[name] for name in self._working})

    def add_all(self, other: Any, labels: Mapping[str, str]) -> None:
        """Add what another reader of this class collected, whose labels are replaced."""
        raise NotImplementedError

    def label(self, name: str) -> str:
        """Return a label for a module: its name, with a number if it is not the first of that name."""
        number = self._counts[name] = self._counts.get(name, 0) + 1
        label = name if number == 1 else f"{name} ({number})"
        self._names[label] = name
        return label

    def sorted_problems(self) -> tuple[Problem, ...]:
        """Return the problems by source and line."""
        return tuple(sorted(self.problems, key=lambda problem: (problem.source, problem.line)))

    def _fail(self, source: TextSource, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self.problems.append(Problem(0, reason.removeprefix(f"{source.name}: "), "", source.name))


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Pause the garbage collector: readers make very many objects, and no reference cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _progress(sources: list[TextSource], wanted: bool) -> Iterator[Advance]:
    """Show a progress bar on stderr if that is a terminal; yield the function that advances it by a byte count."""
    if not (wanted and is_terminal(sys.stderr)):
        yield lambda nbytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    known = [item.nbytes for item in sources]
    total = None if None in known else sum(size or 0 for size in known)
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading HLO", total=total)
        yield lambda nbytes: bar.advance(task, nbytes)


def opened(source: TextSource, printer: Printer) -> Iterator[TextSource]:
    """Yield the HLO texts of a source: its own, or those of the modules in a proto.

    Raises
    ------
    FastIndexError
        The source contains no HLO, cannot be decompressed, or is a damaged proto.
    OSError
        The source cannot be read.

    Examples
    --------
    >>> import gzip
    >>> source = TextSource("", iter([gzip.compress(b"HloModule m")]), None)
    >>> with Printer() as printer:
    ...     [b"".join(text.chunks) for text in opened(source, printer)]
    [b'HloModule m']
    """
    head, chunks = beginning(source.chunks, HEAD_NBYTES)
    compression = compression_of(head)
    if compression:
        head, chunks = beginning(decompressed(chunks, compression, source.name), HEAD_NBYTES)
    if is_utf16(head):
        head, chunks = beginning(in_utf8(chunks), HEAD_NBYTES)
    if head.startswith(codecs.BOM_UTF8):
        head, chunks = beginning(without_marks(chunks), HEAD_NBYTES)
    if is_quoted_printable(head):
        head, chunks = beginning(from_quoted_printable(chunks), HEAD_NBYTES)
    form = form_of(head)
    if form is not None:
        # Do not keep the bytes of the file alive: only the modules are needed.
        for module in _modules(_whole(chunks, source.name), form, source.name):
            yield _printed(module, source, printer)
        return
    nature = nature_of(head)
    if nature:
        refuse(source.name, nature)
    yield replace(source, chunks=chunks)


def _whole(chunks: Iterator[bytes], name: str) -> bytes:
    parts: list[bytes] = []
    nbytes = 0
    for chunk in chunks:
        parts.append(chunk)
        nbytes += len(chunk)
        if nbytes > _LONGEST_PROTO:
            refuse(name, "a proto of more than 2 GiB, which the protobuf library does not read; print it as text")
    return b"".join(parts)


def _modules(data: bytes, form: Form, name: str) -> list[ModuleProto]:
    try:
        return modules_of_profile(data) if form == "profile" else [module_of_proto(data, form)]
    except FastIndexError as error:
        raise FastIndexError(f"{name}: {error}" if name else str(error)) from None


def _printed(module: ModuleProto, source: TextSource, printer: Printer) -> TextSource:
    assigned = module.assigned
    memory = KnownMemory(assigned.total, "buffer assignment", assigned) if assigned is not None else None
    chunks = _with_partitions(printer.text(module.serialized, source.name), module.partition_count)
    return replace(source, chunks=chunks, nbytes=None, memory=memory, profile=module.profile)


def _with_partitions(chunks: Iterator[bytes], count: int) -> Iterator[bytes]:
    """Add the partition count to the module header; dumped texts have it, jaxlib's text does not."""
    for chunk in chunks:
        header, newline, others = chunk.partition(b"\n")
        yield header + b", num_partitions=%d" % count + newline + others if count > 1 and newline else chunk
        break
    yield from chunks
