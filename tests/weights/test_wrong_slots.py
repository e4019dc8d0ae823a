"""The first wrong slot of a buffer, of buffers in which wrong bits were planted.

Tests of: weights.wrong_slots.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.patterns.format_table import PARAMETERS
from fastindex.weights import wrong_slots
from tests.cases import strategies
from tests.oracles import format_places, reference


def planted(shape: reference.ReferenceShape, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return an array of random bits and a buffer that holds it, with random bits in the padding too."""
    width, bits = reference.VALUE_BITS[shape.element_type], reference.element_bits(shape)
    indices = list(reference.every_index(shape.dimensions))
    dtype = fi.Shape.parse(str(shape)).element_type.numpy_dtype
    content = rng.integers(0, 256, (len(indices), dtype.itemsize), np.uint8)
    if width < 8:
        content &= (1 << width) - 1
    patterns = [int.from_bytes(one.tobytes(), "little") for one in content]
    padding = int(rng.integers(0, 1 << min(width, 62)))
    buffer = reference.pack(shape, dict(zip(indices, patterns, strict=True)), padding)
    spare = -reference.slot_count(shape) * bits % 8
    array = np.frombuffer(buffer, np.uint8).copy()
    if spare:
        array[-1] ^= 1 << 7
    if width < 8:
        values = content.reshape(-1).astype(f"u{dtype.itemsize}").astype(dtype)
    else:
        values = content.reshape(-1).view(dtype)
    return values.reshape(shape.dimensions), array


@pytest.mark.parametrize("part_bytes", [16, 1 << 21])
@pytest.mark.parametrize("seed", strategies.rotating_seeds(120))
def test_first_wrong_slot(seed: int, part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = strategies.random_shape(seed)
    bits = reference.element_bits(shape)
    if shape.element_type == "pred" or (
        shape.element_type[0] not in "us" and reference.VALUE_BITS[shape.element_type] < 8
    ):
        return
    monkeypatch.setattr(wrong_slots, "_PART_BYTES", part_bytes)
    rng = np.random.default_rng(seed)
    array, buffer = planted(shape, rng)
    given = buffer.copy()
    assert fi.weights.check(array, buffer, str(shape)) is None
    cells = reference.slots(shape)
    slots = [slot for slot, cell in enumerate(cells) if cell is not None]
    width = min(reference.VALUE_BITS[shape.element_type], bits)
    wrong = sorted(rng.choice(slots, min(2, len(slots)), replace=False).tolist())
    for slot in wrong:
        at = slot * bits + int(rng.integers(width))
        buffer[at // 8] ^= 1 << at % 8
    found = fi.weights.check(array, buffer, str(shape))
    if not wrong:
        assert found is None
        return
    assert found is not None
    assert (found.slot, found.index) == (wrong[0], cells[wrong[0]])
    assert (found.byte, found.bit) == divmod(wrong[0] * bits, 8)
    patterns = reference.patterns_of(buffer.tobytes(), bits, len(cells))
    mask = (1 << width) - 1
    wanted = reference.patterns_of(given.tobytes(), bits, len(cells))
    same = [cells[slot] for slot in slots if wanted[slot] & mask == patterns[wrong[0]] & mask]
    assert found.found == (same[0] if len(same) == 1 else None)


@pytest.mark.parametrize("slots_wrong", [[(1 << 23) - 1], [5, (1 << 23) - 1]])
def test_late_slots_take_little_memory(slots_wrong: list[int]) -> None:
    """The array has eight MiB; the whole buffer, and masks of it, would be several times as much."""
    shape = fi.Shape.parse("u8[2048,4096]{0,1:T(8,128)(4,1)}")
    array = np.random.default_rng(0).integers(0, 256, shape.dimensions, np.uint8)
    buffer = fi.pack(array, shape)
    buffer[slots_wrong] ^= 1
    fi.weights.check(array, buffer, shape)
    tracemalloc.start()
    try:
        found = fi.weights.check(array, buffer, shape)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found is not None
    assert found.slot == slots_wrong[0]
    # Parts of two MiB: packed, two unpacked, and which elements differ.
    assert peak < 4 * (2 << 20) + (1 << 20)


def test_other_padding_everywhere() -> None:
    """Each row of tiles has padding, and none of it is what `pack` would write."""
    shape = "f32[800,130]{1,0:T(8,128)}"
    array = np.random.default_rng(0).random((800, 130), np.float32)
    buffer = fi.pack(array, shape, np.nan)
    assert fi.weights.check(array, buffer, shape) is None
    last = int(fi.linear_index(shape, (799, 129)))
    buffer[last] = 7
    found = fi.weights.check(array, buffer, shape)
    assert found is not None
    assert (found.index, found.slot, found.got, found.found) == ((799, 129), last, 7, None)


def test_flipped_bits() -> None:
    """A format that stores codes with the top bit inverted, checked in the layout that was found for it."""

    def packer(codes: Any) -> Any:
        return fi.weights.repack(codes, "plain", "ggml_q4_0_repacked_body", shape=codes.shape)

    codes = np.random.default_rng(0).integers(0, 16, (8, 64), np.uint8)
    found = fi.weights.discover(packer, codes.shape, np.uint8, bits=4)
    assert found.flipped_bits == 8
    split = fi.Shape.parse(str(found.layout))
    stored = (codes ^ found.flipped_bits).reshape(split.dimensions).astype(split.element_type.numpy_dtype)
    buffer = packer(codes)
    assert fi.weights.check(stored, buffer, split) is None
    buffer[-1] ^= 0x80
    wrong = fi.weights.check(stored, buffer, split)
    assert wrong is not None
    assert (wrong.byte, wrong.bit, wrong.slot) == (255, 4, 511)
    assert np.ravel_multi_index(wrong.index, split.dimensions) == 511
    assert wrong.expected ^ 8 == wrong.got
    unflipped = fi.weights.check(codes.reshape(split.dimensions).astype(stored.dtype), packer(codes), split)
    assert unflipped is not None
    assert unflipped.slot == 0


@pytest.mark.parametrize(
    "text", ["f32[0,4]{1,0:T(8,128)}", "u8[]", "s4[3]{0:E(4)}", "c128[2,2]{0,1}", "bf16[5]{0:T(4)}"]
)
def test_odd_arrays(text: str) -> None:
    shape = fi.Shape.parse(text)
    array = np.ones(shape.dimensions, np.int8).astype(shape.element_type.numpy_dtype)
    buffer = np.ascontiguousarray(fi.pack(array, shape)).view(np.uint8).copy()
    assert fi.weights.check(array, buffer, shape) is None
    assert fi.weights.check(array, buffer.tobytes(), shape) is None
    if array.size:
        buffer[0] ^= 2
        found = fi.weights.check(array, bytearray(buffer), shape)
        assert found is not None
        assert (found.index, found.slot, found.expected) == ((0,) * array.ndim, 0, 1)
        assert str(found).startswith("slot 0 (byte 0, bit 0) is for the element at ")


def test_same_numbers_of_other_bits() -> None:
    zeros = np.zeros(4, np.float32)
    found = fi.weights.check(zeros, -zeros, "f32[4]")
    assert found is not None
    assert str(found) == "slot 0 (byte 0, bit 0) is for the element at (0,), 0.0; it holds -0.0"
    ones = np.ones(4, np.complex128)
    found = fi.weights.check(ones, ones.conj(), "c128[4]")
    assert found is not None
    assert (found.slot, found.byte, found.found) == (0, 0, None)


def test_whose_value_is_there() -> None:
    array = np.arange(32, dtype=np.uint16).reshape(4, 8)
    layout = "u16[4,8]{1,0:T(2,4)}"
    found = fi.weights.check(array, fi.pack(array, "u16[4,8]{0,1}"), layout)
    assert found is not None
    assert (found.index, found.found, found.byte, found.expected, found.got) == ((0, 1), (1, 0), 2, 1, 8)


def test_what_is_no_buffer_of_the_layout() -> None:
    array = np.arange(32, dtype=np.uint16).reshape(4, 8)
    with pytest.raises(fi.FastIndexError, match="takes 64 bytes, got 63"):
        fi.weights.check(array, bytes(63), "u16[4,8]")
    with pytest.raises(fi.FastIndexError, match="dimensions"):
        fi.weights.check(array.T, array, "u16[4,8]")
    with pytest.raises(fi.ArgumentTypeError, match="f32 is not cast to u16"):
        fi.weights.check(array.astype(np.float32), array, "u16[4,8]")
    with pytest.raises(fi.ArgumentTypeError, match="bytes or an array of numbers, got NoneType of object"):
        fi.weights.check(array, None, "u16[4,8]")
    with pytest.raises(fi.ArgumentTypeError, match="got str of <U"):
        fi.weights.check(array, "a" * 16, "u16[4,8]")


def test_buffers_of_any_kind() -> None:
    """A packer returns words in rows, a view, or raw bytes."""
    array = np.arange(32, dtype=np.uint16).reshape(4, 8)
    buffer = fi.pack(array, "u16[4,8]{0,1}")
    spread = np.repeat(buffer.view(np.uint8), 2)
    for after in (buffer.view(np.int32).reshape(4, 4), spread[::2], memoryview(spread)[::2], buffer.tobytes()):
        assert fi.weights.check(array, after, "u16[4,8]{0,1}") is None
        assert fi.weights.check(array, after, "u16[4,8]") is not None


FORMATS: list[tuple[str, int, dict[str, Any], tuple[int, ...]]] = [
    ("awq", 4, {}, (5, 16)),
    ("awq", 8, {"packer": "gptqmodel"}, (5, 13)),
    ("marlin", 4, {}, (32, 64)),
    # Padding, and codes that lie across words.
    ("gptq", 3, {}, (32, 5)),
    ("pack_quantized", 3, {"dense": False}, (3, 41)),
    ("blocked_scales", 8, {}, (130, 5)),
    # Another order of half bytes, of bits, two's complement, and a reversed code in padding.
    ("bnb_nf4", 4, {}, (3, 5)),
    ("hopper_mx_value", 4, {}, (16, 64)),
    ("gguf_body", 8, {"type": "q8_0"}, (3, 64)),
    ("fractal_nz", 16, {}, (7, 40)),
]


@pytest.mark.parametrize(("name", "bits", "parameters", "sizes"), FORMATS)
@pytest.mark.parametrize("seed", [0, 1])
def test_first_wrong_slot_of_a_format(
    name: str, bits: int, parameters: dict[str, Any], sizes: tuple[int, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, sizes).astype("u2" if bits > 8 else "u1")
    everything = {**PARAMETERS.get(name, {}), **parameters}
    buffer = fi.weights.repack(codes, "plain", name, shape=sizes, bits=bits, **parameters)
    assert fi.weights.check(codes, buffer, name, bits=bits, **parameters) is None
    # Where each bit of each code lies, by the definition.
    owners: dict[int, tuple[int, ...]] = {}
    for index in np.ndindex(sizes):
        place = format_places.DEFINITIONS[name](index, sizes, bits, everything)
        owners |= dict.fromkeys(range(place, place + bits) if isinstance(place, int) else place, index)
    padding = [bit for bit in range(8 * buffer.size) if bit not in owners]
    for bit in padding[:3] + padding[-3:]:
        buffer[bit // 8] ^= np.uint8(1 << bit % 8)
    assert fi.weights.check(codes, buffer, name, shape=sizes, bits=bits, **parameters) is None
    places = sorted(rng.choice(list(owners), 3, replace=False).tolist())
    for bit in places:
        buffer[bit // 8] ^= np.uint8(1 << bit % 8)
    wrong = {owners[bit] for bit in places}
    first = min(bit for bit, index in owners.items() if index in wrong)
    found = fi.weights.check(codes, buffer, name, shape=sizes, bits=bits, **parameters)
    assert found is not None
    assert (found.index, 8 * found.byte + found.bit, found.slot) == (owners[first], first, first // bits)
    held = fi.weights.repack(buffer, name, "plain", shape=sizes, bits=bits, **parameters)
    assert (found.expected, found.got) == (codes[found.index], held[found.index])
    values = codes.reshape(-1).tolist()
    alone = [index for index in np.ndindex(sizes) if codes[index] == found.got]
    assert found.found == (alone[0] if values.count(found.got) == 1 else None)


def test_formats_that_are_not_there() -> None:
    codes = np.zeros((16, 64), np.uint8)
    for layout, keys, words in (
        ("marlinn", {}, "did you mean marlin"),
        ("kleidiai", {}, "packed together"),
        ("awq", {"bits": 8}, "packer='vllm'"),
        ("awq", {"shape": (64, 16)}, "dimensions"),
        ("u8[16,64]", {"bits": 4}, "of named formats"),
    ):
        with pytest.raises(fi.FastIndexError, match=words):
            fi.weights.check(codes, codes, layout, **keys)
    with pytest.raises(fi.FastIndexError, match="takes 512 bytes, the buffer has 1024"):
        fi.weights.check(codes, codes.reshape(-1), "awq")
    with pytest.raises(fi.FastIndexError, match="from 0 to 15 for awq"):
        fi.weights.check(codes + np.uint8(16), np.zeros(512, np.uint8), "awq")
