"""Programs whose memory is compared with what XLA assigned; ``python memory_programs.py FOLDER [NAME...]``.

They are compiled; no TPU is needed. For each program a row is printed: in bytes, what XLA assigned in memory space 0,
what `fastindex.report` says of the compiled object and of its text alone, what XLA assigned in the fast memory of the
core, and what the report says of that. The folder gets the files that XLA dumps, the assignment of buffers among them.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}


class Program(NamedTuple):
    """A program, where it is compiled, and its arguments.

    Attributes
    ----------
    function : callable
    target : str
        A generation of TPUs, or "cpu".
    arguments : sequence of (dtype, sizes) or containers of them
    donated : tuple of int
    mesh : tuple of int
        Of the axes x and y; (1, 1) for one device.
    inputs, outputs : Any
        Partitions as `jax.jit` takes shardings, with "host:" before those of the memory of the host; or None.
    """

    function: Callable[..., Any]
    target: str
    arguments: Sequence[Any]
    donated: tuple[int, ...] = ()
    mesh: tuple[int, int] = (1, 1)
    inputs: Any = None
    outputs: Any = None


def programs() -> dict[str, Program]:
    """Return the programs by name. Imports JAX."""
    found: dict[str, Program] = {}
    for add in (_training, _loops, _lookups, _products, _devices):
        add(found)
    return found


def _training(found: dict[str, Program]) -> None:
    import jax
    import jax.numpy as jnp

    f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32

    def normed(x: Any, scale: Any) -> Any:
        wide = x.astype(f32)
        return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(x.dtype) * scale

    def attention(x: Any, w: Any) -> Any:
        q, k, v = jnp.einsum("btd,cdhk->cbthk", x, w["qkv"])
        scores = jnp.einsum("bthk,bshk->bhts", q, k).astype(f32) / 8
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30)).astype(x.dtype)
        return jnp.einsum("bhts,bshk,hkd->btd", weights, v, w["o"])

    def block(x: Any, w: Any) -> Any:
        x = x + attention(normed(x, w["n1"]), w)
        gate = jax.nn.silu(normed(x, w["n2"]) @ w["up"])
        return x + gate @ w["down"]

    layer = {
        "qkv": (bf16, (3, 256, 4, 64)), "o": (bf16, (4, 64, 256)), "n1": (bf16, (256,)), "n2": (bf16, (256,)),
        "up": (bf16, (256, 1024)), "down": (bf16, (1024, 256)),
    }  # fmt: skip

    def loss(weights: Any, tokens: Any) -> Any:
        x = weights["embedding"][tokens]
        for w in weights["layers"]:
            x = jax.checkpoint(block)(x, w)
        logits = (x @ weights["embedding"].T).astype(f32)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1))

    def adam(weights: Any, first: Any, second: Any, tokens: Any) -> Any:
        gradients = jax.grad(loss)(weights, tokens)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(f32), first, gradients)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g.astype(f32) ** 2, second, gradients)
        weights = jax.tree.map(
            lambda w, m, v: (w.astype(f32) - 1e-3 * m / (jnp.sqrt(v) + 1e-8)).astype(w.dtype), weights, first, second
        )
        return weights, first, second

    tree = {"embedding": (bf16, (3000, 256)), "layers": [layer, layer]}
    moments = jax.tree.map(lambda item: (f32, item[1]), tree, is_leaf=_is_array)
    for target in ("v5e", "v6e", "tpu7x", "cpu"):
        found[f"adam_{target}"] = Program(adam, target, (tree, moments, moments, (i32, (4, 160))), (0, 1, 2))

    def experts(x: Any, router: Any, up: Any, down: Any) -> Any:
        """The tokens of each expert, at most 96, in a separate table."""
        gates = jax.nn.softmax((x @ router).astype(f32))
        weight, expert = jax.lax.top_k(gates, 2)
        chosen = jax.nn.one_hot(expert, router.shape[1], dtype=i32).reshape(-1, router.shape[1])
        place = jnp.sum((jnp.cumsum(chosen, 0) - 1) * chosen, -1).reshape(expert.shape)
        table = jnp.zeros((router.shape[1], 96, x.shape[1]), x.dtype)
        table = table.at[expert, place].add(x[:, None], mode="drop")
        hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", table, up))
        back = jnp.einsum("ecf,efd->ecd", hidden, down).at[expert, place].get(mode="fill", fill_value=0)
        return jnp.sum(back * weight[..., None].astype(x.dtype), 1)

    def experts_step(up: Any, down: Any, router: Any, x: Any) -> Any:
        def squares(ws: Any) -> Any:
            return jnp.sum(experts(x, ws[2], ws[0], ws[1]).astype(f32) ** 2)

        gradients = jax.grad(squares)((up, down, router))
        return jax.tree.map(lambda w, g: w - g * w.dtype.type(0.01), (up, down, router), gradients)

    sizes = (bf16, (8, 256, 640)), (bf16, (8, 640, 256)), (bf16, (256, 8)), (bf16, (500, 256))
    for target in ("v5p", "v4"):
        found[f"experts_{target}"] = Program(experts_step, target, sizes, (0, 1))

    def pictures(x: Any, w1: Any, w2: Any, w3: Any, labels: Any) -> Any:
        def network(ws: Any) -> Any:
            h = x
            for w, stride in zip(ws[:2], (2, 1), strict=True):
                h = jax.lax.conv_general_dilated(
                    h, w, (stride,) * 2, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
                h = jax.nn.relu((h - h.mean((0, 1, 2))) * jax.lax.rsqrt(h.var((0, 1, 2)) + 1e-5))
            h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
            return jnp.mean((h.mean((1, 2)) @ ws[2] - labels) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, (w1, w2, w3), jax.grad(network)((w1, w2, w3)))

    sizes = (
        (f32, (8, 56, 56, 3)), (f32, (7, 7, 3, 48)), (f32, (3, 3, 48, 96)), (f32, (96, 10)), (f32, (8, 10)),
    )  # fmt: skip
    for target in ("v5e", "v4"):
        found[f"pictures_{target}"] = Program(pictures, target, sizes, (1, 2, 3))


def _loops(found: dict[str, Program]) -> None:
    import jax
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name

    f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32

    def lstm(w: Any, x: Any, h: Any, c: Any) -> Any:
        def squares(w: Any) -> Any:
            def cell(state: Any, x: Any) -> Any:
                h, c = state
                i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ w, 4, -1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            return jnp.sum(jax.lax.scan(cell, (h, c), x)[1] ** 2)

        return w - 0.01 * jax.grad(squares)(w)

    sizes = (f32, (300, 800)), (f32, (40, 24, 100)), (f32, (24, 200)), (f32, (24, 200))
    for target in ("v5e", "v5p"):
        found[f"lstm_{target}"] = Program(lstm, target, sizes, (0,))

    def branched(x: Any, chosen: Any, w: Any) -> Any:
        """Branches that need different memory, in a loop."""
        branches = (
            lambda x: x * 2, lambda x: jnp.tanh(x @ w) @ w.T, lambda x: jnp.sort(x, 1),
            lambda x: jax.nn.softmax(x @ x.T) @ x,
        )  # fmt: skip

        def step(x: Any, number: Any) -> Any:
            y = jax.lax.switch(number, branches, x)
            return y, jax.lax.cond(number > 1, lambda y: jnp.sum(y @ w, 0), lambda y: jnp.zeros(w.shape[1]), y)

        return jax.lax.scan(step, x, chosen)

    found["branched_v6e"] = Program(branched, "v6e", ((f32, (300, 200)), (i32, (9,)), (f32, (200, 500))), (0,))

    def decoded(cache: Any, token: Any, w: Any, steps: Any) -> Any:
        """A while with a cache in its carry, updated in place, until a token or a step ends it."""

        def going_on(state: Any) -> Any:
            return (state[0] < steps) & (state[2][0] != 7)

        def step(state: Any) -> Any:
            at, cache, token = state
            x = w["embedding"][token]
            for number in range(2):
                keys = jax.lax.dynamic_update_slice(cache[number], (x @ w["k"][number])[:, None], (0, at, 0))
                cache = cache.at[number].set(keys)
                scores = jnp.einsum("bd,btd->bt", x, keys).astype(f32)
                scores = jnp.where(jnp.arange(keys.shape[1]) <= at, scores, -1e30)
                x = x + jnp.einsum("bt,btd->bd", jax.nn.softmax(scores).astype(x.dtype), keys) @ w["o"][number]
            return at + 1, cache, jnp.argmax(x @ w["embedding"].T, -1).astype(i32)

        return jax.lax.while_loop(going_on, step, (i32(0), cache, token))

    weights = {"embedding": (bf16, (2048, 256)), "k": (bf16, (2, 256, 256)), "o": (bf16, (2, 256, 256))}
    sizes = (bf16, (2, 16, 300, 256)), (i32, (16,)), weights, (i32, ())
    for target in ("v5e", "v6e", "cpu"):
        found[f"decoded_{target}"] = Program(decoded, target, sizes, (0,))

    def served(keys: Any, values: Any, x: Any, at: Any, w: Any) -> Any:
        """One token of each sequence, at different places in the caches, which are donated."""
        count, width = x.shape
        q, k, v = x @ w["q"], x @ w["k"], x @ w["v"]
        write = jax.vmap(lambda cache, new, place: jax.lax.dynamic_update_slice(cache, new[None], (place, 0, 0)))
        keys = write(keys, k.reshape(count, 2, 64), at)
        values = write(values, v.reshape(count, 2, 64), at)
        scores = jnp.einsum("bgqd,btgd->bgqt", q.reshape(count, 2, 4, 64), keys).astype(f32) / 8
        scores = jnp.where((jnp.arange(keys.shape[1]) <= at[:, None])[:, None, None], scores, -1e30)
        found = jnp.einsum("bgqt,btgd->bgqd", jax.nn.softmax(scores).astype(x.dtype), values)
        return keys, values, found.reshape(count, width) @ w["o"]

    weights = {"q": (bf16, (512, 512)), "k": (bf16, (512, 128)), "v": (bf16, (512, 128)), "o": (bf16, (512, 512))}
    cache = bf16, (24, 512, 2, 64)
    for target in ("v4", "v6e"):
        sizes = cache, cache, (bf16, (24, 512)), (i32, (24,)), weights
        found[f"served_{target}"] = Program(served, target, sizes, (0, 1))

    def gradient_steps(a: Any, b: Any, x: Any) -> Any:
        """Conjugate gradients: four vectors and scalars in the carry, and a conditional."""

        def step(_: Any, state: Any) -> Any:
            x, r, p, rr = state
            ap = a.T @ (a @ p)
            alpha = rr / jnp.vdot(p, ap)
            r = r - alpha * ap
            new = jnp.vdot(r, r)
            p = jax.lax.cond(new < rr, lambda: r + new / rr * p, lambda: r)
            return x + alpha * p, r, p, new

        r = a.T @ (b - a @ x)
        return jax.lax.fori_loop(0, 30, step, (x, r, r, jnp.vdot(r, r)))

    sizes = (f32, (700, 500)), (f32, (700,)), (f32, (500,))
    found["gradient_steps_v4"] = Program(gradient_steps, "v4", sizes)

    def offloaded(w: Any, x: Any) -> Any:
        """Activations of a scan go to the host, and come back for the gradient."""
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[], names_which_can_be_offloaded=["h"], offload_src="device",
            offload_dst="pinned_host",
        )  # fmt: skip

        def layer(h: Any, w: Any) -> Any:
            h = checkpoint_name(h, "h")
            return jax.nn.gelu(h @ w), None

        def squares(w: Any) -> Any:
            return jnp.sum(jax.lax.scan(jax.checkpoint(layer, policy=policy), x, w)[0].astype(f32) ** 2)

        return jax.grad(squares)(w)

    sizes = (bf16, (6, 512, 512)), (bf16, (1000, 512))
    for target in ("v5e", "v5p"):
        found[f"offloaded_{target}"] = Program(offloaded, target, sizes, inputs=("", ""))

    def host_moments(w: Any, m: Any, g: Any) -> Any:
        """Moments that stay on the host between the steps."""
        m = jax.device_put(m, jax.memory.Space.Device)
        m = 0.9 * m + jnp.transpose(g, (0, 2, 1))
        return w - 0.1 * m, jax.device_put(m, jax.memory.Space.Host)

    sizes = (f32, (4, 300, 420)), (f32, (4, 300, 420)), (f32, (4, 420, 300))
    found["host_moments_v6e"] = Program(
        host_moments, "v6e", sizes, (0, 1), inputs=("", "host:", ""), outputs=("", "host:")
    )


def _lookups(found: dict[str, Program]) -> None:
    import jax
    import jax.numpy as jnp

    f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32

    def sorts(keys: Any, values: Any, scores: Any) -> Any:
        order = jnp.argsort(keys)
        ranked = jax.lax.sort((scores, jax.lax.broadcasted_iota(i32, scores.shape, 1)), dimension=1, num_keys=1)
        top, places = jax.lax.top_k(scores, 40)
        return values[order], ranked[1][:, :9], top, places, jnp.median(scores, axis=1), jnp.cumsum(values, 0)

    sizes = (i32, (6000,)), (bf16, (6000, 60)), (f32, (50, 3000))
    for target in ("v6e", "tpu7x"):
        found[f"sorts_{target}"] = Program(sorts, target, sizes)

    def segments(keys: Any, values: Any, w: Any) -> Any:
        """Rows in the order of their keys; of each key the most and the mean."""
        order = jnp.lexsort((values[:, 0], keys))
        ranked, rows = keys[order], values[order]
        number = jnp.cumsum(jnp.concatenate([jnp.zeros(1, bool), ranked[1:] != ranked[:-1]]))
        most, total = (
            function(rows, number, num_segments=500) for function in (jax.ops.segment_max, jax.ops.segment_sum)
        )
        count = jax.ops.segment_sum(jnp.ones_like(keys), number, num_segments=500)
        return most, (total / jnp.maximum(count, 1)[:, None]) @ w, jax.lax.cummax(rows, 0)[::7]

    found["segments_v4"] = Program(segments, "v4", ((i32, (4000,)), (f32, (4000, 24)), (f32, (24, 33))))

    def graph(h: Any, source: Any, target: Any, w: Any, labels: Any) -> Any:
        def squares(ws: Any) -> Any:
            x = h
            for w in ws:
                messages = jax.nn.relu(x[source] @ w[0])
                summed = jax.ops.segment_sum(messages, target, num_segments=x.shape[0])
                count = jax.ops.segment_sum(jnp.ones_like(target, f32), target, num_segments=x.shape[0])
                x = jnp.tanh(summed / (count[:, None] + 1) @ w[1] + x)
            return jnp.mean((x - labels) ** 2)

        return [w - 0.1 * g for w, g in zip(w, jax.grad(squares)(w), strict=True)]

    edges = (i32, (4000,))
    sizes = (f32, (900, 72)), edges, edges, [(f32, (2, 72, 72))] * 3, (f32, (900, 72))
    for target in ("v4", "v5p", "v6e"):
        found[f"graph_{target}"] = Program(graph, target, sizes, (3,))

    def embedded(table: Any, ids: Any, w: Any, labels: Any) -> Any:
        def squares(both: Any) -> Any:
            rows = jnp.take(both[0], ids, axis=0).mean(1)
            return jnp.mean((jax.nn.relu(rows @ both[1])[:, 0] - labels) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, (table, w), jax.grad(squares)((table, w)))

    sizes = (f32, (20000, 48)), (i32, (512, 7)), (f32, (48, 1)), (f32, (512,))
    for target in ("v5e", "tpu7x"):
        found[f"embedded_{target}"] = Program(embedded, target, sizes, (0, 2))


def _products(found: dict[str, Program]) -> None:
    import jax
    import jax.numpy as jnp

    f32, bf16 = jnp.float32, jnp.bfloat16

    def quantised(x: Any, w: Any, scales: Any, w8: Any, scales8: Any) -> Any:
        k, n = w.shape
        wide = (w.astype(bf16).reshape(-1, 32, n) * scales[:, None]).reshape(k, n)
        h = jax.nn.silu(x @ wide)
        largest = jnp.max(jnp.abs(h), -1, keepdims=True).astype(f32) / 127
        rounded = jnp.round(h.astype(f32) / largest).astype(jnp.int8)
        out = jax.lax.dot_general(rounded, w8, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        return (out.astype(f32) * largest * scales8).astype(bf16)

    sizes = (
        (bf16, (200, 768)), (jnp.int4, (768, 1200)), (bf16, (24, 1200)), (jnp.int8, (1200, 700)), (f32, (700,)),
    )  # fmt: skip
    for target in ("v5e", "v6e", "tpu7x"):
        found[f"quantised_{target}"] = Program(quantised, target, sizes)

    def solved(a: Any, b: Any) -> Any:
        q, r = jnp.linalg.qr(a)
        inner = jnp.linalg.cholesky(a.T @ a + jnp.eye(a.shape[1], dtype=a.dtype))
        x = jax.scipy.linalg.solve_triangular(inner, b, lower=True)
        return q.T @ a, r, x, jnp.linalg.slogdet(inner @ inner.T)[1]

    found["solved_v5p"] = Program(solved, "v5p", ((f32, (300, 140)), (f32, (140, 50))))

    def spectra(x: Any, w: Any) -> Any:
        f = jnp.fft.rfft(x, axis=-1)
        power = jnp.abs(f) ** 2
        return jnp.fft.irfft(f * w, axis=-1), jnp.log1p(power).reshape(-1, power.shape[-1]).T, power.mean((0, 1))

    found["spectra_v4"] = Program(spectra, "v4", ((f32, (6, 70, 400)), (f32, (201,))))


def _devices(found: dict[str, Program]) -> None:
    import jax
    import jax.numpy as jnp

    f32, bf16 = jnp.float32, jnp.bfloat16

    def network(ws: Any, x: Any) -> Any:
        for up, down in ws:
            x = x + jax.nn.gelu(x @ up) @ down
        return x

    def step(ws: Any, x: Any) -> Any:
        gradients = jax.grad(lambda ws: jnp.mean(network(ws, x).astype(f32) ** 2))(ws)
        return jax.tree.map(lambda w, g: w - w.dtype.type(0.01) * g, ws, gradients)

    ws = [((bf16, (512, 1024)), (bf16, (1024, 512)))] * 3
    split = [("x,y", "y,x")] * 3
    for target in ("v5e", "v5p", "v6e"):
        found[f"fully_sharded_{target}"] = Program(
            step, target, (ws, (bf16, (640, 512))), (0,), (2, 2), (split, "x"), split
        )
    whole = [(",y", "y")] * 3
    found["tensor_parallel_tpu7x"] = Program(step, "tpu7x", (ws, (bf16, (400, 512))), (0,), (2, 4), (whole, "x"), whole)

    def ring(q: Any, k: Any, v: Any) -> Any:
        """Keys and values travel around the devices of an axis."""

        def local(q: Any, k: Any, v: Any) -> Any:
            count = jax.lax.axis_size("x")
            turn = [(i, (i + 1) % count) for i in range(count)]

            def hop(_: Any, state: Any) -> Any:
                k, v, out, norm = state
                weights = jnp.exp(jnp.einsum("bqd,bkd->bqk", q, k).astype(f32) / 16)
                out = out + jnp.einsum("bqk,bkd->bqd", weights.astype(q.dtype), v).astype(f32)
                norm = norm + weights.sum(-1)
                return jax.lax.ppermute(k, "x", turn), jax.lax.ppermute(v, "x", turn), out, norm

            zeros = jnp.zeros(q.shape, f32), jnp.zeros(q.shape[:2], f32)
            out, norm = jax.lax.fori_loop(0, count, hop, (k, v, *zeros))[2:]
            return (out / norm[..., None]).astype(q.dtype)

        spec = jax.sharding.PartitionSpec(None, "x")
        return jax.shard_map(local, in_specs=(spec, spec, spec), out_specs=spec, check_vma=False)(q, k, v)

    q = (bf16, (4, 1024, 128))
    for target in ("v4", "v6e"):
        found[f"ring_{target}"] = Program(ring, target, (q, q, q), (), (4, 1), (",x", ",x", ",x"), ",x")

    def exchanged(x: Any, w: Any) -> Any:
        """Experts on their devices: an all-to-all before and after."""

        def local(x: Any, w: Any) -> Any:
            count = jax.lax.axis_size("x")
            sent = jax.lax.all_to_all(x.reshape(count, -1, x.shape[-1]), "x", 0, 0)
            out = jax.nn.relu(sent @ w[0])
            return jax.lax.all_to_all(out, "x", 0, 0).reshape(x.shape)

        specs = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec("x")
        return jax.shard_map(local, in_specs=specs, out_specs=specs[0], check_vma=False)(x, w)

    sizes = (bf16, (1600, 384)), (bf16, (4, 384, 384))
    for target in ("v5p", "tpu7x"):
        found[f"exchanged_{target}"] = Program(exchanged, target, sizes, (), (4, 1), ("x", "x"), "x")


def _is_array(item: Any) -> bool:
    """Whether a pair is a dtype and sizes."""
    return (
        isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], tuple)
        and all(isinstance(size, int) for size in item[1])
    )  # fmt: skip


def compiled(name: str, program: Program) -> Any:
    """Compile a program for its target. Imports JAX."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    on_tpu = program.target != "cpu"
    devices = topologies.get_topology_desc(TOPOLOGIES[program.target], "tpu").devices if on_tpu else jax.devices()
    count = program.mesh[0] * program.mesh[1]
    mesh = Mesh(np.array(devices[:count]).reshape(program.mesh), ("x", "y"))

    def sharding(text: str) -> Any:
        bare = text.removeprefix("host:")
        parts = bare.split(",") if bare else []
        kind = {"memory_kind": "pinned_host"} if text.startswith("host:") else {}
        return NamedSharding(mesh, PartitionSpec(*(part or None for part in parts)), **kind)

    given = jax.tree.map(lambda item: jax.ShapeDtypeStruct(item[1], item[0]), program.arguments, is_leaf=_is_array)
    everywhere = jax.tree.map(lambda item: "", given)
    inputs = jax.tree.map(sharding, tuple(program.inputs) if program.inputs is not None else tuple(everywhere))
    options = {} if program.outputs is None else {"out_shardings": jax.tree.map(sharding, program.outputs)}
    function = functools.wraps(program.function)(lambda *arguments: program.function(*arguments))
    function.__name__ = name
    jitted = jax.jit(function, in_shardings=inputs, donate_argnums=program.donated, **options)
    with jax.set_mesh(mesh):
        traced = jitted.trace(*given)
        lowered = traced.lower(lowering_platforms=("tpu",)) if on_tpu else traced.lower()
        return lowered.compile()


def measured(found: Any, folder: Path, name: str) -> dict[str, int]:
    """Compare a compiled program with the assignment that XLA dumped for it."""
    import fastindex as fi

    # What JAX runs on the CPU meanwhile has no list of changes in its name.
    files = sorted(folder.glob(f"module_*.jit_{name}.*buffer-assignment.txt"), key=lambda file: ".cl_" in file.name)
    assigned: dict[int, int] = {}
    for nbytes, rest in re.findall(r"^allocation \d+: size (\d+)(.*)$", files[-1].read_text(), re.MULTILINE):
        if "thread-local" not in rest:
            color = re.search(r", color (\d+)", rest)
            space = int(color.group(1)) if color else 0
            assigned[space] = assigned.get(space, 0) + int(nbytes)
    fast = 3 if name.endswith("_v4") else 1
    text = fi.hlo.report(found.as_text())
    peaks = {space.memory_space: space.peak_nbytes or 0 for space in text.memory_spaces}
    return {
        "assigned": assigned[0],
        "compiled": fi.hlo.report(found).peak_nbytes or 0,
        "text": text.peak_nbytes or 0,
        "fast_assigned": assigned.get(fast, 0),
        "fast": peaks.get(fast, 0),
    }


def main() -> None:
    """Compile all programs, or those that are named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(ENVIRONMENT, XLA_FLAGS=f"--xla_dump_to={folder} --xla_dump_hlo_as_text")
    known = programs()
    for name in sys.argv[2:] or known:
        print(json.dumps({"program": name, **measured(compiled(name, known[name]), folder, name)}), flush=True)


if __name__ == "__main__":
    main()
