"""Digests of the machine code of every CPU kernel, frozen: whether kernels that were moved compile to the same code.

    python -m tests.frozen.kernels                 what differs from the file; some minutes on two processors
    python -m tests.frozen.kernels "fill 1 0"      the same of the kernels that are named
    python -m tests.frozen.kernels --write         freeze the code of today, after a change of it that was meant

They are compiled for named targets, in separate processes: the code depends on the versions of Python, Numba and
llvmlite in the first line of the file, and not on this processor, which has to be an x86-64. A line is the target, the
count of instructions, a digest of the assembly, and the kernel as `fastindex warmup` knows it. Symbols, which say in
which module a function is, are numbered in the order of their first use.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "golden" / "kernels.txt"

# By LLVM's names; what else a processor has follows from its own name.
_AVX2 = (
    "+64bit,+cx8,+fxsr,+mmx,+sse,+sse2,+avx,+avx2,+bmi,+bmi2,+cx16,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sse3,+sse4.1,"
    "+sse4.2,+ssse3"
)
_AVX512 = f"{_AVX2},+adx,+aes,+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vbmi,+avx512vl,+evex512"
TARGETS = {"haswell": _AVX2, "icelake-server": _AVX512}

_SYMBOL = re.compile(r'"[^"\n]*"|fastindex[\w.]+')
#: What says how symbols are linked, and nothing of what runs.
_LINKAGE = re.compile(r"\.(file|globl|weak|type|size|comm|ident|hidden)\b|\.section\s.*\.note")


def versions() -> str:
    """Return the first line of the file, for what is installed."""
    python = ".".join(platform.python_version_tuple()[:2])
    return f"# Python {python}, numba {version('numba')}, llvmlite {version('llvmlite')}"


def normalised(assembly: str) -> str:
    """Return assembly with symbols numbered, and without what only names or links them.

    Examples
    --------
    >>> normalised("\\t.globl\\tfastindex.fill\\nfastindex.fill:\\n\\tjmp\\tfastindex.copy.1\\n\\tcall\\tmemcpy")
    'S0:\\njmp\\tS1\\ncall\\tmemcpy'
    """
    numbers: dict[str, str] = {}
    lines = []
    for line in filter(None, map(str.strip, assembly.splitlines())):
        if line.startswith((".ascii", ".asciz")):
            lines.append(line)
        elif not _LINKAGE.match(line):
            lines.append(_SYMBOL.sub(lambda found: numbers.setdefault(found[0], f"S{len(numbers)}"), line))
    return "\n".join(lines)


def line(target: str, name: str, assembly: str) -> str:
    """Return the line of a kernel.

    Examples
    --------
    >>> line("haswell", "fill 1 0", "\\tincq\\t%rax\\n\\tretq\\n")
    'haswell 2 fcee381dfd5e fill 1 0'
    """
    code = normalised(assembly)
    instructions = sum(not one.startswith(".") and not one.endswith(":") for one in code.splitlines())
    return f"{target} {instructions} {hashlib.sha256(code.encode()).hexdigest()[:12]} {name}"


def compile_here(target: str, names: Sequence[str]) -> None:
    """Compile kernels in this process, all without names, and print their lines."""
    from fastindex.moving.warmup import every_kernel
    from fastindex.runtime import machine_code
    from fastindex.runtime.kernels import assembly

    for name, kernel in every_kernel().items():
        if not names or name in names:
            sys.stdout.write(f"{line(target, name, assembly(kernel, machine_code.target()))}\n")
            sys.stdout.flush()


def lines(target: str, names: Iterable[str] = ()) -> list[str]:
    """Return the lines of kernels for a target, which another process compiles."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
        chosen = {"NUMBA_CPU_NAME": target, "NUMBA_CPU_FEATURES": TARGETS[target], "NUMBA_CACHE_DIR": folder}
        command = [sys.executable, "-m", "tests.frozen.kernels", "--for", target, *names]
        done = subprocess.run(command, cwd=ROOT, env=kept | chosen, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def differences(frozen: Iterable[str], found: Iterable[str]) -> list[str]:
    """Return the lines of kernels that differ, are missing, or are new."""

    def by_kernel(some: Iterable[str]) -> dict[tuple[str, str], str]:
        return {(one.split()[0], one.split(maxsplit=3)[3]): one for one in some}

    before, now = by_kernel(frozen), by_kernel(found)
    pairs = ((before.get(kernel), now.get(kernel)) for kernel in {**before, **now})
    return [
        f"{sign} {one}" for pair in pairs if pair[0] != pair[1] for sign, one in zip("-+", pair, strict=True) if one
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Digests of the machine code of kernels.")
    parser.add_argument("names", nargs="*", metavar="KERNEL")
    parser.add_argument("--write", action="store_true", help="freeze the code of all kernels")
    parser.add_argument("--for", dest="target", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.target:
        compile_here(given.target, given.names)
        return 0
    with ThreadPoolExecutor(len(TARGETS)) as children:
        found = [one for some in children.map(lambda target: lines(target, given.names), TARGETS) for one in some]
    if given.write:
        FILE.write_text("".join(f"{one}\n" for one in [versions(), *found]))
        return 0
    first, *frozen = FILE.read_text().splitlines()
    if first != versions():
        sys.stdout.write(f"the file is of {first[2:]}; here are {versions()[2:]}\n")
    if given.names:
        frozen = [one for one in frozen if one.split(maxsplit=3)[3] in given.names]
    differing = differences(frozen, found)
    sys.stdout.write(
        "".join(f"{one}\n" for one in differing) + f"{len(differing)} lines of {len(found)} kernels differ\n"
    )
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
