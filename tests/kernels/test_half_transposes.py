"""Packed elements that are transposed by pairs of rows in lines: against NumPy, between guards.

Tests of: lowering.half_transpose_passes, kernels.cpu.half_transpose, tables.half_transposes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import fastindex as fi
from fastindex.cpu.movements import sure_movement
from fastindex.lowering.half_transpose_passes import half_transpose_passes
from fastindex.lowering.pass_form import Goal
from fastindex.lowering.relayout_loops import Loop, Nest
from fastindex.lowering.tuning import TUNING
from fastindex.tables import half_transposes
from tests.cases import strategies
from tests.cases.assembly_cases import Guarded
from tests.cases.half_transpose_cases import Case, move, passes_of, random_cases


def plain(rows: int, columns: int, block_rows: int = 8192) -> Case:
    """Rows that follow each other without gaps, and columns that do."""
    nest = Nest((Loop(rows, columns, 1), Loop(columns, 1, rows)))
    return Case(nest, rows * columns, -(-rows * columns // 2), block_rows)


def check(case: Case, offset: int, threads: int = 1) -> None:
    memory = Guarded()
    assert move(case, passes_of(case), memory, offset, threads) == ""
    memory.check()


def test_random_nests() -> None:
    for seed, case in zip(seeds := strategies.rotating_seeds(90), random_cases(seeds), strict=True):
        check(case, seed * 7 % 64 if seed % 3 else 0, 1 + seed % 2)


@pytest.mark.parametrize("block_rows", [256, 512, 8192])
def test_rows_and_columns_that_are_odd_or_even(block_rows: int) -> None:
    for rows in (1023, 1024, 1025, 1026):
        for columns in strategies.rotating((255, 256, 257, 258)):
            check(plain(rows, columns, block_rows), 0)


def test_what_it_is_not_for() -> None:
    goal = Goal(1, True, TUNING)
    rows, columns = Loop(300, 200, 1), Loop(200, 1, 300)
    assert half_transpose_passes(Nest((rows, columns)), goal, 60000, 30000)
    for loops in ((Loop(255, 200, 1), columns), (rows, Loop(127, 1, 300)), (rows,), (columns,)):
        assert half_transpose_passes(Nest(loops), goal, 60000, 30000) is None
    assert half_transpose_passes(Nest((rows, columns)), Goal(1, False, TUNING), 60000, 30000) is None


@pytest.mark.parametrize("threads", [1, 2])
def test_plans_of_large_arrays(threads: int) -> None:
    """Columns that end within a byte, and rows that do or do not."""
    for rows, columns in strategies.rotating([(5001, 3401), (5001, 3400), (2001, 9001)]):
        values = np.random.default_rng(5).integers(0, 16, (rows, columns), np.uint8)
        given, turned = (np.append(one.reshape(-1), np.zeros(values.size % 2, np.uint8)) for one in (values, values.T))
        source, destination = (f"u4[{rows},{columns}]{{{order}:E(4)}}" for order in ("1,0", "0,1"))
        moved = sure_movement(fi.Shape.parse(source), fi.Shape.parse(destination))
        assert moved.passes is not None
        assert [one.kernel for one in moved.passes] == ["transpose halves"]
        out = np.full(len(given) // 2, 0xFF, np.uint8)
        fi.relayout(given[::2] | given[1::2] << 4, source, destination, out=out, threads=threads)
        assert np.array_equal(out, turned[::2] | turned[1::2] << 4)


def test_planted_bugs_are_noticed() -> None:
    case = plain(1025, 301, 256)
    (made,) = passes_of(case)
    assert move(case, (made,), Guarded(), 0) == ""
    for name in ("source_start", "target_start", "column_stride", "row_source_stride"):
        geometry = made.geometry.copy()
        geometry[half_transposes.HalfTransposeGeometry._fields.index(name)] -= 1 if name != "source_start" else -1
        assert move(case, (dataclasses.replace(made, geometry=geometry),), Guarded(), 64), name
    rows = made.tables[0].copy()
    rows[40] += 1
    assert move(case, (dataclasses.replace(made, tables=(rows,)),), Guarded(), 0)
