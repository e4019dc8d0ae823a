"""A process may end while its daemon threads are in calls: the memory that their kernels use outlives the interpreter.

Tests of: moving.compiled_passes.
"""

from __future__ import annotations

import pytest

from tests.faults.exits import CALLS, ENDINGS, wrong_end


@pytest.mark.in_turn(seconds=2)
@pytest.mark.parametrize(
    ("call", "threads"),
    [
        ("pack", 1),
        ("pack", 2),
        ("unpack", 1),
        ("ascontiguousarray", None),
        ("copyto", None),
        ("a small plan", None),
    ],
)
def test_the_end_of_the_main_thread(call: str, threads: int | None) -> None:
    assert wrong_end(call, "", 0.1, threads=threads, callers=2) == ""


@pytest.mark.in_turn(seconds=2)
@pytest.mark.parametrize("ending", [*ENDINGS][1:])
def test_other_endings(ending: str) -> None:
    assert wrong_end("pack", ending, 0.1, callers=2) == ""


@pytest.mark.in_turn(seconds=0.4)
@pytest.mark.parametrize("call", ["linear_index", "a window", "slot by slot", "a new plan"])
def test_an_end_during_the_first_call(call: str) -> None:
    assert call in CALLS
    assert wrong_end(call, "", 0.0, callers=2, loaded=False) == ""
