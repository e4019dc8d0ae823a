r"""Functions of vendors, loaded from where their packages are installed; none of their code is in this repository.

Some packages want a GPU to be imported: their functions are taken out of the files by name, and run with NumPy and
PyTorch around them. An unpacked wheel on ``PYTHONPATH`` is enough.

To run all of them, on Linux without a GPU, with Python 3.11, whose wheels of auto-gptq are the last ones::

    python -m venv vendors && . vendors/bin/activate
    pip install -e '.[test]' 'torch==2.13.0' einops 'dask[array]'
    pip install gguf==0.19.0 mlx==0.32.4 mlx-cpu loguru psutil transformers
    pip install --no-deps torchao==0.18.0 bitsandbytes==0.50.2 compressed-tensors==0.20.0 triton \
        hqq==0.2.8.post1 optimum-quanto==0.2.7 ai-edge-quantizer==0.10.0 coremltools==9.0 \
        nncf==3.4.0 nvidia-modelopt==0.47.0
    pip install openvino==2026.4.1 onnxruntime==1.32.0
    for one in vllm==0.33.0 flashinfer-python==0.7.2.post1 amd-aiter==0.1.7.post2.dev18 sglang==0.5.23 \
               auto-gptq==0.7.1 autoawq==0.2.9 auto-round==0.16.1; do
        pip install --no-deps --no-build-isolation --target "vendors/unpacked/$one" "$one"
    done
    for version in 0.9.4 0.17.1; do
        pip install --no-deps --target vendors/unpacked/old "compressed-tensors==$version"
        mv vendors/unpacked/old/compressed_tensors "vendors/unpacked/old/compressed_tensors_${version//./}"
    done
    # Building gptqmodel takes a compiler of CUDA; its source is enough.
    pip download --no-deps --no-build-isolation --no-binary :all: -d vendors gptqmodel==7.7.0
    tar xzf vendors/gptqmodel-7.7.0.tar.gz -C vendors/unpacked
    # llama-cpp-python's archive has the source of llama.cpp, of which some functions are compiled.
    pip download --no-deps --no-binary :all: -d vendors llama-cpp-python==0.3.36
    tar xzf vendors/llama_cpp_python-0.3.36.tar.gz -C vendors/unpacked
    # nunchaku is not on PyPI, where another package has its name: its repository, 1.2.0dev, belongs on the path.
    export PYTHONPATH=$(printf '%s:' vendors/unpacked/*)
    for level in avx512 avx2 default; do
        ATEN_CPU_CAPABILITY=$level python -m pytest -q -rs tests/weights/test_vendor_formats.py
    done
    # Loaders: gptqmodel is imported from its source.
    pip install transformers==5.24.0 accelerate pillow datasets pypcre tokenicer logbar device-smi threadpoolctl defuser
    HF_HUB_OFFLINE=1 python -m pytest -q -rs tests/weights/test_vendor_loaders.py

On 2026-11-27 all of them agreed: 94 tests at a level, each of which skips the two other levels of PyTorch's
``aten_int4pack_cpu``. On 2026-11-28 so did those of bytes of codes (hqq to onnxruntime) and of sparse metadata: 33.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def module(name: str) -> Any:
    """A module of an installed package; the test is skipped without it."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        pytest.skip(f"{name} is not installed, or cannot be imported here: {str(error)[:80]}")


def functions(package: str, path: str, *names: str, **around: Any) -> dict[str, Any]:
    """Functions, classes and constants of one file of a package, by name."""
    torch = module("torch")
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    files = [Path(place) / path for place in places if (Path(place) / path).exists()]
    if not files:
        pytest.skip(f"{package} is not installed, or has no {path}")
    tree = ast.parse(files[0].read_text(encoding="utf-8"))
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            if isinstance(node, ast.FunctionDef):
                node.decorator_list = []
                # They compute on any device.
                node.body = [
                    s for s in node.body if not (isinstance(s, ast.If) and "device.type" in ast.unparse(s.test))
                ]
            kept.append(node)
        elif isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in node.targets):
            kept.append(node)
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    code = compile(ast.fix_missing_locations(ast.Module([future, *kept], [])), str(files[0]), "exec")
    space: dict[str, Any] = {"torch": torch, "np": np, "numpy": np, "math": math, **around}
    exec(code, space)
    missing = [name for name in names if name not in space]
    if missing:
        pytest.skip(f"{package} {path} has no {', '.join(missing)}: another version")
    return space
