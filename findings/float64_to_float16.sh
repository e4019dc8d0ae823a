#!/usr/bin/env bash
# Guess before the run: JAX and ONNX Runtime convert float64 to float16 with one rounding, as NumPy does. That bfloat16
# is rounded twice, by way of float32, was expected.
#
# Seen with jax and jaxlib 0.10.2, onnxruntime 1.32.0, onnx 1.22.0, numpy 2.4.2, Python 3.11 on x86-64, 2026-11-28: both
# round to float32 first. 1 + 2**-11 + 2**-30, which is nearer to 1 + 2**-10, becomes 1. Of 100,000 random numbers between
# 1 and 2, 5 differ from the nearest float16. NumPy's `astype` gives the nearest one. So a float64 checkpoint converted
# by two libraries differs in a few elements per 100,000.
#
# Output seen:
#   NumPy: 1 + 2**-11 + 2**-30 becomes 1.0009765625, 0 of 100000 are not the nearest
#   JAX: 1 + 2**-11 + 2**-30 becomes 1.0, 5 of 100000 are not the nearest
#   ONNX Runtime: 1 + 2**-11 + 2**-30 becomes 1.0, 5 of 100000 are not the nearest
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 onnxruntime==1.32.0 \
  onnx==1.22.0 numpy==2.4.2
JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 "$work/venv/bin/python" - <<'PYTHON'
import sys

import jax.numpy as jnp
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

values = np.append(np.random.default_rng(0).uniform(1, 2, 100_000), 1 + 2**-11 + 2**-30)


def by_onnxruntime(array):
    ends = [
        helper.make_tensor_value_info(name, kind, array.shape)
        for name, kind in (("x", TensorProto.DOUBLE), ("y", TensorProto.FLOAT16))
    ]
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16)], "graph", ends[:1], ends[1:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": array})[0]


# Between 1 and 2, float16 has steps of 2**-10, and `values * 2**10` is exact.
nearest = np.round(values * 2**10) / 2**10
found = []
for name, converted in (
    ("NumPy", values.astype(np.float16)),
    ("JAX", np.asarray(jnp.asarray(values).astype(jnp.float16))),
    ("ONNX Runtime", by_onnxruntime(values)),
):
    wrong = int((converted[:-1] != nearest[:-1]).sum())
    found.append((float(converted[-1]), wrong))
    print(f"{name}: 1 + 2**-11 + 2**-30 becomes {found[-1][0]}, {wrong} of 100000 are not the nearest")
sys.exit(found != [(1 + 2**-10, 0), (1.0, 5), (1.0, 5)])
PYTHON
