"""Find the buffers of a module: which results need memory, and their live ranges.

Values that share memory form one buffer. The caller owns it if one of them is an argument or an output.

Sources: ``xla/hlo/analysis/hlo_alias_analysis.cc``, ``xla/service/heap_simulator/heap_simulator.cc``.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Literal

from fastindex.hlo.computations import Computation
from fastindex.hlo.flow.fast_memory import SPACES, FastUse, Program, ValueBuffer, fast_uses
from fastindex.hlo.flow.walk import TooDeep, Walk
from fastindex.hlo.modules import Module
from fastindex.hlo.shape_table import ShapeTable

Role = Literal["argument", "output", "constant", "temporary"]
Interval = tuple[int, int]


@dataclass(slots=True)
class Buffer:
    """The memory of one value, or of several values that share it.

    Attributes
    ----------
    leaf : int
        Number in the `ShapeTable` of its shape: that of its largest value.
    computation, place : Computation, int
        The instruction that defines its first value.
    role : {"argument", "output", "constant", "temporary"}
        Its owner or purpose. An argument may also be an output: ``input_output_alias``.
    start, end : int
        Live range of its first value, in schedule steps, both ends included.
    is_output : bool
    pieces : list of (int, int) or None
        If several values share it: the union of their live ranges, as disjoint intervals.
    heirs : tuple of int
        Positions in the list of the caller's buffers whose next value may overwrite its last value in place.
    slices : tuple of (int, int, int)
        Memory used slice by slice before the whole buffer is needed: first step, last step, and leaf of each slice.
    fast : FastUse or None
        The use of its value, if the compiler places it in the fast memory of a core, or rearranges that for it.
    """

    leaf: int
    computation: Computation
    place: int
    role: Role
    start: int
    end: int
    is_output: bool = False
    pieces: list[Interval] | None = None
    heirs: tuple[int, ...] = ()
    slices: tuple[tuple[int, int, int], ...] = ()
    fast: FastUse | None = None

    @property
    def intervals(self) -> list[Interval]:
        """Live ranges of its values, as disjoint intervals of schedule steps, both ends included."""
        return self.pieces if self.pieces is not None else [(self.start, self.end)]


@dataclass(slots=True)
class ModuleBuffers:
    """The buffers of a module.

    Attributes
    ----------
    buffers : list of Buffer
        In order of definition.
    steps : int
        Number of instructions in the schedule, counting the body of a loop once.
    schedule : list of (Computation, int, int)
        For each computation, its first step and the one after its last.
    too_deep : bool
        Whether computations are nested too deeply; then `buffers` is empty.
    """

    buffers: list[Buffer]
    steps: int
    schedule: list[tuple[Computation, int, int]]
    too_deep: bool = False


def module_buffers(module: Module, table: ShapeTable) -> ModuleBuffers:
    """Find the buffers of a module and their live ranges."""
    walk = Walk(module, table)
    entry = module.entry
    if entry is None:
        return ModuleBuffers([], 0, [])
    try:
        results = walk.run(entry, None)
    except TooDeep:
        return ModuleBuffers([], 0, [], too_deep=True)
    outputs = results[entry.root] if entry.root >= 0 else ()
    for value in walk.across_programs:
        walk.start[value], walk.end[value] = 0, walk.clock
    parameters = {
        entry.details[place].number: (place, results[place])
        for place, opcode in enumerate(entry.opcodes)
        if opcode == "parameter"
    }
    for output, number, path in module.input_output_aliases():
        if number in parameters and entry.root >= 0:
            place, values = parameters[number]
            begin, end = walk.entries[entry.shape(entry.root)].at(output)
            first, last = walk.entries[entry.shape(place)].at(path)
            walk.join(values[first:last], outputs[begin:end])
    own = array("i", map(walk.find, range(len(walk.leaf)))) if walk.nbytes_read else array("i")
    # It takes more memory than what is found in it.
    del results
    for pair in walk.listed:
        walk.join(*pair)
    arguments = {walk.find(value) for _, values in parameters.values() for value in values}
    buffers = _collect(walk, arguments, {walk.find(value) for value in outputs}, own)
    return ModuleBuffers(buffers, walk.clock, walk.schedule)


def _collect(walk: Walk, arguments: set[int], outputs: set[int], own: Sequence[int]) -> list[Buffer]:
    roots = array("i", map(walk.find, range(len(walk.leaf))))
    groups: dict[int, list[int]] = {}
    for value, root in enumerate(roots):
        # Most values do not share their buffer: keep no list for these.
        if value != root:
            groups.setdefault(root, [root]).append(value)
    ends = _ends_after_reuse(walk, groups, arguments, outputs)
    nbytes = walk.table.nbytes
    buffers: list[Buffer] = []
    #: The number of the buffer of each value that represents one.
    numbers = array("i", [-1]) * len(roots)
    for root, found in enumerate(roots):
        if found != root:
            continue
        leaf, values = walk.leaf[root], groups.get(root)
        if values:
            leaf = max((walk.leaf[value] for value in values), key=nbytes.__getitem__)
        if nbytes[leaf] < 0:
            continue
        role: Role = "temporary"
        if root in arguments:
            role = "argument"
        elif root in outputs:
            role = "output"
        elif walk.owners[root].opcodes[walk.places[root]] == "constant":
            role = "constant"
        buffer = Buffer(leaf, walk.owners[root], walk.places[root], role, walk.start[root], ends[root], root in outputs)
        if values:
            _set_pieces(buffer, values, walk, ends)
        numbers[root] = len(buffers)
        buffers.append(buffer)
    for value, operand in walk.reuses:
        giver, taker = walk.find(operand), walk.find(value)
        may_inherit = taker in outputs and giver not in groups and ends[operand] == walk.start[value]
        if may_inherit and numbers[giver] >= 0 and numbers[taker] >= 0:
            buffers[numbers[giver]].heirs += (numbers[taker],)
    if own:
        _set_fast_uses(walk, buffers, numbers, own)
    return buffers


def _set_fast_uses(walk: Walk, buffers: list[Buffer], numbers: Sequence[int], own: Sequence[int]) -> None:
    """Set the use of the values in the fast memory of a core.

    Values are joined only as far as they must share memory: `own` has the first one for each.
    """
    read: Counter[int] = Counter()
    for value, nbytes in walk.nbytes_read.items():
        read[own[value]] += nbytes
    moves = [(own[value], own[source]) for value, source in walk.moves]
    used: dict[int, list[int]] = {root: [] for pair in moves for root in pair}
    program = _program_of(walk)
    spaces = walk.table.spaces
    fast = {root for root, number in enumerate(numbers) if number >= 0 and spaces[buffers[number].leaf] in SPACES}
    late = _late(walk, own, program)
    for value, step in zip(walk.used, walk.used_at, strict=True):
        if own[value] in used:
            used[own[value]].append(step)
    values = []
    for root in fast.union(late, *moves):
        number = numbers[walk.find(root)]
        if number >= 0:
            # An asynchronous copy does not count as a writer.
            written = 0 if root in walk.returned else walk.nbytes_written.get(root, 0)
            ranges = buffers[number].intervals
            end = walk.clock if buffers[number].role == "argument" else ranges[-1][1]
            values.append(ValueBuffer(root, ranges, read[root], written, end, used.get(root, ())))
    kept = {own[value] for value in walk.across_programs}
    found = fast_uses(values, moves, program, kept)
    for root in fast:
        buffers[numbers[root]].fast = found[root]
    for root in late:
        number = numbers[walk.find(root)]
        if number >= 0 and root in found:
            buffers[number].fast = found[root]


def _late(walk: Walk, own: Sequence[int], program: Program) -> set[int]:
    """Return the values in the main memory that are used so soon that no copy to fast memory can end before it."""
    table = walk.table

    def kind(value: int) -> tuple[str, str]:
        owner, place = walk.owners[value], walk.places[value]
        return owner.opcodes[place], owner.details[place].kind

    # Other instructions may write to fast memory, too.
    fast = {kind(value) for value, leaf in enumerate(walk.leaf) if table.spaces[leaf] in SPACES}
    found = set()
    for value, step in zip(walk.used, walk.used_at, strict=True):
        leaf = walk.leaf[value]
        first = walk.ready.get(value, walk.start[value])
        if (
            first < step
            and program.instructions[step] == program.instructions[first + 1]
            and table.spaces[leaf] == 0
            and max(table.shapes[leaf].dimensions, default=1) > 1
            and (value in walk.ready or kind(value) not in fast)
        ):
            found.add(own[value])
    return found


def _program_of(walk: Walk) -> Program:
    """Return what a program does at each step, copies between memories excepted."""
    events = array("i", [0]) * (walk.clock + 2)
    for _, group in groupby(range(len(walk.leaf)), lambda value: (walk.owners[value].name, walk.places[value])):
        values = list(group)
        if not walk.owners[values[0]].opcodes[walk.places[values[0]]].endswith(("-start", "-done")):
            # A result with several arrays has a table, one more value.
            events[walk.start[values[0]]] += len(values) > 1
            for value in values:
                events[walk.start[value]] += 1
                events[walk.end[value]] += 1
    nbytes = (walk.nbytes_at.get(step, 0) for step in range(walk.clock + 1))
    counted = (walk.counts.get(step, 1) for step in range(walk.clock + 1))
    return Program(
        list(accumulate(nbytes, initial=0)), *(array("i", accumulate(each, initial=0)) for each in (events, counted))
    )


def _set_pieces(buffer: Buffer, values: list[int], walk: Walk, ends: array[int]) -> None:
    """Set the live ranges of a buffer that several values share, and its slices."""
    begin = min((walk.start[value] for value in values if value in walk.whole), default=0)
    slices: dict[tuple[int, int], tuple[int, int]] = {}
    for value in values:
        if walk.start[value] < begin and walk.leaf[value] != buffer.leaf and value not in walk.returned:
            place = walk.places[value], walk.leaf[value]
            start, end = slices.get(place, (begin, 0))
            # A slice ends when the whole buffer begins.
            slices[place] = min(start, walk.start[value]), max(end, min(ends[value], begin - 1))
    if slices:
        buffer.slices = tuple((start, end, leaf) for (_, leaf), (start, end) in slices.items())
        values = [value for value in values if walk.start[value] >= begin or walk.leaf[value] == buffer.leaf]
    buffer.pieces = union([(walk.start[value], ends[value]) for value in values])


def _ends_after_reuse(walk: Walk, groups: dict[int, list[int]], arguments: set[int], outputs: set[int]) -> array[int]:
    """Shorten the live range of an operand by one step if the value defined in its last step reuses its memory."""
    ends = walk.end
    done: set[int] = set()
    for value, operand in walk.reuses:
        if (
            value in done
            or operand in done
            or ends[operand] != walk.start[value]
            or ends[operand] == walk.start[operand]
        ):
            continue
        giver, taker = walk.find(operand), walk.find(value)
        if giver in groups or taker in groups or giver in arguments or giver in outputs:
            continue
        if walk.owners[operand].opcodes[walk.places[operand]] != "constant":
            done.update((value, operand))
            ends[operand] -= 1
    return ends


def union(intervals: list[Interval]) -> list[Interval]:
    """Merge intervals that overlap or are adjacent.

    Examples
    --------
    >>> union([(4, 5), (0, 2), (3, 3), (7, 9)])
    [(0, 5), (7, 9)]
    """
    if len(intervals) == 1:
        return intervals
    intervals.sort()
    merged = [intervals[0]]
    for start, end in intervals[1:]:
        if start <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged
