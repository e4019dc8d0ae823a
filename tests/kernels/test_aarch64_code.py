"""The kernels as LLVM compiles them for AArch64, on any machine; `tests/other_systems.sh` runs them, emulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastindex.runtime.machine_code import LEVELS

#: What Python has, and every C library. Not among them: division of 128 bits
#: (`__udivti3`) and atomics out of line (`__aarch64_ldadd8_relax`), which a process may lack.
PROVIDED = ("Py", "memcpy", "memmove", "memset")

#: Kernels that move one element at a time, or only call others, or only tell other threads what to call.
SCALAR = {
    *("run_passes", "run_plain", "serve", "lead", "lead_plain", "dismiss", "close", "boxes 1 0", "boxes 1 1"),
    *("run_page_passes", "write_runs", "are_distinct", "order_blocks"),
}


@pytest.mark.sweep
@pytest.mark.long
def test_every_kernel_compiles_for_aarch64_with_vectors_and_without_missing_functions(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.kernels.aarch64_code"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **LEVELS["aarch64"].variables, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 60
    missing = {
        name: [call for call in code["calls"] if not call.startswith(PROVIDED)]
        for name, code in found.items()
        if not all(call.startswith(PROVIDED) for call in code["calls"])
    }
    assert not missing
    assert {name for name, code in found.items() if not code["vector_instructions"]} <= SCALAR
