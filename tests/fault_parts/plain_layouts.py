"""Random layouts in memory from malloc, for tools that watch what lies beside it."""

from __future__ import annotations

from tests.fault_parts.layouts import PlainMemory, run_in
from tests.fault_parts.tally import Tally

#: A tool makes everything fifty times slower: no large ones.
_NEVER = 1 << 60


def run(tally: Tally) -> None:
    """Draw layouts until the time is over."""
    run_in(tally, PlainMemory(), "of layouts", _NEVER)
