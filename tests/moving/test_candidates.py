"""Which relayouts are put together block by block, and which go by loops.

Tests of: moving.choice, moving.problem, moving.counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.loops import relayout_loops
from fastindex.algebra.shared_digits import Strides, shared_digits
from fastindex.moving.choice import plans, select_plan
from fastindex.moving.counts import read_lines
from fastindex.moving.movements import Movement, movement
from fastindex.moving.moves.block_permute import ASSEMBLY, MOST_BLOCK_BYTES
from fastindex.moving.moves.block_permute.geometry import permuted_blocks
from fastindex.moving.moves.column_gather import COLUMNS
from fastindex.moving.moves.column_gather.blocks import BlockPermutes
from fastindex.moving.moves.nests.plan import drafts
from fastindex.moving.moves.streams import STREAM
from fastindex.moving.moves.transposes import TRANSPOSE
from fastindex.moving.passes import Draft, Pass, cost, with_tables
from fastindex.moving.problem import Context, Problem, slot_move
from fastindex.runtime.machine import EPYC_1M, Machine
from fastindex.runtime.tuning import TUNING
from tests.cases.machines import EPYC_512K_AVX2, MACHINES, run_here

BY_BLOCKS = [
    ("bf16[2048,1,24,128]", "bf16[2048,1,24,128]{0,1,3,2:T(4,128)(2,1)}"),
    ("u8[98304,3,40]{1,2,0}", "u8[98304,3,40]{2,1,0:T(4,128)(2,1)}"),
    ("f32[98304,10]", "f32[98304,10]{1,0:T(8,128)}"),
    ("u8[49152,8,127]{2,1,0:T(1,128)}", "u8[49152,8,127]{0,1,2}"),
    ("s4[14043,50,7]{2,1,0:E(4)}", "s4[14043,50,7]{2,1,0:T(8,128)(8,1)E(4)}"),
    # Faster than pairs of rows.
    ("s4[7021,50,130]{2,1,0:T(8,128)(2,1)E(4)}", "s4[7021,50,130]{2,1,0:E(4)}"),
    ("s4[768,1000,127]{2,1,0:T(64,128)(8,1)E(4)}", "s4[768,1000,127]{2,1,0:E(4)}"),
    ("s4[196608,1,127]{2,1,0:T(4,128)E(4)}", "s4[196608,1,127]{1,2,0:E(4)}"),
    ("s4[24576,1,100]{2,1,0:T(8,128)(2,1)E(4)}", "s4[24576,1,100]{0,1,2:E(4)}"),
    ("s4[786,1000,128]{1,2,0:E(4)}", "s4[786,1000,128]{2,1,0:T(4,128)E(4)}"),
]
BY_LOOPS = [
    # Wide elements deinterleaved in lanes, and rows of packed elements expanded: 0.5 of the time of blocks or columns.
    ("f32[22,15,224,224]{1,3,2,0}", "f32[22,15,224,224]{3,2,1,0}"),
    ("s4[16384,8192]{1,0:E(4)}", "s4[16384,8192]{1,0:T(8,128)}"),
    ("f32[4096,4096]", "f32[4096,4096]{0,1}"),
    # The last panels are a row and a column.
    ("u8[8193,8193]", "u8[8193,8193]{0,1}"),
    ("bf16[8193,4097]", "bf16[8193,4097]{0,1}"),
    ("f32[8192,8192]", "f32[8192,8192]{1,0:T(8,128)}"),
    ("bf16[8192,8192]{1,0:T(8,128)(2,1)}", "bf16[8192,8192]"),
    ("f32[32,64,112,112]", "f32[32,64,112,112]{1,3,2,0}"),
    ("u8[448,3,224,224]{1,3,2,0}", "u8[448,3,224,224]"),
    ("u8[448,3,224,224]", "u8[448,3,224,224]{1,3,2,0}"),
    ("f32[1000,1000]", "f32[1000,1000]"),
]


def passes_of(
    source: fi.Shape | Strides, destination: fi.Shape | Strides, choice: str | None = None
) -> tuple[tuple[Pass, ...], bool]:
    found = select_plan(Problem(source, destination, slot_move(source, destination), EPYC_1M, TUNING), choice)
    assert found.drafts is not None
    return with_tables(found.drafts), found.converts


def planned(source: str, destination: str) -> Movement:
    """A movement that runs here, planned for the caches of one machine."""
    return movement(fi.Shape.parse(source), fi.Shape.parse(destination), machine=run_here(EPYC_1M))


def chosen(source: str, destination: str) -> tuple[tuple[Pass, ...], bool]:
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    return passes_of(*sides)


@pytest.mark.parametrize(("source", "destination"), BY_BLOCKS)
def test_what_is_slow_by_loops_goes_block_by_block(source: str, destination: str) -> None:
    found, converts = chosen(source, destination)
    assert {one.kernel for one in found} <= {"block permute", "column gather", "fill"}
    assert converts


@pytest.mark.parametrize(("source", "destination"), BY_LOOPS)
def test_what_is_fast_by_loops_stays(source: str, destination: str) -> None:
    assert not any(one.kernel in ("block permute", "column gather") for one in chosen(source, destination)[0])


@pytest.mark.parametrize(
    ("source", "destination", "name"),
    [
        # Blocks take twice the time, columns 1.4 times: scratch memory is in the cache.
        ("f32[682,2,131]{1,2,0}", "f32[682,2,131]{2,1,0:T(2,*,128)}", "boxes"),
        ("f64[341,64,5]{0,1,2}", "f64[341,64,5]{2,1,0:T(2,*,128)}", "boxes"),
        # Boxes write elements one by one, each to a separate line: 1.8 times as long.
        ("bf16[4572,122,45]{2,1,0:T(2,*,128)}", "bf16[4572,122,45]{0,1,2}", "columns"),
        # A chunk of short rows takes as long as several lines before anything moves: twice the time and more by loops.
        ("bf16[24576,2,10]{2,1,0:T(8,128)}", "bf16[24576,2,10]{1,2,0}", "blocks"),
        ("f64[6144,3,81]{2,1,0:T(8,128)(2,1)}", "f64[6144,3,81]{0,1,2}", "columns"),
        ("s4[7,300,64,7]", "s4[7,300,64,7]{1,2,3,0:T(64,128)(8,1)E(4)}", "blocks"),
        ("s4[128,4,64,8,4]", "s4[128,4,64,8,4]{0,3,4,2,1:T(8,128)(8,1)E(4)}", "blocks"),
        # Transposes write runs of less than a line one by one: twice the time and more.
        ("bf16[256,33,9]{1,2,0:T(8,128)(2,1)}", "bf16[256,33,9]", "blocks"),
        ("s4[682,18,1024]{2,1,0:T(8,128)(8,1)E(4)}", "s4[682,18,1024]{1,2,0:E(4)}", "blocks"),
        # Pairs of rows are transposed four bytes at a time, each byte by itself: 1.9 times as long.
        ("s4[8192,200]{1,0:T(8,128)(8,1)E(4)}", "s4[8192,200]{1,0:E(4)}", "blocks"),
    ],
)
def test_short_rows_and_boxes(source: str, destination: str, name: str) -> None:
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    assert select_plan(Problem(*sides, slot_move(*sides), EPYC_512K_AVX2, TUNING)).name == name


def test_padding_in_single_elements_is_expensive() -> None:
    shapes = fi.Shape.parse("f32[1024,1,8]"), fi.Shape.parse("f32[1024,1,8]{2,1,0:T(4,8)(2,1)}")
    loops = relayout_loops(*shapes)
    assert loops is not None
    single = cost(drafts(loops, 4, EPYC_1M))
    plain = relayout_loops(fi.Shape.parse("f32[1024,1,8]"), fi.Shape.parse("f32[1024,1,8]{2,1,0:T(1,8)}"))
    assert plain is not None
    assert single > 10 * cost(drafts(plain, 4, EPYC_1M))


@pytest.mark.parametrize(
    ("source", "destination", "lines"),
    [
        ("f32[1000,3]{1,0:T(8,128)}", "f32[1000,3]", 1000),
        ("f32[1000,3]{1,0:T(8,128)}", "f32[1000,3]{0,1}", 1000),
        ("f32[1000,16]", "f32[1000,16]", 1000),
        ("bf16[1000,1,6]{2,1,0:T(8,128)(4,1)}", "bf16[1000,1,6]{0,1,2}", 1000),
        ("u8[4096,1]{1,0:T(8,128)}", "u8[4096,1]", 4096),
    ],
)
def test_lines_that_are_read(source: str, destination: str, lines: int) -> None:
    loops = relayout_loops(fi.Shape.parse(source), fi.Shape.parse(destination))
    assert loops is not None
    assert read_lines(loops, fi.Shape.parse(source).element_type.nbytes) == lines


def test_what_reads_much_and_writes_little_has_tasks_to_share() -> None:
    scattered = planned("f32[24576,3,3]{2,1,0:T(8,128)}", "f32[24576,3,3]")
    assert sum(one.tasks for one in scattered.passes or ()) > 1
    assert not scattered.compiled.is_small
    fewer = planned("f32[6144,3,3]{2,1,0:T(8,128)}", "f32[6144,3,3]")
    assert fewer.compiled.is_small
    half = planned("f64[877,50,10]{2,1,0:T(8,128)}", "f64[877,50,10]{0,1,2}")
    assert not half.compiled.is_small
    together = planned("f32[12288,3,3]", "f32[12288,3,3]{0,1,2}")
    assert together.compiled.is_small


@pytest.mark.parametrize(
    ("source", "destination", "streamed"),
    [
        ("f64[12288,2,10]{2,1,0:T(256)}", "f64[12288,2,10]", True),
        ("f64[1024,2,10]{2,1,0:T(256)}", "f64[1024,2,10]", False),
        # Columns that begin with lines, and columns that do not, which would be shifted first.
        ("f64[880,50,10]{2,1,0:T(8,128)}", "f64[880,50,10]{0,1,2}", True),
        ("f64[877,50,10]{2,1,0:T(8,128)}", "f64[877,50,10]{0,1,2}", False),
    ],
)
def test_what_is_taken_out_of_large_sparse_sources_is_streamed(source: str, destination: str, streamed: bool) -> None:
    moved = planned(source, destination)
    found = replace(moved, choice="loops").passes or ()
    place = {"copy": STREAM.streamed, "transpose": TRANSPOSE.streamed}
    assert [bool(one.geometry[place[one.kernel]]) for one in found] == [streamed]


@pytest.mark.parametrize(
    ("source", "destination", "kernel"),
    [
        ("f32[50,1000,5]{2,1,0:T(8,128)(4,1)}", "f32[50,1000,5]{0,1,2}", "column gather"),
        ("f64[25,1000,5]{2,1,0:T(8,128)(4,1)}", "f64[25,1000,5]{0,1,2}", "column gather"),
    ],
)
def test_pieces_of_lines_that_leave_l1_are_expensive(source: str, destination: str, kernel: str) -> None:
    """A block has many pieces of each line, and all its lines meet in a few sets of L1."""
    assert {one.kernel for one in chosen(source, destination)[0]} == {kernel}


@pytest.mark.parametrize(
    ("source", "destination", "kernel"),
    [
        ("bf16[32768,3,40]{2,1,0:T(256)}", "bf16[32768,3,40]{0,1,2}", "column gather"),
        # Rows of few elements are moved one by one.
        ("bf16[98304,2,5]{2,1,0:T(2,128)}", "bf16[98304,2,5]{0,1,2}", "transpose"),
        ("u8[98304,2,2]{2,1,0:T(256)}", "u8[98304,2,2]{0,1,2}", "transpose"),
        ("bf16[49152,2,3]{2,1,0:T(256)}", "bf16[49152,2,3]{0,1,2}", "transpose"),
        ("c128[12288,2,6]{2,1,0:T(1,128)}", "c128[12288,2,6]{1,2,0}", "block permute"),
    ],
)
def test_short_rows_far_from_each_other_are_expensive(source: str, destination: str, kernel: str) -> None:
    assert {one.kernel for one in chosen(source, destination)[0]} == {kernel}


def test_runs_out_of_sparse_sources_are_asked_for_ahead() -> None:
    """Those of 512 bytes too, but none that lie side by side."""
    for source, is_asked in (("f32[12288,2,128]{2,1,0:T(4,128)}", True), ("f32[12288,4,128]{2,1,0:T(4,128)}", False)):
        (one,) = chosen(source, source[: source.index("{")])[0]
        assert one.kernel == "copy"
        assert (int(one.geometry[STREAM.chunks_ahead]) > 0) == is_asked


def test_columns_that_nothing_continues_are_put_together_with_their_padding() -> None:
    """A transpose would end within lines that the padding after its columns shares."""
    found, _ = chosen("bf16[3932,50,127]{1,2,0}", "bf16[3932,50,127]{2,1,0:T(4,128)(2,1)}")
    assert "column gather" in {one.kernel for one in found}
    assert "transpose" not in {one.kernel for one in found}


def test_columns_within_a_line_of_each_other_are_read_together() -> None:
    """Two bytes of every eight: between those that are read are columns that go nowhere, and no line is read twice."""
    found, _ = chosen("u8[6144,2,127]{2,1,0:T(64,128)(8,1)}", "u8[6144,2,127]{0,1,2}")
    assert {one.kernel for one in found} == {"column gather"}
    blocks = 6144 // 1024
    lines = sum(one.tasks * int(one.geometry[COLUMNS.chunks]) for one in found)
    # 127 times eight bytes; the parts in which they are read may end within lines.
    assert blocks * 16 <= lines <= blocks * (16 + len(found))


def test_what_a_block_repeats_a_little_further_are_columns() -> None:
    """Four tiles make a block, of 4-bit elements beside each other: as columns, all have the same ten rows."""
    found, _ = chosen("s4[393216,1,10]{0,1,2:E(4)}", "s4[393216,1,10]{2,1,0:T(256)E(4)}")
    assert [one.geometry[COLUMNS.rows] for one in found] == [10]


def straight(source: fi.Shape, destination: fi.Shape) -> list[Draft]:
    """The passes that put bytes together straight from the source."""
    context = Context(1, True, TUNING, EPYC_1M)
    for variables, left, right in shared_digits(source, destination):
        found = permuted_blocks(variables, left, right, destination, 8)
        assert found is not None
        made = BlockPermutes(found, (8, 8), context, source.slot_count).straight
        return [one for one in made if one.kernel == "block permute"]
    raise AssertionError


def test_lines_that_blocks_share_but_the_cache_does_not_keep_are_expensive() -> None:
    """983 lines, 50 KiB apart, meet in 32 of the 1024 sets of L2; 640 bytes apart, in 512. With 4 MiB L2 keeps both."""
    near, far = (
        cost(straight(fi.Shape.parse(f"u8[983,{n},2]{{2,1,0:T({tile})}}"), fi.Shape.parse(f"u8[983,{n},2]{{0,1,2}}")))
        / n
        for n, tile in ((5, 128), (50, 1024))
    )
    assert far > 4 * near


def test_arrays_of_petabytes_can_be_planned() -> None:
    # Blocks of elements at both ends of the source: their addresses, vector by vector, do not fit int64.
    sides = "bf16[2,2251799813685248,2]{2,1,0:T(8,128)}", "bf16[2,2251799813685248,2]{0,1,2:T(8,128)(2,1)}"
    assert "transpose" in fi.plan_relayout(*sides).describe()


def test_strides_with_gaps_are_left_alone() -> None:
    shape, strides = fi.Shape.parse("f32[64,1,12]{2,1,0:T(4,128)(2,1)}"), Strides((64, 1, 12), (24, 24, 2))
    found, _ = passes_of(shape, strides)
    assert not any(one.kernel in ("block permute", "column gather") for one in found)


def test_padding_alone_reads_nothing() -> None:
    """An array without elements has no memory to read, whatever its layout pads it to."""
    empty = fi.Shape.parse("bf16[0,3]{0,1:PAD(2,3)T(5,8)(2,1,2)}")
    found, _ = passes_of(Strides((0, 3), (3, 1)), empty)
    assert [one.kernel for one in found] == ["fill"]


def test_room_above_a_cut_moves_no_block() -> None:
    """A block that is cut where its digit has values no more, but room, leaves a digit of one value."""
    shape = fi.Shape.parse("c128[1,2,16,1]{1,2,0,3:T(16,7,5)}")
    side = Strides((1, 2, 16, 1), (32, 16, 1, 1))
    found, _ = passes_of(side, shape)
    slot_bytes = 16
    written = [
        one.destination_start + int(row[1]) for one in found if one.kernel == "block permute" for row in one.tables[0]
    ]
    first = [int(fi.linear_index(shape, (0, 0, k, 0))) * slot_bytes for k in (0, 7, 14)]
    assert sorted(written) == first


@pytest.mark.parametrize("kind", ["u8", "bf16", "f32", "c128"])
@pytest.mark.parametrize("tiles", ["(2,2)(2,2)", "(8,128)(8,1)", "(16,7,5)"])
def test_a_hole_of_one_slot_is_filled(kind: str, tiles: str) -> None:
    """20,011 elements in tiles of 4 leave one slot."""
    source, destination = fi.Shape.parse(f"{kind}[20011]{{0:T{tiles}}}"), f"{kind}[20011]{{0:T(4)}}"
    values = np.random.default_rng(0).integers(0, 100, 20011).astype(source.element_type.numpy_dtype)
    moved = fi.relayout(fi.pack(values, source), source, destination)
    assert np.array_equal(moved, np.append(values, np.zeros(1, values.dtype)))


def test_blocks_larger_than_scratch_memory_are_left_alone() -> None:
    """Here a block would have 656,320 bytes."""
    source, destination = "s4[130,1,2049,1]{0,2,3,1:T(8,128)(4,1)}", "s4[130,1,2049,1]{3,2,1,0:T(7,5)E(4)}"
    for one in chosen(source, destination)[0]:
        place = {"block permute": ASSEMBLY.block_bytes, "column gather": COLUMNS.block_bytes}.get(one.kernel)
        if place is not None:
            assert one.geometry[place] <= MOST_BLOCK_BYTES


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
def test_boxes_that_are_written_through_the_cache_read_the_destination_first(machine: Machine) -> None:
    """Pairs of rows were taken here, for 2.8 times as long."""
    source, destination = (fi.Shape.parse(f"s4[14678,127,54]{{{order}:E(4)}}") for order in ("0,1,2", "2,1,0"))
    problem = movement(source, destination, machine=machine).problem
    found = {plan.name: plan.counts for plan in plans(problem)}
    assert found["pairs"].missed == found["pairs"].lines > 0
    assert select_plan(problem).name == "columns"
