#!/usr/bin/env bash
# Guess before the run: `lax.population_count` and `lax.clz` of an int4 array count in its four bits, so -1 has 4 ones.
#
# Seen with jax and jaxlib 0.10.2, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-29: XLA's CPU compiler counts the ones of
# negative int4 numbers in eight bits, the sign extended: -8 has 5, and -1 has 8, which wraps to -8 in the int4 result.
# Numbers of uint4 with the same bits are right, and so are leading zeros and logical shifts of int4.
#
# Output seen (of the bits 1111, 1000, 0001 and 0111):
#   int4: ones [-8, 5, 1, 3], leading zeros [0, 0, 3, 1], shifted right [7, 4, 0, 3]
#   uint4: ones [4, 1, 1, 3], leading zeros [0, 0, 3, 1], shifted right [7, 4, 0, 3]
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.2
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

print("jax", jax.__version__)
rest = [0, 0, 3, 1], [7, 4, 0, 3]
expected = {"int4": ([-8, 5, 1, 3], *rest), "uint4": ([4, 1, 1, 3], *rest)}
found = {}
for name in expected:
    values = jnp.array([-1, -8, 1, 7], "int8").astype(name)
    shifted = lax.shift_right_logical(values, jnp.ones_like(values))
    results = lax.population_count(values), lax.clz(values), shifted
    ones, zeros, shifted = found[name] = tuple(np.asarray(result).astype(int).tolist() for result in results)
    print(f"{name}: ones {ones}, leading zeros {zeros}, shifted right {shifted}")
sys.exit(found != expected)
PYTHON
