"""GGUF checkpoints, written by gguf-py and compared with what its reader finds.

Tests of: weights.gguf_files.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fastindex as fi
from fastindex.weights.gguf_files import read_gguf
from tests.cases import strategies
from tests.commands import run_command

gguf = pytest.importorskip("gguf")

BLOCKS = ("Q4_0", "Q8_0", "Q4_1", "Q5_0")


def model(path: Path, alignment: int | None = None) -> str:
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(str(path), "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_array("tokenizer.ggml.tokens", ["a", "ü", "", "c" * 300])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    writer.add_string("general.name", "tiny")
    writer.add_bool("flag", True)
    for name in BLOCKS:
        values = rng.standard_normal((6, 256)).astype(np.float32)
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(f"blk.{name}", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("w", rng.standard_normal((5, 7)).astype(np.float32))
    writer.add_tensor("half", rng.standard_normal((3, 2, 4)).astype(np.float16))
    writer.add_tensor("bytes", rng.integers(-99, 99, 13).astype(np.int8))
    brain = rng.standard_normal((4, 6)).astype(ml_dtypes.bfloat16)
    writer.add_tensor("brain", brain.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.mark.parametrize("alignment", [None, 8, 256])
def test_read_as_its_own_reader(tmp_path: Path, alignment: int | None) -> None:
    path = model(tmp_path / "x.gguf", alignment)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    packed = fi.weights.pack_checkpoint(
        path, tmp_path / "out", [{"names": "w", "transpose": "a b -> b a", "dtype": "bf16"}]
    )
    assert set(packed) == set(theirs)
    for name, tensor in theirs.items():
        if name == "w":
            expected = np.ascontiguousarray(tensor.data.T).astype(ml_dtypes.bfloat16)
        elif name == "brain":
            expected = tensor.data.view(ml_dtypes.bfloat16)
        else:
            expected = tensor.data
        assert packed.shapes[name].dimensions == expected.shape
        assert packed[name].dtype == expected.dtype
        assert packed[name].tobytes() == expected.tobytes()
    packed.verify()


def test_there_and_back(tmp_path: Path) -> None:
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    path, back = model(tmp_path / "x.gguf"), str(tmp_path / "back.safetensors")
    for command in (("pack", path, str(tmp_path / "out"), "--tpu", "v5e"), ("unpack", str(tmp_path / "out"), back)):
        result = run_command(command)
        assert result.exit_code == 0, result.output
    found = safetensors_numpy.load_file(back)
    for tensor in gguf.GGUFReader(path).tensors:
        assert found[tensor.name].tobytes() == tensor.data.tobytes()
    # What has no type in the other format is its bytes there.
    assert found["blk.Q4_0"].dtype == np.uint8
    assert found["blk.Q4_0"].shape == (6, 256 // 32 * 18)


@pytest.mark.parametrize("key", ["dtype", "layout", "transpose"])
def test_blocks_are_not_converted(tmp_path: Path, key: str) -> None:
    path = model(tmp_path / "x.gguf")
    rule = {"names": "blk.Q4_0", key: {"dtype": "bf16", "layout": "tpu", "transpose": "a b -> b a"}[key]}
    with pytest.raises(
        fi.UnsupportedError, match=f"'blk.Q4_0' is Q4_0, whose elements are not moved one by one.* has a {key}"
    ):
        fi.weights.pack_checkpoint(path, tmp_path / "out", [rule])


def test_without_gguf_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path / "x.gguf")
    monkeypatch.setitem(sys.modules, "gguf.constants", None)
    with pytest.raises(fi.UnsupportedError, match=r"pip install 'fastindex\[gguf\]'"):
        read_gguf(path)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def tensor(name: str, sizes: tuple[int, ...] = (8,), kind: int = 0, start: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, start)


def file(path: Path, keys: list[bytes], tensors: list[bytes], nbytes: int = 32, **changed: Any) -> str:
    magic, version = changed.get("magic", b"GGUF"), changed.get("version", 3)
    counts = changed.get("counts", (len(tensors), len(keys)))
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    path.write_bytes(header + bytes(-len(header) % 32 + nbytes))
    return str(path)


@pytest.mark.parametrize(
    ("keys", "tensors", "changed", "reason"),
    [
        ([], [tensor("a"), tensor("a", start=32)], {"nbytes": 64}, "'a' twice"),
        ([], [tensor("a"), tensor("b")], {}, "'b' overlap"),
        ([], [tensor("a", (16,)), tensor("b", start=32)], {"nbytes": 64}, "'b' overlap"),
        ([], [tensor("a"), tensor("b", start=128)], {"nbytes": 160}, "leave a gap before them"),
        ([], [tensor("a", start=4)], {}, "no multiple of 32"),
        ([], [tensor("a")], {"nbytes": 28}, "tensors end at"),
        ([], [tensor("a")], {"nbytes": 64}, "tensors end at"),
        ([], [tensor("a", (1,) * 5)], {}, "5 dimensions"),
        ([], [tensor("a", (1 << 40, 1 << 40))], {}, "has the dimensions"),
        ([], [tensor("a", (31,), kind=2)], {}, "Q4_0 has blocks of 32"),
        ([], [tensor("a", (), kind=2)], {}, "Q4_0 has blocks of 32"),
        ([], [tensor("a", kind=4)], {}, "type 4, which the installed gguf-py does not know"),
        ([], [tensor("a")], {"magic": b"GGML"}, "does not begin with GGUF"),
        ([], [tensor("a")], {"version": 1}, "it has 1"),
        ([], [tensor("a")], {"version": 3 << 24}, "little-endian"),
        ([], [], {"counts": (1 << 62, 0)}, "its header wants|'' twice"),
        ([], [], {"counts": (0, 1 << 62)}, "its header wants|'' twice"),
        ([text("k") + struct.pack("<IIQ", 9, 0, 1 << 62)], [], {}, "its header wants"),
        ([text("k") + struct.pack("<IIQ", 9, 8, 1 << 62)], [], {}, "its header wants"),
        ([text("k") + struct.pack("<IIQ", 9, 9, 1)], [], {}, "a list has values of kind 9"),
        ([text("k") + struct.pack("<I", 77)], [], {}, "a value has kind 77"),
        ([text("k") + struct.pack("<IB", 7, 1)] * 2, [], {}, "'k' twice"),
        ([text("general.alignment") + struct.pack("<II", 4, 48)], [], {}, "power of two"),
        ([text("general.alignment") + struct.pack("<II", 4, 0)], [], {}, "power of two"),
        ([text("split.count") + struct.pack("<IH", 2, 3)], [], {}, "one of 3 parts"),
        ([struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IB", 7, 1)], [], {}, "not UTF-8"),
    ],
)
def test_strange_headers(
    tmp_path: Path, keys: list[bytes], tensors: list[bytes], changed: dict[str, Any], reason: str
) -> None:
    path = file(tmp_path / "x.gguf", keys, tensors, **changed)
    with pytest.raises(fi.FastIndexError, match=reason):
        fi.weights.pack_checkpoint(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", list(strategies.rotating(range(strategies.FIRST_SEED, strategies.FIRST_SEED + 300))))
def test_damaged_headers(tmp_path: Path, seed: int) -> None:
    """Bytes changed, lost and added: refused with a reason, or tensors within the file and apart."""
    rng = random.Random(seed)
    keys = [text("k") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc"), text("u") + struct.pack("<II", 4, 7)]
    path = tmp_path / "x.gguf"
    file(path, keys, [tensor("a"), tensor("b", (32, 2), 2, 32)], 68)
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(min(len(content), 200))
        change = rng.choice(("set", "set", "drop", "add"))
        if change == "set":
            content[at] = rng.randrange(256)
        elif change == "drop":
            del content[at : at + rng.choice((1, 4, 8, 32))]
        else:
            content[at:at] = rng.choice((b"\0", bytes(8), b"\xff" * 8, bytes(32)))
    path.write_bytes(content)
    try:
        found = read_gguf(str(path)).tensors
    except fi.FastIndexError:
        return
    at = 0
    for one in found.values():
        assert at <= one.start <= one.start + one.shape.nbytes <= len(content)
        at = one.start + one.shape.nbytes


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_are_no_codes_and_how_to_take_them_apart(tmp_path: Path, kind: str) -> None:
    path = model(tmp_path / "x.gguf")
    for own in ({}, {"shape": [6, 256]}):
        rule = {"names": f"blk.{kind}", "format": {"from": "gguf_body", "to": "mlx", "type": kind.lower(), **own}}
        with pytest.raises(fi.FastIndexError, match=f"blocks of {kind}, .* fastindex convert separates them"):
            fi.weights.pack_checkpoint(path, tmp_path / "out", [rule])
    blocks = next(tensor.data for tensor in gguf.GGUFReader(path).tensors if tensor.name == f"blk.{kind}")
    others = {"names": "*", "outputs": []}
    parts = {"names": f"blk.{kind}", "outputs": [{"name": part, "field": part} for part in ("codes", "scale")]}
    fi.weights.convert_checkpoint(path, tmp_path / "parts", [parts, others])
    safetensors_numpy = pytest.importorskip("safetensors.numpy")
    found = safetensors_numpy.load_file(str(tmp_path / "parts" / "model.safetensors"))
    body = found["codes"].reshape(6 * 8, 32 if kind == "Q8_0" else 16)
    # Its codes and scales are the values that gguf-py restores.
    if kind in ("Q4_0", "Q8_0"):
        values = np.empty((6, 256), np.int8)
        if kind == "Q8_0":
            fi.weights.repack(body, "gguf_body", "plain", shape=values.shape, bits=8, type="q8_0", out=values)
        else:
            values[:] = fi.weights.repack(body, "gguf_body", "plain", shape=values.shape).astype(np.int8) - 8
        scales = found["scale"].reshape(6 * 8, 1).astype(np.float32)
        restored = (values.reshape(-1, 32) * scales).reshape(6, 256)
        assert np.array_equal(restored, gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]))
