"""Layers as vendors' own functions pack them: what a conversion reads, and what it has to write.

`python -m tests.oracles.conversion_vendors` makes `tests/golden/conversions.json`, where each tensor is its type, its
sizes and a SHA-256; it takes what `tests/oracles/vendor_code.py` describes. On 2026-11-27 it was autoawq 0.2.9,
auto-gptq 0.7.1, compressed-tensors 0.20.0, torchao 0.18.0, mlx 0.32.4 and gguf 0.19.0, with torch 2.13.0.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.oracles.vendor_code import functions, module

Tensors = dict[str, NDArray[Any]]

GOLDEN = Path(__file__).parents[1] / "golden" / "conversions.json"
#: Inputs, outputs and groups of a layer.
LAYERS = [(128, 64, 1), (384, 192, 3), (640, 128, 5)]
#: Rows and columns of scales, of no whole tiles too.
SCALES = [(128, 4), (300, 7), (513, 16)]
#: Rows and columns of tensors in blocks.
BLOCKS = [(1, 32), (7, 96), (12, 320)]
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def layer(k: int, n: int, groups: int) -> Tensors:
    """Codes, zero points and scales of a layer, whose weights are exact in half precision."""
    rng = np.random.default_rng(1000 * k + n)
    return {
        "codes": rng.integers(0, 16, (k, n), dtype=np.uint8),
        # Version 1 of GPTQ has no zero point of 0.
        "zeros": rng.integers(1, 16, (groups, n), dtype=np.uint8),
        "scales": (rng.integers(1, 64, (groups, n)) / 64).astype(np.float16),
    }


def scales_of(rows: int, columns: int) -> NDArray[np.uint8]:
    return np.random.default_rng(rows).integers(0, 127, (rows, columns), dtype=np.uint8)


def blocks_of(kind: str, rows: int, columns: int) -> NDArray[np.uint8]:
    """Blocks of GGUF with any codes, and scales that are finite when they are multiplied."""
    rng = np.random.default_rng(rows)
    blocks = rng.integers(0, 256, (rows, columns // 32, BLOCK_BYTES[kind]), dtype=np.uint8)
    for place in range(4 if kind == "Q4_1" else 2)[::2]:
        halves = rng.standard_normal((rows, columns // 32, 1)).astype(np.float16)
        blocks[..., place : place + 2] = halves.view(np.uint8)
    return blocks.reshape(rows, -1)


def write_gguf(path: Path, tensors: Mapping[str, NDArray[np.uint8]], kind: str) -> None:
    gguf = module("gguf")
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, blocks in tensors.items():
        writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _weights(given: Tensors) -> tuple[Any, Any, Any]:
    torch = module("torch")
    groups, k = len(given["scales"]), len(given["codes"])
    scales = np.repeat(given["scales"].astype(np.float32), k // groups, 0)
    zeros = np.repeat(given["zeros"], k // groups, 0).astype(np.float32)
    weights = (given["codes"].astype(np.float32) - zeros) * scales
    return tuple(torch.from_numpy(np.ascontiguousarray(one)) for one in (weights.T, given["scales"], given["zeros"]))


def _linear(weights: Any) -> Any:
    weights.data = weights
    n, k = weights.shape
    return SimpleNamespace(weight=weights, bias=None, in_features=k, out_features=n)


def awq(given: Tensors) -> Tensors:
    torch = module("torch")
    around = {"nn": torch.nn, "get_best_device": lambda: "cpu"}
    found = functions("awq", "modules/linear/gemm.py", "WQLinear_GEMM", **around)["WQLinear_GEMM"]
    weights, scales, zeros = _weights(given)
    group = weights.shape[1] // len(scales)
    made = found.from_linear(_linear(weights), 4, group, scales=scales.float(), zeros=zeros.float())
    return {key: getattr(made, key).numpy() for key in ("qweight", "qzeros", "scales")}


def gptq(given: Tensors) -> Tensors:
    torch = module("torch")
    around = {"nn": torch.nn, "transformers": SimpleNamespace(pytorch_utils=SimpleNamespace(Conv1D=dict))}
    found = functions("auto_gptq", "nn_modules/qlinear/qlinear_cuda.py", "QuantLinear", **around)["QuantLinear"]
    weights, scales, zeros = _weights(given)
    n, k = weights.shape
    order = torch.arange(k, dtype=torch.int32) // (k // len(scales))
    own = SimpleNamespace(bits=4, infeatures=k, outfeatures=n, bias=None, g_idx=order)
    found.pack(own, _linear(weights.float()), scales.float().t(), zeros.float().t(), order)
    return {
        "qweight": own.qweight.numpy(),
        "qzeros": own.qzeros.numpy(),
        "scales": own.scales.half().numpy(),
        "g_idx": order.numpy(),
    }


def compressed(given: Tensors) -> Tensors:
    torch = module("torch")
    pack = module("compressed_tensors.compressors.pack_quantized.helpers").pack_to_int32
    values = [torch.from_numpy(given[key].T.astype(np.int8) - 8) for key in ("codes", "zeros")]
    return {
        "weight_packed": pack(values[0], 4).numpy(),
        "weight_zero_point": pack(values[1].contiguous(), 4, packed_dim=0).numpy(),
        "weight_scale": np.ascontiguousarray(given["scales"].T),
        "weight_shape": np.array(given["codes"].T.shape),
    }


def marlin(given: Tensors) -> Tensors:
    torch = module("torch")
    path = "nn_modules/qlinear/qlinear_marlin.py"
    perms = functions("auto_gptq", path, "_get_perms")["_get_perms"]()
    around = dict(zip(("_perm", "_scale_perm", "_scale_perm_single"), perms, strict=True))
    found = functions("auto_gptq", path, "QuantLinear", nn=torch.nn, **around)["QuantLinear"]
    weights, scales, _ = _weights(given)
    n, k = weights.shape
    own = SimpleNamespace(infeatures=k, outfeatures=n, group_size=k // len(scales), bias=None)
    own.B, own.s = torch.empty((k // 16, 2 * n), dtype=torch.int32), torch.empty(scales.shape, dtype=torch.half)
    linear = _linear(weights.half())
    found.pack(own, linear, scales.t().contiguous())
    return {"B": own.B.numpy(), "s": own.s.numpy()}


def swizzled(rows: int, columns: int) -> Tensors:
    torch = module("torch")
    to_blocked = module("torchao.prototype.mx_formats.utils").to_blocked
    made = to_blocked(torch.from_numpy(scales_of(rows, columns)), False).numpy()
    return {"weight_scale": made.reshape(-(-rows // 128) * 128, -1)}


def mlx(kind: str, rows: int, columns: int) -> Tensors:
    core = module("mlx.core")
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(Path(folder, "model.gguf"), {"a.weight": blocks_of(kind, rows, columns)}, kind)
        return {name: np.array(one) for name, one in core.load(str(Path(folder, "model.gguf"))).items()}


def symmetric(given: Tensors) -> Tensors:
    return {**given, "zeros": np.full_like(given["zeros"], 8)}


def cases() -> dict[str, Tensors]:
    """What vendors make of each layer."""
    found: dict[str, Tensors] = {}
    for sizes in LAYERS:
        given = layer(*sizes)
        for make in (awq, gptq, compressed):
            found[f"{make.__name__} {sizes}"] = make(given)
        found[f"symmetric gptq {sizes}"] = gptq(symmetric(given))
        found[f"marlin {sizes}"] = marlin(symmetric(given))
    for scales in SCALES:
        found[f"swizzled {scales}"] = swizzled(*scales)
    for kind in BLOCK_BYTES:
        for blocks in BLOCKS:
            found[f"mlx {kind} {blocks}"] = mlx(kind, *blocks)
    return found


def digests(tensors: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Type, sizes and checksum of each tensor."""
    return {
        name: f"{one.dtype}{list(one.shape)} {hashlib.sha256(np.ascontiguousarray(one).tobytes()).hexdigest()}"
        for name, one in sorted(tensors.items())
    }


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: digests(made) for name, made in cases().items()}, indent=1) + "\n")
