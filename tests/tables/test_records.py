"""Records of plans and the places at which kernels read them: one order for both.

Tests of: tables.cache_lines, tables.gathers, tables.passes, tables.plain_arrays, tables.streams, tables.transposes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from fastindex.tables import gathers, passes, plain_arrays, streams, transposes

#: (record, its module, what precedes the names of its places, its first place)
RECORDS: list[tuple[Any, ModuleType, str, int]] = [
    (passes.PassTable, passes, "", 0),
    (passes.OuterLoop, passes, "OUTER_", 0),
    (passes.PassCall, passes, "", 0),
    (passes.StridedGeometry, passes, "", 0),
    (passes.FillGeometry, passes, "FILL_", 0),
    (streams.StreamGeometry, streams, "", 0),
    (gathers.GatherGeometry, gathers, "", 0),
    (transposes.TransposeGeometry, transposes, "", 0),
    (plain_arrays.PlainPair, plain_arrays, "", 0),
    (plain_arrays.PairCall, plain_arrays, "", len(plain_arrays.PlainPair._fields)),
]


@pytest.mark.parametrize(("record", "module", "prefix", "first"), RECORDS, ids=[one[0].__name__ for one in RECORDS])
def test_places_are_named_after_fields(record: Any, module: ModuleType, prefix: str, first: int) -> None:
    assert [getattr(module, prefix + name.upper()) for name in record._fields] == list(
        range(first, first + len(record._fields))
    )


def test_sizes_of_rows() -> None:
    assert 8 * len(passes.OuterLoop._fields) == passes.OUTER_LOOP_BYTES
    assert 8 * len(passes.PassCall._fields) == passes.PASS_CALL_BYTES
