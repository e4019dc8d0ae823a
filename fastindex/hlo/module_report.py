"""Which buffers of an HLO module are padded, by how much, why, and what would avoid it."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from fastindex.advice.changes import Change, cheapest_change
from fastindex.advice.padding import PaddingStep, describe_step, main_cause
from fastindex.errors import FastIndexError
from fastindex.hlo.report_text import print_report, summary
from fastindex.hlo.scanner import HloScanner, Problem
from fastindex.hlo.sources import HloSource, TextSource, open_sources, scan_source
from fastindex.shapes.layout import Layout
from fastindex.shapes.shape import Shape

if TYPE_CHECKING:
    from rich.console import Console

SortKey = Literal["waste", "bytes", "count", "ratio"]
SORT_KEYS: tuple[SortKey, ...] = ("waste", "bytes", "count", "ratio")
_PLAIN_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9]+(?:,[0-9]+)*|)\](\{[0-9:][^{}]*\})")


@dataclass(frozen=True, slots=True)
class ShapeUse:
    """A distinct shape among the results of the instructions.

    Attributes
    ----------
    shape : Shape
        Not a tuple: tuples are split into their leaves.
    count : int
        How many results have it.
    nbytes, logical_nbytes : int
        Of one buffer, and of its elements alone.
    """

    shape: Shape
    count: int
    nbytes: int
    logical_nbytes: int

    @property
    def padding_ratio(self) -> float:
        """Bytes of the buffer per byte of its elements."""
        return self.shape.padding_ratio

    @property
    def wasted_nbytes(self) -> int:
        """Bytes of padding in all the buffers of this shape."""
        return self.count * (self.nbytes - self.logical_nbytes)

    @property
    def memory_space(self) -> int:
        """The memory space of the layout; 0 for what has no layout."""
        array = self._array
        return array.layout.memory_space if array is not None else 0

    @property
    def cause(self) -> PaddingStep | None:
        """The step of the layout that pads most."""
        array = self._array
        return main_cause(array) if array is not None and self.nbytes > self.logical_nbytes else None

    @property
    def cause_text(self) -> str:
        """The cause in words, or ""."""
        cause, array = self.cause, self._array
        return describe_step(array, cause) if cause is not None and array is not None else ""

    @property
    def change(self) -> Change | None:
        """The cheapest change of the layout that avoids most of the padding."""
        array = self._array
        return cheapest_change(array) if array is not None else None

    @property
    def _array(self) -> Shape | None:
        if self.shape.is_buffer:
            return self.shape.tuple_shapes[0]
        return self.shape if self.shape.is_array else None

    def to_json(self) -> dict[str, Any]:
        """Give the fields as JSON takes them."""
        change = self.change
        return {
            "text": str(self.shape),
            "count": self.count,
            "nbytes": self.nbytes,
            "logical_nbytes": self.logical_nbytes,
            # JSON has no infinity: a buffer that is all padding has no ratio.
            "padding_ratio": self.padding_ratio if self.logical_nbytes or not self.nbytes else None,
            "wasted_nbytes": self.wasted_nbytes,
            "memory_space": self.memory_space,
            "cause": self.cause_text or None,
            "change": change
            and {
                "description": change.description,
                "text": str(change.shape),
                "saved_nbytes": change.saved_nbytes * self.count,
            },
        }


@dataclass(frozen=True)
class MemorySpaceUse:
    """Sums over the buffers of one memory space."""

    memory_space: int
    count: int
    nbytes: int
    logical_nbytes: int


@dataclass(frozen=True)
class Report:
    """The buffers of an HLO module, or of several.

    Attributes
    ----------
    uses : tuple of ShapeUse
        By wasted bytes, the most first.
    instruction_count : int
    problems : tuple of Problem
        Lines that could not be read; the rest was.
    sources : tuple of str
        The files, if there were any.
    """

    uses: tuple[ShapeUse, ...]
    instruction_count: int
    problems: tuple[Problem, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def total_nbytes(self) -> int:
        """Bytes of all the results, padding included."""
        return sum(use.count * use.nbytes for use in self.uses)

    @property
    def total_logical_nbytes(self) -> int:
        """Bytes of the elements of all the results."""
        return sum(use.count * use.logical_nbytes for use in self.uses)

    @property
    def wasted_nbytes(self) -> int:
        """Bytes of padding in all the results."""
        return self.total_nbytes - self.total_logical_nbytes

    @property
    def buffer_count(self) -> int:
        """How many leaves the results have."""
        return sum(use.count for use in self.uses)

    @property
    def memory_spaces(self) -> tuple[MemorySpaceUse, ...]:
        """The sums by memory space."""
        spaces: dict[int, list[ShapeUse]] = {}
        for use in self.uses:
            spaces.setdefault(use.memory_space, []).append(use)
        return tuple(
            MemorySpaceUse(
                space,
                sum(use.count for use in uses),
                sum(use.count * use.nbytes for use in uses),
                sum(use.count * use.logical_nbytes for use in uses),
            )
            for space, uses in sorted(spaces.items())
        )

    def sorted_uses(self, sort: SortKey = "waste", top: int | None = None) -> list[ShapeUse]:
        """Give the shapes in another order, the greatest first, and only the first `top` of them.

        Raises
        ------
        FastIndexError
            No such order.
        """
        keys: dict[str, Callable[[ShapeUse], float]] = {
            "waste": lambda use: use.wasted_nbytes,
            "bytes": lambda use: use.count * use.nbytes,
            "count": lambda use: use.count,
            "ratio": lambda use: use.padding_ratio,
        }
        if sort not in keys:
            raise FastIndexError(f"sort must be one of {', '.join(SORT_KEYS)}, got {sort!r}")
        return sorted(self.uses, key=keys[sort], reverse=True)[:top]

    def to_json(self, sort: SortKey = "waste", top: int | None = None) -> dict[str, Any]:
        """Give the report as JSON takes it; the totals are over all shapes, whatever `top` is."""
        return {
            "shapes": [use.to_json() for use in self.sorted_uses(sort, top)],
            "total_nbytes": self.total_nbytes,
            "total_logical_nbytes": self.total_logical_nbytes,
            "wasted_nbytes": self.wasted_nbytes,
            "instruction_count": self.instruction_count,
            "buffer_count": self.buffer_count,
            "memory_spaces": [
                {
                    "memory_space": space.memory_space,
                    "count": space.count,
                    "nbytes": space.nbytes,
                    "logical_nbytes": space.logical_nbytes,
                }
                for space in self.memory_spaces
            ],
            "problems": [
                {
                    "source": problem.source,
                    "line": problem.line,
                    "message": problem.message,
                    "text": problem.text,
                }
                for problem in self.problems
            ],
            "sources": list(self.sources),
        }

    def summary(self) -> str:
        """Say the sums in a few lines."""
        return summary(self)

    def print(self, console: Console, sort: SortKey = "waste", top: int | None = None) -> None:
        """Print the summary and the table of shapes to a rich console."""
        print_report(self, console, sort, top)

    def text(self, sort: SortKey = "waste", top: int | None = 20, width: int = 110) -> str:
        """Give the summary and the table of shapes as plain text."""
        from rich.console import Console

        console = Console(width=width, color_system=None, file=io.StringIO(), record=True)
        print_report(self, console, sort, top)
        return "\n".join(line.rstrip() for line in console.export_text().splitlines())

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(self.text())}</pre>"


def report(source: HloSource, *, show_progress: bool = False) -> Report:
    """Report the buffers of a whole HLO module: how much of them is padding, why, and what would avoid it.

    The result of every instruction of every computation counts, tuples split into their leaves. That is not
    the memory in use at one time: results share memory, and fused ones may never exist.

    Parameters
    ----------
    source : str, bytes, path, binary file, or iterable of paths
        HLO text as ``compiled.as_text()``, ``--xla_dump_to`` and JAX print it. A path is a file or a folder
        of dumps; of a module dumped at several stages, the one after optimizations is taken.
    show_progress : bool
        Show a progress bar on stderr where that is a terminal.

    Returns
    -------
    Report

    Raises
    ------
    FastIndexError
        No HLO text: binary data, another language, no instruction. Broken lines do not raise; they are in
        `Report.problems`.
    OSError
        A file that cannot be read.

    Examples
    --------
    >>> import fastindex as fi
    >>> hlo = '''HloModule m
    ... ENTRY e {
    ...   p = f32[1000,3]{1,0:T(8,128)} parameter(0)
    ...   ROOT n = f32[1000,3]{1,0:T(8,128)} negate(p)
    ... }'''
    >>> r = fi.report(hlo)
    >>> r.total_nbytes, r.total_logical_nbytes
    (1024000, 24000)
    >>> r.uses[0].change.description
    'swap the two minor dimensions'
    """
    sources = open_sources(source)
    with _progress(sources, show_progress) as advance:
        scanners = [scan_source(item, advance) for item in sources]
    return _summarise(scanners, tuple(item.name for item in sources if item.name))


def _summarise(scanners: Iterable[HloScanner], sources: tuple[str, ...]) -> Report:
    counts: Counter[Shape] = Counter()
    instructions = 0
    problems: list[Problem] = []
    for scanner in scanners:
        problems += scanner.problems
        # Taken apart as it goes: a module may have as many shapes as instructions.
        while scanner.counts:
            text, count = scanner.counts.popitem()
            instructions += count
            shape = _parse(text, count, scanner, problems)
            if shape is None:
                continue
            for leaf in shape.leaves():
                counts[leaf] += count
            short_starts = scanner.async_counts.get(text, 0)
            if short_starts:
                leaves = _wrapped_leaves(shape)
                instructions += short_starts * len(leaves)
                for result in leaves:
                    for leaf in result.leaves():
                        counts[leaf] += short_starts
    uses = []
    # Backwards, so that among equals the first seen comes first.
    for shape, count in reversed(counts.items()):
        with contextlib.suppress(FastIndexError):
            uses.append(ShapeUse(shape, count, shape.nbytes, shape.logical_nbytes))
    uses.sort(key=lambda use: use.wasted_nbytes, reverse=True)
    return Report(tuple(uses), instructions, tuple(sorted(problems, key=lambda p: (p.source, p.line))), sources)


def _parse(text: bytes, count: int, scanner: HloScanner, problems: list[Problem]) -> Shape | None:
    decoded = text.decode("utf-8", "replace")
    shape = None
    try:
        shape = _parse_quickly(decoded) or Shape.parse(decoded)
        # A shape of unknown size, or a tuple with such a leaf, is a problem, but its other leaves count.
        shape.nbytes  # noqa: B018
    except FastIndexError as error:
        rule = str(error).splitlines()[0]
        times = f" ({count} times)" if count > 1 else ""
        cut = decoded if len(decoded) <= 100 else decoded[:100] + "..."
        problems.append(Problem(scanner.first_lines[text], f"{rule}{times}", cut, scanner.source))
    return shape


def _parse_quickly(text: str) -> Shape | None:
    """Read an array whose layout was seen before; a module has few layouts, and shapes then share them."""
    parts = _PLAIN_ARRAY.fullmatch(text)
    if parts is None:
        return None
    try:
        sizes = [int(size) for size in parts.group(2).split(",")] if parts.group(2) else []
        return Shape(parts.group(1), sizes, _layout(parts.group(3)))
    except FastIndexError:
        # The parser knows better what is wrong, and where.
        return None


@lru_cache(maxsize=4096)
def _layout(text: str) -> Layout:
    return Layout.parse(text)


def _wrapped_leaves(shape: Shape) -> list[Shape]:
    """The parameters and the root of the computation that a short asynchronous start stands for."""
    if not shape.is_tuple or len(shape.tuple_shapes) < 2:
        return []
    operands, result = shape.tuple_shapes[:2]
    return [*(operands.tuple_shapes if operands.is_tuple else (operands,)), result]


@contextlib.contextmanager
def _progress(sources: list[TextSource], wanted: bool) -> Iterator[Callable[[int], None]]:
    if not (wanted and sys.stderr.isatty()):
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
