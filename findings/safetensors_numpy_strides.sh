#!/usr/bin/env bash
# Guess before the run: `safetensors.numpy.save_file` writes the elements of a transposed array in the order of its
# dimensions, as every earlier version does.
#
# Seen with safetensors 0.8.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: it writes the memory from the address of
# the first element on, and ignores strides. A transposed array, one in Fortran order, a column of a matrix and every
# second element are saved as other values under the right shape, without an error; `save` does the same. Until 0.7.0
# all of them are right. Copies by `numpy.ascontiguousarray` are saved right in both.
#
# Output seen:
#   safetensors 0.8.0: contiguous right, transposed wrong, Fortran order wrong, columns wrong, every second wrong
#   safetensors 0.7.0: contiguous right, transposed right, Fortran order right, columns right, every second right
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/strides.py" <<'PYTHON'
import sys

import numpy as np
import safetensors
from safetensors.numpy import load_file, save_file

matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
arrays = {
    "contiguous": matrix,
    "transposed": matrix.T,
    "Fortran order": np.asfortranarray(matrix),
    "columns": matrix[:, :2],
    "every second": matrix[:, ::2],
}
path = sys.argv[1]
found = []
for array in arrays.values():
    save_file({"array": array}, path)
    loaded = load_file(path)["array"]
    assert loaded.shape == array.shape and loaded.dtype == array.dtype
    found.append(np.array_equal(loaded, array))
words = [f"{name} {'right' if right else 'wrong'}" for name, right in zip(arrays, found)]
print(f"safetensors {safetensors.__version__}: {', '.join(words)}")
sys.exit(found != [True] + [safetensors.__version__ == "0.7.0"] * 4)
PYTHON
for version in 0.8.0 0.7.0; do
  python3 -m venv "$work/$version"
  "$work/$version/bin/pip" install -q --disable-pip-version-check safetensors==$version numpy==2.4.2
  "$work/$version/bin/python" "$work/strides.py" "$work/array.safetensors"
done
