"""Copies as the compilers of today write them: asynchronous slices, fusions of nothing but a copy, carries of loops.

Tests of: hlo.copies.chains, hlo.copies.finding, hlo.modules.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import fastindex as fi
from fastindex.hlo.copies.rows import CopyRow

TEXTS = Path(__file__).resolve().parents[2] / "data" / "hlo" / "copies_of_today"


def read(name: str) -> fi.hlo.LayoutCopies:
    return fi.hlo.layout_copies(TEXTS / f"{name}.hlo")


def rows(table: fi.hlo.LayoutCopies) -> dict[str, CopyRow]:
    return {row.instruction: row for row in table.rows(all_moves=True)}


def test_asynchronous_slices_are_moves_between_memory_spaces() -> None:
    table = read("async_slices")
    found = rows(table)
    assert set(found) == {"copy.1", "slice-start", "slice-start.1", "dynamic-slice-start"}
    for name in ("slice-start", "slice-start.1"):
        row = found[name]
        assert (row.kind, row.opcode, row.computation) == ("memory space", "slice-start", "main")
        assert (row.nbytes_read, row.nbytes_written, row.argument) == (160 * 1280 * 4, 160 * 1280 * 4, 0)
        assert row.origin.startswith("a slice of argument 0, w,")
    cache = found["dynamic-slice-start"]
    assert (cache.nbytes_read, cache.argument_path) == (200 * 384 * 4, "cache")
    assert str(cache.source) == "f32[1,200,300]{2,1,0:T(8,128)S(5)}"
    assert sum(row.nbytes_read for row in table.moves) == 2 * 819200 + 307200


def test_what_slices_are_put_together_to_is_the_argument() -> None:
    table = read("async_slices")
    copy = rows(table)["copy.1"]
    assert (copy.argument, copy.argument_path) == (0, "w")
    assert copy.origin == "argument 0, w, is {1,0:T(8,128)}"
    assert [(item.label, item.moved_nbytes) for item in table.totals.by_argument] == [
        ("argument 0, w", copy.moved_nbytes)
    ]


def test_slices_of_two_arrays_are_neither() -> None:
    text = (TEXTS / "async_slices.hlo").read_text()
    second = "%slice-start.1 = ((f32[320,1200]{1,0:T(8,128)})"
    other = text.replace(second, "%v = f32[320,1200]{1,0:T(8,128)} parameter(3)\n  " + second)
    other = other.replace("slice-start(%w), slice={[160", "slice-start(%v), slice={[160")
    assert rows(fi.hlo.layout_copies(other))["copy.1"].argument is None


def test_a_loop_that_offloads_shows_its_traffic() -> None:
    (row,) = read("offload").moves
    assert (row.instruction, row.kind, row.trips, row.computation) == ("s", "memory space", 4, "body")
    assert (row.nbytes_read, row.nbytes_written) == (200 * 384 * 4, 200 * 384 * 4)
    assert (str(row.source), str(row.result)) == (
        "f32[1,200,300]{2,1,0:T(8,128)}", "f32[1,200,300]{2,1,0:T(8,128)S(5)}",
    )  # fmt: skip
    assert row.argument_path == "x"
    assert "the carry of w, element 1" in row.wanted_by


def test_what_the_host_copies() -> None:
    """Of an optimizer whose state is in the memory of the host."""
    text = """HloModule m, is_scheduled=true

%on_host (p: f32[8,384]) -> f32[8,384] {
  %p = f32[8,384]{1,0} parameter(0)
  ROOT %copy.1 = f32[8,384]{1,0} copy(%p)
}, execution_thread="host"

ENTRY %main (a: f32[8,384]) -> f32[8,384] {
  %a = f32[8,384]{1,0:T(8,128)S(5)} parameter(0)
  %start = ((f32[8,384]{1,0:T(8,128)S(5)}), f32[8,384]{1,0:T(8,128)S(5)}, u32[]{:S(2)}) custom-call-start(%a), \
async_execution_thread="host", custom_call_target="HostExecute", called_computations={%on_host}
  ROOT %done = f32[8,384]{1,0:T(8,128)S(5)} custom-call-done(%start)
}
"""
    (row,) = fi.hlo.layout_copies(text).copies
    assert (row.instruction, row.computation, row.kind, row.trips) == ("copy.1", "on_host (host)", "same layout", 1)
    assert (row.moved_nbytes, row.argument) == (2 * 8 * 384 * 4, 0)


def test_a_carry_is_not_the_argument_that_begins_it() -> None:
    table = read("carry_is_not_the_argument")
    copy = rows(table)["copy.1"]
    assert copy.origin == "the carry of while, element 1, begun by argument 0, h, is {1,0:T(8,128)}"
    assert copy.argument is None
    assert [(item.label, item.moved_nbytes) for item in table.totals.by_argument] == [("argument 0, h", 2 * 131072)]


def test_a_fusion_of_nothing_but_a_transpose_counts() -> None:
    table = read("wrapped_transpose")
    (row,) = table.copies
    assert (row.kind, row.trips, row.is_alone, row.fusion) == ("transpose", 32, True, "wrapped_transpose")
    assert (row.source_text, row.argument, row.is_invariant) == ("m.py:4", 0, True)
    total = table.totals
    assert (total.all.count, total.all.fused_count) == (1, 0)
    assert (total.all.nbytes_read, total.all.nbytes_written) == (32 * 153600, 32 * 153600)
    assert [(item.label, item.moved_nbytes) for item in total.by_line] == [("m.py:4", 64 * 153600)]
    assert [(item.label, item.moved_nbytes) for item in total.by_argument] == [("argument 0, a", 64 * 153600)]


def test_transposes_around_a_segment_sum_on_the_cpu() -> None:
    """jaxlib 0.10.2 transposes f32[64,600] before the scatter and f32[200,64] after it, each in a fusion."""
    total = read("segment_sum_cpu").totals
    assert (total.all.nbytes_read, total.all.nbytes_written) == (204800, 204800)
    assert [(item.label, item.moved_nbytes) for item in total.by_argument] == [("argument 0, x", 307200)]
    assert [item.moved_nbytes for item in total.by_line] == [409600]


def fusion(*lines: str, result: str = "f32[3,5]{1,0}", more: str = "") -> fi.hlo.LayoutCopies:
    body = "\n".join(f"  {line}" for line in lines)
    return fi.hlo.layout_copies(
        f"HloModule m, is_scheduled=true\n\n{more}%fused (p: f32[5,3]) -> f32[3,5] {{\n{body}\n}}\n\n"
        "ENTRY %main (a: f32[5,3]) -> f32[3,5] {\n  %a = f32[5,3]{1,0} parameter(0)\n"
        f"  ROOT %f = {result} fusion(%a), kind=kLoop, calls=%fused\n}}\n"
    )


PARAMETER = "%p = f32[5,3]{1,0} parameter(0)"


@pytest.mark.parametrize(
    ("lines", "moved"),
    [
        # A transpose and the copy of its result read and write once.
        ((PARAMETER, "%t = f32[3,5]{0,1} transpose(%p), dimensions={1,0}", "ROOT %c = f32[3,5]{1,0} copy(%t)"), 120),
        (
            (
                PARAMETER, "%t = f32[3,5]{1,0} transpose(%p), dimensions={1,0}",
                "%c = f32[3,5]{0,1} copy(%t)", "ROOT %d = f32[3,5]{1,0} copy(%c)",
            ),
            120,
        ),
        (
            (
                PARAMETER, "%t = f32[3,5]{1,0} transpose(%p), dimensions={1,0}",
                "ROOT %c = bf16[3,5]{1,0} convert(%t)",
            ),
            90,
        ),
        # A fusion that also computes would read and write anyway.
        (
            (
                PARAMETER, "%t = f32[3,5]{1,0} transpose(%p), dimensions={1,0}",
                "ROOT %c = f32[3,5]{1,0} negate(%t)",
            ),
            0,
        ),
    ],
    ids=["transpose, copy", "transpose, copies", "transpose, convert", "transpose, negate"],
)  # fmt: skip
def test_fusions_that_only_move(lines: tuple[str, ...], moved: int) -> None:
    result = "bf16[3,5]{1,0}" if "convert" in lines[-1] else "f32[3,5]{1,0}"
    assert fusion(*lines, result=result).totals.all.moved_nbytes == moved


def test_several_copies_in_one_fusion_count_each() -> None:
    table = fusion(
        PARAMETER,
        "%c = f32[5,3]{0,1} copy(%p)",
        "%t = f32[3,5]{1,0} transpose(%p), dimensions={1,0}",
        "ROOT %r = (f32[5,3]{0,1}, f32[3,5]{1,0}) tuple(%c, %t)",
        result="(f32[5,3]{0,1}, f32[3,5]{1,0})",
    )
    assert (table.totals.all.count, table.totals.all.nbytes_written) == (2, 120)


def test_a_copy_in_a_fusion_within_a_fusion_that_computes_does_not_count() -> None:
    inner = (
        "%inner (q: f32[5,3]) -> f32[3,5] {\n  %q = f32[5,3]{1,0} parameter(0)\n"
        "  ROOT %t = f32[3,5]{1,0} transpose(%q), dimensions={1,0}\n}\n\n"
    )
    call = "%g = f32[3,5]{1,0} fusion(%p), kind=kLoop, calls=%inner"
    alone = fusion(PARAMETER, f"ROOT {call}", more=inner)
    computing = fusion(PARAMETER, call, "ROOT %n = f32[3,5]{1,0} negate(%g)", more=inner)
    assert (alone.totals.all.moved_nbytes, computing.totals.all.moved_nbytes) == (120, 0)
    assert [row.fusion for row in (*alone.copies, *computing.copies)] == ["f", "f"]


def test_the_first_part_of_an_array_written_as_a_bitcast_is_a_slice() -> None:
    (row,) = fi.hlo.layout_copies(
        "HloModule m, is_scheduled=true\n\nENTRY %main (a: f32[96,10]) -> f32[96,9] {\n"
        "  %a = f32[96,10]{0,1:T(8,128)} parameter(0)\n  %r = f32[96,10]{0,1:T(8,128)} sine(%a)\n"
        "  %b = f32[96,9]{0,1:T(8,128)} bitcast(%r)\n  ROOT %c = f32[96,9]{1,0:T(8,128)} copy(%b)\n}\n"
    ).copies
    assert row.origin == "a slice of r writes f32[96,10]{0,1:T(8,128)}"


def test_modules_before_optimisation_say_so_and_modules_of_scalars_do_not() -> None:
    before = read("before_optimizations")
    (note,) = before.notes
    assert note.startswith("before layout assignment")
    assert "no data moves" not in before.text()
    assert read("scalars_only").notes == ()
    assert not any(
        "before layout" in note for use in fi.hlo.report(TEXTS / "scalars_only.hlo").modules for note in use.notes
    )
    both = fi.hlo.layout_copies([TEXTS / "before_optimizations.hlo", TEXTS / "scalars_only.hlo"])
    (note,) = both.notes
    assert note.startswith("jit_f: before layout assignment")


def test_a_call_that_binds_its_operands_late() -> None:
    report = fi.hlo.report(TEXTS / "late_bound_async.hlo")
    names = {place.instruction: use.nbytes for use in report.uses for place in use.places}
    # The result of the call is a buffer; the contexts are those of the start.
    assert names["call-update"] == 384 * 512 * 2
    assert sum(use.count for use in report.uses if str(use.shape).startswith("s32[8192]")) == 1
    found = rows(read("late_bound_async"))
    assert found["copy.1"].origin == "call-update writes {1,0:T(8,128)(2,1)}"


def test_an_asynchronous_call_of_nothing_has_no_row() -> None:
    """A damaged module: the computation that is called has no instructions."""
    text = """HloModule m, is_scheduled=true

%wrapped (p: f32[8]) -> f32[8] {
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %t = ((f32[8]{0}), f32[8]{0}, u32[]) async-start(%a), calls=%wrapped
  ROOT %r = f32[8]{0} async-done(%t)
}
"""
    assert fi.hlo.layout_copies(text).copies == ()
