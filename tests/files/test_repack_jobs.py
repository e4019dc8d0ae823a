"""`repack` on files and on the command line, whole and part after part.

Tests of: files.repack_jobs, cli.repacking.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fastindex as fi
from fastindex.files import repack_jobs
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
    given = codes if source == "plain" else fi.repack(codes, "plain", source, shape=shape, bits=bits)
    expected = codes if destination == "plain" else fi.repack(codes, "plain", destination, shape=shape, bits=bits)
    given.tofile(tmp_path / "in")
    # Small parts, as where the memory does not hold all.
    monkeypatch.setattr(repack_jobs, "_PART_BYTES", part_bytes)
    if part_bytes < 1 << 20:
        monkeypatch.setattr(repack_jobs, "_COPIES", 1 << 16)
    names = "--from", source, "--to", destination
    outcome = run(str(tmp_path / "in"), str(tmp_path / "out"), *names, "--shape", "96x192", "--bits", str(bits))
    assert outcome[0] == 0, outcome
    assert (tmp_path / "out").read_bytes() == expected.tobytes()


def test_npy_parameters_and_errors(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(-8, 8, (64, 128)).astype(np.int8)
    path, out = str(tmp_path / "codes.npy"), str(tmp_path / "out.npy")
    np.save(path, codes)
    names = "--from", "plain", "--to", "pack_quantized", "--shape", "64x128"
    assert run(path, out, *names, "--bits", "4", "--with", "packed_dim=0") == (0, "")
    expected = fi.repack(codes, "plain", "pack_quantized", shape=codes.shape, bits=4, packed_dim=0)
    assert np.array_equal(np.load(out), expected)
    code, text = run(path, out, "--from", "plain", "--to", "marlinn", "--shape", "64x128")
    assert (code, "did you mean marlin" in text) == (1, True)
    code, text = run(path, out, "--from", "plain", "--to", "marlin", "--shape", "64x64")
    assert (code, "dimensions (64, 128), the shape is (64, 64)" in text) == (1, True)
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
