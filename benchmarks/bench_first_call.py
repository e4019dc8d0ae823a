"""asv: the first call in a new process, with kernels on disk and without."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAMS = {
    "linear_index": "fi.linear_index('bf16[64,300]{1,0:T(8,128)(2,1)}', ([3], [5]))",
    "multi_index": "fi.multi_index('bf16[64,300]{1,0:T(8,128)(2,1)}', [3])",
    "pack": "fi.pack(np.zeros((64, 300), np.float32), 'f32[64,300]{1,0:T(8,128)}')",
    "relayout": "fi.relayout(np.zeros(19200, np.float32), 'f32[64,300]', 'f32[64,300]{0,1}')",
    "import": "",
}


def process_seconds(program: str, environment: dict[str, str]) -> float:
    """From the start of a Python process to its end."""
    source = f"import numpy as np, fastindex as fi\n{program}"
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", source], check=True, env={**os.environ, **environment})
    return time.perf_counter() - begin


class FirstCall:
    """Seconds of a whole process that makes one call."""

    params = (list(PROGRAMS),)
    param_names = ("call",)
    unit = "seconds"
    timeout = 300
    rounds = 5

    def track_warm(self, call: str) -> float:
        process_seconds(PROGRAMS[call], {})
        return statistics.median(process_seconds(PROGRAMS[call], {}) for _ in range(self.rounds))

    def track_cold(self, call: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return process_seconds(PROGRAMS[call], {"NUMBA_CACHE_DIR": folder})
