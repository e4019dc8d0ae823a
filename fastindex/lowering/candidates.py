"""The one list of candidates for a relayout, and the choice among them by what their passes cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from fastindex.lazy import lazy_property
from fastindex.lowering.assembly import assembly
from fastindex.lowering.assembly_bounds import least_cycles
from fastindex.lowering.assembly_passes import assembly_passes
from fastindex.lowering.boxed_passes import boxed_passes
from fastindex.lowering.calibration import cycles
from fastindex.lowering.collected_passes import collected_passes
from fastindex.lowering.counted_passes import counted_passes
from fastindex.lowering.counts import Counts, total
from fastindex.lowering.digit_passes import digit_passes
from fastindex.lowering.packed_period_boxes import packed_period_passes
from fastindex.lowering.pass_form import Draft, Goal
from fastindex.lowering.passes import drafts, fill_pass, packed_drafts
from fastindex.lowering.period_boxes import period_box_passes
from fastindex.lowering.relayout_loops import RelayoutLoops, grouped
from fastindex.lowering.row_boxes import row_box_drafts
from fastindex.lowering.shared_digits import Strides, shared_digits
from fastindex.lowering.slot_moves import UNIT_BYTES, SlotMove
from fastindex.lowering.tuning import Tuning
from fastindex.shapes.shape import Shape
from fastindex.tables.assemblies import HALF_BITS, MOST_BLOCK_BYTES
from fastindex.tables.cache_lines import LINE_BYTES

Drafts = tuple[Draft, ...]


@dataclass(frozen=True)
class Problem:
    """What the planner has to find passes for.

    Attributes
    ----------
    source, destination : Shape or Strides
    slots : SlotMove
    vector_bytes : int
        What the machine permutes with one instruction.
    tuning : Tuning
    """

    source: Shape | Strides
    destination: Shape | Strides
    slots: SlotMove
    vector_bytes: int
    tuning: Tuning

    @lazy_property
    def slot_bits(self) -> tuple[int, int]:
        return self.slots.source.bits, self.slots.destination.bits

    @lazy_property
    def is_plain(self) -> bool:
        """Whether loops move slots as they are, so that nothing is expanded before or compressed after."""
        return self.slot_bits == (8 * self.slots.width,) * 2

    @lazy_property
    def slots_apart(self) -> int:
        """How many slots become values before anything moves, and values slots after, where passes do not do that."""
        if self.slots.unit != "value":
            return 0
        sides = (self.source, self.slots.source), (self.destination, self.slots.destination)
        return sum(side.slot_count for side, form in sides if isinstance(side, Shape) and not form.is_plain)

    @lazy_property
    def element_bytes(self) -> int:
        """How much of the destination is elements."""
        return math.prod(self.destination.dimensions) * self.slots.destination.bits // 8

    @lazy_property
    def written_bytes(self) -> int:
        """How much of the destination is written, padding and all."""
        if isinstance(self.destination, Shape):
            return self.destination.slot_count * self.slots.destination.bits // 8
        return self.element_bytes

    @lazy_property
    def readable_bytes(self) -> int:
        """How many bytes of the source may be read, from its first element on."""
        if isinstance(self.source, Shape):
            return self.source.nbytes
        steps = zip(self.source.dimensions, self.source.strides, strict=True)
        return self.slots.source.nbytes(1 + sum((size - 1) * max(stride, 0) for size, stride in steps))

    @lazy_property
    def context(self) -> Goal:
        return Goal(1, self.written_bytes >= self.tuning.streamed_bytes, self.tuning)

    @lazy_property
    def may_permute(self) -> bool:
        """Whether slots are of widths that permutations know, and there is an element to read."""
        if 0 in self.source.dimensions:
            return False
        return all(bits == HALF_BITS or (bits % 8 == 0 and bits <= 128) for bits in self.slot_bits)

    @lazy_property
    def blocks(self) -> Drafts | None:
        """The passes block by block, the cheaper ones for each nest of blocks."""
        return blocks_of(self, by_columns=True)

    @property
    def collects(self) -> bool:
        """Whether some of these passes collect columns."""
        return self.blocks is not None and any(one.kernel.endswith("columns") for one in self.blocks)

    @lazy_property
    def may_convert(self) -> bool:
        """Whether packed elements of four bits move to or from such, or bytes."""
        formats = self.slots.source, self.slots.destination
        is_known = all(form.is_plain or form.is_packed for form in formats)
        return self.slots.unit == "value" and self.may_permute and HALF_BITS in self.slot_bits and is_known


class Candidate(NamedTuple):
    """One way to do a relayout.

    Attributes
    ----------
    name : str
    drafts : callable
        Returns the passes for a problem, or None where this is no way to solve it.
    converts : bool
        Whether the passes take and leave packed elements as they are; else these are expanded before and compressed
        after.
    least : callable, optional
        Returns what the passes cost at least, known before they are.
    """

    name: str
    drafts: Callable[[Problem], Drafts | None]
    converts: bool
    least: Callable[[Problem], float] | None = None


def _loops(problem: Problem) -> Drafts | None:
    slots = problem.slots
    return None if slots.loops is None else drafts(slots.loops, slots.width, problem.tuning, gathers=False)


def _gather(problem: Problem) -> Drafts | None:
    slots = problem.slots
    if slots.loops is None:
        return None
    found = drafts(slots.loops, slots.width, problem.tuning, gathers=True)
    return found if any(one.kernel == "gather pieces" for one in found) else None


def _row_boxes(problem: Problem) -> Drafts | None:
    slots = problem.slots
    return None if slots.loops is None else row_box_drafts(slots.loops, slots.width, problem.tuning)


def _packed_runs(problem: Problem) -> Drafts | None:
    slots = problem.slots
    if slots.loops is None or slots.conversion is None:
        return None
    packed = slots.source if slots.source.is_packed else slots.destination
    return packed_drafts(slots.loops, 8 // packed.bits, slots.conversion, problem.tuning)


def _counted(problem: Problem) -> Drafts | None:
    if problem.slots.loops is not None or problem.slots.width not in UNIT_BYTES:
        return None
    return counted_passes(problem.source, problem.destination, problem.slots.width, problem.tuning)


def _period_boxes(problem: Problem) -> Drafts | None:
    if problem.slots.loops is not None or problem.slots.width not in UNIT_BYTES or 0 in problem.source.dimensions:
        return None
    return period_box_passes(problem.source, problem.destination, problem.slots.width, problem.tuning)


def _columns(problem: Problem) -> Drafts | None:
    """Blocks whose columns are collected first, where that is cheaper."""
    return problem.blocks if problem.collects else None


def _blocks(problem: Problem) -> Drafts | None:
    """Blocks that are put together straight from the source."""
    return blocks_of(problem, by_columns=False) if problem.collects else problem.blocks


def blocks_of(problem: Problem, by_columns: bool) -> Drafts | None:
    """Return the passes that write a destination block by block, or None where that cannot be."""
    if not problem.may_permute or not (problem.slots.unit != "value" or problem.may_convert or problem.is_plain):
        return None
    source, slot_bits = problem.source, problem.slot_bits
    readable = source.slot_count if isinstance(source, Shape) else 0
    for variables, left, right in shared_digits(source, problem.destination):
        found = assembly(variables, left, right, problem.destination, slot_bits[1])
        if found is None or any(len(block.sources) * slot_bits[1] > 8 * MOST_BLOCK_BYTES for block in found.blocks):
            continue
        made = assembly_passes(found, slot_bits, problem.vector_bytes, problem.context, readable, by_columns=by_columns)
        if made is not None:
            return made
    return None


def _least_of_blocks(problem: Problem) -> float:
    if not problem.may_permute:
        return 0
    sides = problem.source, problem.destination
    return least_cycles(*sides, problem.written_bytes, problem.slot_bits, problem.vector_bytes)


def _least_of_straight_blocks(problem: Problem) -> float:
    least = _least_of_blocks(problem)
    # Columns are collected only where that is cheaper; what the bound has ruled out is not drafted to know that.
    return math.inf if "blocks" in vars(problem) and problem.collects else least


def _packed_boxes(problem: Problem, pairs: bool) -> Drafts | None:
    loops = problem.slots.loops
    if loops is None or not problem.may_convert:
        return None
    count = problem.destination.slot_count if isinstance(problem.destination, Shape) else 0
    formats = problem.slots.source, problem.slots.destination
    found = boxed_passes(loops, formats, problem.context, count, problem.readable_bytes, pairs=pairs)
    if found is None:
        return None
    has_pairs = any(inner.kernel == "pair" for one in found for inner, _, _ in one.inner)
    return found if has_pairs == pairs else None


def _digits(problem: Problem) -> Drafts | None:
    loops = problem.slots.loops
    if loops is None or problem.slots.unit != "value" or not (problem.slots.source.is_packed and problem.may_convert):
        return None
    fills = grouped(RelayoutLoops((), loops.fills), 8 // HALF_BITS)
    if problem.slot_bits != (HALF_BITS, HALF_BITS) or fills is None or problem.vector_bytes != LINE_BYTES:
        return None
    found = [digit_passes(nest, problem.context) for nest in loops.copies]
    if None in found:
        return None
    return (
        *(one for made in found if made for one in made),
        *(fill_pass(nest, problem.context) for nest in fills.fills),
    )


def _packed_period_boxes(problem: Problem) -> Drafts | None:
    if problem.slots.loops is not None or not problem.may_convert:
        return None
    formats = problem.slots.source, problem.slots.destination
    return packed_period_passes(problem.source, problem.destination, formats, problem.context)


def _collected(problem: Problem) -> Drafts | None:
    source, destination = problem.source, problem.destination
    if problem.slot_bits != (HALF_BITS, HALF_BITS) or not problem.may_permute:
        return None
    if not isinstance(source, Shape) or not isinstance(destination, Shape):
        return None
    return collected_passes(source, destination, problem.vector_bytes, problem.context)


#: Every candidate.
CANDIDATES = (
    Candidate("loops", _loops, False),
    Candidate("gather", _gather, False),
    Candidate("row boxes", _row_boxes, False),
    Candidate("packed runs", _packed_runs, True),
    Candidate("counted", _counted, False),
    Candidate("period boxes", _period_boxes, False),
    Candidate("columns", _columns, True, _least_of_blocks),
    Candidate("blocks", _blocks, True, _least_of_straight_blocks),
    Candidate("boxes", partial(_packed_boxes, pairs=False), True),
    Candidate("pairs", partial(_packed_boxes, pairs=True), True),
    Candidate("digits", _digits, True),
    Candidate("packed period boxes", _packed_period_boxes, True),
    Candidate("collected", _collected, True),
)


class Plan(NamedTuple):
    """A candidate with the passes that it has for a problem, and what they take; no passes look every slot up."""

    name: str
    drafts: Drafts | None
    converts: bool
    counts: Counts


def plans(problem: Problem) -> Iterator[Plan]:
    """Yield what every candidate does that solves a problem; nothing where every slot has to be looked up."""
    for candidate in CANDIDATES:
        made = _plan_of(candidate, problem)
        if made is not None:
            yield made


def _plan_of(candidate: Candidate, problem: Problem) -> Plan | None:
    drafts = candidate.drafts(problem)
    if drafts is None:
        return None
    counts = total(one.counts for one in drafts)
    if not candidate.converts:
        counts = counts._replace(gathered=counts.gathered + problem.slots_apart)
    return Plan(candidate.name, drafts, candidate.converts, counts)


def select_plan(problem: Problem, choice: str | None = None) -> Plan:
    """Return the plan that should be the fastest, or that of the candidate `choice` if it applies.

    Examples
    --------
    >>> from fastindex.lowering.slot_moves import slot_move
    >>> from fastindex.lowering.tuning import TUNING
    >>> sides = Shape.parse("f32[4096,4096]"), Shape.parse("f32[4096,4096]{0,1}")
    >>> select_plan(Problem(*sides, slot_move(*sides), 64, TUNING)).name
    'loops'
    """
    for candidate in CANDIDATES:
        if candidate.name == choice and (made := _plan_of(candidate, problem)) is not None:
            return made
    best, least = Plan("look-up", None, False, Counts()), math.inf
    for candidate in CANDIDATES:
        if candidate.least is not None and candidate.least(problem) >= least:
            continue
        made = _plan_of(candidate, problem)
        if made is not None and cycles(made.counts) < least:
            best, least = made, cycles(made.counts)
    return best
