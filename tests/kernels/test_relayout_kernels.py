"""Every kernel that moves data, on all remainders of its blocks, at every alignment, between guarded memory.

Tests of: moving.moves.streams.interleave_kernel, moving.moves.nests.kernel,
moving.kernels.lanes, runtime.lines.lines, moving.moves.streams.kernel, moving.kernels.passes, moving.kernels.staging,
moving.moves.transposes.kernel.
"""

from __future__ import annotations

import itertools
import math
import random
import signal
import subprocess
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from fastindex.algebra.loops import Loop, Nest, RelayoutLoops, coalesced
from fastindex.arrays.buffers import aligned_bytes
from fastindex.moving import compiled_passes, requests
from fastindex.moving.moves.nests.plan import passes
from fastindex.moving.moves.streams import STREAM
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.tuning import TUNING, Tuning
from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS
from tests.cases.relayout_cases import (
    BITS,
    DEALS,
    INTERLEAVES,
    LINE_BYTES,
    SMALL_BLOCK_BYTES,
    WIDTHS,
    Bytes,
    Case,
    bits_of_a_whole_buffer,
    blocked_transposes,
    copies,
    deinterleaves,
    few_column_transposes,
    fills,
    gather,
    in_pieces,
    in_small_blocks,
    interleaves,
    joined_transposes,
    move,
    packed,
    scattered_transposes,
    staged_transposes,
    steps_of,
    strided,
    transposes,
)
from tests.oracles.nest_places import loops

ROOT = Path(__file__).resolve().parents[2]
GUARD_BYTES = 4 * LINE_BYTES


#: With two threads, every task is a separate call, in any order.
SMALL_TASKS = replace(TUNING, small_call_bytes=-1, share_bytes=1)


@pytest.fixture(params=[1 << 60, 0], ids=["cached", "streamed"])
def tuning(request: pytest.FixtureRequest) -> Tuning:
    """Small tasks, with non-temporal stores or without, however small they are."""
    return replace(SMALL_TASKS, streamed_bytes=request.param)


class GuardedMemory:
    """Pieces of memory at chosen distances from a line boundary, with guards before and after them."""

    def __init__(self) -> None:
        self._whole: list[tuple[Bytes, int, int]] = []

    def __call__(self, size: int, offset: int) -> Bytes:
        offset %= LINE_BYTES
        whole = aligned_bytes(size + offset + 2 * GUARD_BYTES)
        whole[:] = 0x5A
        begin = GUARD_BYTES + offset
        self._whole.append((whole, begin, begin + size))
        return whole[begin : begin + size]

    def guards_are_intact(self) -> bool:
        parts = itertools.chain(*((whole[:begin], whole[end:]) for whole, begin, end in self._whole))
        return all((part == 0x5A).all() for part in parts)


def check(cases: Iterable[Case], tuning: Tuning) -> None:
    """Move every case at some alignment, one and two threads in turn."""
    rng, count = np.random.default_rng(1), 0
    for count, case in enumerate(cases, 1):
        memory = GuardedMemory()
        element = 1 if case.kernel in ("expand", "compress") else case.width
        # On a line, at an element, anywhere.
        offset = (0, element * int(rng.integers(64)), int(rng.integers(64)))[int(rng.integers(3))]
        found = move(case, steps_of(case, tuning), memory, 1 + count % 2, (int(rng.integers(64)), offset), rng, tuning)
        assert found == ""
        assert memory.guards_are_intact(), (case, offset)
    assert count


def sweep(cases: Iterable[Case], tuning: Tuning) -> None:
    """Move those of the cases that run today."""
    check(strategies.rotating(cases), tuning)


@pytest.mark.parametrize("width", WIDTHS)
def test_transposes(width: int, tuning: Tuning) -> None:
    for seed in (1, 2):
        sweep(transposes(width, seed), tuning)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("row_bytes", [256, 4096])
def test_transposes_that_are_staged(width: int, row_bytes: int) -> None:
    sweep(staged_transposes(width, row_bytes), replace(SMALL_TASKS, streamed_bytes=0, row_bytes=row_bytes))


@pytest.mark.parametrize("width", WIDTHS)
def test_transposes_to_columns_that_follow_each_other(width: int, tuning: Tuning) -> None:
    sweep(joined_transposes(width, 3), tuning)
    sweep(joined_transposes(width, 4), replace(tuning, column_bytes=LINE_BYTES, aligned_column_bytes=LINE_BYTES))


@pytest.mark.parametrize("width", WIDTHS)
def test_transposes_of_rows_that_are_far_from_each_other(width: int, tuning: Tuning) -> None:
    sweep(scattered_transposes(width, 5), replace(tuning, least_row_bytes=128))


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("several_blocks", [False, True])
def test_transposes_of_few_columns(width: int, several_blocks: bool) -> None:
    streamed = replace(SMALL_TASKS, streamed_bytes=0)
    if several_blocks:
        streamed = replace(streamed, row_bytes=SMALL_BLOCK_BYTES, least_row_bytes=SMALL_BLOCK_BYTES)
    sweep(few_column_transposes(width, 1 + several_blocks), streamed)


@pytest.mark.parametrize("width", WIDTHS)
def test_transposes_of_several_blocks(width: int, tuning: Tuning) -> None:
    sweep(blocked_transposes(width, 3), in_small_blocks(tuning))


@pytest.mark.parametrize(("width", "ways"), INTERLEAVES)
def test_interleaves(width: int, ways: int, tuning: Tuning) -> None:
    sweep(interleaves(width, ways, 4), tuning)


@pytest.mark.parametrize(("width", "ways"), DEALS)
def test_deals(width: int, ways: int, tuning: Tuning) -> None:
    sweep(deinterleaves(width, ways, 5), tuning)


@pytest.mark.parametrize("kernel", ["interleave", "deinterleave"])
@pytest.mark.parametrize("field", ["mask_low", "mask_high", "unit_bytes", "ways"])
def test_wrong_numbers_of_lanes_are_noticed(kernel: str, field: str) -> None:
    """Five rows of bytes: two elements of each in a lane, and six bytes that are not used."""
    made = interleaves(1, 5, 17) if kernel == "interleave" else deinterleaves(1, 5, 17)
    case = max(made, key=lambda candidate: candidate.nest.element_count)
    rng = np.random.default_rng(17)
    (step,) = steps_of(case, SMALL_TASKS)
    assert move(case, (step,), GuardedMemory(), 1, (0, 0), rng) == ""
    numbers = step.geometry.copy()
    place = getattr(STREAM, field)
    numbers[place] = {"unit_bytes": 4, "ways": 4}.get(field, numbers[place] ^ 1)
    wrong = replace(step, geometry=numbers)
    assert move(case, (wrong,), GuardedMemory(), 1, (0, 0), rng) != ""


def test_rows_of_several_loops(tuning: Tuning) -> None:
    """Rows that are next to each other in the destination need not be equally far apart in the source."""
    rows = loops((2, 700, 1), (3, 100, 2), (2, 5000, 6))
    check([Case("interleave", 2, Nest((*rows, *loops((40, 1, 12), (3, 50, 480)))))], tuning)
    columns = loops((2, 1, 700), (3, 2, 200), (2, 6, 5000))
    check([Case("deinterleave", 2, Nest((*columns, *loops((40, 12, 1), (3, 480, 50)))))], tuning)


@pytest.mark.in_turn(seconds=0.6)
def test_copies(tuning: Tuning) -> None:
    for seed in (6, 7, 8):
        sweep(copies(seed), tuning)


def test_copies_cut_for_threads(tuning: Tuning) -> None:
    """The same in pieces of a few bytes."""
    sweep(copies(9), in_pieces(tuning, 24))


@pytest.mark.in_turn(seconds=0.2)
@pytest.mark.parametrize("chunks", [5, 24, 100])
def test_copies_in_blocks_of_few_runs(chunks: int, tuning: Tuning) -> None:
    sweep(copies(chunks), in_pieces(tuning, chunks * LINE_BYTES))


@pytest.mark.parametrize("width", WIDTHS)
def test_strided_copies(width: int) -> None:
    sweep(strided(width, 10), SMALL_TASKS)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_fills(width: int, tuning: Tuning) -> None:
    for seed in (11, 12):
        sweep(fills(width, seed), tuning)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kernel", ["expand", "compress"])
def test_packed_elements_on_the_way(kernel: str, bits: int, tuning: Tuning) -> None:
    for seed in (13, 14):
        sweep(packed(kernel, bits, seed), tuning)


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kernel", ["expand", "compress"])
def test_packed_buffers(kernel: str, bits: int, tuning: Tuning) -> None:
    rng = np.random.default_rng(15)
    for count in (*range(1, 260), 1023, 1024, 1025, 5000):
        memory, offset = GuardedMemory(), int(rng.integers(64))
        assert bits_of_a_whole_buffer(kernel, bits, memory, rng, count, offset, in_pieces(tuning, 64)) == ""
        assert memory.guards_are_intact(), count


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_gathers(width: int) -> None:
    rng = np.random.default_rng(16)
    for count in (0, 1, 2, 63, 64, 65, 200):
        memory = GuardedMemory()
        assert gather(width, memory, rng, count, int(rng.integers(64))) == ""
        assert memory.guards_are_intact(), count


# Permutations, whatever kernels they take


def random_permutations(seed: int, count: int) -> Iterator[tuple[Nest, int]]:
    rng = random.Random(seed)
    sizes = (1, 2, 3, 5, 7, 16, 17, 31, 32, 33, 48, 64, 65, 100, 130)
    while count:
        dimensions = [rng.choice(sizes) for _ in range(rng.randint(2, 4))]
        width = rng.choice(WIDTHS)
        if math.prod(dimensions) * width > 1 << 18:
            continue
        count -= 1
        order = rng.sample(range(len(dimensions)), len(dimensions))
        gap = rng.choice((0, 0, 0, 1))
        numbers, steps = {d: [0, 0] for d in order}, [1, 1]
        for side, dimension_order in ((0, reversed(range(len(order)))), (1, reversed(order))):
            for d in dimension_order:
                numbers[d][side] = steps[side]
                steps[side] *= dimensions[d] + gap
        yield coalesced(Nest(tuple(Loop(dimensions[d], *numbers[d]) for d in order))), width


@pytest.mark.parametrize("seed", strategies.seeds(4))
@pytest.mark.parametrize("block_bytes", [512, 4096])
def test_random_permutations(seed: int, block_bytes: int, tuning: Tuning) -> None:
    tuning = replace(tuning, row_bytes=block_bytes, least_row_bytes=512)
    rng = np.random.default_rng(seed)
    for nest, width in strategies.rotating(random_permutations(seed, 60)):
        steps = passes(RelayoutLoops((nest,), ()), width, EPYC_1M, tuning)
        case = Case("any", width, nest)
        memory = GuardedMemory()
        offsets = int(rng.integers(64)), int(rng.integers(64))
        found = move(case, steps, memory, 1 + seed % 2, offsets, rng, tuning)
        assert found == "", [step.describe() for step in steps]
        assert memory.guards_are_intact(), case


# Between guard pages


def run_fenced(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "tests.kernels.fenced_relayouts", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False, cwd=ROOT)


@pytest.mark.in_turn(seconds=17)
@pytest.mark.long
@pytest.mark.parametrize("end", ["first", "last"])
def test_kernels_touch_nothing_outside_their_arrays(end: str) -> None:
    """Sources, destinations and tables begin, or end, at a page that kills the process."""
    done = run_fenced(end)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > (1000 if strategies.PART is None else 300)


@pytest.mark.in_turn(seconds=0.5)
@pytest.mark.parametrize("end", ["first", "last"])
def test_such_pages_kill(end: str) -> None:
    assert run_fenced(end, "touch").returncode == -signal.SIGSEGV


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("u4[2000,33,8]{2,1,0:T(8,16)}", "u4[2000,33,8]{2,1,0:E(4)}"),
        ("u4[2000,33,8]{2,1,0:E(4)}", "u4[2000,33,8]{1,2,0:T(8,16)}"),
        ("u2[2000,33,8]{2,1,0:T(8,16)}", "u2[2000,33,8]{2,1,0:E(2)}"),
        ("u8[700,900,7]{2,1,0}", "u8[700,900,7]{2,0,1}"),
        ("f32[300,301,7]{2,1,0}", "f32[300,301,7]{2,0,1}"),
        ("u8[3,700001]{1,0}", "u8[3,700001]{0,1}"),
        ("f32[67,9001]{1,0}", "f32[67,9001]{0,1}"),
        ("bf16[2,2,300001]{2,1,0}", "bf16[2,2,300001]{1,2,0}"),
        ("u8[700001,3]{1,0}", "u8[700001,3]{0,1}"),
        ("u8[1031,1033]{1,0}", "u8[1031,1033]{0,1}"),
        ("c128[509,511]{1,0}", "c128[509,511]{0,1}"),
    ],
)
@pytest.mark.parametrize("streamed_bytes", [0, 1 << 60], ids=["streamed", "cached"])
def test_one_call_for_many_tasks_keeps_to_its_scratch_memory(
    source: str, destination: str, streamed_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many chunks follow each other, what is pending stays small."""
    monkeypatch.setattr(requests, "_TUNING", replace(TUNING, streamed_bytes=streamed_bytes, small_call_bytes=1 << 60))
    guard, size = 1 << 20, compiled_passes.SCRATCH_BYTES
    memory = np.full(size + 2 * guard, 0x5A, np.uint8)
    begin = guard - memory.ctypes.data % 64
    scratch = types.SimpleNamespace(address=memory.ctypes.data + begin)
    monkeypatch.setattr(compiled_passes, "thread_scratch", scratch)
    monkeypatch.setattr(compiled_passes.OneCall, "scratch", scratch)
    shape = fi.Shape.parse(source)
    values = np.random.default_rng(1).integers(0, 4, shape.dimensions).astype(shape.element_type.numpy_dtype)
    # One thread, as there is one scratch memory: out of a large source no call counts as small.
    moved = fi.relayout(fi.pack(values, source, threads=1), source, destination, threads=1)
    np.testing.assert_array_equal(fi.unpack(moved, destination, threads=1), values)
    assert (memory[:begin] == 0x5A).all()
    assert (memory[begin + size :] == 0x5A).all()
