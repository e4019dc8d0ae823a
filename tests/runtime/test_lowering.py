"""What a kernel computes is what Python computes of the same function; kernels call each other and subroutines.

Tests of: runtime.kernels, runtime.lowering, runtime.operations.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fastindex.runtime import kernels, lowering
from fastindex.runtime.kernels import instructions, kernel, subroutine
from fastindex.runtime.machine_code import CALLED, address, function
from fastindex.runtime.numbers import Kernel
from tests.cases import written_kernels

NUMBERS = (-(2**63), -(2**62), -65, -7, -1, 0, 1, 2, 7, 64, 2**31, 2**63 - 1)


def wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def compiled(function: Any, monkeypatch: pytest.MonkeyPatch, *literals: int) -> Any:
    monkeypatch.setitem(globals(), "written", kernel(function))
    return written_kernels.compiled(__name__, "written", *literals)


@subroutine()
def largest(first, second):  # type: ignore[no-untyped-def]
    return max(first, second) + 1


@kernel
def inner(first, second):  # type: ignore[no-untyped-def]
    return largest(first, second) * 2


@kernel
def outer(first, second):  # type: ignore[no-untyped-def]
    return inner(first, second) + largest(second, first)


@pytest.mark.parametrize(("name", "expected"), [("inner", 12), ("outer", 18)])
def test_kernels_that_call_each_other(name: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLED, name, Kernel(__name__, name))
    assert function(name)(3, 5) == expected
    assert address(Kernel(__name__, name)) != 0


@pytest.mark.parametrize("part", [largest, inner])
def test_parts_of_kernels_raise_where_python_calls_them(part: Any) -> None:
    with pytest.raises(TypeError, match="Python cannot call"):
        part(3, 5)


# The language: each function runs in Python, too


def divisions(a, b):  # type: ignore[no-untyped-def]
    quotient, remainder = divmod(a, b)
    return quotient * 3 + remainder * 5 + a // 8 + a % 8 * 2 + a // 7 * 4 + a % 7 + a // -7 + a % -3


def bits(a, b):  # type: ignore[no-untyped-def]
    shift = b & 63
    both = (a > b) & (b > 0) | (a == b)
    return (a << shift) + (a >> shift) + (~a ^ b) + (a | -b) + both + (not both) * 3


def choices(a, b):  # type: ignore[no-untyped-def]
    least = min(a, b, 5) - max(a, b) + abs(b >> 1)
    chosen = least if a < b else 7
    if (a and b > 0) or a == -7:
        chosen += 1
    elif -9 < a <= b < 70:
        chosen -= 2
    is_even = a % 2 == 0 and b % 2 == 0
    return chosen + (1 if is_even else 0) + (a if b else False)


def loops(a, b):  # type: ignore[no-untyped-def]
    total, step = a & 7, (b & 3) + 1
    for i in range(a & 31, (b & 63) - 20, -3):
        if i == 9:
            continue
        total += i
    for i in range(0, b & 63, step):
        for j in range(i):
            if j > (a & 7):
                break
            total = (total * 3 + j) & 0xFFFFFFFF
    while total > 1 << 40:
        total >>= 1
    return total


def tuples(a, b):  # type: ignore[no-untyped-def]
    pair = a, (b, a < b)
    (first, (second, is_less)), count = pair, len(pair)
    for low, (high, scale) in ((a, (b, 1)), (b, (a, 2)), (3, (b, 4))):
        if low < high:
            first, second = second, first + scale
        count += scale * low
    return first * 3 + second + count * 7 + pair[1][0] + is_less


@pytest.mark.parametrize("written", [divisions, bits, choices, loops, tuples])
def test_a_kernel_computes_what_python_does(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = compiled(written, monkeypatch)
    for a, b in itertools.product(NUMBERS, NUMBERS):
        if written is not divisions or (b != 0 and (a, b) != (NUMBERS[0], -1)):
            assert run(a, b) == wrapped(written(a, b)), (a, b)


def with_known(known, number):  # type: ignore[no-untyped-def]
    # Only one side is compiled: the other calls nothing that there is.
    double = known * 2
    if double > 4:
        return number // double
    return missing(number)  # type: ignore[name-defined]  # noqa: F821


def of_unsigned(a, b):  # type: ignore[no-untyped-def]
    high = np.uint64(a) >> np.uint64(60)
    return np.int64(np.uint64(a) % np.uint64(b)) + np.int64(high) + (1 if np.uint64(a) > np.uint64(b) else 0)


def divided_by_nothing(a, b):  # type: ignore[no-untyped-def]
    return a // b * 3 + a % b


def test_known_numbers_choose_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(with_known, monkeypatch, 7)(0, 100) == 7
    with pytest.raises((KeyError, NameError, TypeError, AttributeError)):
        compiled(with_known, monkeypatch, 1)


def test_unsigned_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compiled(of_unsigned, monkeypatch)
    for a, b in itertools.product(NUMBERS, filter(None, NUMBERS)):
        first, second = a % 2**64, b % 2**64
        assert run(a, b) == wrapped(first % second + (first >> 60) + (first > second)), (a, b)


def test_divisions_that_are_not_defined_give_0(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compiled(divided_by_nothing, monkeypatch)
    assert [run(a, b) for a, b in ((5, 0), (-5, 0), (0, 0), (-(2**63), -1))] == [0, 0, 0, 0]


def test_a_variable_of_two_types_is_an_error_that_names_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def changes(a):  # type: ignore[no-untyped-def]
        found = a > 1
        if found:
            found = a
        return found

    with pytest.raises(TypeError, match="i64 cannot become i1") as error:
        compiled(changes, monkeypatch)
    assert any("changes" in note and "test_lowering.py" in note for note in error.value.__notes__)


def test_a_subroutine_is_compiled_once_for_all_constants_but_its_literals() -> None:
    @instructions("width")
    def is_known(builder: Any, width: Any) -> Any:
        return int(isinstance(width, int))

    @subroutine("width")
    def scaled(width, place, flags):  # type: ignore[no-untyped-def]
        return is_known(width) * width * place + (1 if flags[1] else 0)

    @kernel
    def caller(number):  # type: ignore[no-untyped-def]
        first = scaled(2, 0, (number, True)) + scaled(2, number, (3, False))
        return first + scaled(4, 5, (number, number > 0))

    module = lowering.ir.Module()
    kernels._write_for_c(module, caller, ())
    names = sorted(one.name.split(".")[1] for one in module.functions if one.name.startswith("fastindex."))
    assert names == ["caller", "scaled", "scaled"]
