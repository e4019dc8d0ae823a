#!/usr/bin/env bash
# Guess before the run: Dask tells arrays apart whose dtypes differ, those of ml_dtypes included.
#
# Seen with dask 2026.8.0, ml_dtypes 0.6.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: the name of a lazy array is
# a hash of its arguments, and of a dtype it takes `dtype.str`, which is "<V1" for most types of one byte. So the same
# array as float8_e4m3fn and as float8_e3m4, or as int4 and as float4_e2m1fn, gets one name, by `astype`, `view` and
# `ones`. Computed together, both results have the values and the dtype of the first, without a warning. Computed
# separately they are right. float8_e5m2, which is "<f1", gets a different name.
#
# Output seen (of 1.3, 2.7 and 7, converted and computed together):
#   float8_e4m3fn and float8_e3m4: one name True, float8_e4m3fn [1.25, 2.75, 7.0] and float8_e4m3fn [1.25, 2.75, 7.0]
#   float8_e3m4 and float8_e4m3fn: one name True, float8_e3m4 [1.3125, 2.75, 7.0] and float8_e3m4 [1.3125, 2.75, 7.0]
#   int4 and float4_e2m1fn: one name True, int4 [1.0, 2.0, 7.0] and int4 [1.0, 2.0, 7.0]
#   float8_e5m2 and float8_e4m3fn: one name False, float8_e5m2 [1.25, 2.5, 7.0] and float8_e4m3fn [1.25, 2.75, 7.0]
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "dask[array]==2026.8.0" ml_dtypes==0.6.0 numpy==2.4.2
"$work/venv/bin/python" - <<'PYTHON'
import sys

import dask
import dask.array as da
import ml_dtypes
import numpy as np

print("dask", dask.__version__)
values = np.array([1.3, 2.7, 7], np.float32)
same = True
for names, collide in (
    (("float8_e4m3fn", "float8_e3m4"), True),
    (("float8_e3m4", "float8_e4m3fn"), True),
    (("int4", "float4_e2m1fn"), True),
    (("float8_e5m2", "float8_e4m3fn"), False),
):
    dtypes = [np.dtype(getattr(ml_dtypes, name)) for name in names]
    lazy = [da.from_array(values).astype(dtype) for dtype in dtypes]
    found = dask.compute(*lazy)
    alone = [array.compute() for array in lazy]
    numbers = [array.astype(np.float32).tolist() for array in found]
    is_one = lazy[0].name == lazy[1].name
    shown = " and ".join(f"{array.dtype} {each}" for array, each in zip(found, numbers))
    print(f"{names[0]} and {names[1]}: one name {is_one}, {shown}")
    expected = [dtypes[0]] * 2 if collide else dtypes
    same &= is_one == collide and [array.dtype for array in found] == expected
    same &= [array.tobytes() for array in alone] == [values.astype(dtype).tobytes() for dtype in dtypes]
sys.exit(not same)
PYTHON
