"""Relayouts of packed elements whose sparse spans are collected first, whatever that costs."""

from __future__ import annotations

import fastindex as fi
from fastindex.lowering.relayout.moves.collected_passes import collected_passes
from fastindex.lowering.relayout.passes.form import Goal, Pass, with_tables
from fastindex.lowering.tuning import TUNING
from tests.cases.assembly_cases import Pair

#: Sub-tiles and tiles that leave most of a line unused, odd rows, rests of slabs, spans of one to 45 elements.
NAMED: tuple[Pair, ...] = (
    ("s4[150,1,5]{2,1,0:T(4,128)(2,1)E(4)}", "s4[150,1,5]{2,1,0:E(4)}"),
    ("s4[133,2,5]{2,1,0:T(8,32)(8,1)E(4)}", "s4[133,2,5]{2,1,0:E(4)}"),
    ("s4[130,11,6]{2,1,0:T(8,32)(2,1)E(4)}", "s4[130,11,6]{2,1,0:E(4)}"),
    ("s4[140,10,2]{2,1,0:T(8,32)(4,1)E(4)}", "s4[140,10,2]{1,2,0:E(4)}"),
    ("s4[131,7,5]{2,1,0:T(1,64)E(4)}", "s4[131,7,5]{2,1,0:E(4)}"),
    ("s4[129,8,5]{2,1,0:T(2,64)E(4)}", "s4[129,8,5]{1,2,0:E(4)}"),
    ("s4[134,2,1]{2,1,0:T(64)E(4)}", "s4[134,2,1]{1,2,0:E(4)}"),
    ("s4[128,3,45]{2,1,0:T(8,64)E(4)}", "s4[128,3,45]{1,2,0:E(4)}"),
    ("s4[133,3,5]{2,1,0:T(8,32)E(4)}", "s4[133,3,5]{2,1,0:T(2,16)E(4)}"),
)


def passes_of(source: str, destination: str, vector_bytes: int, streamed: bool) -> tuple[Pass, ...] | None:
    """The passes over collected spans; None where there are none."""
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    found = collected_passes(*sides, vector_bytes, Goal(1, streamed, TUNING))
    return None if found is None else with_tables(found)
