"""Casts of arrays in GPU memory, against the processor; `test_cuda_simulator` runs this in a process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

import fastindex as fi
from fastindex.algebra.casts import cast_by_numpy
from tests.cases import cast_patterns, strategies
from tests.cases.cast_cases import PAIRS, SIDES

NARROW = [name for name, one in cast_patterns.TYPES.items() if one.bits <= 8]


def there(array: Any) -> Any:
    """An array on the simulated GPU, where it lies: with its strides, at its address."""
    return FakeCUDAArray(array)


@pytest.mark.parametrize("source", [*strategies.rotating(NARROW)])
def test_every_pattern_of_8_bits(source: str) -> None:
    data = cast_patterns.elements(source)
    for target, kind in strategies.rotating([*cast_patterns.TYPES.items()]):
        if target != source:
            found = fi.relayout(there(data), f"{source}[256]", f"{target}[256]", casting="unsafe")
            expected = cast_by_numpy(data, cast_patterns.TYPES[source], kind)
            assert found.copy_to_host().tobytes() == expected.tobytes(), target


@pytest.mark.parametrize("pair", [*strategies.rotating(PAIRS)])
def test_moves_of_all_kinds(pair: tuple[str, str]) -> None:
    more = [("[{n},64]{{1,0}}", "[{n},64]{{0,1}}"), ("[9,{n}]{{1,0:T(4,8)(2,1)}}", "[9,{n}]{{0,1:T(3)(2)L(16)}}")]
    rng = np.random.default_rng(strategies.FIRST_SEED)
    for sides in (*SIDES, *more):
        for first, second in (sides, sides[::-1]):
            source, target = (name + side.format(n=21) for name, side in zip(pair, (first, second), strict=True))
            given = rng.integers(0, 256, fi.Shape.parse(source).nbytes, np.uint8)
            expected = fi.relayout(given, source, target, fill=1, casting="unsafe")
            found = fi.relayout(there(given), source, target, fill=1, casting="unsafe")
            assert found.copy_to_host().tobytes() == expected.tobytes(), f"{source} to {target}"


def test_arrays_of_the_types_of_ml_dtypes() -> None:
    """What an array's own library names: bfloat16 to float8 and back, by pack, unpack, rearrange and copyto."""
    bf16, e5m2 = (fi.Shape.parse(f"{name}[1]").element_type.numpy_dtype for name in ("bf16", "f8e5m2"))
    array = np.linspace(-9, 9, 60, dtype=np.float32).reshape(5, 12).astype(bf16)
    packed = fi.pack(there(array), "f8e5m2[5,12]{0,1}")
    assert packed.copy_to_host().tobytes() == array.astype(e5m2).T.tobytes()
    out = np.zeros((5, 12), bf16)
    fi.unpack(packed, "f8e5m2[5,12]{0,1}", out=there(out), casting="unsafe")
    assert out.tobytes() == array.astype(e5m2).astype(bf16).tobytes()
    turned = fi.rearrange(there(array), "a b -> b a", dtype=e5m2)
    assert turned.copy_to_host().tobytes() == array.T.astype(e5m2).tobytes()
    fi.numpy.copyto(there(out), there(array.astype(np.float64)), casting="unsafe")
    assert out.tobytes() == array.tobytes()


def test_elements_that_start_anywhere() -> None:
    """copyto uses a separate buffer; a packed buffer is rejected."""
    memory = np.zeros(45, np.uint8)
    odd = memory[1:41].view(np.float32)
    odd[:] = np.arange(10)
    target = np.zeros(10, np.float64)
    fi.numpy.copyto(there(target), there(odd))
    assert target.tolist() == list(range(10))
    fi.numpy.copyto(there(odd), there(target + 0.5))
    assert odd.tolist() == [k + 0.5 for k in range(10)]
    with pytest.raises(fi.FastIndexError, match="start at a multiple of 4 bytes"):
        fi.relayout(there(memory[1:41]), "f32[10]", "f64[10]")


def test_both_share_memory() -> None:
    memory = np.arange(16, dtype=np.float32)
    fi.numpy.copyto(there(memory.view(np.float64)), there(memory[8:]))
    assert memory.view(np.float64).tolist() == list(range(8, 16))


def test_what_is_refused() -> None:
    floats, complexes = there(np.zeros(4, np.float32)), there(np.zeros(4, np.complex64))
    with pytest.raises(fi.ArgumentTypeError, match="f32 is not cast to s32 by the rule casting='same_kind'"):
        fi.numpy.copyto(there(np.zeros(4, np.int32)), floats)
    with pytest.raises(fi.FastIndexError, match="casting must be 'no'"):
        fi.numpy.copyto(floats, floats, casting="any")
    with pytest.raises(fi.UnsupportedError, match="c64 is not cast"):
        fi.numpy.copyto(floats, complexes, casting="unsafe")
    with pytest.raises(fi.ArgumentTypeError, match="XLA's element types"):
        fi.numpy.copyto(floats, there(np.zeros(4, "M8[s]")), casting="unsafe")
    with pytest.raises(fi.ArgumentTypeError, match="is not cast to s8"):
        fi.pack(floats, "s8[4]")
