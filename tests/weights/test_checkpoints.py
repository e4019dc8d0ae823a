"""Safetensors checkpoints laid out for a device, and back: written and read by the format's own library.

Tests of: weights.safetensors_files, weights.rules, weights.checkpoints,
weights.manifests, weights.packing, cli.moving.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import fastindex as fi
from fastindex.show.tpu_layouts import tpu_layout
from fastindex.weights.repack_jobs import Formats
from fastindex.weights.safetensors_files import ELEMENT_TYPES, packed_shape, read_header, tensors_of
from tests.cases import strategies
from tests.cases.hangs import HANG_SECONDS
from tests.commands import run_command

safetensors_numpy = pytest.importorskip("safetensors.numpy")

Tensors = dict[str, NDArray[Any]]
LAYERS = 11
RULES = [
    {
        "names": "layers.*.q.weight",
        "stack": "layers.q",
        "transpose": "o i -> i o",
        "dtype": "bf16",
        "layout": "{2,1,0:T(8,128)(2,1)}",
    },
    {"names": "embed*", "layout": "tpu"},
    {"names": "wide", "transpose": "a b c -> c a b", "layout": "{0,1,2:T(2,4)}"},
]


def model() -> Tensors:
    rng = np.random.default_rng(1)
    found: Tensors = {
        "embed.weight": rng.standard_normal((300, 128)).astype(np.float32),
        "norm": rng.standard_normal(77).astype(np.float16),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(3.5),
        "wide": rng.integers(-99, 99, (5, 6, 7)).astype(np.int16),
        "mask": rng.integers(0, 2, (9, 9)).astype(bool),
        "b": rng.standard_normal((5, 6)).astype(ml_dtypes.bfloat16),
    }
    for layer in range(LAYERS):
        found[f"layers.{layer}.q.weight"] = rng.standard_normal((64, 200)).astype(np.float32)
    return found


def saved(folder: Path, tensors: Tensors, name: str = "model.safetensors") -> str:
    path = str(folder / name)
    safetensors_numpy.save_file(tensors, path)
    return path


def check_equal(path: str, tensors: Tensors) -> None:
    """The tensors of a file, read by the format's library; those of the stack are cast."""
    found = safetensors_numpy.load_file(path)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        expected = tensor.astype(ml_dtypes.bfloat16) if name.startswith("layers.") else tensor
        assert found[name].dtype == expected.dtype
        assert found[name].shape == expected.shape
        assert found[name].tobytes() == np.ascontiguousarray(expected).tobytes()


def test_there_and_back(tmp_path: Path) -> None:
    tensors = model()
    packed = fi.weights.pack_checkpoint(saved(tmp_path, tensors), tmp_path / "out", RULES)
    packed.verify()
    assert set(packed) == {name for name in tensors if not name.startswith("layers.")} | {"layers.q"}
    assert str(packed.shapes["layers.q"]) == f"bf16[{LAYERS},200,64]{{2,1,0:T(8,128)(2,1)}}"
    stacked = fi.unpack(packed["layers.q"], packed.shapes["layers.q"])
    for layer in range(LAYERS):
        assert np.array_equal(stacked[layer], tensors[f"layers.{layer}.q.weight"].T.astype(ml_dtypes.bfloat16))
    assert packed.shapes["embed.weight"].layout == tpu_layout(fi.ElementType.of("f32"), (300, 128))
    wide = fi.unpack(packed["wide"], packed.shapes["wide"])
    assert np.array_equal(wide, tensors["wide"].transpose(2, 0, 1))
    assert fi.unpack(packed["scalar"], packed.shapes["scalar"]) == 3.5
    assert packed["empty"].size == 0
    assert not packed["norm"].flags.writeable
    packed.unpack(tmp_path / "back.safetensors")
    check_equal(str(tmp_path / "back.safetensors"), tensors)
    assert sorted(os.listdir(tmp_path / "out")) == [*(f"{i:05}.bin" for i in range(8)), "manifest.json"]


def test_commands(tmp_path: Path) -> None:
    tensors, out = model(), str(tmp_path / "out")
    source, rules = saved(tmp_path, tensors), tmp_path / "rules.json"
    rules.write_text(json.dumps({"rules": RULES[:1]}))
    back = str(tmp_path / "back.safetensors")
    for command in (
        ("pack", source, out, "--rules", str(rules), "--tpu", "v5e"),
        ("verify", out),
        ("unpack", out, back),
    ):
        result = run_command(command)
        assert result.exit_code == 0, result.output
    check_equal(back, tensors)
    shapes = fi.weights.open_checkpoint(out).shapes
    assert shapes["b"].layout == tpu_layout(fi.ElementType.of("bf16"), (5, 6))
    with open(tmp_path / "out" / "00001.bin", "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\x01\x02\x03")
    damaged = run_command(("verify", out))
    assert damaged.exit_code == 1
    assert "00001.bin is not as it was written" in damaged.output
    (tmp_path / "model.bin").write_bytes(b"\0" * 8)
    for usage in (
        ("pack", str(tmp_path / "model.bin"), out),
        ("pack", source, out, "--shape", "f32[2]", "--tpu", "v5e"),
        ("pack", source, out, "--force"),
        ("unpack", out, str(tmp_path / "x.bin")),
        ("unpack", out, back, "--dtype", "f32"),
    ):
        assert run_command(usage).exit_code == 2
    rules.write_text("3")
    assert run_command(("pack", source, str(tmp_path / "o2"), "--rules", str(rules))).exit_code == 1


def test_rules_are_a_list_or_under_one_key(tmp_path: Path) -> None:
    """Both in a file and in Python."""
    source, file, found = saved(tmp_path, model()), tmp_path / "rules.json", []
    for number, rules in enumerate((RULES, {"rules": RULES})):
        packed = fi.weights.pack_checkpoint(source, tmp_path / f"python{number}", rules)
        file.write_text(json.dumps(rules))
        result = run_command(("pack", source, str(tmp_path / f"command{number}"), "--rules", str(file)))
        assert result.exit_code == 0, result.output
        found += [packed.shapes, fi.weights.open_checkpoint(tmp_path / f"command{number}").shapes]
    assert "layers.q" in found[0]
    assert all(shapes == found[0] for shapes in found)
    for wrong in ("names", {"names": "*"}, {"rules": RULES, "more": 1}, {"rules": {"names": "*"}}, 3, {}):
        with pytest.raises(fi.ArgumentTypeError, match="rules must be a list of mappings"):
            fi.weights.pack_checkpoint(source, tmp_path / "out", wrong)  # type: ignore[arg-type]
        file.write_text(json.dumps(wrong))
        result = run_command(("pack", source, str(tmp_path / "out"), "--rules", str(file)))
        assert result.exit_code == 1
        assert "rules must be a list of mappings" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("store", ["out", "out.zarr"])
def test_one_array(tmp_path: Path, store: str) -> None:
    """As NumPy has it: in Python, and as a file by a command."""
    if store == "out.zarr":
        pytest.importorskip("zarr")
    tensors, out = model(), str(tmp_path / store)
    packed = fi.weights.pack_checkpoint(saved(tmp_path, tensors), out, RULES)
    stacked = np.stack([tensors[f"layers.{n}.q.weight"].T for n in range(LAYERS)]).astype(ml_dtypes.bfloat16)
    logical = {name: tensors[name] for name in packed if name in tensors} | {"layers.q": stacked}
    logical["wide"] = tensors["wide"].transpose(2, 0, 1)
    assert set(logical) == set(packed)
    for name, expected in logical.items():
        found = packed.read(name)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == np.ascontiguousarray(expected).tobytes()
    with pytest.raises(KeyError):
        packed.read("layers.0.q.weight")
    path = str(tmp_path / "one.npy")
    for name, options in (("layers.q", []), ("layers.q", ["--dtype", "f32"]), ("wide", ["--force"]), ("empty", [])):
        result = run_command(("unpack", out, path, "--name", name, *options))
        assert result.exit_code == 0, result.output
        written = np.load(path)
        if written.dtype.kind == "V":
            written = written.view(ml_dtypes.bfloat16)
        assert written.dtype == (np.float32 if "--dtype" in options else logical[name].dtype)
        assert np.array_equal(written, logical[name])
    unknown = run_command(("unpack", out, path, "--name", "layers.0.q"))
    assert unknown.exit_code == 1
    assert "holds no array 'layers.0.q'; it has 8, such as 'layers.q'" in unknown.output
    for usage in (
        ("unpack", out, path),
        ("unpack", out, str(tmp_path / "one.safetensors"), "--name", "norm"),
        ("unpack", out, path, "--name", "norm", "--workers", "2"),
        ("unpack", path, str(tmp_path / "x"), "--name", "norm", "--shape", "f32[2]"),
    ):
        assert run_command(usage).exit_code == 2, usage
    assert not (tmp_path / "one.safetensors").exists()


def test_what_a_checkpoint_holds(tmp_path: Path) -> None:
    packed = fi.weights.pack_checkpoint(
        saved(tmp_path, model() | {"a\nb": np.zeros(3, np.int8)}), tmp_path / "out", RULES
    )
    result = run_command(("info", str(tmp_path / "out")))
    assert result.exit_code == 0, result.output
    first, *lines = result.output.splitlines()
    total = sum(shape.nbytes for shape in packed.shapes.values())
    assert first == f"9 arrays made of 19 tensors, {total / 1024:.1f} KiB"
    assert {line.split()[0]: line.split()[1] for line in lines} == {
        name.replace("a\nb", r"'a\nb'"): str(shape) for name, shape in packed.shapes.items()
    }
    found = json.loads(run_command(("info", str(tmp_path / "out") + os.sep, "--json")).output)
    assert {one["name"]: (one["text"], one["nbytes"]) for one in found["arrays"]} == {
        name: (str(shape), shape.nbytes) for name, shape in packed.shapes.items()
    }
    assert [one["tensors"] for one in found["arrays"] if one["name"] == "norm"] == [["norm"]]
    for folder, reason in (
        (str(tmp_path / "none") + os.sep, "No such file"),
        (str(tmp_path), "no complete checkpoint"),
    ):
        result = run_command(("info", folder))
        assert result.exit_code == 1
        assert reason in result.output


def test_names_of_what_is_written(tmp_path: Path) -> None:
    """An array that was meant, or a file that somebody else has: nothing of that name is written."""
    source = saved(tmp_path, model())
    packed = fi.weights.pack_checkpoint(source, tmp_path / "out")
    before = set(os.listdir(tmp_path))
    with pytest.raises(fi.FastIndexError, match=r"named \.safetensors, got 'norm'; read\('norm'\) gives that array"):
        packed.unpack("norm")
    with pytest.raises(fi.FastIndexError, match=r"read\(name\) gives one array"):
        packed.unpack(tmp_path / "back.npy")
    for name in ("new.safetensors", "new.safetensors.index.json", "new.gguf"):
        with pytest.raises(fi.FastIndexError, match="is the name of a file, and the output is a folder"):
            fi.weights.pack_checkpoint(source, tmp_path / name)
    assert set(os.listdir(tmp_path)) == before
    assert not os.path.exists("norm")


def test_shards_with_an_index(tmp_path: Path) -> None:
    tensors = model()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, those in parts.items():
        saved(tmp_path, {name: tensors[name] for name in those}, file)
    index = tmp_path / "model.safetensors.index.json"
    shards = {name: file for file, those in parts.items() for name in those}
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    fi.weights.pack_checkpoint(tmp_path, tmp_path / "out", RULES).unpack(tmp_path / "back.safetensors")
    check_equal(str(tmp_path / "back.safetensors"), tensors)
    for changed, reason in (
        ({**shards, "more": "a.safetensors"}, "lists 'more' in a.safetensors, which lacks it"),
        ({k: v for k, v in shards.items() if k != "norm"}, "leaves out 'norm' of"),
        ({**shards, "norm": "../a.safetensors"}, "not the name of a file in the same folder"),
        ({**shards, "norm": "/etc/passwd"}, "not the name of a file in the same folder"),
        ({**shards, "norm": 3}, "not the name of a file in the same folder"),
        ({**shards, "norm": "x" * 256}, "not the name of a file in the same folder"),
        ({**shards, "norm": "\u00e9" * 128}, "not the name of a file in the same folder"),
        ({**shards, "norm": "\ud800"}, "half a surrogate pair"),
        ({}, "has no weight_map"),
    ):
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(fi.FastIndexError, match=reason):
            tensors_of(str(index))


def written(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> str:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return str(path)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


@pytest.mark.parametrize(
    ("header", "size", "reason"),
    [
        ({"a": entry(), "b": entry(offsets=(4, 12))}, 12, "'b' overlap"),
        ({"a": entry(), "b": entry()}, 8, "'b' overlap"),
        ({"a": entry(), "b": entry(offsets=(12, 20))}, 20, "leave a gap of 4 bytes before them"),
        ({"a": entry(offsets=(4, 12))}, 12, "leave a gap of 4 bytes"),
        ({"a": entry()}, 9, "has 9 bytes of tensors; its header says 8"),
        ({"a": entry()}, 7, "has 7 bytes of tensors; its header says 8"),
        ({"a": entry(offsets=(8, 0))}, 8, "takes 8 bytes, got -8"),
        ({"a": entry(offsets=(0, 7))}, 7, "takes 8 bytes, got 7"),
        ({"a": entry(offsets=(0, 8.0))}, 8, "two numbers of bytes"),
        ({"a": entry(offsets=(0, 8, 9))}, 8, "two numbers of bytes"),
        ({"a": entry(offsets=(-8, 0))}, 8, "two numbers of bytes"),
        ({"a": entry(shape=(-2,))}, 8, "which is none"),
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[-0,8]}}', 8, "two numbers of bytes"),
        (b'{"a":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}', 0, "which is none"),
        ({"a": entry(shape=(True, 2))}, 8, "which is none"),
        ({"a": entry(shape="22")}, 8, "which is none"),
        ({"a": entry(shape=[1] * 3000)}, 8, "which is none"),
        ({"a": entry(shape=[1 << 62, 1 << 62])}, 8, "takes"),
        ({"a": entry(dtype="F5")}, 8, "these are read"),
        ({"a": entry(dtype="F4", shape=(3,), offsets=(0, 2))}, 2, "takes 12 bits, which are not whole bytes"),
        ({"a": entry(dtype="F6_E2M3", shape=(4,), offsets=(0, 4))}, 4, "takes 3 bytes, got 4"),
        ({"a": entry(dtype=["F32"])}, 8, "these are read"),
        ({"a": entry(extra=1)}, 8, "and nothing else"),
        ({"a": {"dtype": "F32"}}, 8, "and nothing else"),
        ({"a": []}, 0, "and nothing else"),
        ({"__metadata__": {"a": 1}}, 0, "maps texts to texts"),
        ({"__metadata__": []}, 0, "maps texts to texts"),
        ([], 0, "holds no JSON object, but list"),
        (b"{", 0, "holds no JSON"),
        (b"\xff\xfe", 0, "holds no JSON"),
        (b'{"a": NaN', 0, "holds no JSON"),
        (b"[" * 100_000, 0, "nests too deep"),
        (b'{"a":1,"a":2}', 0, "has 'a' twice"),
        (b'{"a":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]}}', 4, "has 'dtype' twice"),
    ],
)
def test_strange_headers(tmp_path: Path, header: Any, size: int, reason: str) -> None:
    path = written(tmp_path / "x.safetensors", header, bytes(size))
    with pytest.raises(fi.FastIndexError, match=reason):
        fi.weights.pack_checkpoint(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.in_turn(seconds=2)
def test_lengths_of_headers(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for content in (b"", b"\x01\0\0", (100).to_bytes(8, "little") + b"{}", (1 << 63).to_bytes(8, "little") + b"{}"):
        path.write_bytes(content)
        with pytest.raises(fi.FastIndexError, match="do not hold its header"):
            read_header(str(path))
    with open(path, "wb") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(100_000_100)
    with pytest.raises(fi.FastIndexError, match="a header of 100000001 bytes; the most is 100000000"):
        read_header(str(path))
    # The longest that the format allows, nearly all of it spaces.
    longest = json.dumps({"a": entry()}).encode()
    found = read_header(written(path, longest + b" " * (100_000_000 - len(longest)), bytes(8)))
    assert found.tensors["a"].start == 100_000_008
    # Spaces may follow the header, and a file may hold nothing.
    assert read_header(written(path, b"{}   ")).tensors == {}


@pytest.mark.parametrize("seed", list(strategies.rotating(range(strategies.FIRST_SEED, strategies.FIRST_SEED + 300))))
def test_damaged_headers(tmp_path: Path, seed: int) -> None:
    """Bytes changed, lost and added: read as the format's library reads it, or refused with a reason."""
    rng = random.Random(seed)
    path = tmp_path / "x.safetensors"
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.int8)}
    safetensors_numpy.save_file(tensors, path)
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(min(len(content), 150))
        change = rng.choice(("set", "drop", "add"))
        if change == "set":
            content[at] = rng.choice(b'{}[]",:0123456789\x00\xff') if rng.random() < 0.7 else rng.randrange(256)
        elif change == "drop":
            del content[at : at + rng.choice((1, 1, 8, 40))]
        else:
            content[at:at] = rng.choice((b"0", b'"', b"9" * 30, b",", b"[[", bytes(8)))
    path.write_bytes(content)
    try:
        found = read_header(str(path)).tensors
    except fi.FastIndexError:
        return
    # What is read lies within the file, without overlaps, and the library takes it for the same tensors.
    assert sum(one.shape.nbytes for one in found.values()) + min(one.start for one in found.values()) == len(content)
    theirs = safetensors_numpy.load_file(path)
    assert {name: one.shape.dimensions for name, one in found.items()} == {k: v.shape for k, v in theirs.items()}


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ([{"names": "x"}], "the rule for 'x' applies to no tensor"),
        ([{"names": "*"}, {"names": "embed*"}], "the rule for 'embed"),
        ([{"names": "norm", "dtype": "s8"}], "'norm', by the rule for 'norm': f16 is not cast to s8"),
        ([{"names": "norm", "dtype": "f17"}], "no element type is called"),
        ([{"names": "norm", "layout": "{1,0}"}], "minor_to_major must name every dimension"),
        ([{"names": "norm", "transpose": "a b -> b a"}], "names 2 dimensions, the tensor has 1"),
        ([{"names": "wide", "transpose": "a b c -> a (b c)"}], "only orders dimensions"),
        ([{"names": "wide", "transpose": "a b c -> a b"}], "only orders dimensions|'c'|axis|c"),
        ([{"names": "norm", "stack": "s"}], "stack needs names with one"),
        ([{"names": "*q*", "stack": "s"}], "stack needs names with one"),
        ([{"names": "layers.*", "stack": "s"}], "is not a number"),
        ([{"names": "layers.1*.q.weight", "stack": "s"}], "is not a number|without gaps"),
        ([{"names": "layers.*.q.weight", "stack": "norm"}], "two arrays would be called 'norm'"),
        ([{"name": "norm"}], "a rule has names"),
        ([{"names": "norm", "layout": 3}], "all of a rule are texts"),
        (["norm"], "a rule must be a mapping"),
    ],
)
def test_rules_that_do_not_fit(tmp_path: Path, rules: Any, reason: str) -> None:
    with pytest.raises(fi.FastIndexError, match=reason):
        fi.weights.pack_checkpoint(saved(tmp_path, model()), tmp_path / "out", rules)
    assert not (tmp_path / "out").exists()


def test_stacks_of_different_tensors(tmp_path: Path) -> None:
    path = saved(tmp_path, {"l.0": np.zeros(3, np.float32), "l.1": np.zeros(4, np.float32)})
    with pytest.raises(fi.FastIndexError, match="one type and size"):
        fi.weights.pack_checkpoint(path, tmp_path / "out", [{"names": "l.*", "stack": "l"}])
    path = saved(tmp_path, {"l.0": np.zeros(3, np.float32), "l.2": np.zeros(3, np.float32)})
    with pytest.raises(fi.FastIndexError, match="without gaps"):
        fi.weights.pack_checkpoint(path, tmp_path / "out", [{"names": "l.*", "stack": "l"}])
    with pytest.raises(fi.FastIndexError, match="are known, not those of 'v99'"):
        fi.weights.pack_checkpoint(path, tmp_path / "out", tpu="v99:2x2")


@pytest.mark.parametrize(
    ("tpu", "layout"),
    [
        *((tpu, "{1,0:T(1,128)}") for tpu in ("v4", "v5e", "v5p", "v6e", "tpu7x", "v5p:2x2x1", "tpu7x:2x2x1")),
        *((tpu, "{1,0:T(2,128)}") for tpu in ("v2", "v3", "v3:2x2")),
    ],
)
def test_the_default_layout_of_each_tpu(tmp_path: Path, tpu: str, layout: str) -> None:
    """By the names of generations, and those of topologies, as `try_layouts` takes them."""
    path = saved(tmp_path, {"a": np.zeros((1, 1000), np.float32)})
    assert str(fi.weights.pack_checkpoint(path, tmp_path / "out", tpu=tpu).shapes["a"].layout) == layout


def test_no_default_layout_where_the_compiler_fails(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": np.zeros((8, 128), np.uint8)})
    rules = [{"names": "a", "dtype": "u2"}]
    with pytest.raises(fi.UnsupportedError, match="the compiler of v4 fails on u2"):
        fi.weights.pack_checkpoint(path, tmp_path / "out", rules, tpu="v4", casting="unsafe")
    packed = fi.weights.pack_checkpoint(path, tmp_path / "out", rules, tpu="v6e", casting="unsafe")
    assert str(packed.shapes["a"]) == "u2[8,128]{1,0:T(16,128)(16,1)E(2)}"


def test_stacks_of_many_tensors(tmp_path: Path) -> None:
    """More than files that a process may have open."""
    resource = pytest.importorskip("resource")
    tensors = {f"l.{number}": np.full(3, number, np.int32) for number in range(600)}
    source, before = saved(tmp_path, tensors), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
    try:
        packed = fi.weights.pack_checkpoint(source, tmp_path / "out", [{"names": "l.*", "stack": "l"}])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert np.array_equal(packed.read("l"), np.stack(list(tensors.values())))


class StoppedError(Exception):
    """Ends a job from its progress."""


class StopAfter:
    """A progress that ends a job when enough bytes are written."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.total = self.seen = 0

    def start(self, total: int) -> None:
        self.total = total

    def advance(self, count: int) -> None:
        self.left -= count
        self.seen += count
        if self.left < 0:
            raise StoppedError


def test_stopped_jobs_go_on(tmp_path: Path) -> None:
    tensors = model()
    source, out = saved(tmp_path, tensors), tmp_path / "out"
    most, steps = 1000, 0
    while True:
        before = {file: (out / file).stat().st_ino for file in os.listdir(out)} if out.exists() else {}
        progress = StopAfter(most)
        try:
            packed = fi.weights.pack_checkpoint(source, out, RULES, progress=progress)
        except StoppedError:
            with pytest.raises(fi.FastIndexError, match="holds no complete checkpoint"):
                fi.weights.open_checkpoint(out)
            with open(out / "manifest.partial", "ab") as journal:
                journal.write(b'{"half a li')
            most, steps = most * 3, steps + 1
            continue
        break
    assert steps > 2
    assert progress.seen == progress.total
    # What was complete has not been written again.
    assert all((out / file).stat().st_ino == number for file, number in before.items() if file.endswith(".bin"))
    assert sum(file.endswith(".bin") for file in before) > 2
    packed.verify()
    packed.unpack(tmp_path / "back.safetensors")
    check_equal(str(tmp_path / "back.safetensors"), tensors)


def test_other_jobs_do_not_go_on(tmp_path: Path) -> None:
    source, out = saved(tmp_path, model()), tmp_path / "out"
    with pytest.raises(StoppedError):
        fi.weights.pack_checkpoint(source, out, RULES, progress=StopAfter(200_000))
    with pytest.raises(fi.FastIndexError, match="begun with other rules or another checkpoint"):
        fi.weights.pack_checkpoint(source, out, [{"names": "*", "layout": "tpu"}])
    fi.weights.pack_checkpoint(source, out, RULES)
    with pytest.raises(fi.FastIndexError, match="is a complete checkpoint"):
        fi.weights.pack_checkpoint(source, out, RULES)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(fi.FastIndexError, match=r"holds 'mine\.txt'"):
        fi.weights.pack_checkpoint(source, tmp_path / "full", RULES)


_JOB = (
    "import sys, json, fastindex as fi; fi.weights.pack_checkpoint(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))"
)


@pytest.mark.in_turn(seconds=4)
def test_killed_jobs_go_on(tmp_path: Path) -> None:
    """SIGKILL at random moments: no file is half, and the next job ends what the last one began."""
    rng = random.Random(strategies.FIRST_SEED)
    big = {f"l.{i}": np.full((700, 1000), i, np.float32) for i in range(12)}
    source, out = saved(tmp_path, big), tmp_path / "out"
    rules = [{"names": "*", "dtype": "bf16", "layout": "{1,0:T(8,128)(2,1)}"}]
    nbytes = fi.Shape.parse("bf16[700,1000]{1,0:T(8,128)(2,1)}").nbytes
    kills = 0
    while kills < 8 and not (out / "manifest.json").exists():
        job = subprocess.Popen([sys.executable, "-c", _JOB, source, str(out), json.dumps(rules)])
        begin = time.monotonic()
        known = len(list(out.glob("*.bin")))
        while job.poll() is None and len(list(out.glob("*.bin"))) == known and time.monotonic() - begin < 60:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.02)
        job.send_signal(signal.SIGKILL)
        job.wait()
        kills += 1
        assert all(file.stat().st_size == nbytes for file in out.glob("*.bin"))
    if not (out / "manifest.json").exists():
        fi.weights.pack_checkpoint(source, out, rules)
    packed = fi.weights.open_checkpoint(out)
    packed.verify()
    assert [float(packed[f"l.{i}"][0]) for i in range(12)] == list(range(12))
    allowed = {*(f"{i:05}.bin" for i in range(12)), "manifest.json", "manifest.partial"}
    assert set(os.listdir(out)) <= allowed


def changed(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["arrays"][0].__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(tensors=["x"]), "does not list each tensor"),
        (lambda m: m["arrays"][0].update(tensors=["x"]), "does not list each tensor"),
        (lambda m: m.update(metadata={"a": 1}), "no texts to texts"),
        (lambda m: m.update(store="tar"), "known are raw and zarr"),
        (changed("stored", {"dtype": "F6_E2M3", "sizes": [4], "nbytes": 3}), "was stored in 3 bytes"),
        (changed("stored", {"dtype": "F6_E2M3", "sizes": [4], "nbytes": 4}), "none of the format"),
        (changed("format", {"from": "awq"}), "is not a format that tensors were moved to"),
        (lambda m: m.update(version=2), "this version of fastindex"),
        (lambda m: m.update(format="x"), "this version of fastindex"),
        (lambda m: m.update(arrays={}), "lists no arrays"),
        (lambda m: m.update(arrays=[3]), "an array has name"),
        (lambda m: m["arrays"].append(m["arrays"][0]), "twice"),
        (changed("file", "../model.safetensors"), "not a file of the folder"),
        (changed("file", "/etc/passwd"), "not a file of the folder"),
        (changed("offset", 4), "not a file of the folder"),
        (changed("file", "00099.bin"), "is missing or has another size"),
        (changed("nbytes", 3), "the manifest says 3"),
        (changed("shape", "f64[2]"), "which dimensions|the manifest says"),
        (changed("shape", "f64[2"), "column"),
        (changed("shape", "token[]"), "token"),
        (changed("order", [0, 1, 2, 3]), "which dimensions it was made of"),
        (changed("tensors", []), "has to name each"),
        (changed("tensors", [3]), "has to name each"),
        (changed("crc32", None), "an array has name"),
    ],
)
def test_strange_manifests(tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: str) -> None:
    fi.weights.pack_checkpoint(saved(tmp_path, {"x": np.array(3.5), "y": np.arange(4)}), tmp_path / "out")
    path = tmp_path / "out" / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(fi.FastIndexError, match=reason):
        fi.weights.open_checkpoint(tmp_path / "out")


def test_every_dtype_of_the_format(tmp_path: Path) -> None:
    shapes = {dtype: packed_shape(fi.ElementType.of(name), (3, 4)) for dtype, name in ELEMENT_TYPES.items()}
    rng, at, header, data = np.random.default_rng(2), 0, {}, b""
    for dtype, shape in shapes.items():
        part = rng.integers(0, 2 if dtype == "BOOL" else 256, shape.nbytes).astype(np.uint8).tobytes()
        header[dtype] = entry(dtype, [3, 4], [at, at + len(part)])
        at, data = at + len(part), data + part
    path = written(tmp_path / "x.safetensors", header, data)
    packed = fi.weights.pack_checkpoint(path, tmp_path / "out", [{"names": "*", "layout": "{0,1:T(2,4)}"}])
    packed.unpack(tmp_path / "back.safetensors")
    assert {name: one.shape for name, one in read_header(str(tmp_path / "back.safetensors")).tensors.items()} == shapes
    assert (tmp_path / "back.safetensors").read_bytes().endswith(data)


@pytest.mark.in_turn(seconds=1.4)
def test_types_that_the_format_lacks(tmp_path: Path) -> None:
    path = saved(tmp_path, {"x": np.arange(8, dtype=np.int8)})
    rules = [{"names": "x", "dtype": "s4", "layout": "{0:E(4)}"}]
    packed = fi.weights.pack_checkpoint(path, tmp_path / "out", rules)
    assert packed["x"].tolist() == [0x10, 0x32, 0x54, 0x76]
    with pytest.raises(fi.UnsupportedError, match="safetensors files have no s4"):
        packed.unpack(tmp_path / "back.safetensors")
    assert not (tmp_path / "back.safetensors").exists()


def test_metadata_and_narrow_types_come_back(tmp_path: Path) -> None:
    """What the file says besides, elements of 4 and 6 bits, transposed, stacked and as they are."""
    rng = np.random.default_rng(5)
    shapes = [
        ("l.0", "F4", [6, 8]),
        ("l.1", "F4", [6, 8]),
        ("six", "F6_E3M2", [4, 4]),
        ("a", "F4", [3, 2]),
        ("z", "F4", [0]),
    ]
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "ü": '\n"ß'}}
    data = b""
    for name, dtype, sizes in shapes:
        nbytes = int(np.prod(sizes)) * (6 if dtype[1] == "6" else 4) // 8
        header[name] = entry(dtype, sizes, [len(data), len(data) + nbytes])
        data += rng.bytes(nbytes)
    path = written(tmp_path / "x.safetensors", header, data)
    rules = [{"names": "l.*", "stack": "l", "transpose": "a b -> b a", "layout": "{2,1,0:T(2,4)E(4)}"}]
    packed = fi.weights.pack_checkpoint(path, tmp_path / "out", rules, tpu="v5e")
    assert packed.metadata == header["__metadata__"]
    assert str(packed.shapes["l"]) == "f4e2m1fn[2,8,6]{2,1,0:T(2,4)E(4)}"
    codes = np.frombuffer(data[:24], np.uint8)
    values = np.stack([codes & 15, codes >> 4], -1).reshape(6, 8)
    assert np.array_equal(fi.unpack(packed["l"], packed.shapes["l"])[0].view(np.uint8), values.T)
    assert packed["six"].tobytes() == data[48:60]
    packed.unpack(tmp_path / "back.safetensors")
    found = json.loads((tmp_path / "back.safetensors").read_bytes()[8:].split(b"}}")[0] + b"}}")
    assert (tmp_path / "back.safetensors").read_bytes().endswith(data)
    assert {name: (one["dtype"], one["shape"]) for name, one in found.items() if name != "__metadata__"} == {
        name: (dtype, sizes) for name, dtype, sizes in shapes
    }
    assert found["__metadata__"] == header["__metadata__"]
    with pytest.raises(
        fi.UnsupportedError, match=r"'six' is F6_E3M2, whose elements are not moved one by one.*has a dtype"
    ):
        fi.weights.pack_checkpoint(path, tmp_path / "o2", [{"names": "six", "dtype": "f32"}])
    assert fi.weights.pack_checkpoint(path, tmp_path / "o3")["a"].tobytes() == data[60:63]


def test_metadata_of_several_files(tmp_path: Path) -> None:
    for file, own in (("a", {"format": "pt", "part": "0"}), ("b", {"format": "pt", "part": "1", "only": "b"})):
        safetensors_numpy.save_file({file: np.arange(3)}, tmp_path / f"{file}.safetensors", own)
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fi.weights.pack_checkpoint(tmp_path, tmp_path / "out").metadata == {"format": "pt", "only": "b"}


CODES = np.random.default_rng(9).integers(0, 16, (128, 192)).astype(np.uint8)
FORMATS = [
    # The rule, the tensor of its source as that format's packer stores it, and its result by fastindex.weights.repack.
    ({"from": "awq", "to": "marlin"}, lambda: packed_codes("awq").view(np.int32).reshape(128, 24), (128, 192)),
    ({"from": "gptq", "to": "marlin"}, lambda: packed_codes("gptq").view(np.int32).reshape(16, 192), (128, 192)),
    ({"from": "gptq", "to": "plain"}, lambda: packed_codes("gptq").view(np.int32).reshape(16, 192), (128, 192)),
    (
        {"from": "pack_quantized", "to": "marlin"},
        lambda: packed_codes("pack_quantized").view(np.int32).reshape(128, 24),
        (128, 192),
    ),
    (
        {"from": "marlin", "to": "awq", "shape": [128, 192], "bits": 4, "activation_bits": 8},
        lambda: fi.weights.repack(CODES, "plain", "marlin", shape=(128, 192), activation_bits=8),
        (128, 192),
    ),
    ({"from": "plain", "to": "awq"}, lambda: CODES, (128, 192)),
    ({"from": "plain", "to": "pack_quantized"}, lambda: CODES.astype(np.int8) - 8, (128, 192)),
    ({"from": "plain", "to": "marlin_scales"}, lambda: CODES.astype(np.float16), (128, 192)),
    ({"from": "plain", "to": "fractal_nz"}, lambda: CODES.astype(ml_dtypes.bfloat16), (128, 192)),
]


def packed_codes(name: str) -> NDArray[Any]:
    return np.asarray(fi.weights.repack(CODES, "plain", name, shape=CODES.shape))


@pytest.mark.parametrize(("given", "made", "shape"), FORMATS)
@pytest.mark.parametrize("is_stacked", [False, True])
def test_formats(
    tmp_path: Path, given: dict[str, Any], made: Callable[[], NDArray[Any]], shape: tuple[int, ...], is_stacked: bool
) -> None:
    tensors: Tensors = {"w.0": made(), "w.1": np.ascontiguousarray(made()[::-1]), "other": np.arange(3)}
    source = saved(tmp_path, tensors)
    rule = {"names": "w.*", "format": given, **({"stack": "w"} if is_stacked else {})}
    packed = fi.weights.pack_checkpoint(source, tmp_path / "out", [rule], tpu="v5e")
    own = {key: value for key, value in given.items() if key not in ("from", "to", "shape")}
    if "bits" not in own and given["to"] == "fractal_nz":
        own["bits"] = 16
    for number in range(2):
        expected = fi.weights.repack(tensors[f"w.{number}"], given["from"], given["to"], shape=shape, **own)
        found = fi.unpack(packed["w"], packed.shapes["w"])[number] if is_stacked else packed[f"w.{number}"]
        assert np.asarray(found).tobytes() == expected.tobytes()
    packed.verify()
    packed.unpack(tmp_path / "back.safetensors")
    check_equal_bytes(tmp_path / "back.safetensors", source)


@pytest.mark.parametrize("destination", ["pack_quantized", "marlin"])
def test_formats_above_the_memory_limit(tmp_path: Path, destination: str) -> None:
    """A process above its limit still moves named formats, there and back, with a few MiB, as `repack_file` does."""
    source = saved(tmp_path, {"w": packed_codes("awq").view(np.int32).reshape(128, 24)})
    plan = Formats(("awq", destination), (128, 192), None, ()).plan()
    # Without a dimension that is outermost in both, it is moved whole.
    assert (plan.cut is None) == (destination == "pack_quantized")
    rule = {"names": "w", "format": {"from": "awq", "to": destination}}
    packed = fi.weights.pack_checkpoint(source, tmp_path / "out", [rule], max_memory=1)
    expected = fi.weights.repack(packed_codes("awq"), "awq", destination, shape=(128, 192))
    assert np.asarray(packed["w"]).tobytes() == expected.tobytes()
    packed.unpack(tmp_path / "back.safetensors", max_memory=1)
    check_equal_bytes(tmp_path / "back.safetensors", source)


def check_equal_bytes(path: Path, source: str) -> None:
    """The tensors of two files, by the format's library."""
    found, expected = safetensors_numpy.load_file(path), safetensors_numpy.load_file(source)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert found[name].tobytes() == tensor.tobytes()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"from": "awq"}, "says from what to what"),
        ({"from": "awq", "to": "marlinn"}, "no format is called"),
        ({"from": "awq", "to": "kleidiai"}, "not a permutation"),
        ({"from": "blocked_scales", "to": "plain"}, "does not have the dimensions of its blocked_scales array"),
        ({"from": "awq", "to": "marlin", "shape": [192, 128]}, r"\(192, 16\) words .* its shape is \(128, 192\)"),
        ({"from": "awq", "to": "marlin", "shape": [128, 100]}, "multiple|divi"),
        ({"from": "awq", "to": "marlin", "shape": [64, 192]}, "has 12288 bytes, awq of"),
        ({"from": "awq", "to": "marlin", "group_size": 3}, "neither awq nor marlin has a parameter"),
        ({"from": "awq", "to": "marlin", "bits": "4"}, "bits must be an integer"),
        ("awq", "must be a mapping with from"),
    ],
)
def test_formats_that_do_not_fit(tmp_path: Path, given: Any, reason: str) -> None:
    source = saved(tmp_path, {"w": packed_codes("awq").view(np.int32).reshape(128, 24)})
    with pytest.raises(fi.FastIndexError, match=reason):
        fi.weights.pack_checkpoint(source, tmp_path / "out", [{"names": "w", "format": given}])
    assert not (tmp_path / "out").exists()
    with pytest.raises(fi.FastIndexError, match="has a format, so it has no dtype"):
        fi.weights.pack_checkpoint(
            source, tmp_path / "out", [{"names": "w", "format": {"from": "awq", "to": "gptq"}, "dtype": "s8"}]
        )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: one["stored"].update(dtype="U8", sizes=[4], nbytes=4), "was made of 12288 bytes, not of 4"),
        (lambda one: one.pop("stored"), "marlin of .* is u8"),
        (lambda one: one.update(shape="u8[12287]"), "marlin of .* is u8|is missing"),
        (lambda one: one["format"].update(to="awqq"), "no format is called"),
        (lambda one: one["format"].update(shape=[64, 192]), "marlin of .* is u8"),
        (lambda one: one["format"].update(is_signed=1), "is not a format that tensors were moved to"),
    ],
)
def test_strange_manifests_of_formats(tmp_path: Path, change: Callable[[dict[str, Any]], Any], reason: str) -> None:
    source = saved(tmp_path, {"w": packed_codes("awq").view(np.int32).reshape(128, 24)})
    fi.weights.pack_checkpoint(source, tmp_path / "out", [{"names": "w", "format": {"from": "awq", "to": "marlin"}}])
    path = tmp_path / "out" / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest["arrays"][0])
    path.write_text(json.dumps(manifest))
    with pytest.raises(fi.FastIndexError, match=reason):
        fi.weights.open_checkpoint(tmp_path / "out")


def test_zarr_stores(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    tensors = model() | {"q": packed_codes("awq").view(np.int32).reshape(128, 24)}
    source, out = saved(tmp_path, tensors), tmp_path / "out.zarr"
    rules = [*RULES, {"names": "q", "format": {"from": "awq", "to": "marlin"}}]
    raw = fi.weights.pack_checkpoint(source, tmp_path / "raw", rules)
    with pytest.raises(StoppedError):
        fi.weights.pack_checkpoint(source, out, rules, progress=StopAfter(200_000))
    (out / ".00003.12345678.partial").mkdir()
    packed = fi.weights.pack_checkpoint(source, out, rules)
    assert set(os.listdir(out)) == {*(f"{i:05}" for i in range(9)), "manifest.json", "zarr.json"}
    assert {name: packed[name].tobytes() for name in packed} == {name: raw[name].tobytes() for name in raw}
    assert not packed["norm"].flags.writeable
    packed.verify()
    packed.unpack(tmp_path / "back.safetensors")
    raw.unpack(tmp_path / "raw.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == (tmp_path / "raw.safetensors").read_bytes()
    assert zarr.open_group(str(out), mode="r")[f"{list(packed).index('norm'):05}"].shape == (
        packed.shapes["norm"].nbytes,
    )
    for command in (("verify", str(out)), ("unpack", str(out), str(tmp_path / "again.safetensors"))):
        result = run_command(command)
        assert result.exit_code == 0, result.output
    chunk = next(path for path in sorted((out / "00000").rglob("*")) if path.is_file() and path.name != "zarr.json")
    chunk.write_bytes(chunk.read_bytes()[:-5])
    with pytest.raises(fi.FastIndexError):
        packed.verify()


def test_one_job_at_a_time(tmp_path: Path) -> None:
    """The second one ends with an error in one line, and harms nothing."""
    source, out = saved(tmp_path, model()), tmp_path / "out"

    class Second:
        result: Any = None

        def start(self, total: int) -> None:
            pass

        def advance(self, count: int) -> None:
            if self.result is None:
                command = [sys.executable, "-m", "fastindex", "pack", source, str(out)]
                self.result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)

    second = Second()
    packed = fi.weights.pack_checkpoint(source, out, progress=second)
    assert second.result.returncode == 1
    assert second.result.stderr.count("\n") == 1
    assert "another job is writing into" in second.result.stderr
    packed.verify()


def test_where_folders_are_made(tmp_path: Path) -> None:
    source = saved(tmp_path, model())
    with pytest.raises(FileNotFoundError):
        fi.weights.pack_checkpoint(source, tmp_path / "no" / "out")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        fi.weights.pack_checkpoint(source, tmp_path / "file")
    result = run_command(("pack", source, str(tmp_path / "no" / "out")))
    assert result.exit_code == 1
    assert "No such file or directory" in result.output


@pytest.mark.in_turn(seconds=5)
def test_memory_counts_from_what_the_process_has(tmp_path: Path) -> None:
    """A process with more than a gibibyte of its own packs and unpacks with no word about memory."""
    source = saved(tmp_path, model())
    program = (
        "import sys, numpy as np, fastindex as fi; held = np.ones(1200 << 20, np.uint8);"
        "fi.weights.pack_checkpoint(sys.argv[1], sys.argv[2]).unpack(sys.argv[3])"
    )
    paths = [source, str(tmp_path / "out"), str(tmp_path / "back.safetensors")]
    subprocess.run([sys.executable, "-c", program, *paths], check=True, timeout=HANG_SECONDS)
    check_equal_bytes(tmp_path / "back.safetensors", source)
