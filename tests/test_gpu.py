"""The GPU kernels on a GPU: the simulator's questions, larger arrays, and more than 2**31 elements.

The oracle is the slow reference where it can keep up, else the CPU, which the other tests compare with it.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
import fastindex.cuda
import fastindex.paged as fp
from fastindex.algebra.casts import cast_by_numpy
from tests.cases import cast_cases, cast_patterns, strategies
from tests.cases.gpu_cases import LARGE_SHAPES, RELAYOUTS, SHAPES
from tests.oracles import reference
from tests.oracles.comparison import (
    differences_in_conversion,
    differences_in_indices,
    differences_in_packing,
    differences_in_relayout,
    differences_in_tiles,
)
from tests.paged.pools import cache_of
from tests.paged.test_descriptors import random_transfer

REASON = fastindex.cuda.why_unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=f"no GPU: {REASON}")]

if REASON is None:
    from fastindex.cuda.kernels.device import cuda
    from fastindex.cuda.queues import Queue
    from tests.kernels import gpu_package
    from tests.kernels.gpu_package import to_gpu, to_host


@pytest.mark.parametrize(("source", "destination"), RELAYOUTS)
def test_relayouts(source: str, destination: str) -> None:
    first, second = reference.parse(source), reference.parse(destination)
    assert differences_in_relayout(first, second, 1, package=gpu_package) == []
    assert differences_in_relayout(second, first, 2, package=gpu_package) == []


@pytest.mark.parametrize("first", strategies.seeds(400)[::100])
def test_random_shapes(first: int) -> None:
    for seed in range(first, first + 100):
        source, destination = strategies.random_pair(seed)
        assert differences_in_packing(source, seed, package=gpu_package) == [], f"seed {seed}"
        assert differences_in_relayout(source, destination, seed, package=gpu_package) == [], f"seed {seed}"


@pytest.mark.parametrize("first", strategies.seeds(200)[::50])
def test_random_larger_relayouts(first: int) -> None:
    for seed in range(first, first + 50):
        source, destination = map(str, strategies.medium_pair(seed))
        buffer = np.random.default_rng(seed).integers(256, size=fi.Shape.parse(source).nbytes, dtype=np.uint8)
        expected = fi.relayout(buffer, source, destination)
        found = gpu_package.relayout(buffer, source, destination)
        assert found.tobytes() == expected.tobytes(), f"seed {seed}: {source} to {destination}"


@pytest.mark.parametrize("text", SHAPES)
def test_indices(text: str) -> None:
    shape = reference.parse(text)
    assert differences_in_indices(shape, package=gpu_package) == []
    assert differences_in_tiles(shape, package=gpu_package) == []
    assert differences_in_conversion(shape, reference.parse(text[: text.index("]") + 1]), package=gpu_package) == []


@pytest.mark.parametrize("text", [*LARGE_SHAPES, "bf16[4093,4099]{1,0:T(8,128)(2,1)}"])
def test_many_indices(text: str) -> None:
    shape = fi.Shape.parse(text)
    rng = np.random.default_rng(1)
    indices = tuple(rng.integers(size, size=100_000) for size in shape.dimensions)
    slots = fi.linear_index(shape, indices)
    assert gpu_package.linear_index(text, indices).tolist() == slots.tolist()
    back = gpu_package.multi_index(text, slots)
    assert all(np.array_equal(a, b) for a, b in zip(back, indices, strict=True))


def test_the_first_offender_is_named() -> None:
    rows = np.arange(1_000_000) % 3
    rows[777_777], rows[999_999] = 3, -1
    columns = np.zeros(1_000_000, np.int64)
    with pytest.raises(fi.OutOfBoundsError, match="coordinate 3 at position 777777"):
        fi.linear_index("f32[3,5]{1,0:T(2,2)}", (to_gpu(rows), to_gpu(columns)))
    assert to_host(fi.linear_index("f32[3,5]", (to_gpu(rows), to_gpu(columns)), "clip")).max() == 10


# Pages of caches


def test_pages() -> None:
    """What a processor does: copies with a zeroed tail, within a pool too, gathers and scatters."""
    for seed in strategies.seeds(20):
        random = np.random.default_rng(seed)
        *sides, here, there, tokens = random_transfer(random)
        if not set(sides[0].heads()) & set(sides[1].heads()):
            continue
        source, target = map(cache_of, sides)
        pools = [random.integers(256, size=cache.nbytes).astype(np.uint8) for cache in (source, target)]
        on_gpu = [to_gpu(pool) for pool in pools]
        for one in (pools, on_gpu):
            fp.copy(source, target, *one, here, there, tokens, tail="zero")
        assert to_host(on_gpu[1]).tobytes() == pools[1].tobytes(), f"seed {seed}"
        slots = random.permutation(source.num_blocks * source.block_size)[:9]
        chunk = fp.gather(source, pools[0], slots=slots)
        again = fp.gather(source, on_gpu[0], slots=slots)
        assert to_host(again).tobytes() == chunk.tobytes(), f"seed {seed}"
        pairs = random.permutation(target.num_blocks)[:5]
        for one, values in ((pools, chunk), (on_gpu, again)):
            fp.scatter(source, one[0], values, slots[::-1].copy())
            fp.swap_blocks(target, one[1], np.stack([pairs, np.roll(pairs, 1)], axis=1))
        for found, expected in zip(on_gpu, pools, strict=True):
            assert to_host(found).tobytes() == expected.tobytes(), f"seed {seed}"


def test_pages_of_all_layers_in_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """NHD to HND of separate tensors; a table that is on the host; what the GPU does not do."""
    launched: list[str] = []
    launch = Queue.launch
    monkeypatch.setattr(
        Queue, "launch", lambda self, kernel, *a: [launched.append(kernel.name), launch(self, kernel, *a)]
    )
    layers = mixed_bytes(8 * 7 * 2 * 4 * 2 * 64).reshape(8, 7, 2, 4, 2, 64)
    used = (0, 1, 3, 6, 7)
    whole, written = to_gpu(layers), to_gpu(np.zeros((8, 7, 2, 2, 4, 64), np.uint8))
    inputs, outputs = [whole[i] for i in used], [written[i] for i in used]
    caches = [
        fp.Cache.from_tensors(tensors, f"num_blocks 2 {order} head_dim")
        for tensors, order in ((inputs, "block_size kv_heads"), (outputs, "kv_heads block_size"))
    ]
    fp.copy(caches[0], caches[1], inputs, outputs, [5, 1, 2], [0, 6, 3])
    assert launched == ["copy pages"]
    expected = np.zeros((8, 7, 2, 2, 4, 64), np.uint8)
    for i in used:
        expected[i, [0, 6, 3]] = layers[i, [5, 1, 2]].transpose(0, 1, 3, 2, 4)
    assert to_host(written).tobytes() == expected.tobytes()
    pools = [fp.Cache(f"{kind}[num_blocks=4,block_size=2,head_dim=2]") for kind in ("f32", "bf16")]
    with pytest.raises(fi.ArgumentTypeError, match="some arrays are on the host"):
        fp.copy(pools[0], pools[0], to_gpu(np.zeros(64, np.uint8)), np.zeros(64, np.uint8), [1], [2])
    with pytest.raises(fi.UnsupportedError, match="are cast on the CPU only"):
        fp.copy(*pools, *(to_gpu(np.zeros(pool.nbytes, np.uint8)) for pool in pools), [1], [2], casting="unsafe")


# More than 2**31 elements


REARRANGED: list[tuple[str, tuple[int, ...], str, dict[str, int], bool]] = [
    ("a b -> b a", (37, 50), "f4", {}, False),
    ("b (h d) s -> b h s d", (3, 24, 17), "u2", {"h": 4}, False),
    ("(m a) (n b) -> m n a b", (20, 30), "u1", {"a": 4, "b": 8}, True),
    ("(a b) c -> (c b) a", (23, 5), "i8", {"b": 6}, True),
    ("a (b c) d -> (d c) (a b)", (4, 35, 6), "c16", {"c": 7}, False),
    ("(a b c) -> c a b", (61,), "f2", {"b": 4, "c": 3}, True),
]


@pytest.mark.parametrize(("pattern", "dimensions", "kind", "sizes", "pad"), REARRANGED)
def test_rearrange(pattern: str, dimensions: tuple[int, ...], kind: str, sizes: dict[str, int], pad: bool) -> None:
    """What a processor does: whole arrays, strided views, into `out`, padded, and with a value for padding."""
    array = mixed_bytes(math.prod(dimensions) * np.dtype(kind).itemsize).view(kind).reshape(dimensions)
    for fill in (None, 7) if pad else (None,):
        expected = fi.rearrange(array, pattern, pad=pad, fill=fill, **sizes)
        got = fi.rearrange(to_gpu(array), pattern, pad=pad, fill=fill, **sizes)
        assert to_host(got).tobytes() == expected.tobytes()
        assert got.shape == expected.shape
        out = to_gpu(np.zeros_like(expected))
        assert fi.rearrange(to_gpu(array), pattern, out=out, pad=pad, fill=fill, **sizes) is out
        assert to_host(out).tobytes() == expected.tobytes()
    apart = to_gpu(np.repeat(array, 2, axis=0))[::2]
    got = fi.rearrange(apart, pattern, pad=pad, **sizes)
    assert to_host(got).tobytes() == fi.rearrange(array, pattern, pad=pad, **sizes).tobytes()


def test_values_of_padding_that_do_not_fit_are_refused() -> None:
    with pytest.raises(fi.FastIndexError, match="fill must be an integer from 0 to 255 for u8, got 300"):
        fi.rearrange(to_gpu(np.zeros(7, np.uint8)), "(a b) -> b a", b=2, pad=True, fill=300)
    with pytest.raises(fi.ArgumentTypeError, match="one number"):
        fi.rearrange(to_gpu(np.zeros(7, np.uint8)), "(a b) -> b a", b=2, pad=True, fill=[1, 2])


@pytest.mark.parametrize("source", cast_patterns.TYPES)
def test_every_cast(source: str) -> None:
    """Every pattern of up to 16 bits to every type, many of wider ones; the oracle is ``astype``, without kernels."""
    data = cast_patterns.elements(source, 4000)
    count = data.nbytes // cast_patterns.TYPES[source].nbytes
    given = to_gpu(data)
    for target, kind in cast_patterns.TYPES.items():
        if target != source:
            found = fi.relayout(given, f"{source}[{count}]", f"{target}[{count}]", casting="unsafe")
            expected = cast_by_numpy(data, cast_patterns.TYPES[source], kind)
            assert to_host(found).tobytes() == expected.tobytes(), target


#: Sides of a cast: runs, woven rows and rows that part, tiles with and without vectors, few columns, padding, packed
#: elements, and tiles that share no loops.
CAST_SIDES = [
    ("[70,64]{1,0}", "[70,64]{0,1}"),
    ("[70,63]{1,0}", "[70,63]{0,1}"),
    ("[3,40,24]{2,1,0}", "[3,40,24]{1,0,2}"),
    ("[5,97]{1,0}", "[5,97]{1,0:T(2,8)}"),
    ("[24,256]{1,0}", "[24,256]{1,0:T(8,128)(2,1)}"),
    ("[24,256]{1,0}", "[24,256]{1,0:T(8,128)(4,1)}"),
    ("[24,250]{1,0}", "[24,250]{0,1:T(8,128)(4,1)}"),
    ("[8,4,100]{2,1,0}", "[8,4,100]{1,2,0}"),
    ("[3,500]{1,0}", "[3,500]{0,1}"),
    ("[30,50]{1,0:T(4,8)(2,1)}", "[30,50]{0,1:T(3)(2)L(16)}"),
    ("[33,7]{1,0:T(2,2)}", "[33,7]{1,0}"),
    ("[0,7]{1,0}", "[0,7]{0,1}"),
    ("[]", "[]"),
]
#: And packed ones.
PACKED_CASTS = [
    ("f32[16,33]{1,0}", "s4[16,33]{1,0:E(4)}"),
    ("u4[16,33]{0,1:E(4)}", "bf16[16,33]{1,0:T(8,16)}"),
    ("f4e2m1fn[16,32]{1,0:E(4)}", "f16[16,32]{0,1}"),
    ("s2[5,33]{1,0:E(2)}", "s4[5,33]{0,1:E(4)}"),
    ("bf16[16,33]{1,0}", "u2[16,33]{1,0:T(8,128)E(2)}"),
]


def assert_cast(source: str, destination: str) -> None:
    given = mixed_bytes(fi.Shape.parse(source).nbytes)
    expected = fi.relayout(given, source, destination, fill=1, casting="unsafe")
    found = fi.relayout(to_gpu(given), source, destination, fill=1, casting="unsafe")
    assert to_host(found).tobytes() == expected.tobytes(), f"{source} to {destination}"


@pytest.mark.parametrize("pair", [*strategies.rotating(cast_cases.PAIRS)])
def test_casts_that_move(pair: tuple[str, str]) -> None:
    """What a processor makes of the same, every pattern of which other tests compare."""
    for first, second in CAST_SIDES:
        assert_cast(pair[0] + first, pair[1] + second)
        assert_cast(pair[0] + second, pair[1] + first)


@pytest.mark.parametrize(("source", "destination"), PACKED_CASTS)
def test_casts_of_packed_elements(source: str, destination: str) -> None:
    assert_cast(source, destination)


def transposed(array: Any) -> Any:
    """A view of an array of two dimensions: Numba's ``T`` is a copy."""
    described = {**array.__cuda_array_interface__, "shape": array.shape[::-1], "strides": array.strides[::-1]}
    return cuda.as_cuda_array(SimpleNamespace(__cuda_array_interface__=described, held=array))


def test_casts_of_arrays() -> None:
    """pack, unpack, rearrange and copyto: strided arrays, results of another type, and what is refused."""
    array = np.linspace(-300, 300, 40 * 33, dtype=np.float32).reshape(40, 33)
    there = to_gpu(np.repeat(array, 2, axis=1))[:, ::2]
    text = "bf16[40,33]{1,0:T(8,128)(2,1)}"
    packed = fi.pack(there, text)
    assert to_host(packed).tobytes() == fi.pack(array, text).tobytes()
    back = fi.unpack(packed, text, dtype="f32")
    assert (back.dtype, back.shape) == (np.float32, array.shape)
    assert np.array_equal(to_host(back), fi.unpack(fi.pack(array, text), text, dtype="f32"))
    memory = to_gpu(np.zeros((33, 40)))
    out = transposed(memory)
    assert fi.unpack(packed, text, out=out) is out
    assert np.array_equal(to_host(memory).T, to_host(back))
    turned = fi.rearrange(there, "a (b c) -> c b a", c=3, dtype=np.int8, casting="unsafe")
    expected = fi.rearrange(array, "a (b c) -> c b a", c=3, dtype=np.int8, casting="unsafe")
    assert np.array_equal(to_host(turned), expected)
    target = to_gpu(np.zeros((33, 40), np.int32))
    fi.numpy.copyto(transposed(target), there, casting="unsafe")
    assert np.array_equal(to_host(target), array.T.astype(np.int32))
    fi.numpy.copyto(target, to_gpu(np.arange(40, dtype=np.uint8)))
    assert np.array_equal(to_host(target), np.broadcast_to(np.arange(40), (33, 40)))
    for call in (
        lambda: fi.numpy.copyto(target, transposed(there)),
        lambda: fi.pack(there, "s8[40,33]"),
        lambda: fi.unpack(packed, text, dtype="u8"),
        lambda: fi.rearrange(there, "a b -> b a", dtype="s32"),
        lambda: fi.relayout(packed, text, "s16[40,33]"),
    ):
        with pytest.raises(fi.ArgumentTypeError, match="is not cast to"):
            call()


def require_free(nbytes: int) -> None:
    free = cuda.current_context().get_memory_info().free
    if free < nbytes:
        pytest.skip(f"needs {nbytes} bytes of GPU memory, {free} are free")


def mixed_bytes(count: int) -> NDArray[np.uint8]:
    """A byte for each slot, a function of all 32 bits of its number; made in pieces, without large arrays between."""
    found = np.empty(count, np.uint8)
    for begin in range(0, count, 1 << 24):
        slots = np.arange(begin, min(begin + (1 << 24), count), dtype=np.uint32)
        found[begin : begin + len(slots)] = slots * np.uint32(2654435761) >> np.uint32(24)
    return found


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("u8[46341,46345]{1,0}", "u8[46341,46345]{0,1}"),
        ("u8[65536,32784]{1,0}", "u8[65536,32784]{0,1}"),
        ("u8[65536,32784]{1,0}", "u8[65536,32784]{1,0:T(8,128)(4,1)}"),
        ("u8[46341,46345]{1,0}", "u8[46341,46345]{1,0:T(3)(2)}"),
    ],
)
def test_more_than_31_bits_of_elements(source: str, destination: str) -> None:
    """The values are a function of the slot, so a sample of slots can be checked without the whole on the host."""
    first, second = fi.Shape.parse(source), fi.Shape.parse(destination)
    require_free(first.nbytes + second.nbytes + (1 << 30))
    assert first.element_count > 2**31
    pattern = mixed_bytes(first.nbytes)
    moved = to_host(fi.relayout(to_gpu(pattern), source, destination))
    slots = np.random.default_rng(1).integers(second.slot_count, size=1_000_000)
    slots[:3] = 0, second.slot_count - 1, 2**31
    coordinates = fi.multi_index(second, slots, padding="mark")
    held = coordinates[0] >= 0
    origins = fi.linear_index(first, tuple(part[held] for part in coordinates))
    assert np.array_equal(moved[slots[held]], pattern[origins])
    assert not moved[slots[~held]].any()


# Other libraries


def arrays_of(library: str, array: Any) -> Any:
    module = pytest.importorskip(library)
    if library == "torch":
        return module.as_tensor(array, device="cuda")
    return module.asarray(array)


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_results_are_of_the_library_of_the_input(library: str) -> None:
    data = np.arange(15, dtype=np.float32)
    expected = fi.relayout(data, "f32[3,5]", "f32[3,5]{1,0:T(2,2)}")
    given = arrays_of(library, data)
    found = fi.relayout(given, "f32[3,5]", "f32[3,5]{1,0:T(2,2)}")
    assert type(found) is type(given)
    assert found.tolist() == expected.tolist()
    index = arrays_of(library, np.array([2, 0])), arrays_of(library, np.array([3, 4]))
    assert fi.linear_index("f32[3,5]{1,0:T(2,2)}", index).tolist() == [17, 8]


def test_torch_bfloat16_and_streams() -> None:
    torch = pytest.importorskip("torch")
    given = torch.arange(16 * 256, device="cuda").reshape(16, 256).to(torch.bfloat16)
    stream = torch.cuda.Stream()
    packed = fi.pack(given, "bf16[16,256]{1,0:T(8,128)(2,1)}", stream=stream)
    assert packed.dtype == torch.bfloat16
    back = fi.unpack(packed, "bf16[16,256]{1,0:T(8,128)(2,1)}", stream=stream)
    stream.synchronize()
    assert torch.equal(back, given)


def test_arrays_of_jax() -> None:
    """Results are ready for JAX's own work; the memory of those that are dropped is not reused too early."""
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    given = jax.numpy.arange(16 * 256, dtype="bfloat16").reshape(16, 256)
    text = "bf16[16,256]{1,0:T(8,128)(2,1)}"
    packed = fi.pack(given, text)
    assert isinstance(packed, jax.Array)
    assert np.asarray(packed).tobytes() == fi.pack(np.asarray(given), text).tobytes()
    large, slots = jax.numpy.arange(1 << 24), jax.numpy.asarray([65535, 2])
    for _ in range(8):
        doubled = 2 * fi.relayout(large, "s32[4096,4096]", "s32[4096,4096]{0,1}")
        fi.relayout(large, "s32[4096,4096]", "s32[4096,4096]{0,1}")
        assert jax.numpy.array_equal(doubled.reshape(4096, 4096).T.reshape(-1), 2 * large)
    assert jax.numpy.array_equal(fi.unpack(packed, text), given)
    assert np.asarray(fi.linear_index("f32[65536,65536]", (slots, slots))).tolist() == [2**32 - 1, 131074]


def test_a_plan_in_a_graph() -> None:
    torch = pytest.importorskip("torch")
    plan = fi.plan_relayout("f32[64,128]{1,0}", "f32[64,128]{0,1}")
    given = torch.zeros(64 * 128, device="cuda")
    out = torch.empty_like(given)
    plan(given, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(given, out=out)
    given.copy_(torch.arange(64 * 128, device="cuda"))
    graph.replay()
    assert torch.equal(out.reshape(128, 64), given.reshape(64, 128).T)


def test_chunks_from_host_memory() -> None:
    source, destination = "f32[3000,2000]{1,0}", "f32[3000,2000]{0,1:T(8,128)}"
    data = np.random.default_rng(1).random(6_000_000, np.float32)
    expected = fi.relayout(data, source, destination)
    found = fastindex.cuda.relayout_through_device(data, source, destination, max_memory=4 << 20)
    assert found.tobytes() == expected.tobytes()
