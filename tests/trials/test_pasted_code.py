"""The lines that `try_layouts` prints, run in a fresh process: they compile, and give the numbers of the table.

Tests of: trials.results, trials.try_layouts, trials.jax_programs.
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
from tests.oracles.tpu_compiler import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "data" / "hlo" / "pasted_code.py"
#: What the lines of each ask for: layouts of arguments or results, AUTO, an order in a loop, or nothing.
PROGRAMS = {
    "scanned_weights_v5e": "in_shardings=({'k': Format(Layout((0, 2, 1)",
    "attention_v5e": "out_shardings=Format(Layout(",
    "points_v5e": "Format(Layout(",
    "embedding_v4": "in_shardings=",
    "transposes_v5p": "in_shardings=",
    "cached_v5e": "with_layout_constraint(x, Layout((0, 1, 2, 4, 3)))",
    "quantised_tpu7x": "sub_byte_element_size_in_bits=4",
    "powers_v6e": "static_argnums=(1,)",
    # Layout.AUTO keeps all layouts.
    "experts_tpu7x": "in_shardings=(None, None, Format(Layout((0, 1), ((8, 128),)), sharding))",
    "sharded_tpu7x": "Format(Layout.AUTO, NamedSharding(mesh, PartitionSpec('a', 'b')))",
    "on_host_v5e": "memory_kind='pinned_host'",
}


def run(what: str, name: str, lines: str = "") -> str:
    command = [sys.executable, str(SCRIPT), what, name]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, input=lines, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None or importlib.util.find_spec("flatbuffers") is None,
    reason="the extra tpu is not installed",
)
@pytest.mark.in_turn(seconds=30)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_lines_give_the_numbers_of_the_table(name: str) -> None:
    lines, expected, moved_before, variant = json.loads(run("try", name))
    assert PROGRAMS[name] in lines, (variant, lines)
    assert expected["moved_nbytes"] < moved_before
    found = json.loads(run("paste", name, lines))
    on_host = found.pop("host_argument_nbytes")
    assert found == expected
    # The moments of 4 times 300 times 420 values, padded to 512.
    assert on_host == (4 * 300 * 512 * 4 if name == "on_host_v5e" else 0)
