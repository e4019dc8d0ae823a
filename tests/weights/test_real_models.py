"""Small models as PyTorch and safetensors write them, made here: there and back, and as the framework reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from tests.weights.test_checkpoints import check_equal_bytes

WIDTH, HIDDEN, LAYERS, WORDS = 64, 160, 3, 211


def test_a_model_of_torch(tmp_path: Path) -> None:
    """A transformer's encoder in bfloat16, with PyTorch's names and what PyTorch has in other types."""
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    torch.manual_seed(4)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, HIDDEN, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(WORDS, WIDTH), torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    ).to(torch.bfloat16)
    state = dict(model.state_dict()) | {"steps": torch.tensor(7), "scale": torch.rand(5).to(torch.float8_e4m3fn)}
    source = tmp_path / "model.safetensors"
    save_file(state, str(source), {"format": "pt"})
    rules = [
        {"names": "1.layers.*.linear1.weight", "stack": "linear1", "transpose": "o i -> i o"},
        {"names": "1.layers.*.self_attn.in_proj_weight", "stack": "qkv"},
    ]
    packed = fi.weights.pack_checkpoint(source, tmp_path / "out", rules, tpu="v5e")
    packed.verify()
    weights = fi.unpack(packed["linear1"], packed.shapes["linear1"])
    for number in range(LAYERS):
        expected = state[f"1.layers.{number}.linear1.weight"].T.contiguous().view(torch.int16).numpy()
        assert np.array_equal(weights[number].view(np.int16), expected)
    back = tmp_path / "back.safetensors"
    packed.unpack(back)
    found = pytest.importorskip("safetensors.torch").load_file(str(back))
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).contiguous().view(torch.uint8))
    model.load_state_dict({name: one for name, one in found.items() if name not in ("steps", "scale")}, strict=True)


def model() -> dict[str, Any]:
    """The tensors of a small decoder, with the names that Hugging Face gives them."""
    rng = np.random.default_rng(6)

    def drawn(*sizes: int) -> Any:
        return rng.standard_normal(sizes).astype(np.float32).astype(ml_dtypes.bfloat16)

    found = {"model.embed_tokens.weight": drawn(WORDS, WIDTH), "model.norm.weight": drawn(WIDTH)}
    for layer in range(LAYERS):
        front = f"model.layers.{layer}"
        found |= {f"{front}.self_attn.{one}_proj.weight": drawn(WIDTH, WIDTH) for one in "qkvo"}
        found |= {f"{front}.mlp.{one}_proj.weight": drawn(HIDDEN, WIDTH) for one in ("up", "gate")}
        found |= {
            f"{front}.mlp.down_proj.weight": drawn(WIDTH, HIDDEN),
            f"{front}.input_layernorm.weight": drawn(WIDTH),
        }
    return found


def test_a_model_of_safetensors(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.numpy").save_file
    source = tmp_path / "model.safetensors"
    tensors = model()
    save_file(tensors, str(source), {"format": "pt"})
    rules = [
        {"names": "model.layers.*.self_attn.q_proj.weight", "stack": "q", "transpose": "out in -> in out"},
        {"names": "model.layers.*.mlp.up_proj.weight", "stack": "up", "transpose": "out in -> in out"},
    ]
    packed = fi.weights.pack_checkpoint(source, tmp_path / "out", rules, tpu="v6e")
    packed.verify()
    for name, own in (("q", "self_attn.q_proj"), ("up", "mlp.up_proj")):
        expected = np.stack([tensors[f"model.layers.{layer}.{own}.weight"].T for layer in range(LAYERS)])
        assert np.array_equal(fi.unpack(packed[name], packed.shapes[name]), expected)
    packed.unpack(tmp_path / "back.safetensors")
    check_equal_bytes(tmp_path / "back.safetensors", str(source))
