"""What the compiled GPU kernels ask of memory, counted by running their PTX in an emulator: no GPU, and no times.

    python benchmarks/gpu_counts.py             every case: some minutes
    python benchmarks/gpu_counts.py transpose   only cases with this in their name
    python benchmarks/gpu_counts.py --keep      the cases of `gpu.py`, for its predictions: a quarter of an hour

It needs the extra ``test-cuda`` and gcc. For each launch of a case, for sm_90:

* sectors a request: of 32 bytes, that one access of a warp touches; read, then written
* of the least: sectors asked for, over all requests, against those that hold the bytes; read, then written
* banks: how often shared memory is asked, against how often it has to be
* instructions: of PTX, of all threads, for each 16 bytes that are written
* registers of a thread, as NVIDIA's assembler gives them out
* in flight: bytes that a thread asks for before it uses the first of them, in the order of the PTX
* below 0.9: what would keep it below 0.9 of a copy on an H200, by the numbers of `Row.reasons`; nothing where nothing

The tables of a launch are a few kilobytes that every block reads; they are left out of the sectors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

CAPABILITY = (9, 0)
GLOBAL, SHARED = 1, 3

#: What more than this of the least is marked with.
MOST = 1.1

#: Of a processor of an H200: bytes of memory a cycle, read and written, and instructions of threads a cycle.
BYTES_A_CYCLE, INSTRUCTIONS_A_CYCLE = 16.5, 128

#: Cycles until a load arrives: assumed, not measured.
LATENCY = 800

#: Registers of a processor, and the most threads.
REGISTERS, MOST_THREADS = 65536, 2048


def both_ways(name: str, source: str, destination: str) -> dict[str, tuple[str, str]]:
    return {name: (source, destination), f"{name}, back": (destination, source)}


def cases() -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    types = {1: "u8", 2: "bf16", 4: "f32", 8: "f64", 16: "c128"}
    for width, name in types.items():
        even = 1024 if width < 4 else 512 if width < 16 else 256
        for kind, rows, columns in (("", even, even), (", odd sizes", even - 3, even - 5)):
            sizes = f"{name}[{rows},{columns}]"
            found[f"transpose {name}{kind}"] = f"{sizes}{{1,0}}", f"{sizes}{{0,1}}"
        if width in (1, 2, 4):
            sizes = f"{name}[512,1024]"
            tile = {1: "T(8,128)(4,1)", 2: "T(8,128)(2,1)", 4: "T(8,128)"}[width]
            found |= both_ways(f"tiles {name}", f"{sizes}{{1,0}}", f"{sizes}{{1,0:{tile}}}")
            sizes = f"{name}[509,1019]"
            found |= both_ways(f"tiles {name}, odd sizes", f"{sizes}{{1,0}}", f"{sizes}{{1,0:{tile}}}")
    for name, rows in (("u8", 3), ("u8", 4), ("u8", 16), ("bf16", 2), ("bf16", 5), ("bf16", 8), ("f32", 3), ("f32", 8)):
        sizes = f"{name}[{rows},65536]"
        found |= both_ways(f"interleave {rows} rows of {name}", f"{sizes}{{1,0}}", f"{sizes}{{0,1}}")
    for name, rows in (("u8", 64), ("f32", 16), ("f64", 8)):
        sizes = f"{name}[{rows},16384]"
        found |= both_ways(f"transpose {name}, 64 bytes", f"{sizes}{{1,0}}", f"{sizes}{{0,1}}")
    for name in ("f64", "c128"):
        sizes = f"{name}[3,16381]"
        found |= both_ways(f"interleave 3 odd rows of {name}", f"{sizes}{{1,0}}", f"{sizes}{{0,1}}")
    found["rows of u8 that start anywhere"] = "u8[512,1021]{1,0}", "u8[512,1021]{1,0:T(8,128)}"
    found["planes of bf16 that start anywhere"] = "bf16[9,61,1001]{2,1,0}", "bf16[9,61,1001]{2,0,1}"
    found["s4 unpacked"] = "s4[512,1024]{1,0:E(4)}", "s4[512,1024]{1,0:T(8,128)}"
    found["s4 packed"] = "s4[512,1024]{1,0}", "s4[512,1024]{1,0:T(8,128)E(4)}"
    for source, target in (("f32", "bf16"), ("bf16", "f32"), ("s8", "bf16"), ("f32", "f8e4m3fn"), ("u8", "f32")):
        name, sizes = f"cast {source} to {target}", "[512,1024]"
        found[name] = f"{source}{sizes}", f"{target}{sizes}"
        found[f"{name}, transpose"] = f"{source}{sizes}{{1,0}}", f"{target}{sizes}{{0,1}}"
        found[f"{name}, transpose, odd sizes"] = f"{source}[509,1019]{{1,0}}", f"{target}[509,1019]{{0,1}}"
        tile = "T(8,128)(2,1)" if target == "bf16" else "T(8,128)(4,1)" if target == "f8e4m3fn" else "T(8,128)"
        found |= both_ways(f"{name}, tiles", f"{source}{sizes}{{1,0}}", f"{target}{sizes}{{1,0:{tile}}}")
    found["slot by slot f32"] = "f32[300,500]{1,0:T(4,8)(2,1)}", "f32[300,500]{0,1:T(3)(2)L(16)}"
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """The counts of one launch; None where there is nothing to count. `moved`: bytes, for each that is written."""

    case: str
    kernel: str
    read: float | None
    written: float | None
    read_of_least: float | None
    written_of_least: float | None
    banks: float | None
    instructions: float
    registers: int
    in_flight: int
    moved: float
    #: Bytes of the sectors that hold what is read and written; those asked for.
    least_bytes: int
    asked_bytes: int
    total_instructions: int

    @property
    def is_above(self) -> bool:
        parts = (self.read_of_least, self.written_of_least, self.banks)
        return any(part is not None and part > MOST for part in parts)

    def reasons(self) -> list[str]:
        """Return what would keep the launch below 0.9 of a copy, by what a processor has and the launch takes."""
        threads = min(REGISTERS // max(self.registers, 1), MOST_THREADS)
        found = []
        for name, part in (("read", self.read_of_least), ("written", self.written_of_least), ("banks", self.banks)):
            if part is not None and part > MOST:
                found.append(name if name == "banks" else f"sectors {name}")
        if self.instructions > 16 * self.moved / BYTES_A_CYCLE * INSTRUCTIONS_A_CYCLE:
            found.append("instructions")
        if self.read is not None and self.in_flight * threads < BYTES_A_CYCLE / 2 * LATENCY:
            found.append("in flight")
        return found

    def cells(self) -> list[str]:
        def shown(value: float | None, digits: int) -> str:
            return "" if value is None else f"{value:.{digits}f}"

        return [
            self.case,
            self.kernel,
            f"{shown(self.read, 1)} / {shown(self.written, 1)}",
            f"{shown(self.read_of_least, 2)} / {shown(self.written_of_least, 2)}{' *' if self.is_above else ''}",
            shown(self.banks, 2),
            f"{self.instructions:.0f}",
            str(self.registers),
            str(self.in_flight),
            ", ".join(self.reasons()),
        ]


HEADINGS = ["case", "kernel", "sectors a request", "of the least", "banks", "instructions", "registers"]
HEADINGS += ["in flight", "below 0.9"]


class Counter:
    """Takes the place of launching: runs a kernel at once, and counts."""

    def __init__(self, folder: Path) -> None:
        from fastindex.cuda import queues
        from fastindex.cuda.kernels.compilation import Kernel

        self.rows: list[Row] = []
        self.case = ""
        self._folder = folder
        self._registers: dict[str, int] = {}
        self._tables: set[int] = set()
        place = queues.Tables.place

        def placed(tables: Any, key: Any, numbers: Any, queue: Any) -> Any:
            found = place(tables, key, numbers, queue)
            self._tables.add(found.address)
            return found

        queues.Tables.place = placed  # type: ignore[method-assign]
        counter = self

        def launch(kernel: Any, blocks: int, device: int, stream: Any, *arguments: int) -> None:
            counter.run(kernel, blocks, arguments)

        Kernel.launch = launch  # type: ignore[method-assign]

    def run(self, kernel: Any, blocks: int, arguments: tuple[int, ...]) -> None:
        from fastindex.cuda.kernels.device import THREADS
        from tests.cuda.ptx.emulator import Program
        from tests.cuda.stand_in.emulated import DRIVER, finish
        from tests.kernels.cuda_code import code_of

        finish()
        ptx = kernel.ptx(CAPABILITY)
        program = Program(ptx, kernel.name, DRIVER)
        program.launch(blocks, THREADS, *arguments, counting=True)
        if kernel.name not in self._registers:
            self._registers[kernel.name] = code_of(ptx, CAPABILITY, self._folder).registers
        data, bases = 0, []
        for number, base in enumerate(_arrays_of(DRIVER, arguments)):
            if base not in self._tables:
                data |= 1 << number
                bases.append(base)
        sides = [
            _side(
                [one for one in program.accesses if one.space == GLOBAL and one.arrays & data and one.operation == name]
            )
            for name in ("LD", "ST")
        ]
        least = [sum(int(DRIVER.ptx_memory_sectors(base, kind)) for base in bases) for kind in (1, 2)]
        shared = [one for one in program.accesses if one.space == SHARED]
        banks = sum(one.wavefronts for one in shared) / sum(one.least_wavefronts for one in shared) if shared else None
        (reads, read_sectors, _), (writes, written_sectors, written_bytes) = sides
        self.rows.append(
            Row(
                self.case,
                # The form of an index kernel is long.
                kernel.name.split(" KernelForm")[0],
                read_sectors / reads if reads else None,
                written_sectors / writes if writes else None,
                read_sectors / least[0] if reads else None,
                written_sectors / least[1] if writes else None,
                banks,
                16 * program.instructions / max(written_bytes, 1),
                self._registers[kernel.name],
                program.bytes_in_flight,
                sum(least) / max(least[1], 1),
                32 * sum(least),
                32 * (read_sectors + written_sectors),
                program.instructions,
            )
        )
        print(f"| {' | '.join(self.rows[-1].cells())} |", flush=True)


def _side(accesses: list[Any]) -> tuple[int, int, int]:
    names = ("requests", "sectors", "moved_bytes")
    requests, sectors, nbytes = (sum(getattr(one, name) for one in accesses) for name in names)
    return requests, sectors, nbytes


def _arrays_of(driver: Any, arguments: tuple[int, ...]) -> list[int]:
    """Return where the arrays of a launch begin, in the order in which the emulator numbers them."""
    from tests.cuda.ptx.emulator import begin_of

    found: list[int] = []
    for number in arguments:
        base = begin_of(driver, number)
        if base is not None and base not in found:
            found.append(base)
    return found


def inside(part: str) -> None:
    """Count, in a process that sees the stand-in driver."""
    import numpy as np

    import fastindex as fi
    from tests.cuda.stand_in import emulated  # noqa: F401  (its import starts it)
    from tests.kernels.gpu_package import to_gpu, to_host

    print(f"| {' | '.join(HEADINGS)} |\n|---|---|---:|---:|---:|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory() as folder:
        counter = Counter(Path(folder))
        for name, (source, destination) in cases().items():
            if part not in name:
                continue
            counter.case = name
            buffer = np.random.default_rng(1).integers(256, size=fi.Shape.parse(source).nbytes, dtype=np.uint8)
            found = to_host(fi.relayout(to_gpu(buffer), source, destination, casting="unsafe"))
            assert found.tobytes() == fi.relayout(buffer, source, destination, casting="unsafe").tobytes(), name
        if part in "index":
            count_indices(counter)
    above = [row for row in counter.rows if row.is_above]
    print(f"\n{len(counter.rows)} launches; {len(above)} above {MOST} of the least, marked with *")


def keep() -> None:
    """Count what `gpu.py` measures, smaller, on the stand-in driver; write what it predicts from."""
    import numpy as np

    import fastindex as fi
    from benchmarks.cases import IndexCase
    from benchmarks.gpu import COUNTS
    from benchmarks.gpu_cases import in_order
    from fastindex.cuda.kernels.device import cuda
    from tests.cuda.stand_in import emulated  # noqa: F401  (its import starts it)

    kept: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        counter = Counter(Path(folder))
        for case in in_order():
            begin = len(counter.rows)
            rng = np.random.default_rng(1)
            if isinstance(case, IndexCase):
                shape = fi.Shape.parse(case.shape)
                indices = tuple(cuda.to_device(rng.integers(size, size=1 << 16)) for size in shape.dimensions)
                moved = 8 * (shape.rank + 1) << 16
                slots = fi.linear_index(shape, indices, "wrap")
                kept[f"linear_index, {case.name}"] = _shares(counter.rows[begin:], moved)
                begin = len(counter.rows)
                fi.multi_index(shape, slots, padding="mark")
                kept[f"multi_index, {case.name}"] = _shares(counter.rows[begin:], moved)
            else:
                source, destination = map(fi.Shape.parse, case.reduced(1 << 20))
                buffer = cuda.to_device(rng.integers(256, size=source.nbytes, dtype=np.uint8))
                fi.relayout(buffer, source, destination, casting="unsafe")
                kept[case.name] = _shares(counter.rows[begin:], source.nbytes + destination.nbytes)
    COUNTS.write_text(json.dumps(kept, indent=1) + "\n")


def _shares(rows: list[Row], moved: int) -> list[list[float]]:
    """Of each launch: the share of the bytes it moves, sectors asked for of the least, instructions a byte."""
    return [
        [
            round(row.least_bytes / moved, 4),
            round(row.asked_bytes / row.least_bytes, 4),
            round(row.total_instructions / row.least_bytes, 3),
        ]
        for row in rows
    ]


def count_indices(counter: Counter) -> None:
    import numpy as np

    import fastindex as fi
    from tests.kernels.gpu_package import to_gpu, to_host

    shape = fi.Shape.parse("bf16[4096,4096]{1,0:T(8,128)(2,1)}")
    rng = np.random.default_rng(1)
    indices = tuple(to_gpu(rng.integers(4096, size=1 << 16)) for _ in range(2))
    counter.case = "linear_index"
    slots = fi.linear_index(shape, indices)
    counter.case = "multi_index"
    back = fi.multi_index(shape, slots)
    assert all(np.array_equal(to_host(a), to_host(b)) for a, b in zip(back, indices, strict=True))


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    if "STAND_IN_LOG" in os.environ:
        keep() if part == "--keep" else inside(part)
        return
    from tests.cuda.stand_in import driver

    missing = driver.missing()
    if missing is not None:
        sys.exit(missing)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**driver.environment(driver.build(Path(folder))), "PYTHONPATH": str(ROOT)}
        code = subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=environment, check=False).returncode
    sys.exit(code)


if __name__ == "__main__":
    main()
