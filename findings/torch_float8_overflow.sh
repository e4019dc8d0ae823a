#!/usr/bin/env bash
# Guess before the run: PyTorch, JAX and ml_dtypes convert float32 to an 8-bit float of the same name to the same value,
# NaN included.
#
# Seen with torch 2.13.0, jax and jaxlib 0.10.2, ml_dtypes 0.6.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: not
# beyond the range of float8_e4m3fn. PyTorch saturates: 500 and infinity become 448, so a tensor that overflowed looks
# valid. JAX and ml_dtypes give NaN. For float8_e5m2 all three agree, and there PyTorch does not saturate. For
# float8_e8m0fnu, the type of MX scales, which has neither zero nor a sign, PyTorch gives 2**-127 for 0 and drops the
# sign; the others give NaN.
#
# Output seen:
#   float8_e4m3fn of [464.0, 465.0, 500.0, -1000.0, inf]
#     torch [448.0, 448.0, 448.0, -448.0, 448.0]
#     jax [448.0, nan, nan, nan, nan]
#     ml_dtypes [448.0, nan, nan, nan, nan]
#   float8_e5m2 of [57344.0, 62000.0, -100000.0, inf]
#     torch [57344.0, inf, -inf, inf]
#     jax [57344.0, inf, -inf, inf]
#     ml_dtypes [57344.0, inf, -inf, inf]
#   float8_e8m0fnu of [3.0, 0.0, -2.0]
#     torch [4.0, 5.877471754111438e-39, 2.0]
#     jax [4.0, nan, nan]
#     ml_dtypes [4.0, nan, nan]
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 \
  numpy==2.4.2
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch

print("torch", torch.__version__, "jax", jax.__version__)
given = {
    "float8_e4m3fn": [464, 465, 500, -1000, np.inf],
    "float8_e5m2": [57344, 62000, -100000, np.inf],
    "float8_e8m0fnu": [3, 0, -2],
}
expected = {
    "float8_e4m3fn": [[448, 448, 448, -448, 448], *[[448, np.nan, np.nan, np.nan, np.nan]] * 2],
    "float8_e5m2": [[57344, np.inf, -np.inf, np.inf]] * 3,
    "float8_e8m0fnu": [[4, 2.0**-127, 2], *[[4, np.nan, np.nan]] * 2],
}
same = True
for name, numbers in given.items():
    values = np.array(numbers, np.float32)
    results = {
        "torch": torch.from_numpy(values).to(getattr(torch, name)).to(torch.float64).numpy(),
        "jax": np.asarray(jnp.asarray(values).astype(name)).astype(np.float64),
        "ml_dtypes": values.astype(name).astype(np.float64),
    }
    print(f"{name} of {values.tolist()}")
    for library, found in results.items():
        print(f"  {library} {found.tolist()}")
    same &= all(np.array_equal(*pair, equal_nan=True) for pair in zip(results.values(), expected[name]))
sys.exit(not same)
PYTHON
