"""Programs for CPU, compiled by jaxlib with all dumps; what XLA says about their memory is the oracle of the report.

``python programs.py NAME FOLDER`` compiles one program and writes to FOLDER: the module after optimizations, XLA's
buffer assignment, memory usage report and live ranges as it dumps them, and ``facts.json``: `memory_analysis()`, and
XLA's buffers, each a list of the numbers of its values, from its log. ``python programs.py`` does that for every
program, into the folders ``programs/NAME`` beside this file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KEPT = ("", "-buffer-assignment", "-memory-usage-report", "-live-range")
_BUFFER = re.compile(r"HloBuffer \d+, values: (.*)")


def _programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    def f32(*dimensions: int) -> Any:
        return jax.ShapeDtypeStruct(dimensions, jnp.float32)

    def s32(*dimensions: int) -> Any:
        return jax.ShapeDtypeStruct(dimensions, jnp.int32)

    found: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {}

    def program(*arguments: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            found[function.__name__] = function, arguments, options
            return function

        return add

    def block(x: Any, layer: Any) -> tuple[Any, None]:
        y = x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
        q, k, v = (z.reshape(*z.shape[:2], 4, -1) for z in jnp.split(y @ layer["attention"], 3, -1))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape)
        return x + jax.nn.gelu(x @ layer["up"]) @ layer["down"], None

    weights = {
        "embedding": f32(1000, 128), "attention": f32(2, 128, 384), "up": f32(2, 128, 512), "down": f32(2, 512, 128),
    }  # fmt: skip

    @program(weights, s32(4, 65), donate_argnums=0)
    def transformer(weights: Any, tokens: Any) -> Any:
        def loss(weights: Any) -> Any:
            layers = {name: weights[name] for name in ("attention", "up", "down")}
            x, _ = jax.lax.scan(jax.checkpoint(block), weights["embedding"][tokens[:, :-1]], layers)
            logits = jax.nn.log_softmax(x @ weights["embedding"].T)
            return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()

        value, gradient = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradient)

    @program(f32(8, 32, 32, 3), f32(3, 3, 3, 16), f32(3, 3, 16, 32))
    def convolution(images: Any, first: Any, second: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            numbers = ("NHWC", "HWIO", "NHWC")
            return jax.nn.relu(jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=numbers))

        return jax.grad(lambda w: layer(layer(images, w[0]), w[1]).mean())((first, second))

    @program(f32(5000, 64), s32(300), f32(300, 64))
    def embedding(table: Any, indices: Any, updates: Any) -> Any:
        return table.at[indices].add(updates), table[indices].sum(0)

    @program(f32(100, 256), f32(256, 256), donate_argnums=0)
    def scan_loop(x: Any, w: Any) -> Any:
        carry, sums = jax.lax.scan(lambda c, v: (jnp.tanh(c @ w + v), c.sum()), jnp.zeros(256), x)
        return x + carry, sums

    @program(f32(256, 256), donate_argnums=0)
    def while_loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda s: s[0] < 10, lambda s: (s[0] + 1, s[1] @ s[1] / 100), (0, x))[1]

    @program(f32(64, 128), f32(128, 128))
    def shard_map_sum(x: Any, w: Any) -> Any:
        mesh = Mesh(np.array(jax.devices()), ("d",))
        body = lambda x, w: jax.lax.psum(x @ w, "d")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=(P("d"), P()), out_specs=P())(x, w)

    @program(f32(200, 200))
    def cholesky(a: Any) -> Any:
        return jnp.linalg.cholesky(a @ a.T + jnp.eye(200))

    @program(f32(100000))
    def sort_fft(x: Any) -> Any:
        return jnp.sort(x), jnp.fft.fft(x), jnp.argsort(x)

    @program(f32(300, 300), s32())
    def conditional(x: Any, i: Any) -> Any:
        return jax.lax.switch(i, [lambda x: x @ x, lambda x: jnp.sin(x).T @ x, lambda x: x + 1], x)

    @program(f32(64, 50), f32(50, 80), jax.ShapeDtypeStruct((64, 80), jnp.bfloat16))
    def mixed(a: Any, b: Any, c: Any) -> Any:
        return (a @ b).astype(jnp.bfloat16) * c, jax.random.normal(jax.random.key(0), (1000,))

    @program(f32(4, 1000), f32(100, 4, 1000), donate_argnums=1)
    def updates(x: Any, cache: Any) -> Any:
        body = lambda i, c: jax.lax.dynamic_update_index_in_dim(c, x * i, i, 0)  # noqa: E731
        return jax.lax.fori_loop(0, 100, body, cache)

    @program(f32(60, 60), f32(60))
    def nested_loops(a: Any, x: Any) -> Any:
        def outer(i: Any, x: Any) -> Any:
            x = jax.lax.while_loop(lambda y: jnp.sum(y) < i, lambda y: a @ y + 1, x)
            return jax.lax.cond(i % 2 == 0, lambda y: y / 2, lambda y: jnp.roll(y, 1), x)

        return jax.lax.fori_loop(0, 5, outer, x)

    return found


NAMES = (
    "cholesky", "conditional", "convolution", "embedding", "mixed", "nested_loops", "scan_loop", "shard_map_sum",
    "sort_fft", "transformer", "updates", "while_loop",
)  # fmt: skip


def compile_program(name: str, dumps: str) -> Any:
    """Compile one program; XLA reads its flags once, so once in a process."""
    os.environ["XLA_FLAGS"] = (
        f"--xla_dump_to={dumps} --xla_dump_hlo_as_text --xla_force_host_platform_device_count=8 "
        + os.environ.get("XLA_FLAGS", "")
    )
    os.environ.update(JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="0", TF_CPP_VMODULE="buffer_assignment=3")
    import jax

    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    function, arguments, options = _programs()[name]
    return jax.jit(function, **options).lower(*arguments).compile()


def write_facts(name: str, folder: Path) -> None:
    """Compile one program and write its dumps and facts; the log of XLA goes to a file first."""
    with tempfile.TemporaryDirectory() as dumps:
        log = Path(dumps, "log")
        saved = os.dup(2)
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
            compiled = compile_program(name, dumps)
            os.dup2(saved, 2)
        memory = compiled.memory_analysis()
        sizes = {key: getattr(memory, key) for key in dir(memory) if key.endswith("_size_in_bytes")}
        (main,) = Path(dumps).glob(f"*.jit_{name}.cpu_after_optimizations.txt")
        folder.mkdir(parents=True, exist_ok=True)
        for ending in KEPT:
            dumped = main.with_name(main.stem + ending + ".txt")
            (folder / dumped.name).write_bytes(dumped.read_bytes())
        facts = {"memory_analysis": sizes, "buffers": _logged_buffers(log.read_text(errors="replace"), name)}
        (folder / "facts.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")


def _logged_buffers(log: str, name: str) -> list[list[int]]:
    """The numbers of the values in each buffer, from the last alias analysis of the module in the log."""
    text = log[log.rindex(f"HloAliasAnalysis, module jit_{name}") :]
    text = text[text.index("  Buffers:") :].split("HloDataflowAnalysis")[0]
    return [[int(number) for number in re.findall(r"<(\d+) ", line)] for line in _BUFFER.findall(text)]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        write_facts(sys.argv[1], Path(sys.argv[2]))
    else:
        for each in NAMES:
            subprocess.run([sys.executable, __file__, each, str(HERE / "programs" / each)], check=True)
