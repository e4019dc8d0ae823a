"""Relayouts to packed elements whose rows are put together as streams, whatever that costs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from unittest import mock

import fastindex as fi
from fastindex.lowering import half_row_passes
from fastindex.lowering.pass_form import Goal, Pass, with_tables
from fastindex.lowering.passes import fill_pass
from fastindex.lowering.relayout_loops import RelayoutLoops, grouped, relayout_loops
from fastindex.lowering.slot_format import slot_format
from fastindex.lowering.tuning import TUNING
from tests.cases.assembly_cases import Pair

#: Rows that end within a byte out of tiles, out of sub-tiles, out of bytes; rows in another order; a run of all slots.
NAMED: tuple[Pair, ...] = (
    ("u4[19,67]{1,0:T(8,32)E(4)}", "u4[19,67]{1,0:E(4)}"),
    ("u4[19,67]{1,0:T(8,32)(2,1)E(4)}", "u4[19,67]{1,0:E(4)}"),
    ("u4[19,67]{1,0:T(8,32)}", "u4[19,67]{1,0:E(4)}"),
    ("u4[19,67]", "u4[19,67]{1,0:E(4)}"),
    ("u4[7,5,33]{2,1,0:E(4)}", "u4[7,5,33]{2,0,1:E(4)}"),
    ("u4[7,5,33]", "u4[7,5,33]{2,0,1:E(4)}"),
    ("u4[16,96]{1,0:T(8,32)(2,1)E(4)}", "u4[16,96]{1,0:E(4)}"),
    ("u4[3,3001]{1,0:T(4,4096)E(4)}", "u4[3,3001]{1,0:E(4)}"),
    ("u4[9,6]{1,0:T(2,7)E(4)}", "u4[9,6]{1,0:T(6)L(64)E(4)}"),
    ("u4[1]{0:T(128)}", "u4[1]{0:E(4)}"),
)


def passes_of(source: str, destination: str, streamed: bool, box: int = 32768, piece: int = 2048) -> tuple[Pass, ...]:
    """The passes, with boxes and pieces of so many elements; none where there are no such passes."""
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    loops = relayout_loops(*sides)
    fills = None if loops is None else grouped(RelayoutLoops((), loops.fills), 2)
    if loops is None or fills is None:
        return ()
    goal = Goal(1, streamed, TUNING)
    with (
        mock.patch.object(half_row_passes, "_BOX_HALVES", box),
        mock.patch.object(half_row_passes, "_LEAST_BOX_HALVES", box // 4),
        mock.patch.object(half_row_passes, "MOST_PIECE_HALVES", piece),
        mock.patch.object(half_row_passes, "_LEAST_PIECE", 0),
        mock.patch.object(half_row_passes, "_LEAST_SOURCE_BYTES", 0),
    ):
        is_packed = slot_format(sides[0]).is_packed
        made = half_row_passes.half_row_passes(loops.copies, is_packed, goal, sides[1].slot_count, sides[0].nbytes)
        if made is None:
            return ()
        return with_tables((*made, *(fill_pass(nest, goal) for nest in fills.fills)))


def random_pairs(seeds: range) -> Iterator[Pair]:
    """Layouts that mostly keep the order of their minor dimension, to packed elements."""
    chains = ("", "T(8,32)", "T(8,32)(2,1)", "T(4,16)", "T(1,64)", "T(40)", "T(2,7)", "T(4,128)(2,1)")
    for seed in seeds:
        rng = random.Random(seed)
        sizes = [rng.choice((1, 2, 3, 5, 8, 17, 33, 67)) for _ in range(rng.randint(1, 3))]
        order = rng.sample(range(len(sizes)), len(sizes))
        text = ",".join(map(str, sizes))
        sides = []
        for side, packed in enumerate((rng.random() < 0.7, True)):
            if side and rng.random() < 0.5:
                order = [order[0], *rng.sample(order[1:], len(order) - 1)]
            attributes = (rng.choice(chains) if not side or rng.random() < 0.2 else "") + ("E(4)" if packed else "")
            sides.append(f"u4[{text}]{{{','.join(map(str, order))}{':' if attributes else ''}{attributes}}}")
        yield sides[0], sides[1]
