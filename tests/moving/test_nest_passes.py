"""Passes: the right kernel for each nest, and tables that lead every byte to its place once.

Tests of: moving.moves.nests.plan, moving.passes, moving.moves.streams.plan,
moving.moves.transposes.plan, runtime.tuning.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.loops import Nest, RelayoutLoops, grouped, relayout_loops
from fastindex.moving.moves.nests.plan import packed_drafts, passes
from fastindex.moving.moves.streams import STREAM
from fastindex.moving.moves.transposes import TRANSPOSE
from fastindex.moving.numbers import FILL
from fastindex.moving.passes import Draft, Pass, with_tables
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.tuning import TUNING, Tuning
from tests.cases import strategies
from tests.cases.relayout_cases import (
    BITS,
    DEALS,
    INTERLEAVES,
    SMALL_BLOCK_BYTES,
    WIDTHS,
    Case,
    blocked_transposes,
    copies,
    deinterleaves,
    few_column_transposes,
    fills,
    in_pieces,
    in_small_blocks,
    interleaves,
    joined_transposes,
    packed,
    scattered_transposes,
    steps_of,
    strided,
    transposes,
)
from tests.oracles.nest_places import (
    Places,
    byte_places,
    bytes_of_pass,
    bytes_of_units,
    filled_by_pass,
    loops,
    places,
    units_of_pass,
)

MOST_BYTES = 1 << 17


def in_order(pairs: tuple[Places, Places]) -> Places:
    source, destination = pairs
    return np.stack([source, destination])[:, np.argsort(destination, kind="stable")]


def check_copies(steps: Iterable[Pass], nests: Iterable[Nest], width: int) -> None:
    """Passes and nests move the same bytes; each goes to a separate place."""
    found = in_order(_together([bytes_of_pass(step) for step in steps]))
    np.testing.assert_array_equal(found, in_order(byte_places(nests, width)))
    assert (np.diff(found[1]) > 0).all(), "a byte is written twice"


def check_fills(steps: Iterable[Pass], nests: Iterable[Nest], width: int) -> None:
    found = np.sort(np.concatenate([np.empty(0, np.int64), *map(filled_by_pass, steps)]))
    np.testing.assert_array_equal(found, np.sort(byte_places(nests, width)[1]))
    assert (np.diff(found) > 0).all(), "a byte is filled twice"


def _together(parts: list[tuple[Places, Places]]) -> tuple[Places, Places]:
    empty = [(np.empty(0, np.int64),) * 2]
    source, destination = (np.concatenate([part[side] for part in [*parts, *empty]]) for side in (0, 1))
    return source, destination


def check(found: RelayoutLoops, width: int, tuning: Tuning = TUNING) -> None:
    steps = passes(found, width, EPYC_1M, tuning)
    check_copies([step for step in steps if step.kernel != "fill"], found.copies, width)
    check_fills(steps, found.fills, width)
    for step in steps:
        check_form(step)


def check_form(step: Pass) -> None:
    """Kernels trust the form of what they get."""
    for array in (step.outer, step.geometry, *step.tables):
        assert array.dtype == np.int64
        assert array.flags.c_contiguous
    assert step.outer.shape[1] == 3
    assert step.tasks >= 1
    assert step.task_bytes >= 1
    units = units_of_pass(step)[1]
    written = len(units) * (1 if step.kernel in ("copy", "fill", "expand", "compress") else step.width)
    assert step.tasks * step.task_bytes >= written


# Every byte once


CASES: dict[str, list[Case]] = {
    "copies": list(copies(1)),
    "transposes": [case for width in WIDTHS for case in transposes(width, 1)],
    "joined transposes": [case for width in WIDTHS for case in joined_transposes(width, 1)],
    "scattered transposes": [case for width in WIDTHS for case in scattered_transposes(width, 1)],
    "interleaves": [case for width, ways in INTERLEAVES for case in interleaves(width, ways, 1)],
    "deinterleaves": [case for width, ways in DEALS for case in deinterleaves(width, ways, 1)],
    "strided": [case for width in WIDTHS for case in strided(width, 1)],
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("small", [False, True])
def test_kernels_get_every_byte_once(kind: str, small: bool) -> None:
    """`small`: cut into pieces, chunks and blocks of a few bytes."""
    tuning = in_pieces(TUNING, 128, gathered_chunk_bytes=64) if small else TUNING
    for case in strategies.rotating(CASES[kind][small::2]):
        if case.nest.element_count * case.width <= MOST_BYTES:
            steps = steps_of(case, tuning)
            check_copies(steps, [case.nest], case.width)
            for step in steps:
                check_form(step)


@pytest.mark.in_turn(seconds=0.2)
@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("block_bytes", [SMALL_BLOCK_BYTES, 4096])
def test_transposes_of_few_columns(width: int, block_bytes: int) -> None:
    tuning = replace(TUNING, streamed_bytes=0, row_bytes=block_bytes, least_row_bytes=SMALL_BLOCK_BYTES)
    for case in list(few_column_transposes(width, 3))[:: 1 + 8 // width]:
        (step,) = steps_of(case, tuning)
        check_copies([step], [case.nest], width)
        check_form(step)


@pytest.mark.parametrize("width", WIDTHS)
def test_blocks_of_transposes(width: int) -> None:
    kinds = set()
    for case in list(blocked_transposes(width, 2))[:: 1 + 4 // width]:
        (step,) = steps_of(case, in_small_blocks(TUNING))
        check_copies([step], [case.nest], width)
        check_form(step)
        geometry = step.geometry
        kinds.add(
            (
                bool(geometry[TRANSPOSE.row_block] < geometry[TRANSPOSE.row_count]),
                bool(geometry[TRANSPOSE.column_block] < geometry[TRANSPOSE.column_count]),
            )
        )
    assert (True, True) in kinds or strategies.OTHER_SEEDS


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_fills_get_every_byte_once(width: int) -> None:
    for case in fills(width, 1):
        steps = steps_of(case)
        check_fills(steps, [case.nest], width)
        for step in steps:
            check_form(step)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kernel", ["expand", "compress"])
def test_packed_runs_get_every_element_once(kernel: str, bits: int) -> None:
    for pieces in (1 << 16, 64):
        for case in packed(kernel, bits, 1):
            steps = steps_of(case, in_pieces(TUNING, pieces))
            found = _together([units_of_pass(step) for step in steps])
            np.testing.assert_array_equal(in_order(found), in_order(places(case.nest)))
            assert all(step.ways == 8 // bits for step in steps)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_channels_in_blocks_the_last_of_which_is_not_full(width: int) -> None:
    element_type = {1: "u8", 2: "bf16", 4: "f32", 8: "f64"}[width]
    for block in (2, 3, 8, 16, 32):
        for channels in {block + 2, 2 * block - 1, block - 1, 3 * block + block // 2}:
            text = f"{element_type}[2,{channels},5,7]"
            source, destination = fi.Shape.parse(text), fi.Shape.parse(f"{text}{{3,2,1,0:T({block},1,1)}}")
            found = relayout_loops(source, destination)
            assert found is not None
            for piece in (1 << 20, 8 * 512):
                check(found, width, replace(TUNING, task_bytes=piece))


@pytest.mark.parametrize("first", strategies.seeds(120)[::40])
def test_random_relayouts(first: int) -> None:
    """Copies and fills of real pairs of layouts, odd ones and usual ones; with and without small pieces."""
    moved = 0
    for seed in range(first, first + 40):
        pair = strategies.medium_pair(seed, 12_000) if seed % 2 else strategies.random_pair(seed)
        source, destination = (fi.Shape.parse(str(shape)) for shape in pair)
        found = relayout_loops(source, destination)
        width = source.element_type.nbytes
        if found is None or destination.slot_count * width > MOST_BYTES:
            continue
        moved += 1
        check(found, width, in_pieces(TUNING, 96) if seed % 3 else TUNING)
    assert moved > 15 or strategies.OTHER_SEEDS


@pytest.mark.parametrize("bits", BITS)
def test_random_packed_relayouts(bits: int) -> None:
    """Whole bytes that move, elements that are expanded or compressed on the way."""
    per_byte, direct = 8 // bits, 0
    for seed in strategies.seeds(60):
        rng = random.Random(seed)
        sizes = rng.randint(1, 9), per_byte * rng.randint(1, 40)
        tile = f"T({rng.randint(1, 4)},{per_byte * rng.randint(1, 9)})"
        text = f"u{bits}[{sizes[0]},{sizes[1]}]"
        layouts = [f"{{1,0:E({bits})}}", f"{{1,0:{tile}E({bits})}}"]
        rng.shuffle(layouts)
        source, destination = (fi.Shape.parse(text + layout) for layout in layouts)
        found = relayout_loops(source, destination)
        if found is None:
            continue
        together = grouped(found, per_byte)
        if together is not None:
            check(together, 1)
        for kernel in ("expand", "compress"):
            drafted = packed_drafts(found, per_byte, kernel, EPYC_1M)
            if drafted is None:
                continue
            direct, steps = direct + 1, with_tables(drafted)
            units = _together([units_of_pass(step) for step in steps if step.kernel == kernel])
            expected = _together([places(nest) for nest in found.copies])
            np.testing.assert_array_equal(in_order(units), in_order(expected))
            filled = np.sort(_together([bytes_of_pass(step) for step in steps if step.kernel == "fill"])[1])
            if kernel == "compress":
                filled = bytes_of_units(filled * per_byte, per_byte)
            wanted = np.sort(_together([places(nest) for nest in found.fills])[1])
            np.testing.assert_array_equal(filled, wanted)
    assert direct > 30 or strategies.OTHER_SEEDS


# Which kernel


CHOICES: list[tuple[str, int, str, int, tuple[tuple[int, int, int], ...]]] = [
    ("nothing but one element", 4, "copy", 1, ()),
    ("a contiguous array", 4, "copy", 1, ((1000, 1, 1),)),
    ("rows with a gap", 4, "copy", 1, ((100, 1, 1), (50, 128, 100))),
    ("rows in another order", 4, "copy", 1, ((100, 1, 1), (50, 3000, 100), (30, 100, 5000))),
    ("a transpose", 4, "transpose", 1, ((1000, 500, 1), (500, 1, 1000))),
    ("a transpose of bytes", 1, "transpose", 1, ((1000, 500, 1), (500, 1, 1000))),
    ("a transpose of short runs", 1, "transpose", 1, ((8, 1, 1), (1000, 4000, 8), (500, 8, 8000))),
    ("a transpose of whole lines", 64, "transpose", 1, ((1000, 500, 1), (500, 1, 1000))),
    ("pairs of rows", 2, "interleave", 2, ((2, 500, 1), (500, 1, 2), (100, 1000, 1000))),
    ("fours of rows", 1, "interleave", 4, ((4, 500, 1), (500, 1, 4), (100, 2000, 2000))),
    ("three rows", 4, "interleave", 3, ((3, 500, 1), (500, 1, 3))),
    ("sixteen channels of the most minor", 4, "interleave", 16, ((16, 500, 1), (500, 1, 16))),
    ("columns of almost four lines", 4, "interleave", 63, ((63, 500, 1), (500, 1, 63))),
    ("columns of more than four lines", 4, "transpose", 1, ((65, 500, 1), (500, 1, 65))),
    ("columns of almost eight lines, of bytes", 1, "interleave", 500, ((500, 600, 1), (600, 1, 500))),
    ("columns of three lines and rows of half a lane", 1, "transpose", 1, ((196, 4096, 1), (8, 1, 196), (64, 8, 9999))),
    ("columns of three lines and shorter rows", 1, "interleave", 196, ((196, 4096, 1), (4, 1, 196), (64, 4, 9999))),
    ("columns of two lines", 4, "transpose", 1, ((32, 500, 1), (500, 1, 32))),
    ("pairs of columns", 2, "deinterleave", 2, ((500, 2, 1), (2, 1, 500), (100, 1000, 1000))),
    ("three columns", 4, "deinterleave", 3, ((500, 3, 1), (3, 1, 500))),
    ("every other element", 4, "strided", 1, ((500, 2, 1),)),
    ("to every other place", 4, "strided", 1, ((500, 1, 2),)),
    ("small matrices of bytes", 1, "interleave", 3, ((3, 5, 1), (5, 1, 3), (200, 15, 15))),
    ("matrices of whole lines", 8, "transpose", 1, ((16, 256, 1), (256, 1, 16), (20, 4096, 4096))),
    ("backwards", 4, "strided", 1, ((500, -1, 1),)),
    ("one element again and again", 4, "strided", 1, ((500, 0, 1),)),
]


@pytest.mark.parametrize(
    ("width", "kernel", "ways", "numbers"), [choice[1:] for choice in CHOICES], ids=[choice[0] for choice in CHOICES]
)
def test_which_kernel(width: int, kernel: str, ways: int, numbers: tuple[tuple[int, int, int], ...]) -> None:
    steps = passes(RelayoutLoops((Nest(loops(*numbers)),), ()), width, EPYC_1M)
    assert {step.kernel for step in steps} == {kernel}
    assert {step.ways for step in steps} == {ways}


@pytest.mark.parametrize(
    ("pitch", "row_bytes"), [(1 << 16, 256), (5 << 13, 512), (1 << 9, 4096)], ids=["one set of L2", "far", "near"]
)
def test_far_rows_are_read_with_the_lines_between_them(pitch: int, row_bytes: int) -> None:
    nest = Nest(loops((768, pitch // 8, 1), (3, 1, 768), (pitch // 64, 8, 3 * 768)))
    (one,) = passes(RelayoutLoops((nest,), ()), 8, EPYC_1M)
    inner = one.geometry[TRANSPOSE.inner_iterations]
    assert one.kernel == "transpose"
    assert inner == (pitch // 64 if pitch > 4096 else 1)
    assert 8 * one.geometry[TRANSPOSE.row_block] == row_bytes


@pytest.mark.parametrize(
    ("source", "destination", "kernels"),
    [
        ("f32[256,256]", "f32[256,256]{0,1}", {"transpose"}),
        ("f32[256,256]", "f32[256,256]{1,0:T(8,128)}", {"copy"}),
        ("bf16[256,256]", "bf16[256,256]{1,0:T(8,128)(2,1)}", {"interleave"}),
        ("bf16[256,256]{1,0:T(8,128)(2,1)}", "bf16[256,256]", {"deinterleave"}),
        ("s8[256,256]", "s8[256,256]{1,0:T(8,128)(4,1)}", {"interleave"}),
        ("s8[256,256]{1,0:T(8,128)(4,1)}", "s8[256,256]", {"deinterleave"}),
        ("bf16[255,250]", "bf16[255,250]{1,0:T(8,128)(2,1)}", {"interleave", "copy", "strided", "fill"}),
        ("f32[2,64,9,9]", "f32[2,64,9,9]{1,3,2,0}", {"transpose"}),
        ("f32[8,8,8,8]", "f32[8,8,8,8]{0,1,2,3}", {"transpose"}),
        ("bf16[256,256]{1,0:T(8,128)(2,1)}", "bf16[256,256]{1,0:T(16,128)(2,1)}", {"copy"}),
    ],
)
def test_kernels_of_usual_relayouts(source: str, destination: str, kernels: set[str]) -> None:
    first, second = fi.Shape.parse(source), fi.Shape.parse(destination)
    found = relayout_loops(first, second)
    assert found is not None
    assert {step.kernel for step in passes(found, first.element_type.nbytes, EPYC_1M)} <= kernels


@pytest.mark.parametrize("run_bytes", [2, 4, 8, 16, 32, 64])
def test_short_runs_move_as_one_unit(run_bytes: int) -> None:
    """A run both sides keep is a wider element, if there is one of its size."""
    for width in (1, 2, 4):
        if run_bytes % width:
            continue
        run = run_bytes // width
        nest = Nest(loops((run, 1, 1), (300, 90 * run, run), (70, run, 300 * run)))
        (step,) = passes(RelayoutLoops((nest,), ()), width, EPYC_1M)
        assert (step.kernel, step.width) == ("transpose", run_bytes)
        check_copies([step], [nest], width)


def test_what_does_not_fit_bytes_has_no_packed_passes() -> None:
    def steps(nest: Nest, kernel: str) -> tuple[Draft, ...] | None:
        return packed_drafts(RelayoutLoops((nest,), ()), 2, kernel, EPYC_1M)

    whole = Nest(loops((4, 1, 1), (3, 4, 4 + 2)))
    assert steps(whole, "expand") is not None
    assert steps(whole, "compress") is not None
    # An odd distance matters on the packed side only.
    odd_source, odd_destination = Nest(loops((4, 1, 1), (3, 5, 4))), Nest(loops((4, 1, 1), (3, 4, 5)))
    assert steps(odd_source, "expand") is None
    assert steps(odd_source, "compress") is not None
    assert steps(odd_destination, "compress") is None
    assert steps(odd_destination, "expand") is not None
    # What is left of the last byte is written only where bytes are.
    assert steps(Nest(loops((3, 1, 1))), "compress") is None
    assert steps(Nest(loops((3, 1, 1))), "expand") is not None
    assert steps(Nest(loops((4, 1, 1)), 1, 0), "expand") is None
    assert steps(Nest(loops((4, 1, 1)), 1, 0), "compress") is not None
    assert steps(Nest(loops((4, 2, 1))), "expand") is None
    odd_fill = RelayoutLoops((), (Nest(loops((3, 0, 1)), 0, 1),))
    assert packed_drafts(odd_fill, 2, "compress", EPYC_1M) is None
    assert packed_drafts(odd_fill, 2, "expand", EPYC_1M) is not None


# What the passes say


def test_large_destinations_are_streamed() -> None:
    place = {
        "copy": STREAM.streamed,
        "interleave": STREAM.streamed,
        "deinterleave": STREAM.streamed,
    }
    place |= {"expand": STREAM.streamed, "compress": STREAM.streamed}
    place |= {"transpose": TRANSPOSE.streamed, "fill": FILL.streamed}
    chosen = {"copy": 1, "interleave": 2, "deinterleave": 3, "transpose": 0, "fill": 0, "expand": 4, "compress": 4}
    samples = [*list(copies(1))[:1], *list(transposes(4, 1))[:1], *list(fills(4, 1))[:1]]
    samples += [*list(interleaves(2, 2, 1))[:1], *list(deinterleaves(2, 2, 1))[:1]]
    samples += [*list(packed("expand", 4, 1))[:1], *list(packed("compress", 4, 1))[:1]]
    assert {case.kernel for case in samples} == set(chosen)
    for case in samples:
        size = case.nest.element_count * (1 if case.kernel in ("expand", "compress") else case.width)
        if case.kernel == "compress":
            # What counts is the bytes that are written, not the elements.
            size = size * case.width // 8
        for least, streamed in ((size, 1), (size + 1, 0)):
            for step in steps_of(case, replace(TUNING, streamed_bytes=least)):
                assert step.geometry[place[case.kernel]] == streamed, case.kernel


def test_work_is_cut_for_threads() -> None:
    """Nothing large is one task."""
    for numbers in (
        ((1 << 22, 1, 1),),
        ((2048, 2048, 1), (2048, 1, 2048)),
        ((2, 512, 1), (512, 1, 2), (4096, 1024, 1024)),
        ((512, 2, 1), (2, 1, 512), (4096, 1024, 1024)),
        ((1 << 21, 2, 1),),
    ):
        steps = passes(RelayoutLoops((Nest(loops(*numbers)),), ()), 4, EPYC_1M)
        assert sum(step.tasks for step in steps) >= 16, numbers
    (fill,) = passes(RelayoutLoops((), (Nest(loops((1 << 22, 0, 1))),)), 4, EPYC_1M)
    assert fill.tasks >= 16


def test_descriptions() -> None:
    """One line a pass: the kernel, what moves as one, how much, and why."""
    found = RelayoutLoops(
        (
            Nest(loops((100, 1, 1), (50, 128, 100))),
            Nest(loops((1000, 501, 1), (500, 1, 1001)), 7000, 5000),
            Nest(loops((2, 500, 1), (500, 1, 2)), 7000, 600_000),
            Nest(loops((500, 2, 1), (2, 1, 600)), 7000, 700_000),
            Nest(loops((9, 2, 1)), 0, 800_000),
        ),
        (Nest(loops((9, 0, 1)), 0, 900_000),),
    )
    lines = [step.describe().split(": ", 1) for step in passes(found, 4, EPYC_1M)]
    assert [line[0].split(", ")[:2] for line in lines] == [
        ["copy", "4-byte units"],
        ["transpose", "4-byte units"],
        ["interleave 2 ways", "4-byte units"],
        ["deinterleave 2 ways", "4-byte units"],
        ["strided", "4-byte units"],
        ["fill", "4-byte units"],
    ]
    assert [line[1] for line in lines] == [
        "runs that both sides keep contiguous",
        "2000 bytes contiguous in the source become 4000 contiguous in the destination",
        "2 rows next to each other in the destination",
        "2 columns next to each other in the source",
        "one by one: a side has gaps between all its elements",
        "padding",
    ]
    assert lines[0][0] == "copy, 4-byte units, 1 task, about 20,000 bytes"
    assert lines[4][0] == "strided, 4-byte units, 1 task, about 36 bytes"
    (expanded,) = with_tables(packed_drafts(RelayoutLoops((Nest(loops((64, 1, 1))),), ()), 4, "expand", EPYC_1M) or ())
    assert expanded.describe() == (
        "expand 4 ways, 1-byte units, 1 task, about 64 bytes: 4 elements a byte on one side, one on the other"
    )


def test_the_same_nest_gives_the_same_passes() -> None:
    shapes = fi.Shape.parse("bf16[100,300]"), fi.Shape.parse("bf16[100,300]{1,0:T(8,128)(2,1)}")
    texts = []
    for _ in range(2):
        found = relayout_loops(*shapes)
        assert found is not None
        texts.append([step.describe() for step in passes(found, 2, EPYC_1M)])
    assert texts[0] == texts[1]
