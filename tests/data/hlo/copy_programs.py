"""Programs that copy because of layouts, for four TPU generations; compiled by libtpu, no TPU is needed.

``python copy_programs.py NAME FOLDER`` compiles one and writes NAME.txt to FOLDER: what
``compiled.as_text()`` prints, unedited. ``python copy_programs.py`` does that for all, compressed, into
the folder ``copies`` beside this file, with ``memory.json``: what ``memory_analysis()`` says of each. Needs
``pip install "jax[tpu]"``.
"""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent / "copies"
KINDS = ("argument_size", "output_size", "temp_size", "alias_size", "peak_memory")


class Program(NamedTuple):
    """A function, where it runs, and its arguments."""

    topology: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    sharded: tuple[str, ...] = ()


def programs() -> dict[str, Program]:
    """Return the programs by name; the name ends in the generation of TPU. Imports JAX."""
    import jax
    import jax.numpy as jnp

    f32, bf16, s32 = jnp.float32, jnp.bfloat16, jnp.int32
    places = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
    found: dict[str, Program] = {}

    def of(dtype: Any, *sizes: int) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype)

    def program(tpu: str, *arguments: Any, donated: tuple[int, ...] = (), sharded: tuple[str, ...] = ()) -> Any:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            name = f"{function.__name__}_{tpu}"
            found[name] = Program(places[tpu], function, arguments, donated, sharded)
            return function

        return add

    @program("v5e", {"q": of(bf16, 1024, 1024), "k": of(bf16, 1024, 1024)}, of(bf16, 2, 8, 16, 640, 64),
             of(bf16, 8, 1024), of(s32), donated=(1,))  # fmt: skip
    def decoder_cache(weights: Any, cache: Any, x: Any, position: Any) -> Any:
        """Eight steps that write a cache of heads of 64."""

        def step(_: Any, carry: Any) -> Any:
            cache, x, position = carry
            q = (x @ weights["q"]).reshape(8, 16, 64)
            k = (x @ weights["k"]).reshape(8, 16, 64)
            new = jnp.stack([k, q])[:, :, :, None]
            cache = jax.lax.dynamic_update_slice(cache, new, (0, 0, 0, position, 0))
            scores = jnp.einsum("bhd,bhsd->bhs", q, cache[0]).astype(f32)
            scores = jnp.where(jnp.arange(640) <= position, scores, -1e30)
            y = jnp.einsum("bhs,bhsd->bhd", jax.nn.softmax(scores).astype(bf16), cache[1])
            return cache, x + y.reshape(8, 1024), position + 1

        return jax.lax.fori_loop(0, 8, step, (cache, x, position))

    @program("v4", of(f32, 100000, 3), of(s32, 4096), of(f32, 4096, 3))
    def embedding(table: Any, indices: Any, updates: Any) -> Any:
        """Rows of three: gathered, and added to."""
        return table.at[indices].add(updates), table[indices] * updates

    @program("v5e", of(f32, 8, 128, 128, 3), of(f32, 7, 7, 3, 64), of(f32, 3, 3, 64, 64))
    def convolution(images: Any, first: Any, second: Any) -> Any:
        """Three channels in."""

        def layer(x: Any, w: Any) -> Any:
            numbers = ("NHWC", "HWIO", "NHWC")
            return jax.nn.relu(jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=numbers))

        return jax.grad(lambda w: layer(layer(images, w[0]), w[1]).mean())((first, second))

    @program("v6e", of(jnp.int8, 256, 1000), of(jnp.int4, 1000, 500), of(f32, 500))
    def int4_weights(x: Any, packed: Any, scale: Any) -> Any:
        """int8 by int4."""
        numbers = (((1,), (0,)), ((), ()))
        product = jax.lax.dot_general(x, packed.astype(jnp.int8), numbers, preferred_element_type=s32)
        return product.astype(f32) * scale, packed.T.astype(jnp.int8)

    layers = {
        "attention": of(bf16, 12, 256, 768), "out": of(bf16, 12, 256, 256), "up": of(bf16, 12, 256, 1000),
        "down": of(bf16, 12, 1000, 256),
    }  # fmt: skip

    @program("v5e", layers, of(bf16, 2, 128, 256))
    def scanned_layers(layers: Any, x: Any) -> Any:
        """Twelve layers in a scan."""

        def block(x: Any, layer: Any) -> Any:
            q, k, v = jnp.split(x @ layer["attention"], 3, -1)
            q, k, v = (z.reshape(*z.shape[:2], 4, 64) for z in (q, k, v))
            scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(f32)).astype(bf16)
            x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ layer["out"]
            return x + jax.nn.gelu(x @ layer["up"]) @ layer["down"], None

        return jax.lax.scan(block, x, layers)[0]

    def attend(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (z.reshape(*z.shape[:2], 8, 64) for z in (q, k, v))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(f32)).astype(bf16)
        return jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(*q.shape[:2], 512)

    @program("v5e", of(bf16, 4, 512, 512), of(bf16, 512, 1536))
    def attention(x: Any, weights: Any) -> Any:
        """Heads of 64, one matrix for q, k and v."""
        return attend(*jnp.split(x @ weights, 3, -1))

    @program("v5e", of(bf16, 4, 512, 512), of(bf16, 512, 512), of(bf16, 512, 512), of(bf16, 512, 512))
    def attention_apart(x: Any, q: Any, k: Any, v: Any) -> Any:
        """The same, with three matrices."""
        return attend(x @ q, x @ k, x @ v)

    @program("v5e", of(f32, 16, 3, 112, 112), of(f32, 32, 3, 3, 3), of(f32, 32, 32, 3, 3))
    def nchw(images: Any, first: Any, second: Any) -> Any:
        """Channels before rows."""

        def layer(x: Any, w: Any) -> Any:
            numbers = ("NCHW", "OIHW", "NCHW")
            return jax.nn.relu(jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=numbers))

        return layer(layer(images, first), second)

    @program("v5e", of(f32, 4000, 3), of(f32, 100, 3))
    def points(points: Any, queries: Any) -> Any:
        """Nearest neighbours among points of three coordinates."""
        distance = jnp.sum((points[:, None] - queries[None]) ** 2, -1)
        values, indices = jax.lax.top_k(-distance.T, 5)
        return jnp.take(points, indices, axis=0).mean(1), values

    @program("v5p", of(f32, 512, 8, 96), of(f32, 96, 512, 8))
    def transposes(x: Any, y: Any) -> Any:
        """Transposes whose results leave the program, and one that meets another order."""
        return jnp.transpose(x, (2, 0, 1)) + y, jnp.fft.fft(jnp.swapaxes(x, 0, 2)), jnp.cumsum(x, 0)[::-1]

    @program("v6e", of(f32, 300, 70, 9), of(bf16, 1000, 30))
    def reshapes(x: Any, y: Any) -> Any:
        """Reshapes that tiles make moves of."""
        return x.reshape(300, 630) * 2, jnp.sort(x.reshape(-1)), y.reshape(30, 1000) @ y

    @program("v5p", of(f32, 256, 100), of(f32, 100, 256), of(f32))
    def unknown_trips(x: Any, w: Any, limit: Any) -> Any:
        """A loop without a known number of trips, with a transpose in it."""
        body = lambda s: (jnp.tanh(s[0] @ w @ s[0]), s[1] + jnp.sum(jnp.cumsum(s[0].T, 0)))  # noqa: E731
        return jax.lax.while_loop(lambda s: s[1] < limit, body, (x, 0.0))

    @program("v4", of(f32, 300, 300), of(f32, 300, 300), of(s32))
    def branches(x: Any, y: Any, i: Any) -> Any:
        """Branches that want different orders."""
        several = [lambda x, y: x @ y, lambda x, y: jnp.cumsum(x.T, 0) @ y, lambda x, y: jnp.sort(y, 0) + x.T]
        return jax.lax.switch(i, several, x, y), x.T

    @program("v5e", of(f32, 512, 512), of(f32, 512, 512), donated=(0, 1))
    def donated(x: Any, y: Any) -> Any:
        """Two donated buffers that change places."""
        return y, x, x.T @ y

    @program("v5e", of(f32, 8, 128, 512), of(f32, 512, 512), of(f32, 512, 300), sharded=("x", "", "x"))
    def sharded_products(x: Any, w: Any, v: Any) -> Any:
        """Over four chips: gathers, reductions."""
        y = jax.nn.relu(x @ w)
        z = (y @ v).reshape(8, 300, 128)
        return jnp.cumsum(z, 1).sum(0), jnp.transpose(y, (2, 1, 0)).sum(0)

    @program("v5p", of(bf16, 400, 200), of(jnp.int8, 200, 400), of(jnp.bool_, 400, 200))
    def mixed_types(x: Any, y: Any, mask: Any) -> Any:
        """Element types of several widths."""
        z = jnp.where(mask, x, 0).T + y.astype(bf16)
        return z, jax.lax.bitcast_convert_type(x, jnp.uint16).T, jnp.argsort(y, 0)

    @program("v4", of(f32, 10, 64, 100), of(f32, 100, 64))
    def nested_loops(x: Any, w: Any) -> Any:
        """A scan within a loop."""

        def outer(i: Any, carry: Any) -> Any:
            y, total = carry
            y, sums = jax.lax.scan(lambda c, row: (jnp.tanh(c @ w @ row), jnp.cumsum(c.T, 0)), y, x)
            return y, total + sums.sum(0)

        return jax.lax.fori_loop(0, 7, outer, (x[0], jnp.zeros((100, 64))))

    @program("v6e", of(bf16, 16, 1024, 8, 128), of(bf16, 16, 1, 8, 128), of(s32, 16), donated=(0,))
    def paged_cache(cache: Any, new: Any, positions: Any) -> Any:
        """A donated cache that is scattered into and read across heads."""
        cache = cache.at[jnp.arange(16), positions].set(new[:, 0])
        return cache, jnp.einsum("bshd,bhd->bhs", cache, new[:, 0]), jnp.swapaxes(cache, 1, 2).sum(1)

    @program("v6e", of(f32, 60000, 5), of(f32, 5, 60000), of(s32, 60000))
    def tables(x: Any, y: Any, key: Any) -> Any:
        """Narrow tables: sorts by key, segments, joins."""
        order = jnp.argsort(key)
        joined = jnp.concatenate([x[order], y.T], 1)
        return joined, jax.ops.segment_sum(x, key % 1000, num_segments=1000), jnp.linalg.norm(joined, axis=1)

    @program("v5e", of(f32, 512, 384), of(f32, 512, 384))
    def kernel_call(x: Any, y: Any) -> Any:
        """A Pallas kernel that takes a transposed array."""
        from jax.experimental import pallas as pl

        def kernel(a: Any, b: Any, out: Any) -> None:
            out[...] = a[...] * 2 + b[...]

        shape = jax.ShapeDtypeStruct((384, 512), f32)
        return pl.pallas_call(kernel, out_shape=shape)(jnp.swapaxes(x, 0, 1), jnp.cumsum(y, 0).T)

    from more_copy_programs import add_programs

    add_programs(program, of)
    return found


def set_environment() -> None:
    """Let libtpu compile where there is no TPU; before JAX is imported."""
    os.environ.update(
        JAX_PLATFORMS="cpu",
        TPU_ACCELERATOR_TYPE="v5litepod-4",
        TPU_SKIP_MDS_QUERY="1",
        TPU_WORKER_HOSTNAMES="localhost",
        TPU_WORKER_ID="0",
    )


def compile_program(name: str) -> Any:
    """Compile one program."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    topology, function, arguments, donated, sharded = programs()[name]
    devices = topologies.get_topology_desc(topology, "tpu").devices[: 4 if sharded else 1]
    mesh = Mesh(np.array(devices), ("x",))
    specs = sharded or ("",) * len(arguments)
    shardings = tuple(NamedSharding(mesh, PartitionSpec(*([spec] if spec else []))) for spec in specs)
    with jax.set_mesh(mesh):
        return jax.jit(function, in_shardings=shardings, donate_argnums=donated).lower(*arguments).compile()


def main() -> None:
    """Compile all; each in a separate process, because libtpu ends the process on some."""
    HERE.mkdir(exist_ok=True)
    memory = {}
    for name in programs():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, __file__, name, folder], check=True)
            text = Path(folder, f"{name}.txt").read_bytes()
            memory[name] = json.loads(Path(folder, f"{name}.json").read_text())
        (HERE / f"{name}.txt.xz").write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
        print(name, len(text), flush=True)
    (HERE / "memory.json").write_text(json.dumps(memory, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    set_environment()
    if len(sys.argv) == 3:
        compiled = compile_program(sys.argv[1])
        Path(sys.argv[2], f"{sys.argv[1]}.txt").write_text(compiled.as_text(), encoding="utf-8")
        analysis = compiled.memory_analysis()
        sizes = {kind: getattr(analysis, f"{kind}_in_bytes") for kind in KINDS}
        Path(sys.argv[2], f"{sys.argv[1]}.json").write_text(json.dumps(sizes), encoding="utf-8")
    else:
        main()
