"""Report on HLO modules: their buffers, the padding in them, its causes, and changes that avoid it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fastindex.hlo.assignments import Slot, assigned_memory, read_buffer_assignment, read_memory_usage_report, slot_rows
from fastindex.hlo.log_lines import message_lines
from fastindex.hlo.module_uses import module_uses
from fastindex.hlo.modules import Module
from fastindex.hlo.out_of_memory import MessageReader
from fastindex.hlo.presentation import Printed, Problem
from fastindex.hlo.read.dumps import KnownMemory, memory_beside
from fastindex.hlo.read.opening import Advance, SourceReader
from fastindex.hlo.read.sources import HloSource, TextSource, identified, refuse
from fastindex.hlo.report_views import fragment, page, report_text, summary
from fastindex.hlo.rows import ShapeUse
from fastindex.hlo.shape_table import ShapeTable
from fastindex.hlo.totals import Basis, Counted, ModuleUse, Peak, SortKey, Uses, totals_of

#: libtpu 0.0.52 rounds the sum of temporaries up to a multiple of this number, or of a larger multiple of it.
_ROUNDED_TO = 1 << 12
_NO_MESSAGE = "no HLO instruction and no HloModule in the first 1.0 MiB, and no out-of-memory message"
_UNREAD = "an out-of-memory message, which cannot be read as it is written here"
_SLOTS_NOTE = "slots of memory that values use one after the other; without the module, no padding can be explained"


@dataclass(frozen=True, repr=False)
class Report(Printed, Uses):
    """The buffers of one or more HLO modules, and their memory cost.

    See `uses` (one row per shape and module), `modules` and `problems`.
    """

    def summary(self) -> str:
        """Return the totals in a few lines."""
        return summary(self)

    def text(self, sort: SortKey = "waste", top: int | None = 20, width: int = 110, all_names: bool = False) -> str:
        """Return the summary and the table of shapes as plain text.

        Parameters
        ----------
        sort : {"waste", "bytes", "count", "ratio"}
        top : int or None
            Maximum number of shapes; None for all.
        width : int
            Line width, in characters.
        all_names : bool
            List all instructions of a row, not only the first few.
        """
        return report_text(self, sort, top, width, all_names)

    def html(self, sort: SortKey = "waste", top: int | None = 500) -> str:
        """Return an offline HTML page with the totals, the memory use over the schedule, and a sortable table."""
        return page(self, sort, top)

    def _repr_html_(self) -> str:
        return fragment(self, top=50)


def report(source: HloSource, *, instruction_results: bool = False, show_progress: bool = False) -> Report:
    """Report the buffers of HLO modules: size, padding, its cause and origin, and changes that would avoid it.

    Each buffer counts once. Results inside fusions and reducers do not count, nor do aliases of a buffer (bitcasts,
    tuples, loop carries, in-place updates, donated arguments). For a scheduled module, `Report.peak_nbytes` estimates
    the peak memory use.

    Parameters
    ----------
    source : str, bytes, path, binary file, iterable of paths, or jax.stages.Compiled or Lowered
        HLO text as ``--xla_dump_to`` and JAX print it, a ``*-buffer-assignment.txt``, a ``*-memory-usage-report.txt``,
        or a log with an out-of-memory message; ``*.hlo.pb`` and profiles (``*.xplane.pb``), which require jaxlib
        (``pip install 'fastindex[jax]'``). Each may be compressed with gzip, xz or zstd. A path is a file or a folder
        of dumps; of a folder, the last stage of each module is read. XLA's own numbers are used where available.
    instruction_results : bool
        Count the result of every instruction, with tuples split into their leaves. The sum is not the memory in use.
    show_progress : bool
        Show a progress bar on stderr if that is a terminal.

    Returns
    -------
    Report

    Raises
    ------
    FastIndexError
        No HLO text was found. Broken lines, and unreadable files among others, do not raise; see `Report.problems`.
    ArgumentTypeError
        The argument is a function that is not compiled, or not a program at all.
    OSError
        A file cannot be read.

    Notes
    -----
    The rules and their sources in XLA are listed in ``fastindex/hlo/flow_rules.py``.

    Examples
    --------
    >>> import fastindex as fi
    >>> hlo = '''HloModule m, is_scheduled=true
    ... ENTRY e {
    ...   p = f32[1000,3]{1,0:T(8,128)} parameter(0)
    ...   n = f32[1000,3]{1,0:T(8,128)} negate(p)
    ...   ROOT r = f32[3000]{0:T(1024)} reshape(n)
    ... }'''
    >>> r = fi.hlo.report(hlo)
    >>> r.total_nbytes, r.total_logical_nbytes, r.peak_nbytes
    (1036288, 36000, 1036288)
    >>> r.uses[0].change.description
    'swap the two minor dimensions and use T(4,128)'
    """
    collector = _Collector("instruction results" if instruction_results else "buffers")
    sources = collector.read_all(source, show_progress)
    return Report(
        tuple(sorted(collector.uses, key=ShapeUse.waste_key, reverse=True)),
        sum(module.instruction_count for module in collector.modules),
        collector.sorted_problems(),
        tuple(item.name for item in sources if item.name),
        tuple(collector.modules),
        collector.counted,
    )


class _Collector(SourceReader):
    """Collects the rows and totals of modules, buffer assignments and messages.

    Attributes
    ----------
    counted : str
    modules : list of ModuleUse
    uses : list of ShapeUse
    """

    _working = ("_source", "_tables")

    def __init__(self, counted: Counted) -> None:
        super().__init__(counted)
        self.counted = counted
        self.modules: list[ModuleUse] = []
        self.uses: list[ShapeUse] = []
        self._tables = {on_tpu: ShapeTable(on_tpu) for on_tpu in (False, True)}

    def add_all(self, other: _Collector, labels: Mapping[str, str]) -> None:
        """Add what another reader collected; see `SourceReader.add_all`."""
        self.modules += [replace(module, label=labels[module.label]) for module in other.modules]
        self.uses += [replace(row, module=labels[row.module]) for row in other.uses]

    def read(self, source: TextSource, advance: Advance) -> None:
        """Read one text and add its contents; see `SourceReader.read`."""
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

    def _read_module(self, source: TextSource, advance: Advance) -> None:
        before = len(self.modules)
        self.read_modules(source, advance)
        # XLA's numbers are for one module: ignore them if the text contains several.
        if len(self.modules) == before + 1 and self.counted == "buffers":
            known = source.memory or (memory_beside(Path(source.name)) if source.name else None)
            if known is not None:
                self.modules[-1] = _with_known_memory(self.modules[-1], known)

    def add_module(self, module: Module) -> None:
        """Add the rows and totals of one module."""
        label = self.label(module.name)
        table = self._tables[module.is_for_tpu and self.counted == "buffers"]
        use, rows = module_uses(module, table, self.counted, label, self._source, self.problems)
        self.modules.append(use)
        self.uses += rows

    def _read_log(self, source: TextSource, advance: Advance) -> None:
        reader = MessageReader()
        for line in message_lines(_counting(source.chunks, advance)):
            reader.feed(line)
        results, problems = reader.results(source.name)
        if not results:
            refuse(source.name, _UNREAD if reader.has_text else _NO_MESSAGE)
        self.problems += problems
        for use, rows in results:
            label = self.label(use.label)
            self.modules.append(replace(use, label=label))
            self.uses += [replace(row, module=label) for row in rows]

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
        label = self.label(Path(source.name).name.split("-", maxsplit=1)[0] if source.name else "")
        rows, unread = slot_rows(slots, label)
        self.problems += [Problem(0, "a shape that cannot be read", text, source.name) for text in unread]
        count, nbytes, logical = totals_of(rows)
        use = ModuleUse(
            label,
            source.name,
            source.stage,
            buffer_count=count,
            nbytes=nbytes,
            logical_nbytes=logical,
            peak=Peak(known.nbytes, max(known.nbytes - (nbytes - logical), 0), known.basis, assigned=known.assigned),
            notes=(_SLOTS_NOTE,),
        )
        self.modules.append(use)
        self.uses += rows


def _with_known_memory(use: ModuleUse, known: KnownMemory) -> ModuleUse:
    """Replace the estimated peaks by XLA's numbers; the padding in them remains an estimate."""
    estimate = use.peak or Peak(0, 0)
    if known.is_rounded and use.peak is not None:
        known = _completed(known, estimate)
    peak = replace(_known_peak(estimate, known.nbytes, known.basis), assigned=known.assigned)
    spaces = dict(known.assigned.other_spaces) if known.assigned else {}
    others = tuple(
        (space, _known_peak(other, spaces[space], known.basis) if space in spaces else other)
        for space, other in use.space_peaks
    )
    return replace(use, peak=peak, space_peaks=others)


def _known_peak(estimate: Peak, nbytes: int, basis: Basis) -> Peak:
    return replace(
        estimate,
        nbytes=nbytes,
        logical_nbytes=max(nbytes - estimate.wasted_nbytes, 0),
        basis=basis,
        estimate_nbytes=0 if basis == "estimate" else estimate.nbytes,
    )


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
