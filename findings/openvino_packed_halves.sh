#!/usr/bin/env bash
# Guess before the run: OpenVINO's own packer writes 4-bit values in the order in which OpenVINO reads them.
#
# Seen with openvino 2026.4.1, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: `openvino.helpers.pack_data` puts the
# first of two 4-bit values into the high half of a byte (of 2-bit values: into the two high bits), and `unpack_data`
# reads them back so. The CPU plugin computes with the first value in the low half. A constant made of packed weights
# therefore has all neighbours swapped, and no error. Values of 1 bit agree.
#
# Output seen:
#   u4: packed [1, 2, 3, 4, 5, 6, 7, 8], unpacked [1, 2, 3, 4, 5, 6, 7, 8], computed [2, 1, 4, 3, 6, 5, 8, 7]
#   u2: packed [0, 1, 2, 3, 3, 2, 1, 0], unpacked [0, 1, 2, 3, 3, 2, 1, 0], computed [3, 2, 1, 0, 0, 1, 2, 3]
#   u1: packed [1, 0, 0, 1, 1, 1, 0, 1], unpacked [1, 0, 0, 1, 1, 1, 0, 1], computed [1, 0, 0, 1, 1, 1, 0, 1]
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check openvino==2026.4.1 numpy==2.4.2
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.helpers import pack_data, unpack_data

expected = {"u4": [2, 1, 4, 3, 6, 5, 8, 7], "u2": [3, 2, 1, 0, 0, 1, 2, 3], "u1": [1, 0, 0, 1, 1, 1, 0, 1]}
given = {"u4": [1, 2, 3, 4, 5, 6, 7, 8], "u2": [0, 1, 2, 3, 3, 2, 1, 0], "u1": [1, 0, 0, 1, 1, 1, 0, 1]}
core, same = ov.Core(), True
print("openvino", ov.__version__)
for name, values in given.items():
    kind = getattr(ov.Type, name)
    packed = pack_data(np.array(values, np.uint8), kind)
    tensor = ov.Tensor(packed, ov.Shape([len(values)]), kind)
    again = unpack_data(tensor.data, kind, tensor.shape).tolist()
    result = core.compile_model(ov.Model([ops.convert(ops.constant(tensor), "i32")], []), "CPU")([])[0].tolist()
    print(f"{name}: packed {values}, unpacked {again}, computed {result}")
    same &= again == values and result == expected[name]
sys.exit(not same)
PYTHON
