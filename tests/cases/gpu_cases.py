"""Relayouts and shapes that together run every GPU kernel, small enough for the slow reference and the simulator."""

from __future__ import annotations

Pairs = tuple[tuple[str, str], ...]


def _turned(arrays: str) -> Pairs:
    """Matrices from row-major to column-major."""
    return tuple((f"{array}{{1,0}}", f"{array}{{0,1}}") for array in arrays.split())


def _both_ways(*pairs: tuple[str, str]) -> Pairs:
    return tuple(one for a, b in pairs for one in ((a, b), (b, a)))


#: Source and destination. What each is for: the kernels that `test_launches` finds for it.
RELAYOUTS: Pairs = (
    # Transposes 16 bytes at a time, more than one tile, the last ones partial.
    *_turned("u8[144,160] bf16[80,136] f32[80,72] f64[36,66] c128[33,34]"),
    ("f32[4,8,8,8]{3,2,1,0}", "f32[4,8,8,8]{0,1,2,3}"),
    ("bf16[3,24,40]{2,1,0}", "bf16[3,24,40]{1,2,0}"),
    # Few rows, or few columns, but enough for separate tiles.
    *_turned("u8[64,272] u8[272,64] bf16[32,264] bf16[264,32] f32[16,260] f32[260,16]"),
    *_turned("f64[8,258] f64[258,8] c128[4,257] c128[257,3]"),
    # Transposes by words of elements that start anywhere, and element by element.
    *_turned("u8[131,150] bf16[67,133]"),
    ("u8[5,37,67]{2,1,0}", "u8[5,37,67]{1,2,0}"),
    *_turned("u8[67,45] bf16[37,67] f32[67,45] f64[37,45]"),
    ("f32[5,13,9]{2,1,0}", "f32[5,13,9]{0,1,2}"),
    *_turned("f32[16,261] f32[261,16] f64[8,131] f64[131,8]"),
    # Rows interleaved into words, and deinterleaved.
    *_both_ways(
        ("bf16[20,256]{1,0}", "bf16[20,256]{1,0:T(8,128)(2,1)}"),
        ("s8[36,128]{1,0}", "s8[36,128]{1,0:T(8,128)(4,1)}"),
    ),
    # Rows that start anywhere: runs, woven and parted, through several tiles of which the last is not full.
    ("f32[5,75]{1,0}", "f32[5,75]{1,0:PV(one)T(4,32)}"),
    ("f32[5,75]{1,0:T(4,32)}", "f32[5,75]{1,0}"),
    *_both_ways(("bf16[9,75]{1,0}", "bf16[9,75]{1,0:T(4,32)(2,1)}")),
    ("s8[9,75]{1,0}", "s8[9,75]{1,0:PV(one)T(8,32)(4,1)}"),
    ("s8[9,75]{1,0:T(8,32)(4,1)}", "s8[9,75]{1,0}"),
    *_both_ways(*_turned("bf16[2,45] u8[4,150]")),
    # Few rows, staged: 16 bytes at a time, and element by element.
    *_both_ways(
        *(
            (f"{kind},{sizes}]{{2,1,0}}", f"{kind},{sizes}]{{0,2,1}}")
            for kind in ("u8[3", "bf16[5", "f32[3", "f64[3")
            for sizes in ("20,16", "7,9")
        )
    ),
    *_turned("u8[3,6000]"),
    # Runs, in units of 16 bytes and less, and padding.
    ("f32[19,131]{1,0}", "f32[19,131]{1,0:T(8,128)}"),
    ("f32[24,256]{1,0}", "f32[24,256]{1,0:T(8,128)}"),
    ("u8[19,131]{1,0}", "u8[19,131]{1,0:PV(one)T(8,128)}"),
    ("bf16[9,10]{1,0:T(4,4)}", "bf16[9,10]{1,0:T(2,4)}"),
    ("bf16[9,10,2]{2,1,0}", "bf16[9,10,2]{2,0,1:PV(highest)T(1,4)}"),
    ("f64[9,10]{1,0}", "f64[9,10]{1,0:PV(lowest)T(1,3)}"),
    ("c128[9,10]{1,0}", "c128[9,10]{1,0:PV(one)T(2,3)}"),
    ("bf16[16,3]{1,0}", "bf16[16,3]{1,0:PV(one)T(1,4)}"),
    ("u8[40]{0}", "u8[40]{0:T(8)}"),
    # Tiles that do not divide each other: slot by slot.
    *(
        (f"{kind}[9,20]{{1,0:T(4,8)(2,1)}}", f"{kind}[9,20]{{0,1:PV(one)T(3)(2)L(16)}}")
        for kind in ("u8", "bf16", "f32", "f64", "c128")
    ),
    # Elements below a byte, and slots wider than their value.
    ("s4[9,21]{1,0:E(4)}", "s4[9,21]{1,0:T(8,128)}"),
    ("s4[9,21]{1,0:T(8,128)}", "s4[9,21]{1,0:PV(lowest)T(2,8)E(4)}"),
    ("s4[8,20]{1,0:E(4)}", "s4[8,20]{1,0:PV(one)T(8,128)E(4)}"),
    ("u2[9,21]{1,0:E(2)}", "u2[9,21]{0,1:E(2)}"),
    ("pred[9,21]{1,0:E(1)}", "pred[9,21]{0,1:E(1)}"),
    # Unpacked and packed on the way, runs that start in the middle of a byte among them.
    ("s4[9,200]{1,0:E(4)}", "s4[9,200]{1,0:PV(lowest)T(8,128)}"),
    ("s4[7,133]{1,0:E(4)}", "s4[7,133]{1,0:T(8,128)}"),
    ("s4[16,160]{1,0:E(4)}", "s4[16,160]{1,0:PV(one)T(8,128)}"),
    ("u2[16,160]{1,0:E(2)}", "u2[16,160]{1,0:PV(one)T(8,128)}"),
    ("pred[16,160]{1,0:E(1)}", "pred[16,160]{1,0:PV(one)T(8,128)}"),
    ("pred[5,131]{1,0:E(1)}", "pred[5,131]{1,0:T(4,64)}"),
    ("s4[16,160]{1,0}", "s4[16,160]{1,0:PV(one)T(8,128)E(4)}"),
    ("u2[16,160]{1,0}", "u2[16,160]{1,0:PV(one)T(8,128)E(2)}"),
    ("pred[16,160]{1,0}", "pred[16,160]{1,0:PV(one)T(8,128)E(1)}"),
    # Runs that start anywhere.
    ("u8[9,203]{1,0}", "u8[9,203]{1,0:T(8,128)}"),
    ("bf16[5,9,101]{2,1,0}", "bf16[5,9,101]{2,0,1}"),
    ("pred[9,21]{1,0:E(32)}", "pred[9,21]{0,1:PV(one)T(4)E(24)}"),
    ("f32[0,3]{1,0}", "f32[0,3]{0,1:PAD(2,3)}"),
    ("f32[]", "f32[]{:T(8)}"),
)

#: Shapes whose indices take every kind of step: narrow and wide divisions, checks, joined dimensions.
SHAPES = (
    "f32[3,5]{1,0:T(2,2)}",
    "bf16[13,37]{1,0:T(8,128)(2,1)}",
    "u8[7,9]{0,1:T(3)(2)L(5)}",
    "f32[2,3,4,5]{3,2,1,0:T(*,*,2,*,3)}",
    "f32[4,6]{0,1:PAD(5,7)T(2,4)(*,2)}",
    "f32[0,3]{0,1:PAD(2,3)}",
    "u8[11]{0}",
)

#: Shapes of more slots than 32 bits count, for which the divisions are wide.
LARGE_SHAPES = (
    "u8[100003,100019]{1,0:T(8,128)(4,1)}",
    "f32[3000000000,5]{0,1:T(2,3)(2)}",
    "u8[65536,65536,65536]{2,0,1:T(32,128)}",
)
