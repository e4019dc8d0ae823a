#!/usr/bin/env bash
# Guess before the run: if gguf-py quantises a block with a NaN, all of that block is NaN.
#
# Seen with gguf 0.19.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: not in MXFP4. There all 32 weights of the block
# become 0, so the other 31 are lost, and a scan of the file for NaN finds none. In Q4_0, Q5_0 and Q8_0 all 32 are NaN.
#
# Output seen (of 32 ones, one of them replaced by NaN):
#   MXFP4: 0 NaN and 32 zeros
#   Q4_0: 32 NaN and 0 zeros
#   Q5_0: 32 NaN and 0 zeros
#   Q8_0: 32 NaN and 0 zeros
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check gguf==0.19.0 numpy==2.4.2
"$work/venv/bin/python" -W ignore - <<'PYTHON'
import sys
from importlib.metadata import version

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

print("gguf", version("gguf"))
found = {}
for name in ("MXFP4", "Q4_0", "Q5_0", "Q8_0"):
    kind = GGMLQuantizationType[name]
    weights = np.ones((1, 32), np.float32)
    weights[0, 3] = np.nan
    back = dequantize(quantize(weights, kind), kind)
    found[name] = (int(np.isnan(back).sum()), int((back == 0).sum()))
    print(f"{name}: {found[name][0]} NaN and {found[name][1]} zeros")
sys.exit(found != {name: (0, 32) if name == "MXFP4" else (32, 0) for name in found})
PYTHON
