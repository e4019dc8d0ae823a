"""Relayouts that are put together block by block, whatever that costs, and moves of them in guarded memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

import fastindex as fi
from fastindex.algebra.shared_digits import shared_digits
from fastindex.arrays.arrays import address_of
from fastindex.moving.compiled_passes import CompiledPasses
from fastindex.moving.moves.block_permute.geometry import permuted_blocks
from fastindex.moving.moves.column_gather.blocks import BlockPermutes
from fastindex.moving.passes import Pass, with_tables
from fastindex.moving.problem import Context
from fastindex.runtime.machine import EPYC_1M
from fastindex.runtime.tuning import TUNING
from tests.cases.machines import run_here
from tests.oracles import reference
from tests.oracles.comparison import clear_unused_bits

Bytes = NDArray[np.uint8]
Pair = tuple[str, str]

#: What the issue of slow layouts names, small: padding in single elements, few channels, short runs, odd nibbles.
NAMED: tuple[Pair, ...] = (
    ("bf16[3,1,2,130]", "bf16[3,1,2,130]{0,1,3,2:T(4,128)(2,1)}"),
    ("bf16[2,1,3,9,12]", "bf16[2,1,3,9,12]{4,1,3,2,0:T(2,128)(2,1)}"),
    ("bf16[1,36,3,17,3,1]", "bf16[1,36,3,17,3,1]{3,1,0,2,5,4:T(8,128)(2,1)}"),
    ("bf16[3,70,40]", "bf16[3,70,40]{2,1,0:T(8,128)(2,1)}"),
    ("f32[2,3,24]", "f32[2,3,24]{0,1,2:T(16,32)}"),
    ("u8[3,3,33,17]{1,3,2,0}", "u8[3,3,33,17]"),
    ("u8[3,3,33,17]", "u8[3,3,33,17]{1,3,2,0}"),
    ("u8[2,5,300,7]{1,3,2,0}", "u8[2,5,300,7]"),
    ("f32[2,3,40,50]", "f32[2,3,40,50]{1,3,2,0}"),
    ("c128[5,3,40]{1,2,0}", "c128[5,3,40]"),
    ("f32[66,10]{1,0:T(8,128)}", "f32[66,10]"),
    ("s4[5,33,2,6]{3,2,1,0:E(4)}", "s4[5,33,2,6]{3,1,0,2:T(8,128)(8,1)E(4)}"),
    ("s4[5,7,33]{2,1,0:E(4)}", "s4[5,7,33]{2,1,0:T(64,128)(8,1)E(4)}"),
    ("s4[5,7,33]{2,1,0:T(8,128)(8,1)E(4)}", "s4[5,7,33]{2,1,0:E(4)}"),
    ("s4[5,3,127]{2,1,0:E(4)}", "s4[5,3,127]{1,2,0:E(4)}"),
    ("u4[7,133]{1,0:E(4)}", "u4[7,133]{1,0:T(8,128)}"),
    ("u4[7,133]{1,0:T(8,128)}", "u4[7,133]{1,0:E(4)}"),
    ("f32[12,45,22]", "f32[12,45,22]{0,1,2:T(2,*,16)}"),
    ("f32[12,45,22]{0,1,2:T(2,*,16)}", "f32[12,45,22]"),
    ("u8[3,5]{1,0:T(7)}", "u8[3,5]{1,0:T(5)}"),
    ("u8[24,3,5]{2,1,0:T(8,128)L(1000)}", "u8[24,3,5]{0,1,2:T(4,8)L(77)}"),
    ("u8[1,1]", "u8[1,1]{1,0:T(64,128)}"),
    ("u8[70,3,20]{0,1,2}", "u8[70,3,20]{2,1,0:T(8,32)}"),
    ("bf16[40,5,21]{0,1,2}", "bf16[40,5,21]{2,1,0:T(8,32)(2,1)}"),
    ("f32[37,5,21]{0,1,2}", "f32[37,5,21]{2,1,0:T(2,*,16)}"),
    ("f32[37,5,21]{2,1,0:T(2,*,16)}", "f32[37,5,21]{0,1,2}"),
    ("u8[150,3,50]{2,1,0:T(2,*,16)}", "u8[150,3,50]{0,1,2}"),
    ("f64[19,6,9]{0,1,2}", "f64[19,6,9]{2,1,0:T(8,16)}"),
    ("c128[9,6,9]{0,1,2}", "c128[9,6,9]{2,1,0:T(8,16)}"),
    ("u8[100,1]", "u8[100,1]{1,0:T(8,128)}"),
    ("f64[1000]", "f64[1000]{0:T(256)}"),
)


def permuted(found: BlockPermutes) -> tuple[Pass, ...]:
    """The passes of blocks, with columns where these are cheaper."""
    return with_tables(found.with_columns() or found.straight)


def passes_of(source: str, destination: str, vector_bytes: int, streamed: bool) -> tuple[Pass, ...] | None:
    """The passes of blocks, of vectors of a length; None where there are none."""
    sides = fi.Shape.parse(source), fi.Shape.parse(destination)
    context = Context(1, streamed, TUNING, run_here(EPYC_1M, vector_bytes))
    bits = sides[0].element_bits, sides[1].element_bits
    for variables, left, right in shared_digits(*sides):
        found = permuted_blocks(variables, left, right, sides[1], bits[1])
        if found is not None:
            return permuted(BlockPermutes(found, bits, context))
    return None


def random_pairs(seeds: range) -> Iterator[Pair]:
    """Layouts of the sweep's kind, small: a few tile chains, sizes about a tile's, every width, any orders."""
    chains = ("", "T(8,16)", "T(8,16)(2,1)", "T(8,32)(4,1)", "T(2,16)", "T(4,16)(2,1)", "T(1,16)", "T(32)", "T(2,*,16)")
    sizes = (1, 2, 3, 5, 6, 7, 8, 10, 12, 16, 17, 31, 33, 40, 100)
    for seed in seeds:
        rng = random.Random(seed)
        element = rng.choice(("u8", "bf16", "f32", "f64", "c128", "s4"))
        rank = rng.randint(1, 4)
        dimensions: list[int] = []
        for _ in range(rank):
            dimensions.append(rng.choice([n for n in sizes if n * int(np.prod(dimensions)) <= 4000] or [1]))
        texts = []
        for _ in range(2):
            order = rng.sample(range(rank), rank)
            attributes = rng.choice(chains) if rng.random() < 0.7 else ""
            if attributes.startswith("T(2,*") and rank < 2:
                attributes = ""
            attributes += rng.choice(("", "", "L(96)", "L(7)"))
            if element == "s4" and rng.random() < 0.8:
                attributes += "E(4)"
            layout = ",".join(map(str, order)) + (":" + attributes if attributes else "")
            texts.append(f"{element}[{','.join(map(str, dimensions))}]{{{layout}}}")
        yield texts[0], texts[1]


def move(pair: Pair, made: tuple[Pass, ...], allocate: Callable[[int, int], Bytes], offsets: tuple[int, int]) -> str:
    """Run the passes between two pieces of memory; give what is wrong, nothing where all is right."""
    source, destination = (reference.parse(text) for text in pair)
    rng = np.random.default_rng(len(pair[0]) + offsets[0])
    given = rng.integers(0, 256, reference.nbytes(source), np.uint8).tobytes()
    given = clear_unused_bits(source, given)
    bits = reference.element_bits(destination)
    fill = int(rng.integers(1, 1 << min(bits, {"s4": 4, "u4": 4, "u2": 2, "pred": 1}.get(source.element_type, 8))))
    buffers = allocate(len(given), offsets[0]), allocate(reference.nbytes(destination), offsets[1])
    buffers[0][:], buffers[1][:] = np.frombuffer(given, np.uint8), 0xA5
    padding = bytes([fill * (255 // ((1 << bits) - 1))]) if bits < 8 else fill.to_bytes(bits // 8, "little")
    CompiledPasses(made).run(address_of(buffers[0]), address_of(buffers[1]), padding, 1)
    expected = reference.relayout(given, source, destination, fill)
    found = buffers[1].tobytes()
    if found == expected:
        return ""
    at = next(k for k, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
    return f"byte {at} is {found[at]:#x}, expected {expected[at]:#x}; {pair}, {offsets}"


class Guarded:
    """Memory between bytes that have to stay."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Bytes, int, int]] = []

    def __call__(self, size: int, offset: int) -> Bytes:
        block = np.full(size + 512, 0x5A, np.uint8)
        begin = -block.__array_interface__["data"][0] % 64 + 128 + offset
        self._blocks.append((block, begin, size))
        return block[begin : begin + size]

    def check(self) -> None:
        for block, begin, size in self._blocks:
            assert (block[:begin] == 0x5A).all()
            assert (block[begin + size :] == 0x5A).all()


def moved_between_guards(pair: Pair, made: tuple[Pass, ...], offsets: tuple[int, int]) -> bool:
    """Move a pair and fail unless all of it is right, and nothing outside is touched; true."""
    memory = Guarded()
    assert move(pair, made, memory, offsets) == ""
    memory.check()
    return True
