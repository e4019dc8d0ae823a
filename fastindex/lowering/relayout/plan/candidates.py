"""The one list of candidates for a relayout: a new one is its module in `moves/`, a line here, and its test."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fastindex.lowering.relayout.moves.block_permute_passes import column_gathers, least_of_columns, straight_permutes
from fastindex.lowering.relayout.moves.boxes import boxes, packed_boxes
from fastindex.lowering.relayout.moves.digit_swaps import digit_swaps
from fastindex.lowering.relayout.moves.nest_passes import gathers, loop_passes, packed_runs
from fastindex.lowering.relayout.moves.nibble_pairs import nibble_pairs
from fastindex.lowering.relayout.passes.form import Draft
from fastindex.lowering.relayout.problem.problem import Problem


class Candidate(NamedTuple):
    """One way to do a relayout.

    Attributes
    ----------
    name : str
        As `plan.candidates` shows it.
    drafts : callable
        Returns the passes for a problem, or None where the candidate does not apply.
    converts : bool
        Whether the passes read and write packed elements that do not move by whole bytes; else these are expanded to
        bytes before the passes and compressed after them.
    bound : callable
        Returns a lower bound of the cost, without drafting the passes; 0 where drafts are quick to make.
    """

    name: str
    drafts: Callable[[Problem], tuple[Draft, ...] | None]
    converts: bool
    bound: Callable[[Problem], float] = lambda _: 0


#: Every candidate; of two that cost the same, the first.
CANDIDATES = (
    Candidate("loops", loop_passes, False),
    Candidate("gather", gathers, False),
    Candidate("packed runs", packed_runs, True),
    Candidate("boxes", boxes, False),
    Candidate("packed boxes", packed_boxes, True),
    Candidate("blocks", straight_permutes, True),
    Candidate("columns", column_gathers, True, least_of_columns),
    Candidate("pairs", nibble_pairs, True),
    Candidate("digits", digit_swaps, True),
)
