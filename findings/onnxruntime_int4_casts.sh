#!/usr/bin/env bash
# Guess before the run: ONNX Runtime's Cast from float to INT4 clamps what the type does not hold: 300 becomes 7.
#
# Seen with onnxruntime 1.32.0, onnx 1.22.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: Cast to INT4 and UINT4
# rounds, halves away from zero, and then keeps the low bits. So 7.5 becomes -8, 8 becomes -8 and 300 becomes -4, without
# an error. Cast to INT8 drops fractions, so 2.5 becomes 3 in INT4 and 2 in INT8. QuantizeLinear clamps, and rounds halves
# to even.
#
# Output seen (of the inputs 2.5, -2.5, 3.5, 7.5, 8, -9, 300):
#   Cast to INT4: [3, -3, 4, -8, -8, 7, -4]
#   Cast to UINT4: [3, 13, 4, 8, 8, 7, 12]
#   Cast to INT8: [2, -2, 3, 7, 8, -9, 44]
#   QuantizeLinear to INT4: [2, -2, 4, 7, 7, -8, 7]
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check onnxruntime==1.32.0 onnx==1.22.0 numpy==2.4.2
"$work/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

VALUES = np.array([2.5, -2.5, 3.5, 7.5, 8, -9, 300], np.float32)


def run(nodes, initializers):
    ends = [
        helper.make_tensor_value_info(name, kind, VALUES.shape)
        for name, kind in (("x", TensorProto.FLOAT), ("z", TensorProto.INT32))
    ]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": VALUES})[0].tolist()


widen = helper.make_node("Cast", ["y"], ["z"], to=TensorProto.INT32)
found = {
    f"Cast to {name}": run([helper.make_node("Cast", ["x"], ["y"], to=getattr(TensorProto, name)), widen], [])
    for name in ("INT4", "UINT4", "INT8")
}
scale = [numpy_helper.from_array(np.float32(1), "scale"), helper.make_tensor("zero", TensorProto.INT4, [], [0])]
quantize = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])
found["QuantizeLinear to INT4"] = run([quantize, widen], scale)
for name, values in found.items():
    print(f"{name}: {values}")
expected = {
    "Cast to INT4": [3, -3, 4, -8, -8, 7, -4],
    "Cast to UINT4": [3, 13, 4, 8, 8, 7, 12],
    "Cast to INT8": [2, -2, 3, 7, 8, -9, 44],
    "QuantizeLinear to INT4": [2, -2, 4, 7, 7, -8, 7],
}
sys.exit(found != expected)
PYTHON
