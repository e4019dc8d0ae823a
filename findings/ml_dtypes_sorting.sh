#!/usr/bin/env bash
# Guess before the run: NumPy sorts arrays of ml_dtypes' floats as its own, with NaN last.
#
# Seen with ml_dtypes 0.6.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: one NaN in an array of bfloat16 or of 8-bit
# floats, and `numpy.sort` leaves the other elements unsorted, without a warning; `argsort` and `partition` do the same,
# and `numpy.unique` keeps equal values twice. Without NaN, all types are sorted.
#
# Output seen:
#   float32: sorted [0.5, 1.0, 1.0, 2.0, 4.0, nan], unique [0.5, 1.0, 2.0, 4.0, nan]
#   bfloat16: sorted [1.0, 4.0, nan, 0.5, 1.0, 2.0], unique [1.0, 4.0, nan, 0.5, 1.0, 2.0]
#   float8_e4m3fn: sorted [1.0, 4.0, nan, 0.5, 1.0, 2.0], unique [1.0, 4.0, nan, 0.5, 1.0, 2.0]
#   float8_e8m0fnu: sorted [1.0, 4.0, nan, 0.5, 1.0, 2.0], unique [1.0, 4.0, nan, 0.5, 1.0, 2.0]
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

print("ml_dtypes", ml_dtypes.__version__)
values = np.array([4, 1, np.nan, 1, 2, 0.5], np.float32)
found = {}
for name in ("float32", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu"):
    array = values.astype(name)
    results = [list(map(float, function(array))) for function in (np.sort, np.unique)]
    plain = np.sort(array[~np.isnan(array)]).astype(np.float32)
    assert (np.diff(plain) >= 0).all()
    found[name] = str(results)
    print(f"{name}: sorted {results[0]}, unique {results[1]}")
right, wrong = "[0.5, 1.0, 1.0, 2.0, 4.0, nan]", "[1.0, 4.0, nan, 0.5, 1.0, 2.0]"
same = found.pop("float32") == f"[{right}, [0.5, 1.0, 2.0, 4.0, nan]]"
sys.exit(not same or any(text != f"[{wrong}, {wrong}]" for text in found.values()))
PYTHON
