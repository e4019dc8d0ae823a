"""The machine that this process runs on, asked once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fastindex.cpu.processors import usable_processors
from fastindex.errors import UnsupportedError
from fastindex.first_use import load
from fastindex.lowering.machine import Caches, Machine, Target, caches_in

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@cache
def these_caches() -> Caches:
    """Return the caches of this machine; this needs no compiler."""
    return caches_in(_CACHES)


@cache
def this_machine() -> Machine:
    """Return this machine. It asks the compiler what the processor can do, so it waits until kernels are to run."""
    load("fastindex.kernels.compilation")
    from fastindex.kernels.compilation import features

    return Machine(these_caches(), usable_processors(), Target.of(features()))


def check_runs_here(machine: Machine | None) -> None:
    """Raise unless this machine has every instruction of the one that a plan is for; None is this one.

    Raises
    ------
    UnsupportedError
    """
    if machine is None:
        return
    missing = machine.target.instructions - this_machine().target.instructions
    if missing:
        raise UnsupportedError(
            f"this plan is for a machine with {', '.join(sorted(missing))}, which this one has not; it can be "
            "described and counted here, and run by a plan for this machine"
        )
