"""Converted checkpoints, loaded as their engines load them, mean the numbers that were quantised.

Each is skipped where its package is not installed: `tests.oracles.vendor_code` says how to install them.

Tests of: weights.recipes, weights.converting.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from tests.oracles import conversion_vendors as vendors
from tests.oracles.vendor_code import functions, module

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


_VLLM = "model_executor/layers/quantization/utils/"


@pytest.mark.parametrize("sizes", vendors.LAYERS, ids=str)
def test_vllm_makes_the_same_marlin_tensors_of_gptq(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    """What its functions unpack from a layer of GPTQ, and pack for its kernels, is what the recipe writes."""
    torch, files = module("torch"), module("safetensors.torch")
    around = functions("vllm", f"{_VLLM}quant_utils.py", "get_pack_factor", "unpack_quantized_values_into_int32")
    packing = functions(
        "vllm",
        f"{_VLLM}marlin_utils_test.py",
        *("marlin_permute_weights", "marlin_weights", "get_weight_perm"),
        **{**around, "GPTQ_MARLIN_TILE": 16},
    )
    scaling = functions("vllm", f"{_VLLM}marlin_utils.py", "get_scale_perms", "marlin_permute_scales")
    (k, n, groups), given = sizes, vendors.layer(*sizes)
    rows = given["codes"].astype(np.uint32).reshape(k // 8, 8, n) << (4 * np.arange(8, dtype=np.uint32))[:, None]
    tensors = {
        "x.qweight": torch.from_numpy(np.bitwise_or.reduce(rows, 1).view(np.int32)),
        "x.qzeros": torch.full((groups, n // 8), 0x77777777, dtype=torch.int32),
        "x.scales": torch.from_numpy(given["scales"]),
        "x.g_idx": torch.arange(k, dtype=torch.int32) // (k // groups),
    }
    (tmp_path / "in").mkdir()
    files.save_file(tensors, str(tmp_path / "in" / "model.safetensors"))
    fi.weights.convert_checkpoint(tmp_path / "in", tmp_path / "out", "gptq-to-marlin")
    found = files.load_file(str(tmp_path / "out" / "model.safetensors"))
    codes = around["unpack_quantized_values_into_int32"](tensors["x.qweight"], SimpleNamespace(size_bits=4), 0)
    assert np.array_equal(codes.numpy(), given["codes"])
    assert torch.equal(found["x.B"], packing["marlin_weights"](codes, k, n, 4, packing["get_weight_perm"](4)))
    assert torch.equal(found["x.s"], scaling["marlin_permute_scales"](tensors["x.scales"], k, n, k // groups))


@pytest.mark.parametrize("sizes", [(128, 64), (129, 192), (300, 320), (7, 16), (257, 112)], ids=str)
def test_swizzled_scales_dequantise(tmp_path: Path, sizes: tuple[int, int]) -> None:
    """torchao's way back gives the scales; vLLM's dequantiser, which takes whole fours of them, the numbers."""
    torch, files = module("torch"), module("safetensors.torch")
    unpack = module("compressed_tensors.compressors.nvfp4.helpers").unpack_fp4_from_uint8
    from_blocked = module("torchao.prototype.mx_formats.utils").from_blocked
    lookup = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    dequantize = functions(
        "vllm",
        f"{_VLLM}nvfp4_emulation_utils.py",
        *("break_fp4_bytes", "convert_swizzled_to_linear", "dequantize_to_dtype"),
        kE2M1ToFloat_handle=SimpleNamespace(val=lookup),
    )["dequantize_to_dtype"]
    (m, k), rng = sizes, np.random.default_rng(sizes[0])
    codes = torch.from_numpy(rng.integers(0, 256, (m, k // 2), dtype=np.uint8))
    scales = torch.from_numpy(rng.integers(1, 127, (m, k // 16), dtype=np.uint8)).view(torch.float8_e4m3fn)
    (tmp_path / "in").mkdir()
    files.save_file({"x.weight_packed": codes, "x.weight_scale": scales}, str(tmp_path / "in" / "model.safetensors"))
    fi.weights.convert_checkpoint(tmp_path / "in", tmp_path / "out", "nvfp4-swizzled-scales")
    found = files.load_file(str(tmp_path / "out" / "model.safetensors"))
    back = from_blocked(found["x.weight_scale"].view(torch.uint8).reshape(-1), m, k // 16)
    assert torch.equal(back, scales.view(torch.uint8))
    if k % 64 == 0:
        numbers = unpack(codes, m, k, torch.float32).reshape(m, -1, 16) * scales.float()[..., None]
        made = dequantize(found["x.weight_packed"], found["x.weight_scale"], torch.tensor(1.0), torch.float32)
        assert torch.equal(made, numbers.reshape(m, k))


@pytest.mark.parametrize("sizes", [(2, 32, 32), (3, 64, 96), (5, 96, 40)], ids=str)
def test_transformers_loads_gpt_oss(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    """A checkpoint of halves becomes one that it loads: its experts compute what gate and up of the halves give."""
    torch, transformers, files = module("torch"), module("transformers"), module("safetensors.torch")
    dequantise = module("transformers.integrations.mxfp4").convert_moe_packed_tensors
    experts, hidden, inner = sizes
    options = {"num_hidden_layers": 1, "vocab_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    more = {"head_dim": 16, "hidden_size": hidden, "intermediate_size": inner, "num_experts_per_tok": 1}
    config = transformers.GptOssConfig(num_local_experts=experts, **options, **more)
    model = transformers.GptOssForCausalLM(config).to(torch.bfloat16)
    rng, name = np.random.default_rng(inner), "model.layers.0.mlp.experts.gate_up_proj"
    blocks = torch.from_numpy(rng.integers(0, 256, (experts, 2 * inner, hidden // 32, 16), dtype=np.uint8))
    scales = torch.from_numpy(rng.integers(118, 124, (experts, 2 * inner, hidden // 32), dtype=np.uint8))
    bias = torch.from_numpy(rng.standard_normal((experts, 2 * inner)).astype(np.float32)).to(torch.bfloat16)
    tensors = {key: one.clone() for key, one in model.state_dict().items() if "gate_up_proj" not in key}
    halves = {f"{name}_blocks": blocks, f"{name}_scales": scales, f"{name}_bias": bias}
    (tmp_path / "in").mkdir()
    files.save_file({**tensors, **halves}, str(tmp_path / "in" / "model.safetensors"))
    fi.weights.convert_checkpoint(tmp_path / "in", tmp_path / "out", "gpt-oss-interleaved")
    found = files.load_file(str(tmp_path / "out" / "model.safetensors"))
    weights = {key: one for key, one in found.items() if not key.startswith(name)}
    weights[name] = dequantise(found[f"{name}_blocks"], found[f"{name}_scales"])
    model.load_state_dict({**weights, f"{name}_bias": found[f"{name}_bias"]}, strict=True)
    layer = model.model.layers[0].mlp.experts
    given = torch.from_numpy(rng.standard_normal((4, hidden)).astype(np.float32)).to(torch.bfloat16)
    chosen = torch.from_numpy(rng.integers(0, experts, (4, 1)))
    made = layer(given, chosen, torch.ones((4, 1), dtype=torch.bfloat16))
    both = dequantise(blocks, scales)
    for row, expert, values in zip(given, chosen[:, 0].tolist(), made, strict=True):
        gate, up = (row @ both[expert] + bias[expert]).chunk(2)
        gate, up = gate.clamp(max=layer.limit), up.clamp(-layer.limit, layer.limit)
        out = ((up + 1) * gate * torch.sigmoid(gate * layer.alpha)) @ layer.down_proj[expert]
        expected = out + layer.down_proj_bias[expert]
        assert torch.allclose(values.float(), expected.float(), rtol=0.05, atol=0.05)
    fi.weights.convert_checkpoint(tmp_path / "out", tmp_path / "back", "gpt-oss-halves")
    again = files.load_file(str(tmp_path / "back" / "model.safetensors"))
    assert all(torch.equal(again[key], one) for key, one in halves.items())
