#!/usr/bin/env bash
# Guess before the run: PyTorch, JAX and ml_dtypes convert float32 to float8_e8m0fnu, the type of scales of MX formats,
# to the same byte: 0 to the smallest power of two, a negative number to NaN.
#
# Seen with torch 2.13.0, jax and jaxlib 0.10.2, ml_dtypes 0.6.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: the
# type has neither a zero nor a sign. ml_dtypes and JAX convert 0 and negative numbers to NaN, so a block of zeros gets
# a NaN scale. PyTorch converts 0 to 2**-127 and drops the sign: -4 becomes 4, without an error. Positive numbers agree.
# `zeros` of the type are NaN in JAX, and 2**-127 in NumPy and PyTorch.
#
# Output seen (of 4, 3, 0, -0, -4, infinity and NaN; byte 255 is NaN, byte b is 2**(b - 127)):
#   ml_dtypes: [129, 129, 255, 255, 255, 255, 255]
#   JAX: [129, 129, 255, 255, 255, 255, 255]
#   PyTorch: [129, 129, 0, 0, 129, 255, 255]
#   zeros of NumPy, JAX, PyTorch: [0, 255, 0]
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 ml_dtypes==0.6.0 numpy==2.4.2
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

print("torch", torch.__version__, "jax", jax.__version__, "ml_dtypes", ml_dtypes.__version__)
values = np.array([4, 3, 0, -0.0, -4, np.inf, np.nan], np.float32)
kind = np.dtype(ml_dtypes.float8_e8m0fnu)
found = {
    "ml_dtypes": values.astype(kind).view(np.uint8).tolist(),
    "JAX": np.asarray(jnp.asarray(values).astype(kind)).view(np.uint8).tolist(),
    "PyTorch": torch.from_numpy(values).to(torch.float8_e8m0fnu).view(torch.uint8).tolist(),
}
zeros = [
    int(np.zeros(1, kind).view(np.uint8)[0]),
    int(np.asarray(jnp.zeros(1, kind)).view(np.uint8)[0]),
    int(torch.zeros(1, dtype=torch.float8_e8m0fnu).view(torch.uint8)[0]),
]
for name, numbers in found.items():
    print(f"{name}: {numbers}")
print("zeros of NumPy, JAX, PyTorch:", zeros)
most = [129, 129, 255, 255, 255, 255, 255]
expected = {"ml_dtypes": most, "JAX": most, "PyTorch": [129, 129, 0, 0, 129, 255, 255]}
sys.exit(found != expected or zeros != [0, 255, 0])
PYTHON
