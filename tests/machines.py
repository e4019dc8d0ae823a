"""Run the tests on simulated machines, those of `tests.cases.machines`: their caches, instructions and processors.

    python tests/machines.py --all                        all six, the whole test command on each
    python tests/machines.py --today                      two of them, another pair each day
    python tests/machines.py XEON_2M -- tests/moving    those that are named; what follows ``--`` is for pytest

For each machine it prints how many tests passed and failed, and the seconds; it ends with 1 where any failed. Sizes of
caches are a folder mounted over those of ``/sys``, in a mount namespace that only the tests see; where that is not
allowed, `tests/conftest.py` gets the folder, and child processes have the caches of this machine. Instructions
are those that kernels are compiled for (``NUMBA_CPU_NAME``): fewer than this processor's. NEON_4M has its caches, and
the least that every x86 processor has; instructions of another architecture are planned for and not run.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fastindex.runtime.machine import Cache  # noqa: E402
from fastindex.runtime.numbers import LINE_BYTES  # noqa: E402
from fastindex.runtime.threads import THREADS_VARIABLE  # noqa: E402
from tests.cases.machines import CACHES_VARIABLE, MACHINE_VARIABLE, MACHINES  # noqa: E402

#: How many of them run each day.
A_DAY = 2

# By LLVM's names; what else a processor has follows from its own name.
_SSE2 = "+64bit,+cx8,+fxsr,+mmx,+sse,+sse2"
_AVX2 = f"{_SSE2},+avx,+avx2,+bmi,+bmi2,+cx16,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sse3,+sse4.1,+sse4.2,+ssse3"
_AVX512 = f"{_AVX2},+adx,+aes,+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl,+evex512"
_COMPILED_FOR = {
    "EPYC_512K_AVX2": ("haswell", _AVX2),
    "XEON_2M": ("skylake-avx512", _AVX512),
    "NEON_4M": ("generic", _SSE2),
}
_NO_SYS = "SMALL_256K"
_ONE_PROCESSOR = "ONE_CORE"
# Over which folder another is mounted, and which caches it describes.
_SYS, _CACHES = Path("/sys"), Path("/sys/devices/system/cpu/cpu0/cache")
_MOUNT = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


class Outcome(NamedTuple):
    """What came of the tests on one machine."""

    name: str
    status: int
    counts: str
    seconds: float

    def line(self) -> str:
        """The outcome in one line."""
        return f"{self.name}: {self.counts or f'ended with {self.status}'}, {self.seconds:.0f} s"


def todays() -> list[str]:
    """The machines of the day: after a few days each has had its turn."""
    names = list(MACHINES)
    begin = datetime.date.today().toordinal() * A_DAY % len(names)
    return names[begin : begin + A_DAY]


def describe(folder: Path, level: int, kind: str, cache: Cache) -> None:
    """Describe a cache as Linux does."""
    index = folder / f"index{level}"
    index.mkdir()
    told = {
        "level": level,
        "type": kind,
        "size": f"{cache.sets * cache.ways * LINE_BYTES >> 10}K",
        "ways_of_associativity": cache.ways,
    }
    for name, value in told.items():
        (index / name).write_text(f"{value}\n")


def mounted(folder: Path, place: Path) -> list[str] | None:
    """What a command begins with that is to see a folder in another's place; None where that is not allowed."""
    begin = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(folder), str(place)]
    try:
        allowed = subprocess.run([*begin, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        allowed = False
    return begin if allowed else None


def has_instructions(features: str) -> bool:
    """Whether this processor has what kernels would be compiled for."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "avx" not in features
    own = set(told.partition("flags")[2].partition("\n")[0].split())
    return set(re.findall(r"\+(avx\w*|f16c|fma)", features)) <= own


def on_one_processor() -> None:
    """Let this process, and its children, run on one of its processors."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def run(name: str, arguments: list[str], folder: Path) -> Outcome:
    """Run the tests on a machine; its caches are described in a folder, empty until now."""
    environment, prepare = {**os.environ, MACHINE_VARIABLE: name}, None
    place = _SYS if name == _NO_SYS else _CACHES
    if name != _NO_SYS:
        describe(folder, 1, "Data", MACHINES[name].caches.l1)
        describe(folder, 2, "Unified", MACHINES[name].caches.l2)
    begin = mounted(folder, place)
    if begin is None:
        environment[CACHES_VARIABLE] = str(folder)
    if name in _COMPILED_FOR:
        processor, features = _COMPILED_FOR[name]
        if has_instructions(features):
            environment |= {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features}
        else:
            say(f"{name}: kernels for this processor: it lacks instructions of {processor}")
    if name == _ONE_PROCESSOR:
        if hasattr(os, "sched_setaffinity"):
            prepare = on_one_processor
        else:
            environment[THREADS_VARIABLE] = "1"
    return outcome(name, [*(begin or ()), sys.executable, "-m", "pytest", *arguments], environment, prepare)


def outcome(name: str, command: list[str], environment: dict[str, str], prepare: Callable[[], None] | None) -> Outcome:
    """Run a command of pytest's, show what it prints, and take the numbers from its last lines."""
    began, last = time.monotonic(), ""
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=prepare
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            say(line.rstrip("\n"))
            last = line if re.search(r"\d+ (passed|failed|errors?)\b.* in [\d.]+s", line) else last
    counts = re.findall(r"\d+ (?:passed|failed|errors?|skipped)", last)
    return Outcome(name, child.returncode, ", ".join(counts), time.monotonic() - began)


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)  # noqa: T201


def parsed(given: list[str]) -> tuple[list[str], list[str]] | None:
    """The machines that a command line names, and what is for pytest; None where it names none, or one and a group."""
    groups = {"--all": list(MACHINES), "--today": todays(), **{name: [name] for name in MACHINES}}
    count = next((k for k, word in enumerate(given) if word not in groups), len(given))
    words, rest = given[:count], given[count:]
    if not words or (len(words) > 1 and not set(words) <= set(MACHINES)):
        return None
    return [name for word in words for name in groups[word]], rest[1:] if rest[:1] == ["--"] else rest


def main(given: list[str]) -> int:
    """Run what the command line asks for."""
    asked = parsed(given)
    if asked is None:
        say(f"{__doc__}\nMachines: {', '.join(MACHINES)}")
        return 2
    found = []
    for name in asked[0]:
        with tempfile.TemporaryDirectory() as folder:
            say(f"==== {name}")
            found.append(run(name, asked[1], Path(folder)))
    for one in found:
        say(one.line())
    return int(any(one.status for one in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
