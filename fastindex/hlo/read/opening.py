"""Open a source: decompress it, print protos as text, and split profiles into their modules."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from fastindex.errors import FastIndexError
from fastindex.hlo.read.compressed import compression_of, decompressed
from fastindex.hlo.read.dumps import KnownMemory
from fastindex.hlo.read.natures import nature_of
from fastindex.hlo.read.printing import Printer
from fastindex.hlo.read.profiles import modules_of_profile
from fastindex.hlo.read.protos import HEAD_NBYTES, Form, ModuleProto, form_of, module_of_proto
from fastindex.hlo.read.sources import TextSource, refuse

#: Size limit of the protobuf library.
_LONGEST_PROTO = 2**31 - 1


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
    head, chunks = _beginning(source.chunks)
    compression = compression_of(head)
    if compression:
        head, chunks = _beginning(decompressed(chunks, compression, source.name))
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


def _beginning(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """Return the first bytes of a source, and an iterator over all of it."""
    seen: list[bytes] = []
    nbytes = 0
    for chunk in chunks:
        seen.append(chunk)
        nbytes += len(chunk)
        if nbytes >= HEAD_NBYTES:
            break
    return b"".join(seen)[:HEAD_NBYTES], itertools.chain(seen, chunks)


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
