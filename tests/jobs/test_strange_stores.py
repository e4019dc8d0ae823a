"""Untrusted Zarr stores: an error that says what is wrong, nothing run, nothing read outside, and no flood.

Tests of: jobs.zarr_stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.jobs.layout_jobs import pack_file, unpack_file
from fastindex.jobs.zarr_arrays import stored_zarr_array
from fastindex.jobs.zarr_stores import METADATA, _store_class, open_stored
from fastindex.terminal import NoProgress
from tests.cases import strategies
from tests.cases.damage import damaged_metadata

zarr = pytest.importorskip("zarr", reason="zarr is not installed; pip install 'fastindex[zarr]'")

SHAPE = fi.Shape.parse("u8[4,6]{1,0:T(2,2)}")
VALUES = np.arange(24, dtype=np.uint8).reshape(4, 6)


@pytest.fixture(name="store")
def make_store(tmp_path: Path) -> Path:
    """A store of four chunks without compression, beside a secret."""
    (tmp_path / "secret").write_bytes(b"secretsecret")
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=(4, 6), chunks=(2, 3), dtype=np.uint8, compressors=None)
    array[...] = VALUES
    return tmp_path / "a.zarr"


def fields_of(store: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((store / METADATA).read_text())
    return fields


def refused(store: Path, match: str, shape: fi.Shape = SHAPE) -> str:
    """Pack a store; return what the error says. Nothing else may have changed."""
    before = sorted(store.parent.iterdir())
    with pytest.raises(fi.FastIndexError, match=match) as error:
        pack_file(str(store), str(store.parent / "b.bin"), shape, NoProgress(), 64 << 30)
    assert sorted(store.parent.iterdir()) == before
    return str(error.value)


# Outside the store


@pytest.mark.parametrize("key", ["../secret", "c/../../secret", "/etc/passwd", "c/0/../../../secret", ".."])
def test_keys_stay_inside(store: Path, key: str) -> None:
    from zarr.core.buffer import default_buffer_prototype

    opened = _store_class()(str(store))
    for call in (
        lambda: opened.get(key, default_buffer_prototype()),
        lambda: opened.get_partial_values(default_buffer_prototype(), [(key, None)]),
    ):
        with pytest.raises(fi.FastIndexError, match="leads outside the store"):
            asyncio.run(call())


@pytest.mark.parametrize("place", ["zarr.json", "c", "c/0", "c/1/1"])
def test_links_stay_inside(store: Path, place: str) -> None:
    outside = store.parent / "outside"
    (store / place).rename(outside)
    (store / place).symlink_to(outside)
    refused(store, "leads outside the store")
    (store / place).unlink()
    (store / place).symlink_to("/dev/zero")
    refused(store, "leads outside the store|not an array of Zarr 3")


def test_links_inside_are_followed(store: Path) -> None:
    (store / "c" / "1" / "1").rename(store / "chunk")
    (store / "c" / "1" / "1").symlink_to(store / "chunk")
    (store.parent / "link.zarr").symlink_to(store)
    pack_file(str(store.parent / "link.zarr"), str(store.parent / "b.bin"), SHAPE, NoProgress(), 64 << 30)
    assert (store.parent / "b.bin").read_bytes() == fi.pack(VALUES, SHAPE).tobytes()


def test_what_is_not_a_file(store: Path) -> None:
    """Reading from a pipe without a writer never returns."""
    chunk = store / "c" / "0" / "1"
    chunk.unlink()
    os.mkfifo(chunk)
    refused(store, "c/0/1 in .* is not a regular file")
    chunk.unlink()
    chunk.mkdir()
    refused(store, "c/0/1 in .* is not a regular file")


# What is run


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("run-by-a-pickle",)


@pytest.mark.parametrize(
    "codec",
    [
        "pickle",
        "numcodecs.pickle",
        "numcodecs.Pickle",
        "numcodecs.json2",
        "os.system",
        "fastindex.__main__",
        "../pickle",
        "",
    ],
)
def test_codecs_that_would_run_something(store: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.parent)
    for path in (store / "c").rglob("*"):
        if path.is_file():
            path.write_bytes(pickle.dumps(Bomb()))
    fields = fields_of(store)
    for codecs in (
        [*fields["codecs"], {"name": codec}],
        [{"name": codec, "configuration": {"id": "pickle", "protocol": 4}}],
        [{"name": "bytes"}, {"name": codec, "configuration": {"id": codec}}],
        [codec],
    ):
        (store / METADATA).write_text(json.dumps({**fields, "codecs": codecs}))
        refused(store, "cannot be read|not an array")
    assert not Path("run-by-a-pickle").exists()


def test_stores_of_zarr_2_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have filters that unpickle."""
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "a.zarr"
    store.mkdir()
    fields = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "|O", "order": "C", "fill_value": None}
    filters = {"compressor": None, "filters": [{"id": "pickle", "protocol": 5}]}
    (store / ".zarray").write_text(json.dumps({**fields, **filters}))
    (store / "0").write_bytes(pickle.dumps(Bomb()))
    refused(store, "holds no zarr.json, .* it is an array of Zarr 2; copy it")
    (store / METADATA).write_text(json.dumps({**fields, **filters}))
    refused(store, "not an array of Zarr 3")
    assert not Path("run-by-a-pickle").exists()


# Too much


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def test_metadata_of_the_wrong_kind(store: Path) -> None:
    fields = fields_of(store)

    def changed(**changes: Any) -> str:
        return json.dumps({**fields, **changes})

    def grid(sizes: Any, name: str = "regular") -> dict[str, Any]:
        return {"name": name, "configuration": {"chunk_shape": sizes}}

    sharded = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [1, 1], "codecs": [{"name": "bytes"}], "index_codecs": [{"name": "bytes"}]},
    }
    for text in (
        "", "[]", "1", "null", '"a"', "nan", "{", nested(500), nested(100_000), "[" * 100_000, "1" * 100_000,
        json.dumps(fields)[:-1] + ',"attributes":' + nested(20_000) + "}",
        changed(shape=[-4, 6]), changed(shape="46"), changed(shape=[4.0, 6.0]), changed(shape=None), changed(shape=4),
        changed(shape=[2**62, 2**62]), changed(shape=[1] * 10_000), changed(shape=[True, 6]),
        changed(chunk_grid=grid([0, 3])), changed(chunk_grid=grid([0, 0])), changed(chunk_grid=grid([-1, 3])),
        changed(chunk_grid=grid([2])), changed(chunk_grid=grid([2, 3, 4])), changed(chunk_grid=grid("23")),
        changed(chunk_grid=grid([2, 3], "rectilinear")), changed(chunk_grid=None), changed(chunk_grid={}),
        changed(chunk_grid=grid([2**40, 2**40])), changed(chunk_grid=grid([10**30, 3])),
        changed(data_type="object"), changed(data_type={"name": "pickle"}), changed(data_type=7), changed(data_type=[]),
        changed(data_type="bfloat16", fill_value={}), changed(data_type="bfloat16", fill_value="0xzz"),
        changed(data_type="bfloat16", fill_value=10**400), changed(data_type="int4", fill_value=[1]),
        changed(codecs=None), changed(codecs=[]), changed(codecs={}), changed(codecs=[{}]), changed(codecs=[[]]),
        changed(codecs=[sharded] * 3), changed(storage_transformers=[{"name": "pickle"}]), changed(zarr_format=2),
        changed(chunk_grid=grid([2**20, 2**20]), codecs=[sharded]),
        changed(node_type="group"), changed(codecs=[{"name": "x" * 1_000_000}]),
        changed(chunk_key_encoding={"name": "default", "configuration": {"separator": "../"}}),
    ):  # fmt: skip
        (store / METADATA).write_text(text)
        assert len(refused(store, ".")) < 2000, text[:200]


@pytest.mark.parametrize("first", strategies.rotating_seeds(9))
def test_damaged_metadata(store: Path, first: int) -> None:
    fields = fields_of(store)
    fields["attributes"] = {"fastindex_shape": str(SHAPE)}
    for seed in range(40 * first, 40 * first + 40):
        content = damaged_metadata(random.Random(seed), fields)
        (store / METADATA).write_bytes(content)
        target = store.parent / "b.bin"
        for job in (pack_file, unpack_file):
            with contextlib.suppress(fi.FastIndexError):
                job(str(store), str(target), SHAPE, NoProgress(), 64 << 30)
                target.unlink()
        assert sorted(os.listdir(store.parent)) == ["a.zarr", "secret"]


def test_files_that_are_too_long(store: Path) -> None:
    """Sparse ones take no room in an archive."""
    os.truncate(store / "c" / "1" / "0", 40 << 30)
    refused(store, "c/1/0 in .* has 42949672960 bytes; a valid file has at most")
    os.truncate(store / METADATA, 40 << 30)
    refused(store, "zarr.json in .* has .* bytes; a valid file has at most 4194304")


def test_shards_whose_index_lies(tmp_path: Path) -> None:
    """A chunk beyond the file, or longer than the disk: an error, or other values, and no flood."""
    google_crc32c = pytest.importorskip("google_crc32c")
    store = tmp_path / "a.zarr"
    array = zarr.create_array(str(store), shape=(4, 6), chunks=(2, 3), shards=(4, 6), dtype=np.uint8, compressors=None)
    array[...] = VALUES
    shard = store / "c" / "0" / "0"
    content = shard.read_bytes()
    refusals = 0
    for offset, length in ((1 << 40, 6), (0, 1 << 40), (2**63, 2**63), (3, 0), (0, 7), (2**64 - 1, 3)):
        index = np.frombuffer(content[-68:-4], "<u8").copy()
        index[:2] = offset, length
        checked = index.tobytes()
        shard.write_bytes(content[:-68] + checked + google_crc32c.value(checked).to_bytes(4, "little"))
        for box in ((range(4), range(6)), (range(1), range(1))):
            try:
                stored_zarr_array(str(store), SHAPE).read(box, np.empty(len(box[0]) * len(box[1]), np.uint8))
            except fi.FastIndexError:
                refusals += 1
    assert refusals > 3


def test_what_is_kept_of_small_chunks_counts(tmp_path: Path) -> None:
    """It is far more than the chunks themselves: boxes of a limited job have fewer of them."""
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=(60, 50), chunks=(1, 1), dtype=np.uint8)
    array[:10] = 1
    stored = stored_zarr_array(str(tmp_path / "a.zarr"), fi.Shape.parse("u8[60,50]"))
    box, into = (range(60), range(50)), np.empty(3000, np.uint8)
    with stored.reading():
        stored.read((range(2), range(2)), into[:4])
        tracemalloc.start()
        stored.read(box, into)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert 3000 * 100 < peak < stored.costs((60, 50))[0]


def test_opening_says_what_is_there(store: Path) -> None:
    array, real_type = open_stored(str(store))
    assert (array.shape, array.chunks, real_type) == ((4, 6), (2, 3), None)
