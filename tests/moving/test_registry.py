"""Kernels of passes are listed once; none overruns scratch memory.

Tests of: moving.moves, moving.compiled_passes.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from fastindex.moving.compiled_passes import MOST_SCRATCH_BYTES
from fastindex.moving.moves import PASS_KERNELS, by_name

ROOT = Path(__file__).resolve().parents[2]


def test_two_kernels_of_one_name_are_rejected() -> None:
    with pytest.raises(ValueError, match="two kernels are called 'copy'"):
        by_name([PASS_KERNELS["copy"], PASS_KERNELS["fill"], PASS_KERNELS["copy"]])


def test_every_kernel_module_is_listed_and_has_what_passes_run() -> None:
    moves = ROOT / "fastindex/moving/moves"
    found = {".".join(path.relative_to(moves).with_suffix("").parts) for path in moves.glob("*/*kernel.py")}
    assert {one.module for one in PASS_KERNELS.values()} == found
    for one in PASS_KERNELS.values():
        module = import_module(one.of(1, 0).module)
        assert all(hasattr(module, function) for function in one.functions), one


def test_no_kernel_needs_more_scratch_memory_and_none_is_wasted() -> None:
    modules = [import_module(one.of(1, 0).module) for one in PASS_KERNELS.values()]
    assert max(getattr(module, "SCRATCH_BYTES", 0) for module in modules) == MOST_SCRATCH_BYTES
