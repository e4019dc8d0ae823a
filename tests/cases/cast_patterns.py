"""Elements to convert: every pattern of up to 16 bits, and of wider types those where roundings and limits show."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache
from random import Random

import numpy as np
from numpy.typing import NDArray

from fastindex.algebra.cast_numbers import conversion_code
from fastindex.algebra.casts import cast_of
from fastindex.core.element_types import BY_NAME
from fastindex.moving.moves import CASTS
from tests.cases import strategies
from tests.oracles import casts

Bytes = NDArray[np.uint8]

TYPES = {name: one for name, one in BY_NAME.items() if one.is_array and not one.is_complex}
PAIRS = [pair for pair in itertools.product(TYPES, TYPES) if pair[0] != pair[1]]
#: Conversions that are compiled ahead; the kernel of another one takes a second.
AHEAD = {conversion_code(*pair) for pair in CASTS}


def code_of(pair: tuple[str, str]) -> int:
    return cast_of(TYPES[pair[0]], TYPES[pair[1]]).code


def pairs_of_today() -> list[tuple[str, str]]:
    """A part of the pairs whose kernels are compiled ahead or serve many, and all pairs of a few others.

    Of the others, a twelfth of what rotates: each of their kernels takes a second to compile.
    """
    shared = {code for code, count in Counter(map(code_of, PAIRS)).items() if count > 20}
    single = [pair for pair in PAIRS if code_of(pair) in AHEAD | shared]
    # In an order in which the kernels of a day read and write many types.
    codes = sorted({code_of(pair) for pair in PAIRS} - AHEAD - shared)
    Random(0).shuffle(codes)
    others = {*[*strategies.rotating(codes)][:: 1 if strategies.PART is None else 12]}
    return [*strategies.rotating(single), *(pair for pair in PAIRS if code_of(pair) in others)]


TODAY = pairs_of_today()


@cache
def elements(name: str, count: int = 40_000) -> Bytes:
    """Every pattern of a type of up to 16 bits; of a wider one random patterns, small numbers, ties and limits."""
    kind = TYPES[name]
    if kind.bits <= 16:
        return np.arange(1 << max(kind.bits, 8), dtype=f"u{kind.nbytes}").view(np.uint8)
    rng = np.random.default_rng(strategies.FIRST_SEED)
    dtype = kind.numpy_dtype
    patterns = rng.integers(0, 1 << kind.bits, count, np.uint64).astype(f"u{kind.nbytes}")
    if not kind.is_floating:
        shifted = patterns >> rng.integers(0, kind.bits, count).astype(patterns.dtype)
        limits = np.array([1 << k for k in range(kind.bits)], np.uint64).astype(patterns.dtype)
        return np.concatenate([patterns, shifted, limits - 1, limits, limits + 1, ~limits]).view(np.uint8)
    with np.errstate(all="ignore"):
        values = (rng.standard_normal(count) * 10.0 ** rng.uniform(-12, 12, count)).astype(dtype)
        halves = np.arange(-1100, 1100, 0.25).astype(dtype)
        powers = np.array([s * 2.0**k for k in range(-160, 130) for s in (1, -1)]).astype(dtype)
        near = [casts.decoded(one, np.arange(1 << TYPES[one].bits)) for one in casts.FORMATS if one != "f16"]
        near.append(casts.decoded("f16", np.arange(0, 1 << 16, 5)))
        ties = np.concatenate([(one[1:] + one[:-1]) / 2 for one in near])
        ties = ties[np.isfinite(ties)].astype(dtype)
    both = [powers, ties]
    around = [np.nextafter(one, to) for one in both for to in (np.array(np.inf, dtype), np.array(-np.inf, dtype))]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan], dtype)
    return np.concatenate([patterns.view(dtype), values, halves, *both, *around, special]).view(np.uint8)
