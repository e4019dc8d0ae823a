"""Plans on named machines are those that were frozen; `python -m tests.frozen.plans` tells all that differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.cases import strategies
from tests.cases.machines import EPYC_1M, XEON_2M
from tests.frozen import plans

FROZEN = plans.FILE.read_text().splitlines()
CELLS = [*plans.cells()]


def test_the_file_has_every_cell() -> None:
    assert [tuple(line.split()[:2]) for line in FROZEN] == CELLS
    assert len(CELLS) == 2000


#: Cells of a case; of a part of the tests two of its cases, which take seconds.
TOGETHER = 20
FIRST = [*strategies.rotating(range(0, len(CELLS), TOGETHER))][: None if strategies.PART is None else 2]


@pytest.mark.parametrize("first", FIRST)
def test_plans_are_those_that_were_frozen(first: int) -> None:
    """A change that is intended is written with ``--write``, and explained in its commit."""
    for cell, frozen in zip(CELLS[first : first + TOGETHER], FROZEN[first : first + TOGETHER], strict=True):
        assert plans.line(*cell) == frozen


def test_another_number_is_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = CELLS[0]
    right = plans.line(*cell)
    monkeypatch.setattr(plans, "machines", lambda: iter([EPYC_1M, replace(XEON_2M, processors=1)]))
    assert plans.line(*cell) != right
