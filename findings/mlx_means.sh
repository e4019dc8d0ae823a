#!/usr/bin/env bash
# Guess before the run: MLX's mean of 70,000 float16 ones is 1, and its cumulative sums of uint8 are those of NumPy. The
# smaller arrays here, and int32, came after.
#
# Seen with mlx 0.32.4 on the CPU, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-29: `mean` adds up in the type of the
# array. So the mean of a hundred float16 numbers of 1000 is infinite, their sum being above 65504, and the mean of
# int32 numbers is that of a sum which has wrapped; `var` is wrong with it. `sum` of uint8 is a uint32, but `cumsum` of
# the same array stays uint8 and wraps. With `astype(mx.float32)` first, the means are right.
#
# Output seen:
#   float16, 100 times 1000: MLX mean inf, in float32 1000.0, NumPy 1000.0
#   int32, 3 times 2147483646: MLX mean 715827904.0, in float32 2147483648.0, NumPy 2147483646.0
#   uint8, 300 times 1: MLX sum 300, last of cumsum 44, NumPy 300 and 300
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check 'mlx[cpu]==0.32.4' numpy==2.4.2
"$work/venv/bin/python" - <<'PYTHON'
import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)
found = []
for count, number, name in ((100, 1000, "float16"), (3, 2**31 - 2, "int32")):
    array = np.full(count, number, name)
    values = mx.array(array)
    means = values.mean().item(), values.astype(mx.float32).mean().item(), float(array.mean())
    print(f"{name}, {count} times {number}: MLX mean {means[0]}, in float32 {means[1]}, NumPy {means[2]}")
    found.append(means)
array = np.ones(300, np.uint8)
values = mx.array(array)
sums = values.sum().item(), values.cumsum()[-1].item(), int(array.sum()), int(array.cumsum()[-1])
print(f"uint8, 300 times 1: MLX sum {sums[0]}, last of cumsum {sums[1]}, NumPy {sums[2]} and {sums[3]}")
infinite = float("inf"), 1000.0, 1000.0
wrapped = 715827904.0, 2147483648.0, 2147483646.0
sys.exit(found != [infinite, wrapped] or sums != (300, 44, 300, 300))
PYTHON
