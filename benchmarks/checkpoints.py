"""Jobs on checkpoints, beside `cp` of as many bytes and what people use today, from files outside the system's cache.

Usage::

    python benchmarks/checkpoints.py FOLDER --kind awq --gib 8 --max-memory 512MiB

Kinds: `tiles`, f32 to the tiles of bf16, beside NumPy's `astype` and transposes; `awq`, shards of AutoAWQ to
compressed-tensors, beside that package's own converter; `q8_0`, GGUF's Q8_0 to MLX, beside `mlx.core.load` and
`save_safetensors`. Each runs in a separate process and ends when everything is on disk. A line has the elapsed time,
the processor time of the process, and its peak memory. Dropping the system's cache needs root; the output says if
it was not dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastindex.core.shape import Shape
from fastindex.weights.safetensors_files import header_of

_GIB = 1 << 30
_TILES = [{"names": "*", "transpose": "a b -> b a", "dtype": "bf16", "layout": "{1,0:T(8,128)(2,1)}"}]
_GROUP = 128
#: Inputs and outputs of the linear layers of a block of Llama 2 7B.
_LINEARS = {"q": (4096, 4096), "k": (4096, 4096), "up": (4096, 11008), "down": (11008, 4096)}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": _GROUP, "version": "gemm", "zero_point": True}
_SHARD_BYTES = 1 << 29

_BY_NUMPY = """
import sys, pathlib, numpy, ml_dtypes
from safetensors.numpy import load_file
source, target = sys.argv[1:]
pathlib.Path(target).mkdir()
for name, tensor in load_file(f"{source}/model.safetensors").items():
    (rows, columns), cast = tensor.T.shape, tensor.T.astype(ml_dtypes.bfloat16)
    tiles = cast.reshape(rows // 8, 4, 2, columns // 128, 128).transpose(0, 3, 1, 4, 2)
    numpy.ascontiguousarray(tiles).view(numpy.uint16).tofile(f"{target}/{name}.bin")
"""
_BY_COMPRESSED_TENSORS = """
import sys
from compressed_tensors.entrypoints.convert import AutoAWQConverter, convert_checkpoint
convert_checkpoint(*sys.argv[1:], AutoAWQConverter(), device="cpu")
"""
_BY_MLX = """
import sys, pathlib, mlx.core
source, target = map(pathlib.Path, sys.argv[1:])
target.mkdir()
mlx.core.save_safetensors(str(target / "model.safetensors"), mlx.core.load(str(source / "model.gguf")))
"""


@dataclass(frozen=True)
class Run:
    """What a process took: wall and processor seconds, and its peak memory in bytes."""

    wall: float
    processor: float
    peak_bytes: int

    def __str__(self) -> str:
        return f"{self.wall:.2f} s, {self.processor:.2f} s of processors, {self.peak_bytes >> 20} MiB of memory"


def random_tensors(shapes: Mapping[str, Shape]) -> Iterator[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    for shape in shapes.values():
        dtype = shape.element_type.numpy_dtype
        if dtype.kind == "f":
            yield rng.standard_normal(shape.dimensions, np.float32).astype(dtype)
        else:
            yield np.frombuffer(rng.bytes(shape.nbytes), np.uint8)


def write_safetensors(path: Path, shapes: Mapping[str, Shape]) -> None:
    with open(path, "wb") as file:
        file.write(header_of(shapes))
        for tensor in random_tensors(shapes):
            file.write(tensor.data)


def write_tiles(folder: Path, nbytes: int) -> None:
    """Write f32 matrices of 64 MiB."""
    shapes = {f"layers.{i}.weight": Shape("f32", (4096, 4096)) for i in range(max(nbytes >> 26, 1))}
    write_safetensors(folder / "model.safetensors", shapes)


def write_awq(folder: Path, nbytes: int) -> None:
    """Write shards of 512 MiB as AutoAWQ does."""
    shards: list[dict[str, Shape]] = [{}]
    total = 0
    while total < nbytes:
        for name, (k, n) in _LINEARS.items():
            if sum(one.nbytes for one in shards[-1].values()) > _SHARD_BYTES:
                shards.append({})
            base = f"model.layers.{total}.{name}_proj"
            shards[-1][f"{base}.qweight"] = Shape("s32", (k, n // 8))
            shards[-1][f"{base}.qzeros"] = Shape("s32", (k // _GROUP, n // 8))
            shards[-1][f"{base}.scales"] = Shape("f16", (k // _GROUP, n))
            total += k * n // 2
    listed: dict[str, str] = {}
    for number, shapes in enumerate(shards):
        name = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        write_safetensors(folder / name, shapes)
        listed |= dict.fromkeys(shapes, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "quantization_config": _AWQ}
    (folder / "config.json").write_text(json.dumps(config))


def write_q8_0(folder: Path, nbytes: int) -> None:
    """Write a GGUF file of Q8_0."""
    import gguf

    writer = gguf.GGUFWriter(str(folder / "model.gguf"), "llama", use_temp_file=True)
    rng = np.random.default_rng(1)
    total, kind = 0, gguf.GGMLQuantizationType.Q8_0
    while total < nbytes:
        for name, (k, n) in _LINEARS.items():
            blocks = rng.integers(0, 256, (n, k // 32, 34), np.uint8)
            blocks[..., :2] = rng.standard_normal((n, k // 32, 1), np.float32).astype(np.float16).view(np.uint8)
            writer.add_tensor(f"blk.{total}.{name}.weight", blocks.reshape(n, -1), raw_dtype=kind)
            total += blocks.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


#: How to write a source; the file to pass, the command, its rules; and what it is compared with.
_KINDS = {
    "tiles": (write_tiles, "model.safetensors", "pack", "rules.json", "NumPy", _BY_NUMPY),
    "awq": (write_awq, "", "convert", "awq-to-compressed-tensors", "compressed-tensors", _BY_COMPRESSED_TENSORS),
    "q8_0": (write_q8_0, "model.gguf", "convert", "gguf-to-mlx", "MLX", _BY_MLX),
}


def forget_files() -> bool:
    """Drop the system's cache of files; whether it could be done."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def run_of(*command: object) -> Run:
    """Run a command on files outside the cache, until all it writes is on disk."""
    forget_files()
    began = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[:4]} failed")
    os.sync()
    return Run(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss << 10)


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    """Write a checkpoint, and print what each takes to convert it."""
    write, file, command, rules, name, rival = _KINDS[arguments.kind]
    source, out, copied = (folder / one for one in ("in", "out", "copied"))
    source.mkdir()
    (folder / "rules.json").write_text(json.dumps({"rules": _TILES}))
    write(source, int(arguments.gib * _GIB))
    rules = str(folder / rules) if rules.endswith(".json") else rules
    own = [sys.executable, "-m", "fastindex", command, source / file, out]
    own += ["--rules", rules, "--max-memory", arguments.max_memory]
    moved = sum(one.stat().st_size for one in source.iterdir())
    print(f"{arguments.kind}: {moved / _GIB:.2f} GiB; files out of the cache: {forget_files()}", flush=True)
    ratios = []
    for _ in range(arguments.repeats):
        mine = run_of(*own)
        there, back = run_of("cp", "-r", source, copied), folder / "back"
        again = run_of("cp", "-r", out, back)
        written = sum(one.stat().st_size for one in out.iterdir())
        for one in (out, copied, back):
            shutil.rmtree(one)
        both = (there.wall + again.wall) / 2
        ratios.append(mine.wall / both)
        each = (moved + written) / 2 / _GIB
        print(
            f"fastindex {command}: {mine}: {ratios[-1]:.2f} times cp, {mine.processor / each:.2f} s of processors a GiB"
        )
        print(f"cp of the source: {there}; of the result: {again}", flush=True)
        if not arguments.only_cp:
            theirs = run_of(sys.executable, "-c", rival, source, out)
            shutil.rmtree(out)
            print(
                f"{name}: {theirs}: {theirs.wall / mine.wall:.1f} times the wall time of fastindex, "
                f"{theirs.processor / mine.processor:.1f} times its processor time",
                flush=True,
            )
    print(f"median: {statistics.median(ratios):.2f} times cp")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=_KINDS, default="tiles")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--max-memory", default="512MiB")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only-cp", action="store_true", help="compare with cp only")
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        measure(Path(scratch), arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
