"""What kernels call gets no machine code of its own, and kernels that others call do.

Tests of: runtime.kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import njit

from fastindex.runtime.kernels import LinkedCode, kernel, subroutine


@subroutine()
def largest(first, second):  # type: ignore[no-untyped-def]
    return max(first, second) + 1


@kernel()
def inner(first, second):  # type: ignore[no-untyped-def]
    return largest(first, second) * 2


@kernel()
def outer(first, second):  # type: ignore[no-untyped-def]
    return inner(first, second) + largest(second, first)


def is_machine_code(dispatcher: Any) -> bool:
    (compiled,) = dispatcher.overloads.values()
    symbol = compiled.fndesc.llvm_func_name
    return bool(compiled.library._codegen._engine.is_symbol_defined(symbol))


def test_only_kernels_become_machine_code() -> None:
    assert outer(3, 5) == 18
    assert inner(3, 5) == 12
    assert is_machine_code(outer)
    assert is_machine_code(inner)


def test_what_is_linked_does_not_and_raises_where_python_calls_it() -> None:
    @subroutine()
    def smallest(first, second):  # type: ignore[no-untyped-def]
        return min(first, second) - 1

    @kernel()
    def asks(first, second):  # type: ignore[no-untyped-def]
        return smallest(first, second)

    assert asks(3, 5) == 2
    (compiled,) = smallest.overloads.values()
    assert type(compiled.library) is LinkedCode
    assert not is_machine_code(smallest)
    with pytest.raises(TypeError):
        smallest(3, 5)


def test_functions_of_others_are_compiled_as_ever() -> None:
    assert outer(3, 5) == 18

    @njit  # type: ignore[untyped-decorator]
    def sum_of_both(first: Any, second: Any) -> Any:
        return min(first, second) + max(first, second)

    assert sum_of_both(3, 5) == 8
    assert is_machine_code(sum_of_both)


@pytest.mark.in_turn(seconds=4)
def test_a_kernel_is_called_that_was_loaded_for_another(tmp_path: Path) -> None:
    """The first process keeps the inner kernel alone; the second loads it while it compiles the outer one."""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": root}
    for calls in ("inner(3, 5)", "outer(3, 5), inner(3, 5)", "inner(3, 5), outer(3, 5)"):
        program = f"from tests.runtime.test_linked_code import inner, outer; print({calls})"
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        expected = calls.replace("inner(3, 5)", "12").replace("outer(3, 5)", "18").replace(",", "")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{expected}\n", "")
