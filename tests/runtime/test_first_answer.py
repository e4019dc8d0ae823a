"""NumPy and kernels give the same results and errors for everything, and small questions never load a compiler.

Tests of: index.compiled, moving.numpy_moves, index.executors.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.arrays.arrays import described, element_strides
from fastindex.arrays.fills import fill_pattern
from fastindex.arrays.index_arguments import Counted
from fastindex.core.sizes import SlotFormat
from fastindex.index import executors as numpy_programs
from fastindex.index.compiled import run_compiled
from fastindex.index.executors import run_by_numpy
from fastindex.index.programs import conversion_program, linear_program, multi_program, tile_program
from fastindex.moving.movements import movement
from fastindex.moving.numpy_moves import move_by_numpy, unpacked_by_numpy
from fastindex.runtime import first_answer
from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS

DTYPES = ("i8", "u8", "i4", "u4", "i2", "u1", ">i4", ">u8", ">i2")


def drawn_input(source: strategies.RandomSource, bound: int, size: tuple[int, ...], stray: bool) -> Any:
    """Numbers below a bound, of any type, now and then with some beyond it; broadcast or not."""
    own = tuple(source.pick((n, n, n, 1)) for n in size[source.pick((0, 0, len(size))) :])
    dtype = np.dtype(source.pick(DTYPES))
    info = np.iinfo(dtype)
    values = [source.integer(0, max(min(bound - 1, int(info.max)), 0)) for _ in range(math.prod(own))]
    if stray and values:
        far = (-1, bound, -(2**40), 2**63 - 1, 2**64 - 1, -bound, 2 * bound + 1)
        values[source.integer(0, len(values) - 1)] = source.pick([v for v in far if info.min <= v <= info.max] or [0])
    return np.array(values, object).astype(dtype).reshape(own)


def both_ways(program: Any, inputs: list[Any], size: tuple[int, ...], modes: tuple[str, ...], mark: bool) -> None:
    by_numpy = [np.full(size, -7) for _ in program.outputs]
    by_kernel = [np.full(size, -7) for _ in program.outputs]
    failed = run_by_numpy(program, inputs, by_numpy, size, modes, mark)
    first, last = run_compiled(program, inputs, by_kernel, size, modes, mark, 1)
    if failed is None:
        assert first is None
        assert all(map(np.array_equal, by_numpy, by_kernel))
    else:
        assert first is not None
        assert first <= failed < last


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(600)[::50])])
def test_index_programs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first, first + 50):
        source = strategies.RandomSource(seed)
        a, b = (fi.Shape.parse(str(shape)) for shape in strategies.random_pair(seed))
        if 0 in a.dimensions:
            continue
        monkeypatch.setattr(numpy_programs, "AT_ONCE", source.pick((1, 3, 10, 1 << 18)))
        size = source.pick(((), (1,), (7,), (300,), (3, 5), (2, 1, 9), (4, 30)))
        stray, mark = source.pick((False, False, True)), source.pick((False, True))
        programs = [linear_program(a), multi_program(a), conversion_program(a, b)]
        if a.layout.tiles:
            programs.append(tile_program(a, 0))
        for program in programs:
            inputs = [drawn_input(source, bound, size, stray) for bound in program.input_bounds]
            modes = tuple(source.pick(("raise", "raise", "wrap", "clip")) for _ in inputs)
            both_ways(program, inputs, size, modes if source.integer(0, 1) else (), mark)
        if size == (300,):
            both_ways(multi_program(a), [Counted(source.integer(-1, 3), 1, (300,))], size, (), mark)


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(450)[::50])])
def test_relayouts(first: int) -> None:
    for seed in range(first, first + 50):
        pair = strategies.medium_pair(seed, 3000) if seed % 2 else strategies.random_pair(seed)
        source, destination = (fi.Shape.parse(str(shape)) for shape in pair)
        random = np.random.default_rng(seed)
        buffer = random.integers(0, 256, source.nbytes, np.uint8)
        pattern = fill_pattern(destination)
        moved = movement(source, destination)
        assert moved is not None
        by_kernel, by_numpy = (np.full(destination.nbytes, 0xA5, np.uint8) for _ in range(2))
        moved.run(buffer.ctypes.data, by_kernel.ctypes.data, pattern, 1)
        addresses = buffer.ctypes.data, by_numpy.ctypes.data
        move_by_numpy((source, destination), moved.slots, *addresses, pattern)
        assert by_numpy.tobytes() == by_kernel.tobytes(), (seed, str(source), str(destination))


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(300)[::50])])
def test_strided_arrays(first: int) -> None:
    """Arrays of any strides, negative ones too, into a layout and out of it."""
    for seed in range(first, first + 50):
        shape = fi.Shape.parse(str(strategies.random_shape(seed)))
        source = strategies.RandomSource(seed)
        order = strategies.draw_permutation(source, shape.rank)
        width, random = shape.element_type.nbytes, np.random.default_rng(seed)
        memory = random.integers(0, 2, math.prod(shape.dimensions) * width, np.uint8)
        values = memory.view(shape.element_type.numpy_dtype).reshape([shape.dimensions[d] for d in order])
        # Without the dots, an array of no dimensions would become a number elsewhere.
        turned = tuple(slice(None, None, source.pick((1, -1))) for _ in order)
        values = values.transpose(np.argsort(order))[(*turned, ...)]
        side = element_strides(described(values))
        moved = None if side is None else movement(side, shape)
        if moved is None or moved.slots.loops is None:
            continue
        by_kernel, by_numpy = (np.full(shape.nbytes, 0xA5, np.uint8) for _ in range(2))
        begin = values.__array_interface__["data"][0]
        moved.run(begin, by_kernel.ctypes.data, fill_pattern(shape), 1)
        move_by_numpy((moved.source, shape), moved.slots, begin, by_numpy.ctypes.data, fill_pattern(shape))
        assert by_numpy.tobytes() == by_kernel.tobytes(), (seed, str(shape))


# Separate processes


def output_of(program: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env={**os.environ, **environment},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


SMALL = """
import sys
import numpy as np
import fastindex as fi
tiled = "bf16[64,100]{1,0:T(8,128)(2,1)}"
assert fi.linear_index(tiled, (9, 70)) == 1024 + 2 * 70 + 1
slots = fi.linear_index(tiled, np.s_[...])
rows, columns = fi.multi_index(tiled, slots)
assert (rows == np.arange(64)[:, None]).all() and (columns == np.arange(100)).all()
assert fi.numpy.unravel_index(np.arange(1000), (40, 50))[0][-1] == 19
assert fi.numpy.ravel_multi_index(([3], [4]), (40, 50)) == [154]
for text in ("f32[64,64]{1,0:T(8,128)}", "u8[64,64]{0,1:T(8,128)(4,1)}", "s4[64,64]{1,0:T(8,128)E(4)}"):
    shape = fi.Shape.parse(text)
    values = (np.arange(4096) % 7).astype(shape.element_type.numpy_dtype).reshape(64, 64)
    assert (fi.unpack(fi.pack(values, shape), shape) == values).all()
    other = str(shape).replace("1,0", "0,1") if "1,0" in text else str(shape).replace("0,1", "1,0")
    assert (fi.unpack(fi.relayout(fi.pack(values, shape), shape, other), other) == values).all()
    plan = fi.plan_relayout(shape, other)
    assert (fi.unpack(plan(fi.pack(values, shape)), other) == values).all()
try:
    fi.linear_index(tiled, ([1, 2, 3], [4, 100, 101]))
except IndexError as error:
    assert "coordinate 100 at position 1 is out of bounds" in str(error)
"""


def test_small_questions_load_no_compiler() -> None:
    assert output_of(SMALL + "print('llvmlite' in sys.modules)").split() == ["False"]


@pytest.mark.in_turn(seconds=1.3)
def test_large_questions_do() -> None:
    program = "import sys, numpy as np, fastindex as fi\n"
    program += "fi.linear_index('f32[1000,1000]', np.s_[:300, :]); print('llvmlite' in sys.modules)"
    assert output_of(program).split() == ["True"]


@pytest.mark.in_turn(seconds=1.5)
def test_many_small_questions_do() -> None:
    program = "import sys, types, fastindex as fi\nfrom fastindex.runtime import first_answer\n"
    # Every reading of the clock is a second later, so each call takes one.
    program += "clock = iter(range(1000))\n"
    program += "first_answer.time = types.SimpleNamespace(perf_counter=lambda: next(clock))\n"
    program += "first_answer._seconds_to_load = lambda: 13.0\n"
    program += "seen = [fi.linear_index('f32[9]', [k % 9]) == k % 9 and 'llvmlite' in sys.modules for k in range(20)]\n"
    program += "print(seen.index(True))"
    assert output_of(program).split() == ["13"]


def test_everything_by_numpy_where_it_is_set() -> None:
    program = SMALL + (
        "assert fi.linear_index('f32[1000,1000]', np.s_[...]).sum() == 10**6 * (10**6 - 1) // 2\n"
        "large = np.arange(3 << 20, dtype=np.uint8).reshape(3, 1024, 1024)\n"
        "assert (fi.pack(large, 'u8[3,1024,1024]{0,2,1}').reshape(1024, 1024, 3) == large.transpose(1, 2, 0)).all()\n"
        "print('llvmlite' in sys.modules)"
    )
    assert output_of(program, FASTINDEX_DISABLE_JIT="1").split() == ["False"]


def test_without_numba_only_what_is_too_large_fails() -> None:
    program = (
        "import sys; sys.modules['numba'] = None\n"
        + SMALL.replace("import sys\n", "")
        + (
            "for large in (lambda: fi.linear_index('f32[1000,1000]', np.s_[...]), "
            "lambda: fi.pack(np.zeros((1024, 1025)), 'f64[1024,1025]')):\n"
            "    try:\n        large()\n    except fi.UnsupportedError as error:\n        print(error)\n"
        )
    )
    lines = output_of(program).splitlines()
    assert len(lines) == 2
    assert all("numba is not installed" in line and "FASTINDEX_DISABLE_JIT=1" in line for line in lines)


def test_the_log_tells_which_way() -> None:
    program = "import logging; logging.basicConfig(level=logging.DEBUG)\n"
    program += "import fastindex as fi; fi.linear_index('f32[9]', [3])"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert "NumPy converts 1 indices" in result.stderr


def test_an_array_without_elements_in_wide_slots() -> None:
    array = unpacked_by_numpy(np.empty(0, np.uint8), SlotFormat(1, 16), 0)
    assert array.size == 0


def test_kernels_that_are_kept_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    seconds = first_answer._seconds_to_load.__wrapped__
    assert seconds() == first_answer._COMPILING_SECONDS
    (folder,) = first_answer.kernel_folders()
    folder.mkdir()
    (folder / f"copy_chunks-1-0.0123{first_answer.KERNEL_SUFFIX}").touch()
    assert seconds() == first_answer._LOADING_SECONDS
