"""asv: the slots of windows, beside NumPy's expressions, the general path, and writing as many bytes."""

from __future__ import annotations

import math
from concurrent.futures import Future
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

import fastindex as fi
from benchmarks.copy_ceiling import LINE_BYTES, pool
from benchmarks.index_rows import numpy_linear_index
from benchmarks.measure import Run, medians, touched_bytes

#: Name -> shape and window, each of about 16.8 million elements; only appended to.
CASES: dict[str, tuple[str, Any]] = {
    "plain": ("f32[8192,8192]", np.s_[1000:5096, 3000:7096]),
    "T(8,128)": ("f32[8192,8192]{1,0:T(8,128)}", np.s_[1000:5096, 3000:7096]),
    "T(8,128), odd": ("f32[5003,5009]{1,0:T(8,128)}", np.s_[101:4194, 203:4302]),
    "T(8,128)(2,1)": ("bf16[8192,8192]{1,0:T(8,128)(2,1)}", np.s_[1001:5097, 3001:7097]),
    "T(8,128)(4,1)": ("s8[8192,8192]{1,0:T(8,128)(4,1)}", np.s_[1001:5097, 3001:7097]),
    "T(8,128), transposed": ("f32[8192,8192]{0,1:T(8,128)}", np.s_[1001:5097, 3001:7097]),
    "T(2,128)": ("f32[8192,8192]{1,0:T(2,128)}", np.s_[1001:5097, 3001:7097]),
    "T(256)": ("f32[64,300000]{1,0:T(256)}", np.s_[3:61, 5000:294263]),
    "T(8,128), steps": ("f32[16384,16384]{1,0:T(8,128)}", np.s_[5:16384:4, ::-4]),
    "4 dimensions, T(8,128)": ("f32[24,96,130,112]{3,2,1,0:T(8,128)}", np.s_[1:23, 3:93, 5:125, 40:111]),
    "short rows, T(8,128)": ("f32[2000000,16]{1,0:T(8,128)}", np.s_[3:1677725, 3:13]),
    "T(64,128)(8,1)E(4)": ("s4[8192,8192]{1,0:T(64,128)(8,1)E(4)}", np.s_[1001:5097, 3001:7097]),
    "T(2,*,128)": ("f32[166,457,227]{2,1,0:T(2,*,128)}", np.s_[:, 1:, 3:]),
    "T(6,100)": ("f32[8192,8192]{1,0:T(6,100)}", np.s_[1001:5097, 3001:7097]),
    "T(7,13)(3,2)": ("f32[5003,5009]{1,0:T(7,13)(3,2)}", np.s_[101:4194, 203:4302]),
    "T(*,128)": ("f32[300,56000]{1,0:T(*,128)}", np.s_[:, 3:]),
}


@intrinsic  # type: ignore[untyped-decorator]
def write_line(typing_context: Any, destination: Any, offset: Any) -> Any:
    """Write 64 bytes of 1 at a byte offset with a non-temporal store."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(ir.IntType(64), LINE_BYTES // 8)
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.bitcast(cgutils.pointer_add(builder, array.data, arguments[1]), vector.as_pointer())
        store = builder.store(ir.Constant(vector, [0x0101010101010101] * 8), address, align=LINE_BYTES)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(destination, types.intp), generate


@cache
def non_temporal_writes() -> Any:
    @njit("void(u1[::1], intp, intp)", nogil=True)  # type: ignore[untyped-decorator]
    def write_lines(destination: Any, begin: int, end: int) -> None:
        for offset in range(begin, end, LINE_BYTES):
            write_line(destination, offset)

    return write_lines


def writes(memory: NDArray[np.uint8], threads: int) -> dict[str, Run]:
    """The ceiling: the two ways to write as many bytes, independent of the package."""
    kernel = non_temporal_writes()
    part = -(-memory.nbytes // threads // LINE_BYTES) * LINE_BYTES
    bounds = [(begin, min(begin + part, memory.nbytes)) for begin in range(0, memory.nbytes, part)]

    def memset(begin: int, end: int) -> None:
        memory[begin:end] = 1

    def past_the_cache(begin: int, end: int) -> None:
        kernel(memory, begin, end)

    def run(task: Any) -> None:
        jobs: list[Future[None]] = [pool(threads).submit(task, *some) for some in bounds[1:]]
        task(*bounds[0])
        for job in jobs:
            job.result()

    return {"memset": lambda: run(memset), "non-temporal writes": lambda: run(past_the_cache)}


class Windows:
    """Times and ratios of one call, output given and touched; everything in turn in one process."""

    params = (list(CASES), (1, 2))
    param_names = ("case", "threads")
    timeout = 600
    rounds = 5
    #: Coordinates kept of each axis; tests keep few.
    longest = 1 << 40

    def setup(self, name: str, threads: int) -> None:
        text, window = CASES[name]
        self.shape = fi.Shape.parse(text)
        along = zip(window, self.shape.dimensions, strict=True)
        ranges = [range(*part.indices(size))[: self.longest] for part, size in along]
        self.axes = [np.arange(some.start, some.stop, some.step) for some in ranges]
        self.window = (*ranges, ...)
        sizes = tuple(len(some) for some in ranges)
        self.memory = touched_bytes(8 * math.prod(sizes) // LINE_BYTES * LINE_BYTES + LINE_BYTES)
        self.out = self.memory[: 8 * math.prod(sizes)].view(np.int64).reshape(sizes)
        self.threads = threads
        self.counted()

    def counted(self) -> None:
        fi.linear_index(self.shape, self.window, out=self.out, threads=self.threads)

    def general(self) -> None:
        """Arrays of coordinates, and a division for each element."""
        fi.linear_index(self.shape, np.ix_(*self.axes), out=self.out, threads=self.threads)

    def by_numpy(self) -> None:
        numpy_linear_index(self.shape, np.ix_(*self.axes))

    def time_window(self, name: str, threads: int) -> None:
        self.counted()

    def track_fraction_of_writing(self, name: str, threads: int) -> float:
        rivals: dict[str, Run] = {"window": self.counted, **writes(self.memory, threads)}
        seconds = medians(rivals, self.rounds)
        return min(time for name, time in seconds.items() if name != "window") / seconds["window"]

    def track_ratio_to_numpy(self, name: str, threads: int) -> float:
        seconds = medians({"window": self.counted, "NumPy": self.by_numpy}, self.rounds)
        return seconds["NumPy"] / seconds["window"]

    def track_ratio_to_general_path(self, name: str, threads: int) -> float:
        seconds = medians({"window": self.counted, "general": self.general}, self.rounds)
        return seconds["general"] / seconds["window"]
