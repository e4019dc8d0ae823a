"""The kernel that ran out of scoped memory, parsed from the TPU compiler's message."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.hlo.attributes import MetadataReader, Origin, metadata_of
from fastindex.hlo.exact_text import ExactText, Instruction, NotWellFormed
from fastindex.hlo.rows import Place, ShapeUse
from fastindex.hlo.shape_table import ShapeTable

_CONSTRAINTS = re.compile(r"operand_layout_constraints=\{((?:[^{}]|\{[^{}]*\})*)\}")
_ARRAY = re.compile(r"[a-z]\w*\[[^\]]*\](?:\{[^{}]*\})?")
_READER = MetadataReader([])


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
