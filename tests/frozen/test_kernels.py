"""The machine code of kernels is that which was frozen; `python -m tests.frozen.kernels` tells all that differ."""

from __future__ import annotations

import platform

import pytest

from tests.cases import strategies
from tests.frozen import kernels

FIRST, *FROZEN = kernels.FILE.read_text().splitlines()
#: Kernels take seconds each: of a part of the tests, a quarter.
CHOSEN = [*strategies.rotating(FROZEN)][:: None if strategies.PART is None else 4]

ASSEMBLY = """
\t.section\t.ltext,"axl",@progbits
\t.globl\tfastindex.fill
fastindex.fill:
\tmovabsq\t$.const.pickledata.140, %rdi
\tmovq\t$24, %rax
\tvmovups\t%ymm0, (%rax)
.LBB0_1:
\tjmp\t.LBB0_1
\tcallq\tfastindex.other.2
\tcallq\tmemcpy
\t.size\tfastindex.fill, 3
"""


@pytest.mark.long
@pytest.mark.skipif(kernels.versions() != FIRST, reason=f"the code was compiled with {FIRST[2:]}")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the targets are of x86-64")
@pytest.mark.parametrize("target", sorted({line.split()[0] for line in CHOSEN}))
def test_machine_code_is_that_which_was_frozen(target: str) -> None:
    """A change that is intended is written with ``--write``, and explained in its commit."""
    frozen = [line for line in CHOSEN if line.split()[0] == target]
    found = kernels.lines(target, [line.split(maxsplit=3)[3] for line in frozen])
    assert kernels.differences(frozen, found) == []


def test_a_kernel_that_moved_has_the_same_digest() -> None:
    moved = ASSEMBLY.replace("fastindex.fill", "fastindex.filled.1").replace("other.2", "another.17")
    assert moved != ASSEMBLY
    assert kernels.line("haswell", "fill 1 0", moved) == kernels.line("haswell", "fill 1 0", ASSEMBLY)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("$24", "$32"),
        ("ymm0", "ymm1"),
        ("memcpy", "memmove"),
        ("fastindex.other.2", "fastindex.fill"),
        ("LBB0_1\n", "L\n"),
    ],
)
def test_other_code_has_another_digest(old: str, new: str) -> None:
    assert old in ASSEMBLY
    other = kernels.line("haswell", "fill 1 0", ASSEMBLY.replace(old, new))
    assert other != kernels.line("haswell", "fill 1 0", ASSEMBLY)


def test_differences_name_kernels_that_are_missing_or_new() -> None:
    before = ["haswell 2 00 fill 1 0", "haswell 3 11 copy 1 0", "icelake-server 2 00 fill 1 0"]
    now = ["haswell 2 00 fill 1 0", "haswell 3 12 copy 1 0", "icelake-server 4 00 boxes 1 0"]
    assert kernels.differences(before, now) == [
        "- haswell 3 11 copy 1 0",
        "+ haswell 3 12 copy 1 0",
        "- icelake-server 2 00 fill 1 0",
        "+ icelake-server 4 00 boxes 1 0",
    ]
