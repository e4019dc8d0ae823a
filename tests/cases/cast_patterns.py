"""Elements to convert: every pattern of up to 16 bits, and of wider types those where roundings and limits show."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from fastindex.shapes.element_types import BY_NAME
from tests.cases import strategies
from tests.oracles import casts

Bytes = NDArray[np.uint8]

TYPES = {name: one for name, one in BY_NAME.items() if one.is_array and not one.is_complex}


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
