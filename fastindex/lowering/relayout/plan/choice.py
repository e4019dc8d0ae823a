"""The choice among the candidates for a relayout, by the cost of their passes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from fastindex.lowering.relayout.passes.calibration import cycles
from fastindex.lowering.relayout.passes.counts import Counts, total
from fastindex.lowering.relayout.passes.form import Draft
from fastindex.lowering.relayout.plan.candidates import CANDIDATES, Candidate
from fastindex.lowering.relayout.problem.problem import Problem
from fastindex.tables.cache_lines import LINE_BYTES


class Plan(NamedTuple):
    """A candidate with its passes for a problem and what they count; without passes every slot is looked up."""

    name: str
    drafts: tuple[Draft, ...] | None
    converts: bool
    counts: Counts


def plans(problem: Problem) -> Iterator[Plan]:
    """Yield the plan of every candidate that applies to a problem; none where every slot has to be looked up."""
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
        counts = total((counts, _counts_apart(problem)))
    return Plan(candidate.name, drafts, candidate.converts, counts)


def _counts_apart(problem: Problem) -> Counts:
    """Count slots that are expanded before anything moves, and compressed after, by passes of their own.

    They lie in memory of their own between, and the system clears every page of it where that is large: this takes as
    long as to move them one by one.
    """
    slots = problem.slots_apart
    if slots >= problem.tuning.streamed_bytes:
        return Counts(gathered=slots)
    return Counts(lines=slots / LINE_BYTES, shuffled=slots / LINE_BYTES)


def select_plan(problem: Problem, choice: str | None = None) -> Plan:
    """Return the plan of the candidate `choice` if it applies, else the one that costs least.

    Examples
    --------
    >>> from fastindex.lowering.machine import EPYC_1M
    >>> from fastindex.lowering.relayout.problem.slot_moves import slot_move
    >>> from fastindex.core.shape import Shape
    >>> from fastindex.lowering.tuning import TUNING
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
