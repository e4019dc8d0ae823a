"""pack, unpack and relayout against the slow reference: every element type and feature, padding included."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given

import fastindex as fi
from tests.cases import strategies
from tests.oracles import reference
from tests.oracles.comparison import (
    array_of,
    differences_in_packing,
    differences_in_relayout,
    logical_array,
    random_elements,
    raw,
)
from tests.oracles.reference import ReferenceShape

TYPES = tuple(reference.VALUE_BITS)


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(600)[::100])])
def test_random_packing(first: int) -> None:
    for seed in range(first, first + 100):
        shape = strategies.random_shape(seed)
        assert differences_in_packing(shape, seed, threads=1 + seed % 2) == [], f"seed {seed}"


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(600)[::100])])
def test_random_relayouts(first: int) -> None:
    for seed in range(first, first + 100):
        source, destination = strategies.random_pair(seed)
        threads = 1 + seed % 2
        assert differences_in_relayout(source, destination, seed, threads=threads) == [], f"seed {seed}"


@given(strategies.shape_pairs())
@example(
    (
        reference.parse("f32[4,6]{1,0:T(2,3)(*,*,*,5)}"),
        reference.parse("f32[4,6]{0,1:PAD(5,7)PV(one)T(3)(2)}"),
    )
)
@example((reference.parse("u4[]{:E(4)}"), reference.parse("u4[]{:T(3)L(8)E(8)}")))
@example((reference.parse("f32[0,3]{0,1:PAD(2,3)}"), reference.parse("f32[0,3]{1,0:T(2,2)}")))
def test_any_pair(pair: tuple[ReferenceShape, ReferenceShape]) -> None:
    source, destination = pair
    assert differences_in_packing(source, 1) == []
    assert differences_in_relayout(source, destination, 2) == []


@pytest.mark.parametrize("element_type", [*strategies.rotating(TYPES)])
@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("[9,20]{1,0}", "[9,20]{0,1}"),
        ("[9,20]{1,0}", "[9,20]{1,0:T(4,8)}"),
        ("[9,20]{1,0:T(4,8)}", "[9,20]{1,0:T(8,4)(2,1)}"),
        ("[9,20]{1,0:T(4,8)(2,1)}", "[9,20]{0,1:T(3)(2)L(16)}"),
    ],
)
def test_every_element_type(element_type: str, source: str, destination: str) -> None:
    first, second = reference.parse(element_type + source), reference.parse(element_type + destination)
    assert differences_in_packing(first, 3) == []
    assert differences_in_packing(second, 4) == []
    assert differences_in_relayout(first, second, 5) == []
    assert differences_in_relayout(second, first, 6) == []


#: (element type, E): every packed width, the natural width, wider ones.
WIDTHS = [
    (name, bits)
    for name in ("pred", "s1", "u1", "s2", "u2", "s4", "u4", "f4e2m1fn", "u8", "bf16", "f32", "c64")
    for bits in (1, 2, 4, 8, 16, 24, 32, 64, 96)
    if bits >= reference.VALUE_BITS[name]
]


@pytest.mark.parametrize(("element_type", "bits"), [*strategies.rotating(WIDTHS)])
def test_element_sizes(element_type: str, bits: int) -> None:
    """``E`` at every width, alone, in tiles, with an odd number of slots, and against the unpacked layout."""
    for layout in ("[7,9]{{1,0:E({})}}", "[7,9]{{0,1:T(4,3)(2,1)E({})}}", "[63]{{0:L(5)E({})}}"):
        packed = reference.parse(element_type + layout.format(bits))
        unpacked = dataclasses.replace(packed, element_size_in_bits=0, tiles=(), tail_alignment=1)
        assert differences_in_packing(packed, bits) == []
        assert differences_in_relayout(packed, unpacked, bits) == []
        assert differences_in_relayout(unpacked, packed, bits) == []


# Padding


PADDING_VALUES = [
    (element_type, value)
    for element_type in TYPES
    for value in ("zero", "one", "lowest", "highest")
    # Complex numbers have no order.
    if not (element_type in ("c64", "c128") and value in ("lowest", "highest"))
]


@pytest.mark.parametrize(("element_type", "value"), [*strategies.rotating(PADDING_VALUES)])
def test_padding_values(element_type: str, value: str) -> None:
    text = f"{element_type}[3,5]{{1,0:PAD(4,5)PV({value})T(2,2)L(7)}}".replace("PV(zero)", "")
    shape = reference.parse(text)
    assert differences_in_packing(shape, 8) == []
    assert differences_in_relayout(reference.parse(f"{element_type}[3,5]{{0,1}}"), shape, 9) == []


FILLS = [
    ("f32", 2.5, 0x40200000),
    ("f32", float("-inf"), 0xFF800000),
    ("bf16", 1.0, 0x3F80),
    ("s8", -3, 0xFD),
    ("u8", 255, 0xFF),
    ("s4", -8, 0x8),
    ("u2", 3, 0x3),
    ("pred", True, 0x1),
    ("s64", -(2**63), 1 << 63),
    ("u64", 2**64 - 1, (1 << 64) - 1),
    ("f4e2m1fn", -6.0, 0xF),
    ("f64", np.float64(1.0), 0x3FF0000000000000),
]


@pytest.mark.parametrize(("element_type", "fill", "pattern"), FILLS)
def test_fill_goes_into_every_padding_slot(element_type: str, fill: Any, pattern: int) -> None:
    """`fill` overrides the padding value of the layout."""
    text = f"{element_type}[3,5]{{1,0:PAD(4,6)PV(one)T(2,4)L(7)}}"
    shape = reference.parse(text)
    elements = random_elements(shape, 1)
    expected = reference.pack(shape, elements, fill=pattern)
    assert raw(fi.pack(logical_array(shape, elements), text, fill=fill)) == expected
    plain = reference.parse(f"{element_type}[3,5]{{0,1}}")
    moved = fi.relayout(reference.pack(plain, elements), str(plain), text, fill=fill)
    assert raw(moved) == expected


@pytest.mark.parametrize("element_type", ["s4", "u4", "s2", "u2", "s1", "u1", "f4e2m1fn"])
def test_only_the_low_bits_of_a_fill_reach_packed_slots(element_type: str) -> None:
    """A value that ml_dtypes holds in a byte may have anything above its bits; equal values give equal buffers."""
    bits = reference.VALUE_BITS[element_type]
    dtype = fi.Shape.parse(f"{element_type}[1]").element_type.numpy_dtype
    fill = np.array(0xF9, np.uint8).view(dtype)
    source, destination = f"{element_type}[4,8]{{1,0:E({bits})}}", f"{element_type}[4,8]{{1,0:T(3,16)E({bits})}}"
    shape = reference.parse(destination)
    elements = random_elements(shape, 2)
    expected = reference.pack(shape, elements, fill=0xF9 & (1 << bits) - 1)
    assert raw(fi.pack(logical_array(shape, elements), destination, fill)) == expected
    buffer = reference.pack(reference.parse(source), elements)
    assert raw(fi.relayout(buffer, source, destination, fill)) == expected
    plain = f"{element_type}[4,8]"
    buffer = reference.pack(reference.parse(plain), elements)
    assert raw(fi.relayout(buffer, plain, destination, fill)) == expected


def test_padding_of_the_source_is_never_copied() -> None:
    source, destination = "f32[3,5]{1,0:T(2,2)}", "f32[3,5]{1,0:T(4,4)}"
    buffer = fi.pack(np.zeros((3, 5), np.float32), source, fill=9.0)
    assert (buffer == 9).any()
    assert not fi.relayout(buffer, source, destination).any()


def test_a_buffer_of_padding_only() -> None:
    buffer = fi.pack(np.empty((0, 3), np.float32), "f32[0,3]{1,0:PAD(2,3)L(8)}", fill=4.0)
    assert buffer.tolist() == [4.0] * 8
    assert fi.unpack(buffer, "f32[0,3]{1,0:PAD(2,3)L(8)}").shape == (0, 3)


# Arrays and buffers of every kind

TILED = "f32[6,10]{0,1:T(4,3)(2,*,2)}"
VALUES = np.arange(60, dtype=np.float32).reshape(6, 10)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a,
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
        lambda a: np.pad(a, ((1, 2), (3, 4)))[1:-2, 3:-4],
        lambda a: np.frombuffer(b"\0" + a.tobytes(), np.float32, offset=1).reshape(a.shape),
        lambda a: np.frombuffer(a.tobytes(), np.float32).reshape(a.shape),
    ],
    ids=["contiguous", "transposed", "every other", "backwards", "with a gap", "misaligned", "read-only"],
)
def test_arrays_in_every_memory_order(change: Any) -> None:
    np.testing.assert_array_equal(fi.pack(change(VALUES), TILED), fi.pack(VALUES, TILED))


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b,
        lambda b: b.tobytes(),
        lambda b: bytearray(b.tobytes()),
        lambda b: memoryview(b.tobytes()),
        lambda b: b.view(np.uint8),
        lambda b: np.repeat(b, 2)[::2],
        lambda b: np.frombuffer(b"\0" + b.tobytes(), np.float32, offset=1),
    ],
    ids=["array", "bytes", "bytearray", "memoryview", "uint8", "every other", "misaligned"],
)
def test_buffers_of_every_kind(change: Any) -> None:
    buffer = fi.pack(VALUES, TILED)
    np.testing.assert_array_equal(fi.unpack(change(buffer), TILED), VALUES)
    moved = fi.relayout(change(buffer), TILED, "f32[6,10]")
    np.testing.assert_array_equal(moved, VALUES.ravel())


def test_results_are_new_writable_and_of_the_right_kind() -> None:
    plain = "f32[6,10]"
    packed = fi.pack(VALUES, plain)
    assert packed.ndim == 1
    assert packed.dtype == np.float32
    assert packed.flags.writeable
    assert not np.shares_memory(packed, VALUES)
    assert fi.unpack(packed, plain).flags.writeable
    assert not np.shares_memory(fi.relayout(packed, plain, plain), packed)
    assert (
        fi.pack(np.zeros(3, "i1").astype(fi.Shape("s4", ()).element_type.numpy_dtype), "s4[3]{0:E(4)}").dtype
        == np.uint8
    )


# Plans


@pytest.mark.parametrize(
    ("source", "destination", "expected"),
    [
        ("f32[6,10]", "f32[6,10]{1,0}", True),
        ("f32[6,10]{1,0:T(8,128)}", "f32[6,10]{1,0:T(8,128)}", True),
        ("f32[1,10]{1,0}", "f32[1,10]{0,1}", True),
        ("f32[8,128]{1,0}", "f32[8,128]{1,0:T(8,128)}", True),
        ("f32[16,128]{1,0}", "f32[16,128]{1,0:T(8,128)}", True),
        ("f32[6,10]{1,0}", "f32[6,10]{0,1}", False),
        ("f32[6,10]{1,0}", "f32[6,10]{1,0:T(8,128)}", False),
        ("f32[16,256]{1,0}", "f32[16,256]{1,0:T(8,128)}", False),
        ("u4[6,10]{1,0}", "u4[6,10]{1,0:E(4)}", False),
        ("f32[6,10]{1,0}", "f32[6,10]{1,0:L(64)}", False),
    ],
)
def test_what_is_a_bitcast(source: str, destination: str, expected: bool) -> None:
    assert fi.plan_relayout(source, destination).is_bitcast is expected
    assert differences_in_relayout(reference.parse(source), reference.parse(destination), 4) == []


@pytest.mark.parametrize("first", strategies.seeds(200)[::100])
def test_a_bitcast_moves_nothing(first: int) -> None:
    """Where a plan says bitcast, source and destination hold every element at the same place."""
    for seed in range(first, first + 100):
        source, destination = strategies.random_pair(seed)
        if fi.plan_relayout(str(source), str(destination)).is_bitcast:
            assert reference.nbytes(source) == reference.nbytes(destination), f"seed {seed}"
            assert reference.linear_indices(source) == reference.linear_indices(destination), f"seed {seed}"


# More than a block, more than a thread

LARGE_PAIRS = [
    ("f32[1031,517]{1,0}", "f32[1031,517]{0,1}"),
    ("u8[1031,517]{1,0}", "u8[1031,517]{0,1}"),
    ("bf16[1031,517]{1,0}", "bf16[1031,517]{1,0:T(8,128)(2,1)}"),
    ("bf16[1031,517]{1,0:T(8,128)(2,1)}", "bf16[1031,517]{1,0:T(16,128)(2,1)}"),
    ("s8[1031,517]{1,0:T(8,128)(4,1)}", "s8[1031,517]{1,0}"),
    ("f64[67,31,129]{2,1,0}", "f64[67,31,129]{0,1,2}"),
    ("c128[67,31,29]{2,1,0}", "c128[67,31,29]{1,0,2}"),
    ("f32[7,37,19,23]{3,2,1,0}", "f32[7,37,19,23]{1,3,2,0}"),
    ("f32[7,37,19,23]{3,2,1,0}", "f32[7,37,19,23]{3,2,1,0:T(16,1,1)}"),
    ("s4[1031,517]{1,0:E(4)}", "s4[1031,517]{1,0:T(8,128)}"),
    ("f32[301,517]{1,0:T(3)(2)}", "f32[301,517]{0,1:T(7,5)(2,3)}"),
]


def unpacked_slots(buffer: bytes, shape: fi.Shape) -> Any:
    """One opaque number for each slot of a buffer."""
    bits = shape.element_bits
    data = np.frombuffer(buffer, np.uint8)
    if bits >= 8:
        return data.view(np.dtype((np.void, bits // 8)))
    parts = [(data >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=1).reshape(-1)[: shape.slot_count].view(np.dtype((np.void, 1)))


def packed_slots(slots: Any, shape: fi.Shape) -> bytes:
    """The inverse of `unpacked_slots`."""
    bits = shape.element_bits
    if bits >= 8:
        return bytes(slots.tobytes())
    per_byte = 8 // bits
    padded = np.zeros(-(-len(slots) // per_byte) * per_byte, np.uint8)
    padded[: len(slots)] = slots.view(np.uint8)
    parts = padded.reshape(-1, per_byte) << np.arange(0, 8, bits, dtype=np.uint8)
    return bytes(np.bitwise_or.reduce(parts, axis=1).astype(np.uint8).tobytes())


def by_index(buffer: bytes, source: str, destination: str) -> bytes:
    """A relayout by NumPy's fancy indexing, on slots that `test_indexing` has checked."""
    first, second = fi.Shape.parse(source), fi.Shape.parse(destination)
    indices = np.indices(first.dimensions).reshape(first.rank, -1)
    elements = unpacked_slots(buffer, first)[fi.linear_index(first, indices)]
    moved = np.zeros(second.slot_count, elements.dtype)
    moved[fi.linear_index(second, indices)] = elements
    return packed_slots(moved, second)


def random_buffer(shape: fi.Shape, seed: int) -> bytes:
    """Random bytes; small types keep to the bits they have."""
    data = np.random.default_rng(seed).integers(0, 256, shape.nbytes, np.uint8)
    if shape.element_bits == 8:
        data &= (1 << shape.element_type.bits) - 1
    return bytes(data.tobytes())


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(450)[::50])])
def test_random_relayouts_of_medium_arrays(first: int) -> None:
    """Arrays large enough for every kernel and every remainder, against fancy indexing."""
    for seed in range(first, first + 50):
        source, destination = map(str, strategies.medium_pair(seed))
        buffer = random_buffer(fi.Shape.parse(source), seed)
        expected = by_index(buffer, source, destination)
        moved = fi.relayout(buffer, source, destination, threads=1 + seed % 2)
        assert raw(moved) == expected, f"seed {seed}: {source} to {destination}"


@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(120)[::10])])
def test_random_relayouts_past_the_cache(first: int) -> None:
    """The same where the destination is large enough for non-temporal stores."""
    for seed in range(first, first + 10):
        source, destination = map(str, strategies.medium_pair(seed, 2_500_000))
        if fi.Shape.parse(source).nbytes + fi.Shape.parse(destination).nbytes > 1 << 26:
            continue
        buffer = random_buffer(fi.Shape.parse(source), seed)
        moved = fi.relayout(buffer, source, destination, threads=1 + seed % 2)
        assert raw(moved) == by_index(buffer, source, destination), f"seed {seed}: {source} to {destination}"


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("first", strategies.seeds(200)[::50])
def test_random_packing_of_medium_arrays(first: int) -> None:
    for seed in range(first, first + 50):
        _, layout = strategies.medium_pair(seed)
        shape = fi.Shape.parse(str(layout))
        plain = fi.Shape(shape.element_type, shape.dimensions)
        buffer = random_buffer(plain, seed)
        array = np.frombuffer(buffer, shape.element_type.numpy_dtype).reshape(shape.dimensions)
        packed = fi.pack(array, shape, threads=1 + seed % 2)
        assert raw(packed) == by_index(buffer, str(plain), str(shape)), f"seed {seed}: {shape}"
        assert raw(fi.unpack(packed, shape)) == buffer, f"seed {seed}: {shape}"


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("source", "destination"), LARGE_PAIRS)
def test_large_arrays(source: str, destination: str, threads: int) -> None:
    buffer = random_buffer(fi.Shape.parse(source), 1)
    moved = fi.relayout(buffer, source, destination, threads=threads)
    assert raw(moved) == by_index(buffer, source, destination)
    array = fi.unpack(buffer, source, threads=threads)
    assert raw(fi.pack(array, destination, threads=threads)) == raw(moved)


@pytest.mark.in_turn(seconds=0.3)
@pytest.mark.parametrize("offset", [0, 3, 16, 60])
@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("f32[3001,1031]{1,0}", "f32[3001,1031]{0,1}"),
        ("u8[3001,4099]{1,0}", "u8[3001,4099]{0,1}"),
        ("bf16[3001,2053]{1,0}", "bf16[3001,2053]{1,0:T(8,128)(2,1)}"),
        ("s8[3001,4099]{1,0:T(8,128)(4,1)}", "s8[3001,4099]{1,0}"),
        ("c128[1021,1031]{1,0}", "c128[1021,1031]{0,1}"),
        ("f64[127,131,129]{2,1,0}", "f64[127,131,129]{0,1,2}"),
    ],
)
def test_misaligned_buffers_past_the_cache(source: str, destination: str, offset: int) -> None:
    """Non-temporal stores want whole aligned lines; what is around the buffer stays as it was all the same."""
    first, second = fi.Shape.parse(source), fi.Shape.parse(destination)
    buffer = random_buffer(first, 1)
    given = np.frombuffer(bytes(offset) + buffer, np.uint8, offset=offset)
    guarded = np.full(second.nbytes + 256, 0xA5, np.uint8)
    begin = -guarded.ctypes.data % 64 + 64 + offset
    dtype = second.element_type.numpy_dtype
    fi.relayout(given, source, destination, out=np.frombuffer(guarded.data, dtype, second.slot_count, begin), threads=2)
    assert guarded[begin : begin + second.nbytes].tobytes() == by_index(buffer, source, destination)
    assert (guarded[:begin] == 0xA5).all()
    assert (guarded[begin + second.nbytes :] == 0xA5).all()


# The comparison itself can fail


class Spoiled:
    """The package, but one byte of every result is flipped."""

    Shape = fi.Shape

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            result = getattr(fi, name)(*arguments, **options)
            data = bytearray(raw(result))
            data[-1] ^= 1
            return np.frombuffer(data, result.dtype).reshape(result.shape)

        return call


@pytest.mark.parametrize("text", ["f32[5,7]{0,1:T(2,3)(2)}", "u4[5,7]{0,1:T(2,3)(2)E(4)}", "pred[9]"])
def test_one_wrong_bit_shows(text: str) -> None:
    shape = reference.parse(text)
    found = differences_in_packing(shape, 1, Spoiled())
    assert any(line.startswith("pack") for line in found)
    assert any(line.startswith("unpack") for line in found)
    assert differences_in_relayout(shape, shape, 1, Spoiled()) != []


def test_wrong_padding_shows() -> None:
    """Planted: padding is filled with one where zero is asked for."""

    class OnesForZeros:
        pack = staticmethod(lambda *a, **o: fi.pack(*a, **o, fill=1))
        unpack = staticmethod(fi.unpack)
        relayout = staticmethod(lambda *a, **o: fi.relayout(*a, **o, fill=1))

    shape = reference.parse("f32[5,7]{0,1:T(2,3)(2)}")
    assert differences_in_packing(shape, 1, OnesForZeros()) != []
    assert differences_in_relayout(reference.parse("f32[5,7]"), shape, 1, OnesForZeros()) != []


def test_array_of_gives_the_bits() -> None:
    assert array_of("f32", (1,), [reference.float32_pattern(2.5)])[0] == 2.5
