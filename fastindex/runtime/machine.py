"""The machine that plans are made for, as a value: caches, processors, instructions; and this machine."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from fastindex.errors import UnsupportedError
from fastindex.first_use import load
from fastindex.runtime.numbers import LANE_BYTES, LINE_BYTES


class Cache(NamedTuple):
    """A cache of a processor, with lines of `LINE_BYTES`.

    Attributes
    ----------
    sets : int
    ways : int
        Lines per set.

    Examples
    --------
    >>> Cache.of(kibibytes=48, ways=12)
    Cache(sets=64, ways=12)
    """

    sets: int
    ways: int

    @classmethod
    def of(cls, kibibytes: int, ways: int) -> Cache:
        """Return a cache of this size and associativity."""
        return cls((kibibytes << 10) // (ways * LINE_BYTES), ways)


@dataclass(frozen=True)
class Caches:
    """The private caches of a processor."""

    l1: Cache
    l2: Cache


#: Caches of the smallest processors that kernels are made for; assumed if the system does not report any.
SMALL_CACHES = Caches(Cache.of(32, 8), Cache.of(256, 8))


def caches_in(folder: Path) -> Caches:
    """Return the caches that Linux describes in a folder; those of `SMALL_CACHES` if it describes no valid cache.

    Parameters
    ----------
    folder : Path
        ``/sys/devices/system/cpu/cpu0/cache``, except in tests.
    """
    found = {"1": SMALL_CACHES.l1, "2": SMALL_CACHES.l2}
    for index in sorted(folder.glob("index*")):
        try:
            fields = [(index / name).read_text().strip() for name in ("level", "type", "size", "ways_of_associativity")]
            size, ways = int(fields[2].removesuffix("K")) << 10, int(fields[3])
        except (OSError, ValueError):
            continue
        if fields[1] in ("Data", "Unified") and ways > 0 and size > 0 and size % (ways * LINE_BYTES) == 0:
            found[fields[0]] = Cache(size // (ways * LINE_BYTES), ways)
    return Caches(found["1"], found["2"])


@dataclass(frozen=True)
class Target:
    """What kernels are compiled for.

    Attributes
    ----------
    instructions : frozenset of str
        Instruction set extensions, by LLVM's names: "avx2", "avx512vbmi", "neon".
    vector_bytes : int
        Bytes of a vector that one instruction permutes.

    Examples
    --------
    >>> Target.of({"sse2", "ssse3", "avx2"}).vector_bytes
    16
    """

    instructions: frozenset[str]
    vector_bytes: int

    @classmethod
    def of(cls, instructions: frozenset[str] | set[str]) -> Target:
        """Return the target with these instructions: a line is permuted at once with AVX-512 VBMI, a lane elsewhere."""
        return cls(frozenset(instructions), LINE_BYTES if "avx512vbmi" in instructions else LANE_BYTES)


@dataclass(frozen=True)
class Machine:
    """A machine to plan for. Machine code depends on its target alone.

    Attributes
    ----------
    caches : Caches
        Of each processor.
    processors : int
        Number of usable processors.
    target : Target
    """

    caches: Caches
    processors: int
    target: Target


#: The machine that most thresholds and costs were measured on; examples plan for it.
EPYC_1M = Machine(
    Caches(Cache.of(48, 12), Cache.of(1024, 16)),
    2,
    Target.of({"sse2", "ssse3", "avx2", "f16c", "avx512f", "avx512bw", "avx512vbmi"}),
)


def usable_processors() -> int:
    """Return the number of processors this process may run on, limited to its quota, rounded up."""
    quota = _cached_quota()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, allowed if quota is None else min(allowed, math.ceil(quota)))


@lru_cache(maxsize=1)
def _cached_quota() -> float | None:
    return cgroup_quota(Path("/")) if sys.platform == "linux" else None


def cgroup_quota(root: Path) -> float | None:
    """Return the CPU quota of this process's control groups, in processors, or None without a limit.

    Every level from the process's group to the mounted root counts, in both versions of the kernel's
    interface (see ``cgroups(7)`` and the kernel's ``cgroup-v2.rst``).

    Parameters
    ----------
    root : Path
        The root of the file system: ``/``, except in tests.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    quotas = [
        quota
        for mount_point, mount_root, controllers in _cgroup_mounts(mounts)
        for group in _groups_of(groups, controllers)
        for quota in _quotas_along(root / mount_point.lstrip("/"), mount_root, group)
    ]
    return min(quotas, default=None)


def _cgroup_mounts(mounts: list[str]) -> Iterator[tuple[str, str, set[str] | None]]:
    """Yield (mount point, root of the mount within the hierarchy, controllers or None in version 2)."""
    for line in mounts:
        fields, separator, of_system = line.partition(" - ")
        options = of_system.split()
        if not separator or len(options) < 3 or len(fields.split()) < 5:
            continue
        mount_root, mount_point = fields.split()[3:5]
        if options[0] == "cgroup2":
            yield mount_point, mount_root, None
        elif options[0] == "cgroup" and "cpu" in options[2].split(","):
            yield mount_point, mount_root, set(options[2].split(","))


def _groups_of(groups: list[str], controllers: set[str] | None) -> Iterator[str]:
    for line in groups:
        number, _, remainder = line.partition(":")
        names, _, path = remainder.partition(":")
        if (number == "0" and not names) if controllers is None else "cpu" in names.split(","):
            yield path


def _quotas_along(mount: Path, mount_root: str, group: str) -> Iterator[float]:
    # In a container, its own group may be mounted as the root, while its path is still the one on the host.
    if mount_root != "/" and group.startswith(mount_root):
        group = group[len(mount_root) :]
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        quota = _quota_in(mount.joinpath(*parts[:depth]))
        if quota is not None:
            yield quota


def _quota_in(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        if quota == "max" or int(quota) <= 0 or int(period) <= 0:
            return None
        return int(quota) / int(period)
    except (OSError, ValueError):
        return None


_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@cache
def these_caches() -> Caches:
    """Return the caches of this machine; this needs no compiler."""
    return caches_in(_CACHES)


@cache
def this_machine() -> Machine:
    """Return this machine; loads the compiler to query the processor, so call it only when kernels are to run."""
    load("fastindex.runtime.machine_code")
    from fastindex.runtime.machine_code import features

    return Machine(these_caches(), usable_processors(), Target.of(features()))


def check_runs_here(machine: Machine | None) -> None:
    """Raise unless this machine has every instruction of the plan's machine; None is this machine.

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
