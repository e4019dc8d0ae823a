"""What is known of the GPU kernels without a GPU: instructions, registers, loads in flight, banks, sectors, host.

    python benchmarks/gpu_static.py             every kernel, for sm_90: two minutes
    python benchmarks/gpu_static.py transpose   only kernels with this in their name

It needs the extra ``test-cuda``, and gcc for the host's part, where calls run against a stand-in for CUDA's driver.
None of these numbers is a speed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

CAPABILITY = (9, 0)

HOST = """
import time
import numpy as np
from numba import cuda
import fastindex as fi

plan = fi.plan_relayout("f32[64,64]{1,0}", "f32[64,64]{0,1}")
given, out = cuda.device_array(4096, np.float32), cuda.device_array(4096, np.float32)
shape = fi.Shape.parse("f32[64,64]{1,0:T(8,128)}")
columns, slots = [cuda.to_device(np.zeros(64, np.int64)) for _ in range(2)], cuda.device_array(64, np.int64)
calls = {
    "plan(buffer, out=out)": lambda: plan(given, out=out),
    'linear_index(mode="wrap", out=out)': lambda: fi.linear_index(shape, columns, "wrap", out=slots),
    "linear_index(out=out), waits": lambda: fi.linear_index(shape, columns, out=slots),
}
for name, call in calls.items():
    best = float("inf")
    for _ in range(7):
        call()
        begin = time.perf_counter()
        for _ in range(300):
            call()
        best = min(best, (time.perf_counter() - begin) / 300)
    print(f"{name:38}{best * 1e6:6.1f}")
"""


def kernels(part: str) -> None:
    from tests.kernels.cuda_code import code_of
    from tests.kernels.cuda_kernels import absent_device, common_paths, every_kernel

    print(f"{'kernel':44}{'registers':>10}{'shared':>8}{'instructions':>14}{'common path':>13}{'in flight':>11}")
    common = common_paths()
    with tempfile.TemporaryDirectory() as folder, absent_device(CAPABILITY):
        for name, kernel in every_kernel().items():
            if part not in name:
                continue
            code = code_of(kernel.ptx(CAPABILITY), CAPABILITY, Path(folder))
            line = f"{name:44}{code.registers:10}{code.shared_bytes:8}{len(code.instructions):14}"
            if name in common:
                path = code_of(common[name].ptx(CAPABILITY), CAPABILITY, Path(folder))
                line += f"{len(path.instructions):13}{path.loads_in_flight:11}"
            print(line, flush=True)


def banks() -> None:
    from fastindex.cuda.launches.launches import FEW_BYTES
    from fastindex.cuda.launches.records import stage_skew, stage_ways

    print("\nMost lanes that meet in a bank where rows are interleaved, over every number of rows:")
    for width in (1, 2, 4, 8):
        for unit in sorted({width, max(width, 4)}):
            ways = (
                stage_ways(rows, width, unit, stage_skew(rows, width, unit)) for rows in range(1, FEW_BYTES // width)
            )
            print(f"  {width}-byte elements, {unit} bytes at once: {max(ways)}")


def sectors() -> None:
    from fastindex import Shape
    from fastindex.algebra.loops import relayout_loops
    from fastindex.cuda.launches.launches import converting_launches, launches
    from tests.kernels.test_cuda_banks import SECTOR_CASES, accesses, filled_sectors

    print("\nThe least part that a warp's accesses fill of the 32-byte sectors of memory that they touch:")
    for source, destination, kernel in SECTOR_CASES:
        first, second = Shape.parse(source), Shape.parse(destination)
        loops, bits = relayout_loops(first, second), second.element_bits
        found = converting_launches(loops, bits, False, 16) if bits < 8 else launches(loops, first.element_type.nbytes)
        least = min(filled_sectors(*access) for launch in found for access in accesses(launch))
        print(f"  {kernel:10}{source} to {destination}: {least:.2f}")


def packed() -> None:
    from fastindex import Shape
    from fastindex.algebra.loops import relayout_loops
    from fastindex.cuda.launches.launches import converting_launches

    print("\nBytes moved for each element where one side is packed:")
    for bits, name in ((4, "s4"), (2, "u2"), (1, "pred")):
        for sizes in ("4096,4096", "4093,4099"):
            whole = Shape.parse(f"{name}[{sizes}]{{1,0:E({bits})}}"), Shape.parse(f"{name}[{sizes}]{{1,0:T(8,128)}}")
            on_the_way = converting_launches(relayout_loops(*whole), bits, True, 16) is not None
            moved = bits / 8 + 1 + (0 if on_the_way else 2)
            print(f"  {name}[{sizes}], packed, to T(8,128): {moved}")


def count() -> None:
    command = [sys.executable, "-m", "tests.kernels.cuda_kernel_count", "400"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    print(f"\nKernels that the cases of tests/test_gpu.py take: {len(json.loads(result.stdout.splitlines()[-1]))}")


def host() -> None:
    from tests.cuda.stand_in import driver

    print("\nMicroseconds of a call on the host, against a stand-in for CUDA's driver:")
    missing = driver.missing()
    if missing is not None:
        print(f"  {missing}")
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {**driver.environment(driver.build(Path(folder))), "PYTHONPATH": str(ROOT)}
        environment.pop("STAND_IN_LOG")
        subprocess.run([sys.executable, "-c", HOST], check=True, env=environment)


def main() -> None:
    kernels(sys.argv[1] if len(sys.argv) > 1 else "")
    banks()
    sectors()
    packed()
    count()
    host()


if __name__ == "__main__":
    main()
