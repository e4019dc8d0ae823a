"""Warm calls of small arrays take no more Python functions than recorded, but for a tenth."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.frozen import calls

RECORDED = calls.recorded()


@pytest.fixture(scope="module")
def cases() -> dict[str, Callable[[], object]]:
    return calls.cases()


def test_every_case_is_recorded(cases: dict[str, Callable[[], object]]) -> None:
    assert list(cases) == list(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_call_takes_no_more_functions_than_recorded(name: str, cases: dict[str, Callable[[], object]]) -> None:
    """What a change needs more is recorded with ``python -m tests.frozen.calls --write``, and explained there."""
    assert calls.calls_of(cases[name]) <= 1.1 * RECORDED[name]


def test_functions_of_the_package_count_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_FOLDER", __file__)

    def helper(k: int) -> int:
        return k

    def three() -> list[str]:
        return [str(pytest.approx(helper(k))) for k in range(2)]

    assert calls.calls_of(three) == 3
