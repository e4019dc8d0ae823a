"""A checkpoint for another engine: recipes against what vendors' functions make, rules, and jobs that are stopped.

Tests of: weights.converting, weights.conversions, weights.arithmetic, weights.expressions,
weights.recipes, cli.moving.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from fastindex.jobs.input_files import InputFile
from fastindex.jobs.writing import OutputFile
from fastindex.weights import expressions
from fastindex.weights.expressions import Box, Constant, Expression, Moved
from fastindex.weights.gguf_files import FIELDS
from fastindex.weights.manifests import JOURNAL
from fastindex.weights.recipes import RECIPES
from fastindex.weights.repack_jobs import Formats
from fastindex.weights.rules import STEPS, captured
from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS
from tests.commands import run_command
from tests.oracles import conversion_vendors as vendors

safetensors_numpy = pytest.importorskip("safetensors.numpy")

Tensors = dict[str, NDArray[Any]]
LAYER = "model.layers.0.q_proj"
GROUP_SIZE = 128


def saved(folder: Path, tensors: Tensors, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    safetensors_numpy.save_file(
        {name: np.array(one, order="C") for name, one in tensors.items()}, str(folder / "model.safetensors")
    )
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def loaded(folder: Path) -> Tensors:
    """All tensors of a folder, by the format's own library, by its index if there is one."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return dict(safetensors_numpy.load_file(str(folder / "model.safetensors")))
    listed = json.loads(index.read_text())["weight_map"]
    files = {file: safetensors_numpy.load_file(str(folder / file)) for file in set(listed.values())}
    assert {name for one in files.values() for name in one} == set(listed)
    return {name: files[file][name] for name, file in listed.items()}


def converted(folder: Path, tensors: Tensors, rules: Any, **options: Any) -> Tensors:
    fi.weights.convert_checkpoint(saved(folder / "in", tensors), folder / "out", rules, **options)
    return loaded(folder / "out")


def golden(case: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(vendors.GOLDEN.read_text())[case]
    return found


def packed(codes: NDArray[Any], name: str, width: int, **parameters: Any) -> NDArray[np.int32]:
    made = np.asarray(fi.weights.repack(codes, "plain", name, shape=codes.shape, bits=4, **parameters))
    return made.view(np.int32).reshape(-1, width)


def awq(given: Tensors) -> Tensors:
    n = given["codes"].shape[1] // 8
    return {
        "qweight": packed(given["codes"], "awq", n),
        "qzeros": packed(given["zeros"], "awq", n),
        "scales": given["scales"],
    }


def gptq(given: Tensors) -> Tensors:
    (k, n), groups = given["codes"].shape, len(given["zeros"])
    return {
        "qweight": packed(given["codes"], "gptq", n),
        "qzeros": packed(given["zeros"] - np.uint8(1), "pack_quantized", n // 8),
        "scales": given["scales"],
        "g_idx": (np.arange(k) // (k // groups)).astype(np.int32),
    }


#: Recipe, what is read, what is written, and the tensors of it that are not compared.
LAYER_RECIPES = [
    ("awq-to-compressed-tensors", "awq", "compressed", ()),
    ("awq-to-gptq", "awq", "gptq", ()),
    ("gptq-to-awq", "gptq", "awq", ()),
    ("gptq-to-marlin", "symmetric gptq", "marlin", ()),
]


@pytest.mark.parametrize("sizes", vendors.LAYERS, ids=str)
@pytest.mark.parametrize(("recipe", "source", "target", "left"), LAYER_RECIPES, ids=lambda one: str(one))
def test_recipes_write_what_vendors_write(
    tmp_path: Path, recipe: str, source: str, target: str, left: tuple[str, ...], sizes: tuple[int, int, int]
) -> None:
    given = vendors.layer(*sizes)
    if source.startswith("symmetric"):
        given = vendors.symmetric(given)
    tensors = awq(given) if source == "awq" else gptq(given)
    assert vendors.digests(tensors) == golden(f"{source} {sizes}")
    named = {f"{LAYER}.{key}": one for key, one in tensors.items()} | {"norm": np.arange(5, dtype=np.float32)}
    found = converted(tmp_path, named, recipe)
    assert np.array_equal(found.pop("norm"), named["norm"])
    own = {name.removeprefix(f"{LAYER}."): one for name, one in found.items()}
    assert vendors.digests(own) == golden(f"{target} {sizes}")


@pytest.mark.parametrize("sizes", vendors.SCALES, ids=str)
def test_swizzled_scales(tmp_path: Path, sizes: tuple[int, int]) -> None:
    scales = vendors.scales_of(*sizes).view(ml_dtypes.float8_e4m3fn)
    path = tmp_path / "in"
    path.mkdir()
    header = {"a.weight_scale": {"dtype": "F8_E4M3", "shape": list(sizes), "data_offsets": [0, scales.size]}}
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + scales.tobytes())
    result = fi.weights.convert_checkpoint(path, tmp_path / "out", "nvfp4-swizzled-scales")
    rows, columns = -(-sizes[0] // 128) * 128, -(-sizes[1] // 4) * 4
    assert f"-> a.weight_scale F8_E4M3 [{rows}, {columns}]" in str(result)
    written = (tmp_path / "out" / "model.safetensors").read_bytes()[-rows * columns :]
    found = np.frombuffer(written, np.uint8).reshape(rows, columns)
    assert vendors.digests({"weight_scale": found}) == golden(f"swizzled {sizes}")


@pytest.mark.parametrize("sizes", vendors.BLOCKS, ids=str)
@pytest.mark.parametrize("kind", vendors.BLOCK_BYTES)
def test_gguf_blocks_to_mlx(tmp_path: Path, kind: str, sizes: tuple[int, int]) -> None:
    pytest.importorskip("gguf")
    vendors.write_gguf(tmp_path / "model.gguf", {"a.weight": vendors.blocks_of(kind, *sizes)}, kind)
    result = fi.weights.convert_checkpoint(tmp_path / "model.gguf", tmp_path / "out", "gguf-to-mlx")
    assert vendors.digests(loaded(tmp_path / "out")) == golden(f"mlx {kind} {sizes}")
    assert ("flip" in str(result)) == (kind == "Q8_0")


def test_a_scale_that_has_no_bias(tmp_path: Path) -> None:
    """It is found while the blocks are read, which is once: nothing is left of the job."""
    pytest.importorskip("gguf")
    blocks = vendors.blocks_of("Q4_0", 7, 96)
    blocks[5, 18:20] = np.array([60000], np.float16).view(np.uint8)
    vendors.write_gguf(tmp_path / "model.gguf", {"a.weight": blocks}, "Q4_0")
    with pytest.raises(fi.FastIndexError, match=r"^a\.weight Q4_0 .*, as a\.biases: the value at \(5, 1\) is 60000"):
        fi.weights.convert_checkpoint(tmp_path / "model.gguf", tmp_path / "out", "gguf-to-mlx")
    assert os.listdir(tmp_path) == ["model.gguf"]


def test_gguf_blocks_without_a_rule(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    blocks = np.zeros((2, 144), np.uint8)
    vendors.write_gguf(tmp_path / "model.gguf", {"a.weight": blocks}, "Q4_K")
    for rules in ("gguf-to-mlx", [{"names": "b", "optional": True}]):
        with pytest.raises(
            fi.FastIndexError, match=r"'a\.weight' is blocks of Q4_K, and no rule .* \(scale, min, scales"
        ):
            fi.weights.convert_checkpoint(tmp_path / "model.gguf", tmp_path / "out", rules)
    with pytest.raises(fi.FastIndexError, match="Q4_K has no field 'code'; its blocks have scale, min"):
        fi.weights.convert_checkpoint(tmp_path / "model.gguf", tmp_path / "out", [{"names": "*", "field": "code"}])
    for more in ({"transpose": "a b -> b a"}, {"steps": ["flip"]}, {"unstack": "x.*"}):
        with pytest.raises(fi.UnsupportedError, match=r"not moved one by one|is not unstacked"):
            fi.weights.convert_checkpoint(tmp_path / "model.gguf", tmp_path / "out", [{"names": "*", **more}])
    rule = {"names": "*", "field": "codes", "format": {"from": "gguf_body", "to": "plain"}}
    found = fi.weights.convert_checkpoint(tmp_path / "model.gguf", tmp_path / "out", [rule])
    assert found.lines == ("a.weight Q4_K [2, 256] -> a.weight U8 [2, 256]  (field codes; gguf_body -> plain)",)


def test_fields_of_gguf_blocks() -> None:
    """Those of a type cover its blocks without holes, and are as long as gguf-py says."""
    constants = pytest.importorskip("gguf.constants")
    for name, fields in FIELDS.items():
        at = 0
        for begin, end, dtype in sorted(fields.values()):
            assert begin == at
            assert (end - begin) % np.dtype(dtype).itemsize == 0
            at = end
        # Older versions of gguf-py lack some types.
        kind = constants.GGMLQuantizationType.__members__.get(name)
        assert kind is None or at == constants.GGML_QUANT_SIZES[kind][1]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_gpt_oss(tmp_path: Path, rank: int) -> None:
    """As its own code slices them: gate is [::2], up is [1::2]."""
    rng = np.random.default_rng(rank)
    alternating = rng.integers(0, 256, (3, 10, 4, 2)[:rank], dtype=np.uint8)
    name = "model.layers.1.mlp.experts.gate_up_proj_blocks"
    found = converted(tmp_path, {name: alternating}, "gpt-oss-halves")[name]
    assert np.array_equal(found, np.concatenate([alternating[:, ::2], alternating[:, 1::2]], 1))
    (tmp_path / "back").mkdir()
    back = converted(tmp_path / "back", {name: found}, "gpt-oss-interleaved")[name]
    assert np.array_equal(back, alternating)


@pytest.mark.parametrize("case", sorted(json.loads(vendors.GOLDEN.read_text())))
def test_vendors_themselves(case: str) -> None:
    """Where they are installed: the frozen digests are what they make."""
    kind, sizes = case.split(" (")[0], tuple(map(int, re.findall(r"\d+", case.split(" (")[1])))
    if kind == "swizzled":
        made = vendors.swizzled(*sizes)
    elif kind.startswith("mlx "):
        made = vendors.mlx(kind.removeprefix("mlx "), *sizes)
    else:
        given = vendors.layer(*sizes)
        if kind.startswith("symmetric") or kind == "marlin":
            given = vendors.symmetric(given)
        make = {"awq": vendors.awq, "gptq": vendors.gptq, "compressed": vendors.compressed, "marlin": vendors.marlin}
        made = make[kind.removeprefix("symmetric ")](given)
    assert vendors.digests(made) == golden(case)


def test_gptq_to_awq_and_back(tmp_path: Path) -> None:
    """All tensors are as they were; and version 2 keeps a zero point of 0, which version 1 refuses."""
    given = vendors.layer(384, 192, 3)
    tensors = {f"{LAYER}.{key}": one for key, one in gptq(given).items()}
    first = converted(tmp_path, tensors, "gptq-to-awq")
    (tmp_path / "back").mkdir()
    back = converted(tmp_path / "back", first, "awq-to-gptq")
    assert vendors.digests(back) == vendors.digests(tensors)
    given["zeros"][1, 7] = 0
    zero = {f"{LAYER}.{key}": one for key, one in awq(given).items()}
    (tmp_path / "zero").mkdir()
    with pytest.raises(fi.FastIndexError, match=r"qzeros.*\(1, 7\) is 0, and -1 is not from 0 to 15; .*awq-to-gptq-v2"):
        converted(tmp_path / "zero", zero, "awq-to-gptq")
    assert os.listdir(tmp_path / "zero") == ["in"]
    (tmp_path / "two").mkdir()
    found = converted(tmp_path / "two", zero, "awq-to-gptq-v2")[f"{LAYER}.qzeros"]
    assert np.array_equal(found, packed(given["zeros"], "pack_quantized", 24))


@pytest.mark.parametrize(("recipe", "source", "target", "left"), LAYER_RECIPES, ids=lambda one: str(one))
def test_a_layer_without_one_of_its_tensors(
    tmp_path: Path, recipe: str, source: str, target: str, left: tuple[str, ...]
) -> None:
    """Beside a whole layer, so that every rule matches a tensor."""
    given = vendors.symmetric(vendors.layer(384, 192, 3))
    own = awq(given) if source == "awq" else gptq(given)
    for missing in {"qweight", "scales", *(["qzeros"] if "symmetric" not in source else [])}:
        tensors = {
            f"{layer}.{key}": one for layer in "ab" for key, one in own.items() if (layer, key) != ("b", missing)
        }
        with pytest.raises(fi.FastIndexError, match=rf"'b\.\w+' comes with 'b\.{missing}'.* no such tensor"):
            fi.weights.convert_checkpoint(saved(tmp_path / missing, tensors), tmp_path / "out", recipe)
        # Or with the sizes or the type of another layer's.
        whole = own[missing]
        for wrong in (whole[:, :-8], whole[:-1], whole[0], whole.T, whole.view(np.uint8)):
            damaged = saved(tmp_path / missing, tensors | {f"b.{missing}": wrong})
            with pytest.raises(fi.FastIndexError, match=r"does not belong to|has another type|has other dimensions"):
                fi.weights.convert_checkpoint(damaged, tmp_path / "out", recipe)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("recipe", ["gptq-to-awq", "gptq-to-marlin"])
def test_what_is_not_exact_is_refused(tmp_path: Path, recipe: str) -> None:
    """Before anything is written, with the place and the value."""
    tensors = {f"{LAYER}.{key}": one for key, one in gptq(vendors.symmetric(vendors.layer(384, 192, 3))).items()}
    order = dict(tensors)
    order[f"{LAYER}.g_idx"] = tensors[f"{LAYER}.g_idx"][::-1]
    with pytest.raises(fi.FastIndexError, match=r"g_idx.*\(0\) is 2, and not 0; its rows are ordered by activations"):
        converted(tmp_path, order, recipe)
    zeros = tensors | {f"{LAYER}.qzeros": np.full((3, 24), -1, np.int32)}
    with pytest.raises(fi.FastIndexError, match=r"qzeros.*\(0, 0\) is 15, and \+1 is not from 0 to 15"):
        converted(tmp_path, zeros, recipe)
    assert os.listdir(tmp_path) == ["in"]
    if recipe == "gptq-to-marlin":
        zeros[f"{LAYER}.qzeros"] = np.full((3, 24), 0x77777767, np.int32)
        with pytest.raises(fi.FastIndexError, match=r"\(0, 1\) is 7, and not 8; Marlin's checkpoints are symmetric"):
            converted(tmp_path, zeros, recipe)


def test_config_and_small_files(tmp_path: Path) -> None:
    """Other files go along; config.json says what is there now, with values from the old one."""
    tensors = {f"{LAYER}.{key}": one for key, one in awq(vendors.layer(384, 192, 3)).items()}
    tensors |= {"lm_head.weight": GATE, "norm.weight": GATE[0]}
    config: dict[str, Any] = {"a": 1}
    config["quantization_config"] = {"quant_method": "awq", "group_size": GROUP_SIZE, "bits": 4}
    source = saved(tmp_path / "in", tensors, config)
    for name in ("tokenizer.json", "generation_config.json", "notes.txt", "pytorch_model.bin"):
        (source / name).write_text(f"{{}} {name}")
    fi.weights.convert_checkpoint(source, tmp_path / "out", "awq-to-compressed-tensors")
    out = tmp_path / "out"
    assert sorted(os.listdir(out)) == [
        *("config.json", "generation_config.json", "manifest.json", "model.safetensors", "tokenizer.json"),
    ]
    assert (out / "tokenizer.json").read_text() == "{} tokenizer.json"
    found = json.loads((out / "config.json").read_text())
    assert (found["a"], found["quantization_config"]["quant_method"]) == (1, "compressed-tensors")
    assert found["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] == GROUP_SIZE
    assert found["quantization_config"]["ignore"] == ["lm_head"]
    # One group over all inputs is another strategy; an output that has no tensor is tied to the embedding.
    config["quantization_config"]["group_size"] = -1
    del tensors["lm_head.weight"]
    saved(source, tensors, config)
    fi.weights.convert_checkpoint(source, tmp_path / "one", "awq-to-compressed-tensors")
    quantization = json.loads((tmp_path / "one" / "config.json").read_text())["quantization_config"]
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "channel"}
    assert quantization["config_groups"]["group_0"]["weights"] == weights
    assert quantization["ignore"] == ["lm_head"]
    for cases in ({"4": 1}, 3):
        values = {"rules": [{"names": "*"}], "config": {"a": {"${quantization_config.group_size}": cases}}}
        with pytest.raises(fi.FastIndexError, match=r"group_size\} is -1, and the recipe says nothing of that value"):
            fi.weights.convert_checkpoint(source, tmp_path / "no", values)
    for changed, reason in (
        ({"quant_method": "gptq", "group_size": 128}, "quant_method is 'gptq', and the recipe is for 'awq'"),
        ({"version": "gemv", "group_size": 128}, "version is 'gemv', and the recipe is for 'gemm' or 'GEMM'"),
        ({"quant_method": "awq"}, "has no quantization_config.group_size, which the recipe takes from there"),
    ):
        (source / "config.json").write_text(json.dumps({"quantization_config": changed}))
        with pytest.raises(fi.FastIndexError, match=reason):
            fi.weights.convert_checkpoint(source, tmp_path / "no", "awq-to-compressed-tensors")
    rules = {"rules": [{"names": "*"}], "config": {"a": None, "b": [2]}, "metadata": {"format": "pt"}}
    fi.weights.convert_checkpoint(source, tmp_path / "other", rules)
    assert json.loads((tmp_path / "other" / "config.json").read_text()) == {
        "quantization_config": {"quant_method": "awq"},
        "b": [2],
    }
    header = (tmp_path / "other" / "model.safetensors").read_bytes()
    assert b'"__metadata__":{"format":"pt"}' in header


RNG = np.random.default_rng(4)
GATE, UP = (RNG.standard_normal((6, 5)).astype(np.float32) for _ in range(2))
QKV = RNG.integers(-9, 9, (12, 5)).astype(np.int16)
EXPERTS = {f"layers.{i}.experts.{e}.w": np.full((2, 3), 10 * i + e, np.float32) for i in range(2) for e in range(11)}
#: Tensors, rules, and what they become.
RULES: dict[str, tuple[Tensors, list[dict[str, Any]], Tensors]] = {
    "renamed, transposed and cast": (
        {"a.b.w": GATE},
        [{"names": "{x}.w", "name": "model.{x}.weight", "transpose": "o i -> i o", "dtype": "f16"}],
        {"model.a.b.weight": GATE.T.astype(np.float16)},
    ),
    "joined": (
        {"0.gate": GATE, "0.up": UP, "1.up": UP, "1.gate": GATE},
        [{"names": ["{i}.up", "{i}.gate"], "name": "{i}.up_gate", "join": 0}],
        {f"{i}.up_gate": np.concatenate([UP, GATE]) for i in range(2)},
    ),
    "split, and one output twice": (
        {"qkv": QKV},
        [
            {
                "names": "qkv",
                "outputs": [
                    {"name": "q", "steps": ["part 0 0 1/2"]},
                    {"name": "k", "steps": ["part 0 1/2 9/12"]},
                    {"name": "v", "steps": ["part 0 9 12"]},
                    {"name": "all", "steps": ["swap 0"]},
                ],
            }
        ],
        {"q": QKV[:6], "k": QKV[6:9], "v": QKV[9:], "all": np.concatenate([QKV[6:], QKV[:6]])},
    ),
    "reversed": (
        {"w": QKV, "v": QKV},
        [{"names": "w", "steps": ["reverse 1", "part 0 1 4"]}, {"names": "v", "steps": ["reverse 0"]}],
        {"w": QKV[1:4, ::-1], "v": QKV[::-1]},
    ),
    "stacked by layer": (
        EXPERTS,
        [{"names": "layers.{i}.experts.*.w", "stack": "layers.{i}.w", "transpose": "a b -> b a"}],
        {f"layers.{i}.w": np.stack([EXPERTS[f"layers.{i}.experts.{e}.w"].T for e in range(11)]) for i in range(2)},
    ),
    "unstacked": (
        {"w": np.arange(24, dtype=np.int32).reshape(4, 3, 2)},
        [{"names": "w", "unstack": "experts.*.w", "transpose": "a b -> b a"}],
        {f"experts.{e}.w": np.arange(24, dtype=np.int32).reshape(4, 3, 2)[e].T for e in range(4)},
    ),
    "steps in their order": (
        {"w": QKV},
        [{"names": "w", "steps": ["part 0 0 1/2", "halves 0", "add -3", "flip"]}],
        {"w": (np.concatenate([QKV[0:6:2], QKV[1:6:2]]) - np.int16(3)) ^ np.int16(-32768)},
    ),
    "dropped": ({"a": GATE, "b": UP}, [{"names": "b", "outputs": []}], {"a": GATE}),
    "constants": (
        {"a.w": GATE},
        [
            {
                "names": "{x}.w",
                "outputs": [
                    {"name": "{x}.shape", "constant": ["{x}.w[1]*8", 7]},
                    {"name": "{x}.groups", "constant": {"count": "{x}.w[0]", "groups": 2}, "dtype": "s32"},
                ],
            }
        ],
        {"a.shape": np.array([40, 7]), "a.groups": np.array([0, 0, 0, 1, 1, 1], np.int32)},
    ),
    "two of AWQ joined by their outputs": (
        {key: packed(RNG.integers(0, 16, (16, 24), dtype=np.uint8), "awq", 3) for key in ("0.q", "0.k")},
        [{"names": ["{i}.q", "{i}.k"], "name": "{i}.qk", "join": 1, "format": {"from": "awq", "to": "pack_quantized"}}],
        {},
    ),
}
RULES["two of AWQ joined by their outputs"][2]["0.qk"] = np.concatenate(
    [
        np.asarray(fi.weights.repack(one, "awq", "pack_quantized")).view(np.int32).reshape(24, 2)
        for one in RULES["two of AWQ joined by their outputs"][0].values()
    ]
)


@pytest.mark.parametrize("case", RULES)
def test_rules(tmp_path: Path, case: str) -> None:
    tensors, rules, expected = RULES[case]
    found = converted(tmp_path, tensors, rules)
    assert set(found) == set(expected)
    for name, one in expected.items():
        assert (found[name].dtype, found[name].shape) == (one.dtype, one.shape)
        assert found[name].tobytes() == np.ascontiguousarray(one).tobytes()


#: Rules that do not fit the tensors a (f32[6,5]), b.0 and b.1 (u8[4,4]), and why.
WRONG: list[tuple[Any, str]] = [
    ([{"names": "x"}], "the rule for 'x' applies to no tensor"),
    ([{"names": "x", "optional": True}], "no tensor follows any of the rules"),
    ([{"names": "a"}, {"names": "a"}], "the rule for 'a' applies to no tensor.* an earlier rule matches first"),
    ([{"names": "a", "type": "BF16"}], "no name and type match"),
    ([{"names": "b.*", "name": "c"}], "two tensors would be called 'c'; the second is made of b.1 U8"),
    ([{"names": "a", "name": "b.0"}], "two tensors would be called 'b.0'"),
    ([{"names": "a", "name": "__metadata__"}], "no tensor is called '__metadata__'"),
    ([{"names": "{x}", "name": "{y}"}], "name is '{y}', which has a capture that its names lack"),
    ([{"names": "a", "nmae": "c"}], "a rule has names, and perhaps .*; got"),
    ([{"name": "c"}], "a rule has names"),
    ([{"names": []}], "names of a rule must be text"),
    ([{"names": 3}], "names of a rule must be text"),
    ([{"names": "a", "dtype": 3}], "rule for 'a': dtype must be text"),
    ([{"names": "a", "outputs": {}}], "outputs must be a list"),
    ([{"names": "a", "outputs": [{"nmae": "x"}]}], "rule for 'a': an output has"),
    ([{"names": "a", "outputs": [], "dtype": "f16"}], "has outputs, so dtype belongs"),
    ([{"names": "a", "layout": "{0,1}"}], "a rule has names"),
    ([{"names": "a", "needs": "b.0"}], "needs must be names, or names with their sizes"),
    ([{"names": "a", "needs": {"b.0": "k%g"}}], "needs have a multiple of g, and no size g"),
    ([{"names": "a", "needs": {"b.0": "n8"}}], "sizes are letters, as in 'I32 k%g n/8'; got 'n8'"),
    ([{"names": "a", "needs": ["{x}.0"]}], "needs '{x}.0', which has a capture that its names lack"),
    ([{"names": "{x}.1", "needs": ["{x}.0", "{x}.2"]}], "'b.1' comes with 'b.2', by the rule for '{x}.1'"),
    ([{"names": ["a", "b.0"], "name": "c"}], "join must be the dimension"),
    ([{"names": ["a", "b.0"], "name": "c", "join": 0}], "join 0 takes tensors of one type"),
    ([{"names": ["b.0", "b.1"], "name": "c", "join": 2}], "join 2 takes tensors"),
    ([{"names": ["b.0", "b.2"], "name": "c", "join": 0}], "there is 'b.0', and no 'b.2'"),
    ([{"names": ["b.*", "a"], "name": "c", "join": 0}], "'b.1' and 'b.0' both match"),
    ([{"names": ["b.0", "b.1"], "join": 0}], "several joined names need a name for the result"),
    ([{"names": "b.0", "join": 0}], "join must be the dimension along which names"),
    ([{"names": "a", "name": "x", "stack": "y"}], "an output has one of name, stack"),
    ([{"names": "?.1", "stack": "y"}], "stack needs names with one"),
    ([{"names": "a", "unstack": "y"}], "unstack is a name with one"),
    ([{"names": "a", "steps": "flip"}], "steps must be a list"),
    ([{"names": "a", "steps": ["round 3"]}], "the step 'round 3' is not one of: add and a number"),
    ([{"names": "b.0", "steps": ["add"]}], "the step 'add' is not one of"),
    ([{"names": "b.0", "steps": ["add 1/2"]}], "in place of a number"),
    ([{"names": "b.0", "steps": ["part 0 0 1/0"]}], "in place of a number"),
    ([{"names": "b.0", "steps": ["add 256"]}], "leaves no code of 8 bits"),
    ([{"names": "a", "steps": ["add 1"]}], "'a', by the rule for 'a': the step 'add 1' is for codes, .* float32"),
    ([{"names": "b.0", "steps": ["multiply 2"]}], "is for floats, and the tensor is uint8"),
    ([{"names": "a", "steps": ["multiply 3"]}], "'multiply 3' is not exact; a power of two"),
    ([{"names": "a", "steps": ["multiply 0"]}], "is not exact"),
    ([{"names": "a", "steps": ["halves 1"]}], r"is for a dimension of an even size, the tensor is \[6, 5\]"),
    ([{"names": "a", "steps": ["part 2 0 1"]}], r"is for a dimension, the tensor is \[6, 5\]"),
    ([{"names": "a", "steps": ["part 0 0 1/4"]}], "1/4 is not an index of a dimension of 6"),
    ([{"names": "a", "steps": ["part 0 3 7"]}], "7 is not an index of a dimension of 6"),
    ([{"names": "a", "steps": ["part 0 3 3"]}], "leaves nothing"),
    ([{"names": "a", "steps": ["part 0 1/2 1"]}], "leaves nothing of dimension 0, of 6; 6 or 1/1 is its end"),
    ([{"names": "b*1", "stack": "c"}], r"^the rule for 'b\*1': 'b.1' is not to be stacked"),
    ([{"names": "a", "transpose": "a b c -> c b a"}], "names 3 dimensions, the tensor has 2"),
    ([{"names": "a", "field": "codes"}], "F32 has no field 'codes'; it is not blocks"),
    ([{"names": "a", "constant": ["c[0]"], "name": "x"}], "there is no dimension 0 of a tensor 'c'"),
    ([{"names": "a", "constant": ["a[2]"], "name": "x"}], "there is no dimension 2"),
    ([{"names": "a", "constant": [1.5], "name": "x"}], "1.5 is neither a number nor a dimension"),
    ([{"names": "a", "constant": {"count": 5, "groups": 2}, "name": "x"}], "5 rows are not 2 groups"),
    ([{"names": "a", "constant": 3, "name": "x"}], "a constant must be a list of integers"),
    ([{"names": "b.0", "equals": [1, 2]}], "is .4, 4., and compared with .2."),
    ([{"names": "b.0", "equals": {"fill": 77}}], r"b.0 U8 \[4, 4\], .*: the value at \(0, 0\) is 0, and not 77"),
    ([{"names": "a", "dtype": "s32"}], "f32 is not cast to s32"),
    ([{"names": "a", "dtype": "u4"}], "safetensors files have no|not cast"),
    ([{"names": "b.0", "format": {"from": "awq", "to": "gptqq"}}], "no format is called"),
    ([{"names": "b.0", "format": {"from": "blocked_scales", "to": "plain"}}], "give the format a shape"),
    ([{"names": "*", "outputs": []}], "no tensor is left to write"),
    ("awq-to-mlx", "no recipe is called 'awq-to-mlx'; there are awq-to-compressed-tensors"),
    ({"rules": [], "confg": {}}, "a recipe has rules, and perhaps formats, about, config"),
    ({"rules": [], "config": 3}, "config of a recipe must be a mapping"),
    ({"rules": [], "metadata": {"a": 3}}, "metadata maps texts to texts"),
    ({"rules": [], "expects": {"a": 3}}, "expects maps places"),
    (3, "rules must be a list of mappings"),
]


@pytest.mark.parametrize(("rules", "reason"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_rules_that_do_not_fit(tmp_path: Path, rules: Any, reason: str) -> None:
    """Nothing is written, and the message says which rule, which tensor and why."""
    square = np.arange(16, dtype=np.uint8).reshape(4, 4)
    source = saved(tmp_path / "in", {"a": GATE, "b.0": square, "b.1": square})
    with pytest.raises(fi.FastIndexError, match=reason):
        fi.weights.convert_checkpoint(source, tmp_path / "out", rules)
    assert os.listdir(tmp_path) == ["in"]


def test_signs_never_flip_in_silence(tmp_path: Path) -> None:
    """Between two's complement and codes with an offset, the rule has to say so; elsewhere it is a step."""
    values = np.arange(-64, 64, dtype=np.int8).reshape(2, 64)
    rule: dict[str, Any] = {"names": "w", "format": {"from": "plain", "to": "mlx", "bits": 8}}
    with pytest.raises(fi.FastIndexError, match=r'the sign bit flips: say so with "steps": \["flip"\]'):
        converted(tmp_path, {"w": values}, [rule])
    flipped = values.view(np.uint8) ^ np.uint8(128)
    found = converted(tmp_path, {"w": values}, [{**rule, "steps": ["flip"]}])["w"]
    assert found.dtype == np.uint32
    assert found.tobytes() == flipped.tobytes()
    for steps, expected in (([], values.view(np.uint8)), (["flip"], flipped)):
        folder = tmp_path / str(len(steps))
        folder.mkdir()
        found = converted(folder, {"w": values.view(np.uint8)}, [{**rule, "steps": steps}])["w"]
        assert found.tobytes() == expected.tobytes()


def test_values_that_a_cast_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the tensor, and the place in the whole of it, not in the band that was read."""
    monkeypatch.setattr(expressions, "_BAND_BYTES", 1)
    codes = np.zeros((16, 64), np.uint8)
    rule: dict[str, Any] = {"names": "w", "dtype": "u4", "format": {"from": "plain", "to": "awq"}}
    assert converted(tmp_path, {"w": codes}, [rule])["w"].shape == (16, 8)
    codes[9, 3] = 16
    with pytest.raises(fi.FastIndexError, match=r"^w U8 \[16, 64\], as w: u4 holds .*, got 16 at \(9, 3\)"):
        fi.weights.convert_checkpoint(saved(tmp_path / "in", {"w": codes}), tmp_path / "other", [rule])


def test_steps_of_floats_are_exact_or_refused(tmp_path: Path) -> None:
    numbers = np.array([1, -0.0, np.inf, np.nan, 6e-8, 65504], np.float16)
    found = converted(tmp_path, {"w": numbers}, [{"names": "w", "steps": ["multiply -1"]}])["w"]
    assert found.tobytes() == (-numbers).tobytes() or np.array_equal(found, -numbers, equal_nan=True)
    for step, place in (("multiply -8", 5), ("multiply 1/2", 4)):
        (tmp_path / str(place)).mkdir()
        with pytest.raises(fi.FastIndexError, match=rf"the value at \({place}\) is .*times .* is no float16"):
            converted(tmp_path / str(place), {"w": numbers}, [{"names": "w", "steps": [step]}])


def test_every_step_and_recipe_is_tested() -> None:
    text = Path(__file__).read_text()
    assert all(re.search(f'"{step}[ "]', text + str(RECIPES).replace("'", '"')) for step in STEPS)
    assert all(name in text for name in RECIPES)


def test_names_of_tensors() -> None:
    assert captured("a.{x}.b.{x}", "a.3.b.3") == {"x": "3"}
    assert captured("a.{x}.b.{x}", "a.3.b.4") is None
    assert captured("[ab].w", "b.w") == {}
    assert captured("[!ab].w", "b.w") is None
    assert captured("a+(b", "a+(b") == {}
    assert captured("a[b", "a[b") == {}
    assert captured("*.*", "x.y.z") == {}
    assert captured("a.*", "a.y.z") == {"*": "y.z"}
    # In a moment, whatever the length.
    long = "a." * 100_000
    assert captured("*.x.*.y.*.z", long) is None
    assert captured("{x}.x.{y}.y.*.z", long) is None
    assert captured("*", long) == {"*": long}
    assert captured("{x}", "") is None
    assert captured("a?", "a\n") == {}


#: From, to, sizes, bits and parameters of moves that are read in any boxes.
MOVES: list[tuple[str, str, tuple[int, ...], int, dict[str, Any]]] = [
    ("awq", "pack_quantized", (128, 192), 4, {}),
    ("gptq", "marlin", (128, 192), 4, {}),
    ("awq", "marlin", (2, 64, 128), 4, {}),
    ("marlin", "awq", (128, 128), 4, {"activation_bits": 8}),
    ("gptq", "plain", (96, 52), 3, {}),
    ("plain", "pack_quantized", (40, 52), 3, {"dense": False}),
    ("plain", "pack_quantized", (40, 52), 3, {"packed_dim": 0}),
    ("plain", "awq", (40, 64), 8, {"packer": "auto_round"}),
    ("gguf_body", "mlx", (40, 128), 8, {"type": "q8_0", "group_size": 32}),
    ("plain", "blocked_scales", (3, 300, 10), 8, {}),
    ("plain", "marlin_scales", (1, 128), 16, {}),
    ("plain", "trtllm_gated_rows", (3, 40, 7), 16, {}),
    ("plain", "bnb_nf4", (5, 16), 4, {}),
    ("plain", "trtllm_scales_8x4", (10, 7), 8, {}),
]


@pytest.mark.parametrize("seed", strategies.seeds(1))
@pytest.mark.parametrize("case", MOVES, ids=lambda one: f"{one[0]} {one[1]}")
def test_boxes_of_a_move_are_those_of_the_whole(
    case: tuple[str, str, tuple[int, ...], int, dict[str, Any]], seed: int
) -> None:
    source, target, sizes, bits, parameters = case
    rng = np.random.default_rng(seed)
    formats = Formats((source, target), sizes, bits, tuple(sorted(parameters.items())))
    left = formats.plan().ends[0]
    if source == "plain":
        given = rng.integers(0, 1 << bits, sizes).astype(f"u{max(bits, 8) // 8}")
    else:
        words = {"awq": (*sizes[:-1], sizes[-1] // 8), "marlin": (*sizes[:-2], sizes[-2] // 16, sizes[-1] * 2)}
        shape = words.get(source, (left.side.nbytes // 4 // sizes[-1], sizes[-1]) if source == "gptq" else sizes)
        width = left.side.nbytes // int(np.prod(shape))
        given = rng.integers(0, 256, left.side.nbytes).astype(np.uint8).view(f"u{width}").reshape(shape)
    moved = Moved(Constant(given), formats)
    whole = moved.read(tuple(map(range, moved.sizes)))
    # Of the source's sizes, or the destination's from plain.
    expected = fi.weights.repack(given, source, target, shape=sizes, bits=bits, **parameters)
    assert whole.tobytes() == np.asarray(expected).tobytes()
    for _ in range(20):
        box = tuple(range(*sorted(rng.choice(size + 1, 2, replace=False).tolist())) for size in moved.sizes)
        found = moved.read(box)
        assert np.array_equal(found, whole[tuple(slice(one.start, one.stop) for one in box)])
        assert moved.cost(box) > 0
    check_bands(moved, whole)


def check_bands(expression: Expression, whole: NDArray[Any]) -> None:
    """Whatever the memory, bands follow each other in C order, and none takes more."""
    everything: Box = tuple(map(range, expression.sizes))
    for room in (1 << 30, expression.cost(everything) // 3, expression.cost(everything) // 20):
        try:
            bands = [*expression.bands(room)]
        except fi.FastIndexError:
            continue
        assert all(expression.cost(band) <= room for band in bands)
        assert b"".join(expression.read(band).tobytes() for band in bands) == whole.tobytes()


def test_bands_outlive_the_memory_they_were_read_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of tensors are views of memory that later tensors are read into, while a slow disk still writes them."""
    write = OutputFile.write

    def late(file: OutputFile, start: int, content: Any) -> None:
        time.sleep(0.02)
        write(file, start, content)

    monkeypatch.setattr(OutputFile, "write", late)
    tensors = {f"w.{i}": np.full((8, 512), i, np.float32) for i in range(20)}
    found = converted(tmp_path, tensors, [{"names": "*", "steps": ["part 0 1/4 3/4"]}])
    assert all(np.array_equal(found[name], one[2:6]) for name, one in tensors.items())


def test_shards_and_folders(tmp_path: Path) -> None:
    tensors = {f"w.{i}": np.arange(1000 + i, dtype=np.float32) for i in range(7)} | {"scalar": np.array(2.5)}
    source = saved(tmp_path / "in", tensors)
    done = fi.weights.convert_checkpoint(source, tmp_path / "out", [{"names": "*"}], max_shard_bytes=9000)
    files = sorted(name for name in os.listdir(tmp_path / "out") if name.endswith(".safetensors"))
    assert files == [f"model-{i:05}-of-00004.safetensors" for i in range(1, 5)]
    found = loaded(tmp_path / "out")
    assert all(np.array_equal(found[name], one) for name, one in tensors.items())
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in tensors.values())
    assert done.verify() == 5
    again = tmp_path / "again"
    assert fi.weights.convert_checkpoint(tmp_path / "out", again, [{"names": "*"}], dry_run=True).lines
    assert not again.exists()
    for name, reason in (("out", "already exists"), ("x.safetensors", "is the name of a file")):
        with pytest.raises(fi.FastIndexError, match=reason):
            fi.weights.convert_checkpoint(source, tmp_path / name, [{"names": "*"}])
    with pytest.raises(FileNotFoundError):
        fi.weights.convert_checkpoint(source, tmp_path / "no" / "out", [{"names": "*"}])
    with open(tmp_path / "out" / files[1], "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x07")
    with pytest.raises(fi.FastIndexError, match=r"00002-of-00004\.safetensors is not as it was written"):
        done.verify()
    result = run_command(("verify", str(tmp_path / "out")))
    assert result.exit_code == 1


def test_each_tensor_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although a rule makes two tensors of each, and there are two."""
    source = saved(tmp_path / "in", {name: np.arange(12, dtype="f4").reshape(3, 4) for name in ("x.w", "y.w")})
    read: list[int] = []
    original = InputFile.read

    def counted(file: InputFile, start: int, into: NDArray[np.uint8]) -> None:
        read.append(len(into))
        original(file, start, into)

    monkeypatch.setattr(InputFile, "read", counted)
    rules = [
        {
            "names": "{x}.w",
            "outputs": [{"name": "{x}.a", "transpose": "a b -> b a"}, {"name": "{x}.b", "dtype": "bf16"}],
        }
    ]
    result = fi.weights.convert_checkpoint(source, tmp_path / "out", rules)
    assert [line.split()[5] for line in result.lines] == ["x.a", "x.b", "y.a", "y.b"]
    assert read.count(48) == 2


CASTS = [
    ("f4", [1.0, 65504.0, 65519.0, -np.inf, np.nan, 1e-9], "f16", None),
    ("f4", [1.0, 65520.0], "f16", "65520"),
    ("f4", [-3.4e38, 1.0], "bf16", "-3.39"),
    ("f8", [1.0, -1e300], "f32", r"-1e\+300"),
    ("f4", [448.0, 464.0, np.nan], "f8e4m3fn", None),
    ("f4", [1.0, 465.0], "f8e4m3fn", "465"),
    ("i4", [127, -128], "s8", None),
    ("i4", [1, 128], "s8", "128"),
    ("i8", [1, -(1 << 31) - 1], "s32", "-2147483649"),
]


@pytest.mark.parametrize(("given", "values", "target", "refused"), CASTS)
def test_casts_of_values_out_of_range(
    tmp_path: Path, given: str, values: list[float], target: str, refused: str | None
) -> None:
    """The result is NumPy's, or an error; "unsafe" does not check. A scalar stays one."""
    tensors = {"a": np.array(values, given), "b": np.array(values[0], given)}
    source, rules = saved(tmp_path / "in", tensors), [{"names": "*", "dtype": target}]
    if refused is not None:
        reason = rf"^a .*: the value at \(\d\) is {refused}.*, and {target} has no"
        with pytest.raises(fi.FastIndexError, match=reason):
            fi.weights.convert_checkpoint(source, tmp_path / "out", rules)
        assert os.listdir(tmp_path) == ["in"]
    casting = "same_kind" if refused is None else "unsafe"
    fi.weights.convert_checkpoint(source, tmp_path / "out", rules, casting=casting)
    dtype = fi.Shape(target, ()).element_type.numpy_dtype
    found = fi.weights.convert_checkpoint(tmp_path / "out", tmp_path / "again", [])
    assert {line.split("[")[1].split("]")[0] for line in found.lines} == {"", str(len(values))}
    content = (tmp_path / "out" / "model.safetensors").read_bytes()
    with np.errstate(all="ignore"):
        expected = [one.astype(dtype).tobytes() for one in tensors.values()]
    assert content.endswith((expected[0] + expected[1], expected[1] + expected[0]))


def test_types_that_are_copied(tmp_path: Path) -> None:
    """Elements of fewer bits keep their type and sizes; nothing else is done with them."""
    source = tmp_path / "in"
    source.mkdir()
    header = {"x": {"dtype": "F4", "shape": [3, 4], "data_offsets": [0, 6]}}
    header["y"] = {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [6, 9]}
    text = json.dumps(header).encode()
    (source / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(range(9)))
    result = fi.weights.convert_checkpoint(source, tmp_path / "out", [{"names": "x", "name": "z"}])
    assert result.lines == ("x F4 [3, 4] -> z F4 [3, 4]", "y F6_E2M3 [4] -> y F6_E2M3 [4]")
    written = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert written.endswith(bytes(range(9)))
    for rule in ({"transpose": "a b -> b a"}, {"steps": ["flip"]}, {"dtype": "f16"}):
        with pytest.raises(fi.UnsupportedError, match="not moved one by one"):
            fi.weights.convert_checkpoint(source, tmp_path / "no", [{"names": "x", **rule}])


def test_damaged_input(tmp_path: Path) -> None:
    source = saved(tmp_path / "in", {"a": GATE})
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(fi.FastIndexError, match="bytes of tensors; its header says"):
        fi.weights.convert_checkpoint(source, tmp_path / "out", [{"names": "*"}])
    saved(tmp_path / "in", {"a": GATE, "b": UP})

    class Change:
        def start(self, total: int) -> None:
            saved(tmp_path / "in", {"a": UP, "b": GATE})

        def advance(self, count: int) -> None:
            pass

    with pytest.raises(fi.FastIndexError, match="was replaced or written to after its header was read"):
        fi.weights.convert_checkpoint(source, tmp_path / "out", [{"names": "*"}], progress=Change())
    assert not (tmp_path / "out").exists()


#: Ends the process once it has written a given number of bytes.
KILLED = """
import os, signal, sys
import fastindex as fi

class Kill:
    left = int(sys.argv[3])
    def start(self, total): pass
    def advance(self, count):
        self.left -= count
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

fi.weights.convert_checkpoint(sys.argv[1], sys.argv[2], "awq-to-compressed-tensors", max_shard_bytes=40_000,
                              progress=Kill())
"""


def test_kill_and_go_on(tmp_path: Path) -> None:
    """Whenever it is killed there is no folder, and at last there is the one of a job that was left alone."""
    tensors = {f"layers.{i}.{key}": one for i in range(4) for key, one in awq(vendors.layer(384, 192, 3)).items()}
    source, out = saved(tmp_path / "in", tensors), tmp_path / "out"
    for left in (0, 50_000, 90_000):
        done = subprocess.run([sys.executable, "-c", KILLED, source, out, str(left)], timeout=HANG_SECONDS)
        assert done.returncode == -signal.SIGKILL
        assert not out.exists()
    staging = tmp_path / "out.partial"
    # A file has its name a moment before it is listed.
    listed = [json.loads(line)["array"]["name"] for line in (staging / JOURNAL).read_text().splitlines()]
    kept = {name: (staging / name).stat().st_ino for name in listed}
    assert kept
    with pytest.raises(fi.FastIndexError, match=r"out\.partial was begun with other rules or another checkpoint"):
        fi.weights.convert_checkpoint(source, out, "awq-to-gptq", max_shard_bytes=40_000)
    result = fi.weights.convert_checkpoint(source, out, "awq-to-compressed-tensors", max_shard_bytes=40_000)
    assert all((out / name).stat().st_ino == number for name, number in kept.items())
    fi.weights.convert_checkpoint(source, tmp_path / "alone", "awq-to-compressed-tensors", max_shard_bytes=40_000)
    assert sorted(os.listdir(out)) == sorted(os.listdir(tmp_path / "alone"))
    for name in os.listdir(out):
        assert (out / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert result.verify() == len(os.listdir(out)) - 1
    assert not (tmp_path / "out.partial").exists()


def test_one_job_at_a_time_and_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, rules = saved(tmp_path / "in", {"a": GATE}), [{"names": "*"}]

    class Second:
        reason = ""

        def start(self, total: int) -> None:
            pass

        def advance(self, count: int) -> None:
            with pytest.raises(fi.FastIndexError) as caught:
                fi.weights.convert_checkpoint(source, tmp_path / "out", rules)
            self.reason = str(caught.value)

    def stopped(*names: Any) -> None:
        raise OSError("stopped")

    second = Second()
    with monkeypatch.context() as patch:
        # Everything is there, and has no name yet.
        patch.setattr(os, "rename", stopped)
        with pytest.raises(OSError, match="stopped"):
            fi.weights.convert_checkpoint(source, tmp_path / "out", rules, progress=second)
    assert "another job is writing into" in second.reason
    assert (tmp_path / "out.partial" / "manifest.json").exists()
    assert fi.weights.convert_checkpoint(source, tmp_path / "out", rules).verify() == 1
    assert sorted(os.listdir(tmp_path / "out")) == ["manifest.json", "model.safetensors"]


def test_command(tmp_path: Path) -> None:
    tensors = {f"{LAYER}.{key}": one for key, one in awq(vendors.layer(128, 64, 1)).items()}
    source, out, file = saved(tmp_path / "in", tensors), tmp_path / "out", tmp_path / "rules.json"
    result = run_command(("convert", str(source), str(out), "--rules", "awq-to-gptq", "--dry-run"))
    assert (result.exit_code, out.exists()) == (0, False)
    assert f"{LAYER}.qweight I32 [128, 8] -> {LAYER}.qweight I32 [16, 64]  (awq -> gptq)" in result.output
    assert "(awq -> pack_quantized; transpose g n -> g n; add -1)" in result.output
    file.write_text(json.dumps(RECIPES["awq-to-gptq"]))
    result = run_command(("convert", str(source), str(out), "--rules", str(file), "--max-shard", "1MB"))
    assert (result.exit_code, result.output) == (0, "")
    assert run_command(("verify", str(out))).output == "1 files: as they were written\n"
    for rules, status in (("awq-to-mlx", 1), (str(tmp_path / "none.json"), 1)):
        assert run_command(("convert", str(source), str(tmp_path / "no"), "--rules", rules)).exit_code == status
    assert run_command(("convert", str(source), str(tmp_path / "no"))).exit_code == 2
    assert not (tmp_path / "no").exists()


@pytest.mark.in_turn(seconds=5)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's /proc/self/status")
def test_the_limit_is_a_limit(tmp_path: Path) -> None:
    """Tensors of zeros with holes on disk: 100 MiB of codes with their dimensions in another order."""
    source = tmp_path / "in"
    source.mkdir()
    nbytes = 8192 * 3200 * 4
    header = {"a.qweight": {"dtype": "I32", "shape": [8192, 3200], "data_offsets": [0, nbytes]}}
    text = json.dumps(header).encode()
    with open(source / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + nbytes)
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps([{"names": "*", "format": {"from": "awq", "to": "pack_quantized"}}]))
    program = (
        "import atexit, re, sys; from pathlib import Path;"
        'atexit.register(lambda: print(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]));'
        'from fastindex.cli.commands import main; main(sys.argv[1:], prog_name="fastindex")'
    )
    command = ["convert", str(source), str(tmp_path / "out"), "--rules", str(rules), "--max-memory", "192MiB"]
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True)
    assert done.stderr == ""
    assert int(done.stdout) >> 10 < 192
