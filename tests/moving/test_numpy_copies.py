"""`copyto`, `ascontiguousarray` and `asfortranarray` beside NumPy's, whose own tests run on them too.

Tests of fastindex.algebra.loops: here, since its nests are what these functions run.

Tests of: algebra.loops.
"""

from __future__ import annotations

import inspect
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.moving import numpy_copies
from tests.cases.hangs import HANG_SECONDS
from tests.cases.strategies import rotating_seeds, seeds
from tests.cases.strided_arrays import random_pair

numpys_own = pytest.importorskip("numpy._core.tests.test_api", reason="this NumPy was installed without its tests")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small arrays run on our kernels too."""
    monkeypatch.setattr(numpy_copies, "_left_to_numpy", lambda nbytes: False)
    monkeypatch.setattr(numpy_copies, "SMALLEST_COUNT", 1)
    monkeypatch.setattr(numpy_copies, "SMALLEST_CONTIGUOUS_BYTES", 0)


@pytest.mark.parametrize("seed", rotating_seeds(240))
@pytest.mark.usefixtures("whatever_the_size")
def test_random_strides(seed: int) -> None:
    """Every byte of the destination's memory is as NumPy leaves it, gaps included."""
    destination, source = random_pair(random.Random(seed))
    ours, numpys = memory_of(destination), memory_of(destination).copy()
    expected = np.ndarray(
        destination.shape, destination.dtype, numpys.data, offset_in(destination, ours), destination.strides
    )
    np.copyto(expected, source)
    assert numpy_copies._copied(destination, source, 1 + seed % 2)
    assert np.array_equal(ours, numpys)


def memory_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes that an array is a view of, all of them."""
    low, high = np.lib.array_utils.byte_bounds(array)
    begin = low
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    begin, end = np.lib.array_utils.byte_bounds(base)
    assert begin <= low
    assert high <= end
    return base.view(np.uint8).reshape(-1)


def offset_in(array: np.ndarray[Any, Any], memory: np.ndarray[Any, Any]) -> int:
    first, begin = (a.__array_interface__["data"][0] for a in (array, memory))
    return int(first - begin)


@pytest.mark.in_turn(seconds=2)
@pytest.mark.parametrize("end", ["first", "last"])
def test_nothing_outside_is_touched(end: str) -> None:
    drawn = seeds(60)
    command = [sys.executable, "-W", "error", "-m", "tests.moving.fenced_copies", end, str(len(drawn)), str(drawn[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


# Small calls, errors, overlap: NumPy's business


class NumPyWithOurs:
    """NumPy, but for `copyto`; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        if name != "copyto":
            return getattr(np, name)
        self.calls += 1
        return lambda dst, src, *a, **k: np.copyto(dst, src, *a, **k) if a or k else fi.numpy.copyto(dst, src)


def names_of_numpys_own() -> list[str]:
    """NumPy's tests of `copyto` under the names that they have in its version, but for those with parameters."""
    found = {name: test for name, test in vars(numpys_own).items() if name.startswith("test_copyto")}
    return sorted(name for name, test in found.items() if not inspect.signature(test).parameters)


def test_numpy_has_tests_of_copyto() -> None:
    """The next one would run nothing if NumPy moved them."""
    assert {"test_copyto", "test_copyto_fromscalar"} < {*names_of_numpys_own()}
    assert any(name.startswith("test_copyto_permut") for name in names_of_numpys_own())


@pytest.mark.parametrize("name", names_of_numpys_own())
@pytest.mark.usefixtures("whatever_the_size")
def test_numpys_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = NumPyWithOurs()
    monkeypatch.setattr(numpys_own, "np", ours)
    getattr(numpys_own, name)()
    assert ours.calls > 0


def outcome(function: Any, dst: Any, src: Any) -> Any:
    try:
        function(dst, src)
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    return dst.tolist()


def pairs() -> Iterator[tuple[str, Any, Any]]:
    read_only = np.zeros(6)
    read_only.flags.writeable = False
    line = np.arange(20.0)
    yield "another dtype", np.zeros(6, np.float32), np.arange(6)
    yield "unsafe cast", np.zeros(6, np.int32), np.arange(6.0)
    yield "byte order", np.zeros(6, ">i4"), np.arange(6, dtype="<i4")
    yield "scalar", np.zeros((2, 3)), 5
    yield "list", np.zeros((2, 3)), [1, 2, 3]
    yield "broadcast", np.zeros((2, 3, 4)), np.arange(3.0).reshape(3, 1)
    yield "more dimensions", np.zeros(4), np.zeros((1, 4))
    yield "no broadcast", np.zeros((2, 3)), np.zeros(2)
    yield "read-only", read_only, np.arange(6.0)
    yield "objects", np.zeros((2, 2), object), np.array([["a", None], [1, 2.5]], object).T
    yield "empty", np.zeros((0, 3)), np.zeros((0, 3))
    yield "empty from one", np.zeros((0, 3)), np.zeros((1, 3))
    yield "no dimensions", np.zeros(()), np.array(3.0)
    yield "no bytes", np.zeros(3, "V0"), np.zeros(3, "V0")
    yield "forwards over itself", line[1:], line[:-1]
    yield "reversed in place", np.arange(20.0), None
    yield "not an array", [1, 2], [3, 4]


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.parametrize("name", [name for name, _, _ in pairs()])
@pytest.mark.usefixtures("whatever_the_size")
def test_results_and_errors_are_numpys(name: str) -> None:
    results = []
    for function in (fi.numpy.copyto, np.copyto):
        dst, src = next((dst, src) for other, dst, src in pairs() if other == name)
        results.append(outcome(function, dst, dst[::-1] if src is None else src))
    assert results[0] == results[1]


@pytest.mark.usefixtures("whatever_the_size")
def test_a_destination_that_overlaps_itself() -> None:
    results = []
    for function in (fi.numpy.copyto, np.copyto):
        held = np.zeros(400)
        overlapping = np.lib.stride_tricks.as_strided(held, (100, 100), (8, 24))
        function(overlapping, np.arange(10000.0).reshape(100, 100).T)
        results.append(held.tolist())
    assert results[0] == results[1]
    # The order of writes decides, and ours is no promise.
    assert not numpy_copies._copied(overlapping, np.zeros((100, 100)).T, None)


CONTIGUOUS = {
    "C": (fi.numpy.ascontiguousarray, np.ascontiguousarray),
    "F": (fi.numpy.asfortranarray, np.asfortranarray),
}


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.usefixtures("whatever_the_size")
def test_contiguous_arrays(order: str, seed: int) -> None:
    _, array = random_pair(random.Random(seed))
    ours, numpys = (function(array) for function in CONTIGUOUS[order])
    assert type(ours) is type(numpys)
    assert (ours.dtype, ours.shape, ours.strides) == (numpys.dtype, numpys.shape, numpys.strides)
    assert ours.flags.writeable == numpys.flags.writeable
    assert ours.tobytes() == numpys.tobytes()


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("array", [5, [1, 2], np.float32(3), np.ma.array([1, 2], mask=[0, 1])])
def test_contiguous_arrays_of_other_things(order: str, array: Any) -> None:
    ours, numpys = (function(array) for function in CONTIGUOUS[order])
    assert type(ours) is type(numpys)
    assert (ours.dtype, ours.shape, ours.tolist()) == (numpys.dtype, numpys.shape, numpys.tolist())


def test_what_is_contiguous_is_returned_as_it_is() -> None:
    array = np.zeros((300, 300))
    assert fi.numpy.ascontiguousarray(array) is array
    assert fi.numpy.asfortranarray(array.T).base is array


@pytest.mark.parametrize("threads", [0, -1])
def test_threads_are_positive(threads: int) -> None:
    array = np.zeros((2, 2))
    for call in (
        lambda: fi.numpy.copyto(array, array, threads=threads),
        lambda: fi.numpy.ascontiguousarray(array, threads=threads),
    ):
        with pytest.raises(fi.FastIndexError, match="threads"):
            call()


class OnAGpu:
    """An array that says that it is in GPU memory, as CuPy's do."""

    __cuda_array_interface__ = {"shape": (2,), "typestr": "<f8", "data": (0, False), "version": 3}  # noqa: RUF012

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")


def test_arrays_on_a_gpu_do_not_travel() -> None:
    with pytest.raises(TypeError, match=r"dst is on the host .*nothing travels by itself"):
        fi.numpy.copyto(np.zeros(2), OnAGpu())
    with pytest.raises(fi.FastIndexError, match="stream is for CUDA arrays"):
        fi.numpy.copyto(np.zeros(2), np.zeros(2), stream=0)
    with pytest.raises(fi.FastIndexError, match="stream is for CUDA arrays"):
        fi.numpy.ascontiguousarray(np.zeros(2), stream=0)


WITHOUT_KERNELS = """
import sys
import numpy as np
import fastindex as fi
array = np.random.default_rng(0).random((300, 300))
assert np.array_equal(fi.numpy.ascontiguousarray(array.T), array.T)
assert "llvmlite" not in sys.modules
"""


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("disabled", ["0", "1"])
def test_small_arrays_do_not_wait_for_a_compiler(disabled: str) -> None:
    environment = {**os.environ, "FASTINDEX_DISABLE_JIT": disabled}
    subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_KERNELS], cwd=ROOT, env=environment, check=True)


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import numpy as np
import fastindex as fi
from fastindex.runtime import first_answer
first_answer._numba_is_there = lambda: False
array = np.random.default_rng(0).random((1000, 1000))
assert np.array_equal(fi.numpy.ascontiguousarray(array.T), array.T)
"""


def test_large_arrays_are_left_to_numpy_where_there_is_no_compiler() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], cwd=ROOT, check=True)
