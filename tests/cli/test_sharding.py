"""The command `shard`, and `index --sharding`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

import fastindex as fi
from fastindex.cli.commands import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_words_table_and_picture() -> None:
    result = run("shard", "f32[17,4]", "{devices=[8,1]<=[8]}")
    assert result.exit_code == 0
    assert "17 over 8 devices pads to 24" in result.stdout
    assert "     5  [15:17, 0:4]     48   16 (33%)" in result.stdout
    assert "     7  none             48  48 (100%)" in result.stdout
    assert "░ padding of uneven parts" in result.stdout


def test_json() -> None:
    result = run("shard", "f32[5]", "{replicated}", "--devices", "2", "--json")
    found = json.loads(result.stdout)
    assert found["device_count"] == 2
    assert found["shards"][1] == {
        "device": 1, "tile_index": [], "start": [0], "stop": [5], "nbytes": 20, "logical_nbytes": 20
    }  # fmt: skip


def test_svg(tmp_path: Path) -> None:
    path = tmp_path / "parts.svg"
    assert run("shard", "f32[5,4]", "{devices=[2,2]<=[4]}", "--svg", str(path), "--tiles").exit_code == 0
    assert path.read_text().startswith("<svg")
    assert run("shard", "f32[5,4]", "{devices=[2,2]<=[4]}", "--svg", str(tmp_path / "a.png")).exit_code == 2


def test_index() -> None:
    result = run("index", "f32[64,64]", "--sharding", "{devices=[2,4]<=[8]}", "40", "9")
    assert result.stdout == "device 4, slot 137 of f32[32,16]{1,0}\n"
    device, slot = fi.sharding.shard_index("f32[64,64]", "{devices=[2,4]<=[8]}", (40, 9))
    assert (int(device), int(slot)) == (4, 137)
    assert run("index", "f32[64]", "--sharding", "{replicated}", "--linear", "4").exit_code == 2


def test_errors_are_one_line() -> None:
    for arguments in (
        ("shard", "f32[5]", "{devices=[2,2]<=[4]}"),
        ("shard", "f32[5]", "{replicated}"),
        ("shard", "f32[5]", "{devices=[2]<=[3]}"),
        ("index", "f32[64]", "--sharding", "{devices=[2]<=[2]}", "64"),
    ):
        result = run(*arguments)
        assert result.exit_code == 1
        assert result.stderr.startswith("fastindex: ") or "error" in result.stderr.lower()
        assert "Traceback" not in result.stderr
    assert "give --devices" in run("shard", "f32[5]", "{replicated}").stderr
