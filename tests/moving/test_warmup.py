"""Warming up compiles what relayouts call, and that list is complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import fastindex as fi
from fastindex.algebra.loops import grouped, relayout_loops
from fastindex.moving import warmup
from fastindex.moving.compiled_passes import kernel_key, pass_kernel
from fastindex.moving.moves.nests.plan import packed_drafts, passes
from fastindex.moving.passes import with_tables
from fastindex.runtime.machine import this_machine
from fastindex.runtime.machine_code import CALLED, function
from fastindex.runtime.tuning import TUNING, Tuning
from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS


def kernels_of(source: fi.Shape, destination: fi.Shape, tuning: Tuning = TUNING) -> set[tuple[str, int, int]]:
    """The kernels that the passes of a relayout ask for, not compiled."""
    loops = relayout_loops(source, destination)
    if loops is None:
        return set()
    machine = this_machine()
    found = list(passes(loops, source.element_type.nbytes, machine, tuning))
    if source.element_bits < 8:
        together = grouped(loops, 8 // source.element_bits)
        found += passes(together, 1, machine, tuning) if together is not None else ()
        for name in ("expand", "compress"):
            found += with_tables(packed_drafts(loops, 8 // source.element_bits, name, machine, tuning) or ())
    return {kernel_key(one) for one in found}


def test_every_kernel_of_random_relayouts_is_on_the_list() -> None:
    known = set(warmup.relayout_kernels())
    asked = set()
    for seed in strategies.seeds(300):
        pair = strategies.medium_pair(seed) if seed % 2 else strategies.random_pair(seed)
        tuning = replace(TUNING, streamed_bytes=0 if seed % 3 else 1 << 60, least_row_bytes=64)
        source, destination = (fi.Shape.parse(str(shape)) for shape in pair)
        asked |= kernels_of(source, destination, tuning)
    assert asked - known == set()
    usual = {"copy", "fill", "transpose", "interleave", "deinterleave", "strided"}
    assert {name for name, _, _ in asked} >= usual or strategies.OTHER_SEEDS


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("ways", [2, 3, 4, 5, 8, 16, 17, 32])
def test_every_number_of_ways_is_on_the_list(width: int, ways: int) -> None:
    known = set(warmup.relayout_kernels())
    element_type = {1: "u8", 2: "bf16", 4: "f32", 8: "f64", 16: "c128"}[width]
    for run in (1, 2, 4):
        rows = fi.Shape.parse(f"{element_type}[1000,{ways},{run}]")
        turned = fi.Shape.parse(f"{element_type}[1000,{ways},{run}]{{2,0,1}}")
        assert kernels_of(rows, turned) | kernels_of(turned, rows) <= known


#: Warms up in steps, with few and cheap kernels on the list, and counts what was compiled here and what loaded.
WARM_UP = """
import json
from fastindex.moving import warmup
from fastindex.runtime.machine_code import compiled_kernels, loaded_kernels

class Steps:
    total = done = 0
    def start(self, total):
        self.total = total
    def advance(self, count):
        self.done += count

casts = [key for key in warmup.relayout_kernels() if key[0] == "cast"]

def counts(*kernels):
    warmup.relayout_kernels = lambda _: iter(kernels)
    def stats():
        return [len(compiled_kernels()), len(loaded_kernels())]
    steps, before = Steps(), stats()
    count = warmup.warm_up(steps)
    return [count, *(now - then for now, then in zip(stats(), before)), steps.total, steps.done]

warmup.CALLED = {}
found = {"elsewhere": counts(*casts[:8]), "few": counts(casts[8])}
found["kept"] = counts(casts[0], casts[8])
warmup._COMPILE, warmup._LEAST_KERNELS_OF_A_PROCESS = "raise SystemExit(1)", 1
found["broken"] = counts(casts[9], casts[10])
print(json.dumps(found))
"""


@pytest.mark.in_turn(seconds=20)
def test_what_is_missing_is_compiled_by_other_processes(tmp_path: Path) -> None:
    """Here it is loaded; where there is too little to do, or the others fail, it is compiled here."""
    variables = {"NUMBA_CACHE_DIR": str(tmp_path), "FASTINDEX_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "error", "-c", WARM_UP]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr
    # Kernels, compiled here, new in memory here, steps of the progress that there are, and that were taken.
    assert json.loads(done.stdout) == {
        "elsewhere": [8, 0, 8, 8, 8],
        "few": [1, 1, 1, 1, 1],
        "kept": [2, 0, 0, 2, 2],
        "broken": [2, 2, 2, 2, 2],
    }


def test_names_of_kernels_are_unique() -> None:
    assert len(warmup.every_kernel()) == len(CALLED) + len(list(warmup.relayout_kernels()))


def test_every_kernel_on_the_list_can_be_asked_for() -> None:
    """The cheap ones, compiled; a wrong name or width shows."""
    for key in warmup.relayout_kernels():
        if key[0] in ("copy", "fill"):
            assert pass_kernel(*key)
    assert callable(function("gather_slots"))
