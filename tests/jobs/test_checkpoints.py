"""OCDBT checkpoints as TensorStore writes them, packed by the file jobs.

Tests of: jobs.reading.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from fastindex.jobs.layout_jobs import pack_file
from fastindex.jobs.reading import checkpoint_of
from fastindex.terminal import NoProgress

MEMORY = 64 << 30


def test_without_tensorstore_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "manifest.ocdbt").touch()
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(fi.UnsupportedError, match=r"pip install 'fastindex\[tensorstore\]'"):
        pack_file(str(tmp_path / "w"), str(tmp_path / "b"), fi.Shape.parse("f32[3]"), NoProgress(), MEMORY)


def test_a_file_beside_the_arrays_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "manifest.ocdbt").touch()
    np.save(tmp_path / "a.npy", np.arange(3, dtype=np.float32))
    pack_file(str(tmp_path / "a.npy"), str(tmp_path / "b"), fi.Shape.parse("f32[3]"), NoProgress(), MEMORY)
    assert (tmp_path / "b").read_bytes() == np.arange(3, dtype=np.float32).tobytes()


def checkpoint(tensorstore: Any, folder: Path, driver: str, name: str, array: np.ndarray) -> str:
    base = {"driver": "file", "path": f"{folder}/"}
    spec = {"driver": driver, "kvstore": {"driver": "ocdbt", "base": base, "path": name and f"{name}/"}}
    chunks = tensorstore.ChunkLayout(chunk_shape=[min(size, 40) for size in array.shape])
    made = tensorstore.open(spec, create=True, dtype=array.dtype, shape=array.shape, chunk_layout=chunks).result()
    made.write(array).result()
    return str(folder / name)


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
@pytest.mark.parametrize(("dtype", "name"), [(np.float32, "params.layer0/w"), (ml_dtypes.bfloat16, "")])
def test_pack_from_a_checkpoint(tmp_path: Path, driver: str, dtype: type, name: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    array = np.random.default_rng(0).standard_normal((100, 300)).astype(dtype)
    path = checkpoint(tensorstore, tmp_path / "saved", driver, name, array)
    assert checkpoint_of(path) == (str(tmp_path / "saved"), name)
    shape = fi.Shape.parse(f"{fi.ElementType.from_numpy_dtype(array.dtype)}[100,300]{{1,0:T(8,128)}}")
    pack_file(path, str(tmp_path / "b"), shape, NoProgress(), MEMORY)
    assert (tmp_path / "b").read_bytes() == fi.pack(array, shape).tobytes()


def test_what_cannot_be(tmp_path: Path) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    path = checkpoint(tensorstore, tmp_path / "saved", "zarr3", "w", np.zeros((3, 4), np.float32))
    for source, text, error, match in (
        (path, "f32[4,3]", fi.FastIndexError, r"has the dimensions \(3, 4\)"),
        (path, "f64[3,4]", fi.ArgumentTypeError, "holds float32"),
        (path + "x", "f32[3,4]", fi.FastIndexError, "holds no array 'wx'"),
        (str(tmp_path / "saved"), "f32[3,4]", fi.FastIndexError, "holds no array ''"),
    ):
        with pytest.raises(error, match=match):
            pack_file(source, str(tmp_path / "b"), fi.Shape.parse(text), NoProgress(), MEMORY)
    assert not (tmp_path / "b").exists()
