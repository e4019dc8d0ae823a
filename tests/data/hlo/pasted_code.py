"""Programs whose best layouts are asked for with the lines that `try_layouts` prints.

``python pasted_code.py try NAME`` prints, as JSON, the lines and the numbers of the best variant.
``python pasted_code.py paste NAME`` reads the lines from stdin, runs them, and prints what the compiled program has.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import fastindex as fi

sys.path.insert(0, str(Path(__file__).resolve().parent))
import copy_programs

f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32


class Program(NamedTuple):
    """A program and how it is tried: options of `fastindex.try_layouts`, and the sizes of a mesh."""

    topology: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    mesh: tuple[int, ...] = (1,)


def of(dtype: Any, *sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype)


def begun(x: Any) -> Any:
    """The beginning of a loop's body: where lines are pasted that belong there."""
    return x


def cached(cache: Any, w: Any, x: Any, position: Any) -> Any:
    """A cache of heads of 64 in the carry of a loop."""

    def step(_: Any, carry: Any) -> Any:
        cache, x, position = begun(carry[0]), *carry[1:]
        q, k = ((x @ each).reshape(8, 16, 64) for each in w)
        cache = lax.dynamic_update_slice(cache, jnp.stack([k, q])[:, :, :, None], (0, 0, 0, position, 0))
        scores = jnp.einsum("bhd,bhsd->bhs", q, cache[0]).astype(f32)
        scores = jnp.where(jnp.arange(cache.shape[3]) <= position, scores, -1e30)
        y = jnp.einsum("bhs,bhsd->bhd", jax.nn.softmax(scores).astype(bf16), cache[1])
        return cache, x + y.reshape(8, 1024), position + 1

    return lax.fori_loop(0, 8, step, (cache, x, position))


def quantised(x: Any, w: Any, scale: Any) -> Any:
    k, n = w.shape
    return x @ (w.astype(bf16).reshape(-1, 32, n) * scale[:, None]).reshape(k, n)


def local(w1: Any, w2: Any, x: Any) -> Any:
    def loss(ws: Any) -> Any:
        up, down = lax.all_gather(ws[0], "a", axis=0, tiled=True), lax.all_gather(ws[1], "a", axis=1, tiled=True)
        return jnp.mean(lax.psum(jax.nn.silu(x @ up) @ down, "b").astype(f32) ** 2)

    gradients = jax.grad(loss)((w1, w2))
    return jax.tree.map(lambda w, g: w - 0.01 * lax.psum(g, "b").astype(w.dtype), (w1, w2), gradients)


def sharded(mesh: Any) -> Callable[..., Any]:
    parts = PartitionSpec("a", "b"), PartitionSpec("b", "a"), PartitionSpec("a")
    function = jax.shard_map(local, mesh=mesh, in_specs=parts, out_specs=parts[:2], check_vma=False)
    return lambda w1, w2, x: function(w1, w2, x)


def on_host(x: Any, m: Any, w: Any) -> Any:
    """Moments on the host, and an array that is read in another order."""
    m = 0.9 * jax.device_put(m, jax.memory.Space.Device) + 1
    return powers(x, 2, w), jax.device_put(m, jax.memory.Space.Host)


def powers(x: Any, exponent: int, w: Any) -> Any:
    return jnp.cumsum(jnp.swapaxes(x, 0, 2) ** exponent, 1).reshape(96, -1) @ w


def experts(x: Any, w: Any, gates: Any) -> Any:
    """Few gates for each row: rows are minor, but the product needs them in order."""
    return jnp.einsum("te,ted->td", jax.nn.softmax(gates), jnp.einsum("td,edf->tef", x, w)).T


@functools.cache
def mesh_of(topology: str, sizes: tuple[int, ...]) -> Any:
    """The same devices each time: JAX compares them."""
    devices = topologies.get_topology_desc(topology, "tpu").devices[: int(np.prod(sizes))]
    return Mesh(np.array(devices).reshape(sizes), ("a", "b")[: len(sizes)])


def programs() -> dict[str, Program]:
    """The programs by name."""
    grows = {"argument_growth": 40.0, "peak_growth": 40.0}
    recorded = copy_programs.programs()
    found = {
        name: Program(recorded[name].topology, recorded[name].function, recorded[name].arguments, options)
        for name, options in (
            ("scanned_weights_v5e", {}), ("attention_v5e", {}), ("points_v5e", grows), ("embedding_v4", grows),
            ("transposes_v5p", {}),
        )
    }  # fmt: skip
    found["cached_v5e"] = Program(
        "v5e:2x2",
        cached,
        (of(bf16, 2, 8, 16, 640, 64), (of(bf16, 1024, 1024),) * 2, of(bf16, 8, 1024), of(i32)),
        {"donate_argnums": 0},
    )
    packed = of(bf16, 48, 320), of(jnp.int4, 320, 272), of(bf16, 10, 272)
    found["quantised_tpu7x"] = Program("tpu7x:2x2x1", quantised, packed, {"argument_growth": 0.2})
    found["powers_v6e"] = Program(
        "v6e:2x2", powers, (of(f32, 40, 300, 96), 3, of(f32, 12000, 9)), {"static_argnums": 1, **grows}
    )
    found["experts_tpu7x"] = Program(
        "tpu7x:2x2x1", experts, (of(bf16, 200, 96), of(bf16, 6, 96, 120), of(f32, 200, 6)), grows
    )
    mesh = mesh_of("tpu7x:2x2x1", (4, 2))
    shardings = tuple(NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("a", "b"), ("b", "a"), ("a",)))
    found["sharded_tpu7x"] = Program(
        "tpu7x:2x2x1",
        sharded(mesh),
        (of(bf16, 256, 900), of(bf16, 900, 256), of(bf16, 12, 50, 256)),
        {"in_shardings": shardings, "donate_argnums": (0, 1)},
        (4, 2),
    )
    mesh = mesh_of("v5e:2x2", (1,))
    kinds = [NamedSharding(mesh, PartitionSpec(), memory_kind=kind) for kind in ("device", "pinned_host", "device")]
    found["on_host_v5e"] = Program(
        "v5e:2x2",
        on_host,
        (of(f32, 40, 300, 96), of(f32, 4, 300, 420), of(f32, 12000, 9)),
        {"in_shardings": tuple(kinds), "out_shardings": tuple(kinds[:2]), "donate_argnums": 1, **grows},
    )
    return found


def numbers(compiled: Any) -> dict[str, int]:
    """What the table says, of a compiled program."""
    avoidable = fi.hlo.layout_copies(compiled).avoidable
    analysis = compiled.memory_analysis()
    return {
        "copies": len(avoidable),
        "moved_nbytes": sum(row.moved_nbytes for row in avoidable),
        "argument_nbytes": analysis.argument_size_in_bytes,
        "host_argument_nbytes": analysis.host_argument_size_in_bytes,
        "peak_nbytes": fi.hlo.report(compiled).peak_nbytes or 0,
    }


def pasted(program: Program, code: str) -> Any:
    """Run lines as they are printed; return the compiled program."""
    static = program.options.get("static_argnums")
    mesh = mesh_of(program.topology, program.mesh)
    sharding = NamedSharding(mesh, PartitionSpec())
    name = "function" if program.function.__name__ == "<lambda>" else program.function.__name__
    names: dict[str, Any] = {"jax": jax, name: program.function, "sharding": sharding, "mesh": mesh}
    jitted = jax.jit(program.function, in_shardings=sharding, donate_argnums=program.options.get("donate_argnums", ()))
    for line in code.splitlines():
        if line.startswith("jax.jit("):
            jitted = eval(line, names)
        elif line.startswith("x = "):
            global begun

            def begun(x: Any, line: str = line) -> Any:
                names["x"] = x
                exec(line, names)
                return names["x"]

        else:
            exec(line, names)
    assert static is None or f"static_argnums=({static},)" in code
    return jitted.trace(*program.arguments).lower(lowering_platforms=("tpu",)).compile()


def main() -> None:
    """Try a program, or paste lines into it."""
    what, name = sys.argv[1:]
    program = programs()[name]
    if what == "paste":
        print(json.dumps(numbers(pasted(program, sys.stdin.read()))))
        return
    tried = fi.hlo.try_layouts(program.function, *program.arguments, topology=program.topology, **program.options)
    best, base = tried.best.trial, tried.base
    of_table = {
        "copies": best.copy_count, "moved_nbytes": best.moved_nbytes, "argument_nbytes": best.argument_nbytes,
        "peak_nbytes": best.peak_nbytes,
    }  # fmt: skip
    print(json.dumps([tried.best.code, of_table, base.moved_nbytes, best.name]))


if __name__ == "__main__":
    main()
