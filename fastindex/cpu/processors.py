"""The processors that this process may use: its affinity, and the quotas of its control groups."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path


def usable_processors() -> int:
    """Return how many processors this process may keep busy: those it may run on, no more than its quota rounded up."""
    quota = _cached_quota()
    allowed = _allowed_processors()
    return max(1, allowed if quota is None else min(allowed, math.ceil(quota)))


def _allowed_processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@lru_cache(maxsize=1)
def _cached_quota() -> float | None:
    return cgroup_quota(Path("/")) if sys.platform == "linux" else None


def cgroup_quota(root: Path) -> float | None:
    """Return the processors that the control groups of this process grant, or None without a limit.

    Every level from the process's group to the mounted root counts, in both versions of the kernel's
    interface (see ``cgroups(7)`` and the kernel's ``cgroup-v2.rst``).

    Parameters
    ----------
    root : Path
        The root of the file system, ``/`` but in tests.
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
    """Yield (mount point, what of the hierarchy is mounted there, controllers; None in version 2)."""
    for line in mounts:
        fields, separator, rest = line.partition(" - ")
        options = rest.split()
        if not separator or len(options) < 3 or len(fields.split()) < 5:
            continue
        mount_root, mount_point = fields.split()[3:5]
        if options[0] == "cgroup2":
            yield mount_point, mount_root, None
        elif options[0] == "cgroup" and "cpu" in options[2].split(","):
            yield mount_point, mount_root, set(options[2].split(","))


def _groups_of(groups: list[str], controllers: set[str] | None) -> Iterator[str]:
    for line in groups:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (number == "0" and not names) if controllers is None else "cpu" in names.split(","):
            yield path


def _quotas_along(mount: Path, mount_root: str, group: str) -> Iterator[float]:
    # A container may see its own group mounted as the root while its path still tells the host's name of it.
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
