"""Casts of all kinds of conversions, with remainders of vectors, loops of both sides, and boxes cut from them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import fastindex as fi
from fastindex.arrays.arrays import address_of
from fastindex.moving.compiled_passes import CompiledPasses
from fastindex.moving.movements import movement_between
from fastindex.moving.passes import Pass
from fastindex.runtime.tuning import TUNING
from tests.cases import strategies

Bytes = NDArray[np.uint8]

#: A pair for each way to convert: computed, looked up by a byte, rounded to odd and looked up; of all widths.
PAIRS = (
    *(("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("f16", "f64"), ("f64", "f16"), ("u8", "f32"), ("s8", "bf16")),
    *(("f32", "f8e4m3fn"), ("s64", "f4e2m1fn"), ("f8e5m2", "s64"), ("pred", "f32"), ("s4", "s8"), ("f4e2m1fn", "bf16")),
    *(("f32", "s4"), ("f64", "u64"), ("f16", "pred"), ("s32", "u8"), ("u16", "s64"), ("f16", "f32"), ("u8", "bf16")),
)
#: Lines are written with non-temporal stores, however few there are.
PAST_CACHE = replace(TUNING, streamed_bytes=0)

SIDES = (
    ("[{n}]{{0}}", "[{n}]{{0}}"),
    ("[{n},3]{{1,0}}", "[{n},3]{{0,1}}"),
    ("[5,{n}]{{1,0}}", "[5,{n}]{{1,0:T(2,8)}}"),
    ("[3,{n},2]{{0,2,1}}", "[3,{n},2]{{1,0,2:T(4,2)}}"),
    ("[3,{n},320]{{2,1,0}}", "[3,{n},320]{{2,0,1:T(4,320)}}"),
)


def every_cast() -> Iterator[tuple[fi.Shape, fi.Shape]]:
    """Pairs of shapes with runs of all remainders of a vector, and a few longer ones than a box."""
    # Of few pairs: each has a kernel, which takes a second or two to compile.
    cases = itertools.product(strategies.rotating(PAIRS), SIDES, (1, 7, 15, 16, 17, 33, 301))
    for pair, sides, n in (*cases, (PAIRS[0], SIDES[1], 40_009), (PAIRS[7], SIDES[0], 140_011)):
        source, target = (fi.Shape.parse(name + side.format(n=n)) for name, side in zip(pair, sides, strict=True))
        yield source, target


def cast(
    source: fi.Shape,
    target: fi.Shape,
    allocate: Callable[[int, int], Bytes],
    step: Callable[[Pass], Pass],
    rng: np.random.Generator,
) -> str:
    """Cast between arrays that `allocate` makes; say what is wrong beside what NumPy makes of it.

    Once lines go through the cache, and once past it.
    """
    given = allocate(source.nbytes, 0)
    given[:] = rng.integers(0, 256, source.nbytes, np.uint8)
    pattern = b"\x41" * target.element_type.nbytes
    for tuning in (TUNING, PAST_CACHE):
        moved = movement_between(source, target, tuning)
        assert moved.cast is not None
        assert moved.passes is not None
        made = allocate(target.nbytes, 0)
        passes = CompiledPasses([step(one) for one in moved.passes], moved.tuning)
        passes.run(address_of(given), address_of(made), pattern, 1)
        expected = np.zeros(target.nbytes, np.uint8)
        moved.run_by_numpy(address_of(given), address_of(expected), pattern)
        if not np.array_equal(made, expected):
            return f"{source} to {target}: other elements{', non-temporal' if tuning is PAST_CACHE else ''}"
    return ""
