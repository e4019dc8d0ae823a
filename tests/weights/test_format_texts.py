"""What `formats` lists, taken at its word: packing by the text alone gives the bytes of `repack`, at the listed sizes.

Tests of: weights.repacking.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import fastindex as fi

LISTED = [(one, variant) for one in fi.weights.formats() for variant in one["variants"]]
IDS = ["-".join(map(str, (one["name"], v["bits"], *v["parameters"].values()))) for one, v in LISTED]


def codes_of(shape: tuple[int, ...], bits: int) -> Any:
    rng = np.random.default_rng([bits, *shape])
    return rng.integers(0, (1 << bits) - 1, shape, np.uint64, endpoint=True).astype(f"u{-(-bits // 8)}")


def packed_by_text(codes: Any, one: dict[str, Any], variant: dict[str, Any]) -> bytes:
    """Pad, split, pack with the layout of the text, and place the bits of each unit: nothing knows the format."""
    match = re.fullmatch(r"(u\d+)\[(.*)\]\{(.*)\}", variant["layout"])
    assert match is not None
    kind, entries, layout = match[1], match[2].split(","), match[3]
    # Sizes of each dimension, and what it is split into: parts before or after the one that has its letter, whose
    # product is what the letter is divided by.
    splits: list[list[Any]] = []
    is_whole = True
    for entry in entries:
        letter = entry[0] if entry[0].isalpha() else ""
        has_letter = bool(splits) and any(isinstance(e, str) for e in splits[-1])
        if not splits or (has_letter and (letter or is_whole)):
            splits.append([])
        is_whole = "/" not in entry if letter else is_whole
        splits[-1].append(letter or int(entry))
    bits_follow = kind == "u1" and variant["bits"] > 1
    if bits_follow:
        # The last number is the bits of a code.
        assert splits[-1].pop() == variant["bits"]
        splits = [group for group in splits if group]
    if len(one["dimensions"]) == 1:
        codes = codes.reshape(-1)
    sizes, whole = [], []
    for group, letter, size in zip(splits, one["dimensions"], codes.shape, strict=True):
        assert letter in group
        unit = math.prod(part for part in group if part != letter)
        multiple = math.lcm(unit, variant["padded"].get(letter, 1))
        padded = -(-size // multiple) * multiple
        whole.append(padded)
        sizes += [padded // unit if part == letter else part for part in group]
    filled = np.full(whole, variant["fill"] ^ variant["flipped_bits"], codes.dtype)
    filled[tuple(map(slice, codes.shape))] = codes
    values = (filled ^ codes.dtype.type(variant["flipped_bits"])).reshape(sizes)
    if variant["flipped_bits"]:
        # Padding is as it is.
        assert filled.shape == codes.shape
    if bits_follow:
        values = values[..., None] >> np.arange(variant["bits"], dtype=np.uint8) & 1
        sizes.append(variant["bits"])
    for letter, size in zip(one["dimensions"], whole, strict=True):
        layout = re.sub(rf"(?<=[(,]){letter}(?=[,)])", str(size), layout)
    shape = fi.Shape.parse(f"{kind}[{','.join(map(str, sizes))}]{{{layout}}}")
    buffer = np.asarray(fi.pack(values.astype(shape.element_type.numpy_dtype), shape)).view(np.uint8).reshape(-1)
    if not variant["unit_order"]:
        return buffer.tobytes()
    units = np.unpackbits(buffer, bitorder="little").reshape(-1, len(variant["unit_order"]))
    placed = np.empty_like(units)
    placed[:, list(variant["unit_order"])] = units
    return np.packbits(placed, bitorder="little").tobytes()


def same(one: dict[str, Any], variant: dict[str, Any], shape: tuple[int, ...]) -> bool:
    codes = codes_of(shape, variant["bits"])
    got = fi.weights.repack(codes, "plain", one["name"], shape=shape, bits=variant["bits"], **variant["parameters"])
    return got.tobytes() == packed_by_text(codes, one, variant)


@pytest.mark.parametrize(("one", "variant"), LISTED, ids=IDS)
def test_packing_by_the_text_is_repack(one: dict[str, Any], variant: dict[str, Any]) -> None:
    least = [variant["multiples"].get(letter, 1) for letter in one["dimensions"]]
    # Whole blocks of all that is split or tiled, or what a dimension may be.
    for shape in (least, [2 * size for size in least], [size if size > 1 else 5 for size in least]):
        assert same(one, variant, tuple(shape)), shape


@pytest.mark.parametrize(("one", "variant"), LISTED, ids=IDS)
def test_the_layout_of_given_sizes_packs_as_repack_does(one: dict[str, Any], variant: dict[str, Any]) -> None:
    """At odd sizes where the format takes them without padding, else at whole tiles."""
    name, bits, parameters, compared = one["name"], variant["bits"], variant["parameters"], 0
    for least in (3, 80, 128, 256) if len(one["dimensions"]) <= 2 else (3, 16):
        if compared:
            break
        sizes = tuple(3 * variant["multiples"].get(letter, least) for letter in one["dimensions"])
        if variant["unit_order"] or variant["flipped_bits"]:
            with pytest.raises(fi.UnsupportedError, match="which no layout expresses; repack writes its bytes"):
                fi.weights.layout_of(name, sizes, bits, **parameters)
            continue
        layout, codes = fi.weights.layout_of(name, sizes, bits, **parameters), codes_of(sizes, bits)
        values = codes[..., None] >> np.arange(bits, dtype=np.uint8) & 1 if layout.element_type.bits < bits else codes
        # What is padded has more.
        if values.size == layout.element_count:
            values = values.reshape(layout.dimensions).astype(layout.element_type.numpy_dtype)
            packed = fi.weights.repack(codes, "plain", name, shape=sizes, bits=bits, **parameters)
            assert np.asarray(fi.pack(values, layout)).tobytes() == packed.tobytes()
            compared += 1
    assert compared or variant["unit_order"] or variant["flipped_bits"]


@pytest.mark.parametrize(("one", "variant"), LISTED, ids=IDS)
def test_multiples_are_what_repack_takes(one: dict[str, Any], variant: dict[str, Any]) -> None:
    if variant["parameters"].get("capability", "last") != "last":
        # Rows that are no whole block become a last one.
        return
    least = [variant["multiples"].get(letter, 1) for letter in one["dimensions"]]
    assert set(variant["multiples"]) <= set(one["dimensions"])
    for d, letter in enumerate(one["dimensions"]):
        others = [
            (*least[:d], size, *least[d + 1 :]) for size in (least[d] - 1, least[d] + 1, least[d] // 2) if size > 0
        ]
        for shape in others:
            if shape[d] % least[d] == 0:
                assert same(one, variant, shape), shape
                continue
            with pytest.raises(fi.FastIndexError, match=rf"takes {letter} in multiples of {least[d]}\b"):
                same(one, variant, shape)


def test_the_default_is_first() -> None:
    for one in fi.weights.formats():
        if not one["variants"]:
            continue
        first = one["variants"][0]
        assert first["parameters"].keys() == one["parameters"].keys()
        for key in ("multiples", "unit_order", "flipped_bits"):
            assert one[key] == first[key]
        shape = tuple(2 * first["multiples"].get(letter, 1) for letter in one["dimensions"])
        codes = codes_of(shape, first["bits"])
        # Where elements have any width, the array tells it.
        by_default = fi.weights.repack(codes, "plain", one["name"], shape=shape, bits=first["bits"])
        assert by_default.tobytes() == packed_by_text(codes, one, first), one["name"]
        listed = {variant["bits"] for variant in one["variants"]}
        assert listed == {8, 16, 32, 64} & listed | {bits for bits in one["bits"] if bits is not None}


def test_what_is_refused_has_all_keys() -> None:
    found = fi.weights.formats()
    assert {frozenset(one) for one in found} == {frozenset(found[0])}
    assert [one["dimensions"] for one in found if one["refused"]] == [()] * 18


def test_known_sizes() -> None:
    """What each takes, by its vendor's function: AutoAWQ asserts N % 8, `marlin_permute_scales` views rows of 64
    columns, FlashInfer 32 rows, aiter 64 half bytes; GPTQModel pads K, and Marlin's tiles have 16 rows."""
    multiples = {one["name"]: one["multiples"] for one in fi.weights.formats()}
    assert multiples["awq"] == {"N": 8}
    assert multiples["marlin_scales"] == {"N": 64}
    assert multiples["trtllm_shuffle_matrix_a"] == {"M": 32}
    assert multiples["aiter_shuffle_weight"] == {"N": 16, "K": 64}
    assert multiples["marlin"] == {"K": 16, "N": 64}
    assert multiples["gptq"] == {}
