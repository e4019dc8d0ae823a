"""What elements become as another type: by the definitions of the formats, and by XLA in a child process.

Run as a script this file is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Patterns = NDArray[Any]


class Format(NamedTuple):
    """A float: bits of the exponent and the mantissa, the exponent's bias, and what its highest patterns mean."""

    exponent: int
    mantissa: int
    bias: int
    special: str


#: "ieee" has infinities and NaN, "fn" one NaN of each sign, "fnuz" one NaN in the place of -0, "finite" neither.
FORMATS = {
    "f16": Format(5, 10, 15, "ieee"),
    "bf16": Format(8, 7, 127, "ieee"),
    "f8e5m2": Format(5, 2, 15, "ieee"),
    "f8e4m3": Format(4, 3, 7, "ieee"),
    "f8e3m4": Format(3, 4, 3, "ieee"),
    "f8e4m3fn": Format(4, 3, 7, "fn"),
    "f8e4m3fnuz": Format(4, 3, 8, "fnuz"),
    "f8e4m3b11fnuz": Format(4, 3, 11, "fnuz"),
    "f8e5m2fnuz": Format(5, 2, 16, "fnuz"),
    "f6e3m2fn": Format(3, 2, 3, "finite"),
    "f6e2m3fn": Format(2, 3, 1, "finite"),
    "f4e2m1fn": Format(2, 1, 1, "finite"),
}


#: The float that is an exponent alone: a power of two, without sign or zero, and NaN.
POWER, _POWER_BIAS, _POWER_NAN = "f8e8m0fnu", 127, 255


def decoded(name: str, patterns: Patterns) -> NDArray[np.float64]:
    """The values of patterns, exact."""
    if name == POWER:
        return np.where(patterns == _POWER_NAN, np.nan, np.ldexp(1.0, patterns.astype(np.int64) - _POWER_BIAS))
    e, m, bias, special = FORMATS[name]
    bits = patterns.astype(np.int64)
    sign, exponent, mantissa = bits >> (e + m) & 1, bits >> m & (1 << e) - 1, bits & (1 << m) - 1
    scale = np.ldexp(1.0, np.maximum(exponent, 1) - bias - m)
    values = np.where(sign == 1, -1.0, 1.0) * (mantissa + np.where(exponent > 0, 1 << m, 0)) * scale
    highest = exponent == (1 << e) - 1
    if special == "ieee":
        infinite = np.where(sign == 1, -np.inf, np.inf)
        values = np.where(highest, np.where(mantissa == 0, infinite, np.nan), values)
    elif special == "fn":
        values = np.where(highest & (mantissa == (1 << m) - 1), np.nan, values)
    elif special == "fnuz":
        values = np.where(bits == 1 << (e + m), np.nan, values)
    return np.asarray(values)


def encoded(name: str, values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The patterns of values rounded once, to nearest and to even where two are; NaN is -1."""
    if name == POWER:
        return _powers(values)
    e, m, _, special = FORMATS[name]
    positive = np.arange(1 << (e + m))
    magnitudes = decoded(name, positive)
    finite = positive[np.isfinite(magnitudes)]
    known = magnitudes[finite]
    size = np.abs(np.where(np.isnan(values), 0, values))
    above = np.searchsorted(known, size)
    low, high = np.maximum(above - 1, 0), np.minimum(above, len(known) - 1)
    middle = (known[low] + known[high]) / 2
    up = (size > middle) | ((size == middle) & (finite[high] % 2 == 0))
    found = np.where(up, finite[high], finite[low])
    # What would be the next value, had the format one more: from half the way on there is no room.
    step = known[-1] - known[-2]
    limit = known[-1] + step / 2
    too_large = (size > limit) | ((size == limit) & (finite[-1] % 2 == 1))
    beyond = {"ieee": ((1 << e) - 1) << m, "fn": -1, "fnuz": -1, "finite": int(finite[-1])}[special]
    found = np.where(too_large, beyond, found)
    negative = np.signbit(values) & (found >= 0) & ~((special == "fnuz") & (found == 0))
    return np.asarray(np.where(np.isnan(values), -1, np.where(negative, found | 1 << (e + m), found)))


def _powers(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The nearest powers of two, the larger where two are; -1 for what is not positive, or beyond the largest.

    Between the least power and the next one the larger is taken: so do ml_dtypes and XLA, where f32 is subnormal.
    """
    known = np.isfinite(values) & (values > 0)
    fraction, exponent = np.frexp(np.where(known, values, 1.0))
    found = np.maximum(exponent - 1 + (fraction >= 0.75) + _POWER_BIAS, 0)
    least = 2.0**-_POWER_BIAS
    found = np.where((values > least) & (values < 2 * least), 1, found)
    return np.where(known & (found < _POWER_NAN), found, -1).astype(np.int64)


def is_nan(name: str, patterns: Patterns) -> NDArray[np.bool_]:
    """Which patterns are NaN."""
    return np.isnan(decoded(name, patterns))


def truncated(values: NDArray[np.float64], low: int, high: int) -> list[int]:
    """Floats as the nearest integers towards 0 between two limits, NaN as 0, in Python's integers."""
    return [0 if v != v else max(low, min(high, int(max(min(v, 1e300), -1e300)))) for v in values.tolist()]


def by_xla(questions: Sequence[tuple[str, str, Patterns]]) -> list[Patterns]:
    """What XLA's ``convert`` makes of patterns, for each (type, type, patterns); types by NumPy's names."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = str(Path(folder) / "asked.npz"), str(Path(folder) / "answered.npz")
        np.savez(asked, **{str(i): patterns for i, (_, _, patterns) in enumerate(questions)})
        pairs = [question[:2] for question in questions]
        question = json.dumps({"pairs": pairs, "asked": asked, "answered": answered})
        environment = dict(os.environ, JAX_PLATFORMS="cpu", JAX_ENABLE_X64="1")
        subprocess.run([sys.executable, __file__], input=question, text=True, env=environment, check=True)
        with np.load(answered) as found:
            return [found[str(i)] for i in range(len(questions))]


def _main() -> None:
    import jax
    import ml_dtypes

    question = json.load(sys.stdin)
    found = {}
    with np.load(question["asked"]) as asked:
        for i, (source, target) in enumerate(question["pairs"]):
            dtypes = [np.dtype(getattr(ml_dtypes, name, name)) for name in (source, target)]
            values = asked[str(i)].view(dtypes[0])
            converted = np.asarray(jax.jit(lambda x, to=dtypes[1]: jax.lax.convert_element_type(x, to))(values))
            found[str(i)] = converted.view(f"u{dtypes[1].itemsize}")
    np.savez(question["answered"], **found)


if __name__ == "__main__":
    _main()
