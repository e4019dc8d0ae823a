"""Out-of-memory messages of XLA and TensorFlow: the allocations that they list, found in logs of any length.

Supported are the lists of the TPU compiler ("Ran out of memory in memory space hbm", "Largest program allocations"),
of buffer assignment on GPU and CPU ("Peak buffers"), single allocations that exceed the memory, and the tensors
that TensorFlow's BFC allocator could not place.

Sources: ``BufferAssignment::ToVerboseString`` of ``xla/service/buffer_assignment.cc``; XLA's pages "Error code
E1000" and "Debug OOM errors with XProf"; ``bfc_allocator.cc``. The TPU compiler's own code is not public; its
lists are read as the messages in public issues show them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fastindex.advice.spelling import bytes_text
from fastindex.errors import FastIndexError
from fastindex.hlo.metadata import MetadataReader, Origin
from fastindex.hlo.module_sums import ModuleUse, Peak
from fastindex.hlo.numbers import integer, rounded
from fastindex.hlo.problems import Problem
from fastindex.hlo.rows import Place, ShapeUse
from fastindex.shapes.shape import Shape

#: A log without any of these contains no message.
MARKERS = (
    b"Ran out of memory in memory space",
    b"Largest program allocations in",
    b"would exceed memory (size=",
    b"Peak buffers:",
    b"OOM when allocating tensor with shape",
    b"Hbm usage",
    b"Out of memory while trying to allocate",
    b"Out of memory allocating",
)
_SIZE = r"(\d[\d,]*(?:\.\d+)?)\s*([KMGTP]?)(?:i?B|b)?"
_USED = re.compile(rf"Ran out of memory in memory space (\w+)(?:\.|:).*?Used {_SIZE} of {_SIZE} \w+")
_SPACE_ONLY = re.compile(r"Ran out of memory in memory space (\w+)")
_SECTION = re.compile(r"Largest program allocations in (\w+):")
_PEAK_BUFFERS = re.compile(r"Peak buffers:\s*$")
_PART = re.compile(
    r"(reserved|program|arguments|HLO temp|scoped|global|overlays|parameter allocation|constant allocation|"
    rf"maybe_live_out allocation|preallocated temp allocation|total allocation):?\s+{_SIZE}(?=\s|$|\()"
)
_FIELD = re.compile(
    r"(?:^|\s)(?:\d+\.\s+)?(Size|Operator|Shape|Unpadded size|Extra memory due to padding|XLA [Ll]abel|Allocation type|"
    r"Entry Parameter Subshape): ?(.*)$"
)
#: Lines outside an allocation that may matter.
_WORDS = re.compile(
    "out of memory|Out of memory|Largest program|Peak buffers|would exceed|Hbm usage|OOM when|Size: |Buffer |"
    "reserved|program|arguments|HLO temp|scoped|global|overlays|allocation:"
)
#: What an allocation begins with: its number in the list.
_NUMBER = re.compile(r"\b(?:\d+\. Size: |Buffer \d+:\s*$)")
_SEPARATOR = "===="
_SINGLE = re.compile(
    r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\).*?\[shape = '([^']*)', space=(\w+).*?tag = '([^']*)'"
)
_HBM = re.compile(rf"TensorCore Hbm usage: {_SIZE}, SparseCore Hbm usage:? {_SIZE}, exceeding available bytes: {_SIZE}")
_TENSOR = re.compile(r"OOM when allocating tensor with shape\s?\[([\d,]*)\] and type (\w+)")
_REQUEST = re.compile(rf"Out of memory (?:while trying to allocate|allocating) {_SIZE}")
_LABEL = re.compile(r"%?([\w.\-]+)(?: = |$)")
_METADATA = re.compile(r"metadata=\{(.*)")
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
#: TensorFlow's names of element types.
_TENSORFLOW_TYPES = {
    "float": "f32", "half": "f16", "bfloat16": "bf16", "double": "f64", "int8": "s8", "int16": "s16", "int32": "s32",
    "int64": "s64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "pred",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip
#: Sizes are printed with one or two decimals; if the shape's size agrees, it is used as the exact one.
_ROUNDING = 0.06
_READER = MetadataReader([])
_NOTHING_LISTED = (
    "the message lists no allocations; report the program itself: fastindex.report(compiled) in Python, or dump it "
    "with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text' and report DIR"
)


def size_of(text: str) -> int:
    """Read a size as XLA prints it; units are powers of 1024.

    Examples
    --------
    >>> size_of("32.00G"), size_of("4.0K"), size_of("1.00GiB"), size_of("512B")
    (34359738368, 4096, 1073741824, 512)
    """
    found = re.match(_SIZE, text)
    if not found:
        return 0
    return rounded(found.group(1).replace(",", ""), _FACTORS[found.group(2)])


@dataclass(slots=True)
class _Listed:
    """One allocation of a list: its fields as printed."""

    line: int
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Message:
    """One message: a memory space that is too small, and its allocations."""

    space: str
    used: int = 0
    capacity: int = 0
    listed: list[_Listed] = field(default_factory=list)
    parts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def key(self) -> tuple[object, ...]:
        """Return what identifies a message that is printed twice."""
        return (
            self.space,
            self.used,
            tuple(tuple(item.fields.get(k) for k in ("Size", "Shape")) for item in self.listed),
        )


class MessageReader:
    """Reads the lines of a log and keeps the messages."""

    def __init__(self) -> None:
        self._messages: list[_Message] = []
        self._current: _Listed | None = None
        self._open = ""
        self._line = 0

    def feed(self, line: str) -> None:
        """Read one line, with or without a logger's prefix."""
        self._line += 1
        if self._current is None and not _WORDS.search(line):
            return
        if "\\n" in line and "Size: " in line:
            # The repr of an exception, with escaped line breaks.
            self._line -= 1
            for part in line.split("\\n"):
                self.feed(part)
            return
        if _SEPARATOR in line:
            self._current, self._open = None, ""
            return
        if self._take_heading(line):
            self._current, self._open = None, ""
            return
        found = _FIELD.search(line)
        if _NUMBER.search(line) and self._messages:
            self._current = _Listed(self._line)
            self._messages[-1].listed.append(self._current)
        if found and self._current is not None:
            self._take_field(self._current, found.group(1).replace("Label", "label"), found.group(2))
        elif self._current is not None and self._open in ("Operator", "XLA label") and line.strip():
            # The name of an operation may hold line breaks.
            self._current.fields[self._open] += " " + line.strip()

    def _take_field(self, listed: _Listed, name: str, text: str) -> None:
        listed.fields.setdefault(name, text.strip())
        self._open = name

    def _take_heading(self, line: str) -> bool:
        if found := _USED.search(line):
            space, *sizes = found.groups()
            self._begin(_Message(space, size_of(sizes[0] + sizes[1]), size_of(sizes[2] + sizes[3])))
        elif found := _SPACE_ONLY.search(line):
            self._begin(_Message(found.group(1)))
        elif found := _SECTION.search(line):
            self._section(found.group(1))
        elif _PEAK_BUFFERS.search(line):
            self._section("device memory")
        elif found := _SINGLE.search(line):
            size, capacity, shape, space, tag = found.groups()
            fields = {"Size": size, "Shape": shape, "XLA label": tag.removeprefix("output of ").split("@")[0]}
            self._begin(_Message(space, integer(size), integer(capacity), [_Listed(self._line, fields)]))
        elif found := _HBM.search(line):
            core, sparse, available = (size_of(line[found.start(i) :]) for i in (1, 3, 5))
            note = f"TensorCore {bytes_text(core)}, SparseCore {bytes_text(sparse)}"
            self._begin(_Message("hbm", core + sparse, available, notes=[note]))
        elif found := _TENSOR.search(line):
            kind = _TENSORFLOW_TYPES.get(found.group(2), found.group(2))
            fields = {"Shape": f"{kind}[{found.group(1)}]", "XLA label": "tensor"}
            self._begin(_Message("device memory", listed=[_Listed(self._line, fields)]))
        elif found := _REQUEST.search(line):
            self._begin(
                _Message(
                    "device memory", notes=[f"the request that failed: {bytes_text(size_of(line[found.start(1) :]))}"]
                )
            )
        elif (found := _PART.search(line)) and self._messages and self._current is None:
            self._messages[-1].parts.setdefault(found.group(1), size_of(line[found.start(2) :]))
            return True
        else:
            return False
        return True

    def _begin(self, message: _Message) -> None:
        self._messages.append(message)

    def _section(self, space: str) -> None:
        """Begin the list of a memory space; it belongs to the message before, if that has none yet."""
        last = self._messages[-1] if self._messages else None
        if last is None or last.listed or (last.space != space and last.used):
            self._begin(_Message(space))
        else:
            last.space = space

    def results(self, source: str) -> tuple[list[tuple[ModuleUse, list[ShapeUse]]], list[Problem]]:
        """Return the sums and rows of the messages, each once, and what could not be read."""
        problems: list[Problem] = []
        seen = set()
        results = []
        for message in self._messages:
            if message.key() in seen or not (message.listed or message.used or message.notes):
                continue
            seen.add(message.key())
            label = f"out of memory in {message.space}"
            rows = _rows(message, label, source, problems)
            results.append((_sums(message, label, source, rows), rows))
        return results, problems


def _rows(message: _Message, label: str, source: str, problems: list[Problem]) -> list[ShapeUse]:
    grouped: dict[tuple[Shape, int], list[Place]] = {}
    for item in message.listed:
        text = item.fields.get("Shape") or item.fields.get("Entry Parameter Subshape", "")
        try:
            shape = Shape.parse(text)
            nbytes = _exact(shape, item.fields.get("Size", ""))
        except FastIndexError as error:
            reason = str(error).splitlines()[0] if text else "an allocation without a shape"
            problems.append(Problem(item.line, reason, text or item.fields.get("Size", ""), source))
            continue
        grouped.setdefault((shape, nbytes), []).append(_place(item))
    rows = [
        ShapeUse(shape, len(places), nbytes, min(shape.logical_nbytes, nbytes), label, tuple(places))
        for (shape, nbytes), places in grouped.items()
    ]
    return sorted(rows, key=ShapeUse.waste_key, reverse=True)


def _exact(shape: Shape, printed: str) -> int:
    """Return the bytes of a shape, or the printed size if they disagree."""
    size = size_of(printed)
    return shape.nbytes if not size or abs(shape.nbytes - size) <= _ROUNDING * max(size, 1024) else size


def _origin(metadata: str) -> Origin:
    return _READER.origin(metadata.encode())


def _place(item: _Listed) -> Place:
    label = item.fields.get("XLA label", "")
    name = _LABEL.match(label)
    metadata = _METADATA.search(label)
    texts = item.fields.get("Operator", ""), metadata.group(1) if metadata else ""
    # Prefer the one that names a file, then one that names an operation.
    best = min(map(_origin, texts), key=lambda origin: (not origin.source_file, not origin.op_name))
    role = "argument" if "Entry Parameter Subshape" in item.fields else item.fields.get("Allocation type", "")
    return Place(
        name.group(1) if name else "",
        role=role,
        op_name=best.op_name,
        source_file=best.source_file,
        source_line=best.source_line,
        line=item.line,
        at_peak=True,
    )


def _sums(message: _Message, label: str, source: str, rows: list[ShapeUse]) -> ModuleUse:
    nbytes = sum(row.count * row.nbytes for row in rows)
    logical = sum(row.count * row.logical_nbytes for row in rows)
    used = message.used or message.parts.get("total allocation", 0)
    notes = list(message.notes)
    if message.capacity:
        missing = max(used - message.capacity, 0)
        notes.append(f"{bytes_text(message.capacity)} available, {bytes_text(missing)} short")
    if message.parts:
        notes.append(", ".join(f"{name} {bytes_text(size)}" for name, size in message.parts.items()))
    notes.append("the message lists only the largest allocations" if rows else _NOTHING_LISTED)
    peak = Peak(used, max(used - (nbytes - logical), 0), "out-of-memory message") if used else None
    return ModuleUse(
        label, source, buffer_count=sum(row.count for row in rows), nbytes=nbytes, logical_nbytes=logical,
        peak=peak, notes=tuple(notes),
    )  # fmt: skip


def message_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split a log into lines; stretches without a message are skipped, with an empty string for each of their lines."""
    rest, inside = b"", False
    for chunk in chunks:
        text = rest + chunk
        inside = inside or any(marker in text for marker in MARKERS)
        end = text.rfind(b"\n") + 1
        rest = text[end:]
        if inside:
            for line in text[:end].splitlines():
                yield line.decode("utf-8", "replace")
        else:
            yield from [""] * text.count(b"\n", 0, end)
    if rest:
        yield rest.decode("utf-8", "replace")
