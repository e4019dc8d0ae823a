"""Kernels of passes register themselves; one that would overrun scratch memory or takes another's name is rejected."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastindex.moving.compiled_passes import MOST_SCRATCH_BYTES, PASS_KERNELS, registered
from fastindex.moving.kernels.registry import PassKernel
from fastindex.moving.moves import KERNEL_MODULES

ROOT = Path(__file__).resolve().parents[2]


def planted(monkeypatch: pytest.MonkeyPatch, *kernels: PassKernel) -> dict[str, PassKernel]:
    monkeypatch.setitem(sys.modules, "fastindex.moving.moves.planted", SimpleNamespace(KERNELS=kernels))
    return registered(("planted",))


def test_a_kernel_that_needs_more_scratch_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "greedy" in planted(monkeypatch, PassKernel("greedy", (), scratch_bytes=MOST_SCRATCH_BYTES))
    with pytest.raises(ValueError, match=f"'greedy' in planted needs {MOST_SCRATCH_BYTES + 1} bytes"):
        planted(monkeypatch, PassKernel("greedy", (), scratch_bytes=MOST_SCRATCH_BYTES + 1))


def test_two_kernels_of_one_name_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="two kernels are called 'copy'"):
        planted(monkeypatch, PassKernel("copy", ()), PassKernel("copy", ()))


def test_every_kernel_module_is_listed_and_no_scratch_memory_is_wasted() -> None:
    moves = ROOT / "fastindex/moving/moves"
    found = {".".join(path.relative_to(moves).with_suffix("").parts) for path in moves.glob("*/*kernel.py")}
    assert set(KERNEL_MODULES) == found
    assert max(one.scratch_bytes for one in PASS_KERNELS.values()) == MOST_SCRATCH_BYTES
