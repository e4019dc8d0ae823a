"""Compute the rows and totals that a module adds to a report.

Index tables, through which programs access tuple elements, have one pointer per element; they are in the totals only.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from dataclasses import replace

from fastindex.core.shape import Shape
from fastindex.hlo.attributes import MetadataReader
from fastindex.hlo.computations import Computation
from fastindex.hlo.divisions import division_notes, division_of
from fastindex.hlo.flow.buffers import ModuleBuffers, module_buffers
from fastindex.hlo.flow.fast_memory import SPACES
from fastindex.hlo.flow.joined import Joined
from fastindex.hlo.flow.liveness import UNIT_NBYTES, Liveness, liveness
from fastindex.hlo.flow.walk import DEEPEST
from fastindex.hlo.flow_rules import rule_of
from fastindex.hlo.modules import OMITTED, Module
from fastindex.hlo.presentation import Problem
from fastindex.hlo.read.sources import TextSource
from fastindex.hlo.rows import Places, PlaceTable, ShapeUse
from fastindex.hlo.shape_table import ShapeTable
from fastindex.hlo.totals import Counted, ModuleUse, Peak, totals_of

#: Pointer size and rounding unit of the result's table, in bytes; measured on assignments of libtpu and jaxlib.
_ON_TPU, _ELSEWHERE = (4, 512), (8, 1)
#: Distance between consecutive inner tables on a TPU, in bytes.
INNER_NBYTES = 1 << 14
_DEEPEST = 200


def table_nbytes(module: Module, table: ShapeTable) -> int:
    """Return the bytes of the index table of a module's result; 0 if the result is not a tuple."""
    entry = module.entry
    if entry is None or entry.root < 0:
        return 0
    elements = len(table.entry(list(module.shapes)[entry.shape(entry.root)]).spans)
    pointer, unit = _ON_TPU if module.is_for_tpu else _ELSEWHERE
    return -(-pointer * elements // unit) * unit


def inner_tables_nbytes(module: Module, table: ShapeTable) -> int:
    """Return the bytes of the index tables inside a TPU program, other than that of its result.

    On other devices these are a few pointers that share memory with other buffers.
    """
    count = inner_table_count(module, table) if module.is_for_tpu else 0
    # The tables are evenly spaced, and the last one is short.
    return (count - 1) * INNER_NBYTES + _ON_TPU[1] if count else 0


def inner_table_count(module: Module, table: ShapeTable) -> int:
    """Return the number of index tables inside a TPU module, other than that of its result.

    Each instruction that creates a tuple has a table, plus one per nested tuple. A loop shares one table with its
    initial value and the result of its body.

    Examples
    --------
    >>> from fastindex.hlo.modules import ModuleReader
    >>> from fastindex.hlo.scanner import HloScanner
    >>> found = []
    >>> reader = ModuleReader(found.append)
    >>> scanner = HloScanner(reader)
    >>> scanner.feed(b'''HloModule m
    ... ENTRY e {
    ...   p = f32[8]{0} parameter(0)
    ...   c = (f32[8]{0:S(1)}, f32[8]{0}, u32[]{:S(2)}) copy-start(p)
    ...   d = f32[8]{0:S(1)} copy-done(c)
    ...   ROOT t = (f32[8]{0:S(1)}, f32[8]{0}) tuple(d, p)
    ... }''')
    >>> scanner.close()
    >>> reader.finish()
    >>> inner_table_count(found[0], ShapeTable())
    1
    """
    entry = module.entry
    return _Tables(module, table).count(entry) if entry is not None and entry.root >= 0 else 0


class _Tables:
    """Traces index tables through a module."""

    def __init__(self, module: Module, table: ShapeTable) -> None:
        self._module = module
        entries = [table.entry(text) for text in module.shapes]
        self._tuples = [
            _tuple_count(entry.elements) if text.startswith(b"(") else 0
            for text, entry in zip(module.shapes, entries, strict=True)
        ]
        self._joined = Joined()
        self._inner = 0
        self._walked: set[str] = set()

    def count(self, entry: Computation) -> int:
        """Return the number of tables in the program, without those of its result and its arguments."""
        # Table 0 stands for all tables that are not counted.
        self._joined.add()
        self._join(0, self._run(entry, [], 0))
        roots = self._joined.representatives()
        return self._inner + sum(number == root for number, root in enumerate(roots)) - 1

    def _join(self, first: int, second: int) -> None:
        if first >= 0 and second >= 0:
            self._joined.join(first, second)

    def _run(self, computation: Computation, arguments: Sequence[int], depth: int) -> int:
        """Walk a computation; return the table of its root, or -1 if it has none."""
        self._walked.add(computation.name)
        tops: dict[int, int] = {}
        for place, opcode in enumerate(computation.opcodes):
            tuples = self._tuples[computation.shape(place)]
            callees = computation.details[place].callees
            if not tuples and opcode not in ("while", "conditional", "call"):
                continue
            given = [tops.get(operand, -1) for operand in computation.operands(place)]
            top = self._table(opcode, tuples, computation.details[place].number, given, arguments, callees, depth)
            if tuples:
                tops[place] = top
        return tops.get(computation.root, -1)

    def _table(
        self,
        opcode: str,
        tuples: int,
        number: int,
        given: list[int],
        arguments: Sequence[int],
        callees: Sequence[str],
        depth: int,
    ) -> int:
        """Return the table of an instruction's result."""
        first = given[0] if given else -1
        if opcode == "parameter":
            return arguments[number] if 0 <= number < len(arguments) else 0
        if opcode in ("while", "call", "conditional"):
            return self._called(opcode, tuples, given, callees, depth)
        rule = rule_of(opcode)
        if rule is not None and rule.flow == "operand" and len(given) == 1:
            return first
        if rule is not None and rule.flow in ("element", "part"):
            # A nested tuple is counted at the instruction that creates it.
            return 0
        if opcode != "tuple":
            self._inner += tuples - 1
        return self._joined.add()

    def _called(self, opcode: str, tuples: int, given: list[int], callees: Sequence[str], depth: int) -> int:
        top = given[0] if opcode == "while" and given and given[0] >= 0 else self._joined.add() if tuples else -1
        for place, name in enumerate(callees):
            callee = self._module.computations.get(name)
            if callee is None or not len(callee) or name in self._walked or depth >= _DEEPEST:
                continue
            passed = {"while": [top], "conditional": given[place + 1 : place + 2]}.get(opcode, given)
            root = self._run(callee, passed, depth + 1)
            if tuples and not (opcode == "while" and place == 0):
                self._join(top, root)
        return top


def _tuple_count(elements: Sequence[Shape]) -> int:
    """Return the number of non-empty tuples in a tuple, itself included."""
    return bool(elements) + sum(_tuple_count(each.tuple_shapes) for each in elements if each.is_tuple)


_BEFORE_LAYOUTS = (
    "before layout assignment: there are no layouts yet, so no padding can be seen; dump with "
    "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text' and report DIR, or report(lowered.compile())"
)
_NO_TILES = (
    "no tiled layout here: compiled for CPU or GPU, where arrays are not padded; compile for a TPU to see its padding "
    "(jax.experimental.topologies.get_topology_desc needs no TPU)"
)
_OMITTED = "the shape is omitted, and cannot be inferred from the operands and attributes"
#: A memory space with fewer bytes contains only flags and scalars.
_FLAGS_NBYTES = 1 << 16
_NOT_SCHEDULED = "not scheduled (no is_scheduled=true), so no peak is known"


class _Places:
    """Collects the places of a module."""

    def __init__(self, module: Module) -> None:
        self.table = PlaceTable()
        self._reader = MetadataReader(module.tables, module.metadata)
        self._owners: dict[str, int] = {}

    def add(self, computation: Computation, place: int, role: str = "", at_peak: bool = False) -> int:
        """Add the place of an instruction; return its number."""
        table, number, origin = self.table, len(self.table.role), computation.metadata(place)
        owner = self._owners.get(computation.name)
        if owner is None:
            owner = self._owners[computation.name] = len(table.names)
            table.names.append((computation.name, computation.names()))
        if origin not in table.known_origins:
            table.known_origins[origin] = self._reader.origin_at(origin)
        if computation.details[place].sharding:
            table.shardings[number] = computation.details[place].sharding
        table.owners.append(owner)
        table.positions.append(place)
        table.lines.append(computation.line(place))
        table.origins.append(origin)
        table.role.append(role)
        table.at_peak.append(at_peak)
        return number


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
        lives = _lives(found, table, module.is_for_tpu) if module.is_scheduled and found.leaves else {}
        alive = set[int]().union(*(live.alive for live in lives.values()))
        inner = inner_tables_nbytes(module, table)
        uses = _buffer_rows(module, found, alive, table, label)
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


def _rows(grouped: dict[int, array[int]], places: PlaceTable, table: ShapeTable, label: str) -> list[ShapeUse]:
    return [
        ShapeUse(
            table.shapes[leaf], len(numbers), table.nbytes[leaf], table.logical_nbytes[leaf], label,
            Places(places, numbers),
        )
        for leaf, numbers in grouped.items()
        if table.nbytes[leaf] >= 0
    ]  # fmt: skip


def _buffer_rows(
    module: Module, found: ModuleBuffers, alive: Set[int], table: ShapeTable, label: str
) -> list[ShapeUse]:
    places = _Places(module)
    grouped: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))
    for number, leaf in enumerate(found.leaves):
        place = places.add(found.owners[number], found.places[number], found.roles[number], number in alive)
        grouped[leaf].append(place)
    rows = _rows(grouped, places.table, table, label)
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
    grouped: defaultdict[int, array[int]] = defaultdict(lambda: array("i"))
    texts = list(module.shapes)
    for computation in module.computations.values():
        for place in range(len(computation)):
            entry = table.entry(texts[computation.shape(place)])
            number = places.add(computation, place)
            for leaf in entry.leaves:
                grouped[leaf].append(number)
    return _rows(grouped, places.table, table, label)


def _lives(found: ModuleBuffers, table: ShapeTable, on_tpu: bool) -> dict[int, Liveness]:
    """Compute the liveness in memory space 0, in the fast memory, and in each memory that contains more than flags."""
    sizes: dict[int, int] = {}
    for leaf, count in Counter(found.leaves).items():
        space = table.spaces[leaf]
        sizes[space] = sizes.get(space, 0) + count * table.nbytes[leaf]
    spaces = [space for space in sorted(sizes) if space in SPACES or (space and sizes[space] >= _FLAGS_NBYTES)]
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
    if any(found.roles[number] == "temporary" for number in live.alive):
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
