"""Checkpoints whose files are replaced, are links or pipes, or repeat themselves: an error, and no mix or wait.

Tests of: weights.manifests, weights.checkpoints, weights.safetensors_files.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.weights.safetensors_files import header_of, read_header, tensors_of
from tests.cases.hangs import HANG_SECONDS
from tests.cases.pipes import needs_pipes, pipe


def saved(path: Path, tensors: dict[str, float]) -> str:
    """A file of tensors of 64 f32 each, all of one value."""
    header = header_of(dict.fromkeys(tensors, fi.Shape.parse("f32[64]")))
    data = b"".join(np.full(64, value, np.float32).tobytes() for value in tensors.values())
    path.write_bytes(header + data)
    return str(path)


def packed(folder: Path, value: float = 1) -> Path:
    fi.weights.pack_checkpoint(saved(folder / "model.safetensors", {"a": value, "b": value}), folder / "out")
    return folder / "out"


class Once:
    """A progress that does something after the first array."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act: Callable[[], Any] | None = act

    def start(self, total: int) -> None:
        pass

    def advance(self, count: int) -> None:
        if self.act is not None:
            act, self.act = self.act, None
            act()


# Files that are replaced


def replaced(path: Path, new: Path) -> None:
    os.replace(new, path)


def replaced_with_its_time(path: Path, new: Path) -> None:
    os.utime(new, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.replace(new, path)


def written_with_its_time(path: Path, new: Path) -> None:
    before = path.stat()
    path.write_bytes(new.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [replaced, replaced_with_its_time, written_with_its_time])
@pytest.mark.parametrize("kind", ["file", "shards"])
def test_a_source_that_is_replaced_between_two_tensors(
    tmp_path: Path, kind: str, change: Callable[[Path, Path], None]
) -> None:
    names = {"a": 1.0, "b": 1.0, "c": 1.0}
    if kind == "file":
        source = path = Path(saved(tmp_path / "model.safetensors", names))
        saved(tmp_path / "new", dict.fromkeys(names, 2.0))
    else:
        for name in names:
            saved(tmp_path / f"{name}.safetensors", {name: 1.0})
        source = tmp_path / "model.safetensors.index.json"
        source.write_text(json.dumps({"weight_map": {name: f"{name}.safetensors" for name in names}}))
        path = tmp_path / "c.safetensors"
        saved(tmp_path / "new", {"c": 2.0})
    with pytest.raises(fi.FastIndexError, match=r"was replaced or written to after its header was read|changed while"):
        fi.weights.pack_checkpoint(source, tmp_path / "out", progress=Once(lambda: change(path, tmp_path / "new")))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_gguf_source_that_is_replaced(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    for name, value in (("model.gguf", 1), ("new", 2)):
        writer = gguf.GGUFWriter(str(tmp_path / name), "llama")
        for tensor in "abc":
            writer.add_tensor(tensor, np.full(64, value, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    progress = Once(lambda: os.replace(tmp_path / "new", tmp_path / "model.gguf"))
    with pytest.raises(fi.FastIndexError, match="was replaced or written to after its header was read"):
        fi.weights.pack_checkpoint(tmp_path / "model.gguf", tmp_path / "out", progress=progress)


def test_links_to_a_source_are_followed(tmp_path: Path) -> None:
    """A folder of links that lead out of it is how Hugging Face keeps its files."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    saved(tmp_path / "blobs" / "0123", {"a": 3})
    (tmp_path / "snapshot" / "a.safetensors").symlink_to(tmp_path / "blobs" / "0123")
    assert fi.weights.pack_checkpoint(tmp_path / "snapshot", tmp_path / "out")["a"].tolist() == [3.0] * 64


@pytest.mark.parametrize("use", [lambda found: found["a"], lambda found: found.verify()])
def test_a_packed_array_that_is_replaced(tmp_path: Path, use: Callable[[Any], Any]) -> None:
    """Another job may have made the folder again: its arrays are not those of the manifest that was read."""
    out = packed(tmp_path)
    found = fi.weights.open_checkpoint(out)
    (tmp_path / "out").rename(tmp_path / "old")
    packed(tmp_path, 2)
    with pytest.raises(fi.FastIndexError, match="was replaced or written to after its header was read"):
        use(found)
    assert fi.weights.open_checkpoint(tmp_path / "old")["a"].tolist() == [1.0] * 64


def test_a_packed_store_that_is_replaced(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    source = saved(tmp_path / "model.safetensors", {"a": 1})
    found = fi.weights.pack_checkpoint(source, tmp_path / "out.zarr")
    (tmp_path / "out.zarr").rename(tmp_path / "old.zarr")
    fi.weights.pack_checkpoint(saved(tmp_path / "model.safetensors", {"a": 2}), tmp_path / "out.zarr")
    with pytest.raises(fi.FastIndexError, match="was replaced or written to after its header was read"):
        _ = found["a"]


# JSON that repeats itself, or has what is no character


@pytest.mark.in_turn(seconds=6)
def test_names_that_occur_twice_are_found_in_one_pass(tmp_path: Path) -> None:
    """Hours, if each name were compared with all others."""
    names = [*range(1_000_000), 999_999]
    header = "{" + ",".join(f'"{name}":0' for name in names) + "}"
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    program = "import sys; from fastindex.weights.safetensors_files import read_header; read_header(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert "has '999999' twice" in done.stderr


def written(path: Path, begin: str) -> Path:
    """A file with one tensor; the header, JSON, begins with its name."""
    header = begin + ':{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(4))
    return path


@pytest.mark.parametrize(
    "begin",
    [
        '{"a\\ud800"',
        '{"\\uDFFFa"',
        '{"\\udc00\\ud800"',
        '{"__metadata__":{"k":"x\\ud83d"},"a"',
        '{"__metadata__":{"\\ud83d":"x"},"a"',
    ],
)
def test_half_a_surrogate_pair(tmp_path: Path, begin: str) -> None:
    path = written(tmp_path / "x.safetensors", begin)
    with pytest.raises(fi.FastIndexError, match="has half a surrogate pair in a text, after"):
        fi.weights.pack_checkpoint(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_whole_surrogate_pair(tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", '{"__metadata__":{"k":"\\ud83d\\ude00"},"\\ud83d\\ude00"')
    found = fi.weights.pack_checkpoint(path, tmp_path / "out")
    assert list(found) == ["\U0001f600"]
    assert found.metadata == {"k": "\U0001f600"}
    found.unpack(tmp_path / "back.safetensors")
    assert list(read_header(str(tmp_path / "back.safetensors")).tensors) == ["\U0001f600"]


# Pipes and links


@needs_pipes
def test_pipes(tmp_path: Path) -> None:
    """Whatever is read may be a pipe, which would be waited for."""
    out = packed(tmp_path)
    for name in ("00001.bin", "manifest.json"):
        (out / name).unlink()
        with pipe(out / name), pytest.raises(fi.FastIndexError, match="is not a regular file"):
            fi.weights.open_checkpoint(out)
    index = tmp_path / "i.safetensors.index.json"
    with pipe(index), pytest.raises(fi.FastIndexError, match="is not a regular file"):
        tensors_of(str(index))
    (tmp_path / "begun").mkdir()
    source = saved(tmp_path / "model.safetensors", {"a": 1})
    with pipe(tmp_path / "begun" / "manifest.partial"), pytest.raises(fi.FastIndexError, match="is not a regular file"):
        fi.weights.pack_checkpoint(source, tmp_path / "begun")


@pytest.mark.parametrize("name", ["00001.bin", "manifest.json"])
def test_links_that_lead_out(tmp_path: Path, name: str) -> None:
    out = packed(tmp_path)
    found = fi.weights.open_checkpoint(out)
    os.replace(out / name, tmp_path / "elsewhere")
    (out / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(fi.FastIndexError, match=f"{name} in .* leads outside the store"):
        fi.weights.open_checkpoint(out)
    if name != "manifest.json":
        for use in (lambda: found["b"], found.verify, lambda: found.unpack(tmp_path / "back.safetensors")):
            with pytest.raises(fi.FastIndexError, match=f"{name} in .* leads outside the store"):
                use()
        assert not (tmp_path / "back.safetensors").exists()
        # Within the folder, and to the folder itself, links may lead.
        (out / name).unlink()
        os.replace(tmp_path / "elsewhere", out / "other.bin")
        (out / name).symlink_to("other.bin")
        (tmp_path / "link").symlink_to(out)
        fi.weights.open_checkpoint(tmp_path / "link").verify()


def test_a_store_that_is_a_link(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    out = tmp_path / "out.zarr"
    fi.weights.pack_checkpoint(saved(tmp_path / "model.safetensors", {"a": 1}), out)
    os.replace(out / "00000", tmp_path / "elsewhere")
    (out / "00000").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(fi.FastIndexError, match=r"00000 in .* leads outside the store"):
        fi.weights.open_checkpoint(out)


def test_links_in_a_folder_that_was_begun(tmp_path: Path) -> None:
    """The next job writes through none of them: leftovers are removed as links, others refused."""
    source = saved(tmp_path / "model.safetensors", {"a": 1, "b": 2})
    kept = tmp_path / "kept"
    (kept / "folder").mkdir(parents=True)
    (kept / "folder" / "file").write_text("mine")
    (kept / "file").write_text("mine")

    def begun() -> Path:
        folder = tmp_path / "out"
        for left in folder.iterdir() if folder.exists() else ():
            left.unlink()
        folder.mkdir(exist_ok=True)
        (folder / "manifest.partial").touch()
        return folder

    out = begun()
    (out / "manifest.partial").unlink()
    (out / "manifest.partial").symlink_to(kept / "file")
    with pytest.raises(fi.FastIndexError, match=r"manifest\.partial is a link"):
        fi.weights.pack_checkpoint(source, out)
    for target in (kept / "new", kept / "file"):
        out = begun()
        (out / "00001.bin").symlink_to(target)
        with pytest.raises(fi.FastIndexError, match=r"00001\.bin is a link, and no job writes links"):
            fi.weights.pack_checkpoint(source, out)
    out = begun()
    (out / "manifest.json").symlink_to(kept / "new")
    with pytest.raises(fi.FastIndexError, match="is a complete checkpoint"):
        fi.weights.pack_checkpoint(source, out)
    out = begun()
    (out / ".00000.bin.01234567.partial").symlink_to(kept / "folder")
    (out / ".00001.bin.01234567.partial").symlink_to(kept / "file")
    fi.weights.pack_checkpoint(source, out).verify()
    assert sorted(os.listdir(out)) == ["00000.bin", "00001.bin", "manifest.json"]
    assert sorted(os.listdir(kept)) == ["file", "folder"]
    assert (kept / "file").read_text() == (kept / "folder" / "file").read_text() == "mine"


# Names and numbers as long as a stranger likes

LONG = "9" * 5000


def message_of(call: Callable[[], Any]) -> str:
    with pytest.raises(fi.FastIndexError) as caught:
        call()
    return str(caught.value)


def test_numbers_of_thousands_of_digits(tmp_path: Path) -> None:
    """Python refuses to read them, with its own error."""
    rules = [{"names": "l.*", "stack": "l"}]
    for digits in (LONG, "9" * 19):
        source = saved(tmp_path / "model.safetensors", {"l.0": 1, f"l.{digits}": 2})
        assert "is not a number" in message_of(
            lambda path=source: fi.weights.pack_checkpoint(path, tmp_path / "out", rules)
        )
    for header in ('{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,4]}}', '{"a":{"x":%s}}'):
        content = (header % LONG).encode()
        (tmp_path / "x.safetensors").write_bytes(len(content).to_bytes(8, "little") + content)
        assert "holds no JSON" in message_of(lambda: read_header(str(tmp_path / "x.safetensors")))


def test_messages_are_short(tmp_path: Path) -> None:
    """However long the names are, and however many."""
    name = "n" * 20_000
    many = saved(tmp_path / "many.safetensors", {f"l.{2 * number}": 1 for number in range(2000)})
    named = saved(tmp_path / "named.safetensors", {name: 1, f"{name}0": 1, f"{name}1": 2})
    sizes = {f"l.{number}": fi.Shape("f32", (number,)) for number in range(400)}
    kinds = tmp_path / "kinds.safetensors"
    kinds.write_bytes(header_of(sizes) + bytes(sum(shape.nbytes for shape in sizes.values())))
    found: list[tuple[str, Any, str]] = [
        (many, [{"names": "l.*", "stack": "l"}], "there is 3998, but not 1"),
        (str(kinds), [{"names": "l.*", "stack": "l"}], "'l.0' is F32"),
        (named, [{"names": "n*", "stack": "l"}], "is not a number"),
        (named, [{"names": f"{name}?", "stack": "l"}], "stack needs names with one"),
        (named, [{"names": f"{name}*", "stack": "l"}], "is not a number"),
        (named, [{"names": f"{name}0", "dtype": "s8"}], "f32 is not cast to s8"),
        (named, [{"names": f"{name}?", "transpose": f"{name} b -> b {name}"}], "names 2 dimensions"),
        (named, [{"names": f"{name}?", "layout": name}], "column"),
        (named, [{"names": f"{name}?", "dtype": name}], "no element type is called"),
        (named, [{"names": f"{name}?", "format": {"from": name, "to": "awq"}}], "no format is called"),
        (named, [{"names": f"{name}?", "format": {"from": "marlin", "to": "awq"}}], "does not have the dimensions"),
        (named, [{"names": f"{name}?", "format": name}], "must be a mapping with from"),
        (named, [{"names": f"{name}?", "format": {name: 1}}], "says from what to what"),
        (named, [{"names": name + "x"}], "no name matches"),
        (named, [{"names": "*1", "stack": name}, {"names": name}], "two arrays would be called|is not a number"),
        (named, [{name: 1}], "a rule has names"),
        (named, [{"names": [name]}], "all of a rule are texts"),
        (named, [name], "a rule must be a mapping"),
        (named, name, "rules must be a list of mappings"),
        (named, 10**5000, "rules must be a list of mappings"),
        (named, [{"names": 10**5000}], "all of a rule are texts"),
    ]
    for source, rules, reason in found:
        message = message_of(lambda path=source, rules=rules: fi.weights.pack_checkpoint(path, tmp_path / "out", rules))
        assert len(message) < 2000, reason
        assert re.search(reason, message), message


@pytest.mark.parametrize("key", ["stack", "names", "layout", "dtype", "transpose"])
def test_half_a_surrogate_pair_in_a_rule(tmp_path: Path, key: str) -> None:
    """A stack is called so in the manifest, which is written after all arrays."""
    source = saved(tmp_path / "model.safetensors", {"l.0": 1, "l.1": 2})
    rule = {"names": "l.*", "stack": "l", key: "l.*\ud800"}
    with pytest.raises(fi.FastIndexError, match=f"{key} of a rule has half a surrogate pair"):
        fi.weights.pack_checkpoint(source, tmp_path / "out", [rule])
    assert not (tmp_path / "out").exists()
