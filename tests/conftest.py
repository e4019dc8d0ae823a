"""What every test shares: one deterministic Hypothesis profile, printed seeds, `benchmarks` on the path."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

from tests.cases import strategies

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

#: Run by `test_interop` and `test_cuda_simulator`, each in a process of its own.
collect_ignore_glob = ["interop/interop_with_*.py", "kernels/simulated_cuda.py"]

settings.register_profile(
    "deterministic",
    derandomize=True,
    print_blob=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("deterministic")


def pytest_report_header() -> str:
    """Print where the seeds of the random tests start."""
    return f"random tests: seeds from {strategies.FIRST_SEED} (FASTINDEX_TEST_SEED)"
