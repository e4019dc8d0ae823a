"""Find the buffers of a module: which results need memory, and their live ranges.

Values that share memory form one buffer. The caller owns it if one of them is an argument or an output.

Sources: ``xla/hlo/analysis/hlo_alias_analysis.cc``, ``xla/service/heap_simulator/heap_simulator.cc``.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Literal

from fastindex.hlo.computations import Computation
from fastindex.hlo.flow.fast_memory import MOST_BUFFERS, SPACES, FastUse, Program, ValueBuffer, fast_uses
from fastindex.hlo.flow.joined import Joined
from fastindex.hlo.flow.walk import TooDeep, Walk
from fastindex.hlo.modules import Module
from fastindex.hlo.shape_table import ShapeTable

Role = Literal["argument", "output", "constant", "temporary"]
Interval = tuple[int, int]
#: Memory used slice by slice before the whole buffer is needed: first step, last step, and leaf of each slice.
Slices = tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class ModuleBuffers:
    """The buffers of a module, in order of definition: a buffer is a position in the columns.

    A buffer is the memory of one value, or of several values that share it.

    Attributes
    ----------
    leaves : array of int
        Number in the `ShapeTable` of the shape: that of the largest value.
    owners, places : list of Computation, array of int
        The instruction that defines the first value.
    roles : list of {"argument", "output", "constant", "temporary"}
        The owner or purpose. An argument may also be an output: ``input_output_alias``.
    starts, ends : array of int
        First and last step of the live ranges of the values.
    pieces : dict of int to list of (int, int)
        For a buffer that is not live throughout: the union of the live ranges, as disjoint intervals.
    outputs : list of int
        The buffers that are outputs.
    heirs : dict of int to list of int
        The caller's buffers whose next value may overwrite the last value of a buffer in place.
    slices : dict of int to Slices
    fast : dict of int to FastUse
        For the largest buffers in the fast memory of a core, or for which the compiler rearranges those: the use of the
        value.
    steps : int
        Number of instructions in the schedule, counting the body of a loop once.
    schedule : list of (Computation, int, int)
        For each computation, its first step and the one after its last.
    too_deep : bool
        Whether computations are nested too deeply; then there are no buffers.
    """

    leaves: array[int] = field(default_factory=lambda: array("i"))
    owners: list[Computation] = field(default_factory=list)
    places: array[int] = field(default_factory=lambda: array("i"))
    roles: list[Role] = field(default_factory=list)
    starts: array[int] = field(default_factory=lambda: array("i"))
    ends: array[int] = field(default_factory=lambda: array("i"))
    pieces: dict[int, list[Interval]] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)
    heirs: dict[int, list[int]] = field(default_factory=dict)
    slices: dict[int, Slices] = field(default_factory=dict)
    fast: dict[int, FastUse] = field(default_factory=dict)
    steps: int = 0
    schedule: list[tuple[Computation, int, int]] = field(default_factory=list)
    too_deep: bool = False

    def intervals(self, number: int) -> list[Interval]:
        """Return the live ranges of the values of a buffer, as disjoint intervals of steps, both ends included."""
        return self.pieces.get(number) or [(self.starts[number], self.ends[number])]


def module_buffers(module: Module, table: ShapeTable) -> ModuleBuffers:
    """Find the buffers of a module and their live ranges."""
    walk = Walk(module, table)
    entry = module.entry
    if entry is None:
        return ModuleBuffers()
    try:
        outputs = walk.run(entry, None)
    except TooDeep:
        return ModuleBuffers(too_deep=True)
    for value in walk.across_programs:
        walk.start[value], walk.end[value] = 0, walk.clock
    for output, number, path in module.input_output_aliases():
        if number in walk.parameters and entry.root >= 0:
            place, values = walk.parameters[number]
            begin, end = walk.entries[entry.shape(entry.root)].at(output)
            first, last = walk.entries[entry.shape(place)].at(path)
            walk.join(values[first:last], outputs[begin:end])
    own = array("i", walk.joined.representatives()) if walk.has_fast_memory else array("i")
    walk.join(walk.listed, walk.listed_with)
    roots = walk.joined.representatives()
    arguments = {roots[value] for _, values in walk.parameters.values() for value in values}
    found = ModuleBuffers(steps=walk.clock, schedule=walk.schedule)
    numbers = _collect(walk, found, roots, arguments, {roots[value] for value in outputs})
    if walk.has_fast_memory:
        _set_fast_uses(walk, found, numbers, own)
    return found


def _collect(walk: Walk, found: ModuleBuffers, roots: array[int], arguments: set[int], outputs: set[int]) -> array[int]:
    """Add the buffers; return the number of the buffer of each value, or -1."""
    groups: dict[int, list[int]] = {}
    for value, root in enumerate(roots):
        # Most values do not share their buffer: keep no list for these.
        if value != root:
            groups.setdefault(root, [root]).append(value)
    ends = _ends_after_reuse(walk, roots, groups, arguments | outputs)
    nbytes = walk.table.nbytes
    numbers = array("i", [-1]) * len(roots)
    for value, root in enumerate(roots):
        if value != root:
            numbers[value] = numbers[root]
            continue
        leaf, values = walk.leaf[root], groups.get(root)
        if values:
            leaf = max((walk.leaf[value] for value in values), key=nbytes.__getitem__)
        if nbytes[leaf] < 0:
            continue
        number = numbers[root] = len(found.leaves)
        role: Role = "temporary"
        if root in outputs:
            role = "output"
            found.outputs.append(number)
        if root in arguments:
            role = "argument"
        elif role == "temporary" and walk.owners[root].opcodes[walk.places[root]] == "constant":
            role = "constant"
        found.leaves.append(leaf)
        found.owners.append(walk.owners[root])
        found.places.append(walk.places[root])
        found.roles.append(role)
        found.starts.append(walk.start[root])
        found.ends.append(ends[root])
        if values:
            _set_pieces(found, number, values, walk)
    for operand, value in zip(walk.reused, walk.reusing, strict=True):
        giver, taker = numbers[operand], numbers[value]
        may_inherit = roots[value] in outputs and roots[operand] not in groups and ends[operand] == walk.start[value]
        if may_inherit and giver >= 0 and taker >= 0:
            found.heirs.setdefault(giver, []).append(taker)
    return numbers


def _set_fast_uses(walk: Walk, found: ModuleBuffers, numbers: array[int], own: array[int]) -> None:
    """Set the use of the values in the fast memory of a core, for the largest buffers.

    Values are joined only as far as they must share memory: `own` has the first one for each.
    """
    program = _program_of(walk)
    chosen = _chosen(walk, found, numbers, _late(walk, own, program))
    values, moves = _with_copies(walk, numbers, own, chosen.values())
    used: dict[int, list[int]] = {root: [] for pair in moves for root in pair}
    for value, step in zip(walk.used, walk.used_at, strict=True):
        if own[value] in used:
            used[own[value]].append(step)
    read = walk.nbytes_read
    for value, root in enumerate(own):
        if value != root:
            read[root] += read[value]
    buffers = []
    for root in values:
        number = numbers[root]
        # An asynchronous copy does not count as a writer.
        written = 0 if root in walk.returned else walk.nbytes_written[root]
        end = walk.clock if found.roles[number] == "argument" else found.ends[number]
        buffers.append(ValueBuffer(root, found.intervals(number), read[root], written, end, used.get(root, ())))
    uses = fast_uses(buffers, moves, program, {own[value] for value in walk.across_programs})
    found.fast = {number: uses[root] for number, root in sorted(chosen.items())}


def _chosen(walk: Walk, found: ModuleBuffers, numbers: array[int], late: Iterable[int]) -> dict[int, int]:
    """Return the buffers whose places in fast memory are estimated, with a value of each."""
    spaces, nbytes, leaves, roles = walk.table.spaces, walk.table.nbytes, found.leaves, found.roles
    values = {numbers[value]: value for value in late if numbers[value] >= 0}
    chosen: set[int] = set()
    for space in SPACES:
        here = (
            number
            for number, leaf in enumerate(leaves)
            if (spaces[leaf] == space and roles[number] == "temporary") or (spaces[leaf] == 0 and number in values)
        )
        chosen.update(heapq.nlargest(MOST_BUFFERS, here, key=lambda number: nbytes[leaves[number]]))
    # The first value of each comes last.
    first = {numbers[value]: value for value in range(len(numbers) - 1, -1, -1) if numbers[value] in chosen}
    return first | {number: value for number, value in values.items() if number in chosen}


def _with_copies(
    walk: Walk, numbers: array[int], own: array[int], values: Collection[int]
) -> tuple[set[int], list[tuple[int, int]]]:
    """Return values with the copies and sources of each, and the pairs of these."""
    joined = Joined()
    for _ in own:
        joined.add()

    def moves() -> Iterator[tuple[int, int]]:
        for copy, source in zip(walk.copies, walk.copied, strict=True):
            if numbers[copy] >= 0 and numbers[source] >= 0:
                yield own[copy], own[source]

    for copy, source in moves():
        joined.join(copy, source)
    groups = {joined.find(value) for value in values}
    found = [(copy, source) for copy, source in moves() if joined.find(copy) in groups]
    return set(values).union(*found), found


def _late(walk: Walk, own: array[int], program: Program) -> set[int]:
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
        ready = walk.ready[value]
        first = ready - 1 if ready else walk.start[value]
        if (
            first < step
            and program.instructions[step] == program.instructions[first + 1]
            and table.spaces[leaf] == 0
            and max(table.shapes[leaf].dimensions, default=1) > 1
            and (ready or kind(value) not in fast)
        ):
            found.add(own[value])
    return found


def _program_of(walk: Walk) -> Program:
    """Return what a program does at each step, copies between memories excepted."""
    events = array("i", [0]) * (walk.clock + 2)
    first, count, is_move, instruction = 0, 0, False, ("", -1)
    for value, (owner, place) in enumerate(zip(walk.owners, walk.places, strict=True)):
        count += 1
        if instruction != (owner.name, place):
            first, count, instruction = value, 1, (owner.name, place)
            is_move = owner.opcodes[place].endswith(("-start", "-done"))
        if not is_move:
            events[walk.start[value]] += 1
            events[walk.end[value]] += 1
            # A result with several arrays has a table, one more value.
            events[walk.start[first]] += count == 2
    counted = array("i", [1]) * (walk.clock + 1)
    for steps, change in ((walk.inserted, -1), (walk.removed, 1)):
        for step in steps:
            counted[step] += change
    nbytes = array("d", accumulate(chain(walk.nbytes_at, (0,)), initial=0))
    return Program(nbytes, *(array("i", accumulate(each, initial=0)) for each in (events, counted)))


def _set_pieces(found: ModuleBuffers, number: int, values: list[int], walk: Walk) -> None:
    """Set the live ranges of a buffer that several values share, and its slices."""
    starts, ends, leaf = walk.start, walk.end, found.leaves[number]
    if not walk.whole.isdisjoint(values):
        begin = min(starts[value] for value in walk.whole.intersection(values))
        slices: dict[tuple[int, int], Interval] = {}
        for value in values:
            if starts[value] < begin and walk.leaf[value] != leaf and value not in walk.returned:
                place = walk.places[value], walk.leaf[value]
                start, end = slices.get(place, (begin, 0))
                # A slice ends when the whole buffer begins.
                slices[place] = min(start, starts[value]), max(end, min(ends[value], begin - 1))
        if slices:
            found.slices[number] = tuple((start, end, part) for (_, part), (start, end) in slices.items())
            values = [value for value in values if starts[value] >= begin or walk.leaf[value] == leaf]
    pieces = union([(starts[value], ends[value]) for value in values])
    found.starts[number], found.ends[number] = pieces[0][0], pieces[-1][1]
    if len(pieces) > 1:
        found.pieces[number] = pieces


def _ends_after_reuse(walk: Walk, roots: array[int], groups: Collection[int], callers: set[int]) -> array[int]:
    """Shorten the live range of an operand by one step if the value defined in its last step reuses its memory."""
    ends = walk.end
    done = bytearray(len(ends))
    for operand, value in zip(walk.reused, walk.reusing, strict=True):
        if done[value] or done[operand] or ends[operand] != walk.start[value] or ends[operand] == walk.start[operand]:
            continue
        giver, taker = roots[operand], roots[value]
        if giver in groups or taker in groups or giver in callers:
            continue
        if walk.owners[operand].opcodes[walk.places[operand]] != "constant":
            done[value] = done[operand] = 1
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
