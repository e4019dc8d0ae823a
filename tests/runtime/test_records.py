"""Records of plans and the places at which kernels read them: one order for both.

Tests of: runtime.numbers, moving.numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastindex.moving import assembly_numbers as assemblies
from fastindex.moving import numbers as gathers
from fastindex.moving import numbers as passes
from fastindex.moving import numbers as streams
from fastindex.runtime import numbers as pass_jobs


def test_places_are_named_after_fields() -> None:
    assert [getattr(passes, name.upper()) for name in passes.PassTable._fields] == list(
        range(len(passes.PassTable._fields))
    )
    assert [*pass_jobs.PAIR, *pass_jobs.PAIR_CALL] == list(range(12))


@pytest.mark.parametrize(
    "geometry", [gathers.GATHER, assemblies.ASSEMBLY, streams.STREAM], ids=lambda geometry: type(geometry).__name__
)
def test_a_task_of_blocks_begins_with_the_same_numbers(geometry: Any) -> None:
    names = ("chunk_block", "chunk_count", "chunk_source_stride", "chunk_target_stride")
    assert [getattr(geometry, name) for name in names] == [0, 1, 2, 3]


def test_places_are_those_of_the_array_that_a_record_makes() -> None:
    record = passes.StridedGeometry(*(10 * k for k in range(10)))
    numbers = np.array(record, np.int64)
    assert numbers[passes.STRIDED.source_stride] == record.source_stride == 20
    assert numbers[passes.STRIDED.last_nibble] == record.last_nibble == 90


def test_what_stands_behind_a_record() -> None:
    assert len(pass_jobs.CrewTable._fields) == pass_jobs.CREW_JOBS
    assert len(pass_jobs.LongCall._fields) == pass_jobs.CALL_COUNTERS


def test_sizes_of_rows() -> None:
    assert 8 * len(passes.OuterLoop._fields) == passes.OUTER_LOOP_BYTES
    assert 8 * len(passes.PassCall._fields) == passes.PASS_CALL_BYTES
