"""Shardings in HLO text: bytes per device, and never divided twice.

Tests of: hlo.divisions.
"""

from __future__ import annotations

import json

import pytest

import fastindex as fi
from fastindex.hlo.divisions import meshes_of, sharding_of_sdy

BEFORE = """HloModule m, entry_computation_layout={(f32[17,64]{1,0})->f32[17,64]{1,0}}, num_partitions=8

ENTRY %main (p: f32[17,64]) -> f32[17,64] {
  %p = f32[17,64]{1,0} parameter(0), sharding={devices=[8,1]<=[8]}
  ROOT %n = f32[17,64]{1,0} negate(%p), metadata={op_name="neg"}
}
"""
AFTER = """HloModule m, is_scheduled=true, entry_computation_layout={(f32[3,64]{1,0})->f32[3,64]{1,0}}, num_partitions=8

ENTRY %main_spmd (p: f32[3,64]) -> f32[3,64] {
  %p = f32[3,64]{1,0} parameter(0), sharding={devices=[8,1]<=[8]}
  ROOT %n = f32[3,64]{1,0} negate(%p), metadata={op_name="neg"}
}
"""
SDY = """HloModule m, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["a"=2, "b"=4]>}}, num_partitions=8

ENTRY %main (p: f32[16,64]) -> f32[16,64] {
  %p = f32[16,64] parameter(0), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\\"a\\"}, {\\"b\\"}]>"}
  ROOT %n = f32[16,64]{1,0} negate(%p)
}
"""


def test_before_partitioning() -> None:
    (module,) = fi.hlo.report(BEFORE).modules
    division = module.division
    assert division is not None
    assert not division.is_partitioned
    assert str(division.arrays[0].part) == "f32[3,64]{1,0}"
    assert division.nbytes == 3 * 64 * 4
    assert division.shard_padding_nbytes == 3 * 64 * 4 * 7 // 24
    assert any("before partitioning" in note for note in module.notes)
    assert "sizes are those of whole arrays" in str(fi.hlo.report(BEFORE))


def test_after_partitioning_nothing_is_divided_again() -> None:
    (module,) = fi.hlo.report(AFTER).modules
    division = module.division
    assert division is not None
    assert division.is_partitioned
    assert division.signs == ("the entry is called main_spmd", "is_scheduled=true")
    assert division.nbytes == 3 * 64 * 4
    assert division.shard_padding_nbytes is None
    assert "sizes are those of one device" in str(fi.hlo.report(AFTER))


def test_shardy() -> None:
    (module,) = fi.hlo.report(SDY).modules
    assert module.division is not None
    (array,) = module.division.arrays
    assert array.sharding == fi.sharding.Sharding.parse("{devices=[2,4]<=[8]}")
    assert str(array.part) == "f32[8,16]{1,0}"


def test_tuples_and_what_cannot_be_read() -> None:
    text = BEFORE.replace("{devices=[8,1]<=[8]}", "{devices=[8,2]<=[8]}")
    (module,) = fi.hlo.report(text).modules
    assert module.division is not None
    assert "sharding of p" in module.division.problems[0]
    both = "{{devices=[8,1]<=[8]}, {devices=[1,2,4]<=[8] last_tile_dims={manual}}}"
    text = BEFORE.replace("%p = f32[17,64]{1,0} parameter", "%p = (f32[17,64]{1,0}, f32[4,4]{1,0}) parameter")
    (module,) = fi.hlo.report(text.replace("{devices=[8,1]<=[8]}", both)).modules
    assert module.division is not None
    assert [str(array.part) for array in module.division.arrays] == ["f32[3,64]{1,0}", "f32[4,2]{1,0}"]


def test_a_sharded_argument_without_a_size() -> None:
    for text in (BEFORE, AFTER):
        (module,) = fi.hlo.report(text.replace("{1,0} parameter", "{1,0:D(D~,C)} parameter")).modules
        assert module.division is not None
        assert "is sparse" in module.division.problems[0]


def test_without_shardings() -> None:
    (module,) = fi.hlo.report(BEFORE.replace(", sharding={devices=[8,1]<=[8]}", "")).modules
    assert module.division is None


def test_json() -> None:
    found = json.loads(json.dumps(fi.hlo.report(BEFORE).modules[0].to_json()))["division"]
    assert found["is_partitioned"] is False
    assert found["arguments"][0]["sharding"] == "{devices=[8,1]<=[8]}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('#sdy.sharding<@m, [{"a":(1)2}, {?}]>', "{mesh['a'=4,'b'=2], [{'a':(1)2}, {?}]}"),
        ('#sdy.sharding<@m, [{}, {"b"}], replicated={"a"}>', "{mesh['a'=4,'b'=2], [{}, {'b'}], replicated={'a'}}"),
        ("#sdy.sharding<@one, []>", "{single_device[device_id=3]}"),
        ('#sdy.sharding<mesh<["x"=2]>, [{"x"}]>', "{mesh['x'=2], [{'x'}]}"),
    ],
)
def test_texts_of_shardy(text: str, expected: str) -> None:
    meshes = meshes_of('{m = #sdy.mesh<["a"=4, "b"=2]>, one = #sdy.mesh<[], device_ids=[3]>}')
    assert str(sharding_of_sdy(text, meshes)) == expected


def test_bad_shardy() -> None:
    for text in ("sdy", "#sdy.sharding<@n, []>", "#sdy.sharding<@m, [{'z'}]>"):
        with pytest.raises(fi.LayoutError):
            sharding_of_sdy(text, {"m": "mesh['a'=2]"})
