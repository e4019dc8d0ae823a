"""Whole Dask arrays of random chunks against the slow reference, and what a lazy result has to be.

Tests of: dask.arrays, dask.chunks, arrays.arrays.
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from tests.cases import strategies
from tests.dask.chunked import Chunked, random_chunks
from tests.oracles import reference
from tests.oracles.comparison import differences_in_packing, differences_in_relayout

dask = pytest.importorskip("dask", reason="dask is not installed; pip install 'fastindex[dask]'")
da = pytest.importorskip("dask.array")

from dask.array.utils import assert_eq  # noqa: E402

import fastindex.dask  # noqa: E402
from fastindex.dask import chunks as dask_chunks  # noqa: E402
from fastindex.dask.chunks import cut, cut_together  # noqa: E402


@pytest.fixture(autouse=True)
def scheduler() -> Iterator[None]:
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


def at_once(*lazy: Any) -> Any:
    return dask.compute(*lazy, scheduler="sync")


@pytest.mark.parametrize("chunk_size", ["128MiB", "16B"], ids=["whole rows", "pieces of rows"])
@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(240)[::40])])
def test_random_arrays(first: int, chunk_size: str) -> None:
    """All features of layouts, cut along the most major dimension, and along several."""
    with dask.config.set({"array.chunk-size": chunk_size}):
        for seed in range(first, first + 40):
            shape = strategies.random_shape(seed)
            assert differences_in_packing(shape, seed, package=Chunked(seed, at_once)) == [], f"seed {seed}"


@pytest.mark.parametrize("chunk_size", ["128MiB", "16B"], ids=["whole rows", "pieces of rows"])
@pytest.mark.parametrize("first", [*strategies.rotating(strategies.seeds(240)[::40])])
def test_random_relayouts(first: int, chunk_size: str) -> None:
    with dask.config.set({"array.chunk-size": chunk_size}):
        for seed in range(first, first + 40):
            source, destination = strategies.random_pair(seed)
            package = Chunked(seed, at_once)
            assert differences_in_relayout(source, destination, seed, package=package) == [], f"seed {seed}"


@pytest.mark.parametrize("seed", strategies.rotating_seeds(450))
def test_segments_are_the_buffer(seed: int) -> None:
    """One after the other, and each what its box packed is: of sizes and of elements."""
    shape = fi.Shape.parse(str(strategies.random_shape(seed)))
    source = random.Random(seed)
    edges = [np.cumsum(sizes).tolist() for sizes in random_chunks(source, shape.dimensions)]
    segments = cut(shape, source.randint(1, 2 * shape.nbytes + 1), source.choice((0, 64)), edges)
    cells = reference.slots(reference.parse(str(shape)))
    begin = 0
    for place in segments.places():
        box = segments.box_shape(place)
        at = dict(zip(segments.dimensions, place, strict=True))
        starts = [along[at.get(d, 0)] for d, along in enumerate(segments.edges)]
        inside = reference.slots(reference.parse(str(box)))
        moved = [None if c is None else tuple(i + s for i, s in zip(c, starts, strict=True)) for c in inside]
        end = begin + len(moved)
        assert cells[begin:end] == moved, (shape, place)
        assert (begin * shape.element_bits) % 8 == 0
        begin = end
    assert begin == len(cells)
    assert [sum(sizes) for sizes in segments.chunks] == list(shape.dimensions)


# Chunks and graphs

ROWS, TILED, COLUMNS = "f32[256,640]", "f32[256,640]{1,0:T(8,128)}", "f32[256,640]{0,1:T(8,128)}"
VALUES = np.arange(256 * 640, dtype=np.float32).reshape(256, 640)


def test_chunks_of_whole_tiles_are_kept() -> None:
    x = da.from_array(VALUES, chunks=(64, 640))
    packed = fi.pack(x, TILED)
    assert packed.chunks == ((64 * 640,) * 4,)
    assert fi.unpack(packed, TILED).chunks == x.chunks
    assert fi.relayout(fi.pack(x, ROWS), ROWS, TILED).chunks == packed.chunks


def test_chunks_between_tiles_move_to_the_nearest_tile() -> None:
    packed = fi.pack(da.from_array(VALUES, chunks=(100, 640)), TILED)
    assert packed.chunks == ((96 * 640, 104 * 640, 56 * 640),)


def test_chunks_along_minor_dimensions_are_of_the_same_size_afterwards() -> None:
    packed = fi.pack(da.from_array(VALUES, chunks=(256, 64)), TILED)
    assert packed.chunks == ((24 * 640,) * 2 + (24 * 640, 24 * 640) + packed.chunks[0][4:],)
    assert max(packed.chunks[0]) <= 1.5 * 256 * 64


def test_rows_too_long_for_a_chunk_are_cut() -> None:
    with dask.config.set({"array.chunk-size": "8KiB"}):
        packed = fi.pack(da.from_array(VALUES, chunks=(8, 256)), TILED)
        assert max(packed.chunks[0]) <= 8 * 384
        assert len(packed.chunks[0]) >= 64
        assert_eq(packed, fi.pack(VALUES, TILED))
        assert_eq(fi.unpack(packed, TILED), VALUES)


@pytest.mark.parametrize("chunks", [1000, (4096, 159744), -1, "auto"])
def test_chunks_given(chunks: Any) -> None:
    x = da.from_array(VALUES, chunks=(64, 640))
    packed = fastindex.dask.pack(x, TILED, chunks=chunks)
    assert packed.chunks == da.core.normalize_chunks(chunks, packed.shape, dtype=np.float32)
    assert_eq(packed, fi.pack(VALUES, TILED))
    moved = fastindex.dask.relayout(packed, TILED, COLUMNS, chunks=chunks)
    assert moved.chunks == packed.chunks
    assert_eq(moved, fi.pack(VALUES, COLUMNS))
    assert_eq(fastindex.dask.unpack(moved, COLUMNS, chunks=(100, 100)), VALUES)


def tasks_of(lazy: Any, block: tuple[int, ...]) -> int:
    """How many of the chunks of the array at the bottom of a graph a block needs."""
    graph = lazy.__dask_graph__().cull({(lazy.name, *block)})
    return sum(1 for key in graph.to_dict() if key[0] == "source")


def test_each_chunk_depends_on_what_it_needs_only() -> None:
    x = da.from_array(VALUES, chunks=(8, 640), name="source")
    packed = fi.pack(x, TILED)
    assert packed.numblocks == (32,)
    assert [tasks_of(packed, (i,)) for i in range(32)] == [1] * 32
    across = fi.pack(x, "f32[256,640]{1,0:T(16,128)}")
    assert {tasks_of(across, (i,)) for i in range(across.numblocks[0])} == {2}
    buffer = da.from_array(VALUES.reshape(-1), chunks=8 * 640, name="source")
    moved = fi.relayout(buffer, ROWS, TILED)
    assert {tasks_of(moved, (i,)) for i in range(moved.numblocks[0])} == {1}
    turned = fi.relayout(buffer, ROWS, COLUMNS)
    assert {tasks_of(turned, (i,)) for i in range(turned.numblocks[0])} == {32}


def test_pieces_are_not_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one are cut into columns of the other half-way: 32 by 32 chunks are not 1024 pieces of 1024 bytes."""
    buffer = da.from_array(VALUES.reshape(-1), chunks=8 * 640)
    between, halfway = dask_chunks.between, []
    monkeypatch.setattr(dask_chunks, "between", lambda *chunks: halfway.append(between(*chunks)) or halfway[-1])
    monkeypatch.setattr(dask_chunks, "_LEAST_PIECE_BYTES", 512)
    assert_eq(fi.relayout(buffer, ROWS, COLUMNS), fi.pack(VALUES, COLUMNS))
    assert halfway == []
    monkeypatch.setattr(dask_chunks, "_LEAST_PIECE_BYTES", 2048)
    assert_eq(fi.relayout(buffer, ROWS, COLUMNS), fi.pack(VALUES, COLUMNS))
    assert [tuple(map(max, chunks)) for chunks in halfway] == [(48, 104)]
    monkeypatch.setattr(dask_chunks, "_LEAST_PIECE_BYTES", 1 << 40)
    for seed in strategies.seeds(40):
        source, destination = strategies.random_pair(seed)
        package = Chunked(seed, at_once)
        assert differences_in_relayout(source, destination, seed, package=package) == [], f"seed {seed}"


def test_nothing_is_computed() -> None:
    def fail(block: Any) -> Any:
        raise AssertionError("computed")

    x = da.from_array(VALUES, chunks=64).map_blocks(fail, dtype=np.float32, meta=np.empty((0, 0), np.float32))
    for lazy in (fi.pack(x, TILED), fi.relayout(fi.pack(x, ROWS), ROWS, COLUMNS), fi.unpack(fi.pack(x, TILED), TILED)):
        assert isinstance(lazy, da.Array)
    with pytest.raises(AssertionError, match="computed"):
        fi.pack(x, TILED).compute()


def test_names_are_deterministic_and_readable() -> None:
    def lazy(fill: Any = None, text: str = TILED) -> Any:
        return fi.pack(da.from_array(VALUES, chunks=64, name="x"), text, fill)

    assert lazy().name == lazy().name == lazy(0).name
    assert lazy().name.startswith("fastindex-pack-")
    assert len({lazy().name, lazy(1).name, lazy(text=COLUMNS).name, lazy(text=ROWS).name}) == 4
    buffer = da.from_array(VALUES.reshape(-1), chunks=8192, name="x")
    assert fi.relayout(buffer, ROWS, TILED).name.startswith("fastindex-relayout-")
    assert fi.unpack(buffer, ROWS).name == fi.unpack(buffer, ROWS).name
    assert fi.unpack(buffer, ROWS).name.startswith("fastindex-unpack-")
    assert fi.unpack(buffer, ROWS).name != fi.unpack(buffer, "f32[256,640]{0,1}").name


def test_graphs_and_plans_pickle() -> None:
    lazy = fi.pack(da.from_array(VALUES, chunks=(100, 100)), COLUMNS, 7)
    assert_eq(pickle.loads(pickle.dumps(lazy)), fi.pack(VALUES, COLUMNS, 7))
    plan = pickle.loads(pickle.dumps(fi.plan_relayout(ROWS, COLUMNS)))
    moved = plan(da.from_array(VALUES.reshape(-1), chunks=9999))
    assert isinstance(moved, da.Array)
    assert_eq(moved, fi.pack(VALUES, COLUMNS))


def test_large_graphs_take_little_time_and_memory() -> None:
    """A layer is a few numbers until it is needed."""
    x = da.zeros((1 << 20, 1 << 20), dtype=np.float32, chunks=(64, 1 << 20))
    packed = fi.pack(x, f"f32[{1 << 20},{1 << 20}]{{1,0:T(8,128)}}")
    assert packed.numblocks == (1 << 14,)
    assert len(pickle.dumps(packed)) < 1 << 20


# Everything that callers hand in


@pytest.mark.parametrize("fill", [None, 0, 1, -1, 2.5, float("nan")])
def test_fills(fill: Any) -> None:
    text = "f32[20,5]{1,0:T(8,128)PV(lowest)}".replace("T(8,128)PV(lowest)", "PV(lowest)T(8,128)")
    values = VALUES[:20, :5]
    x = da.from_array(values, chunks=(7, 2))
    np.testing.assert_array_equal(fi.pack(x, text, fill).compute(), fi.pack(values, text, fill))
    buffer = da.from_array(np.ascontiguousarray(values).reshape(-1), chunks=33)
    np.testing.assert_array_equal(fi.relayout(buffer, "f32[20,5]", text, fill).compute(), fi.pack(values, text, fill))


@pytest.mark.parametrize(("text", "fill"), [("s4[5,7]{1,0:T(4,4)E(4)}", -3), ("u2[5,7]{1,0:T(2,4)}", 3)])
def test_fills_of_narrow_elements(text: str, fill: int) -> None:
    shape = fi.Shape.parse(text)
    values = np.arange(35).reshape(5, 7).astype(shape.element_type.numpy_dtype)
    found = fi.pack(da.from_array(values, chunks=2), text, fill).compute()
    assert found.tobytes() == fi.pack(values, text, fill).tobytes()


def test_buffers_in_several_dimensions() -> None:
    images = np.arange(8 * 3 * 5 * 6, dtype=np.uint8).reshape(8, 3, 5, 6)
    x = da.from_array(images, chunks=(2, 3, 2, 6))
    source, turned, tiled = "u8[8,3,5,6]", "u8[8,3,5,6]{1,3,2,0}", "u8[8,3,5,6]{3,2,1,0:T(8,128)}"
    assert_eq(fi.relayout(x, source, turned, as_array=True), images.transpose(0, 2, 3, 1))
    assert_eq(fi.relayout(x, source, tiled), fi.pack(images, tiled))
    assert_eq(fi.unpack(x.transpose(0, 2, 3, 1), turned), images)
    assert_eq(fi.relayout(fi.pack(x, tiled), tiled, turned, as_array=True), images.transpose(0, 2, 3, 1))
    with pytest.raises(fi.FastIndexError, match="as_array=True needs a destination without tiles"):
        fi.relayout(x, source, tiled, as_array=True)


def test_types_of_ml_dtypes() -> None:
    import ml_dtypes

    values = VALUES[:40, :50].astype(ml_dtypes.bfloat16)
    text = "bf16[40,50]{1,0:T(8,128)(2,1)}"
    packed = fi.pack(da.from_array(values, chunks=(16, 20)), text)
    assert packed.dtype == values.dtype
    assert packed.compute().tobytes() == fi.pack(values, text).tobytes()
    raw = da.from_array(fi.pack(values, text).view(np.uint8), chunks=1001)
    assert fi.unpack(raw, text).compute().tobytes() == values.tobytes()


def test_other_byte_orders() -> None:
    swapped = VALUES.astype(">f4")
    assert_eq(fi.pack(da.from_array(swapped, chunks=100), TILED), fi.pack(VALUES, TILED))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: fi.pack(x, "s32[256,640]"), fi.ArgumentTypeError, "f32 is not cast to s32"),
        (lambda x: fi.pack(x, "f32[256,641]"), fi.FastIndexError, "has the dimensions (256, 641)"),
        (lambda x: fi.pack(x, TILED, out=np.empty(1)), fi.FastIndexError, "out is for arrays in memory"),
        (lambda x: fi.pack(x, TILED, stream=1), fi.FastIndexError, "stream is for CUDA arrays"),
        (lambda x: fi.pack(x, TILED, threads=0), fi.FastIndexError, "threads"),
        (lambda x: fi.pack(x, TILED, "a"), fi.ArgumentTypeError, "fill must be one number"),
        (lambda x: fi.pack(x[x[:, 0] > 1], TILED), fi.FastIndexError, "compute_chunk_sizes"),
        (lambda x: fi.unpack(x, TILED), fi.FastIndexError, "has one dimension"),
        (lambda x: fi.unpack(x, "f32[256,640]{0,1}"), fi.FastIndexError, "strides are (2560, 4), not (4, 1024)"),
        (lambda x: fi.unpack(x.reshape(-1)[1:], ROWS), fi.FastIndexError, "takes 655360 bytes"),
        (lambda x: fi.unpack(x.reshape(-1).astype("f8"), ROWS), fi.ArgumentTypeError, "got dtype float64"),
        (lambda x: fi.unpack(x.reshape(-1), ROWS, out=VALUES), fi.FastIndexError, "out is for arrays in memory"),
        (lambda x: fi.relayout(x.reshape(-1), ROWS, "f32[640,256]"), fi.FastIndexError, "a relayout keeps the array"),
        (lambda x: fi.relayout(x.reshape(-1), ROWS, TILED, out=VALUES), fi.FastIndexError, "out is for arrays"),
        (lambda _: fi.dask.pack(VALUES, TILED), fi.ArgumentTypeError, "fastindex.dask takes Dask arrays, got ndarray"),
        (lambda _: fi.dask.unpack(VALUES, ROWS), fi.ArgumentTypeError, "takes Dask arrays"),
        (lambda _: fi.dask.relayout(VALUES, ROWS, TILED), fi.ArgumentTypeError, "takes Dask arrays"),
        (lambda _: fi.dask.rearrange(VALUES, "a b -> b a"), fi.ArgumentTypeError, "takes Dask arrays"),
    ],
)
def test_bad_input_raises_at_once(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as found:
        call(da.from_array(VALUES, chunks=100))
    assert text in str(found.value)


# Both layouts at once


@pytest.mark.parametrize("seed", strategies.rotating_seeds(300))
def test_boxes_of_both_layouts(seed: int) -> None:
    """Where there are such, their segments are of the same elements."""
    texts = [str(shape) for shape in strategies.random_pair(seed)]
    source, destination = map(fi.Shape.parse, texts)
    segments = cut(source, random.Random(seed).randint(1, source.nbytes + 1), seed % 3 * 64)
    both = cut_together(segments, destination)
    if both is None:
        return
    assert both[0].edges == both[1].edges
    for one in both:
        lengths = [one.box_shape(place).slot_count for place in one.places()]
        assert sum(lengths) == one.shape.slot_count
        cells, begin = reference.slots(reference.parse(str(one.shape))), 0
        for place, length in zip(one.places(), lengths, strict=True):
            at = dict(zip(one.dimensions, place, strict=True))
            held = {cell for cell in cells[begin : begin + length] if cell is not None}
            box = [along[at.get(d, 0) :][:2] for d, along in enumerate(one.edges)]
            assert len(held) == math.prod(b - a for a, b in box)
            assert all(a <= i < b for cell in held for i, (a, b) in zip(cell, box, strict=True))
            begin += length


@pytest.mark.parametrize(
    ("text", "chunks"),
    [("f32[64,128]{1,0:T(8,128)}", (32, 128)), ("f32[64,128]", (8, 128)), ("f32[64,128]{0,1}", (64, 16))],
)
def test_one_segment_for_each_chunk_is_one_task(text: str, chunks: tuple[int, int]) -> None:
    """The blocks of the producer are never sent or kept: Dask fuses it with the packing."""
    values = da.from_array(np.arange(64 * 128, dtype="f4").reshape(64, 128), chunks=chunks) + 1
    packed = fi.dask.pack(values, text)
    assert packed.npartitions == values.npartitions
    (optimized,) = dask.optimize(packed)
    tasks = [task for task in dict(optimized.__dask_graph__()).values() if type(task).__name__ != "Alias"]
    assert len(tasks) == packed.npartitions
    assert packed.compute().tobytes() == fi.pack(values.compute(), text).tobytes()


@pytest.mark.parametrize("chunks", [0, (0,), -5, "x", ((1, 2),)])
def test_chunks_that_are_none(chunks: Any) -> None:
    text, buffer = "f32[64,128]{1,0:T(8,128)}", da.zeros(8192, dtype="f4")
    for call in (
        lambda: fi.dask.pack(da.zeros((64, 128), dtype="f4"), text, chunks=chunks),
        lambda: fi.dask.relayout(buffer, text, "f32[64,128]", chunks=chunks),
    ):
        with pytest.raises(fi.FastIndexError, match="chunks="):
            call()
    with pytest.raises(fi.FastIndexError, match="chunks="):
        fi.dask.unpack(buffer, text, chunks=0)


CASTS = [("f32", "bf16"), ("f32", "f16"), ("u8", "f32"), ("bf16", "f64"), ("s32", "f32"), ("s8", "s4"), ("f64", "f32")]
LAYOUTS = ["{1,0:T(8,128)}", "{0,1:T(2,4)}", "{1,0}", "{0,1}"]


@pytest.mark.parametrize("chunk_size", ["128MiB", "64B"], ids=["whole rows", "pieces of rows"])
@pytest.mark.parametrize(("found", "wanted"), CASTS)
@pytest.mark.parametrize("layout", LAYOUTS[::2])
def test_casts(found: str, wanted: str, layout: str, chunk_size: str) -> None:
    """Elements are those of NumPy's and ml_dtypes' `astype`, wherever they are cast."""
    rng = random.Random(f"{found} {wanted} {layout}")
    sizes = (37, 150)
    kinds = fi.ElementType.of(found), fi.ElementType.of(wanted)
    values = np.random.default_rng(rng.randrange(99)).integers(0, 8, sizes).astype(kinds[0].numpy_dtype)
    if kinds[0].is_floating:
        values = (values * np.random.default_rng(3).standard_normal(sizes)).astype(kinds[0].numpy_dtype)
    cast = values.astype(kinds[1].numpy_dtype)
    packed_type = "E(4)" if wanted == "s4" and "T" in layout else ""
    target = f"{wanted}[37,150]{layout[:-1]}{packed_type}}}"
    rule = {"casting": "unsafe"} if (found, wanted) == ("s8", "s4") else {}
    with dask.config.set({"array.chunk-size": chunk_size}):
        lazy = da.from_array(values, chunks=random_chunks(rng, sizes))
        packed = fi.pack(lazy, target, **rule)
        whole = fi.pack(cast, target)
        assert packed.dtype == whole.dtype
        assert np.array_equal(at_once(packed)[0].view(np.uint8), whole.view(np.uint8))
        for source in LAYOUTS[1::2]:
            source = f"{found}[37,150]{source}"
            buffer = fi.pack(values, source)
            pieces = da.from_array(buffer, chunks=random_chunks(rng, buffer.shape))
            back = fi.unpack(pieces, source, dtype=wanted, **rule)
            assert back.dtype == cast.dtype
            assert np.array_equal(at_once(back)[0].view(np.uint8), cast.view(np.uint8))
            moved = at_once(fi.relayout(pieces, source, target, **rule))[0]
            assert np.array_equal(moved.view(np.uint8), whole.view(np.uint8))


def test_casts_of_arrays_in_memory_order() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4) * 100.5 - 300
    lazy = da.from_array(values, chunks=(2, 3))
    found = fi.unpack(lazy, "f32[3,4]{1,0}", dtype="s8", casting="unsafe")
    expected = np.clip(np.trunc(values), -128, 127).astype(np.int8)
    assert np.array_equal(at_once(found)[0], expected)
    turned = fi.relayout(lazy, "f32[3,4]{1,0}", "s8[3,4]{0,1}", as_array=True, casting="unsafe")
    assert turned.dtype == np.int8
    assert np.array_equal(at_once(turned)[0], expected.T)
    for call in (
        lambda: fi.pack(lazy, "s8[3,4]"),
        lambda: fi.unpack(lazy, "f32[3,4]{1,0}", dtype="s8"),
        lambda: fi.relayout(lazy, "f32[3,4]{1,0}", "s8[3,4]{0,1}"),
    ):
        with pytest.raises(fi.ArgumentTypeError, match="f32 is not cast to s8"):
            call()
