"""Read texts of all kinds one after the other, and collect their contents for a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from fastindex.hlo.assignments import Slot, assigned_memory, read_buffer_assignment, read_memory_usage_report, slot_rows
from fastindex.hlo.module_sums import ModuleUse, Peak
from fastindex.hlo.module_uses import module_uses
from fastindex.hlo.modules import Module, ModuleReader
from fastindex.hlo.out_of_memory import MessageReader, message_lines
from fastindex.hlo.problems import Problem
from fastindex.hlo.read.dumps import KnownMemory, memory_beside
from fastindex.hlo.read.sources import TextSource, identified, refuse, scan_source, unread
from fastindex.hlo.rows import ShapeUse
from fastindex.hlo.shape_table import ShapeTable
from fastindex.hlo.uses import Counted, Uses

Advance = Callable[[int], None]
#: libtpu 0.0.52 rounds the sum of temporaries up to a multiple of this or of a multiple of it.
_ROUNDED_TO = 1 << 12
_SLOTS_NOTE = "slots of memory that values use one after the other; without the module, no padding can be explained"


class Collector:
    """Collect modules, buffer assignments and messages as they are read."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self._tables = {on_tpu: ShapeTable(on_tpu) for on_tpu in (False, True)}
        self._modules: list[ModuleUse] = []
        self._uses: list[ShapeUse] = []
        self._problems: list[Problem] = []
        self._labels: dict[str, int] = {}
        self._source = TextSource("", iter(()), None)
        self._errors: list[Exception] = []

    def read(self, source: TextSource, advance: Advance) -> None:
        """Read one text and add its contents.

        Raises
        ------
        FastIndexError
            The text is of a kind that cannot be reported.
        OSError
            The text cannot be read.
        """
        kind, whole = identified(source)
        match kind:
            case "module":
                self._read_module(whole, advance)
            case "log":
                self._read_log(whole, advance)
            case "buffer assignment":
                self._read_assignment(whole, advance)
            case "memory usage report":
                self._read_usage_report(whole, advance)

    def failed(self, source: TextSource, error: Exception) -> None:
        """Record that a source could not be read; the other sources still count."""
        self._errors.append(error)
        self._problems.append(unread(source, error))

    def total(self, sources: tuple[str, ...]) -> Uses:
        """Return the totals over everything read.

        Raises
        ------
        FastIndexError, OSError
            Nothing could be read.
        """
        if not self._modules and self._errors:
            raise self._errors[0]
        return Uses(
            tuple(sorted(self._uses, key=ShapeUse.waste_key, reverse=True)),
            sum(module.instruction_count for module in self._modules),
            tuple(sorted(self._problems, key=lambda problem: (problem.source, problem.line))),
            sources,
            tuple(self._modules),
            self._counted,
        )

    def _read_module(self, source: TextSource, advance: Advance) -> None:
        self._source = source
        before = len(self._modules)
        reader = ModuleReader(self._add_module)
        scanner = scan_source(source, reader, advance)
        reader.finish()
        self._problems += scanner.problems
        # XLA's numbers are for one module: ignore them if the text contains several.
        if len(self._modules) == before + 1 and self._counted == "buffers":
            known = source.memory or (memory_beside(Path(source.name)) if source.name else None)
            if known is not None:
                self._modules[-1] = _with_known_memory(self._modules[-1], known)

    def _add_module(self, module: Module) -> None:
        label = self._label(module.name)
        table = self._tables[module.is_for_tpu and self._counted == "buffers"]
        use, rows = module_uses(module, table, self._counted, label, self._source, self._problems)
        self._modules.append(use)
        self._uses += rows

    def _read_log(self, source: TextSource, advance: Advance) -> None:
        reader = MessageReader()
        for line in message_lines(_counting(source.chunks, advance)):
            reader.feed(line)
        results, problems = reader.results(source.name)
        if not results:
            refuse(
                source.name, "no HLO instruction and no HloModule in the first 1.0 MiB, and no out-of-memory message"
            )
        self._problems += problems
        for use, rows in results:
            label = self._label(use.label)
            self._modules.append(replace(use, label=label))
            self._uses += [replace(row, module=label) for row in rows]

    def _read_assignment(self, source: TextSource, advance: Advance) -> None:
        allocations = read_buffer_assignment(_text(source, advance))
        assigned = assigned_memory(allocations)
        slots = [
            (number, slot)
            for number, allocation in enumerate(allocations)
            if allocation.color == 0 and "thread-local" not in allocation.kinds
            for slot in allocation.slots
        ]
        self._add_slots(source, slots, KnownMemory(assigned.total, "buffer assignment", assigned))

    def _read_usage_report(self, source: TextSource, advance: Advance) -> None:
        total, slots = read_memory_usage_report(_text(source, advance))
        numbered = list(enumerate(slots))
        self._add_slots(source, numbered, KnownMemory(total, "memory usage report"))

    def _add_slots(self, source: TextSource, slots: list[tuple[int, Slot]], known: KnownMemory) -> None:
        label = self._label(Path(source.name).name.split("-", maxsplit=1)[0] if source.name else "")
        rows, unread = slot_rows(slots, label)
        self._problems += [Problem(0, "a shape that cannot be read", text, source.name) for text in unread]
        nbytes = sum(row.count * row.nbytes for row in rows)
        logical = sum(row.count * row.logical_nbytes for row in rows)
        use = ModuleUse(
            label,
            source.name,
            source.stage,
            buffer_count=sum(row.count for row in rows),
            nbytes=nbytes,
            logical_nbytes=logical,
            peak=Peak(known.nbytes, max(known.nbytes - (nbytes - logical), 0), known.basis, assigned=known.assigned),
            notes=(_SLOTS_NOTE,),
        )
        self._modules.append(use)
        self._uses += rows

    def _label(self, name: str) -> str:
        number = self._labels[name] = self._labels.get(name, 0) + 1
        return name if number == 1 else f"{name} ({number})"


def _with_known_memory(use: ModuleUse, known: KnownMemory) -> ModuleUse:
    """Replace the estimated peak by XLA's number; the padding in it remains an estimate."""
    estimate = use.peak or Peak(0, 0)
    if known.basis == "memory analysis" and use.peak is not None:
        known = _completed(known, estimate)
    logical = max(known.nbytes - estimate.wasted_nbytes, 0)
    peak = replace(
        estimate,
        nbytes=known.nbytes,
        logical_nbytes=logical,
        basis=known.basis,
        assigned=known.assigned,
        estimate_nbytes=0 if known.basis == "estimate" else estimate.nbytes,
    )
    return replace(use, peak=peak)


def _completed(known: KnownMemory, estimate: Peak) -> KnownMemory:
    """Correct the numbers of ``memory_analysis()`` for a TPU; return the estimate if they include other memory spaces.

    libtpu 0.0.52 rounds the temporaries, and reports 0 if they are only tables and scalars. libtpu 0.0.32 does not
    round, and counts more than memory space 0.
    """
    assigned = known.assigned
    if assigned is None:
        return known
    temporaries = assigned.temporaries or estimate.temporary_nbytes
    if assigned.temporaries % _ROUNDED_TO and estimate.nbytes < known.nbytes:
        return KnownMemory(estimate.nbytes, "estimate")
    total = assigned.total + temporaries - assigned.temporaries
    return KnownMemory(total, known.basis, replace(assigned, temporaries=temporaries, total=total))


def _counting(chunks: Iterator[bytes], advance: Advance) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        advance(len(chunk))


def _text(source: TextSource, advance: Advance) -> str:
    return b"".join(_counting(source.chunks, advance)).decode("utf-8", "replace")
