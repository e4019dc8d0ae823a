"""What a TPU's compiler assigns, from the text alone: small pieces of what libtpu 0.0.52 printed.

The sizes expected are those of its buffer assignments.

Tests of: hlo.flow.fast_memory, hlo.flow.bytes_accessed, hlo.flow.liveness, hlo.module_uses, hlo.shape_table,
hlo.reports, hlo.divisions, hlo.read.dumps.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fastindex as fi
from fastindex.hlo.flow.buffers import module_buffers
from fastindex.hlo.flow.fast_memory import FastBuffer, FastUse, fast_nbytes
from fastindex.hlo.modules import Module, ModuleReader
from fastindex.hlo.scanner import HloScanner
from fastindex.hlo.shape_table import ShapeTable

FAST = "f32[256,1024]{1,0:T(8,128)S(1)}"
MAIN = "f32[256,1024]{1,0:T(8,128)}"
MIB = 1 << 20
#: Of the last table of a program for a TPU.
TABLE = 512


def module(*lines: str, before: str = "", header: str = "is_scheduled=true") -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule m, {header}\n\n{before}\nENTRY %main (a: f32[8]) -> f32[8] {{\n{body}\n}}\n"


def peaks(text: str) -> dict[int, int | None]:
    return {space.memory_space: space.peak_nbytes for space in fi.hlo.report(text).memory_spaces}


def config(lists: str) -> str:
    return f'backend_config={{"flag_configs":[],"aliasing_operands":{{"lists":[{lists}]}}}}'


FUSED = f"""%fused (p: f32[256,1024], q: f32[256,1024]) -> f32[256,1024] {{
  %p = {FAST} parameter(0)
  %q = {FAST} parameter(1)
  ROOT %subtract.1 = {FAST} subtract(%p, %q)
}}
"""


@pytest.mark.parametrize("opcode", ["fusion", "subtract"])
@pytest.mark.parametrize(
    ("lists", "nbytes"),
    # Where the text does not say, an elementwise operation may be written over its operand.
    [("", 3 * MIB), ('{"indices":["0","2"]}', 2 * MIB), ('{"indices":["1","2"]}', 2 * MIB), (None, 2 * MIB)],
)
def test_operands_share_memory_with_results_as_listed(opcode: str, lists: str | None, nbytes: int) -> None:
    attributes = ", kind=kLoop, calls=%fused" if opcode == "fusion" else ""
    attributes += f", {config(lists)}" if lists is not None else ""
    text = module(
        f"%a = {MAIN} parameter(0)",
        f"%copy.1 = {FAST} copy(%a)",
        f"%copy.2 = {FAST} copy(%a)",
        f"%result = {FAST} {opcode}(%copy.1, %copy.2){attributes}",
        f"ROOT %copy.3 = {MAIN} copy(%result)",
        before=FUSED,
    )
    assert peaks(text)[1] == nbytes


def test_a_result_of_several_shares_memory_as_listed() -> None:
    """Three operands are written over, by the second, the first and the third result; the fourth is not."""
    lists = ",".join(f'{{"indices":["{operand}","{result}"]}}' for operand, result in ((0, 5), (1, 4), (2, 6)))
    text = module(
        f"%a = {MAIN} parameter(0)",
        *(f"%copy.{i} = {FAST} copy(%a)" for i in range(4)),
        f"%f = ({FAST}, {FAST}, {FAST}) fusion(%copy.0, %copy.1, %copy.2, %copy.3), kind=kLoop, calls=%x, "
        f"{config(lists)}",
        f"%e = {FAST} get-tuple-element(%f), index=1",
        f"ROOT %copy.5 = {MAIN} copy(%e)",
    )
    assert peaks(text)[1] == 4 * MIB
    fast = next(use for use in fi.hlo.report(text).uses if str(use.shape) == FAST)
    assert [place.instruction for place in fast.places] == [f"copy.{i}" for i in range(4)]


def test_tables_of_tuples_begin_16_kib_apart() -> None:
    """Of quantised_v6e, less a copy: three tuples that copies make, all of them there all the time."""
    starts = [
        line
        for i in range(3)
        for line in (
            f"%start.{i} = ({FAST}, {MAIN}, u32[]{{:S(2)}}) copy-start(%a)",
            f"%done.{i} = {FAST} copy-done(%start.{i})",
        )
    ]
    report = fi.hlo.report(module(f"%a = {MAIN} parameter(0)", *starts, f"ROOT %r = {MAIN} copy(%done.2)"))
    assert report.table_nbytes == 2 * 16384 + TABLE
    assert report.peak_nbytes == 2 * MIB + 2 * 16384 + TABLE


LOOP = f"""%body (c: (s32[], f32[256,1024])) -> (s32[], f32[256,1024]) {{
  %c = (s32[]{{:T(128)}}, {MAIN}) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%c), index=0
  %x = {MAIN} get-tuple-element(%c), index=1
  ROOT %n = (s32[]{{:T(128)}}, {MAIN}) tuple(%i, %x)
}}

%condition (d: (s32[], f32[256,1024])) -> pred[] {{
  %d = (s32[]{{:T(128)}}, {MAIN}) parameter(0)
  ROOT %less = pred[]{{:T(512)}} custom-call(%d)
}}
"""


def test_a_loop_has_one_table() -> None:
    """Its initial tuple, the parameter and the root of its body, and its result."""
    carry = f"(s32[]{{:T(128)}}, {MAIN})"
    text = module(
        f"%a = {MAIN} parameter(0)",
        "%zero = s32[]{:T(128)} constant(0)",
        f"%copy = {MAIN} copy(%a)",
        f"%init = {carry} tuple(%zero, %copy)",
        f"%loop = {carry} while(%init), condition=%condition, body=%body",
        f"ROOT %out = {MAIN} get-tuple-element(%loop), index=1",
        before=LOOP,
    )
    assert fi.hlo.report(text).table_nbytes == TABLE


def test_late_contexts_have_memory_that_nothing_else_gets() -> None:
    """Two calls to the sparse core, as in embedded_tpu7x: they share scratch memory, though the second starts early.

    Each start makes a tuple and one in it, with contexts, each update a tuple with two: operands and contexts.
    """
    context, array = "s32[8192]{0:T(1024)}", "bf16[384,512]{1,0:T(8,128)(2,1)}"
    starts = [f'%start.{i} = ((), (), ({context})) custom-call-start(), custom_call_target="x"' for i in range(2)]
    calls = [
        line
        for i, operand in ((0, "a"), (1, "done.0"))
        for line in (
            f"%update.{i} = (({array}), {array}, ({context})) custom-call-update(%start.{i}, %{operand}), "
            "output_to_operand_aliasing={{2,0}: (0, {2,0})}",
            f"%done.{i} = {array} custom-call-done(%update.{i})",
        )
    ]
    text = module(f"%a = {array} parameter(0)", *starts, *calls, f"ROOT %r = {array} copy(%done.1)")
    nbytes = 384 * 512 * 2
    tables = 9 * 16384 + TABLE
    assert fi.hlo.report(text).table_nbytes == tables
    # The argument, the result, the scratch memory, and in the heap what the two calls make.
    assert fi.hlo.report(text).peak_nbytes == 2 * nbytes + 32768 + 2 * nbytes + tables


def test_buffers_take_the_smallest_hole_that_holds_them() -> None:
    """Of offloaded_v5p: in the order of the schedule, each at a multiple of 16 KiB; else the heap grows."""
    rows = {"big": 512, "small": 64, "next": 384, "other": 256}
    shapes = {name: f"f32[{count},128]{{1,0:T(8,128)}}" for name, count in rows.items()}
    text = module(
        f"%a = {MAIN} parameter(0)",
        f"%big = {shapes['big']} custom-call(%a)",
        f"%small = {shapes['small']} custom-call(%big)",
        f"%next = {shapes['next']} custom-call(%small)",
        f"%other = {shapes['other']} custom-call(%next)",
        f"ROOT %r = {MAIN} custom-call(%small, %next, %other)",
    )
    # next lies where big was, 128 rows of it are left, and other comes after small; alive are 384 + 64 + 256 rows.
    assert fi.hlo.report(text).peak_nbytes == 2 * MIB + (512 + 64 + 256) * 512


@pytest.mark.parametrize(
    ("shape", "nbytes"),
    [
        ("s32[2]{0:S(4)}", 4096), ("f32[]", 4096), ("pred[]{:S(6)}", 1024), ("bf16[3]{0}", 2048),
        ("f32[1025]{0}", 8192), ("u32[]{:S(2)}", 4), ("s32[127]{0:S(8)}", 508), ("s32[0]{0}", 0),
        ("s32[128]{0:T(1)L(128)S(4)}", 512),
        ("s32[3,240]{1,0:T(4,128)S(1)SC(1:128)}", 2048), ("f32[24,200]{1,0:T(8,128)S(1)SC(0:16)}", 16384),
        ("f32[40,24,100]{2,1,0:T(8,128)S(1)SC(0:20)}", 245760),
    ],
)  # fmt: skip
def test_what_an_array_takes(shape: str, nbytes: int) -> None:
    """Without tiles, units of 1,024 elements; of an array divided over two cores, each has its part."""
    report = fi.hlo.report(
        module(f"%a = {MAIN} parameter(0)", f"%b = {shape} custom-call(%a)", f"ROOT %r = {MAIN} copy(%a)")
    )
    assert {str(use.shape): use.nbytes for use in report.uses}[str(fi.Shape.parse(shape))] == nbytes


def test_arrays_elsewhere_take_their_elements() -> None:
    report = fi.hlo.report(module("%a = f32[3]{0} parameter(0)", "ROOT %b = f32[3]{0} negate(%a)"))
    assert report.peak_nbytes == 2 * 12


SLICED = "f32[64,1024]{1,0:T(8,128)S(1)}"


STARTED = f"(({MAIN}), {SLICED}, s32[]{{:S(2)}})"


def slices(in_full: bool = False) -> list[tuple[str, str]]:
    """Start and end of four slices; in full they call computations, which `SLICE_COMPUTATIONS` has."""
    how = [f"async-start(%a), calls=%slice.{i}" if in_full else f"slice-start(%a), {FIRST_ROWS}" for i in range(4)]
    done = "async-done" if in_full else "slice-done"
    return [(f"%start.{i} = {STARTED} {how[i]}", f"%done.{i} = {SLICED} {done}(%start.{i})") for i in range(4)]


FIRST_ROWS = "slice={[0:64], [0:1024]}"
SLICE_COMPUTATIONS = "".join(
    f"%slice.{i} (p: f32[256,1024]) -> f32[64,1024] {{\n  %p = {MAIN} parameter(0)\n"
    f"  ROOT %s = {SLICED} slice(%p), {FIRST_ROWS}\n}}\n\n"
    for i in range(4)
)
WHOLE = f'%whole = {FAST} custom-call(%done.0, %done.1, %done.2, %done.3), custom_call_target="ConcatBitcast"'


@pytest.mark.parametrize("in_full", [False, True])
def test_a_prefetch_in_slices_takes_its_memory_slice_by_slice(in_full: bool) -> None:
    """Of adam_v5e: while a buffer of 1 MiB comes in four slices, another one of 512 KiB ends before the last two."""
    other = "f32[128,1024]{1,0:T(8,128)S(1)}"
    lines = slices(in_full)
    text = module(
        f"%a = {MAIN} parameter(0)",
        f"%other = {other} custom-call(%a)",
        *lines[0], *lines[1],
        f"%used = {other} custom-call(%other)",
        f"%ended = {MAIN} custom-call(%used)",
        *lines[2], *lines[3],
        WHOLE,
        f"ROOT %r = {MAIN} copy(%whole)",
        before=SLICE_COMPUTATIONS if in_full else "",
    )  # fmt: skip
    # Two slices with both of the others, then four slices, then the whole.
    assert peaks(text)[1] == MIB // 2 + 2 * MIB // 2
    fast = {str(use.shape): use.count for use in fi.hlo.report(text).uses if use.memory_space == 1}
    assert fast == {FAST: 1, other: 2}


def fetched(number: int, source: str, shape: str = FAST, attributes: str = "") -> tuple[str, str]:
    """A copy to the fast memory: its start, and its end."""
    return (
        f"%start.{number} = ({shape}, {shape.replace('S(1)', '')}, u32[]{{:S(2)}}) copy-start({source}){attributes}",
        f"%done.{number} = {shape} copy-done(%start.{number})",
    )


@pytest.mark.parametrize(("attributes", "nbytes"), [("", MIB), (", cross_program_prefetch_index=0", 2 * MIB)])
def test_what_is_fetched_for_the_next_run_stays(attributes: str, nbytes: int) -> None:
    """Of decoding_v6e: the weights that it needs first are there again at its end."""
    text = module(
        f"%a = {MAIN} parameter(0)",
        *fetched(0, "%a", attributes=attributes),
        f"%b = {MAIN} custom-call(%done.0)",
        f"%c = {FAST} custom-call(%b)",
        f"ROOT %r = {MAIN} copy(%c)",
    )
    assert peaks(text)[1] == nbytes


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize(("donated", "in_tuple", "nbytes"), [(False, True, 1), (True, True, 2), (True, False, 1)])
def test_the_place_of_a_value_that_is_used_again_is_not_given_away(
    donated: bool, in_tuple: bool, nbytes: int, sliced: bool
) -> None:
    """Of adam_v5e: the result goes to the argument's memory, so the argument might have been kept until the end.

    The second copy has more readers, and gets its place first. Of switch_v5p: without a tuple, the end is not a use.
    """
    text = module(
        f"%a = {MAIN} parameter(0)",
        *((line for lines in slices() for line in lines) if sliced else fetched(0, "%a")),
        WHOLE if sliced else f"%whole = {FAST} bitcast(%done.0)",
        f"%between = {MAIN} negate(%whole)",
        f"%after = {MAIN} negate(%between)",
        *fetched(9, "%after"),
        f"%read = {MAIN} negate(%done.9)",
        f"{'' if in_tuple else 'ROOT '}%r = {MAIN} add(%done.9, %read)",
        *([f"ROOT %t = ({MAIN}) tuple(%r)"] if in_tuple else []),
        header="is_scheduled=true"
        + (f", input_output_alias={{ {'{0}' if in_tuple else '{}'}: (0, {{}}, may-alias) }}" if donated else ""),
    )
    assert peaks(text)[1] == nbytes * MIB


ELEMENT = f"%e = {MAIN} get-tuple-element(%t), index=1"
FLAT = "f32[1,256,1024]{2,1,0:T(8,128)S(1)}"
ROW, FAST_ROW = "f32[128]{0:T(128)}", "f32[128]{0:T(128)S(1)}"
ONE = "f32[1]{0:T(128)}"


@pytest.mark.parametrize(
    ("lines", "nbytes"),
    [
        # Of fp8_v5p: the last argument, read at once.
        ([f"%b = {ROW} parameter(2)", f"%n = {ROW} negate(%b)"], 1),
        ([f"%b = {ROW} parameter(2)", f"%m = {ROW} abs(%s)", f"%n = {ROW} negate(%b)"], 2),
        # A scalar is never in fast memory.
        ([f"%b = {ONE} parameter(2)", f"%n = {ONE} negate(%b)"], 2),
        # Of seg_v4: argument 3 followed before it was moved to the start of the program.
        ([f"%p = {ROW} parameter(3)", *fetched(7, "%p", FAST_ROW, ", cross_program_prefetch_index=0"),
          f"%b = {ROW} parameter(2)", f"%n = {ROW} negate(%b)"], 2),
        # Of ctc_v6e: the result of an asynchronous call.
        ([f"%b = (({ROW}), {ROW}) abs-start(%s)", f"%d = {ROW} abs-done(%b)", f"%n = {ROW} negate(%d)"], 1),
        # Of seqt_v5p: the result of an instruction that does not write to fast memory; others like it do.
        ([f"%m = {ROW} abs(%s)", f"%n = {ROW} negate(%m)"], 1),
        ([f"%m = {ROW} abs(%s)", f"%n = {ROW} negate(%m)", f"%o = {FAST_ROW} abs(%s)", f"%q = {ROW} add(%o, %o)"], 2),
    ],
)  # fmt: skip
def test_if_one_value_cannot_be_fetched_in_time_all_get_new_places(lines: list[str], nbytes: int) -> None:
    """Nothing gets the place of a copy that could be kept until the end, unless all are placed by their live ranges."""
    text = module(
        f"%s = {ROW} parameter(0)",
        f"%a = {MAIN} parameter(1)",
        *lines,
        *fetched(0, "%a"),
        f"%between = {MAIN} negate(%done.0)",
        f"%after = {MAIN} negate(%between)",
        *fetched(9, "%after"),
        f"%read = {MAIN} negate(%done.9)",
        f"%r = {MAIN} add(%done.9, %read)",
        f"ROOT %t = ({MAIN}) tuple(%r)",
        header="is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias) }",
    )
    assert peaks(text)[1] == pytest.approx(nbytes * MIB, rel=0.01)


@pytest.mark.parametrize(
    ("lines", "duration"),
    [
        # Of swin_v6e: the compiler repeats a bitcast for each user; there was one, directly after the buffer.
        (
            [f"%b = {FLAT} bitcast(%x)", f"%o = {FLAT} abs(%b)", f"%c = {FLAT} bitcast(%x)", f"%n = {FLAT} negate(%c)"],
            3,
        ),
        ([f"%b = {FLAT} bitcast(%other)", f"%n = {FLAT} subtract(%x, %b)"], 1),
        ([f"%b = {FLAT.replace('S(1)', '')} bitcast(%a)", f"%n = {FLAT} subtract(%x, %b)"], 2),
        # An element of a tuple was taken where its copy ends.
        ([ELEMENT, fetched(9, "%e")[0], f"%n = {FLAT} negate(%x)", fetched(9, "%e")[1]], 1),
        ([ELEMENT, fetched(9, "%a")[0], f"%n = {FLAT} negate(%x)", fetched(9, "%a")[1]], 2),
        ([ELEMENT, *fetched(9, "%e"), f"%n = {FLAT} negate(%x)"], 2),
        ([ELEMENT, f"%o = {MAIN} abs(%a)", *fetched(9, "%e"), f"%n = {FLAT} negate(%x)"], 3),
    ],
)
def test_for_how_many_instructions_a_buffer_was_there_when_it_got_its_place(lines: list[str], duration: int) -> None:
    """As counted in the log of ``TPU_VMODULE=algorithm=5``."""
    text = module(
        f"%a = {MAIN} parameter(0)",
        f"%t = ({MAIN}, {MAIN}) custom-call(%a)",
        f"%other = {FAST} exponential(%a)",
        f"%x = {FAST} negate(%a)",
        *lines,
        f"ROOT %r = {MAIN} abs(%other)",
    )
    found = module_buffers(parsed(text), ShapeTable())
    names = {number: found.owners[number].names()[found.places[number]] for number in found.fast}
    assert [use.duration for number, use in found.fast.items() if names[number] == "x"] == [duration]


def parsed(text: str) -> Module:
    modules: list[Module] = []
    reader = ModuleReader(modules.append)
    scanner = HloScanner(reader)
    scanner.feed(text.encode())
    scanner.close()
    reader.finish()
    return modules[0]


def test_tiles_after_dimension_types_are_those_of_a_tpu() -> None:
    for layout, is_for_tpu in (("0:D(D)T(1024)", True), ("0:T(1024)", True), ("0:D(D)", False)):
        assert (
            parsed(f"HloModule m\nENTRY e {{\n  ROOT p = f32[9]{{{layout}}} parameter(0)\n}}\n").is_for_tpu
            is is_for_tpu
        )


@pytest.mark.parametrize(("numbers", "last"), [([0, 1, 2], 2), ([2, 1, 0], 2), ([3, 0, 1, 2], 0), ([0, 3, 2, 1], 0)])
def test_the_last_parameter_before_one_was_moved_to_the_start(numbers: list[int], last: int) -> None:
    lines = [f"%p{number} = {MAIN} parameter({number})" for number in numbers]
    entry = parsed(module(*lines, f"ROOT %n = {MAIN} negate(%p0)")).entry
    assert entry is not None
    assert entry.last_parameter() == last


@pytest.mark.parametrize(("first", "nbytes"), [(3, 2), (1, 1)])
def test_a_place_is_free_between_live_ranges_too(first: int, nbytes: int) -> None:
    """Of kal_v5e: a loop value that each trip overwrites, and a value that is placed before or after it."""
    within = FastBuffer(4096, [(4, 4096)], [(4, 5)], FastUse(5, first))
    around = FastBuffer(4096, [(0, 4096)], [(0, 2), (8, 9)], FastUse(9, 2))
    assert fast_nbytes([within, around]) == nbytes * 4096


def test_offsets_in_the_fast_memory_are_aligned() -> None:
    """Of adam_v5e: 512 bytes at a multiple of 4,096."""
    small = "f32[128]{0:T(128)S(1)}"
    text = module(
        f"%a = {MAIN} parameter(0)",
        f"%small = {small} custom-call(%a)",
        f"%b = {FAST} negate(%a)",
        f"%c = {small} custom-call(%b, %small)",
        f"ROOT %r = {MAIN} custom-call(%b, %small, %c)",
    )
    assert peaks(text)[1] == MIB + 4096 + 512


FIRST, ROWS, SMALL = FAST.replace("256", "512"), MAIN.replace("256", "8"), "f32[8]{0:T(128)}"
MANY, WHOLE_RESULT = MAIN.replace("256", "64"), MAIN.replace("256", "512")
READERS = f"""%region (p: f32[], q: f32[]) -> f32[] {{
  %p = f32[] parameter(0)
  ROOT %q = f32[] parameter(1)
}}

%passing (p: f32[512,1024], q: f32[8]) -> (f32[512,1024], f32[8]) {{
  %p = {FIRST} parameter(0)
  %q = {SMALL} parameter(1)
  %n = {SMALL} negate(%q)
  ROOT %t = ({FIRST}, {SMALL}) tuple(%p, %n)
}}

%slicing (p: f32[512,1024]) -> f32[8,1024] {{
  %p = {FIRST} parameter(0)
  ROOT %s = {ROWS} slice(%p), slice={{[0:8], [0:1024]}}
}}

%calling (p: f32[512,1024]) -> f32[8,1024] {{
  %p = {FIRST} parameter(0)
  ROOT %f = {ROWS} fusion(%p), kind=kLoop, calls=%slicing
}}

%damaged (p: f32[512,1024]) -> f32[512,1024] {{
  %p = {FIRST} parameter(999999999)
  ROOT %n = {FIRST} negate(%p)
}}

%negating (p: f32[512,1024]) -> f32[512,1024] {{
  %p = {FIRST} parameter(0)
  ROOT %n = {FIRST} negate(%p)
}}

%multiplying (p: f32[512,1024]) -> f32[512,1024] {{
  %p = {FIRST} parameter(0)
  ROOT %f = {WHOLE_RESULT} fusion(%p), kind=kOutput, calls=%negating
}}

%gathering (p: f32[512,1024], q: s32[8]) -> f32[8,1024] {{
  %p = {FIRST} parameter(0)
  %q = s32[8]{{0:T(128)}} parameter(1)
  ROOT %g = {ROWS} gather(%p, %q), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, \
index_vector_dim=1, slice_sizes={{1,1024}}
}}

%gathering_many (p: f32[512,1024], q: s32[64]) -> f32[64,1024] {{
  %p = {FIRST} parameter(0)
  %q = s32[64]{{0:T(128)}} parameter(1)
  ROOT %g = {MANY} gather(%p, %q), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, \
index_vector_dim=1, slice_sizes={{1,1024}}
}}

%scattering (p: f32[8,1024], q: s32[512], r: f32[512,1024]) -> f32[8,1024] {{
  %p = {ROWS} parameter(0)
  %q = s32[512]{{0:T(512)}} parameter(1)
  %r = {FIRST} parameter(2)
  ROOT %s = {ROWS} scatter(%p, %q, %r), update_window_dims={{1}}, inserted_window_dims={{0}}, \
scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=%region
}}

%scattering_within (p: f32[8,1024], q: s32[512], r: f32[512,1024]) -> f32[8,1024] {{
  %p = {ROWS} parameter(0)
  %q = s32[512]{{0:T(512)}} parameter(1)
  %r = {FIRST} parameter(2)
  ROOT %f = {ROWS} fusion(%p, %q, %r), kind=kCustom, calls=%scattering
}}

%updating (p: f32[512,1024], q: f32[8,1024], i: s32[]) -> f32[512,1024] {{
  %p = {FIRST} parameter(0)
  %q = {ROWS} parameter(1)
  %i = s32[] parameter(2)
  ROOT %d = {FIRST} dynamic-update-slice(%p, %q, %i, %i)
}}
"""


@pytest.mark.parametrize(
    ("result", "reader", "nbytes"),
    [
        (WHOLE_RESULT, "negate(%first)", 6),
        (WHOLE_RESULT, "fusion(%first), kind=kLoop, calls=%negating", 6),
        (WHOLE_RESULT, "fusion(%first), kind=kLoop, calls=%damaged", 4),
        # What a custom call reads is not known to the compiler.
        (WHOLE_RESULT, "custom-call(%first)", 4),
        # Of gmm_v5e: unless the kernel estimates its cost.
        (WHOLE_RESULT, 'custom-call(%first), backend_config={"cost_estimate":{"flops":"1"}}', 6),
        # Of fully_sharded_v5e: gathered in parts, by fusions that also compute something else.
        (f"({FIRST}, {SMALL})", "fusion(%first, %s), kind=kCustom, calls=%passing", 4),
        (ROWS, "slice(%first), slice={[0:8], [0:1024]}", 4),
        (ROWS, "dynamic-slice(%first, %i, %i), dynamic_slice_sizes={8,1024}", 4),
        (ROWS, "fusion(%first), kind=kLoop, calls=%slicing", 4),
        (ROWS, "fusion(%first), kind=kLoop, calls=%calling", 4),
        # Of rag_v5e: a product of groups of rows, limited by computation.
        (WHOLE_RESULT, "fusion(%first), kind=kCustom, calls=%multiplying", 4),
        # Of graph_v4: rows of an array.
        (ROWS, "gather(%first, %r)", 4),
        (ROWS, "fusion(%first, %r), kind=kCustom, calls=%gathering", 4),
        # Of seg_v4: 64 rows of 4 KiB are in 8 times as many registers; a scatter within another fusion reads nothing.
        (MANY, "fusion(%first, %rs), kind=kCustom, calls=%gathering_many", 6),
        (ROWS, "fusion(%u, %all, %first), kind=kCustom, calls=%scattering", 6),
        (ROWS, "fusion(%u, %all, %first), kind=kCustom, calls=%scattering_within", 4),
        (FIRST, "scatter(%first, %r, %u), to_apply=%region", 4),
        (FIRST, "scatter(%first, %r, %more), to_apply=%region", 6),
        (FIRST, "dynamic-update-slice(%first, %u, %i, %i)", 4),
        (FIRST, "fusion(%first, %u, %i), kind=kLoop, calls=%updating", 4),
    ],
)
def test_what_is_read_more_gets_its_place_first(result: str, reader: str, nbytes: int) -> None:
    """If the second array gets its place before the first, which is larger, the third fits beside it."""
    third, more = (FAST.replace("256", rows) for rows in ("768", "512"))
    text = module(
        f"%a = {MAIN} parameter(0)",
        f"%s = {SMALL} constant({{...}})",
        "%r = s32[8]{0:T(128)} constant({...})",
        "%rs = s32[64]{0:T(128)} constant({...})",
        "%all = s32[512]{0:T(512)} constant({...})",
        "%i = s32[] constant(0)",
        f"%u = {ROWS} constant({{...}})",
        f"%more = {more.replace('S(1)', '')} constant({{...}})",
        f"%first = {FIRST} custom-call(%a)",
        *(f"%reader.{number} = {result} {reader}" for number in range(3)),
        f"%second = {FAST} negate(%a)",
        f"%last = {MAIN} custom-call(%first)",
        *(f"%read.{number} = {MAIN} negate(%second)" for number in range(3)),
        f"%third = {third} custom-call(%second)",
        f"ROOT %result = {MAIN} custom-call(%third)",
        before=READERS,
    )
    assert peaks(text)[1] == nbytes * MIB


def test_what_is_fetched_for_the_next_run_gets_its_place_first() -> None:
    """Of quantised_v6e: the array that is read more follows it, and leaves its place to a larger one."""
    text = module(
        f"%a = {FIRST.replace('S(1)', '')} parameter(0)",
        *fetched(0, "%a", FIRST, ", cross_program_prefetch_index=0"),
        f"%b = {FAST} negate(%a)",
        f"%c = {MAIN} negate(%b)",
        f"%d = {FAST.replace('256', '768')} custom-call(%c)",
        f"ROOT %r = {MAIN} custom-call(%d, %done.0)",
    )
    assert peaks(text)[1] == 5 * MIB


def test_of_equal_values_the_one_that_is_there_longer_gets_its_place_first() -> None:
    """Of flashg_v5p: the other one follows it, and leaves its place to a larger array."""
    text = module(
        f"%a = {MAIN} parameter(0)",
        f"%short = {FAST} negate(%a)",
        f"%long = {FAST} negate(%a)",
        f"%b = {MAIN} negate(%short)",
        f"%c = {FIRST} custom-call(%b)",
        f"%d = {MAIN} custom-call(%c)",
        f"ROOT %r = {MAIN} add(%long, %d)",
    )
    assert peaks(text)[1] == 3 * MIB


BRANCHES = f"""%reading (t: (f32[256,1024])) -> f32[256,1024] {{
  %t = ({FAST}) parameter(0)
  %e = {FAST} get-tuple-element(%t), index=0
  %n = {MAIN} negate(%e)
  %inner = {FAST} negate(%n)
  ROOT %o = {MAIN} negate(%inner)
}}

%passing_by (t: (f32[256,1024])) -> f32[256,1024] {{
  %t = ({FAST}) parameter(0)
  %e = {FAST} get-tuple-element(%t), index=0
  ROOT %o = {MAIN} negate(%e)
}}
"""


def test_a_branch_gives_away_what_it_has_read() -> None:
    """Of sw_v6e: what a branch computes after its last use of an array takes the place of that array."""
    text = module(
        f"%a = {MAIN} parameter(0)",
        "%i = s32[] parameter(1)",
        f"%x = {FAST} negate(%a)",
        f"%t = ({FAST}) tuple(%x)",
        f"ROOT %c = {MAIN} conditional(%i, %t, %t), branch_computations={{%reading, %passing_by}}",
        before=BRANCHES,
    )
    assert peaks(text)[1] == MIB


class Compiled:
    """What `jax.stages.Compiled` says for a TPU."""

    def __init__(self, text: str, temp: int, total: int | None = None) -> None:
        self._text = text
        self._sizes = {"argument": MIB, "output": MIB, "temp": temp, "alias": 0}
        self._total = {} if total is None else {"total_allocation_bytes": total}

    def as_text(self) -> str:
        return self._text

    def memory_analysis(self) -> Any:
        sizes = {f"{name}_size_in_bytes": nbytes for name, nbytes in self._sizes.items()}
        return SimpleNamespace(**sizes, **self._total, serialized_buffer_assignment_proto=b"", peak_memory_in_bytes=0)


@pytest.mark.parametrize(
    ("temp", "total", "basis", "temporaries"),
    [
        # libtpu 0.0.52 leaves out tables and scalars where there is nothing else.
        (0, None, "memory analysis", 16384 + TABLE),
        (48 * 1024, None, "memory analysis", 48 * 1024),
        # libtpu 0.0.32 counts more than memory space 0, and does not round.
        (612864, None, "estimate", 16384 + TABLE),
        # jaxlib 0.12 has the total of the assignment itself.
        (48 * 1024, 2 * MIB + 33000, "memory analysis", 33000),
        (0, 2 * MIB + 33000, "memory analysis", 33000),
    ],
)
def test_the_sums_of_a_compiled_program(temp: int, total: int | None, basis: str, temporaries: int) -> None:
    text = module(
        f"%a = {MAIN} parameter(0)",
        f"%start.0 = ({FAST}, {MAIN}, u32[]{{:S(2)}}) copy-start(%a)",
        f"%done.0 = {FAST} copy-done(%start.0)",
        f"%start.1 = ({MAIN}, {FAST}, u32[]{{:S(2)}}) copy-start(%done.0)",
        f"ROOT %done.1 = {MAIN} copy-done(%start.1)",
    )
    peak = fi.hlo.report(Compiled(text, temp, total)).peak
    assert peak is not None
    assert (peak.basis, peak.nbytes) == (basis, 2 * MIB + temporaries)
    if basis == "memory analysis":
        assert peak.assigned is not None
        assert (peak.assigned.temporaries, peak.assigned.total) == (temporaries, peak.nbytes)


def test_memory_of_threads_is_not_that_of_the_program() -> None:
    report = fi.hlo.report("""BufferAssignment:
allocation 0: size 204800, page 0, thread-local:
 value: <448 all-reduce.35 @0> (size=204800,offset=0): bf16[200,512]{1,0:T(8,128)(2,1)}
allocation 1: size 204800, page 0, parameter 6, shape |bf16[200,512]| at ShapeIndex {}:
 value: <1 p @0> (size=204800,offset=0): bf16[200,512]{1,0:T(8,128)(2,1)}
allocation 2: size 512, page 0, preallocated-temp:
 value: <754 s @0> (size=512,offset=0): f32[]{:T(128)}
""")
    assert report.peak_nbytes == 204800 + 512
    assert report.peak is not None
    assert report.peak.assigned is not None
    assert report.peak.assigned.total == report.peak_nbytes


def test_arguments_on_the_host_are_not_on_the_device() -> None:
    shape, sharding = "f32[4,300,300]{2,0,1:T(4,128)", "sharding={mesh['x'=1], [{}, {}, {}]}"
    report = fi.hlo.report(
        module(
            f"%w = {shape}}} parameter(0), {sharding}",
            f"%m = {shape}S(5)}} parameter(1), {sharding}",
            f"%start = ({shape}}}, {shape}S(5)}}, u32[]{{:S(2)}}) copy-start(%m)",
            f"%done = {shape}}} copy-done(%start)",
            f"ROOT %add = {shape}}} add(%w, %done)",
        )
    )
    nbytes = 4 * 300 * 384 * 4
    assert (
        f"each device holds {nbytes:,} bytes of them, and {nbytes:,} are in the memory of its host" in report.summary()
    )
    division = report.modules[0].division
    assert division is not None
    assert (division.nbytes, division.host_nbytes) == (nbytes, nbytes)
    assert division.to_json()["host_nbytes"] == nbytes


def test_what_is_there_when_memory_runs_out_is_a_stage(tmp_path: Path) -> None:
    text = module(f"%a = {MAIN} parameter(0)", f"ROOT %r = {MAIN} copy(%a)")
    stages = ("before_optimizations", "oom_intermediate_module", "after_optimizations")
    for last in range(1, 4):
        for stage in stages[:last]:
            (tmp_path / f"module_0005.jit_g.cl_1.{stage}.txt").write_text(
                text.replace("HloModule m", f"HloModule {stage}")
            )
        (found,) = fi.hlo.report(tmp_path).modules
        assert found.label == stages[last - 1]
