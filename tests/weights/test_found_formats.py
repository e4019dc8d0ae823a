"""Discovered formats used as formats: packed and unpacked as the packer does, at other sizes, from JSON and rules.

Tests of: weights.found_formats, weights.gathers.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from fastindex.weights.gathers import GatherPlan
from tests.cases import strategies
from tests.commands import run_command
from tests.weights.test_discovery import FOUND

Codes = NDArray[Any]
Packer = Callable[[Codes], Codes]


def random_codes(shape: tuple[int, ...], bits: int, seed: int = 0) -> Codes:
    kind = np.dtype(f"u{max(bits // 8, 1)}")
    return np.random.default_rng([seed, bits, *shape]).integers(0, 1 << bits, shape, dtype=np.uint64).astype(kind)


def check_both_ways(found: Any, packer: Packer, shape: tuple[int, ...], bits: int) -> None:
    codes = random_codes(shape, bits)
    expected = np.ascontiguousarray(packer(codes)).reshape(-1).view(np.uint8)
    packed = fi.weights.repack(codes, "plain", found)
    assert np.array_equal(packed, expected)
    assert np.array_equal(fi.weights.repack(expected, found, "plain", shape=shape), codes)
    out = np.empty_like(codes)
    assert fi.weights.repack(expected, found, "plain", shape=shape, out=out) is out
    assert np.array_equal(out, codes)


def loaded(found: Any) -> Any:
    return fi.weights.Discovery.from_json(json.loads(json.dumps(found.to_json())))


@pytest.mark.in_turn(seconds=0.1)
@pytest.mark.parametrize(("name", "shape", "bits", "parameters"), FOUND)
def test_named_formats_as_discovered(name: str, shape: tuple[int, ...], bits: int, parameters: dict[str, Any]) -> None:
    def packer(codes: Codes) -> Codes:
        packed: Codes = fi.weights.repack(codes, "plain", name, shape=codes.shape, bits=bits, **parameters)
        return packed

    found = fi.weights.discover(packer, shape, np.uint8, bits)
    if found.has_ones:
        codes = random_codes(shape, bits)
        assert np.array_equal(fi.weights.repack(packer(codes), found, "plain"), codes)
        with pytest.raises(fi.UnsupportedError, match="ones in its padding"):
            fi.weights.repack(codes, "plain", found)
        return
    for one in (found, loaded(found)):
        check_both_ways(one, packer, shape, bits)
        if one.grows:
            # A stream that ends within a word is whole words at 32 times its size.
            factor = 32 if math.prod(shape) * bits < math.prod(map(math.prod, one.split)) else 3
            check_both_ways(one, packer, tuple(factor * size for size in shape), bits)
        else:
            with pytest.raises(fi.FastIndexError, match=r"the discovered format was found at .* discover it at"):
                fi.weights.repack(random_codes((*shape[:-1], 7 * shape[-1]), bits), "plain", one)
    codes = random_codes(shape, bits)
    assert np.array_equal(found.plan()(codes), packer(codes))
    assert np.array_equal(found.plan().inverse(packer(codes)), codes)
    # To and from the format itself, nothing changes its place.
    packed = packer(codes)
    if found.flipped_bits == 0 and (name != "bnb_nf4" or len(shape) == 1):
        kept = fi.weights.repack(packed, found, name, shape=shape, bits=bits, **parameters)
        assert np.array_equal(kept, packed)
        assert np.array_equal(fi.weights.repack(packed, name, found, shape=shape, bits=bits, **parameters), packed)


class RandomPacker:
    """A random order of random digits of two dimensions, at any sizes that have its blocks."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.bits = rng.choice([1, 2, 4, 8, 8, 16, 32])
        self.blocks = [[rng.choice([2, 3, 4, 5]) for _ in range(rng.randint(0, 2))] for _ in range(rng.choice([1, 2]))]
        # The part that grows is anywhere in its dimension: {0} is the place of the rest.
        self.grows = [rng.randint(0, len(blocks)) for blocks in self.blocks]
        count = sum(len(blocks) + 1 for blocks in self.blocks)
        self.order = rng.sample(range(count), count)
        self.mask = rng.choice([0, 0, rng.randrange(1 << self.bits)])
        self.pitch = rng.choice([0, 0, 0, 8])
        self.multiples = [math.prod(blocks) for blocks in self.blocks]

    def shape(self, rng: random.Random) -> tuple[int, ...]:
        sizes = [multiple * rng.randint(2, 4) for multiple in self.multiples]
        if math.prod(sizes) * self.bits % 8:
            sizes[0] *= 8
        return tuple(sizes)

    def __call__(self, codes: Codes) -> Codes:
        parts: list[int] = []
        for size, blocks, at in zip(codes.shape, self.blocks, self.grows, strict=True):
            parts += [*blocks[:at], size // math.prod(blocks), *blocks[at:]]
        moved = np.ascontiguousarray((codes ^ codes.dtype.type(self.mask)).reshape(parts).transpose(self.order))
        if self.bits < 8:
            each = np.unpackbits(moved.reshape(-1, 1), axis=1, bitorder="little")[:, : self.bits]
            moved = np.packbits(each.reshape(-1), bitorder="little")
        return moved.reshape(-1)


@pytest.mark.parametrize("seed", strategies.seeds(60))
def test_random_orders_of_digits(seed: int) -> None:
    packer, rng = RandomPacker(seed), random.Random(seed)
    shape = packer.shape(rng)
    found = fi.weights.discover(packer, shape, f"u{max(packer.bits // 8, 1)}", packer.bits)
    assert found.layout is not None, found.reason
    assert found.flipped_bits == packer.mask
    for one in (found, loaded(found)):
        check_both_ways(one, packer, shape, packer.bits)
        if found.grows:
            for _ in range(3):
                check_both_ways(one, packer, packer.shape(rng), packer.bits)
    # A batch is one array after the other.
    codes = random_codes((3, *shape), packer.bits)
    if len(shape) > 1:
        expected = np.concatenate([packer(one).view(np.uint8) for one in codes])
        assert np.array_equal(fi.weights.repack(codes, "plain", found), expected)
        assert np.array_equal(fi.weights.repack(expected, found, "plain", shape=codes.shape), codes)
    assert np.array_equal(found.plan()(codes), np.concatenate([packer(one).view(np.uint8) for one in codes]))


@pytest.mark.parametrize("seed", strategies.seeds(40))
def test_random_permutations(seed: int) -> None:
    """Permutations of elements, codes or bits, with padding, go by a table."""
    rng = np.random.default_rng(seed)
    bits = int(rng.choice([1, 2, 3, 4, 5, 8, 16, 32, 64]))
    width = int(rng.choice([one for one in (1, 2, 4, 8, 16, 32, 64) if bits % one == 0]))
    shape = (int(rng.integers(3, 9)), 8)
    units = math.prod(shape) * bits // width
    places = np.concatenate([rng.permutation(units), np.full(int(rng.integers(0, 3)) * 64 // width, -1)])
    rng.shuffle(places)
    places = np.concatenate([places, np.full(-len(places) * width % 8 // width, -1)])
    mask = int(rng.integers(0, 1 << min(bits, 62))) * int(rng.integers(0, 2))

    def packer(codes: Codes) -> Codes:
        flipped = (codes ^ codes.dtype.type(mask)).reshape(-1, 1)
        each = np.unpackbits(flipped.view(np.uint8), axis=1, bitorder="little")[:, :bits].reshape(-1, width)
        moved = np.where(places[:, None] < 0, 0, each[np.maximum(places, 0)])
        return np.packbits(moved.astype(np.uint8).reshape(-1), bitorder="little")

    found = fi.weights.discover(packer, shape, f"u{max(bits // 8, 1)}", bits)
    assert found.layout is None
    assert found.reason is not None
    assert found.flipped_bits == mask
    for one in (found, loaded(found)):
        check_both_ways(one, packer, shape, bits)
        codes = random_codes((2, *shape), bits)
        expected = np.concatenate([packer(codes[0]), packer(codes[1])])
        assert np.array_equal(fi.weights.repack(codes, "plain", one), expected)
        assert np.array_equal(fi.weights.repack(expected, one, "plain", shape=codes.shape), codes)
        assert isinstance(one.plan(), GatherPlan)
        assert one.plan().unit_bits >= (width if width in (bits, 8, 16, 32, 64) else 1)


def high_first(codes: Codes) -> Codes:
    return codes[..., 0::2] << 4 | codes[..., 1::2]


def swizzled(codes: Codes) -> Codes:
    rows, columns = np.indices(codes.shape)
    return codes[rows, columns ^ rows % 4]


PAIRS = fi.weights.discover(high_first, (4, 8), np.uint8, 4)
BLOCKS = fi.weights.discover(lambda c: c.reshape(len(c), -1, 32).swapaxes(0, 1), (4, 64), np.uint8)
SWIZZLE = fi.weights.discover(swizzled, (8, 16), np.uint8)


def test_signs() -> None:
    """A packer of all bits of a signed type takes values, which are codes plus an offset for named formats."""
    values = np.arange(-128, 128, dtype=np.int8).reshape(16, 16)
    kept = fi.weights.discover(lambda codes: codes.T, (4, 8), np.int8)
    offset = fi.weights.discover(lambda codes: (codes.view(np.uint8) ^ 128).T, (4, 8), np.int8)
    inverted = fi.weights.discover(lambda codes: (codes ^ 0x83).T, (4, 8), np.uint8)
    for found, stored in ((kept, values.T), (offset, values.view(np.uint8).T ^ 128)):
        packed = fi.weights.repack(values, "plain", found)
        assert packed.tobytes() == stored.tobytes()
        back = fi.weights.repack(packed, found, "plain", shape=(16, 16), out=np.empty_like(values))
        assert np.array_equal(back, values)
        words = fi.weights.repack(values, "plain", "pack_quantized", bits=8)
        assert np.array_equal(fi.weights.repack(packed, found, "pack_quantized", shape=(16, 16)), words)
        assert np.array_equal(fi.weights.repack(words, "pack_quantized", found, shape=(16, 16), bits=8), packed)
    codes = values.view(np.uint8)
    packed = fi.weights.repack(codes, "plain", inverted)
    assert packed.tobytes() == (codes ^ 0x83).T.tobytes()
    words = fi.weights.repack(codes, "plain", "pack_quantized", bits=8)
    assert np.array_equal(fi.weights.repack(packed, inverted, "pack_quantized", shape=(16, 16)), words)
    assert np.array_equal(fi.weights.repack(words, "pack_quantized", inverted, shape=(16, 16), bits=8), packed)
    # The low bits of a signed type may be codes or values: named formats cannot tell.
    low = fi.weights.discover(lambda codes: codes[:, 0::2] & 15 | codes[:, 1::2] << 4, (4, 8), np.int8, 4)
    small = codes[:, :8] & 15
    assert np.array_equal(
        fi.weights.repack(small.view(np.int8), "plain", low), (small[:, 0::2] | small[:, 1::2] << 4).ravel()
    )
    with pytest.raises(fi.FastIndexError, match="have no one value there"):
        fi.weights.repack(small, low, "awq", shape=(8, 16))


def test_two_discovered_formats() -> None:
    """Directly from one to the other, streams of bits included."""
    codes = random_codes((64, 32), 3)
    names = [("gptq", (32, 32)), ("mlx", (4, 64)), ("pack_quantized", (32, 64))]
    found = {
        name: fi.weights.discover(lambda c, name=name: fi.weights.repack(c, "plain", name, bits=3), shape, np.uint8, 3)
        for name, shape in names
    }
    assert found["gptq"].stream == 0
    for one in found.values():
        packed = fi.weights.repack(codes, "plain", one)
        for other in found.values():
            moved = fi.weights.repack(packed, one, other, shape=(64, 32))
            assert np.array_equal(moved, fi.weights.repack(codes, "plain", other))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: fi.weights.repack(np.zeros((4, 48), np.uint8), "plain", BLOCKS), "dimension 1 in multiples of 32"),
        (lambda: fi.weights.repack(np.zeros(8, np.uint8), "plain", PAIRS, shape=(8,)), "is of 2 dimensions such as"),
        (lambda: fi.weights.repack(np.zeros((4, 8), np.uint8), "plain", PAIRS, bits=8), "has 4 bits, got bits=8"),
        (lambda: fi.weights.repack(np.full((4, 8), 16, np.uint8), "plain", PAIRS), r"from 0 to 15 .* \(0, 0\) is 16"),
        (lambda: fi.weights.repack(np.zeros(15, np.uint8), PAIRS, "plain"), "takes 16 bytes, the buffer has 15"),
        (lambda: fi.weights.repack(np.zeros((4, 8), np.uint8), "plain", PAIRS, packer="x"), "has a parameter packer"),
        (lambda: fi.weights.repack(np.zeros((8, 20), np.uint8), "plain", SWIZZLE), r"discover it at \(8, 20\)"),
        (lambda: fi.weights.repack(np.zeros(127, np.uint8), SWIZZLE, "plain"), "takes 128 bytes, the buffer has 127"),
        (lambda: fi.weights.repack(np.zeros(128, np.uint8), SWIZZLE, PAIRS), "from and to 'plain' only"),
        (lambda: fi.weights.repack(np.zeros((8, 16), np.uint8), "plain", SWIZZLE, bits=4), "has 8 bits and no"),
        (lambda: SWIZZLE.plan()(np.zeros((8, 16), np.uint16)), "got dtype uint16"),
        (lambda: SWIZZLE.plan()(np.zeros((8, 15), np.uint8)), "or a batch of these"),
        (lambda: SWIZZLE.plan().inverse(bytes(127)), "has 128 bytes, the buffer 127"),
        (lambda: SWIZZLE.plan()(np.zeros((8, 16), np.uint8), out=np.zeros(5, np.uint8)), "out must have 128 bytes"),
        (lambda: fi.weights.repack(np.zeros(4, np.uint8), "plain", fi.weights.Discovery(reason="it adds")), "it adds"),
        (lambda: fi.weights.discover(lambda c: c + 1, (2, 2), np.uint8).plan(), "is not moved"),
        (lambda: fi.weights.repack(np.zeros(4, np.uint8), "plain", 3), "by its name, got 3"),
    ],
)
def test_messages(call: Callable[[], Any], reason: str) -> None:
    with pytest.raises(fi.FastIndexError, match=reason):
        call()


def test_unconfirmed_layouts_are_for_their_own_sizes() -> None:
    def packer(codes: Codes) -> Codes:
        if codes.shape[0] != 4:
            raise ValueError("4 rows")
        return codes.T

    found = fi.weights.discover(packer, (4, 8), np.uint8)
    assert found.layout is not None
    codes = random_codes((4, 8), 8)
    assert fi.weights.repack(codes, "plain", found).tobytes() == codes.T.tobytes()
    with pytest.raises(
        fi.FastIndexError, match=r"found at \(4, 8\), and how it grows is not known, .* discover it at \(8, 8\)"
    ):
        fi.weights.repack(random_codes((8, 8), 8), "plain", found)


def hostile(rng: random.Random, value: Any) -> Any:
    """A value as a damaged or malicious file may have it."""
    other = [None, True, -1, 0, 1 << 70, 1.5, "", "u4[9]{0}", [], {}, [[]], [1 << 62] * 3, float("inf"), "x" * 500]
    if isinstance(value, list) and value and rng.random() < 0.6:
        changed = list(value)
        changed[rng.randrange(len(value))] = rng.choice([*other, -2, 1, 3, 7])
        return changed
    if isinstance(value, str) and value and rng.random() < 0.5:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice("0123456789,[]{}:TEPADL()*") + value[at + 1 :]
    return rng.choice(other)


@pytest.mark.parametrize("seed", strategies.seeds(200))
def test_damaged_json(seed: int) -> None:
    """An error, or a discovery that moves codes there and back."""
    rng = random.Random(seed)
    whole = rng.choice([PAIRS, SWIZZLE, BITS]).to_json()
    for _ in range(rng.randint(1, 2)):
        key = rng.choice(sorted(whole))
        whole = {**whole, key: hostile(rng, whole[key])} if rng.random() < 0.9 else dict(list(whole.items())[1:])
    try:
        found = fi.weights.Discovery.from_json(whole)
        codes = random_codes(found.shape, found.bits)
        packed = fi.weights.repack(codes.astype(found.dtype[-6:] if found.bits > 8 else np.uint8), "plain", found)
        assert np.array_equal(fi.weights.repack(packed, found, "plain", shape=found.shape), codes)
    except fi.FastIndexError as error:
        assert len(str(error)) < 1000  # noqa: PT017


BITS = fi.weights.discover(lambda c: fi.weights.repack(c, "plain", "gptq", bits=3), (32, 4), np.uint8, 3)


@pytest.mark.parametrize("given", [None, 3, "x", [], {}, {"layout": 3}, {"layout": None}, {"shape": [4]}])
def test_json_that_is_no_discovery(given: Any) -> None:
    with pytest.raises(fi.FastIndexError, match=r"to_json|must be a mapping"):
        fi.weights.Discovery.from_json(given)


def test_rules(tmp_path: Path) -> None:
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    codes = random_codes((64, 32), 4)
    source = tmp_path / "model.safetensors"
    safetensors_numpy.save_file({"a.weight": codes, "b.weight": fi.weights.repack(codes, "plain", "awq")}, source)
    formats = {"high_first": PAIRS.to_json()}
    rules = {
        "formats": formats,
        "rules": [
            {"names": "a.*", "format": {"from": "plain", "to": "high_first"}},
            {"names": "b.*", "format": {"from": "awq", "to": "high_first", "shape": [64, 32]}},
        ],
    }
    path = tmp_path / "rules.json"
    path.write_text(json.dumps(rules))
    expected = high_first(codes).tobytes()
    packed = fi.weights.pack_checkpoint(source, tmp_path / "out", rules)
    assert packed["a.weight"].tobytes() == packed["b.weight"].tobytes() == expected
    packed.unpack(tmp_path / "back.safetensors")
    back = safetensors_numpy.load_file(tmp_path / "back.safetensors")
    assert np.array_equal(back["a.weight"], codes)
    assert np.array_equal(back["b.weight"], fi.weights.repack(codes, "plain", "awq"))
    result = run_command(["pack", str(source), str(tmp_path / "again"), "--rules", str(path)])
    assert result.exit_code == 0, result.output
    assert fi.weights.open_checkpoint(tmp_path / "again")["a.weight"].tobytes() == expected
    rules["rules"] = [
        {"names": "a.weight", "name": "c", "format": {"from": "plain", "to": "high_first"}},
        {"names": "b.weight", "format": {"from": "awq", "to": "high_first", "shape": [64, 32]}},
    ]
    fi.weights.convert_checkpoint(source, tmp_path / "converted", rules)
    made = safetensors_numpy.load_file(tmp_path / "converted" / "model.safetensors")
    assert made["c"].tobytes() == made["b.weight"].tobytes() == expected


@pytest.mark.parametrize(
    ("formats", "reason"),
    [
        ([], "formats must be a mapping"),
        ({"awq": PAIRS.to_json()}, "is called 'awq' already"),
        ({"plain": PAIRS.to_json()}, "is called 'plain' already"),
        ({"kleidiai": PAIRS.to_json()}, "is called 'kleidiai' already"),
        ({"my format": PAIRS.to_json()}, "must be a word such as my_format"),
        ({"mine": 3}, "'mine': it must be a mapping, got 3"),
        ({"mine": SWIZZLE.to_json()}, "'mine': it is not an order of digits"),
        ({"mine": {**PAIRS.to_json(), "bits": 5}}, "'mine'"),
        (
            {"mine": fi.weights.discover(high_first, (2, 6), np.uint8, 4).to_json() | {"grows": []}},
            r"'w'.*mine was found",
        ),
    ],
)
def test_rules_that_do_not_fit(tmp_path: Path, formats: Any, reason: str) -> None:
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    source = tmp_path / "model.safetensors"
    safetensors_numpy.save_file({"w": np.zeros((4, 8), np.uint8)}, source)
    rules = {"formats": formats, "rules": [{"names": "w", "format": {"from": "plain", "to": "mine"}}]}
    with pytest.raises(fi.FastIndexError, match=reason):
        fi.weights.pack_checkpoint(source, tmp_path / "out", rules)


def test_strange_manifests(tmp_path: Path) -> None:
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    source = tmp_path / "model.safetensors"
    safetensors_numpy.save_file({"w": np.zeros((4, 8), np.uint8)}, source)
    rules = {"formats": {"mine": PAIRS.to_json()}, "rules": [{"names": "w", "format": {"from": "plain", "to": "mine"}}]}
    fi.weights.pack_checkpoint(source, tmp_path / "out", rules)
    path = tmp_path / "out" / "manifest.json"
    manifest = json.loads(path.read_text())
    for change in ({"name": 3}, {"name": "awq"}, {"layout": "u4[2]{0}"}, {"bits": 0}):
        changed = json.loads(json.dumps(manifest))
        changed["arrays"][0]["format"]["to"].update(change)
        path.write_text(json.dumps(changed))
        with pytest.raises(fi.FastIndexError):
            fi.weights.open_checkpoint(tmp_path / "out")


def test_command(tmp_path: Path) -> None:
    codes = random_codes((64, 32), 4)
    np.save(tmp_path / "codes.npy", codes)
    (tmp_path / "mine.json").write_text(json.dumps(PAIRS.to_json()))
    (tmp_path / "table.json").write_text(json.dumps(SWIZZLE.to_json()))
    place, target = str(tmp_path / "mine.json"), str(tmp_path / "out.bin")
    given = ["repack", str(tmp_path / "codes.npy"), target, "--from", "plain", "--shape", "64x32"]
    result = run_command([*given, "--to", place])
    assert result.exit_code == 0, result.output
    assert Path(target).read_bytes() == high_first(codes).tobytes()
    result = run_command([*given, "--to", str(tmp_path / "table.json")])
    assert result.exit_code == 1
    assert "is not an order of digits" in result.output
    result = run_command([*given, "--to", str(tmp_path / "missing.json")])
    assert result.exit_code == 1
    assert "missing.json" in result.output


def test_gguf_packages_own_packer() -> None:
    """The body of GGUF's Q4_0 and Q8_0 as its own Python package packs values that its scales represent exactly."""
    quants = pytest.importorskip("gguf.quants")
    types = quants.GGMLQuantizationType

    def body(kind: Any, header: int, values: NDArray[np.float32]) -> Codes:
        blocks: Codes = quants.quantize(values, kind).reshape(
            len(values), -1, header + (16 if kind is types.Q4_0 else 32)
        )
        return blocks[..., header:]

    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (8, 96), dtype=np.uint8)
    # A block whose largest value is -8 has the scale 1.
    codes[:, ::32] = 0
    packer = lambda c: c.reshape(len(c), -1, 2, 16)[:, :, 0] | c.reshape(len(c), -1, 2, 16)[:, :, 1] << 4  # noqa: E731
    found = fi.weights.discover(packer, (4, 64), np.uint8, 4)
    expected = body(types.Q4_0, 2, codes.astype(np.float32) - 8)
    assert fi.weights.repack(codes, "plain", found).tobytes() == expected.tobytes()
    values = rng.integers(-127, 128, (8, 64)).astype(np.int8)
    values[:, ::32] = 127
    kept = fi.weights.discover(lambda c: c, (4, 64), np.int8)
    assert (
        fi.weights.repack(values, "plain", kept).tobytes() == body(types.Q8_0, 2, values.astype(np.float32)).tobytes()
    )
