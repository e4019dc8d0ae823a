"""Relayouts with one long dimension: blocks that many tasks share, and those at the ends, between guards.

Tests of: moving.moves.block_permute.geometry, moving.moves.column_gather.plan, moving.moves.block_permute.kernel.
"""

from __future__ import annotations

import datetime

import pytest

from tests.cases import long_relayouts, strategies
from tests.cases.long_relayouts import Case

#: Other seeds every day; the number of the sweep's case says which, and a failure names its own.
TODAY = datetime.date.today().toordinal() % 10_000 * 1_000_000
_SWEEP, _PART = 1500, 300

#: Found by this sweep, or while it was written: each was wrong once.
NAMED = (
    ("s4[20011]{0:T(16,7,5)E(4)}", "s4[20011]{0:T(16,128)(2,1)}"),
    ("s4[1,9999]{1,0:T(7,5)E(4)}", "s4[1,9999]{1,0:T(16,128)(2,1)}"),
    ("s4[4096]{0:T(*,100)(8,1)E(4)}", "s4[4096]{0:T(512,1024)}"),
    ("s4[1,16,7,777]{3,2,0,1:T(2,*,128)E(4)}", "s4[1,16,7,777]{3,1,0,2:T(16,1,1)E(4)}"),
    ("s4[130,1,2049,1]{0,2,3,1:T(8,128)(4,1)}", "s4[130,1,2049,1]{3,2,1,0:T(7,5)E(4)}"),
    ("u8[20011]{0:T(16,7,5)}", "u8[20011]{0:T(4)}"),
    ("s4[5,16000]{0,1:T(8,128)}", "s4[5,16000]{1,0:T(1024)E(4)}"),
)


@pytest.mark.parametrize("pair", NAMED)
@pytest.mark.parametrize("threads", [1, 2])
def test_what_was_wrong_once(pair: tuple[str, str], threads: int) -> None:
    assert not long_relayouts.wrong(Case(*pair, None, 0, threads, 0))


def test_random_relayouts() -> None:
    check(strategies.rotating_seeds(240))


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(TODAY, TODAY + _SWEEP, _PART))
def test_other_relayouts_every_day(first: int) -> None:
    print(f"seeds from {first}")  # noqa: T201
    check(range(first, first + _PART))


def check(seeds: range) -> None:
    cases = [case for case in map(long_relayouts.random_case, seeds) if case is not None]
    assert cases
    found = [what for what in map(long_relayouts.wrong, cases) if what]
    assert not found, "\n".join(found)
