"""Converted checkpoints, loaded as their engines load them, mean the numbers that were quantised.

Each is skipped where its package is not installed: `tests.oracles.vendor_code` says how to install them.

Tests of: weights.recipes, weights.converting.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from tests.oracles import conversion_vendors as vendors
from tests.oracles.vendor_code import module

pytestmark = pytest.mark.filterwarnings("ignore")
#: The nibble of a word of AutoAWQ that holds each column.
NIBBLES = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.uint32)


def words(codes: NDArray[np.uint8]) -> NDArray[np.int32]:
    shifted = codes.astype(np.uint32).reshape(len(codes), -1, 8) << 4 * NIBBLES
    found: NDArray[np.int32] = np.bitwise_or.reduce(shifted, -1).view(np.int32)
    return found


#: Sizes and type of a model, group size, modules that are not quantised, and files.
MODELS: dict[str, tuple[dict[str, Any], str, int, tuple[str, ...], int]] = {
    "one file": ({}, "float16", 32, ("lm_head",), 1),
    "three files": ({"hidden_size": 192, "intermediate_size": 320}, "float16", 64, ("lm_head",), 3),
    "one group a column": ({}, "float16", -1, ("lm_head",), 1),
    "tied, layers kept": ({"tie_word_embeddings": True}, "float16", 32, ("lm_head", "layers.1", "o_proj"), 1),
    "bfloat16": ({}, "bfloat16", 32, ("lm_head",), 1),
    "all of it": ({}, "float16", 32, (), 1),
}


def write_awq(folder: Path, case: str, least: int) -> Any:
    """A model whose linear layers are quantised at random, written as AutoAWQ does; zero points from `least` on."""
    torch, transformers = module("torch"), module("transformers")
    more, dtype, group_size, kept, shards = MODELS[case]
    dimensions = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 96, **more}
    llama = transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **dimensions)
    model = transformers.LlamaForCausalLM(llama).to(getattr(torch, dtype))
    rng = np.random.default_rng(group_size + 1)
    tied = model.config.tie_word_embeddings
    tensors = {key: one.clone() for key, one in model.state_dict().items() if not (tied and key == "lm_head.weight")}
    for name, linear in model.named_modules():
        if not isinstance(linear, torch.nn.Linear) or any(one in name for one in kept):
            continue
        n, k = linear.weight.shape
        size = k if group_size == -1 else group_size
        codes = rng.integers(0, 16, (k, n), dtype=np.uint8)
        zeros = rng.integers(least, 16, (k // size, n), dtype=np.uint8)
        zeros[0, :2] = least, 15
        scales = (rng.integers(1, 64, (k // size, n)) / 1024).astype(np.float16)
        weight = (codes.astype(np.int16) - np.repeat(zeros, size, 0)) * np.repeat(scales, size, 0).astype(np.float32)
        linear.weight.data = torch.from_numpy(weight.T.copy()).to(linear.weight.dtype)
        del tensors[f"{name}.weight"]
        made = {"qweight": torch.from_numpy(words(codes)), "qzeros": torch.from_numpy(words(zeros))}
        made["scales"] = torch.from_numpy(scales).to(linear.weight.dtype)
        tensors |= {f"{name}.{key}": one for key, one in made.items()}
    folder.mkdir()
    about = {"quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm", "zero_point": True}
    model.config.architectures = [type(model).__name__]
    config = {**model.config.to_dict(), "quantization_config": about, "dtype": str(model.dtype).split(".")[1]}
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    listed: dict[str, str] = {}
    for number in range(shards):
        own, file = names[number::shards], f"model-{number + 1:05}-of-{shards:05}.safetensors"
        module("safetensors.torch").save_file({name: tensors[name] for name in own}, str(folder / file))
        listed |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    return model


@pytest.mark.parametrize("case", MODELS)
def test_transformers_loads_compressed_tensors(tmp_path: Path, case: str) -> None:
    """Version 5 with `dequantize`: without, it does not load zero points (findings/transformers_zero_points.sh)."""
    torch, transformers = module("torch"), module("transformers")
    module("compressed_tensors")
    model = write_awq(tmp_path / "in", case, least=0)
    fi.weights.convert_checkpoint(tmp_path / "in", tmp_path / "out", "awq-to-compressed-tensors")
    options = {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}
    if transformers.__version__ < "5":
        options = {}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=model.dtype, **options)
    expected = model.state_dict()
    for name, one in loaded.named_parameters():
        if name in expected and "weight_" not in name:
            assert torch.equal(one, expected[name]), name
    with torch.no_grad():
        found = loaded(torch.arange(9)[None]).logits.float()
        assert torch.isfinite(found).all()


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("recipe", ["awq-to-gptq", "awq-to-gptq-v2"])
def test_gptqmodel_reads_gptq(tmp_path: Path, case: str, recipe: str) -> None:
    torch, load = module("torch"), module("safetensors.torch").load_file
    linear_of = module("gptqmodel.nn_modules.qlinear.torch").TorchLinear
    to_v2 = module("gptqmodel.utils.model").convert_gptq_v1_to_v2_format_module
    model = write_awq(tmp_path / "in", case, least=int(recipe == "awq-to-gptq"))
    fi.weights.convert_checkpoint(tmp_path / "in", tmp_path / "out", recipe)
    tensors = load(str(tmp_path / "out" / "model.safetensors"))
    about = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    options = {key: about[key] for key in ("bits", "group_size", "sym", "desc_act")}
    for name, one in model.named_modules():
        if f"{name}.qweight" not in tensors:
            assert not isinstance(one, torch.nn.Linear) or name == "lm_head" or f"{name}.weight" in tensors
            continue
        sizes = {"in_features": one.in_features, "out_features": one.out_features}
        linear = linear_of(**options, **sizes, bias=False, register_buffers=True)
        linear.load_state_dict({key: tensors[f"{name}.{key}"] for key in ("qweight", "qzeros", "scales", "g_idx")})
        if about["checkpoint_format"] == "gptq":
            linear.qzero_format(1)
            to_v2(linear, 4, torch.int32)
        linear.post_init()
        assert torch.equal(linear.dequantize_weight().T.to(one.weight.dtype), one.weight), name


@pytest.mark.parametrize("sizes", [*vendors.BLOCKS, (33, 1056)], ids=str)
@pytest.mark.parametrize("kind", vendors.BLOCK_BYTES)
def test_mlx_multiplies(tmp_path: Path, kind: str, sizes: tuple[int, int]) -> None:
    """What a layer of MLX computes is what gguf-py's numbers give; in float32, as MLX rounds codes times scales."""
    core, nn, gguf = module("mlx.core"), module("mlx.nn"), module("gguf")
    blocks = vendors.blocks_of(kind, *sizes)
    vendors.write_gguf(tmp_path / "model.gguf", {"a.weight": blocks}, kind)
    fi.weights.convert_checkpoint(tmp_path / "model.gguf", tmp_path / "out", "gguf-to-mlx")
    tensors = {key[2:]: one for key, one in core.load(str(tmp_path / "out" / "model.safetensors")).items()}
    linear = nn.QuantizedLinear(sizes[1], sizes[0], bias=False, group_size=32, bits=8 if kind == "Q8_0" else 4)
    wide = {key: one if key == "weight" else one.astype(core.float32) for key, one in tensors.items()}
    linear.load_weights(list(wide.items()))
    given = np.random.default_rng(0).standard_normal((3, sizes[1])).astype(np.float32)
    numbers = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]).astype(np.float64)
    found, exact = np.array(linear(core.array(given))), given @ numbers.T
    most = np.abs(given) @ np.abs(numbers.T)
    assert (np.abs(found - exact) <= 1e-5 * most + 1e-4).all()
