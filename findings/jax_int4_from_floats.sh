#!/usr/bin/env bash
# Guess before the run: JAX converts floats that int4 cannot hold alike, on the device and on the way to it.
#
# Seen with jax and jaxlib 0.10.2, ml_dtypes 0.6.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: three calls have
# three answers. `array.astype("int4")` clamps, `jnp.asarray(array, "int4")` of the same array on the device as well. Of a
# NumPy array, `jnp.asarray` keeps the low bits, so 9 becomes -7; of a list it is an error. So codes that are beyond the
# range change their sign only where they come from NumPy.
#
# Output seen:
#   int4: astype [7, 7, -8, 7], device [7, 7, -8, 7], NumPy [7, -7, 7, 4], list OverflowError
#   uint4: astype [7, 9, 0, 15], device [7, 9, 0, 15], NumPy [7, 9, 7, 4], list OverflowError
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

print("jax", jax.__version__)
found = []
values = np.array([7.0, 9.0, -9.0, 100.0], np.float32)
on_device = jnp.asarray(values)
for name in ("int4", "uint4"):
    results = [on_device.astype(name), jnp.asarray(on_device, name), jnp.asarray(values, name)]
    try:
        jnp.asarray(values.tolist(), name)
        of_list = "no error"
    except OverflowError as error:
        of_list = type(error).__name__
    numbers = [np.asarray(result).astype(int).tolist() for result in results]
    found.append((*numbers, of_list))
    print(f"{name}: astype {numbers[0]}, device {numbers[1]}, NumPy {numbers[2]}, list {of_list}")
clamped, wrapped = [[7, 7, -8, 7], [7, 9, 0, 15]], [[7, -7, 7, 4], [7, 9, 7, 4]]
sys.exit(found != [(few, few, low, "OverflowError") for few, low in zip(clamped, wrapped)])
PYTHON
