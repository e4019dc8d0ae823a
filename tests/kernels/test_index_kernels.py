"""The index kernel and its arithmetic: exact at every edge, on every kind of array, compiled once.

Tests of: index.kernels.programs, index.kernels.steps, runtime.lines.memory,
index.numbers, algebra.forms, index.compiled.
"""

import random
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fastindex as fi
from fastindex import FastIndexError, OutOfBoundsError
from fastindex.algebra.forms import NARROW, Check, IndexProgram, Quotient, division
from fastindex.index import compiled as compiled_programs
from fastindex.index import executors as execution
from fastindex.index import numbers as index_table
from fastindex.index.compiled import step_table
from fastindex.index.numbers import block_length, narrow_quotient, wide_quotient
from fastindex.runtime import kernels, machine_code
from fastindex.runtime.lines.memory import entry, set_entry
from fastindex.runtime.machine_code import loaded_kernels
from fastindex.runtime.numbers import Kernel
from fastindex.runtime.tuning import TUNING
from tests.cases.hangs import HANG_SECONDS
from tests.oracles import reference

# Arithmetic


@kernels.kernel
def divide(numerators, quotients, count, magic, shift, wide):
    for i in range(count):
        if wide:
            set_entry(quotients, i, wide_quotient(entry(numerators, i), magic, shift))
        else:
            set_entry(quotients, i, narrow_quotient(entry(numerators, i), magic, shift))


_LOADED = machine_code._in_memory(kernels.machine_code(Kernel(__name__, "divide"), machine_code.target()))
_divide = _LOADED.function


def signed(number):
    return number - 2**64 if number >= 2**63 else number


def quotients(numerators, divisor, limit):
    constants = division(divisor, limit)
    numbers, result = np.array(numerators, np.int64), np.empty(len(numerators), np.int64)
    magic, wide = signed(constants.magic), int(constants.wide)
    _divide(numbers.ctypes.data, result.ctypes.data, len(numbers), magic, constants.shift, wide)
    return result.tolist()


def edges(divisor, limit):
    """Numerators at which a wrong magic number shows first: multiples and their neighbours, the ends."""
    source = random.Random(divisor)
    last = limit // divisor
    counts = [0, 1, 2, last - 1, last, *(source.randint(0, last) for _ in range(200))]
    near = [count * divisor + step for count in counts for step in (-1, 0, 1)]
    return [n for n in [*near, limit, limit - 1, source.randint(0, limit)] if 0 <= n <= limit]


DIVISORS = [
    *range(2, 200),
    *(2**power + step for power in range(8, 63) for step in (-1, 0, 1)),
    *(random.Random(7).getrandbits(bits) | 2 for bits in range(8, 63) for _ in range(3)),
]


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("limit", [NARROW - 1, NARROW, 2**32 + 5, 2**63 - 1])
def test_division_is_exact_at_every_edge(limit):
    for divisor in DIVISORS:
        if divisor <= limit:
            numerators = edges(divisor, limit)
            assert quotients(numerators, divisor, limit) == [n // divisor for n in numerators], divisor


@given(st.integers(2, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
@example(3, 2**31 - 1, 2**31 - 1)
@example(2**63 - 1, 2**63 - 1, 2**63 - 1)
@example(2**30 + 1, 2**31 - 1, 2**31 - 2)
def test_division_is_exact(divisor, limit, numerator):
    numerator = min(numerator, limit)
    constants = division(divisor, limit)
    assert 0 <= constants.magic < 2 ** (64 if constants.wide else 32)
    if constants.wide:
        assert (constants.magic * numerator >> 64) >> constants.shift == numerator // divisor
    else:
        assert (constants.magic * numerator) >> constants.shift == numerator // divisor
        assert constants.magic * numerator < 2**63
    assert quotients([numerator], divisor, limit) == [numerator // divisor]


def test_the_arithmetic_runs_without_a_compiler():
    wide = division(7, 2**63 - 1)
    numerator, magic = np.int64(2**62 + 5), np.int64(signed(wide.magic))
    assert wide_quotient(numerator, magic, wide.shift) == (2**62 + 5) // 7
    narrow = division(7, 2**31 - 1)
    assert narrow_quotient(np.int64(2**31 - 1), narrow.magic, narrow.shift) == (2**31 - 1) // 7


def test_too_small_a_magic_number_shows():
    """Planted: rounded down instead of up."""
    constants = division(7, 1000)
    numbers, result = np.array([994]), np.empty(1, np.int64)
    _divide(numbers.ctypes.data, result.ctypes.data, 1, constants.magic - 1, constants.shift, 0)
    assert result[0] != 142


# Programs of every form, beside their evaluation by NumPy


def random_program(seed):
    """A program that no shape has: wide and nested quotients, many operands, negative coefficients."""
    source = random.Random(seed)
    bounds = tuple(source.choice((1, 5, 1000, 2**31 + 9, 2**40)) for _ in range(source.randint(1, 6)))
    limits = [bound - 1 for bound in bounds]
    quotients = []
    for _ in range(source.randint(0, 9)):
        chosen = source.sample(range(len(limits)), source.randint(1, min(3, len(limits))))
        form = tuple((v, source.randint(1, 5)) for v in sorted(chosen))
        if source.random() < 0.5:
            form = ((source.randrange(len(limits)), 1),)
        limit = sum(limits[v] * c for v, c in form)
        divisor = source.choice((2, 3, 7, 128, 1000, 2**20 + 1, 2**33))
        quotients.append(Quotient(form, divisor, limit))
        limits.append(limit // divisor)
    outputs = []
    for _ in range(source.randint(1, 4)):
        chosen = source.sample(range(len(limits)), source.randint(0, len(limits)))
        outputs.append(tuple((v, source.randint(-9, 9) or 1) for v in sorted(chosen)))
    return IndexProgram(bounds, tuple(quotients), tuple(outputs))


@pytest.mark.parametrize("seed", range(150))
def test_any_program_of_any_length(seed):
    program = random_program(seed)
    numbers = np.random.default_rng(seed)
    count = int(numbers.choice([1, 7, 8, 127, 128, 129, 1000, 4099]))
    inputs = [numbers.integers(0, bound, count) for bound in program.input_bounds]
    for array, bound in zip(inputs, program.input_bounds, strict=True):
        array[-1] = bound - 1
    outputs = [np.full(count, -5) for _ in program.outputs]
    execution.run(program, inputs, outputs, (count,))
    expected, _ = program.evaluate(inputs)
    for ours, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(ours, np.broadcast_to(theirs, count))


@pytest.mark.parametrize("seed", range(150))
def test_an_input_out_of_bounds_is_found_in_any_program(seed):
    program = random_program(seed)
    source = random.Random(seed)
    count = source.choice([1, 128, 300])
    inputs = [np.zeros(count, np.int64) for _ in program.input_bounds]
    number, place = source.randrange(len(inputs)), source.randrange(count)
    inputs[number][place] = source.choice([-1, program.input_bounds[number], -(2**63), 2**63 - 1])
    outputs = [np.empty(count, np.int64) for _ in program.outputs]
    with pytest.raises(execution.BadElementError) as caught:
        execution.run(program, inputs, outputs, (count,))
    offender = caught.value
    assert (offender.number, offender.position) == (number, (place,))
    assert offender.values[number] == inputs[number][place]


def test_every_operation_is_used_somewhere():
    used = set()
    for seed in range(150):
        program = random_program(seed)
        for mark in (False, True):
            table = step_table(program, mark)
            header = 4 + len(program.outputs)
            used.update(table.numbers[header:].reshape(-1, index_table.COLUMNS)[:, 0].tolist())
    marked = step_table(IndexProgram((9,), (), (((0, 1),),), (Check(((0, 1),), 5),)), True)
    used.update(marked.numbers[5:].reshape(-1, index_table.COLUMNS)[:, 0].tolist())
    assert used == set(range(11))


def test_a_wrong_constant_in_a_step_shows(monkeypatch):
    """Planted: every narrow quotient shifts one bit too far."""

    def wrong(*arguments):
        constants = division(*arguments)
        return replace(constants, shift=constants.shift + 1)

    monkeypatch.setattr(compiled_programs, "division", wrong)
    rows = np.arange(64)
    slots = fi.linear_index("f32[64,3]{0,1:T(3,16)}", (rows, 0 * rows))
    assert slots.tolist() != [
        reference.linear_index(reference.parse("f32[64,3]{0,1:T(3,16)}"), (row, 0)) for row in range(64)
    ]


# Arrays of every kind

TEXT = "bf16[40,36]{1,0:T(8,16)(2,1)}"
ROWS, COLUMNS = np.indices((40, 36))
SLOTS = np.array([reference.linear_index(reference.parse(TEXT), index) for index in np.ndindex(40, 36)]).reshape(40, 36)


def variants(array, seed):
    """The same numbers, stored otherwise."""
    numbers = np.random.default_rng(seed)
    kinds = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i2", ">u2", ">i4", ">u4", ">i8", ">u8"]
    fitting = [kind for kind in kinds if np.iinfo(kind).max >= array.max()]
    stored = array.astype(numbers.choice(fitting))
    yield stored
    yield np.asfortranarray(stored)
    yield np.repeat(np.repeat(stored, 3, axis=0), 2, axis=1)[::3, ::2]
    yield stored[::-1].copy()[::-1]
    yield stored[:, ::-1].copy()[:, ::-1]
    record = np.zeros(array.shape, np.dtype([("pad", "u1"), ("value", stored.dtype)]))
    record["value"] = stored
    yield record["value"]
    stored.flags.writeable = False
    yield stored


@pytest.mark.parametrize("seed", range(14))
def test_arrays_stored_in_every_way(seed):
    for rows, columns in zip(variants(ROWS, seed), variants(COLUMNS, seed + 100), strict=True):
        np.testing.assert_array_equal(fi.linear_index(TEXT, (rows, columns)), SLOTS)
    for slots in variants(SLOTS, seed):
        found = fi.multi_index(TEXT, slots)
        np.testing.assert_array_equal(np.stack(found), [ROWS, COLUMNS])


@pytest.mark.parametrize("seed", range(40))
def test_broadcasting_over_many_axes(seed):
    source = random.Random(seed)
    shape = tuple(source.randint(1, 6) for _ in range(source.randint(0, 5)))
    numbers = np.random.default_rng(seed)

    def operand(bound):
        own = tuple(1 if source.random() < 0.4 else size for size in shape)
        array = numbers.integers(0, bound, own[source.randint(0, len(own)) :])
        return array.transpose().copy().transpose() if source.random() < 0.5 else array

    rows, columns = operand(40), operand(36)
    expected = SLOTS[rows, columns]
    found = fi.linear_index(TEXT, (rows, columns))
    np.testing.assert_array_equal(found, expected)
    out = np.zeros((*expected.shape, 2), np.int64)[..., 1]
    fi.linear_index(TEXT, (rows, columns), out=out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("step", [1, 2, -1, -3, 7])
def test_ranges_count_instead_of_reading(step):
    slots = range(0, 1440, abs(step)) if step > 0 else range(1439, -1, step)
    for ours, theirs in zip(
        fi.multi_index("f32[40,36]", slots), np.unravel_index(np.array(slots), (40, 36)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    rows = range(0, 40, 3)
    np.testing.assert_array_equal(fi.linear_index(TEXT, (rows, 5)), SLOTS[::3, 5])
    grid = fi.linear_index(TEXT, (np.arange(40)[:, None], range(36)))
    np.testing.assert_array_equal(grid, SLOTS)
    np.testing.assert_array_equal(fi.linear_index(TEXT, (range(-40, 0), range(2, 3)), mode="wrap"), SLOTS[:, 2])
    with pytest.raises(OutOfBoundsError, match="coordinate 40 at position 40"):
        fi.linear_index(TEXT, (range(50), 0))
    assert fi.multi_index("f32[40,36]", range(0))[0].shape == (0,)
    ends = range(-(2**63), 2**63, 2**64 - 1)
    assert fi.linear_index(TEXT, (ends, 0), mode="clip").tolist() == [SLOTS[0, 0], SLOTS[39, 0]]
    with pytest.raises(OutOfBoundsError):
        fi.multi_index(TEXT, range(2**63 - 1, 2**63 + 4))


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 127, 128, 129, 1000, 20_000])
def test_streamed_output_at_every_alignment(offset, count, monkeypatch):
    monkeypatch.setattr(compiled_programs, "_TUNING", replace(TUNING, streamed_bytes=0))
    memory = np.full((2, count + 24), -7)
    out = [memory[0, offset : offset + count], memory[1, 8 - offset : 8 - offset + count]]
    slots = np.arange(count) % 1440
    fi.multi_index("f32[40,36]", slots, out=out, threads=3)
    np.testing.assert_array_equal(np.stack(out), np.unravel_index(slots, (40, 36)))
    assert (memory[0, :offset] == -7).all()
    assert (memory[0, offset + count :] == -7).all()
    assert (memory[1, : 8 - offset] == -7).all()
    assert (memory[1, 8 - offset + count :] == -7).all()


def test_output_that_is_not_aligned(monkeypatch):
    monkeypatch.setattr(compiled_programs, "_TUNING", replace(TUNING, streamed_bytes=0))
    bytes_ = np.zeros(8 * 1441 + 3, np.uint8)
    out = bytes_[3 : 3 + 8 * 1440].view(np.int64)
    fi.linear_index(TEXT, (ROWS.ravel(), COLUMNS.ravel()), out=out)
    np.testing.assert_array_equal(out, SLOTS.ravel())


def test_output_may_not_overlap():
    rows, columns = ROWS.copy(), COLUMNS.copy()
    both = np.stack([rows, columns])
    with pytest.raises(FastIndexError, match="out overlaps"):
        fi.linear_index(TEXT, (rows, columns), out=rows)
    with pytest.raises(FastIndexError, match="out overlaps"):
        fi.linear_index(TEXT, both, out=both[1])
    with pytest.raises(FastIndexError, match="out overlaps"):
        fi.multi_index(TEXT, SLOTS, out=(rows, rows))
    interleaved = np.zeros((40, 36, 3), np.int64)
    interleaved[..., 0], interleaved[..., 2] = rows, columns
    fi.linear_index(TEXT, (interleaved[..., 0], interleaved[..., 2]), out=interleaved[..., 1])
    np.testing.assert_array_equal(interleaved[..., 1], SLOTS)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros((40, 36)), "out must be an int64 array, got dtype float64"),
        (np.zeros((40, 36), np.int32), "got dtype int32"),
        (np.zeros((40, 36), ">i8"), "got dtype >i8"),
        (np.zeros((36, 40), np.int64), r"out must have the shape \(40, 36\)"),
        (np.broadcast_to(np.int64(0), (40, 36)), "read-only"),
        ([1], "out must be an int64 array"),
    ],
)
def test_output_that_does_not_fit(out, message):
    with pytest.raises(FastIndexError, match=message):
        fi.linear_index(TEXT, (ROWS, COLUMNS), out=out)


def test_wrong_numbers_of_outputs():
    part = np.zeros((40, 36), np.int64)
    with pytest.raises(FastIndexError, match="out must hold 2 arrays, got 1"):
        fi.multi_index(TEXT, SLOTS, out=(part,))
    with pytest.raises(TypeError, match="sequence of 2"):
        fi.multi_index(TEXT, SLOTS, out=5)
    with pytest.raises(FastIndexError, match="out must be a pair"):
        fi.tile_index(TEXT, (ROWS, COLUMNS), out=(part,))
    tile, within = [part.copy(), part.copy()], [part.copy(), part.copy()]
    fi.tile_index(TEXT, (ROWS, COLUMNS), out=(tile, within))
    np.testing.assert_array_equal(tile[0] * 8 + within[0], ROWS)
    np.testing.assert_array_equal(tile[1] * 16 + within[1], COLUMNS)


def test_levels():
    np.testing.assert_array_equal(
        np.stack(fi.tile_index(TEXT, (ROWS, COLUMNS), level=-1)[1]),
        np.stack(fi.tile_index(TEXT, (ROWS, COLUMNS), level=1)[1]),
    )
    for level in (2, -3):
        with pytest.raises(OutOfBoundsError, match=f"level {level} "):
            fi.tile_index(TEXT, (ROWS, COLUMNS), level=level)
    with pytest.raises(FastIndexError, match="has no tiles"):
        fi.tile_index("f32[3]", ([0],))


@pytest.mark.parametrize("mode", ["up", ("wrap",), ("wrap", "up"), 3, None])
def test_modes_that_are_none(mode):
    with pytest.raises((FastIndexError, TypeError)):
        fi.linear_index(TEXT, ([0], [0]), mode=mode)


def test_a_mode_for_each_dimension():
    found = fi.linear_index(TEXT, ([-1, 41], [99, -4]), mode=("wrap", "clip"))
    np.testing.assert_array_equal(found, SLOTS[[39, 1], [35, 0]])
    with pytest.raises(OutOfBoundsError, match=r"coordinate 99 at position 0 .* dimension 1"):
        fi.linear_index(TEXT, ([-1, 41], [99, -4]), mode=("wrap", "raise"))


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", ">i4", "u8", "i8"])
@pytest.mark.parametrize("mode", ["wrap", "clip"])
def test_modes_on_every_dtype(dtype, mode):
    ends = np.iinfo(dtype)
    values = np.array([ends.min, ends.min + 1, 0, 39, 40, ends.max - 1, ends.max], dtype)
    exact = [int(v) % 40 if mode == "wrap" else min(max(int(v), 0), 39) for v in values]
    np.testing.assert_array_equal(fi.linear_index(TEXT, (values, 3), mode=mode), SLOTS[exact, 3])


def test_booleans_are_no_coordinates():
    with pytest.raises(TypeError, match=r"multi_index\[1\] must hold integers, got dtype bool"):
        fi.linear_index(TEXT, ([0], np.array([True])))


@pytest.mark.parametrize("value", [2**64, -(2**70), [2**64, 0], [2**63, -1], range(2**64, 2**64 + 1)])
def test_integers_beyond_64_bits(value):
    with pytest.raises(OutOfBoundsError, match="64 bits"):
        fi.linear_index(TEXT, (value, 0))


def test_the_first_offender_is_named_across_chunks():
    rows = np.zeros(400_000, np.int64)
    rows[[399_999, 250_001, 300_000]] = (50, 60, 70)
    for threads in (1, 2, 7):
        with pytest.raises(OutOfBoundsError, match=r"coordinate 60 at position 250001 .* size 40"):
            fi.linear_index(TEXT, (rows, 0), threads=threads)


# What a call costs


@pytest.mark.parametrize("kind", ["int8 columns", "broadcast", "range", "error"])
def test_no_large_temporaries(kind):
    count = 3_000_000
    out = np.empty((count, 1), np.int64)
    inputs = {
        "int8 columns": (np.zeros((count, 4), np.int8)[:, :1], np.zeros((count, 3), ">i2")[:, 1:2]),
        "broadcast": (np.zeros((count, 1), np.int64), np.zeros(1, np.int64)),
        "range": (np.zeros((count, 1), np.int32), range(1)),
        "error": (np.zeros((count, 1), np.int64), np.zeros((count, 1), np.int64)),
    }[kind]
    if kind == "error":
        inputs[1][-1] = 99
    tracemalloc.start()
    try:
        fi.linear_index(TEXT, inputs, out=out, threads=2)
    except OutOfBoundsError:
        assert kind == "error"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_one_compilation_serves_every_layout_and_array():
    fi.multi_index("f32[9]", np.arange(3))
    before = loaded_kernels()
    for text in ("f32[9]", "f32[4,5,6,7]{0,3,1,2:T(2,3)(*,2)}", "f32[3000000000]{0:T(3)(2)}", "f32[]"):
        shape = fi.Shape.parse(text)
        fi.multi_index(shape, np.arange(min(3, shape.slot_count), dtype=np.int16), padding="mark")
        fi.linear_index(shape, [0] * shape.rank)
    assert [kernel.function for kernel in loaded_kernels() if kernel not in before] == []


@pytest.mark.in_turn(seconds=3)
def test_a_warm_start_compiles_nothing():
    program = (
        "import sys, fastindex as fi, fastindex.runtime.machine_code as code\n"
        "fi.linear_index('f32[3,5]{1,0:T(2,2)}', ([1], [2]))\n"
        "print(len(code.loaded_kernels()), len(code.compiled_kernels()), 'numba' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, capture_output=True, timeout=HANG_SECONDS)
    again = subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert again.stdout == "1 0 False\n"


def test_blocks_fit_the_cache():
    assert block_length(8) == 128
    assert block_length(100_000) * 100_000 * 8 < 64 << 20
