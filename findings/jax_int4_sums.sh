#!/usr/bin/env bash
# Guess before the run: `jnp.sum` of an int4 array is an int32, as of an int8 array.
#
# Seen with jax and jaxlib 0.10.2, ml_dtypes 0.6.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: `jnp.sum` and
# `jnp.prod` of int4 and uint4 are errors of NumPy's `iinfo`. `jnp.cumsum` and `jnp.dot` of the same array work, and wrap
# in int4; `jnp.mean` works in float32. With dtype=jnp.int32, sum and dot are right.
#
# Output seen (of the numbers -8 to 7, and for dot of these with themselves, which is 344):
#   sum: ValueError: Invalid integer data type 'V'.
#   prod: ValueError: Invalid integer data type 'V'.
#   mean: float32 -0.5
#   dot: int4 -8
#   sum in int32: int32 -8
#   sum of int8: int32 -8
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.2
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import sys

import jax.numpy as jnp

values = jnp.arange(-8, 8).astype(jnp.int4)
calls = {
    "sum": lambda: jnp.sum(values),
    "prod": lambda: jnp.prod(values),
    "mean": lambda: jnp.mean(values),
    "dot": lambda: jnp.dot(values, values),
    "sum in int32": lambda: jnp.sum(values, dtype=jnp.int32),
    "sum of int8": lambda: jnp.sum(values.astype(jnp.int8)),
}
found = []
for name, call in calls.items():
    try:
        result = call()
        found.append(f"{result.dtype} {result}")
    except ValueError as error:
        found.append(f"ValueError: {str(error).splitlines()[0]}")
    print(f"{name}: {found[-1]}")
invalid = "ValueError: Invalid integer data type 'V'."
sys.exit(found != [invalid, invalid, "float32 -0.5", "int4 -8", "int32 -8", "int32 -8"])
PYTHON
