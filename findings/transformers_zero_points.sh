#!/usr/bin/env bash
# Guess before the run: a model that compressed-tensors packs in 4 bits with zero points, and transformers saves, is
# loaded by transformers.
#
# Seen with transformers 5.24.0, compressed-tensors 0.20.0, torch 2.13.0, Python 3.11 on x86-64, 2026-11-28: it is not.
# `PackedQuantizationCompressor.compress` packs zero points eight to a word, but not those of a model without data (on
# the device "meta"), which is what `from_pretrained` makes before it loads. So `from_pretrained` wants zero points of
# eight times the size, and ends with an error. Symmetric models load, and so does this one with `dequantize=True`;
# transformers 4.57.3 with compressed-tensors 0.15.0.1 also loads it.
#
# Output seen:
#   symmetric: as saved loads, dequantize loads
#   with zero points: as saved RuntimeError, dequantize loads
#
# Ends with 0 while that is so, with 1 once it changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check transformers==5.24.0 compressed-tensors==0.20.0 accelerate torch==2.13.0
HF_HUB_OFFLINE=1 "$work/venv/bin/python" - "$work" <<'PYTHON' 2>"$work/log"
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
found = {}
for symmetric in (True, False):
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    weights = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 32}
    config = QuantizationConfig.model_validate({
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    })
    apply_quantization_config(model, config)
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            module.weight_scale.data.fill_(1 / 16)
            module.weight_zero_point.data.fill_(0 if symmetric else 3)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    folder = Path(sys.argv[1], str(symmetric))
    model.save_pretrained(folder)
    compressor.update_config(folder)
    for name, options in (
        ("as saved", {}),
        ("dequantize", {"quantization_config": CompressedTensorsConfig(dequantize=True)}),
    ):
        try:
            AutoModelForCausalLM.from_pretrained(folder, **options)
            found[symmetric, name] = "loads"
        except RuntimeError as error:
            found[symmetric, name] = type(error).__name__
    ends = ", ".join(f"{name} {end}" for (which, name), end in found.items() if which == symmetric)
    print("symmetric:" if symmetric else "with zero points:", ends)
sys.exit(list(found.values()) != ["loads", "loads", "RuntimeError", "loads"])
PYTHON
