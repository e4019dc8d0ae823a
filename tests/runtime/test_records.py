"""Records of plans and the places at which kernels read them: one order for both.

Tests of: runtime.numbers, moving.numbers, moving.moves.block_permute, moving.moves.column_gather,
moving.moves.digit_swaps, moving.moves.nibble_pairs,
moving.moves.streams, moving.moves.transposes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastindex.moving import numbers as passes
from fastindex.moving.moves.block_permute import ASSEMBLY, AssemblyGeometry
from fastindex.moving.moves.streams import STREAM, StreamGeometry
from fastindex.runtime import numbers as pass_jobs


def test_places_are_those_of_fields() -> None:
    assert list(passes.TABLE) == list(range(len(passes.PassTable._fields)))
    assert [*pass_jobs.PAIR, *pass_jobs.PAIR_CALL] == list(range(12))


@pytest.mark.parametrize(
    ("places", "record"),
    [(ASSEMBLY, AssemblyGeometry), (STREAM, StreamGeometry)],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_numbers_of_a_kernel_follow_those_of_its_chunks(places: Any, record: Any) -> None:
    assert list(places) == list(range(4, 4 + len(record._fields)))
    assert list(passes.CHUNKS) == [0, 1, 2, 3]


def test_places_are_those_of_the_array_that_a_record_makes() -> None:
    record = passes.StridedGeometry(*(10 * k for k in range(10)))
    numbers = np.array(record, np.int64)
    assert numbers[passes.STRIDED.source_stride] == record.source_stride == 20
    assert numbers[passes.STRIDED.last_nibble] == record.last_nibble == 90


def test_what_follows_a_record() -> None:
    assert len(pass_jobs.PoolTable._fields) == pass_jobs.POOL_JOBS
    assert len(pass_jobs.LongCall._fields) == pass_jobs.CALL_COUNTERS


def test_sizes_of_rows() -> None:
    assert 8 * len(passes.OuterLoop._fields) == passes.OUTER_LOOP_BYTES
    assert 8 * len(passes.PassCall._fields) == passes.PASS_CALL_BYTES
