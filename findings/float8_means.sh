#!/usr/bin/env bash
# Guess before the run: JAX's mean of a thousand ones is 1 in every float type. NumPy's sums in bfloat16 and float8 were
# expected to stop growing, and are here for comparison.
#
# Seen with jax and jaxlib 0.10.2, ml_dtypes 0.6.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: JAX's mean of
# float8_e4m3fn is NaN, because it divides by 1000 in that type, whose largest number is 448. NumPy adds up types of
# ml_dtypes in the array's own type, one element after the other: a sum of ones stops at 256 in bfloat16 and at 16 in
# float8_e4m3fn, so the mean of bfloat16 is 0.256 and the standard deviation of equal numbers 0.504. There is no warning.
# JAX is right for bfloat16, NumPy for its own float16, and both are right with dtype=float32.
#
# Output seen:
#   float16: NumPy mean 1.0, std 0.0, in float32 1.0; JAX mean 1.0, std 0.0, in float32 1.0
#   bfloat16: NumPy mean 0.255859375, std 0.50390625, in float32 1.0; JAX mean 1.0, std 0.0, in float32 1.0
#   float8_e4m3fn: NumPy mean 0.015625, std 0.125, in float32 1.0; JAX mean nan, std nan, in float32 1.0
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.2
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np

print("jax", jax.__version__, "numpy", np.__version__)
expected = {
    "float16": [1, 0, 1, 1, 0, 1],
    "bfloat16": [0.255859375, 0.50390625, 1, 1, 0, 1],
    "float8_e4m3fn": [0.015625, 0.125, 1, np.nan, np.nan, 1],
}
same = True
for name, wanted in expected.items():
    texts, found = [], []
    for library, numpy in (("NumPy", np), ("JAX", jnp)):
        ones = numpy.ones(1000, name)
        found += [float(one) for one in (ones.mean(), ones.std(), ones.mean(dtype=np.float32))]
        texts.append(f"{library} mean {found[-3]}, std {found[-2]}, in float32 {found[-1]}")
    print(f"{name}: {'; '.join(texts)}")
    same &= np.array_equal(found, wanted, equal_nan=True)
sys.exit(not same)
PYTHON
