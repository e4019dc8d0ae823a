"""What helping threads sleep on, here and on systems whose semaphores this one has to imitate.

Tests of: moving.pass_threads.
"""

from __future__ import annotations

import ctypes
import errno
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.moving import pass_threads
from fastindex.moving import pass_threads as semaphores
from fastindex.runtime.numbers import ASLEEP, JOB

ROWS, COLUMNS = 1100, 1024

#: Semaphores as Mach has them: numbers that a call makes, and that two functions of one argument take.
MACH = """
#include <errno.h>
#include <semaphore.h>
#include <stdint.h>
uint32_t mach_task_self_ = 77;
static sem_t made[64];
static uint32_t count;
int semaphore_create(uint32_t task, uint32_t *semaphore, int policy, int value) {
  if (task != 77 || policy != 0 || count == 64) return 4;
  sem_init(&made[count], 0, value);
  *semaphore = 1000 + count++;
  return 0;
}
int semaphore_wait(uint32_t semaphore) { return sem_wait(&made[semaphore - 1000]) ? 14 : 0; }
int semaphore_signal(uint32_t semaphore) { return sem_post(&made[semaphore - 1000]); }
"""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = pass_threads._Pool()
    monkeypatch.setattr(pass_threads, "_pool", made)
    yield made
    made.close()


def check_relayouts() -> None:
    plan = fi.plan_relayout(f"f32[{ROWS},{COLUMNS}]", f"f32[{ROWS},{COLUMNS}]{{0,1}}")
    values = np.random.default_rng(1).random(ROWS * COLUMNS, np.float32)
    out = np.empty(ROWS * COLUMNS, np.float32)
    for _ in range(5):
        out[:] = -1
        plan(values, out=out, threads=2)
        assert np.array_equal(out, values.reshape(ROWS, COLUMNS).T.reshape(-1))


def test_without_semaphores_no_thread_helps(monkeypatch: pytest.MonkeyPatch, pool: Any) -> None:
    def refuse(*arguments: Any) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1

    monkeypatch.setattr(semaphores, "_library", lambda: SimpleNamespace(sem_init=refuse))
    with pytest.raises(OSError, match="sem_init failed"):
        semaphores.semaphore_at(0)
    check_relayouts()
    assert pool.helpers == []


def test_the_semaphores_of_macos(monkeypatch: pytest.MonkeyPatch, pool: Any, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "mach.c").write_text(MACH)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", tmp_path / "mach.so", tmp_path / "mach.c", "-lpthread"], check=True
    )
    library = ctypes.CDLL(str(tmp_path / "mach.so"))
    monkeypatch.setattr(semaphores, "_library", lambda: library)
    monkeypatch.setattr(semaphores, "sys", SimpleNamespace(platform="darwin"))
    check_relayouts()
    assert len(pool.helpers) == 1
    helper = pool.helpers[0]
    while helper.fields[JOB.state] != ASLEEP:
        # It falls asleep without work for some microseconds; how long that takes is the system's affair.
        time.sleep(0.001)
    check_relayouts()
    # Woken once more, to end.
    helper.close()
    assert not helper._thread.is_alive()


def test_a_semaphore_that_macos_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ctypes.c_uint32(1)
    library = SimpleNamespace(semaphore_create=lambda *arguments: 6)
    monkeypatch.setattr(semaphores, "_library", lambda: library)
    monkeypatch.setattr(semaphores, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(semaphores.ctypes.c_uint32, "in_dll", lambda *arguments: task, raising=False)
    with pytest.raises(OSError, match="semaphore_create returned 6"):
        semaphores.semaphore_at(0)
