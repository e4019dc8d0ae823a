"""Compile the HLO modules of this folder with the TPU compiler; no TPU is needed.

Run ``pip install "jax[tpu]"`` and then ``python generate.py`` in this folder. The modules are what
``jit(f).lower(...).compile().as_text()`` prints, unedited; memory.json is what ``memory_analysis()`` says of them.
``python generate.py layouts`` writes the layouts that the compiler gives parameters when nothing asks for another to
``../tpu_layouts.txt``.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(
    JAX_PLATFORMS="cpu",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_SKIP_MDS_QUERY="1",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_WORKER_ID="0",
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
Array = jax.Array


def nearest_neighbours(points: Array, queries: Array) -> tuple[Array, Array]:
    """Points of three coordinates: the classic 42-fold padding."""
    difference = points[:, None, :] - queries[None, :, :]
    distance = jnp.sqrt(jnp.sum(difference**2, axis=-1))
    values, indices = jax.lax.top_k(-distance.T, 5)
    return jnp.take(points, indices, axis=0).mean(axis=1), values


def convolutions(images: Array, first: Array, second: Array, labels: Array) -> tuple[Array, Array]:
    """Three channels in, statistics, a strided second layer, the gradient of both."""

    def loss(weights: tuple[Array, Array]) -> Array:
        x = jax.lax.conv_general_dilated(images, weights[0], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu((x - x.mean((0, 1, 2))) * jax.lax.rsqrt(x.var((0, 1, 2)) + 1e-5))
        x = jax.lax.conv_general_dilated(x, weights[1], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.mean((x.mean((1, 2)) - labels) ** 2)

    return jax.grad(loss)((first, second))


def transformer(weights: dict[str, Array], tokens: Array) -> tuple[Array, dict[str, Array]]:
    """A training step of four layers in a loop, bfloat16, an int8 output head; over four chips."""

    def block(x: Array, layer: dict[str, Array]) -> tuple[Array, None]:
        y = x * jax.lax.rsqrt(jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True) + 1e-6).astype(x.dtype)
        q, k, v = jnp.split(y @ layer["attention"], 3, axis=-1)
        q, k, v = (z.reshape(*z.shape[:2], 6, 64) for z in (q, k, v))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32))
        attended = jnp.einsum("bhqk,bkhd->bqhd", scores.astype(x.dtype), v)
        x = x + attended.reshape(x.shape)
        return x + jax.nn.gelu(x @ layer["up"]) @ layer["down"], None

    def loss(weights: dict[str, Array]) -> Array:
        layers = {name: weights[name] for name in ("attention", "up", "down")}
        x, _ = jax.lax.scan(jax.checkpoint(block), weights["embedding"][tokens[:, :-1]], layers)
        logits = (x @ weights["embedding"].T).astype(jnp.float32)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1).mean()

    value, gradient = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda w, g: w - 0.01 * g.astype(w.dtype), weights, gradient)


def quantised(x: Array, packed: Array, scale: Array, mask: Array) -> Array:
    """int8 by int4 weights, predicates, a sort and a host transfer of scalars."""
    weights = packed.astype(jnp.int8)
    product = jax.lax.dot_general(x, weights, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    product = jnp.where(mask[:, None], product.astype(jnp.float32) * scale, -jnp.inf)
    return jnp.sort(product.astype(jnp.bfloat16), axis=-1)


def decode(weights: dict[str, Array], cache: Array, tokens: Array, position: Array) -> tuple[Array, Array, Array]:
    """Eight steps of a decoder: a loop that writes its cache in place; the carry is donated."""

    def step(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        cache, tokens, position = carry
        x = weights["embedding"][tokens]
        q, k, v = jnp.split(x @ weights["attention"], 3, axis=-1)
        cache = jax.lax.dynamic_update_slice(cache, jnp.stack([k, v])[:, :, None], (0, 0, position, 0))
        scores = jnp.einsum("bd,bsd->bs", q, cache[0]).astype(jnp.float32)
        scores = jnp.where(jnp.arange(cache.shape[2]) <= position, scores, -1e30)
        y = jnp.einsum("bs,bsd->bd", jax.nn.softmax(scores).astype(x.dtype), cache[1])
        return cache, jnp.argmax((x + y) @ weights["embedding"].T, -1).astype(jnp.int32), position + 1

    return jax.lax.fori_loop(0, 8, step, (cache, tokens, position))


def centred(points: Array) -> Array:
    """Small enough to count by hand."""
    return points - points.mean(axis=0)


def shape(dtype: Any, *dimensions: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dimensions, dtype)


def compile_module(
    name: str, topology: str, devices: int, function: Callable[..., Any], *arguments: Any, donated: tuple[int, ...] = ()
) -> dict[str, int]:
    description = topologies.get_topology_desc(topology, "tpu")
    mesh = Mesh(np.array(description.devices[:devices]), ("x",))
    replicated = NamedSharding(mesh, PartitionSpec())
    over_batch = NamedSharding(mesh, PartitionSpec("x"))
    shardings = [over_batch if devices > 1 and i == len(arguments) - 1 else replicated for i in range(len(arguments))]
    jitted = jax.jit(function, in_shardings=tuple(shardings), out_shardings=replicated, donate_argnums=donated)
    compiled = jitted.lower(*arguments).compile()
    Path(f"{name}.txt").write_text(compiled.as_text(), encoding="utf-8")
    memory = compiled.memory_analysis()
    kinds = ("argument_size", "output_size", "temp_size", "alias_size", "peak_memory")
    return {kind: getattr(memory, f"{kind}_in_bytes") for kind in kinds}


def main() -> None:
    f32, bf16 = jnp.float32, jnp.bfloat16
    memory: dict[str, dict[str, int]] = {}
    memory["centred_v5e"] = compile_module("centred_v5e", "v5e:2x2", 1, centred, shape(f32, 1000, 3))
    memory["nearest_neighbours_v5e"] = compile_module(
        "nearest_neighbours_v5e", "v5e:2x2", 1, nearest_neighbours, shape(f32, 4000, 3), shape(f32, 100, 3)
    )
    memory["convolutions_v4"] = compile_module(
        "convolutions_v4", "v4:2x2x1", 1, convolutions,
        shape(f32, 16, 64, 64, 3), shape(f32, 3, 3, 3, 20), shape(f32, 3, 3, 20, 36), shape(f32, 16, 36),
    )  # fmt: skip
    weights = {
        "embedding": shape(bf16, 1000, 384), "attention": shape(bf16, 4, 384, 1152),
        "up": shape(bf16, 4, 384, 1000), "down": shape(bf16, 4, 1000, 384),
    }  # fmt: skip
    memory["transformer_v5e_4"] = compile_module(
        "transformer_v5e_4", "v5e:2x2", 4, transformer, weights, shape(jnp.int32, 8, 130)
    )
    memory["quantised_v6e"] = compile_module(
        "quantised_v6e", "v6e:2x2", 1, quantised,
        shape(jnp.int8, 100, 300), shape(jnp.int4, 300, 257), shape(f32, 257), shape(jnp.bool_, 100),
    )  # fmt: skip
    memory["decode_v5p"] = compile_module(
        "decode_v5p", "v5p:2x2x1", 1, decode,
        {"embedding": shape(bf16, 1000, 200), "attention": shape(bf16, 200, 600)}, shape(bf16, 2, 3, 500, 200),
        shape(jnp.int32, 3), shape(jnp.int32), donated=(1, 2),
    )  # fmt: skip
    Path("memory.json").write_text(json.dumps(memory, indent=1) + "\n", encoding="utf-8")


SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 20, 32, 33, 64, 100, 128, 130, 200, 256, 300, 512, 1000, 4000)
LAYOUT_RUNS = (
    *(("v5e:2x2", name, seed) for seed in (1, 2) for name in ("float32", "bfloat16", "int8", "int4", "bool")),
    ("v5e:2x2", "float8_e4m3fn", 3), ("v5e:2x2", "int16", 4), ("v5e:2x2", "complex64", 5),
    ("v4:2x2x1", "float32", 6), ("v4:2x2x1", "bfloat16", 7),
    ("v6e:2x2", "float32", 8), ("v6e:2x2", "bfloat16", 9),
)  # fmt: skip


def print_layouts(topology: str, dtype: str, seed: int) -> None:
    """Print the layouts of 40 parameters of random dimensions; some compilations abort the process."""
    source = random.Random(seed)
    dimensions = [()]
    for _ in range(39):
        rank = source.choice((1, 2, 2, 3, 3, 4, 5))
        sizes = SIZES if rank <= 3 else [size for size in SIZES if size <= 300]
        dimensions.append(tuple(source.choice(sizes) for _ in range(rank)))
    mesh = Mesh(np.array(topologies.get_topology_desc(topology, "tpu").devices[:1]), ("x",))
    replicated = NamedSharding(mesh, PartitionSpec())

    def total(*arrays: Array) -> Array:
        return sum(jnp.real(x.astype(jnp.complex64 if dtype == "complex64" else jnp.float32)).sum() for x in arrays)

    jitted = jax.jit(total, in_shardings=replicated, out_shardings=replicated, keep_unused=True)
    for i in range(0, 40, 10):
        arguments = [shape(getattr(jnp, dtype), *sizes) for sizes in dimensions[i : i + 10]]
        text = re.sub(r"/\*.*?\*/", "", jitted.lower(*arguments).compile().as_text())
        entry = re.search(r"entry_computation_layout=\{\((.*)\)->", text)
        assert entry is not None
        print("\n".join(re.findall(r"\w+\[[^\]]*\]\{[^}]*\}", entry.group(1))), flush=True)


def layouts() -> None:
    lines: set[str] = set()
    for run in LAYOUT_RUNS:
        command = [sys.executable, __file__, *map(str, run)]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        print(*run, len(found))
        lines.update(found)
    Path("../tpu_layouts.txt").write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            main()
        case ["layouts"]:
            layouts()
        case [topology, dtype, seed]:
            print_layouts(topology, dtype, int(seed))
