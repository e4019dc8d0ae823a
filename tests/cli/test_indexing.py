"""``fastindex index``: windows, units, runs, tiles and marked padding, printed and in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from tests.cli.test_cli import run

TILED = "f32[3,5]{1,0:T(2,2)}"


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["2", "3"], "17"),
        (["2", "3", "--unit", "byte"], "68"),
        (["--unit", "bit", "2", "3"], "544"),
        (["1:", "0:4:2"], "2 6\n12 16"),
        (["1", ":"], "2 3 6 7 10"),
        (["..."], "0 1 4 5 8\n2 3 6 7 10\n12 13 16 17 20"),
        (["-1", "-2:", "--unit", "byte"], "68 80"),
        (["2:", "0"], "12"),
        (["2", "3", "..."], "17"),
        (["3:", "0"], ""),
        (["--runs", ":", "2:"], "4 5\n10 1\n16 2\n20 1"),
        (["--runs", "--unit", "byte", "1", "3"], "28 4"),
        (["--runs"], "0 9\n10 1\n12 2\n16 2\n20 1"),
        (["--tile", "0", "2", "3"], "tile 1 1 within 0 1"),
        (["--tile", "-1", "1:", "3"], "tile 0 1 within 1 1\ntile 1 1 within 0 1"),
        (["--linear", "68", "--unit", "byte"], "2 3"),
        (["--linear", "13", "14", "--mark-padding"], "2 1\n-1 -1"),
        (["--linear", "4:8"], "0 2\n0 3\n1 2\n1 3"),
        (["--linear", "20:", "--mark-padding"], "2 4\n-1 -1\n-1 -1\n-1 -1"),
        (["--linear", "32:48:4", "--unit", "byte", "--mark-padding"], "0 4\n-1 -1\n1 4\n-1 -1"),
        (["--linear", "17", "2:4"], "2 3\n1 0\n1 1"),
    ],
)
def test_printed(arguments: list[str], printed: str) -> None:
    assert run("index", TILED, *arguments).stdout.rstrip("\n") == printed


def test_files(tmp_path: Path) -> None:
    source, target = str(tmp_path / "in.npy"), str(tmp_path / "out.npy")
    run("index", TILED, "1:", ":", "--unit", "byte", "--output", target)
    np.testing.assert_array_equal(np.load(target), fi.linear_index(TILED, np.s_[1:, :], unit="byte"))
    run("index", TILED, "...", "2", "--output", target)
    assert np.load(target).tolist() == [4, 6, 16]
    np.save(source, np.arange(96))
    run("index", TILED, "--linear", "--mark-padding", "--unit", "byte", "--input", source, "--output", target)
    np.testing.assert_array_equal(np.load(target), fi.multi_index(TILED, range(96), "mark", unit="byte"))
    assert "is padding" in run("index", TILED, "--linear", "--input", source, "--output", target, status=1).stderr
    np.save(source, np.array([[2, 1], [3, 0]]))
    run("index", TILED, "--unit", "bit", "--input", source, "--output", target)
    assert np.load(target).tolist() == [17 * 32, 2 * 32]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1:2:0", "1"], "step must not be 0"),
        (["1:"], "needs 2 entries"),
        (["...", "..."], "one Ellipsis"),
        (["5", ":"], "5, which is out of bounds"),
        (["--tile", "1", "2", "3"], "level 1 is out of bounds"),
        (["--linear", "4:12"], "padding"),
        (["--linear", "1:2:0"], "--linear is slice(1, 2, 0): its step must not be 0"),
    ],
)
def test_bad_windows(arguments: list[str], message: str) -> None:
    assert message in run("index", TILED, *arguments, status=1).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--linear", "..."], "needs slots"),
        (["--runs", "--tile", "0", "1", "2"], "--runs and --tile do not go together"),
        (["--runs", "--linear", "3"], "--runs and --linear do not go together"),
        (["--runs", ":", ":", "--output", "a.npy"], "--runs prints"),
        (["--mark-padding", "1", "2"], "--mark-padding is for --linear"),
        (["--linear", "3", "--output", "a.npy"], "--linear with --output needs --input"),
        (["--unit", "nibble", "1", "2"], "nibble"),
        (["--tile", "0", "1", "2", "--unit", "byte"], "--tile counts elements"),
        (["1:x", "2"], "'1:x' is not an integer"),
        (["-x", "2"], "No such option"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    assert message in run("index", TILED, *arguments, status=2).stderr
