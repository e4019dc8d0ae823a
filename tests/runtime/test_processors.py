"""What processors a process may use: its affinity and the quotas of its control groups.

Tests of: runtime.machine.
"""

import os
from pathlib import Path

import pytest

from fastindex.runtime.machine import cgroup_quota, usable_processors


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def mount(mount_root: str, point: str, kind: str, options: str) -> str:
    return f"30 25 0:26 {mount_root} {point} rw,nosuid shared:4 - {kind} cgroup {options}\n"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs processor affinity")
def test_affinity_is_honoured():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_processors() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_quota_of_a_version_2_group_and_its_parents(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "proc/self/mountinfo": mount("/", "/sys/fs/cgroup", "cgroup2", "rw"),
            "sys/fs/cgroup/slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
        },
    )
    assert cgroup_quota(tmp_path) == 1.5
    write(tmp_path, {"sys/fs/cgroup/slice/job/cpu.max": "50000 100000\n"})
    assert cgroup_quota(tmp_path) == 0.5


def test_quota_of_a_version_1_container_mounted_at_its_own_group(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            "proc/self/mountinfo": mount("/docker/abc", "/sys/fs/cgroup/memory", "cgroup", "rw,memory")
            + mount("/docker/abc", "/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct"),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cgroup_quota(tmp_path) == 2.5


@pytest.mark.parametrize("text", ["max 100000", "-1", "", "0 0"])
def test_no_quota(tmp_path, text):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "short line\n" + mount("/", "/sys/fs/cgroup", "cgroup2", "rw"),
            "sys/fs/cgroup/cpu.max": text,
        },
    )
    assert cgroup_quota(tmp_path) is None
    assert cgroup_quota(tmp_path / "nowhere") is None
