"""The command line: answers, errors, exit statuses, and what a terminal sees.

Tests of: __main__, cli.commands, cli.group, cli.moving, cli.process, cli.showing.
"""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import Result

import fastindex as fi
import fastindex.cuda
from fastindex.cli import commands as cli
from fastindex.cli import group as cli_group
from fastindex.cli.group import byte_size
from fastindex.hlo.totals import SORT_KEYS
from tests.cases.hangs import HANG_SECONDS
from tests.commands import run_command

ROOT = Path(__file__).resolve().parents[2]
SHAPE = "f32[3,5]{1,0:T(2,2)}"
TPU = "bf16[100,300]{1,0:T(8,128)(2,1)}"
MODULE = """HloModule m

ENTRY e {
  p = f32[1000,3]{1,0:T(8,128)} parameter(0)
  ROOT n = f32[1000,3]{1,0:T(8,128)} negate(p)
}
"""


def run(*arguments: str | Path, status: int = 0, stdin: str | bytes | None = None) -> Result:
    result = run_command([str(argument) for argument in arguments], input=stdin)
    assert result.exit_code == status, (result.exit_code, result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def fails(*arguments: str | Path, stdin: str | bytes | None = None) -> str:
    """The line of a command that fails."""
    result = run(*arguments, status=1, stdin=stdin)
    assert result.stdout == ""
    assert result.stderr.startswith("fastindex: ")
    return result.stderr.removeprefix("fastindex: ").removesuffix("\n")


def start(*arguments: str | Path, variables: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fastindex", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
    return subprocess.Popen(command, env=environment, **options)


def tpu_buffer(array: np.ndarray) -> np.ndarray:
    """What ``T(8,128)(2,1)`` makes of an array of 2-byte elements, by NumPy."""
    rows, columns = (-(-size // tile) for size, tile in zip(array.shape, (8, 128), strict=True))
    padded = np.zeros((8 * rows, 128 * columns), array.dtype)
    padded[: array.shape[0], : array.shape[1]] = array
    return padded.reshape(rows, 4, 2, columns, 128).transpose(0, 3, 1, 4, 2).reshape(-1)


@pytest.fixture
def array() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((100, 300)).astype(ml_dtypes.bfloat16)


# Answers


def test_info() -> None:
    text = run("info", SHAPE).stdout
    for part in (SHAPE, "15 elements", "24 slots", "96 bytes"):
        assert part in text


def test_info_as_json() -> None:
    assert json.loads(run("info", "bf16[2,1,300]{2,0,1:T(8,128)(2,1)}", "--json").stdout) == {
        "text": "bf16[2,1,300]{2,0,1:T(8,128)(2,1)}",
        "element_type": "bf16",
        "dimensions": [2, 1, 300],
        "minor_to_major": [2, 0, 1],
        "tiles": [[8, 128], [2, 1]],
        "rank": 3,
        "true_rank": 2,
        "element_count": 600,
        "slot_count": 8 * 384,
        "nbytes": 2 * 8 * 384,
        "logical_nbytes": 1200,
        "padding_ratio": 8 * 384 / 600,
    }


def test_show() -> None:
    result = run("show", SHAPE)
    assert "12  13" in result.stdout
    assert "\x1b" not in result.stdout


def test_show_as_svg(tmp_path: Path) -> None:
    result = run("show", SHAPE, "--svg", tmp_path / "x.svg")
    assert result.output == ""
    assert (tmp_path / "x.svg").read_text() == fi.draw(SHAPE).svg()


def test_show_as_a_page(tmp_path: Path) -> None:
    assert run("show", SHAPE, "--html", tmp_path / "x.html").output == ""
    assert (tmp_path / "x.html").read_text() == fi.draw(SHAPE).html()


def test_show_where_elements_move(tmp_path: Path) -> None:
    destination = "f32[3,5]{0,1}"
    plan = fi.plan_relayout(SHAPE, destination)
    assert run("show", SHAPE, destination, "--svg", tmp_path / "x.svg").output == ""
    assert (tmp_path / "x.svg").read_text() == fi.draw(plan).svg()


def test_one_index_there_and_back() -> None:
    assert run("index", SHAPE, "2", "3").stdout == "17\n"
    assert run("index", SHAPE, "--linear", "17").stdout == "2 3\n"
    assert run("index", SHAPE, "--linear", "17", "8").stdout == "2 3\n0 4\n"
    assert run("index", "f32[]").stdout == "0\n"
    assert run("index", "f32[]", "--linear", "0").stdout == "\n"
    assert run("index", "f32[]", "--linear", ":").stdout == "\n"


def test_every_index() -> None:
    for y in range(3):
        for x in range(5):
            slot = run("index", SHAPE, str(y), str(x)).stdout
            assert int(slot) == (y // 2 * 3 + x // 2) * 4 + y % 2 * 2 + x % 2


@pytest.mark.parametrize("dtype", ["<i8", "<i4", ">i4", "u1", "<u8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_indices_in_bulk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, order: Any) -> None:
    monkeypatch.setattr("fastindex.jobs.layout_jobs._INDICES_AT_ONCE", 100)
    generator = np.random.default_rng(0)
    y, x = generator.integers(0, 3, (50, 7)), generator.integers(0, 5, (50, 7))
    slots = (y // 2 * 3 + x // 2) * 4 + y % 2 * 2 + x % 2
    np.save(tmp_path / "a.npy", np.array([y, x]).astype(dtype, order=order))
    run("index", SHAPE, "--input", tmp_path / "a.npy", "--output", tmp_path / "b.npy")
    found = np.load(tmp_path / "b.npy")
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, slots)
    np.save(tmp_path / "c.npy", slots.astype(dtype, order=order))
    run("index", SHAPE, "--linear", "--input", tmp_path / "c.npy", "--output", tmp_path / "d.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "d.npy"), [y, x])


@pytest.mark.parametrize("places", [(), (0,), (1,), (3, 0, 2)])
def test_few_indices_in_bulk(tmp_path: Path, places: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, *places), np.int64))
    run("index", SHAPE, "--input", tmp_path / "a.npy", "--output", tmp_path / "b.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), np.full(places, 3))
    run("index", SHAPE, "--linear", "--input", tmp_path / "b.npy", "--output", tmp_path / "c.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), np.ones((2, *places)))


def test_pack_and_unpack(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    run("pack", tmp_path / "a.npy", tmp_path / "b.bin", "--shape", TPU)
    assert (tmp_path / "b.bin").read_bytes() == tpu_buffer(array.view(np.uint16)).tobytes()
    run("pack", tmp_path / "a.npy", tmp_path / "b.npy", "--shape", TPU)
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy").view(np.uint16), tpu_buffer(array.view(np.uint16)))
    for name in ("b.bin", "b.npy"):
        run("unpack", tmp_path / name, tmp_path / "c.npy", "--shape", TPU)
        assert (tmp_path / "c.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()
    run("unpack", tmp_path / "b.bin", tmp_path / "c.bin", "--shape", TPU)
    assert (tmp_path / "c.bin").read_bytes() == array.tobytes()


def test_pack_of_an_array_whose_first_dimension_is_minor(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(array.view(np.uint16)))
    run("pack", tmp_path / "a.npy", tmp_path / "b.bin", "--shape", TPU)
    assert (tmp_path / "b.bin").read_bytes() == tpu_buffer(array.view(np.uint16)).tobytes()


@pytest.mark.parametrize("memory", ["32GiB", "64 GiB"])
def test_relayout(tmp_path: Path, array: np.ndarray, memory: str) -> None:
    array.T.copy().tofile(tmp_path / "a.bin")
    shapes = "bf16[100,300]{0,1}", TPU
    run(
        "relayout",
        tmp_path / "a.bin",
        tmp_path / "b.bin",
        "--from",
        shapes[0],
        "--to",
        shapes[1],
        "--max-memory",
        memory,
    )
    assert (tmp_path / "b.bin").read_bytes() == tpu_buffer(array.view(np.uint16)).tobytes()
    run("relayout", tmp_path / "b.bin", tmp_path / "b.bin", "--from", shapes[1], "--to", shapes[0], "--force")
    assert (tmp_path / "b.bin").read_bytes() == (tmp_path / "a.bin").read_bytes()


@pytest.mark.parametrize(("order", "layout"), [("C", "{1,0}"), ("F", "{0,1}")])
def test_relayout_of_an_array_in_a_npy_file(tmp_path: Path, order: str, layout: str) -> None:
    array = np.asarray(np.random.default_rng(0).random((30, 50), np.float32), order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "a.npy", array)
    to = "f32[30,50]{1,0:T(8,128)}"
    run("relayout", tmp_path / "a.npy", tmp_path / "b", "--from", f"f32[30,50]{layout}", "--to", to)
    assert (tmp_path / "b").read_bytes() == fi.pack(array, to).tobytes()
    other = {"{1,0}": "{0,1}", "{0,1}": "{1,0}"}[layout]
    assert "has the dimensions (30, 50)" in fails(
        "relayout", tmp_path / "a.npy", tmp_path / "b", "--from", f"f32[30,50]{other}", "--to", to
    )
    assert "needs float64" in fails(
        "relayout", tmp_path / "a.npy", tmp_path / "b", "--from", f"f64[30,50]{layout}", "--to", "f64[30,50]"
    )


def test_files_of_several_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", np.zeros(3))
    assert "several arrays" in fails("pack", tmp_path / "a.npz", tmp_path / "b", "--shape", "f64[3]")


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        (".npz", "numpy.save"),
        (".onnx", "onnx.numpy_helper.to_array"),
        (".pt", "safetensors.torch.save_file"),
        (".pth", "safetensors.torch.save_file"),
    ],
)
def test_files_of_other_programs(tmp_path: Path, kind: str, instead: str) -> None:
    """Even where their size is that of the array: they are not its bytes."""
    source, target = tmp_path / f"a{kind}", tmp_path / "b"
    source.write_bytes(bytes(8))
    for arguments in (("pack", source, target, "--shape", "f32[2]"), ("pack", source, target)):
        message = fails(*arguments)
        assert instead in message
        assert ".npy and .zarr, raw bytes, and checkpoints of .safetensors and .gguf" in message
    with pytest.raises(fi.FastIndexError, match="which fastindex does not read"):
        fi.weights.pack_checkpoint(source, tmp_path / "c", [])
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_relayout_of_packed_elements(tmp_path: Path) -> None:
    """An odd row: nibbles move alone, through unpacked values."""
    values = np.random.default_rng(0).integers(0, 16, (9, 15), dtype=np.uint8)

    def packed(numbers: np.ndarray) -> bytes:
        even = np.append(numbers.reshape(-1), 0)[: (numbers.size + 1) // 2 * 2].reshape(-1, 2)
        return (even[:, 0] | even[:, 1] << 4).astype(np.uint8).tobytes()

    (tmp_path / "a").write_bytes(packed(values))
    shapes = "u4[9,15]{1,0:E(4)}", "u4[9,15]{0,1:E(4)}"
    run("relayout", tmp_path / "a", tmp_path / "b", "--from", shapes[0], "--to", shapes[1], "--max-memory", "32GiB")
    assert (tmp_path / "b").read_bytes() == packed(values.T)


def test_padding_gets_the_padding_value(tmp_path: Path) -> None:
    np.arange(15, dtype=np.float32).tofile(tmp_path / "a")
    to = "f32[3,5]{1,0:PAD(4,6)PV(one)}"
    run("relayout", tmp_path / "a", tmp_path / "b.npy", "--from", "f32[3,5]", "--to", to)
    expected = np.ones((4, 6), np.float32)
    expected[:3, :5] = np.arange(15).reshape(3, 5)
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), expected.reshape(-1))


def test_report(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(MODULE)
    text = run("report", path).stdout
    for part in ("f32[1000,3]{1,0:T(8,128)}", "42.67", "swap the two minor dimensions"):
        assert part in text
    found = json.loads(run("report", path, "--json").stdout)
    assert found["total_nbytes"] == 2 * 1000 * 128 * 4
    assert found["total_logical_nbytes"] == 2 * 1000 * 3 * 4
    assert found["wasted_nbytes"] == found["total_nbytes"] - found["total_logical_nbytes"]
    (row,) = found["shapes"]
    assert {"text", "count", "nbytes", "logical_nbytes", "padding_ratio"} <= set(row)
    assert row["count"] == 2
    assert json.loads(run("report", "-", "--json", stdin=MODULE).stdout)["shapes"] == found["shapes"]
    assert json.loads(run("report", path, path, tmp_path, "--json").stdout)["total_nbytes"] == found["total_nbytes"]


def test_report_of_the_first_few(tmp_path: Path) -> None:
    lines = "".join(f"  p{i} = f32[{i},3]{{1,0:T(8,128)}} parameter({i})\n" for i in range(1, 9))
    (tmp_path / "m.hlo").write_text(f"HloModule m\nENTRY e {{\n{lines}}}\n")
    for sort in SORT_KEYS:
        found = json.loads(run("report", tmp_path / "m.hlo", "--json", "--top", "3", "--sort", sort).stdout)
        assert len(found["shapes"]) == 3
    assert "5 more shapes" in run("report", tmp_path / "m.hlo", "--top", "3").stdout
    # The choices are spelled out in the command line, which does not load the report for them.
    option = next(parameter for parameter in cli.main.commands["report"].params if parameter.name == "sort")
    assert tuple(option.type.choices) == SORT_KEYS  # type: ignore[attr-defined]


def test_lines_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    broken = MODULE.replace("ROOT n", "  q = f32[2 add(p)\n  ROOT n")
    (tmp_path / "m.hlo").write_text(broken)
    result = run("report", tmp_path / "m.hlo")
    assert "f32[1000,3]" in result.stdout
    assert "5" in result.stderr
    assert "m.hlo" in result.stderr


@pytest.mark.in_turn(seconds=1.1)
def test_demo_and_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    import fastindex.cli.demo
    import fastindex.moving.warmup

    original = fastindex.cli.demo.run_demo

    def small(write: Any, device: Any, **more: Any) -> bool:
        return original(write, device, 50, 300, 100, **more)

    monkeypatch.setattr(fastindex.cli.demo, "run_demo", small)
    assert run("demo").stdout.count("ok   ") == 4
    monkeypatch.setattr(fastindex.cli.demo, "_numpy_slots", lambda y, x, columns: y * columns + x)
    result = run("demo", status=1)
    assert "WRONG" in result.stdout
    assert result.stderr == "fastindex: the demo found wrong results\n"
    monkeypatch.setattr(fastindex.moving.warmup, "relayout_kernels", lambda _: iter([("fill", 1, 1)]))
    assert run("warmup").output == ""


@pytest.mark.in_turn(seconds=4)
def test_warmup_for_other_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fastindex.moving.warmup

    monkeypatch.setattr(fastindex.moving.warmup, "relayout_kernels", lambda _: iter([("fill", 1, 0)]))
    monkeypatch.setattr(fastindex.moving.warmup, "CALLED", {})
    assert run("warmup", "--target", "x86-64-v3, aarch64", "--output", tmp_path / "kernels").stdout == ""
    assert len([*(tmp_path / "kernels").glob("fill_runs-1-0.*.kernel")]) == 2
    monkeypatch.setattr(fastindex.moving.warmup, "relayout_kernels", lambda _: iter([("fill", 7, 7)]))
    assert "1 kernels for aarch64 were not compiled" in fails("warmup", "--target", "aarch64", "--output", tmp_path)


def test_targets_of_warmup_that_there_are_not(tmp_path: Path) -> None:
    assert "no target is called 'x86-64-v9'" in fails("warmup", "--target", "x86-64-v9")
    assert "--output is for --target" in run("warmup", "--output", tmp_path, status=2).stderr


def test_help_and_version() -> None:
    assert run("--version").stdout == f"fastindex, version {fi.__version__}\n"
    for command in cli.main.commands:
        text = run(command, "--help").stdout
        assert text.startswith("Usage: ")
        assert command in run("--help").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "_FASTINDEX_COMPLETE" in run("completion", shell).stdout
    monkeypatch.setenv("_FASTINDEX_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "fastindex rel")
    monkeypatch.setenv("COMP_CWORD", "rel" if shell == "fish" else "1")
    process = start(stdout=subprocess.PIPE)
    assert b"relayout" in process.communicate()[0]


def test_module_runs_the_command_line() -> None:
    process = start("index", SHAPE, "2", "3", stdout=subprocess.PIPE)
    assert process.communicate()[0] == b"17\n"
    assert process.returncode == 0


# Wrong usage: status 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Usage"),
        (["nonsense"], "No such command"),
        (["info"], "Missing argument 'SHAPE'"),
        (["info", SHAPE, "more"], "unexpected extra argument"),
        (["info", "f32[3,5]1", "f32[3,5]0"], "unexpected extra argument (f32[3,5]0). Quote a shape"),
        (["info", SHAPE, "--nonsense"], "No such option"),
        (["pack", __file__, "b"], "--shape says what array IN holds"),
        (["pack", __file__, "-", "--shape", SHAPE], "the output is a file, not standard output"),
        (["convert", "a", "-", "--rules", "b"], "./- is a file called -"),
        (["relayout", "a", "b", "--from", SHAPE], "Missing option '--to'"),
        (["show", SHAPE, "--svg", "a.png"], "the name must end in .svg"),
        (["relayout", "a", "b", "--from", SHAPE, "--to", SHAPE, "--max-memory", "much"], "not a size"),
        (["relayout", "a", "b", "--from", SHAPE, "--to", SHAPE, "--max-memory", "1"], "give at least 160MiB"),
        (["relayout", "a", "b", "--from", SHAPE, "--to", SHAPE, "--max-memory", "0"], "not a size"),
        (["relayout", "a", "b", "--from", SHAPE, "--to", SHAPE, "--max-memory", "1XB"], "not a size"),
        (["relayout", "a", "b", "--from", SHAPE, "--to", SHAPE, "--device", "tpu"], "tpu"),
        (["index", SHAPE, "2,3"], "'2,3' is not an integer; write the coordinates separated by spaces"),
        (["index", SHAPE, "2", "x"], "'x' is not an integer"),
        (["index", SHAPE, "--liner", "3"], "No such option '--liner'"),
        (["index", SHAPE, "--linear"], "needs slots"),
        (["index", SHAPE, "--linear", "x"], "'x' is not an integer"),
        (["index", SHAPE, "--input", "a.npy"], "--input and --output go together"),
        (["index", SHAPE, "1", "2", "--input", "a.npy", "--output", "b.npy"], "not both"),
        (["report"], "Missing argument"),
        (["report", "a", "-"], "stdin"),
        (["report", "a", "--top", "0"], "--top"),
        (["report", "a", "--sort", "size"], "--sort"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    result = run(*arguments, status=2)
    # Click 8.2 writes it with a colon.
    assert message in result.stderr.replace("option: --liner", "option '--liner'")
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1K", 1024), ("2 MiB", 2 << 20), ("1.5g", 3 << 29), ("1GB", 10**9), ("3kb", 3000), ("1TiB", 1 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert byte_size(text) == size


# Failures: status 1 and one clear line


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "f32[3,x]"],
        ["show", "f32[3,x]"],
        ["index", "f32[3,x]", "1", "2"],
        ["pack", "a", "b", "--shape", "f32[3,x]"],
        ["unpack", "a", "b", "--shape", "f32[3,x]"],
        ["relayout", "a", "b", "--from", "f32[3,x]", "--to", SHAPE],
        ["relayout", "a", "b", "--from", SHAPE, "--to", "f32[3,x]"],
    ],
)
def test_an_error_in_a_shape_shows_where(arguments: list[str]) -> None:
    assert fails(*arguments) == "expected an integer, found 'x', at column 7\n  f32[3,x]\n        ^"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["index", SHAPE, "2", "5"], "coordinate 5 is out of bounds for dimension 1 of size 5"),
        (["index", SHAPE, "-1", "3"], "coordinate -1 is out of bounds for dimension 0"),
        (["index", SHAPE, "1"], "one coordinate array per dimension, 2 for"),
        (["index", SHAPE, "--linear", "24"], "out of bounds for the 24 slots"),
        (["index", SHAPE, "--linear", "9"], "is padding"),
        (["index", SHAPE, "9" * 30, "1"], "int64"),
        (["index", "token[]", "1"], "token"),
        (["index", "f32[?]", "1"], "unbounded"),
        (["info", "f32[?]", "--json"], "unbounded"),
        (["show", "token[]"], "token"),
    ],
)
def test_what_has_no_answer(arguments: list[str], message: str) -> None:
    assert message in fails(*arguments)


@pytest.mark.parametrize(
    "command",
    [
        ["pack", "--shape", "u8[6]"],
        ["unpack", "--shape", "u8[6]"],
        ["relayout", "--from", "u8[2,3]", "--to", "u8[2,3]{0,1}"],
        ["repack", "--from", "plain", "--to", "plain", "--shape", "2x3", "--bits", "8"],
    ],
)
def test_no_command_replaces_its_input_unasked(tmp_path: Path, command: list[str]) -> None:
    source, link = tmp_path / "in.raw", tmp_path / "link.raw"
    source.write_bytes(b"abcdef")
    link.symlink_to(source)
    for target in (source, link):
        result = run(command[0], source, target, *command[1:], status=2)
        assert f"IN and OUT are the same file, '{source}'" in result.stderr.replace("\n", "")
    assert source.read_bytes() == b"abcdef"


def test_files_that_do_not_fit(tmp_path: Path, array: np.ndarray) -> None:
    good, other, bad = tmp_path / "a.npy", tmp_path / "f.npy", tmp_path / "raw"
    np.save(good, array)
    np.save(other, array.astype(np.float64))
    bad.write_bytes(bytes(100))
    target = tmp_path / "out.bin"
    for arguments, message in (
        (("pack", tmp_path / "nothing", target, "--shape", TPU), "nothing: No such file or directory"),
        (("pack", tmp_path / "nothing", target), "nothing: No such file or directory"),
        (("unpack", tmp_path / "nothing", target), "nothing: No such file or directory"),
        (("pack", tmp_path, target, "--shape", TPU), f"{tmp_path}: Is a directory"),
        (("pack", other, target, "--shape", TPU, "--casting", "no"), "holds float64"),
        (("pack", other, target, "--shape", TPU.replace("bf16", "s16")), "f64 is not cast to s16"),
        (("pack", good, target, "--shape", "bf16[300,100]"), "(100, 300)"),
        (("pack", bad, target, "--shape", TPU), "has 100"),
        (("unpack", bad, target, "--shape", TPU), "has 100"),
        (("unpack", good, target, "--shape", TPU), "has one; pack takes the array itself"),
        (("relayout", bad, target, "--from", TPU, "--to", "bf16[100,300]"), "has 100"),
        (("relayout", bad, target, "--from", TPU, "--to", "bf16[300,100]"), "keeps the array"),
        (("relayout", bad, target, "--from", "f32[25]{0:E(12)}", "--to", "f32[25]"), "E(12)"),
        (("pack", good, tmp_path / "no" / "out", "--shape", TPU), f"{tmp_path / 'no' / 'out'}: No such file"),
        (("pack", good, "/dev/null", "--shape", TPU), "not a regular file"),
        (("index", SHAPE, "--input", good, "--output", target), "must hold integers"),
        (("index", SHAPE, "--input", bad, "--output", target), "must be a .npy file"),
        (("show", SHAPE, "--svg", tmp_path / "no" / "x.svg"), "No such file"),
    ):
        assert message in fails(*arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "f.npy", "raw"]


@pytest.mark.skipif(fastindex.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(60))
    arguments = ("--from", "f32[3,5]", "--to", "f32[3,5]{0,1}", "--device", "cuda")
    for message in (fails("relayout", tmp_path / "a", tmp_path / "b", *arguments), fails("demo", "--device", "cuda")):
        assert "no kernel can run on the GPU" in message
        assert "\n" not in message
    assert not (tmp_path / "b").exists()


def test_coordinates_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastindex.jobs.layout_jobs._INDICES_AT_ONCE", 100)
    source, target = tmp_path / "a.npy", tmp_path / "b.npy"
    np.save(source, np.zeros((500, 2), np.int64))
    assert "(2, ...), one row per dimension; transpose it" in fails(
        "index", SHAPE, "--input", source, "--output", target
    )
    coordinates = np.zeros((2, 500), np.int64)
    coordinates[1, 432] = 5
    np.save(source, coordinates)
    assert "coordinate 5 at position 432" in fails("index", SHAPE, "--input", source, "--output", target)
    np.save(source, np.where(np.arange(500) == 321, 9, 8).reshape(50, 10))
    message = fails("index", SHAPE, "--linear", "--input", source, "--output", target)
    assert "slot 9 at position (32, 1) is padding" in message
    assert not target.exists()


@pytest.mark.parametrize("stdin", [b"", b"no HLO here", b"\0\1\2", b"HloModule m"])
def test_input_that_is_no_hlo(stdin: bytes) -> None:
    assert "not HLO text" in fails("report", "-", stdin=stdin)


def test_reports_of_nothing(tmp_path: Path) -> None:
    assert "No such file" in fails("report", tmp_path / "nothing.hlo")
    assert "no HLO text" in fails("report", tmp_path)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("unable to allocate 5 GiB"), "not enough memory: unable to allocate 5 GiB"),
        (MemoryError(), "not enough memory"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (RuntimeError("surprise"), "internal error at test_cli.py:"),
    ],
)
def test_no_error_shows_a_traceback(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("fastindex.show.picture.Picture.text", fail)
    assert message in fails("show", SHAPE)


# The world around


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 384 MiB."""
    path = tmp_path_factory.mktemp("large") / "large.bin"
    rows = np.random.default_rng(0).integers(0, 2**64, (8, 1 << 20), dtype=np.uint64)
    with path.open("wb") as file:
        for i in range(48):
            file.write((rows[i % 8] + np.uint64(i)).tobytes())
    return path


LARGE = "f32[8192,12288]"
#: The most memory a process has had, in KiB: what the limit promises, however slow a machine is. What getrusage says
#: counts its parent's too.
MEASURED = """
import atexit, re
from pathlib import Path
from fastindex.cli.commands import main
from tests.commands import run_command
atexit.register(lambda: print(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]))
main()
"""


@pytest.mark.in_turn(seconds=4)
@pytest.mark.parametrize("job", ["relayout", "pack", "unpack"])
@pytest.mark.parametrize("limit", [160, pytest.param(512, marks=pytest.mark.sweep)])
def test_memory_stays_below_its_limit(large: Path, tmp_path: Path, job: str, limit: int) -> None:
    """Both files together are 768 MiB, to and from tiles with the dimensions exchanged; the program counts too."""
    target, tiled = tmp_path / "out.bin", LARGE + "{0,1:T(8,128)}"
    shapes = ("--from", LARGE, "--to", tiled) if job == "relayout" else ("--shape", tiled)
    arguments = (job, str(large), str(target), *shapes, "--max-memory", f"{limit}MiB")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MEASURED, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
    assert int(done.stdout) << 10 < limit << 20
    plain, packed = (target, large) if job == "unpack" else (large, target)
    array = np.memmap(plain, np.uint32, mode="r", shape=(8192, 12288))
    tiles = np.memmap(packed, np.uint32, mode="r", shape=(1536, 64, 8, 128))
    for column in range(0, 1536, 96):
        assert np.array_equal(
            array[:, 8 * column : 8 * column + 8].reshape(64, 128, 8).transpose(0, 2, 1), tiles[column]
        )


def _has_unnamed_file(process: int, folder: Path) -> bool:
    """Whether a process has a file in a folder that is not there by its name."""

    def target(opened: Path) -> str:
        # It may be closed meanwhile.
        try:
            return os.readlink(opened)
        except FileNotFoundError:
            return ""

    return any(target(opened).startswith(f"{folder}/#") for opened in Path(f"/proc/{process}/fd").glob("*"))


#: The command line, whose writes say that they begin and wait until there is a file: however slow either process is.
HELD_WRITES = """
import os, sys, time
from fastindex.cli.commands import main
go, write = sys.argv.pop(1), os.pwritev
def held(*arguments):
    os.write(1, b"writing\\n")
    while not os.path.exists(go):
        time.sleep(0.01)
    return write(*arguments)
os.pwritev = held
main()
"""


@pytest.mark.in_turn(seconds=0.9)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_leaves_nothing_behind(large: Path, tmp_path: Path, number: int, status: int) -> None:
    (tmp_path / "folder").mkdir()
    target, go = tmp_path / "folder" / "out.bin", tmp_path / "go"
    target.write_bytes(b"before")
    job = ["relayout", large, target, "--from", LARGE, "--to", LARGE + "{0,1}", "--max-memory", "160MiB"]
    command = [sys.executable, "-c", HELD_WRITES, go, *job]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"writing\n"
            assert _has_unnamed_file(process.pid, target.parent)
            process.send_signal(number)
        finally:
            go.touch()
        stderr = process.communicate()[1]
    assert process.returncode == status
    assert stderr == (b"fastindex: interrupted\n" if status == 130 else b"")
    assert [path.name for path in target.parent.iterdir()] == ["out.bin"]
    assert target.read_bytes() == b"before"


def test_ctrl_c_while_the_command_line_is_read() -> None:
    """click alone would say "Aborted!" and end with 1."""
    program = """
import os, signal
from fastindex.cli.commands import main
main.make_context = lambda *args, **extra: os.kill(os.getpid(), signal.SIGINT)
main(["info", "f32[2]"])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=HANG_SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"fastindex: interrupted\n")


def test_a_signal_while_the_writer_of_files_is_imported() -> None:
    program = """
import os, signal, sys, types
from fastindex.cli.commands import main
sys.modules["fastindex.jobs.writing"] = types.ModuleType("fastindex.jobs.writing")
main.make_context = lambda *args, **extra: os.kill(os.getpid(), signal.SIGTERM)
main(["info", "f32[2]"])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=HANG_SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (143, b"", b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone(unbuffered: str) -> None:
    reader, writer = os.pipe()
    variables = {"PYTHONUNBUFFERED": unbuffered}
    process = start("show", "f32[60,60]", stdout=writer, stderr=subprocess.PIPE, variables=variables)
    os.close(reader)
    os.close(writer)
    assert process.communicate(timeout=HANG_SECONDS)[1] == b""
    assert process.returncode == 141


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_device_for_stdout(unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        variables = {"PYTHONUNBUFFERED": unbuffered}
        process = start("info", SHAPE, stdout=full, stderr=subprocess.PIPE, variables=variables)
        assert process.communicate(timeout=HANG_SECONDS)[1] == b"fastindex: stdout: No space left on device\n"
    assert process.returncode == 1


@pytest.mark.in_turn(seconds=2)
def test_a_full_disk(large: Path, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    target = tmp_path / "out.bin"
    arguments = ("--from", LARGE, "--to", LARGE + "{0,1}")
    process = start("relayout", large, target, *arguments, stderr=subprocess.PIPE, preexec_fn=limit)
    stderr = process.communicate(timeout=HANG_SECONDS)[1].decode()
    assert stderr == f"fastindex: {target}: File too large; it takes {8192 * 12288 * 4} bytes\n"
    assert process.returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_an_encoding_without_box_drawing() -> None:
    lines = []
    for encoding in ("utf-8", "latin-1"):
        variables = {"PYTHONIOENCODING": encoding}
        process = start("show", SHAPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, variables=variables)
        stdout, stderr = process.communicate()
        assert (process.returncode, stderr) == (0, b"")
        lines.append(stdout.decode(encoding).splitlines())
    assert len(lines[0]) == len(lines[1])
    assert any("?" in line for line in lines[1])


def on_terminal(*arguments: str | Path, **variables: str) -> str:
    """What a command writes to a terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100", **variables}
    environment = {name: value for name, value in environment.items() if value}
    command = [sys.executable, "-m", "fastindex", *map(str, arguments)]
    process = subprocess.Popen(command, env=environment, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    parts = []
    while True:
        try:
            part = os.read(leader, 1 << 16)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(leader)
    assert process.wait(timeout=HANG_SECONDS) == 0
    return b"".join(parts).decode()


def test_colours_on_a_terminal_unless_refused() -> None:
    assert "\x1b[" in on_terminal("show", SHAPE, NO_COLOR="")
    assert "\x1b[" not in on_terminal("show", SHAPE, NO_COLOR="1")


def test_notices_on_a_terminal(tmp_path: Path) -> None:
    assert f"wrote {tmp_path / 'x.svg'}" in on_terminal("show", SHAPE, "--svg", tmp_path / "x.svg")


class Terminal:
    def isatty(self) -> bool:
        return True


def test_progress_shows_after_a_while(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with cli_group.ProgressBar("working", 1e9) as bar:
        bar.start(100)
        bar.advance(40)
        assert bar._bar is None
        bar._patience_seconds = 0
        bar.advance(40)
        assert bar._bar is not None
        assert bar._bar.tasks[0].completed == 80
        assert bar._bar.tasks[0].total == 100


def test_no_progress_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with cli_group.ProgressBar("working", 0) as bar:
        bar.start(100)
        bar.advance(100)
    assert capsys.readouterr().err == ""


def test_dimensions_of_a_plain_target(tmp_path: Path) -> None:
    """The array's own in the order of memory, whatever the source is."""
    (tmp_path / "in").write_bytes(bytes(range(24)))
    for source, target, dimensions in (
        ("u8[2,3,4]", "u8[2,3,4]", (2, 3, 4)),
        ("u8[2,3,4]", "u8[2,3,4]{0,2,1}", (3, 4, 2)),
        ("u8[24]", "u8[24]", (24,)),
        ("u8[2,3,4]", "u8[2,3,4]{2,1,0:T(3,2)}", (24,)),
        # Neither a memory space, nor a round number of slots, nor the place of a dimension of size 1 changes a byte.
        ("u8[2,3,4]", "u8[2,3,4]{2,1,0:L(8)S(1)}", (2, 3, 4)),
        ("u8[1,2,12]", "u8[1,2,12]{2,0,1}", (2, 1, 12)),
        ("u8[1,1,24]", "u8[1,1,24]{2,0,1}", (1, 1, 24)),
    ):
        run("relayout", tmp_path / "in", tmp_path / "out.npy", "--from", source, "--to", target)
        found = np.load(tmp_path / "out.npy")
        assert found.shape == dimensions
        run("relayout", tmp_path / "out.npy", tmp_path / "back", "--from", target, "--to", source)
        assert (tmp_path / "back").read_bytes() == bytes(range(24))
    np.save(tmp_path / "square.npy", np.zeros((4, 4), np.uint8))
    result = fails("relayout", tmp_path / "square.npy", tmp_path / "x", "--from", "u8[4,4]{0,1}", "--to", "u8[4,4]")
    assert "in memory order has to be saved as array.reshape(-1)" in result
    (tmp_path / "one").write_bytes(b"x")
    run("relayout", tmp_path / "one", tmp_path / "one.npy", "--from", "u8[]", "--to", "u8[]")
    assert np.load(tmp_path / "one.npy").shape == ()
    run("relayout", tmp_path / "one.npy", tmp_path / "one.again", "--from", "u8[]", "--to", "u8[]")
    assert (tmp_path / "one.again").read_bytes() == b"x"


LONG = "9" * 5000


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (f"index f32[4,6] {LONG} 1", 2),
        (f"index f32[4,6] 1:{LONG} :", 2),
        (f"index f32[4,6] --linear {LONG}", 2),
        ("index f32[4,6] \u00b2 1", 2),
        (f"repack in out --from plain --to awq --bits 4 --shape {LONG}x4", 2),
        (f"repack in out --from plain --to awq --bits 4 --shape 4x24 --with group={LONG}", 2),
        (f"report {LONG}", 1),
    ],
)
def test_numbers_of_thousands_of_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, status: int
) -> None:
    """Python refuses to read them, with its own error; and a digit may not be one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_bytes(bytes(96))
    result = run_command(line.split())
    assert result.exit_code == status
    assert "internal error" not in result.output
    assert len(result.output) < 2100
    assert os.listdir() == ["in"]


@pytest.mark.in_turn(seconds=0.2)
@pytest.mark.parametrize("delay", [0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4])
def test_an_interrupt_while_modules_are_imported(tmp_path: Path, delay: float) -> None:
    """From the moment on that the package runs; before, Python itself ends."""
    program = f"""
import os, signal, sys, threading, time
threading.Thread(target=lambda: (time.sleep({delay - 0.08}), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
sys.argv = ["fastindex", "pack", "in", "out", "--shape", "f32[2000,2000]{{0,1:T(8,128)}}"]
from fastindex.__main__ import main
main()
"""
    (tmp_path / "in").write_bytes(bytes(16_000_000))
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    # A machine that is fast enough may be done before.
    assert (done.returncode, done.stderr) in ((130, "fastindex: interrupted\n"), (0, "")) or "<module>" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"in", "out"}


def test_functions_typed_as_commands() -> None:
    commands = cli.main.commands
    assert not {*cli_group._COMMANDS_OF} & {*commands}
    assert {meant.split()[0] for meant in cli_group._COMMANDS_OF.values()} <= {*commands}
    ended = run_command(["multi_index", "f32[3]", "2"])
    assert ended.exit_code == 2
    assert "multi_index is a function of Python; the command is 'fastindex index --linear'." in ended.stderr
