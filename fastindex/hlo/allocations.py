"""Allocations in out-of-memory messages as rows of a report: those of a list, and the arrays of a kernel."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.hlo.attributes import MetadataReader, Origin, metadata_of
from fastindex.hlo.exact_text import ExactText, Instruction, NotWellFormed
from fastindex.hlo.grammar import rounded
from fastindex.hlo.presentation import Problem
from fastindex.hlo.rows import Place, ShapeUse
from fastindex.hlo.shape_table import ShapeTable

_CONSTRAINTS = re.compile(r"operand_layout_constraints=\{((?:[^{}]|\{[^{}]*\})*)\}")
_ARRAY = re.compile(r"[a-z]\w*\[[^\]]*\](?:\{[^{}]*\})?")
#: A size: number and unit.
SIZE = r"(\d[\d,]*(?:\.\d+)?)\s*([KMGTP]?)(?:i?B|b)?"
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
#: The name of an instruction; in a log, other columns or a record may follow.
_LABEL = re.compile(r"%?([\w.\-]+)(?= = |(?! ?[a-z]))")
#: A shape at the start of a text; in a log, anything may follow.
_SHAPE = re.compile(r"[a-z]\w*\[[^\]]*\](?:\{[^{}\"']*\})?")
_KIND, _IN_WORDS = re.compile(r"HLO temp|[\w\-]+"), re.compile(r"[\w\- ]*\w")
_METADATA = re.compile(r"metadata=\{(.*)")
#: A log may join sentences without a space.
END_OF_SENTENCE = re.compile(r"\.(?: |(?=[A-Za-z])|$)")
#: Tolerance for sizes printed with one or two decimals: within it, the size of the shape is taken as exact.
_ROUNDING = 0.06
_READER = MetadataReader([])


def size_of(text: str) -> int:
    """Parse a size as XLA prints it; units are powers of 1024.

    Examples
    --------
    >>> size_of("32.00G"), size_of("4.0K"), size_of("1.00GiB"), size_of("512B")
    (34359738368, 4096, 1073741824, 512)
    """
    found = re.match(SIZE, text)
    if not found:
        return 0
    return rounded(found.group(1).replace(",", ""), _FACTORS[found.group(2)])


@dataclass(slots=True)
class Listed:
    """One allocation in a list: its line in the log, its fields as printed, and whether a part of them is left out."""

    line: int
    fields: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it has the fields that every list has."""
        has_size = "Size" in self.fields and not self.is_cut
        return has_size and not self.fields.keys().isdisjoint(("XLA label", "Entry Parameter Subshape"))


def rows_of(listed: Iterable[Listed], label: str, source: str, problems: list[Problem]) -> list[ShapeUse]:
    """Return allocations as rows of a report; those whose shapes cannot be read are problems."""
    grouped: dict[tuple[Shape, int, int], list[Place]] = {}
    for item in listed:
        text = item.fields.get("Shape") or item.fields.get("Entry Parameter Subshape", "")
        size = size_of(item.fields.get("Size", ""))
        found = _SHAPE.match(text)
        try:
            # Memory without a shape, such as register spill slots, is counted as bytes.
            shape = Shape.parse(found.group() if found else text or f"u8[{size}]")
            nbytes = _exact(shape, item.fields.get("Size", ""))
        except FastIndexError as error:
            problems.append(Problem(item.line, str(error).splitlines()[0], text, source))
            continue
        unpadded = size_of(item.fields.get("Unpadded size", ""))
        # If the shape is printed without tiles, the message tells the padding.
        logical = unpadded if unpadded and shape.nbytes != nbytes else shape.logical_nbytes
        if abs(logical - shape.logical_nbytes) <= _ROUNDING * max(logical, 1024):
            logical = shape.logical_nbytes
        grouped.setdefault((shape, nbytes, min(logical, nbytes)), []).append(_place(item))
    return [
        ShapeUse(shape, len(places), nbytes, logical, label, tuple(places))
        for (shape, nbytes, logical), places in grouped.items()
    ]


def _exact(shape: Shape, printed: str) -> int:
    """Return the exact size of a shape if it agrees with the printed size; else the printed size."""
    size = size_of(printed)
    return shape.nbytes if not size or abs(shape.nbytes - size) <= _ROUNDING * max(size, 1024) else size


def _place(item: Listed) -> Place:
    label = item.fields.get("XLA label", "")
    name = _LABEL.match(label)
    metadata = _METADATA.search(label)
    texts = item.fields.get("Operator", ""), metadata.group(1) if metadata else ""
    # Prefer metadata with a file, then metadata with an operation name.
    origins = [_READER.origin(text.encode()) for text in texts]
    best = min(origins, key=lambda origin: (not origin.source_file, not origin.op_name))
    kind = _KIND.match(item.fields.get("Allocation type", ""))
    role = "argument" if "Entry Parameter Subshape" in item.fields else kind.group() if kind else ""
    # For kernel memory: which window or scratch buffer it is.
    tag = END_OF_SENTENCE.split(item.fields.get("Tag", ""), maxsplit=1)[0]
    has_shape = "Shape" in item.fields or "Entry Parameter Subshape" in item.fields
    # What has no shape is described in words.
    words = _IN_WORDS.match(label) if not has_shape else None
    return Place(
        name.group(1) if name else words.group() if words else "",
        role=role,
        op_name=", ".join(part for part in (best.op_name, tag) if part),
        source_file=best.source_file,
        source_line=best.source_line,
        line=item.line,
        at_peak=True,
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """An instruction that exceeds its limit of scoped memory.

    Attributes
    ----------
    name, opcode : str
    results : tuple of Shape
    operands : tuple of (str, Shape or None)
        Names, with the shapes if the message contains them.
    origin : Origin
    line : int
        Line number in the log.
    """

    name: str
    opcode: str
    results: tuple[Shape, ...]
    operands: tuple[tuple[str, Shape | None], ...]
    origin: Origin
    line: int

    def note(self) -> str:
        """Return a sentence that identifies the kernel."""
        origin = self.origin
        file = f"{origin.source_file}:{origin.source_line}" if origin.source_file else ""
        where = ", ".join(part for part in (file, origin.op_name) if part)
        return (
            f"the kernel {self.name}" + (f" ({self.opcode})" if self.opcode else "") + (f": {where}" if where else "")
        )

    def rows(self, label: str) -> list[ShapeUse]:
        """Return its results and operands as rows of a report."""
        named = [(shape, self.name, "result") for shape in self.results]
        named += [
            (shape, name, f"operand {number}")
            for number, (name, shape) in enumerate(self.operands)
            if shape is not None
        ]
        return [
            ShapeUse(shape, 1, shape.nbytes, shape.logical_nbytes, label, (self._place(name, role),))
            for shape, name, role in named
        ]

    def _place(self, name: str, role: str) -> Place:
        origin = self.origin if role == "result" else Origin()
        return Place(
            name, role=role, op_name=origin.op_name, source_file=origin.source_file, source_line=origin.source_line,
            line=self.line,
        )  # fmt: skip


def read_kernel(text: str, line: int) -> Kernel:
    """Parse the instruction in a message, given the line number in the log; omit what cannot be parsed.

    Examples
    --------
    >>> text = '%k.3 = f32[8,128]{1,0} custom-call(%a), operand_layout_constraints={f32[8,64]{1,0}}'
    >>> kernel = read_kernel(text, 1)
    >>> kernel.name, [(name, str(shape)) for name, shape in kernel.operands]
    ('k.3', [('a', 'f32[8,64]{1,0}')])
    """
    name = text.split(" = ")[0].strip().lstrip("%")
    try:
        events, _ = ExactText(text.encode(), True, itertools.count()).instruction(0)
    except NotWellFormed:
        return Kernel(name, "", (), (), Origin(), line)
    last = events[-1]
    row = last.row if isinstance(last, Instruction) else None
    if row is None:
        return Kernel(name, "", (), (), Origin(), line)
    table = ShapeTable()
    results = tuple(table.shapes[leaf] for leaf in table.entry(row[2]).leaves if table.nbytes[leaf] >= 0)
    names = [part.strip().lstrip("%") for part in row[4].decode().split(",")] if row[4] else []
    constraints = _CONSTRAINTS.search(text)
    shapes = [_shape(found) for found in _ARRAY.findall(constraints.group(1))] if constraints else []
    padded = [*shapes, *[None] * (len(names) - len(shapes))]
    operands = tuple(zip(names, padded, strict=False))
    return Kernel(name, row[3].decode(), results, operands, _READER.origin(metadata_of(row[5])), line)


def _shape(text: str) -> Shape | None:
    try:
        shape = Shape.parse(text)
        shape.nbytes  # noqa: B018
    except FastIndexError:
        return None
    return shape
