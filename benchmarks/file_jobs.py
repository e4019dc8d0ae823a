"""Time relayouts of files in bounded memory, to tiles and back, beside ``cp``.

    python benchmarks/file_jobs.py --gib 16 --folder /scratch --max-memory 256MiB

The source holds ``f32[n,16384]`` and is moved to ``f32[n,16384]{0,1:T(8,128)}`` and back; what comes back is compared
with the source. Every time includes starting the program and bringing the result to disk; ``cp`` is timed together with
``sync`` of its result. As root, the system's cache is dropped before each; otherwise the source is in it, as far as it
fits. The folder needs room for three such files.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

COLUMNS = 16384
PART_BYTES = 64 << 20
TILED = "{0,1:T(8,128)}"


def main() -> None:
    """Print one row for each job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--max-memory", default="256MiB")
    options = parser.parse_args()
    rows = max(int(options.gib * (1 << 30)) // (4 * COLUMNS) // 128 * 128, 128)
    shape = f"f32[{rows},{COLUMNS}]"
    plain, copied, tiled, back = (options.folder / f"file_jobs_{name}" for name in ("plain", "copy", "tiled", "back"))
    try:
        make(plain, rows * COLUMNS * 4)
        timed("cp and sync", copy(plain, copied))
        copied.unlink()
        timed("to tiles", relayout(plain, tiled, shape, shape + TILED, options.max_memory))
        timed("from tiles", relayout(tiled, back, shape + TILED, shape, options.max_memory))
        sys.exit(None if filecmp.cmp(plain, back, shallow=False) else "what came back is not the source")
    finally:
        for path in (plain, copied, tiled, back):
            path.unlink(missing_ok=True)


def make(path: Path, nbytes: int) -> None:
    """Fill a file with random bytes."""
    numbers = np.random.default_rng(16)
    with path.open("wb") as file:
        for begin in range(0, nbytes, PART_BYTES):
            file.write(numbers.bytes(min(PART_BYTES, nbytes - begin)))


def copy(source: Path, target: Path) -> list[str]:
    """Return the command that copies a file and brings the copy to disk."""
    return ["sh", "-c", 'cp "$0" "$1" && sync "$1"', str(source), str(target)]


def relayout(source: Path, target: Path, before: str, after: str, max_memory: str) -> list[str]:
    """Return the command that moves a buffer."""
    job = ["relayout", str(source), str(target), "--from", before, "--to", after, "--max-memory", max_memory]
    return [sys.executable, "-m", "fastindex", *job]


def timed(name: str, command: list[str]) -> None:
    """Run a command and print what it took."""
    os.sync()
    if os.access("/proc/sys/vm/drop_caches", os.W_OK):
        Path("/proc/sys/vm/drop_caches").write_text("3")
        # What is given back to a virtual machine's host is new memory afterwards.
        time.sleep(2)
    begin = time.perf_counter()
    before = os.times()
    subprocess.run(command, check=True)
    seconds, after = time.perf_counter() - begin, os.times()
    user, system = after.children_user - before.children_user, after.children_system - before.children_system
    print(f"{name:12} {seconds:7.2f} s, of processors {user:.2f} s and {system:.2f} s in the system", flush=True)


if __name__ == "__main__":
    main()
