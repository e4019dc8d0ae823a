"""Machines by name, for tests that ask what is chosen or counted: the same on whatever machine they run.

`tests/machines.py` runs the tests on each of them, simulated.
"""

from __future__ import annotations

from dataclasses import replace

from fastindex.runtime.machine import EPYC_1M, SMALL_CACHES, Cache, Caches, Machine, Target, this_machine

EPYC_512K_AVX2 = Machine(Caches(Cache.of(32, 8), Cache.of(512, 8)), 2, Target.of({"sse2", "ssse3", "avx2", "f16c"}))
XEON_2M = Machine(
    Caches(Cache.of(48, 12), Cache.of(2048, 16)),
    2,
    Target.of(EPYC_1M.target.instructions - {"avx512vbmi"}),
)
SMALL_256K = Machine(SMALL_CACHES, 2, EPYC_1M.target)
NEON_4M = Machine(Caches(Cache.of(64, 4), Cache.of(4096, 16)), 4, Target.of({"neon"}))
ONE_CORE = replace(EPYC_1M, processors=1)

#: Names the machine that `tests/machines.py` simulates.
MACHINE_VARIABLE = "FASTINDEX_TEST_MACHINE"
#: Names a folder that describes caches, for processes of `tests/machines.py` that cannot mount it over that of /sys.
CACHES_VARIABLE = "FASTINDEX_TEST_CACHES"

MACHINES = {
    "EPYC_1M": EPYC_1M,
    "EPYC_512K_AVX2": EPYC_512K_AVX2,
    "XEON_2M": XEON_2M,
    "SMALL_256K": SMALL_256K,
    "NEON_4M": NEON_4M,
    "ONE_CORE": ONE_CORE,
}


def run_here(machine: Machine, vector_bytes: int | None = None) -> Machine:
    """Return a machine with the instructions of this one, so that plans for it run.

    Parameters
    ----------
    machine : Machine
    vector_bytes : int, optional
        Those of this machine by default; others run too, if slowly.
    """
    target = this_machine().target
    return replace(machine, target=replace(target, vector_bytes=vector_bytes or target.vector_bytes))
