"""`repack` on files and on the command line, whole and part after part.

Tests of: weights.repack_jobs, cli.moving.
"""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastindex as fi
from fastindex.runtime import first_answer
from fastindex.weights import repack_jobs
from tests.commands import run_command


def run(*arguments: str) -> tuple[int, str]:
    result = run_command(["repack", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("source", "destination", "bits"),
    [
        ("awq", "marlin", 4),
        ("plain", "marlin", 8),
        ("marlin", "plain", 4),
        ("gptq", "awq", 4),
        ("pack_quantized", "mlx", 3),
    ],
)
@pytest.mark.parametrize("part_bytes", [64 << 20, 1 << 12])
def test_files(
    source: str, destination: str, bits: int, part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (96, 192)
    codes = np.random.default_rng(0).integers(0, 1 << bits, shape).astype(np.uint8)
    given = codes if source == "plain" else fi.weights.repack(codes, "plain", source, shape=shape, bits=bits)
    expected = (
        codes if destination == "plain" else fi.weights.repack(codes, "plain", destination, shape=shape, bits=bits)
    )
    given.tofile(tmp_path / "in")
    # Small parts, as where the memory does not hold all.
    monkeypatch.setattr(repack_jobs, "_PART_BYTES", part_bytes)
    if part_bytes < 1 << 20:
        monkeypatch.setattr(repack_jobs, "copies_of_move", lambda plan: 1 << 16)
    names = "--from", source, "--to", destination
    outcome = run(str(tmp_path / "in"), str(tmp_path / "out"), *names, "--shape", "96x192", "--bits", str(bits))
    assert outcome[0] == 0, outcome
    assert (tmp_path / "out").read_bytes() == expected.tobytes()


#: Formats of so many bits, and sizes that all of them take or that are not theirs.
PARTS = {
    4: [(64, 192), (33, 128), (256, 256), (3, 64, 64), (64, 64, 128), (2, 3, 32, 64)],
    8: [(128, 64), (100, 41), (256, 256), (3, 64, 64), (64, 64, 128), (2, 3, 32, 64)],
    3: [(64, 192), (33, 41)],
}


def parts_alike(names: tuple[str, str], shape: tuple[int, ...], bits: int, rows: int) -> bool:
    """Whether the formats take a shape and are moved in parts; then the parts are what the whole is."""
    formats = repack_jobs.Formats(names, shape, bits, (("tag", "Ab4a"),) if "onednn" in names else ())
    try:
        plan = formats.plan()
    except fi.FastIndexError:
        return False
    cut, codes = plan.cut, np.random.default_rng(rows).integers(0, 1 << bits, shape).astype(np.uint8)
    if cut is None:
        return False
    left, right = (np.zeros(end.side.nbytes, np.uint8) for end in plan.ends)
    more: dict[str, Any] = dict(formats.parameters) if names[0] == "onednn" else {}
    if names[0] == "plain":
        left[:] = codes.reshape(-1)
    else:
        left[:] = fi.weights.repack(codes, "plain", names[0], shape=shape, bits=bits, **more)
    plan.run(left, right, (0, 0), 1)
    each = repack_jobs.bytes_of_move(plan) * cut.step // cut.size
    made = np.full(right.size, 0xA5, np.uint8)

    def read(start: int, into: Any) -> None:
        into[:] = left[start : start + len(into)]

    def write(start: int, content: Any) -> None:
        made[start : start + len(content)] = content

    parts = list(repack_jobs.slices_of(formats, cut, rows * each))
    repack_jobs.move_parts(parts, read, write, (0, 0), lambda count: None)
    assert np.array_equal(made, right), (names, shape, bits, rows)
    assert len(parts) == -(-cut.size // (rows * cut.step)), (names, shape, bits, rows)
    return True


@pytest.mark.in_turn(seconds=1.4)
@pytest.mark.parametrize("bits", PARTS)
def test_parts_are_the_whole(bits: int) -> None:
    known = [one["name"] for one in fi.weights.formats() if one["refused"] is None and one["bits"] != ()]
    names = ["plain", "onednn", *(n for n in known if bits in bits_of(n) or None in bits_of(n))]
    rng = random.Random(bits)
    pairs = [("plain", name) for name in names] + [(name, "plain") for name in names]
    pairs += [(rng.choice(names), rng.choice(names)) for _ in range(80)]
    shapes = [rng.sample(PARTS[bits], 2) for _ in pairs]
    count = sum(
        parts_alike(pair, shape, bits, rng.choice((1, 2, 3)))
        for pair, of in zip(pairs, shapes, strict=True)
        for shape in of
    )
    assert count >= {3: 7, 4: 40, 8: 70}[bits], count


@pytest.mark.parametrize(("bits", "name"), [(4, "nncf"), (2, "tflite"), (1, "openvino"), (3, "coreml"), (6, "coreml")])
def test_parts_of_rows_in_broken_bytes(bits: int, name: str) -> None:
    """Rows of 41 codes end within a byte, so parts are as many rows as end with one."""
    for names in (("plain", name), (name, "plain"), (name, name)):
        formats = repack_jobs.Formats(names, (33, 41), bits, ())
        cut = formats.plan().cut
        assert cut is not None
        assert cut.step == {4: 2, 2: 4, 1: 8, 3: 8, 6: 4}[bits]
        assert all(parts_alike(names, (33, 41), bits, rows) for rows in (1, 2))


def bits_of(name: str) -> tuple[int | None, ...]:
    return next(tuple(one["bits"]) for one in fi.weights.formats() if one["name"] == name)


def test_npy_parameters_and_errors(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(-8, 8, (64, 128)).astype(np.int8)
    path, out = str(tmp_path / "codes.npy"), str(tmp_path / "out.npy")
    np.save(path, codes)
    names = "--from", "plain", "--to", "pack_quantized", "--shape", "64x128"
    assert run(path, out, *names, "--bits", "4", "--with", "packed_dim=0") == (0, "")
    expected = fi.weights.repack(codes, "plain", "pack_quantized", shape=codes.shape, bits=4, packed_dim=0)
    assert np.array_equal(np.load(out), expected)
    code, text = run(path, out, "--from", "plain", "--to", "marlinn", "--shape", "64x128")
    assert (code, "did you mean marlin" in text) == (1, True)
    code, text = run(path, out, "--from", "plain", "--to", "marlin", "--shape", "64x64")
    assert (code, "dimensions (64, 128), the shape is (64, 64)" in text) == (1, True)
    np.save(path, np.zeros((64, 16), np.int32))
    code, text = run(path, out, "--from", "awq", "--to", "marlin", "--shape", "128x64")
    assert (code, "(128, 8) words" in text, "its shape is (64, 128)" in text) == (1, True, True)
    np.save(path, codes)
    code, text = run(path, out, "--from", "plain", "--to", "blocked_scales", "--shape", "64x128", "--bits", "4")
    assert (code, "has 8 bits" in text) == (1, True)
    np.save(path, codes.astype(np.int32))
    code, text = run(path, out, *names, "--bits", "4")
    assert (code, "has dtype int32" in text) == (1, True)
    # The row of the whole file is named, not that of a part.
    codes[50, 3] = 8
    np.save(path, codes)
    code, text = run(path, out, *names, "--bits", "4")
    assert (code, "the one at (50, 3) is 8" in text) == (1, True)
    raw = str(tmp_path / "raw")
    Path(raw).write_bytes(bytes(64 * 64))
    code, text = run(raw, out, "--from", "plain", "--to", "marlin", "--shape", "64x128")
    assert (code, "8192 bytes" in text or "8192" in text) == (1, True)
    assert run(path, out, "--from", "plain", "--to", "marlin", "--shape", "64by64")[0] == 2
    assert run(path, out, *names, "--with", "packed_dim")[0] == 2
    np.save(path, np.asfortranarray(codes))
    code, text = run(path, out, *names)
    assert (code, "Fortran" in text) == (1, True)


def test_a_part_of_one_group_is_a_part_of_several() -> None:
    """The scales of one group are in another order than those of several: parts take the order of the whole."""
    formats = repack_jobs.Formats(("plain", "marlin_scales"), (5, 64), 16, ())
    scales = np.arange(5 * 64, dtype=np.uint16).reshape(5, 64)
    plan = formats.plan()
    assert plan.cut is not None
    made = bytearray()
    for part, _, places in repack_jobs.slices_of(formats, plan.cut, 2 * repack_jobs.bytes_of_move(plan) // 5):
        content = np.empty(part.ends[1].side.nbytes, np.uint8)
        data = scales.reshape(-1).view(np.uint8)[places[0] :][: part.ends[0].side.nbytes]
        part.run(data, content, (0, 0), None)
        assert places[1] == len(made)
        assert len(content) < 5 * 128
        made += content.tobytes()
    assert bytes(made) == fi.weights.repack(scales, "plain", "marlin_scales", shape=(5, 64)).tobytes()


@pytest.mark.parametrize(
    ("names", "bits", "copies"),
    [(("awq", "pack_quantized"), 4, 2), (("gptq", "marlin"), 4, 2), (("awq", "plain"), 4, 8), (("mlx", "gptq"), 3, 24)],
)
def test_memory_of_a_move(names: tuple[str, str], bits: int, copies: int) -> None:
    """Beside both buffers, no move takes more than its estimate; passes of kernels take nothing."""
    plan = repack_jobs.Formats(names, (1024, 1024), bits, ()).plan()
    data, target = (np.zeros(end.side.nbytes, np.uint8) for end in plan.ends)
    assert repack_jobs.copies_of_move(plan) == copies
    first_answer.load_kernels()
    plan.run(data, target, (0, 0), 1)
    tracemalloc.start()
    try:
        plan.run(data, target, (0, 0), 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= (copies - 2) * max(data.size, target.size) + (64 << 10), peak
    with first_answer.without_kernels():
        assert repack_jobs.copies_of_move(plan) == max(copies, 8)


def test_least_memory_of_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the limit leaves beside the program, and 16 MiB where it leaves less: then NumPy moves, without compiler."""
    for has_kernels, taken in ((False, 100 << 20), (True, 500 << 20)):
        monkeypatch.setattr(repack_jobs, "is_for_numpy", lambda limit, has=has_kernels: limit < 512 << 20 and not has)
        monkeypatch.setattr(repack_jobs, "taken_bytes", lambda by_numpy, taken=taken: taken)
        for limit in (1, 100 << 20, 1 << 30):
            with repack_jobs.memory_within(limit) as memory:
                assert memory == (taken, max(limit - taken, 16 << 20))
                assert first_answer._limited.get() == (limit < 1 << 30 and not has_kernels)
