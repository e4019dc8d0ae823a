"""Relayouts of packed elements whose rows are paired, whatever that costs."""

from __future__ import annotations

import fastindex as fi
from fastindex.algebra.loops import relayout_loops
from fastindex.moving.moves.nibble_pairs.plan import pair_passes
from fastindex.moving.passes import Pass, with_tables
from fastindex.moving.problem import Context
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.tuning import TUNING
from tests.cases.assembly_cases import Pair

#: Even and odd rows and columns, rows that alternate in groups of 1, 2 and 4 bytes, columns with gaps and in tiles,
#: rows of more than a line, elements far from each other, padding in the destination.
NAMED: tuple[Pair, ...] = (
    ("s4[67,35]{1,0:E(4)}", "s4[67,35]{0,1:E(4)}"),
    ("s4[66,35]{1,0:E(4)}", "s4[66,35]{0,1:E(4)}"),
    ("s4[67,34]{1,0:E(4)}", "s4[67,34]{0,1:E(4)}"),
    ("s4[20,301]{1,0:E(4)}", "s4[20,301]{0,1:E(4)}"),
    ("s4[21,300]{1,0:E(4)}", "s4[21,300]{0,1:E(4)}"),
    ("s4[7,50,12]{1,2,0:E(4)}", "s4[7,50,12]{2,1,0:E(4)}"),
    ("s4[5,7,33]{2,1,0:E(4)}", "s4[5,7,33]{0,1,2:E(4)}"),
    ("s4[5,7,33]{1,2,0:E(4)}", "s4[5,7,33]{2,0,1:E(4)}"),
    ("s4[6,8,70]{2,1,0:T(8,32)(2,1)E(4)}", "s4[6,8,70]{2,1,0:E(4)}"),
    ("s4[6,8,70]{2,1,0:T(8,32)(4,1)E(4)}", "s4[6,8,70]{2,1,0:E(4)}"),
    ("s4[6,8,70]{2,1,0:T(16,32)(8,1)E(4)}", "s4[6,8,70]{2,1,0:E(4)}"),
    ("s4[6,8,300]{2,1,0:T(8,128)(8,1)E(4)}", "s4[6,8,300]{2,1,0:E(4)}"),
    ("s4[6,8,70]{2,1,0:E(4)}", "s4[6,8,70]{2,1,0:T(8,32)(4,1)E(4)}"),
    ("s4[40,2,30]{2,1,0:T(16,32)(8,1)E(4)}", "s4[40,2,30]{0,1,2:E(4)}"),
    ("s4[43,5,3]{2,1,0:T(8,32)(2,1)E(4)}", "s4[43,5,3]{0,1,2:E(4)}"),
    ("s4[43,5,30]{2,1,0:T(1,32)E(4)}", "s4[43,5,30]{0,1,2:E(4)}"),
    ("s4[45,11,20]{1,2,0:E(4)}", "s4[45,11,20]{2,1,0:E(4)}"),
    ("s4[98,1,1]{2,1,0:T(8,32)(4,1)E(4)}", "s4[98,1,1]{0,1,2:E(4)}"),
    ("s4[9,5,7,11]{3,2,1,0:E(4)}", "s4[9,5,7,11]{0,2,1,3:E(4)}"),
    ("s4[2,3]{1,0:E(4)}", "s4[2,3]{0,1:E(4)}"),
)


def passes_of(source: str, destination: str, streamed: bool) -> tuple[Pass, ...] | None:
    """The passes over pairs of rows; None where there are none."""
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    loops = relayout_loops(*sides)
    if loops is None:
        return None
    found = pair_passes(loops, Context(1, streamed, TUNING, EPYC_1M), sides[1].slot_count, sides[0].nbytes)
    return None if found is None else with_tables(found)
