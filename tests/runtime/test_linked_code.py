"""Functions that kernels call are linked into them, other kernels too, and have no separate machine code.

Tests of: runtime.kernels.
"""

from __future__ import annotations

from typing import Any

import pytest
from numba import njit

from fastindex.runtime.kernels import LinkedCode, kernel, subroutine
from fastindex.runtime.machine_code import CALLED, address, function
from fastindex.runtime.numbers import Kernel


@subroutine()
def largest(first, second):  # type: ignore[no-untyped-def]
    return max(first, second) + 1


@kernel
def inner(first, second):  # type: ignore[no-untyped-def]
    return largest(first, second) * 2


@kernel
def outer(first, second):  # type: ignore[no-untyped-def]
    return inner(first, second) + largest(second, first)


def is_machine_code(dispatcher: Any) -> bool:
    (compiled,) = dispatcher.overloads.values()
    symbol = compiled.fndesc.llvm_func_name
    return bool(compiled.library._codegen._engine.is_symbol_defined(symbol))


@pytest.mark.parametrize(("name", "expected"), [("inner", 12), ("outer", 18)])
def test_kernels_that_call_each_other(name: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLED, name, Kernel(__name__, name))
    assert function(name)(3, 5) == expected
    assert address(Kernel(__name__, name)) != 0


def test_what_is_linked_raises_where_python_calls_it() -> None:
    @subroutine()
    def smallest(first, second):  # type: ignore[no-untyped-def]
        return min(first, second) - 1

    @kernel
    def asks(first, second):  # type: ignore[no-untyped-def]
        return smallest(first, second)

    for _ in range(2):
        with pytest.raises(TypeError):
            asks(3, 5)
    for one in (smallest, asks):
        (compiled,) = one.overloads.values()
        assert type(compiled.library) is LinkedCode
        assert not is_machine_code(one)
    with pytest.raises(TypeError):
        smallest(3, 5)


def test_functions_of_others_are_compiled_as_ever() -> None:
    @njit  # type: ignore[untyped-decorator]
    def sum_of_both(first: Any, second: Any) -> Any:
        return min(first, second) + max(first, second)

    assert sum_of_both(3, 5) == 8
    assert is_machine_code(sum_of_both)
