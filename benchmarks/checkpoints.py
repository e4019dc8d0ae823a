"""A safetensors file of f32 to the tiles of bf16, beside `cp`, from files that are not in the system's cache.

Usage::

    python benchmarks/checkpoints.py FOLDER --gib 8 --max-memory 512MiB

It writes the file, and says how long it takes to pack it, to copy as many bytes with `cp`, and to do what people do
today: NumPy's `astype`, a transpose, the tiles by reshape and transpose, and `tofile`, one tensor at a time. Everything
ends when it is on disk. Dropping the system's cache needs root; without it, that is said.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

_TENSOR_BYTES = 64 << 20
_ROWS, _COLUMNS = 4096, 4096
_LAYOUT = "{1,0:T(8,128)(2,1)}"


def write_source(path: Path, nbytes: int) -> int:
    """Write tensors of 64 MiB, and return how many."""
    count = max(nbytes // _TENSOR_BYTES, 1)
    header = {
        f"layers.{i}.weight": {
            "dtype": "F32",
            "shape": [_ROWS, _COLUMNS],
            "data_offsets": [i * _TENSOR_BYTES, (i + 1) * _TENSOR_BYTES],
        }
        for i in range(count)
    }
    text = json.dumps(header).encode()
    rng = np.random.default_rng(1)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(count):
            file.write(rng.standard_normal(_TENSOR_BYTES // 4, np.float32).data)
        file.flush()
        os.fsync(file.fileno())
    return count


def forget_files() -> bool:
    """Drop the system's cache of files; whether it could be done."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def seconds_of(call: Callable[[], object]) -> float:
    """Return what a call takes until all of it is on disk, with no file in the cache before."""
    forget_files()
    began = time.perf_counter()
    call()
    os.sync()
    return time.perf_counter() - began


def by_numpy(source: Path, target: Path) -> None:
    """Write every tensor as bf16 tiles, as one does without fastindex."""
    target.mkdir()
    with open(source, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    for name, entry in header.items():
        first = 8 + size + entry["data_offsets"][0]
        tensor = np.memmap(source, np.float32, "r", first, tuple(entry["shape"]))
        cast = tensor.T.astype(ml_dtypes.bfloat16)
        tiles = cast.reshape(_COLUMNS // 8, 4, 2, _ROWS // 128, 128).transpose(0, 3, 1, 4, 2)
        np.ascontiguousarray(tiles).view(np.uint16).tofile(target / f"{name}.bin")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--max-memory", default="512MiB")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--without-numpy", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        measure(Path(scratch), arguments)
    return 0


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    """Write a file, and print what is done with it."""
    source, out, rules, copied = (folder / name for name in ("model.safetensors", "out", "rules.json", "copied"))
    rule = {"names": "*", "transpose": "a b -> b a", "dtype": "bf16", "layout": _LAYOUT}
    rules.write_text(json.dumps({"rules": [rule]}))
    count = write_source(source, int(arguments.gib * (1 << 30)))
    print(f"{count} tensors, {source.stat().st_size >> 20} MiB; files out of the cache: {forget_files()}")
    command = [sys.executable, "-m", "fastindex", "pack", str(source), str(out), "--rules", str(rules)]
    command += ["--max-memory", arguments.max_memory]
    for _ in range(arguments.repeats):
        packed = seconds_of(lambda: subprocess.run(command, check=True))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"pack: {packed:.2f} s, at most {peak:.0f} MiB of memory")
        cp = seconds_of(lambda: subprocess.run(["cp", str(source), str(copied)], check=True))
        copied.unlink()
        half = seconds_of(lambda: subprocess.run(["cp", "-r", str(out), str(copied)], check=True))
        shutil.rmtree(copied)
        shutil.rmtree(out)
        both = (cp + half) / 2
        print(f"cp of the source: {cp:.2f} s, of the result: {half:.2f} s")
        print(f"cp of as many bytes as are read and written: {both:.2f} s")
        print(f"pack takes {packed / both:.2f} times that")
        if not arguments.without_numpy:
            numpy = seconds_of(lambda: by_numpy(source, folder / "numpy"))
            shutil.rmtree(folder / "numpy")
            print(f"NumPy, tensor by tensor: {numpy:.2f} s, {numpy / packed:.2f} times")


if __name__ == "__main__":
    sys.exit(main())
