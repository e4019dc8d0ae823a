#!/usr/bin/env bash
# Guess before the run: `cuda.shfl_sync` of 64-bit values gives them back whole, as in numba-cuda, which splits them.
#
# Seen with numba-cuda-mlir 0.6.0, numba-cuda 0.30.4, CUDA 13.0, Python 3.11 on x86-64, 2026-11-28: a kernel that copies
# the float64 of lane 0 to all lanes compiles without a word, but its PTX rounds each value to float32 before one
# shuffle of 32 bits, and widens it after. An int64 keeps its low 32 bits and gets their sign. numba-cuda shuffles two
# halves. No GPU is needed to see it: PTX is compiled for one, whose capability is given in place of the driver's.
#
# Output seen (shuffles, and conversions from float64 to float32):
#   numba_cuda: float64 2 and 0
#   numba_cuda: int64 2 and 0
#   numba_cuda: float32 1 and 0
#   numba_cuda_mlir: float64 1 and 1
#   numba_cuda_mlir: int64 1 and 0
#   numba_cuda_mlir: float32 1 and 0
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check numba-cuda==0.30.4 numba-cuda-mlir==0.6.0 numba==0.68.1 \
  numpy==2.4.6 nvidia-nvvm==13.0.88 nvidia-cuda-nvrtc==13.0.88 nvidia-nvjitlink==13.0.88 nvidia-cuda-nvcc==13.0.88
cat >"$work/shuffles.py" <<'PYTHON'
import re
import sys

found = []
if sys.argv[1] == "numba_cuda_mlir":
    import numba_cuda_mlir.tools

    # `cc=` does not suffice: without a driver, this is asked for too.
    numba_cuda_mlir.tools._cached_cc = 9, 0
    from numba_cuda_mlir import cuda, types
else:
    from numba import cuda, types


def kernel(values):
    i = cuda.threadIdx.x
    values[i] = cuda.shfl_sync(0xFFFFFFFF, values[i], 0)


for name in ("float64", "int64", "float32"):
    text, _ = cuda.compile_ptx(kernel, types.void(getattr(types, name)[::1]), cc=(9, 0))
    found.append((len(re.findall(r"\bshfl\.sync", text)), len(re.findall(r"\bcvt\.rn\.f32\.f64", text))))
    print(f"{sys.argv[1]}: {name} {found[-1][0]} and {found[-1][1]}")
expected = {"numba_cuda": [(2, 0), (2, 0), (1, 0)], "numba_cuda_mlir": [(1, 1), (1, 0), (1, 0)]}
sys.exit(found != expected[sys.argv[1]])
PYTHON
"$work/venv/bin/python" "$work/shuffles.py" numba_cuda
"$work/venv/bin/python" "$work/shuffles.py" numba_cuda_mlir
