#!/usr/bin/env bash
# Guess before the run: torchao quantises a layer whose weights are all zero to zeros, in NVFP4 as in its other formats.
#
# Seen with torchao 0.18.0, torch 2.13.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28, on the CPU: with
# `NVFP4WeightOnlyConfig` all weights become NaN, and so do all outputs of the model. The scale of the whole tensor
# is its largest magnitude over a constant, 0 here, and the scales of blocks are divided by it. If one weight is not
# zero, the others become zeros. Layers that begin at zero are common: the last of a residual branch, the second of
# an adapter.
#
# Output seen:
#   zeros: NVFP4WeightOnlyConfig 4096 of 4096 weights NaN, outputs NaN True
#   zeros but one: NVFP4WeightOnlyConfig 0 of 4096 weights NaN, outputs NaN False
#   zeros: Int8WeightOnlyConfig 0 of 4096 weights NaN, outputs NaN False
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check torchao==0.18.0 torch==2.13.0 numpy==2.4.2
"$work/venv/bin/python" - <<'PYTHON' 2>"$work/log"
import sys

import torch
import torchao
from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
from torchao.quantization import Int8WeightOnlyConfig, quantize_

print("torchao", torchao.__version__)
found = []
for name, first, config in (
    ("zeros", 0.0, NVFP4WeightOnlyConfig),
    ("zeros but one", 1.0, NVFP4WeightOnlyConfig),
    ("zeros", 0.0, Int8WeightOnlyConfig),
):
    layer = torch.nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    layer.weight.data.zero_()[0, 0] = first
    model = torch.nn.Sequential(layer)
    quantize_(model, config())
    weights = int(model[0].weight.dequantize().isnan().sum())
    with torch.no_grad():
        outputs = bool(model(torch.ones(8, 64, dtype=torch.bfloat16)).isnan().any())
    found.append((weights, outputs))
    print(f"{name}: {config.__name__} {weights} of 4096 weights NaN, outputs NaN {outputs}")
sys.exit(found != [(4096, True), (0, False), (0, False)])
PYTHON
