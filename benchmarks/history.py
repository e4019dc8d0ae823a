"""Measure `bench_history` on a list of commits, on this machine in one go, and keep what asv makes of it.

    python benchmarks/history.py                 # the commits below and the one checked out
    python benchmarks/history.py HEAD            # one more, after a change
    asv publish && asv preview                   # curves
    asv compare --factor 1.25 COMMIT COMMIT      # marks with + what takes a quarter longer: a ratio fell by a fifth

The package of each commit is laid out in a separate folder; the benchmarks are those checked out here, so old commits
answer today's questions, through the interface that they share.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: From the first that was fast to the last, and what each brought; only appended to.
COMMITS = {
    "d8b0900": "lines past the cache",
    "304aecd": "larger chunks",
    "af78ebd": "a whole relayout as one native call",
    "acdd172": "ahead of every rival from 64 MiB on",
    "85a6390": "the tree of folders",
    "775839d": "columns and blocks put together",
    "186b2a6": "packed slots by loops again",
    "e0eb783": "windows measured",
    "64b2f17": "packed rows as streams",
    "36b5f3d": "lines of sparse sources asked for",
    "8d3cd05": "a shared call as one native call",
}


def text_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def measure(commit: str) -> None:
    whole = text_of("git", "rev-parse", commit)
    archive = subprocess.run(["git", "archive", whole, "fastindex"], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(folder, filter="data")
        # asv imports every module beside a benchmark, and most of ours know no old commits.
        alone = Path(folder) / "benchmarks"
        alone.mkdir()
        (alone / "__init__.py").touch()
        shutil.copy(ROOT / "benchmarks" / "bench_history.py", alone)
        settings = json.loads((ROOT / "asv.conf.json").read_text())
        settings |= {"repo": str(ROOT), "benchmark_dir": str(alone), "results_dir": str(ROOT / settings["results_dir"])}
        config = Path(folder) / "asv.conf.json"
        config.write_text(json.dumps(settings))
        # It keeps PYTHONPATH from the processes that it measures, and takes it from here.
        environment = {**os.environ, "ASV_PYTHONPATH": folder, "FASTINDEX_HISTORY_FOLDER": folder}
        environment["NUMBA_CACHE_DIR"] = f"{folder}/cache"
        environment.pop("FASTINDEX_DISABLE_JIT", None)
        command = [sys.executable, "-m", "asv", "run", "--config", str(config), "--python", "same"]
        subprocess.run([*command, "--set-commit-hash", whole], cwd=folder, check=True, env=environment)


def main() -> None:
    for commit in sys.argv[1:] or [*COMMITS, "HEAD"]:
        measure(commit)


if __name__ == "__main__":
    main()
