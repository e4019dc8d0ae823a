"""Random patterns of f32 and f64 cast to every other type, against the definitions and `astype`; not among the tests.

Usage::

    python tests/cast_sweep.py                      10**8 patterns of each, to every type
    python tests/cast_sweep.py --count 1000000 --to bf16 f16

Floats of up to 16 bits are compared with `tests.oracles.casts` on a part of the patterns, which takes a thousand times
as long, and with what ml_dtypes and NumPy make of all of them; integers, where NumPy leaves results to the processor,
with numbers cut and clipped here.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fastindex as fi  # noqa: E402
from fastindex.core.element_types import BY_NAME  # noqa: E402
from tests.oracles import casts  # noqa: E402

TYPES = {name: one for name, one in BY_NAME.items() if one.is_array and not one.is_complex}
_AT_ONCE = 1 << 20
_SLOWLY = 1 << 12


def expected(values: NDArray[Any], target: str) -> NDArray[Any]:
    """Return what the elements become, without fastindex."""
    kind = TYPES[target]
    if target == "pred":
        return values != 0
    if not kind.is_integral:
        return values.astype(kind.numpy_dtype)
    low = -(1 << kind.bits - 1) if kind.kind == "signed" else 0
    high = low + (1 << kind.bits) - 1
    whole = np.trunc(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=1e300, neginf=-1e300))
    # 2**63 - 1 and 2**64 - 1 are no float64: what reaches the next power of two is the highest.
    wide = np.int64 if low else np.uint64
    inside = np.where((whole < float(high) if high < 1 << 53 else whole < float(high + 1)) & (whole > low), whole, 0)
    found = inside.astype(wide)
    found = np.where(whole >= float(high if high < 1 << 53 else high + 1), wide(high), found)
    found = np.where(whole <= low, wide(low), found)
    return found.astype(kind.numpy_dtype)


def differing(found: NDArray[Any], values: NDArray[Any], target: str) -> NDArray[np.bool_]:
    """Return which elements are others; NaN of any sign and payload is NaN."""
    kind = TYPES[target]
    right = expected(values, target)
    bits = f"u{kind.nbytes}"
    differs = found.view(bits) != right.view(bits)
    if kind.is_floating and differs.any():
        differs &= ~(np.isnan(found.astype(np.float64)) & np.isnan(right.astype(np.float64)))
    if target in casts.FORMATS or target == casts.POWER:
        part = slice(0, _SLOWLY)
        # What comes from f64 is rounded to f32 before: numbers that are 0 there have no power of two.
        near = values[part].astype(np.float32) if target == casts.POWER else values[part]
        slowly = casts.encoded(target, near.astype(np.float64))
        numbers = slowly >= 0
        differs[part] |= numbers & (found[part].view(bits).astype(np.int64) != slowly)
    return np.asarray(differs)


def swept(source: str, target: str, count: int, seed: int) -> int:
    """Return how many of `count` random patterns become something else."""
    rng, wrong = np.random.default_rng(seed), 0
    dtype = TYPES[source].numpy_dtype
    for begin in range(0, count, _AT_ONCE):
        number = min(_AT_ONCE, count - begin)
        # A little off, so that vectors have remainders.
        number -= number > 7 and begin + number < count
        values = np.frombuffer(rng.bytes(number * dtype.itemsize), dtype)
        found = fi.pack(values, fi.Shape(target, (number,)), casting="unsafe")
        differs = differing(found, values, target)
        if differs.any():
            at = int(differs.argmax())
            print(f"{source} to {target}: {values[at]!r} becomes {found[at]!r}", flush=True)  # noqa: T201
            wrong += int(differs.sum())
    return wrong


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10**8, help="patterns of each type (10**8)")
    parser.add_argument("--of", choices=["f32", "f64"], nargs="+", default=["f32", "f64"], help="the types to cast")
    parser.add_argument("--to", choices=[*TYPES], nargs="+", default=[*TYPES], help="the types to cast to")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    wrong = 0
    with np.errstate(all="ignore"):
        for source in arguments.of:
            for target in (name for name in arguments.to if name != source):
                began = time.monotonic()
                found = swept(source, target, arguments.count, arguments.seed)
                seconds = time.monotonic() - began
                print(f"{source} to {target}: {arguments.count} patterns, {found} others, {seconds:.0f} s", flush=True)  # noqa: T201
                wrong += found
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
