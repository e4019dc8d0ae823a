"""Recipes: built-in rules by name, each with the content of a rules file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_INT4 = {"num_bits": 4, "type": "int", "symmetric": False}
_COMPRESSED = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                # One group over all inputs is a strategy, not a size, which differs from layer to layer.
                "weights": {
                    "${quantization_config.group_size}": {
                        "-1": {**_INT4, "strategy": "channel"},
                        "*": {**_INT4, "strategy": "group", "group_size": "${quantization_config.group_size}"},
                    }
                },
                "input_activations": None,
                "output_activations": None,
            }
        },
        "ignore": "${unquantized}",
        "kv_cache_scheme": None,
    }
}
_AWQ = {
    "quantization_config.quant_method": ["awq"],
    "quantization_config.version": ["gemm", "GEMM"],
    "quantization_config.bits": [4],
}
_GPTQ = {
    "quantization_config.quant_method": ["gptq"],
    "quantization_config.checkpoint_format": ["gptq"],
    "quantization_config.bits": [4],
}

# The tensors of a quantised layer: without one, the others would be converted for nothing that can be loaded.
_LAYER = ["{x}.qweight", "{x}.qzeros", "{x}.scales"]


def _gptq_config(**more: Any) -> dict[str, Any]:
    config = {"quant_method": "gptq", "bits": 4, "group_size": "${quantization_config.group_size}", "desc_act": False}
    return {"quantization_config": {**config, **more}}


def _awq_to_gptq(steps: list[str], checkpoint_format: str) -> dict[str, Any]:
    rows = {"count": "{x}.qweight[0]", "groups": "{x}.scales[0]"}
    return {
        "expects": _AWQ,
        "rules": [
            {
                "names": "{x}.qweight",
                "needs": _LAYER,
                "outputs": [
                    {"format": {"from": "awq", "to": "gptq"}},
                    {"name": "{x}.g_idx", "constant": rows, "dtype": "s32"},
                ],
            },
            {
                # Groups by outputs in both formats, although awq is K by N and pack_quantized M by K.
                "names": "{x}.qzeros",
                "needs": _LAYER,
                "format": {"from": "awq", "to": "pack_quantized"},
                "transpose": "g n -> g n",
                "steps": steps,
                "remedy": "version 1 of GPTQ stores z - 1; awq-to-gptq-v2 stores z itself",
            },
        ],
        "config": _gptq_config(sym=False, checkpoint_format=checkpoint_format),
    }


_IN_ORDER = {
    "names": "{x}.g_idx",
    "optional": True,
    "equals": {"count": "{x}.g_idx[0]", "groups": "{x}.scales[0]"},
    "remedy": "its rows are ordered by activations (desc_act), which the other format does not know",
}


def _gguf_to_mlx(kind: str, biases: dict[str, Any], steps: Sequence[str] = (), **parameters: Any) -> dict[str, Any]:
    codes = {"from": "gguf_body", "to": "mlx", "group_size": 32, **parameters}
    outputs = [
        {"name": "{x}.weight", "field": "codes", "format": codes, "steps": [*steps]},
        {"name": "{x}.scales", "field": "scale"},
        {"name": "{x}.biases", **biases},
    ]
    return {"names": "{x}.weight", "type": kind, "optional": True, "outputs": outputs}


def _gate_up(step: str) -> dict[str, Any]:
    """Return the recipe that moves the rows of a fused gate and up projection, of blocks or of plain matrices."""
    names = {"{x}.experts.gate_up_proj_*": 1, "{x}.experts.gate_up_proj": 2}
    return {"rules": [{"names": name, "steps": [f"{step} {d}"], "optional": True} for name, d in names.items()]}


RECIPES: dict[str, dict[str, Any]] = {
    "awq-to-compressed-tensors": {
        "expects": _AWQ,
        "rules": [
            {
                "names": "{x}.qweight",
                "needs": _LAYER,
                "outputs": [
                    {"name": "{x}.weight_packed", "format": {"from": "awq", "to": "pack_quantized"}},
                    {"name": "{x}.weight_shape", "constant": ["{x}.qweight[1]*8", "{x}.qweight[0]"], "dtype": "s64"},
                ],
            },
            {
                "names": "{x}.qzeros",
                "needs": _LAYER,
                "name": "{x}.weight_zero_point",
                "format": {"from": "awq", "to": "pack_quantized", "packed_dim": 0},
            },
            {"names": "{x}.scales", "needs": _LAYER, "name": "{x}.weight_scale", "transpose": "g n -> n g"},
        ],
        "config": _COMPRESSED,
    },
    "awq-to-gptq": _awq_to_gptq(["add -1"], "gptq"),
    "awq-to-gptq-v2": _awq_to_gptq([], "gptq_v2"),
    "gptq-to-awq": {
        "expects": _GPTQ,
        "rules": [
            {"names": "{x}.qweight", "needs": _LAYER, "format": {"from": "gptq", "to": "awq"}},
            {
                "names": "{x}.qzeros",
                "needs": _LAYER,
                "format": {"from": "pack_quantized", "to": "awq"},
                "transpose": "g n -> g n",
                "steps": ["add 1"],
                "remedy": "a zero point of 16 has no code in AWQ",
            },
            _IN_ORDER,
        ],
        "config": {
            "quantization_config": {
                "quant_method": "awq",
                "version": "gemm",
                "bits": 4,
                "group_size": "${quantization_config.group_size}",
                "zero_point": True,
            }
        },
    },
    "gptq-to-marlin": {
        "expects": {**_GPTQ, "quantization_config.sym": [True]},
        "rules": [
            {
                "names": "{x}.qweight",
                "needs": ["{x}.scales"],
                "name": "{x}.B",
                "format": {"from": "gptq", "to": "marlin"},
            },
            {
                "names": "{x}.scales",
                "needs": ["{x}.qweight"],
                "name": "{x}.s",
                "format": {"from": "plain", "to": "marlin_scales"},
                "dtype": "f16",
            },
            {
                "names": "{x}.qzeros",
                "optional": True,
                "format": {"from": "pack_quantized", "to": "plain"},
                "steps": ["add 1"],
                "equals": {"fill": 8},
                "remedy": "Marlin's checkpoints are symmetric: every zero point is 8",
            },
            _IN_ORDER,
        ],
        "config": _gptq_config(sym=True, checkpoint_format="marlin", is_marlin_format=True),
    },
    "gguf-to-mlx": {
        "metadata": {"format": "mlx"},
        "rules": [
            _gguf_to_mlx("Q4_0", {"field": "scale", "steps": ["multiply -8"]}),
            _gguf_to_mlx("Q4_1", {"field": "min"}),
            _gguf_to_mlx("Q8_0", {"field": "scale", "steps": ["multiply -128"]}, ["flip"], bits=8),
        ],
    },
    "nvfp4-swizzled-scales": {
        "expects": {"quantization_config.format": ["nvfp4-pack-quantized"]},
        "rules": [
            {"names": "{x}.weight_scale", "type": "F8_E4M3", "format": {"from": "plain", "to": "blocked_scales"}}
        ],
    },
    "gpt-oss-halves": _gate_up("halves"),
    "gpt-oss-interleaved": _gate_up("interleave"),
}
