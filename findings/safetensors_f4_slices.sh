#!/usr/bin/env bash
# Guess before the run: a slice of a stored tensor of 4-bit floats is that slice of the loaded tensor.
#
# Seen with safetensors 0.8.0, torch 2.13.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: PyTorch counts pairs, so
# float4_e2m1fn_x2 of (4, 8) is stored as F4 of (4, 16), and `get_tensor` gives (4, 8) back. `get_slice` of the same
# tensor reports (4, 16), and every slice of it is an error, of whole rows too. So a file in this type loads whole, but
# not in the parts that ranks of tensor parallelism read. Of the same bytes as uint8, all slices are right.
#
# Output seen:
#   F4: loaded (4, 8), shape of the slice [4, 16], rows RuntimeError, columns RuntimeError
#   U8: loaded (4, 8), shape of the slice [4, 8], rows (2, 8), columns (4, 4)
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check safetensors==0.8.0 torch==2.13.0 numpy==2.4.2
"$work/venv/bin/python" - "$work/two.safetensors" <<'PYTHON'
import sys

import safetensors
import torch
from safetensors.torch import save_file

print("safetensors", safetensors.__version__, "torch", torch.__version__)
codes = torch.arange(32, dtype=torch.uint8).reshape(4, 8)
save_file({"F4": codes.view(torch.float4_e2m1fn_x2), "U8": codes.clone()}, sys.argv[1])
found = {}
with safetensors.safe_open(sys.argv[1], "pt") as file:
    for name in ("F4", "U8"):
        whole, part = file.get_tensor(name), file.get_slice(name)
        assert torch.equal(whole.view(torch.uint8), codes)
        results = []
        for index in ((slice(1, 3),), (slice(None), slice(0, 4))):
            try:
                results.append(tuple(part[index].shape))
            except RuntimeError as error:
                results.append(type(error).__name__)
        found[name] = (tuple(whole.shape), part.get_shape(), *results)
        print(f"{name}: loaded {found[name][0]}, shape of the slice {found[name][1]}", end=", ")
        print(f"rows {results[0]}, columns {results[1]}")
expected = {
    "F4": ((4, 8), [4, 16], "RuntimeError", "RuntimeError"),
    "U8": ((4, 8), [4, 8], (2, 8), (4, 4)),
}
sys.exit(found != expected)
PYTHON
