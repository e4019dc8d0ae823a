"""Kernels compile once where that is possible, and always run.

Tests of: cuda.kernels.compilation, runtime.kernels.
"""

import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from numba import njit

from fastindex import first_use, terminal
from fastindex.runtime import kernels as compilation
from fastindex.runtime.lines.memory import literal
from tests.cases.hangs import HANG_SECONDS

HELPER = "def step(x):\n    return x + {step}\n"
MODULE = textwrap.dedent(
    """
    import numpy as np
    from fastindex.runtime.kernels import kernel, registered_kernels
    from fastindex.kernels.helper import step
    from numba.extending import register_jitable

    inlined = register_jitable(step)

    @kernel("int64(int64[::1])")
    def total(values):
        result = 0
        for value in values:
            result += inlined(value)
        return result

    def main():
        result = total(np.arange(4))
        for dispatcher, signature in registered_kernels():
            dispatcher.compile(signature)
        stats = total.stats
        print(result, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), len(total.signatures))
    """
)


@pytest.fixture
def package(tmp_path):
    kernels = tmp_path / "fastindex" / "kernels"
    kernels.mkdir(parents=True)
    (tmp_path / "fastindex" / "__init__.py").touch()
    (kernels / "__init__.py").touch()
    runtime = tmp_path / "fastindex" / "runtime"
    runtime.mkdir()
    (runtime / "__init__.py").touch()
    (runtime / "kernels.py").write_text(Path(compilation.__file__).read_text())
    for module in (first_use, terminal):
        source = Path(module.__file__)
        (tmp_path / "fastindex" / source.name).write_text(source.read_text())
    (kernels / "helper.py").write_text(HELPER.format(step=1))
    (kernels / "total.py").write_text(MODULE)
    return tmp_path


def environment(package: Path, **variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    return inherited | {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"} | variables


def run(package: Path, **variables: str) -> list[int]:
    command = [sys.executable, "-W", "error", "-c", "from fastindex.kernels.total import main; main()"]
    done = subprocess.run(
        command,
        cwd=package,
        env=environment(package, **variables),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [int(word) for word in done.stdout.split()]


@pytest.mark.in_turn(seconds=4)
def test_compiled_once_and_again_after_an_edit_in_an_inlined_module(package):
    assert run(package) == [10, 0, 1, 1]
    assert run(package) == [10, 1, 0, 1]
    (package / "fastindex/kernels/helper.py").write_text(HELPER.format(step=2))
    assert run(package) == [14, 0, 1, 1]


@pytest.mark.in_turn(seconds=4)
def test_what_is_kept_is_kept_for_each_target(package):
    """The processor and its instructions are part of the key; two targets lose nothing to each other."""
    least = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert run(package) == [10, 0, 1, 1]
    assert run(package, **least) == [10, 0, 1, 1]
    assert run(package) == [10, 1, 0, 1]
    assert run(package, **least) == [10, 1, 0, 1]


@pytest.mark.in_turn(seconds=4)
def test_damaged_cache_files_cost_only_time(package):
    cache = package / "cache"
    assert run(package, NUMBA_CACHE_DIR=str(cache)) == [10, 0, 1, 1]
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".nbc"}
    for path in files:
        path.write_bytes(path.read_bytes()[:40])
    assert run(package, NUMBA_CACHE_DIR=str(cache)) == [10, 0, 1, 1]
    assert run(package, NUMBA_CACHE_DIR=str(cache)) == [10, 1, 0, 1]


def make_cache_unwritable(package: Path) -> dict[str, str]:
    # A file where a folder should be refuses even the superuser.
    (package / "fastindex/kernels/__pycache__").touch()
    return {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache", "NUMBA_CACHE_DIR": "/dev/null/numba"}


@pytest.mark.in_turn(seconds=3)
def test_no_cache_folder_costs_only_time(package):
    variables = make_cache_unwritable(package)
    assert run(package, **variables) == [10, 0, 1, 1]
    assert run(package, **variables) == [10, 0, 1, 1]


def stderr_on_terminal(package: Path, **variables: str) -> str:
    terminal, end = pty.openpty()
    command = [sys.executable, "-c", "from fastindex.kernels.total import main; main()"]
    done = subprocess.run(
        command,
        cwd=package,
        env=environment(package, **variables),
        stdout=subprocess.DEVNULL,
        stderr=end,
        timeout=HANG_SECONDS,
        check=True,
    )
    assert done.returncode == 0
    os.set_blocking(terminal, False)
    try:
        text = os.read(terminal, 10_000).decode()
    except BlockingIOError:
        text = ""
    os.close(terminal)
    os.close(end)
    return text


@pytest.mark.in_turn(seconds=3)
def test_a_terminal_is_told_why_it_waits(package):
    first = stderr_on_terminal(package)
    assert first.startswith("fastindex: compiling kernels (once for this machine, kept in ")
    assert first.count("\n") == 1
    assert stderr_on_terminal(package) == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_processes_that_save_at_once_lose_nothing(tmp_path):
    children = []
    for child in range(6):
        children.append(os.fork())
        if children[-1] == 0:
            files = compilation._FileEach(str(tmp_path), "kernel", "stamp")
            for number in range(20):
                files.save((child, number), [child, number])
                files.save("of all", list(range(1000)))
            os._exit(0)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 6
    files = compilation._FileEach(str(tmp_path), "kernel", "stamp")
    assert [files.load((child, number)) for child in range(6) for number in range(20)] == [
        [child, number] for child in range(6) for number in range(20)
    ]
    assert files.load("of all") == list(range(1000))
    assert len(list(tmp_path.iterdir())) == 6 * 20 + 1


def test_what_was_made_from_other_sources_is_not_loaded(tmp_path):
    files, others = (compilation._FileEach(str(tmp_path), "kernel", stamp) for stamp in ("stamp", "another"))
    files.save("key", "code")
    assert (files.load("key"), files.holds("key")) == ("code", True)
    assert (others.load("key"), others.holds("key")) == (None, False)
    assert (files.load("another key"), files.holds("another key")) == (None, False)


def test_a_subroutine_is_compiled_once_for_all_constants_but_its_literals() -> None:
    @compilation.subroutine("width")
    def scaled(width, place, flags):  # type: ignore[no-untyped-def]
        return literal(width) * place + (1 if flags[1] else 0)

    @njit
    def caller(number):  # type: ignore[no-untyped-def]
        first = scaled(2, 0, (number, True)) + scaled(2, number, (3, False))
        return first + scaled(4, 5, (number, number > 0))

    assert caller(7) == 1 + 14 + 21
    assert sorted(signature[0].literal_value for signature in scaled.signatures) == [2, 4]
