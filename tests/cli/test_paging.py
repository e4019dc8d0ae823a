"""The command `paged`."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from fastindex.cli.commands import main

SOURCE = "vllm LBNHC num_layers=2 num_blocks=99 kv_heads=8 block_size=16 head_dim=128"
TARGET = "vllm LBHNC num_layers=2 num_blocks=99 kv_heads=4 block_size=64 head_dim=128 tp=2/1"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["paged", *arguments])


def test_a_cache_in_words_as_a_picture_and_as_json() -> None:
    words = run(SOURCE).stdout
    assert "2 layers, 99 blocks of 16 tokens, heads 0..7 of 8; k, v: 128 x bf16" in words
    assert "layers, num_blocks, block_size, kv_heads, kv, head_dim" in words
    found = json.loads(run(TARGET, "--json").stdout)
    assert (found["heads"], found["page_bytes"]) == ([4, 5, 6, 7], 2 * 4 * 64 * 128 * 2)
    assert found["planes"]["v"] == {"element_type": "bf16", "head_dim": 128}
    assert "byte of a page where each token and head begins" in run(SOURCE, "--draw").stdout


def test_slots_of_tokens() -> None:
    text = "bf16[num_blocks=8,2,kv_heads=4,block_size=16,head_dim=64]"
    assert run(text, "--blocks", "3,7", "0", "15", "16").stdout.split() == ["48", "63", "112"]
    assert json.loads(run(f"{text} cp=2/1 interleave=2", "--blocks", "3", "1", "2", "--json").stdout) == {
        "slots": [-1, 48]
    }
    assert run(text.replace(",", ", "), "--blocks", "3,7", "16").stdout == "112\n"
    past = run(text, "--blocks", "3,7", "--tokens", "20", "20")
    assert past.exit_code == 1
    assert "has position 20, and the request has 20 tokens" in past.stderr
    assert run(text, "0").exit_code == 2


def test_descriptors_of_a_transfer() -> None:
    words = run(SOURCE, "--to", TARGET).stdout
    assert "runs: 64 for each source block of a layer, from 512 to 512 bytes" in words
    assert "request:" not in words
    arguments = (SOURCE, "--to", TARGET, "--blocks", "4,2,7,1", "--to-blocks", "5")
    assert "request: 512 descriptors, " in run(*arguments).stdout
    found = json.loads(run(*arguments, "--tokens", "10", "--json").stdout)["runs"]
    assert (found["count"], found["nbytes"], found["smallest"], found["largest"]) == (80, 40960, 512, 512)
    assert run(SOURCE, "--to", TARGET, "--blocks", "4").exit_code == 2


def test_what_is_not_understood() -> None:
    for text, message in {
        "vllm LBNHC num_blocks=x": "num_blocks must be a number, got 'x'",
        "vllm LBNHC num_blocks=9 kv_heads=1 block_size=16 head_dim=8 tp=2": "tp must be SIZE/RANK, got '2'",
        "vllm LBNHC num_blocks=9 kv_heads=1 block_size=16 head_dim=8 tp=a/b": "tp must be SIZE/RANK",
        "vllm NHD num_blocks=9 kv_heads=1 block_size=16 head_dim=8": "the layouts of vllm are",
        "vllm LBNHC num_blocks=9 kv_heads=1 block_size=16 head_dim=8 heads=2": "'heads' in 'vllm",
        "vllm LBNHC num_blocks=9 num_blocks=8 block_size=16 head_dim=8": "and given once",
        "vllm LBNHC num_blocks=9 block_size=16 head_dim": "or an engine, a layout and sizes",
        "bf16[num_blocks=8, block_size=16, head_dim=8] dtype=f32": "'dtype' is none of the options tp",
        "bf16[4]": "without a name",
    }.items():
        result = run(text)
        assert result.exit_code == 1, text
        assert message in result.stderr, result.stderr
    assert run(SOURCE, "--blocks", "a", "0").exit_code == 2
    assert "--draw is for CACHE alone" in run(SOURCE, "--to", TARGET, "--draw").stderr
    for option in ("--blocks", "--to-blocks", "--tokens"):
        unused = run(SOURCE, option, "3")
        assert unused.exit_code == 2
        assert f"{option} is for POSITION or --to" in unused.stderr
