"""Modules that contradict themselves: each is a report whose unknown results are separate buffers.

Tests of: hlo.flow.walk, hlo.shape_table, hlo.modules.
"""

from __future__ import annotations

from random import Random

import pytest

import fastindex as fi
from fastindex.hlo.shape_table import ShapeTable
from tests.cases import hlo_structures as structures
from tests.cases import strategies

A, PAIR = "f32[8]{0}", "(f32[8]{0}, s32[])"
EMPTY = "%f (x: f32[8]) -> f32[8] {\n}\n"
NEGATES = f"%f (x: f32[8]) -> f32[8] {{\n  %x = {A} parameter(0)\n  ROOT %y = {A} negate(%x)\n}}\n"
PAIRS = f"""%f (x: (f32[8], s32[])) -> f32[8] {{
  %x = {PAIR} parameter(0)
  ROOT %y = {A} get-tuple-element(%x), index=0
}}
"""


def report_of(before: str, *lines: str, header: str = "") -> fi.hlo.Report:
    """Return the report of a module whose entry has these lines."""
    body = "\n".join(f"  {line}" for line in lines)
    return fi.hlo.report(
        f"HloModule m, is_scheduled=true{header}\n\n{before}\nENTRY %main () -> f32[8] {{\n{body}\n}}\n"
    )


CALLS = {
    "call": f"{A} call(%p), to_apply=%f",
    "while": f"{A} while(%p), condition=%f, body=%f",
    "conditional": f"{A} conditional(%p, %p, %p), true_computation=%f, false_computation=%f",
    "branches": f"{A} conditional(%p, %p), branch_computations={{%f}}",
    "async-start": f"(({A}), {A}, u32[]) async-start(%p), calls=%f",
    "fusion": f"{A} fusion(%p), kind=kLoop, calls=%f",
}


@pytest.mark.parametrize("opcode", CALLS)
def test_what_calls_an_empty_computation_has_separate_results(opcode: str) -> None:
    """As what calls one that is not in the text."""
    lines = f"%p = {A} parameter(0)", f"ROOT %r = {CALLS[opcode]}"
    empty, absent = report_of(EMPTY, *lines), report_of("", *lines)
    assert [(use.shape, use.count) for use in empty.uses] == [(use.shape, use.count) for use in absent.uses]
    assert empty.peak_nbytes == absent.peak_nbytes


@pytest.mark.parametrize("names", ["condition=%f, body=%nothing", "condition=%nothing, body=%f"])
def test_a_loop_half_of_which_is_missing(names: str) -> None:
    """The other half counts: the negation is a buffer beside the one that is carried, or is the carried one."""
    report = report_of(NEGATES, f"%p = {A} parameter(0)", f"ROOT %r = {A} while(%p), {names}")
    assert report.buffer_count == (1 if names.endswith("%f") else 2)


def test_a_loop_without_anything_to_carry_whose_condition_is_empty() -> None:
    report = report_of(EMPTY, f"ROOT %r = {A} while(%nothing), condition=%f, body=%g")
    assert (report.buffer_count, report.total_nbytes) == (1, 32)


def test_a_callee_with_other_parameters() -> None:
    """Of the pair that the callee expects, the caller gives one array; the other is unknown."""
    report = report_of(PAIRS, f"%p = {A} parameter(0)", f"ROOT %r = {A} call(%p), to_apply=%f")
    assert {str(use.shape): use.count for use in report.uses} == {"f32[8]{0}": 1, "s32[]": 1}


def test_a_callee_with_another_result() -> None:
    report = report_of(NEGATES, f"%p = {A} parameter(0)", f"ROOT %r = {PAIR} call(%p), to_apply=%f")
    assert {str(use.shape): use.count for use in report.uses} == {"f32[8]{0}": 2, "s32[]": 1}


def test_an_element_that_the_tuple_lacks() -> None:
    report = report_of("", f"%p = {PAIR} parameter(0)", f"ROOT %r = {A} get-tuple-element(%p), index=7")
    assert {str(use.shape): use.count for use in report.uses} == {"f32[8]{0}": 2, "s32[]": 1}


def test_a_tuple_of_more_than_its_operands() -> None:
    report = report_of("", f"%p = {A} parameter(0)", f"ROOT %r = ({A}, {A}, s32[]) tuple(%p)")
    assert {str(use.shape): use.count for use in report.uses} == {"f32[8]{0}": 2, "s32[]": 1}


@pytest.mark.parametrize("branches", [2, 300])
def test_a_branch_that_is_named_many_times_counts_once(branches: int) -> None:
    """Or time would grow with the number of names times the length of the branch."""
    names = ", ".join(["%f"] * branches)
    operands = ", ".join(["%p"] * (branches + 1))
    lines = f"%p = {A} parameter(0)", f"ROOT %r = {A} conditional({operands}), branch_computations={{{names}}}"
    # The argument, and the result, which shares its memory with the negation.
    assert report_of(NEGATES, *lines).buffer_count == 2


def test_a_branch_without_an_operand_still_runs() -> None:
    lines = f"%p = {A} parameter(0)", f"ROOT %r = {A} conditional(%p), branch_computations={{%f}}"
    assert report_of(NEGATES, *lines).buffer_count == 3


def test_names_of_computations_that_are_given_again_stay_short() -> None:
    text = "HloModule m\n\n" + NEGATES * 300
    places = [place for use in fi.hlo.report(text, instruction_results=True).uses for place in use.places]
    assert len({place.computation for place in places}) == 300
    assert max(len(place.computation) for place in places) < 10


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ((), (0, 5)), ((0,), (0, 1)), ((1,), (1, 4)), ((1, 0), (1, 2)), ((1, 1), (2, 2)), ((1, 2), (2, 4)),
        ((1, 2, 1), (3, 4)), ((2,), (4, 5)),
        # To nothing: beyond a tuple, into an array, and both.
        ((3,), (0, 0)), ((1, 3), (0, 0)), ((0, 0), (0, 0)), ((1, 2, 1, 0), (0, 0)), ((2**63 - 1, 5), (0, 0)),
        ((1,) * 100, (0, 0)),
    ],
)  # fmt: skip
def test_where_a_path_leads(path: tuple[int, ...], expected: tuple[int, int]) -> None:
    entry = ShapeTable().entry(b"(f32[], (s8[2]{0}, (), (u8[3]{0}, f32[])), s32[])")
    # Twice: the second time from what it has kept.
    assert [entry.at(path), entry.at(path)] == [expected] * 2


def test_an_alias_of_nothing_joins_nothing() -> None:
    """The second element is empty, and has no first one: its neighbour is another array."""
    lines = f"%p = {A} parameter(0)", f'ROOT %r = ({A}, (), {A}) custom-call(%p), custom_call_target="f"'
    plain = report_of("", *lines)
    damaged = report_of("", *lines, header=", input_output_alias={ {1, 0}: (0, {}) }")
    assert plain.buffer_count == damaged.buffer_count == 3
    assert report_of("", *lines, header=", input_output_alias={ {2}: (0, {}) }").buffer_count == 2


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.parametrize("first", strategies.seeds(8))
@pytest.mark.parametrize("module", range(len(structures.SMALL)))
def test_random_damage(module: int, first: int) -> None:
    """`tests/faults/campaign.py` does it a hundred thousand times."""
    source = Random(first * 100 + module)
    parts = structures.taken_apart(structures.SMALL[module])
    assert fi.hlo.report(parts.text()).problems == ()
    for _ in range(50):
        text = structures.damaged_structure(source, parts)
        report = fi.hlo.report(text, instruction_results=source.random() < 0.2)
        assert report.total_nbytes == sum(use.nbytes * use.count for use in report.uses) + report.table_nbytes, text


@pytest.mark.parametrize("change", structures.CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_every_change_changes_something(change: object) -> None:
    """A mutation that does nothing finds nothing."""
    changed = set()
    for module in structures.SMALL:
        parts = structures.taken_apart(module)
        for seed in range(40):
            copy = parts.copy()
            change(Random(seed), copy)  # type: ignore[operator]
            changed.add(copy.text())
    assert len(changed) > 20
