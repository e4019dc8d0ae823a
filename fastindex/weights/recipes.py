"""Recipes: rules with the config, metadata and conditions that belong to them; those that ship, by name."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.jobs.input_files import read_whole
from fastindex.weights.conversions import Conversion
from fastindex.weights.expressions import Stored
from fastindex.weights.found_formats import shown
from fastindex.weights.rules import mappings_of
from fastindex.weights.safetensors_files import json_object

_KEYS = ("rules", "formats", "about", "config", "metadata", "expects")
_CONFIG = "config.json"
#: Files that engines read besides the tensors.
_BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "*preprocessor_config.json",
    "processor_config.json",
    "*.tiktoken",
    "spiece.model",
)
#: The longest of them.
MOST_SMALL_BYTES = 256 << 20

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

# The tensors of a quantised layer, K by N in G groups: no engine loads some of them, or sizes that do not agree.
_SCALES = {"{x}.scales": "g n"}
_ZEROS = {"{x}.qzeros": "I32 g n/8", **_SCALES}
_LAYER = {"{x}.qweight": "I32 k%g n/8", **_ZEROS}
_GPTQ_WEIGHT = {"{x}.qweight": "I32 k/8%g n", **_SCALES}


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
    "needs": {**_GPTQ_WEIGHT, "{x}.g_idx": "I32 k"},
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
            {"names": "{x}.qweight", "needs": {**_GPTQ_WEIGHT, **_ZEROS}, "format": {"from": "gptq", "to": "awq"}},
            {
                "names": "{x}.qzeros",
                "needs": {**_GPTQ_WEIGHT, **_ZEROS},
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
                "needs": _GPTQ_WEIGHT,
                "name": "{x}.B",
                "format": {"from": "gptq", "to": "marlin"},
            },
            {
                "names": "{x}.scales",
                "needs": _GPTQ_WEIGHT,
                "name": "{x}.s",
                "format": {"from": "plain", "to": "marlin_scales"},
                "dtype": "f16",
            },
            {
                "names": "{x}.qzeros",
                "needs": _ZEROS,
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


def recipe_of(given: Any) -> dict[str, Any]:
    """Return a recipe with all of its keys, each checked, from a name, rules or a mapping."""
    if isinstance(given, str):
        if given not in RECIPES:
            raise FastIndexError(f"no recipe is called {given!r}; there are {', '.join(RECIPES)}")
        given = RECIPES[given]
    if not isinstance(given, Mapping):
        given = {"rules": list(mappings_of(given))}
    if not set(given) <= set(_KEYS) or "rules" not in given:
        raise FastIndexError(f"a recipe has rules, and perhaps {', '.join(_KEYS[1:])}; got {shown(list(given))}")
    recipe = {"formats": {}, "config": {}, "metadata": {}, "expects": {}, **given}
    for key in ("config", "metadata", "expects"):
        if not isinstance(recipe[key], Mapping):
            raise ArgumentTypeError(f"{key} of a recipe must be a mapping, got {shown(recipe[key])}")
    if not all(isinstance(text, str) for text in recipe["metadata"].values()):
        raise ArgumentTypeError(f"metadata maps texts to texts, got {shown(recipe['metadata'])}")
    if not all(isinstance(values, list | tuple) for values in recipe["expects"].values()):
        raise ArgumentTypeError(f"expects maps places in {_CONFIG} to lists of values, got {shown(recipe['expects'])}")
    return recipe


def small_files(source: str, recipe: Mapping[str, Any], conversions: Sequence[Conversion]) -> dict[str, bytes]:
    """Return the contents of the small files to write, by name."""
    beside = Path(source) if os.path.isdir(source) else Path(source).parent
    paths = sorted({path for pattern in _BESIDE for path in beside.glob(pattern) if path.is_file()})
    found = {path.name: read_whole(str(path), MOST_SMALL_BYTES) for path in paths}
    if _CONFIG not in found:
        return found
    where = str(beside / _CONFIG)
    config = json_object(found[_CONFIG], where)
    for place, values in recipe["expects"].items():
        value = _looked_up(config, place)
        if value is not None and value not in values:
            raise FastIndexError(
                f"{where}: {place} is {shown(value)}, and the recipe is for {' or '.join(map(repr, values))}"
            )
    if recipe["config"]:
        # Modules whose matrices are unchanged: the configs of some formats list them.
        unquantized = [
            one.name.removesuffix(".weight")
            for one in conversions
            if isinstance(one.expression, Stored) and one.name.endswith(".weight") and len(one.sizes) > 1
        ]
        if not any(one.name.startswith("lm_head.") for one in conversions):
            # Tied to the embedding: loaders have the module, although no tensor is its own.
            unquantized.append("lm_head")
        known = {**config, "unquantized": unquantized}
        for key, value in recipe["config"].items():
            config[key] = _resolved(value, known, where)
        kept = {key: value for key, value in config.items() if value is not None or key not in recipe["config"]}
        found[_CONFIG] = json.dumps(kept, indent=2, ensure_ascii=False).encode() + b"\n"
    return found


def _looked_up(config: Any, place: str) -> Any:
    for key in place.split("."):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _resolved(value: Any, config: Mapping[str, Any], where: str) -> Any:
    """Return a value with each ``"${a.b}"`` replaced by that entry of the source's config.

    ``{"${a.b}": {"-1": x, "*": y}}`` is x if that entry is -1, and y otherwise.
    """
    if isinstance(value, Mapping):
        place = next(iter(value), None)
        if len(value) == 1 and (entry := _entry(place, config, where)) is not None:
            cases = value[place]
            if not isinstance(cases, Mapping) or not {str(entry), "*"} & set(cases):
                raise FastIndexError(f"{where}: {place} is {shown(entry)}, and the recipe says nothing of that value")
            return _resolved(cases[str(entry) if str(entry) in cases else "*"], config, where)
        return {key: _resolved(one, config, where) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(one, config, where) for one in value]
    entry = _entry(value, config, where)
    return value if entry is None else entry


def _entry(text: Any, config: Mapping[str, Any], where: str) -> Any:
    """Return the entry of the source's config that a text such as ``"${a.b}"`` names; None for any other text."""
    found = re.fullmatch(r"\$\{([\w.]+)\}", text) if isinstance(text, str) else None
    if found is None:
        return None
    entry = _looked_up(config, found[1])
    if entry is None:
        raise FastIndexError(f"{where} has no {found[1]}, which the recipe takes from there; add it, or edit the rules")
    return entry
