"""Layouts found by what packers do to code words.

Tests of: weights.discovery, weights.probing.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

import fastindex as fi

FOUND = [
    ("awq", (8, 16), 4, {}),
    ("awq", (8, 16), 8, {"packer": "vllm"}),
    ("awq_gemv_fast", (8, 128), 4, {}),
    ("gptq", (32, 8), 4, {}),
    ("marlin", (64, 128), 4, {}),
    ("marlin", (64, 128), 8, {"activation_bits": 8}),
    ("blocked_scales", (256, 6), 8, {}),
    ("blocked_scales", (300, 7), 8, {}),
    ("hopper_mx_scale", (512, 4), 8, {}),
    ("tinygemm", (16, 256), 4, {}),
    ("ggml_q4_0_repacked_body", (8, 64), 4, {}),
    ("cdna4_mx_scale", (16, 64), 8, {}),
    ("trtllm_gated_rows", (6, 5), 8, {}),
    # Codes that lie across words.
    ("gptq", (32, 8), 3, {}),
    ("gptq", (96, 5), 3, {}),
    ("pack_quantized", (37, 6), 5, {"packed_dim": 0}),
    ("pack_quantized", (5, 41), 3, {}),
    ("mlx", (3, 128), 6, {}),
    ("mlx", (3, 128), 5, {}),
    # The first code in the high half, and padding that is no whole row.
    ("bnb_nf4", (64,), 4, {}),
    ("bnb_nf4", (65,), 4, {}),
    ("bnb_nf4", (7, 64), 4, {}),
    ("bnb_nf4", (3, 5), 4, {}),
    # Bits of four codes in a half-word.
    ("hopper_mx_value", (64, 256), 4, {}),
    ("hopper_mx_value", (20, 130), 4, {}),
    ("hopper_mx_value", (64, 256), 4, {"mma_version": 2}),
    ("hopper_mx_value", (16, 64), 4, {"mma_version": 2}),
]


def in_bits(codes: Any, bits: int, stream: int | None) -> Any:
    """The bits of codes along a dimension, or behind all."""
    alone = codes[..., None] >> np.arange(bits, dtype=np.uint8) & 1
    if stream is None:
        return alone
    moved = np.moveaxis(alone, -1, stream + 1)
    return moved.reshape([size * (bits if d == stream else 1) for d, size in enumerate(codes.shape)])


def in_units(buffer: Any, order: tuple[int, ...]) -> bytes:
    """The bytes of a buffer, with the bits of each unit where they lie."""
    if not order:
        return bytes(buffer)
    bits = np.unpackbits(buffer, bitorder="little").reshape(-1, len(order))
    placed = np.empty_like(bits)
    placed[:, list(order)] = bits
    return np.packbits(placed, bitorder="little").tobytes()


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.parametrize(("name", "shape", "bits", "parameters"), FOUND)
def test_named_formats_are_found(name: str, shape: tuple[int, ...], bits: int, parameters: dict[str, Any]) -> None:
    def packer(codes: Any) -> Any:
        return fi.weights.repack(codes, "plain", name, shape=codes.shape, bits=bits, **parameters)

    found = fi.weights.discover(packer, shape, np.uint8, bits)
    assert found.reason is None
    assert found.flipped_bits == (8 if name.startswith("ggml") else 0)
    # The layout that was found writes the same bytes.
    split = fi.Shape.parse(str(found.layout))
    codes = np.random.default_rng(3).integers(0, 1 << bits, shape).astype(np.uint8)
    sizes = [int(np.prod(parts)) for parts in found.split]
    padded = np.zeros(sizes, np.uint8)
    elements = codes ^ found.flipped_bits
    if found.stream is not None or len(found.split) > len(shape):
        elements = in_bits(elements, bits, found.stream)
    padded[tuple(map(slice, elements.shape))] = elements
    dtype = split.element_type.numpy_dtype
    buffer = np.asarray(fi.pack(padded.astype(dtype).reshape(split.dimensions), split)).view(np.uint8)
    expected = packer(codes)
    got = np.frombuffer(in_units(buffer, found.unit_order), np.uint8)
    if name == "bnb_nf4" and codes.size % 2:
        # Its padding is no zero.
        got = got | np.uint8([0] * (got.size - 1) + [7])
    assert got[: expected.nbytes].tobytes() == expected.tobytes()
    assert fi.Shape.parse(str(found.layout)).nbytes >= expected.nbytes
    # A doubled row count may change what is outermost; a layout that holds for both sizes is named as such.
    assert found.confirmed in ((), (tuple(2 * size for size in shape),))


def pairs(codes: Any) -> Any:
    return codes[:, 0::2] | codes[:, 1::2] << 4


@pytest.mark.parametrize(
    ("packer", "layout", "backwards"),
    [
        # [gate; up] to [up; gate]; the rows of both in turn to [up; gate].
        (lambda codes: pairs(np.roll(codes, len(codes) // 2, 0)), "u4[2,4,64]{2,1,0:E(4)}", (0,)),
        (lambda codes: pairs(np.concatenate([codes[1::2], codes[0::2]])), "u4[4,2,64]{2,0,1:E(4)}", (1,)),
        (lambda codes: pairs(codes[::-1]), "u4[8,64]{1,0:E(4)}", (0,)),
        (lambda codes: pairs(codes[::-1].T), "u4[8,64]{0,1:E(4)}", (0,)),
        (lambda codes: pairs(codes[::-1, ::-1]), "u4[8,64]{1,0:E(4)}", (0, 1)),
        (
            lambda codes: pairs(codes.reshape(len(codes), -1, 16, 2)[:, :, ::-1].reshape(codes.shape)),
            "u4[8,2,16,2]{3,2,1,0:E(4)}",
            (2,),
        ),
    ],
)
def test_digits_that_run_backwards(packer: Any, layout: str, backwards: tuple[int, ...]) -> None:
    """They are moved as other digits are: at other sizes, to other formats and back, and loaded from a file."""
    found = fi.weights.discover(packer, (8, 64), np.uint8, bits=4)
    assert (found.layout, found.backwards, found.reason) == (layout, backwards, None)
    loaded = fi.weights.Discovery.from_json(json.loads(json.dumps(found.to_json())))
    for shape in ((8, 64), (24, 192), (40, 320)):
        codes = np.random.default_rng(shape).integers(0, 16, shape, dtype=np.uint8)
        expected = packer(codes).tobytes()
        packed = fi.weights.repack(codes, "plain", loaded)
        assert packed.tobytes() == expected
        assert np.array_equal(fi.weights.repack(packed, found, "plain", shape=shape), codes)
        words = fi.weights.repack(codes, "plain", "awq")
        assert fi.weights.repack(words, "awq", found, shape=shape).tobytes() == expected
        assert fi.weights.repack(packed, found, "awq", shape=shape).tobytes() == words.tobytes()


def test_digits_that_run_backwards_and_are_split() -> None:
    """The other format splits them elsewhere, or has such digits too; a file has them where none can be."""
    rolled = fi.weights.discover(lambda codes: np.roll(codes, len(codes) // 2, 0), (4, 64), np.uint8)
    codes = np.random.default_rng(0).integers(0, 256, (12, 64), dtype=np.uint8)
    packed = fi.weights.repack(codes, "plain", rolled)
    with pytest.raises(fi.UnsupportedError, match="tiles split an axis that runs backwards"):
        fi.weights.repack(packed, rolled, "gptq", shape=(12, 64), bits=8)
    columns = fi.weights.discover(lambda codes: np.roll(codes, codes.shape[1] // 2, 1), (4, 64), np.uint8)
    with pytest.raises(fi.UnsupportedError, match="the other format splits it at other places"):
        fi.weights.repack(codes[:, :12], columns, "awq", shape=(12, 12), bits=8, packer="vllm")
    with pytest.raises(fi.UnsupportedError, match="digits of both formats run backwards"):
        fi.weights.repack(packed, rolled, rolled, shape=(12, 64))
    for wrong in ([3], [0.5], "0"):
        with pytest.raises(fi.FastIndexError, match="backwards"):
            fi.weights.Discovery.from_json({**rolled.to_json(), "backwards": wrong})


def test_every_source_bit_is_said() -> None:
    found = fi.weights.discover(lambda codes: codes[:, 0::2] | codes[:, 1::2] << 4, (3, 4), np.uint8, 4)
    assert found.places.tolist() == list(range(48))
    assert found.padding == 0
    assert fi.weights.discover(lambda codes: np.pad(codes, ((0, 1), (0, 3))), (3, 5), np.uint8).padding == 8 * (
        4 * 8 - 15
    )


@pytest.mark.parametrize(
    ("packer", "words"),
    [
        (lambda codes: codes + 1, "not a bit of the input"),
        (lambda codes: codes & 0x7F, "bit 7 of the element at .* is lost"),
        (lambda codes: np.stack([codes, codes]), "2 times"),
        (lambda codes: codes[: 1 + codes[0, 0] % 2], "size of the result"),
        (lambda codes: codes ^ (codes >> 1), "not a bit of the input"),
        (lambda codes: codes.reshape(-1)[np.arange(16) ^ (np.arange(16) >> 2)], "swizzle|not the sum|not a sum"),
        (lambda codes: np.unpackbits(codes), "a digit of 8 in the bits of a code runs backwards"),
        (lambda codes: codes ^ np.uint8([[1, 0, 0, 0]]), "inverted, of others it is not"),
        # No code word has a code of 3.
        (lambda codes: np.where(codes == 3, 2, codes), "for all code words, and is not for other codes"),
        (lambda codes: codes.reshape(-1)[: 16 - (codes == 3).any()], "size of the result"),
    ],
)
def test_what_is_no_layout_is_disproved(packer: Any, words: str) -> None:
    found = fi.weights.discover(packer, (4, 4), np.uint8, bits=8)
    assert found.layout is None
    assert found.reason is not None
    assert re.search(words, found.reason), found.reason


def test_inputs_disprove_it() -> None:
    """A bit of the result would be one value more than any bit of the array has."""
    lost = fi.weights.discover(lambda codes: codes & 0x7F, (2, 2), np.uint8)
    assert [one.tolist() for one in lost.inputs] == [[[0, 0], [0, 0]], [[128, 0], [0, 0]]]
    shifted = fi.weights.discover(lambda codes: codes + 1, (2, 2), np.uint8)
    assert shifted.reason is not None
    byte, bit = (int(n) for n in re.findall(r"bit (\d) of byte (\d)", shifted.reason)[0][::-1])
    zeros, ones, one, other = ((given + 1).reshape(-1)[byte] >> bit & 1 for given in shifted.inputs)
    assert np.array_equal(shifted.inputs[0], ~shifted.inputs[1])
    assert np.array_equal(shifted.inputs[2], ~shifted.inputs[3])
    # A bit of the array, inverted or not, is different for a word and its complement; padding is the same for all.
    assert zeros == ones or one == other
    assert not zeros == ones == one == other
    remapped = fi.weights.discover(lambda codes: np.where(codes == 3, 2, codes), (4, 4), np.uint8)
    assert (remapped.inputs[0] == 3).any()


def gated(codes: Any) -> Any:
    return codes.reshape(2, codes.shape[0] // 2, -1).transpose(1, 0, 2)


@pytest.mark.parametrize(
    ("packer", "shape", "confirmed", "advice"),
    [
        (gated, (6, 5), ((12, 10),), None),
        (lambda codes: np.stack([np.packbits(codes >> b & 1) for b in range(8)]), (32,), ((64,),), None),
        (lambda codes: codes.reshape(-1, 4, 4).transpose(0, 2, 1), (4, 4), (), r"at \(8, 8\) it is u8\[4,2,2,4\]"),
        (lambda codes: codes.reshape(7, 11).T, (77,), (), r"rejects \(154,\) \(cannot reshape"),
        (lambda codes: codes[:8], (8,), (), r"at \(16,\) it is not a permutation of bits: bit 0 of .* is lost"),
        pytest.param(
            *(lambda codes: codes.T, (1 << 11, 1 << 10), (), "more than 16777216 bits"), marks=pytest.mark.sweep
        ),
    ],
)
def test_second_sizes(packer: Any, shape: tuple[int, ...], confirmed: Any, advice: str | None) -> None:
    found = fi.weights.discover(packer, shape, np.uint8)
    assert found.layout is not None
    assert found.confirmed == confirmed
    assert (found.advice is None) == (advice is None)
    assert advice is None or re.search(advice, str(found.advice)), found.advice


def test_second_sizes_beyond_the_limit_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastindex.weights.discovery.MOST_BITS", 1 << 12)
    found = fi.weights.discover(lambda codes: codes.T, (16, 32), np.uint8)
    assert (found.layout, found.confirmed) == ("u8[16,32]{0,1}", ())
    assert found.advice is not None
    assert re.search(r"\(32, 64\) has more than 4096 bits", found.advice), found.advice


def test_one_element_with_padding_behind() -> None:
    found = fi.weights.discover(lambda codes: np.pad(codes, ((0, 3), (0, 7))), (1, 1), np.uint8)
    assert (found.layout, found.padding) == ("u8[1,1]{0,1:L(32)}", 248)
    assert fi.Shape.parse(found.layout).nbytes == 32


def test_bytes_in_another_order() -> None:
    found = fi.weights.discover(lambda codes: codes, (2, 8), ">i2")
    assert found.layout == "u16[2,8]{1,0}"
    assert found.unit_order == (*range(8, 16), *range(8))


def test_errors_of_discover() -> None:
    with pytest.raises(fi.ArgumentTypeError, match="integers"):
        fi.weights.discover(lambda codes: codes, (4,), np.float32)
    with pytest.raises(fi.FastIndexError, match="from 1 to 8"):
        fi.weights.discover(lambda codes: codes, (4,), np.uint8, bits=9)
    with pytest.raises(fi.FastIndexError, match="has 0 bits"):
        fi.weights.discover(lambda codes: codes, (0, 4), np.uint8)
    with pytest.raises(fi.FastIndexError, match="give an array of 1 to"):
        fi.weights.discover(lambda codes: codes, (1 << 13, 1 << 13), np.uint8)
    with pytest.raises(fi.FastIndexError, match="none below 0"):
        fi.weights.discover(lambda codes: codes, (-4, 2), np.uint8)
    with pytest.raises(fi.ArgumentTypeError, match="sequence of sizes"):
        fi.weights.discover(lambda codes: codes, "48", np.uint8)  # type: ignore[arg-type]
    with pytest.raises(fi.ArgumentTypeError, match="this one returned NoneType"):
        fi.weights.discover(lambda codes: None, (4, 2), np.uint8)
