"""The table of copies of real programs: every row that an independent counter finds, with its bytes, and no other.

Tests of: hlo.copies.layout_copies, hlo.attributes, hlo.copies.finding, hlo.copies.rows,
hlo.copies.calls, hlo.copies.chains, hlo.copies.chains.
"""

from __future__ import annotations

import io
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.hlo.copies.rows import CopyRow
from tests.cases.strategies import seeds
from tests.hlo.copies.recorded import COPIES, DATA, OTHERS, name_of, recorded, text_of
from tests.oracles.hlo_copies import copies_of, fused_bytes_of, whole_fusions_of

MODULES = [*COPIES, *OTHERS]


def rows_of(text: str) -> tuple[CopyRow, ...]:
    return fi.hlo.layout_copies(text).rows(all_moves=True)


def row(text: str, instruction: str) -> CopyRow:
    (found,) = [item for item in rows_of(text) if item.instruction == instruction]
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_what_a_regular_expression_counts(path: Path) -> None:
    expected = copies_of(text_of(path))
    found = rows_of(text_of(path))
    assert Counter((item.instruction, item.kind, bool(item.fusion)) for item in found) == Counter(
        (item.instruction, item.kind, item.in_fusion) for item in expected
    )
    alone = Counter((item.instruction, item.nbytes_read, item.nbytes_written) for item in found if not item.fusion)
    assert alone == Counter(
        (item.instruction, item.nbytes_read, item.nbytes_written) for item in expected if not item.in_fusion
    )
    of_fusions = fused_bytes_of(text_of(path))
    for item in found:
        if item.fusion:
            assert (item.nbytes_read, item.nbytes_written) == of_fusions[item.instruction], item.instruction
    whole = whole_fusions_of(text_of(path))
    assert {item.instruction for item in found if item.fusion and item.is_alone} == whole
    assert all(item.is_alone for item in found if not item.fusion)


def test_the_programs_have_all_kinds_on_four_generations() -> None:
    kinds = Counter(item.kind for path in COPIES for item in rows_of(text_of(path)) if not item.fusion)
    assert set(kinds) == {"layout", "reshape", "element type", "memory space", "same layout"}
    assert len(COPIES) == 38
    assert {name_of(path).rpartition("_")[2] for path in COPIES} == {"v4", "v5e", "v5p", "v6e"}


@pytest.mark.parametrize(
    ("program", "instruction", "trips"),
    [
        ("decoder_cache_v5e", "stack_reshape.18", 8),
        ("scanned_layers_v5e", "copy.15", 12),
        ("nested_loops_v4", "copy.24", 7),
        ("nested_loops_v4", "copy.4", 70),
        ("unknown_trips_v5p", "copy.9", None),
        ("unknown_trips_v5p", "copy.8", 1),
        ("branches_v4", "copy.10", 1),
        ("stacked_outputs_v5e", "copy.6", 20),
        ("recomputed_v5p", "copy.25", 3),
        ("loops_without_end_v4", "copy", None),
    ],
)
def test_trips(program: str, instruction: str, trips: int | None) -> None:
    assert row(recorded(program), instruction).trips == trips


@pytest.mark.parametrize(
    ("program", "instruction", "origin", "wanted_by"),
    [
        (
            "decoder_cache_v5e", "copy", "argument 2, cache, is {3,4,2,1,0:T(8,128)(2,1)}",
            "the carry of while.4, element 1, is {4,2,1,0,3:T(8,128)(2,1)}",
        ),
        (
            "decoder_cache_v5e", "copy.1",
            "the carry of while.4, element 1, begun by copy, is {4,2,1,0,3:T(8,128)(2,1)}",
            "result 0 is {3,4,2,1,0:T(8,128)(2,1)}",
        ),
        (
            "embedding_v4", "copy.3", "argument 0, table, is {0,1:T(4,128)}",
            "gather_fusion and scatter_fusion need {1,0:T(8,128)}",
        ),
        (
            "attention_v5e", "copy.7", "fusion.6 writes {2,1,0:T(8,128)(2,1)}",
            "fusion.7 (dot_general) needs {1,2,0:T(8,128)(2,1)}",
        ),
        (
            "branches_v4", "copy.3", "bitcast_add_fusion writes {0,1:T(8,128)}",
            "a branch of cond.7.clone needs {1,0:T(8,128)}",
        ),
        (
            "scanned_weights_v5e", "copy.17",
            "a slice of argument 2, weights['q'], carried by while.2, element 4, is "
            "bf16[12,384,384]{2,1,0:T(8,128)(2,1)}",
            "fusion.49 (dot_general) needs {1,2,0:T(8,128)(2,1)}",
        ),
        (
            "slices_v6e", "copy.13", "a slice of argument 0, x, is f32[64,16,128]{2,1,0:T(8,128)}",
            "result 0 is {2,0,1:T(8,128)}",
        ),
        (
            "nested_loops_v4", "copy.4",
            "the carry of while.22, element 1, begun by slice_bitcast_fusion, is f32[64,100]{1,0:T(8,128)}",
            "reduce_window_sum.2.clone.2 needs {2,1,0:T(8,128)}",
        ),
        (
            "kernel_call_v5e", "copy", "argument 0, x, is {1,0:T(8,128)}",
     "kernel_call.1 (pallas_call) needs {0,1:T(8,128)}",
        ),
    ],
)  # fmt: skip
def test_where_a_layout_comes_from_and_who_wants_another(
    program: str, instruction: str, origin: str, wanted_by: str
) -> None:
    found = row(recorded(program), instruction)
    assert (found.origin, found.wanted_by) == (origin, wanted_by)


def test_cycles_are_those_of_the_text_but_not_placeholders() -> None:
    text = recorded("attention_v5e")
    assert row(text, "copy.9").estimated_cycles == 16128
    # Within the memory of the core the text says 400, whatever the size.
    assert row(text, "copy.7").estimated_cycles is None
    assert '"estimated_cycles":"400"' in text
    # A fusion of a copy and a bitcast.
    assert row(recorded("kernel_call_v5e"), "copy.4").estimated_cycles == 208


def test_a_copy_inside_a_fusion_reads_its_operand_and_writes_its_result() -> None:
    found = row(recorded("kernel_call_v5e"), "copy.4")
    assert found.fusion == "copy_bitcast_fusion"
    # f32[384,4,128] to f32[384,512], without padding.
    assert (found.nbytes_read, found.nbytes_written) == (786432, 786432)


def fusion_of(body: str, result: str) -> str:
    array = result.partition("{")[0]
    return f"""HloModule m, is_scheduled=true
%fused (p: f32[64,600]) -> {array} {{
  %p = f32[64,600]{{1,0}} parameter(0)
{body}
}}
ENTRY %e (a: f32[64,600]) -> {array} {{
  %a = f32[64,600]{{1,0}} parameter(0), metadata={{op_name="x"}}
  ROOT %fusion = {result} fusion(%a), kind=kLoop, calls=%fused, metadata={{source_file="m.py" source_line=4}}
}}
"""


TURN = "%t = f32[600,64]{1,0} transpose(%p), dimensions={1,0}"


@pytest.mark.parametrize(
    ("body", "result", "alone"),
    [
        (f"  ROOT {TURN}", "f32[600,64]{1,0}", {"t": True}),
        (f"  {TURN}\n  ROOT %c = bf16[600,64]{{1,0}} convert(%t)", "bf16[600,64]{1,0}", {"t": True}),
        # The first of several in a row stands for what the fusion reads and writes.
        (f"  {TURN}\n  ROOT %c = f32[600,64]{{0,1}} copy(%t)", "f32[600,64]{0,1}", {"t": True, "c": False}),
        (f"  {TURN}\n  ROOT %n = f32[600,64]{{1,0}} negate(%t)", "f32[600,64]{1,0}", {"t": False}),
    ],
)
def test_a_fusion_of_nothing_but_a_transpose_is_added_up(body: str, result: str, alone: dict[str, bool]) -> None:
    table = fi.hlo.layout_copies(fusion_of(body, result))
    assert {item.instruction: item.is_alone for item in table.copies} == alone
    assert {item.source_text for item in table.copies} == {"m.py:4"}
    first = [item for item in table.copies if item.is_alone]
    assert table.avoidable == tuple(first)
    written = fi.Shape.parse(result).nbytes
    for item in first:
        assert (item.nbytes_read, item.nbytes_written) == (153600, written)
    sums_of = [table.totals.by_kind, table.totals.by_line]
    if len(alone) == 1:
        sums_of.append(table.totals.by_argument)
    for sums in sums_of:
        assert sum(item.moved_nbytes for item in sums) == len(first) * (153600 + written)
    assert ("inside fusions, not added up" in table.text()) == (not all(alone.values()))


@pytest.mark.parametrize(
    ("body", "result", "copies"),
    [
        # The CPU's compiler prints a transpose in which no element moves, but the fusion copies its operand.
        ("  ROOT %t = f32[600,64]{0,1} transpose(%p), dimensions={1,0}", "f32[600,64]{0,1}", ["t"]),
        ("  ROOT %c = f32[64,600]{1,0} copy(%p)", "f32[64,600]{1,0}", ["c"]),
        ("  %c = f32[64,600]{1,0} copy(%p)\n  ROOT %b = bf16[64,600]{1,0} convert(%c)", "bf16[64,600]{1,0}", ["c"]),
        ("  %c = f32[64,600]{1,0} copy(%p)\n  ROOT %d = f32[64,600]{1,0} copy(%c)", "f32[64,600]{1,0}", ["c"]),
        ("  %c = f32[64,600]{1,0} copy(%p)\n  ROOT %n = f32[64,600]{1,0} negate(%c)", "f32[64,600]{1,0}", []),
        (f"  {TURN}\n  ROOT %c = f32[600,64]{{1,0}} copy(%t)", "f32[600,64]{1,0}", []),
    ],
)
def test_a_fusion_that_only_copies_within_one_layout(body: str, result: str, copies: list[str]) -> None:
    table = fi.hlo.layout_copies(fusion_of(body, result))
    found = [item for item in table.copies if item.kind == "same layout"]
    assert [item.instruction for item in found] == copies
    written = fi.Shape.parse(result).nbytes
    for item in found:
        assert (item.is_alone, item.is_avoidable, item.fusion) == (True, False, "fusion")
        assert (item.nbytes_read, item.nbytes_written) == (153600, written)


SCATTERED = """HloModule m, is_scheduled=true

%fused (table: f32[1000,128], one: f32[8,128], where: s32[]) -> f32[1000,128] {
  %table = f32[1000,128]{1,0:T(8,128)} parameter(0)
  %one = f32[8,128]{0,1:T(8,128)} parameter(1)
  %where = s32[]{:T(128)} parameter(2)
  %zero = s32[]{:T(128)} constant(0)
  %slice = f32[8,128]{1,0:T(8,128)} dynamic-slice(%table, %where, %zero), dynamic_slice_sizes={8,128}
  %other = f32[8,128]{0,1:T(8,128)} copy(%slice)
  %sum = f32[8,128]{0,1:T(8,128)} add(%one, %other)
  %back = f32[8,128]{1,0:T(8,128)} copy(%sum)
  ROOT %new = f32[1000,128]{1,0:T(8,128)} dynamic-update-slice(%table, %back, %where, %zero)
}

ENTRY %e (table: f32[1000,128], one: f32[8,128], where: s32[]) -> f32[1000,128] {
  %t = f32[1000,128]{1,0:T(8,128)} parameter(0)
  %o = f32[8,128]{0,1:T(8,128)} parameter(1)
  %w = s32[]{:T(128)} parameter(2)
  ROOT %fusion = f32[1000,128]{1,0:T(8,128)} fusion(%t, %o, %w), kind=kLoop, calls=%fused
}
"""


def test_slices_and_updates_inside_fusions_count_only_their_part() -> None:
    first, second = row(SCATTERED, "other"), row(SCATTERED, "back")
    # Of the table, a tile: 4096 bytes; of the other operand all 128 rows of 128 slots.
    assert first.nbytes_read == 4096
    assert second.nbytes_read == 4096 + 65536
    assert (first.nbytes_written, second.nbytes_written) == (4096, 4096)


LOOP = """HloModule m, is_scheduled=true

%body (c: (s32[], f32[8,256], f32[8,256])) -> (s32[], f32[8,256], f32[8,256]) {
  %c = (s32[], f32[8,256]{1,0}, f32[8,256]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %w = f32[8,256]{1,0} get-tuple-element(%c), index=1
  %x = f32[8,256]{1,0} get-tuple-element(%c), index=2
  %one = s32[] constant(STEP)
  %next = s32[] add(%i, %one)
  %turned = f32[8,256]{0,1} copy(%w)
  %sum = f32[8,256]{0,1} copy(%x)
  %y = f32[8,256]{1,0} custom-call(%turned, %sum), custom_call_target="f"
  ROOT %t = (s32[], f32[8,256]{1,0}, f32[8,256]{1,0}) tuple(%next, %w, %y)
}

%condition (c: (s32[], f32[8,256], f32[8,256])) -> pred[] {
  %c = (s32[], f32[8,256]{1,0}, f32[8,256]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(LIMIT)
  ROOT %less = pred[] compare(OPERANDS), direction=WAY
}

ENTRY %e (w: f32[8,256], x: f32[8,256]) -> (s32[], f32[8,256], f32[8,256]) {
  %w = f32[8,256]{1,0} parameter(0), metadata={op_name="w"}
  %x = f32[8,256]{1,0} parameter(1), metadata={op_name="x"}
  %begin = s32[] constant(BEGIN)
  %t = (s32[], f32[8,256]{1,0}, f32[8,256]{1,0}) tuple(%begin, %w, %x)
  ROOT %while = (s32[], f32[8,256]{1,0}, f32[8,256]{1,0}) while(%t), condition=%condition, body=%bodyKNOWN
}
"""


def loop(begin: int, limit: int, step: int, way: str, operands: str = "%i, %n", known: str = "") -> str:
    values = {"BEGIN": begin, "LIMIT": limit, "STEP": step, "WAY": way, "OPERANDS": operands, "KNOWN": known}
    text = LOOP
    for name, value in values.items():
        text = text.replace(name, str(value))
    return text


@pytest.mark.in_turn(seconds=0.2)
@pytest.mark.parametrize("way", ["LT", "LE", "GT", "GE", "NE"])
def test_loops_run_as_often_as_they_do(way: str) -> None:
    for begin, limit, step in itertools.product((-3, 0, 2, 10), (-4, 0, 9, 10), (-3, -1, 0, 1, 2, 5)):
        check_trips(begin, limit, step, way)


def check_trips(begin: int, limit: int, step: int, way: str) -> None:
    def goes_on(i: int) -> bool:
        return {"LT": i < limit, "LE": i <= limit, "GT": i > limit, "GE": i >= limit, "NE": i != limit}[way]

    counter, trips = begin, 0
    while goes_on(counter) and trips < 100:
        counter, trips = counter + step, trips + 1
    for text in (
        loop(begin, limit, step, way),
        loop(begin, limit, step, {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}.get(way, way), "%n, %i"),
    ):
        found = row(text, "turned").trips
        # A loop that ends only when its counter overflows has no count.
        assert found == (trips if trips < 100 else None)


def test_the_count_that_xla_writes_comes_first() -> None:
    known = ', backend_config={"known_trip_count":{"n":"17"}}'
    assert row(loop(0, 9, 1, "LT", known=known), "turned").trips == 17


def test_copies_that_are_the_same_in_every_trip_say_so() -> None:
    text = loop(0, 9, 1, "LT")
    turned, changing = row(text, "turned"), row(text, "sum")
    assert turned.is_invariant
    assert turned.origin == "argument 0, w, carried by while, element 1, is {1,0}, the same in every trip"
    assert not changing.is_invariant
    assert changing.origin == "the carry of while, element 2, begun by argument 1, x, is {1,0}"
    assert changing.argument is None
    assert turned.wanted_by == "y needs {0,1}"


def test_steps_count_the_instructions_of_loops_once() -> None:
    before, root = loop(0, 9, 1, "LT").split("  ROOT %while = ")
    text = f"""{before}  %while = {root.removesuffix("}" + chr(10))}
  %after = f32[8,256]{{1,0}} get-tuple-element(%while), index=1
  ROOT %last = f32[8,256]{{0,1}} copy(%after)
}}
"""
    # Four instructions before the loop, four of its condition, ten of its body, of which %turned is the seventh.
    steps = {"turned": 4 + 4 + 6, "sum": 4 + 4 + 7, "last": 4 + 4 + 10 + 2}
    assert {item.instruction: item.step for item in rows_of(text)} == steps


def test_totals_are_sums_of_rows() -> None:
    for path in COPIES:
        table = fi.hlo.layout_copies(text_of(path))
        alone = [item for item in table.copies if item.is_alone]
        assert table.totals.all.moved_nbytes == sum(item.moved_nbytes for item in alone)
        avoidable = [item for item in alone if item.kind != "same layout"]
        assert (table.totals.avoidable.count, table.avoidable) == (len(avoidable), tuple(avoidable))
        words = f"{len(avoidable)} of these {len(table.copies)} could be avoided by another layout"
        assert (words in table.summary()) == (0 < len(avoidable) < len(table.copies))
        assert sum(item.moved_nbytes for item in table.totals.by_kind) == table.totals.all.moved_nbytes
        for label in ("by_line", "by_argument"):
            sums = getattr(table.totals, label)
            assert list(sums) == sorted(sums, key=lambda item: -item.moved_nbytes)
            assert sum(item.moved_nbytes for item in sums) <= table.totals.all.moved_nbytes
        assert not any(item.kind == "memory space" for item in table.copies)
        assert {item.kind for item in table.moves} <= {"memory space"}


def test_json_has_the_fields_of_the_documentation() -> None:
    table = fi.hlo.layout_copies(recorded("decoder_cache_v5e"))
    found = json.loads(json.dumps(table.to_json()))
    wanted = (
        "instruction, computation, kind, source, result, nbytes_read, nbytes_written, trips, estimated_cycles, "
        "in_fusion, is_alone, op_name, source_file, source_line, origin, wanted_by"
    )
    assert set(wanted.split(", ")) <= set(found["copies"][0])
    assert found["copies"][0]["nbytes_read"] + found["copies"][0]["nbytes_written"] == 20971520 + 41943040
    assert {item["label"] for item in found["totals"]["by_kind"]} == {"layout", "reshape", "same layout"}
    assert len(table.to_json(top=2)["copies"]) == 2
    assert len(table.to_json(all_moves=True)["copies"]) == len(table.copies) + len(table.moves)


def test_several_modules_files_and_streams(tmp_path: Path) -> None:
    for name in ("points_v5e", "embedding_v4"):
        (tmp_path / f"{name}.txt").write_text(recorded(name))
    table = fi.hlo.layout_copies(tmp_path)
    assert set(table.modules) == {"jit_points", "jit_embedding"}
    assert len(table.copies) == sum(
        len(fi.hlo.layout_copies(recorded(n)).copies) for n in ("points_v5e", "embedding_v4")
    )
    assert (
        fi.hlo.layout_copies(tmp_path / "points_v5e.txt").copies == fi.hlo.layout_copies(recorded("points_v5e")).copies
    )
    assert (
        fi.hlo.layout_copies(io.BytesIO(recorded("points_v5e").encode())).copies
        == fi.hlo.layout_copies(recorded("points_v5e").encode()).copies
    )
    twice = fi.hlo.layout_copies(recorded("points_v5e") + "\n" + recorded("points_v5e"))
    assert twice.modules == ("jit_points", "jit_points (2)")


def test_what_is_not_a_module(tmp_path: Path) -> None:
    assignment = next((DATA / "programs" / "updates").glob("*-buffer-assignment.txt"))
    with pytest.raises(fi.FastIndexError, match="no instructions, so no copies"):
        fi.hlo.layout_copies(assignment)
    with pytest.raises(fi.FastIndexError, match="no HLO instruction"):
        fi.hlo.layout_copies("nothing of the kind\nat all")
    with pytest.raises(fi.FastIndexError, match="an out-of-memory message, without HLO instructions"):
        fi.hlo.layout_copies("Ran out of memory in memory space hbm. Used 17.02G of 15.48G hbm.\n")
    (tmp_path / "bad.txt").write_text("HloModule m\n")
    (tmp_path / "good.txt").write_text(recorded("points_v5e"))
    table = fi.hlo.layout_copies([tmp_path / "bad.txt", tmp_path / "good.txt"])
    assert table.modules == ("jit_points",)
    assert "no HLO instruction" in str(table.problems[0])


def test_before_layouts_are_assigned_there_is_a_note() -> None:
    text = "ENTRY e {\n  p = f32[8,300] parameter(0)\n  ROOT t = f32[300,8] transpose(p), dimensions={1,0}\n}\n"
    assert "before layout assignment" in fi.hlo.layout_copies(f"HloModule m\n\n{text}").notes[0]
    assert fi.hlo.layout_copies(recorded("points_v5e")).notes == ()


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("path", COPIES[::3], ids=name_of)
def test_damaged_text_never_raises_more_than_the_report(path: Path) -> None:
    whole = text_of(path)
    lines = whole.splitlines(keepends=True)
    for seed in seeds(12):
        rng = random.Random(seed)
        damaged = list(lines)
        for _ in range(rng.choice((1, 5, 40))):
            place = rng.randrange(len(damaged))
            match rng.randrange(5):
                case 0:
                    del damaged[place]
                case 1:
                    damaged[place] = damaged[place][: rng.randrange(len(damaged[place]) + 1)]
                case 2:
                    damaged[place], other = damaged[rng.randrange(len(damaged))], damaged[place]
                    damaged[rng.randrange(len(damaged))] = other
                case 3:
                    cut = rng.randrange(len(damaged[place]) + 1)
                    damaged[place] = damaged[place][:cut] + rng.choice('(){}[],%="0') + damaged[place][cut:]
                case 4:
                    damaged[place] = damaged[place].replace("0", str(rng.choice((-1, 7, 10**30))), 1)
        text = "".join(damaged)
        table = fi.hlo.layout_copies(text)
        table.text(top=None, all_moves=True)
        table.html()
        json.dumps(table.to_json(all_moves=True))


COMMANDS = """HloModule m, is_scheduled=true

%command_buffer (p: f32[8,16]) -> (f32[8,16], f32[8,16]) {
  %p = f32[8,16]{1,0} parameter(0)
  %n = f32[8,16]{0,1} negate(%p)
  ROOT %t = (f32[8,16]{1,0}, f32[8,16]{0,1}) tuple(%p, %n)
}

ENTRY %main (a: f32[8,16], b: f32[8,16]) -> f32[8,16] {
  %a = f32[8,16]{1,0} parameter(0)
  %b = f32[8,16]{1,0} parameter(1)
  %call.1 = (f32[8,16]{1,0}, f32[8,16]{0,1}) call(%a), to_apply=%command_buffer
  %passed = f32[8,16]{1,0} get-tuple-element(%call.1), index=0
  %new = f32[8,16]{0,1} get-tuple-element(%call.1), index=1
  %copy.1 = f32[8,16]{0,1} copy(%passed)
  %copy.2 = f32[8,16]{1,0} copy(%new)
  %call.2 = (f32[8,16]{1,0}, f32[8,16]{0,1}) call(%b), to_apply=%command_buffer
  %again = f32[8,16]{1,0} get-tuple-element(%call.2), index=0
  ROOT %copy.3 = f32[8,16]{0,1} copy(%again)
}
"""


def test_the_result_of_a_call_is_that_of_what_it_calls() -> None:
    """As in command buffers of GPUs. What is called again has the operands of its first call."""
    found = {row.instruction: row for row in fi.hlo.layout_copies(COMMANDS).copies}
    assert {name: row.argument for name, row in found.items()} == {"copy.1": 0, "copy.2": None, "copy.3": None}
    assert found["copy.2"].origin.startswith("n writes")
    assert found["copy.3"].origin.startswith("call.2 writes")


def test_computations_that_call_each_other_in_a_circle() -> None:
    text = LOOP.replace('custom-call(%turned, %sum), custom_call_target="f"', "call(%turned, %sum), to_apply=%body")
    for name in ("BEGIN", "LIMIT", "STEP"):
        text = text.replace(name, "1")
    found = fi.hlo.layout_copies(text.replace("OPERANDS", "%i, %n").replace("WAY", "LT").replace("KNOWN", ""))
    assert {item.instruction for item in found.copies} == {"turned", "sum"}


@pytest.mark.parametrize(
    "lines",
    [
        "%p = token[] parameter(0)\n  %r = f32[8,8]{1,0} bitcast(%p)",
        "%p = f32[8,8]{1,0} parameter(0)\n  %q = opaque[] custom-call(%p)\n  %r = f32[8,8]{1,0} async-done(%q)",
        "%p = f32[8,8]{1,0} parameter(0)\n  %r = f32[8,8]{1,0} get-tuple-element(%p)",
        "%p = (f32[8,8]{1,0}, s32[]) parameter(0)\n  %r = f32[8,8]{1,0} get-tuple-element(%p)",
        "%p = (f32[8,8]{1,0}, s32[]) parameter(0)\n  %r = f32[8,8]{1,0} get-tuple-element(%p), index=7",
    ],
)
def test_an_origin_that_is_no_such_array(lines: str) -> None:
    """Damaged: the copy is listed, and its operand's own layout stands for that of the origin."""
    text = f"HloModule m, is_scheduled=true\n\nENTRY e {{\n  {lines}\n  ROOT %c = f32[8,8]{{0,1}} copy(%r)\n}}\n"
    (row,) = fi.hlo.layout_copies(text).rows()
    assert row.kind == "layout"
    assert "{1,0}" in row.origin


@pytest.mark.parametrize("function", [fi.hlo.layout_copies, fi.hlo.report])
def test_what_is_not_compiled_says_how_to(function: Callable[[Any], object]) -> None:
    jax = pytest.importorskip("jax")

    def f(x: Any) -> Any:
        return x.T + 1

    x = np.ones((4, 6), np.float32)
    for program, what in ((jax.jit(f), "a jitted function"), (f, "a function")):
        with pytest.raises(fi.ArgumentTypeError, match=what) as caught:
            function(program)
        assert "jax.jit(f).lower(*arguments).compile()" in str(caught.value)
    with pytest.raises(fi.ArgumentTypeError, match=r"this Traced is not compiled; pass its lower\(\)\.compile\(\)"):
        function(jax.jit(f).trace(x))
    for other in (None, 3, jax.make_jaxpr(f)(x)):
        with pytest.raises(fi.ArgumentTypeError, match=f"{type(other).__name__} is not a program"):
            function(other)


def test_a_lowered_program_says_that_it_is_before_layouts() -> None:
    jax = pytest.importorskip("jax")
    lowered = jax.jit(lambda x: x.T + 1).lower(np.ones((4, 6), np.float32))
    assert "before layout assignment" in fi.hlo.layout_copies(lowered).text()
    assert "before layout assignment" not in fi.hlo.layout_copies(lowered.compile()).text()
