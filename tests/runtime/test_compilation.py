"""Kernels compile once where that is possible, always run, and are loaded without the compiler.

Tests of: cuda.kernels.compilation, runtime.kernels, runtime.machine_code.
"""

import hashlib
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.registry import cpu_target

from fastindex.runtime import first_answer, machine_code, numbers
from fastindex.runtime import kernels as compilation
from tests.cases.hangs import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
HELPER = "def step(x):\n    return x + {step}\n"
MODULE = """
from fastindex.runtime.kernels import kernel
from fastindex.kernels.helper import step

@kernel
def total(count):
    result = 0
    for value in range(count):
        result += step(value)
    return result
"""
#: Prints what a kernel returns, whether it was compiled here, and whether the compiler was imported.
MAIN = """
import sys
from fastindex.runtime import machine_code as code
code.CALLED["total"] = code.Kernel("fastindex.kernels.total", "total")
print(code.function("total")(4), len(code.compiled_kernels()), int("numba" in sys.modules))
"""
COMPILED, KEPT = [10, 1, 1], [10, 0, 0]


@pytest.fixture
def package(tmp_path):
    """A package of one kernel, with what compiles and loads it."""
    for name in ("runtime", "kernels"):
        (tmp_path / "fastindex" / name).mkdir(parents=True)
        (tmp_path / "fastindex" / name / "__init__.py").touch()
    (tmp_path / "fastindex" / "__init__.py").touch()
    for name in (
        "runtime/kernels",
        "runtime/lowering",
        "runtime/operations",
        "runtime/machine_code",
        "runtime/first_answer",
        "runtime/numbers",
        "first_use",
        "terminal",
        "errors",
    ):
        shutil.copy(ROOT / "fastindex" / f"{name}.py", tmp_path / "fastindex" / f"{name}.py")
    (tmp_path / "fastindex/kernels/helper.py").write_text(HELPER.format(step=1))
    (tmp_path / "fastindex/kernels/total.py").write_text(MODULE)
    return tmp_path


def environment(package: Path, **variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    return inherited | {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"} | variables


def started(package: Path, program: str = MAIN, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", program]
    given = environment(package, **variables)
    return subprocess.Popen(command, cwd=package, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(child: subprocess.Popen[str]) -> list[int]:
    printed, errors = child.communicate(timeout=HANG_SECONDS)
    assert (child.returncode, errors) == (0, "")
    return [int(word) for word in printed.split()]


def run(package: Path, program: str = MAIN, **variables: str) -> list[int]:
    return ended(started(package, program, **variables))


def files_of(package: Path) -> list[Path]:
    return [path for path in package.rglob("*") if path.is_file() and path.suffix != ".py"]


@pytest.mark.in_turn(seconds=4)
def test_compiled_once_and_again_after_an_edit_in_a_module_that_it_calls(package):
    assert run(package) == COMPILED
    assert run(package) == KEPT
    (package / "fastindex/kernels/helper.py").write_text(HELPER.format(step=2))
    assert run(package) == [14, 1, 1]
    assert run(package) == [14, 0, 0]
    assert len(files_of(package)) == 1


@pytest.mark.in_turn(seconds=4)
def test_what_is_kept_is_kept_for_each_target(package):
    """The processor and its instructions are part of the name; two targets lose nothing to each other."""
    least = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert run(package) == COMPILED
    assert run(package, **least) == COMPILED
    assert run(package) == KEPT
    assert run(package, **least) == KEPT


@pytest.mark.in_turn(seconds=4)
@pytest.mark.parametrize("damage", ["short", "empty", "a bit", "foreign", "another kernel's"])
def test_damaged_files_cost_only_time(package, damage):
    cache = {"NUMBA_CACHE_DIR": str(package / "cache")}
    assert run(package, **cache) == COMPILED
    (path,) = files_of(package)
    content = path.read_bytes()
    other = hashlib.sha256(b"").digest()
    damaged = {
        "short": content[:-40],
        "empty": b"",
        "a bit": content[:500] + bytes([content[500] ^ 1]) + content[501:],
        "foreign": b"\x7fELF" * 100,
        "another kernel's": other + content[len(other) :],
    }
    path.write_bytes(damaged[damage])
    assert run(package, **cache) == COMPILED
    assert run(package, **cache) == KEPT
    assert path.read_bytes()[:4] == content[:4]


@pytest.mark.in_turn(seconds=4)
def test_another_compiler_is_another_kernel(package):
    """Numba's version is read without importing it: from what stands where it would be imported from."""
    assert run(package) == COMPILED
    program = f"import fastindex.runtime.machine_code as code\ncode._compiler = lambda: ('0.1', '')\n{MAIN}"
    assert run(package, program) == COMPILED
    assert run(package, program) == KEPT
    assert run(package) == COMPILED


@pytest.mark.in_turn(seconds=8)
def test_ten_processes_that_begin_at_once_all_get_it_and_one_file_is_left(package):
    children = [started(package) for _ in range(10)]
    assert all(ended(child)[0] == 10 for child in children)
    assert run(package) == KEPT
    assert len(files_of(package)) == 1


@pytest.mark.in_turn(seconds=4)
def test_an_installation_that_cannot_be_written_is_read(package, monkeypatch):
    """What is kept beside the package serves all users; others keep kernels among their own files."""
    assert run(package) == COMPILED
    folder = package / "fastindex/__pycache__"
    (kept,) = folder.iterdir()
    of_user = {"XDG_CACHE_HOME": str(package / "user")}
    # A link to nothing refuses even the superuser.
    kept.rename(package / "aside")
    folder.rmdir()
    folder.symlink_to(package / "nothing/below")
    assert run(package, **of_user) == COMPILED
    assert run(package, **of_user) == KEPT
    assert [path.suffix for path in (package / "user").rglob("*") if path.is_file()] == [first_answer.KERNEL_SUFFIX]


def make_cache_unwritable(package: Path) -> dict[str, str]:
    # A file where a folder should be refuses even the superuser.
    (package / "fastindex/__pycache__").touch()
    return {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache"}


@pytest.mark.in_turn(seconds=3)
def test_no_cache_folder_costs_only_time(package):
    for variables in (make_cache_unwritable(package), {"NUMBA_CACHE_DIR": "/dev/null/numba"}):
        assert run(package, **variables) == COMPILED
        assert run(package, **variables) == COMPILED


FORKED = """
import os, sys
from fastindex.runtime import machine_code as code
code.CALLED["total"] = code.Kernel("fastindex.kernels.total", "total")
if len(sys.argv) > 1:
    code.function("total")(4)
child = os.fork()
if child == 0:
    os._exit(code.function("total")(4))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), code.function("total")(4), int("numba" in sys.modules))
"""


@pytest.mark.in_turn(seconds=4)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_children_use_what_is_loaded_and_load_themselves(package):
    assert run(package) == COMPILED
    assert run(package, FORKED) == [10, 10, 0]
    assert run(package, FORKED.replace("len(sys.argv) > 1", "True")) == [10, 10, 0]


INTERRUPTED = """
import os, signal, threading
from fastindex.runtime import machine_code as code
code.CALLED["total"] = code.Kernel("fastindex.kernels.total", "total")
load = code.kept_code
def slowly(kernel):
    os.kill(os.getpid(), signal.SIGINT)
    return load(kernel)
code.kept_code = slowly
try:
    code.function("total")
    print(0)
except KeyboardInterrupt:
    print(1)
print(code.function("total")(4))
"""


@pytest.mark.in_turn(seconds=4)
def test_an_interrupt_while_it_is_loaded_ends_the_wait_and_not_the_work(package):
    assert run(package) == COMPILED
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    assert run(package, INTERRUPTED) == [1, 10]


def stderr_on_terminal(package: Path, **variables: str) -> str:
    terminal, end = pty.openpty()
    command = [sys.executable, "-c", MAIN]
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
def test_a_terminal_shows_why_it_waits(package):
    first = stderr_on_terminal(package)
    assert first.startswith("fastindex: compiling kernels (once for this machine, kept in ")
    assert first.count("\n") == 1
    assert stderr_on_terminal(package) == ""
    nowhere = stderr_on_terminal(package, NUMBA_CACHE_DIR="/dev/null/numba")
    assert nowhere.startswith("fastindex: compiling kernels (and cannot keep the result: ")


CALLS = """
import sys
import numpy as np
import fastindex as fi
shape, other = "f32[1024,1024]{1,0:T(8,128)}", "f32[1024,1024]{0,1}"
values = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
packed = fi.pack(values, shape)
assert (fi.unpack(fi.relayout(packed, shape, other), other) == values).all()
slots = fi.linear_index(shape, np.s_[...])
assert (values.reshape(-1) == packed[slots.reshape(-1)]).all()
rows, columns = fi.multi_index(shape, slots.reshape(-1))
assert (slots == fi.linear_index(shape, (rows, columns)).reshape(slots.shape)).all()
print(int("numba" in sys.modules))
"""


@pytest.mark.in_turn(seconds=8)
def test_a_warm_process_never_imports_the_compiler():
    run(ROOT, CALLS)
    assert run(ROOT, CALLS) == [0]


def test_the_target_is_numbas(monkeypatch):
    machine_code.target.cache_clear()
    assert machine_code.target() == cpu_target.target_context.codegen().magic_tuple()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"NUMBA_CPU_NAME": "generic"}, ("generic", "")),
        ({"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,-f16c"}, ("haswell", "+avx2,-f16c")),
    ],
)
def test_the_target_is_what_the_environment_says(monkeypatch, variables, expected):
    for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    machine_code.target.cache_clear()
    try:
        assert machine_code.target()[1:] == expected
    finally:
        machine_code.target.cache_clear()


@pytest.mark.parametrize("variables", [{"NUMBA_CPU_NAME": "sandybridge"}, {"NUMBA_ENABLE_AVX": "0"}])
def test_no_avx_where_numba_has_none(monkeypatch, variables):
    for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        monkeypatch.delenv(name, raising=False)
    for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    machine_code.target.cache_clear()
    try:
        assert "+avx" not in machine_code.target()[2]
    finally:
        monkeypatch.undo()
        machine_code.target.cache_clear()


def test_what_python_hands_over_is_checked():
    """Kernels are built-in functions: of as many integers as they take, and of nothing else."""
    take = machine_code.function("are_distinct")
    with pytest.raises(TypeError):
        take(1, 2)
    with pytest.raises(TypeError):
        take(1, 2, "3")
    with pytest.raises(OverflowError):
        take(1, 2, 1 << 64)
    assert take(0, 0, 0) == 1


@pytest.mark.in_turn(seconds=5)
def test_code_calls_nothing_but_what_is_there():
    """LLVM would end the process. What is compiled calls what C has, and Python's built-in functions."""
    for name in ("copy 1 0", "close", "lead", "are_distinct"):
        kernel = machine_code.CALLED.get(name) or numbers.Kernel(
            "fastindex.moving.moves.streams.kernel", "copy_chunks", (1, 0)
        )
        functions = compilation.compiled(kernel, machine_code.target()).functions
        outside = {one.name for one in functions if one.is_declaration and not one.name.startswith("llvm.")}
        assert outside <= {"memcpy", "memset", "memmove", *machine_code.OF_PYTHON}, (name, outside)
