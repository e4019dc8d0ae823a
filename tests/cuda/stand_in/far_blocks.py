"""Arrays of more than 2**31 elements in the emulator, of which a few blocks far apart run, for `test_emulated_gpu`.

The arrays are addresses alone: the driver takes no memory for what nobody touches, and what is read first holds a mix
of all bits of where it lies. So each byte that a block wrote tells which one it read, and the slow reference says which
one it had to read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from fastindex.cuda.kernels.device import cuda
from tests.cuda.ptx.emulator import written_bytes
from tests.cuda.stand_in import emulated
from tests.kernels.gpu_package import to_gpu, to_host
from tests.oracles import reference

#: Of a launch: the first block, the last, and some between.
BLOCKS = 17

#: Elements of an array that are looked at.
SAMPLE = 200

RELAYOUTS = {
    "copy 16": ("f32[65536,32896]{1,0}", "f32[65536,32896]{1,0:T(8,128)}"),
    "copy 16 of many rows": ("f32[550000001,4]{1,0}", "f32[550000001,4]{1,0:T(1,8)}"),
    "transpose 1": ("u8[65536,32896]{1,0}", "u8[65536,32896]{0,1}"),
    "transpose 2": ("bf16[65536,32896]{1,0}", "bf16[65536,32896]{0,1}"),
    "transpose 4": ("f32[65536,32896]{1,0}", "f32[65536,32896]{0,1}"),
    "transpose 8": ("f64[65536,32896]{1,0}", "f64[65536,32896]{0,1}"),
    "transpose 16": ("c128[65536,32896]{1,0}", "c128[65536,32896]{0,1}"),
    "transpose words 1": ("u8[46349,46345]{1,0}", "u8[46349,46345]{0,1}"),
    "transpose words 2": ("bf16[46349,46345]{1,0}", "bf16[46349,46345]{0,1}"),
    "transpose elements 4": ("f32[46349,46345]{1,0}", "f32[46349,46345]{0,1}"),
    "transpose elements 8": ("f64[46349,46345]{1,0}", "f64[46349,46345]{0,1}"),
    "interleave 1": ("u8[65536,32896]{1,0}", "u8[65536,32896]{1,0:T(8,128)(4,1)}"),
    "deinterleave 2": ("bf16[65536,32896]{1,0:T(8,128)(2,1)}", "bf16[65536,32896]{1,0}"),
    "interleave rows 4": ("u8[46349,46345]{1,0}", "u8[46349,46345]{1,0:T(8,128)(4,1)}"),
    "deinterleave rows 2": ("bf16[46349,46345]{1,0:T(8,128)(2,1)}", "bf16[46349,46345]{1,0}"),
    "deinterleave rows 1": ("f32[46349,46345]{1,0:T(8,128)}", "f32[46349,46345]{1,0}"),
    "stage 1": ("u8[3,1073741824]{1,0}", "u8[3,1073741824]{0,1}"),
    "unstage 4": ("f32[1073741824,3]{1,0}", "f32[1073741824,3]{0,1}"),
    "shift 8": ("u8[9,61,4000037]{2,1,0}", "u8[9,61,4000037]{2,0,1}"),
    "gather": ("u8[46349,46345]{1,0:T(4,8)(2,1)}", "u8[46349,46345]{0,1:T(3)(2)L(16)}"),
}

#: The number of a byte as a value of another type.
CASTS = {
    "cast": ("u8[65536,32896]{1,0}", "f32[65536,32896]{1,0}"),
    "cast transpose": ("u8[65536,32896]{1,0}", "s32[65536,32896]{0,1}"),
    "cast rows": ("u8[65536,32896]{1,0}", "s16[65536,32896]{1,0:T(8,128)(2,1)}"),
    "cast parts": ("u8[46349,46345]{1,0:T(8,128)(4,1)}", "f32[46349,46345]{1,0}"),
}


@contextmanager
def few_blocks() -> Iterator[None]:
    emulated.DRIVER.stand_in_most_blocks.argtypes = [ctypes.c_int64]
    emulated.DRIVER.stand_in_most_blocks(BLOCKS)
    try:
        yield
    finally:
        emulated.DRIVER.stand_in_most_blocks(0)


@pytest.fixture(autouse=True)
def _few_blocks() -> Iterator[None]:
    with few_blocks():
        yield


def address_of(array: Any) -> int:
    return int(array.__cuda_array_interface__["data"][0])


def patterned(nbytes: int) -> Any:
    """Make an array whose bytes are `bytes_at` of where they lie."""
    made = cuda.device_array(nbytes, np.uint8)
    emulated.DRIVER.ptx_memory_pattern(address_of(made))
    return made


def bytes_at(places: NDArray[np.int64]) -> NDArray[np.uint8]:
    return (places.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)).astype(np.uint8)


def memory_of(array: Any) -> NDArray[np.uint8]:
    """Return the bytes of an array on the stand-in's GPU, as they lie; they keep the array."""
    memory: Any = (ctypes.c_uint8 * array.nbytes).from_address(address_of(array))
    memory.array = array
    return np.ctypeslib.as_array(memory)


def some_written(target: Any, width: int) -> NDArray[np.int64]:
    """Return slots that kernels wrote, the first and the last among them."""
    slots = np.unique(written_bytes(emulated.DRIVER, address_of(target)) // width)
    assert len(slots) > SAMPLE
    ends = np.concatenate([slots[:20], slots[-20:]])
    return np.unique(np.concatenate([ends, np.random.default_rng(1).choice(slots, SAMPLE)]))


def origins(source: str, destination: str, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slots of the source that belong in these of the destination, by the reference; -1 is padding."""
    first, second = reference.parse(source), reference.parse(destination)
    guessed = np.stack(fi.multi_index(destination, slots, padding="mark"), axis=1)
    found = []
    for slot, index in zip(slots.tolist(), guessed.tolist(), strict=True):
        if index[0] < 0:
            found.append(-1)
            continue
        # An element has one slot: if the reference puts this one here, it is the one.
        assert reference.linear_index(second, index) == slot
        found.append(reference.linear_index(first, index))
    return np.array(found)


def moved(source: str, destination: str, fill: Any = None) -> tuple[Any, NDArray[np.int64], NDArray[np.int64]]:
    """Relayout; return the result, some slots of it that were written, and where their elements come from."""
    first, second = fi.Shape.parse(source), fi.Shape.parse(destination)
    assert first.element_count > 2**31
    given, target = patterned(first.nbytes), cuda.device_array(second.nbytes, np.uint8)
    fi.relayout(given, source, destination, fill, out=target, casting="unsafe")
    emulated.finish()
    slots = some_written(target, second.nbytes // second.slot_count)
    places = origins(source, destination, slots)
    assert slots[-1] > 2**31
    assert places.max() > 2**31
    return target, slots, places


def moved_right(source: str, destination: str) -> None:
    target, slots, places = moved(source, destination)
    width = fi.Shape.parse(source).element_type.bits // 8
    found = memory_of(target).reshape(-1, width)[slots]
    expected = bytes_at(width * places[:, None] + np.arange(width))
    # Rows of a tile that has padding are filled, then copied: of few blocks, those that fill may lie where none copies.
    second = fi.Shape.parse(destination)
    is_copied = places >= 0
    if second.slot_count > second.element_count:
        refilled = memory_of(moved(source, destination, fill=1)[0]).reshape(-1, width)[slots]
        is_copied &= (found == refilled).all(axis=1)
    assert np.array_equal(found[is_copied], expected[is_copied])
    assert not found[~is_copied].any()
    assert np.count_nonzero(is_copied) > SAMPLE // 4
    assert slots[is_copied][-1] > 2**31


@pytest.mark.parametrize("name", list(RELAYOUTS))
def test_elements_come_from_where_they_belong(name: str) -> None:
    moved_right(*RELAYOUTS[name])


@pytest.mark.parametrize("name", list(CASTS))
def test_converted_elements_come_from_where_they_belong(name: str) -> None:
    source, destination = CASTS[name]
    target, slots, places = moved(source, destination)
    memory = memory_of(target)
    dtype = fi.Shape.parse(destination).element_type.numpy_dtype
    expected = np.where(places < 0, 0, bytes_at(places)).astype(dtype)
    assert np.array_equal(memory.view(dtype)[slots], expected)


def test_packed_elements_come_from_where_they_belong() -> None:
    packed, plain = "s4[65536,32896]{1,0:E(4)}", "s4[65536,32896]{1,0:T(8,128)}"
    target, slots, places = moved(packed, plain)
    memory = memory_of(target)
    nibbles = bytes_at(places // 2) >> (4 * (places % 2)).astype(np.uint8) & 15
    assert np.array_equal(memory[slots] & 15, nibbles)


@pytest.mark.parametrize("text", ["bf16[65536,32896]{1,0:T(8,128)(2,1)}", "u8[46349,46345]{0,1:T(3)(2)}"])
def test_indices(text: str) -> None:
    shape = reference.parse(text)
    rng = np.random.default_rng(1)
    rows, columns = (rng.integers(size, size=300) for size in shape.dimensions)
    rows[0], columns[0] = (size - 1 for size in shape.dimensions)
    expected = [reference.linear_index(shape, index) for index in zip(rows.tolist(), columns.tolist(), strict=True)]
    slots = fi.linear_index(text, (to_gpu(rows), to_gpu(columns)))
    assert to_host(slots).tolist() == expected
    back = fi.multi_index(text, slots)
    assert [to_host(part).tolist() for part in back] == [rows.tolist(), columns.tolist()]


def test_strides_of_callers() -> None:
    """Rows of an array that are 3 GiB apart, into rows as far apart."""
    source, target = patterned(5 * (3 << 30)), cuda.device_array(5 * (3 << 30), np.uint8)
    fi.numpy.copyto(target.reshape(5, 3 << 30)[:, 7:20007:2], source.reshape(5, 3 << 30)[:, 5:10005])
    emulated.finish()
    written = written_bytes(emulated.DRIVER, address_of(target))
    row, place = np.divmod(written, 3 << 30)
    assert set(row.tolist()) == set(range(5))
    assert ((place - 7) % 2 == 0).all()
    assert np.array_equal(memory_of(target)[written], bytes_at(row * (3 << 30) + 5 + (place - 7) // 2))
