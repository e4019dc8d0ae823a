"""Programs of other kinds than those of ``copy_programs.py``, which compiles them too.

Packed and narrow element types, convolutions, dots with batches, gathers, sorts, stacked outputs of scans, loops whose
unknown trip counts, conditionals, collectives, recomputation, custom calls, donated buffers, windows, complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def add_programs(program: Callable[..., Any], of: Callable[..., Any]) -> None:
    """Add the programs: `program` is the decorator for one, `of` makes an argument from a dtype and sizes."""
    _add_types(program, of)
    _add_products(program, of)
    _add_lookups(program, of)
    _add_loops(program, of)
    _add_devices(program, of)


def _add_types(program: Callable[..., Any], of: Callable[..., Any]) -> None:
    import jax
    import jax.numpy as jnp

    @program("v4", of(jnp.int4, 512, 300), of(jnp.uint4, 300, 512), of(jnp.int4, 3, 130, 70))
    def packed(a: Any, b: Any, c: Any) -> Any:
        """Two elements a byte: transposed, summed, reshaped."""
        total = (b.T.astype(jnp.int32) - a.astype(jnp.int32)).sum(0)
        return a.T, total, jnp.swapaxes(c, 1, 2), c.reshape(390, 70), a.reshape(300, 512)

    @program("v6e", of(jnp.bool_, 300, 70), of(jnp.uint8, 70, 300, 3), of(jnp.float8_e4m3fn, 256, 100),
             of(jnp.float16, 100, 33), of(jnp.uint16, 33, 100))  # fmt: skip
    def narrow_types(mask: Any, pixels: Any, small: Any, half: Any, words: Any) -> Any:
        """Masks, bytes, float8 and float16, and bits taken as another type."""
        product = small.T.astype(jnp.bfloat16) @ small.astype(jnp.bfloat16)
        bits = jax.lax.bitcast_convert_type(half, jnp.uint16).T ^ words
        pairs = jax.lax.bitcast_convert_type(pixels[:, :100, :2], jnp.uint16)
        return (
            mask.T, jnp.packbits(mask, axis=0), jnp.transpose(pixels, (2, 0, 1)), product, half.reshape(33, 100),
            bits, pixels.reshape(-1), mask.reshape(70, 300) & (pixels[..., 0] > 3), pairs,
        )  # fmt: skip

    @program("v5p", of(jnp.complex64, 60, 40), of(jnp.float32, 3, 64, 50))
    def complex_numbers(z: Any, x: Any) -> Any:
        """Fourier transforms and products."""
        spectrum = jnp.fft.rfftn(x, axes=(1, 2))
        columns = jnp.fft.fft(z, axis=0).reshape(40, 60)
        pairs = jax.lax.complex(x, x * 2).reshape(64, 150)
        return (z.T @ z).T, jnp.swapaxes(spectrum, 0, 2), columns, jnp.abs(z.conj().T), pairs


def _add_products(program: Callable[..., Any], of: Callable[..., Any]) -> None:
    import jax
    import jax.numpy as jnp

    f32, bf16 = jnp.float32, jnp.bfloat16

    @program("v5e", of(f32, 4, 30, 30, 20), of(f32, 3, 3, 20, 40), of(bf16, 4, 20, 30, 30), of(bf16, 40, 20, 5, 5))
    def convolutions(x: Any, w: Any, y: Any, v: Any) -> Any:
        """NHWC and NCHW, dilated, by channel, transposed."""
        nhwc, nchw = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
        a = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=nhwc)
        b = jax.lax.conv_general_dilated(y, v, (1, 1), "VALID", dimension_numbers=nchw, rhs_dilation=(2, 2))
        c = jax.lax.conv_general_dilated(x, w[:, :, :1], (2, 2), "SAME", dimension_numbers=nhwc, feature_group_count=20)
        flat = jnp.transpose(a, (0, 3, 1, 2)).reshape(4, 40, 900)
        return a, flat, b, c.reshape(-1, 40), jax.lax.conv_transpose(x, w, (2, 2), "SAME")

    @program("v6e", of(bf16, 6, 50, 33, 64), of(bf16, 6, 33, 64, 50), of(f32, 7, 100, 9), of(f32, 7, 9, 100))
    def batched_products(a: Any, b: Any, c: Any, d: Any) -> Any:
        """Dots with batch dimensions in other places."""
        scores = jnp.einsum("bqhd,bhdk->bhqk", a, b).reshape(6, 33, 2500)
        return scores, jnp.einsum("bij,bjk->kib", c, d), jnp.einsum("bqhd,bhdk->khqb", a, b)

    @program("v4", of(f32, 5, 50, 60, 3), of(f32, 400, 30), of(bf16, 4, 17, 35))
    def windows(x: Any, y: Any, z: Any) -> Any:
        """Windows, cumulative sums, and the gradient of a window."""

        def most(x: Any, width: int) -> Any:
            shape = (1, width, width, 1)
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, shape, (1, 2, 2, 1), "SAME")

        sums = jax.lax.reduce_window(y, 0.0, jax.lax.add, (7, 1), (1, 1), "VALID").T
        moving = jax.lax.cumlogsumexp(z, axis=1).reshape(-1, 35)
        slope = jax.grad(lambda x: (most(x, 2) ** 2).sum())(x)
        return jnp.moveaxis(most(x, 3), 3, 1), sums, moving, jax.lax.cummax(jnp.swapaxes(y, 0, 1), axis=1), slope


def _add_lookups(program: Callable[..., Any], of: Callable[..., Any]) -> None:
    import jax
    import jax.numpy as jnp

    f32, bf16, s32 = jnp.float32, jnp.bfloat16, jnp.int32

    @program("v5e", of(f32, 5000, 7), of(s32, 300, 2), of(f32, 300, 7), of(bf16, 9, 40, 130), of(s32, 50))
    def gathers(table: Any, rows: Any, new: Any, blocks: Any, columns: Any) -> Any:
        """Gathers and scatters of rows, of columns, of elements."""
        taken = jnp.swapaxes(table[rows], 0, 2)
        written = table.at[rows[:, 0]].set(new, unique_indices=True).T
        added = blocks.at[:, columns, 3].add(1)
        return taken, written, blocks[:, columns].reshape(450, 130), added, jnp.take_along_axis(table, rows[:, :1], 0)

    @program("v5p", of(f32, 100, 257), of(s32, 3, 1000), of(bf16, 64, 20, 30))
    def sorts(x: Any, keys: Any, y: Any) -> Any:
        """Sorts over either dimension, by a key, and the largest of each row."""
        pairs = jax.lax.sort((keys, keys.astype(f32)), dimension=1, num_keys=1)
        most = jax.lax.top_k(jnp.swapaxes(y, 0, 2), 5)
        return jnp.sort(x, 0), jnp.argsort(x.T, 1), pairs, most, jnp.median(x.reshape(-1, 10), axis=1)

    @program("v6e", of(f32, 64, 16, 128), of(f32, 128, 16, 64), of(s32, 8))
    def slices(x: Any, y: Any, at: Any) -> Any:
        """Slices, pads, concatenations, repetitions."""
        part = jax.lax.dynamic_slice(x, (at[0], at[1], at[2]), (8, 5, 100))
        updated = jax.lax.dynamic_update_slice(y, jnp.transpose(part, (2, 1, 0))[:50], (at[3], 0, 0))
        padded = jnp.pad(jnp.swapaxes(x, 0, 2), ((0, 3), (1, 0), (0, 0)), constant_values=1)
        joined = jnp.concatenate([x.reshape(-1, 64), y.reshape(-1, 64)], 0)
        stacked = jnp.stack([x[:, 0], y[:64, 1, :1] + x[:, 1]], -1)
        repeated = jnp.repeat(x[:5], 3, axis=2).reshape(5, -1)
        return part, updated, padded, joined, jnp.flip(y, 0)[::3].reshape(-1), repeated, stacked


def _add_loops(program: Callable[..., Any], of: Callable[..., Any]) -> None:
    import jax
    import jax.numpy as jnp

    f32, bf16 = jnp.float32, jnp.bfloat16

    @program("v5e", of(f32, 20, 30, 50), of(f32, 50, 50), of(bf16, 20, 50, 3))
    def stacked_outputs(xs: Any, w: Any, ys: Any) -> Any:
        """A scan from the end, whose outputs of each step are stacked."""

        def step(carry: Any, given: Any) -> Any:
            x, y = given
            carry = jnp.tanh(carry @ w + x)
            return carry, (carry.T, jnp.cumsum(carry, 0)[:, :7], (y.T @ carry.T.astype(bf16)).reshape(-1))

        last, (a, b, c) = jax.lax.scan(step, xs[0], (xs, ys), reverse=True)
        return last, jnp.transpose(a, (1, 0, 2)), b.reshape(600, 7), c

    matrices = {name: of(bf16, 1024, 1024) for name in "qkvo"}
    cache = of(bf16, 2, 8, 16, 1024, 64)

    @program("v5e", matrices, cache, of(bf16, 8, 1024), of(jnp.int32), donated=(1,))
    def decoder_updates(weights: Any, cache: Any, x: Any, position: Any) -> Any:
        """Eight steps that write keys and values into a cache, one after the other."""

        def step(_: Any, carry: Any) -> Any:
            cache, x, position = carry
            q, k, v = ((x @ weights[name]).reshape(8, 16, 64) for name in "qkv")
            cache = cache.at[0, :, :, position].set(k).at[1, :, :, position].set(v)
            scores = jnp.einsum("bhd,bhsd->bhs", q, cache[0]).astype(f32)
            scores = jnp.where(jnp.arange(1024) <= position, scores, -1e30)
            y = jnp.einsum("bhs,bhsd->bhd", jax.nn.softmax(scores).astype(bf16), cache[1])
            return cache, x + y.reshape(8, 1024) @ weights["o"], position + 1

        return jax.lax.fori_loop(0, 8, step, (cache, x, position))

    weights = {name: of(bf16, 12, 384, 384) for name in "qkvo"}

    @program("v5e", weights, of(bf16, 8, 128, 384))
    def scanned_weights(weights: Any, x: Any) -> Any:
        """Twelve layers in a scan, each with four matrices."""

        def layer(x: Any, own: Any) -> Any:
            q, k, v = ((x @ own[name]).reshape(8, 128, 6, 64) for name in "qkv")
            scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(f32)).astype(bf16)
            return x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ own["o"], None

        return jax.lax.scan(layer, x, weights)[0]

    @program("v4", of(f32, 40, 60), of(f32, 60, 60), of(f32))
    def loops_without_end(x: Any, w: Any, limit: Any) -> Any:
        """A loop in a loop; how often either runs is unknown."""

        def inner(state: Any) -> Any:
            y = jnp.sort(state[0].T, 0).T @ w
            return y, state[1] + jnp.abs(y).sum()

        def outer(state: Any) -> Any:
            y, total, i = state
            y, total = jax.lax.while_loop(lambda state: state[1] < limit * i, inner, (y, 0.0))
            return jnp.cumsum(y.T.reshape(40, 60), 1), total, i + 1

        return jax.lax.while_loop(lambda state: state[1] < limit, outer, (x, 0.0, 1))

    @program("v5p", of(f32, 120, 90), of(f32, 120, 90), of(jnp.bool_), of(bf16, 8, 90, 120))
    def conditionals(x: Any, y: Any, which: Any, z: Any) -> Any:
        """Branches that give results of one order from arguments of several."""

        def first(x: Any, y: Any, z: Any) -> Any:
            return jnp.sort(x, 0).T, z[0]

        def second(x: Any, y: Any, z: Any) -> Any:
            return (y @ x.T @ x).T, jnp.swapaxes(z, 1, 2).reshape(8, 90, 120)[1]

        spectrum = jax.lax.cond(which, lambda z: jnp.fft.fft(z.astype(f32)).real, lambda z: z.astype(f32) * 2, z)
        return jax.lax.cond(which, first, second, x, y, z), spectrum

    @program("v5p", of(bf16, 32, 200), of(bf16, 3, 200, 200))
    def recomputed(x: Any, weights: Any) -> Any:
        """The gradient of layers that are computed again."""

        @jax.checkpoint
        def layer(x: Any, w: Any) -> Any:
            return jnp.tanh(x @ w) @ w.T

        def loss(weights: Any, x: Any) -> Any:
            y, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)
            return (y.astype(f32) ** 2).sum()

        return jax.grad(loss, (0, 1))(weights, x)


def _add_devices(program: Callable[..., Any], of: Callable[..., Any]) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    f32, bf16 = jnp.float32, jnp.bfloat16

    @program("v6e", of(f32, 16, 64), of(f32, 40, 40), of(f32, 12, 30, 30))
    def custom_calls(keys: Any, a: Any, b: Any) -> Any:
        """Factors of matrices, which XLA leaves to calls."""
        q, r = jnp.linalg.qr(a)
        lower = jnp.linalg.cholesky(b @ jnp.swapaxes(b, 1, 2) + jnp.eye(30))
        solved = jax.lax.linalg.triangular_solve(lower, jnp.swapaxes(b, 1, 2), left_side=True, lower=True)
        return q.T, r, jnp.swapaxes(lower, 0, 2), solved.reshape(360, 30), jax.lax.approx_max_k(keys, 5)

    @program("v4", of(f32, 64, 128), of(f32, 64, 30), of(bf16, 30, 64), of(jnp.int8, 10, 20, 30), donated=(0, 1, 2, 3))
    def donated_and_turned(a: Any, b: Any, c: Any, d: Any) -> Any:
        """Results that take the memory of arguments of another order."""
        return a.reshape(128, 64), b.T, c.T + 1, jnp.transpose(d, (2, 0, 1)), b * 2

    @program("v5p", of(f32, 8, 64, 128), of(f32, 128, 512), of(f32, 512, 64), sharded=("x", "", ""))
    def collectives(x: Any, w: Any, v: Any) -> Any:
        """Over four chips: what is sent is put into another order before and after."""

        def part(x: Any, w: Any, v: Any) -> Any:
            y = jax.lax.all_to_all(jnp.einsum("bsd,df->bsf", x, w), "x", 2, 1, tiled=True)
            y = jax.lax.ppermute(y, "x", [(i, (i + 1) % 4) for i in range(4)])
            y = jax.lax.all_gather(jnp.swapaxes(y, 1, 2), "x", axis=0, tiled=True)
            return jax.lax.psum_scatter(y.reshape(-1, 128), "x", tiled=True), jax.lax.psum(v.T, "x")

        given = PartitionSpec("x"), PartitionSpec(), PartitionSpec("x")
        results = PartitionSpec("x"), PartitionSpec()
        return jax.shard_map(part, in_specs=given, out_specs=results, check_vma=False)(x, w, v)
