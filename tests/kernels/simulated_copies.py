"""`copyto` and its like for arrays in GPU memory, against NumPy; `test_cuda_simulator` runs this in a process."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

import fastindex as fi
from tests.cases import strategies
from tests.cases.strided_arrays import plain_memory, random_pair

GUARD = 64


def most_elements(seed: int) -> int:
    """More than a tile of a transpose has for one seed in four: the simulator takes a millisecond for an element."""
    return 1500 if seed % 4 == 0 else 300


def there(array: Any) -> Any:
    """An array on the simulated GPU, where it lies: with its strides, at its address."""
    return FakeCUDAArray(array)


def grid(dtype: str = "i4") -> Any:
    return np.arange(7 * 9 * 5).astype(dtype).reshape(7, 9, 5)


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(160)[::20])])
def test_random_strides(first: int) -> None:
    """All that is in the destination's memory is compared: its gaps keep what they held."""
    for seed in range(first, first + 20):
        held: list[Any] = []

        def memory(size: int, held: list[Any] = held) -> Any:
            held.append(plain_memory(size))
            return held[-1]

        target, source = random_pair(Random(seed), memory, most_elements(seed))
        before = held[0].copy()
        fi.numpy.copyto(there(target), there(source))
        found, held[0][:] = held[0].copy(), before
        np.copyto(target, source)
        assert found.tobytes() == held[0].tobytes(), f"seed {seed}"


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(60)[::20])])
def test_random_contiguous_copies(first: int) -> None:
    for seed in range(first, first + 20):
        _, source = random_pair(Random(seed), most=most_elements(seed))
        for own, numpys in (
            (fi.numpy.ascontiguousarray, np.ascontiguousarray),
            (fi.numpy.asfortranarray, np.asfortranarray),
        ):
            found, expected = own(there(source)), numpys(source)
            assert (found.shape, found._ary.strides) == (expected.shape, expected.strides), f"seed {seed}"
            assert found.copy_to_host().tobytes() == expected.tobytes(), f"seed {seed}"


def test_what_is_contiguous_is_returned_as_it_is() -> None:
    for array in (grid(), np.zeros((0, 3)), np.zeros((1, 5))):
        held = there(array)
        assert fi.numpy.ascontiguousarray(held) is held
        held = there(array.T)
        assert fi.numpy.asfortranarray(held) is held
    scalar = fi.numpy.ascontiguousarray(there(np.array(7)))
    assert (scalar.shape, scalar.copy_to_host().tolist()) == ((1,), [7])


@pytest.mark.parametrize(
    ("destination", "source"),
    [
        (np.s_[1:], np.s_[:-1]),
        (np.s_[:-1], np.s_[1:]),
        (np.s_[::-1], np.s_[:]),
        (np.s_[:, ::-1], np.s_[:]),
        (np.s_[:, 1:9:2], np.s_[:, 0:8:2]),
        (np.s_[:], np.s_[:]),
        (np.s_[:5, :5], np.s_[4, 4:, :]),
    ],
)
def test_where_both_share_memory_the_source_is_read_first(destination: Any, source: Any) -> None:
    own, numpys = grid(), grid()
    fi.numpy.copyto(there(own[destination]), there(own[source]))
    np.copyto(numpys[destination], numpys[source])
    assert own.tolist() == numpys.tolist()


def test_broadcasting() -> None:
    for source in (np.array(3), np.arange(5), np.arange(9)[:, None], np.arange(5)[None, None, None, :]):
        own, numpys = grid(), grid()
        fi.numpy.copyto(there(own), there(source.astype("i4")))
        np.copyto(numpys, source.astype("i4"))
        assert own.tolist() == numpys.tolist()
    # As a source, one row may stand for many by a stride of 0.
    rows = np.lib.stride_tricks.as_strided(np.arange(5, dtype="i4"), (7, 9, 5), (0, 0, 4))
    assert fi.numpy.ascontiguousarray(there(rows)).copy_to_host().tolist() == rows.tolist()


@pytest.mark.parametrize("dtype", ["u1", "?", "i2", "f4", "f8", "c16", ">i4", "V3", "f4,f8"])
def test_scalars(dtype: str) -> None:
    for view in (np.s_[:], np.s_[::-2, 1:8:3], np.s_[3, :, 2]):
        own, numpys = np.zeros((7, 9, 5), dtype), np.zeros((7, 9, 5), dtype)
        value = np.array((1, 2), dtype)[()] if dtype == "f4,f8" else np.frombuffer(b"\x01\x02\x03" * 16, dtype)[0]
        fi.numpy.copyto(there(own[view]), value)
        np.copyto(numpys[view], value)
        assert own.tobytes() == numpys.tobytes()


def test_python_scalars_are_cast_as_numpy_casts_them() -> None:
    array = np.zeros(5, "i2")
    fi.numpy.copyto(there(array), 7)
    assert array.tolist() == [7] * 5
    with pytest.raises(TypeError, match="same_kind"):
        fi.numpy.copyto(there(array), 2.5)
    # NumPy 2.0 wraps it.
    try:
        np.copyto(array, 1 << 20)
    except OverflowError:
        with pytest.raises(OverflowError):
            fi.numpy.copyto(there(array), 1 << 20)


def test_errors() -> None:
    frozen = grid()
    frozen.flags.writeable = False
    one_place = np.lib.stride_tricks.as_strided(np.zeros(4, "i4"), (7, 9, 5), (0, 0, 4))
    for call, message in (
        (
            lambda: fi.numpy.copyto(there(grid()), there(grid("f4"))),
            "f32 is not cast to s32 by the rule casting='same_kind'",
        ),
        (lambda: fi.numpy.copyto(there(grid()), there(np.zeros((7, 9, 4), "i4"))), r"\(7, 9, 4\) does not broadcast"),
        (lambda: fi.numpy.copyto(there(np.zeros(5, "i4")), there(grid())), "does not broadcast"),
        (lambda: fi.numpy.copyto(there(grid()), grid()), "src is on the host"),
        (lambda: fi.numpy.copyto(grid(), there(grid())), "dst is on the host"),
        (lambda: fi.numpy.copyto(there(frozen), there(grid())), "dst is read-only"),
        (lambda: fi.numpy.copyto(there(one_place), there(grid())), "the elements of dst overlap"),
    ):
        with pytest.raises(fi.FastIndexError, match=message):
            call()


def test_nothing_is_copied_where_there_is_nothing() -> None:
    fi.numpy.copyto(there(np.zeros((0, 3))), there(np.zeros((1, 3))))
    fi.numpy.copyto(there(np.zeros((0, 3))), 5)
    assert fi.numpy.asfortranarray(there(np.zeros((3, 0, 2))[::-1])).shape == (3, 0, 2)
