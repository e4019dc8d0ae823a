#!/usr/bin/env bash
# Guess before the run: `torch.from_dlpack` of a read-only NumPy array is an error, or warns as `torch.from_numpy` does.
#
# Seen with torch 2.13.0, jax and jaxlib 0.10.2, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-29: it is a tensor that can
# be written, without a warning. NumPy passes on that the array is read-only, and NumPy's own `from_dlpack` keeps it.
# NumPy arrays of JAX arrays are read-only, because JAX assumes that its arrays never change: a sum in place, by such a
# tensor, changes the JAX array.
#
# Output seen (of zeros, after 9 is written to the first element of the tensor):
#   torch.from_numpy: warnings 1, array [9.0, 0.0, 0.0]
#   torch.from_dlpack: warnings 0, array [9.0, 0.0, 0.0]
#   torch.from_dlpack of np.asarray of a JAX array: warnings 0, array [9.0, 0.0, 0.0]
#   np.from_dlpack: writeable False
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 jax==0.10.2 jaxlib==0.10.2 numpy==2.4.2
JAX_PLATFORMS=cpu "$work/venv/bin/python" - <<'PYTHON'
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import torch

print("torch", torch.__version__, "jax", jax.__version__)
found = []


def write(name, function, array, of):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tensor = function(array)
    tensor[0] = 9
    found.append((len(caught), np.asarray(of).tolist()))
    print(f"{name}: warnings {found[-1][0]}, array {found[-1][1]}")


for name in ("from_numpy", "from_dlpack"):
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    write(f"torch.{name}", getattr(torch, name), array, array)
of_jax = jnp.zeros(3)
write("torch.from_dlpack of np.asarray of a JAX array", torch.from_dlpack, np.asarray(of_jax), of_jax)
writeable = np.from_dlpack(array).flags.writeable
print("np.from_dlpack: writeable", writeable)
changed = [9.0, 0.0, 0.0]
sys.exit(found != [(1, changed), (0, changed), (0, changed)] or writeable)
PYTHON
