"""A table of copies: its rows, why each moves data, their sums, and sentences about the layouts before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from fastindex.core.layout import Layout
from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError
from fastindex.hlo.presentation import Problem, Record, json_of
from fastindex.hlo.shape_table import ShapeTable, array_of
from fastindex.show.spelling import listed
from fastindex.xla.bitcasts import reshape_is_bitcast, transpose_is_bitcast

CopyKind = Literal["layout", "reshape", "transpose", "element type", "memory space", "same layout"]


def copy_kind(opcode: str, source: Shape, result: Shape, permutation: tuple[int, ...] | None = None) -> CopyKind | None:
    """Return why a copy, reshape or transpose moves data; None if no data moves, or if the shapes are not arrays.

    Parameters
    ----------
    opcode : str
        "copy", "copy-start", "reshape" or "transpose".
    source, result : Shape
    permutation : tuple of int, optional
        For a transpose: dimension i of the result is dimension ``permutation[i]`` of the source.

    Examples
    --------
    >>> a, b = Shape.parse("f32[16,128]{1,0:T(8,128)}"), Shape.parse("f32[16,128]{0,1:T(8,128)}")
    >>> copy_kind("copy", a, b), copy_kind("copy", a, a), copy_kind("transpose", a, b, (0, 1))
    ('layout', 'same layout', 'transpose')
    >>> copy_kind("reshape", a, Shape.parse("f32[2048]{0:T(1024)}"))
    """
    before, after = array_of(source), array_of(result)
    if before is None or after is None:
        return None
    if before.element_type != after.element_type:
        return "element type"
    try:
        stays = _keeps_slots(opcode, before, after, permutation)
    except FastIndexError:
        return None
    moves = before.layout.memory_space != after.layout.memory_space
    if opcode in ("reshape", "transpose"):
        if not stays:
            return "reshape" if opcode == "reshape" else "transpose"
        return "memory space" if moves else None
    if not stays or _written_order(before) != _written_order(after):
        return "layout"
    return "memory space" if moves else "same layout"


class Kinds:
    """Cached `copy_kind` by the numbers of shapes in a table; modules share many shapes.

    Attributes
    ----------
    table : ShapeTable
    """

    def __init__(self, table: ShapeTable) -> None:
        self.table = table
        self._known: dict[tuple[str, int, int, object], CopyKind | None] = {}

    def kind(self, opcode: str, before: int, after: int, permutation: object = None) -> CopyKind | None:
        """Return the `copy_kind` of two arrays by their numbers; None if a size is unknown."""
        key = opcode, before, after, permutation
        if key not in self._known:
            table = self.table
            known = table.nbytes[before] >= 0 and table.nbytes[after] >= 0
            order = permutation if isinstance(permutation, tuple) else None
            shapes = table.shapes[before], table.shapes[after]
            self._known[key] = copy_kind(opcode, *shapes, order) if known else None
        return self._known[key]


def _keeps_slots(opcode: str, before: Shape, after: Shape, permutation: tuple[int, ...] | None) -> bool:
    if opcode == "transpose" and permutation is not None:
        return transpose_is_bitcast(before, after, permutation)
    return reshape_is_bitcast(before, after)


def _written_order(shape: Shape) -> tuple[object, ...]:
    """Return the dimension order and the tiles as written, without dimensions of size 1, and the element width."""
    layout = shape.layout
    order = tuple(d for d in layout.minor_to_major if shape.dimensions[d] != 1)
    return order, layout.tiles, shape.element_bits


@dataclass(frozen=True, slots=True)
class CopyRow(Record):
    """One instruction that moves data.

    Attributes
    ----------
    instruction, computation, opcode : str
        The computation's name is followed by " (host)" if the host of a TPU runs it.
    kind : str
        "layout": a copy to another dimension order, other tiles or another element width. "reshape", "transpose": one
        that moves elements; if none move, XLA prints ``bitcast`` instead. "element type": a copy that converts the
        elements, and possibly changes the layout. "memory space": a move to another memory space, in the same layout.
        "same layout": a copy in the same layout and memory space, for a loop carry, a branch or a donated buffer, or a
        fusion that only copies.
    source, result : Shape
        Shapes before and after.
    nbytes_read, nbytes_written : int
        Bytes, padding included. Inside a fusion: those of the fusion operands that it reads from and of the fusion
        results that it contributes to, because values inside a fusion have no buffers.
    trips : int or None
        Number of executions; None if it runs once per trip of a loop whose trip count is unknown.
    estimated_cycles : int or None
        XLA's estimate; None if there is none, or only a placeholder.
    measured_nanoseconds : int or None
        Profiled time of all trips in one run of the program, averaged over the runs. For an asynchronous copy on a TPU:
        from start to done. For a copy that is all its fusion does: the time of the fusion.
    fusion : str
        Name of the fusion that contains it, or "".
    is_alone : bool
        Whether its bytes move for this copy only, so that the sums include them: it is in no fusion, or in a fusion
        that does nothing else. Of consecutive copies in such a fusion, true for the first only.
    origin, wanted_by : str
        In words: where the operand's layout comes from, and which consumers need the other layout.
    argument : int or None
        Number of the program argument that it copies, if any.
    argument_path : str
        The name of that argument, such as ``params['q']``.
    chain : tuple of str
        Instructions between its operand and the origin of the layout, nearest to the operand first.
    is_invariant : bool
        Whether it copies the same data in every trip of the innermost loop around it.
    at_loop : bool
        Whether it runs in a loop, or copies a value carried by one.
    op_name, source_file, source_line : str, str, int
        Source location: from its own metadata, or else from those of related instructions (its fusion, a consumer, the
        origin).
    step, steps : int
        Schedule step at which it first runs, and the number of steps in the schedule.
    line : int
        Line number in the HLO text.
    module : str
        The label of the module.
    """

    instruction: str
    computation: str
    opcode: str
    kind: CopyKind
    source: Shape
    result: Shape
    nbytes_read: int
    nbytes_written: int
    trips: int | None = 1
    estimated_cycles: int | None = None
    measured_nanoseconds: int | None = None
    fusion: str = ""
    is_alone: bool = True
    op_name: str = ""
    source_file: str = ""
    source_line: int = 0
    origin: str = ""
    wanted_by: str = ""
    argument: int | None = None
    argument_path: str = ""
    chain: tuple[str, ...] = ()
    is_invariant: bool = False
    at_loop: bool = False
    step: int = 0
    steps: int = 0
    line: int = 0
    module: str = ""

    _optional = ("op_name", "source_file", "source_line", "argument_path", "line", "module")

    @property
    def moved_nbytes(self) -> int:
        """Bytes read and written in all trips; in one trip if the trip count is unknown."""
        return (self.nbytes_read + self.nbytes_written) * (1 if self.trips is None else self.trips)

    @property
    def is_avoidable(self) -> bool:
        """Whether another layout could avoid the copy: its bytes move for it only, and the layout changes."""
        return self.is_alone and self.kind not in ("same layout", "memory space")

    @property
    def where(self) -> str:
        """The instruction and its computation, and the fusion that it is part of."""
        return f"{self.instruction} in {self.computation}" + (f", part of {self.fusion}" if self.fusion else "")

    @property
    def source_text(self) -> str:
        """The file and the line, or ""."""
        return f"{self.source_file}:{self.source_line}" if self.source_file else ""

    @property
    def argument_text(self) -> str:
        """The argument and its name, or ""."""
        if self.argument is None:
            return ""
        return f"argument {self.argument}" + (f", {self.argument_path}" if self.argument_path else "")

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        found = Record.to_json(self)
        del found["steps"]
        found["in_fusion"] = found.pop("fusion") or None
        return found


@dataclass(frozen=True, slots=True)
class CopySum(Record):
    """Sum over several copies.

    Attributes
    ----------
    label : str
        The property that the copies share.
    count : int
        Number of instructions outside fusions, or in a fusion that does nothing else.
    nbytes_read, nbytes_written : int
        Bytes of these, in all trips; in one trip if the trip count is unknown.
    fused_count : int
        Number of instructions inside other fusions. The sums exclude them: the fusion would move most of these bytes
        anyway.
    unknown_trips_count : int
        Number of instructions with an unknown trip count.
    measured_nanoseconds : int or None
        Profiled time of those of `count` that were measured, in one run of the program; None if none was.
    """

    label: str
    count: int
    nbytes_read: int
    nbytes_written: int
    fused_count: int
    unknown_trips_count: int
    measured_nanoseconds: int | None = None

    @property
    def moved_nbytes(self) -> int:
        """Bytes read and written."""
        return self.nbytes_read + self.nbytes_written


def sum_of(label: str, rows: Iterable[CopyRow]) -> CopySum:
    """Sum rows."""
    rows = list(rows)
    alone = [row for row in rows if row.is_alone]
    measured = [row.measured_nanoseconds for row in alone if row.measured_nanoseconds is not None]
    return CopySum(
        label,
        len(alone),
        sum(row.nbytes_read * (1 if row.trips is None else row.trips) for row in alone),
        sum(row.nbytes_written * (1 if row.trips is None else row.trips) for row in alone),
        len(rows) - len(alone),
        sum(row.trips is None for row in rows),
        sum(measured) if measured else None,
    )


def sums_by(rows: Iterable[CopyRow], label_of: Callable[[CopyRow], str]) -> tuple[CopySum, ...]:
    """Sum rows by label, largest sum first; rows without a label are left out."""
    grouped: dict[str, list[CopyRow]] = {}
    for row in rows:
        label = label_of(row)
        if label:
            grouped.setdefault(label, []).append(row)
    sums = [sum_of(label, group) for label, group in grouped.items()]
    return tuple(sorted(sums, key=lambda item: (-item.moved_nbytes, -item.count, item.label)))


@dataclass(frozen=True, slots=True)
class CopyTotals(Record):
    """The sums over a table of copies.

    Attributes
    ----------
    all : CopySum
    avoidable : CopySum
        Sum over the rows that another layout could avoid.
    by_kind, by_line, by_argument : tuple of CopySum
        Largest sum first; by kind, by source line, and by copied argument.
    """

    all: CopySum
    avoidable: CopySum
    by_kind: tuple[CopySum, ...]
    by_line: tuple[CopySum, ...]
    by_argument: tuple[CopySum, ...]


def totals_of(rows: Iterable[CopyRow]) -> CopyTotals:
    """Compute every sum over the rows."""
    rows = tuple(rows)
    return CopyTotals(
        sum_of("all", rows),
        sum_of("avoidable", (row for row in rows if row.is_avoidable)),
        sums_by(rows, lambda row: row.kind),
        sums_by(rows, lambda row: row.source_text),
        sums_by(rows, lambda row: row.argument_text),
    )


@dataclass(frozen=True)
class CopyTable:
    """The rows of a table of copies, and their sums.

    Attributes
    ----------
    copies : tuple of CopyRow
        Most bytes first.
    moves : tuple of CopyRow
        Plain moves between memory spaces, unrelated to layouts.
    modules : tuple of str
        The labels of the modules.
    problems : tuple of Problem
        Lines and files that could not be read; the table covers the others.
    notes : tuple of str
        Remarks for the reader.
    """

    copies: tuple[CopyRow, ...]
    moves: tuple[CopyRow, ...] = ()
    modules: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def totals(self) -> CopyTotals:
        """Sums of `copies`: in total, by kind, by source line and by argument."""
        return totals_of(self.copies)

    @property
    def avoidable(self) -> tuple[CopyRow, ...]:
        """Those of `copies` that another layout could avoid; `fastindex.hlo.try_layouts` counts these."""
        return tuple(row for row in self.copies if row.is_avoidable)

    def rows(self, all_moves: bool = False, top: int | None = None) -> tuple[CopyRow, ...]:
        """Return the first `top` rows, most bytes first; with `all_moves`, `moves` are included."""
        if not all_moves:
            return self.copies[:top]
        return tuple(sorted((*self.copies, *self.moves), key=most_bytes_first))[:top]

    def to_json(self, top: int | None = None, all_moves: bool = False) -> dict[str, Any]:
        """Return the table for JSON; the totals cover all of `copies`, whatever `top` is."""
        return {
            "copies": json_of(self.rows(all_moves, top)),
            **{name: json_of(getattr(self, name)) for name in ("totals", "modules", "notes", "problems")},
        }


def most_bytes_first(row: CopyRow) -> tuple[int, int]:
    """Return the sort key of a row."""
    return -row.moved_nbytes, row.step


#: Consumers that are named; the others are counted.
_NAMED = 2


def layout_text(shape: Shape) -> str:
    """Return the layout of an array, without its memory space.

    Examples
    --------
    >>> layout_text(Shape.parse("f32[3,5]{1,0:T(8,128)S(1)}"))
    '{1,0:T(8,128)}'
    """
    return _without_memory(shape.layout)


@lru_cache(maxsize=4096)
def _without_memory(layout: Layout) -> str:
    return str(replace(layout, memory_space=0, split_configs=()))


def origin_text(
    what: str,
    verb: str,
    shape: Shape,
    source: Shape,
    carry: str = "",
    *,
    is_invariant: bool = False,
    is_sliced: bool = False,
    is_changed: bool = False,
) -> str:
    """Describe the producer of the operand of a copy, and its layout.

    Parameters
    ----------
    what, verb : str
        Producer and verb: "argument 3, params['q']" and "is", or "fusion.7" and "writes".
    shape : Shape
        The array of the producer.
    source : Shape
        The operand of the copy: the same array, or the same buffer with other dimensions.
    carry : str
        The loop that carries the array; empty without a loop.
    is_invariant : bool
        Whether the array is loop-invariant.
    is_sliced : bool
        Whether the operand is a slice of the array.
    is_changed : bool
        Whether the loop updates the array, so that the producer only gives its initial value.

    Examples
    --------
    >>> shape = Shape.parse("f32[8,300]{0,1:T(8,128)}")
    >>> origin_text("argument 3, params['q']", "is", shape, shape)
    "argument 3, params['q'], is {0,1:T(8,128)}"
    """
    is_same = shape.dimensions == source.dimensions and layout_text(shape) == layout_text(source)
    there = layout_text(shape) if is_same else f"{shape.element_type}{list(shape.dimensions)}".replace(" ", "")
    if not is_same:
        there += layout_text(shape)
    if carry and (verb == "writes" or is_changed):
        text = f"the carry of {carry}, begun by {what}, is {there}"
    elif carry:
        text = f"{what}, carried by {carry}, {verb} {there}"
    else:
        text = f"{what}{',' if ',' in what else ''} {verb} {there}"
    part = "a slice of " if is_sliced else ""
    return f"{part}{text}" + (", the same in every trip" if is_invariant else "")


def wanted_text(consumers: Sequence[tuple[str, str]], result: Shape) -> str:
    """Name the consumers of the result of a copy, and the layout that they need.

    Parameters
    ----------
    consumers : sequence of (str, str)
        The name of each consumer, and the verb "need" or "be".
    result : Shape

    Examples
    --------
    >>> result = Shape.parse("f32[8,300]{1,0:T(8,128)}")
    >>> wanted_text([("fusion.7", "need"), ("dot.2", "need")], result)
    'fusion.7 and dot.2 need {1,0:T(8,128)}'
    >>> wanted_text([("result 2", "be")], result)
    'result 2 is {1,0:T(8,128)}'
    """
    if not consumers:
        return f"nothing else in the text takes {layout_text(result)}"
    named = [name for name, _ in consumers[:_NAMED]]
    if len(consumers) > _NAMED:
        named.append(f"{len(consumers) - _NAMED} more")
    need = any(verb == "need" for _, verb in consumers)
    singular, plural = ("needs", "need") if need else ("is", "are")
    return f"{listed(named)} {singular if len(named) == 1 else plural} {layout_text(result)}"


def shared_origins_text(origins: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return advice for copies of slices of one result, which no single layout of the result avoids.

    Parameters
    ----------
    origins : sequence of (str, str, str)
        For each copy: its name, the producer of its operand, and its operation in the program.

    Examples
    --------
    >>> split = [("copy.5", "fusion.6", "jit(f)/split"), ("copy.6", "fusion.6", "jit(f)/split")]
    >>> shared_origins_text(split)[0]
    'copy.5 and copy.6 copy parts of what fusion.6 writes (split): if it is a product, give each part its own weights'
    """
    grouped: dict[str, list[str]] = {}
    for name, origin, operation in origins:
        if operation.rpartition("/")[2] in ("split", "slice", "dynamic_slice", "squeeze"):
            grouped.setdefault(f"{origin} writes ({operation.rpartition('/')[2]})", []).append(name)
    return [
        f"{listed(names)} copy parts of what {what}: if it is a product, give each part its own weights"
        for what, names in grouped.items()
        if len(names) > 1
    ]
