"""The machine as a value: what plans depend on, and what they do not.

Tests of: runtime.machine.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from fastindex.arrays.arrays import address_of
from fastindex.moving.choice import plans
from fastindex.moving.compiled_passes import kernel_key
from fastindex.moving.counts import Counts
from fastindex.moving.movements import movement, movement_between
from fastindex.moving.moves.transposes import NO_PITCH, TRANSPOSE
from fastindex.moving.relayout_plans import RelayoutPlan
from fastindex.runtime.machine import EPYC_1M, SMALL_CACHES, Cache, Caches, Machine, Target, caches_in
from fastindex.runtime.tuning import TUNING
from tests.cases.machines import EPYC_512K_AVX2, MACHINES, NEON_4M, ONE_CORE, SMALL_256K, XEON_2M, run_here

#: Blocks whose lines meet in few sets of L2, and rows that meet in one set of L1.
SHARED = "u8[983,50,2]{2,1,0:T(1024)}", "u8[983,50,2]{0,1,2}"
BYTES = "u8[2048,8192]", "u8[2048,8192]{0,1}"


def test_a_machine_is_a_frozen_value() -> None:
    assert replace(EPYC_1M) == EPYC_1M
    assert hash(replace(EPYC_1M)) == hash(EPYC_1M)
    assert len(set(MACHINES.values())) == len(MACHINES)
    with pytest.raises(FrozenInstanceError):
        EPYC_1M.processors = 3  # type: ignore[misc]


def test_targets_permute_what_their_instructions_do() -> None:
    assert Target.of({"neon"}).vector_bytes == Target.of({"avx2", "avx512f", "avx512bw"}).vector_bytes == 16
    assert Target.of({"avx512vbmi"}).vector_bytes == 64


def test_caches_are_asked_of_the_system(tmp_path: Path) -> None:
    def tell(index: int, **told: str) -> None:
        folder = tmp_path / f"index{index}"
        folder.mkdir(exist_ok=True)
        for name, value in told.items():
            (folder / name).write_text(f"{value}\n")

    assert caches_in(tmp_path) == SMALL_CACHES
    tell(0, level="1", type="Instruction", size="32K", ways_of_associativity="4")
    tell(1, level="1", type="Data", size="48K", ways_of_associativity="12")
    tell(2, level="2", type="Unified", size="1024K", ways_of_associativity="16")
    assert caches_in(tmp_path) == EPYC_1M.caches == Caches(Cache(64, 12), Cache(1024, 16))
    for size, ways in (("0K", "16"), ("1024K", "0"), ("much", "16"), ("1000K", "7")):
        tell(2, size=size, ways_of_associativity=ways)
        assert caches_in(tmp_path) == Caches(EPYC_1M.caches.l1, Cache(512, 8))


def counts_of(pair: tuple[str, str], machine: Machine) -> dict[str, Counts]:
    problem = movement(*map(fi.Shape.parse, pair), machine=machine).problem
    return {one.name: one.counts for one in plans(problem)}


def test_caches_and_target_decide_plans_and_processors_do_not() -> None:
    assert counts_of(SHARED, EPYC_1M) == counts_of(SHARED, ONE_CORE)
    assert counts_of(SHARED, EPYC_1M) != counts_of(SHARED, EPYC_512K_AVX2)
    assert counts_of(SHARED, SMALL_256K) != counts_of(SHARED, NEON_4M)
    same_target = replace(NEON_4M, target=EPYC_1M.target)
    assert counts_of(SHARED, EPYC_1M) != counts_of(SHARED, same_target)


def test_plans_of_two_machines_are_two() -> None:
    shapes = fi.Shape.parse(SHARED[0]), fi.Shape.parse(SHARED[1])
    of_each = [movement(*shapes, TUNING, machine, None) for machine in (EPYC_1M, NEON_4M, None)]
    assert len(set(map(id, of_each))) == 3
    assert movement(*shapes, TUNING, replace(EPYC_1M), None) is of_each[0]
    casts = [movement_between(*shapes_of_a_cast(), machine=machine) for machine in (EPYC_1M, NEON_4M, None)]
    assert len(set(map(id, casts))) == 3
    assert casts[0].cast is not None
    assert RelayoutPlan(*shapes, machine=EPYC_1M)._movement is of_each[0]


def shapes_of_a_cast() -> tuple[fi.Shape, fi.Shape]:
    return fi.Shape.parse("f32[30,40]"), fi.Shape.parse("bf16[30,40]{0,1:T(8,128)}")


@pytest.mark.parametrize("pair", [SHARED, BYTES, ("bf16[64,4096]", "bf16[64,4096]{0,1:T(8,128)}")])
def test_machines_of_one_target_share_their_kernels(pair: tuple[str, str]) -> None:
    """Numbers of caches are arguments: no kernel is compiled for one."""
    tuning = replace(TUNING, streamed_bytes=0)
    found = [
        movement(*map(fi.Shape.parse, pair), tuning, replace(machine, target=EPYC_1M.target))
        for machine in MACHINES.values()
    ]
    loops = [replace(one, choice="loops").passes or () for one in found]
    assert len({tuple(kernel_key(one) for one in of_machine) for of_machine in loops}) == 1


@pytest.mark.parametrize(
    ("machine", "pitch"), [(EPYC_1M, 64 * 64), (SMALL_256K, 64 * 64), (NEON_4M, 256 * 64)], ids=["48K", "32K", "64K"]
)
def test_transposes_know_which_rows_meet_in_a_set(machine: Machine, pitch: int) -> None:
    """Sixteen rows of bytes are staged at a time, eight of two bytes: more than the ways of some caches."""
    ways = machine.caches.l1.ways
    for element, rows in (("u8", 16), ("bf16", 8), ("f32", 0)):
        pair = map(fi.Shape.parse, (f"{element}[2048,2048]", f"{element}[2048,2048]{{0,1}}"))
        (one,) = replace(movement(*pair, machine=machine), choice="loops").passes or ()
        assert one.geometry[TRANSPOSE.evicting_pitch] == (pitch if rows > ways else NO_PITCH)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
@pytest.mark.parametrize("element", ["u8", "bf16"])
def test_rows_are_moved_right_whichever_meet(element: str, machine: Machine) -> None:
    shape = fi.Shape.parse(f"{element}[96,4096]")
    tuning = replace(TUNING, streamed_bytes=0, least_row_bytes=64)
    pair = shape, fi.Shape.parse(f"{element}[96,4096]{{0,1}}")
    moved = replace(movement(*pair, tuning, run_here(machine)), choice="loops")
    given = np.random.default_rng(0).integers(0, 256, shape.nbytes, np.uint8)
    made = np.zeros(shape.nbytes, np.uint8)
    moved.run_kernels(address_of(given), address_of(made), b"\0", 1)
    dtype = f"u{shape.element_type.nbytes}"
    assert np.array_equal(made.view(dtype).reshape(4096, 96), given.view(dtype).reshape(96, 4096).T)


def test_examples_of_the_documentation_hold_on_every_machine() -> None:
    """Those of `describe` and `candidates` are planned for whatever machine shows them."""
    pairs = (
        ("f32[8,128]", "f32[8,128]{1,0:T(8,128)}"),
        ("f32[4096,4096]", "f32[4096,4096]{0,1}"),
        ("f32[512,512]", "f32[512,512]{0,1}"),
    )
    for pair in pairs:
        sides = fi.Shape.parse(pair[0]), fi.Shape.parse(pair[1])
        of_each = [RelayoutPlan(*sides, machine=machine) for machine in MACHINES.values()]
        assert len({one.describe() for one in of_each}) == 1
        assert {one.candidates[0].name for one in of_each} == {"loops"}


def test_a_smaller_cache_keeps_less() -> None:
    """983 lines, 50 KiB apart, meet in few sets of every L2 but the largest."""
    missed = {
        name: counts_of(SHARED, replace(machine, target=EPYC_1M.target))["blocks"].missed > 0
        for name, machine in (("256K", SMALL_256K), ("1M", EPYC_1M), ("2M", XEON_2M), ("4M", NEON_4M))
    }
    assert missed == {"256K": True, "1M": True, "2M": False, "4M": False}
