"""List a program's copies: the instructions that move data because of layouts, with cause and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fastindex.core.integers import counted
from fastindex.hlo.attributes import FACT_READERS
from fastindex.hlo.copies.finding import module_copies
from fastindex.hlo.copies.rows import CopyRow, CopyTable, Kinds, most_bytes_first
from fastindex.hlo.copies.views import copies_text, fragment, page, summary
from fastindex.hlo.modules import Module
from fastindex.hlo.presentation import Printed
from fastindex.hlo.read.opening import Advance, SourceReader
from fastindex.hlo.read.sources import HloSource, TextSource, identified, refuse
from fastindex.hlo.shape_table import ShapeTable

_BEFORE_LAYOUTS = (
    "before layout assignment: there are no layouts yet, so what will be copied cannot be seen; compile the program, "
    "or dump it with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text' and read DIR"
)


@dataclass(frozen=True, repr=False)
class LayoutCopies(Printed, CopyTable):
    """Table of the instructions of one or more HLO modules that move data because of layouts.

    Made by `layout_copies`. See `copies` (most bytes first), `totals` and `problems`.

    Examples
    --------
    >>> import fastindex as fi
    >>> hlo = '''HloModule m, is_scheduled=true
    ... ENTRY e {
    ...   p = f32[1000,3]{0,1} parameter(0)
    ...   ROOT c = f32[1000,3]{1,0} copy(p)
    ... }'''
    >>> table = fi.hlo.layout_copies(hlo)
    >>> table.modules, [row.instruction for row in table.avoidable]
    (('m',), ['c'])
    """

    def summary(self) -> str:
        """Return the totals in a few lines."""
        return summary(self)

    def text(self, top: int | None = 20, width: int = 110, all_moves: bool = False) -> str:
        """Return the summary and the table as plain text.

        Parameters
        ----------
        top : int or None
            Maximum number of rows; None for all.
        width : int
            Line width, in characters.
        all_moves : bool
            Also list plain moves between memory spaces.
        """
        return copies_text(self, top, width, all_moves)

    def html(self, top: int | None = 500, all_moves: bool = False) -> str:
        """Return an offline HTML page: the copies on the program's timeline, by source line and in a table."""
        return page(self, top, all_moves)

    def _repr_html_(self) -> str:
        return fragment(self, top=50)


def layout_copies(source: HloSource, *, show_progress: bool = False) -> LayoutCopies:
    """List every instruction of a compiled program that moves data because of layouts, with its cost and its cause.

    The rows are copies to another layout, and reshapes and transposes that move elements, in every computation that
    runs and inside fusions. Each row names the producer that decides the operand's layout and the consumers of the
    result.

    Parameters
    ----------
    source : str, bytes, path, binary file, iterable of paths, or jax.stages.Compiled
        HLO text as ``--xla_dump_to`` and JAX print it, ``*.hlo.pb``, or a profile (``*.xplane.pb``), whose rows contain
        the measured time. All may be compressed. A path is a file or a folder of dumps; of a folder, the last stage of
        each module is read. JAX compiles a function with ``jax.jit(f).lower(*arguments).compile()``.
    show_progress : bool
        Show a progress bar on stderr if that is a terminal.

    Returns
    -------
    LayoutCopies

    Raises
    ------
    FastIndexError
        No HLO module was found. Broken lines, and unreadable files among others, do not raise; see
        `LayoutCopies.problems`.
    ArgumentTypeError
        The argument is a function that is not compiled, or not a program at all.
    OSError
        A file cannot be read.

    Notes
    -----
    A reshape or transpose is proved to move nothing by comparing the digits of the slots:
    `fastindex.xla.reshape_is_bitcast`, `fastindex.xla.transpose_is_bitcast`. Trip counts come from XLA's
    ``known_trip_count``, or else from the loop's condition.

    Examples
    --------
    >>> import fastindex as fi
    >>> hlo = '''HloModule m, is_scheduled=true
    ... ENTRY e {
    ...   p = f32[1000,3]{0,1:T(4,128)} parameter(0), metadata={op_name="points"}
    ...   c = f32[1000,3]{1,0:T(8,128)} copy(p)
    ...   ROOT n = f32[1000,3]{1,0:T(8,128)} negate(c)
    ... }'''
    >>> (row,) = fi.hlo.layout_copies(hlo).copies
    >>> row.kind, row.nbytes_read, row.nbytes_written
    ('layout', 16384, 512000)
    >>> row.origin, row.wanted_by
    ('argument 0, points, is {0,1:T(4,128)}', 'n needs {1,0:T(8,128)}')
    """
    reader = _Reader()
    reader.read_all(source, show_progress)
    rows = sorted(reader.rows, key=most_bytes_first)
    before, labels = reader.before_layouts, reader.labels
    notes = [f"{label}: {_BEFORE_LAYOUTS}" for label in before]
    if before and len(before) == len(labels):
        notes = [_BEFORE_LAYOUTS]
    return LayoutCopies(
        tuple(row for row in rows if row.kind != "memory space"),
        tuple(row for row in rows if row.kind == "memory space"),
        tuple(labels),
        reader.sorted_problems(),
        (*notes, *(f"{label}: {note}" for label, note in reader.notes)),
    )


class _Reader(SourceReader):
    """Collects the copies of modules.

    Attributes
    ----------
    rows : list of CopyRow
    labels, before_layouts : list of str
        Labels of all modules, and of those that have no layouts yet.
    notes : list of (str, str)
        Labels of modules, and what is said of them.
    """

    _working = ("_source", "_kinds")

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[CopyRow] = []
        self.labels: list[str] = []
        self.before_layouts: list[str] = []
        self.notes: list[tuple[str, str]] = []
        self._kinds = Kinds(ShapeTable())

    def add_all(self, other: _Reader, labels: Mapping[str, str]) -> None:
        """Add what another reader collected; see `SourceReader.add_all`."""
        self.rows += [replace(row, module=labels[row.module]) for row in other.rows]
        self.labels += [labels[label] for label in other.labels]
        self.before_layouts += [labels[label] for label in other.before_layouts]
        self.notes += [(labels[label], note) for label, note in other.notes]

    def read(self, source: TextSource, advance: Advance) -> None:
        """Read the modules of one text; see `SourceReader.read`."""
        kind, whole = identified(source)
        if kind in ("buffer assignment", "memory usage report"):
            refuse(source.name, f"a {kind} has no instructions, so no copies; give the module beside it")
        self.read_modules(whole, advance, FACT_READERS)

    def add_module(self, module: Module) -> None:
        """Add the copies of one module."""
        label = self.label(module.name)
        self.labels.append(label)
        if module.is_before_layouts:
            self.before_layouts.append(label)
        rows = module_copies(module, self._kinds, label, self._source, self.problems)
        self.rows += rows
        profile = self._source.profile
        if profile is not None and any(row.measured_nanoseconds is not None for row in rows):
            how = f"means of {counted(profile.runs, 'run')}" if profile.runs else "means of its instructions' events"
            self.notes.append((label, f"times are measured, {how} in the profile"))
