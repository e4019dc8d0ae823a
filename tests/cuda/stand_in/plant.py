"""Plants all the bugs of `planted_bugs`, and prints what found each, and at which line of the kernel.

    python -m tests.cuda.stand_in.plant [-k NAMES]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from tests.cuda.stand_in import driver

ROOT = Path(__file__).resolve().parents[3]

#: What is far apart is virtual memory: the driver takes it from the system, which gives only what is touched.
FREE_BYTES = 1 << 38

#: The checks that find bugs, by what they say.
CHECKS = {
    "misaligned": "alignment",
    "divergent barrier": "divergent barriers",
    "never written": "memory never written",
    "outside every array": "bounds of arrays",
    "of shared memory, which has": "bounds of shared memory",
    "race": "races",
    "bits where the instruction takes": "widths of integers",
    "does not know": "known instructions",
    "the bytes are not": "comparison of bytes",
}


def run(folder: Path, names: str = "") -> tuple[int, Path]:
    """Run the tests in a process that sees the stand-in driver; return its code and the report."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.cuda.stand_in.emulated"]
    command += ["-k", names, f"--junitxml={report}", "tests/cuda/stand_in/planted_bugs.py"]
    environment = {**driver.environment(driver.build(folder)), "STAND_IN_FREE_BYTES": str(FREE_BYTES)}
    result = subprocess.run(command, env={**environment, "PYTHONPATH": str(ROOT)}, cwd=ROOT, stdout=sys.stderr)
    return result.returncode, report


def rows(report: Path) -> Iterator[list[str]]:
    """Yield of each bug: its name, what it is planted in, the check that found it, and the line."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "").removeprefix("test_").replace("_", " ")
        told = [(one.get("name", ""), one.get("value", "")) for one in case.iter("property")]
        if not told or case.find("failure") is not None:
            yield [name, "", "NOT FOUND", ""]
        for planted_in, found in told[-1:]:
            check = next(check for said, check in CHECKS.items() if said in found)
            line = re.search(r"line \d+(, `.*?`)?", found) or re.search(r"line \d+", planted_in)
            yield [name, planted_in.split(",")[0], check, line[0] if line else ""]


def main() -> int:
    missing = driver.missing()
    if missing is not None:
        sys.exit(missing)
    with tempfile.TemporaryDirectory() as folder:
        code, report = run(Path(folder), " ".join(sys.argv[2:]))
        found = list(rows(report))
    print("| bug | planted in | found by | line |\n|---|---|---|---|")
    for row in found:
        print(f"| {' | '.join(row)} |")
    print(f"\n{len(found)} bugs planted, {sum(row[2] != 'NOT FOUND' for row in found)} found")
    return code


if __name__ == "__main__":
    sys.exit(main())
