"""Warming up compiles what relayouts call, and that list is complete."""

from __future__ import annotations

import pytest

import fastindex as fi
from fastindex.cpu import movements as relayout_execution
from fastindex.cpu import warmup
from fastindex.lowering import passes as relayout_plan
from fastindex.lowering.passes import packed_passes, passes
from fastindex.lowering.relayout_loops import grouped, relayout_loops
from tests.cases import strategies


def kernels_of(source: fi.Shape, destination: fi.Shape) -> set[tuple[str, int, int]]:
    """The kernels that the passes of a relayout ask for, not compiled."""
    asked: set[tuple[str, int, int]] = set()
    loops = relayout_loops(source, destination)
    if loops is None:
        return asked
    steps = list(passes(loops, source.element_type.nbytes))
    if source.element_bits < 8:
        together = grouped(loops, 8 // source.element_bits)
        steps += passes(together, 1) if together is not None else ()
        for name in ("expand", "compress"):
            steps += packed_passes(loops, 8 // source.element_bits, name) or ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relayout_execution, "pass_kernel", lambda *key: asked.add(key) or 0)
        relayout_execution.Steps(steps)
    return asked


def test_every_kernel_of_random_relayouts_is_on_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    known = set(warmup.relayout_kernels())
    asked = set()
    for seed in strategies.seeds(300):
        pair = strategies.medium_pair(seed) if seed % 2 else strategies.random_pair(seed)
        monkeypatch.setattr(relayout_plan, "STREAMED_BYTES", 0 if seed % 3 else 1 << 60)
        monkeypatch.setattr(relayout_plan, "_NARROW_BYTES", 64)
        asked |= kernels_of(*(fi.Shape.parse(str(shape)) for shape in pair))
    assert asked - known == set()
    usual = {"copy", "fill", "transpose", "narrow transpose", "interleave", "deal", "strided"}
    assert {name for name, _, _ in asked} >= usual


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("ways", [2, 3, 4, 5, 8, 16, 17, 32])
def test_every_number_of_ways_is_on_the_list(width: int, ways: int) -> None:
    known = set(warmup.relayout_kernels())
    element_type = {1: "u8", 2: "bf16", 4: "f32", 8: "f64", 16: "c128"}[width]
    for run in (1, 2, 4):
        rows = fi.Shape.parse(f"{element_type}[1000,{ways},{run}]")
        turned = fi.Shape.parse(f"{element_type}[1000,{ways},{run}]{{2,0,1}}")
        assert kernels_of(rows, turned) | kernels_of(turned, rows) <= known


def test_warming_up_compiles_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(warmup, "pass_kernel", lambda *key: asked.append(key))
    monkeypatch.setattr(warmup, "kernel_of", lambda name, width: asked.append((name, width, 1)))

    class Steps:
        total = done = 0

        def start(self, total: int) -> None:
            self.total = total

        def advance(self, count: int) -> None:
            self.done += count

    steps = Steps()
    count = warmup.warm_up(steps)
    assert set(asked) == set(warmup.relayout_kernels())
    assert count > len(asked)
    assert 0 < steps.done <= steps.total


def test_every_kernel_on_the_list_can_be_asked_for() -> None:
    """The cheap ones, compiled; a wrong name or width shows."""
    for key in warmup.relayout_kernels():
        if key[0] in ("copy", "fill", "strided"):
            assert relayout_execution.pass_kernel(*key)
        elif key[0] == "gather":
            relayout_execution.kernel_of(*key[:2])
