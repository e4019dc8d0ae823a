"""The one decision how slots move, against the slow reference and by hand.

Tests of: core.sizes, moving.problem.
"""

from __future__ import annotations

import pytest

import fastindex as fi
from fastindex.algebra.loops import relayout_loops
from fastindex.algebra.shared_digits import Strides
from fastindex.core.sizes import SlotFormat
from fastindex.moving.problem import packed_byte, packing_loops, slot_move, unpacking_loops
from tests.oracles import reference
from tests.oracles.nest_places import places

#: (source, destination, unit, width, what a kernel may do on the way)
CHOICES = [
    ("f32[8,8]", "f32[8,8]{0,1}", "slot", 4, None),
    ("c128[8,8]", "c128[8,8]{0,1}", "slot", 16, None),
    ("s4[8,8]", "s4[8,8]{0,1}", "slot", 1, None),
    ("pred[8,8]{1,0:E(16)}", "pred[8,8]{0,1:E(16)}", "slot", 2, None),
    ("pred[8,8]{1,0:E(24)}", "pred[8,8]{0,1:E(24)}", "value", 1, None),
    ("f32[8,8]{1,0:E(96)}", "f32[8,8]{0,1:E(96)}", "value", 4, None),
    ("f32[8,8]{1,0:E(64)}", "f32[8,8]{0,1}", "value", 4, None),
    ("s4[8,8]{1,0:E(4)}", "s4[8,8]{1,0:T(4,4)E(4)}", "byte", 1, None),
    ("s4[8,7]{1,0:E(4)}", "s4[8,7]{1,0:T(4,4)E(4)}", "value", 1, None),
    ("s4[8,8]{1,0:E(4)}", "s4[8,8]{0,1:E(4)}", "value", 1, None),
    ("s4[30]{0:E(4)}", "s4[30]{0:T(5)(3)E(4)}", "value", 1, None),
    ("s4[8,8]{1,0:E(4)}", "s4[8,8]", "value", 1, "expand"),
    ("s4[8,8]", "s4[8,8]{1,0:E(4)}", "value", 1, "compress"),
    ("s4[8,8]{1,0:E(16)}", "s4[8,8]{1,0:E(4)}", "value", 1, None),
    ("u2[8,8]{1,0:E(2)}", "u2[8,8]{1,0:E(4)}", "value", 1, None),
]


@pytest.mark.parametrize(("source", "destination", "unit", "width", "conversion"), CHOICES)
def test_what_moves_as_one(source: str, destination: str, unit: str, width: int, conversion: str | None) -> None:
    move = slot_move(fi.Shape.parse(source), fi.Shape.parse(destination))
    assert (move.unit, move.width, move.conversion) == (unit, width, conversion)


def test_loops_count_units() -> None:
    packed, tiled = fi.Shape.parse("s4[8,8]{1,0:E(4)}"), fi.Shape.parse("s4[8,8]{1,0:T(4,4)E(4)}")
    loops = slot_move(packed, tiled).loops
    assert loops is not None
    assert sum(nest.element_count for nest in loops.copies) == 32
    turned = fi.Shape.parse("s4[8,8]{0,1:E(4)}")
    assert slot_move(packed, turned).loops == relayout_loops(packed, turned)
    assert slot_move(fi.Shape.parse("f32[30]"), fi.Shape.parse("f32[30]{0:T(5)(3)}")).loops is None


def test_strides_hold_plain_values() -> None:
    side = Strides((8, 8), (8, 1))
    assert slot_move(side, fi.Shape.parse("s4[8,8]{1,0:E(4)}")).conversion == "compress"
    assert slot_move(fi.Shape.parse("s4[8,8]{1,0:E(4)}"), side).conversion == "expand"
    assert slot_move(side, fi.Shape.parse("bf16[8,8]")).width == 2
    assert slot_move(side, fi.Shape.parse("bf16[8,8]{1,0:E(32)}")).unit == "value"


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_a_packed_byte_holds_only_the_bits_of_a_slot(bits: int) -> None:
    for value in (0, 1, 0x09, 0xF9, 0xFF):
        low = value & (1 << bits) - 1
        assert packed_byte(bytes([value]), bits) == reference.bytes_of([low] * (8 // bits), bits)


def test_padding_of_wide_slots_is_zero_above_the_value() -> None:
    wide = fi.Shape.parse("f32[8]{0:E(64)}")
    assert slot_move(wide, wide).padding(b"\x01\x02\x03\x04") == b"\x01\x02\x03\x04\0\0\0\0"


@pytest.mark.parametrize(("value", "slot"), [(1, 2), (1, 3), (4, 12)])
def test_wide_slots(value: int, slot: int) -> None:
    slots = SlotFormat(value, 8 * slot)
    (unpacked,), (packed,) = unpacking_loops(slots, 5).copies, packing_loops(slots, 5).copies
    source, destination = places(unpacked)
    assert sorted(zip(destination, source, strict=True)) == [
        (value * k + i, slot * k + i) for k in range(5) for i in range(value)
    ]
    assert sorted(zip(*places(packed), strict=True)) == sorted(zip(destination, source, strict=True))
    (filled,) = packing_loops(slots, 5).fills
    written = sorted([*places(filled)[1], *source])
    assert written == list(range(5 * slot))
