"""Programs for each TPU, compiled without one: what the report says of their memory, against XLA's buffer assignment.

Tests of: hlo.flow.fast_memory, hlo.module_uses, hlo.flow.liveness, hlo.reports, hlo.flow.walk.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.hangs import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "data" / "hlo" / "memory_programs.py"
NAMES = (
    "adam_v5e", "adam_v6e", "adam_tpu7x", "adam_cpu", "experts_v5p", "experts_v4", "pictures_v5e", "pictures_v4",
    "lstm_v5e", "lstm_v5p", "decoded_v5e", "decoded_v6e", "decoded_cpu", "gradient_steps_v4", "offloaded_v5e",
    "offloaded_v5p", "host_moments_v6e", "sorts_v6e", "sorts_tpu7x", "graph_v4", "graph_v5p", "graph_v6e",
    "embedded_v5e", "embedded_tpu7x", "quantised_v5e", "quantised_v6e", "quantised_tpu7x", "solved_v5p", "spectra_v4",
    "fully_sharded_v5e", "fully_sharded_v5p", "fully_sharded_v6e", "tensor_parallel_tpu7x", "ring_v4", "ring_v6e",
    "exchanged_v5p", "exchanged_tpu7x", "served_v4", "served_v6e", "segments_v4", "branched_v6e",
)  # fmt: skip
#: Where XLA's order of buffers in the fast memory depends on times that the text does not have: the largest difference.
FAST_DIFFERENCES = {"adam_tpu7x": 0.1, "fully_sharded_v6e": 0.07, "quantised_v6e": 0.13, "quantised_tpu7x": 0.13}


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="the extra tpu is not installed")
@pytest.mark.in_turn(seconds=15)
@pytest.mark.parametrize("name", NAMES)
def test_what_xla_assigned(name: str, tmp_path: Path) -> None:
    """The main memory within 1% from the compiled object and 5% from the text; the fast one within 5% from the text."""
    command = [sys.executable, str(SCRIPT), str(tmp_path), name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["compiled"] == pytest.approx(found["assigned"], rel=0.01), found
    assert found["text"] == pytest.approx(found["assigned"], rel=0.05), found
    assert found["fast"] == pytest.approx(found["fast_assigned"], rel=FAST_DIFFERENCES.get(name, 0.05)), found
