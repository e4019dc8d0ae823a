"""asv: what ``import fastindex`` costs, beside ``import numpy``."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

LIGHT = {
    "import": "import fastindex",
    "parse": "import fastindex; fastindex.Shape.parse('bf16[1024,1000]{1,0:T(8,128)(2,1)}').nbytes",
    "info": "from fastindex.cli.commands import main; main(['info', 'f32[3,5]{1,0:T(2,2)}'])",
}


def process_seconds(source: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", source], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


class Import:
    """Whole processes, the start of Python included, in turn with one that imports NumPy."""

    params = (list(LIGHT),)
    param_names = ("what",)
    unit = "ratio"
    timeout = 120
    rounds = 11

    def medians(self, what: str) -> dict[str, float]:
        sources = {"nothing": "pass", "numpy": "import numpy", what: LIGHT[what]}
        seconds: dict[str, list[float]] = {name: [] for name in sources}
        for _ in range(self.rounds):
            for name, source in sources.items():
                seconds[name].append(process_seconds(source))
        return {name: statistics.median(times) for name, times in seconds.items()}

    def track_ratio_to_numpy(self, what: str) -> float:
        """Without what Python itself needs to start."""
        found = self.medians(what)
        return (found[what] - found["nothing"]) / (found["numpy"] - found["nothing"])

    def track_seconds(self, what: str) -> float:
        return self.medians(what)[what]


Import.track_seconds.unit = "seconds"  # type: ignore[attr-defined]
