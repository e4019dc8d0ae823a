#!/usr/bin/env bash
# Guess before the run: a left shift of ml_dtypes' uint4 drops what does not fit 4 bits: 1 << 4 is 0.
#
# Seen with ml_dtypes 0.6.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: the type has no loops for them, and NumPy
# converts to int8, signed for uint4 too. So 15 << 4 is -16, bits shifted out of a nibble stay, and a maximum or a
# bitwise "and" of two uint4 arrays is an int8 array. Sums, products and remainders stay uint4 and wrap at 16.
#
# Output seen (of 1, 8 and 15, with 4):
#   left_shift: int8 [16, -128, -16]
#   bitwise_and: int8 [0, 0, 4]
#   maximum: int8 [4, 8, 15]
#   add: uint4 [5, 12, 3]
#   multiply: uint4 [4, 0, 12]
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check ml_dtypes==0.6.0 numpy==2.4.2
"$work/venv/bin/python" - <<'PYTHON'
import sys

import ml_dtypes
import numpy as np

left, right = np.array([1, 8, 15]).astype(ml_dtypes.uint4), np.array([4, 4, 4]).astype(ml_dtypes.uint4)
found = {}
for name in ("left_shift", "bitwise_and", "maximum", "add", "multiply"):
    result = getattr(np, name)(left, right)
    found[name] = (result.dtype.name, result.astype(int).tolist())
    print(f"{name}: {found[name][0]} {found[name][1]}")
expected = {
    "left_shift": ("int8", [16, -128, -16]),
    "bitwise_and": ("int8", [0, 0, 4]),
    "maximum": ("int8", [4, 8, 15]),
    "add": ("uint4", [5, 12, 3]),
    "multiply": ("uint4", [4, 0, 12]),
}
sys.exit(found != expected)
PYTHON
