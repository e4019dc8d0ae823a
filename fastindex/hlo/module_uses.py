"""Compute the rows and totals that a module adds to a report."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from fastindex.core.shape import Shape
from fastindex.hlo.buffers import ModuleBuffers, module_buffers
from fastindex.hlo.computations import Computation
from fastindex.hlo.divisions import division_notes, division_of
from fastindex.hlo.liveness import UNIT_NBYTES, Liveness, liveness
from fastindex.hlo.metadata import MetadataReader
from fastindex.hlo.modules import OMITTED, Module
from fastindex.hlo.presentation import Problem
from fastindex.hlo.read.sources import TextSource
from fastindex.hlo.rows import Place, ShapeUse
from fastindex.hlo.shape_table import ShapeTable
from fastindex.hlo.totals import Counted, ModuleUse, Peak, totals_of
from fastindex.hlo.tuple_tables import inner_tables_nbytes, table_nbytes
from fastindex.hlo.walk import DEEPEST

_BEFORE_LAYOUTS = (
    "before layout assignment: there are no layouts yet, so no padding can be seen; dump with "
    "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text' and report DIR, or report(lowered.compile())"
)
_NO_TILES = (
    "no tiled layout here: compiled for CPU or GPU, where arrays are not padded; compile for a TPU to see its padding "
    "(jax.experimental.topologies.get_topology_desc needs no TPU)"
)
_OMITTED = "the shape is omitted, and does not follow from the operands and attributes"
#: A memory space with fewer bytes contains only flags and scalars.
_FLAGS_NBYTES = 1 << 16
_NOT_SCHEDULED = "not scheduled (no is_scheduled=true), so no peak is known"


class _Places:
    """Factory for the `Place` records of a module, with caches for names and origins."""

    def __init__(self, module: Module) -> None:
        self._reader = MetadataReader(module.tables, module.metadata)
        self._names = cache(Computation.names)

    def make(self, computation: Computation, place: int, role: str = "", at_peak: bool = False) -> Place:
        """Return the `Place` of an instruction."""
        origin = self._reader.origin_at(computation.metadata(place))
        return Place(
            self._names(computation)[place], computation.name, role, origin.op_name, origin.source_file,
            origin.source_line, computation.line(place), at_peak, computation.details[place].sharding,
        )  # fmt: skip


def module_uses(
    module: Module, table: ShapeTable, counted: Counted, label: str, source: TextSource, problems: list[Problem]
) -> tuple[ModuleUse, list[ShapeUse]]:
    """Return the totals and rows for the buffers of a module, or for the results of all its instructions."""
    _add_problems(module, table, source.name, problems)
    peaks: dict[int, Peak] = {}
    tables = 0
    if counted == "buffers":
        found = module_buffers(module, table)
        if found.too_deep:
            message = f"computations call each other more than {DEEPEST} deep; their buffers are not counted"
            problems.append(Problem(0, message, module.name, source.name))
        lives = _lives(found, table, module.is_for_tpu) if module.is_scheduled and found.buffers else {}
        alive = frozenset(number for live in lives.values() for number in live.alive)
        uses = _buffer_rows(module, found, alive, table, label)
        inner = inner_tables_nbytes(module, table)
        tables = table_nbytes(module, table) + inner
        peaks = {
            space: _peak(found, live, 0 if space else tables - inner, 0 if space else inner)
            for space, live in lives.items()
        }
    else:
        uses = _result_rows(module, table, label)
    uses.sort(key=ShapeUse.waste_key, reverse=True)
    count, nbytes, logical_nbytes = totals_of(uses)
    division = division_of(module, f"{source.name} {source.stage}")
    use = ModuleUse(
        label=label,
        source=source.name,
        stage=source.stage,
        instruction_count=module.instruction_count,
        buffer_count=count,
        nbytes=nbytes + tables,
        logical_nbytes=logical_nbytes + tables,
        table_nbytes=tables,
        partition_count=module.partition_count,
        peak=peaks.pop(0, None),
        notes=(*source.notes, *_notes(module, uses, counted), *(division_notes(division) if division else ())),
        division=division,
        space_peaks=tuple(peaks.items()),
    )
    return use, uses


def _notes(module: Module, uses: list[ShapeUse], counted: Counted) -> list[str]:
    notes = []
    if not any(use.shape.is_array and use.shape.layout.tiles for use in uses):
        if module.is_before_layouts:
            notes.append(_BEFORE_LAYOUTS)
        elif any(use.shape.is_array and use.shape.rank for use in uses):
            notes.append(_NO_TILES)
    elif not module.is_scheduled and counted == "buffers":
        notes.append(_NOT_SCHEDULED)
    return notes


def _add_problems(module: Module, table: ShapeTable, source: str, problems: list[Problem]) -> None:
    """Report the shapes that have no size."""
    for (text, number), count in zip(module.shapes.items(), module.counts, strict=True):
        entry = table.entry(text)
        if entry.problem:
            message = _OMITTED if text.startswith(OMITTED) else entry.problem
            times = f" ({count} times)" if count > 1 else ""
            decoded = text.decode("utf-8", "replace")
            cut = decoded if len(decoded) <= 100 else decoded[:100] + "..."
            problems.append(Problem(module.first_lines[number], f"{message}{times}", cut, source))


def _rows(grouped: dict[int, list[Place]], table: ShapeTable, label: str) -> list[ShapeUse]:
    return [
        ShapeUse(table.shapes[leaf], len(places), table.nbytes[leaf], table.logical_nbytes[leaf], label, tuple(places))
        for leaf, places in grouped.items()
        if table.nbytes[leaf] >= 0
    ]


def _buffer_rows(
    module: Module, found: ModuleBuffers, alive: frozenset[int], table: ShapeTable, label: str
) -> list[ShapeUse]:
    places = _Places(module)
    grouped: dict[int, list[Place]] = {}
    for number, buffer in enumerate(found.buffers):
        place = places.make(buffer.computation, buffer.place, buffer.role, number in alive)
        grouped.setdefault(buffer.leaf, []).append(place)
    rows = _rows(grouped, table, label)
    readers = _readers(module, table)
    return [replace(row, readers=readers[row.shape]) if row.shape in readers else row for row in rows]


def _readers(module: Module, table: ShapeTable) -> dict[Shape, tuple[tuple[str, Shape], ...]]:
    """Return the copies to other layouts, by the shape that they read."""
    found: dict[Shape, dict[str, Shape]] = {}
    texts = list(module.shapes)
    for computation in module.computations.values():
        if "copy" not in computation.opcodes:
            continue
        names = computation.names()
        for place, opcode in enumerate(computation.opcodes):
            operands = computation.operands(place)
            if opcode != "copy" or not len(operands) or operands[0] < 0:
                continue
            source = table.entry(texts[computation.shape(operands[0])]).leaves
            target = table.entry(texts[computation.shape(place)]).leaves
            if len(source) == len(target) == 1 and source != target:
                found.setdefault(table.shapes[source[0]], {})[names[place]] = table.shapes[target[0]]
    return {shape: tuple(copies.items()) for shape, copies in found.items()}


def _result_rows(module: Module, table: ShapeTable, label: str) -> list[ShapeUse]:
    places = _Places(module)
    grouped: dict[int, list[Place]] = {}
    texts = list(module.shapes)
    for computation in module.computations.values():
        for place in range(len(computation)):
            entry = table.entry(texts[computation.shape(place)])
            made = places.make(computation, place)
            for leaf in entry.leaves:
                grouped.setdefault(leaf, []).append(made)
    return _rows(grouped, table, label)


def _lives(found: ModuleBuffers, table: ShapeTable, on_tpu: bool) -> dict[int, Liveness]:
    """Compute the liveness in memory space 0, and in every other memory space that contains more than flags."""
    sizes: dict[int, int] = {}
    for buffer in found.buffers:
        space = table.spaces[buffer.leaf]
        sizes[space] = sizes.get(space, 0) + table.nbytes[buffer.leaf]
    spaces = [space for space, nbytes in sorted(sizes.items()) if space and nbytes >= _FLAGS_NBYTES]
    return {space: liveness(found, table, space, on_tpu) for space in (0, *spaces)}


def _peak(found: ModuleBuffers, live: Liveness, result_table: int, inner_tables: int) -> Peak:
    """Return the peak, including index tables and heap gaps."""
    more = result_table + inner_tables
    instruction, name = "", ""
    step, nbytes, logical_nbytes = live.peak
    gaps = live.gaps
    if inner_tables:
        # Inner tables follow the buffers at the next multiple of the heap's unit.
        gaps += (live.held - nbytes - gaps) % UNIT_NBYTES
    # If only arguments, outputs and constants are live, no step is distinguished.
    if any(found.buffers[number].role == "temporary" for number in live.alive):
        instruction, name = _at_step(found, step)
    return Peak(
        nbytes + more + gaps,
        logical_nbytes + more + gaps,
        instruction=instruction,
        computation=name,
        step=step,
        steps=live.steps,
        timeline=tuple((at, total + more, elements + more) for at, total, elements in live.timeline),
        temporary_nbytes=nbytes + gaps - live.held + inner_tables,
    )


def _at_step(found: ModuleBuffers, step: int) -> tuple[str, str]:
    """Return the names of the instruction that runs at a step, and of its computation."""
    spans = [(end - begin, computation, begin) for computation, begin, end in found.schedule if begin <= step < end]
    if not spans:
        return "", ""
    length, computation, begin = min(spans, key=lambda span: span[0])
    inner = sorted((b, e) for _, b, e in found.schedule if begin <= b and e - b < length)
    # Skip the steps of called computations, which interrupt those of the caller.
    place, last = 0, begin
    for b, e in inner:
        if b < last or b >= step:
            continue
        place += b - last
        last = e
    place += step - last
    names = computation.names()
    return (names[place], computation.name) if 0 <= place < len(names) else ("", computation.name)
