"""Random relayouts with one long dimension, between guards, against NumPy: layouts whose passes many blocks share."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import fastindex as fi
from tests.oracles import reference, slot_owners

CHAINS = (
    *("", "", "", "T(8,128)", "T(8,128)(2,1)", "T(8,128)(4,1)", "T(8,128)(8,1)", "T(2,128)", "T(4,128)(2,1)"),
    *("T(1,128)", "T(256)", "T(1024)", "T(16,128)(2,1)", "T(2,*,128)", "T(8,16)", "T(3)(2)", "T(7,5)", "T(4,6)(3,1)"),
    *("T(2,2)(2,2)", "T(16,7,5)", "T(512,1024)", "T(16,1,1)", "T(*,100)(8,1)", "T(4)", "T(12)(4)", "T(64,128)(8,1)"),
)
SHORT = (1, 1, 1, 2, 3, 5, 6, 7, 12, 16, 33, 40, 130)
LONG = (777, 1000, 1024, 2049, 4096, 5000, 9999, 16000, 20011)
TYPES = {"u8": 1, "bf16": 2, "f32": 4, "f64": 8, "c128": 16, "s4": 1}
_MOST_ELEMENTS, _MOST_SLOTS = 400_000, 3_000_000
_GUARD_BYTES, _GUARD, _UNTOUCHED = 1 << 16, 0xC3, 0xAA

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Case:
    """A relayout of random elements, and how it is called."""

    source: str
    destination: str
    fill: int | None
    offset: int
    threads: int
    seed: int


def random_case(seed: int) -> Case | None:
    """A case; None where its layouts would not fit."""
    rng = random.Random(seed)
    element = rng.choice(("u8", "bf16", "f32", "f64", "c128", "u8", "bf16", "f32", "s4", "s4"))
    rank = rng.randint(1, 5)
    dimensions = [rng.choice(SHORT) for _ in range(rank)]
    dimensions[rng.randrange(rank)] = rng.choice(LONG)
    while math.prod(dimensions) > _MOST_ELEMENTS:
        shortest = min((k for k in range(rank) if dimensions[k] > 1), key=lambda k: dimensions[k])
        dimensions[shortest] = 1
    sides = [f"{element}[{','.join(map(str, dimensions))}]{_layout(rng, rank, element)}" for _ in range(2)]
    if max(reference_slots(side) for side in sides) > _MOST_SLOTS:
        return None
    fill = rng.randrange(256) if element == "u8" and rng.random() < 0.5 else None
    return Case(*sides, fill, rng.choice((0, 0, 1, 8)), rng.choice((1, 2)), seed)


def reference_slots(text: str) -> int:
    return reference.slot_count(reference.parse(text))


def _layout(rng: random.Random, rank: int, element: str) -> str:
    order = list(range(rank - 1, -1, -1))
    if rng.random() < 0.7:
        rng.shuffle(order)
    attributes = rng.choice(CHAINS)
    if "*" in attributes and attributes.count(",", 0, attributes.index(")")) >= rank:
        attributes = ""
    if rng.random() < 0.1:
        attributes += f"L({rng.choice((7, 64, 1000))})"
    if element == "s4" and rng.random() < 0.7:
        attributes += "E(4)"
    return "{" + ",".join(map(str, order)) + (":" + attributes if attributes else "") + "}"


def wrong(case: Case) -> str:
    """What is wrong with a relayout; nothing where all is right."""
    sides = reference.parse(case.source), reference.parse(case.destination)
    packed = [side.element_size_in_bits == 4 for side in sides]
    is_half = sides[0].element_type == "s4"
    rng = np.random.default_rng(case.seed)
    width = TYPES[sides[0].element_type]
    values, noise = (
        rng.integers(0, 16 if is_half else 256, (rows, width), np.uint8) for rows in (math.prod(sides[0].dimensions), 1)
    )
    fills = noise.tobytes(), bytes([case.fill or 0]) * width
    given, expected = (
        slot_owners.buffer_of(side, slot_owners.elements_of_slots(side), values, fill)
        for side, fill in zip(sides, fills, strict=True)
    )
    source = np.empty(len(given) + case.offset, np.uint8)[case.offset :]
    source[:] = given
    memory = np.full(len(expected) + 2 * _GUARD_BYTES, _GUARD, np.uint8)
    found = memory[_GUARD_BYTES:-_GUARD_BYTES]
    found[:] = _UNTOUCHED
    destination = fi.Shape.parse(case.destination)
    out = found if packed[1] else found.view(destination.element_type.numpy_dtype)
    given_fill = {} if case.fill is None else {"fill": case.fill}
    fi.relayout(source, case.source, case.destination, out=out, threads=case.threads, **given_fill)
    if (memory[:_GUARD_BYTES] != _GUARD).any() or (memory[-_GUARD_BYTES:] != _GUARD).any():
        return f"written outside the buffer: {case}"
    if packed[1] and destination.slot_count % 2:
        # Nothing is said of the half byte after the last slot.
        found[-1] &= 0x0F
        expected[-1] &= 0x0F
    if np.array_equal(found, expected):
        return ""
    at = int((found != expected).argmax())
    count = int((found != expected).sum())
    return f"{count} bytes differ, the first {at}: {found[at]:#x}, expected {expected[at]:#x}; {case}"
