"""The candidates for a relayout, and the choice of the cheapest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fastindex.moving.counts import Counts, cycles, total
from fastindex.moving.moves.boxes.plan import boxes, packed_boxes
from fastindex.moving.moves.column_gather.blocks import column_gathers, least_of_columns, straight_permutes
from fastindex.moving.moves.digit_swaps.plan import digit_swaps
from fastindex.moving.moves.nests.plan import loop_passes, packed_runs
from fastindex.moving.moves.nibble_pairs.plan import nibble_pairs
from fastindex.moving.passes import Draft
from fastindex.moving.problem import Problem
from fastindex.runtime.numbers import LINE_BYTES


class Candidate(NamedTuple):
    """One way to do a relayout.

    Attributes
    ----------
    name : str
        As shown by `plan.candidates`.
    drafts : callable
        Returns the passes for a problem, or None where the candidate does not apply.
    converts : bool
        Whether the passes themselves read and write packed elements that do not move by whole bytes. Otherwise these
        are expanded to bytes before the passes and compressed after them.
    bound : callable
        Returns a lower bound of the cost without drafting the passes; 0 where drafting is cheap.
    """

    name: str
    drafts: Callable[[Problem], tuple[Draft, ...] | None]
    converts: bool
    bound: Callable[[Problem], float] = lambda _: 0


#: Every candidate; the first one wins a tie.
CANDIDATES = (
    Candidate("loops", loop_passes, False),
    Candidate("packed runs", packed_runs, True),
    Candidate("boxes", boxes, False),
    Candidate("packed boxes", packed_boxes, True),
    Candidate("blocks", straight_permutes, True),
    Candidate("columns", column_gathers, True, least_of_columns),
    Candidate("pairs", nibble_pairs, True),
    Candidate("digits", digit_swaps, True),
)


class Plan(NamedTuple):
    """A candidate with its passes for a problem and their counts; without passes, every slot is looked up."""

    name: str
    drafts: tuple[Draft, ...] | None
    converts: bool
    counts: Counts


def plans(problem: Problem) -> Iterator[Plan]:
    """Yield the plan of every candidate that applies to a problem; nothing where every slot has to be looked up."""
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
        counts = total((counts, _counts_of_conversion(problem)))
    return Plan(candidate.name, drafts, candidate.converts, counts)


def _counts_of_conversion(problem: Problem) -> Counts:
    """Count slots that separate passes expand before the move and compress after it.

    In between they lie in a separate buffer. Where that is large, the system clears every page of it, which takes as
    long as moving the slots one by one.
    """
    slots = problem.converted_slots
    if slots >= problem.tuning.streamed_bytes:
        return Counts(gathered=slots)
    return Counts(lines=slots / LINE_BYTES, shuffled=slots / LINE_BYTES)


def select_plan(problem: Problem, choice: str | None = None) -> Plan:
    """Return the plan of the candidate `choice` if it applies, else the one that costs least.

    Examples
    --------
    >>> from fastindex.runtime.machine import EPYC_1M
    >>> from fastindex.moving.problem import slot_move
    >>> from fastindex.core.shape import Shape
    >>> from fastindex.runtime.tuning import TUNING
    >>> sides = Shape.parse("f32[4096,4096]"), Shape.parse("f32[4096,4096]{0,1}")
    >>> select_plan(Problem(*sides, slot_move(*sides), EPYC_1M, TUNING)).name
    'loops'
    """
    for candidate in CANDIDATES:
        if candidate.name == choice and (made := _plan_of(candidate, problem)) is not None:
            return made
    best, least = Plan("look-up", None, False, Counts()), math.inf
    for candidate in CANDIDATES:
        if candidate.bound(problem) >= least:
            continue
        made = _plan_of(candidate, problem)
        if made is not None and cycles(made.counts) < least:
            best, least = made, cycles(made.counts)
    return best
